//! The device files themselves: mappings and descriptors look like a driver's, and nobody hangs when
//! the daemon behind them dies, or a caller does.

use std::{
    fs,
    os::fd::{AsFd, AsRawFd},
    path::Path,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use nix::errno::Errno;
use vramstream::device::{
    DeviceError, Kfd, Node, RenderNode,
    kernel::Kernel,
    sim::{BoPlan, Program, ProgramPlan},
};
use vramstream_tests::{machine::MachineSpec, real::wait_for};

use crate::support::{Machine, Result, case};

const PATIENCE: Duration = Duration::from_secs(30);

fn errno<T>(answer: std::result::Result<T, DeviceError>) -> Option<Errno> {
    match answer {
        Err(DeviceError::Call { errno, .. }) => Some(errno),
        _ => None,
    }
}

/// A program of this process, with a BO of each kind that the CPU sees.
fn program(machine: &Machine) -> Result<Program> {
    let visible = |plan: BoPlan| BoPlan { host_visible: true, ..plan };
    let bos = [BoPlan::vram(0, 1 << 20), BoPlan::gtt(1, 64 << 10)].map(visible).into();
    let plan = ProgramPlan { bos, ..ProgramPlan::default() };
    Ok(Program::start(&Kernel, &machine.spec().machine(), &plan)?)
}

#[test]
fn mappings_are_those_of_a_driver() -> Result<()> {
    let _case = case!()?;
    let machine = Machine::start(&MachineSpec::gpus(2))?;
    let program = program(&machine)?;
    let pid = std::process::id();
    for bo in program.bos() {
        let memory = bo.memory.as_ref().ok_or("it is not mapped")?;
        let pattern: Vec<u8> = (0..memory.len()).map(|n| n.to_le_bytes()[n % 3]).collect();
        memory.write(0, &pattern);
        // What the CPU writes, the GPU has.
        let known = machine.bos(pid)?.into_iter().find(|known| known.va == bo.va);
        assert_eq!(known.ok_or("no BO")?.crc, Some(crc32fast::hash(&pattern)));

        let node = machine.spec().machine().gpus[bo.gpu].render_node();
        let line = smaps(memory.address())?;
        let (mapping, flags) = (&line[0], &line[line.len() - 1]);
        assert!(mapping.ends_with(&*node.to_string_lossy()), "{mapping}");
        assert!(mapping.contains(&format!("rw-s {:08x} ", bo.mmap_offset)), "{mapping}");
        for flag in ["sh", "io", "pf", "de", "dd"] {
            assert!(flags.split(' ').any(|set| set == flag), "{flag} is not in {flags}");
        }

        let render = program.renders().nth(bo.gpu).ok_or("no node")?;
        let size = usize::try_from(bo.size)?;
        assert_eq!(errno(render.map(bo.mmap_offset + 4096, size)), Some(Errno::EINVAL));
        assert_eq!(errno(render.map(bo.mmap_offset, size + 4096)), Some(Errno::EINVAL));
        // A file that is not the process's address space has no access.
        let other = Node::open(&Kernel, &node)?;
        assert_eq!(errno(other.map(bo.mmap_offset, size)), Some(Errno::EACCES));
    }
    for queue in program.queues() {
        let doorbells = queue.doorbell_offset & !8191;
        assert_eq!(errno(program.kfd().map(doorbells, 4096)), Some(Errno::EINVAL));
        let memory = program.kfd().map(doorbells, 8192)?;
        let line = smaps(memory.address())?;
        assert!(line[0].ends_with(" /dev/kfd"), "{}", line[0]);
        assert!(line[line.len() - 1].split(' ').any(|flag| flag == "dc"), "{line:?}");
    }
    drop(program);
    assert_eq!(machine.stop()?, [""; 0]);
    Ok(())
}

/// The lines of the mapping at an address, up to its flags.
fn smaps(address: u64) -> Result<Vec<String>> {
    let all = fs::read_to_string("/proc/self/smaps")?;
    let mut lines = all.lines().skip_while(|line| !line.starts_with(&format!("{address:x}-")));
    let mut found: Vec<String> = Vec::new();
    for line in lines.by_ref() {
        found.push(line.to_owned());
        if line.starts_with("VmFlags:") {
            return Ok(found);
        }
    }
    Err(format!("nothing is mapped at {address:#x}").into())
}

#[test]
fn dma_bufs_are_what_they_look_like() -> Result<()> {
    let _case = case!()?;
    let machine = Machine::start(&MachineSpec::gpus(1))?;
    let path = machine.spec().machine().gpus[0].render_node();
    let (one, other) = (RenderNode::open(&Kernel, &path)?, RenderNode::open(&Kernel, &path)?);
    let (handle, memory) = one.shared_memory(64 << 10)?;
    memory.write(0, b"in the BO");
    let fd = one.export(handle)?;
    let link = fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()))?;
    assert!(link.to_string_lossy().starts_with("/dmabuf:"), "{}", link.display());
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd()))?;
    assert!(info.contains("size:\t65536") && info.contains("exp_name:\tamdgpu"), "{info}");

    let imported = other.import(fd.as_fd())?;
    // The same object, once: another import has no other name for it.
    assert_eq!(other.import(fd.as_fd())?, imported);
    one.close(handle)?;
    drop((memory, fd));
    let mut bytes = [0; 9];
    other.map_memory(imported, 64 << 10)?.read(0, &mut bytes);
    assert_eq!(&bytes, b"in the BO");
    let file = fs::File::open("/dev/null")?;
    assert_eq!(errno(other.import(file.as_fd())), Some(Errno::EINVAL));
    other.close(imported)?;
    drop((one, other));
    assert_eq!(machine.stop()?, [""; 0]);
    Ok(())
}

