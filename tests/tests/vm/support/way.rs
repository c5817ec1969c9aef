//! The ways that an image goes from a dump to a restore.

use std::{fs, path::PathBuf, process::Stdio};

use vramstream_tests::real::streamer::{Start, Streamer};

use super::{
    Case, Criu, Result,
    criu::{LONG, Options},
};

/// See the [module](self).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// CRIU's own images.
    Directory,
    /// Through the streamer to files, which takes contents of GPUs itself.
    File,
    /// Through the streamer in the format of criu-image-streamer, which knows nothing of GPUs.
    Stock,
    /// From streamer to streamer.
    Tcp,
}

/// What was dumped.
#[derive(Debug)]
pub(crate) struct Image {
    images: PathBuf,
    /// Who gives it, if it does not lie in the directory.
    from: Option<Giver>,
}

#[derive(Debug)]
enum Giver {
    /// One that runs.
    Running(Streamer),
    /// One that is to be started.
    File(String),
}

impl Way {
    /// Dumps a process.
    pub(crate) fn dump(
        self,
        case: &Case,
        criu: &Criu,
        pid: u32,
        options: &Options,
    ) -> Result<Image> {
        let (here, there) = (case.dir("here")?, case.dir("there")?);
        let options = Options { stream: self != Way::Directory, ..options.clone() };
        let dump = || criu.dump(case, "dump", pid, &here, &options);
        // A streamer that failed says more than CRIU does.
        let through = |mut capture: Streamer| match (capture.ready(LONG), dump()) {
            (Ok(()), Ok(_)) => capture.succeeds(LONG),
            (Err(error), _) => Err(error),
            (_, Err(error)) => match capture.fails(LONG) {
                Ok(why) => Err(format!("{error}\n{why}").into()),
                Err(_) => Err(error),
            },
        };
        let from = match self {
            Way::Directory => {
                dump()?;
                return Ok(Image { images: here, from: None });
            }
            Way::File => {
                let image = format!("file:{}", case.dir("image")?.join("image").display());
                through(Start::new(&here, &["capture", "--to", &image]).start()?)?;
                Giver::File(image)
            }
            Way::Stock => {
                let args = ["--format", "criu-image-streamer", "capture"];
                let mut capture = Start::new(&here, &args).stdout(Stdio::piped()).start()?;
                let shard = capture.process.stdout()?;
                let serve = Start::new(&there, &["serve"]).stdin(shard).start()?;
                through(capture)?;
                Giver::Running(serve)
            }
            Way::Tcp => {
                let args = ["receive", "--listen", "127.0.0.1:0"];
                let mut receive = Start::new(&there, &args).start()?;
                receive.says("listening", LONG)?;
                let progress = fs::read_to_string(there.join("progress"))?;
                let address = progress.lines().find_map(|line| line.strip_prefix("listening "));
                let to = format!("tcp://{}", address.ok_or("it listens nowhere")?);
                let args = ["--to", &to, "--connections", "2", "capture"];
                through(Start::new(&here, &args).start()?)?;
                Giver::Running(receive)
            }
        };
        Ok(Image { images: there, from: Some(from) })
    }
}

impl Image {
    /// Restores it.
    pub(crate) fn restore(self, case: &Case, criu: &Criu, options: &Options) -> Result<u32> {
        let Image { images, from } = self;
        let options = Options { stream: from.is_some(), ..options.clone() };
        let restore = || criu.restore(case, "restore", &images, &options);
        let mut giver = match from {
            None => return Ok(restore()?.0),
            Some(Giver::Running(streamer)) => streamer,
            Some(Giver::File(image)) => {
                Start::new(&images, &["serve", "--from", &image]).start()?
            }
        };
        giver.ready(LONG)?;
        match restore() {
            Ok((pid, _)) => {
                giver.succeeds(LONG)?;
                Ok(pid)
            }
            Err(error) => match giver.fails(LONG) {
                Ok(why) => Err(format!("{error}\n{why}").into()),
                Err(_) => Err(error),
            },
        }
    }
}
