//! WAIT_CS, WAIT_FENCES and GEM_WAIT_IDLE.

use std::sync::{Arc, Condvar, Mutex, PoisonError};

use nix::errno::Errno;

use super::{
    context::answer,
    submit::{entity, fence_of},
};
use crate::{
    abi::{
        Plain,
        amdgpu::{self, GemWaitIdleIn, WaitCsIn, WaitFencesIn, domain},
    },
    device::sim::{
        caller::Call,
        fence::{Deadline, Fence},
        host::SimHost,
        interrupt::{Interrupt, Wake},
        object::Store,
    },
};

/// The most fences that are waited for in one call.
const MOST_FENCES: u32 = 64 << 10;

/// Status 0 when done and 1 when not yet; a job that failed answers its error.
pub(super) fn wait_cs(host: &SimHost, call: &mut Call<'_>, wait: &mut WaitCsIn) -> nix::Result<()> {
    let fence = {
        let mut state = host.state();
        let context = state.render(call.file)?.contexts.get(&wait.ctx_id).ok_or(Errno::EINVAL)?;
        let entity = entity(context, wait.ip_type, wait.ip_instance, wait.ring)?;
        fence_of(&entity, wait.handle)?
    };
    let ending = match fence {
        Some(fence) => fence.wait_until(Deadline::from_monotonic(wait.timeout), &call.interrupt)?,
        None => Some(Ok(())),
    };
    ending.unwrap_or(Ok(()))?;
    answer(wait, &[u32::from(ending.is_none()), 0]);
    Ok(())
}

/// Status 1 when signalled and 0 when not yet: the other way round.
pub(super) fn wait_fences(
    host: &SimHost,
    call: &mut Call<'_>,
    wait: &mut WaitFencesIn,
) -> nix::Result<()> {
    if wait.fence_count > MOST_FENCES {
        return Err(Errno::ENOMEM);
    }
    let count = usize::try_from(wait.fence_count).map_err(|_| Errno::ENOMEM)?;
    let mut bytes = vec![0; count * size_of::<amdgpu::Fence>()];
    call.memory.read(wait.fences, &mut bytes)?;
    let mut fences = Vec::with_capacity(count);
    {
        let mut state = host.state();
        let contexts = &state.render(call.file)?.contexts;
        for wanted in bytes.chunks_exact(size_of::<amdgpu::Fence>()) {
            let wanted = amdgpu::Fence::from_prefix(wanted);
            let context = contexts.get(&wanted.ctx_id).ok_or(Errno::EINVAL)?;
            let entity = entity(context, wanted.ip_type, wanted.ip_instance, wanted.ring)?;
            fences.push(fence_of(&entity, wanted.seq_no)?);
        }
    }
    let deadline = Deadline::from_monotonic(wait.timeout_ns);
    let first = match wait.wait_all {
        0 => any(&fences, deadline, &call.interrupt)?,
        _ => all(&fences, deadline, &call.interrupt)?,
    };
    answer(wait, &[u32::from(first.is_some()), first.unwrap_or(u32::MAX)]);
    Ok(())
}

/// Waits for all; the first is as good as any to name then.
fn all(
    fences: &[Option<Arc<Fence>>],
    deadline: Deadline,
    interrupt: &Interrupt,
) -> nix::Result<Option<u32>> {
    for fence in fences.iter().flatten() {
        match fence.wait_until(deadline, interrupt)? {
            None => return Ok(None),
            Some(ending) => ending?,
        }
    }
    Ok(Some(0))
}

/// Waits for one, and says which.
fn any(
    fences: &[Option<Arc<Fence>>],
    deadline: Deadline,
    interrupt: &Interrupt,
) -> nix::Result<Option<u32>> {
    let one = Arc::<One>::default();
    let _sleeping = interrupt.wakes(Arc::<One>::clone(&one));
    let ending = |fence: &Option<Arc<Fence>>| fence.as_ref().map_or(Some(Ok(())), |f| f.ending());
    let look = || (0..).zip(fences).find_map(|(index, fence)| Some((index, ending(fence)?)));
    for fence in fences.iter().flatten() {
        let one = Arc::clone(&one);
        fence.then(move || one.wake());
    }
    loop {
        if let Some((index, ending)) = look() {
            return ending.map(|()| Some(index));
        }
        if interrupt.is_raised() {
            return Err(Errno::EINTR);
        }
        let mut woken = one.woken.lock().unwrap_or_else(PoisonError::into_inner);
        while !*woken {
            woken = match deadline.left() {
                None => one.condition.wait(woken).unwrap_or_else(PoisonError::into_inner),
                Some(left) if left.is_zero() => return Ok(None),
                Some(left) => {
                    let waited = one.condition.wait_timeout(woken, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        *woken = false;
    }
}

/// Whether to look at many fences again.
#[derive(Debug, Default)]
struct One {
    woken: Mutex<bool>,
    condition: Condvar,
}

impl Wake for One {
    fn wake(&self) {
        *self.woken.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.condition.notify_all();
    }
}

/// Status 1 while a submission uses the object.
pub(super) fn wait_idle(
    host: &SimHost,
    call: &mut Call<'_>,
    wait: &mut GemWaitIdleIn,
) -> nix::Result<()> {
    let object = {
        let mut state = host.state();
        let handle = state.render(call.file)?.handles.get(wait.handle).ok_or(Errno::ENOENT)?;
        Arc::clone(&handle.object)
    };
    let deadline = Deadline::from_monotonic(wait.timeout);
    let jobs = host.shared.in_flight.using(&object);
    let mut busy = false;
    for job in jobs {
        busy |= job.fence.wait_until(deadline, &call.interrupt)?.is_none();
    }
    let place = match object.store {
        Store::Vram(..) => domain::VRAM,
        Store::Gtt(_) => domain::GTT,
        Store::User { .. } | Store::Registers(_) => domain::CPU,
    };
    answer(wait, &[u32::from(busy), u32::try_from(place).map_err(|_| Errno::EINVAL)?]);
    Ok(())
}
