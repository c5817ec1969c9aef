//! `/dev/kfd`: Linux uapi `kfd_ioctl.h`, interface version 1.23.

#![allow(missing_docs)] // the requests have the headers' names

use super::{Request, layout};

pub mod private;

/// What the kernel puts where a BO has no dma-buf.
pub const INVALID_FD: u32 = 0xffff_ffff;

/// The oldest interface whose GTT BOs can be copied by SDMA: minor version of major version 1.
pub const MINIMUM_MINOR: u32 = 8;

/// Flags of [`AllocMemoryOfGpu`] and [`CriuBoBucket`].
pub mod flags {
    pub const VRAM: u32 = 1 << 0;
    pub const GTT: u32 = 1 << 1;
    pub const USERPTR: u32 = 1 << 2;
    pub const DOORBELL: u32 = 1 << 3;
    pub const MMIO_REMAP: u32 = 1 << 4;
    pub const WRITABLE: u32 = 1 << 31;
    pub const EXECUTABLE: u32 = 1 << 30;
    pub const PUBLIC: u32 = 1 << 29;
    pub const NO_SUBSTITUTE: u32 = 1 << 28;
    pub const AQL_QUEUE_MEM: u32 = 1 << 27;
    pub const COHERENT: u32 = 1 << 26;
    pub const UNCACHED: u32 = 1 << 25;
    pub const EXT_COHERENT: u32 = 1 << 24;
    pub const CONTIGUOUS: u32 = 1 << 23;
}

/// Values of [`CriuArgs::op`].
pub mod criu_op {
    pub const PROCESS_INFO: u32 = 0;
    pub const CHECKPOINT: u32 = 1;
    pub const UNPAUSE: u32 = 2;
    pub const RESTORE: u32 = 3;
    pub const RESUME: u32 = 4;
}

/// Values of [`CreateQueue::queue_type`].
pub mod queue_type {
    pub const COMPUTE: u32 = 0;
    pub const SDMA: u32 = 1;
    pub const COMPUTE_AQL: u32 = 2;
    pub const SDMA_XGMI: u32 = 3;
    pub const SDMA_BY_ENG_ID: u32 = 4;
}

/// Values of [`CreateEvent::event_type`].
pub mod event_type {
    pub const SIGNAL: u32 = 0;
    pub const NODECHANGE: u32 = 1;
    pub const DEVICESTATECHANGE: u32 = 2;
    pub const HW_EXCEPTION: u32 = 3;
    pub const SYSTEM_EVENT: u32 = 4;
    pub const DEBUG_EVENT: u32 = 5;
    pub const PROFILE_EVENT: u32 = 6;
    pub const QUEUE_EVENT: u32 = 7;
    pub const MEMORY: u32 = 8;
}

/// Values of [`WaitEvents::wait_result`].
pub mod wait_result {
    pub const COMPLETE: u32 = 0;
    pub const TIMEOUT: u32 = 1;
    pub const FAIL: u32 = 2;
}

/// The most that a queue's share of a GPU can be.
pub const MAX_QUEUE_PERCENTAGE: u32 = 100;
/// The highest priority of a queue.
pub const MAX_QUEUE_PRIORITY: u32 = 15;
/// The smallest ring of a queue, in bytes.
pub const MIN_QUEUE_RING_SIZE: u32 = 1024;
/// How many signal events a process can have.
pub const SIGNAL_EVENT_LIMIT: u32 = 4096;
/// How many GPUs [`GET_PROCESS_APERTURES`] can tell of.
pub const NUM_OF_SUPPORTED_GPUS: u32 = 7;

pub const GET_VERSION: Request<GetVersion> = Request::new("GET_VERSION", 0x8008_4b01);
pub const CREATE_QUEUE: Request<CreateQueue> = Request::new("CREATE_QUEUE", 0xc060_4b02);
pub const DESTROY_QUEUE: Request<DestroyQueue> = Request::new("DESTROY_QUEUE", 0xc008_4b03);
pub const SET_MEMORY_POLICY: Request<SetMemoryPolicy> =
    Request::new("SET_MEMORY_POLICY", 0x4020_4b04);
pub const GET_CLOCK_COUNTERS: Request<GetClockCounters> =
    Request::new("GET_CLOCK_COUNTERS", 0xc028_4b05);
pub const GET_PROCESS_APERTURES: Request<GetProcessApertures> =
    Request::new("GET_PROCESS_APERTURES", 0x8190_4b06);
