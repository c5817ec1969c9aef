//! The commands, each from its options to its end.

use std::{path::PathBuf, sync::Arc};

use super::{Format, Options, args, places};
use crate::{
    absorb::{self, Absorbed},
    capture::{self, Output},
    error::{Error, Result},
    extract::{self, Extraction},
    format::{FileName, ImageId},
    limits,
    progress::Progress,
    serve::{self, ImageFiles, MemoryFiles, },
    signals::Signals,
    store::MemoryStore,
    transport::{Origin, ShardReader},
};

pub(super) fn capture(options: Options, progress: &Progress) -> Result<()> {
    let signals = Signals::take()?;
    let output = match (options.format, &options.to) {
        (Format::Native, _) => Output::Native(places::destination(&options)?),
        (Format::CriuImageStreamer, None) => {
            Output::CriuImageStreamer(places::shards(&options, 1)?)
        }
        (Format::CriuImageStreamer, Some(_)) => {
            return Err(Error::Usage(
                "--format criu-image-streamer goes to pipes: use --shard-fds or standard output".into(),
            ));
        }
    };
    if options.format == Format::CriuImageStreamer && options.compress != args::Compress::None {
        return Err(Error::Usage("--format criu-image-streamer has no compression".into()));
    }
    let captured = capture::capture(
        capture::Options {
            images_dir: places::images_dir(&options)?,
            external_files: places::external(&options)?,
            compression: options.compress.into(),
            memory_bytes: options.memory.0,
        },
        output,
        &signals,
        progress,
    )?;
    progress.finished(captured.files, captured.raw_bytes);
    Ok(())
}

pub(super) fn serve(options: Options, progress: &Progress) -> Result<()> {
    let mut origin = places::origin(None, &options)?;
    serve_from(origin.as_mut(), &options, progress)
}

pub(super) fn extract(options: Options, progress: &Progress) -> Result<()> {
    let mut origin = places::origin(None, &options)?;
    extract_from(origin.as_mut(), &options, progress)
}

fn serve_from(origin: &mut dyn Origin, options: &Options, progress: &Progress) -> Result<()> {
    let images_dir = places::images_dir(options)?;
    let external_files = places::external(options)?;
    let shards = origin.open()?;

            let limit = options.memory_limit.map_or(limits::memory_bytes() / 4 * 3, |size| size.0);
            let store = MemoryStore::new(limit);
            let absorbed = absorb(origin, shards, &store, progress)?;
            let (count, bytes) = totals(&absorbed.manifest);
            let files = store.into_files(&absorbed.manifest);
            origin.committed(count, bytes)?;
            progress.stats(&absorbed.shards);
            // With more than one reader, which of them is last cannot be known.
            let reread = if options.criu_clients > 1 { u64::MAX } else { options.reread.0 };
            let files = Arc::new(MemoryFiles::new(files, reread));
    // From here on; before, the default is right: there is nothing to clean up.
    let signals = Signals::take()?;
    serve::serve(
        serve::Options {
            images_dir,
            clients: options.criu_clients,
            external_files,
            ports: options.tcp_listen_remap.clone().unwrap_or_default(),
        },
        files,
        &signals,
        progress,
    )?;
    progress.finished(count, bytes);
    Ok(())
}

fn extract_from(origin: &mut dyn Origin, options: &Options, progress: &Progress) -> Result<()> {
    let images_dir = places::images_dir(options)?;
    let mut external = places::external(options)?;
    let names = external.iter().map(|(name, _)| name.clone()).collect();
    let shards = origin.open()?;
    let extraction = Extraction::new(&images_dir, names)?;
    let absorbed = absorb(origin, shards, &extraction, progress)?;
    let elsewhere = extraction.publish(&absorbed.manifest).inspect_err(|error| {
        origin.failed(&error.report().to_string());
    })?;
    let (count, bytes) = totals(&absorbed.manifest);
    origin.committed(count, bytes)?;
    progress.stats(&absorbed.shards);
    for (name, file) in elsewhere {
        if let Some(at) = external.iter().position(|(wanted, _)| *wanted == name) {
            extract::deliver(&name, file, external.swap_remove(at).1)?;
        }
    }
    if let Some((name, _)) = external.first() {
        return Err(Error::Usage(format!("{name} is not in the image: drop it from --ext-file-fds")));
    }
    progress.finished(count, bytes);
    Ok(())
}

fn totals(manifest: &crate::format::Manifest) -> (u32, u64) {
    (manifest.end.files, manifest.end.raw_bytes)
}

/// Reads the image and tells its origin if it is none.
fn absorb<S: absorb::ImageSink>(
    origin: &mut dyn Origin,
    shards: Vec<Box<dyn ShardReader>>,
    sink: &Arc<S>,
    progress: &Progress,
) -> Result<Absorbed> {
    let counters = progress.absorbing(&shards);
    absorb::absorb(shards, sink, &counters, &mut || Ok(())).map_err(|error| {
        let error = origin.explain(error);
        origin.failed(&error.report().to_string());
        error
    })
}
