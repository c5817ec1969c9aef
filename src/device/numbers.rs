//! Device numbers: which of them are an AMD GPU's. Asks no device.

use std::{fs, path::Path};

use nix::{
    libc,
    sys::stat::{SFlag, major, makedev, minor, stat},
};

use super::{DeviceKind, KFD_NODE};

/// The major number of DRM devices, and the first minor number of render nodes.
pub(super) const DRM_MAJOR: u64 = 226;
const FIRST_RENDER_MINOR: u64 = 128;
/// Where the kernel shows the number of `/dev/kfd`, in containers too.
const KFD_NUMBER: &str = "/sys/class/kfd/kfd/dev";

/// What a device number is of on this machine.
pub fn of_kernel(number: u64) -> Option<DeviceKind> {
    if kfd() == Some(number) {
        return Some(DeviceKind::Kfd);
    }
    let render = render(number)?;
    // Other vendors have render nodes too.
    let device = format!("/sys/dev/char/{}:{}/device/driver", major(number), minor(number));
    let driver = fs::read_link(device).ok()?;
    (driver.file_name()? == "amdgpu").then_some(render)
}

/// The number of the device that a path is the usual name of; `None` if it is no device of ours, or
/// not known. Asks sysfs, not the path.
pub(super) fn of_name(path: &Path) -> Option<libc::dev_t> {
    if path == Path::new(KFD_NODE) {
        return read(Path::new(KFD_NUMBER));
    }
    let name = path.strip_prefix("/dev/dri").ok()?.to_str()?;
    let minor: u32 = name.strip_prefix("renderD")?.parse().ok()?;
    Some(makedev(DRM_MAJOR, minor.into()))
}

/// What a device number is of, if it is a render node; of which vendor is not known.
pub fn render(number: u64) -> Option<DeviceKind> {
    let is_render = major(number) == DRM_MAJOR && minor(number) >= FIRST_RENDER_MINOR;
    let minor = u32::try_from(minor(number)).ok().filter(|_| is_render)?;
    Some(DeviceKind::Render { minor })
}

/// The number of `/dev/kfd`. sysfs has it in every container; where there is no sysfs, the node.
pub fn kfd() -> Option<libc::dev_t> {
    if let Some(number) = read(Path::new(KFD_NUMBER)) {
        return Some(number);
    }
    let node = stat(KFD_NODE).ok()?;
    let is_device = SFlag::from_bits_truncate(node.st_mode) & SFlag::S_IFMT == SFlag::S_IFCHR;
    is_device.then_some(node.st_rdev)
}

/// The number that a file of sysfs has.
pub fn read(file: &Path) -> Option<libc::dev_t> {
    let text = fs::read_to_string(file).ok()?;
    let (major, minor) = text.trim_end().split_once(':')?;
    Some(makedev(major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_devices_are_nothing_of_ours() {
        let null = stat("/dev/null").unwrap().st_rdev;
        assert_eq!(of_kernel(null), None);
        assert_eq!(render(null), None);
        assert_eq!(render(makedev(226, 1)), None);
        assert_eq!(render(makedev(226, 129)), Some(DeviceKind::Render { minor: 129 }));
    }

    #[test]
    fn names_of_render_nodes_have_their_numbers() {
        let number = |path: &str| of_name(Path::new(path));
        assert_eq!(number("/dev/dri/renderD129"), Some(makedev(226, 129)));
        for other in ["/dev/dri/card0", "/dev/dri/renderD", "/dev/renderD129", "/dev/null", ""] {
            assert_eq!(number(other), None, "{other}");
        }
    }
}
