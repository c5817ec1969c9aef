//! An application on a simulated machine: what a program that uses ROCm leaves in KFD.
//!
//! It makes the calls that the ROCm runtime makes, in its order: `/dev/kfd`, the render nodes, an
//! address space per GPU, memory, a page of events, and a compute queue on each GPU with the
//! buffers that the kernel wants to see. No shader runs; its memory is filled from outside, and
//! [`scribble`](super::SimHost::scribble) plays the shaders.
//!
//! Its GPU addresses go down from [`ADDRESSES_END`]. The CPU has nothing there: memory is mapped
//! for the CPU only where a plan asks for it.
//!
//! A [`Program`] makes the calls, through any driver; an [`Application`] is one on a machine of
//! this process.

mod program;

use std::ops::Deref;

use super::{Fill, SimProcess};
use crate::device::DeviceError;

pub use program::{ADDRESSES_END, AppBo, AppQueue, BoPlan, Program, ProgramPlan};

/// A running application.
#[derive(Debug)]
pub struct Application {
    program: Program,
    process: SimProcess,
}

impl Application {
    /// Starts an application in `process`: on every GPU of the machine, with this memory.
    pub fn start(process: &SimProcess, plan: &[BoPlan]) -> Result<Self, DeviceError> {
        let plan = ProgramPlan { bos: plan.to_vec(), ..ProgramPlan::default() };
        let program = Program::start(process, process.host().machine(), &plan)?;
        Ok(Application { program, process: process.clone() })
    }

    /// Its process.
    pub fn process(&self) -> &SimProcess {
        &self.process
    }

    /// Fills all memory of the plan, each BO differently where `fill` makes something of its
    /// number.
    pub fn fill(&self, fill: impl Fn(u64) -> Fill) -> nix::Result<()> {
        let host = self.process.host();
        (0..)
            .zip(self.bos())
            .try_for_each(|(n, bo)| host.fill_bo(self.process.pid(), bo.va, fill(n)))
    }
}

impl Deref for Application {
    type Target = Program;

    fn deref(&self) -> &Program {
        &self.program
    }
}
