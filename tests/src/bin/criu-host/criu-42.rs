//! CRIU 4.2, as a plugin sees it: 13 hooks.
#![allow(unsafe_code)] // it is C to what it loads

#[path = "host/mod.rs"]
mod host;

host::plugin_ctl!(13);
host::inventory!();

fn main() -> std::process::ExitCode {
    host::main(&host::Flavour { hooks: 13, inventory: true, fdstore_before_init: true })
}
