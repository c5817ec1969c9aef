//! `vramstream plan`, as a person and as a script runs it: images and topologies of simulated
//! machines, no GPU and no root.
#![forbid(unsafe_code)]

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    process::Output,
};

use serde_json::Value;
use vramstream::{
    device::sim::{Machine, Profile, SimHost},
    image::{ImageName, KfdImage},
    topology::Topology,
};
use vramstream_tests::streamer::Program;

/// A machine's topology below `dir`, and the ids of its GPUs.
fn tree(dir: &Path, name: &str, machine: Machine) -> io::Result<(PathBuf, Vec<u32>)> {
    let root = dir.join(name);
    let host = SimHost::new(machine)?;
    host.write_sysfs(&root).map_err(io::Error::other)?;
    Ok((root, host.gpu_ids().to_vec()))
}

/// The image of a process that saw some of the GPUs of a machine.
fn image(dir: &Path, id: u32, tree: &Path, gpu_ids: &[u32]) -> io::Result<PathBuf> {
    let image = KfdImage {
        pid: 4000 + id,
        topology: Topology::from_sysfs(tree).map_err(io::Error::other)?.only(gpu_ids),
        bos: vec![],
        objects: 0,
        shared_memory: None,
        priv_data: Default::default(),
    };
    fs::create_dir_all(dir)?;
    let path = dir.join(ImageName::Kfd { id }.to_string());
    image.write("test", &mut File::create(&path)?).map_err(io::Error::other)?;
    Ok(path)
}

fn run(words: &[&str], variables: &[(&str, &str)]) -> io::Result<Output> {
    let mut command = Program::under_test()?.as_nobody().command();
    let kfd = std::env::vars().map(|(name, _)| name).filter(|name| name.starts_with("KFD_"));
    for name in kfd {
        command.env_remove(name);
    }
    command.arg("plan").args(words).envs(variables.iter().copied()).output()
}

fn plan(from: &Path, to: &Path, variables: &[(&str, &str)]) -> io::Result<(Option<i32>, String)> {
    let output =
        run(&["--from", &from.to_string_lossy(), "--to", &to.to_string_lossy()], variables)?;
    let text = [output.stdout, output.stderr].concat();
    Ok((output.status.code(), String::from_utf8_lossy(&text).into_owned()))
}

fn json(from: &Path, to: &Path) -> io::Result<(Option<i32>, Value)> {
    let (from, to) = (from.to_string_lossy(), to.to_string_lossy());
    let output = run(&["--from", &from, "--json", "--to", &to], &[])?;
    Ok((output.status.code(), serde_json::from_slice(&output.stdout)?))
}

/// A directory that also nobody can read.
fn directory() -> io::Result<tempfile::TempDir> {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir()?;
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755))?;
    Ok(dir)
}

#[test]
fn a_checkpoint_goes_to_the_gpus_of_another_machine() -> io::Result<()> {
    let dir = directory()?;
    let machine = Machine::new(&Profile::gfx942(), 4).cpu_nodes(2);
    let (there, old) = tree(dir.path(), "there", machine.clone())?;
    let (here, new) = tree(dir.path(), "here", machine.moved(160, 0x51))?;
    let images = dir.path().join("dump");
    let file = image(&images, 7, &there, &old)?;
    // From a file, a directory of them, and a machine that nothing was dumped on yet.
    for from in [&file, &images, &there] {
        let (code, text) = plan(from, &here, &[])?;
        assert_eq!(code, Some(0), "{text}");
        for (at, (from, to)) in old.iter().zip(&new).enumerate() {
            let (node, there, here) = (at + 2, 128 + at, 160 + at);
            let row = format!(
                "{from:#06x}       {node}  renderD{there}       {to:#06x}       {node}  renderD{here}\n"
            );
            assert!(text.contains(&row), "{row}{text}");
        }
        let (code, json) = json(from, &here)?;
        assert_eq!((code, &json["restorable"]), (Some(0), &Value::Bool(true)));
        let gpus = json["checkpoints"][0]["gpus"].as_array().unwrap();
        let ids = |gpu: &Value| (gpu["gpu_id"].as_u64(), gpu["to"]["gpu_id"].as_u64());
        let ids: Vec<_> = gpus.iter().map(ids).collect();
        let expected = old.iter().zip(&new);
        let expected: Vec<_> =
            expected.map(|(&from, &to)| (Some(from.into()), Some(to.into()))).collect();
        assert_eq!(ids, expected);
        assert_eq!(json["checkpoints"][0]["cpus"].as_array().map(Vec::len), Some(2));
        assert_eq!(json["checkpoints"][0]["pid"].as_u64(), (from != &there).then_some(4007));
    }
    Ok(())
}

