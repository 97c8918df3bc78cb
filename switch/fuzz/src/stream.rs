//! Target `stream`: where frames end in a stream of bytes, in crumbs of any size.

use memlane::frame::MAX_FRAME;
use memlane_backends::stream::wire::{PREFIX, TooLong, first};

/// Has `data` come in crumbs of the size that its first byte tells, and takes frames off as they are complete.
pub fn run(data: &[u8]) {
    let Some((&crumb, stream)) = data.split_first() else { return };
    let (mut seen, mut at, mut come) = (Vec::new(), 0, 0);
    let end = loop {
        match first(&stream[at..come]) {
            Ok(Some(frame)) => {
                seen.push(frame);
                at += PREFIX + frame.len();
            }
            Ok(None) if come == stream.len() => break None,
            Ok(None) => come = stream.len().min(come + 1 + usize::from(crumb)),
            Err(TooLong(length)) => break Some(length),
        }
    };
    assert_eq!((seen, end), split(stream));
}

/// The same by counting through, with everything there from the start.
fn split(stream: &[u8]) -> (Vec<&[u8]>, Option<u32>) {
    let (mut frames, mut rest) = (Vec::new(), stream);
    while rest.len() >= 4 {
        let length = rest[..4].iter().fold(0_u32, |length, &byte| length << 8 | u32::from(byte));
        if length > MAX_FRAME {
            return (frames, Some(length));
        }
        let Some(frame) = rest.get(4..4 + length as usize) else { break };
        frames.push(frame);
        rest = &rest[4 + length as usize..];
    }
    (frames, None)
}
