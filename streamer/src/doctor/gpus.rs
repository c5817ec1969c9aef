//! KFD, the GPUs, and their render nodes.

use std::{fs, io, path::PathBuf};

use nix::errno::Errno;
use vramstream::{
    device::{DeviceError, KFD_NODE, Kfd, RenderNode},
    topology::{Hidden, Node, Property, Topology, TopologyError},
};

use super::{Check, Surroundings};

/// The family that this is made for: GFX9. Older engines have other commands.
const GFX9: u32 = 141;
/// AMD, in the PCI files of sysfs.
const AMD: &str = "0x1002";
/// Display controllers and processing accelerators: the first byte of a PCI class.
const GPU_CLASSES: [&str; 2] = ["0x03", "0x12"];

/// Looks at everything about GPUs, and says how many there are. Where there is none, none is needed.
pub(super) fn check(here: &Surroundings) -> (usize, Vec<Check>) {
    let kernel = match here.text("/proc/sys/kernel/osrelease") {
        Ok(release) => Check::ok("kernel", format!("Linux {release}")),
        Err(error) => {
            let found = format!("its release cannot be read: {error}");
            Check::does_not_matter("kernel", found)
        }
    };
    let topology = match Topology::from_sysfs(&here.topology) {
        Ok(topology) if topology.gpus().count() + topology.hidden().len() > 0 => topology,
        Ok(_) => return (0, vec![kernel, without_topology(here)]),
        Err(TopologyError::NoTree { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            return (0, vec![kernel, without_topology(here)]);
        }
        Err(error) => {
            let advice = "without the topology nothing can be checkpointed; see the kernel log";
            let problem = Check::problem("topology", error.to_string(), advice);
            return (0, vec![kernel, problem, kfd(here)]);
        }
    };
    if topology.gpus().count() == 0 && Kfd::open(here.driver.as_ref()).is_err() {
        let found = "all GPUs are hidden from this process: GPU checks left out";
        return (0, vec![kernel, Check::does_not_matter("gpus", found)]);
    }
    let mut checks = vec![kernel, kfd(here), told(here, &topology)];
    checks.extend(topology.gpus().map(|gpu| render_node(here, gpu)));
    checks.extend(topology.hidden().iter().map(hidden));
    if topology.gpus().count() == 0 {
        let found = format!("{KFD_NODE} is there, and all GPUs are hidden from this process");
        let advice = "give the container a GPU, or take this device from it";
        checks.push(Check::problem("gpus", found, advice));
    }
    (topology.gpus().count() + topology.hidden().len(), checks)
}

/// No topology, or one without a GPU: is there none, or is something wrong?
fn without_topology(here: &Surroundings) -> Check {
    let loaded = here.path("/sys/module/amdgpu").exists();
    let topology = here.topology.display();
    if Kfd::open(here.driver.as_ref()).is_ok() {
        let found = format!("{KFD_NODE} is there, and no GPU below {topology}");
        let advice = "mount /sys (in a container: read-only will do)";
        return Check::problem("topology", found, advice);
    }
    // The buses of this machine say nothing about a simulated one.
    let gpus = if here.simulated.is_some() { Vec::new() } else { pci_gpus(here) };
    match (gpus.first(), loaded) {
        (None, _) => Check::does_not_matter("gpus", "no AMD GPU here: GPU checks left out"),
        (Some(address), false) => {
            let found = format!("the driver amdgpu of the AMD GPU {address} is not loaded");
            Check::problem("kfd", found, "modprobe amdgpu; if that fails, see the kernel log")
        }
        (Some(address), true) => {
            let found = format!("amdgpu is loaded for the GPU {address}, and has no KFD");
            let advice =
                "take a kernel with CONFIG_HSA_AMD, and a GPU that it supports; see the kernel log";
            Check::problem("kfd", found, advice)
        }
    }
}

fn pci_gpus(here: &Surroundings) -> Vec<String> {
    let Ok(devices) = fs::read_dir(here.path("/sys/bus/pci/devices")) else { return Vec::new() };
    let devices = devices.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let is_gpu = |address: &String| {
        let text = |file| here.text(&format!("/sys/bus/pci/devices/{address}/{file}"));
        let class = text("class").unwrap_or_default();
        text("vendor").is_ok_and(|vendor| vendor == AMD)
            && GPU_CLASSES.iter().any(|gpu| class.starts_with(gpu))
    };
    let mut gpus: Vec<_> = devices.filter(is_gpu).collect();
    gpus.sort();
    gpus
}

fn kfd(here: &Surroundings) -> Check {
    let version = Kfd::open(here.driver.as_ref()).and_then(|kfd| kfd.version());
    let error = match version {
        Ok((major, minor)) => {
            return Check::ok("kfd", format!("{KFD_NODE}, interface {major}.{minor}"));
        }
        Err(error) => error,
    };
    let advice = match &error {
        DeviceError::Unsuitable { .. } => "boot a newer kernel",
        DeviceError::Call { errno: Errno::EACCES | Errno::EPERM, .. } => {
            "run this as root, or as a member of the group that owns it (render)"
        }
        _ if here.path("/sys/module/amdgpu").exists() => {
            "amdgpu is loaded; in a container, let it have this device (--device /dev/kfd)"
        }
        _ => "modprobe amdgpu; if that fails, see the kernel log",
    };
    Check::problem("kfd", error.to_string(), advice)
}

fn told(here: &Surroundings, topology: &Topology) -> Check {
    let (gpus, cpus) = (topology.gpus().count(), topology.cpus().count());
    let counted = |count, one: &str| format!("{count} {one}{}", if count == 1 { "" } else { "s" });
    let found = format!("{}, {}", counted(gpus, "GPU"), counted(cpus, "CPU node"));
    Check::ok("topology", format!("{found}, {}", here.topology.display()))
}

fn render_node(here: &Surroundings, gpu: &Node) -> Check {
    let name = format!("renderD{}", gpu.render_minor());
    let path = PathBuf::from("/dev/dri").join(&name);
    let what = format!(
        "GPU {:#06x}, node {}, {} MiB of VRAM",
        gpu.gpu_id,
        gpu.id,
        gpu.get(Property::VramSize) >> 20
    );
    let node = RenderNode::open(here.driver.as_ref(), &path);
    let check = match node.and_then(|node| node.info()) {
        Ok(info) if info.family == GFX9 => Check::ok("gpu", format!("{what}, GFX9")),
        Ok(info) if info.family < GFX9 => {
            let found = format!("{what}, family {}, older than GFX9 ({GFX9})", info.family);
            let advice = "processes that use this GPU cannot be checkpointed; hide it from them";
            Check::problem("gpu", found, advice)
        }
        Ok(info) => {
            let found = format!("{what}, family {}, newer than GFX9 ({GFX9})", info.family);
            Check::does_not_matter("gpu", found).advice("never tried: test before you rely on it")
        }
        Err(DeviceError::Call { errno: Errno::ENOENT | Errno::ENXIO, .. }) => {
            let found = format!("{what}: {} is not there", path.display());
            let advice =
                format!("in a container, let it have this device (--device {})", path.display());
            Check::problem("gpu", found, advice)
        }
        Err(DeviceError::Call { errno: Errno::EACCES | Errno::EPERM, call: "open", .. }) => {
            let found = format!("{what}: {} may not be opened", path.display());
            let advice = "run this as root, or as a member of the group that owns it (render); in a \
                          container, allow the device";
            Check::problem("gpu", found, advice)
        }
        Err(error) => Check::problem("gpu", format!("{what}: {error}"), "see the kernel log"),
    };
    check.about(name)
}

/// In a container others have these.
fn hidden(node: &Hidden) -> Check {
    let id = node.gpu_id.map_or(String::new(), |id| format!(" (GPU {id:#06x})"));
    let found = format!("hidden from this process{id}: {}", node.why);
    Check::does_not_matter("hidden_gpu", found).about(format!("node {}", node.node))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use vramstream::device::sim::{Credentials, Fault, Machine, Profile, SimHost};

    use super::super::{State, surroundings::tests::Scene};
    use super::*;

    fn find<'a>(checks: &'a [Check], name: &str) -> Vec<&'a Check> {
        checks.iter().filter(|check| check.check == name).collect()
    }

    fn states(checks: &[Check], name: &str) -> Vec<State> {
        find(checks, name).iter().map(|check| check.state).collect()
    }

    #[test]
    fn every_gpu_is_opened() {
        let scene = Scene::new(2);
        let (gpus, checks) = check(&scene.here);
        assert_eq!(gpus, 2);
        assert!(checks.iter().all(|check| check.state == State::Ok), "{checks:?}");
        let found = find(&checks, "gpu");
        let about: Vec<_> = found.iter().map(|check| check.about.as_deref()).collect();
        assert_eq!(about, [Some("renderD128"), Some("renderD129")]);
        assert!(found[0].found.contains("VRAM, GFX9"), "{checks:?}");
        assert!(find(&checks, "kfd")[0].found.contains("interface 1."), "{checks:?}");
        assert!(find(&checks, "kernel")[0].found.contains("Linux 6.12.1-amd64"), "{checks:?}");
        assert!(scene.host.check().is_empty(), "something was left open");
    }

    #[test]
    fn a_machine_without_gpus_needs_none() {
        let scene = Scene::new(0);
        let other = SimHost::new(Machine::new(&Profile::gfx90a(), 1)).unwrap();
        // Neither a topology nor a device, or a topology of CPUs only.
        other.plan(Fault::call("open").always().answers(Errno::ENOENT));
        let mut here = scene.here.clone();
        here.driver = Arc::new(other.process(Credentials::ROOT));
        for topology in [scene.here.topology.clone(), "/nonexistent".into()] {
            here.topology = topology;
            let (gpus, checks) = check(&here);
            assert_eq!((gpus, states(&checks, "gpus")), (0, vec![State::DoesNotMatter]));
            assert_eq!(checks.len(), 2, "{checks:?}");
        }
        // The bus has a GPU after all.
        scene.write("sys/bus/pci/devices/0000:02:00.0/vendor", "0x1002\n");
        scene.write("sys/bus/pci/devices/0000:02:00.0/class", "0x010802\n");
        assert_eq!(states(&check(&here).1, "gpus"), [State::DoesNotMatter]);
        scene.write("sys/bus/pci/devices/0000:03:00.0/vendor", "0x1002\n");
        scene.write("sys/bus/pci/devices/0000:03:00.0/class", "0x120000\n");
        let (_, checks) = check(&here);
        assert!(find(&checks, "kfd")[0].found.contains("0000:03:00.0 is not loaded"), "{checks:?}");
        scene.write("sys/module/amdgpu/version", "1");
        let (_, checks) = check(&here);
        assert!(find(&checks, "kfd")[0].found.contains("has no KFD"), "{checks:?}");
        // It can be opened, but not seen.
        here.driver = scene.here.driver.clone();
        let (_, checks) = check(&here);
        assert_eq!(states(&checks, "topology"), [State::Problem]);
    }

    #[test]
    fn what_cannot_be_opened_is_named_with_what_to_do() {
        let cases = [
            (Errno::EACCES, "may not be opened", "root"),
            (Errno::EPERM, "may not be opened", "allow the device"),
            (Errno::ENOENT, "/dev/dri/renderD129 is not there", "--device /dev/dri/renderD129"),
            (Errno::ENODEV, "ENODEV", "kernel log"),
        ];
        for (errno, found, advice) in cases {
            let scene = Scene::new(2);
            scene.host.plan(Fault::call("open").on_gpu(1).always().answers(errno));
            let (_, checks) = check(&scene.here);
            assert_eq!(states(&checks, "gpu"), [State::Ok, State::Problem], "{checks:?}");
            let gpu = find(&checks, "gpu")[1];
            assert!(gpu.found.contains(found), "{gpu:?}");
            assert!(gpu.advice.as_ref().unwrap().contains(advice), "{gpu:?}");
        }
        for (errno, advice) in [(Errno::EACCES, "root"), (Errno::ENOENT, "modprobe amdgpu")] {
            let scene = Scene::new(1);
            scene.host.plan(Fault::call("open").always().answers(errno));
            let (_, checks) = check(&scene.here);
            let kfd = find(&checks, "kfd")[0];
            assert_eq!(kfd.state, State::Problem);
            assert!(kfd.advice.as_ref().unwrap().contains(advice), "{kfd:?}");
            scene.write("sys/module/amdgpu/version", "1");
        }
    }

    #[test]
    fn gpus_of_others_are_hidden_and_in_nobodys_way() {
        let scene = Scene::new(2);
        let nodes = scene.here.topology.join("nodes");
        fs::remove_file(nodes.join("1/properties")).unwrap();
        let (gpus, checks) = check(&scene.here);
        assert_eq!((gpus, states(&checks, "hidden_gpu")), (2, vec![State::DoesNotMatter]));
        assert!(find(&checks, "hidden_gpu")[0].found.contains("nodes/1/properties"), "{checks:?}");
        assert_eq!(states(&checks, "gpus"), []);
        fs::remove_file(nodes.join("2/properties")).unwrap();
        assert_eq!(states(&check(&scene.here).1, "gpus"), [State::Problem]);
        // A container without any of its host's GPUs.
        scene.host.plan(Fault::call("open").always().answers(Errno::ENOENT));
        let (gpus, checks) = check(&scene.here);
        assert_eq!((gpus, states(&checks, "gpus")), (0, vec![State::DoesNotMatter]));
        assert_eq!(states(&checks, "kfd"), []);
    }

    #[test]
    fn other_generations_are_told() {
        for (family, state) in [(130, State::Problem), (142, State::DoesNotMatter)] {
            let scene = Scene::new(0);
            let profile = Profile { family, ..Profile::gfx90a() };
            let host = SimHost::new(Machine::new(&profile, 1)).unwrap();
            host.write_sysfs(&scene.here.topology).unwrap();
            let mut here = scene.here.clone();
            here.driver = Arc::new(host.process(Credentials::ROOT));
            let (_, checks) = check(&here);
            assert_eq!(states(&checks, "gpu"), [state], "{checks:?}");
        }
    }

    #[test]
    fn a_topology_that_makes_no_sense_is_a_problem() {
        let scene = Scene::new(1);
        fs::write(scene.here.topology.join("nodes/1/properties"), "simd_count many\n").unwrap();
        let (_, checks) = check(&scene.here);
        assert_eq!(states(&checks, "topology"), [State::Problem]);
        assert!(find(&checks, "topology")[0].found.contains("properties:1"), "{checks:?}");
    }
}
