//! What is dumped is what is restored.

use std::os::fd::AsFd;

use super::*;
use crate::{
    device::copy::{MOST_PIECES, MOST_ZERO_PIECES},
    ring::Budget,
};

const PAGE: u64 = 4096;

/// Dumps from one machine and restores to another.
fn round_trip(gpus: u32, sizes: &[u64], ring: &Ring) {
    let source = Bench::filled(gpus, sizes);
    let store = Store::default();
    source.dump(ring, &store).unwrap();
    source.assert_tidy(ring);
    let store = store.lock().unwrap();
    let images: Vec<_> = source.host.gpu_ids().iter().map(|id| store[id].0.clone()).collect();
    for (gpu, image) in images.iter().enumerate() {
        assert!(store[&source.host.gpu_ids()[gpu]].1);
        assert!(*image == source.bytes(gpu), "GPU {gpu}");
    }
    let target = Bench::new(gpus, sizes);
    let stats = target.restore(ring, &images).unwrap();
    assert!(stats.iter().all(|stats| stats.bytes == sizes.iter().sum::<u64>()));
    for (gpu, image) in images.iter().enumerate() {
        assert!(target.bytes(gpu) == *image, "GPU {gpu}");
    }
    target.assert_tidy(ring);
}

#[test]
fn bos_smaller_and_larger_than_a_chunk() {
    let sizes = [PAGE, 3 * PAGE, 5 << 20, PAGE, 64 << 10, 9 << 20, 2 * PAGE];
    round_trip(2, &sizes, &Ring::new(4 << 20, 8).unwrap());
}

/// How much is in flight cannot be seen; that windows are short, and that it ends, can.
#[test]
fn what_is_in_flight_can_be_limited_to_less_than_a_chunk() {
    for (most, copies) in [(PAGE, 25), (5 * PAGE + 1, 5), (1 << 30, 1)] {
        let bench = Bench::filled(2, &[20 * PAGE, 5 * PAGE]);
        let (ring, store) = (Ring::new(1 << 20, 8).unwrap(), Store::default());
        let options = Options { most_in_flight: Some(most), ..options() };
        let stats = bench.dump_with(&ring, &store, options).unwrap();
        assert!(stats.iter().all(|stats| stats.copies == copies), "{most}: {stats:?}");
        for (gpu, id) in bench.host.gpu_ids().iter().enumerate() {
            assert!(store.lock().unwrap()[id].0 == bench.bytes(gpu));
        }
        bench.assert_tidy(&ring);
    }
}

#[test]
fn render_nodes_that_another_process_has_opened() {
    let bench = Bench::filled(2, &[PAGE, 3 << 20]);
    let opener = bench.host.process(Credentials::ROOT);
    let mut contents = bench.contents();
    let opened: Vec<_> = contents
        .iter_mut()
        .map(|gpu| {
            let Render::At(path) = &gpu.node else { panic!("{:?}", gpu.node) };
            let render = RenderNode::open(&opener, path).unwrap();
            let file = render.as_fd().try_clone_to_owned().unwrap();
            gpu.node = Render::Open { path: path.clone(), file };
            render
        })
        .collect();
    let (ring, store) = (Ring::new(1 << 20, 8).unwrap(), Store::default());
    let jobs = contents.into_iter().map(|contents| {
        let drain = Keep { gpu_id: contents.gpu_id, store: store.clone() };
        DumpJob { contents, drain }
    });
    let opens = bench.host.calls("open");
    dump(&bench.driver(), &ring, jobs.collect(), options(), &mut || Ok(())).unwrap();
    assert_eq!(bench.host.calls("open"), opens, "the copier opens nothing itself");
    for (gpu, id) in bench.host.gpu_ids().iter().enumerate() {
        assert!(store.lock().unwrap()[id].0 == bench.bytes(gpu));
    }
    drop(opened);
    bench.assert_tidy(&ring);
}

#[test]
fn a_gpu_without_bos() {
    round_trip(2, &[], &Ring::new(4 << 20, 8).unwrap());
}

