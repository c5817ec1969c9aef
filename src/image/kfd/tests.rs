//! KFD images: written and read, and with something missing or wrong.

use proptest::prelude::*;
use prost::Message as _;

use super::*;
use crate::{
    device::sim::{Machine, Profile},
    image::proto::{CriuKfd, DevIolink},
};

fn topology(machine: &Machine) -> Topology {
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    machine.write_sysfs(dir.path()).unwrap();
    Topology::from_sysfs(dir.path()).unwrap()
}

/// Two GPUs with a BO of each kind.
fn image() -> KfdImage {
    let topology = topology(&Machine::new(&Profile::gfx942(), 2).cpu_nodes(2));
    let ids: Vec<_> = topology.gpus().map(|gpu| gpu.gpu_id).collect();
    let kinds = [flags::VRAM, flags::GTT, flags::USERPTR, flags::DOORBELL, flags::MMIO_REMAP];
    let bo = |(at, kind): (u32, u32)| KfdBo {
        addr: 0x7f00_0000_0000 + (u64::from(at) << 21),
        size: 4096 << at,
        offset: u64::MAX - u64::from(at),
        alloc_flags: kind | flags::WRITABLE,
        gpu_id: ids[at as usize % 2],
        handle: (kind == flags::VRAM).then_some(3),
    };
    KfdImage {
        pid: 4711,
        topology,
        bos: (0..).zip(kinds).map(bo).collect(),
        objects: 12,
        shared_memory: Some(SharedMemory { size: 4096, magic: 0x4849_4d4d }),
        priv_data: Bytes::from_static(b"\0\x01opaque"),
    }
}

fn bytes(image: &KfdImage) -> Vec<u8> {
    let mut bytes = Vec::new();
    image.write("x.img", &mut bytes).unwrap();
    bytes
}

fn read(bytes: &[u8]) -> Result<KfdImage, String> {
    KfdImage::read("x.img", &mut { bytes }).map_err(|error| error.to_string())
}

/// What reading says to the image with its message changed.
fn edited(edit: impl FnOnce(&mut CriuKfd)) -> Result<KfdImage, String> {
    let mut message = CriuKfd::decode(&bytes(&image())[8..]).unwrap();
    edit(&mut message);
    read(&framing::framed(&message))
}

#[test]
fn what_is_written_is_read() {
    let mut expected = image();
    // Those without a handle are written with the number that means none.
    expected.bos.iter_mut().for_each(|bo| bo.handle = bo.handle.or(Some(NO_HANDLE)));
    assert_eq!(read(&bytes(&image())), Ok(expected.clone()));
    assert_eq!(bytes(&expected), bytes(&image()));

    let empty = KfdImage { bos: vec![], shared_memory: None, priv_data: Bytes::new(), ..image() };
    assert_eq!(read(&bytes(&empty)), Ok(empty));
}

#[test]
fn every_machine_is_read_as_it_was() {
    for name in ["gfx900", "gfx906", "gfx908", "gfx90a", "gfx942"] {
        for (gpus, cpus) in [(1, 1), (3, 2), (8, 2)] {
            let machine = Machine::new(&Profile::named(name).unwrap(), gpus).cpu_nodes(cpus);
            let topology = topology(&machine);
            let image = KfdImage { topology, bos: vec![], ..image() };
            assert_eq!(read(&bytes(&image)), Ok(image), "{name} x{gpus}");
        }
    }
}

#[test]
fn hidden_gpus_and_links_to_them_are_not_in_an_image() {
    let whole = topology(&Machine::new(&Profile::gfx942(), 8));
    let ids: Vec<_> = whole.gpus().map(|gpu| gpu.gpu_id).collect();
    let image = KfdImage { topology: whole.only(&[ids[2], ids[5]]), bos: vec![], ..image() };
    let message = CriuKfd::decode(&bytes(&image)[8..]).unwrap();
    assert_eq!((message.num_of_gpus, message.num_of_cpus), (Some(2), Some(1)));
    let ends = |links: &[DevIolink]| links.iter().map(|link| link.node_to_id).collect::<Vec<_>>();
    let entries = &message.device_entries;
    assert_eq!(entries[0].node_id, Some(0));
    assert_eq!(ends(&entries[0].iolinks), [Some(3), Some(6)]);
    assert_eq!(ends(&entries[1].iolinks), [Some(0), Some(6)]);
    // The machine had eight, and that is what the GPU says.
    assert_eq!(entries[1].io_links_count, Some(8));
    let read = read(&bytes(&image)).unwrap();
    assert!(read.topology.hidden().is_empty());
    assert_eq!(read.topology.gpus().map(|gpu| gpu.gpu_id).collect::<Vec<_>>(), [ids[2], ids[5]]);
}

#[test]
fn contents_are_those_of_vram_and_gtt_of_one_gpu() {
    let image = image();
    let ids: Vec<_> = image.topology.gpus().map(|gpu| gpu.gpu_id).collect();
    let sizes = |id| image.contents(id).map(|bo| bo.size).collect::<Vec<_>>();
    assert_eq!((sizes(ids[0]), sizes(ids[1])), (vec![4096], vec![8192]));
}

#[test]
fn what_later_releases_added_may_be_missing() {
    let read = edited(|message| message.bo_entries.iter_mut().for_each(|bo| bo.handle = None));
    let read = read.unwrap();
    assert_eq!((read.bos.len(), read.bos[0].handle), (5, None));
}

