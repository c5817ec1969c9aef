//! CHECKPOINT: the state of a stopped process.

use std::sync::Arc;

use nix::errno::Errno;

use super::{
    super::{
        super::{KernelRelease, caller::Slot},
        Io,
        memory::{register_offset, write_array},
        process::{Bo, KfdProcess},
        queue::Queue,
    },
    bo_record_size, counted_bos, record_gpus, sizes,
};
use crate::abi::{
    Plain,
    kfd::{
        CriuArgs, CriuBoBucket, CriuDeviceBucket, INVALID_FD, flags,
        private::{
            CriuDevicePrivate, CriuEventPrivate, CriuProcessPrivate, CriuQueuePrivate,
            CriuSvmRangePrivate, VERSION, object,
        },
        queue_type,
    },
};

/// What the kernel calls the types of queues among its own.
pub(super) mod internal_type {
    pub(in super::super) const COMPUTE: u32 = 0;
    pub(in super::super) const SDMA: u32 = 1;
    pub(in super::super) const SDMA_XGMI: u32 = 4;
}

pub(super) fn checkpoint(io: &mut Io<'_, '_>, args: &mut CriuArgs) -> nix::Result<()> {
    if args.devices == 0 || args.bos == 0 || args.priv_data == 0 {
        return Err(Errno::EINVAL);
    }
    let release = io.release();
    let mut state = io.host.state();
    let process = state.kfd.process(io.pid)?;
    if process.devices.is_empty() {
        return Err(Errno::ENODEV);
    }
    if !process.paused {
        return Err(Errno::EINVAL);
    }
    let sizes = sizes(process, release)?;
    let given = (args.num_devices, args.num_bos, args.num_objects, args.priv_data_size);
    if given != (sizes.devices, sizes.bos, sizes.objects, sizes.private) {
        return Err(Errno::EINVAL);
    }
    let devices: Vec<_> = process
        .devices
        .iter()
        .map(|device| CriuDeviceBucket {
            user_gpu_id: device.user_id,
            actual_gpu_id: device.actual_id,
            ..CriuDeviceBucket::default()
        })
        .collect();
    let buckets: Vec<_> =
        counted_bos(process, release).map(|(place, _, bo)| bucket(process, place, bo)).collect();
    let private = private_data(process, release);
    // Objects whose contents the caller is to copy.
    let shared: Vec<_> = counted_bos(process, release)
        .map(|(_, _, bo)| {
            let writable = bo.flags & flags::WRITABLE != 0;
            bo.has_contents().then(|| (Arc::clone(&bo.object), writable))
        })
        .collect();
    drop(state);
    write_array(io, args.devices, &devices)?;
    io.call.memory.write(args.priv_data, &private)?;
    write_array(io, args.bos, &buckets)?;
    for (number, object) in shared.iter().enumerate() {
        let Some((object, writable)) = object else { continue };
        // Nothing of this is installed if one fails.
        let fd = io.host.export(&mut io.host.state(), object, *writable)?;
        io.call.descriptors.push((fd_slot(args.bos, number), fd));
    }
    Ok(())
}

/// Where the descriptor of a bucket is in the caller's array.
pub(super) fn fd_slot(buckets: u64, number: usize) -> Slot {
    let at = number * size_of::<CriuBoBucket>() + std::mem::offset_of!(CriuBoBucket, dmabuf_fd);
    Slot::Memory(buckets + at as u64)
}

fn bucket(process: &KfdProcess, place: usize, bo: &Bo) -> CriuBoBucket {
    let device = &process.devices[place];
    let registers = register_offset(bo.flags, device.actual_id);
    CriuBoBucket {
        addr: bo.va,
        size: bo.object.size,
        offset: registers.unwrap_or(bo.object.mmap_offset),
        restored_offset: 0,
        gpu_id: device.user_id,
        alloc_flags: bo.flags,
        dmabuf_fd: INVALID_FD,
        pad: 0,
    }
}

fn private_data(process: &KfdProcess, release: KernelRelease) -> Vec<u8> {
    let mut data = Vec::new();
    put(&mut data, &CriuProcessPrivate { version: VERSION, xnack_mode: process.xnack.into() });
    for _ in &process.devices {
        put(&mut data, &CriuDevicePrivate { reserved: 0 });
    }
    for (_, number, bo) in counted_bos(process, release) {
        put_bo(&mut data, process, number, bo, release);
    }
    for (id, queue) in process.queues.iter() {
        put(&mut data, &queue_record(process, id, queue));
        data.extend_from_slice(&queue.saved_mqd());
        data.extend_from_slice(&queue.control_stack);
    }
    for (place, (id, event)) in process.events.iter().enumerate() {
        // The page of the slots is in the record of the first event.
        let page = process.events.page_handle().filter(|_| place == 0).unwrap_or(0);
        put(
            &mut data,
            &CriuEventPrivate {
                object_type: object::EVENT,
                pad1: 0,
                user_handle: page,
                event_id: id,
                auto_reset: event.auto_reset.into(),
                kind: event.kind,
                signaled: event.signaled.into(),
                exception_data: event.exception,
            },
        );
    }
    for (start, range) in process.ranges.iter() {
        put(
            &mut data,
            &CriuSvmRangePrivate {
                object_type: object::SVM_RANGE,
                pad1: 0,
                start_addr: start,
                size: range.size,
            },
        );
        let gpus = process.devices.iter().map(|device| device.user_id);
        range.attributes.list(gpus).iter().for_each(|attribute| put(&mut data, attribute));
    }
    data
}

fn put(data: &mut Vec<u8>, record: &impl Plain) {
    data.extend_from_slice(record.as_bytes());
}

/// The record of a BO, which has room for as many GPUs as the kernel was built for.
fn put_bo(data: &mut Vec<u8>, process: &KfdProcess, number: u32, bo: &Bo, release: KernelRelease) {
    let end = data.len() + bo_record_size(release);
    put(data, &bo.user_address);
    put(data, &number);
    for &place in bo.mapped.iter().take(record_gpus(release)) {
        put(data, &process.devices[place].user_id);
    }
    data.resize(end, 0);
}

fn queue_record(process: &KfdProcess, id: u32, queue: &Queue) -> CriuQueuePrivate {
    let p = &queue.properties;
    let kind = match p.kind {
        queue_type::SDMA => internal_type::SDMA,
        queue_type::SDMA_XGMI => internal_type::SDMA_XGMI,
        _ => internal_type::COMPUTE,
    };
    let size = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX);
    CriuQueuePrivate {
        object_type: object::QUEUE,
        pad1: 0,
        q_address: p.ring_address,
        q_size: p.ring_size,
        read_ptr_addr: p.read_pointer,
        write_ptr_addr: p.write_pointer,
        doorbell_off: u64::from(queue.doorbell) * 2,
        eop_ring_buffer_address: p.eop_address,
        ctx_save_restore_area_address: p.save_address,
        gpu_id: process.devices[queue.device].user_id,
        kind,
        // PM4 packets or AQL.
        format: u32::from(p.kind == queue_type::COMPUTE_AQL),
        q_id: id,
        priority: p.priority,
        q_percent: p.percentage,
        doorbell_id: queue.doorbell,
        gws: queue.gws.into(),
        sdma_id: queue.sdma_id.unwrap_or(0),
        eop_ring_buffer_size: p.eop_size,
        ctx_save_restore_area_size: p.save_size,
        ctl_stack_size: size(queue.control_stack.len()),
        mqd_size: size(queue.mqd.len()),
        pad2: 0,
    }
}
