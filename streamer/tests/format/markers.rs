//! Images in the format of criu-image-streamer: whatever its writer may make is read, whatever it
//! does not make is refused, naming the shard, and nothing hangs.

use std::{
    fs::File,
    io::{self, Read, Write},
    time::Duration,
};

use bytes::BytesMut;
use proptest::prelude::*;
use vramstream_streamer::{
    absorb::ImageFormat,
    criu_image_streamer::{Marker, MarkerBody, MarkerWriter},
    format::FileName,
    transport::{Origin, ShardReader, pipe::PipeOrigin},
};

use crate::support::{Bytes, Files, name, noise, read, read_bytes, readers, refused, report};

/// Writes records one by one, to any shard.
struct Image {
    shards: Vec<Vec<u8>>,
    writer: MarkerWriter,
    seq: u64,
}

impl Image {
    fn new(shards: usize) -> Self {
        Image { shards: vec![Vec::new(); shards], writer: MarkerWriter::new(), seq: 0 }
    }

    fn data(&mut self, shard: usize, name: &FileName, bytes: &[u8]) {
        let mut out = BytesMut::new();
        self.writer.file_data(name, bytes.len() as u32, &mut out);
        out.extend_from_slice(bytes);
        self.shards[shard].extend_from_slice(&out);
    }

    fn eof(&mut self, shard: usize, name: &FileName) {
        let mut out = BytesMut::new();
        self.writer.file_eof(name, &mut out);
        self.shards[shard].extend_from_slice(&out);
    }

    fn end(mut self, shard: usize) -> Vec<Vec<u8>> {
        let mut out = BytesMut::new();
        self.writer.image_eof(&mut out);
        self.shards[shard].extend_from_slice(&out);
        self.shards
    }

    /// A record that [`MarkerWriter`] would not write.
    fn raw(&mut self, shard: usize, body: MarkerBody, payload: &[u8]) -> &mut Self {
        let mut out = BytesMut::new();
        Marker { seq: self.seq, body }.encode(&mut out);
        self.seq += 1;
        self.shards[shard].extend_from_slice(&out);
        self.shards[shard].extend_from_slice(payload);
        self
    }
}

/// Three shards; two files side by side, one of them large and partly zero, and an empty one.
pub(crate) fn sample() -> (Vec<Vec<u8>>, Files) {
    let [a, b, c] = ["core-1.img", "pages-1.img", "empty.img"].map(name);
    let mut pages = noise(300_000, 5);
    pages[100_000..200_000].fill(0);
    let core = noise(100, 6);
    let mut image = Image::new(3);
    image.data(0, &a, &core[..40]);
    for (i, piece) in pages.chunks(50_000).enumerate() {
        image.data(i % 3, &b, piece);
    }
    image.eof(1, &c);
    image.data(1, &a, &core[40..]);
    image.eof(0, &b);
    image.eof(2, &a);
    let files = [(a, core), (b, pages), (c, vec![])].map(|(n, b)| (n.to_string(), b)).into();
    (image.end(1), files)
}

#[test]
fn a_sample_is_read() {
    let (shards, files) = sample();
    let (absorbed, found) = read_bytes(&shards).unwrap();
    assert_eq!(absorbed.format, ImageFormat::CriuImageStreamer);
    assert_eq!(found, files);
    let manifest = &absorbed.manifest;
    assert_eq!((manifest.image.0, manifest.shards), ([0; 16], 3));
    assert_eq!((manifest.end.files, manifest.end.raw_bytes), (3, 300_100));
    assert_eq!(manifest.end.writer, "criu-image-streamer");
    let bytes: Vec<_> = absorbed.shards.iter().map(|shard| shard.bytes).collect();
    assert_eq!(bytes, shards.iter().map(|shard| shard.len() as u64).collect::<Vec<_>>());
    // Shards have no number: their order does not matter, and empty ones do not.
    let turned = [vec![], shards[2].clone(), vec![], shards[0].clone(), shards[1].clone()];
    assert_eq!(read_bytes(&turned).unwrap().1, files);
}

