//! Plugins that do not keep to the protocol.

use super::*;
use wire::{HeadJob, Request};

type Record<'a> = (Vec<u8>, Vec<BorrowedFd<'a>>);

/// What a plugin sends for a job.
pub(super) fn records(job: &Job) -> Vec<Record<'_>> {
    let bos: usize = job.gpus.iter().map(|gpu| gpu.bos.len()).sum();
    let mut records = vec![(head(job.gpus.len(), bos), vec![])];
    for gpu in &job.gpus {
        let Render::Open { path, file } = &gpu.node else { panic!("{:?}", gpu.node) };
        let count = u32::try_from(gpu.bos.len()).unwrap();
        records.push((Request::gpu(gpu.gpu_id, count, path), vec![file.as_fd()]));
        for batch in gpu.bos.chunks(wire::MOST_DESCRIPTORS) {
            let sizes: Vec<u64> = batch.iter().map(|bo| bo.size).collect();
            let fds = batch.iter().map(|bo| bo.dma_buf.as_fd()).collect();
            records.push((Request::bos(&sizes), fds));
        }
    }
    records
}

fn head(gpus: usize, bos: usize) -> Vec<u8> {
    let (gpus, bos) = (u32::try_from(gpus).unwrap(), u32::try_from(bos).unwrap());
    Request::job(&HeadJob { direction: Direction::Dump, kfd_id: 42, cap_bytes: 0, gpus, bos })
}

/// What the streamer makes of these records.
pub(super) fn answer(sim: &Sim, records: &[Record<'_>]) -> Result<Option<Job>, HandoffError> {
    let (plugin, socket) = pair();
    let process = sim.process.clone();
    let streamer = std::thread::spawn(move || Plugin::new(socket).unwrap().receive(&process));
    let mut buffer = vec![0; 4096];
    for (record, fds) in records {
        if crate::device::records::send(&plugin, record, fds).is_err() {
            break;
        }
        if !matches!(crate::device::records::receive(&plugin, &mut buffer, 1), Ok(Some(_))) {
            break;
        }
    }
    drop(plugin);
    streamer.join().unwrap()
}

#[test]
fn jobs_that_do_not_keep_to_the_protocol_are_refused() {
    let sim = Sim::new(2);
    let job = sim.job(&[4096; 300]);
    assert!(answer(&sim, &records(&job)).unwrap().is_some());

    type Change = for<'a> fn(&mut Vec<Record<'a>>);
    let changes: &[(&str, Change)] = &[
        ("garbage first", |records| records[0].0 = vec![7; 40]),
        ("an empty job", |records| records[0].0.truncate(8)),
        ("a direction that is none", |records| records[0].0[8] = 9),
        ("a descriptor with the job", |records| records[0].1 = vec![records[1].1[0]]),
        ("too many GPUs", |records| records[0].0 = head(257, 600)),
        ("too many BOs", |records| records[0].0 = head(2, (1 << 20) + 1)),
        ("more BOs announced", |records| records[0].0 = head(2, 601)),
        ("fewer BOs announced", |records| records[0].0 = head(2, 599)),
        ("BOs before a GPU", |records| records.swap(1, 2)),
        ("a GPU in the place of BOs", |records| records.swap(3, 4)),
        ("garbage in the place of a GPU", |records| records[1].0 = vec![1; 3]),
        ("garbage in the place of BOs", |records| records[2].0 = vec![1; 30]),
        ("no render node", |records| records[1].1.clear()),
        ("two render nodes", |records| records[1].1 = vec![records[1].1[0]; 2]),
        ("a BO as a render node", |records| records[1].1 = vec![records[2].1[0]]),
        ("the same GPU twice", |records| records[4].0 = records[1].0.clone()),
        ("a descriptor is missing", |records| records[2].1.truncate(252)),
        ("a descriptor too many", |records| {
            let fd = records[3].1[0];
            records[3].1.push(fd);
        }),
        ("no descriptors at all", |records| records[2].1.clear()),
        ("more BOs than the GPU has", |records| records[3] = records[2].clone()),
        ("a BO larger than its memory", |records| records[2].0[8] = 1),
        ("a render node as a BO", |records| records[2].1[7] = records[1].1[0]),
    ];
    for (what, change) in changes {
        let mut changed = records(&job);
        change(&mut changed);
        let error = match answer(&sim, &changed) {
            Err(error) => error,
            Ok(job) => panic!("{what}: {job:?}"),
        };
        assert!(matches!(error, HandoffError::Protocol { .. }), "{what}: {error}");
    }
    // Whatever came is closed.
    assert_eq!(answer(&sim, &[]).unwrap().map(|_| ()), None);
}

#[test]
fn a_record_that_is_too_long() {
    let sim = Sim::new(1);
    let error = answer(&sim, &[(vec![1; 5000], vec![])]).unwrap_err();
    assert!(matches!(error, HandoffError::Protocol { .. }), "{error}");
}

#[test]
fn another_version_is_named_with_ours() {
    let sim = Sim::new(1);
    let mut record = head(0, 0);
    record[4] = 9;
    record.extend([1; 100]);
    let error = answer(&sim, &[(record, vec![])]).unwrap_err().to_string();
    assert!(error.contains("version 9") && error.contains("in 1"), "{error}");
}

#[test]
fn a_plugin_that_says_more_than_it_may() {
    let (sim, dir) = (Sim::new(1), tempfile::tempdir().unwrap());
    let process = sim.process.clone();
    let (said, is_said) = std::sync::mpsc::channel();
    let streamer = streamer(dir.path(), move |plugin| {
        plugin.receive(&process).unwrap();
        plugin.accept().unwrap();
        is_said.recv().unwrap();
        plugin.check()
    });
    let pending = connect(dir.path()).hand_over(sim.job(&[])).unwrap();
    crate::device::records::send(&pending, &head(0, 0), &[]).unwrap();
    said.send(()).unwrap();
    let error = streamer.join().unwrap().unwrap_err();
    assert!(matches!(error, HandoffError::Protocol { .. }), "{error}");
}

#[test]
fn a_streamer_that_answers_something_else() {
    let sim = Sim::new(1);
    for wrong in [wire::Answer::Done.encode(), wire::Answer::Accepted.encode(), vec![1, 2, 3]] {
        let dir = tempfile::tempdir().unwrap();
        let door = door(dir.path());
        let streamer = std::thread::spawn(move || {
            let socket = accepted(&door);
            crate::device::records::send(&socket, &wrong, &[]).unwrap();
            socket
        });
        let error = connect(dir.path()).hand_over(sim.job(&[4096])).unwrap_err();
        assert!(matches!(error, HandoffError::Protocol { .. }), "{error}");
        streamer.join().unwrap();
    }
}
