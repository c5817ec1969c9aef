//! Jobs from one end to the other, and ends that die on the way.

use super::*;

#[test]
fn a_job_arrives_as_it_was() {
    let (sim, dir) = (Sim::new(3), tempfile::tempdir().unwrap());
    let sizes: Vec<u64> = (1..=600).map(|n| n * 4096).collect();
    let mut job = sim.job(&sizes);
    job.gpus[1].bos.clear();
    job.direction = Direction::Restore;
    let inodes = |job: &Job| -> Vec<(u32, u64, Vec<u64>)> {
        let of = |gpu: &Contents| {
            let Render::Open { file, .. } = &gpu.node else { panic!("{:?}", gpu.node) };
            let bos = gpu.bos.iter().map(|bo| inode(&bo.dma_buf)).collect();
            (gpu.gpu_id, inode(file), bos)
        };
        job.gpus.iter().map(of).collect()
    };
    let before = inodes(&job);
    let process = sim.process.clone();
    let received = streamer(dir.path(), move |plugin| {
        let job = plugin.receive(&process).unwrap().unwrap();
        plugin.check().unwrap();
        plugin.accept().unwrap();
        plugin.check().unwrap();
        plugin.done().unwrap();
        job
    });
    connect(dir.path()).hand_over(job).unwrap().wait().unwrap();
    let job = received.join().unwrap();
    assert_eq!((job.direction, job.kfd_id, job.cap_bytes), (Direction::Restore, 42, Some(12_345)));
    assert_eq!(inodes(&job), before);
    let got: Vec<u64> = job.gpus[2].bos.iter().map(|bo| bo.size).collect();
    assert_eq!(got, sizes);
    let path = |gpu: &Contents| match &gpu.node {
        Render::Open { path, .. } | Render::At(path) => path.clone(),
    };
    assert_eq!(path(&job.gpus[2]), Path::new("/dev/dri/renderD130"));
}

#[test]
fn nine_thousand_bos_and_few_descriptors_at_a_time() {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
    let (sim, dir) = (Sim::new(1), tempfile::tempdir().unwrap());
    let mut job = sim.job(&[]);
    let one = memory(4096);
    let bo = |_| Bo { size: 4096, dma_buf: one.try_clone().unwrap() };
    job.gpus[0].bos = (0..9000).map(bo).collect();
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let all = open();
    let process = sim.process.clone();
    let received = streamer(dir.path(), move |plugin| {
        let job = plugin.receive(&process).unwrap().unwrap();
        plugin.accept().unwrap();
        (job, plugin)
    });
    let since = std::time::Instant::now();
    let pending = connect(dir.path()).hand_over(job).unwrap();
    println!("9000 BOs were handed over in {:?}", since.elapsed());
    let (job, plugin) = received.join().unwrap();
    assert_eq!(job.gpus[0].bos.len(), 9000);
    // One side's have gone with every batch: both sides are this process.
    assert!(open() < all + 20, "{} were open, {all} before", open());
    plugin.done().unwrap();
    pending.wait().unwrap();
}

/// Lowers the limit of the whole process: each test runs in one of its own.
#[test]
fn where_the_limit_on_open_files_is_too_low_it_is_named() {
    let sim = Sim::new(1);
    let job = sim.job(&[4096; 600]);
    setrlimit(Resource::RLIMIT_NOFILE, 700, 1000).unwrap();
    let error = hostile::answer(&sim, &hostile::records(&job)).unwrap_err();
    let text = error.to_string();
    let HandoffError::Limit { bos: 600, limit: 1000, needed: 1264.. } = error else {
        panic!("{error}")
    };
    assert!(
        text.contains("600 BOs") && text.contains("is 1000") && text.contains("ulimit"),
        "{text}"
    );

    // It looks as if it would do, and others have taken descriptors by then.
    let small = sim.job(&[4096; 20]);
    let (plugin, socket) = pair();
    let process = sim.process.clone();
    let streamer = std::thread::spawn(move || Plugin::new(socket).unwrap().receive(&process));
    let mut buffer = vec![0; 4096];
    let mut others = Vec::new();
    for (number, (record, fds)) in hostile::records(&small).iter().enumerate() {
        if number == 2 {
            others.extend(std::iter::from_fn(|| plugin.try_clone().ok()));
            others.truncate(others.len() - 5);
        }
        crate::device::records::send(&plugin, record, fds).unwrap();
        let _ = crate::device::records::receive(&plugin, &mut buffer, 1).unwrap();
    }
    let error = streamer.join().unwrap().unwrap_err();
    drop(others);
    assert!(matches!(error, HandoffError::Limit { bos: 20, limit: 1000, .. }), "{error}");
}

