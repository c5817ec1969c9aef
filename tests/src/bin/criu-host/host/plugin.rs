//! Plugins: loaded and verified as CRIU does it.

use std::{
    ffi::{CStr, CString, c_char, c_int, c_void},
    os::unix::ffi::OsStrExt,
    path::Path,
};

use nix::libc;

use super::{Result, Stage, complain, host, say};

/// Numbers of hooks.
pub(super) mod hook {
    pub(crate) const DUMP_EXT_FILE: usize = 2;
    pub(crate) const RESTORE_EXT_FILE: usize = 3;
    pub(crate) const HANDLE_DEVICE_VMA: usize = 7;
    pub(crate) const UPDATE_VMA_MAP: usize = 8;
    pub(crate) const RESUME_DEVICES_LATE: usize = 9;
    pub(crate) const PAUSE_DEVICES: usize = 10;
    pub(crate) const CHECKPOINT_DEVICES: usize = 11;
    pub(crate) const POST_FORKING: usize = 12;
    pub(crate) const RESTORE_INIT: usize = 13;
    pub(crate) const DUMP_DEVICES_LATE: usize = 14;
}

/// Not mine.
pub(super) const ENOTSUP: c_int = -libc::EOPNOTSUPP;

const HOST_VERSION: u32 = 0x200;

/// `cr_plugin_desc_t` up to its array.
#[repr(C)]
struct Head {
    name: *const c_char,
    init: Option<unsafe extern "C" fn(c_int) -> c_int>,
    exit: Option<unsafe extern "C" fn(c_int, c_int)>,
    version: u32,
    max_hooks: u32,
}

/// A loaded plugin.
#[derive(Debug)]
pub(super) struct Plugin {
    exit: Option<unsafe extern "C" fn(c_int, c_int)>,
    hooks: Vec<*const c_void>,
}

/// All of them, in the order in which they are asked.
#[derive(Debug, Default)]
pub(super) struct Plugins(Vec<Plugin>);

impl Plugins {
    /// Loads and initialises plugins. After a failure those before it have been told of the end.
    pub(super) fn load(paths: &[impl AsRef<Path>], stage: Stage) -> Result<Self> {
        let mut plugins = Plugins::default();
        for path in paths {
            match Plugin::load(path.as_ref(), stage) {
                Ok(plugin) => plugins.0.push(plugin),
                Err(error) => {
                    plugins.exit(stage, -1);
                    return Err(error);
                }
            }
        }
        Ok(plugins)
    }

    /// `cr_plugin_fini`.
    pub(super) fn exit(&self, stage: Stage, ret: c_int) {
        for plugin in &self.0 {
            say(&format!("exit {} {ret}", stage as c_int));
            if let Some(exit) = plugin.exit {
                // SAFETY: the plugin says that this is its exit, and it was initialised.
                unsafe { exit(stage as c_int, ret) };
            }
        }
    }

    /// `run_plugins`: asks one after the other until one says that it is its own.
    pub(super) fn run(&self, hook: usize, mut ask: impl FnMut(*const c_void) -> c_int) -> c_int {
        for plugin in &self.0 {
            let Some(&function) = plugin.hooks.get(hook).filter(|function| !function.is_null())
            else {
                continue;
            };
            let ret = ask(function);
            if ret != ENOTSUP {
                return ret;
            }
        }
        ENOTSUP
    }

    /// A hook that takes a number.
    pub(super) fn run_with(&self, hook: usize, argument: c_int) -> c_int {
        self.run(hook, |function| {
            // SAFETY: hooks that are called this way have this prototype.
            let function: unsafe extern "C" fn(c_int) -> c_int =
                unsafe { std::mem::transmute(function) };
            // SAFETY: as its prototype says.
            unsafe { function(argument) }
        })
    }

    /// A hook without arguments.
    pub(super) fn run_plain(&self, hook: usize) -> c_int {
        self.run(hook, |function| {
            // SAFETY: hooks that are called this way have this prototype.
            let function: unsafe extern "C" fn() -> c_int =
                unsafe { std::mem::transmute(function) };
            // SAFETY: as its prototype says.
            unsafe { function() }
        })
    }
}

impl Plugin {
    fn load(path: &Path, stage: Stage) -> Result<Self> {
        let shown = path.display();
        let c_path = CString::new(path.as_os_str().as_bytes())?;
        // SAFETY: a C string; what constructors do is the plugin's.
        let library = unsafe { libc::dlopen(c_path.as_ptr(), libc::RTLD_LAZY) };
        if library.is_null() {
            // SAFETY: after a failure there is a message.
            let error = unsafe { libc::dlerror() };
            // SAFETY: a C string until the next call of this family.
            let error = unsafe { CStr::from_ptr(error) }.to_string_lossy();
            return Err(format!("Failed to load {shown}: {error}").into());
        }
        // SAFETY: a library that is open, and a C string.
        let found = unsafe { libc::dlsym(library, c"CR_PLUGIN_DESC".as_ptr()) };
        if found.is_null() {
            return Err(format!("{shown}: no CR_PLUGIN_DESC").into());
        }
        // SAFETY: the symbol is a descriptor.
        let head = unsafe { &*found.cast::<Head>() };
        let known = host().flavour.hooks;
        let max_hooks = head.max_hooks as usize;
        say(&format!("descriptor version={:#x} max_hooks={max_hooks}", head.version));
        if head.version > HOST_VERSION || max_hooks > known {
            complain(&format!("Corrupted plugin {shown}"));
            return Err(format!("Corrupted plugin {shown}").into());
        }
        // SAFETY: a C string, as the descriptor says.
        let name = unsafe { CStr::from_ptr(head.name) }.to_string_lossy().into_owned();
        if let Some(init) = head.init {
            // SAFETY: the plugin's init.
            let ret = unsafe { init(stage as c_int) };
            say(&format!("init {} = {ret}", stage as c_int));
            if ret != 0 {
                return Err(format!("Failed in init({}) of {name}", stage as c_int).into());
            }
        }
        // SAFETY: the array follows the head.
        let first = unsafe { found.cast::<Head>().add(1) }.cast::<*const c_void>();
        // SAFETY: it has as many entries as the descriptor says.
        let hooks = unsafe { std::slice::from_raw_parts(first, max_hooks) }.to_vec();
        let present: Vec<String> = hooks
            .iter()
            .enumerate()
            .filter(|(_, hook)| !hook.is_null())
            .map(|(number, _)| number.to_string())
            .collect();
        say(&format!("plugin {name} hooks {}", present.join(",")));
        Ok(Plugin { exit: head.exit, hooks })
    }
}
