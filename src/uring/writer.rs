//! Writes a file from chunks, several writes at a time.

use std::{fmt, fs::File, io, ops::Range, os::unix::fs::FileExt};

use nix::{
    errno::Errno,
    fcntl::{FcntlArg, OFlag, fcntl},
};

use super::queue::{Queue, Unusable, Write};
use crate::ring::{Chunk, Ring};

/// How a file is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Engine {
    /// With io_uring if it can be used, else plainly.
    #[default]
    Auto,
    /// With io_uring; an error if it cannot be used.
    Uring,
    /// With `pwrite(2)`, one write at a time.
    Plain,
}

/// A write that failed.
#[derive(Debug, thiserror::Error)]
#[error("the write of {len} bytes at byte {offset} failed")]
pub struct WriteError {
    /// Where in the file.
    pub offset: u64,
    /// How many bytes were not written.
    pub len: usize,
    /// What the kernel answered.
    #[source]
    pub source: io::Error,
}

/// Writes pieces of chunks to places in a file. After an error the file is lost: what is in flight
/// ends, but nobody can say what of it is in the file.
pub struct FileWriter {
    mode: Mode,
    /// Whether the file is open for direct I/O.
    direct: bool,
}

enum Mode {
    Uring(Box<Queue>),
    Plain(File),
}

impl FileWriter {
    /// Writes to `file`, which is open for writing, with at most `depth` writes in flight.
    pub fn new(file: File, depth: u16, engine: Engine) -> Result<Self, Unusable> {
        let flags = fcntl(&file, FcntlArg::F_GETFL).unwrap_or(0);
        let direct = OFlag::from_bits_truncate(flags).contains(OFlag::O_DIRECT);
        let mode = match engine {
            Engine::Plain => Mode::Plain(file),
            Engine::Auto | Engine::Uring => match Queue::new(file, depth) {
                Ok(queue) => Mode::Uring(Box::new(queue)),
                Err((file, _)) if engine == Engine::Auto => Mode::Plain(file),
                Err((_, unusable)) => return Err(unusable),
            },
        };
        Ok(FileWriter { mode, direct })
    }

    /// The file.
    pub fn file(&self) -> &File {
        match &self.mode {
            Mode::Uring(queue) => queue.file(),
            Mode::Plain(file) => file,
        }
    }

    /// Whether writes go through io_uring.
    pub fn is_uring(&self) -> bool {
        matches!(self.mode, Mode::Uring(_))
    }

    /// Whether writes still pass by the page cache: the file was opened for that, and the file
    /// system has not refused any.
    pub fn is_direct(&self) -> bool {
        self.direct
    }

    /// How many chunks of that ring are in flight, or done and not yet dropped: a chunk comes back
    /// only while a method of this writer runs.
    pub fn in_flight_of(&self, ring: &Ring) -> usize {
        match &self.mode {
            Mode::Uring(queue) => queue.in_flight_of(ring),
            Mode::Plain(_) => 0,
        }
    }

    /// Writes `range` of `chunk` at `offset`, now or soon. The chunk is dropped when it is written.
    /// Waits while the queue is full. The error may be of an earlier write.
    ///
    /// # Panics
    ///
    /// If the range is not within the chunk.
    pub fn write(
        &mut self,
        chunk: Chunk,
        range: Range<usize>,
        offset: u64,
    ) -> Result<(), WriteError> {
        if chunk[range.clone()].is_empty() {
            return Ok(());
        }
        let write = Write { chunk, range, offset, direct: self.direct };
        while self.is_full() {
            self.wait_one()?;
        }
        self.start(write)
    }

    /// Waits until at least one write that is in flight is done; `false` if there is none.
    pub fn wait_one(&mut self) -> Result<bool, WriteError> {
        let Mode::Uring(queue) = &mut self.mode else { return Ok(false) };
        match queue.next() {
            Ok(Some((write, answer))) => {
                if let Some(rest) = self.answered(write, answer)? {
                    self.start(rest)?;
                }
                Ok(true)
            }
            Ok(None) => Ok(false),
            Err(source) => Err(WriteError { offset: 0, len: 0, source }),
        }
    }

    /// Waits until nothing is in flight: all that was written is in the file, if not on the disk.
    pub fn wait_all(&mut self) -> Result<(), WriteError> {
        while self.wait_one()? {}
        Ok(())
    }

    fn is_full(&self) -> bool {
        matches!(&self.mode, Mode::Uring(queue) if queue.is_full())
    }

