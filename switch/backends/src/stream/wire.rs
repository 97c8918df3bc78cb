//! The protocol: each frame stands behind its length, four bytes, the highest first (QEMU, `net/stream.c`; passt(1)).

use crate::frame::MAX_FRAME;

/// Bytes of a length.
pub const PREFIX: usize = 4;

/// A frame that is longer than any may be: what comes after it cannot be told from it any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a frame of {0} bytes over a stream, where one has {MAX_FRAME} at most")]
pub struct TooLong(pub u32);

/// What stands before a frame of `length` bytes.
#[inline]
pub fn prefix(length: u32) -> [u8; PREFIX] {
    length.to_be_bytes()
}

/// The first frame in `bytes`, if all of it is there; [`PREFIX`] bytes and its own are then done with.
///
/// # Errors
/// [`TooLong`].
pub fn first(bytes: &[u8]) -> Result<Option<&[u8]>, TooLong> {
    let Some((length, rest)) = bytes.split_first_chunk::<PREFIX>() else { return Ok(None) };
    let length = u32::from_be_bytes(*length);
    if length > MAX_FRAME { Err(TooLong(length)) } else { Ok(rest.get(..length as usize)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_end_where_their_lengths_say() {
        let mut bytes = [&prefix(3)[..], b"one", &prefix(0), &prefix(5), b"thr"].concat();
        assert_eq!(first(&bytes), Ok(Some(&b"one"[..])));
        assert_eq!(first(&bytes[7..]), Ok(Some(&b""[..])));
        assert_eq!(first(&bytes[11..]), Ok(None));
        bytes.extend(b"ee");
        assert_eq!(first(&bytes[11..]), Ok(Some(&b"three"[..])));
        assert_eq!(first(&[0, 0, 0]), Ok(None));
        assert_eq!(first(&[0xff; 4]), Err(TooLong(u32::MAX)));
    }
}
