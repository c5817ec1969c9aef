//! The generated code in `streamer/src/proto` and `src/image/proto` is what the `.proto` files give.
//!
//! Building the programs needs no `protoc` and no build script, because the code is checked in; this
//! is what keeps it honest. After a change of a `.proto` file:
//!
//! ```text
//! VRAMSTREAM_UPDATE_PROTO=1 cargo nextest run -p vramstream-tests proto_is_current
//! ```
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};

/// For each protobuf file, its package and the module that has its messages.
const MODULES: [(&str, &str, &str); 6] = [
    ("image_format.proto", "vramstream.format.v1", "streamer/src/proto/format.rs"),
    ("transfer.proto", "vramstream.transfer.v1", "streamer/src/proto/transfer.rs"),
    ("criu_image_streamer.proto", "image", "streamer/src/proto/criu_image_streamer.rs"),
    ("img_streamer.proto", "criu", "streamer/src/proto/criu.rs"),
    ("vramstream_plugin.proto", "vramstream.plugin.v1", "src/image/proto/plugin.rs"),
    ("criu_amdgpu.proto", "criu.amdgpu", "src/image/proto/messages.rs"),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

#[test]
fn proto_is_current() {
    let proto = root().join("proto");
    let mut here: Vec<_> = std::fs::read_dir(&proto)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    here.sort();
    let mut known = MODULES.map(|(file, ..)| file);
    known.sort_unstable();
    assert_eq!(here, known, "a .proto file that this test does not know");

    let descriptors = protox::compile(known, [&proto]).unwrap();
    let out = tempfile::tempdir().unwrap();
    prost_build::Config::new()
        .bytes(["."])
        .disable_comments(["."])
        .out_dir(out.path())
        .compile_fds(descriptors)
        .unwrap();
    let mut stale = Vec::new();
    for (_, package, module) in MODULES {
        let made = std::fs::read_to_string(out.path().join(format!("{package}.rs"))).unwrap();
        let path = root().join(module);
        if std::fs::read_to_string(&path).unwrap() == made {
            continue;
        }
        if std::env::var_os("VRAMSTREAM_UPDATE_PROTO").is_some() {
            std::fs::write(&path, made).unwrap();
        } else {
            stale.push(module);
        }
    }
    assert!(stale.is_empty(), "{stale:?} are not what proto/ gives: set VRAMSTREAM_UPDATE_PROTO=1");
}
