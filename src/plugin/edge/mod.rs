//! The C edge: what CRIU finds in the shared object.
//!
//! CRIU reads `CR_PLUGIN_DESC` right after it has loaded the object. A plugin that announces more
//! hooks than CRIU knows makes the whole command fail, so the number is found out before that, when
//! the object is loaded; and the hook whose prototype has changed is chosen to fit.
//!
//! The functions translate, and do nothing else. No panic gets out of them.

use std::{
    ffi::{CStr, c_char, c_int, c_void},
    mem,
    os::fd::{BorrowedFd, IntoRawFd},
    panic::{AssertUnwindSafe, catch_unwind},
    ptr,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicPtr, AtomicU32, Ordering},
    },
};

use nix::libc;

use super::Plugin;
use crate::{
    abi::criu::{
        FAILED, FEWEST_HOOKS, HOOKS_WITH_RETRY, Level, MOST_HOOKS, NOT_OURS, Stage, VERSION,
        hook as place,
    },
    system::System,
};

mod criu;
mod fork;
mod shared;

use criu::Criu;

/// The plugin of this process: `init` makes it. CRIU calls hooks on one thread.
static PLUGIN: Mutex<Option<Plugin>> = Mutex::new(None);

const MARK_TEXT: &[u8] = concat!("vramstream plugin ", env!("CARGO_PKG_VERSION"), "\0").as_bytes();

/// What tells this object from other plugins of the same name: `vramstream plugin VERSION`.
#[unsafe(no_mangle)]
pub(super) static VRAMSTREAM_PLUGIN: [u8; MARK_TEXT.len()] = {
    let mut mark = [0; MARK_TEXT.len()];
    mark.copy_from_slice(MARK_TEXT);
    mark
};

/// `cr_plugin_desc_t`.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Descriptor {
    name: AtomicPtr<c_char>,
    init: extern "C" fn(c_int) -> c_int,
    exit: extern "C" fn(c_int, c_int),
    version: u32,
    max_hooks: AtomicU32,
    hooks: [AtomicPtr<c_void>; MOST_HOOKS],
}

/// What CRIU looks for.
#[unsafe(no_mangle)]
pub(super) static CR_PLUGIN_DESC: Descriptor = Descriptor {
    name: AtomicPtr::new(c"amdgpu_plugin".as_ptr().cast_mut()),
    init,
    exit,
    version: VERSION,
    max_hooks: AtomicU32::new(FEWEST_HOOKS),
    hooks: hooks(),
};

const fn hooks() -> [AtomicPtr<c_void>; MOST_HOOKS] {
    let mut hooks = [const { AtomicPtr::new(ptr::null_mut()) }; MOST_HOOKS];
    hooks[place::DUMP_EXT_FILE] = AtomicPtr::new(dump_ext_file as *mut c_void);
    hooks[place::RESTORE_EXT_FILE] = AtomicPtr::new(restore_ext_file as *mut c_void);
    hooks[place::HANDLE_DEVICE_VMA] = AtomicPtr::new(handle_device_vma as *mut c_void);
    hooks[place::UPDATE_VMA_MAP] = AtomicPtr::new(update_vma_map as *mut c_void);
    hooks[place::RESUME_DEVICES_LATE] = AtomicPtr::new(resume_devices_late as *mut c_void);
    hooks[place::DUMP_DEVICES_LATE] = AtomicPtr::new(dump_devices_late as *mut c_void);
    hooks
}

/// Runs when the object is loaded, before CRIU reads the descriptor.
#[used]
#[unsafe(link_section = ".init_array")]
static LOADED: extern "C" fn() = loaded;

extern "C" fn loaded() {
    guarded((), || {
        let Some(hooks) = criu::hooks() else { return };
        // A CRIU that knows more is refused in `init`, where it can be told why.
        let most = u32::try_from(hooks.min(MOST_HOOKS)).unwrap_or(0);
        CR_PLUGIN_DESC.max_hooks.store(most, Ordering::Relaxed);
        if hooks >= HOOKS_WITH_RETRY {
            let with_retry = restore_ext_file_or_retry as *mut c_void;
            CR_PLUGIN_DESC.hooks[place::RESTORE_EXT_FILE].store(with_retry, Ordering::Relaxed);
        }
    });
}

