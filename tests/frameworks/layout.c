/* What the C header of libhsakmt says of the structures that vram.py describes: same lines, same order.
 * Compile with -I /usr/include/hsakmt. */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <hsakmttypes.h>

#define SIZE(type) printf("%s %zu\n", #type, sizeof(type))
#define FIELD(type, field) \
    printf("%s.%s %zu %zu\n", #type, #field, offsetof(type, field), sizeof(((type *)0)->field))
#define SYSTEM(field) FIELD(HsaSystemProperties, field)
#define NODE(field) FIELD(HsaNodeProperties, field)
#define FLAG(field) \
    do { \
        HsaMemFlags flags; \
        memset(&flags, 0, sizeof(flags)); \
        --flags.ui32.field; \
        printf("HsaMemFlags.%s %#x\n", #field, flags.Value); \
    } while (0)

int main(void) {
    SIZE(HsaSystemProperties);
    SYSTEM(NumNodes);
    SYSTEM(PlatformOem);
    SYSTEM(PlatformId);
    SYSTEM(PlatformRev);
    SIZE(HsaNodeProperties);
    NODE(NumCPUCores);
    NODE(NumFComputeCores);
    NODE(NumMemoryBanks);
    NODE(NumCaches);
    NODE(NumIOLinks);
    NODE(CComputeIdLo);
    NODE(FComputeIdLo);
    NODE(Capability);
    NODE(MaxWavesPerSIMD);
    NODE(LDSSizeInKB);
    NODE(GDSSizeInKB);
    NODE(WaveFrontSize);
    NODE(NumShaderBanks);
    NODE(NumArrays);
    NODE(NumCUPerArray);
    NODE(NumSIMDPerCU);
    NODE(MaxSlotsScratchCU);
    NODE(EngineId);
    NODE(VendorId);
    NODE(DeviceId);
    NODE(LocationId);
    NODE(LocalMemSize);
    NODE(MaxEngineClockMhzFCompute);
    NODE(MaxEngineClockMhzCCompute);
    NODE(DrmRenderMinor);
    NODE(MarketingName);
    NODE(AMDName);
    NODE(uCodeEngineVersions);
    NODE(DebugProperties);
    NODE(HiveID);
    NODE(NumSdmaEngines);
    NODE(NumSdmaXgmiEngines);
    NODE(NumSdmaQueuesPerEngine);
    NODE(NumCpQueues);
    NODE(NumGws);
    NODE(Integrated);
    NODE(Domain);
    NODE(UniqueID);
    NODE(VGPRSizePerCU);
    NODE(SGPRSizePerCU);
    NODE(NumXcc);
    NODE(KFDGpuID);
    NODE(FamilyID);
    SIZE(HsaMemFlags);
    FLAG(NonPaged);
    FLAG(PageSize);
    FLAG(HostAccess);
    FLAG(NoSubstitute);
    return 0;
}
