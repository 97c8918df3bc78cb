//! Properties of every frame with offloads: see `docs/adr/0031-proofs.md`.

use super::segment::Cutter;
use super::{MAX_SEGMENTS, Offloads, check};
use crate::frame::{MAX_FRAME, NetHeader, START};
use crate::packet::Packet;

/// A start of a frame: TCP or UDP over IPv4 or IPv6, tagged or not, with some bytes changed.
fn start(kind: u8, changes: [(u8, u8); 3]) -> [u8; START] {
    let mut start = [0; START];
    let mut at = 12;
    if kind & 4 != 0 {
        start[at..at + 2].copy_from_slice(&[0x81, 0]);
        at += 4;
    }
    let protocol = if kind & 1 != 0 { 6 } else { 17 };
    let transport = if kind & 2 != 0 {
        start[at..at + 3].copy_from_slice(&[8, 0, 0x45]);
        start[at + 2 + 9] = protocol;
        at + 2 + 20
    } else {
        start[at..at + 3].copy_from_slice(&[0x86, 0xdd, 0x60]);
        start[at + 2 + 6] = protocol;
        at + 2 + 40
    };
    start[transport + 12] = 5 << 4;
    for (at, value) in changes {
        if let Some(byte) = start.get_mut(usize::from(at)) {
            *byte = value;
        }
    }
    start
}

/// Offset of the transport header of [`start`], and of its checksum in it.
fn transport(kind: u8) -> (u8, u8) {
    let network = if kind & 4 != 0 { 18 } else { 14 };
    (network + if kind & 2 != 0 { 20 } else { 40 }, if kind & 1 != 0 { 16 } else { 6 })
}

/// Every header that the check accepts can be segmented, and its segments are those of the frame: each within the bounds of an IP
/// packet, all of them together the payload, none of it twice.
#[test]
#[cfg_attr(kani, kani::proof, kani::unwind(12))]
fn checked_frames_can_be_cut() {
    type Input = (u8, [(u8, u8); 3], u32, u16, u16, bool);
    bolero::check!().with_type::<Input>().cloned().for_each(|(kind, changes, length, size, index, partial)| {
        // Half of the frames are as they should be.
        let changes = if kind & 8 != 0 { [(u8::MAX, 0); 3] } else { changes };
        let mut packet = Packet::default();
        packet.start = start(kind, changes);
        packet.length = length % (MAX_FRAME + 1);
        packet.start_length = packet.length.min(START as u32);
        let (at, field) = transport(kind);
        let gso = match kind & 3 {
            1 => NetHeader::GSO_TCPV6,
            3 => NetHeader::GSO_TCPV4,
            _ => NetHeader::GSO_UDP_L4,
        };
        let [low, high] = size.to_le_bytes();
        packet.header = NetHeader::from_bytes([1, gso | kind & 0x80, 0, 0, low, high, at, 0, field, 0, 0, 0]);
        if check(&mut packet, &Offloads::ALL).is_err() {
            return;
        }
        let mut cutter = Cutter::new(&packet, partial).expect("what was checked can be cut");
        let payload = packet.length - u32::from(packet.header.hdr_len());
        let count = cutter.count();
        assert!((1..=MAX_SEGMENTS).contains(&count));
        let index = u32::from(index) % count;
        let segment = cutter.segment(index);
        let end = segment.payload_offset + segment.payload_length;
        assert_eq!(segment.payload_offset, index * u32::from(size));
        assert_eq!(end, if index + 1 == count { payload } else { (index + 1) * u32::from(size) });
        assert!(segment.headers.len() <= START && segment.headers.len() as u32 + segment.payload_length <= MAX_FRAME);
        if let Some((start, field)) = segment.complete {
            assert!(start < field && field as usize + 2 <= segment.headers.len());
        }
    });
}
