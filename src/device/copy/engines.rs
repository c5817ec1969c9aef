//! Which DMA rings for which direction.
//!
//! A ring of a context is not an engine: the kernel gives an idle ring's next job to the least busy
//! engine (Linux `drm_sched_entity_select_rq`). So all rings there are get used, and the order only
//! decides which one a lone copy takes.

use super::Direction;
use crate::device::RenderInfo;

/// The rings to prefer, for engines of a version and a direction. Every other case takes the rings
/// as the kernel lists them.
///
/// MI300 (SDMA 4.4.2): from device to host the second engine is faster, 56 GB/s and not 48; ROCm's
/// runtime chooses the same ones (`amd_gpu_agent.cpp`, recommended engines 0x6 to the host and 0x1
/// from it).
const PREFERRED: [Preference; 1] = [((4, 4, 2), Direction::ToHost, [1, 0])];

/// Version of the engines, direction, order of the rings.
type Preference = ((u32, u32, u32), Direction, [u32; 2]);

/// The rings of a GPU in the order in which copies take turns on them.
pub(super) fn rings_for(info: &RenderInfo, direction: Direction) -> Vec<u32> {
    let preferred = PREFERRED
        .iter()
        .find(|(version, which, _)| *version == info.sdma_version && *which == direction);
    let mut rings = info.dma_rings.clone();
    if let Some((.., order)) = preferred {
        let place = |ring: &u32| order.iter().position(|wanted| wanted == ring);
        rings.sort_by_key(|ring| place(ring).unwrap_or(order.len()));
    }
    rings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table() {
        let info = |version, rings: &[u32]| RenderInfo {
            family: 141,
            sdma_version: version,
            dma_rings: rings.to_vec(),
            addresses: 0..1,
        };
        let cases = [
            ((4, 4, 2), Direction::ToHost, &[0, 1][..], &[1, 0][..]),
            ((4, 4, 2), Direction::ToDevice, &[0, 1], &[0, 1]),
            ((4, 0, 0), Direction::ToHost, &[0, 1], &[0, 1]),
            ((4, 4, 2), Direction::ToHost, &[0], &[0]),
        ];
        for (version, direction, rings, order) in cases {
            assert_eq!(rings_for(&info(version, rings), direction), order);
        }
    }
}
