//! Which runs are compared, and what they must reach.

use std::{env, fs, io, path::PathBuf};

use super::{
    measure::{
        CPU, HAND_OFF, PEAK, READY, SPEED, Sample, To, capture, free_bytes, fresh_dir, serve,
        transfer,
    },
    options::{Options, Sink},
    report::Row,
};
use crate::{
    fake_criu::Pages,
    streamer::{Launch, Program},
};

/// One program, run in one way.
pub struct Variant<'a> {
    /// The program and the way.
    pub name: String,
    /// Runs it.
    pub run: Box<dyn Fn() -> io::Result<Sample> + 'a>,
}

/// Runs that belong together.
pub struct Case<'a> {
    /// Its letter.
    pub id: char,
    /// What it is.
    pub title: String,
    /// What takes turns.
    pub variants: Vec<Variant<'a>>,
    /// What must be reached.
    pub targets: Vec<Target>,
}

/// The side of a limit that is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// No less.
    AtLeast,
    /// No more.
    AtMost,
}

/// A limit for the median of a metric.
#[derive(Clone, Debug)]
pub struct Target {
    /// Which variant, by position.
    pub row: usize,
    /// Which metric.
    pub metric: &'static str,
    /// Which side.
    pub bound: Bound,
    /// The limit, or what the other variant's value is multiplied by.
    pub factor: f64,
    /// The other variant.
    pub against: Option<usize>,
}

impl Target {
    /// In words.
    pub fn describe(&self, rows: &[Row]) -> String {
        let name = |index: usize| rows.get(index).map_or("(not run)", |row| row.name.as_str());
        let sign = if self.bound == Bound::AtLeast { "≥" } else { "≤" };
        let limit = match self.against {
            None => format!("{}", self.factor),
            Some(other) => format!("{} × {}", self.factor, name(other)),
        };
        format!("{} of {} {sign} {limit}", self.metric, name(self.row))
    }
}

/// Row 0 against row 1.
fn versus(metric: &'static str, bound: Bound, factor: f64) -> Target {
    Target { row: 0, metric, bound, factor, against: Some(1) }
}

/// Row 0 against a number.
fn absolute(metric: &'static str, bound: Bound, factor: f64) -> Target {
    Target { row: 0, metric, bound, factor, against: None }
}

/// What all cases use.
pub struct Setup<'a> {
    options: &'a Options,
    ours: Program,
    peer: Option<Program>,
    pages: Pages,
    sockets: tempfile::TempDir,
    memory: tempfile::TempDir,
    disk: tempfile::TempDir,
}

impl<'a> Setup<'a> {
    /// Prepares what is dumped and where it goes.
    pub fn new(options: &'a Options) -> io::Result<Self> {
        let prefix = "bench-streamer-";
        Ok(Setup {
            options,
            ours: Program::under_test()?,
            peer: env::var_os("PEER").map(Program::at),
            pages: options.content.pages()?,
            sockets: tempfile::Builder::new().prefix(prefix).tempdir()?,
            memory: tempfile::Builder::new().prefix(prefix).tempdir_in(options.scratch())?,
            disk: tempfile::Builder::new().prefix(prefix).tempdir_in(options.disk())?,
        })
    }

    fn size(&self) -> u64 {
        self.options.size()
    }

    /// Our program with options that the original does not have.
    fn ours(&self, words: &[&str]) -> Launch {
        let words = if self.options.same_interface { &[][..] } else { words };
        Launch::new(&self.ours, self.sockets.path()).args(words)
    }

    /// A run that is not measured.
    pub fn warm_up(&self) -> io::Result<Sample> {
        let bytes = self.size().min(1 << 30);
        capture(self.ours(&[]), &To::Pipes(1, Sink::Read), &self.pages, bytes)
    }