#[test]
fn what_cannot_be_restored_is_told_with_what_would_help() -> io::Result<()> {
    let dir = directory()?;
    let machine = Machine::new(&Profile::gfx90a(), 2);
    let (there, _) = tree(dir.path(), "there", machine.clone())?;
    let smaller = machine.gpus[0].vram_bytes - 4096;
    let (here, _) = tree(dir.path(), "here", machine.vram_bytes(smaller).moved(200, 9))?;
    let (code, text) = plan(&there, &here, &[])?;
    assert_eq!(code, Some(1), "{text}");
    let line = "vram_size is 68702695424, and at least 68702699520 is needed \
                (KFD_VRAM_SIZE_CHECK=0 ignores it)";
    assert_eq!(text.matches(line).count(), 2, "{text}");
    assert!(text.contains("It could be with KFD_VRAM_SIZE_CHECK=0"), "{text}");
    assert!(
        text.contains("Error: ") && text.contains("cannot be restored on this machine"),
        "{text}"
    );
    assert_eq!(plan(&here, &there, &[])?.0, Some(0));

    let (code, json) = json(&there, &here)?;
    assert_eq!((code, &json["restorable"]), (Some(1), &Value::Bool(false)));
    let refusal = &json["checkpoints"][0]["refusal"];
    assert_eq!(refusal["reasons"][0]["kind"], "no_candidate");
    assert_eq!(refusal["overrides"], serde_json::json!(["KFD_VRAM_SIZE_CHECK"]));
    let difference = &refusal["compared"][1]["with"][0]["differences"][0];
    let expected = serde_json::json!({
        "property": "vram_size",
        "need": "at_least",
        "from": 68_702_699_520_u64,
        "to": 68_702_695_424_u64,
        "variable": "KFD_VRAM_SIZE_CHECK",
    });
    assert_eq!(difference, &expected);
    Ok(())
}

#[test]
fn the_variables_mean_what_they_mean_in_a_restore() -> io::Result<()> {
    let dir = directory()?;
    let machine = Machine::new(&Profile::gfx90a(), 2);
    let (there, _) = tree(dir.path(), "there", machine.clone())?;
    let smaller = machine.gpus[0].vram_bytes - 4096;
    let (here, _) = tree(dir.path(), "here", machine.vram_bytes(smaller))?;
    for (value, code) in [("0", 0), ("no", 0), ("NO", 0), ("1", 1), ("Yes", 1)] {
        let (answer, text) = plan(&there, &here, &[("KFD_VRAM_SIZE_CHECK", value)])?;
        assert_eq!(answer, Some(code), "{value}: {text}");
    }
    assert_eq!(plan(&there, &here, &[("KFD_NUMA_CHECK", "0")])?.0, Some(1));
    for value in ["", "maybe", "2"] {
        let (code, text) = plan(&there, &there, &[("KFD_NUMA_CHECK", value)])?;
        assert_eq!(code, Some(1));
        assert!(text.contains(&format!("KFD_NUMA_CHECK={value:?} is not understood")), "{text}");
    }
    Ok(())
}

