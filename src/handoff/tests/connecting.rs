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