#[test]
fn what_must_be_there_is_named() {
    macro_rules! check {
        ($($path:ident $([$at:literal])? $(. $field:ident)*,)*) => {$(
            let name = stringify!($path $([$at])? $(. $field)*).replace(' ', "").replace("r#", "");
            let error = edited(|message| message.$path $([$at])? $(. $field)* = None).unwrap_err();
            assert_eq!(error, format!("x.img: damaged: {name} is missing"));
        )*};
    }
    check!(
        pid,
        num_of_gpus,
        num_of_cpus,
        num_of_bos,
        num_of_objects,
        shared_mem_size,
        shared_mem_magic,
        priv_data,
        bo_entries[1].addr,
        bo_entries[1].size,
        bo_entries[4].offset,
        bo_entries[0].alloc_flags,
        bo_entries[0].gpu_id,
        device_entries[0].node_id,
        device_entries[1].gpu_id,
        device_entries[0].cpu_cores_count,
        device_entries[3].gds_size_in_kb,
        device_entries[2].simd_count,
        device_entries[0].hive_id,
        device_entries[3].vram_size,
    );
    // All numbers of an entry, of GPUs and of CPUs.
    let numbers = crate::topology::Property::ALL.len();
    let mut named = std::collections::BTreeSet::new();
    for at in [0, 3] {
        let message = CriuKfd::decode(&bytes(&image())[8..]).unwrap();
        let entry = message.device_entries[at].encode_to_vec();
        // Each number on its own, without the links: 32 fields less one.
        for skipped in 1..32u32 {
            let without = proto::KfdDeviceEntry::decode(&*without(&entry, skipped)).unwrap();
            let error = edited(|message| message.device_entries[at] = without).unwrap_err();
            assert!(
                error.starts_with(&format!("x.img: damaged: device_entries[{at}].")),
                "{error}"
            );
            named.insert(error);
        }
    }
    assert_eq!(named.len(), 2 * (numbers + 3));
    let error = edited(|message| message.device_entries[2].iolinks[1].node_to_id = None);
    assert_eq!(
        error,
        Err("x.img: damaged: device_entries[2].iolinks[1].node_to_id is missing".into())
    );
}

/// A message of numbers without one of its fields.
fn without(message: &[u8], skipped: u32) -> Vec<u8> {
    let mut kept = Vec::new();
    let mut rest = message;
    while !rest.is_empty() {
        let before = rest;
        let (tag, kind) = prost::encoding::decode_key(&mut rest).unwrap();
        prost::encoding::skip_field(kind, tag, &mut rest, Default::default()).unwrap();
        if tag != skipped {
            kept.extend_from_slice(&before[..before.len() - rest.len()]);
        }
    }
    kept
}

#[test]
fn what_does_not_add_up_is_told() {
    type Edit = fn(&mut CriuKfd);
    let cases: [(Edit, &str); 8] = [
        (|m| m.num_of_gpus = Some(3), "num_of_gpus is 3, and there are 2 of them"),
        (|m| m.num_of_cpus = Some(0), "num_of_cpus is 0, and there are 2 of them"),
        (|m| m.num_of_bos = Some(u64::MAX), "num_of_bos is 18446744073709551615, and there are 5"),
        (|m| m.bo_entries.truncate(1), "num_of_bos is 5, and there are 1 of them"),
        (
            |m| m.bo_entries[2].gpu_id = Some(0x1_0001),
            "bo_entries[2].gpu_id is 0x10001, and there is no such GPU",
        ),
        (|m| m.bo_entries[2].gpu_id = Some(0), "bo_entries[2].gpu_id is 0x0000, and there is no"),
        (|m| m.bo_entries[0].size = Some(u64::MAX), "the BOs together have more than 2^64 bytes"),
        (|m| m.device_entries[3].node_id = Some(2), "there are two nodes 2"),
    ];
    for (edit, message) in cases {
        let error = edited(edit).unwrap_err();
        assert!(error.starts_with(&format!("x.img: damaged: {message}")), "{error}");
    }
}

#[test]
fn counts_are_limited_before_anything_is_made_of_them() {
    let framed =
        |message: Vec<u8>| [&framing::size_header(message.len() as u64)[..], &message].concat();
    let error = read(&framed([0x32, 0].repeat(MOST_BOS + 1))).unwrap_err();
    assert_eq!(error, format!("x.img: more than {MOST_BOS} BOs"));
    let error = read(&framed([0x22, 0].repeat(MOST_NODES + 1))).unwrap_err();
    assert_eq!(error, format!("x.img: more than {MOST_NODES} device entries"));
    let error = read(&framed(b"\x32\x05ab".to_vec())).unwrap_err();
    assert!(error.starts_with("x.img: damaged: no protobuf message"), "{error}");
    let error = read(&framed(b"\x08\x96\x01\x22\x02\x0a\x00".to_vec())).unwrap_err();
    assert!(error.starts_with("x.img: damaged: no protobuf message"), "{error}");
}

#[test]
fn a_disk_that_is_full_is_named() {
    let error = image().write("x.img", &mut &mut [0u8; 100][..]).unwrap_err();
    assert!(error.to_string().starts_with("x.img: cannot write: "), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn a_damaged_image_is_an_error_or_another_image_but_never_more(
        at in any::<prop::sample::Index>(),
        with in any::<u8>(),
        cut in any::<prop::sample::Index>(),
    ) {
        thread_local! {
            static WHOLE: Vec<u8> = bytes(&image());
        }
        let mut damaged = WHOLE.with(Clone::clone);
        let len = damaged.len();
        prop_assert!(read(&damaged[..cut.index(len)]).is_err(), "each byte is needed");
        damaged[at.index(len)] = with;
        match read(&damaged) {
            // What was read can be written and is the same then.
            Ok(image) => prop_assert!(read(&bytes(&image)).is_ok()),
            Err(error) => prop_assert!(error.starts_with("x.img: "), "{error}"),
        }
    }
}