#[test]
fn a_directory_has_the_images_of_several_processes() -> io::Result<()> {
    let dir = directory()?;
    let machine = Machine::new(&Profile::gfx90a(), 4);
    let (there, ids) = tree(dir.path(), "there", machine)?;
    let images = dir.path().join("dump");
    image(&images, 12, &there, &ids)?;
    image(&images, 3, &there, &ids)?;
    fs::write(images.join("amdgpu-kfd-3.img.old"), "not one of them")?;
    let (code, found) = json(&images, &there)?;
    assert_eq!(code, Some(0));
    let pids = |json: &Value| -> Vec<_> {
        let all = json["checkpoints"].as_array().unwrap();
        all.iter().map(|one| (one["pid"].as_u64(), one["restorable"].as_bool())).collect()
    };
    assert_eq!(pids(&found), [(Some(4003), Some(true)), (Some(4012), Some(true))]);
    // One of them saw fewer.
    image(&images, 12, &there, &ids[..1])?;
    let (code, found) = json(&images, &there)?;
    assert_eq!(code, Some(1));
    assert_eq!(pids(&found), [(Some(4003), Some(true)), (Some(4012), Some(false))]);
    let refusal = &found["checkpoints"][1]["refusal"];
    assert_eq!(refusal["reasons"][0]["kind"], "gpu_count");
    assert_eq!(refusal["subset"][0]["to"]["gpu_id"], ids[0]);
    let (_, text) = plan(&images, &there, &[])?;
    assert!(text.contains("the process saw 1 GPU, here it would see 4 GPUs"), "{text}");
    Ok(())
}

#[test]
fn hidden_nodes_are_told() -> io::Result<()> {
    let dir = directory()?;
    let (there, ids) = tree(dir.path(), "there", Machine::new(&Profile::gfx90a(), 2))?;
    let one = image(dir.path(), 1, &there, &ids[1..])?;
    fs::remove_file(there.join("nodes/1/properties"))?;
    let (code, text) = plan(&one, &there, &[])?;
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("(1 GPU, 1 hidden)"), "{text}");
    fs::remove_file(there.join("nodes/2/gpu_id"))?;
    let (code, text) = plan(&one, &there, &[])?;
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("Node 1 here is hidden: ") && text.contains("nodes/2/gpu_id"), "{text}");
    Ok(())
}

#[test]
fn what_cannot_be_read_is_named() -> io::Result<()> {
    let dir = directory()?;
    let (there, ids) = tree(dir.path(), "there", Machine::new(&Profile::gfx90a(), 1))?;
    let damaged = image(dir.path(), 1, &there, &ids)?;
    let bytes = fs::read(&damaged)?;
    fs::write(&damaged, &bytes[..bytes.len() - 1])?;
    let (code, text) = plan(&damaged, &there, &[])?;
    assert_eq!(code, Some(1));
    let len = bytes.len();
    let message =
        format!("amdgpu-kfd-1.img: damaged: it should have {len} bytes and has {}", len - 1);
    assert!(text.contains(&message), "{text}");
    // Once: causes are not repeated.
    assert_eq!(text.matches("damaged").count(), 1, "{text}");

    let empty = dir.path().join("empty");
    fs::create_dir(&empty)?;
    let (code, text) = plan(&empty, &there, &[])?;
    assert_eq!((code, text.contains("neither a KFD topology")), (Some(1), true), "{text}");
    let (code, text) = plan(&there, &empty, &[])?;
    assert_eq!((code, text.contains("empty/nodes: cannot read")), (Some(1), true), "{text}");
    let (code, text) = plan(&dir.path().join("nowhere"), &there, &[])?;
    assert_eq!((code, text.contains("nowhere")), (Some(1), true), "{text}");
    Ok(())
}

#[test]
fn a_wrong_command_line_is_told_apart() -> io::Result<()> {
    for words in [&[][..], &["--to", "/x"], &["--from"], &["--from", "/x", "/y"], &["-s", "1"]] {
        let output = run(words, &[])?;
        assert_eq!(output.status.code(), Some(2), "{words:?}");
    }
    Ok(())
}
