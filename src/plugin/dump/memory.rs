//! libhsakmt's shared memory, which older versions of it had.

use std::{fs::File, io::Read, os::unix::fs::MetadataExt};

use crate::{
    image::SharedMemory,
    plugin::error::{Error, Result},
    system::System,
};

/// Its name in the directory of shared memory.
pub(in crate::plugin) const SHARED_MEMORY: &str = "hsakmt_shared_mem";
/// The name of the semaphore that belongs to it.
pub(in crate::plugin) const SEMAPHORE: &str = "sem.hsakmt_semaphore";

/// What there is of it.
pub(super) fn find(system: &System) -> Result<Option<SharedMemory>> {
    let path = system.shared_memory().join(SHARED_MEMORY);
    let name = path.display().to_string();
    let mut file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::file(&name, "open")(error)),
    };
    let size = file.metadata().map_err(Error::file(&name, "look at"))?.size();
    if size == 0 {
        return Ok(None);
    }
    let mut magic = [0; 4];
    file.read_exact(&mut magic).map_err(Error::file(&name, "read the first four bytes of"))?;
    Ok(Some(SharedMemory { size, magic: u32::from_le_bytes(magic) }))
}
