//! Whatever way contents go, they arrive.

use super::*;

/// Dumps through pipes, and restores at the same time on other GPUs.
fn moved(gpus: u32, shards: usize, here: &Options, there: &Options) {
    let source = source(gpus);
    let paused = source.pause().unwrap();
    let (state, contents) = source.divide(paused.checkpoint().unwrap()).unwrap();
    let (target, places) = Target::start(machine(gpus).moved(180, 7), &state).unwrap();
    let (mut readers, mut writers) = (Vec::new(), Vec::new());
    for number in 0..shards {
        let (read, write) = std::io::pipe().unwrap();
        readers.push((format!("pipe {number}"), read.into()));
        writers.push((format!("pipe {number}"), write.into()));
    }
    std::thread::scope(|scope| {
        let sender = scope
            .spawn(|| dump_to(&source, contents, Box::new(PipeDestination::new(writers)), here));
        restore_from(&target, places, &mut PipeOrigin::new(readers), there).unwrap();
        sender.join().unwrap().unwrap();
    });
    target.resume().unwrap();
    let bytes = target.compare(&source).unwrap();
    assert!(bytes > u64::from(gpus) * (5 << 20));
    paused.unpause().unwrap();
    assert_eq!((source.host().complaints(), target.host().complaints()), (vec![], vec![]));
    assert_eq!(target.host().left_stopped(), []);
    for ring in [&here.ring, &there.ring] {
        assert_all_back(ring);
    }
}

#[test]
fn with_any_compression() {
    for compression in [Compression::None, Compression::Lz4, Compression::Auto] {
        let here = Options { compression, ..options(ring_of("16M", 2)) };
        moved(2, 3, &here, &options(ring_of("8M", 2)));
    }
}

#[test]
fn from_any_budget_into_any_other() {
    for (here, there) in [("8K", "2G"), ("2G", "8K"), ("64K", "1M"), ("1M", "64K"), ("8K", "8K")] {
        for gpus in [1, 8] {
            moved(gpus, 2, &options(ring_of(here, 1)), &options(ring_of(there, gpus as usize)));
        }
    }
}

#[test]
fn compressed_chunks_into_a_ring_of_two_pages() {
    let here = Options { compression: Compression::Lz4, ..options(ring_of("16M", 1)) };
    moved(1, 4, &here, &options(ring_of("8K", 1)));
}

/// The chunk that the engine has filled is the one that the shard is given, and no byte of it was
/// written by the CPU in between: only the size in front of each GPU's contents is.
#[test]
fn the_cpu_copies_nothing_on_the_way_out() {
    let source = source(2);
    let paused = source.pause().unwrap();
    let (_, contents) = source.divide(paused.checkpoint().unwrap()).unwrap();
    let options = options(ring_of("16M", 2));
    let (destination, kept) = memory(2, Some(&options.ring));
    dump_to(&source, contents, destination, &options).unwrap();
    assert!(!kept.strange.load(Ordering::Acquire));
    assert_eq!(options.ring.cpu_writes(), 2);
    assert!(source.host().copied().to_host > 10 << 20);
    paused.unpause().unwrap();
}

/// What is read into a chunk is what the engine reads: nobody writes to the chunk but the one who
/// fills it, once for each piece.
#[test]
fn the_cpu_copies_nothing_on_the_way_in() {
    let source = source(1);
    let (state, mut image) = dumped(&source, 1, &options(ring_of("16M", 1)));
    let (target, places) = Target::start(machine(1), &state).unwrap();
    let options = options(ring_of("16M", 1));
    restore_from(&target, places, &mut image, &options).unwrap();
    // The size, and a payload for each chunk that is not zero.
    let bytes = target.host().copied().to_device;
    let most = 1 + bytes.div_ceil(options.ring.chunk_bytes() as u64);
    assert!(options.ring.cpu_writes() <= most, "{} for {bytes}", options.ring.cpu_writes());
    target.resume().unwrap();
    target.compare(&source).unwrap();
}

/// The first word of a BO that changes and its last are the same after each round of changes.
#[test]
fn a_copy_of_a_process_that_runs_is_torn_and_of_one_that_is_stopped_is_not() {
    let source = source(1);
    let app = source.application();
    let (pid, queue, bo) = (app.process().pid(), app.queues()[0].id, &app.bos()[0]);
    let _scribble = source.host().scribble(pid, queue, bo.va).unwrap();
    let is_torn = |runs: bool| {
        let paused = source.pause().unwrap();
        let (state, contents) = source.divide(paused.checkpoint().unwrap()).unwrap();
        if runs {
            paused.unpause().unwrap();
        }
        let options = options(ring_of("64K", 1));
        let (destination, kept) = memory(1, None);
        dump_to(&source, contents, destination, &options).unwrap();
        let (target, places) = Target::start(machine(1), &state).unwrap();
        restore_from(&target, places, &mut kept.image(), &options).unwrap();
        target.resume().unwrap();
        let word = |at| {
            let mut word = [0; 8];
            target.host().read_bo(target.pid(), bo.va, at, &mut word).unwrap();
            word
        };
        word(0) != word(bo.size - 8)
    };
    // Some ten thousand changes happen while it is copied, so one of these is torn, if not each.
    assert!((0..20).any(|_| is_torn(true)));
    assert!((0..5).all(|_| !is_torn(false)));
}
