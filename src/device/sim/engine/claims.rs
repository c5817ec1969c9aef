//! Which memory of processes a submission will read and write.

use std::sync::PoisonError;

use super::{
    Job,
    execute::read,
    packets::{self, Dialect, Packet},
};
use crate::device::sim::{
    flight::{Claim, joined},
    object::Store,
    vm::Vm,
};

/// Reads the packets ahead of their execution. What makes no sense ends it without a word: the
/// engine will say so.
pub(super) fn of(job: &Job, dialect: Dialect) -> Vec<Claim> {
    let mut claims = Vec::new();
    let mut buffer = Vec::new();
    for &(va, len) in &job.buffers {
        if read(job, va, len, &mut buffer).is_err() {
            break;
        }
        let vm = job.vm.lock().unwrap_or_else(PoisonError::into_inner);
        let (words, _) = buffer.as_chunks();
        let mut at = 0;
        while at < words.len() {
            let Ok((packet, after)) = packets::next(words, at, dialect) else { break };
            at = after;
            match packet {
                Packet::Idle
                | Packet::Trap { .. }
                | Packet::Poll { .. }
                | Packet::Add { .. }
                | Packet::Timestamp { .. } => {}
                Packet::Copy { from, to, len } => {
                    claim(&vm, from, len, false, &mut claims);
                    claim(&vm, to, len, true, &mut claims);
                }
                Packet::Fill { to, len, .. } => claim(&vm, to, len, true, &mut claims),
                Packet::Write { to, words } => {
                    claim(&vm, to, size_of_val(words) as u64, true, &mut claims);
                }
            }
        }
    }
    joined(claims)
}

fn claim(vm: &Vm, va: u64, len: u64, written: bool, claims: &mut Vec<Claim>) {
    let mut done = 0;
    while done < len {
        let Some((mapped, skip)) = vm.lookup(va.wrapping_add(done)) else { return };
        let piece = (len - done).min(mapped.len - skip);
        if let Store::User { address, pid, .. } = mapped.object.store {
            let start = address + mapped.offset + skip;
            let next = Claim { pid, start, end: start + piece, written };
            // Small objects that are gathered into one chunk are one range of it.
            match claims
                .iter_mut()
                .rev()
                .take(2)
                .find(|last| (last.pid, last.written, last.end) == (pid, written, start))
            {
                Some(last) => last.end = next.end,
                None => claims.push(next),
            }
        }
        done += piece;
    }
}
