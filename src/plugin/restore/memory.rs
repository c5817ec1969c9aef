//! libhsakmt's shared memory, which older versions of it had.

use std::{
    fs::OpenOptions,
    io::Write,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::Path,
};

use nix::libc;

use super::super::{
    dump::{SEMAPHORE, SHARED_MEMORY, not_a_file},
    error::{Error, Result},
};
use crate::{image::SharedMemory, system::System};

/// Larger is no shared memory of libhsakmt's: it was some pages.
const MOST_BYTES: u64 = 64 << 20;
/// Who may use it: whoever uses the GPU.
const MODE: u32 = 0o666;
/// A semaphore of glibc on 64-bit machines: its value, and the number of who waits.
const SEMAPHORE_BYTES: usize = 32;

/// Makes it where there is none.
pub(super) fn restore(system: &System, memory: Option<SharedMemory>) -> Result<()> {
    let Some(memory) = memory else { return Ok(()) };
    let path = system.shared_memory().join(SHARED_MEMORY);
    let name = path.display().to_string();
    if memory.size > MOST_BYTES {
        let what = format!("the checkpoint says that it has {} bytes", memory.size);
        return Err(Error::Content { file: name, what });
    }
    make(&path, memory.size, &memory.magic.to_le_bytes())?;
    let mut semaphore = [0; SEMAPHORE_BYTES];
    semaphore[0] = 1;
    make(&system.shared_memory().join(SEMAPHORE), SEMAPHORE_BYTES as u64, &semaphore)
}

/// Makes a file of this size that begins so, unless there is one.
fn make(path: &Path, size: u64, begin: &[u8]) -> Result<()> {
    let name = path.display().to_string();
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(MODE);
    // As in the dump.
    let file = options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path);
    let mut file = file.map_err(Error::file(&name, "open or create"))?;
    let metadata = file.metadata().map_err(Error::file(&name, "look at"))?;
    if !metadata.is_file() {
        return Err(not_a_file(name));
    }
    if metadata.size() >= size {
        return Ok(());
    }
    file.set_len(size).and_then(|()| file.write_all(begin)).map_err(Error::file(&name, "write"))?;
    // Whatever the umask of the process is.
    let mode = std::os::unix::fs::PermissionsExt::from_mode(MODE);
    file.set_permissions(mode).map_err(Error::file(&name, "open to all users of the GPU"))
}