pub const UPDATE_QUEUE: Request<UpdateQueue> = Request::new("UPDATE_QUEUE", 0x4018_4b07);
pub const CREATE_EVENT: Request<CreateEvent> = Request::new("CREATE_EVENT", 0xc020_4b08);
pub const DESTROY_EVENT: Request<DestroyEvent> = Request::new("DESTROY_EVENT", 0x4008_4b09);
pub const SET_EVENT: Request<SetEvent> = Request::new("SET_EVENT", 0x4008_4b0a);
pub const RESET_EVENT: Request<ResetEvent> = Request::new("RESET_EVENT", 0x4008_4b0b);
pub const WAIT_EVENTS: Request<WaitEvents> = Request::new("WAIT_EVENTS", 0xc018_4b0c);
pub const SET_SCRATCH_BACKING_VA: Request<SetScratchBackingVa> =
    Request::new("SET_SCRATCH_BACKING_VA", 0xc010_4b11);
pub const GET_TILE_CONFIG: Request<GetTileConfig> = Request::new("GET_TILE_CONFIG", 0xc028_4b12);
pub const SET_TRAP_HANDLER: Request<SetTrapHandler> = Request::new("SET_TRAP_HANDLER", 0x4018_4b13);
pub const GET_PROCESS_APERTURES_NEW: Request<GetProcessAperturesNew> =
    Request::new("GET_PROCESS_APERTURES_NEW", 0xc010_4b14);
pub const ACQUIRE_VM: Request<AcquireVm> = Request::new("ACQUIRE_VM", 0x4008_4b15);
pub const ALLOC_MEMORY_OF_GPU: Request<AllocMemoryOfGpu> =
    Request::new("ALLOC_MEMORY_OF_GPU", 0xc028_4b16);
pub const FREE_MEMORY_OF_GPU: Request<FreeMemoryOfGpu> =
    Request::new("FREE_MEMORY_OF_GPU", 0x4008_4b17);
pub const MAP_MEMORY_TO_GPU: Request<MapMemoryToGpu> =
    Request::new("MAP_MEMORY_TO_GPU", 0xc018_4b18);
pub const UNMAP_MEMORY_FROM_GPU: Request<UnmapMemoryFromGpu> =
    Request::new("UNMAP_MEMORY_FROM_GPU", 0xc018_4b19);
pub const SET_CU_MASK: Request<SetCuMask> = Request::new("SET_CU_MASK", 0x4010_4b1a);
pub const GET_QUEUE_WAVE_STATE: Request<GetQueueWaveState> =
    Request::new("GET_QUEUE_WAVE_STATE", 0xc018_4b1b);
pub const GET_DMABUF_INFO: Request<GetDmabufInfo> = Request::new("GET_DMABUF_INFO", 0xc020_4b1c);
pub const IMPORT_DMABUF: Request<ImportDmabuf> = Request::new("IMPORT_DMABUF", 0xc018_4b1d);
pub const ALLOC_QUEUE_GWS: Request<AllocQueueGws> = Request::new("ALLOC_QUEUE_GWS", 0xc010_4b1e);
pub const SMI_EVENTS: Request<SmiEvents> = Request::new("SMI_EVENTS", 0xc008_4b1f);
pub const SVM: Request<SvmArgs> = Request::new("SVM", 0xc018_4b20);
pub const SET_XNACK_MODE: Request<SetXnackMode> = Request::new("SET_XNACK_MODE", 0xc004_4b21);
pub const CRIU_OP: Request<CriuArgs> = Request::new("CRIU_OP", 0xc038_4b22);
pub const AVAILABLE_MEMORY: Request<AvailableMemory> =
    Request::new("AVAILABLE_MEMORY", 0xc010_4b23);
pub const EXPORT_DMABUF: Request<ExportDmabuf> = Request::new("EXPORT_DMABUF", 0xc010_4b24);
pub const RUNTIME_ENABLE: Request<RuntimeEnable> = Request::new("RUNTIME_ENABLE", 0xc010_4b25);
pub const DBG_TRAP: Request<DbgTrap> = Request::new("DBG_TRAP", 0xc020_4b26);

/// What offsets into a mapping of `/dev/kfd` are made of (`kfd_priv.h`).
pub mod mmap {
    pub const TYPE_MASK: u64 = 3 << 62;
    pub const TYPE_DOORBELL: u64 = 3 << 62;
    pub const TYPE_EVENTS: u64 = 2 << 62;
    pub const TYPE_RESERVED_MEM: u64 = 1 << 62;
    pub const TYPE_MMIO: u64 = 0;
    pub const GPU_ID_SHIFT: u32 = 46;

    /// The bits that name a GPU.
    pub const fn gpu_id(id: u32) -> u64 {
        (id as u64 & 0xffff) << GPU_ID_SHIFT
    }
}

