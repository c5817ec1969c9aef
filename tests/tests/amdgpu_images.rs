//! Image files of CRIU's amdgpu plugin as each generation writes them, kept in `tests/golden/amdgpu`.
//!
//! `criu-4.2` is what CRIU 3.17 to 4.2 write, `criu-dev` what its development branch does. They were
//! encoded by `protoc` from text, with definitions in which every field that a generation requires is
//! `required`: what is written here and is the same, all of them can read.
#![forbid(unsafe_code)]

use std::{fs, io, path::PathBuf};

use vramstream::image::{
    DmabufNode, DrmBo, DrmVm, ImageError, ImageName, KfdBo, KfdImage, NO_HANDLE, RenderNode,
    SharedMemory,
};
use vramstream::topology::{Checks, Link, LinkKind, Property, plan};

fn kept(generation: &str, name: ImageName) -> io::Result<(String, Vec<u8>)> {
    let path: PathBuf =
        [env!("CARGO_MANIFEST_DIR"), "golden/amdgpu", generation, &name.to_string()]
            .iter()
            .collect();
    Ok((path.display().to_string(), fs::read(&path)?))
}

fn kfd(generation: &str) -> Result<KfdImage, ImageError> {
    let name = ImageName::Kfd { id: 7 };
    let (file, bytes) = kept(generation, name)
        .map_err(|source| ImageError::Read { file: name.to_string(), source })?;
    KfdImage::read(&file, &mut bytes.as_slice())
}

#[test]
fn a_process_is_read_from_images_of_every_generation() {
    for (generation, handles) in
        [("criu-4.2", [None; 3]), ("criu-dev", [Some(1), Some(NO_HANDLE), Some(2)])]
    {
        let image = kfd(generation).unwrap();
        assert_eq!((image.pid, image.objects), (4711, 5));
        assert_eq!(image.priv_data.as_ref(), b"\x01\0\0\0kernel");
        let memory = SharedMemory { size: 4096, magic: 0x4841_4d4d };
        assert_eq!(image.shared_memory, Some(memory));
        let bo = |addr, size, offset, alloc_flags, gpu_id, handle| KfdBo {
            addr,
            size,
            offset,
            alloc_flags,
            gpu_id,
            handle,
        };
        let bos = [
            bo(139_637_976_727_552, 2 << 20, 4_295_098_368, 0x8000_0001, 24248, handles[0]),
            bo(139_637_980_921_856, 8192, 1 << 63, 8, 41201, handles[1]),
            bo(139_637_985_116_160, 4096, 4_297_195_520, 2, 41201, handles[2]),
        ];
        assert_eq!(image.bos, bos);
        assert_eq!(image.contents(41201).collect::<Vec<_>>(), [&bos[2]]);

        let nodes: Vec<_> =
            image.topology.nodes().iter().map(|node| (node.id, node.gpu_id)).collect();
        assert_eq!(nodes, [(0, 0), (1, 24248), (2, 41201)], "{generation}");
        let gpu = image.topology.gpu(41201).unwrap();
        let links = [(LinkKind::Pcie, 0), (LinkKind::Xgmi, 1)];
        assert_eq!(gpu.links, links.map(|(kind, to)| Link { kind, to }));
        assert_eq!(gpu.get(Property::DrmRenderMinor), 129);
        assert_eq!(gpu.get(Property::HiveId), 12_609_507_387_757_274_807);
        assert_eq!(gpu.get(Property::VramSize), 68_702_699_520);
        assert_eq!(image.topology.nodes()[0].get(Property::CpuCoresCount), 64);
        assert_eq!(image.topology.hives().len(), 1);
    }
    // What was dumped by one can be restored by the other.
    let (old, new) = (kfd("criu-4.2").unwrap(), kfd("criu-dev").unwrap());
    assert_eq!(old.topology, new.topology);
    assert!(plan(&old.topology, &new.topology, Checks::default()).is_ok());
}

