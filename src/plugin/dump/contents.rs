//! The contents of GPUs to files, and to pipes.
//!
//! ```text
//!  worker of a GPU   SDMA ──► chunk ──► checksum ──► io_uring (a directory) │ write (a pipe)
//! ```

use std::{io::Write, os::unix::fs::FileExt, sync::Arc};

use crossbeam_channel::{Receiver, Sender};

use crate::{
    device::Driver,
    gpu::{self, Contents, DumpJob},
    image::{BlockSums, GpuSums, ImageName, framing},
    plugin::{
        error::{Error, Result, from_gpu},
        images::{Images, NewFile},
    },
    ring::{Budget, Chunk, Ring},
    stage::is_zero,
    uring::{Engine, FileWriter},
};

/// The most writes in flight for each GPU.
const MOST_WRITES: usize = 16;

/// Copies all contents of a process, GPU by GPU at the same time; the files are there when all of
/// them are whole.
pub(super) fn dump(
    images: Images<'_>,
    driver: &Arc<dyn Driver>,
    budget: Budget,
    id: u32,
    contents: Vec<Contents>,
) -> Result<Vec<GpuSums>> {
    let gpus = contents.len();
    if gpus == 0 {
        return Ok(Vec::new());
    }
    let bytes = contents.iter().filter_map(Contents::bytes).fold(0, u64::saturating_add);
    let ring = budget.ring_for(gpus, bytes)?;
    let (ended, ends) = crossbeam_channel::bounded(gpus);
    let jobs = contents.into_iter().map(|contents| {
        let name = ImageName::Pages { id, gpu_id: contents.gpu_id }.to_string();
        let too_many = || content(&name, "its BOs are too large to be believed");
        let bytes = contents.bytes().ok_or_else(too_many)?;
        let drain = Drain::begin(images, name, contents.gpu_id, bytes, &ring, gpus, &ended)?;
        Ok(DumpJob { contents, drain })
    });
    let jobs = jobs.collect::<Result<Vec<_>>>()?;
    drop(ended);
    let process = ImageName::Kfd { id }.to_string();
    let options = gpu::Options::default();
    gpu::dump(driver, &ring, jobs, options, &mut || Ok(()))
        .map_err(|error| from_gpu(&process, error))?;
    publish(images, &ends)
}

/// Gives all files their names.
fn publish(images: Images<'_>, ends: &Receiver<End>) -> Result<Vec<GpuSums>> {
    let ends: Vec<End> = ends.iter().collect();
    let mut sums = Vec::with_capacity(ends.len());
    for End { sums: gpu, file } in ends {
        file.map_or(Ok(()), |file| images.publish(file))?;
        sums.push(gpu);
    }
    sums.sort_by_key(|gpu| gpu.gpu_id);
    Ok(sums)
}

/// What a GPU's worker leaves.
struct End {
    sums: GpuSums,
    file: Option<NewFile>,
}

/// Takes the contents of one GPU.
struct Drain {
    name: String,
    gpu_id: u32,
    bytes: u64,
    out: Out,
    sums: BlockSums,
    ended: Sender<End>,
}

enum Out {
    Directory { writer: Box<FileWriter>, file: Option<NewFile>, ring: Ring, most: usize },
    Pipe(Option<std::fs::File>),
}

impl Drain {
    fn begin(
        images: Images<'_>,
        name: String,
        gpu_id: u32,
        bytes: u64,
        ring: &Ring,
        gpus: usize,
        ended: &Sender<End>,
    ) -> Result<Self> {
        let header = framing::size_header(bytes);
        let out = if images.are_streamed() {
            let mut pipe = images.create_stream(&name)?;
            pipe.write_all(&header).map_err(Error::file(&name, "write"))?;
            Out::Pipe(Some(pipe))
        } else {
            let mut file = images.create(&name)?;
            file.file().write_all_at(&header, 0).map_err(Error::file(&name, "write"))?;
            let handle = file.file().try_clone().map_err(Error::file(&name, "open"))?;
            // Half of a GPU's share of the ring; the other half is for copies.
            let most = (ring.chunks() / gpus / 2).min(MOST_WRITES);
            let depth = u16::try_from(most.max(1)).unwrap_or(u16::MAX);
            let writer = FileWriter::new(handle, depth, Engine::Auto)
                .map_err(|unusable| content(&name, &unusable.to_string()))?;
            Out::Directory { writer: Box::new(writer), file: Some(file), ring: ring.clone(), most }
        };
        Ok(Drain { name, gpu_id, bytes, out, sums: BlockSums::default(), ended: ended.clone() })
    }
}

impl gpu::Drain for Drain {
    type Error = Error;

    fn chunk(&mut self, offset: u64, chunk: Chunk, len: usize) -> Result<()> {
        self.sums.update(&chunk[..len]);
        let at = offset + framing::SIZE_BYTES as u64;
        match &mut self.out {
            Out::Pipe(Some(pipe)) => {
                pipe.write_all(&chunk[..len]).map_err(Error::file(&self.name, "write"))
            }
            Out::Pipe(None) => Err(Error::GivenUp),
            // The file is new: where nothing is written there are zeros.
            Out::Directory { .. } if is_zero(&chunk[..len]) => Ok(()),
            Out::Directory { writer, ring, most, .. } => {
                let failed = |source| Error::Write { file: self.name.clone(), source };
                writer.write(chunk, 0..len, at).map_err(failed)?;
                // Written chunks come back only when they are asked for.
                while writer.in_flight_of(ring) > *most {
                    writer.wait_one().map_err(failed)?;
                }
                Ok(())
            }
        }
    }

    fn end(&mut self, bytes: u64) -> Result<()> {
        if bytes != self.bytes {
            return Err(content(&self.name, "the GPU gave other contents than it has"));
        }
        let file = match &mut self.out {
            Out::Pipe(pipe) => {
                drop(pipe.take());
                None
            }
            Out::Directory { writer, file, .. } => {
                let failed = |source| Error::Write { file: self.name.clone(), source };
                writer.wait_all().map_err(failed)?;
                let size = bytes + framing::SIZE_BYTES as u64;
                writer.file().set_len(size).map_err(Error::file(&self.name, "write"))?;
                file.take()
            }
        };
        let blocks = std::mem::take(&mut self.sums).finish();
        let sums = GpuSums { gpu_id: self.gpu_id, bytes, blocks };
        self.ended.send(End { sums, file }).map_err(|_| Error::GivenUp)
    }
}

fn content(file: &str, what: &str) -> Error {
    Error::Content { file: file.to_owned(), what: what.to_owned() }
}
