//! Feeds a destination with bytes that are there already.

use std::{io::Read, thread::JoinHandle, time::Instant};

use vramstream::ring::Ring;

use super::places::spawn;
use crate::{
    error::{Error, Result},
    format::{ImageId, PROLOGUE_BYTES, Prologue},
    payload::Payload,
    transport::{Destination, Origin, ShardReader, ShardWriter},
};

/// How much of an image is passed on at a time.
const PIECE_BYTES: usize = 1 << 20;

/// Passes an image on as it is: how many bytes. Both ends have as many shards.
pub(super) fn replay(
    origin: &mut dyn Origin,
    mut destination: Box<dyn Destination>,
) -> Result<u64> {
    let mut readers = origin.open()?;
    let mut heads = Vec::new();
    for reader in &mut readers {
        let mut head = [0; PROLOGUE_BYTES];
        let read = reader.read_exact(&mut head);
        read.map_err(Error::io(|| format!("read {}", reader.describe())))?;
        heads.push(head);
    }
    let first = heads.first().ok_or(Error::Empty)?;
    let image = Prologue::decode(first).map_err(Error::shard("the image"))?.image;
    let writers = destination.open(image)?;
    let shards = readers.into_iter().zip(heads).zip(writers);
    let threads = shards.map(|((reader, head), writer)| spawn(move || pass(reader, &head, writer)));
    let threads: Vec<_> = threads.collect::<Result<_>>()?;
    finish(destination, join(threads))
}

fn pass(
    mut reader: Box<dyn ShardReader>,
    head: &[u8],
    mut writer: Box<dyn ShardWriter>,
) -> Result<u64> {
    writer.write(head)?;
    let (mut buffer, mut bytes) = (vec![0; PIECE_BYTES], head.len() as u64);
    loop {
        let read = reader.read(&mut buffer);
        match read.map_err(Error::io(|| format!("read {}", reader.describe())))? {
            0 => break,
            read => {
                writer.write(&buffer[..read])?;
                bytes += read as u64;
            }
        }
    }
    writer.finish()?;
    Ok(bytes)
}

/// Gives a destination so many bytes in chunks that are ready, as fast as it takes them: how many
/// seconds that took, until it was committed.
pub(super) fn feed(mut destination: Box<dyn Destination>, ring: &Ring, bytes: u64) -> Result<f64> {
    let began = Instant::now();
    let writers =
        destination.open(ImageId::random().map_err(Error::io(|| "read /dev/urandom"))?)?;
    let share = bytes / writers.len().max(1) as u64;
    let threads = writers.into_iter().map(|writer| {
        let ring = ring.clone();
        spawn(move || fill(writer, &ring, share))
    });
    let threads: Vec<_> = threads.collect::<Result<_>>()?;
    finish(destination, join(threads))?;
    Ok(began.elapsed().as_secs_f64())
}

fn fill(mut writer: Box<dyn ShardWriter>, ring: &Ring, bytes: u64) -> Result<u64> {
    let head = vec![0; writer.payload_alignment().map_or(64, |align| align as usize)];
    let mut left = bytes;
    while left > 0 {
        let Some(chunk) = ring.take(super::lab::LOOK_UP) else { continue };
        let len = usize::try_from(left).unwrap_or(usize::MAX).min(chunk.len());
        writer.write_chunk(&head, Payload { chunk, len })?;
        left -= len as u64;
    }
    writer.finish()?;
    Ok(bytes)
}

fn join(threads: Vec<JoinHandle<Result<u64>>>) -> Result<u64> {
    let ended = threads
        .into_iter()
        .map(|thread| thread.join().unwrap_or_else(|_| Err(Error::Panicked("far end".into()))));
    ended.sum()
}

fn finish(mut destination: Box<dyn Destination>, ended: Result<u64>) -> Result<u64> {
    match ended {
        Ok(bytes) => destination.commit(&mut || Ok(())).map(|()| bytes),
        Err(error) => {
            let error = destination.explain(error);
            destination.abort(&error.report().to_string());
            Err(error)
        }
    }
}
