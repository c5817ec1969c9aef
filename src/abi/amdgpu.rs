//! `/dev/dri/renderD*` of amdgpu: Linux uapi `amdgpu_drm.h`.

#![allow(missing_docs)] // the requests have the headers' names

use super::{Request, layout};

/// Where memory is, in [`GemCreateIn::domains`].
pub mod domain {
    pub const CPU: u64 = 0x1;
    pub const GTT: u64 = 0x2;
    pub const VRAM: u64 = 0x4;
    pub const GDS: u64 = 0x8;
    pub const GWS: u64 = 0x10;
    pub const OA: u64 = 0x20;
    pub const DOORBELL: u64 = 0x40;
}

/// Flags of [`GemCreateIn::domain_flags`].
pub mod create {
    pub const CPU_ACCESS_REQUIRED: u64 = 1 << 0;
    pub const NO_CPU_ACCESS: u64 = 1 << 1;
    pub const CPU_GTT_USWC: u64 = 1 << 2;
    pub const VRAM_CLEARED: u64 = 1 << 3;
    pub const VRAM_CONTIGUOUS: u64 = 1 << 5;
    pub const VM_ALWAYS_VALID: u64 = 1 << 6;
    pub const EXPLICIT_SYNC: u64 = 1 << 7;
    pub const VRAM_WIPE_ON_RELEASE: u64 = 1 << 9;
    pub const ENCRYPTED: u64 = 1 << 10;
    pub const PREEMPTIBLE: u64 = 1 << 11;
    pub const DISCARDABLE: u64 = 1 << 12;
    pub const COHERENT: u64 = 1 << 13;
    pub const UNCACHED: u64 = 1 << 14;
    pub const EXT_COHERENT: u64 = 1 << 15;
}

/// Flags of [`GemUserptr::flags`].
pub mod userptr {
    pub const READONLY: u32 = 1;
    pub const ANONONLY: u32 = 2;
    pub const VALIDATE: u32 = 4;
    pub const REGISTER: u32 = 8;
}

/// Values of [`GemVa::operation`].
pub mod va_op {
    pub const MAP: u32 = 1;
    pub const UNMAP: u32 = 2;
    pub const CLEAR: u32 = 3;
    pub const REPLACE: u32 = 4;
}

/// Flags of [`GemVa::flags`].
pub mod va_flag {
    pub const DELAY_UPDATE: u32 = 1 << 0;
    pub const READABLE: u32 = 1 << 1;
    pub const WRITEABLE: u32 = 1 << 2;
    pub const EXECUTABLE: u32 = 1 << 3;
    pub const PRT: u32 = 1 << 4;
    pub const MTYPE_MASK: u32 = 0x1e0;
    pub const NOALLOC: u32 = 0x200;
}

/// Values of [`GemOp::op`].
pub mod gem_op {
    pub const GET_GEM_CREATE_INFO: u32 = 0;
    pub const SET_PLACEMENT: u32 = 1;
    pub const GET_MAPPING_INFO: u32 = 2;
}

/// Flags of [`GemListHandlesEntry::flags`].
pub mod list_flag {
    pub const IS_IMPORT: u32 = 1 << 0;
}

/// Values of [`CtxIn::op`].
pub mod ctx_op {
    pub const ALLOC_CTX: u32 = 1;
    pub const FREE_CTX: u32 = 2;
    pub const QUERY_STATE: u32 = 3;
    pub const QUERY_STATE2: u32 = 4;
}

/// Values of [`BoListIn::operation`].
pub mod bo_list_op {
    pub const CREATE: u32 = 0;
    pub const DESTROY: u32 = 1;
    pub const UPDATE: u32 = 2;
}

/// Values of [`CsChunk::chunk_id`].
pub mod chunk_id {
    pub const IB: u32 = 1;
    pub const FENCE: u32 = 2;
    pub const DEPENDENCIES: u32 = 3;
    pub const SYNCOBJ_IN: u32 = 4;
    pub const SYNCOBJ_OUT: u32 = 5;
    pub const BO_HANDLES: u32 = 6;
    pub const SCHEDULED_DEPENDENCIES: u32 = 7;
    pub const SYNCOBJ_TIMELINE_WAIT: u32 = 8;
    pub const SYNCOBJ_TIMELINE_SIGNAL: u32 = 9;
    pub const CP_GFX_SHADOW: u32 = 10;
}

/// The hardware blocks that take commands.
pub mod hw_ip {
    pub const GFX: u32 = 0;
    pub const COMPUTE: u32 = 1;
    pub const DMA: u32 = 2;
    /// One more than the last.
    pub const NUM: u32 = 10;
}

