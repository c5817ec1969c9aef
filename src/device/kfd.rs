//! `/dev/kfd`, as a checkpointer uses it: typed, and with descriptors that have an owner.

use std::{
    os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd},
    path::Path,
};

use super::{DeviceError, Driver, Node};
use crate::abi::kfd::{
    CRIU_OP, CriuArgs, CriuBoBucket, CriuDeviceBucket, GET_VERSION, GetVersion, INVALID_FD,
    MINIMUM_MINOR, criu_op,
};

/// Where it is.
pub const KFD_NODE: &str = "/dev/kfd";

/// The most of each kind of thing that a process may have. Far beyond any real process: it keeps a
/// broken answer from becoming an allocation.
const MOST_BOS: u32 = 1 << 24;
const MOST_DEVICES: u32 = 1 << 10;
const MOST_PRIVATE_BYTES: u64 = 16 << 30;

/// An open `/dev/kfd`.
#[derive(Debug)]
pub struct Kfd {
    node: Node,
}

/// How much state a process has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessInfo {
    /// Its main thread, in its own pid namespace.
    pub pid: u32,
    /// GPUs that it can see.
    pub devices: u32,
    /// BOs.
    pub bos: u32,
    /// Queues, events and SVM ranges.
    pub objects: u32,
    /// Size of the private data, in bytes.
    pub private_bytes: u64,
}

/// The state of a process, without the contents of its BOs.
#[derive(Debug)]
pub struct Checkpoint {
    /// How much of everything.
    pub info: ProcessInfo,
    /// The GPUs.
    pub devices: Vec<CriuDeviceBucket>,
    /// The BOs, in the kernel's order.
    pub bos: Vec<CheckpointedBo>,
    /// What only the kernel reads.
    pub private: Vec<u8>,
}

/// A BO of a process that was checkpointed.
#[derive(Debug)]
pub struct CheckpointedBo {
    /// What the kernel says of it. Its descriptor is [`dma_buf`](Self::dma_buf).
    pub bucket: CriuBoBucket,
    /// Its contents, where it has any: VRAM and GTT.
    pub dma_buf: Option<OwnedFd>,
}

/// A BO that was made again.
#[derive(Debug)]
pub struct RestoredBo {
    /// What was asked for, with the new place in the mmap space of the render node.
    pub bucket: CriuBoBucket,
    /// Where the contents go, where it has any.
    pub dma_buf: Option<OwnedFd>,
}

impl Kfd {
    /// Opens it.
    pub fn open(driver: &dyn Driver) -> Result<Self, DeviceError> {
        Ok(Kfd { node: Node::open(driver, Path::new(KFD_NODE))? })
    }

    /// The open file of another process, by a descriptor of it.
    pub fn adopt(driver: &dyn Driver, fd: OwnedFd) -> Result<Self, DeviceError> {
        Ok(Kfd { node: Node::adopt(driver, Path::new(KFD_NODE), fd)? })
    }

    /// The node.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// The open file alone.
    pub fn into_file(self) -> Result<OwnedFd, DeviceError> {
        self.node.into_file()
    }

    /// The version of the interface, which must be one that checkpoints.
    pub fn version(&self) -> Result<(u32, u32), DeviceError> {
        let mut version = GetVersion::default();
        // SAFETY: the argument has no addresses.
        unsafe { self.node.call(&GET_VERSION, &mut version) }?;
        let GetVersion { major_version: major, minor_version: minor } = version;
        if major != 1 || minor < MINIMUM_MINOR {
            return Err(self.unsuitable(format!(
                "the driver's interface is {major}.{minor}, and 1.{MINIMUM_MINOR} or later is needed: a newer kernel has it"
            )));
        }
        Ok((major, minor))
    }

