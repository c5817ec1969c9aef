//! Render nodes of amdgpu: memory, address space, command submission.

use std::{
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    path::Path,
    time::{Duration, Instant},
};

use nix::time::ClockId;

use super::{DeviceError, DeviceMemory, Driver, Node, clock};
use crate::abi::{
    Plain,
    amdgpu::{
        BoListEntry, BoListIn, CS, CTX, CsChunk, CsChunkIb, CsIn, CtxIn, GEM_CREATE, GEM_MMAP,
        GEM_USERPTR, GEM_VA, GemCreateIn, GemMmapIn, GemUserptr, GemVa, INFO, Info, InfoDevice,
        InfoHwIp, WAIT_CS, WaitCsIn, chunk_id, ctx_op, domain, hw_ip, info, userptr, va_flag,
        va_op,
    },
    drm::{
        self, GEM_CLOSE, GemClose, PRIME_FD_TO_HANDLE, PRIME_HANDLE_TO_FD, PrimeHandle, VERSION,
        Version,
    },
};

/// The flags of a plain mapping. Page tables are written with the next submission that names the
/// memory, all at once: for thousands of small BOs that is much less work than one by one.
const PLAIN: u32 =
    va_flag::READABLE | va_flag::WRITEABLE | va_flag::EXECUTABLE | va_flag::DELAY_UPDATE;

/// What a GPU says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenderInfo {
    /// The family: 141 for GFX9.
    pub family: u32,
    /// The version of its SDMA engines: major, minor, revision (0 where the kernel does not say).
    pub sdma_version: (u32, u32, u32),
    /// The rings that take SDMA commands.
    pub dma_rings: Vec<u32>,
    /// Addresses that can be mapped.
    pub addresses: std::ops::Range<u64>,
}

/// An open render node of an AMD GPU.
#[derive(Debug)]
pub struct RenderNode {
    node: Node,
    /// Whether it can be told until when to wait.
    has_our_clock: bool,
}

/// Where it cannot be told: how soon to look whether something is done, and how often later on. A
/// copy of a chunk takes some 100 us.
const FIRST_LOOK: Duration = Duration::from_micros(20);
const LATER_LOOKS: Duration = Duration::from_micros(500);

impl RenderNode {
    /// Opens a render node, which must be amdgpu's. It has an address space of its own, with nothing
    /// in it.
    pub fn open(driver: &dyn Driver, path: &Path) -> Result<Self, DeviceError> {
        RenderNode::of(Node::open(driver, path)?)
    }

    /// A render node that was opened elsewhere; `path` is for messages.
    pub fn adopt(driver: &dyn Driver, path: &Path, fd: OwnedFd) -> Result<Self, DeviceError> {
        RenderNode::of(Node::adopt(driver, path, fd)?)
    }

    fn of(node: Node) -> Result<Self, DeviceError> {
        let render = RenderNode { node, has_our_clock: clock::is_the_drivers() };
        let name = render.driver_name()?;
        if name != b"amdgpu" {
            let what = format!(
                "the driver is {:?} and not amdgpu: this is another kind of GPU",
                String::from_utf8_lossy(&name)
            );
            return Err(render.unsuitable(what));
        }
        Ok(render)
    }

    /// The node.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// The open file alone, for somebody else to [adopt](Self::adopt).
    pub fn into_file(self) -> Result<OwnedFd, DeviceError> {
        self.node.into_file()
    }

    fn driver_name(&self) -> Result<Vec<u8>, DeviceError> {
        let mut name = vec![0_u8; 32];
        let mut version = Version {
            name_len: name.len() as u64,
            name: name.as_mut_ptr().expose_provenance() as u64,
            ..Version::default()
        };
        // SAFETY: the kernel writes at most `name_len` bytes to `name`, during the call.
        unsafe { self.node.call(&VERSION, &mut version) }?;
        // The length may be larger than what was copied.
        name.truncate(usize::try_from(version.name_len).unwrap_or(usize::MAX));
        Ok(name)
    }

    /// What the GPU is.
    pub fn info(&self) -> Result<RenderInfo, DeviceError> {
        let device: InfoDevice = self.query(info::DEV_INFO, 0)?;
        let dma: InfoHwIp = self.query(info::HW_IP_INFO, hw_ip::DMA)?;
        let dma_rings: Vec<u32> =
            (0..32).filter(|ring| dma.available_rings & (1 << ring) != 0).collect();
        if dma_rings.is_empty() {
            return Err(self.unsuitable("the GPU has no SDMA ring that is ready".into()));
        }
        Ok(RenderInfo {
            family: device.family,
            sdma_version: (
                dma.hw_ip_version_major,
                dma.hw_ip_version_minor,
                // Major, minor and revision, a byte each.
                dma.ip_discovery_version & 0xff,
            ),
            dma_rings,
            addresses: device.virtual_address_offset..device.virtual_address_max,
        })
    }