/// Values of [`Info::query`].
pub mod info {
    pub const ACCEL_WORKING: u32 = 0x00;
    pub const HW_IP_INFO: u32 = 0x02;
    pub const HW_IP_COUNT: u32 = 0x03;
    pub const TIMESTAMP: u32 = 0x05;
    pub const FW_VERSION: u32 = 0x0e;
    pub const NUM_BYTES_MOVED: u32 = 0x0f;
    pub const VRAM_USAGE: u32 = 0x10;
    pub const GTT_USAGE: u32 = 0x11;
    pub const GDS_CONFIG: u32 = 0x13;
    pub const VRAM_GTT: u32 = 0x14;
    pub const READ_MMR_REG: u32 = 0x15;
    pub const DEV_INFO: u32 = 0x16;
    pub const VIS_VRAM_USAGE: u32 = 0x17;
    pub const NUM_EVICTIONS: u32 = 0x18;
    pub const MEMORY: u32 = 0x19;
}

/// The first family whose SDMA packets count bytes less one: GFX9.
pub const FAMILY_AI: u32 = 141;

/// A handle of [`WaitCsIn`] that means the last submission.
pub const LAST_SUBMISSION: u64 = u64::MAX;

pub const GEM_CREATE: Request<GemCreateIn> = Request::new("GEM_CREATE", 0xc020_6440);
pub const GEM_MMAP: Request<GemMmapIn> = Request::new("GEM_MMAP", 0xc008_6441);
pub const CTX: Request<CtxIn> = Request::new("CTX", 0xc010_6442);
pub const BO_LIST: Request<BoListIn> = Request::new("BO_LIST", 0xc018_6443);
pub const CS: Request<CsIn> = Request::new("CS", 0xc018_6444);
pub const INFO: Request<Info> = Request::new("INFO", 0x4020_6445);
pub const GEM_WAIT_IDLE: Request<GemWaitIdleIn> = Request::new("GEM_WAIT_IDLE", 0xc010_6447);
/// As of Linux 6.13; older kernels have [`GEM_VA_OLD`], and each takes the other's.
pub const GEM_VA: Request<GemVa> = Request::new("GEM_VA", 0x4040_6448);
pub const WAIT_CS: Request<WaitCsIn> = Request::new("WAIT_CS", 0xc020_6449);
/// As of Linux 6.19; older kernels have [`GEM_OP_OLD`], and each takes the other's.
pub const GEM_OP: Request<GemOp> = Request::new("GEM_OP", 0xc018_6450);
pub const GEM_USERPTR: Request<GemUserptr> = Request::new("GEM_USERPTR", 0xc018_6451);
pub const WAIT_FENCES: Request<WaitFencesIn> = Request::new("WAIT_FENCES", 0xc018_6452);
pub const GEM_LIST_HANDLES: Request<GemListHandles> = Request::new("GEM_LIST_HANDLES", 0xc010_6459);

/// The number of `GEM_VA` whose structure ends before the timeline (40 bytes).
pub const GEM_VA_OLD: u32 = 0x4028_6448;
/// The number of `GEM_OP` whose structure ends before the number of entries (16 bytes).
pub const GEM_OP_OLD: u32 = 0xc010_6450;

