use vramstream_tests::{
    machine::{MachineSpec, SimulatedMachine},
    plugin::{Criu, Flavour, StockStreamer, assert_runs, assert_same},
};

use super::{MIXED, Result, scene};

/// A streamer of another make gets CRIU's own format through pipes, byte for byte what would be in
/// a directory, and a restore asks it for each file once.
#[test]
fn a_streamer_that_knows_nothing_of_gpus() -> Result {
    for flavour in Flavour::KNOWN {
        let spec = MachineSpec::gpus(2);
        let app = format!("{MIXED} --bo vram:1:2M");
        let (here, app, files) = scene(&spec, &app, flavour)?;
        let criu = Criu::new(flavour)?.streaming();
        let streamer = StockStreamer::capture(&criu.images())?;
        criu.dump(&here, &[app.process()])?.assert_good();
        let images = streamer.end()?;
        assert_runs(&here, app.pid())?;

        files.dump(&here, &[app.process()])?.assert_good();
        for name in files.plugin_images()?.iter().filter(|name| name.starts_with("amdgpu")) {
            let file = std::fs::read(files.images().join(name))?;
            assert!(images.get(name) == Some(&file), "{flavour:?} {name}");
        }

        let there = SimulatedMachine::start(&spec.elsewhere())?;
        let streamer = StockStreamer::serve(&criu.images(), images)?;
        let restored = criu.restore(&there)?;
        restored.assert_good();
        let rest = streamer.end()?;
        assert!(rest.is_empty(), "{:?} were not asked for", rest.keys());
        assert_same((&here, app.pid()), (&there, restored.tasks[0].pid))?;
    }
    Ok(())
}

/// Pipes hold little; whoever serves writes all of a file before it looks at the next request.
#[test]
fn render_nodes_first_and_several_gpus_through_a_streamer() -> Result {
    let spec = MachineSpec::gpus(4);
    let bos: String = (0..4).map(|gpu| format!("--bo vram:{gpu}:3M ")).collect();
    let (here, app, _) = scene(&spec, &format!("--renders-first {bos}"), Flavour::Criu42)?;
    let criu = Criu::new(Flavour::Criu42)?.streaming();
    let streamer = StockStreamer::capture(&criu.images())?;
    criu.dump(&here, &[app.process()])?.assert_good();
    let images = streamer.end()?;
    let there = SimulatedMachine::start(&spec)?;
    let streamer = StockStreamer::serve(&criu.images(), images)?;
    let restored = criu.restore(&there)?;
    restored.assert_good();
    streamer.end()?;
    assert_same((&here, app.pid()), (&there, restored.tasks[0].pid))
}

/// A streamer that dies in the middle of a dump.
#[test]
fn without_its_streamer_a_dump_fails_and_the_process_goes_on() -> Result {
    let (here, app, _) = scene(&MachineSpec::default(), MIXED, Flavour::Criu42)?;
    let criu = Criu::new(Flavour::Criu42)?.streaming();
    let socket = criu.images().join("streamer-capture.sock");
    let listener = std::os::unix::net::UnixListener::bind(&socket)?;
    let gone = std::thread::spawn(move || listener.accept().map(drop));
    let run = criu.dump(&here, &[app.process()])?;
    gone.join().unwrap()?;
    run.assert_failed(&["amdgpu-kfd-7.img", "streamer"]);
    assert_runs(&here, app.pid())
}

/// What was cut on the way is noticed, by name.
#[test]
fn an_image_that_is_cut_on_the_way_is_named() -> Result {
    let (here, app, _) = scene(&MachineSpec::default(), MIXED, Flavour::Criu42)?;
    let criu = Criu::new(Flavour::Criu42)?.streaming();
    let streamer = StockStreamer::capture(&criu.images())?;
    criu.dump(&here, &[app.process()])?.assert_good();
    let images = streamer.end()?;
    let pages = images.keys().find(|name| name.contains("pages")).unwrap().clone();
    for name in ["amdgpu-kfd-7.img", &pages] {
        let mut cut = images.clone();
        let image = cut.get_mut(name).unwrap();
        image.truncate(image.len() - 1);
        let there = SimulatedMachine::start(&MachineSpec::default())?;
        let streamer = StockStreamer::serve(&criu.images(), cut)?;
        let restored = criu.restore(&there)?;
        restored.assert_failed(&[name]);
        let _ = streamer.end();
    }
    Ok(())
}
