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
//! # When a capture is complete
//!
//! CRIU says nothing at the end of a dump: a dump that crashed closes the socket as well. The image
//! is committed only after
//!
//! 1. `inventory.img`, the last image CRIU writes, has come whole;
//! 2. every image's pipe, and every external file's, has reached its end;
//! 3. CRIU has closed its connection, or waits in [`commit-gate`](crate::commit_gate);
//! 4. every shard has been taken durably by its transport.
//!
//! Anything else aborts: the shards say so, nothing is published, the caller gets the first cause.

use std::{os::fd::OwnedFd, path::PathBuf, time::Instant};

use vramstream::stage::Compression;

use crate::{
    absorb::ShardStat, error::Result, format::FileName, pack::Totals, progress::Progress,
    signals::Signals, transport::Destination,
};

mod gate;
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
    // The socket first: whoever starts CRIU waits for it.
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
    let outcome = pump.run(intake.as_mut()).and_then(|totals| {
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
            // CRIU's pipes and socket close here, so that the dump fails; the shards after that.
            drop(pump);
            intake.abort(&reason);
            Err(error)
        }
    }
}
