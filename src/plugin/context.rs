//! What hooks work with.

use super::{
    host::Host,
    images::{Images, Published},
    log,
    settings::Settings,
};
use crate::{abi::criu::Level, system::System};

/// The CRIU, the machine, and what the environment asks for.
#[derive(Clone, Copy)]
pub(super) struct Context<'a> {
    pub host: &'a dyn Host,
    pub system: &'a System,
    pub settings: &'a Settings,
    pub published: &'a Published,
}

impl<'a> Context<'a> {
    pub(super) fn images(&self) -> Images<'a> {
        Images::new(self.host, self.published)
    }

    pub(super) fn say(&self, level: Level, message: &str) {
        log::say(self.host, level, message);
    }
}