#[test]
fn every_budget_from_two_pages_up() {
    let sizes = [3 * PAGE, 100 * PAGE, PAGE, 250 * PAGE];
    for gpus in [1, 8] {
        for cap in ["8K", "12K", "16K", "100K", "1M", "64M", "2G"] {
            let ring = Budget::parse(cap).unwrap().ring(gpus).unwrap();
            round_trip(u32::try_from(gpus).unwrap(), &sizes, &ring);
        }
    }
}

#[test]
fn ten_thousand_bos_share_chunks() {
    let sizes = vec![PAGE; 10_000];
    let bench = Bench::filled(1, &sizes);
    let ring = Ring::new(4 << 20, 8).unwrap();
    let store = Store::default();
    let stats = bench.dump(&ring, &store).unwrap();
    assert_eq!(stats[0].copies, 10);
    assert!(store.lock().unwrap()[&bench.host.gpu_ids()[0]].0 == bench.bytes(0));
    bench.assert_tidy(&ring);
}

#[test]
fn zeros_are_filled_in_and_not_sent() {
    let sizes = [PAGE, 6 << 20, PAGE];
    let bench = Bench::filled(1, &sizes);
    let image = vec![0; (6 << 20) + 2 * 4096];
    let ring = Ring::new(4 << 20, 8).unwrap();
    bench.restore(&ring, std::slice::from_ref(&image)).unwrap();
    assert!(bench.bytes(0) == image);
    assert_eq!(bench.host.copied().to_device, 0);
    bench.assert_tidy(&ring);
}

#[test]
fn zeros_that_are_not_words() {
    let bench = Bench::filled(1, &[PAGE]);
    let mut image = bench.bytes(0);
    let ring = Ring::new(4 << 20, 8).unwrap();
    let jobs = bench.contents().into_iter().map(|contents| RestoreJob { contents });
    let (restore, senders) =
        Restore::<Given>::start(&bench.driver(), &ring, jobs.collect(), options()).unwrap();
    let pieces = [(0, 1), (1, 2), (3, 10), (13, 3), (16, 4), (20, 1)];
    for (offset, len) in pieces {
        senders[0].send(Write::Zeros { offset, len }).unwrap();
    }
    image[..21].fill(0);
    let mut chunk = ring.try_take().unwrap();
    chunk[100..100 + 4096 - 21].copy_from_slice(&image[21..]);
    senders[0].send(Write::Bytes { offset: 21, chunk, range: 100..100 + 4096 - 21 }).unwrap();
    drop(senders);
    restore.finish(&mut || Ok(())).unwrap();
    assert!(bench.bytes(0) == image);
    bench.assert_tidy(&ring);
}

/// Two dma-bufs of one BO have one handle; it is closed when both are done.
#[test]
fn a_bo_that_is_in_the_contents_twice() {
    let bench = Bench::filled(1, &[3 * PAGE]);
    let once = bench.bytes(0);
    let mut contents = bench.contents();
    let again = bench.contents().remove(0).bos.remove(0);
    contents[0].bos.push(again);
    let ring = Ring::new(4096, 4).unwrap();
    let store = Store::default();
    let drain = Keep { gpu_id: contents[0].gpu_id, store: store.clone() };
    let jobs = vec![DumpJob { contents: contents.remove(0), drain }];
    dump(&bench.driver(), &ring, jobs, options(), &mut || Ok(())).unwrap();
    let store = store.lock().unwrap();
    assert!(store[&bench.host.gpu_ids()[0]].0 == [&once[..], &once[..]].concat());
    bench.assert_tidy(&ring);
}

#[test]
fn more_gpus_than_chunks() {
    round_trip(64, &[3 * PAGE, 2 * PAGE], &Budget::parse("8K").unwrap().ring(64).unwrap());
}

