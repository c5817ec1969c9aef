//! CTX and BO_LIST: what submissions are made on, and with.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use nix::errno::Errno;

use super::RenderFile;
use crate::{
    abi::{
        Plain,
        amdgpu::{BoListEntry, BoListIn, CtxIn, bo_list_op, ctx_op},
    },
    device::sim::{caller::Call, engine::Entity, host::SimHost, object::Object},
};

/// How many rings of DMA a context has.
pub(super) const RINGS: usize = 2;
/// The most objects in a list, as in newer kernels.
const MOST_ENTRIES: u32 = 128 << 10;
/// The priorities that only some may use are above this.
const PRIORITY_NORMAL: i32 = 0;
const PRIORITIES: [i32; 5] = [-1023, -512, PRIORITY_NORMAL, 512, 1023];
/// QUERY_STATE: this context made the GPU fail.
const GUILTY_RESET: u32 = 1;
/// QUERY_STATE2: the GPU was reset since the context was made, and it was this context's fault.
const RESET_AND_GUILTY: u64 = 1 << 0 | 1 << 2;

/// A context.
#[derive(Debug)]
pub(in crate::device::sim) struct Context {
    pub id: u32,
    /// One of its submissions failed.
    pub guilty: AtomicBool,
    pub rings: [Arc<Entity>; RINGS],
}

pub(super) fn ctx(host: &SimHost, call: &mut Call<'_>, ctx: &mut CtxIn) -> nix::Result<()> {
    let mut state = host.state();
    let file = state.render(call.file)?;
    let id = ctx.ctx_id;
    match ctx.op {
        ctx_op::ALLOC_CTX => {
            let known = PRIORITIES.contains(&ctx.priority);
            if known && ctx.priority > PRIORITY_NORMAL && !call.credentials.nice {
                return Err(Errno::EACCES);
            }
            let id = free_number(&file.contexts);
            let context = Context { id, guilty: AtomicBool::new(false), rings: Default::default() };
            file.contexts.insert(id, Arc::new(context));
            answer(ctx, &[id, 0]);
            Ok(())
        }
        ctx_op::FREE_CTX => file.contexts.remove(&id).map(drop).ok_or(Errno::EINVAL),
        ctx_op::QUERY_STATE | ctx_op::QUERY_STATE2 => {
            let context = file.contexts.get(&id).ok_or(Errno::EINVAL)?;
            let guilty = context.guilty.load(Ordering::Acquire);
            let hangs = u32::from(guilty);
            if ctx.op == ctx_op::QUERY_STATE {
                answer(ctx, &[0, 0, hangs, hangs * GUILTY_RESET]);
            } else {
                let flags = if guilty { RESET_AND_GUILTY } else { 0 };
                let low = u32::try_from(flags).unwrap_or(0);
                answer(ctx, &[low, 0, 0, 0]);
            }
            Ok(())
        }
        _ => Err(Errno::EINVAL),
    }
}

pub(super) fn bo_list(host: &SimHost, call: &mut Call<'_>, list: &mut BoListIn) -> nix::Result<()> {
    let handle = list.list_handle;
    match list.operation {
        bo_list_op::CREATE => {
            let entries = entries(call, list)?;
            let mut state = host.state();
            let file = state.render(call.file)?;
            let objects = objects(file, &entries)?;
            let handle = free_number(&file.lists);
            file.lists.insert(handle, objects);
            answer(list, &[handle, 0]);
            Ok(())
        }
        bo_list_op::UPDATE => {
            let entries = entries(call, list)?;
            let mut state = host.state();
            let file = state.render(call.file)?;
            let objects = objects(file, &entries)?;
            let old = file.lists.get_mut(&handle).ok_or(Errno::ENOENT)?;
            *old = objects;
            answer(list, &[handle, 0]);
            Ok(())
        }
        bo_list_op::DESTROY => {
            host.state().render(call.file)?.lists.remove(&handle);
            answer(list, &[0, 0]);
            Ok(())
        }
        _ => Err(Errno::EINVAL),
    }
}

/// The handles of a list, from the caller's memory.
pub(super) fn entries(call: &Call<'_>, list: &BoListIn) -> nix::Result<Vec<u32>> {
    if list.bo_number > MOST_ENTRIES {
        return Err(Errno::EINVAL);
    }
    // Entries may be longer than they are today.
    let len = size_of::<BoListEntry>() as u64;
    let stride = u64::from(list.bo_info_size);
    let mut handles = Vec::new();
    if stride == len {
        let count = usize::try_from(list.bo_number).map_err(|_| Errno::EINVAL)?;
        let mut bytes = vec![0; count * size_of::<BoListEntry>()];
        call.memory.read(list.bo_info_ptr, &mut bytes)?;
        let chunks = bytes.chunks_exact(size_of::<BoListEntry>());
        handles.extend(chunks.map(|bytes| BoListEntry::from_prefix(bytes).bo_handle));
        return Ok(handles);
    }
    for index in 0..u64::from(list.bo_number) {
        let mut bytes = [0; size_of::<BoListEntry>()];
        let part = usize::try_from(stride.min(len)).map_err(|_| Errno::EINVAL)?;
        let offset = index.checked_mul(stride).ok_or(Errno::EFAULT)?;
        let address = list.bo_info_ptr.checked_add(offset).ok_or(Errno::EFAULT)?;
        call.memory.read(address, &mut bytes[..part])?;
        handles.push(BoListEntry::from_prefix(&bytes).bo_handle);
    }
    Ok(handles)
}

/// What the handles of a list refer to; ENOENT for one that is none.
pub(super) fn objects(file: &RenderFile, handles: &[u32]) -> nix::Result<Vec<Arc<Object>>> {
    let object = |&handle| {
        file.handles.get(handle).map(|handle| Arc::clone(&handle.object)).ok_or(Errno::ENOENT)
    };
    handles.iter().map(object).collect()
}

fn free_number<T>(taken: &BTreeMap<u32, T>) -> u32 {
    (1..).zip(taken.keys()).find(|(number, taken)| number != *taken).map_or_else(
        || u32::try_from(taken.len()).map_or(u32::MAX, |len| len.saturating_add(1)),
        |(number, _)| number,
    )
}

/// Writes the output over the beginning of the input.
pub(super) fn answer<T: Plain>(argument: &mut T, words: &[u32]) {
    let bytes = argument.as_bytes_mut();
    for (field, word) in bytes.chunks_exact_mut(4).zip(words) {
        field.copy_from_slice(&word.to_le_bytes());
    }
}
