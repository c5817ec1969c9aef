"""Memory of GPUs for Python: VRAM that real libhsakmt allocates, mapped through the GPU's render node.

What it is for: a framework's own arrays can lie in it, so that a checkpoint of the process has to carry
VRAM. What it promises: each buffer is VRAM of one GPU, as the CPU sees it, and is mapped for that GPU.
No framework is known here.

`python3 vram.py` prints where this file believes the fields of libhsakmt's structures to be, a line each,
for a comparison with the C header (`layout.c`).
"""

import ctypes
import mmap
import os

def u32(*names):
    return [(name, ctypes.c_uint32) for name in names]


class HsaSystemProperties(ctypes.Structure):
    """What libhsakmt says of the machine."""

    # Its header has `#pragma pack(4)`.
    _pack_ = 4
    _fields_ = u32("NumNodes", "PlatformOem", "PlatformId", "PlatformRev")


class HsaNodeProperties(ctypes.Structure):
    """What libhsakmt says of a node, which may be a GPU."""

    _pack_ = 4
    _fields_ = (
        u32("NumCPUCores", "NumFComputeCores", "NumMemoryBanks", "NumCaches", "NumIOLinks")
        + u32("CComputeIdLo", "FComputeIdLo", "Capability", "MaxWavesPerSIMD", "LDSSizeInKB")
        + u32("GDSSizeInKB", "WaveFrontSize", "NumShaderBanks", "NumArrays", "NumCUPerArray")
        + u32("NumSIMDPerCU", "MaxSlotsScratchCU", "EngineId")
        + [("VendorId", ctypes.c_uint16), ("DeviceId", ctypes.c_uint16)]
        + u32("LocationId")
        + [("LocalMemSize", ctypes.c_uint64)]
        + u32("MaxEngineClockMhzFCompute", "MaxEngineClockMhzCCompute")
        + [("DrmRenderMinor", ctypes.c_int32)]
        + [("MarketingName", ctypes.c_uint16 * 64), ("AMDName", ctypes.c_uint8 * 64)]
        + u32("uCodeEngineVersions")
        + [("DebugProperties", ctypes.c_uint64), ("HiveID", ctypes.c_uint64)]
        + u32("NumSdmaEngines", "NumSdmaXgmiEngines")
        + [("NumSdmaQueuesPerEngine", ctypes.c_uint8), ("NumCpQueues", ctypes.c_uint8)]
        + [("NumGws", ctypes.c_uint8), ("Integrated", ctypes.c_uint8)]
        + u32("Domain")
        + [("UniqueID", ctypes.c_uint64)]
        + u32("VGPRSizePerCU", "SGPRSizePerCU", "NumXcc", "KFDGpuID", "FamilyID")
    )


class HsaMemFlags(ctypes.Structure):
    """The flags that are used here, and what lies between them."""

    _fields_ = [
        ("NonPaged", ctypes.c_uint32, 1),
        ("CachePolicy", ctypes.c_uint32, 2),
        ("ReadOnly", ctypes.c_uint32, 1),
        ("PageSize", ctypes.c_uint32, 2),
        ("HostAccess", ctypes.c_uint32, 1),
        ("NoSubstitute", ctypes.c_uint32, 1),
        ("Others", ctypes.c_uint32, 24),
    ]


