//! The names of contents files.

use std::fmt;

use crate::{error::Result, format::FileName};

/// The file with the contents of one GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PagesFile {
    /// The number that CRIU gave the process's `/dev/kfd`.
    pub id: u32,
    /// What the application calls the GPU.
    pub gpu_id: u32,
}

impl PagesFile {
    /// What a name says, if it is one of such a file.
    pub fn parse(name: &str) -> Option<Self> {
        let (id, gpu) =
            name.strip_prefix("amdgpu-pages-")?.strip_suffix(".img")?.split_once('-')?;
        let file = PagesFile { id: id.parse().ok()?, gpu_id: u32::from_str_radix(gpu, 16).ok()? };
        // One way to write each name.
        (file.to_string() == name).then_some(file)
    }

    /// The name.
    pub fn name(&self) -> Result<FileName> {
        Ok(FileName::new(&self.to_string())?)
    }
}

impl fmt::Display for PagesFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "amdgpu-pages-{}-{:04x}.img", self.id, self.gpu_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_plugin() {
        let file = PagesFile { id: 12, gpu_id: 0xab };
        assert_eq!(file.to_string(), "amdgpu-pages-12-00ab.img");
        assert_eq!(PagesFile::parse("amdgpu-pages-12-00ab.img"), Some(file));
        let long = PagesFile { id: 0, gpu_id: 0x12345 };
        assert_eq!(PagesFile::parse(&long.to_string()), Some(long));
        for name in [
            "amdgpu-pages-12-ab.img",
            "amdgpu-pages-12-00AB.img",
            "amdgpu-pages-012-00ab.img",
            "amdgpu-pages-12-00ab.img.tmp",
            "amdgpu-pages--00ab.img",
            "amdgpu-pages-+1-00ab.img",
            "amdgpu-kfd-12.img",
            "pages-1.img",
        ] {
            assert_eq!(PagesFile::parse(name), None, "{name}");
        }
    }
}
