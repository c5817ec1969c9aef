//! Dumps that do not come to their end, and images that were changed afterwards: nothing of them is
//! ever restored.

use super::*;

/// CRIU is killed when `percent` of the memory have come out of the streamer.
fn killed(criu: &Criu, percent: u64) -> Result<()> {
    const SIZE: u64 = 1024 * MIB;
    // Near the end, CRIU may have written its last image, or even be done, before the signal comes.
    // Then the image is there, as it should be, and the case is tried again.
    for _ in 0..5 {
        let case = Case::new()?;
        let workload = case.workload(Kind::Memory(SIZE), criu)?;
        // Little between CRIU and the image, so that CRIU is where the image is.
        let words = ["capture", "--memory", "8M"];
        let mut capture = case.capture(&words).stdout(Stdio::piped()).start()?;
        let image = case.scratch.join("image");
        let reader = Reader::start(capture.process.stdout()?, Some(File::create(&image)?));
        capture.ready(SHORT)?;
        let mut dump = criu.dump(&workload, &case.source, &[])?;
        wait_for("the memory to be on its way", LONG, || {
            let enough = fs::metadata(&image)?.len() >= SIZE / 100 * percent;
            Ok(enough.then_some(()))
        })?;
        if dump.process.ended()?.is_some() {
            continue;
        }
        dump.process.kill()?;
        if dump.end(SHORT)?.is_ok() || capture.process.wait(SHORT)?.success() {
            continue;
        }
        if capture.process.wait(SHORT)?.success() {
            // It was killed after its last image.
            continue;
        }
        capture.fails(SHORT)?;
        reader.end()?;
        // What has come out must not pass for an image.
        let mut cat = Command::new("cat");
        let mut cat = Process::start("cat", cat.arg(&image).stdout(Stdio::piped()))?;
        case.serve(&["serve"]).stdin(cat.stdout()?).start()?.fails(LONG)?;
        return workload.goes_on();
    }
    Err("CRIU was too fast to be killed".into())
}

#[test]
fn killed_early() -> Result<()> {
    with_each_criu(|criu| killed(criu, 10))
}

#[test]
fn killed_half_way() -> Result<()> {
    with_each_criu(|criu| killed(criu, 50))
}

#[test]
fn killed_near_the_end() -> Result<()> {
    with_each_criu(|criu| killed(criu, 99))
}

/// The files below `folder`, with the bytes that they take on the disk.
fn files(folder: &Path) -> Vec<(u64, PathBuf)> {
    let mut files = Vec::new();
    // What is not there yet, or not any more, counts for nothing.
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        match entry.metadata() {
            Ok(data) if data.is_dir() => files.extend(self::files(&entry.path())),
            Ok(data) => files.push((data.blocks() * 512, entry.path())),
            Err(_) => {}
        }
    }
    files
}

#[test]
fn killed_while_storing_publishes_nothing() -> Result<()> {
    with_each_criu(|criu| {
        let case = Case::new()?;
        let workload = case.workload(Kind::Memory(1024 * MIB), criu)?;
        let folder = case.scratch.dir("store")?;
        let image = case.image("store/image");
        let mut capture = case.capture(&["capture", "--to", &image]).start()?;
        capture.ready(SHORT)?;
        let mut dump = criu.dump(&workload, &case.source, &[])?;
        wait_for("a part to be stored", LONG, || {
            let stored: u64 = files(&folder).into_iter().map(|(size, _)| size).sum();
            Ok((stored > 128 * MIB).then_some(()))
        })?;
        assert!(dump.process.ended()?.is_none(), "CRIU was too fast to be killed");
        dump.process.kill()?;
        capture.fails(SHORT)?;
        case.not_published(&image)?;
        workload.goes_on()
    })
}

#[test]
fn a_dump_that_fails_fails_the_capture() -> Result<()> {
    with_each_criu(|criu| {
        let case = Case::new()?;
        // A device that CRIU knows nothing of.
        let workload = case.workload(Kind::Device("/dev/fuse"), criu)?;
        let mut capture = case.capture(&["capture"]).stdout(Stdio::piped()).start()?;
        let reader = Reader::start(capture.process.stdout()?, None);
        capture.ready(SHORT)?;
        let ended = criu.dump(&workload, &case.source, &[])?.end(LONG)?;
        assert!(ended.is_err(), "CRIU can dump /dev/fuse");
        capture.fails(SHORT)?;
        reader.end()?;
        workload.goes_on()
    })
}

#[test]
fn a_flipped_bit_restores_nothing() -> Result<()> {
    with_each_criu(|criu| {
        let case = Case::new()?;
        let mut workload = case.workload(Kind::Memory(64 * MIB), criu)?;
        let image = case.image("image");
        let mut capture = case.capture(&["capture", "--to", &image, "--shards", "4"]).start()?;
        case.dump(criu, &mut workload, &mut capture)?;

        // Nearly all of the largest shard is the random memory, which is stored as it is.
        let shard = files(&case.scratch.join("image")).into_iter().max().ok_or("nothing stored")?.1;
        let shard = OpenOptions::new().read(true).write(true).open(shard)?;
        let middle = shard.metadata()?.len() / 2;
        let mut byte = [0];
        shard.read_exact_at(&mut byte, middle)?;
        shard.write_all_at(&[byte[0] ^ 0x10], middle)?;

        let mut serve = case.serve(&["serve", "--from", &image]).start()?;
        // Whether it is found at once or when CRIU asks for it is up to the streamer.
        if serve.ready(LONG).is_ok() {
            let restored = criu.restore(&mut workload, &case.destination, LONG);
            assert!(restored.is_err(), "a process was restored from an altered image");
        }
        serve.fails(SHORT)?;
        workload.stays_gone()
    })
}