class Gpu:
    """One that this process may use."""

    def __init__(self, library, node, properties):
        self._library = library
        self._node = node
        self.gpu_id = properties.KFDGpuID
        self.render_minor = properties.DrmRenderMinor

    def allocate(self, size):
        """VRAM for as long as the process lives: `size` bytes, as a writable ctypes array."""
        whole = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        # VRAM that the CPU may access; pages of 4 KiB are page size 0.
        flags = HsaMemFlags(NonPaged=1, HostAccess=1, NoSubstitute=1)
        address = ctypes.c_void_p()
        self._library.call("hsaKmtAllocMemory", self._node, whole, flags, ctypes.byref(address))
        alternate = ctypes.c_uint64()
        self._library.call("hsaKmtMapMemoryToGPU", address, whole, ctypes.byref(alternate))
        self._expect_mapping(address.value)
        return (ctypes.c_uint8 * size).from_address(address.value)

    def _expect_mapping(self, address):
        device = f"/dev/dri/renderD{self.render_minor}"
        with open("/proc/self/maps", encoding="ascii") as maps:
            for line in maps:
                begin, end = (int(part, 16) for part in line.split()[0].split("-"))
                if begin <= address < end:
                    if line.split()[-1] != device:
                        raise OSError(f"{address:#x} is not mapped through {device}: {line.strip()}")
                    return
        raise OSError(f"{address:#x} is not mapped")


class _Library:
    _SIGNATURES = {
        "hsaKmtOpenKFD": [],
        "hsaKmtAcquireSystemProperties": [ctypes.POINTER(HsaSystemProperties)],
        "hsaKmtGetNodeProperties": [ctypes.c_uint32, ctypes.POINTER(HsaNodeProperties)],
        "hsaKmtAllocMemory": [
            ctypes.c_uint32,
            ctypes.c_uint64,
            HsaMemFlags,
            ctypes.POINTER(ctypes.c_void_p),
        ],
        "hsaKmtMapMemoryToGPU": [ctypes.c_void_p, ctypes.c_uint64, ctypes.POINTER(ctypes.c_uint64)],
    }

    def __init__(self):
        self._library = ctypes.CDLL("libhsakmt.so.1")
        for name, arguments in self._SIGNATURES.items():
            getattr(self._library, name).argtypes = arguments

    def call(self, name, *arguments):
        status = getattr(self._library, name)(*arguments)
        if status != 0:
            raise OSError(f"{name} failed: HSAKMT_STATUS {status}")


def gpus():
    """All GPUs that this process may use, in the order of libhsakmt's nodes."""
    library = _Library()
    library.call("hsaKmtOpenKFD")
    system = HsaSystemProperties()
    library.call("hsaKmtAcquireSystemProperties", ctypes.byref(system))
    found = []
    for node in range(system.NumNodes):
        properties = HsaNodeProperties()
        library.call("hsaKmtGetNodeProperties", node, ctypes.byref(properties))
        if properties.NumFComputeCores != 0 and os.path.exists(
            f"/dev/dri/renderD{properties.DrmRenderMinor}"
        ):
            found.append(Gpu(library, node, properties))
    if not found:
        raise OSError("there is no GPU that this process may use")
    return found


class Pool:
    """Buffers of several GPUs."""

    def __init__(self, of=None):
        self._gpus = of if of is not None else gpus()
        self.bytes = [0] * len(self._gpus)

    def allocate(self, size):
        """A buffer of the GPU that has the least so far."""
        at = self.bytes.index(min(self.bytes))
        self.bytes[at] += size
        return self._gpus[at].allocate(size)

    def describe(self):
        """What was allocated, in a line."""
        parts = [
            f"{size} bytes of GPU {gpu.gpu_id:#06x} (renderD{gpu.render_minor})"
            for gpu, size in zip(self._gpus, self.bytes)
        ]
        return ", ".join(parts)


def _bits(field):
    flags = HsaMemFlags()
    setattr(flags, field, -1)
    return int.from_bytes(bytes(flags), "little")


def main():
    for made in (HsaSystemProperties, HsaNodeProperties):
        print(f"{made.__name__} {ctypes.sizeof(made)}")
        for name, _ in made._fields_:
            field = getattr(made, name)
            print(f"{made.__name__}.{name} {field.offset} {field.size}")
    print(f"HsaMemFlags {ctypes.sizeof(HsaMemFlags)}")
    for name in ("NonPaged", "PageSize", "HostAccess", "NoSubstitute"):
        print(f"HsaMemFlags.{name} {_bits(name):#x}")


if __name__ == "__main__":
    main()
