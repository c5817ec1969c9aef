//! The commands, each from its options to its end.

use std::{
    fs::File,
    os::{fd::OwnedFd, unix::fs::FileExt},
    path::PathBuf,
    sync::Arc,
};

use vramstream::{
    system::System,
    topology::{Checks, DEFAULT_ROOT},
};

use super::{Format, Options, Place, args, places};
use crate::{
    absorb::{self, Absorbed, ShardStat},
    capture::{self, Output},
    doctor::{self, Surroundings},
    error::{Error, Result},
    extract::{self, Extraction},
    format::{FileName, ImageEnd, Manifest, Prologue},
    inspect::Inspection,
    limits, plan,
    progress::Progress,
    seekable::SeekableImage,
    selftest,
    serve::{self, ImageFiles, MemoryFiles, SeekableFiles},
    signals::Signals,
    store::MemoryStore,
    transport::{Origin, ShardReader, tcp::TcpOrigin},
    verify,
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
                "--format criu-image-streamer goes to pipes: use --shard-fds or standard output"
                    .into(),
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
            driver: Arc::clone(System::from_env().driver()),
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

pub(super) fn receive(receive: args::Receive, options: Options, progress: &Progress) -> Result<()> {
    let mut origin = TcpOrigin::bind(&receive.listen.to_string(), places::timeouts(&options))?;
    progress.line(&format!("listening {}", origin.local_addr()));
    if receive.extract {
        extract_from(&mut origin, &options, progress)
    } else {
        serve_from(&mut origin, &options, progress)
    }
}

fn serve_from(origin: &mut dyn Origin, options: &Options, progress: &Progress) -> Result<()> {
    let images_dir = places::images_dir(options)?;
    let external_files = places::external(options)?;
    let (signals, shards) = open(origin)?;
    let (files, manifest): (Arc<dyn ImageFiles>, Manifest) = match seekable(shards)? {
        Source::Seekable(image, sizes) => {
            let manifest = image.manifest().clone();
            if image.memory_bytes() as u64 > options.memory.0 / 2 {
                return Err(Error::Memory {
                    what: format!("the index of the image takes {} bytes", image.memory_bytes()),
                    option: "--memory",
                });
            }
            progress.stats(&sizes);
            (Arc::new(SeekableFiles::new(*image)), manifest)
        }
        Source::Stream(shards) => {
            let limit = options.memory_limit.map_or(limits::memory_bytes() / 4 * 3, |size| size.0);
            let store = MemoryStore::new(limit);
            let absorbed = absorb(origin, shards, &store, &signals, progress)?;
            let files = store.into_files(&absorbed.manifest);
            committed(origin, &absorbed.manifest)?;
            progress.stats(&absorbed.shards);
            // With more than one reader, which of them is last cannot be known.
            let reread = if options.criu_clients > 1 { u64::MAX } else { options.reread.0 };
            (Arc::new(MemoryFiles::new(files, reread)), absorbed.manifest)
        }
    };
    serve::serve(
        serve::Options {
            images_dir,
            clients: options.criu_clients,
            external_files,
            ports: options.tcp_listen_remap.clone().unwrap_or_default(),
            driver: Arc::clone(System::from_env().driver()),
        },
        files,
        &signals,
        progress,
    )?;
    progress.finished(manifest.end.files, manifest.end.raw_bytes);
    Ok(())
}

/// Takes signals over and opens an image. A signal ends the wait for it at once: only afterwards is
/// there something to clean up.
fn open(origin: &mut dyn Origin) -> Result<(Signals, Vec<Box<dyn ShardReader>>)> {
    let signals = Signals::take()?;
    let shards = signals.deadly_during(|| origin.open())??;
    Ok((signals, shards))
}

fn extract_from(origin: &mut dyn Origin, options: &Options, progress: &Progress) -> Result<()> {
    let images_dir = places::images_dir(options)?;
    let external = places::external(options)?;
    let names = external.iter().map(|(name, _)| name.clone()).collect();
    let (signals, shards) = open(origin)?;
    let extraction = Extraction::new(&images_dir, names)?;
    let extracted = absorb(origin, shards, &extraction, &signals, progress)
        .and_then(|absorbed| publish(origin, &extraction, &absorbed, external, progress));
    extraction.close();
    extracted
}

fn publish(
    origin: &mut dyn Origin,
    extraction: &Extraction,
    absorbed: &Absorbed,
    mut external: Vec<(FileName, OwnedFd)>,
    progress: &Progress,
) -> Result<()> {
    let published = extraction
        .publish(&absorbed.manifest)
        .inspect_err(|error| origin.failed(&error.report().to_string()))?;
    if let Err(error) = committed(origin, &absorbed.manifest) {
        // Where the sender may count on the image it stays; otherwise it was given up there.
        if !matches!(error, Error::Unconfirmed { .. }) {
            published.retract();
        }
        return Err(error);
    }
    progress.stats(&absorbed.shards);
    for (name, file) in published.external {
        if let Some(at) = external.iter().position(|(wanted, _)| *wanted == name) {
            extract::deliver(&name, file, external.swap_remove(at).1)?;
        }
    }
    if let Some((name, _)) = external.first() {
        return Err(Error::Usage(format!(
            "{name} is not in the image: drop it from --ext-file-fds"
        )));
    }
    progress.finished(absorbed.manifest.end.files, absorbed.manifest.end.raw_bytes);
    Ok(())
}

pub(super) fn verify(image: Option<PathBuf>, options: Options, progress: &Progress) -> Result<()> {
    let shards = places::origin(image, &options)?.open()?;
    let counters = progress.absorbing(&shards);
    let absorbed = verify::verify(shards, &counters)?;
    let ImageEnd { files, raw_bytes, .. } = absorbed.manifest.end;
    if options.json {
        println!(
            "{}",
            serde_json::json!({ "complete": true, "files": files, "raw_bytes": raw_bytes })
        );
    } else if !options.quiet {
        println!("complete and intact: {files} files, {raw_bytes} bytes");
    }
    progress.finished(files, raw_bytes);
    Ok(())
}

pub(super) fn plan(arguments: args::Plan, options: &Options) -> Result<()> {
    let path = |place| match place {
        Place::Directory(path) => Ok(path),
        Place::Tcp(_) => Err(Error::Usage("plan reads files: name a path".into())),
    };
    let from = path(arguments.from)?;
    let to = arguments.to.map_or(Ok(DEFAULT_ROOT.into()), path)?;
    let report = plan::plan(&from, &to, Checks::from_env()?)?;
    if options.json {
        println!("{}", serde_json::to_string(&report).unwrap_or_default());
    } else if !options.quiet {
        print!("{report}");
    }
    match report.restorable {
        true => Ok(()),
        false => Err(Error::NotRestorable(from.display().to_string())),
    }
}

pub(super) fn doctor(arguments: args::Doctor, options: &Options) -> Result<()> {
    let report = doctor::examine(&Surroundings::here(arguments.criu, arguments.libdir));
    if options.json {
        println!("{}", serde_json::to_string(&report).unwrap_or_default());
    } else if !options.quiet {
        print!("{report}");
    }
    match report.problems {
        0 => Ok(()),
        problems => Err(Error::NotReady(problems)),
    }
}

pub(super) fn selftest(options: &Options) -> Result<()> {
    let signals = Signals::take()?;
    let report = selftest::selftest(&signals)?;
    if options.json {
        println!("{}", serde_json::to_string(&report).unwrap_or_default());
    } else if !options.quiet {
        let selftest::Report { gpus, bos, bytes, sent_bytes, stopped_ms } = report;
        println!(
            "ok: a process on {gpus} simulated GPUs, {bos} BOs, was moved over TCP to {gpus} others\n             {bytes} bytes compared, all the same; {sent_bytes} bytes sent; stopped for {stopped_ms} ms"
        );
    }
    Ok(())
}

pub(super) fn inspect(image: Option<PathBuf>, options: Options, progress: &Progress) -> Result<()> {
    let shards = places::origin(image, &options)?.open()?;
    let inspection = match seekable(shards)? {
        Source::Seekable(image, sizes) => Inspection::of_index(&image, &sizes),
        Source::Stream(shards) => {
            let counters = progress.absorbing(&shards);
            Inspection::of_stream(shards, &counters)?
        }
    };
    if options.json {
        let json = serde_json::to_string(&inspection).unwrap_or_default();
        println!("{json}");
    } else {
        print!("{inspection}");
    }
    Ok(())
}

/// How an image can be read.
enum Source {
    /// At any place: its index is known, and the sizes of its shards.
    Seekable(Box<SeekableImage>, Vec<ShardStat>),
    /// Once, from start to end.
    Stream(Vec<Box<dyn ShardReader>>),
}

/// Opens the index where all shards are files in the native format.
fn seekable(shards: Vec<Box<dyn ShardReader>>) -> Result<Source> {
    let files: Option<Vec<(String, File)>> = shards
        .iter()
        .map(|shard| {
            let file = shard.file().filter(|file| is_native(file))?;
            Some((shard.describe().to_owned(), file.try_clone().ok()?))
        })
        .collect();
    match files {
        Some(files) if !files.is_empty() => {
            let size = |file: &File| file.metadata().map_or(0, |meta| meta.len());
            let sizes =
                files.iter().map(|(_, file)| ShardStat { bytes: size(file), duration_ms: 0 });
            let sizes = sizes.collect();
            Ok(Source::Seekable(Box::new(SeekableImage::open(files)?), sizes))
        }
        _ => Ok(Source::Stream(shards)),
    }
}

fn is_native(file: &File) -> bool {
    let mut first = [0; 8];
    file.read_exact_at(&mut first, 0).is_ok() && Prologue::is_native(&first)
}

/// Reads the image, and tells its origin if it is none.
fn absorb<S: absorb::ImageSink>(
    origin: &mut dyn Origin,
    shards: Vec<Box<dyn ShardReader>>,
    sink: &Arc<S>,
    signals: &Signals,
    progress: &Progress,
) -> Result<Absorbed> {
    let counters = progress.absorbing(&shards);
    absorb::absorb(shards, sink, &counters, &mut || signals.check()).map_err(|error| {
        let error = origin.explain(error);
        origin.failed(&error.report().to_string());
        error
    })
}

fn committed(origin: &mut dyn Origin, manifest: &Manifest) -> Result<()> {
    origin.committed(manifest.end.files, manifest.end.raw_bytes)
}
