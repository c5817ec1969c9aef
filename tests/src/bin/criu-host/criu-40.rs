//! CRIU 4.0, as a plugin sees it: 12 hooks, no list of plugins in the inventory.
#![allow(unsafe_code)] // it is C to what it loads

#[path = "host/mod.rs"]
mod host;

host::plugin_ctl!(12);

fn main() -> std::process::ExitCode {
    host::main(&host::Flavour { hooks: 12, inventory: false, fdstore_before_init: false })
}
