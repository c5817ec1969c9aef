//! What is dumped is what is restored.

use super::*;
use crate::ring::Budget;

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
