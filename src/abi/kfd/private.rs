//! The private data of CRIU_OP (`kfd_priv.h`, version 1), which the kernel writes and reads and
//! nobody else looks at. Here for the simulated GPUs only.
//!
//! In this order: [`CriuProcessPrivate`], a [`CriuDevicePrivate`] for each GPU, a
//! [`CriuBoPrivate`] for each BO, then the objects, each of which begins with its [`object`]: all
//! queues (the record, the MQD, the control stack), all events, all SVM ranges (the record, its
//! attributes).

#![allow(missing_docs)] // the headers' names

use crate::abi::layout;

/// The version of these records.
pub const VERSION: u32 = 1;

/// The first word of the record of an object.
pub mod object {
    pub const QUEUE: u32 = 0;
    pub const EVENT: u32 = 1;
    pub const SVM_RANGE: u32 = 2;
}

layout! {
    /// `kfd_criu_process_priv_data`.
    pub struct CriuProcessPrivate: 8 {
        0 version: u32,
        4 xnack_mode: u32,
    }

    /// `kfd_criu_device_priv_data`.
    pub struct CriuDevicePrivate: 8 {
        0 reserved: u64,
    }

    /// `kfd_criu_bo_priv_data`.
    pub struct CriuBoPrivate: 272 {
        0 user_addr: u64,
        8 idr_handle: u32,
        12 mapped_gpuids: [u32; 64],
        268 pad1: u32,
    }

    /// `kfd_criu_queue_priv_data`.
    pub struct CriuQueuePrivate: 120 {
        0 object_type: u32,
        4 pad1: u32,
        8 q_address: u64,
        16 q_size: u64,
        24 read_ptr_addr: u64,
        32 write_ptr_addr: u64,
        40 doorbell_off: u64,
        48 eop_ring_buffer_address: u64,
        56 ctx_save_restore_area_address: u64,
        64 gpu_id: u32,
        68 kind: u32,
        72 format: u32,
        76 q_id: u32,
        80 priority: u32,
        84 q_percent: u32,
        88 doorbell_id: u32,
        92 gws: u32,
        96 sdma_id: u32,
        100 eop_ring_buffer_size: u32,
        104 ctx_save_restore_area_size: u32,
        108 ctl_stack_size: u32,
        112 mqd_size: u32,
        116 pad2: u32,
    }

    /// `kfd_criu_event_priv_data`.
    pub struct CriuEventPrivate: 64 {
        0 object_type: u32,
        4 pad1: u32,
        8 user_handle: u64,
        16 event_id: u32,
        20 auto_reset: u32,
        24 kind: u32,
        28 signaled: u32,
        32 exception_data: [u32; 8],
    }

    /// `kfd_criu_svm_range_priv_data`, before its attributes.
    pub struct CriuSvmRangePrivate: 24 {
        0 object_type: u32,
        4 pad1: u32,
        8 start_addr: u64,
        16 size: u64,
    }
}
