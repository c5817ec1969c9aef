//! What this program keeps of a dump, as CRIU's own images do: lines of words.

use std::{fmt, fs, path::Path, str::FromStr};

use super::Result;

/// A dump.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Record {
    pub tasks: Vec<Task>,
    /// The names of plugins in the inventory; `None` in an image of before there was a list.
    pub inventory: Option<Vec<String>>,
}

/// A task, by its virtual pid.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Task {
    pub pid: i32,
    pub files: Vec<File>,
    pub vmas: Vec<Vma>,
    pub user_memory: Vec<UserMemory>,
}

/// A descriptor, and the id of its open file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct File {
    pub fd: i32,
    pub id: i32,
}

/// A mapping of a device: `PID:PATH:ADDRESS:LENGTH:OFFSET`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Vma {
    pub pid: i32,
    pub path: String,
    pub address: u64,
    pub len: u64,
    pub offset: u64,
}

/// Memory of a task that must be where it was: `PID:ADDRESS:LENGTH`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct UserMemory {
    pub pid: i32,
    pub address: u64,
    pub len: u64,
}

fn field<T: FromStr>(words: &mut dyn Iterator<Item = &str>) -> std::result::Result<T, String> {
    let word = words.next().ok_or("a word is missing")?;
    word.parse().map_err(|_| format!("{word:?} is not right here"))
}

impl FromStr for Vma {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let words = &mut text.split(':');
        Ok(Vma {
            pid: field(words)?,
            path: field(words)?,
            address: field(words)?,
            len: field(words)?,
            offset: field(words)?,
        })
    }
}

impl fmt::Display for Vma {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Vma { pid, path, address, len, offset } = self;
        write!(f, "{pid}:{path}:{address}:{len}:{offset}")
    }
}

impl FromStr for UserMemory {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let words = &mut text.split(':');
        Ok(UserMemory { pid: field(words)?, address: field(words)?, len: field(words)? })
    }
}

impl Record {
    pub(super) fn write(&self, path: &Path) -> Result<()> {
        let mut text = String::new();
        let mut line = |words: String| {
            text.push_str(&words);
            text.push('\n');
        };
        for task in &self.tasks {
            line(format!("task {}", task.pid));
            task.files.iter().for_each(|file| line(format!("file {}:{}", file.fd, file.id)));
            task.vmas.iter().for_each(|vma| line(format!("vma {vma}")));
            for UserMemory { pid, address, len } in &task.user_memory {
                line(format!("userptr {pid}:{address}:{len}"));
            }
        }
        match &self.inventory {
            Some(names) => {
                line("inventory".into());
                names.iter().for_each(|name| line(format!("plugin {name}")));
            }
            None => line("no-inventory".into()),
        }
        Ok(fs::write(path, text)?)
    }

    pub(super) fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path)?;
        let mut record = Record::default();
        for line in text.lines() {
            let (kind, words) = line.split_once(' ').unwrap_or((line, ""));
            let task = record.tasks.last_mut();
            match (kind, task) {
                ("task", _) => {
                    record.tasks.push(Task { pid: words.parse()?, ..Task::default() });
                }
                ("file", Some(task)) => {
                    let words = &mut words.split(':');
                    task.files.push(File { fd: field(words)?, id: field(words)? });
                }
                ("vma", Some(task)) => task.vmas.push(words.parse()?),
                ("userptr", Some(task)) => task.user_memory.push(words.parse()?),
                ("inventory", _) => record.inventory = Some(Vec::new()),
                ("plugin", _) => record.inventory.get_or_insert_default().push(words.into()),
                ("no-inventory", _) => {}
                _ => return Err(format!("{line:?} in {}", path.display()).into()),
            }
        }
        Ok(record)
    }
}