    fn query<T: Plain>(&self, query: u32, kind: u32) -> Result<T, DeviceError> {
        let mut answer = T::zeroed();
        let bytes = answer.as_bytes_mut();
        let mut args = Info {
            return_pointer: bytes.as_mut_ptr().expose_provenance() as u64,
            return_size: u32::try_from(bytes.len()).unwrap_or(0),
            query,
            query_type: kind,
            ..Info::default()
        };
        // SAFETY: the kernel writes at most `return_size` bytes to `answer`, during the call, and
        // whatever it writes is a value.
        unsafe { self.node.call(&INFO, &mut args) }?;
        Ok(answer)
    }

    /// New memory in a [domain], all zeros: its handle.
    pub fn create(&self, bytes: u64, domains: u64) -> Result<u32, DeviceError> {
        let mut create = GemCreateIn { bo_size: bytes, domains, ..GemCreateIn::default() };
        // SAFETY: the argument has no addresses.
        unsafe { self.node.call(&GEM_CREATE, &mut create) }?;
        Ok(create.handle())
    }

    /// New memory that both sides reach: its handle, and a mapping of it.
    pub fn shared_memory(&self, bytes: usize) -> Result<(u32, DeviceMemory), DeviceError> {
        let handle = self.create(bytes as u64, domain::GTT)?;
        match self.map_memory(handle, bytes) {
            Ok(memory) => Ok((handle, memory)),
            Err(error) => {
                let _ = self.close(handle);
                Err(error)
            }
        }
    }

    /// Where a handle's memory is in the node's mmap space.
    pub fn mmap_offset(&self, handle: u32) -> Result<u64, DeviceError> {
        let mut args = GemMmapIn { handle, ..GemMmapIn::default() };
        // SAFETY: the argument has no addresses.
        unsafe { self.node.call(&GEM_MMAP, &mut args) }?;
        Ok(args.addr_ptr())
    }

    /// A handle for memory of this process.
    ///
    /// # Safety
    ///
    /// The memory must stay mapped until the handle is closed and no submission that uses it is at
    /// work, and commands may read and write it only while nobody else uses it.
    pub unsafe fn user_memory(&self, address: u64, bytes: u64) -> Result<u32, DeviceError> {
        let flags = userptr::ANONONLY | userptr::VALIDATE | userptr::REGISTER;
        let mut args = GemUserptr { addr: address, size: bytes, flags, handle: 0 };
        // SAFETY: the caller vouches for the memory.
        unsafe { self.node.call(&GEM_USERPTR, &mut args) }?;
        Ok(args.handle)
    }

    /// A handle for a dma-buf. The same one for the same memory, and one [`close`](Self::close)
    /// closes it.
    pub fn import(&self, dma_buf: BorrowedFd<'_>) -> Result<u32, DeviceError> {
        let mut args = PrimeHandle { handle: 0, flags: 0, fd: dma_buf.as_raw_fd() };
        // SAFETY: the argument has no addresses.
        unsafe { self.node.call(&PRIME_FD_TO_HANDLE, &mut args) }?;
        Ok(args.handle)
    }

    /// A dma-buf for a handle.
    pub fn export(&self, handle: u32) -> Result<OwnedFd, DeviceError> {
        let mut args = PrimeHandle { handle, flags: drm::CLOEXEC | drm::RDWR, fd: -1 };
        // SAFETY: the argument has no addresses.
        unsafe { self.node.call(&PRIME_HANDLE_TO_FD, &mut args) }?;
        if args.fd < 0 {
            return Err(self.unsuitable(format!("PRIME_HANDLE_TO_FD gave {}", args.fd)));
        }
        // SAFETY: the driver opened it during the call that has just returned, and told nobody else.
        Ok(unsafe { OwnedFd::from_raw_fd(args.fd) })
    }

    /// A mapping of a handle's memory.
    pub fn map_memory(&self, handle: u32, bytes: usize) -> Result<DeviceMemory, DeviceError> {
        self.mmap_offset(handle).and_then(|offset| self.node.map(offset, bytes))
    }

    /// Closes a handle.
    pub fn close(&self, handle: u32) -> Result<(), DeviceError> {
        // SAFETY: the argument has no addresses.
        unsafe { self.node.call(&GEM_CLOSE, &mut GemClose { handle, pad: 0 }) }
    }

    /// Maps all of a handle's `bytes` at a GPU address, for submissions from now on that name it.
    pub fn map(&self, handle: u32, address: u64, bytes: u64) -> Result<(), DeviceError> {
        self.va(va_op::MAP, handle, address, bytes)
    }

    /// Takes a mapping away.
    pub fn unmap(&self, handle: u32, address: u64, bytes: u64) -> Result<(), DeviceError> {
        self.va(va_op::UNMAP, handle, address, bytes)
    }

    fn va(&self, operation: u32, handle: u32, va: u64, size: u64) -> Result<(), DeviceError> {
        let mut args = GemVa {
            handle,
            operation,
            flags: PLAIN,
            va_address: va,
            map_size: size,
            ..GemVa::default()
        };
        // SAFETY: the addresses are the GPU's, in a space in which only this file's commands run.
        unsafe { self.node.call(&GEM_VA, &mut args) }
    }

