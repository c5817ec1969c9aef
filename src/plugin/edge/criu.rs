//! The CRIU that has loaded the plugin, by its symbols. They are looked up when they are needed: what
//! an older CRIU does not have is missing, and no reason not to load.

use std::{
    ffi::{CStr, CString, c_char, c_int, c_uint, c_void},
    io,
    mem::{MaybeUninit, transmute},
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    ptr,
};

use nix::libc;

use super::{
    super::host::{Access, Beside, Host, NAME, Work},
    fork,
    shared::Counter,
};
use crate::abi::criu::{Level, Stage, hooks_of, open_flags, service_fd};

/// The most times that an inventory has the name of one plugin: each must be taken out.
const MOST_NAMES: usize = 64;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Criu {
    restored: Option<Counter>,
}

impl Criu {
    /// `None` if there is no memory: without it nobody would know whose queues are to be started.
    pub(super) fn new(stage: Stage) -> Option<Self> {
        let restored = if stage == Stage::Restore { Some(Counter::new()?) } else { None };
        Some(Criu { restored })
    }
}

unsafe extern "C" {
    /// glibc's: `dladdr`, and what the symbol table says of the symbol.
    fn dladdr1(
        address: *const c_void,
        info: *mut libc::Dl_info,
        extra: *mut *mut c_void,
        flags: c_int,
    ) -> c_int;
}

/// The extra that `dladdr1` gives is the symbol.
const RTLD_DL_SYMENT: c_int = 1;

/// Looks up a symbol of CRIU's.
fn symbol(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: the name ends, and looking up runs nothing.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

/// A function of CRIU's with this type.
macro_rules! function {
    ($name:literal: $($type:tt)*) => {
        symbol($name).map(|found| {
            // SAFETY: CRIU's function of this name has this prototype ("criu/include", 3.17 to the
            // development branch).
            unsafe { transmute::<*mut c_void, unsafe extern "C" $($type)*>(found) }
        })
    };
}

/// How many hooks CRIU knows: its block of control has a list for each.
pub(super) fn hooks() -> Option<usize> {
    let control = symbol(c"cr_plugin_ctl")?;
    let mut info = MaybeUninit::<libc::Dl_info>::uninit();
    let mut entry = ptr::null_mut();
    // SAFETY: both places can be written to, and the address is of a loaded object.
    let found = unsafe { dladdr1(control, info.as_mut_ptr(), &raw mut entry, RTLD_DL_SYMENT) };
    let entry = entry.cast::<libc::Elf64_Sym>();
    if found == 0 || entry.is_null() {
        return None;
    }
    // SAFETY: it is the symbol's entry in the table of a loaded object, which stays.
    let size = unsafe { (*entry).st_size };
    hooks_of(usize::try_from(size).ok()?)
}

/// Shows a line through CRIU.
pub(super) fn log(level: Level, line: &str) {
    let Some(print) = function!(c"print_on_level": fn(c_uint, *const c_char, ...)) else { return };
    let Ok(line) = CString::new(line.replace('\0', " ")) else { return };
    // SAFETY: the format takes one string, which ends.
    unsafe { print(level as c_uint, c"%s\n".as_ptr(), line.as_ptr()) };
}

fn missing(name: &str) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, format!("this CRIU has no {name}"))
}

/// What CRIU answers where it says no more than that it failed.
fn refused() -> io::Error {
    io::Error::other("CRIU's log says why")
}

impl Host for Criu {
    fn hooks(&self) -> Option<usize> {
        hooks()
    }

    fn shows(&self, level: Level) -> bool {
        let Some(threshold) = function!(c"log_get_loglevel": fn() -> c_uint) else { return true };
        // SAFETY: the function takes nothing and changes nothing.
        let threshold = unsafe { threshold() };
        level as c_uint <= threshold
    }

    fn log(&self, level: Level, line: &str) {
        log(level, line);
    }