#[test]
fn what_is_written_is_what_every_generation_reads() {
    let name = ImageName::Kfd { id: 7 };
    let (_, expected) = kept("criu-dev", name).unwrap();
    let mut written = Vec::new();
    kfd("criu-dev").unwrap().write("x", &mut written).unwrap();
    assert!(written == expected);
    // The additions are written also to images that came without them.
    let mut old = kfd("criu-4.2").unwrap();
    let mut written = Vec::new();
    old.write("x", &mut written).unwrap();
    old.bos.iter_mut().for_each(|bo| bo.handle = Some(NO_HANDLE));
    assert_eq!(KfdImage::read("x", &mut written.as_slice()).unwrap(), old);

    let (file, expected) = kept("criu-dev", ImageName::Render { id: 8 }).unwrap();
    let mut written = Vec::new();
    RenderNode::read(&file, &mut &*expected).unwrap().write("x", &mut written).unwrap();
    assert!(written == expected);

    let (file, expected) = kept("criu-dev", ImageName::Dmabuf { id: 9 }).unwrap();
    let node = DmabufNode::read(&file, &mut &*expected).unwrap();
    assert_eq!(node, DmabufNode { gem_handle: 2 });
    let mut written = Vec::new();
    node.write("x", &mut written).unwrap();
    assert!(written == expected);
}

#[test]
fn a_render_node_is_read_from_images_of_every_generation() {
    let read = |generation| {
        let (file, bytes) = kept(generation, ImageName::Render { id: 8 }).unwrap();
        RenderNode::read(&file, &mut bytes.as_slice()).unwrap()
    };
    let early = RenderNode { gpu_id: 24248, id: None, render_minor: None, bos: vec![] };
    assert_eq!(read("criu-4.2"), early);
    let mapping = |addr, offset| DrmVm { addr, size: 1 << 19, offset, flags: 14 };
    let first = DrmBo {
        addr: 2 << 32,
        size: 1 << 20,
        offset: 4_295_098_368,
        alloc_flags: 1,
        alignment: 4096,
        preferred_domains: 4,
        handle: 1,
        is_import: false,
        mappings: vec![mapping(1 << 32, 0), mapping(2 << 32, 1 << 19)],
    };
    let second = DrmBo {
        addr: 0,
        size: 4096,
        offset: 0,
        alloc_flags: 0,
        alignment: 0,
        preferred_domains: 2,
        handle: 2,
        is_import: true,
        mappings: vec![],
    };
    let bos = vec![first, second];
    let later = RenderNode { gpu_id: 24248, id: Some(8), render_minor: Some(128), bos };
    assert_eq!(read("criu-dev"), later);
}

#[test]
fn a_damaged_image_is_refused_with_its_name() {
    for generation in ["criu-4.2", "criu-dev"] {
        let (file, bytes) = kept(generation, ImageName::Kfd { id: 7 }).unwrap();
        let refused = |bytes: &[u8]| match KfdImage::read(&file, &mut { bytes }) {
            Err(error) if error.to_string().starts_with(&file) => error,
            other => panic!("{other:?}"),
        };
        for cut in 0..bytes.len() {
            assert!(matches!(refused(&bytes[..cut]), ImageError::Short { .. }));
        }
        let with_size = |size: u64| [&size.to_le_bytes()[..], &bytes[8..]].concat();
        let size = bytes.len() as u64 - 8;
        assert!(matches!(refused(&with_size(0)), ImageError::Missing { .. }));
        assert!(matches!(refused(&with_size(1 << 63)), ImageError::TooLarge { .. }));
        assert!(matches!(refused(&with_size(size + 1)), ImageError::Short { .. }));
        // An older and longer file was there before.
        let longer = [&bytes[..], &bytes[..]].concat();
        assert_eq!(KfdImage::read(&file, &mut &*longer).unwrap(), kfd(generation).unwrap());
    }
}
