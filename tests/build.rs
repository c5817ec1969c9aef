//! The hosts of plugins show what CRIU shows to them: symbols of an executable are not visible to
//! what it loads unless the linker is told so.

/// The programs that play CRIU.
const HOSTS: [&str; 6] = ["319", "40", "41", "42", "dev", "new"];

/// What CRIU exports. Names that a host does not have are no error.
const EXPORTS: [&str; 15] = [
    "cr_plugin_ctl",
    "criu_get_image_dir",
    "criu_run_id",
    "img_streamer_open",
    "print_on_level",
    "log_get_loglevel",
    "fdstore_add",
    "fdstore_get",
    "find_unused_fd_pid",
    "get_service_fd",
    "is_any_service_fd",
    "read_fd_link",
    "add_inventory_plugin",
    "check_and_remove_inventory_plugin",
    "has_children",
];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    for host in HOSTS {
        for symbol in EXPORTS {
            println!(
                "cargo::rustc-link-arg-bin=criu-host-{host}=-Wl,--export-dynamic-symbol={symbol}"
            );
        }
    }
}