    /// Starts a write, or does it, where writing is plain.
    fn start(&mut self, write: Write) -> Result<(), WriteError> {
        let mut rest = Some(write);
        while let Some(mut write) = rest.take() {
            write.direct = self.direct;
            match &mut self.mode {
                Mode::Uring(queue) => {
                    let (offset, len) = (write.offset, write.range.len());
                    queue.start(write).map_err(|source| WriteError { offset, len, source })?;
                }
                Mode::Plain(file) => {
                    let answer = file.write_at(&write.chunk[write.range.clone()], write.offset);
                    rest = self.answered(write, answer)?;
                }
            }
        }
        Ok(())
    }

    /// What the kernel said of a write: what is left of it to be written again, if anything.
    fn answered(
        &mut self,
        mut write: Write,
        answer: io::Result<usize>,
    ) -> Result<Option<Write>, WriteError> {
        let source = match answer {
            Ok(0) => io::Error::from(io::ErrorKind::WriteZero),
            Ok(written) => {
                // The kernel never writes more than it was given.
                let written = written.min(write.range.len());
                write.range.start += written;
                write.offset += written as u64;
                return Ok(Some(write).filter(|write| !write.range.is_empty()));
            }
            Err(error) => match error.raw_os_error().map(Errno::from_raw) {
                Some(Errno::EINTR | Errno::EAGAIN) => return Ok(Some(write)),
                // Some file systems take O_DIRECT at open and refuse it at the write, and the rest
                // of a short write need not be aligned any more.
                Some(Errno::EINVAL) if write.direct => match self.stop_direct() {
                    Ok(()) => return Ok(Some(write)),
                    Err(errno) => errno.into(),
                },
                _ => error,
            },
        };
        Err(WriteError { offset: write.offset, len: write.range.len(), source })
    }

    fn stop_direct(&mut self) -> Result<(), Errno> {
        if self.direct {
            let flags = OFlag::from_bits_retain(fcntl(self.file(), FcntlArg::F_GETFL)?);
            fcntl(self.file(), FcntlArg::F_SETFL(flags - OFlag::O_DIRECT))?;
            self.direct = false;
        }
        Ok(())
    }
}

