//! CRIU 3.17 to 3.19, as a plugin sees it: 10 hooks, no list of plugins in the inventory.
#![allow(unsafe_code)] // it is C to what it loads

#[path = "host/mod.rs"]
mod host;

host::plugin_ctl!(10);

fn main() -> std::process::ExitCode {
    host::main(&host::Flavour { hooks: 10, inventory: false, fdstore_before_init: false })
}
