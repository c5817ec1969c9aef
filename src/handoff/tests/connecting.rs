//! Finding the streamer.

use std::{env, fs};

use super::*;

/// The current directory belongs to the whole process, so this is one test.
#[test]
fn a_streamer_is_found_from_anywhere_and_the_current_directory_stays_what_it_was() {
    let (dir, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    env::set_current_dir(elsewhere.path()).unwrap();
    let stayed = || assert_eq!(inode(File::open(".").unwrap()), inode(directory(elsewhere.path())));
    let images = directory(dir.path());

    assert!(Streamer::connect(images.as_fd()).unwrap().is_none(), "nobody has made a socket");
    stayed();
    let listening = door(dir.path());
    assert!(Streamer::connect(images.as_fd()).unwrap().is_some());
    stayed();
    drop(listening);
    assert!(Streamer::connect(images.as_fd()).unwrap().is_none(), "nobody listens any more");
    stayed();

    // Something else is there.
    fs::remove_file(dir.path().join(SOCKET)).unwrap();
    let _other = UnixListener::bind(dir.path().join(SOCKET)).unwrap();
    let error = Streamer::connect(images.as_fd()).unwrap_err();
    assert!(matches!(error, HandoffError::System { errno: Errno::EPROTOTYPE, .. }), "{error}");
    stayed();
    let error = Streamer::connect(File::open("/dev/null").unwrap().as_fd()).unwrap_err();
    assert!(matches!(error, HandoffError::System { errno: Errno::ENOTDIR, .. }), "{error}");
    stayed();

    // A directory that is gone can be gone back to.
    let gone = elsewhere.path().join("gone");
    fs::create_dir(&gone).unwrap();
    env::set_current_dir(&gone).unwrap();
    let before = inode(File::open(".").unwrap());
    fs::remove_dir(&gone).unwrap();
    let error = Streamer::connect(images.as_fd()).unwrap_err();
    assert!(matches!(error, HandoffError::System { errno: Errno::EPROTOTYPE, .. }), "{error}");
    assert_eq!(inode(File::open(".").unwrap()), before);
}

const ELSEWHERE: &str = "VRAMSTREAM_TEST_IMAGES";

/// A restored task may have a network of its own, and other mounts: where the streamer is, is a matter
/// of the directory alone.
#[test]
fn a_streamer_is_found_from_another_network() {
    if let Some(dir) = env::var_os(ELSEWHERE) {
        let images = directory(Path::new(&dir));
        assert!(Streamer::connect(images.as_fd()).unwrap().is_some());
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let _listening = door(dir.path());
    let output = std::process::Command::new("unshare")
        .args(["--user", "--map-root-user", "--net", "--mount", "--pid", "--fork"])
        .arg(env::current_exe().unwrap())
        .args(["--exact", "handoff::tests::connecting::a_streamer_is_found_from_another_network"])
        .env(ELSEWHERE, dir.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{output:?}");
}
