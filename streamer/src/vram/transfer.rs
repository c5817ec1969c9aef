//! Whole images of GPU contents: from the GPUs to a destination, and from an origin to the GPUs.

use std::sync::Arc;

use vramstream::{
    device::Driver,
    gpu::{self, Contents, DumpJob, GpuError, GpuStats, Restore, RestoreJob},
    ring::Ring,
    stage::Compression,
};

use super::{PagesFile, SIZE_BYTES, VramFeed, VramSink};
use crate::{
    absorb::{Absorbed, ShardStat, absorb},
    error::{Error, Result},
    format::MAX_FILE_BYTES,
    pack::{Memory, Options as PackOptions, Packer, StageThreads, Totals},
    progress::Progress,
    transport::{Destination, Origin},
};

/// How to move contents.
#[derive(Debug, Clone)]
pub struct Options {
    /// The memory that all of it goes through, and how much of that there is.
    pub ring: Ring,
    /// The number that CRIU gave the process's `/dev/kfd`.
    pub id: u32,
    /// What to try on chunks.
    pub compression: Compression,
    /// Memory for the indexes of the shards, in bytes.
    pub index_bytes: usize,
    /// How the devices are used.
    pub gpu: gpu::Options,
}

/// What was moved.
#[derive(Debug, Clone)]
pub struct Moved {
    /// By each GPU.
    pub gpus: Vec<GpuStats>,
    /// To, or from, each shard.
    pub shards: Vec<ShardStat>,
}

/// Dumps the contents of GPUs into an image that has nothing else in it: all or nothing.
pub fn dump(
    driver: &Arc<dyn Driver>,
    contents: Vec<Contents>,
    destination: Box<dyn Destination>,
    options: &Options,
    check: impl Fn() -> Result<()> + Clone + Send + Sync + 'static,
    progress: &Progress,
) -> Result<Moved> {
    let pack = PackOptions {
        compression: options.compression,
        memory: Memory::Ring { ring: options.ring.clone(), index_bytes: options.index_bytes },
        stages: StageThreads::Checksum,
    };
    let mut packer = Packer::start(destination, pack, check.clone(), progress)?;
    let moved = dump_into(&mut packer, driver, contents, options, &check);
    moved.map_err(|error| {
        let error = packer.explain(error);
        packer.abort(&error.report().to_string());
        error
    })
}

fn dump_into(
    packer: &mut Packer,
    driver: &Arc<dyn Driver>,
    contents: Vec<Contents>,
    options: &Options,
    check: &dyn Fn() -> Result<()>,
) -> Result<Moved> {
    let (mut jobs, mut totals) = (Vec::with_capacity(contents.len()), Totals::default());
    for contents in contents {
        let bytes = bytes(&contents)?;
        let file = PagesFile { id: options.id, gpu_id: contents.gpu_id };
        let drain = VramFeed::begin(packer.feed(), totals.files, file, bytes)?;
        totals.files += 1;
        totals.raw_bytes += drain.file_bytes();
        jobs.push(DumpJob { contents, drain });
    }
    // A worker whose feed has failed may be first to say so, and knows less.
    let mut cause = None;
    let gpus = gpu::dump(driver, &options.ring, jobs, options.gpu, &mut || {
        packer.health().map_err(|error| {
            cause.get_or_insert(error);
            Error::GivenUp
        })?;
        check()
    });
    let gpus = gpus.map_err(|error| match (Error::from(error), cause) {
        (Error::GivenUp, Some(cause)) => cause,
        (error, _) => error,
    })?;
    let shards = packer.commit(&totals)?;
    Ok(Moved { gpus, shards })
}

/// Restores the contents of GPUs from an image that has nothing else in it. The image is verified;
/// where it turns out to be damaged, part of it is in the GPUs already, and the restore has failed.
pub fn restore(
    driver: &Arc<dyn Driver>,
    contents: Vec<Contents>,
    origin: &mut dyn Origin,
    options: &Options,
    check: impl Fn() -> Result<()>,
    progress: &Progress,
) -> Result<Moved> {
    let moved = restore_from(driver, contents, origin, options, &check, progress);
    let (absorbed, gpus) = moved.map_err(|error| {
        let error = origin.explain(error);
        origin.failed(&error.report().to_string());
        error
    })?;
    origin.committed(absorbed.manifest.end.files, absorbed.manifest.end.raw_bytes)?;
    Ok(Moved { gpus, shards: absorbed.shards })
}

fn restore_from(
    driver: &Arc<dyn Driver>,
    contents: Vec<Contents>,
    origin: &mut dyn Origin,
    options: &Options,
    check: &dyn Fn() -> Result<()>,
    progress: &Progress,
) -> Result<(Absorbed, Vec<GpuStats>)> {
    let files = contents.iter().map(|contents| {
        let file = PagesFile { id: options.id, gpu_id: contents.gpu_id };
        Ok((file, bytes(contents)?))
    });
    let files: Vec<_> = files.collect::<Result<_>>()?;
    // Before the workers: nobody may come for a long time.
    let shards = origin.open()?;
    let jobs = contents.into_iter().map(|contents| RestoreJob { contents }).collect();
    let (restore, senders) = Restore::start(driver, &options.ring, jobs, options.gpu)?;
    let watch = restore.watch();
    let gpus = files.into_iter().zip(senders).map(|((file, bytes), sender)| (file, bytes, sender));
    let sink = VramSink::new(&options.ring, watch.clone(), gpus);
    let counters = progress.absorbing(&shards);
    let absorbed = absorb(shards, &sink, &counters, &mut || {
        check()?;
        if watch.is_failing() { Err(Error::GivenUp) } else { Ok(()) }
    });
    match absorbed.and_then(|absorbed| sink.close().map(|()| absorbed)) {
        Ok(absorbed) => Ok((absorbed, restore.finish(&mut || check())?)),
        Err(Error::GivenUp) => Err(restore.give_up().into()),
        Err(error) => {
            restore.give_up();
            Err(error)
        }
    }
}

/// Bytes of contents, which are not more than a file can have.
fn bytes(contents: &Contents) -> Result<u64> {
    let too_many = || GpuError::Contents {
        gpu_id: contents.gpu_id,
        what: "its BOs are too large to be believed".into(),
    };
    let bytes = contents.bytes().filter(|&bytes| bytes <= MAX_FILE_BYTES - SIZE_BYTES);
    Ok(bytes.ok_or_else(too_many)?)
}
