//! A client of a render node that says nothing but what it is told to: no libdrm, no checks.

use std::{
    os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd},
    path::Path,
};

use nix::{
    errno::Errno,
    sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap},
};

use crate::{
    abi::{
        Plain, Request,
        amdgpu::*,
        drm::{self, PrimeHandle},
        sdma,
    },
    device::{
        DeviceError, DeviceFile, DeviceMemory, Driver, Node,
        sim::{SimProcess, fence::monotonic},
    },
};

/// The flags of an ordinary mapping.
pub(super) const PLAIN: u32 = va_flag::READABLE | va_flag::WRITEABLE | va_flag::EXECUTABLE;
/// What libdrm passes for a userptr.
pub(super) const USERPTR: u32 = userptr::ANONONLY | userptr::VALIDATE | userptr::REGISTER;
/// As long as any test waits for anything.
pub(super) const LONG: u64 = 60_000_000_000;

/// Pages of this process, unmapped when dropped.
#[derive(Debug)]
pub(super) struct Pages {
    start: std::ptr::NonNull<u8>,
    pub len: usize,
}

impl Pages {
    pub(super) fn new(len: usize) -> Self {
        let size = std::num::NonZeroUsize::new(len).unwrap();
        let prot = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: new pages at an address of the kernel's choice.
        let start = unsafe { mmap_anonymous(None, size, prot, MapFlags::MAP_PRIVATE) }.unwrap();
        Pages { start: start.cast(), len }
    }

    pub(super) fn address(&self) -> u64 {
        self.start.as_ptr().expose_provenance() as u64
    }

    /// The bytes: only while no engine is at work on them.
    pub(super) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the pages are ours, and the caller says that no engine is at work on them.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the pages are ours, and nothing refers to them.
        let _ = unsafe { munmap(self.start.cast(), self.len) };
    }
}

/// An open render node with raw calls.
#[derive(Debug)]
pub(super) struct Client {
    pub node: Node,
    /// The same open file, for calls that are not of their type.
    raw: Box<dyn DeviceFile>,
}

impl Client {
    /// Of the first GPU.
    pub(super) fn open(process: &SimProcess) -> Self {
        Client::of_gpu(process, 0)
    }

    pub(super) fn of_gpu(process: &SimProcess, gpu: usize) -> Self {
        let path = process.host().machine().gpus[gpu].render_node();
        let node = Node::open(process as &dyn Driver, &path).unwrap();
        let raw = process.adopt(node.as_fd().try_clone_to_owned().unwrap()).unwrap();
        Client { node, raw }
    }

    /// Any call: the errno that it answers.
    pub(super) fn call<T: Plain>(
        &self,
        request: &Request<T>,
        argument: &mut T,
    ) -> Result<(), Errno> {
        // SAFETY: tests pass addresses of what they keep until the engines are done, or addresses
        // where there is nothing, which the simulation answers with EFAULT.
        unsafe { self.node.call(request, argument) }.map_err(errno)
    }

    /// A call by number, with an argument of any size, once.
    pub(super) fn raw(&self, number: u32, argument: &mut [u8]) -> Result<(), Errno> {
        // SAFETY: as in `call`.
        unsafe { self.raw.ioctl(number, argument) }
    }

    pub(super) fn create(&self, domains: u64, size: u64) -> u32 {
        let mut create = GemCreateIn { bo_size: size, domains, ..GemCreateIn::default() };
        self.call(&GEM_CREATE, &mut create).unwrap();
        create.handle()
    }

    pub(super) fn userptr(&self, address: u64, size: u64, flags: u32) -> Result<u32, Errno> {
        let mut user = GemUserptr { addr: address, size, flags, handle: 0 };
        self.call(&GEM_USERPTR, &mut user)?;
        Ok(user.handle)
    }

    pub(super) fn close(&self, handle: u32) -> Result<(), Errno> {
        self.call(&drm::GEM_CLOSE, &mut drm::GemClose { handle, pad: 0 })
    }

    pub(super) fn mmap(&self, handle: u32, len: usize) -> DeviceMemory {
        self.node.map(self.mmap_offset(handle).unwrap(), len).unwrap()
    }

    pub(super) fn mmap_offset(&self, handle: u32) -> Result<u64, Errno> {
        let mut mmap = GemMmapIn { handle, pad: 0 };
        self.call(&GEM_MMAP, &mut mmap)?;
        Ok(mmap.addr_ptr())
    }

    pub(super) fn map(&self, handle: u32, va: u64, size: u64) -> Result<(), Errno> {
        self.va(va_op::MAP, handle, va, 0, size)
    }

    pub(super) fn unmap(&self, handle: u32, va: u64, size: u64) -> Result<(), Errno> {
        self.va(va_op::UNMAP, handle, va, 0, size)
    }

