//! The records of the protocol, as bytes.
//!
//! A decoder trusts nothing: what does not follow the tables of [`handoff`](super) is `None`.

use std::{
    ffi::OsStr,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use super::Direction;

/// The version of the protocol.
pub(super) const VERSION: u32 = 1;
/// The most descriptors of one record: the kernel's limit.
pub(super) const MOST_DESCRIPTORS: usize = 253;
/// The longest record.
pub(super) const MOST_BYTES: usize = 4096;
/// The longest path.
const MOST_PATH: usize = 1024;
/// The longest reason.
const MOST_REASON: usize = 2048;

const HEADER: usize = 8;
const JOB_BODY: usize = 24;

const JOB: u32 = 1;
const GPU: u32 = 2;
const BOS: u32 = 3;
const NEXT: u32 = 101;
const ACCEPTED: u32 = 102;
const DONE: u32 = 103;
const FAILED: u32 = 104;

/// What the plugin says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Request {
    Job(Head),
    Gpu { gpu_id: u32, bos: u32, path: PathBuf },
    Bos(Vec<u64>),
}

/// The first record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Head {
    pub version: u32,
    /// `None` where the version is another, whose jobs may look different.
    pub job: Option<HeadJob>,
}

/// What it says in our version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct HeadJob {
    pub direction: Direction,
    pub kfd_id: u32,
    pub cap_bytes: u64,
    pub gpus: u32,
    pub bos: u32,
}

/// What the streamer says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Answer {
    Next,
    Accepted,
    Done,
    Failed(String),
}

impl Request {
    pub(super) fn job(job: &HeadJob) -> Vec<u8> {
        let mut record = header(JOB, VERSION, JOB_BODY);
        let direction = match job.direction {
            Direction::Dump => 1_u32,
            Direction::Restore => 2,
        };
        record.extend(direction.to_le_bytes());
        record.extend(job.kfd_id.to_le_bytes());
        record.extend(job.cap_bytes.to_le_bytes());
        record.extend(job.gpus.to_le_bytes());
        record.extend(job.bos.to_le_bytes());
        record
    }

    /// The path is for messages, and its end is what tells most.
    pub(super) fn gpu(gpu_id: u32, bos: u32, path: &Path) -> Vec<u8> {
        let path = path.as_os_str().as_bytes();
        let path = if path.is_empty() { b"?" } else { path };
        let path = &path[path.len().saturating_sub(MOST_PATH)..];
        let mut record = header(GPU, gpu_id, 4 + path.len());
        record.extend(bos.to_le_bytes());
        record.extend(path);
        record
    }

    /// At most [`MOST_DESCRIPTORS`].
    pub(super) fn bos(sizes: &[u64]) -> Vec<u8> {
        let count = u32::try_from(sizes.len()).unwrap_or(u32::MAX);
        let mut record = header(BOS, count, size_of_val(sizes));
        sizes.iter().for_each(|size| record.extend(size.to_le_bytes()));
        record
    }

    pub(super) fn decode(record: &[u8]) -> Option<Self> {
        let (header, body) = record.split_at_checked(HEADER)?;
        let number = word(header, 4)?;
        match word(header, 0)? {
            JOB if number == VERSION => {
                let job = Some(HeadJob::decode(body)?);
                Some(Request::Job(Head { version: number, job }))
            }
            JOB => Some(Request::Job(Head { version: number, job: None })),
            GPU => {
                let (bos, path) = body.split_first_chunk()?;
                let path = (1..=MOST_PATH).contains(&path.len()).then_some(path)?;
                let path = PathBuf::from(OsStr::from_bytes(path));
                Some(Request::Gpu { gpu_id: number, bos: u32::from_le_bytes(*bos), path })
            }
            BOS => {
                let (sizes, rest) = body.as_chunks();
                let right = rest.is_empty()
                    && (1..=MOST_DESCRIPTORS).contains(&sizes.len())
                    && u32::try_from(sizes.len()) == Ok(number);
                right.then(|| Request::Bos(sizes.iter().copied().map(u64::from_le_bytes).collect()))
            }
            _ => None,
        }
    }
}

impl HeadJob {
    fn decode(body: &[u8]) -> Option<Self> {
        let direction = match word(body, 0)? {
            1 => Direction::Dump,
            2 => Direction::Restore,
            _ => return None,
        };
        let cap_bytes = body.get(8..)?.first_chunk().copied().map(u64::from_le_bytes)?;
        let (kfd_id, gpus, bos) = (word(body, 4)?, word(body, 16)?, word(body, 20)?);
        (body.len() == JOB_BODY).then_some(HeadJob { direction, kfd_id, cap_bytes, gpus, bos })
    }
}

impl Answer {
    pub(super) fn encode(&self) -> Vec<u8> {
        match self {
            Answer::Next => header(NEXT, 0, 0),
            Answer::Accepted => header(ACCEPTED, 0, 0),
            Answer::Done => header(DONE, 0, 0),
            Answer::Failed(reason) => {
                let reason = &reason[..reason.floor_char_boundary(MOST_REASON)];
                let mut record = header(FAILED, 0, reason.len());
                record.extend(reason.as_bytes());
                record
            }
        }
    }

