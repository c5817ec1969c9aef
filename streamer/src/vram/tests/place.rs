//! A GPU to restore to, without a process around it.

use vramstream::{
    abi::amdgpu::domain,
    device::{
        DeviceMemory, RenderNode,
        sim::{Credentials, SimHost},
    },
};

use super::*;

/// Bytes of its BOs.
const BYTES: u64 = 12 << 10;

/// A GPU with two BOs, and what comes of restoring an image to it.
pub(super) struct Place {
    pub host: SimHost,
    render: RenderNode,
    bos: Vec<(u32, u64, DeviceMemory)>,
    pub gpu_id: u32,
}

impl Place {
    pub(super) fn new() -> Self {
        let host = SimHost::new(machine(1)).unwrap();
        let node = host.machine().gpus[0].render_node();
        let render = RenderNode::open(&host.process(Credentials::USER), &node).unwrap();
        let bos = [4096_u32, 8192].map(|size| {
            let handle = render.create(size.into(), domain::VRAM).unwrap();
            let memory = render.map_memory(handle, size as usize).unwrap();
            (handle, u64::from(size), memory)
        });
        let gpu_id = host.gpu_ids()[0];
        Place { host, render, bos: bos.into(), gpu_id }
    }

    /// What is to be restored: different in each word.
    pub(super) fn contents(&self) -> Vec<u8> {
        (0..BYTES / 8)
            .flat_map(|word| (word.wrapping_mul(0x9e37_79b9_7f4a) | 1).to_le_bytes())
            .collect()
    }

    pub(super) fn driver(&self) -> Arc<dyn Driver> {
        Arc::new(self.host.process(Credentials::ROOT))
    }

    pub(super) fn places(&self) -> Vec<Contents> {
        let bos = self.bos.iter().map(|&(handle, size, _)| {
            let dma_buf = self.render.export(handle).unwrap();
            gpu::Bo { size, dma_buf }
        });
        let node = self.render.node().path().to_owned().into();
        vec![Contents { gpu_id: self.gpu_id, node, bos: bos.collect() }]
    }

    /// As another process: what is in the BOs then.
    pub(super) fn restore(&self, mut image: Image, cap: &str) -> Result<Vec<u8>> {
        for (_, size, memory) in &self.bos {
            memory.write(0, &vec![0xee; usize::try_from(*size).unwrap()]);
        }
        let options = options(ring_of(cap, 1));
        let driver = self.driver();
        let (places, silent) = (self.places(), Progress::silent());
        let restored = restore(&driver, places, &mut image, &options, || Ok(()), &silent);
        assert_eq!((self.host.complaints(), self.host.open_dma_bufs()), (vec![], vec![]));
        restored?;
        assert_all_back(&options.ring);
        let mut bytes = Vec::new();
        for (_, size, memory) in &self.bos {
            let start = bytes.len();
            bytes.resize(start + usize::try_from(*size).unwrap(), 0);
            memory.read(0, &mut bytes[start..]);
        }
        Ok(bytes)
    }

    pub(super) fn refused(&self, image: Image) -> String {
        self.restore(image, "16M").unwrap_err().report().to_string()
    }
}
