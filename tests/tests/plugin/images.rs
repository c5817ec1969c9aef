use std::fs;

use vramstream_tests::{
    machine::{MachineSpec, SimulatedMachine},
    plugin::{Criu, Flavour, assert_same},
};

use super::{MIXED, Result, scene};

fn names(criu: &Criu, with: &str) -> std::io::Result<Vec<String>> {
    let mut names = criu.plugin_images()?;
    names.retain(|name| name.contains(with));
    Ok(names)
}

/// Each image is damaged in each way: the restore fails and names it, and nothing of a damaged
/// message reaches a device.
#[test]
fn a_damaged_image_is_refused_by_name() -> Result {
    let (here, app, criu) = scene(&MachineSpec::default(), MIXED, Flavour::Criu42)?;
    criu.dump(&here, &[app.process()])?.assert_good();
    let all = criu.plugin_images()?;
    assert!(all.len() >= 4, "{all:?}");
    for name in all {
        let path = criu.images().join(&name);
        let whole = fs::read(&path)?;
        let size = u64::from_le_bytes(whole[..8].try_into().unwrap());
        let with_size = |size: u64| [&size.to_le_bytes()[..], &whole[8..]].concat();
        let mut flipped = whole.clone();
        let at = flipped.len() - 5;
        flipped[at] ^= 0x10;
        let damaged = [
            ("one byte short", whole[..whole.len() - 1].to_vec()),
            ("empty", Vec::new()),
            ("only half of its size", whole[..4].to_vec()),
            ("of size 0", with_size(0)),
            ("of size 2^63", with_size(1 << 63)),
            ("one byte too long by its size", with_size(size + 1)),
            ("with a bit flipped", flipped),
        ];
        for (how, bytes) in damaged {
            let there = SimulatedMachine::start(&MachineSpec::default())?;
            fs::write(&path, &bytes)?;
            let restored = criu.restore(&there)?;
            fs::write(&path, &whole)?;
            // A render node's image has no checksum: what is flipped there is another GPU, or an
            // unknown field.
            if how == "with a bit flipped" && name.contains("renderD") && restored.status.success()
            {
                continue;
            }
            let context = format!("{name} {how}");
            assert!(!restored.status.success(), "{context}: {restored:#?}");
            assert_eq!(restored.blame(), [""; 0], "{context}");
            let errors = restored.messages(1).join("\n");
            assert!(errors.contains(&name), "{context}: {errors}");
            // What is damaged in contents alone shows when they are read.
            let is_content = how == "with a bit flipped" && name.contains("pages");
            if !is_content && !name.contains("renderD") {
                assert!(!there.calls()?.contains_key("CRIU_OP"), "{context}");
            }
        }
    }
    criu.restore(&here)?.assert_good();
    Ok(())
}

#[test]
fn a_missing_image_is_named() -> Result {
    let (here, app, criu) = scene(&MachineSpec::default(), MIXED, Flavour::Criu42)?;
    criu.dump(&here, &[app.process()])?.assert_good();
    let pages = names(&criu, "pages")?;
    let path = criu.images().join(&pages[0]);
    fs::rename(&path, criu.images().join("away"))?;
    let there = SimulatedMachine::start(&MachineSpec::default())?;
    criu.restore(&there)?.assert_failed(&[&pages[0]]);
    assert!(!there.calls()?.contains_key("CRIU_OP"));
    Ok(())
}

/// The checksums are ours: an image of CRIU's own plugin has none.
#[test]
fn images_without_checksums_are_restored() -> Result {
    let (here, app, criu) = scene(&MachineSpec::gpus(2), MIXED, Flavour::Criu42)?;
    criu.dump(&here, &[app.process()])?.assert_good();
    for name in names(&criu, "vramstream")? {
        fs::remove_file(criu.images().join(name))?;
    }
    let restored = criu.restore(&here)?;
    restored.assert_good();
    assert_same((&here, app.pid()), (&here, restored.tasks[0].pid))
}

/// A directory that is used again has the same bytes as a new one.
#[test]
fn a_directory_can_be_used_again() -> Result {
    let (here, large, criu) = scene(&MachineSpec::default(), MIXED, Flavour::Criu42)?;
    criu.dump(&here, &[large.process()])?.assert_good();
    drop(large);
    let small = vramstream_tests::plugin::App::start(&here, "--bo vram:0:8K")?;
    here.fill(small.pid(), "random", 4)?;
    criu.dump(&here, &[small.process()])?.assert_good();
    let fresh = Criu::new(Flavour::Criu42)?;
    fresh.dump(&here, &[small.process()])?.assert_good();
    for name in fresh.plugin_images()? {
        let (again, first) =
            (fs::read(criu.images().join(&name))?, fs::read(fresh.images().join(&name))?);
        assert!(again == first, "{name}: {} and {} bytes", again.len(), first.len());
    }
    let restored = criu.restore(&here)?;
    restored.assert_good();
    assert_same((&here, small.pid()), (&here, restored.tasks[0].pid))
}

/// Counts that are not those of what is there, and sizes that nobody has.
#[test]
fn a_damaged_state_without_checksums_touches_no_device() -> Result {
    let (here, app, criu) = scene(&MachineSpec::default(), MIXED, Flavour::Criu42)?;
    criu.dump(&here, &[app.process()])?.assert_good();
    for name in names(&criu, "vramstream")? {
        fs::remove_file(criu.images().join(name))?;
    }
    let name = "amdgpu-kfd-7.img";
    let path = criu.images().join(name);
    let whole = fs::read(&path)?;
    // Fields 1 to 3 are the first: pid, GPUs, CPUs.
    let gpus = whole.iter().skip(8).position(|&byte| byte == 0x10).unwrap() + 8;
    for count in [0, 2, 0x7f] {
        let mut bytes = whole.clone();
        bytes[gpus + 1] = count;
        fs::write(&path, &bytes)?;
        let there = SimulatedMachine::start(&MachineSpec::default())?;
        let restored = criu.restore(&there)?;
        restored.assert_failed(&[name]);
        assert!(!there.calls()?.contains_key("CRIU_OP"), "{count}");
    }
    Ok(())
}

/// What the plugin writes is what CRIU's own would: a size, and so many bytes, and contents of as
/// many bytes as the BOs have.
#[test]
fn files_have_the_names_and_sizes_of_crius_own() -> Result {
    let (here, app, criu) = scene(&MachineSpec::gpus(2), MIXED, Flavour::Criu42)?;
    criu.dump(&here, &[app.process()])?.assert_good();
    let mut expected: std::collections::BTreeMap<u32, u64> =
        MachineSpec::gpus(2).machine().gpu_ids().into_iter().map(|id| (id, 0)).collect();
    for bo in here.bos(app.pid())?.iter().filter(|bo| bo.crc.is_some()) {
        *expected.entry(bo.gpu_id).or_default() += bo.size;
    }
    for (gpu_id, bytes) in expected {
        let image = fs::read(criu.images().join(format!("amdgpu-pages-7-{gpu_id:04x}.img")))?;
        assert_eq!(image.len() as u64, bytes + 8);
        assert_eq!(image[..8], bytes.to_le_bytes());
    }
    for name in ["amdgpu-kfd-7.img", "amdgpu-renderD-9.img", "amdgpu-renderD-11.img"] {
        let image = fs::read(criu.images().join(name))?;
        assert_eq!(image[..8], (image.len() as u64 - 8).to_le_bytes(), "{name}");
    }
    Ok(())
}