proptest! {
    /// Any files, in any pieces, side by side, over any shards, read in any steps.
    #[test]
    fn what_is_written_is_read(
        pieces in prop::collection::vec((0usize..5, 0usize..4, 0usize..3000, any::<bool>()), 0..60),
        step in 1usize..5000,
    ) {
        let names: Vec<_> = (0..5).map(|n| name(&format!("f{n}"))).collect();
        let mut image = Image::new(4);
        let (mut open, mut files) = (Files::new(), Files::new());
        for (seed, (file, shard, len, end)) in pieces.into_iter().enumerate() {
            let bytes = if seed % 4 == 0 { vec![0; len] } else { noise(len, seed as u64) };
            image.data(shard, &names[file], &bytes);
            if len > 0 || end {
                open.entry(names[file].to_string()).or_default().extend(bytes);
            }
            if end {
                image.eof((shard + 1) % 4, &names[file]);
                let whole = open.remove_entry(names[file].as_str()).unwrap();
                files.extend([whole]);
            }
        }
        for (file, bytes) in open {
            image.eof(0, &name(&file));
            files.insert(file, bytes);
        }
        let (_, found) = read(readers(&image.end(3), step)).unwrap();
        prop_assert_eq!(found, files);
    }
}

/// One record may have more bytes than a sink is asked to take at once.
#[test]
fn a_large_record_is_split() {
    let bytes = noise(5 << 20, 1);
    let mut image = Image::new(1);
    image.data(0, &name("pages-1.img"), &bytes);
    image.eof(0, &name("pages-1.img"));
    let (absorbed, files) = read_bytes(&image.end(0)).unwrap();
    assert_eq!(absorbed.manifest.files[0].chunks, 5);
    assert!(files["pages-1.img"] == bytes);
}

/// Two files of one name, at once in a row, with one between: the last one counts, as on disk.
#[test]
fn a_name_written_again() {
    let [x, y] = ["x", "y"].map(name);
    for between in [false, true] {
        let mut image = Image::new(2);
        image.data(0, &x, &noise(1 << 20, 1));
        image.eof(1, &x);
        if between {
            image.eof(0, &y);
        }
        image.data(1, &x, b"0123456789");
        image.eof(0, &x);
        let (absorbed, files) = read_bytes(&image.end(0)).unwrap();
        assert_eq!(files["x"], b"0123456789");
        assert_eq!(absorbed.manifest.end.superseded, [0]);
        assert_eq!(absorbed.manifest.end.files, 1 + u32::from(between));
    }
}

#[test]
fn no_bytes_at_all() {
    for shards in [1, 3] {
        let error = refused(&vec![vec![]; shards]);
        assert_eq!(error, "no image: the stream is empty; did the capture fail?");
    }
    assert!(refused(&[]).contains("there is no shard"));
}

#[test]
fn cut_anywhere() {
    let [a, b] = ["a", "b"].map(name);
    let mut image = Image::new(2);
    image.data(0, &a, b"some bytes");
    image.data(1, &b, b"some more");
    image.eof(0, &b);
    image.data(1, &a, b"and the rest");
    image.eof(0, &a);
    let shards = image.end(1);
    assert!(read_bytes(&shards).is_ok());
    for cut in 0..2 {
        for len in 0..shards[cut].len() {
            let mut shards = shards.clone();
            shards[cut].truncate(len);
            let error = refused(&shards);
            assert!(error.contains("not a valid criu-image-streamer image"), "{len}: {error}");
        }
    }
}

#[test]
fn a_shard_missing_twice_or_of_another_dump() {
    let (shards, _) = sample();
    for at in 0..shards.len() {
        let mut missing = shards.clone();
        missing.remove(at);
        assert!(refused(&missing).contains("is a shard missing?"));
        let mut twice = shards.clone();
        twice.push(shards[at].clone());
        assert!(refused(&twice).contains("was a shard given twice?"));
        let mut foreign = shards.clone();
        let mut other = Image::new(3);
        for seed in 0..40 {
            other.data(seed as usize % 3, &name("pages-2.img"), &noise(20_000, seed));
        }
        other.eof(2, &name("pages-2.img"));
        foreign[at] = other.end(1).swap_remove(at);
        refused(&foreign);
    }
}