    /// Stops the process's queues, and says how much state there is. Pairs with
    /// [`unpause`](Self::unpause), exactly once. After an error they run.
    pub fn process_info(&self) -> Result<ProcessInfo, DeviceError> {
        let mut args = CriuArgs { op: criu_op::PROCESS_INFO, ..CriuArgs::default() };
        // SAFETY: the argument has no addresses.
        unsafe { self.node.call(&CRIU_OP, &mut args) }?;
        let info = ProcessInfo {
            pid: args.pid,
            devices: args.num_devices,
            bos: args.num_bos,
            objects: args.num_objects,
            private_bytes: args.priv_data_size,
        };
        if info.bos > MOST_BOS
            || info.devices > MOST_DEVICES
            || info.private_bytes > MOST_PRIVATE_BYTES
        {
            // (An answer that is an error has not stopped them.)
            self.unpause()?;
            return Err(self.unsuitable(format!("cannot believe the state's size: {info:?}")));
        }
        Ok(info)
    }

    /// The state of a process whose queues are stopped.
    pub fn checkpoint(&self, info: ProcessInfo) -> Result<Checkpoint, DeviceError> {
        let mut devices = vec![CriuDeviceBucket::default(); info.devices as usize];
        let empty = CriuBoBucket { dmabuf_fd: INVALID_FD, ..CriuBoBucket::default() };
        // The kernel wants addresses also where there is nothing to write.
        let mut bos = vec![empty; info.bos.max(1) as usize];
        let private_bytes = usize::try_from(info.private_bytes).unwrap_or(usize::MAX);
        let mut private = vec![0_u8; private_bytes.max(1)];
        let mut args = CriuArgs {
            op: criu_op::CHECKPOINT,
            devices: devices.as_mut_ptr().expose_provenance() as u64,
            bos: bos.as_mut_ptr().expose_provenance() as u64,
            priv_data: private.as_mut_ptr().expose_provenance() as u64,
            priv_data_size: info.private_bytes,
            num_devices: info.devices,
            num_bos: info.bos,
            num_objects: info.objects,
            ..CriuArgs::default()
        };
        // SAFETY: the three addresses are of vectors that have as many elements as the argument
        // says and live until the call has returned; the kernel does not keep them.
        unsafe { self.node.call(&CRIU_OP, &mut args) }?;
        bos.truncate(info.bos as usize);
        private.truncate(private_bytes);
        let bos = bos.into_iter().map(|bucket| {
            let dma_buf = own(bucket.dmabuf_fd);
            CheckpointedBo { bucket, dma_buf }
        });
        Ok(Checkpoint { info, devices, bos: bos.collect(), private })
    }

    /// Lets the queues run again.
    pub fn unpause(&self) -> Result<(), DeviceError> {
        let mut args = CriuArgs { op: criu_op::UNPAUSE, ..CriuArgs::default() };
        // SAFETY: the argument has no addresses.
        unsafe { self.node.call(&CRIU_OP, &mut args) }
    }

    /// Makes the state of a process in the calling one. `devices` has, for each GPU that the process
    /// sees, an open render node of its new GPU in `drm_fd`.
    pub fn restore(
        &self,
        devices: &[CriuDeviceBucket],
        bos: &[CriuBoBucket],
        private: &[u8],
        objects: u32,
    ) -> Result<Vec<RestoredBo>, DeviceError> {
        let too_many = |_| self.unsuitable("more devices or BOs than 32 bits can count".into());
        let mut devices = devices.to_vec();
        let mut buckets = bos.to_vec();
        buckets.iter_mut().for_each(|bucket| bucket.dmabuf_fd = INVALID_FD);
        let mut private = private.to_vec();
        let mut args = CriuArgs {
            op: criu_op::RESTORE,
            devices: devices.as_mut_ptr().expose_provenance() as u64,
            bos: buckets.as_mut_ptr().expose_provenance() as u64,
            priv_data: private.as_mut_ptr().expose_provenance() as u64,
            priv_data_size: private.len() as u64,
            num_devices: u32::try_from(devices.len()).map_err(too_many)?,
            num_bos: u32::try_from(buckets.len()).map_err(too_many)?,
            num_objects: objects,
            ..CriuArgs::default()
        };
        // Once: a restore that failed leaves the process partly filled, and a second one would only
        // stumble over that.
        // SAFETY: as in `checkpoint`.
        let answer = unsafe { self.node.call_once(&CRIU_OP, &mut args) };
        // Also after a failure: the kernel leaves some descriptors behind, and they pin VRAM.
        let restored: Vec<_> = buckets
            .into_iter()
            .map(|bucket| RestoredBo { bucket, dma_buf: own(bucket.dmabuf_fd) })
            .collect();
        answer.map(|()| restored)
    }

