//! Which calls reach a handler, and whose.

use super::*;

#[test]
fn the_table_of_each_kernel_has_its_end() {
    for (kernel, minor, last) in [
        (KernelRelease::V6_1, 11, 0x23),
        (KernelRelease::V6_12, 17, 0x25),
        (KernelRelease::V7_2, 23, 0x25),
    ] {
        let bench = Bench::bound(kernel);
        let version = done(&*bench.kfd, &GET_VERSION, GetVersion::default());
        assert_eq!((version.major_version, version.minor_version), (1, minor));
        let call = |nr: u32| {
            // SAFETY: no handler takes an address from zeros.
            unsafe { bench.kfd.ioctl(0xc010_4b00 | nr, &mut [0; 16]) }
        };
        assert_eq!(call(0), Err(Errno::ENOTTY));
        assert_eq!(call(last + 3), Err(Errno::ENOTTY));
        assert_ne!(call(last), Err(Errno::ENOTTY), "{kernel:?}");
        assert_eq!(call(0x0d), Err(Errno::EPERM));
        let export = answer(&*bench.kfd, &EXPORT_DMABUF, ExportDmabuf::default());
        let expected = if last < 0x24 { Errno::ENOTTY } else { Errno::EINVAL };
        assert_eq!(export, Err(expected));
    }
}

#[test]
fn a_shorter_structure_is_extended_and_the_letter_does_not_matter() {
    let bench = Bench::new(KernelRelease::V6_12);
    let mut four = [0xff; 4];
    // SAFETY: the argument has no addresses.
    assert_eq!(unsafe { bench.kfd.ioctl(0x8004_4b01, &mut four) }, Ok(()));
    assert_eq!(u32::from_le_bytes(four), 1);
    let mut eight = [0; 8];
    // SAFETY: the argument has no addresses.
    assert_eq!(unsafe { bench.kfd.ioctl(0x8008_6401, &mut eight) }, Ok(()));
    assert_eq!(eight, [1, 0, 0, 0, 17, 0, 0, 0]);
    // SAFETY: the argument has no addresses.
    assert_eq!(unsafe { bench.kfd.ioctl(GET_VERSION.number(), &mut [0; 7]) }, Err(Errno::EFAULT));
}

#[test]
fn only_the_owner_and_for_criu_its_tracer_may_call() {
    let bench = Bench::new(KernelRelease::V6_12);
    let file_of = |credentials| {
        let other = bench.host.process(credentials);
        let file = other.adopt(bench.kfd.as_fd().try_clone_to_owned().unwrap()).unwrap();
        (other, file)
    };
    let (criu, file) = file_of(Credentials::ROOT);
    let info = CriuArgs { op: criu_op::PROCESS_INFO, ..CriuArgs::default() };
    assert_eq!(answer(&*file, &GET_VERSION, GetVersion::default()), Err(Errno::EBADF));
    assert_eq!(answer(&*file, &CRIU_OP, info), Err(Errno::EBADF));
    bench.host.trace(&criu, &bench.process);
    assert_eq!(answer(&*file, &CRIU_OP, info), Ok(()));
    assert!(bench.host.is_paused(bench.pid()));
    assert_eq!(answer(&*file, &GET_VERSION, GetVersion::default()), Err(Errno::EBADF));
    // The tracer needs the capability; who is no tracer is told that first.
    let (user, file) = file_of(Credentials::USER);
    assert_eq!(answer(&*file, &CRIU_OP, info), Err(Errno::EBADF));
    bench.host.trace(&user, &bench.process);
    assert_eq!(answer(&*file, &CRIU_OP, info), Err(Errno::EACCES));
    let unknown = CriuArgs { op: 5, ..CriuArgs::default() };
    assert_eq!(answer(&*bench.kfd, &CRIU_OP, unknown), Err(Errno::EINVAL));
}

#[test]
fn all_files_of_a_process_share_it_and_it_goes_with_the_last() {
    let bench = Bench::bound(KernelRelease::V6_12);
    bench.mapped(0x10_0000, 1 << 20);
    let again = bench.process.open(Path::new(KFD_NODE)).unwrap();
    let dup = bench.process.adopt(bench.kfd.as_fd().try_clone_to_owned().unwrap()).unwrap();
    let left = |file: &dyn DeviceFile, gpu_id| {
        done(file, &AVAILABLE_MEMORY, AvailableMemory { gpu_id, ..Default::default() }).available
    };
    let id = bench.id(0);
    assert_eq!(left(&*again, id), 63 << 20);
    let Bench { host, process, kfd, renders } = bench;
    drop((kfd, again));
    assert_eq!(left(&*dup, id), 63 << 20);
    drop(dup);
    assert_eq!(host.bos(process.pid()), []);
    // A new process object begins with nothing; the render node is free for it.
    let bench = Bench { kfd: process.open(Path::new(KFD_NODE)).unwrap(), host, process, renders };
    assert_eq!(left(&*bench.kfd, id), 64 << 20);
    assert_eq!(bench.acquire(0, 0), Ok(()));
    bench.mapped(0x10_0000, 1 << 20);
}

