//! Reads an image from the files of a directory.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
};

use rustix::fs::{Advice, fadvise};

use super::{is_temporary, parse_shard_name, resembles_shard, shard_name};
use crate::{
    error::{Error, Result},
    transport::{Origin, ShardReader},
};

/// A directory that holds an image.
#[derive(Debug)]
pub struct FileOrigin {
    dir: PathBuf,
}

impl FileOrigin {
    /// The directory; nothing is opened yet.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        FileOrigin { dir: dir.into() }
    }

    /// Opens all shards, in their order, with a name for each.
    pub fn files(&self) -> Result<Vec<(String, File)>> {
        let mut files = Vec::new();
        for name in self.find()?.into_values() {
            let path = self.dir.join(name);
            let name = path.display().to_string();
            let file = File::open(&path).map_err(Error::io(|| format!("open {name}")))?;
            files.push((name, file));
        }
        Ok(files)
    }

    /// The names of all shards by their number.
    fn find(&self) -> Result<BTreeMap<u32, String>> {
        let dir = self.dir.display();
        let mut shards = BTreeMap::new();
        let mut first: Option<(u32, String)> = None;
        let mut others = Others::default();
        let failed = || format!("read the directory {dir}");
        for entry in std::fs::read_dir(&self.dir).map_err(Error::io(failed))? {
            let name = entry.map_err(Error::io(failed))?.file_name();
            let Some(name) = name.to_str() else { continue };
            let Some((shard, count)) = parse_shard_name(name) else {
                others.see(name);
                continue;
            };
            let (expected, example) = first.get_or_insert_with(|| (count, name.to_owned()));
            if *expected != count {
                return Err(Error::Usage(format!(
                    "{dir} holds shards of more than one image: {example} and {name}"
                )));
            }
            shards.insert(shard, name.to_owned());
        }
        let Some((count, _)) = first else {
            return Err(Error::Usage(format!("there is no image in {dir}: {}", others.hint())));
        };
        let missing: Vec<String> = (0..count)
            .filter(|shard| !shards.contains_key(shard))
            .map(|shard| shard_name(shard, count))
            .collect();
        match &missing[..] {
            [] => Ok(shards),
            _ => Err(Error::Usage(format!(
                "the image in {dir} is incomplete: there is no {}",
                missing.join(", ")
            ))),
        }
    }
}

/// What else is in a directory, to say why there is no image.
#[derive(Debug, Default)]
struct Others {
    unpublished: bool,
    renamed: Option<String>,
    plain_images: bool,
}

impl Others {
    fn see(&mut self, name: &str) {
        self.unpublished |= is_temporary(name);
        self.plain_images |= Path::new(name).extension().is_some_and(|ext| ext == "img");
        if resembles_shard(name) {
            self.renamed = Some(name.to_owned());
        }
    }

    fn hint(&self) -> String {
        if let Some(name) = &self.renamed {
            format!("{name} is not the name of a shard, like {}", shard_name(0, 4))
        } else if self.unpublished {
            "a capture into it has not completed".into()
        } else if self.plain_images {
            "it holds CRIU's image files themselves, not shards; give it to criu as it is".into()
        } else {
            format!("no file in it is called like {}", shard_name(0, 4))
        }
    }
}

impl Origin for FileOrigin {
    fn open(&mut self) -> Result<Vec<Box<dyn ShardReader>>> {
        let open = |(name, file)| {
            // Advice: where it is not taken, reading is only slower.
            let _ = fadvise(&file, 0, None, Advice::Sequential);
            Box::new(FileReader { name, file }) as Box<dyn ShardReader>
        };
        Ok(self.files()?.into_iter().map(open).collect())
    }
}

#[derive(Debug)]
struct FileReader {
    name: String,
    file: File,
}

impl Read for FileReader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.file.read(buf)
    }
}

impl ShardReader for FileReader {
    fn describe(&self) -> &str {
        &self.name
    }

    fn file(&self) -> Option<&File> {
        Some(&self.file)
    }
}
