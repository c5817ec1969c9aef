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
        SET_XNACK_MODE CRIU_OP AVAILABLE_MEMORY EXPORT_DMABUF RUNTIME_ENABLE;
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

/// Whether anything is called this.
pub(super) fn exists(name: &str) -> bool {
    let mut all = RENDER.iter().chain(KFD).map(|(_, known)| *known).chain([OPEN, MMAP]);
    all.any(|known| known == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_and_new_numbers_have_one_name() {
        assert_eq!(of_render(amdgpu::GEM_VA.number()), "GEM_VA");
        assert_eq!(of_render(amdgpu::GEM_VA_OLD), "GEM_VA");
        assert_eq!(of_kfd(kfd::CRIU_OP.number()), "CRIU_OP");
        assert_eq!(of_kfd(0xff), "unknown");
        assert!(exists("open") && exists("CTX") && !exists("ctx"));
    }
}