    pub(super) fn va(
        &self,
        operation: u32,
        handle: u32,
        va: u64,
        offset: u64,
        size: u64,
    ) -> Result<(), Errno> {
        let mut args = GemVa {
            handle,
            operation,
            flags: PLAIN,
            va_address: va,
            offset_in_bo: offset,
            map_size: size,
            ..GemVa::default()
        };
        self.call(&GEM_VA, &mut args)
    }

    pub(super) fn new_context(&self) -> u32 {
        let mut ctx = CtxIn { op: ctx_op::ALLOC_CTX, ..CtxIn::default() };
        self.call(&CTX, &mut ctx).unwrap();
        ctx.allocated()
    }

    pub(super) fn free_context(&self, ctx_id: u32) -> Result<(), Errno> {
        self.call(&CTX, &mut CtxIn { op: ctx_op::FREE_CTX, ctx_id, ..CtxIn::default() })
    }

    pub(super) fn export(&self, handle: u32) -> Result<OwnedFd, Errno> {
        let mut prime = PrimeHandle { handle, flags: drm::CLOEXEC, fd: -1 };
        self.call(&drm::PRIME_HANDLE_TO_FD, &mut prime)?;
        // SAFETY: the descriptor is new, and ours.
        Ok(unsafe { OwnedFd::from_raw_fd(prime.fd) })
    }

    pub(super) fn import(&self, fd: &OwnedFd) -> Result<u32, Errno> {
        self.import_number(fd.as_raw_fd())
    }

    pub(super) fn import_number(&self, fd: i32) -> Result<u32, Errno> {
        let mut prime = PrimeHandle { handle: 0, flags: 0, fd };
        self.call(&drm::PRIME_FD_TO_HANDLE, &mut prime)?;
        Ok(prime.handle)
    }

    /// Submits chunks as they are.
    pub(super) fn submit_chunks(
        &self,
        ctx_id: u32,
        list: u32,
        chunks: &[(u32, &[u8])],
    ) -> Result<u64, Errno> {
        let chunks: Vec<CsChunk> = chunks
            .iter()
            .map(|(id, data)| CsChunk {
                chunk_id: *id,
                length_dw: u32::try_from(data.len() / 4).unwrap(),
                chunk_data: address(data),
            })
            .collect();
        let pointers: Vec<u64> = chunks.iter().map(|chunk| address(chunk.as_bytes())).collect();
        let mut cs = CsIn {
            ctx_id,
            bo_list_handle: list,
            num_chunks: u32::try_from(chunks.len()).unwrap(),
            flags: 0,
            chunks: pointers.as_ptr().expose_provenance() as u64,
        };
        self.call(&CS, &mut cs)?;
        Ok(cs.handle())
    }

    /// Submits one buffer with a list of handles, and more chunks.
    pub(super) fn submit(
        &self,
        ctx_id: u32,
        ring: u32,
        buffer: (u64, u32),
        handles: &[u32],
        more: &[(u32, &[u8])],
    ) -> Result<u64, Errno> {
        let (va_start, ib_bytes) = buffer;
        let ib =
            CsChunkIb { va_start, ib_bytes, ip_type: hw_ip::DMA, ring, ..CsChunkIb::default() };
        let (entries, list) = list(handles);
        let mut chunks =
            vec![(chunk_id::IB, ib.as_bytes()), (chunk_id::BO_HANDLES, list.as_bytes())];
        chunks.extend(more);
        let answer = self.submit_chunks(ctx_id, 0, &chunks);
        drop(entries);
        answer
    }

    /// Whether a submission is still busy after so many nanoseconds.
    pub(super) fn wait(
        &self,
        ctx_id: u32,
        ring: u32,
        handle: u64,
        time: u64,
    ) -> Result<bool, Errno> {
        let timeout = if time == 0 { 0 } else { monotonic() + time };
        let mut wait =
            WaitCsIn { handle, timeout, ip_type: hw_ip::DMA, ip_instance: 0, ring, ctx_id };
        self.call(&WAIT_CS, &mut wait)?;
        Ok(wait.busy())
    }

    /// Waits for the first or for all of several submissions: what the call answers, and which.
    pub(super) fn wait_fences(
        &self,
        fences: &[Fence],
        all: bool,
        time: u64,
    ) -> Result<(bool, u32), Errno> {
        let mut wait = WaitFencesIn {
            fences: fences.as_ptr().expose_provenance() as u64,
            fence_count: u32::try_from(fences.len()).unwrap(),
            wait_all: all.into(),
            timeout_ns: if time == 0 { 0 } else { monotonic() + time },
        };
        self.call(&WAIT_FENCES, &mut wait)?;
        let first = u32::from_prefix(&wait.as_bytes()[4..]);
        Ok((wait.signalled(), first))
    }
}