    fn images_dir(&self) -> io::Result<BorrowedFd<'_>> {
        let function = function!(c"criu_get_image_dir": fn() -> c_int);
        let function = function.ok_or_else(|| missing("criu_get_image_dir"))?;
        // SAFETY: the function takes nothing.
        let fd = unsafe { function() };
        if fd < 0 {
            return Err(refused());
        }
        // SAFETY: it is a descriptor of CRIU's own, which it keeps for as long as it calls plugins.
        Ok(unsafe { BorrowedFd::borrow_raw(fd) })
    }

    fn streams(&self) -> bool {
        let function = function!(c"get_service_fd": fn(c_int) -> c_int);
        // SAFETY: this is the number of one of CRIU's descriptors in every version.
        function.is_some_and(|function| unsafe { function(service_fd::IMG_STREAMER) } >= 0)
    }

    fn open_stream(&self, name: &str, access: Access) -> io::Result<Option<OwnedFd>> {
        let function = function!(c"img_streamer_open": fn(*mut c_char, c_int) -> c_int);
        let function = function.ok_or_else(|| missing("img_streamer_open"))?;
        let flags = match access {
            Access::Write => open_flags::DUMP,
            Access::Read => open_flags::RESTORE,
        };
        let name = CString::new(name)?;
        // SAFETY: the name ends, and CRIU does not write to it; these flags are the ones that it
        // takes.
        let fd = unsafe { function(name.as_ptr().cast_mut(), flags) };
        match fd {
            fd if fd == -libc::ENOENT => Ok(None),
            fd if fd < 0 => Err(refused()),
            // SAFETY: CRIU has opened it for us and keeps no copy.
            fd => Ok(Some(unsafe { OwnedFd::from_raw_fd(fd) })),
        }
    }

    fn add_to_inventory(&self) -> io::Result<()> {
        let function = function!(c"add_inventory_plugin": fn(*const c_char) -> c_int);
        // Inventories of CRIU 4.0 and older have no plugins.
        let Some(function) = function else { return Ok(()) };
        let name = CString::new(NAME)?;
        // SAFETY: the name ends, and CRIU copies it.
        if unsafe { function(name.as_ptr()) } == 0 { Ok(()) } else { Err(refused()) }
    }

    fn take_from_inventory(&self) -> Option<bool> {
        let function =
            function!(c"check_and_remove_inventory_plugin": fn(*const c_char, usize) -> bool)?;
        let name = CString::new(NAME).ok()?;
        // SAFETY: the name ends, and has so many bytes.
        let take = || unsafe { function(name.as_ptr(), NAME.len()) };
        if !take() {
            return Some(false);
        }
        // One that is left makes CRIU fail: it is there as often as it was added. An inventory without
        // a list says yes for ever.
        let says_yes_for_ever = (0..MOST_NAMES).all(|_| take());
        (!says_yes_for_ever).then_some(true)
    }

    fn store(&self, fd: BorrowedFd<'_>) -> io::Result<i32> {
        let function = function!(c"fdstore_add": fn(c_int) -> c_int);
        let function = function.ok_or_else(|| missing("fdstore_add"))?;
        // SAFETY: the descriptor is open, and stays ours.
        let number = unsafe { function(fd.as_raw_fd()) };
        if number < 0 { Err(refused()) } else { Ok(number) }
    }

    fn stored(&self, number: i32) -> io::Result<OwnedFd> {
        let function = function!(c"fdstore_get": fn(c_int) -> c_int);
        let function = function.ok_or_else(|| missing("fdstore_get"))?;
        // SAFETY: the number is one that CRIU gave out.
        let fd = unsafe { function(number) };
        if fd < 0 {
            return Err(refused());
        }
        // SAFETY: CRIU has made it for us and keeps no copy.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    fn restored(&self) -> u32 {
        self.restored.as_ref().map_or(0, Counter::value)
    }

    fn count_restored(&self) {
        if let Some(restored) = &self.restored {
            restored.count();
        }
    }

    fn beside(&self, work: Work) -> io::Result<Option<Box<dyn Beside>>> {
        fork::beside(work).map(Some)
    }
}