#[test]
fn who_waits_for_a_daemon_that_dies_is_told() -> Result<()> {
    let _case = case!()?;
    let machine = Machine::start(&MachineSpec::gpus(2))?;
    let program = program(&machine)?;
    let kfd = Kfd::open(&Kernel)?;
    machine.plan("GET_VERSION blocks")?;
    let waiting = thread::spawn(move || (errno(kfd.version()), kfd));
    wait_for("the call", PATIENCE, || {
        let calls = machine.calls()?;
        Ok((calls.get("GET_VERSION").is_some_and(|&times| times > 1)).then_some(()))
    })?;
    machine.kill()?;
    let (answer, kfd) = waiting.join().map_err(|_| "the caller panicked")?;
    assert_eq!(answer, Some(Errno::ENODEV));
    assert_eq!(errno(kfd.version()), Some(Errno::ENODEV));
    assert!(!Path::new("/dev/kfd").exists() && !Path::new("/sys/class/kfd/kfd").exists());
    // What was mapped is still there: a process does not die of it.
    let memory = program.bos()[0].memory.as_ref().ok_or("it is not mapped")?;
    memory.write(0, b"mine");
    drop((program, kfd));
    drop(machine);

    let again = Machine::start(&MachineSpec::gpus(1))?;
    Kfd::open(&Kernel)?.version()?;
    assert_eq!(again.stop()?, [""; 0]);
    Ok(())
}

#[test]
fn a_caller_that_is_killed_leaves_nothing() -> Result<()> {
    let _case = case!()?;
    let machine = Machine::start(&MachineSpec::gpus(1))?;
    let fault = machine.plan("GET_PROCESS_APERTURES_NEW blocks")?;
    let mut client = Command::new("rocminfo");
    let mut client = client.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    wait_for("the call", PATIENCE, || Ok((machine.hits(fault)? > 0).then_some(())))?;
    client.kill()?;
    // At once, whatever the daemon does.
    wait_for("the end of the caller", PATIENCE, || Ok(client.try_wait()?.map(drop)))?;
    machine.release(fault)?;
    assert_eq!(machine.stop()?, [""; 0]);
    Ok(())
}
