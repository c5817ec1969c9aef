//! Counts the parts of a message before it is decoded: an empty part is two bytes in a file and a
//! hundred in memory.

use super::{ImageError, error::File};

/// At most so many parts at a path of field numbers: `[5, 10]` is every field 10 in every field 5.
pub(super) fn limit(
    file: File,
    message: &[u8],
    path: &[u32],
    what: &'static str,
    most: usize,
) -> Result<(), ImageError> {
    let malformed = || ImageError::Malformed {
        file: file.0.into(),
        what: "its fields do not follow one another".into(),
    };
    if count(message, path).ok_or_else(malformed)? > most {
        return Err(ImageError::TooMany { file: file.0.into(), what, most });
    }
    Ok(())
}

fn count(mut message: &[u8], path: &[u32]) -> Option<usize> {
    let Some((&wanted, inner)) = path.split_first() else { return Some(1) };
    let mut found = 0;
    while !message.is_empty() {
        let (number, part) = field(&mut message)?;
        if number == wanted
            && let Some(part) = part
        {
            found += count(part, inner)?;
        }
    }
    Some(found)
}

/// The next field: its number, and its bytes if it has a length.
fn field<'a>(message: &mut &'a [u8]) -> Option<(u32, Option<&'a [u8]>)> {
    let key = varint(message)?;
    let number = u32::try_from(key >> 3).ok()?;
    let len = match key & 7 {
        0 => {
            varint(message)?;
            return Some((number, None));
        }
        1 => 8,
        2 => {
            let len = usize::try_from(varint(message)?).ok()?;
            return Some((number, Some(message.split_off(..len)?)));
        }
        5 => 4,
        // Groups: nothing has used them for twenty years.
        _ => return None,
    };
    message.split_off(..len)?;
    Some((number, None))
}

fn varint(message: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = *message.split_off_first()?;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_counted_wherever_they_are() {
        // 1: varint 300; 2: { 3: "", 3: "ab" }; 3: fixed32; 2: { 4: fixed64 }; 2: {}
        let message =
            b"\x08\xac\x02\x12\x06\x1a\x00\x1a\x02ab\x1d\0\0\0\0\x12\x09\x21\0\0\0\0\0\0\0\0\x12\0";
        assert_eq!(count(message, &[2]), Some(3));
        assert_eq!(count(message, &[2, 3]), Some(2));
        assert_eq!(count(message, &[3]), Some(0));
        assert_eq!(count(message, &[1]), Some(0));
        for cut in 1..message.len() {
            // Cut between fields, or not a message.
            let whole = [3, 11, 16, 27].contains(&cut);
            assert_eq!(count(&message[..cut], &[9]).is_some(), whole, "{cut}");
        }
        for broken in [&b"\x0b"[..], b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"\x0e"] {
            assert_eq!(count(broken, &[2]), None);
        }
    }

    #[test]
    fn there_may_be_as_many_as_the_limit() {
        let message = [0x12, 0].repeat(3);
        assert!(limit(File("x"), &message, &[2], "parts", 3).is_ok());
        let error = limit(File("x"), &message, &[2], "parts", 2).unwrap_err();
        assert_eq!(error.to_string(), "x: more than 2 parts");
    }
}
