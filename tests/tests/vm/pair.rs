//! Two machines with a network between them: `scripts/vm-test --pair`.
//!
//! Each test has two halves of the same name, one on each machine.

use crate::support::peer::DESTINATION;

const MOVED: &str = "a_process_moves_to_the_other_machine";

/// Where the destination's streamer listens.
fn address() -> String {
    format!("{DESTINATION}:7070")
}

/// On the machine where the process is at first.
mod source {
    use std::{fs, path::Path};

    use vramstream_tests::real::{streamer::Start, workload::Kind};

    use crate::{
        plain::{SHORT, start_in},
        support::{Criu, Peer, Result, case, criu::Options},
    };

    use super::{MOVED, address};

    #[test]
    fn a_process_moves_to_the_other_machine() -> Result<()> {
        let case = case!()?;
        let mut peer = Peer::at_source(MOVED)?;
        for criu in Criu::all()? {
            let dir = Path::new("/run/workload");
            fs::create_dir_all(dir)?;
            let mut workload = start_in(dir, &criu, Kind::Counter)?;
            let images = case.dir(&criu.version)?;
            peer.hear("ready")?;
            let to = format!("tcp://{}", address());
            let mut capture = Start::new(&images, &["capture", "--to", &to]).start()?;
            capture.ready(SHORT)?;
            let options = Options { stream: true, ..Options::default() };
            criu.dump(&case, &criu.version, workload.target(), &images, &options)?;
            capture.succeeds(SHORT)?;
            workload.gone()?;
            peer.say(&workload.report()?.count.to_string())?;
            peer.hear("it goes on")?;
        }
        Ok(())
    }
}

/// On the machine to which it moves.
mod destination {
    use std::{fs, path::Path};

    use vramstream_tests::real::{process::kill_pid, streamer::Start, wait_for};

    use crate::{
        plain::SHORT,
        support::{Criu, Peer, Result, case, criu::Options},
    };

    use super::{MOVED, address};

    #[test]
    fn a_process_moves_to_the_other_machine() -> Result<()> {
        let case = case!()?;
        let mut peer = Peer::at_destination(MOVED)?;
        for criu in Criu::all()? {
            let dir = Path::new("/run/workload");
            fs::create_dir_all(dir)?;
            let images = case.dir(&criu.version)?;
            let mut receive = Start::new(&images, &["receive", "--listen", &address()]).start()?;
            receive.says("listening", SHORT)?;
            peer.say("ready")?;
            receive.ready(SHORT)?;
            let options = Options { stream: true, ..Options::default() };
            let (pid, _) = criu.restore(&case, &criu.version, &images, &options)?;
            receive.succeeds(SHORT)?;
            let before: u64 = peer.listen()?.parse()?;
            // It reports to the path that it had on the other machine.
            wait_for("the process to go on", SHORT, || {
                let report = fs::read_to_string(dir.join("status")).unwrap_or_default();
                let count = report.split(' ').find_map(|word| word.strip_prefix("count="));
                let count: u64 = count.and_then(|count| count.parse().ok()).unwrap_or(0);
                Ok((report.contains("verify=ok") && count > before + 3).then_some(()))
            })?;
            peer.say("it goes on")?;
            kill_pid(pid)?;
        }
        Ok(())
    }
}
