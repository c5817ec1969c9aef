//! CRIU 4.1, as a plugin sees it: 12 hooks.
#![allow(unsafe_code)] // it is C to what it loads

#[path = "host/mod.rs"]
mod host;

host::plugin_ctl!(12);
host::inventory!();

fn main() -> std::process::ExitCode {
    host::main(&host::Flavour { hooks: 12, inventory: true, fdstore_before_init: false })
}
