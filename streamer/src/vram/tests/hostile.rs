//! Images made by hand: chunks cut in odd places, and images that nobody would write in good faith.

use bytes::BytesMut;
use vramstream::stage::Crc32;

use super::{place::Place, *};
use crate::format::{
    ChunkHeader, Codec, FileEnd, FileName, ImageEnd, MAX_FILE_BYTES, Prologue, ShardEncoder,
};

/// A file of an image: its bytes, in chunks of these ranges.
struct File {
    name: String,
    bytes: Vec<u8>,
    chunks: Vec<std::ops::Range<usize>>,
    superseded: bool,
}

impl File {
    /// Contents with their size in front, whole.
    fn of(gpu_id: u32, contents: &[u8]) -> Self {
        let bytes = [&(contents.len() as u64).to_le_bytes()[..], contents].concat();
        let name = PagesFile { id: 7, gpu_id }.to_string();
        File { name, chunks: std::iter::once(0..bytes.len()).collect(), bytes, superseded: false }
    }

    /// Cut at these places.
    fn cut(mut self, at: &[usize]) -> Self {
        let starts = [&[0], at].concat();
        let ends = [at, &[self.bytes.len()]].concat();
        self.chunks = starts.into_iter().zip(ends).map(|(start, end)| start..end).collect();
        self
    }
}

fn image(files: &[File]) -> Image {
    let mut out = BytesMut::new();
    let prologue = Prologue { image: ImageId::random().unwrap(), shard: 0, shards: 1 };
    let mut shard = ShardEncoder::new(&prologue, &mut out);
    for (number, file) in (0..).zip(files) {
        shard.file_begin(number, &FileName::new(&file.name).unwrap(), &mut out);
        for range in &file.chunks {
            let bytes = &file.bytes[range.clone()];
            let len = u32::try_from(bytes.len()).unwrap();
            let zero = bytes.iter().all(|&byte| byte == 0);
            let (codec, stored_len) = if zero { (Codec::Zero, 0) } else { (Codec::Raw, len) };
            let header = ChunkHeader {
                file: number,
                offset: range.start as u64,
                raw_len: len,
                stored_len,
                codec,
                crc: Crc32::of(bytes).value,
                pad: 0,
            };
            shard.chunk(header, None, &mut out).unwrap();
            out.extend_from_slice(if zero { &[] } else { bytes });
        }
        let checksum = Crc32::of(&file.bytes);
        shard.file_end(FileEnd { file: number, checksum }, &mut out);
    }
    let live = || files.iter().filter(|file| !file.superseded);
    let end = ImageEnd {
        files: u32::try_from(live().count()).unwrap(),
        raw_bytes: live().map(|file| file.bytes.len() as u64).sum(),
        superseded: (0..).zip(files).filter(|(_, file)| file.superseded).map(|(n, _)| n).collect(),
        created_unix_ms: 0,
        writer: String::new(),
        shard_chunks: 0,
        shard_stored_bytes: 0,
    };
    shard.image_end(end, &mut out);
    Image(vec![out.to_vec()])
}

#[test]
fn chunks_that_are_cut_inside_of_the_size_and_anywhere_else() {
    let place = Place::new();
    let file = || File::of(place.gpu_id, &place.contents());
    let cuts: [&[usize]; 7] = [
        &[],
        &[8],
        &[1, 2, 3, 4, 5, 6, 7, 8, 9],
        &[3],
        &[7, 9, 4100, 4105],
        &[8 + 4096],
        &[5, 8 + 4095, 8 + 4097, 9001],
    ];
    for cut in cuts {
        for cap in ["8K", "16M"] {
            let bytes = place.restore(image(&[file().cut(cut)]), cap).unwrap();
            assert!(bytes == place.contents(), "{cut:?}");
        }
    }
    // The last chunk first, the size at the very end.
    let mut backwards = file().cut(&[2, 8, 5000]);
    backwards.chunks.reverse();
    assert!(place.restore(image(&[backwards]), "8K").unwrap() == place.contents());
}

/// Zeros that begin in the size and end in the contents are one chunk, and no byte of it comes twice.
#[test]
fn zeros_that_begin_inside_of_the_size() {
    let place = Place::new();
    let mut contents = place.contents();
    contents[..1000].fill(0);
    for cut in [&[2, 8 + 500][..], &[2, 8 + 1000], &[2, 4, 8 + 1], &[5, 8, 9]] {
        for cap in ["8K", "16M"] {
            let file = File::of(place.gpu_id, &contents).cut(cut);
            assert!(place.restore(image(&[file]), cap).unwrap() == contents, "{cut:?}");
        }
    }
}