/// A chunk that begins in the middle of a BO touches one more than a copy has room for.
#[test]
fn a_chunk_with_more_bos_than_one_copy_takes() {
    let pages = 2 * MOST_PIECES as u64 + 10;
    let bench = Bench::filled(1, &vec![PAGE; usize::try_from(pages).unwrap()]);
    let target = Bench::new(1, &vec![PAGE; usize::try_from(pages).unwrap()]);
    let image = bench.bytes(0);
    let ring = Ring::new(16 << 20, 4).unwrap();
    let jobs = target.contents().into_iter().map(|contents| RestoreJob { contents });
    let (restore, senders) =
        Restore::<Given>::start(&target.driver(), &ring, jobs.collect(), options()).unwrap();
    let cut = 2049;
    // First, so that it is in flight when the other is cut.
    let mut chunk = ring.try_take().unwrap();
    chunk[..cut].copy_from_slice(&image[..cut]);
    senders[0].send(Write::Bytes { offset: 0, chunk, range: 0..cut }).unwrap();
    let mut chunk = ring.try_take().unwrap();
    chunk[8..8 + image.len() - cut].copy_from_slice(&image[cut..]);
    let range = 8..8 + image.len() - cut;
    senders[0].send(Write::Bytes { offset: cut as u64, chunk, range }).unwrap();
    drop(senders);
    let stats = restore.finish(&mut || Ok(())).unwrap();
    assert_eq!(stats[0].copies, 4);
    assert!(target.bytes(0) == image);
    target.assert_tidy(&ring);
}

/// An engine that copies no more than 4 MiB at a time, and chunks of more.
#[test]
fn chunks_that_are_longer_than_a_packet() {
    let sizes = [PAGE, 14 << 20];
    let bench = Bench::on(&Profile::gfx906(), 1, &sizes);
    let ring = Ring::new(16 << 20, 2).unwrap();
    let image: Vec<u8> = (0..PAGE + (14 << 20)).map(|at| (at >> 12).to_le_bytes()[0] | 1).collect();
    bench.restore(&ring, std::slice::from_ref(&image)).unwrap();
    assert!(bench.bytes(0) == image);
    let store = Store::default();
    bench.dump(&ring, &store).unwrap();
    assert!(store.lock().unwrap()[&bench.host.gpu_ids()[0]].0 == image);
    bench.assert_tidy(&ring);
}

/// Zeros over more BOs than one fill takes.
#[test]
fn zeros_over_more_bos_than_one_fill_takes() {
    let sizes = vec![PAGE; 2 * MOST_ZERO_PIECES + 1];
    let bench = Bench::filled(1, &sizes);
    let ring = Ring::new(4096, 2).unwrap();
    let jobs = bench.contents().into_iter().map(|contents| RestoreJob { contents });
    let (restore, senders) =
        Restore::<Given>::start(&bench.driver(), &ring, jobs.collect(), options()).unwrap();
    let len = sizes.iter().sum();
    senders[0].send(Write::Zeros { offset: 0, len }).unwrap();
    drop(senders);
    assert_eq!(restore.finish(&mut || Ok(())).unwrap()[0].copies, 3);
    assert!(bench.bytes(0).iter().all(|&byte| byte == 0));
    bench.assert_tidy(&ring);
}

#[test]
fn bos_of_no_bytes_are_nowhere() {
    let bench = Bench::filled(1, &[PAGE, 2 * PAGE]);
    let ring = Ring::new(4096, 3).unwrap();
    let with_empty = || {
        let mut contents = bench.contents();
        let empty = |of: &Bo| Bo { size: 0, dma_buf: of.dma_buf.try_clone().unwrap() };
        let bos = &mut contents[0].bos;
        for at in [2, 1, 1, 0] {
            bos.insert(at, empty(&bos[0]));
        }
        contents.remove(0)
    };
    let (contents, store) = (with_empty(), Store::default());
    let drain = Keep { gpu_id: contents.gpu_id, store: store.clone() };
    let jobs = vec![DumpJob { contents, drain }];
    dump(&bench.driver(), &ring, jobs, options(), &mut || Ok(())).unwrap();
    let image = bench.bytes(0);
    assert!(store.lock().unwrap()[&bench.host.gpu_ids()[0]].0 == image);
    let jobs = vec![RestoreJob { contents: with_empty() }];
    let (restore, senders) =
        Restore::<Given>::start(&bench.driver(), &ring, jobs, options()).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let [sender] = <[_; 1]>::try_from(senders).unwrap();
            send(&image, &ring, &|write| sender.send(write).is_ok(), &|| true);
        });
        restore.finish(&mut || Ok(())).unwrap();
    });
    bench.assert_tidy(&ring);
}
