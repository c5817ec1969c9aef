//! Takes the images of a dump from CRIU's pipes and turns them into an image, or into nothing.
//!
//! ```text
//!             pump (this thread)                                  pack
//!  CRIU ──►  requests, pipes ──► chunk, zero scan, CRC ──► (compression) ──► shards ──► transport
//! ```
//!
//! One thread, the [`pump`], talks to CRIU and reads every pipe that has something to give; it
//! checksums what it has read while the bytes are in its cache. What it makes of the bytes is an
//! [`Intake`]: [`native`] chunks for the native format, or records moved by `splice` for
//! criu-image-streamer's ([`spliced`]).
//!
//! # GPUs
//!
//! A CRIU plugin can [hand over](vramstream::handoff) the contents of a process's GPUs, at any time
//! and for several processes at once. GPU workers of ours then copy them into the same chunks, and
//! the pump goes on with CRIU's pipes meanwhile. The plugin hears that it is done when the stages have
//! taken everything, so that CRIU cannot end a dump before. In the image are the files that CRIU's own
//! plugin would have written. criu-image-streamer's format has no chunks, so nothing is handed over.
//!
//! The chunks are those of `--memory`, whose ring the GPUs write to directly; a smaller
//! `KFD_MAX_BUFFER_SIZE` of the plugin limits what they have in flight. A chunk is waited for only by
//! those who hold none that others wait for, so a ring of any size goes round.
//!
//! # When a capture is complete
//!
//! CRIU says nothing at the end of a dump: a dump that crashed closes the socket as well. The image
//! is committed only after
//!
//! 1. `inventory.img`, the last image CRIU writes, has come whole;
//! 2. every image's pipe, and every external file's, has reached its end;
//! 3. CRIU has closed its connection, or waits in [`commit-gate`](crate::commit_gate);
//! 4. every job that a plugin has begun to hand over has ended well;
//! 5. every shard has been taken durably by its transport.
//!
//! Anything else aborts: the shards say so, nothing is published, the caller gets the first cause.

use std::{os::fd::OwnedFd, path::PathBuf, sync::Arc, time::Instant};

use vramstream::{device::Driver, stage::Compression};

use crate::{
    absorb::ShardStat,
    error::Result,
    format::FileName,
    pack::{Feed, Totals},
    plugins::Plugins,
    progress::Progress,
    signals::Signals,
    transport::Destination,
};

mod gate;
mod gpus;
mod image;
mod native;
mod pump;
mod spliced;

pub use image::Source;

/// What to capture.
#[derive(Debug)]
pub struct Options {
    /// Where CRIU looks for the socket.
    pub images_dir: PathBuf,
    /// Files that are not CRIU's and go into the image, each from a pipe.
    pub external_files: Vec<(FileName, OwnedFd)>,
    /// What to try on chunks.
    pub compression: Compression,
    /// The most memory to use, in bytes.
    pub memory_bytes: u64,
    /// Who answers for the GPUs whose contents are handed over.
    pub driver: Arc<dyn Driver>,
}

/// Where to, and in which format.
pub enum Output {
    /// The native format.
    Native(Box<dyn Destination>),
    /// criu-image-streamer's format, on these descriptors.
    CriuImageStreamer(Vec<(String, OwnedFd)>),
}

/// What was captured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Captured {
    /// Files in the image.
    pub files: u32,
    /// Sum of their sizes.
    pub raw_bytes: u64,
    /// What went to each shard.
    pub shards: Vec<ShardStat>,
}

/// Something that image bytes go into. See [`native`] and [`spliced`].
trait Intake {
    /// Takes what `image` has to give now, or a part of it. Called when its pipe is readable.
    fn readable(&mut self, image: &mut image::OpenImage) -> Result<image::Readable>;

    /// A way in for the contents of GPUs, where they can be handed over.
    fn feed(&self) -> Option<Feed> {
        None
    }

    /// A descriptor that becomes readable when something has failed behind the intake.
    fn alarm(&self) -> Option<std::os::fd::BorrowedFd<'_>>;

    /// Whether everything behind the intake is well. Asked when the alarm rings and about once a
    /// second.
    fn health(&mut self) -> Result<()>;

    /// All images have been taken: makes everything safe and publishes it.
    fn commit(&mut self, totals: &Totals) -> Result<Vec<ShardStat>>;

    /// Publishes nothing.
    fn abort(&mut self, reason: &str);

    /// The cause behind an error.
    fn explain(&mut self, error: crate::error::Error) -> crate::error::Error;
}

/// Runs a capture from the making of the socket to the commit.
pub fn capture(
    options: Options,
    output: Output,
    signals: &Signals,
    progress: &Progress,
) -> Result<Captured> {
    // Before CRIU can connect: its plugin looks for this one once.
    let plugins = match &output {
        Output::Native(_) => Some(Plugins::bind(&options.images_dir, &options.driver)?),
        Output::CriuImageStreamer(_) => None,
    };
    // Then CRIU's socket: whoever starts CRIU waits for it.
    let mut pump = pump::Pump::bind(&options.images_dir, signals, progress)?;
    progress.line("socket-init");
    for (name, pipe) in options.external_files {
        pump.add_external(name, pipe)?;
    }
    let mut intake: Box<dyn Intake> = match output {
        Output::Native(destination) => Box::new(native::NativeIntake::new(
            destination,
            options.compression,
            options.memory_bytes,
            signals,
            progress,
        )?),
        Output::CriuImageStreamer(shards) => {
            Box::new(spliced::SplicedIntake::new(shards, signals, progress))
        }
    };
    let taken = match (plugins, intake.feed()) {
        (Some(plugins), Some(feed)) => pump.take_jobs(plugins, feed, &options.driver),
        _ => Ok(()),
    };
    let outcome = taken.and_then(|()| pump.run(intake.as_mut())).and_then(|totals| {
        pump.close_door();
        let shards = intake.commit(&totals)?;
        Ok(Captured { files: totals.files, raw_bytes: totals.raw_bytes, shards })
    });
    match outcome {
        Ok(mut captured) => {
            // The original gives all shards the time since the checkpoint began.
            let elapsed = pump.started().as_ref().map(Instant::elapsed).unwrap_or_default();
            for shard in &mut captured.shards {
                shard.duration_ms = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
            }
            pump.answer_gates(Ok(()));
            progress.stats(&captured.shards);
            Ok(captured)
        }
        Err(error) => {
            let error = intake.explain(error);
            let reason = error.report().to_string();
            pump.answer_gates(Err(&reason));
            let jobs = pump.fail_jobs(&reason);
            // CRIU's pipes and socket close here, so that the dump fails; the shards after that.
            drop(pump);
            intake.abort(&reason);
            if let Some(jobs) = jobs {
                jobs.settle();
            }
            Err(error)
        }
    }
}