    /// Starts a process that was restored, by its number in the caller's pid namespace. Any open
    /// `/dev/kfd` will do.
    pub fn resume(&self, pid: u32) -> Result<(), DeviceError> {
        let mut args = CriuArgs { op: criu_op::RESUME, pid, ..CriuArgs::default() };
        // SAFETY: the argument has no addresses.
        unsafe { self.node.call(&CRIU_OP, &mut args) }
    }

    fn unsuitable(&self, what: String) -> DeviceError {
        DeviceError::Unsuitable { node: self.node.path().to_owned(), what }
    }
}

impl AsFd for Kfd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.node.as_fd()
    }
}

/// Takes over a descriptor that the kernel has just made for us.
fn own(fd: u32) -> Option<OwnedFd> {
    let fd = i32::try_from(fd).ok()?;
    // SAFETY: the driver opened it during the call that has just returned, and told nobody else.
    Some(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use std::{
        fs::File,
        sync::{Arc, Mutex},
    };

    use super::*;
    use crate::{
        abi::Plain,
        device::{DeviceFile, DeviceKind, DeviceMemory},
    };

    /// A driver that says what no driver says, and keeps the operations that it was asked for.
    #[derive(Debug, Clone, Default)]
    struct Odd {
        answer: CriuArgs,
        asked: Arc<Mutex<Vec<u32>>>,
    }

    #[derive(Debug)]
    struct OddFile(Odd, File);

    impl Driver for Odd {
        fn open(&self, _: &Path) -> nix::Result<Box<dyn DeviceFile>> {
            Ok(Box::new(OddFile(self.clone(), tempfile::tempfile().unwrap())))
        }

        fn adopt(&self, fd: OwnedFd) -> nix::Result<Box<dyn DeviceFile>> {
            Ok(Box::new(OddFile(self.clone(), fd.into())))
        }

        fn identify(&self, _: BorrowedFd<'_>) -> nix::Result<Option<DeviceKind>> {
            Ok(None)
        }
    }

    impl DeviceFile for OddFile {
        unsafe fn ioctl(&self, _: u32, argument: &mut [u8]) -> nix::Result<()> {
            let mut args = CriuArgs::default();
            args.as_bytes_mut().copy_from_slice(argument);
            self.0.asked.lock().unwrap().push(args.op);
            argument.copy_from_slice(self.0.answer.as_bytes());
            Ok(())
        }

        fn map(&self, _: u64, _: usize) -> nix::Result<DeviceMemory> {
            Err(nix::errno::Errno::ENODEV)
        }
    }

    impl AsFd for OddFile {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.1.as_fd()
        }
    }

    /// The queues are stopped by then, and nobody else knows.
    #[test]
    fn a_process_whose_state_cannot_be_believed_goes_on() {
        let answers = [
            CriuArgs { num_bos: MOST_BOS + 1, ..CriuArgs::default() },
            CriuArgs { num_devices: MOST_DEVICES + 1, ..CriuArgs::default() },
            CriuArgs { priv_data_size: MOST_PRIVATE_BYTES + 1, ..CriuArgs::default() },
        ];
        for answer in answers {
            let driver = Odd { answer, ..Odd::default() };
            let error = Kfd::open(&driver).unwrap().process_info().unwrap_err();
            assert!(error.to_string().contains("cannot believe"), "{error}");
            assert_eq!(*driver.asked.lock().unwrap(), [criu_op::PROCESS_INFO, criu_op::UNPAUSE]);
        }
    }
}