layout! {
    /// `drm_amdgpu_bo_list_entry`.
    pub struct BoListEntry: 8 {
        0 bo_handle: u32,
        4 bo_priority: u32,
    }

    /// `drm_amdgpu_bo_list_in`.
    pub struct BoListIn: 24 {
        0 operation: u32,
        4 list_handle: u32,
        8 bo_number: u32,
        12 bo_info_size: u32,
        16 bo_info_ptr: u64,
    }

    /// `drm_amdgpu_cs_chunk`.
    pub struct CsChunk: 16 {
        0 chunk_id: u32,
        4 length_dw: u32,
        8 chunk_data: u64,
    }

    /// `drm_amdgpu_cs_chunk_dep`.
    pub struct CsChunkDep: 24 {
        0 ip_type: u32,
        4 ip_instance: u32,
        8 ring: u32,
        12 ctx_id: u32,
        16 handle: u64,
    }

    /// `drm_amdgpu_cs_chunk_fence`.
    pub struct CsChunkFence: 8 {
        0 handle: u32,
        4 offset: u32,
    }

    /// `drm_amdgpu_cs_chunk_ib`.
    pub struct CsChunkIb: 32 {
        0 pad: u32,
        4 flags: u32,
        8 va_start: u64,
        16 ib_bytes: u32,
        20 ip_type: u32,
        24 ip_instance: u32,
        28 ring: u32,
    }

    /// `drm_amdgpu_cs_in`.
    pub struct CsIn: 24 {
        0 ctx_id: u32,
        4 bo_list_handle: u32,
        8 num_chunks: u32,
        12 flags: u32,
        16 chunks: u64,
    }

    /// `drm_amdgpu_ctx_in`.
    pub struct CtxIn: 16 {
        0 op: u32,
        4 flags: u32,
        8 ctx_id: u32,
        12 priority: i32,
    }

    /// `drm_amdgpu_fence`.
    pub struct Fence: 24 {
        0 ctx_id: u32,
        4 ip_type: u32,
        8 ip_instance: u32,
        12 ring: u32,
        16 seq_no: u64,
    }

    /// `drm_amdgpu_gem_create_in`.
    pub struct GemCreateIn: 32 {
        0 bo_size: u64,
        8 alignment: u64,
        16 domains: u64,
        24 domain_flags: u64,
    }

    /// `drm_amdgpu_gem_list_handles`.
    pub struct GemListHandles: 16 {
        0 entries: u64,
        8 num_entries: u32,
        12 pad: u32,
    }

    /// `drm_amdgpu_gem_list_handles_entry`.
    pub struct GemListHandlesEntry: 40 {
        0 gem_handle: u32,
        4 flags: u32,
        8 size: u64,
        16 preferred_domains: u64,
        24 alloc_flags: u64,
        32 alignment: u64,
    }

    /// `drm_amdgpu_gem_mmap_in`.
    pub struct GemMmapIn: 8 {
        0 handle: u32,
        4 pad: u32,
    }

    /// `drm_amdgpu_gem_op`.
    pub struct GemOp: 24 {
        0 handle: u32,
        4 op: u32,
        8 value: u64,
        16 num_entries: u32,
        20 pad: u32,
    }

    /// `drm_amdgpu_gem_userptr`.
    pub struct GemUserptr: 24 {
        0 addr: u64,
        8 size: u64,
        16 flags: u32,
        20 handle: u32,
    }

    /// `drm_amdgpu_gem_va`.
    pub struct GemVa: 64 {
        0 handle: u32,
        4 pad: u32,
        8 operation: u32,
        12 flags: u32,
        16 va_address: u64,
        24 offset_in_bo: u64,
        32 map_size: u64,
        40 vm_timeline_point: u64,
        48 vm_timeline_syncobj_out: u32,
        52 num_syncobj_handles: u32,
        56 input_fence_syncobj_handles: u64,
    }

    /// `drm_amdgpu_gem_vm_entry`.
    pub struct GemVmEntry: 32 {
        0 addr: u64,
        8 size: u64,
        16 offset: u64,
        24 flags: u64,
    }

    /// `drm_amdgpu_gem_wait_idle_in`.
    pub struct GemWaitIdleIn: 16 {
        0 handle: u32,
        4 flags: u32,
        8 timeout: u64,
    }

    /// `drm_amdgpu_info`.
    pub struct Info: 32 {
        0 return_pointer: u64,
        8 return_size: u32,
        12 query: u32,
        16 query_type: u32,
        20 query_instance: u32,
        24 pad: u64,
    }

    /// `drm_amdgpu_info_device`.
    pub struct InfoDevice: 440 {
        0 device_id: u32,
        4 chip_rev: u32,
        8 external_rev: u32,
        12 pci_rev: u32,
        16 family: u32,
        20 num_shader_engines: u32,
        24 num_shader_arrays_per_engine: u32,
        28 gpu_counter_freq: u32,
        32 max_engine_clock: u64,
        40 max_memory_clock: u64,
        48 cu_active_number: u32,
        52 cu_ao_mask: u32,
        56 cu_bitmap: [u32; 16],
        120 enabled_rb_pipes_mask: u32,
        124 num_rb_pipes: u32,
        128 num_hw_gfx_contexts: u32,
        132 pcie_gen: u32,
        136 ids_flags: u64,
        144 virtual_address_offset: u64,
        152 virtual_address_max: u64,
        160 virtual_address_alignment: u32,
        164 pte_fragment_size: u32,
        168 gart_page_size: u32,
        172 ce_ram_size: u32,
        176 vram_type: u32,
        180 vram_bit_width: u32,
        184 vce_harvest_config: u32,
        188 gc_double_offchip_lds_buf: u32,
        192 prim_buf_gpu_addr: u64,
        200 pos_buf_gpu_addr: u64,
        208 cntl_sb_buf_gpu_addr: u64,
        216 param_buf_gpu_addr: u64,
        224 prim_buf_size: u32,
        228 pos_buf_size: u32,
        232 cntl_sb_buf_size: u32,
        236 param_buf_size: u32,
        240 wave_front_size: u32,
        244 num_shader_visible_vgprs: u32,
        248 num_cu_per_sh: u32,
        252 num_tcc_blocks: u32,
        256 gs_vgt_table_depth: u32,
        260 gs_prim_buffer_depth: u32,
        264 max_gs_waves_per_vgt: u32,
        268 pcie_num_lanes: u32,
        272 cu_ao_bitmap: [u32; 16],
        336 high_va_offset: u64,
        344 high_va_max: u64,
        352 pa_sc_tile_steering_override: u32,
        356 pad: u32,
        360 tcc_disabled_mask: u64,
        368 min_engine_clock: u64,
        376 min_memory_clock: u64,
        384 tcp_cache_size: u32,
        388 num_sqc_per_wgp: u32,
        392 sqc_data_cache_size: u32,
        396 sqc_inst_cache_size: u32,
        400 gl1c_cache_size: u32,
        404 gl2c_cache_size: u32,
        408 mall_size: u64,
        416 enabled_rb_pipes_mask_hi: u32,
        420 shadow_size: u32,
        424 shadow_alignment: u32,
        428 csa_size: u32,
        432 csa_alignment: u32,
        436 userq_ip_mask: u32,
    }

    /// `drm_amdgpu_info_hw_ip`.
    pub struct InfoHwIp: 40 {
        0 hw_ip_version_major: u32,
        4 hw_ip_version_minor: u32,
        8 capabilities_flags: u64,
        16 ib_start_alignment: u32,
        20 ib_size_alignment: u32,
        24 available_rings: u32,
        28 ip_discovery_version: u32,
        32 userq_num_slots: u32,
        36 pad1: u32,
    }

    /// `drm_amdgpu_wait_cs_in`.
    pub struct WaitCsIn: 32 {
        0 handle: u64,
        8 timeout: u64,
        16 ip_type: u32,
        20 ip_instance: u32,
        24 ring: u32,
        28 ctx_id: u32,
    }

    /// `drm_amdgpu_wait_fences_in`.
    pub struct WaitFencesIn: 24 {
        0 fences: u64,
        8 fence_count: u32,
        12 wait_all: u32,
        16 timeout_ns: u64,
    }
}

