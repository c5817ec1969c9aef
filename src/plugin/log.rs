//! Messages, as CRIU's own look.

use super::{error::Error, host::Host};
use crate::abi::criu::Level;

/// Shows a message.
pub(super) fn say(host: &dyn Host, level: Level, message: &str) {
    if !host.shows(level) {
        return;
    }
    let prefix = match level {
        Level::Error => "Error (vramstream): ",
        Level::Warning => "Warn  (vramstream): ",
        Level::Info | Level::Debug => "vramstream: ",
    };
    for line in message.lines() {
        host.log(level, &format!("{prefix}{line}"));
    }
}

/// Shows why something failed.
pub(super) fn failure(host: &dyn Host, error: &Error) {
    error.lines().iter().for_each(|line| say(host, Level::Error, line));
}