    /// A new context for submissions.
    pub fn new_context(&self) -> Result<u32, DeviceError> {
        let mut args = CtxIn { op: ctx_op::ALLOC_CTX, ..CtxIn::default() };
        // SAFETY: the argument has no addresses.
        unsafe { self.node.call(&CTX, &mut args) }?;
        Ok(args.allocated())
    }

    /// Frees a context.
    pub fn free_context(&self, ctx_id: u32) -> Result<(), DeviceError> {
        let mut args = CtxIn { op: ctx_op::FREE_CTX, ctx_id, ..CtxIn::default() };
        // SAFETY: the argument has no addresses.
        unsafe { self.node.call(&CTX, &mut args) }
    }

    /// Submits the commands at a GPU address to a DMA ring: the number of the submission.
    /// `handles` names every BO that they touch.
    ///
    /// # Safety
    ///
    /// The commands touch only memory that the device may use until the submission is done.
    pub unsafe fn submit(
        &self,
        ctx_id: u32,
        ring: u32,
        address: u64,
        bytes: u32,
        handles: &[BoListEntry],
    ) -> Result<u64, DeviceError> {
        let ib = CsChunkIb {
            va_start: address,
            ib_bytes: bytes,
            ip_type: hw_ip::DMA,
            ring,
            ..CsChunkIb::default()
        };
        let list = BoListIn {
            bo_number: u32::try_from(handles.len()).unwrap_or(u32::MAX),
            bo_info_size: words(size_of::<BoListEntry>()) * 4,
            bo_info_ptr: handles.as_ptr().expose_provenance() as u64,
            ..BoListIn::default()
        };
        let chunks = [
            CsChunk {
                chunk_id: chunk_id::IB,
                length_dw: words(size_of::<CsChunkIb>()),
                chunk_data: (&raw const ib).expose_provenance() as u64,
            },
            CsChunk {
                chunk_id: chunk_id::BO_HANDLES,
                length_dw: words(size_of::<BoListIn>()),
                chunk_data: (&raw const list).expose_provenance() as u64,
            },
        ];
        let pointers =
            [&raw const chunks[0], &raw const chunks[1]].map(|at| at.expose_provenance() as u64);
        let mut args = CsIn {
            ctx_id,
            num_chunks: 2,
            chunks: pointers.as_ptr().expose_provenance() as u64,
            ..CsIn::default()
        };
        // SAFETY: the chunks live until the call has returned, and the kernel has copied them by
        // then; the caller vouches for what the commands touch.
        unsafe { self.node.call(&CS, &mut args) }?;
        Ok(args.handle())
    }

    /// Waits until a submission is done, at most so long: whether it is.
    pub fn wait(
        &self,
        ctx_id: u32,
        ring: u32,
        handle: u64,
        timeout: Duration,
    ) -> Result<bool, DeviceError> {
        let args = WaitCsIn { handle, ip_type: hw_ip::DMA, ring, ctx_id, ..WaitCsIn::default() };
        if !self.has_our_clock {
            return self.look(args, timeout);
        }
        let now = nix::time::clock_gettime(ClockId::CLOCK_MONOTONIC)
            .map_err(|errno| self.node.failed("WAIT_CS", errno))?;
        let deadline = Duration::from(now).saturating_add(timeout).as_nanos();
        // A negative number would mean for ever.
        let deadline = u64::try_from(deadline).unwrap_or(u64::MAX).min(i64::MAX.cast_unsigned());
        self.is_done(WaitCsIn { timeout: deadline, ..args })
    }

    /// The same where the driver cannot be told until when to wait: looks again and again.
    fn look(&self, args: WaitCsIn, timeout: Duration) -> Result<bool, DeviceError> {
        let since = Instant::now();
        let mut pause = FIRST_LOOK;
        loop {
            // (The time 0 is past by every clock.)
            if self.is_done(args)? {
                return Ok(true);
            }
            let Some(left) = timeout.checked_sub(since.elapsed()) else { return Ok(false) };
            std::thread::sleep(pause.min(left));
            pause = (pause * 2).min(LATER_LOOKS);
        }
    }

    fn is_done(&self, mut args: WaitCsIn) -> Result<bool, DeviceError> {
        // SAFETY: the argument has no addresses.
        unsafe { self.node.call(&WAIT_CS, &mut args) }?;
        Ok(!args.busy())
    }

    pub(super) fn unsuitable(&self, what: String) -> DeviceError {
        DeviceError::Unsuitable { node: self.node.path().to_owned(), what }
    }
}

impl AsFd for RenderNode {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.node.as_fd()
    }
}

/// Bytes in 32-bit words.
fn words(bytes: usize) -> u32 {
    u32::try_from(bytes / 4).unwrap_or(u32::MAX)
}
