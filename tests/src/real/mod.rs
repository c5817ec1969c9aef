//! Real CRIU, real processes and network namespaces as hosts: what the tests that run as root use.
//!
//! Everything started here ends when its owner is dropped, a restored process as well, and every
//! wait has an end.

pub mod criu;
pub mod gpus;
pub mod host;
pub mod process;
pub mod streamer;
pub mod training;
pub mod workload;

use std::error::Error;
use std::time::{Duration, Instant};

/// What goes wrong here fails a test, with a message for a person.
pub type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Asks `probe` until it has an answer, for at most `limit`.
pub fn wait_for<T>(
    what: &str,
    limit: Duration,
    mut probe: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let end = Instant::now() + limit;
    loop {
        if let Some(found) = probe()? {
            return Ok(found);
        }
        if Instant::now() >= end {
            return Err(format!("waited {limit:?} in vain for {what}").into());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