#[test]
fn apertures_tell_of_the_gpus_that_a_process_sees() {
    for kernel in ALL {
        let host = SimHost::new(Machine::new(&Profile::gfx90a(), 3).kernel(kernel)).unwrap();
        let process = host.process(Credentials::USER);
        host.hide_gpu(&process, 1);
        let kfd = process.open(Path::new(KFD_NODE)).unwrap();
        let old = done(&*kfd, &GET_PROCESS_APERTURES, GetProcessApertures::default());
        assert_eq!(old.num_of_nodes, 2);
        let base = if kernel == KernelRelease::V6_1 { 0x4000 } else { 0x10000 };
        assert_eq!(old.process_apertures[1].gpu_id, host.gpu_ids()[2]);
        assert_eq!(old.process_apertures[0].gpuvm_base, base);
        let count = GetProcessAperturesNew::default();
        assert_eq!(done(&*kfd, &GET_PROCESS_APERTURES_NEW, count).num_of_nodes, 2);
        let mut all = [DeviceApertures::default(); 4];
        let args = |num_of_nodes, at: u64| GetProcessAperturesNew {
            kfd_process_device_apertures_ptr: at,
            num_of_nodes,
            pad: 0,
        };
        let at = all.as_mut_ptr().expose_provenance() as u64;
        assert_eq!(done(&*kfd, &GET_PROCESS_APERTURES_NEW, args(4, at)).num_of_nodes, 2);
        let ids: Vec<_> = all.iter().map(|one| one.gpu_id).collect();
        assert_eq!(ids, [host.gpu_ids()[0], host.gpu_ids()[2], 0, 0]);
        let call = |args| answer(&*kfd, &GET_PROCESS_APERTURES_NEW, args);
        assert_eq!(call(args(5, at)), Err(Errno::EINVAL));
        assert_eq!(call(args(4, 8)), Err(Errno::EFAULT));
        let hidden = SetTrapHandler { gpu_id: host.gpu_ids()[1], ..SetTrapHandler::default() };
        assert_eq!(answer(&*kfd, &SET_TRAP_HANDLER, hidden), Err(Errno::EINVAL));
    }
}

#[test]
fn without_a_gpu_there_is_a_process_and_nothing_to_stop() {
    let bench = Bench::on(Machine::new(&Profile::gfx90a(), 0));
    done(&*bench.kfd, &GET_VERSION, GetVersion::default());
    let apertures = GetProcessAperturesNew::default();
    assert_eq!(done(&*bench.kfd, &GET_PROCESS_APERTURES_NEW, apertures).num_of_nodes, 0);
    assert_eq!(bench.criu(criu_op::PROCESS_INFO), Err(Errno::ENODEV));
    let some = CriuArgs {
        op: criu_op::CHECKPOINT,
        devices: 8,
        bos: 8,
        priv_data: 8,
        ..CriuArgs::default()
    };
    assert_eq!(answer(&*bench.kfd, &CRIU_OP, some), Err(Errno::ENODEV));
    assert!(!bench.host.is_paused(bench.pid()));
}

