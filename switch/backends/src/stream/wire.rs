//! The stream protocol: each frame follows its length, a prefix of four bytes in network byte order (QEMU, `net/stream.c`;
//! passt(1)).

use crate::frame::MAX_FRAME;
use memlane_virtq::message::counted;

/// Bytes of the length prefix.
pub const PREFIX: usize = 4;

/// A length beyond the longest frame: the stream is out of step, and the next frame cannot be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a frame of {} on the stream is longer than the limit of {MAX_FRAME}", counted(*.0, "byte"))]
pub struct TooLong(pub u32);

/// The length prefix of a frame of `length` bytes.
#[inline]
pub fn prefix(length: u32) -> [u8; PREFIX] {
    length.to_be_bytes()
}

/// The first frame in `bytes`, if it is complete; the caller then skips [`PREFIX`] bytes and the frame.
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
