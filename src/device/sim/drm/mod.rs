//! The render nodes: what DRM and amdgpu answer.
//!
//! ```text
//!  info     VERSION, GET_CAP, INFO
//!  gem      objects and their handles          prime    dma-bufs
//!  va       the address space                  context  contexts, lists of objects
//!  submit   CS: from chunks to a job           wait     WAIT_CS, WAIT_FENCES, GEM_WAIT_IDLE
//!  release  what is left when a file is closed
//! ```
//!
//! # Limits
//!
//! The DMA engines are the only ones: no GFX, no compute, no video. No sync objects, no sparse
//! (PRT) mappings, no GDS, GWS or OA. All buffers of a submission go to one ring. An object that
//! was imported from another GPU is that object, not one that refers to it, so it cannot be mapped
//! through the importer's node.

use std::{
    collections::BTreeMap,
    os::fd::OwnedFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use nix::errno::Errno;

use self::handles::Handles;
use super::{
    arena::View,
    caller::Call,
    dispatch::with,
    host::{FileId, FileKind, SimHost},
    object::Object,
    vm::Vm,
};
use crate::abi::{amdgpu, amdgpu::create, drm, request_nr};

mod context;
mod gem;
mod handles;
mod info;
mod prime;
mod release;
mod submit;
mod va;
mod wait;

pub(super) use context::Context;
pub(super) use release::released;

/// An open render node.
#[derive(Debug)]
pub(super) struct RenderFile {
    /// Which GPU's.
    pub gpu: usize,
    /// Who opened it.
    pub pid: u32,
    /// Its address space, which KFD may share.
    pub vm: Arc<Mutex<Vm>>,
    /// The KFD process that uses the address space as its own.
    pub kfd_pid: Option<u32>,
    handles: Handles,
    contexts: BTreeMap<u32, Arc<Context>>,
    /// Lists of objects by their handle.
    lists: BTreeMap<u32, Vec<Arc<Object>>>,
    /// Whether KFD ever used it: then it is not for us to say what may be left in it.
    is_applications: bool,
}

impl RenderFile {
    fn new(gpu: usize, pid: u32) -> Self {
        RenderFile {
            gpu,
            pid,
            vm: Arc::default(),
            kfd_pid: None,
            handles: Handles::default(),
            contexts: BTreeMap::new(),
            lists: BTreeMap::new(),
            is_applications: false,
        }
    }

    /// The address space, locked.
    pub(super) fn vm(&self) -> MutexGuard<'_, Vm> {
        self.vm.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The address space is from now on that of a KFD process, and the file an application's.
    pub(super) fn bind(&mut self, pid: u32) {
        self.kfd_pid = Some(pid);
        self.is_applications = true;
    }
}

/// The GPU of a render node.
pub(super) fn gpu_of(host: &SimHost, minor: u32) -> Option<usize> {
    host.machine().gpus.iter().position(|gpu| gpu.render_minor == minor)
}

/// Opens a render node; ENOENT where the machine has none of this number.
pub(super) fn open(host: &SimHost, pid: u32, minor: u32) -> nix::Result<(FileId, OwnedFd)> {
    let gpu = gpu_of(host, minor).ok_or(Errno::ENOENT)?;
    let file = Box::new(RenderFile::new(gpu, pid));
    host.state().open(&format!("renderD{minor}"), FileKind::Render(file))
}

/// Issues an ioctl. Only the low byte of its number selects the handler; an unknown one is EINVAL.
pub(super) fn ioctl(host: &SimHost, call: &mut Call<'_>, argument: &mut [u8]) -> nix::Result<()> {
    macro_rules! handlers {
        ($($family:ident::$request:ident => $handler:path;)*) => {{
            $(const $request: u32 = request_nr($family::$request.number());)*
            match request_nr(call.request) {
                $($request => with(argument, |value| $handler(host, call, value)),)*
                _ => Err(Errno::EINVAL),
            }
        }};
    }
    handlers! {
        drm::VERSION => info::version;
        drm::GET_CAP => info::get_cap;
        drm::GEM_CLOSE => gem::close;
        drm::PRIME_HANDLE_TO_FD => prime::handle_to_fd;
        drm::PRIME_FD_TO_HANDLE => prime::fd_to_handle;
        drm::GEM_CHANGE_HANDLE => gem::change_handle;
        amdgpu::INFO => info::info;
        amdgpu::GEM_CREATE => gem::create;
        amdgpu::GEM_MMAP => gem::mmap;
        amdgpu::GEM_USERPTR => gem::userptr;
        amdgpu::GEM_OP => gem::op;
        amdgpu::GEM_LIST_HANDLES => gem::list_handles;
        amdgpu::GEM_VA => va::gem_va;
        amdgpu::GEM_WAIT_IDLE => wait::wait_idle;
        amdgpu::CTX => context::ctx;
        amdgpu::BO_LIST => context::bo_list;
        amdgpu::CS => submit::cs;
        amdgpu::WAIT_CS => wait::wait_cs;
        amdgpu::WAIT_FENCES => wait::wait_fences;
    }
}

/// Maps an object by its exact offset: EINVAL where there is none or it is shorter, EACCES where
/// the file has no handle of it and is not the address space of the KFD process that it belongs to.
pub(super) fn map(host: &SimHost, file: FileId, offset: u64, len: u64) -> nix::Result<View> {
    let object = {
        let mut state = host.state();
        let gpu = state.render(file)?.gpu;
        let object = state.gpus[gpu].mmap.get(&offset).and_then(std::sync::Weak::upgrade);
        let object = object.filter(|object| object.size >= len).ok_or(Errno::EINVAL)?;
        let file = state.render(file)?;
        let (has_handle, kfd_pid) = (file.handles.of(&object).is_some(), file.kfd_pid);
        let granted = || kfd_pid.is_some_and(|pid| state.kfd.grants(pid, gpu, offset));
        if !has_handle && !granted() {
            return Err(Errno::EACCES);
        }
        object
    };
    let hidden = object.create.domain_flags & create::NO_CPU_ACCESS != 0;
    match object.piece() {
        Some(piece) if !hidden => Ok(piece.view(0, len).keeping(Arc::clone(&object) as _)),
        _ => Err(Errno::EPERM),
    }
}