/// Outputs, where C has them in a union with the inputs.
mod outputs {
    use super::{
        BoListIn, CsIn, CtxIn, GemCreateIn, GemMmapIn, GemWaitIdleIn, WaitCsIn, WaitFencesIn,
    };
    use crate::abi::Plain;

    fn word<T: Plain>(value: &T, index: usize) -> u32 {
        let bytes = value.as_bytes().as_chunks().0;
        u32::from_le_bytes(bytes[index])
    }

    fn long<T: Plain>(value: &T) -> u64 {
        u64::from_le_bytes(value.as_bytes().as_chunks().0[0])
    }

    impl GemCreateIn {
        /// Output: the handle.
        pub fn handle(&self) -> u32 {
            word(self, 0)
        }
    }

    impl GemMmapIn {
        /// Output: the offset to map.
        pub fn addr_ptr(&self) -> u64 {
            long(self)
        }
    }

    impl CtxIn {
        /// Output of [`ALLOC_CTX`](super::ctx_op::ALLOC_CTX): the context.
        pub fn allocated(&self) -> u32 {
            word(self, 0)
        }
    }

    impl BoListIn {
        /// Output of [`CREATE`](super::bo_list_op::CREATE): the list.
        pub fn created(&self) -> u32 {
            word(self, 0)
        }
    }

    impl CsIn {
        /// Output: the sequence number of the submission, from 1, for each context and ring.
        pub fn handle(&self) -> u64 {
            long(self)
        }
    }

    impl WaitCsIn {
        /// Output: whether the submission is still at work.
        pub fn busy(&self) -> bool {
            long(self) != 0
        }
    }

    impl WaitFencesIn {
        /// Output: whether what was waited for has been signalled.
        pub fn signalled(&self) -> bool {
            word(self, 0) != 0
        }
    }

    impl GemWaitIdleIn {
        /// Output: whether the BO is still in use.
        pub fn busy(&self) -> bool {
            word(self, 0) != 0
        }
    }
}
