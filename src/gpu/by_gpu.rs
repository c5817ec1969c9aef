//! BOs of a process, as the contents of its GPUs.

use std::{collections::HashMap, os::fd::OwnedFd, path::PathBuf};

use super::{Bo, Contents};
use crate::abi::kfd::{CriuBoBucket, flags};

/// A BO that has contents, and no way to them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the driver tells of a BO at {addr:#x} of GPU {gpu_id:#06x} and gives no way to its contents"
)]
pub struct NoWay {
    /// Its address.
    pub addr: u64,
    /// Its GPU.
    pub gpu_id: u32,
}

impl Contents {
    /// Those of the GPUs with these ids and render nodes: the BOs with contents, GPU by GPU, each in
    /// the order of the buckets. Each must have a dma-buf and a GPU: contents that were left out would
    /// not be missed before it is too late.
    pub fn by_gpu(
        nodes: Vec<(u32, PathBuf)>,
        bos: impl Iterator<Item = (CriuBoBucket, Option<OwnedFd>)>,
    ) -> Result<Vec<Contents>, NoWay> {
        let mut by_gpu: HashMap<u32, Vec<Bo>> =
            nodes.iter().map(|(gpu_id, _)| (*gpu_id, Vec::new())).collect();
        let have_contents =
            |bucket: &CriuBoBucket| bucket.alloc_flags & (flags::VRAM | flags::GTT) != 0;
        for (bucket, dma_buf) in bos.filter(|(bucket, _)| have_contents(bucket)) {
            let (Some(dma_buf), Some(bos)) = (dma_buf, by_gpu.get_mut(&bucket.gpu_id)) else {
                return Err(NoWay { addr: bucket.addr, gpu_id: bucket.gpu_id });
            };
            bos.push(Bo { size: bucket.size, dma_buf });
        }
        let contents = nodes.into_iter().map(|(gpu_id, node)| {
            let bos = by_gpu.remove(&gpu_id).unwrap_or_default();
            Contents { gpu_id, node: node.into(), bos }
        });
        Ok(contents.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_without_a_way_or_a_gpu_are_missed() {
        let bo = |gpu_id, alloc_flags| CriuBoBucket {
            addr: 0x1000,
            size: 4096,
            gpu_id,
            alloc_flags,
            ..CriuBoBucket::default()
        };
        let fd = || Some(OwnedFd::from(tempfile::tempfile().unwrap()));
        let of = |bos: Vec<(CriuBoBucket, Option<OwnedFd>)>| {
            let nodes = vec![(7, "a".into()), (8, "b".into())];
            Contents::by_gpu(nodes, bos.into_iter())
        };
        let contents = of(vec![
            (bo(8, flags::VRAM), fd()),
            (bo(8, flags::USERPTR), None),
            (bo(8, flags::GTT), fd()),
        ]);
        let counts =
            contents.unwrap().iter().map(|gpu| (gpu.gpu_id, gpu.bos.len())).collect::<Vec<_>>();
        assert_eq!(counts, [(7, 0), (8, 2)]);
        let lost = NoWay { addr: 0x1000, gpu_id: 8 };
        assert_eq!(of(vec![(bo(8, flags::VRAM), None)]).err(), Some(lost));
        let lost = NoWay { addr: 0x1000, gpu_id: 9 };
        assert_eq!(of(vec![(bo(9, flags::VRAM), fd())]).err(), Some(lost));
    }
}
