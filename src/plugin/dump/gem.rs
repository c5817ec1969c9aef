//! The BOs of an open render node, and which of them nobody could make again.

use nix::errno::Errno;

use crate::{
    abi::amdgpu::{create, domain, list_flag, va_flag},
    device::{DeviceError, GemBo, RenderNode},
    image::{DrmBo, DrmVm},
    plugin::{
        error::{Error, Result},
        gpus::MOST_HANDLES,
    },
};

/// Memory that a BO can be made in again.
const MEMORY: u64 = domain::VRAM | domain::GTT;
/// What a BO can be made with again. (The contents of encrypted ones cannot be had.)
const FLAGS: u64 = create::CPU_ACCESS_REQUIRED
    | create::NO_CPU_ACCESS
    | create::CPU_GTT_USWC
    | create::VRAM_CLEARED
    | create::VRAM_CONTIGUOUS
    | create::EXPLICIT_SYNC
    | create::VRAM_WIPE_ON_RELEASE
    | create::DISCARDABLE
    | create::COHERENT
    | create::UNCACHED
    | create::EXT_COHERENT;
/// How a BO can be mapped again.
const MAPPED: u32 = va_flag::DELAY_UPDATE
    | va_flag::READABLE
    | va_flag::WRITEABLE
    | va_flag::EXECUTABLE
    | va_flag::MTYPE_MASK
    | va_flag::NOALLOC;

/// All BOs of a file; `None` where the kernel does not tell. `what` is the file, for messages.
pub(super) fn list(render: &RenderNode, what: &str) -> Result<Option<Vec<Listed>>> {
    let Some(bos) = render.bos()? else { return Ok(None) };
    let listed = bos.into_iter().map(|gem| {
        let bo = bo(render, what, &gem)?;
        Ok(Listed { flags: gem.create.domain_flags, is_foreign: gem.is_foreign(), bo })
    });
    listed.collect::<Result<_>>().map(Some)
}

/// A BO that is in a list.
#[derive(Debug)]
pub(super) struct Listed {
    pub bo: DrmBo,
    /// Whether it is of another device.
    pub is_foreign: bool,
    flags: u64,
}

fn bo(render: &RenderNode, what: &str, gem: &GemBo) -> Result<DrmBo> {
    let handle = gem.handle;
    let refuse = |why: String| Error::Unsupported(format!("{what}: BO {handle} {why}"));
    if handle == 0 || handle > MOST_HANDLES {
        let why =
            format!("cannot be restored: handles above {MOST_HANDLES} take too long to reach");
        return Err(refuse(why));
    }
    if gem.flags & !list_flag::IS_IMPORT != 0 {
        return Err(refuse(format!(
            "is of a kind that is not known here (flags {:#x})",
            gem.flags
        )));
    }
    let create = &gem.create;
    let offset = match render.mmap_offset(handle) {
        Ok(offset) => offset,
        // No CPU may map it.
        Err(DeviceError::Call { errno: Errno::EPERM, .. })
            if gem.is_foreign() || create.domain_flags & create::NO_CPU_ACCESS != 0 =>
        {
            0
        }
        Err(DeviceError::Call { errno: Errno::EPERM, .. }) => {
            let why = "is memory of the process (GEM_USERPTR), and the kernel does not tell at which address: it cannot be restored";
            return Err(refuse(why.into()));
        }
        Err(error) => return Err(error.into()),
    };
    if create.domain_flags & create::VM_ALWAYS_VALID != 0 {
        let why = "was made with VM_ALWAYS_VALID: such a BO cannot be shared, so its contents cannot be had";
        return Err(refuse(why.into()));
    }
    let mappings = render.mappings(handle)?.into_iter().map(|vm| {
        if u32::try_from(vm.flags).is_ok_and(|flags| flags & !MAPPED == 0) {
            return Ok(DrmVm { addr: vm.addr, size: vm.size, offset: vm.offset, flags: vm.flags });
        }
        let (addr, flags) = (vm.addr, vm.flags);
        Err(refuse(format!("is mapped at {addr:#x} in a way that is not known here ({flags:#x})")))
    });
    let mappings: Vec<DrmVm> = mappings.collect::<Result<_>>()?;
    let preferred_domains = u32::try_from(create.domains)
        .map_err(|_| refuse(format!("is in no known memory ({:#x})", create.domains)))?;
    Ok(DrmBo {
        addr: mappings.last().map_or(0, |vm| vm.addr),
        size: create.bo_size,
        offset,
        alloc_flags: create.domain_flags,
        alignment: create.alignment,
        preferred_domains,
        handle,
        is_import: gem.is_foreign(),
        mappings,
    })
}

impl Listed {
    /// Nobody else has made it: whether it can be made again.
    pub(super) fn check_own(&self, what: &str) -> Result<()> {
        let handle = self.bo.handle;
        let domains = u64::from(self.bo.preferred_domains);
        if domains & MEMORY == 0 || domains & !(MEMORY | domain::CPU) != 0 {
            return Err(Error::Unsupported(format!(
                "{what}: BO {handle} is neither in VRAM nor in GTT (domains {domains:#x}): it cannot be restored"
            )));
        }
        let unknown = self.flags & !FLAGS;
        if unknown != 0 {
            return Err(Error::Unsupported(format!(
                "{what}: BO {handle} was made with flags that cannot be restored ({unknown:#x})"
            )));
        }
        Ok(())
    }
}