#[test]
fn policies_clocks_and_modes() {
    let bench = Bench::new(KernelRelease::V6_12);
    let policy = |default_policy, gpu_id| SetMemoryPolicy {
        default_policy,
        gpu_id,
        ..SetMemoryPolicy::default()
    };
    let set = |args| answer(&*bench.kfd, &SET_MEMORY_POLICY, args);
    assert_eq!(set(policy(0, bench.id(0))), Err(Errno::ESRCH));
    bench.acquire(0, 0).unwrap();
    assert_eq!(set(policy(1, bench.id(0))), Ok(()));
    assert_eq!(set(policy(2, bench.id(0))), Err(Errno::EINVAL));
    assert_eq!(set(policy(0, 0)), Err(Errno::EINVAL));
    let clocks = |gpu_id| GetClockCounters { gpu_id, ..GetClockCounters::default() };
    let one = done(&*bench.kfd, &GET_CLOCK_COUNTERS, clocks(bench.id(0)));
    let two = done(&*bench.kfd, &GET_CLOCK_COUNTERS, clocks(0));
    assert!(two.system_clock_counter >= one.system_clock_counter && two.gpu_clock_counter == 0);
    let xnack = |xnack_enabled| ioctl(&*bench.kfd, &SET_XNACK_MODE, SetXnackMode { xnack_enabled });
    assert_eq!(xnack(-1), (Ok(()), SetXnackMode { xnack_enabled: 0 }));
    assert_eq!(xnack(1).0, Ok(()));
    assert_eq!(xnack(-1).1.xnack_enabled, 1);
    let old = Bench::on(Machine::new(&Profile::gfx906(), 1));
    let wanted = SetXnackMode { xnack_enabled: 1 };
    assert_eq!(answer(&*old.kfd, &SET_XNACK_MODE, wanted), Err(Errno::EPERM));
    let enable = RuntimeEnable { mode_mask: 1, ..RuntimeEnable::default() };
    assert_eq!(answer(&*bench.kfd, &RUNTIME_ENABLE, enable), Ok(()));
    assert_eq!(answer(&*bench.kfd, &RUNTIME_ENABLE, enable), Err(Errno::EBUSY));
}

#[test]
fn what_the_thunk_asks_of_a_gpu() {
    let bench = Bench::new(KernelRelease::V6_12);
    let kfd = &*bench.kfd;
    let (mut tiles, mut macros) = ([1u32; 33], [1u32; 17]);
    let tile = GetTileConfig {
        tile_config_ptr: tiles.as_mut_ptr().expose_provenance() as u64,
        macro_tile_config_ptr: macros.as_mut_ptr().expose_provenance() as u64,
        num_tile_configs: 33,
        num_macro_tile_configs: 5,
        gpu_id: bench.id(0),
        ..GetTileConfig::default()
    };
    let told = done(kfd, &GET_TILE_CONFIG, tile);
    assert_eq!((told.num_tile_configs, told.num_macro_tile_configs), (32, 5));
    assert_eq!(told.gb_addr_config, 0x2201_4042);
    assert_eq!((tiles[31], tiles[32], macros[4], macros[5]), (0, 1, 0, 1));
    let nowhere = GetTileConfig { tile_config_ptr: 8, ..tile };
    assert_eq!(answer(kfd, &GET_TILE_CONFIG, nowhere), Err(Errno::EFAULT));
    let unknown = GetTileConfig { gpu_id: 1, ..tile };
    assert_eq!(answer(kfd, &GET_TILE_CONFIG, unknown), Err(Errno::EINVAL));

    let scratch = SetScratchBackingVa { va_addr: 0, gpu_id: bench.id(0), pad: 0 };
    assert_eq!(answer(kfd, &SET_SCRATCH_BACKING_VA, scratch), Err(Errno::ESRCH));
    bench.acquire(0, 0).unwrap();
    assert_eq!(answer(kfd, &SET_SCRATCH_BACKING_VA, scratch), Ok(()));

    let told = done(kfd, &SMI_EVENTS, SmiEvents { gpuid: bench.id(1), anon_fd: 0 });
    let events = owned(told.anon_fd);
    let mut bytes = [0; 8];
    assert_eq!(nix::unistd::read(&events, &mut bytes), Err(Errno::EAGAIN));
    let unknown = SmiEvents { gpuid: 1, anon_fd: 0 };
    assert_eq!(answer(kfd, &SMI_EVENTS, unknown), Err(Errno::EINVAL));
}

#[test]
fn nobody_is_debugged() {
    let bench = Bench::new(KernelRelease::V6_12);
    let other = Bench::of(bench.host.clone(), bench.host.process(Credentials::ROOT));
    let trap = |bench: &Bench, pid, op| {
        answer(&*bench.kfd, &DBG_TRAP, DbgTrap { pid, op, ..DbgTrap::default() })
    };
    assert_eq!(trap(&bench, 99, 0), Err(Errno::ESRCH));
    assert_eq!(trap(&bench, other.pid(), 0), Err(Errno::EPERM));
    assert_eq!(trap(&bench, bench.pid(), 0), Err(Errno::EALREADY));
    assert_eq!(trap(&bench, bench.pid(), 3), Err(Errno::EINVAL));
    bench.host.trace(&bench.process, &other.process);
    assert_eq!(trap(&bench, other.pid(), 3), Err(Errno::EINVAL));
    assert_eq!(trap(&bench, other.pid(), 99), Err(Errno::EINVAL));
}
