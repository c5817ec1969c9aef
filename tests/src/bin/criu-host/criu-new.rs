//! A CRIU of the future, with a hook that nobody knows: 16.
#![allow(unsafe_code)] // it is C to what it loads

#[path = "host/mod.rs"]
mod host;

host::plugin_ctl!(16);
host::inventory!();

fn main() -> std::process::ExitCode {
    host::main(&host::Flavour { hooks: 16, inventory: true, fdstore_before_init: true })
}
