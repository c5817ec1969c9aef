//! A machine to simulate, as words of a command line: the daemon, the applications and the tests
//! mean the same one.

use std::ffi::OsString;

use clap::{Args, ValueEnum};
use vramstream::{
    device::sim::{KernelRelease, Machine, Profile, Speed},
    ring::ByteSize,
};

/// A machine with GPUs of one model.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct MachineSpec {
    /// How many GPUs
    #[arg(long, default_value_t = 1)]
    pub gpus: u32,
    /// VRAM of each GPU
    #[arg(long, default_value = "64M", value_parser = bytes)]
    pub vram: u64,
    /// Which model
    #[arg(long, default_value = "gfx90a", value_parser = profile)]
    pub profile: String,
    /// Whose kernel
    #[arg(long, value_enum, default_value_t = Kernel::V6_12)]
    pub kernel: Kernel,
    /// Render node of the first GPU
    #[arg(long, default_value_t = 128)]
    pub first_minor: u32,
    /// PCI bus of the first GPU: with another one, GPUs have other ids
    #[arg(long, default_value_t = 3)]
    pub first_bus: u32,
    /// Order of the GPUs in the topology, by the place that they would have
    #[arg(long, value_delimiter = ',')]
    pub order: Vec<usize>,
    /// GPUs of each XGMI hive; 0: all in one
    #[arg(long, default_value_t = 0)]
    pub hives_of: u32,
    /// CPU nodes
    #[arg(long, default_value_t = 1)]
    pub cpu_nodes: u32,
    /// Bytes per second of each GPU's link; 0: as fast as can be
    #[arg(long, default_value = "0", value_parser = bytes)]
    pub bandwidth: u64,
}

/// Whose rules a machine follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Kernel {
    /// Linux 6.1
    #[value(name = "6.1")]
    V6_1,
    /// Linux 6.12
    #[value(name = "6.12")]
    V6_12,
    /// Linux 7.2
    #[value(name = "7.2")]
    V7_2,
}

impl Default for MachineSpec {
    fn default() -> Self {
        MachineSpec {
            gpus: 1,
            vram: 64 << 20,
            profile: "gfx90a".into(),
            kernel: Kernel::V6_12,
            first_minor: 128,
            first_bus: 3,
            order: Vec::new(),
            hives_of: 0,
            cpu_nodes: 1,
            bandwidth: 0,
        }
    }
}

impl MachineSpec {
    /// So many GPUs.
    pub fn gpus(gpus: u32) -> Self {
        MachineSpec { gpus, ..Self::default() }
    }

    /// The same with the GPUs in other slots, on other render nodes, in the reverse order.
    #[must_use]
    pub fn elsewhere(self) -> Self {
        let order = (0..self.gpus as usize).rev().collect();
        MachineSpec { first_minor: self.first_minor + 9, first_bus: 0x41, order, ..self }
    }

    /// The machine.
    pub fn machine(&self) -> Machine {
        let profile = Profile::named(&self.profile).unwrap_or_else(Profile::gfx90a);
        let mut machine = Machine::new(&profile, self.gpus)
            .kernel(match self.kernel {
                Kernel::V6_1 => KernelRelease::V6_1,
                Kernel::V6_12 => KernelRelease::V6_12,
                Kernel::V7_2 => KernelRelease::V7_2,
            })
            .vram_bytes(self.vram)
            .moved(self.first_minor, self.first_bus)
            .cpu_nodes(self.cpu_nodes);
        if self.hives_of > 0 {
            machine = machine.hives_of(self.hives_of);
        }
        if self.bandwidth > 0 {
            let bytes_per_second = Some(self.bandwidth);
            machine = machine.speed(Speed { bytes_per_second, ..Speed::default() });
        }
        if !self.order.is_empty() {
            let gpus = self.order.iter().filter_map(|&place| machine.gpus.get(place).cloned());
            machine.gpus = gpus.collect();
        }
        machine
    }

    /// As words of a command line.
    pub fn args(&self) -> Vec<OsString> {
        let order: Vec<_> = self.order.iter().map(usize::to_string).collect();
        let kernel = self.kernel.to_possible_value();
        let mut words = vec![
            format!("--gpus={}", self.gpus),
            format!("--vram={}", self.vram),
            format!("--profile={}", self.profile),
            format!("--kernel={}", kernel.as_ref().map_or("6.12", |value| value.get_name())),
            format!("--first-minor={}", self.first_minor),
            format!("--first-bus={}", self.first_bus),
            format!("--hives-of={}", self.hives_of),
            format!("--cpu-nodes={}", self.cpu_nodes),
            format!("--bandwidth={}", self.bandwidth),
        ];
        if !order.is_empty() {
            words.push(format!("--order={}", order.join(",")));
        }
        words.into_iter().map(Into::into).collect()
    }
}

fn bytes(word: &str) -> Result<u64, String> {
    let ByteSize(bytes) = word.parse().map_err(|error| format!("{error}"))?;
    Ok(bytes)
}

fn profile(name: &str) -> Result<String, String> {
    Profile::named(name).map(|_| name.to_owned()).ok_or_else(|| "there is no such model".into())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        spec: MachineSpec,
    }

    #[test]
    fn words_mean_the_same_machine() {
        let kernel = Kernel::V7_2;
        let spec = MachineSpec { hives_of: 2, kernel, ..MachineSpec::gpus(4).elsewhere() };
        let words = [OsString::from("program")].into_iter().chain(spec.args());
        assert_eq!(Line::parse_from(words).spec, spec);
        assert_ne!(spec.machine().gpu_ids(), MachineSpec::gpus(4).machine().gpu_ids());
    }
}
