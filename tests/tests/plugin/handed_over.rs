use std::{
    io,
    os::{fd::AsRawFd, unix::net::UnixListener},
    path::Path,
    thread::{self, JoinHandle},
    time::Duration,
};

use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket,
};
use vramstream::handoff::{Plugin, SOCKET};
use vramstream_tests::{
    machine::{MachineSpec, SimulatedMachine},
    plugin::{Criu, Flavour, StockStreamer, assert_runs},
};

use super::{MIXED, Result, scene};

/// A streamer that takes the contents of one process, and does this instead of copying them.
fn streamer<T: Send + 'static>(
    machine: &SimulatedMachine,
    dir: &Path,
    work: impl FnOnce(Plugin) -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    let door = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None)?;
    bind(door.as_raw_fd(), &UnixAddr::new(&dir.join(SOCKET))?)?;
    listen(&door, Backlog::new(1)?)?;
    let driver = machine.driver();
    Ok(thread::spawn(move || {
        let (connection, _) = UnixListener::from(door).accept().unwrap();
        let plugin = Plugin::new(connection.into()).unwrap();
        plugin.receive(&driver).unwrap().unwrap();
        plugin.accept().unwrap();
        work(plugin)
    }))
}

/// Until the plugin is gone.
fn never_ready(plugin: Plugin) {
    while plugin.check().is_ok() {
        thread::sleep(Duration::from_millis(10));
    }
}

/// Contents may take minutes; a process whose dump has failed elsewhere does not wait for them.
#[test]
fn a_dump_that_fails_does_not_wait_for_its_contents() -> Result {
    for (flavour, join) in [(Flavour::Dev, "hook"), (Flavour::Criu42, "exit")] {
        let (here, app, _) = scene(&MachineSpec::default(), MIXED, flavour)?;
        let criu = Criu::new(flavour)?.streaming().with_env("VRAMSTREAM_JOIN", join);
        let stock = StockStreamer::capture(&criu.images())?;
        let streamer = streamer(&here, &criu.images(), never_ready)?;
        let criu = criu.with_options("--fail-after 2");
        let run = criu.dump(&here, &[app.process()])?;
        streamer.join().unwrap();
        stock.end()?;
        assert!(!run.status.success());
        assert_eq!((run.blame(), run.messages(2)), (vec![], vec![]), "{run:#?}");
        assert_runs(&here, app.pid())?;
    }
    Ok(())
}

/// In the hook a streamer that fails or goes fails the dump; in `exit`, where nobody can, it is an
/// error in the log. The process goes on either way.
#[test]
fn a_streamer_that_does_not_take_everything_is_an_error() -> Result {
    let places = [(Flavour::Dev, "hook"), (Flavour::Criu42, "hook"), (Flavour::Criu42, "exit")];
    for (flavour, join) in places {
        for dies in [true, false] {
            let (here, app, _) = scene(&MachineSpec::default(), MIXED, flavour)?;
            let criu = Criu::new(flavour)?.streaming().with_env("VRAMSTREAM_JOIN", join);
            let stock = StockStreamer::capture(&criu.images())?;
            let streamer = streamer(&here, &criu.images(), move |plugin| {
                if !dies {
                    plugin.fail("the disk is full\nand more");
                }
            })?;
            let run = criu.dump(&here, &[app.process()])?;
            streamer.join().unwrap();
            stock.end()?;
            assert_eq!(run.status.success(), join == "exit", "{flavour:?} {join} {run:#?}");
            assert_eq!(run.blame(), [""; 0]);
            let errors = run.messages(1);
            let what = if dies { "gave up" } else { "the disk is full and more" };
            assert!(errors.iter().any(|error| error.contains(what)), "{errors:?}");
            assert_runs(&here, app.pid())?;
        }
    }
    Ok(())
}
