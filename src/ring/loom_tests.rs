//! Every interleaving of threads that share a ring, by `loom`:
//!
//! ```text
//! RUSTFLAGS="--cfg vramstream_loom" CARGO_TARGET_DIR=target/loom \
//!     cargo test -p vramstream --lib --release ring::loom_tests
//! ```
//!
//! A cell for each chunk stands for its contents: loom fails when two threads can be at one cell
//! without an order between them, so these tests see a chunk that is lent twice, and one that is
//! handed over without its contents. loom also fails when all threads wait. It knows no time: a
//! [`Ring::take`] waits for ever there.

use std::{panic::catch_unwind, time::Duration};

use loom::{cell::UnsafeCell, sync::Arc, thread};

use super::{Chunk, Ring, page_bytes};

/// loom does not let time pass, but it does take some to try everything.
const LONG: Duration = Duration::from_secs(1 << 20);

struct Model {
    ring: Ring,
    contents: Vec<UnsafeCell<u32>>,
}

impl Model {
    fn new(chunks: usize) -> Arc<Model> {
        let ring = Ring::new(page_bytes(), chunks).unwrap();
        let contents = (0..chunks).map(|_| UnsafeCell::new(0)).collect();
        Arc::new(Model { ring, contents })
    }

    /// What an owner does with a chunk.
    fn use_it(&self, chunk: &Chunk) {
        // SAFETY: the chunk is ours, which is what loom checks.
        self.contents[chunk.index()].with_mut(|count| unsafe { *count += 1 });
    }

    /// How often all chunks were used.
    fn uses(&self) -> u32 {
        // SAFETY: as above, and nobody else is there any more, which loom checks too.
        self.contents.iter().map(|count| count.with(|count| unsafe { *count })).sum()
    }
}

#[test]
fn one_chunk_goes_round() {
    loom::model(|| {
        let model = Model::new(1);
        let others: Vec<_> = (0..2)
            .map(|_| {
                let model = Arc::clone(&model);
                thread::spawn(move || model.use_it(&model.ring.take(LONG).unwrap()))
            })
            .collect();
        model.use_it(&model.ring.take(LONG).unwrap());
        others.into_iter().for_each(|other| other.join().unwrap());
        assert_eq!((model.ring.free(), model.uses()), (1, 3));
    });
}

#[test]
fn two_chunks_among_three_threads_twice() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(|| {
        let model = Model::new(2);
        let others: Vec<_> = (0..2)
            .map(|_| {
                let model = Arc::clone(&model);
                thread::spawn(move || {
                    for _ in 0..2 {
                        model.use_it(&model.ring.take(LONG).unwrap());
                    }
                })
            })
            .collect();
        let both = [model.ring.take(LONG), model.ring.try_take()];
        let taken: u32 = both.iter().flatten().map(|chunk| model.use_it(chunk)).map(|()| 1).sum();
        drop(both);
        assert!(model.ring.free() <= 2);
        others.into_iter().for_each(|other| other.join().unwrap());
        assert_eq!((model.ring.free(), model.uses()), (2, 4 + taken));
    });
}

#[test]
fn a_chunk_is_handed_over_with_its_contents() {
    loom::model(|| {
        let model = Model::new(2);
        let (send, receive) = loom::sync::mpsc::channel::<Chunk>();
        let sink = {
            let model = Arc::clone(&model);
            thread::spawn(move || {
                for _ in 0..3 {
                    model.use_it(&receive.recv().unwrap());
                }
            })
        };
        for _ in 0..3 {
            let chunk = model.ring.take(LONG).unwrap();
            model.use_it(&chunk);
            send.send(chunk).unwrap();
        }
        sink.join().unwrap();
        assert_eq!((model.ring.free(), model.uses()), (2, 6));
    });
}

#[test]
fn a_panic_gives_the_chunk_to_who_waits() {
    loom::model(|| {
        let model = Model::new(1);
        let unlucky = {
            let model = Arc::clone(&model);
            thread::spawn(move || {
                let chunk = model.ring.take(LONG).unwrap();
                model.use_it(&chunk);
                let chunk = std::panic::AssertUnwindSafe(chunk);
                assert!(catch_unwind(move || unwind_with(chunk.0)).is_err());
            })
        };
        model.use_it(&model.ring.take(LONG).unwrap());
        unlucky.join().unwrap();
        assert_eq!((model.ring.free(), model.uses()), (1, 2));
    });
}

/// Unwinds without the message of a panic, which would be printed for each interleaving.
fn unwind_with(_held: Chunk) {
    std::panic::resume_unwind(Box::new("on purpose"));
}

#[test]
fn what_is_condemned_stays_away_and_the_rest_goes_round() {
    loom::model(|| {
        let model = Model::new(2);
        let other = {
            let model = Arc::clone(&model);
            thread::spawn(move || model.ring.take(LONG).unwrap().condemn())
        };
        model.use_it(&model.ring.take(LONG).unwrap());
        model.use_it(&model.ring.take(LONG).unwrap());
        other.join().unwrap();
        assert_eq!((model.ring.free(), model.ring.condemned()), (1, 1));
    });
}
