//! RESTORE: a process gets the state of another.

use std::sync::Arc;

use nix::errno::Errno;

use super::{
    super::{
        super::{KernelRelease, host::State, object::Object},
        Io, event,
        memory::{
            DOORBELL_SLICE, HANDLE_END, NewBo, bind, map_on, new_bo, read_array, register_offset,
            write_array,
        },
        needs::places,
        queue::{self, Properties},
        settings::xnack_possible,
        svm::attribute_count,
    },
    bo_record_size,
    checkpoint::{fd_slot, internal_type},
    record_gpus,
};
use crate::abi::{
    Plain,
    kfd::{
        CriuArgs, CriuBoBucket, CriuDeviceBucket, INVALID_FD, SvmAttribute, flags,
        private::{
            CriuDevicePrivate, CriuEventPrivate, CriuProcessPrivate, CriuQueuePrivate,
            CriuSvmRangePrivate, VERSION, object,
        },
        queue_type,
    },
};

/// The most private data that is read.
const MOST_PRIVATE: u64 = i32::MAX as u64;
const PAGE: u64 = 4096;

pub(super) fn restore(io: &mut Io<'_, '_>, args: &mut CriuArgs) -> nix::Result<()> {
    let nothing = args.num_devices == 0
        || args.devices == 0
        || args.priv_data == 0
        || args.priv_data_size == 0
        || (args.num_bos > 0 && args.bos == 0);
    if nothing {
        return Err(Errno::EINVAL);
    }
    let mut data = Private::read(io, args)?;
    // What is done before a failure stays: such a process can only exit.
    io.host.state().kfd.process(io.pid)?.evict();
    process(io, &mut data)?;
    devices(io, args, &mut data)?;
    bos(io, args, &mut data)?;
    // The descriptors of the BOs are with the caller from here on, whatever comes.
    io.call.keep_descriptors = true;
    for _ in 0..args.num_objects {
        object(io, &mut data)?;
    }
    if data.is_empty() { Ok(()) } else { Err(Errno::EINVAL) }
}

/// The private data, consumed from its beginning.
#[derive(Debug)]
struct Private {
    bytes: Vec<u8>,
    at: usize,
}

impl Private {
    fn read(io: &Io<'_, '_>, args: &CriuArgs) -> nix::Result<Private> {
        if args.priv_data_size > MOST_PRIVATE {
            return Err(Errno::ENOMEM);
        }
        let len = usize::try_from(args.priv_data_size).map_err(|_| Errno::ENOMEM)?;
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(len).map_err(|_| Errno::ENOMEM)?;
        bytes.resize(len, 0);
        io.call.memory.read(args.priv_data, &mut bytes)?;
        Ok(Private { bytes, at: 0 })
    }

    /// The next bytes; EINVAL where there are not so many.
    fn take(&mut self, len: usize) -> nix::Result<&[u8]> {
        let end = self.at.checked_add(len).ok_or(Errno::EINVAL)?;
        let bytes = self.bytes.get(self.at..end).ok_or(Errno::EINVAL)?;
        self.at = end;
        Ok(bytes)
    }

    fn record<T: Plain>(&mut self) -> nix::Result<T> {
        self.take(size_of::<T>()).map(T::from_prefix)
    }

    /// The next word, which stays.
    fn peek(&self) -> nix::Result<u32> {
        let bytes = self.bytes.get(self.at..).filter(|bytes| bytes.len() >= 4);
        bytes.map(u32::from_prefix).ok_or(Errno::EINVAL)
    }

    /// Whether so many records of a size are there.
    fn has(&self, count: u32, size: usize) -> bool {
        let needed = (count as usize).checked_mul(size);
        needed.is_some_and(|needed| needed <= self.bytes.len() - self.at)
    }

    fn is_empty(&self) -> bool {
        self.at == self.bytes.len()
    }
}

fn process(io: &Io<'_, '_>, data: &mut Private) -> nix::Result<()> {
    let record: CriuProcessPrivate = data.record()?;
    if record.version != VERSION {
        return Err(Errno::EINVAL);
    }
    let wanted = record.xnack_mode != 0;
    if wanted && !xnack_possible(io)? {
        return Err(Errno::EPERM);
    }
    io.host.state().kfd.process(io.pid)?.xnack = wanted;
    Ok(())
}