layout! {
    /// `kfd_ioctl_get_version_args`.
    pub struct GetVersion: 8 {
        0 major_version: u32,
        4 minor_version: u32,
    }

    /// `kfd_ioctl_create_queue_args`.
    pub struct CreateQueue: 96 {
        0 ring_base_address: u64,
        8 write_pointer_address: u64,
        16 read_pointer_address: u64,
        24 doorbell_offset: u64,
        32 ring_size: u32,
        36 gpu_id: u32,
        40 queue_type: u32,
        44 queue_percentage: u32,
        48 queue_priority: u32,
        52 queue_id: u32,
        56 eop_buffer_address: u64,
        64 eop_buffer_size: u64,
        72 ctx_save_restore_address: u64,
        80 ctx_save_restore_size: u32,
        84 ctl_stack_size: u32,
        88 sdma_engine_id: u32,
        92 metadata_ring_size: u32,
    }

    /// `kfd_ioctl_destroy_queue_args`.
    pub struct DestroyQueue: 8 {
        0 queue_id: u32,
        4 pad: u32,
    }

    /// `kfd_ioctl_update_queue_args`.
    pub struct UpdateQueue: 24 {
        0 ring_base_address: u64,
        8 queue_id: u32,
        12 ring_size: u32,
        16 queue_percentage: u32,
        20 queue_priority: u32,
    }

    /// `kfd_ioctl_set_memory_policy_args`.
    pub struct SetMemoryPolicy: 32 {
        0 alternate_aperture_base: u64,
        8 alternate_aperture_size: u64,
        16 gpu_id: u32,
        20 default_policy: u32,
        24 alternate_policy: u32,
        28 misc_process_flag: u32,
    }

    /// `kfd_ioctl_get_clock_counters_args`.
    pub struct GetClockCounters: 40 {
        0 gpu_clock_counter: u64,
        8 cpu_clock_counter: u64,
        16 system_clock_counter: u64,
        24 system_clock_freq: u64,
        32 gpu_id: u32,
        36 pad: u32,
    }

    /// `kfd_process_device_apertures`.
    pub struct DeviceApertures: 56 {
        0 lds_base: u64,
        8 lds_limit: u64,
        16 scratch_base: u64,
        24 scratch_limit: u64,
        32 gpuvm_base: u64,
        40 gpuvm_limit: u64,
        48 gpu_id: u32,
        52 pad: u32,
    }

    /// `kfd_ioctl_get_process_apertures_args`.
    pub struct GetProcessApertures: 400 {
        0 process_apertures: [DeviceApertures; 7],
        392 num_of_nodes: u32,
        396 pad: u32,
    }

    /// `kfd_ioctl_get_process_apertures_new_args`.
    pub struct GetProcessAperturesNew: 16 {
        0 kfd_process_device_apertures_ptr: u64,
        8 num_of_nodes: u32,
        12 pad: u32,
    }

    /// `kfd_ioctl_create_event_args`.
    pub struct CreateEvent: 32 {
        0 event_page_offset: u64,
        8 event_trigger_data: u32,
        12 event_type: u32,
        16 auto_reset: u32,
        20 node_id: u32,
        24 event_id: u32,
        28 event_slot_index: u32,
    }

    /// `kfd_ioctl_destroy_event_args`.
    pub struct DestroyEvent: 8 {
        0 event_id: u32,
        4 pad: u32,
    }

    /// `kfd_ioctl_set_event_args`.
    pub struct SetEvent: 8 {
        0 event_id: u32,
        4 pad: u32,
    }

    /// `kfd_ioctl_reset_event_args`.
    pub struct ResetEvent: 8 {
        0 event_id: u32,
        4 pad: u32,
    }

    /// `kfd_event_data`.
    pub struct EventData: 48 {
        0 data: [u32; 8],
        32 kfd_event_data_ext: u64,
        40 event_id: u32,
        44 pad: u32,
    }

    /// `kfd_ioctl_wait_events_args`.
    pub struct WaitEvents: 24 {
        0 events_ptr: u64,
        8 num_events: u32,
        12 wait_for_all: u32,
        16 timeout: u32,
        20 wait_result: u32,
    }

    /// `kfd_ioctl_set_scratch_backing_va_args`.
    pub struct SetScratchBackingVa: 16 {
        0 va_addr: u64,
        8 gpu_id: u32,
        12 pad: u32,
    }

    /// `kfd_ioctl_get_tile_config_args`.
    pub struct GetTileConfig: 40 {
        0 tile_config_ptr: u64,
        8 macro_tile_config_ptr: u64,
        16 num_tile_configs: u32,
        20 num_macro_tile_configs: u32,
        24 gpu_id: u32,
        28 gb_addr_config: u32,
        32 num_banks: u32,
        36 num_ranks: u32,
    }

    /// `kfd_ioctl_set_cu_mask_args`.
    pub struct SetCuMask: 16 {
        0 queue_id: u32,
        4 num_cu_mask: u32,
        8 cu_mask_ptr: u64,
    }

    /// `kfd_ioctl_get_queue_wave_state_args`.
    pub struct GetQueueWaveState: 24 {
        0 ctl_stack_address: u64,
        8 ctl_stack_used_size: u32,
        12 save_area_used_size: u32,
        16 queue_id: u32,
        20 pad: u32,
    }

    /// `kfd_ioctl_alloc_queue_gws_args`.
    pub struct AllocQueueGws: 16 {
        0 queue_id: u32,
        4 num_gws: u32,
        8 first_gws: u32,
        12 pad: u32,
    }

    /// `kfd_ioctl_smi_events_args`.
    pub struct SmiEvents: 8 {
        0 gpuid: u32,
        4 anon_fd: u32,
    }

    /// `kfd_ioctl_dbg_trap_args`, whose first part is one of many structures.
    pub struct DbgTrap: 32 {
        0 of_operation: [u32; 6],
        24 pid: u32,
        28 op: u32,
    }

    /// `kfd_ioctl_set_trap_handler_args`.
    pub struct SetTrapHandler: 24 {
        0 tba_addr: u64,
        8 tma_addr: u64,
        16 gpu_id: u32,
        20 pad: u32,
    }

    /// `kfd_ioctl_acquire_vm_args`.
    pub struct AcquireVm: 8 {
        0 drm_fd: u32,
        4 gpu_id: u32,
    }

    /// `kfd_ioctl_alloc_memory_of_gpu_args`.
    pub struct AllocMemoryOfGpu: 40 {
        0 va_addr: u64,
        8 size: u64,
        16 handle: u64,
        24 mmap_offset: u64,
        32 gpu_id: u32,
        36 flags: u32,
    }

    /// `kfd_ioctl_free_memory_of_gpu_args`.
    pub struct FreeMemoryOfGpu: 8 {
        0 handle: u64,
    }

    /// `kfd_ioctl_map_memory_to_gpu_args`.
    pub struct MapMemoryToGpu: 24 {
        0 handle: u64,
        8 device_ids_array_ptr: u64,
        16 n_devices: u32,
        20 n_success: u32,
    }

    /// `kfd_ioctl_unmap_memory_from_gpu_args`.
    pub struct UnmapMemoryFromGpu: 24 {
        0 handle: u64,
        8 device_ids_array_ptr: u64,
        16 n_devices: u32,
        20 n_success: u32,
    }

    /// `kfd_ioctl_get_dmabuf_info_args`.
    pub struct GetDmabufInfo: 32 {
        0 size: u64,
        8 metadata_ptr: u64,
        16 metadata_size: u32,
        20 gpu_id: u32,
        24 flags: u32,
        28 dmabuf_fd: u32,
    }

    /// `kfd_ioctl_import_dmabuf_args`.
    pub struct ImportDmabuf: 24 {
        0 va_addr: u64,
        8 handle: u64,
        16 gpu_id: u32,
        20 dmabuf_fd: u32,
    }

    /// `kfd_ioctl_export_dmabuf_args`.
    pub struct ExportDmabuf: 16 {
        0 handle: u64,
        8 flags: u32,
        12 dmabuf_fd: u32,
    }

    /// `kfd_ioctl_svm_attribute`.
    pub struct SvmAttribute: 8 {
        0 kind: u32,
        4 value: u32,
    }

    /// `kfd_ioctl_svm_args`.
    pub struct SvmArgs: 24 {
        0 start_addr: u64,
        8 size: u64,
        16 op: u32,
        20 nattr: u32,
    }

    /// `kfd_ioctl_set_xnack_mode_args`.
    pub struct SetXnackMode: 4 {
        0 xnack_enabled: i32,
    }

    /// `kfd_ioctl_runtime_enable_args`.
    pub struct RuntimeEnable: 16 {
        0 r_debug: u64,
        8 mode_mask: u32,
        12 capabilities_mask: u32,
    }

    /// `kfd_ioctl_get_available_memory_args`.
    pub struct AvailableMemory: 16 {
        0 available: u64,
        8 gpu_id: u32,
        12 pad: u32,
    }

    /// `kfd_ioctl_criu_args`.
    pub struct CriuArgs: 56 {
        0 devices: u64,
        8 bos: u64,
        16 priv_data: u64,
        24 priv_data_size: u64,
        32 num_devices: u32,
        36 num_bos: u32,
        40 num_objects: u32,
        44 pid: u32,
        48 op: u32,
        52 pad1: u32,
    }

    /// `kfd_criu_device_bucket`.
    pub struct CriuDeviceBucket: 16 {
        0 user_gpu_id: u32,
        4 actual_gpu_id: u32,
        8 drm_fd: u32,
        12 pad: u32,
    }

    /// `kfd_criu_bo_bucket`.
    pub struct CriuBoBucket: 48 {
        0 addr: u64,
        8 size: u64,
        16 offset: u64,
        24 restored_offset: u64,
        32 gpu_id: u32,
        36 alloc_flags: u32,
        40 dmabuf_fd: u32,
        44 pad: u32,
    }
}