/// Runs what must not panic over the edge.
fn guarded<T>(failed: T, run: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| {
        let what = "Error (vramstream): internal error: a hook panicked; please report this";
        drop(catch_unwind(|| criu::log(Level::Error, what)));
        failed
    })
}

/// Runs a hook of the plugin; one that was not made has nothing of its own.
fn hook(run: impl FnOnce(&mut Plugin) -> c_int) -> c_int {
    guarded(FAILED, || {
        let mut plugin = PLUGIN.lock().unwrap_or_else(PoisonError::into_inner);
        plugin.as_mut().map_or(NOT_OURS, run)
    })
}

extern "C" fn init(stage: c_int) -> c_int {
    guarded(FAILED, || {
        let Some(stage) = Stage::from_number(stage) else { return FAILED };
        let Some(host) = Criu::new(stage) else {
            criu::log(Level::Error, "Error (vramstream): no memory to share with restored tasks");
            return FAILED;
        };
        match Plugin::start(Box::new(host), System::from_env(), stage) {
            Ok(plugin) => {
                *PLUGIN.lock().unwrap_or_else(PoisonError::into_inner) = Some(plugin);
                0
            }
            Err(answer) => answer,
        }
    })
}

extern "C" fn exit(_stage: c_int, ret: c_int) {
    guarded((), || {
        let plugin = PLUGIN.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(plugin) = plugin {
            plugin.finish(ret != 0);
        }
    });
}

extern "C" fn dump_ext_file(fd: c_int, id: c_int) -> c_int {
    let (0.., Ok(id)) = (fd, u32::try_from(id)) else { return NOT_OURS };
    hook(|plugin| {
        // SAFETY: CRIU keeps the descriptor open during the call.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        plugin.dump_file(fd, id)
    })
}

extern "C" fn restore_ext_file(id: c_int) -> c_int {
    let Ok(id) = u32::try_from(id) else { return NOT_OURS };
    hook(|plugin| match plugin.restore_file(id) {
        Ok(file) => file.into_raw_fd(),
        Err(answer) => answer,
    })
}

extern "C" fn restore_ext_file_or_retry(id: c_int, retry: *mut bool) -> c_int {
    if !retry.is_null() {
        // SAFETY: a CRIU with so many hooks has a place for the answer there, and has put nothing
        // into it.
        unsafe { retry.write(false) };
    }
    restore_ext_file(id)
}

extern "C" fn handle_device_vma(_fd: c_int, stat: *const libc::stat) -> c_int {
    if stat.is_null() {
        return NOT_OURS;
    }
    // SAFETY: CRIU has filled it, and keeps it during the call.
    let stat = unsafe { stat.read() };
    if stat.st_mode & libc::S_IFMT != libc::S_IFCHR {
        return NOT_OURS;
    }
    hook(|plugin| plugin.device_mapping(stat.st_rdev))
}

extern "C" fn update_vma_map(
    path: *const c_char,
    _addr: u64,
    old: u64,
    new: *mut u64,
    fd: *mut c_int,
) -> c_int {
    if path.is_null() || new.is_null() || fd.is_null() {
        return NOT_OURS;
    }
    // SAFETY: CRIU has a path that ends, and keeps it during the call.
    let path = unsafe { CStr::from_ptr(path) };
    let Ok(path) = path.to_str() else { return NOT_OURS };
    hook(|plugin| {
        let mapping = plugin.restore_mapping(path, old);
        if let Some(offset) = mapping.offset {
            // SAFETY: CRIU has a place for it.
            unsafe { new.write(offset) };
        }
        if let Some(file) = mapping.file {
            // SAFETY: CRIU has a place for it, and owns the descriptor from then on.
            unsafe { fd.write(file.into_raw_fd()) };
        }
        mapping.answer
    })
}

extern "C" fn resume_devices_late(pid: c_int) -> c_int {
    let Ok(pid) = u32::try_from(pid) else { return NOT_OURS };
    hook(|plugin| plugin.resume(pid))
}

extern "C" fn dump_devices_late(_pid: c_int) -> c_int {
    hook(Plugin::dump_late)
}

const _: () = assert!(mem::offset_of!(Descriptor, max_hooks) == 28);
const _: () = assert!(mem::offset_of!(Descriptor, hooks) == 32);
const _: () = assert!(size_of::<Descriptor>() == 32 + 8 * MOST_HOOKS);