    fn to_pipes<'s>(&'s self, name: &str, words: &'s [&'s str], shards: usize) -> Variant<'s> {
        variant(name, move || self.capture_to_pipes(self.ours(words), shards))
    }

    /// The peer, if there is one, as the variant to compare with.
    fn peer_to_pipes(&self, shards: usize) -> Option<Variant<'_>> {
        let peer = self.peer.as_ref()?;
        let launch = || Launch::new(peer, self.sockets.path());
        Some(variant("PEER", move || self.capture_to_pipes(launch(), shards)))
    }

    fn capture_to_pipes(&self, launch: Launch, shards: usize) -> io::Result<Sample> {
        capture(launch, &To::Pipes(shards, self.options.sink), &self.pages, self.size())
    }

    /// An image in memory, as one shard in a file; made once.
    fn image(&self, name: &str, launch: Launch) -> io::Result<PathBuf> {
        let path = self.memory.path().join(name);
        if !path.exists() {
            let unfinished = self.memory.path().join(format!("{name}.new"));
            capture(launch, &To::Stored(unfinished.clone()), &self.pages, self.size())?;
            fs::rename(unfinished, &path)?;
        }
        Ok(path)
    }

    /// An image in files on the disk, as our program writes it; made once.
    fn files(&self) -> io::Result<PathBuf> {
        let dir = self.disk.path().join("image");
        if !dir.exists() {
            let to = format!("file:{}", dir.display());
            self.enough_disk(self.size())?;
            capture(self.ours(&["--to", &to]), &To::Elsewhere, &self.pages, self.size())?;
        }
        Ok(dir)
    }

    fn enough_disk(&self, bytes: u64) -> io::Result<()> {
        let free = free_bytes(self.disk.path())?;
        if free < bytes + (512 << 20) {
            let text = format!("skipped: {bytes} bytes on the disk, where {free} are free");
            return Err(io::Error::other(text));
        }
        Ok(())
    }

    /// A capture into new files, which are removed.
    fn to_files(&self, words: &[&str], bytes: u64) -> io::Result<Sample> {
        self.enough_disk(bytes)?;
        let dir = fresh_dir(self.disk.path(), "out")?;
        let to = format!("file:{}", dir.join("image").display());
        let launch = self.ours(&["--to", &to]).args(words);
        let sample = capture(launch, &To::Elsewhere, &self.pages, bytes);
        fs::remove_dir_all(&dir)?;
        sample
    }

    /// A capture over the network into a receiver that extracts into memory.
    fn over_tcp(&self, connections: u32) -> io::Result<Sample> {
        let dir = fresh_dir(self.memory.path(), "received")?;
        let receiver =
            Launch::new(&self.ours, &dir).args_after(&["--listen", "127.0.0.1:0", "--extract"]);
        let sender = |address: &str| {
            let (to, connections) = (format!("tcp://{address}"), connections.to_string());
            self.ours(&["--to", &to, "--connections", &connections])
        };
        let sample = transfer(receiver, sender, &self.pages, self.size());
        fs::remove_dir_all(&dir)?;
        sample
    }
}

fn variant<'a>(name: impl Into<String>, run: impl Fn() -> io::Result<Sample> + 'a) -> Variant<'a> {
    Variant { name: name.into(), run: Box::new(run) }
}

const LEGACY: &[&str] = &["--format", "criu-image-streamer"];
const RAW: &[&str] = &["--compress", "none"];
const AUTO: &[&str] = &["--compress", "auto"];

