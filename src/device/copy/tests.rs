//! What a queue refuses, since the device would do it.

use std::{os::fd::AsFd, time::Duration};

use super::*;
use crate::{
    abi::amdgpu::domain,
    device::{
        RenderNode,
        sim::{Credentials, Machine, Profile, SimHost},
    },
    ring::Ring,
};

/// A queue with one BO of two pages, and what it stands on.
fn queue(ring: &Ring) -> (CopyQueue, BoId, RenderNode) {
    let host = SimHost::new(Machine::new(&Profile::gfx90a(), 1)).unwrap();
    let node = host.machine().gpus[0].render_node();
    let app = RenderNode::open(&host.process(Credentials::USER), &node).unwrap();
    let dma_buf = app.export(app.create(8192, domain::VRAM).unwrap()).unwrap();
    let limits = Limits { copies_per_ring: 2, copies: 4, fence_deadline: Duration::from_secs(5) };
    let copier = host.process(Credentials::ROOT);
    let mut queue = CopyQueue::open(&copier, &node, ring, Direction::ToHost, limits).unwrap();
    let bo = queue.import(dma_buf.as_fd(), 8192).unwrap();
    (queue, bo, app)
}

fn read(piece: impl FnOnce(BoId) -> Piece) {
    let ring = Ring::new(4096, 2).unwrap();
    let (mut queue, bo, _app) = queue(&ring);
    let _ = queue.read(ring.try_take().unwrap(), &[piece(bo)], 0);
}

#[test]
#[should_panic(expected = "outside of the chunk")]
fn a_piece_past_the_end_of_the_chunk() {
    read(|bo| Piece { bo, bo_offset: 0, chunk_offset: 1, len: 4096 });
}

#[test]
#[should_panic(expected = "outside of the chunk")]
fn a_piece_at_the_end_of_all_numbers() {
    read(|bo| Piece { bo, bo_offset: 0, chunk_offset: usize::MAX, len: 2 });
}

#[test]
#[should_panic(expected = "inside its BO")]
fn a_piece_past_the_end_of_its_bo() {
    read(|bo| Piece { bo, bo_offset: 8191, chunk_offset: 0, len: 2 });
}

#[test]
#[should_panic(expected = "inside its BO")]
fn a_piece_of_no_bytes() {
    read(|bo| Piece { bo, bo_offset: 0, chunk_offset: 0, len: 0 });
}

#[test]
#[should_panic(expected = "another ring")]
fn a_chunk_of_another_ring() {
    let (ring, other) = (Ring::new(4096, 2).unwrap(), Ring::new(4096, 2).unwrap());
    let (mut queue, bo, _app) = queue(&ring);
    let piece = Piece { bo, bo_offset: 0, chunk_offset: 0, len: 1 };
    let _ = queue.read(other.try_take().unwrap(), &[piece], 0);
}
