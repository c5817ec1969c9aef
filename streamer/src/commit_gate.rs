//! `commit-gate`: CRIU's `--action-script` that holds the dump until the image is safe.
//!
//! CRIU ends a dump once its bytes are in the pipes, and then kills the dumped process; what the
//! streamer, the network or the store does with the bytes after that it never learns. Run at the
//! post-dump stage, while the process is still frozen, this waits until the capture has committed.
//! If it fails, CRIU reports the dump as failed and lets the process run on.
//!
//! CRIU runs the script for each of its stages, without arguments, and says which one in the
//! environment variable `CRTOOLS_SCRIPT_ACTION`; the images directory is in `CRTOOLS_IMAGE_DIR`.
//!
//! The protocol: connect to `vramstream-commit.sock` in the images directory, read to the end. The
//! message starts with `committed`, or with `failed: ` and a reason; anything else is a capture
//! that died.

use std::{io::Read, os::unix::net::UnixStream, path::Path};

use crate::{
    criu::GATE_SOCKET,
    error::{Error, Result},
};

/// The answer when the image is safe.
pub(crate) const COMMITTED: &str = "committed\n";
/// What stands before the reason when it is not.
pub(crate) const FAILED: &str = "failed: ";
/// The longest answer that is read.
const MAX_ANSWER_BYTES: u64 = 8 << 10;

/// The only stage of CRIU's at which there is something to wait for.
pub const POST_DUMP: &str = "post-dump";

/// Waits until the capture in `images_dir` has committed.
pub fn wait(images_dir: &Path) -> Result<()> {
    let path = images_dir.join(GATE_SOCKET);
    let gate = || format!("ask the capture at {} for its outcome: is it running?", path.display());
    let mut stream = UnixStream::connect(&path).map_err(Error::io(gate))?;
    let mut answer = Vec::new();
    stream.by_ref().take(MAX_ANSWER_BYTES).read_to_end(&mut answer).map_err(Error::io(gate))?;
    let answer = String::from_utf8_lossy(&answer);
    if answer == COMMITTED {
        return Ok(());
    }
    Err(Error::DumpIncomplete(match answer.strip_prefix(FAILED) {
        Some(reason) => format!("the capture failed: {reason}"),
        None => "the capture died".to_owned(),
    }))
}
