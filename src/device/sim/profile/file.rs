//! Profiles from files: the lines of a node's `properties` as a real machine shows them, and a few
//! of our own.
//!
//! ```text
//! # Lines of ours. Those with a * must be there.
//! name my-gpu                 *
//! kernel_name aldebaran       what the node's `name` says
//! vram_bytes 68702699520      *
//! sdma_version 4.4            *
//! family 141
//! large_bar 1
//! memory_width 4096
//! memory_clock 1600
//! pcie_bandwidth 32000
//! xgmi_bandwidth 50000
//! # Then the file as it is.
//! simd_count 416
//! ...
//! ```

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::Profile;

/// A file that is no profile.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// It cannot be read.
    #[error("{}: cannot read the GPU profile: {source}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A line that is not a name and a number.
    #[error("{}:{line}: {what}", file.display())]
    Line {
        /// The file.
        file: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong with it.
        what: String,
    },
    /// A line that must be there is not.
    #[error("{}: there is no line `{key}`", file.display())]
    Missing {
        /// The file.
        file: PathBuf,
        /// How the line begins.
        key: &'static str,
    },
    /// More than a profile can be.
    #[error("{}: larger than {MOST_BYTES} bytes, which is no GPU profile", file.display())]
    TooLarge {
        /// The file.
        file: PathBuf,
    },
}

const MOST_BYTES: usize = 64 << 10;
/// Lines that a machine decides, and not a model.
const OF_THE_MACHINE: [&str; 9] = [
    "cpu_cores_count",
    "io_links_count",
    "p2p_links_count",
    "cpu_core_id_base",
    "location_id",
    "domain",
    "drm_render_minor",
    "hive_id",
    "unique_id",
];
/// Lines without which a node makes no sense.
const NEEDED: [&str; 5] =
    ["simd_count", "simd_per_cu", "gfx_target_version", "device_id", "num_sdma_engines"];

impl Profile {
    /// Reads a profile.
    pub fn from_file(file: &Path) -> Result<Self, ProfileError> {
        let read = |source| ProfileError::Read { file: file.to_owned(), source };
        if fs::metadata(file).map_err(read)?.len() > MOST_BYTES as u64 {
            return Err(ProfileError::TooLarge { file: file.to_owned() });
        }
        Self::parse(file, &fs::read_to_string(file).map_err(read)?)
    }

    /// Reads a profile from text; `file` is for messages.
    pub fn parse(file: &Path, text: &str) -> Result<Self, ProfileError> {
        if text.len() > MOST_BYTES {
            return Err(ProfileError::TooLarge { file: file.to_owned() });
        }
        let mut parser = Parser::default();
        for (line, content) in (1..).zip(text.lines()) {
            let content = content.trim();
            if content.is_empty() || content.starts_with('#') {
                continue;
            }
            let wrong = |what| ProfileError::Line { file: file.to_owned(), line, what };
            parser.line(content).map_err(wrong)?;
        }
        parser.finish().map_err(|key| ProfileError::Missing { file: file.to_owned(), key })
    }
}

#[derive(Debug)]
struct Parser {
    profile: Profile,
    seen: Vec<String>,
}

impl Default for Parser {
    fn default() -> Self {
        let profile = Profile {
            name: String::new(),
            kernel_name: "ip discovery".into(),
            family: 141,
            sdma_version: (0, 0),
            vram_bytes: 0,
            large_bar: true,
            memory_width: 4096,
            memory_clock: 1000,
            pcie_bandwidth: 32000,
            xgmi_bandwidth: 50000,
            sdma_engines: 0,
            device_id: 0,
            properties: Vec::new(),
        };
        Parser { profile, seen: Vec::new() }
    }
}

