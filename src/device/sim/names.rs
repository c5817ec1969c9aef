//! What requests are called: without the prefix of their family, as in [`crate::abi`].

use crate::abi::{amdgpu, drm, kfd, request_nr};

/// Opening a node.
pub(super) const OPEN: &str = "open";
/// Mapping memory of a node.
pub(super) const MMAP: &str = "mmap";

/// Drivers find their handlers by the low byte of a number alone.
type Table = &'static [(u32, &'static str)];

macro_rules! names {
    ($($family:ident: $($request:ident)*;)*) => {
        &[$($((request_nr($family::$request.number()), $family::$request.name()),)*)*]
    };
}

const RENDER: Table = names! {
    drm: VERSION GEM_CLOSE GET_CAP PRIME_HANDLE_TO_FD PRIME_FD_TO_HANDLE GEM_CHANGE_HANDLE;
    amdgpu: GEM_CREATE GEM_MMAP CTX BO_LIST CS INFO GEM_WAIT_IDLE GEM_VA WAIT_CS GEM_OP GEM_USERPTR
        WAIT_FENCES GEM_LIST_HANDLES;
};

const KFD: Table = names! {
    kfd: GET_VERSION CREATE_QUEUE DESTROY_QUEUE SET_MEMORY_POLICY GET_CLOCK_COUNTERS
        GET_PROCESS_APERTURES UPDATE_QUEUE CREATE_EVENT DESTROY_EVENT SET_EVENT RESET_EVENT
        WAIT_EVENTS SET_TRAP_HANDLER GET_PROCESS_APERTURES_NEW ACQUIRE_VM ALLOC_MEMORY_OF_GPU
        FREE_MEMORY_OF_GPU MAP_MEMORY_TO_GPU UNMAP_MEMORY_FROM_GPU GET_DMABUF_INFO IMPORT_DMABUF SVM
        SET_XNACK_MODE CRIU_OP AVAILABLE_MEMORY EXPORT_DMABUF RUNTIME_ENABLE SET_SCRATCH_BACKING_VA
        GET_TILE_CONFIG SET_CU_MASK GET_QUEUE_WAVE_STATE ALLOC_QUEUE_GWS SMI_EVENTS DBG_TRAP;
};

fn find(table: Table, number: u32) -> Option<&'static str> {
    let nr = request_nr(number);
    table.iter().find(|(known, _)| *known == nr).map(|(_, name)| *name)
}

/// The name of a request to a render node, or "unknown".
pub(super) fn of_render(number: u32) -> &'static str {
    find(RENDER, number).unwrap_or("unknown")
}

/// The name of a request to `/dev/kfd`, or "unknown".
pub(super) fn of_kfd(number: u32) -> &'static str {
    find(KFD, number).unwrap_or("unknown")
}

/// The GPU that a request to `/dev/kfd` is about, as its argument calls it: by its id, or in the
/// upper half of a handle.
pub(super) fn gpu_id_of(number: u32, argument: &[u8]) -> Option<u32> {
    macro_rules! offsets {
        ($($request:ident $kind:ident.$field:ident + $more:literal;)*) => {
            &[$((
                request_nr(kfd::$request.number()),
                std::mem::offset_of!(kfd::$kind, $field) + $more,
            ),)*]
        };
    }
    let offsets: &[(u32, usize)] = offsets! {
        CREATE_QUEUE CreateQueue.gpu_id + 0;
        SET_MEMORY_POLICY SetMemoryPolicy.gpu_id + 0;
        GET_CLOCK_COUNTERS GetClockCounters.gpu_id + 0;
        SET_TRAP_HANDLER SetTrapHandler.gpu_id + 0;
        ACQUIRE_VM AcquireVm.gpu_id + 0;
        ALLOC_MEMORY_OF_GPU AllocMemoryOfGpu.gpu_id + 0;
        IMPORT_DMABUF ImportDmabuf.gpu_id + 0;
        AVAILABLE_MEMORY AvailableMemory.gpu_id + 0;
        SET_SCRATCH_BACKING_VA SetScratchBackingVa.gpu_id + 0;
        GET_TILE_CONFIG GetTileConfig.gpu_id + 0;
        SMI_EVENTS SmiEvents.gpuid + 0;
        FREE_MEMORY_OF_GPU FreeMemoryOfGpu.handle + 4;
        MAP_MEMORY_TO_GPU MapMemoryToGpu.handle + 4;
        UNMAP_MEMORY_FROM_GPU UnmapMemoryFromGpu.handle + 4;
        EXPORT_DMABUF ExportDmabuf.handle + 4;
    };
    let (_, offset) = offsets.iter().find(|(nr, _)| *nr == request_nr(number))?;
    let bytes = argument.get(*offset..)?.first_chunk()?;
    Some(u32::from_le_bytes(*bytes))
}

/// Whether anything is called this.
pub(super) fn exists(name: &str) -> bool {
    let mut all = RENDER.iter().chain(KFD).map(|(_, known)| *known).chain([OPEN, MMAP]);
    all.any(|known| known == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_and_new_numbers_have_one_name_and_arguments_name_their_gpu() {
        assert_eq!(of_render(amdgpu::GEM_VA.number()), "GEM_VA");
        assert_eq!(of_render(amdgpu::GEM_VA_OLD), "GEM_VA");
        assert_eq!(of_kfd(kfd::CRIU_OP.number()), "CRIU_OP");
        assert_eq!(of_kfd(0xff), "unknown");
        let mut argument = [0; 24];
        argument[4..8].copy_from_slice(&7_u32.to_le_bytes());
        assert_eq!(gpu_id_of(kfd::MAP_MEMORY_TO_GPU.number(), &argument), Some(7));
        assert_eq!(gpu_id_of(kfd::IMPORT_DMABUF.number(), &argument), Some(0));
        assert_eq!(gpu_id_of(kfd::CRIU_OP.number(), &argument), None);
        assert!(exists("open") && exists("CTX") && !exists("ctx"));
    }
}
