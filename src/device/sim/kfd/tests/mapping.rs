//! mmap of `/dev/kfd`.

use super::*;

#[test]
fn doorbells_and_mmio_are_mapped_whole_by_the_machines_name() {
    let bench = Bench::new(KernelRelease::V6_12);
    let gpu = mmap::gpu_id(bench.id(1));
    let map = |offset, len| bench.kfd.map(offset, len);
    let doorbells = map(mmap::TYPE_DOORBELL | gpu, 8192).unwrap();
    doorbells.write_words(8, &[7]);
    let mut word = [0; 4];
    map(mmap::TYPE_DOORBELL | gpu, 8192).unwrap().read(8, &mut word);
    assert_eq!(word, [7, 0, 0, 0]);
    map(mmap::TYPE_MMIO | gpu, 4096).unwrap();
    for (offset, len, errno) in [
        (mmap::TYPE_DOORBELL | gpu, 4096, Errno::EINVAL),
        (mmap::TYPE_MMIO | gpu, 8192, Errno::EINVAL),
        (mmap::TYPE_DOORBELL | mmap::gpu_id(1), 8192, Errno::ENODEV),
        (mmap::TYPE_MMIO | mmap::gpu_id(1), 4096, Errno::ENODEV),
        (mmap::TYPE_RESERVED_MEM | gpu, 4096, Errno::EINVAL),
        (mmap::TYPE_EVENTS, 4096, Errno::EINVAL),
    ] {
        assert_eq!(map(offset, len).err(), Some(errno), "{offset:#x}");
    }
    let other = bench.host.process(Credentials::ROOT);
    let file = other.adopt(bench.kfd.as_fd().try_clone_to_owned().unwrap()).unwrap();
    assert_eq!(file.map(mmap::TYPE_MMIO | gpu, 4096).err(), Some(Errno::EBADF));
}

#[test]
fn the_kernels_page_of_events_can_be_mapped_once_there_is_one() {
    let bench = Bench::new(KernelRelease::V6_12);
    let signal = CreateEvent::default();
    let made = done(&*bench.kfd, &CREATE_EVENT, signal);
    assert_eq!(made.event_page_offset, mmap::TYPE_EVENTS);
    assert_eq!(bench.kfd.map(mmap::TYPE_EVENTS, 65536).err(), Some(Errno::EINVAL));
    let page = bench.kfd.map(mmap::TYPE_EVENTS, 32768).unwrap();
    let mut slot = [0; 8];
    page.read(made.event_slot_index as usize * 8, &mut slot);
    assert_eq!(slot, [0xff; 8]);
}