#[test]
fn contents_that_are_longer_or_shorter_than_they_say() {
    let place = Place::new();
    let mut longer = File::of(place.gpu_id, &place.contents());
    longer.bytes.extend([7; 100]);
    let error = place.refused(image(&[longer.cut(&[])]));
    assert!(error.contains("past the end of its contents"), "{error}");
    let mut shorter = File::of(place.gpu_id, &place.contents());
    shorter.bytes.truncate(8 + 100);
    let error = place.refused(image(&[shorter.cut(&[])]));
    assert!(error.contains("are missing"), "{error}");
}

#[test]
fn a_size_that_is_not_whole_or_not_the_size() {
    let place = Place::new();
    let mut file = File::of(place.gpu_id, &place.contents());
    file.bytes.truncate(7);
    let error = place.refused(image(&[file.cut(&[])]));
    assert!(error.contains(&format!("amdgpu-pages-7-{:04x}.img", place.gpu_id)), "{error}");
    let mut file = File::of(place.gpu_id, &place.contents());
    file.bytes[7] = 1;
    for cut in [&[][..], &[7], &[1, 3]] {
        let file = File { bytes: file.bytes.clone(), name: file.name.clone(), ..File::of(0, &[]) };
        let error = place.refused(image(&[file.cut(cut)]));
        assert!(error.contains("announces"), "{error}");
    }
}

#[test]
fn a_chunk_at_the_end_of_all_numbers() {
    let place = Place::new();
    let mut out = BytesMut::new();
    let prologue = Prologue { image: ImageId::random().unwrap(), shard: 0, shards: 1 };
    let mut shard = ShardEncoder::new(&prologue, &mut out);
    let name = PagesFile { id: 7, gpu_id: place.gpu_id }.name().unwrap();
    shard.file_begin(0, &name, &mut out);
    let raw_len = 1 << 30;
    let header = ChunkHeader {
        file: 0,
        offset: MAX_FILE_BYTES - u64::from(raw_len),
        raw_len,
        stored_len: 0,
        codec: Codec::Zero,
        crc: vramstream::stage::ZeroChecksums::default().of(raw_len),
        pad: 0,
    };
    shard.chunk(header, None, &mut out).unwrap();
    let error = place.refused(Image(vec![out.to_vec()]));
    // Whichever of the two is noticed first.
    assert!(error.contains("past the end") || error.contains("its end is missing"), "{error}");
}

/// The one that counts is short, and another one that does not count has the rest: the GPU would
/// have every byte, from an image that does not have them.
#[test]
fn two_files_of_one_gpu() {
    let place = Place::new();
    let contents = place.contents();
    let mut counts = File::of(place.gpu_id, &contents);
    counts.bytes.truncate(8 + 5000);
    let counts = counts.cut(&[]);
    let mut other = File::of(place.gpu_id, &contents);
    other.chunks = std::iter::once(8 + 5000..8 + 12288).collect();
    other.superseded = true;
    let error = place.refused(image(&[counts, other]));
    assert!(error.contains("twice"), "{error}");
}

#[test]
fn a_message_about_an_image_does_not_speak_of_a_dump() {
    let place = Place::new();
    let error = place.refused(image(&[File::of(place.gpu_id + 1, &place.contents())]));
    assert!(error.contains("not the contents of a GPU that is to be restored"), "{error}");
    assert!(!error.contains("dump") && !error.contains("published"), "{error}");
}

/// No device has them: whoever says so is refused before anything is done.
#[test]
fn bos_that_are_larger_than_any_file() {
    let place = Place::new();
    let driver = place.driver();
    for size in [MAX_FILE_BYTES - 7, u64::MAX - 7] {
        let places = || {
            let mut places = place.places();
            places[0].bos.truncate(1);
            places[0].bos[0].size = size;
            places
        };
        let (options, silent) = (options(ring_of("16M", 1)), Progress::silent());
        let (destination, _) = memory(1, None);
        let errors = [
            dump(&driver, places(), destination, &options, || Ok(()), &silent).unwrap_err(),
            restore(&driver, places(), &mut image(&[]), &options, || Ok(()), &silent).unwrap_err(),
        ];
        for error in errors {
            let error = error.report().to_string();
            assert!(error.contains("too large to be believed"), "{error}");
        }
    }
}