fn devices(io: &Io<'_, '_>, args: &CriuArgs, data: &mut Private) -> nix::Result<()> {
    let visible = io.host.state().kfd.process(io.pid)?.devices.len();
    if args.num_devices as usize != visible {
        return Err(Errno::EINVAL);
    }
    if !data.has(args.num_devices, size_of::<CriuDevicePrivate>()) {
        return Err(Errno::EINVAL);
    }
    let buckets: Vec<CriuDeviceBucket> = read_array(io, args.devices, args.num_devices)?;
    data.take(buckets.len() * size_of::<CriuDevicePrivate>())?;
    for bucket in buckets {
        if bucket.user_gpu_id == 0 {
            return Err(Errno::EINVAL);
        }
        let inode = io.call.memory.inode(bucket.drm_fd.cast_signed());
        let state = &mut *io.host.state();
        let devices = &mut state.kfd.process(io.pid)?.devices;
        let place = devices.iter().position(|device| device.actual_id == bucket.actual_gpu_id);
        let place = place.ok_or(Errno::EINVAL)?;
        devices[place].user_id = bucket.user_gpu_id;
        let bound = devices[place].bound.is_some();
        let inode = inode.map_err(|_| Errno::EINVAL)?;
        if bound {
            return Err(Errno::EINVAL);
        }
        let file = state.by_inode(inode).map_err(|_| Errno::EINVAL)?;
        bind(state, io.pid, place, file)?;
    }
    Ok(())
}

/// The record of a BO.
#[derive(Debug)]
struct BoRecord {
    user_address: u64,
    number: u32,
    gpus: Vec<u32>,
}

impl BoRecord {
    fn read(data: &mut Private, release: KernelRelease) -> nix::Result<BoRecord> {
        let bytes = data.take(bo_record_size(release))?;
        let (user, rest) = bytes.split_at_checked(8).ok_or(Errno::EINVAL)?;
        let (number, gpus) = rest.split_at_checked(4).ok_or(Errno::EINVAL)?;
        let gpus = gpus.chunks_exact(4).take(record_gpus(release)).map(u32::from_prefix);
        Ok(BoRecord {
            user_address: u64::from_prefix(user),
            number: u32::from_prefix(number),
            gpus: gpus.take_while(|&gpu| gpu != 0).collect(),
        })
    }
}

/// Makes all BOs, writes what the caller is to know of them, and then gives it descriptors.
fn bos(io: &mut Io<'_, '_>, args: &CriuArgs, data: &mut Private) -> nix::Result<()> {
    let release = io.release();
    if !data.has(args.num_bos, bo_record_size(release)) {
        return Err(Errno::EINVAL);
    }
    // Without BOs too: RESUME is for every process that was restored.
    io.host.state().kfd.process(io.pid)?.blocked = true;
    if args.num_bos == 0 {
        return Ok(());
    }
    let mut buckets: Vec<CriuBoBucket> = read_array(io, args.bos, args.num_bos)?;
    let mut descriptors = Vec::new();
    for (number, bucket) in buckets.iter_mut().enumerate() {
        let record = BoRecord::read(data, release)?;
        let state = &mut *io.host.state();
        let object = bo(io, state, bucket, &record)?;
        bucket.dmabuf_fd = INVALID_FD;
        if bucket.alloc_flags & (flags::VRAM | flags::GTT) != 0 {
            descriptors.push((fd_slot(args.bos, number), io.host.export(state, &object, true)?));
        }
    }
    write_array(io, args.bos, &buckets)?;
    io.call.descriptors.extend(descriptors);
    Ok(())
}

fn bo(
    io: &Io<'_, '_>,
    state: &mut State,
    bucket: &mut CriuBoBucket,
    record: &BoRecord,
) -> nix::Result<Arc<Object>> {
    let process = state.kfd.process(io.pid)?;
    let place = process.device_index(bucket.gpu_id).ok_or(Errno::ENODEV)?;
    process.devices[place].bound(Errno::ENODEV)?;
    let actual_id = process.devices[place].actual_id;
    if record.number >= HANDLE_END {
        return Err(Errno::EINVAL);
    }
    let wrong = bucket.alloc_flags & flags::DOORBELL != 0 && bucket.size != DOORBELL_SLICE
        || bucket.alloc_flags & flags::MMIO_REMAP != 0 && bucket.size != PAGE;
    if wrong {
        return Err(Errno::EINVAL);
    }
    let request = NewBo {
        place,
        va: bucket.addr,
        size: bucket.size,
        flags: bucket.alloc_flags,
        user_address: record.user_address,
        late: true,
    };
    let memory = Some(io.call.memory.promised_memory());
    let bo = new_bo(io.host, state, io.pid, &request, memory)?;
    let object = Arc::clone(&bo.object);
    let process = state.kfd.process(io.pid)?;
    let bos = &mut process.devices[place].bos;
    bos.insert_at(record.number, bo).map_err(|_| Errno::ENOMEM)?;
    for &gpu in &record.gpus {
        let peer = process.device_index(gpu).ok_or(Errno::EINVAL)?;
        map_on(process, (place, record.number), peer)?;
    }
    if let Some(offset) = register_offset(bucket.alloc_flags, actual_id) {
        bucket.restored_offset = offset;
    } else if bucket.alloc_flags & (flags::VRAM | flags::GTT) != 0 {
        bucket.restored_offset = object.mmap_offset;
    }
    Ok(object)
}