#[test]
fn a_job_of_no_gpus_is_a_job() {
    let (sim, dir) = (Sim::new(1), tempfile::tempdir().unwrap());
    let process = sim.process.clone();
    let received = streamer(dir.path(), move |plugin| {
        let job = plugin.receive(&process).unwrap().unwrap();
        plugin.accept().unwrap();
        plugin.done().unwrap();
        job
    });
    let job = Job { direction: Direction::Dump, kfd_id: 1, cap_bytes: None, gpus: Vec::new() };
    connect(dir.path()).hand_over(job).unwrap().wait().unwrap();
    let job = received.join().unwrap();
    assert_eq!((job.gpus.len(), job.cap_bytes), (0, None));
}

#[test]
fn a_streamer_that_dies_or_fails_at_any_step_is_told_to_the_plugin() {
    let sim = Sim::new(2);
    // The job, two GPUs with two records of BOs each, accepted, done.
    for step in 0..=8 {
        for fails in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let door = door(dir.path());
            let ended = std::thread::spawn(move || {
                let socket = accepted(&door);
                let mut buffer = vec![0; 4096];
                let link = link::Link::new(socket.try_clone().unwrap(), "the plugin").unwrap();
                let say =
                    |answer: wire::Answer| link.send(&answer.encode(), &[], "a test").unwrap();
                for _ in 0..step.min(7) {
                    crate::device::records::receive(&socket, &mut buffer, 253).unwrap().unwrap();
                    say(wire::Answer::Next);
                }
                if step == 8 {
                    say(wire::Answer::Accepted);
                }
                if fails {
                    say(wire::Answer::Failed("the disk is full".into()));
                }
            });
            let outcome =
                connect(dir.path()).hand_over(sim.job(&[4096; 300])).and_then(Pending::wait);
            ended.join().unwrap();
            match outcome.unwrap_err() {
                HandoffError::Failed(reason) if fails => assert_eq!(reason, "the disk is full"),
                HandoffError::Gone { who, .. } if !fails => assert_eq!(who, "the image streamer"),
                error => panic!("step {step}, {fails}: {error}"),
            }
        }
    }
}

#[test]
fn a_plugin_that_dies_at_any_step_is_told_to_the_streamer() {
    let sim = Sim::new(2);
    for step in 0..7 {
        let (plugin, socket) = pair();
        let (job, process) = (sim.job(&[4096; 300]), sim.process.clone());
        let streamer = std::thread::spawn(move || Plugin::new(socket).unwrap().receive(&process));
        let mut buffer = vec![0; 4096];
        for (record, fds) in hostile::records(&job).into_iter().take(step) {
            crate::device::records::send(&plugin, &record, &fds).unwrap();
            crate::device::records::receive(&plugin, &mut buffer, 1).unwrap().unwrap();
        }
        drop(plugin);
        match (step, streamer.join().unwrap()) {
            (0, Ok(None)) => {}
            (1.., Err(HandoffError::Gone { who: "the CRIU plugin", .. })) => {}
            (_, outcome) => panic!("step {step}: {outcome:?}"),
        }
    }
}

#[test]
fn a_plugin_that_goes_while_its_contents_are_copied_is_missed() {
    let (sim, dir) = (Sim::new(1), tempfile::tempdir().unwrap());
    let process = sim.process.clone();
    let (gone, is_gone) = std::sync::mpsc::channel();
    let streamer = streamer(dir.path(), move |plugin| {
        plugin.receive(&process).unwrap();
        plugin.accept().unwrap();
        is_gone.recv().unwrap();
        plugin.check()
    });
    drop(connect(dir.path()).hand_over(sim.job(&[4096])).unwrap());
    gone.send(()).unwrap();
    let error = streamer.join().unwrap().unwrap_err();
    assert!(matches!(error, HandoffError::Gone { .. }), "{error}");
}

#[test]
fn a_render_node_that_was_not_opened_is_not_handed_over() {
    let (sim, dir) = (Sim::new(1), tempfile::tempdir().unwrap());
    let process = sim.process.clone();
    let streamer = streamer(dir.path(), move |plugin| plugin.receive(&process).map(|_| ()));
    let mut job = sim.job(&[]);
    job.gpus[0].node = sim.host.machine().gpus[0].render_node().into();
    let error = connect(dir.path()).hand_over(job).unwrap_err();
    assert!(matches!(error, HandoffError::NotOpen { .. }), "{error}");
    assert!(streamer.join().unwrap().is_err());
}