/// All cases.
pub fn all<'a>(setup: &'a Setup<'a>) -> Vec<Case<'a>> {
    use Bound::{AtLeast, AtMost};
    let mut cases = vec![
        Case {
            id: 'a',
            title: "capture in criu-image-streamer's format to a pipe".to_owned(),
            variants: with(setup.to_pipes("criu-image-streamer format", LEGACY, 1), setup, 1),
            targets: vec![versus(SPEED, AtLeast, 0.95), versus(CPU, AtMost, 1.05)],
        },
        Case {
            id: 'b',
            title: "capture with checksums to a pipe".to_owned(),
            variants: with(setup.to_pipes("native, --compress none", RAW, 1), setup, 1),
            targets: vec![versus(CPU, AtMost, 2.67), absolute(CPU, AtMost, 0.40)],
        },
        Case {
            id: 'c',
            title: "what trying to compress costs".to_owned(),
            variants: vec![
                setup.to_pipes("native, --compress auto", AUTO, 1),
                setup.to_pipes("native, --compress none", RAW, 1),
            ],
            targets: vec![versus(SPEED, AtLeast, 0.9), versus(CPU, AtMost, 1.1)],
        },
        absorb(setup),
    ];
    if !setup.options.same_interface {
        cases.push(from_files(setup));
        cases.push(memory(setup));
        cases.push(Case {
            id: 'g',
            title: "capture to files and over the network".to_owned(),
            variants: vec![
                variant("--to file, --shards 2", || {
                    setup.to_files(&["--shards", "2"], setup.size())
                }),
                variant("--to tcp, 4 connections, receive --extract", || setup.over_tcp(4)),
            ],
            targets: Vec::new(),
        });
    }
    let mut four = vec![setup.to_pipes("criu-image-streamer format, 4 shards", LEGACY, 4)];
    four.extend(setup.peer_to_pipes(4));
    if !setup.options.same_interface {
        four.push(setup.to_pipes("native, --compress none, 4 shards", RAW, 4));
    }
    let targets = vec![versus(SPEED, AtLeast, 0.95), versus(CPU, AtMost, 1.05)];
    let targets = if setup.peer.is_some() { targets } else { Vec::new() };
    let title = "capture to 4 pipes".to_owned();
    cases.push(Case { id: 'h', title, variants: four, targets });
    cases
}

fn with<'a>(ours: Variant<'a>, setup: &'a Setup<'a>, shards: usize) -> Vec<Variant<'a>> {
    [Some(ours), setup.peer_to_pipes(shards)].into_iter().flatten().collect()
}

/// Reading an image from a pipe until CRIU can connect, then handing it out.
fn absorb<'a>(setup: &'a Setup<'a>) -> Case<'a> {
    let ours = |name: &'static str, image: &'static str, words: &'static [&'static str]| {
        variant(name, move || {
            let image = setup.image(image, setup.ours(words))?;
            let launch = setup.ours(&[]).args(&setup.options.serve_args);
            serve(launch, &[image], setup.size())
        })
    };
    let mut variants = vec![ours("native", "native", RAW)];
    if let Some(peer) = &setup.peer {
        variants.push(variant("PEER", move || {
            let launch = || Launch::new(peer, setup.sockets.path());
            serve(launch(), &[setup.image("peer", launch())?], setup.size())
        }));
    }
    if !setup.options.same_interface {
        variants.push(ours("criu-image-streamer format", "legacy", LEGACY));
    }
    Case {
        id: 'd',
        title: "serve from a pipe: absorb, then hand off".to_owned(),
        variants,
        targets: vec![
            versus(SPEED, Bound::AtLeast, 3.0),
            versus(CPU, Bound::AtMost, 0.5),
            versus(HAND_OFF, Bound::AtLeast, 0.95),
        ],
    }
}

fn from_files<'a>(setup: &'a Setup<'a>) -> Case<'a> {
    Case {
        id: 'e',
        title: "serve from files".to_owned(),
        variants: vec![variant("--from file", || {
            let from = format!("file:{}", setup.files()?.display());
            serve(setup.ours(&["--from", &from]), &[], setup.size())
        })],
        targets: vec![absolute(READY, Bound::AtMost, 0.2), absolute(PEAK, Bound::AtMost, 300.0)],
    }
}

/// Peak memory must not depend on the size of the dump.
fn memory<'a>(setup: &'a Setup<'a>) -> Case<'a> {
    let mut variants = Vec::new();
    let sizes = setup.options.memory_sizes();
    for &size in &sizes {
        variants.push(variant(format!("{} MiB to a pipe", size >> 20), move || {
            capture(setup.ours(&[]), &To::Pipes(1, Sink::Null), &setup.pages, size)
        }));
    }
    for &size in &sizes {
        variants.push(variant(format!("{} MiB to a file", size >> 20), move || {
            setup.to_files(&[], size)
        }));
    }
    let target = |row, against| Target {
        row,
        metric: PEAK,
        bound: Bound::AtMost,
        factor: 1.1,
        against: Some(against),
    };
    let count = sizes.len();
    let targets =
        (1..count).flat_map(|larger| [target(larger, 0), target(count + larger, count)]).collect();
    Case { id: 'f', title: "peak memory of captures by size".to_owned(), variants, targets }
}