/// A list of objects, and the entries that it points to.
pub(super) fn list(handles: &[u32]) -> (Vec<BoListEntry>, BoListIn) {
    let entry = |&bo_handle: &u32| BoListEntry { bo_handle, bo_priority: 0 };
    let entries: Vec<_> = handles.iter().map(entry).collect();
    let list = BoListIn {
        operation: 0,
        list_handle: 0,
        bo_number: u32::try_from(entries.len()).unwrap(),
        bo_info_size: 8,
        bo_info_ptr: entries.as_ptr().expose_provenance() as u64,
    };
    (entries, list)
}

pub(super) fn address(bytes: &[u8]) -> u64 {
    bytes.as_ptr().expose_provenance() as u64
}

fn errno(error: DeviceError) -> Errno {
    match error {
        DeviceError::Call { errno, .. } => errno,
        other => panic!("{other}"),
    }
}

/// Where the parts of a [`Copier`] are in its address space.
pub(super) const IB_VA: u64 = 0x10_0000;
pub(super) const VRAM_VA: u64 = 0x1_0000_0000;
pub(super) const USER_VA: u64 = 0x2_0000_0000;

/// A client with VRAM, memory of its own and a buffer for packets, all mapped: the sequence that a
/// copy without libdrm needs.
#[derive(Debug)]
pub(super) struct Copier {
    pub client: Client,
    pub user: Pages,
    pub vram: u32,
    pub user_handle: u32,
    pub ib: u32,
    pub packets: DeviceMemory,
    pub ctx: u32,
    pub size: u64,
}

impl Copier {
    pub(super) fn new(process: &SimProcess, size: u64) -> Self {
        Copier::with(Client::open(process), None, size)
    }

    /// With VRAM that is there already, or of its own.
    pub(super) fn with(client: Client, vram: Option<u32>, size: u64) -> Self {
        let user = Pages::new(usize::try_from(size).unwrap());
        let vram = vram.unwrap_or_else(|| client.create(domain::VRAM, size));
        let user_handle = client.userptr(user.address(), size, USERPTR).unwrap();
        let ib = client.create(domain::GTT, 1 << 16);
        let packets = client.mmap(ib, 1 << 16);
        client.map(vram, VRAM_VA, size).unwrap();
        client.map(user_handle, USER_VA, size).unwrap();
        client.map(ib, IB_VA, 1 << 16).unwrap();
        let ctx = client.new_context();
        Copier { client, user, vram, user_handle, ib, packets, ctx, size }
    }

    pub(super) fn handles(&self) -> [u32; 3] {
        [self.vram, self.user_handle, self.ib]
    }

    /// Writes packets into a slot of 1 KiB and submits them to a ring.
    pub(super) fn submit(&self, slot: u32, ring: u32, words: &[u32]) -> Result<u64, Errno> {
        self.submit_with(slot, ring, words, &self.handles(), &[])
    }

    pub(super) fn submit_with(
        &self,
        slot: u32,
        ring: u32,
        words: &[u32],
        handles: &[u32],
        more: &[(u32, &[u8])],
    ) -> Result<u64, Errno> {
        let buffer = self.write(slot, words);
        self.client.submit(self.ctx, ring, buffer, handles, more)
    }

    /// Writes packets into a slot, padded: their address and length.
    pub(super) fn write(&self, slot: u32, words: &[u32]) -> (u64, u32) {
        let mut words = words.to_vec();
        words.resize(words.len().next_multiple_of(sdma::IB_ALIGN_WORDS), sdma::OP_NOP);
        assert!(words.len() <= 256);
        self.packets.write_words(usize::try_from(slot).unwrap() * 1024, &words);
        (IB_VA + u64::from(slot) * 1024, u32::try_from(4 * words.len()).unwrap())
    }

    /// Submits and waits: how it ended.
    pub(super) fn run(&self, words: &[u32]) -> Result<(), Errno> {
        let number = self.submit(0, 0, words)?;
        assert!(!self.client.wait(self.ctx, 0, number, LONG)?, "the engine is still busy");
        Ok(())
    }

    pub(super) fn to_host(&self, offset: u64, bytes: u32) -> [u32; 7] {
        sdma::copy(FAMILY_AI, VRAM_VA + offset, USER_VA + offset, bytes)
    }

    pub(super) fn to_device(&self, offset: u64, bytes: u32) -> [u32; 7] {
        sdma::copy(FAMILY_AI, USER_VA + offset, VRAM_VA + offset, bytes)
    }

    /// Gives everything back.
    pub(super) fn finish(self) {
        drop(self.packets);
        for (handle, va, size) in [
            (self.vram, VRAM_VA, self.size),
            (self.user_handle, USER_VA, self.size),
            (self.ib, IB_VA, 1 << 16),
        ] {
            self.client.unmap(handle, va, size).unwrap();
            self.client.close(handle).unwrap();
        }
        self.client.free_context(self.ctx).unwrap();
    }
}

/// Opens a path as a process.
pub(super) fn open(process: &SimProcess, path: &str) -> Result<Node, Errno> {
    Node::open(process as &dyn Driver, Path::new(path)).map_err(errno)
}
