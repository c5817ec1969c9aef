//! CRIU's functions, with CRIU's prototypes.

use std::{
    ffi::{CStr, c_char, c_int, c_uint},
    fs,
    io::Write as _,
    os::unix::ffi::OsStrExt,
    sync::atomic::{AtomicU8, Ordering},
};

use super::{Stage, bug, host, locked, say, service};

/// A UUID as text, and a NUL: the same in all processes of a run.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
static criu_run_id: [AtomicU8; 37] = [const { AtomicU8::new(0) }; 37];

/// Gives this run its id.
pub(super) fn set_run_id() {
    let id = fs::read("/proc/sys/kernel/random/uuid").unwrap_or_default();
    for (byte, to) in id.iter().take(36).zip(&criu_run_id) {
        to.store(*byte, Ordering::Relaxed);
    }
}

#[unsafe(no_mangle)]
extern "C" fn criu_get_image_dir() -> c_int {
    service::get(service::IMG)
}

#[unsafe(no_mangle)]
extern "C" fn get_service_fd(kind: c_int) -> c_int {
    if kind <= 0 || kind >= service::MAX {
        bug(&format!("get_service_fd({kind})"));
    }
    service::get(kind)
}

#[unsafe(no_mangle)]
extern "C" fn is_any_service_fd(fd: c_int) -> bool {
    service::is_service(fd)
}

#[unsafe(no_mangle)]
extern "C" fn img_streamer_open(name: *const c_char, flags: c_int) -> c_int {
    let name = text(name);
    let fits = matches!((host().stage, flags), (Stage::Dump, 0x241) | (Stage::Restore, 0));
    if !fits || !host().stream {
        bug(&format!("img_streamer_open({name}, {flags:#x})"));
    }
    say(&format!("stream {name}"));
    service::streamer_open(&name)
}

/// C's variable arguments, as far as a plugin in another language uses them: in registers, and
/// strings.
#[unsafe(no_mangle)]
extern "C" fn print_on_level(level: c_uint, format: *const c_char, first: *const c_char) {
    match text(format).as_str() {
        "%s" => message(level, &text(first)),
        "%s\n" => message(level, &format!("{}\n", text(first))),
        plain if !plain.contains('%') => message(level, plain),
        other => bug(&format!("print_on_level with the format {other:?}")),
    }
}

/// A message, of a plugin or of CRIU.
pub(super) fn message(level: u32, text: &str) {
    let host = host();
    let line = format!("{level} {} {}\n", std::process::id(), text.trim_end().replace('\n', "\\n"));
    service::write_log(line.as_bytes());
    if level <= host.log_level {
        let _ = std::io::stderr().lock().write_all(text.as_bytes());
    }
    if !text.ends_with('\n') && level > 0 && !text.starts_with("Error (criu)") {
        say(&format!("violation a message without an end of line: {text}"));
    }
}

#[unsafe(no_mangle)]
extern "C" fn log_get_loglevel() -> c_uint {
    host().log_level
}

#[unsafe(no_mangle)]
extern "C" fn fdstore_add(fd: c_int) -> c_int {
    service::store(fd)
}

#[unsafe(no_mangle)]
extern "C" fn fdstore_get(id: c_int) -> c_int {
    service::fetch(id)
}

#[unsafe(no_mangle)]
extern "C" fn find_unused_fd_pid(virtual_pid: c_int) -> c_int {
    let pending = locked(&host().pending);
    let Some(pending) = pending.as_ref() else { bug("find_unused_fd_pid outside of a task") };
    if pending.virtual_pid != virtual_pid {
        say(&format!(
            "violation find_unused_fd_pid({virtual_pid}) in task {}",
            pending.virtual_pid
        ));
        return -1;
    }
    match pending.descriptors.iter().max() {
        Some(highest) => highest + 1,
        None => bug("find_unused_fd_pid when all descriptors are restored"),
    }
}

#[unsafe(no_mangle)]
extern "C" fn read_fd_link(fd: c_int, buffer: *mut c_char, size: usize) -> c_int {
    let Ok(link) = fs::read_link(format!("/proc/self/fd/{fd}")) else { return -1 };
    let bytes = link.as_os_str().as_bytes();
    let len = bytes.len().min(size.saturating_sub(1));
    // SAFETY: the caller says that there is room for `size` bytes.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), buffer.cast(), len) };
    // SAFETY: as above, and `len` is less than `size`.
    let end = unsafe { buffer.add(len) };
    // SAFETY: as above.
    unsafe { end.write(0) };
    c_int::try_from(len).unwrap_or(-1)
}

#[unsafe(no_mangle)]
extern "C" fn has_children(_: *const std::ffi::c_void) -> bool {
    false
}

/// `add_inventory_plugin`.
#[allow(dead_code)] // not in every flavour
pub(crate) fn inventory_add(name: *const c_char) -> c_int {
    let name = text(name);
    say(&format!("inventory {name}"));
    locked(&host().inventory).get_or_insert_default().push(name);
    0
}

/// `check_and_remove_inventory_plugin`.
#[allow(dead_code)] // not in every flavour
pub(crate) fn inventory_take(name: *const c_char, len: usize) -> bool {
    let name = text(name);
    let start = |name: &str| name.as_bytes().get(..len).map(<[u8]>::to_vec);
    let mut inventory = locked(&host().inventory);
    let Some(names) = inventory.as_mut() else { return true };
    let found = names.iter().position(|known| start(known) == start(&name));
    found.map(|place| names.remove(place)).is_some()
}

fn text(text: *const c_char) -> String {
    if text.is_null() {
        bug("a string that is NULL");
    }
    // SAFETY: a C string, by the prototype of every function that gets one, and it lives during
    // the call.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