impl fmt::Debug for FileWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileWriter")
            .field("file", self.file())
            .field("uring", &self.is_uring())
            .field("direct", &self.direct)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use proptest::prelude::*;

    use super::*;
    use crate::ring::page_bytes;

    const ENGINES: [Engine; 2] = [Engine::Auto, Engine::Plain];

    fn file() -> File {
        tempfile::tempfile().unwrap()
    }

    fn contents(writer: &FileWriter) -> Vec<u8> {
        let len = usize::try_from(writer.file().metadata().unwrap().len()).unwrap();
        let mut bytes = vec![0; len];
        writer.file().read_exact_at(&mut bytes, 0).unwrap();
        bytes
    }

    #[test]
    fn auto_is_io_uring_exactly_where_it_can_be_used() {
        let writer = FileWriter::new(file(), 4, Engine::Auto).unwrap();
        assert_eq!(writer.is_uring(), super::super::probe().is_ok());
        assert_eq!(FileWriter::new(file(), 4, Engine::Uring).is_ok(), writer.is_uring());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// Any pieces at any places, any depth, either engine: the file is what was written.
        #[test]
        fn what_is_written_is_there(
            pieces in prop::collection::vec((0usize..8192, 0usize..8192, any::<u8>(), 0u64..3), 1..60),
            depth in 1u16..20,
            plain: bool,
            many: bool,
        ) {
            // More chunks than can be registered take the other way into the kernel.
            let ring = Ring::new(2 * page_bytes(), if many { 2000 } else { 3 }).unwrap();
            let engine = ENGINES[usize::from(plain)];
            let mut writer = FileWriter::new(file(), depth, engine).unwrap();
            let mut expected = Vec::new();
            let mut offset = 0;
            for (a, b, fill, gap) in pieces {
                let range = a.min(b)..a.max(b);
                while ring.free() == 0 {
                    prop_assert!(writer.wait_one().unwrap());
                }
                let mut chunk = ring.try_take().unwrap();
                chunk.fill(!fill);
                chunk[range.clone()].fill(fill);
                let len = range.len();
                if len > 0 {
                    offset += gap;
                    expected.resize(usize::try_from(offset).unwrap(), 0);
                    expected.resize(expected.len() + len, fill);
                }
                writer.write(chunk, range, offset).unwrap();
                offset += len as u64;
            }
            writer.wait_all().unwrap();
            prop_assert_eq!(ring.free(), ring.chunks());
            prop_assert_eq!(contents(&writer), expected);
        }
    }

    #[test]
    fn only_chunks_that_are_used_are_registered() {
        let ring = Ring::new(page_bytes(), 500).unwrap();
        let mut writer = FileWriter::new(file(), 8, Engine::Auto).unwrap();
        for at in 0..20u64 {
            writer.write(ring.try_take().unwrap(), 0..page_bytes(), at * 4096).unwrap();
            writer.wait_all().unwrap();
        }
        if let Mode::Uring(queue) = &writer.mode {
            assert!(queue.registered() <= 1, "{}", queue.registered());
        }
    }

    #[test]
    fn a_direct_write_that_is_refused_is_written_all_the_same() {
        for engine in ENGINES {
            let ring = Ring::new(page_bytes(), 4).unwrap();
            let file = file();
            let direct = fcntl(&file, FcntlArg::F_SETFL(OFlag::O_DIRECT)).is_ok();
            let mut writer = FileWriter::new(file, 4, engine).unwrap();
            assert_eq!(writer.is_direct(), direct);
            for at in 0..4u64 {
                let mut chunk = ring.try_take().unwrap();
                chunk.fill(b'0' + u8::try_from(at).unwrap());
                writer.write(chunk, 1..4, 3 * at).unwrap();
            }
            writer.wait_all().unwrap();
            assert_eq!(contents(&writer), b"000111222333");
            assert_eq!(ring.free(), 4);
        }
    }

    #[test]
    fn errors_say_where_and_give_the_chunks_back() {
        for engine in ENGINES {
            let ring = Ring::new(page_bytes(), 4).unwrap();
            let full = File::options().write(true).open("/dev/full").unwrap();
            let mut writer = FileWriter::new(full, 4, engine).unwrap();
            let result = writer
                .write(ring.try_take().unwrap(), 10..20, 4096)
                .and_then(|()| writer.wait_all());
            let error = result.unwrap_err();
            assert_eq!((error.offset, error.len), (4096, 10));
            assert_eq!(error.source.raw_os_error(), Some(nix::libc::ENOSPC));
            drop(writer);
            assert_eq!(ring.free(), 4);
        }
    }

    #[test]
    fn what_the_kernel_does_not_take_is_written_again() {
        if super::super::probe().is_err() {
            return; // pwrite(2) does not write to pipes, and nothing else writes short at will.
        }
        let (read, write) = nix::unistd::pipe().unwrap();
        let reader = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            File::from(read).read_to_end(&mut bytes).unwrap();
            bytes
        });
        let ring = Ring::new(1 << 20, 1).unwrap();
        let mut chunk = ring.try_take().unwrap();
        let expected: Vec<u8> = (0..1u32 << 18).flat_map(u32::to_le_bytes).collect();
        chunk.copy_from_slice(&expected);
        let mut writer = FileWriter::new(File::from(write), 1, Engine::Uring).unwrap();
        writer.write(chunk, 0..1 << 20, 0).unwrap();
        writer.wait_all().unwrap();
        drop(writer);
        assert!(reader.join().unwrap() == expected);
    }

    /// The rule that everything else hangs on: memory that the kernel has does not come back.
    #[test]
    fn dropping_waits_for_what_is_in_flight() {
        if super::super::probe().is_err() {
            return; // Plain writes are never in flight.
        }
        let (read, write) = nix::unistd::pipe().unwrap();
        let room = fcntl(&write, FcntlArg::F_GETPIPE_SZ).unwrap();
        let room = usize::try_from(room).unwrap();
        let ring = Ring::new(room, 2).unwrap();
        let mut writer = FileWriter::new(File::from(write), 4, Engine::Uring).unwrap();
        for fill in [1, 2] {
            let mut chunk = ring.try_take().unwrap();
            chunk.fill(fill);
            writer.write(chunk, 0..room, 0).unwrap();
        }
        let dropping = std::thread::spawn(move || drop(writer));
        std::thread::sleep(std::time::Duration::from_millis(100));
        assert!(!dropping.is_finished());
        // The first filled the pipe; the second has not been taken.
        assert_eq!(ring.free(), 1);
        let mut bytes = Vec::new();
        File::from(read).read_to_end(&mut bytes).unwrap();
        dropping.join().unwrap();
        assert_eq!(ring.free(), 2);
        assert!(bytes.len() > room && bytes.iter().take(room).all(|&b| b == 1));
        assert!(bytes.iter().skip(room).all(|&b| b == 2));
    }
}