impl Parser {
    fn line(&mut self, content: &str) -> Result<(), String> {
        let (key, value) = content
            .split_once(char::is_whitespace)
            .map(|(key, value)| (key, value.trim()))
            .ok_or_else(|| format!("`{content}` is not a name and a value"))?;
        if self.seen.iter().any(|seen| seen == key) {
            return Err(format!("`{key}` is there twice"));
        }
        self.seen.push(key.to_owned());
        let profile = &mut self.profile;
        match key {
            "name" => profile.name = value.to_owned(),
            "kernel_name" => profile.kernel_name = value.to_owned(),
            "sdma_version" => {
                let parts = value.split_once('.');
                profile.sdma_version = parts
                    .and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)))
                    .ok_or_else(|| format!("sdma_version `{value}` is not like 4.4"))?;
            }
            "vram_bytes" => {
                profile.vram_bytes = number(key, value)?;
                if profile.vram_bytes == 0 || !profile.vram_bytes.is_multiple_of(4096) {
                    return Err(format!("vram_bytes {value} is not a multiple of 4096"));
                }
            }
            "large_bar" => profile.large_bar = number::<u64>(key, value)? != 0,
            "family" => profile.family = number(key, value)?,
            "memory_width" => profile.memory_width = number(key, value)?,
            "memory_clock" => profile.memory_clock = number(key, value)?,
            "pcie_bandwidth" => profile.pcie_bandwidth = number(key, value)?,
            "xgmi_bandwidth" => profile.xgmi_bandwidth = number(key, value)?,
            _ => {
                let value: u64 = number(key, value)?;
                if !OF_THE_MACHINE.contains(&key) {
                    profile.properties.push((key.to_owned(), value));
                }
            }
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Profile, &'static str> {
        let ours = ["name", "vram_bytes", "sdma_version"];
        for key in ours.into_iter().chain(NEEDED) {
            if !self.seen.iter().any(|seen| seen == key) {
                return Err(key);
            }
        }
        self.profile.take_over();
        Ok(self.profile)
    }
}

fn number<T: std::str::FromStr>(key: &str, value: &str) -> Result<T, String> {
    value.parse().map_err(|_| format!("{key} `{value}` is not a number in range"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "# mine\nname mine\nvram_bytes 1073741824\nsdma_version 5.2\nfamily 143\n\
        \ncpu_cores_count 0\nsimd_count 160\nsimd_per_cu 2\ngfx_target_version 100300\n\
        device_id 29631\nlocation_id 768\nnum_sdma_engines 2\nsomething_new 5\n";

    fn parse(text: &str) -> Result<Profile, String> {
        Profile::parse(Path::new("mine.gpu"), text).map_err(|error| error.to_string())
    }

    #[test]
    fn a_file_with_what_a_real_machine_shows() {
        let profile = parse(GOOD).unwrap();
        assert_eq!((profile.name.as_str(), profile.family), ("mine", 143));
        assert_eq!((profile.sdma_version, profile.sdma_engines), ((5, 2), 2));
        assert_eq!((profile.device_id, profile.property("something_new")), (29631, 5));
        assert_eq!(profile.property("location_id"), 0);
        assert_eq!(profile.properties[0], ("simd_count".into(), 160));
    }

    #[test]
    fn mistakes_are_told_with_file_and_line() {
        for (from, to, message) in [
            ("sdma_version 5.2", "sdma_version 5", "mine.gpu:4: sdma_version `5` is not like 4.4"),
            ("simd_count 160", "simd_count", "mine.gpu:8: `simd_count` is not a name and a value"),
            ("family 143", "family x", "mine.gpu:5: family `x` is not a number in range"),
            (
                "vram_bytes 1073741824",
                "vram_bytes 5",
                "mine.gpu:3: vram_bytes 5 is not a multiple of 4096",
            ),
            ("family 143", "name x", "mine.gpu:5: `name` is there twice"),
            ("device_id 29631\n", "", "mine.gpu: there is no line `device_id`"),
            ("name mine\n", "", "mine.gpu: there is no line `name`"),
        ] {
            assert_eq!(parse(&GOOD.replace(from, to)), Err(message.into()));
        }
        let large = "#".repeat(MOST_BYTES + 1);
        assert!(parse(&large).unwrap_err().contains("larger than"));
        let missing = Profile::from_file(Path::new("/nonexistent/x.gpu")).unwrap_err();
        assert!(missing.to_string().contains("/nonexistent/x.gpu: cannot read"), "{missing}");
    }

    #[test]
    fn a_file_on_disk() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mine.gpu");
        fs::write(&path, GOOD).unwrap();
        assert_eq!(Profile::from_file(&path).unwrap(), parse(GOOD).unwrap());
    }
}
