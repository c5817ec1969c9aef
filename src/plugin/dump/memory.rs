//! libhsakmt's shared memory, which older versions of it had.

use std::{
    fs::File,
    io::Read,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
};

use nix::libc;

use crate::{
    image::SharedMemory,
    plugin::error::{Error, Result},
    system::System,
};

/// Its name in the directory of shared memory.
pub(in crate::plugin) const SHARED_MEMORY: &str = "hsakmt_shared_mem";
/// The name of the semaphore that belongs to it.
pub(in crate::plugin) const SEMAPHORE: &str = "sem.hsakmt_semaphore";

/// What lies under one of the names is no file of libhsakmt's.
pub(in crate::plugin) fn not_a_file(file: String) -> Error {
    let what = "it is no regular file, and libhsakmt never made it: remove it".into();
    Error::Content { file, what }
}

/// What there is of it.
pub(super) fn find(system: &System) -> Result<Option<SharedMemory>> {
    let path = system.shared_memory().join(SHARED_MEMORY);
    let name = path.display().to_string();
    // Anybody may put anything there, also what leads elsewhere or makes who opens it wait.
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let mut file = match File::options().read(true).custom_flags(flags).open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::file(&name, "open")(error)),
    };
    let metadata = file.metadata().map_err(Error::file(&name, "look at"))?;
    if !metadata.is_file() {
        return Err(not_a_file(name));
    }
    let size = metadata.size();
    if size == 0 {
        return Ok(None);
    }
    let mut magic = [0; 4];
    file.read_exact(&mut magic).map_err(Error::file(&name, "read the first four bytes of"))?;
    Ok(Some(SharedMemory { size, magic: u32::from_le_bytes(magic) }))
}
