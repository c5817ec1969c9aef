//! CRIU's development branch after 4.2, as a plugin sees it: 15 hooks, RESTORE_EXT_FILE with a second argument.
#![allow(unsafe_code)] // it is C to what it loads

#[path = "host/mod.rs"]
mod host;

host::plugin_ctl!(15);
host::inventory!();

fn main() -> std::process::ExitCode {
    host::main(&host::Flavour { hooks: 15, inventory: true, fdstore_before_init: true })
}
