//! A process on `/dev/kfd`.

use std::os::fd::{AsFd, OwnedFd};

use super::{
    super::{
        context::Context,
        error::{Error, Result},
        gpus::{opened, render_path, streamer},
    },
    Gpu, Restored, Stored, contents, memory,
    moves::Moves,
    place::{Placed, open_kfd, place},
};
use crate::{
    abi::{
        criu::Level,
        kfd::{CriuBoBucket, INVALID_FD},
    },
    device::RestoredBo,
    gpu::Contents,
    handoff::{Direction, Job},
    image::{KfdBo, KfdImage, Sums, read_shared, shared_name, sums_name},
    stage::Crc32,
};

/// Makes the state of a process in the calling one: its `/dev/kfd`, and what is known of it unless
/// it has none.
pub(super) fn restore(
    cx: Context<'_>,
    id: u32,
    name: &str,
    bytes: &[u8],
) -> Result<(OwnedFd, Option<Restored>)> {
    let sums = checked(cx, id, name, bytes)?;
    let image = KfdImage::read(name, &mut { bytes })?;
    if image.topology.gpus().next().is_none() {
        // A descriptor and nothing else.
        return Ok((open_kfd(cx)?.into_file()?, None));
    }
    let gpus = image.topology.gpus().map(|gpu| gpu.gpu_id);
    let bytes = gpus.map(|id| (id, image.contents(id).map(|bo| bo.size).sum()));
    contents::look(cx.images(), id, bytes)?;
    let placed = place(cx, &image.topology, name)?;
    let kfd = open_kfd(cx)?;
    kfd.version()?;
    memory::restore(cx.system, image.shared_memory)?;
    let devices: Vec<_> = placed.iter().map(Placed::bucket).collect();
    let bos: Vec<_> = image.bos.iter().map(bucket).collect();
    let restored = kfd.restore(&devices, &bos, &image.priv_data, image.objects)?;
    let mut moves = Moves::default();
    for (old, new) in image.bos.iter().zip(&restored) {
        moves.add(old, new.bucket.restored_offset);
    }
    let total = restored.len();
    let shared = shared(cx, id, &restored)?;
    fill(cx, id, sums, &placed, restored)?;
    let gpus = placed.into_iter().map(|gpu| {
        let render = Stored::put(cx.host, gpu.render.as_fd())?;
        Ok(Gpu { gpu_id: gpu.gpu_id, old_minor: gpu.old_minor, minor: gpu.minor, render })
    });
    let gpus = gpus.collect::<Result<Vec<_>>>()?;
    cx.host.count_restored();
    cx.say(Level::Info, &format!("{name}: {} GPUs and {total} BOs are restored", gpus.len()));
    Ok((kfd.into_file()?, Some(Restored { kfd_id: id, kfd: None, gpus, shared, moves })))
}

/// Keeps the dma-bufs of those BOs that render nodes and dma-bufs are of.
fn shared(cx: Context<'_>, id: u32, restored: &[RestoredBo]) -> Result<Vec<(u32, Stored)>> {
    let name = shared_name(id);
    let Some(bytes) = cx.images().read(&name)? else { return Ok(Vec::new()) };
    let shared = read_shared(&name, &mut bytes.as_slice())?.into_iter().map(|bo| {
        let at = usize::try_from(bo).unwrap_or(usize::MAX);
        let dma_buf = restored.get(at).and_then(|bo| bo.dma_buf.as_ref());
        let what = || format!("damaged: BO {bo} is none that others can be of");
        let dma_buf = dma_buf.ok_or_else(|| Error::Content { file: name.clone(), what: what() })?;
        Ok((bo, Stored::put(cx.host, dma_buf.as_fd())?))
    });
    shared.collect()
}

/// The process's checksums, if it has any: the state's is right.
fn checked(cx: Context<'_>, id: u32, name: &str, bytes: &[u8]) -> Result<Option<Sums>> {
    let sums_name = sums_name(id);
    let Some(sums) = cx.images().read(&sums_name)? else { return Ok(None) };
    let sums = Sums::read(&sums_name, &mut sums.as_slice())?;
    let found = (bytes.len() as u64, Crc32::of(bytes).value);
    if found != sums.kfd {
        return Err(Error::Content {
            file: name.to_owned(),
            what: format!(
                "damaged: it has {} bytes with the checksum {:08x}, and {sums_name} says {} bytes with {:08x}",
                found.0, found.1, sums.kfd.0, sums.kfd.1
            ),
        });
    }
    Ok(Some(sums))
}

/// Fills the BOs.
fn fill(
    cx: Context<'_>,
    id: u32,
    sums: Option<Sums>,
    placed: &[Placed],
    restored: Vec<RestoredBo>,
) -> Result<()> {
    let nodes = placed.iter().map(|gpu| (gpu.gpu_id, render_path(gpu.minor))).collect();
    let bos = restored.into_iter().map(|bo| (bo.bucket, bo.dma_buf));
    let contents: Vec<Contents> = Contents::by_gpu(nodes, bos)?;
    let driver = cx.system.driver();
    if let Some(streamer) = streamer(cx)? {
        let cap_bytes = cx.settings.budget.cap().map(|bytes| bytes as u64);
        let gpus = opened(&**driver, contents)?;
        let job = Job { direction: Direction::Restore, kfd_id: id, cap_bytes, gpus };
        return Ok(streamer.hand_over(job)?.wait()?);
    }
    contents::restore(cx.images(), driver, cx.settings.budget, id, sums, contents)
}

fn bucket(bo: &KfdBo) -> CriuBoBucket {
    CriuBoBucket {
        addr: bo.addr,
        size: bo.size,
        offset: bo.offset,
        gpu_id: bo.gpu_id,
        alloc_flags: bo.alloc_flags,
        dmabuf_fd: INVALID_FD,
        ..CriuBoBucket::default()
    }
}
