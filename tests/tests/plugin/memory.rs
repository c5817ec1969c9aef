//! CRIU's process needs its buffers and little more, whatever the size of the VRAM. The kernel holds
//! the limit. (criu#2248: a dump of 33 GB of VRAM gets a task killed.)

use std::{
    fs::File,
    io::{self, Read},
    path::Path,
};

use vramstream_tests::{
    machine::{BoState, MachineSpec, SimulatedMachine},
    plugin::{App, Criu, Flavour, StockStreamer, assert_restored, assert_runs},
};

use super::{Result, scene};

const MIB: u64 = 1 << 20;
/// What the one who plays CRIU has himself: shown by a dump without GPU memory.
const HOST: u64 = 16 * MIB;
/// What the plugin may need beside its buffers.
const PLUGIN: u64 = 16 * MIB;
/// Its buffers where nothing is said: for one GPU.
const BUFFERS: u64 = 64 * MIB;

#[test]
fn without_gpu_memory_there_are_no_buffers() -> Result {
    let machine = SimulatedMachine::start(&MachineSpec::gpus(2))?;
    let app = App::start(&machine, "--only-kfd")?;
    let criu = Criu::new(Flavour::Criu42)?.with_data(HOST);
    criu.dump(&machine, &[app.process()])?.assert_good();
    Ok(())
}

#[test]
fn two_gib_in_one_bo_go_to_files_through_the_buffers() -> Result {
    let spec = MachineSpec { vram: 2304 * MIB, ..MachineSpec::gpus(1) };
    let (machine, app, criu) = scene(&spec, "--bo vram:0:2G", Flavour::Criu42)?;
    let criu = criu.with_data(HOST + BUFFERS + PLUGIN);
    criu.dump(&machine, &[app.process()])?.assert_good();
    assert_runs(&machine, app.pid())?;
    let bos = machine.bos(app.pid())?;
    let bo = bos.iter().find(|bo| bo.size == 2 << 30).unwrap();
    assert_eq!(crc(&criu, bo)?, bo.crc);
    Ok(())
}

/// The checksum of the first bytes of a file of contents, as many as a BO has.
fn crc(criu: &Criu, bo: &BoState) -> io::Result<Option<u32>> {
    let pages = criu.plugin_images()?.into_iter().find(|name| name.contains("pages")).unwrap();
    let mut file = File::open(criu.images().join(Path::new(&pages)))?;
    file.read_exact(&mut [0; 8])?;
    let (mut crc, mut left) = (crc32fast::Hasher::new(), file.take(bo.size));
    let mut buffer = vec![0; 1 << 20];
    loop {
        match left.read(&mut buffer)? {
            0 => return Ok(Some(crc.finalize())),
            len => crc.update(&buffer[..len]),
        }
    }
}

/// There and back, with the limit that is asked for, which is for all GPUs together.
#[test]
fn the_limit_that_is_set_is_what_is_taken() -> Result {
    let spec = MachineSpec { vram: 128 * MIB, ..MachineSpec::gpus(4) };
    let bos: String = (0..4).map(|gpu| format!("--bo vram:{gpu}:64M ")).collect();
    let (here, app, criu) = scene(&spec, &bos, Flavour::Criu42)?;
    let criu = criu.with_env("KFD_MAX_BUFFER_SIZE", "8M").with_data(HOST + 8 * MIB + PLUGIN);
    criu.dump(&here, &[app.process()])?.assert_good();
    assert_restored(&criu, (&here, app.pid()), &spec)
}

#[test]
fn a_streamer_of_another_make_gets_them_through_the_buffers_too() -> Result {
    let spec = MachineSpec { vram: 512 * MIB, ..MachineSpec::gpus(1) };
    let (machine, app, criu) = scene(&spec, "--bo vram:0:400M", Flavour::Criu42)?;
    let criu = criu.with_data(HOST + BUFFERS + PLUGIN).streaming();
    let streamer = StockStreamer::capture(&criu.images())?;
    criu.dump(&machine, &[app.process()])?.assert_good();
    let images = streamer.end()?;
    assert!(images.values().any(|bytes| bytes.len() as u64 > 400 * MIB));
    assert_runs(&machine, app.pid())
}
