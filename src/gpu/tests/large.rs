//! Sizes and places that do not fit 31 or 32 bits. The memory is sparse: some pages are written,
//! and each of their words is its own place in the contents; the rest is zero.

use super::*;
use crate::stage;

const PAGE: u64 = 4096;
const GIB: u64 = 1 << 30;

/// The sums pass 2 GiB inside of the second BO and 4 GiB inside of the third, and the last does not
/// fit 32 bits by itself.
const SIZES: [u64; 4] = [3 * GIB / 2, GIB, 2 * GIB, 4 * GIB + PAGE];

/// Whether a page of the contents is written: the first and last of each BO, those around the
/// places where numbers overflow, and one in 64 MiB.
fn is_written(page: u64) -> bool {
    let mut start = 0;
    let edges = SIZES.iter().flat_map(|size| {
        let edges =
            [start, start + size - PAGE, start + 2 * GIB, start + 4 * GIB, start + 4 * GIB - PAGE];
        start += size;
        edges
    });
    let sums = [2 * GIB, 2 * GIB - PAGE, 4 * GIB, 4 * GIB - PAGE, 8 * GIB];
    page.is_multiple_of(64 << 20) || edges.chain(sums).any(|edge| edge == page)
}

fn page_bytes(page: u64) -> Vec<u8> {
    (page..page + PAGE).step_by(8).flat_map(|place| (place | 1).to_le_bytes()).collect()
}

/// Checks every byte, and passes it on.
struct Check {
    written: Arc<Mutex<u64>>,
    next: Option<crossbeam_channel::Sender<Write>>,
}

impl Drain for Check {
    type Error = Given;

    fn chunk(&mut self, offset: u64, chunk: Chunk, len: usize) -> Result<(), Given> {
        for (page, bytes) in (offset..).step_by(4096).zip(chunk[..len].chunks(4096)) {
            if is_written(page) {
                assert!(bytes == page_bytes(page), "page {page:#x}");
                *self.written.lock().unwrap() += 1;
            } else {
                assert!(stage::is_zero(bytes), "page {page:#x} should be zero");
            }
        }
        let write = if stage::is_zero(&chunk[..len]) {
            Write::Zeros { offset, len: len as u64 }
        } else {
            Write::Bytes { offset, chunk, range: 0..len }
        };
        let sent = self.next.as_ref().map_or(Ok(()), |next| next.send(write));
        sent.map_err(|_| Given("the restore has failed"))
    }

    fn end(&mut self, _: u64) -> Result<(), Given> {
        self.next = None;
        Ok(())
    }
}

fn dump_checked(bench: &Bench, ring: &Ring, next: Option<crossbeam_channel::Sender<Write>>) -> u64 {
    let written = Arc::default();
    let contents = bench.contents().remove(0);
    let jobs = vec![DumpJob { contents, drain: Check { written: Arc::clone(&written), next } }];
    dump(&bench.driver(), ring, jobs, options(), &mut || Ok(())).unwrap();
    *written.lock().unwrap()
}

#[test]
fn past_two_and_four_gib() {
    let source = Bench::new(1, &SIZES);
    let mut start = 0;
    let mut pages = 0;
    for (_, size, memory) in &source.app[0].bos {
        for page in (start..start + size).step_by(4096).filter(|&page| is_written(page)) {
            memory.write(usize::try_from(page - start).unwrap(), &page_bytes(page));
            pages += 1;
        }
        start += size;
    }
    let target = Bench::new(1, &SIZES);
    let ring = Ring::new(4 << 20, 16).unwrap();
    let jobs = target.contents().into_iter().map(|contents| RestoreJob { contents });
    let (restore, mut senders) =
        Restore::<Given>::start(&target.driver(), &ring, jobs.collect(), options()).unwrap();
    assert_eq!(dump_checked(&source, &ring, senders.pop()), pages);
    restore.finish(&mut || Ok(())).unwrap();
    // What was restored, seen by another dump.
    assert_eq!(dump_checked(&target, &ring, None), pages);
    source.assert_tidy(&ring);
    target.assert_tidy(&ring);
}
