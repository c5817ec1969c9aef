//! Images of render nodes, of all releases.

use prost::Message as _;

use super::*;
use crate::image::proto::CriuRenderNode;

fn node() -> RenderNode {
    let mapping = |n: u64| DrmVm { addr: n << 21, size: 4096, offset: n * 4096, flags: 0xe };
    let bo = |n: u32| DrmBo {
        addr: u64::from(n) << 32,
        size: 1 << 20,
        offset: u64::MAX,
        alloc_flags: 1 << 40,
        alignment: 4096,
        preferred_domains: 4,
        handle: n,
        is_import: n == 2,
        mappings: (0..u64::from(n)).map(mapping).collect(),
    };
    RenderNode {
        gpu_id: 0xa0f1,
        id: Some(9),
        render_minor: Some(129),
        bos: (0..3).map(bo).collect(),
    }
}

fn bytes(node: &RenderNode) -> Vec<u8> {
    let mut bytes = Vec::new();
    node.write("x.img", &mut bytes).unwrap();
    bytes
}

fn read(bytes: &[u8]) -> Result<RenderNode, String> {
    RenderNode::read("x.img", &mut { bytes }).map_err(|error| error.to_string())
}

fn edited(edit: impl FnOnce(&mut CriuRenderNode)) -> Result<RenderNode, String> {
    let mut message = CriuRenderNode::decode(&bytes(&node())[8..]).unwrap();
    edit(&mut message);
    read(&framing::framed(&message))
}

#[test]
fn what_is_written_is_read() {
    assert_eq!(read(&bytes(&node())), Ok(node()));
    let empty = RenderNode { bos: vec![], ..node() };
    assert_eq!(read(&bytes(&empty)), Ok(empty));
}

#[test]
fn before_there_were_bos_only_the_gpu_was_written() {
    let early = RenderNode { gpu_id: 0xa0f1, id: None, render_minor: None, bos: vec![] };
    let message = CriuRenderNode { gpu_id: Some(0xa0f1), ..Default::default() };
    assert_eq!(read(&framing::framed(&message)), Ok(early.clone()));
    // Written again, it has what later releases need.
    let later = CriuRenderNode::decode(&bytes(&early)[8..]).unwrap();
    assert_eq!((later.id, later.drm_render_minor, later.num_of_bos), (Some(0), Some(0), Some(0)));
}

#[test]
fn what_must_be_there_is_named() {
    macro_rules! check {
        ($($path:ident $([$at:literal])? $(. $field:ident $([$in:literal])?)*,)*) => {$(
            let name = stringify!($path $([$at])? $(. $field $([$in])?)*).replace(' ', "");
            let error =
                edited(|message| message.$path $([$at])? $(. $field $([$in])?)* = None).unwrap_err();
            assert_eq!(error, format!("x.img: damaged: {name} is missing"));
        )*};
    }
    check!(
        gpu_id,
        num_of_bos,
        bo_entries[0].addr,
        bo_entries[1].size,
        bo_entries[2].offset,
        bo_entries[0].alloc_flags,
        bo_entries[0].alignment,
        bo_entries[0].preferred_domains,
        bo_entries[0].handle,
        bo_entries[0].is_import,
        bo_entries[0].num_of_vms,
        bo_entries[2].vm_entries[1].addr,
        bo_entries[2].vm_entries[0].size,
        bo_entries[2].vm_entries[0].offset,
        bo_entries[1].vm_entries[0].flags,
    );
}

#[test]
fn what_does_not_add_up_is_told() {
    let error = edited(|message| message.num_of_bos = Some(2));
    assert_eq!(error, Err("x.img: damaged: num_of_bos is 2, and there are 3 of them".into()));
    let error = edited(|message| message.bo_entries[1].num_of_vms = Some(0));
    let message = "x.img: damaged: bo_entries[1].num_of_vms is 0, and there are 1 of them";
    assert_eq!(error, Err(message.into()));
}

#[test]
fn counts_are_limited_before_anything_is_made_of_them() {
    let framed =
        |message: Vec<u8>| [&framing::size_header(message.len() as u64)[..], &message].concat();
    let error = read(&framed([0x2a, 0].repeat(MOST_BOS + 1))).unwrap_err();
    assert_eq!(error, format!("x.img: more than {MOST_BOS} BOs"));
    let inner = [0x52, 0].repeat(MOST_MAPPINGS + 1);
    let mut bo = vec![0x2a];
    prost::encoding::encode_varint(inner.len() as u64, &mut bo);
    let error = read(&framed([bo, inner].concat())).unwrap_err();
    assert_eq!(error, format!("x.img: more than {MOST_MAPPINGS} mappings"));
}
