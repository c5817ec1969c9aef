//! What the files are called.

use std::{fmt, str::FromStr};

/// The name of an image file. `id` is what CRIU calls the file that it is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ImageName {
    /// A process on /dev/kfd.
    Kfd {
        /// CRIU's id.
        id: u32,
    },
    /// Contents of its BOs.
    Pages {
        /// CRIU's id.
        id: u32,
        /// The GPU, as the process calls it.
        gpu_id: u32,
    },
    /// An open render node.
    Render {
        /// CRIU's id.
        id: u32,
    },
    /// Contents of one of its BOs.
    DrmPages {
        /// CRIU's id.
        id: u32,
        /// The number of the render node.
        minor: u32,
        /// The BO, by its place in the image of the render node.
        bo: u32,
    },
    /// A dma-buf.
    Dmabuf {
        /// CRIU's id.
        id: u32,
    },
}

impl fmt::Display for ImageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ImageName::Kfd { id } => write!(f, "amdgpu-kfd-{id}.img"),
            ImageName::Pages { id, gpu_id } => write!(f, "amdgpu-pages-{id}-{gpu_id:04x}.img"),
            ImageName::Render { id } => write!(f, "amdgpu-renderD-{id}.img"),
            ImageName::DrmPages { id, minor, bo } => {
                write!(f, "amdgpu-drm-pages-{id}-{minor}-{bo:04x}.img")
            }
            ImageName::Dmabuf { id } => write!(f, "amdgpu-dmabuf_{id}.img"),
        }
    }
}

/// A name of something else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not the name of an image file of CRIU's amdgpu plugin")]
pub struct OtherName;

impl FromStr for ImageName {
    type Err = OtherName;

    fn from_str(text: &str) -> Result<Self, OtherName> {
        let name = parse(text).ok_or(OtherName)?;
        // Only one spelling is the name.
        if name.to_string() == text { Ok(name) } else { Err(OtherName) }
    }
}

fn parse(text: &str) -> Option<ImageName> {
    let text = text.strip_prefix("amdgpu-")?.strip_suffix(".img")?;
    let number = |text: &str| text.parse().ok();
    let hex = |text: &str| u32::from_str_radix(text, 16).ok();
    if let Some(id) = text.strip_prefix("dmabuf_") {
        return Some(ImageName::Dmabuf { id: number(id)? });
    }
    if let Some(rest) = text.strip_prefix("drm-pages-") {
        let mut parts = rest.splitn(3, '-');
        let (id, minor, bo) = (parts.next()?, parts.next()?, parts.next()?);
        return Some(ImageName::DrmPages { id: number(id)?, minor: number(minor)?, bo: hex(bo)? });
    }
    let (kind, rest) = text.split_once('-')?;
    match kind {
        "kfd" => Some(ImageName::Kfd { id: number(rest)? }),
        "renderD" => Some(ImageName::Render { id: number(rest)? }),
        "pages" => {
            let (id, gpu_id) = rest.split_once('-')?;
            Some(ImageName::Pages { id: number(id)?, gpu_id: hex(gpu_id)? })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_plugin() {
        for (name, text) in [
            (ImageName::Kfd { id: 7 }, "amdgpu-kfd-7.img"),
            (ImageName::Pages { id: 12, gpu_id: 0xa1 }, "amdgpu-pages-12-00a1.img"),
            (ImageName::Pages { id: 12, gpu_id: 0x1_2345 }, "amdgpu-pages-12-12345.img"),
            (ImageName::Render { id: u32::MAX }, "amdgpu-renderD-4294967295.img"),
            (
                ImageName::DrmPages { id: 3, minor: 128, bo: 0x1f },
                "amdgpu-drm-pages-3-128-001f.img",
            ),
            (ImageName::Dmabuf { id: 4 }, "amdgpu-dmabuf_4.img"),
        ] {
            assert_eq!((name.to_string().as_str(), text.parse()), (text, Ok(name)));
        }
    }

    #[test]
    fn other_names_are_of_other_files() {
        for text in [
            "",
            "inventory.img",
            "amdgpu-kfd-.img",
            "amdgpu-kfd-07.img",
            "amdgpu-kfd-+7.img",
            "amdgpu-kfd-7.img.tmp",
            "amdgpu-kfd-4294967296.img",
            "amdgpu-pages-1.img",
            "amdgpu-pages-1-A0F1.img",
            "amdgpu-pages-1-a1.img",
            "amdgpu-drm-pages-3-128.img",
            "amdgpu-dmabuf-4.img",
        ] {
            assert_eq!(text.parse::<ImageName>(), Err(OtherName), "{text}");
        }
    }
}