fn object(io: &Io<'_, '_>, data: &mut Private) -> nix::Result<()> {
    match data.peek()? {
        object::QUEUE => restore_queue(io, data),
        object::EVENT => restore_event(io, data),
        object::SVM_RANGE => restore_range(io, data),
        _ => Err(Errno::EINVAL),
    }
}

fn restore_queue(io: &Io<'_, '_>, data: &mut Private) -> nix::Result<()> {
    let record: CriuQueuePrivate = data.record()?;
    let mqd = data.take(record.mqd_size as usize)?.to_vec();
    let control_stack = data.take(record.ctl_stack_size as usize)?.to_vec();
    let state = &mut *io.host.state();
    let place = state.kfd.process(io.pid)?.device_index(record.gpu_id).ok_or(Errno::EINVAL)?;
    let gpu = state.kfd.process(io.pid)?.devices[place].gpu;
    let profile = &io.host.shared.machine.gpus[gpu].profile;
    let kind = match record.kind {
        internal_type::COMPUTE if record.format == 1 => queue_type::COMPUTE_AQL,
        internal_type::COMPUTE => queue_type::COMPUTE,
        internal_type::SDMA => queue_type::SDMA,
        internal_type::SDMA_XGMI => queue_type::SDMA_XGMI,
        _ => return Err(Errno::EINVAL),
    };
    // Another size is another generation of engines.
    if mqd.len() != queue::mqd_size(profile, kind) {
        return Err(Errno::EINVAL);
    }
    let properties = Properties {
        kind,
        ring_address: record.q_address,
        ring_size: record.q_size,
        read_pointer: record.read_ptr_addr,
        write_pointer: record.write_ptr_addr,
        percentage: record.q_percent,
        priority: record.priority,
        eop_address: record.eop_ring_buffer_address,
        eop_size: record.eop_ring_buffer_size,
        save_address: record.ctx_save_restore_area_address,
        save_size: record.ctx_save_restore_area_size,
        control_stack_size: record.ctl_stack_size,
    };
    let wanted = Some((record.sdma_id, record.doorbell_id));
    let found = places(state, profile, io.pid, place, &properties, wanted)?;
    // A queue that was restored does not hold its buffers.
    let mut queue = queue::new_queue(place, properties, found, Vec::new(), profile);
    queue.gws = record.gws != 0;
    let process = state.kfd.process(io.pid)?;
    let memory = io.call.memory.promised_memory();
    queue::restore(io.host, (io.pid, process), record.q_id, queue, (mqd, control_stack), memory)
}

fn restore_event(io: &Io<'_, '_>, data: &mut Private) -> nix::Result<()> {
    let record: CriuEventPrivate = data.record()?;
    let state = &mut *io.host.state();
    let process = state.kfd.process(io.pid)?;
    if record.user_handle != 0 {
        event::set_page(process, record.user_handle)?;
    }
    let event = (record.kind, record.auto_reset != 0, record.signaled != 0);
    process.restore_event(io.host, record.event_id, event, record.exception_data)
}

fn restore_range(io: &Io<'_, '_>, data: &mut Private) -> nix::Result<()> {
    let record: CriuSvmRangePrivate = data.record()?;
    let state = &mut *io.host.state();
    let process = state.kfd.process(io.pid)?;
    let count = attribute_count(process.devices.len());
    let bytes = data.take(count * size_of::<SvmAttribute>())?;
    let attributes: Vec<_> =
        bytes.chunks_exact(size_of::<SvmAttribute>()).map(SvmAttribute::from_prefix).collect();
    let end = record.start_addr.checked_add(record.size).ok_or(Errno::EINVAL)?;
    if !end.is_multiple_of(PAGE) || !record.start_addr.is_multiple_of(PAGE) || record.size == 0 {
        return Err(Errno::EINVAL);
    }
    process.ranges.set(record.start_addr, record.size, &attributes);
    Ok(())
}
