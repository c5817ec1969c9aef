use std::{fs, io::Read as _, os::unix::fs::symlink, path::Path};

use nix::{sys::stat::Mode, unistd::mkfifo};
use vramstream::image::{KfdImage, SharedMemory};
use vramstream_tests::{
    machine::{MachineSpec, SimulatedMachine},
    plugin::{App, Criu, Flavour, assert_restored, assert_runs},
};

use super::{MIXED, Result, scene};

fn fifo(path: &Path) -> Result {
    Ok(mkfifo(path, Mode::S_IRUSR | Mode::S_IWUSR)?)
}

/// A dump that died, or somebody who may write to the directory, has left something under the names
/// of unfinished files.
#[test]
fn what_lies_under_the_names_of_unfinished_files_is_not_written_to() -> Result {
    let (here, app, criu) = scene(&MachineSpec::default(), MIXED, Flavour::Criu42)?;
    let first = Criu::new(Flavour::Criu42)?;
    first.dump(&here, &[app.process()])?.assert_good();
    let victim = here.dir().join("victim");
    fs::write(&victim, "as it was")?;
    for (n, name) in first.plugin_images()?.iter().enumerate() {
        let path = criu.images().join(format!(".{name}.unfinished"));
        match n % 3 {
            0 => symlink(&victim, &path)?,
            1 => fifo(&path)?,
            _ => fs::write(&path, vec![0x55; 10 << 20])?,
        }
    }
    criu.dump(&here, &[app.process()])?.assert_good();
    assert_eq!(fs::read_to_string(&victim)?, "as it was");
    for name in first.plugin_images()? {
        let (one, other) = (criu.images().join(&name), first.images().join(&name));
        assert!(fs::symlink_metadata(&one)?.is_file(), "{name}");
        assert!(fs::read(one)? == fs::read(other)?, "{name}");
    }
    assert_eq!(criu.plugin_images()?, first.plugin_images()?);
    Ok(())
}

/// Files of an image are for who dumps alone.
#[test]
fn others_may_not_read_the_memory_of_a_process() -> Result {
    use std::os::unix::fs::PermissionsExt as _;
    let (here, app, criu) = scene(&MachineSpec::default(), MIXED, Flavour::Criu42)?;
    criu.dump(&here, &[app.process()])?.assert_good();
    for name in criu.plugin_images()? {
        let mode = fs::metadata(criu.images().join(&name))?.permissions().mode();
        assert_eq!(mode & 0o7777, 0o600, "{name}");
    }
    Ok(())
}

#[test]
fn an_image_that_is_no_file_is_refused_and_nobody_waits() -> Result {
    let (here, app, criu) = scene(&MachineSpec::default(), MIXED, Flavour::Criu42)?;
    criu.dump(&here, &[app.process()])?.assert_good();
    for name in criu.plugin_images()? {
        let path = criu.images().join(&name);
        let whole = fs::read(&path)?;
        for is_fifo in [true, false] {
            fs::remove_file(&path)?;
            if is_fifo {
                fifo(&path)?;
            } else {
                fs::create_dir(&path)?;
            }
            criu.restore(&here)?.assert_failed(&[&name, "regular file"]);
            if is_fifo {
                fs::remove_file(&path)?;
            } else {
                fs::remove_dir(&path)?;
            }
            fs::write(&path, &whole)?;
        }
    }
    criu.restore(&here)?.assert_good();
    Ok(())
}

/// CRIU counts its files anew in each dump.
#[test]
fn files_of_an_older_dump_are_not_taken_for_those_of_this_one() -> Result {
    let orders = ["", "--renders-first ", "--more-kfds 2 ", "--more-kfds 2 --renders-first ", ""];
    let (here, app, criu) = scene(&MachineSpec::gpus(2), MIXED, Flavour::Criu42)?;
    criu.dump(&here, &[app.process()])?.assert_good();
    drop(app);
    for order in orders {
        let app = App::start(&here, &format!("{order}{MIXED}"))?;
        here.fill(app.pid(), "random", 3)?;
        criu.dump(&here, &[app.process()])?.assert_good();
        assert_restored(&criu, (&here, app.pid()), &MachineSpec::gpus(2))?;
    }
    Ok(())
}

/// Anybody may write to /dev/shm.
#[test]
fn what_poses_as_shared_memory_is_not_followed() -> Result {
    let (here, app, criu) = scene(&MachineSpec::default(), MIXED, Flavour::Criu42)?;
    let path = here.dir().join("shm/hsakmt_shared_mem");
    let secret = here.dir().join("secret");
    fs::write(&secret, "0123456789")?;
    symlink(&secret, &path)?;
    criu.dump(&here, &[app.process()])?.assert_failed(&["hsakmt_shared_mem"]);
    assert_runs(&here, app.pid())?;
    fs::remove_file(&path)?;
    fifo(&path)?;
    criu.dump(&here, &[app.process()])?.assert_failed(&["hsakmt_shared_mem"]);
    assert_runs(&here, app.pid())?;
    fs::remove_file(&path)?;

    fs::write(&path, vec![0x5a; 4096])?;
    criu.dump(&here, &[app.process()])?.assert_good();
    for name in ["hsakmt_shared_mem", "sem.hsakmt_semaphore"] {
        for is_fifo in [true, false] {
            let there = SimulatedMachine::start(&MachineSpec::default())?;
            let path = there.dir().join("shm").join(name);
            if is_fifo {
                fifo(&path)?;
            } else {
                symlink(&secret, &path)?;
            }
            criu.restore(&there)?.assert_failed(&[name]);
            assert_eq!(fs::read_to_string(&secret)?, "0123456789");
        }
    }
    Ok(())
}

/// It has no room for what a restore would have to read first.
#[test]
fn an_endless_image_is_refused_without_being_read() -> Result {
    let (here, app, criu) = scene(&MachineSpec::default(), MIXED, Flavour::Criu42)?;
    criu.dump(&here, &[app.process()])?.assert_good();
    for name in criu.plugin_images()?.iter().filter(|name| !name.contains("pages")) {
        let path = criu.images().join(name);
        let mut whole = Vec::new();
        fs::File::open(&path)?.read_to_end(&mut whole)?;
        let mut endless = whole.clone();
        endless[..8].copy_from_slice(&(1_u64 << 40).to_le_bytes());
        fs::write(&path, &endless)?;
        fs::File::options().write(true).open(&path)?.set_len(1 << 41)?;
        criu.restore(&here)?.assert_failed(&[name]);
        fs::remove_file(&path)?;
        fs::write(&path, &whole)?;
    }
    Ok(())
}

/// A size that no shared memory of libhsakmt's ever had.
#[test]
fn shared_memory_without_end_is_not_made() -> Result {
    let (here, app, criu) = scene(&MachineSpec::default(), MIXED, Flavour::Criu42)?;
    criu.dump(&here, &[app.process()])?.assert_good();
    fs::remove_file(criu.images().join("vramstream-kfd-7.img"))?;
    let name = "amdgpu-kfd-7.img";
    let bytes = fs::read(criu.images().join(name))?;
    let mut image = KfdImage::read(name, &mut bytes.as_slice()).unwrap();
    image.shared_memory = Some(SharedMemory { size: 1 << 60, magic: 1 });
    image.write(name, &mut fs::File::create(criu.images().join(name))?).unwrap();
    let there = SimulatedMachine::start(&MachineSpec::default())?;
    let size = (1_u64 << 60).to_string();
    criu.restore(&there)?.assert_failed(&["hsakmt_shared_mem", "checkpoint", &size]);
    assert!(!there.calls()?.contains_key("CRIU_OP"));
    Ok(())
}
