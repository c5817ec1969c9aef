//! A stand-in for the shaders of a queue: a thread that goes on changing memory.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use nix::errno::Errno;

use super::{
    super::{SimHost, object::Object},
    fill::random,
    gate::Gate,
};

/// Changes words of a BO while a queue runs, until dropped.
///
/// Each round writes its number to the first word of the BO, to some words in between, and to the
/// last one: a copy whose first and last word differ was made while the queue ran.
#[derive(Debug)]
pub struct Scribble {
    gate: Arc<Gate>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Words in a round.
const WORDS: u64 = 64;
/// Between two rounds: the simulated shaders leave the CPU to others.
const PAUSE: Duration = Duration::from_micros(20);

impl SimHost {
    /// Starts changing words of a BO while a queue is active. ESRCH without such a queue, ENOENT
    /// without such a BO.
    pub fn scribble(&self, pid: u32, queue_id: u32, va: u64) -> nix::Result<Scribble> {
        let object = self.object_at(pid, va)?.0;
        let gate = {
            let mut state = self.state();
            let queue = state.kfd.process(pid)?.queues.get(queue_id).ok_or(Errno::ESRCH)?;
            Arc::clone(&queue.gate)
        };
        let stop = Arc::<AtomicBool>::default();
        let thread = {
            let (gate, stop) = (Arc::clone(&gate), Arc::clone(&stop));
            let builder = std::thread::Builder::new().name("sim-shader".into());
            builder.spawn(move || run(&gate, &stop, &object)).map_err(|_| Errno::ENOMEM)?
        };
        Ok(Scribble { gate, stop, thread: Some(thread) })
    }
}

fn run(gate: &Gate, stop: &AtomicBool, object: &Object) {
    for number in 1.. {
        if !gate.pass(stop, || round(object, number)) {
            return;
        }
        std::thread::sleep(PAUSE);
    }
}

fn round(object: &Object, number: u64) {
    let Some(Ok(memory)) = object.piece().map(|piece| piece.memory()) else { return };
    let (word, words) = (number.to_le_bytes(), memory.len() / 8);
    memory.write(0, &word);
    for n in 0..WORDS {
        let at = usize::try_from(random(number, n)).map_or(0, |at| at % words);
        memory.write(at * 8, &word);
    }
    memory.write((words - 1) * 8, &word);
}

impl Drop for Scribble {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.gate.nudge();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
