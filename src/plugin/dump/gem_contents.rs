//! The contents of the BOs of a render node: a file for each.
//!
//! Many BOs are small, so several are copied together; whoever copies knows nothing of the BOs'
//! files, which are cut from what comes.

use std::{collections::VecDeque, fs::File, io::Write, os::unix::fs::FileExt, time::Duration};

use crossbeam_channel::Sender;
use nix::time::{ClockId, clock_gettime};

use crate::{
    device::{DeviceError, RenderNode},
    gpu::{self, Bo, Contents, DumpJob},
    image::{BlockSums, BoSums, ImageName, framing},
    plugin::{
        context::Context,
        error::{Error, Result, from_gpu},
        gpus::render_path,
        images::{Images, NewFile},
    },
    ring::Chunk,
    stage::is_zero,
};

/// So many are copied together, each with an open file.
const TOGETHER: usize = 64;
/// How long what the application has submitted may go on.
const PATIENCE: Duration = Duration::from_secs(10);

/// A BO whose contents are wanted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted {
    /// Its place in the image of the render node.
    pub bo: u32,
    /// Its handle in the file.
    pub handle: u32,
    /// In bytes.
    pub size: u64,
}

/// Whose contents they are.
#[derive(Debug, Clone, Copy)]
pub(super) struct Of<'a> {
    /// The application's file.
    pub render: &'a RenderNode,
    /// CRIU's id of it.
    pub id: u32,
    /// The number of the render node.
    pub minor: u32,
    /// Its GPU, as the process calls it.
    pub gpu_id: u32,
}

/// Copies the contents; the checksums, in the same order.
pub(super) fn dump(cx: Context<'_>, of: Of<'_>, wanted: &[Wanted]) -> Result<Vec<BoSums>> {
    let ring = match wanted {
        [] => return Ok(Vec::new()),
        _ => cx.settings.budget.ring(1)?,
    };
    let mut sums = Vec::with_capacity(wanted.len());
    for wanted in wanted.chunks(TOGETHER) {
        let mut bos = Vec::with_capacity(wanted.len());
        let mut files = VecDeque::with_capacity(wanted.len());
        for &Wanted { bo, handle, size } in wanted {
            idle(of.render, handle)?;
            bos.push(Bo { size, dma_buf: of.render.export(handle)? });
            let name = ImageName::DrmPages { id: of.id, minor: of.minor, bo }.to_string();
            files.push_back(BoFile::begin(cx.images(), name, bo, size)?);
        }
        let (ended, ends) = crossbeam_channel::bounded(wanted.len());
        let contents = Contents { gpu_id: of.gpu_id, node: render_path(of.minor).into(), bos };
        let jobs = vec![DumpJob { contents, drain: Cut { files, ended } }];
        let name = ImageName::Render { id: of.id }.to_string();
        let options = gpu::Options::default();
        gpu::dump(cx.system.driver(), &ring, jobs, options, &mut || Ok(()))
            .map_err(|error| from_gpu(&name, error))?;
        let ends: Vec<BoFile> = ends.iter().collect();
        if ends.len() != wanted.len() {
            return Err(Error::GivenUp);
        }
        for end in ends {
            sums.push(end.publish(cx.images())?);
        }
    }
    Ok(sums)
}

/// Waits until nothing that the application has submitted uses a BO.
fn idle(render: &RenderNode, handle: u32) -> Result<()> {
    let failed = |errno| DeviceError::Call {
        node: render.node().path().to_owned(),
        call: "GEM_WAIT_IDLE",
        errno,
    };
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map_err(failed)?;
    let deadline = Duration::from(now).saturating_add(PATIENCE).as_nanos();
    if render.wait_idle(handle, u64::try_from(deadline).unwrap_or(u64::MAX))? {
        return Ok(());
    }
    Err(DeviceError::Hung { node: render.node().path().to_owned(), seconds: PATIENCE.as_secs() }
        .into())
}

/// Cuts contents into the files of their BOs.
struct Cut {
    files: VecDeque<BoFile>,
    ended: Sender<BoFile>,
}

impl gpu::Drain for Cut {
    type Error = Error;

    fn chunk(&mut self, _: u64, chunk: Chunk, len: usize) -> Result<()> {
        let mut bytes = &chunk[..len];
        while !bytes.is_empty() {
            let file = self.files.front_mut().ok_or(Error::GivenUp)?;
            let left = usize::try_from(file.size - file.written).unwrap_or(usize::MAX);
            let (now, later) = bytes.split_at(left.min(bytes.len()));
            file.write(now)?;
            bytes = later;
            if file.written == file.size {
                self.next()?;
            }
        }
        Ok(())
    }

    fn end(&mut self, _: u64) -> Result<()> {
        match self.files.front() {
            None => Ok(()),
            Some(file) => Err(Error::Content {
                file: file.name.clone(),
                what: "the GPU gave other contents than it has".into(),
            }),
        }
    }
}

impl Cut {
    fn next(&mut self) -> Result<()> {
        let file = self.files.pop_front().ok_or(Error::GivenUp)?;
        self.ended.send(file.whole()?).map_err(|_| Error::GivenUp)
    }
}

/// The file of a BO.
struct BoFile {
    name: String,
    bo: u32,
    size: u64,
    written: u64,
    sums: BlockSums,
    out: Out,
}

enum Out {
    Directory(NewFile),
    Pipe(File),
    /// All of it is in the pipe.
    Sent,
}

impl BoFile {
    fn begin(images: Images<'_>, name: String, bo: u32, size: u64) -> Result<Self> {
        let header = framing::size_header(size);
        let out = if images.are_streamed() {
            let mut pipe = images.create_stream(&name)?;
            pipe.write_all(&header).map_err(Error::file(&name, "write"))?;
            Out::Pipe(pipe)
        } else {
            let mut file = images.create(&name)?;
            file.file().write_all_at(&header, 0).map_err(Error::file(&name, "write"))?;
            Out::Directory(file)
        };
        Ok(BoFile { name, bo, size, written: 0, sums: BlockSums::default(), out })
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.sums.update(bytes);
        let written = match &mut self.out {
            Out::Pipe(pipe) => pipe.write_all(bytes),
            // The file is new: where nothing is written there are zeros.
            Out::Directory(_) if is_zero(bytes) => Ok(()),
            Out::Directory(file) => {
                file.file().write_all_at(bytes, self.written + framing::SIZE_BYTES as u64)
            }
            Out::Sent => Err(std::io::ErrorKind::BrokenPipe.into()),
        };
        written.map_err(Error::file(&self.name, "write"))?;
        self.written += bytes.len() as u64;
        Ok(())
    }

    /// All of it is there.
    fn whole(mut self) -> Result<Self> {
        match &mut self.out {
            Out::Directory(file) => {
                let size = self.size + framing::SIZE_BYTES as u64;
                file.file().set_len(size).map_err(Error::file(&self.name, "write"))?;
            }
            out => *out = Out::Sent,
        }
        Ok(self)
    }

    fn publish(self, images: Images<'_>) -> Result<BoSums> {
        if let Out::Directory(file) = self.out {
            images.publish(file)?;
        }
        Ok(BoSums { bo: self.bo, bytes: self.size, blocks: self.sums.finish() })
    }
}
