//! `--tcp-listen-remap`: other listening ports in files.img.
//!
//! files.img is two magic numbers of 4 bytes and then records, each a 32-bit little-endian length
//! and a protobuf `file_entry` (CRIU's images/fdinfo.proto). A TCP socket that listens has
//!
//! | message | field | number | value |
//! |---|---|---|---|
//! | `file_entry` | `isk` | 4 | message `inet_sk_entry` |
//! | `inet_sk_entry` (images/sk-inet.proto) | `proto` | 5 | 6, TCP |
//! | | `state` | 6 | 10, TCP_LISTEN |
//! | | `src_port` | 7 | the port |
//!
//! The bytes of the port are replaced where they stand and the lengths around them mended; every
//! other byte stays as it was, fields that this program does not know included. All mappings apply
//! at once, to every socket that matches.

use std::{collections::HashMap, str::FromStr};

use crate::error::{Error, Result};

/// Which port becomes which.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PortMap(HashMap<u16, u16>);

impl PortMap {
    /// Whether nothing changes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromStr for PortMap {
    type Err = String;

    /// `OLD:NEW`, several separated by commas.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut map = HashMap::new();
        for pair in text.split(',') {
            let port = |text: &str| match text.parse::<u16>() {
                Ok(port) if port > 0 => Ok(port),
                _ => Err(format!("{text:?} in {pair:?} is not a port: give 1 to 65535")),
            };
            let (old, new) =
                pair.split_once(':').ok_or_else(|| format!("{pair:?} is not OLD:NEW"))?;
            if map.insert(port(old)?, port(new)?).is_some() {
                return Err(format!("port {old} is mapped twice"));
            }
        }
        Ok(PortMap(map))
    }
}

const FILE_ENTRY_ISK: u64 = 4;
const INET_SK_PROTO: u64 = 5;
const INET_SK_STATE: u64 = 6;
const INET_SK_SRC_PORT: u64 = 7;
const IPPROTO_TCP: u64 = 6;
const TCP_LISTEN: u64 = 10;

/// The magic numbers in front of the records.
const MAGIC_BYTES: usize = 8;

/// files.img with the ports changed.
pub fn remap_files_img(image: &[u8], ports: &PortMap) -> Result<Vec<u8>> {
    let damaged = |at: usize| {
        Error::Usage(format!(
            "files.img is not what CRIU writes, at byte {at}: its ports cannot be remapped"
        ))
    };
    let (magic, mut rest) = image.split_at_checked(MAGIC_BYTES).ok_or_else(|| damaged(0))?;
    let mut out = Vec::with_capacity(image.len() + 64);
    out.extend_from_slice(magic);
    while !rest.is_empty() {
        let at = image.len() - rest.len();
        let (len, after) = rest.split_first_chunk::<4>().ok_or_else(|| damaged(at))?;
        let (record, after) =
            after.split_at_checked(u32::from_le_bytes(*len) as usize).ok_or_else(|| damaged(at))?;
        rest = after;
        match remap_entry(record, ports).ok_or_else(|| damaged(at))? {
            None => {
                out.extend_from_slice(len);
                out.extend_from_slice(record);
            }
            Some(changed) => {
                let len = u32::try_from(changed.len()).map_err(|_| damaged(at))?;
                out.extend_from_slice(&len.to_le_bytes());
                out.extend_from_slice(&changed);
            }
        }
    }
    Ok(out)
}

/// A `file_entry` with its listening port changed; `Some(None)` where nothing changes, `None` where
/// it is not protobuf.
fn remap_entry(entry: &[u8], ports: &PortMap) -> Option<Option<Vec<u8>>> {
    let mut out = Vec::new();
    let mut changed = false;
    for field in Fields(entry) {
        let field = field?;
        match (field.number, field.bytes) {
            (FILE_ENTRY_ISK, Some(socket)) => match remap_socket(socket, ports)? {
                Some(socket) => {
                    out.extend_from_slice(field.tag);
                    put_varint(&mut out, socket.len() as u64);
                    out.extend_from_slice(&socket);
                    changed = true;
                }
                None => out.extend_from_slice(field.whole),
            },
            _ => out.extend_from_slice(field.whole),
        }
    }
    Some(changed.then_some(out))
}

/// The same for an `inet_sk_entry`.
fn remap_socket(socket: &[u8], ports: &PortMap) -> Option<Option<Vec<u8>>> {
    let mut last = HashMap::new();
    for field in Fields(socket) {
        let field = field?;
        if let Some(value) = field.varint {
            // As every protobuf reader does: of a field that is there twice the last counts.
            last.insert(field.number, value);
        }
    }
    let is = |number, value| last.get(&number) == Some(&value);
    let port = last.get(&INET_SK_SRC_PORT).and_then(|&port| u16::try_from(port).ok());
    let Some(new) = port.and_then(|port| ports.0.get(&port)) else { return Some(None) };
    if !is(INET_SK_PROTO, IPPROTO_TCP) || !is(INET_SK_STATE, TCP_LISTEN) {
        return Some(None);
    }
    let mut out = Vec::with_capacity(socket.len() + 4);
    for field in Fields(socket) {
        let field = field?;
        if field.number == INET_SK_SRC_PORT && field.varint.is_some() {
            out.extend_from_slice(field.tag);
            put_varint(&mut out, (*new).into());
        } else {
            out.extend_from_slice(field.whole);
        }
    }
    Some(Some(out))
}

/// The fields of a protobuf message, as they stand.
struct Fields<'a>(&'a [u8]);

struct Field<'a> {
    number: u64,
    tag: &'a [u8],
    whole: &'a [u8],
    varint: Option<u64>,
    bytes: Option<&'a [u8]>,
}

impl<'a> Iterator for Fields<'a> {
    /// `None` inside for bytes that are no field; nothing comes after that.
    type Item = Option<Field<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = field(self.0);
        self.0 = field.as_ref().map_or(&[], |field| &self.0[field.whole.len()..]);
        Some(field)
    }
}

fn field(message: &[u8]) -> Option<Field<'_>> {
    let (tag, tag_len) = varint(message)?;
    let after = &message[tag_len..];
    let (len, value, bytes) = match tag & 7 {
        0 => {
            let (value, len) = varint(after)?;
            (len, Some(value), None)
        }
        1 => (8, None, None),
        2 => {
            let (len, prefix) = varint(after)?;
            let len = usize::try_from(len).ok()?;
            let bytes = after.get(prefix..prefix.checked_add(len)?)?;
            (prefix + len, None, Some(bytes))
        }
        5 => (4, None, None),
        // Groups are not used by CRIU; other numbers do not exist.
        _ => return None,
    };
    let whole = message.get(..tag_len + len)?;
    Some(Field { number: tag >> 3, tag: &message[..tag_len], whole, varint: value, bytes })
}

fn varint(mut bytes: &[u8]) -> Option<(u64, usize)> {
    let before = bytes.len();
    let value = prost::encoding::decode_varint(&mut bytes).ok()?;
    Some((value, before - bytes.len()))
}

fn put_varint(out: &mut Vec<u8>, value: u64) {
    prost::encoding::encode_varint(value, out);
}