/// A bit flipped in a header: an error, or another image that is whole; never a panic or a hang.
#[test]
fn flipped_bits_do_not_hang() {
    let mut image = Image::new(2);
    image.data(0, &name("ab"), b"ABC");
    image.data(1, &name("cd"), b"DEF");
    image.eof(0, &name("ab"));
    image.eof(1, &name("cd"));
    let shards = image.end(0);
    let mut passed = 0;
    for shard in 0..2 {
        for bit in 0..shards[shard].len() * 8 {
            let mut shards = shards.clone();
            shards[shard][bit / 8] ^= 1 << (bit % 8);
            passed += usize::from(read_bytes(&shards).is_ok());
        }
    }
    // The 6 bytes of contents, and the names, are not protected by anything.
    assert!(passed >= 6 * 8, "{passed}");
}

#[test]
fn what_a_writer_does_not_write_is_refused_by_name() {
    use MarkerBody::{Data, File, FileEof, ImageEof};
    let file = || File(name("x"));
    let case = |records: Vec<(MarkerBody, &[u8])>, tail: &[u8]| {
        let mut image = Image::new(1);
        for (body, payload) in records {
            image.raw(0, body, payload);
        }
        image.shards[0].extend_from_slice(tail);
        image.shards
    };
    let image = || vec![(file(), &[][..]), (FileEof, &[]), (ImageEof, &[])];
    assert!(read_bytes(&case(image(), b"")).is_ok());
    let cases: Vec<(Vec<Vec<u8>>, &str)> = vec![
        (case(vec![(file(), b""), (FileEof, b"")], b""), "before the end of the image"),
        (case(image(), b"\x04\0\0\0\x08\x03\x28\x01"), "data after the end of the image"),
        (case(image(), b"\x04\0"), "in the middle of the length of a marker"),
        (case(image(), b"\x04\0\0\0\x08"), "in the middle of a marker"),
        (case(vec![(file(), b""), (ImageEof, b"")], b""), "before the end of x"),
        (case(vec![(Data(1), b"a")], b""), "no file is open"),
        (case(vec![(FileEof, b"")], b""), "no file is open"),
        (case(vec![(file(), b""), (FileEof, b""), (Data(1), b"a")], b""), "no file is open"),
        (case(vec![(file(), b""), (Data(9), b"12345678")], b""), "in the middle of a payload"),
        (case(vec![(file(), b""), (Data(u32::MAX), b"1")], b""), "in the middle of a payload"),
        (case(vec![], b"\0\0\0\0"), "a marker of 0 bytes"),
        (case(vec![(file(), b"")], b"\0\x28\0\0rest"), "a marker of 10240 bytes"),
        (case(vec![], b"\0\0\0\x80rest"), "a marker of 2147483648 bytes"),
        (case(vec![], b"\xff\xff\xff\xffrest"), "a marker of 4294967295 bytes"),
        (case(vec![], b"\x02\0\0\0\x20\0"), "marker 0 has no meaning"),
        (case(vec![], b"\x02\0\0\0\x28\0"), "marker 0 has no meaning"),
        (case(vec![], b"\x02\0\0\0\x12\x09"), "not protobuf"),
        (case(vec![], b"\x06\0\0\0\x12\x04../x"), "is not a plain file name"),
        (case(vec![], b"\x04\0\0\0\x12\x02/x"), "is not a plain file name"),
        (case(vec![], b"GET / HTTP/1.1\r\n\r\n"), "a marker of 542393671 bytes"),
    ];
    for (shards, expected) in cases {
        let error = refused(&shards);
        assert!(error.contains(expected), "{expected}: {error}");
        assert!(error.starts_with("shard 0: not a valid criu-image-streamer image"), "{error}");
    }
}

/// An end that comes while another shard still has records of the image.
#[test]
fn an_end_before_other_records() {
    let mut image = Image::new(2);
    image.raw(0, MarkerBody::ImageEof, &[]);
    image.seq = 7;
    image.raw(1, MarkerBody::ImageEof, &[]);
    let error = refused(&image.shards);
    assert!(
        error.contains("data after the end") || error.contains("there is a record 7"),
        "{error}"
    );
}