    pub(super) fn decode(record: &[u8]) -> Option<Self> {
        let (header, body) = record.split_at_checked(HEADER)?;
        match (word(header, 0)?, word(header, 4)?, body) {
            (NEXT, 0, []) => Some(Answer::Next),
            (ACCEPTED, 0, []) => Some(Answer::Accepted),
            (DONE, 0, []) => Some(Answer::Done),
            (FAILED, 0, reason) if reason.len() <= MOST_REASON => {
                // It is shown to a person, and nothing else.
                let reason = String::from_utf8_lossy(reason);
                let shown = reason.chars().map(|c| if c.is_control() { ' ' } else { c });
                Some(Answer::Failed(shown.collect()))
            }
            _ => None,
        }
    }
}

fn header(kind: u32, number: u32, body: usize) -> Vec<u8> {
    let mut record = Vec::with_capacity(HEADER + body);
    record.extend(kind.to_le_bytes());
    record.extend(number.to_le_bytes());
    record
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().copied().map(u32::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_records_byte_by_byte() {
        let job = HeadJob {
            direction: Direction::Restore,
            kfd_id: 7,
            cap_bytes: 1 << 32,
            gpus: 2,
            bos: 300,
        };
        let record = Request::job(&job);
        assert_eq!(
            record,
            [
                1, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0,
                44, 1, 0, 0
            ]
        );
        let head = Head { version: 1, job: Some(job) };
        assert_eq!(Request::decode(&record), Some(Request::Job(head)));
        let record = Request::gpu(0xabcd, 3, Path::new("/x"));
        assert_eq!(record, [2, 0, 0, 0, 0xcd, 0xab, 0, 0, 3, 0, 0, 0, b'/', b'x']);
        let gpu = Request::Gpu { gpu_id: 0xabcd, bos: 3, path: "/x".into() };
        assert_eq!(Request::decode(&record), Some(gpu));
        let record = Request::bos(&[4096]);
        assert_eq!(record, [3, 0, 0, 0, 1, 0, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0]);
        assert_eq!(Request::decode(&record), Some(Request::Bos(vec![4096])));
        assert!(Request::bos(&[0; MOST_DESCRIPTORS]).len() <= MOST_BYTES);
        assert_eq!(Answer::Next.encode(), [101, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(Answer::Accepted.encode()[0], 102);
        assert_eq!(Answer::Done.encode()[0], 103);
        assert_eq!(Answer::Failed("no".into()).encode(), [104, 0, 0, 0, 0, 0, 0, 0, b'n', b'o']);
    }

    #[test]
    fn what_does_not_follow_the_tables() {
        for record in [
            &[][..],
            &[0; 8],
            &[1, 0, 0, 0, 1, 0, 0],
            &Request::bos(&[]),
            &Request::bos(&[0; MOST_DESCRIPTORS + 1]),
            &Request::bos(&[1])[..12],
            &Request::gpu(1, 1, Path::new("/x"))[..12],
            &[&Request::gpu(1, 1, Path::new("/x"))[..], &[0; MOST_PATH]].concat(),
        ] {
            assert_eq!(Request::decode(record), None, "{record:?}");
        }
        let head = HeadJob { direction: Direction::Dump, kfd_id: 0, cap_bytes: 0, gpus: 0, bos: 0 };
        let mut record = Request::job(&head);
        record[8] = 3;
        assert_eq!(Request::decode(&record), None);
        record[8] = 1;
        record.push(0);
        assert_eq!(Request::decode(&record), None);
        record[4] = 2;
        let other = Head { version: 2, job: None };
        assert_eq!(Request::decode(&record), Some(Request::Job(other)));
        assert_eq!(Answer::decode(&[101, 0, 0, 0, 1, 0, 0, 0]), None);
        assert_eq!(Answer::decode(&[101, 0, 0, 0, 0, 0, 0, 0, 0]), None);
    }

    #[test]
    fn long_paths_and_reasons_are_cut_where_they_can_be() {
        let path = format!("/{}/renderD128", "x".repeat(3000));
        let Some(Request::Gpu { path, .. }) =
            Request::decode(&Request::gpu(1, 0, Path::new(&path)))
        else {
            panic!("not a GPU")
        };
        assert!(path.ends_with("renderD128"));
        let reason = "ü".repeat(2000);
        let Some(Answer::Failed(got)) = Answer::decode(&Answer::Failed(reason.clone()).encode())
        else {
            panic!("not a failure")
        };
        assert!(got.len() > 2000 && reason.starts_with(&got));
        let Some(Answer::Failed(got)) =
            Answer::decode(&Answer::Failed("a\n\u{1b}[2J".into()).encode())
        else {
            panic!("not a failure")
        };
        assert_eq!(got, "a  [2J");
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_record_or_none(
            kind in prop::sample::select(vec![0_u8, 1, 2, 3, 101, 104]),
            number in 0_u8..4,
            body in prop::collection::vec(any::<u8>(), 0..64),
        ) {
            let mut record = vec![kind, 0, 0, 0, number, 0, 0, 0];
            record.extend(&body);
            match Request::decode(&record) {
                Some(Request::Job(Head { job: Some(job), .. })) => {
                    prop_assert_eq!(Request::job(&job), record);
                }
                Some(Request::Gpu { gpu_id, bos, path }) => {
                    prop_assert_eq!(Request::gpu(gpu_id, bos, &path), record);
                }
                Some(Request::Bos(sizes)) => prop_assert_eq!(Request::bos(&sizes), record),
                Some(Request::Job(Head { job: None, .. })) | None => {}
            }
        }
    }
}
