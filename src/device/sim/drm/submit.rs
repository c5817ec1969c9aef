//! CS: from the chunks of a submission to a job for the engines.

use std::{
    sync::{
        Arc, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use nix::errno::Errno;

use super::{
    RenderFile,
    context::{self, Context, RINGS},
    handles::User,
};
use crate::{
    abi::{
        Plain,
        amdgpu::{BoListIn, CsChunk, CsChunkDep, CsChunkFence, CsChunkIb, CsIn, chunk_id, hw_ip},
    },
    device::sim::{
        caller::Call,
        engine::{Entity, Job},
        fence::{Deadline, Fence},
        host::SimHost,
        interrupt::Interrupt,
        object::{Object, Store},
    },
};

/// The most chunks, and the most words in one, that are read from a caller.
const MOST_CHUNKS: u32 = 1024;
const MOST_WORDS: u32 = 1 << 20;
/// The most buffers of one submission.
const MOST_BUFFERS: usize = 49;
/// The most words in a buffer.
const MOST_BUFFER_WORDS: u32 = 0xf_ffff;
/// How many submissions of an entity can be under way: one more waits for the oldest.
pub(super) const MOST_JOBS: u64 = 32;
/// The only size of an object that fences are written to.
const FENCE_OBJECT: u64 = 4096;

/// The chunks of a submission, as far as they are understood without the file.
#[derive(Debug, Default)]
struct Chunks {
    buffers: Vec<CsChunkIb>,
    handles: Option<Vec<u32>>,
    fence: Option<CsChunkFence>,
    dependencies: Vec<CsChunkDep>,
}

pub(super) fn cs(host: &SimHost, call: &mut Call<'_>, cs: &mut CsIn) -> nix::Result<()> {
    let context = {
        let mut state = host.state();
        let contexts = &state.render(call.file)?.contexts;
        if cs.num_chunks == 0 {
            return Err(Errno::EINVAL);
        }
        Arc::clone(contexts.get(&cs.ctx_id).ok_or(Errno::EINVAL)?)
    };
    if context.guilty.load(Ordering::Acquire) {
        return Err(Errno::ECANCELED);
    }
    let chunks = read_chunks(call, cs)?;
    let entity = ring_of(&context, &chunks)?;
    check_buffers(host, call, &chunks)?;

    let mut state = host.state();
    let file = state.render(call.file)?;
    let objects = listed(file, cs, &chunks)?;
    let user_fence = user_fence(file, &chunks)?;
    let dependencies = dependencies(file, &chunks)?;
    let (gpu, vm) = (file.gpu, Arc::clone(&file.vm));
    drop(state);
    check_user_memory(host, call, &objects)?;

    let mut objects = objects;
    objects.sort_unstable_by_key(Arc::as_ptr);
    objects.dedup_by(|one, other| Arc::ptr_eq(one, other));
    let fence = Arc::new(Fence::default());
    let ring = chunks.buffers.first().map_or(0, |buffer| buffer.ring);
    let number = enter(&entity, &fence, &call.interrupt, |number| {
        host.shared.engines[gpu].submit(Job {
            file: call.file,
            pid: call.pid,
            context,
            entity: Arc::clone(&entity),
            ring,
            number,
            vm,
            buffers: chunks.buffers.iter().map(|ib| (ib.va_start, ib.ib_bytes.into())).collect(),
            objects,
            dependencies,
            claims: Vec::new(),
            user_fence,
            fence: Arc::clone(&fence),
            submitted: Instant::now(),
            cancelled: AtomicBool::new(false),
        })
    })?;
    cs.as_bytes_mut()[..8].copy_from_slice(&number.to_le_bytes());
    Ok(())
}

/// Gives a submission its number, once there is room for it, and hands it over.
fn enter(
    entity: &Entity,
    fence: &Arc<Fence>,
    interrupt: &Interrupt,
    submit: impl FnOnce(u64) -> nix::Result<()>,
) -> nix::Result<u64> {
    loop {
        let mut timeline = entity.timeline.lock().unwrap_or_else(PoisonError::into_inner);
        let oldest = timeline.fences.front().cloned();
        if let Some(oldest) = oldest.filter(|_| timeline.fences.len() as u64 >= MOST_JOBS) {
            if oldest.ending().is_none() {
                drop(timeline);
                oldest.wait_until(Deadline::Never, interrupt)?;
                continue;
            }
            timeline.fences.pop_front();
        }
        let number = timeline.last + 1;
        submit(number)?;
        timeline.last = number;
        timeline.fences.push_back(Arc::clone(fence));
        return Ok(number);
    }
}

/// Reads the chunks: EINVAL for what is none, too short, or too much.
fn read_chunks(call: &Call<'_>, cs: &CsIn) -> nix::Result<Chunks> {
    if cs.num_chunks > MOST_CHUNKS {
        return Err(Errno::ENOMEM);
    }
    let mut chunks = Chunks::default();
    for index in 0..u64::from(cs.num_chunks) {
        let at = cs.chunks.checked_add(8 * index).ok_or(Errno::EFAULT)?;
        let chunk: CsChunk = read(call, read::<u64>(call, at)?)?;
        if chunk.length_dw > MOST_WORDS {
            return Err(Errno::ENOMEM);
        }
        let words = usize::try_from(chunk.length_dw).map_err(|_| Errno::ENOMEM)?;
        let mut data = vec![0; 4 * words];
        call.memory.read(chunk.chunk_data, &mut data)?;
        match chunk.chunk_id {
            chunk_id::IB => chunks.buffers.push(parse(&data)?),
            chunk_id::FENCE => chunks.fence = Some(parse(&data)?),
            chunk_id::BO_HANDLES => {
                let list: BoListIn = parse(&data)?;
                if chunks.handles.is_some() {
                    return Err(Errno::EINVAL);
                }
                chunks.handles = Some(context::entries(call, &list)?);
            }
            chunk_id::DEPENDENCIES | chunk_id::SCHEDULED_DEPENDENCIES => {
                let each = data.chunks_exact(size_of::<CsChunkDep>());
                chunks.dependencies.extend(each.map(CsChunkDep::from_prefix));
            }
            chunk_id::SYNCOBJ_IN
            | chunk_id::SYNCOBJ_OUT
            | chunk_id::SYNCOBJ_TIMELINE_WAIT
            | chunk_id::SYNCOBJ_TIMELINE_SIGNAL => {
                // There are no sync objects: whatever is named is unknown.
                if !data.is_empty() {
                    return Err(Errno::ENOENT);
                }
            }
            _ => return Err(Errno::EINVAL),
        }
    }
    Ok(chunks)
}

fn read<T: Plain>(call: &Call<'_>, address: u64) -> nix::Result<T> {
    let mut value = T::zeroed();
    call.memory.read(address, value.as_bytes_mut())?;
    Ok(value)
}

fn parse<T: Plain>(data: &[u8]) -> nix::Result<T> {
    if data.len() < size_of::<T>() { Err(Errno::EINVAL) } else { Ok(T::from_prefix(data)) }
}

/// The ring that all buffers are for; there must be one.
fn ring_of(context: &Context, chunks: &Chunks) -> nix::Result<Arc<Entity>> {
    let first = chunks.buffers.first().ok_or(Errno::EINVAL)?;
    let ring = entity(context, first.ip_type, first.ip_instance, first.ring)?;
    let same = |ib: &CsChunkIb| {
        (ib.ip_type, ib.ip_instance, ib.ring) == (first.ip_type, first.ip_instance, first.ring)
    };
    let good = chunks.buffers.len() <= MOST_BUFFERS && chunks.buffers.iter().all(same);
    if good { Ok(ring) } else { Err(Errno::EINVAL) }
}

/// A ring of a context; EINVAL where it has no such.
pub(super) fn entity(
    context: &Context,
    ip_type: u32,
    ip_instance: u32,
    ring: u32,
) -> nix::Result<Arc<Entity>> {
    if ip_type != hw_ip::DMA || ip_instance != 0 {
        return Err(Errno::EINVAL);
    }
    let ring = usize::try_from(ring).ok().filter(|&ring| ring < RINGS).ok_or(Errno::EINVAL)?;
    Ok(Arc::clone(&context.rings[ring]))
}

fn check_buffers(host: &SimHost, call: &Call<'_>, chunks: &Chunks) -> nix::Result<()> {
    for ib in &chunks.buffers {
        if ib.ib_bytes / 4 > MOST_BUFFER_WORDS {
            return Err(Errno::EINVAL);
        }
        if !ib.va_start.is_multiple_of(32) || ib.ib_bytes == 0 || !ib.ib_bytes.is_multiple_of(32) {
            let (va, len) = (ib.va_start, ib.ib_bytes);
            let what =
                format!("a buffer of {len} bytes at {va:#x}: engines want multiples of 32 of both");
            host.shared.log.complain(call.pid, what);
        }
    }
    Ok(())
}

/// The objects that the submission says it uses: from a list that was made before, or its own.
fn listed(file: &RenderFile, cs: &CsIn, chunks: &Chunks) -> nix::Result<Vec<Arc<Object>>> {
    match (&chunks.handles, cs.bo_list_handle) {
        (Some(_), list) if list != 0 => Err(Errno::EINVAL),
        (Some(handles), _) => context::objects(file, handles),
        (None, 0) => Ok(Vec::new()),
        (None, list) => file.lists.get(&list).cloned().ok_or(Errno::ENOENT),
    }
}

fn user_fence(file: &RenderFile, chunks: &Chunks) -> nix::Result<Option<(Arc<Object>, u64)>> {
    let Some(fence) = &chunks.fence else { return Ok(None) };
    let handle = file.handles.get(fence.handle).ok_or(Errno::EINVAL)?;
    let offset = u64::from(fence.offset);
    let object = Arc::clone(&handle.object);
    if object.size != FENCE_OBJECT || offset > FENCE_OBJECT - 8 || object.is_user() {
        return Err(Errno::EINVAL);
    }
    Ok(Some((object, offset)))
}

fn dependencies(file: &RenderFile, chunks: &Chunks) -> nix::Result<Vec<Arc<Fence>>> {
    let mut fences = Vec::new();
    for dep in &chunks.dependencies {
        let context = file.contexts.get(&dep.ctx_id).ok_or(Errno::EINVAL)?;
        let entity = entity(context, dep.ip_type, dep.ip_instance, dep.ring)?;
        fences.extend(fence_of(&entity, dep.handle)?);
    }
    Ok(fences)
}

/// The fence of a submission; `None` for one that is long done, EINVAL for one that never was.
pub(super) fn fence_of(entity: &Entity, number: u64) -> nix::Result<Option<Arc<Fence>>> {
    let timeline = entity.timeline.lock().unwrap_or_else(PoisonError::into_inner);
    let number = if number == u64::MAX { timeline.last } else { number };
    if number > timeline.last {
        return Err(Errno::EINVAL);
    }
    let back = usize::try_from(timeline.last - number).unwrap_or(usize::MAX);
    let index = timeline.fences.len().checked_sub(back.saturating_add(1));
    Ok(index.and_then(|index| timeline.fences.get(index)).cloned())
}

/// Memory of processes: EPERM for another's; what was only promised must be there now.
fn check_user_memory(host: &SimHost, call: &Call<'_>, objects: &[Arc<Object>]) -> nix::Result<()> {
    for object in objects {
        let Store::User { address, pid, .. } = object.store else { continue };
        if pid != call.pid {
            return Err(Errno::EPERM);
        }
        if let Some(anonymous) = promised(host, call, object, None)? {
            call.memory.user_memory(address, object.size, anonymous)?;
            promised(host, call, object, Some(User::Checked))?;
        }
    }
    Ok(())
}

/// Whether nobody has looked at the memory of an object yet, and of what kind it is to be; and what
/// is known of it from now on.
fn promised(
    host: &SimHost,
    call: &Call<'_>,
    object: &Arc<Object>,
    now: Option<User>,
) -> nix::Result<Option<bool>> {
    let mut state = host.state();
    let handles = &mut state.render(call.file)?.handles;
    let Some(handle) = handles.of(object).and_then(|number| handles.get_mut(number)) else {
        return Ok(None);
    };
    let User::Promised { anonymous } = handle.user else { return Ok(None) };
    if let Some(now) = now {
        handle.user = now;
    }
    Ok(Some(anonymous))
}