#[test]
fn more_files_than_may_be() {
    let mut image = Image::new(1);
    for n in 0..=1 << 18 {
        image.raw(0, MarkerBody::File(name(&n.to_string())), &[]);
        image.raw(0, MarkerBody::FileEof, &[]);
    }
    image.raw(0, MarkerBody::ImageEof, &[]);
    assert!(refused(&image.shards).contains("refused: more than 262144 files"));
}

/// A writer that fills whichever pipe it likes, records of several pipes long, and a reader of all.
#[test]
fn pipes_that_are_full_do_not_stop_the_others() {
    let pages = name("pages-1.img");
    let mut image = Image::new(3);
    // What each record adds to each shard, in the order of the records.
    let mut writes: Vec<(usize, Vec<u8>)> = Vec::new();
    let mut written = [0; 3];
    let mut whole = Vec::new();
    let mut take = |image: &Image, shard: usize| {
        let new = image.shards[shard][written[shard]..].to_vec();
        written[shard] += new.len();
        writes.push((shard, new));
    };
    for n in 0..60u64 {
        // Long stretches on one shard, so that the others are silent for more than a pipe holds.
        let shard = [2, 2, 2, 2, 2, 1, 0, 1, 1, 1][n as usize % 10];
        let bytes = noise(if n % 3 == 0 { 1_500_000 } else { 10 }, n);
        image.data(shard, &pages, &bytes);
        whole.extend(bytes);
        take(&image, shard);
    }
    image.eof(0, &pages);
    take(&image, 0);
    let shards = image.end(1);
    writes.push((1, shards[1][written[1]..].to_vec()));
    let (readers, mut writers): (Vec<_>, Vec<_>) = (0..3)
        .map(|_| io::pipe().unwrap())
        .map(|(r, w)| (r, Some(File::from(std::os::fd::OwnedFd::from(w)))))
        .unzip();
    let writer = std::thread::spawn(move || {
        for (shard, bytes) in writes {
            writers[shard].as_mut().unwrap().write_all(&bytes).unwrap();
        }
        writers.clear();
    });
    let named = readers.into_iter().enumerate().map(|(n, fd)| (format!("pipe {n}"), fd.into()));
    let shards = PipeOrigin::new(named.collect()).open().unwrap();
    let (_, files) = read(shards).unwrap();
    writer.join().unwrap();
    assert!(files["pages-1.img"] == whole);
}

/// A shard that says nothing until another one was read to its end.
struct Late<R>(std::sync::mpsc::Receiver<()>, R);

impl<R: Read> Read for Late<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let _ = self.0.recv_timeout(Duration::from_secs(30));
        self.1.read(buf)
    }
}

impl ShardReader for Late<Bytes> {
    fn describe(&self) -> &str {
        "the late shard"
    }
}

/// Tells when it is read to its end.
struct Tells<R>(std::sync::mpsc::Sender<()>, R);

impl<R: Read> Read for Tells<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.1.read(buf)?;
        if n == 0 {
            let _ = self.0.send(());
        }
        Ok(n)
    }
}

impl ShardReader for Tells<Bytes> {
    fn describe(&self) -> &str {
        "the early shard"
    }
}

#[test]
fn the_first_shard_may_be_the_last_to_speak() {
    let a = name("a");
    let mut image = Image::new(2);
    image.data(1, &a, &noise(1000, 1));
    image.eof(1, &a);
    let shards = image.end(0);
    let [late, early] = [0, 1].map(|n| Bytes::new("", shards[n].clone()));
    let (tell, told) = std::sync::mpsc::channel();
    let readers: Vec<Box<dyn ShardReader>> =
        vec![Box::new(Late(told, late)), Box::new(Tells(tell, early))];
    let (_, files) = read(readers).unwrap();
    assert_eq!(files["a"], noise(1000, 1));
}

#[test]
fn errors_name_the_shard() {
    let (mut shards, _) = sample();
    shards[2].truncate(50);
    let error = read_bytes(&shards).err().map(|error| report(&error));
    assert!(error.unwrap().starts_with("shard 2: "));
}
