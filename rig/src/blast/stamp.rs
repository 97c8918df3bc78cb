//! The generator's frames: their headers, and the 18 bytes by which the sink recognises them.
//!
//! Shape of a frame: Ethernet, IPv4, UDP (or TCP with `--tso`), then the [`Stamp`]: flow u16, sequence number u64, time of
//! sending in ticks u64. The shortest frame is so 14 + 20 + 8 + 18 = 60 bytes.

use std::net::Ipv4Addr;

use crate::frames::{GsoKind, Host, NetHeader, Packet, Transport};

/// Destination port of every frame of ours ("ml"): frames with another one are foreign.
pub const MARK: u16 = 0x6d6c;
/// Bytes of a stamp.
pub const STAMP_BYTES: usize = 18;
/// Where the destination port lies in a frame.
const MARK_AT: usize = 36;

/// Which headers the frames of a run have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carrier {
    /// UDP without a checksum.
    Udp,
    /// TCP; frames longer than a segment ask for segmentation with this many payload bytes.
    Tcp {
        /// Payload bytes a segment.
        mss: u16,
    },
}

impl Carrier {
    /// Where the stamp lies in a frame.
    #[inline]
    pub fn stamp_at(self) -> usize {
        match self {
            Self::Udp => 42,
            Self::Tcp { .. } => 54,
        }
    }

    /// Bytes of the shortest frame.
    pub fn shortest(self) -> usize {
        self.stamp_at() + STAMP_BYTES
    }
}

/// The longest frame: IPv4 allows 65535 bytes after the Ethernet header.
pub const LONGEST: usize = 14 + 65535;

/// The fields that the sink reads from a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// Index of the flow.
    pub flow: u16,
    /// Counts the frames of a flow from 0.
    pub sequence: u64,
    /// When the frame was sent, in ticks.
    pub ticks: u64,
}

/// A sequence number that means "looking for the way": such frames are not counted.
pub const PROBE: u64 = u64::MAX;

impl Stamp {
    /// Writes the stamp at `place`.
    ///
    /// # Safety
    /// `place` must be writable for [`STAMP_BYTES`].
    #[inline(always)]
    pub unsafe fn write(self, place: *mut u8) {
        // SAFETY: the caller vouches for 18 bytes from `place`; unaligned stores reach no further.
        unsafe {
            place.cast::<u16>().write_unaligned(self.flow);
            place.add(2).cast::<u64>().write_unaligned(self.sequence);
            place.add(10).cast::<u64>().write_unaligned(self.ticks);
        }
    }

    /// The stamp of a frame's first bytes, if the frame is ours.
    #[inline(always)]
    pub fn read(frame: &[u8], carrier: Carrier) -> Option<Self> {
        let at = carrier.stamp_at();
        if frame.len() < at + STAMP_BYTES || frame[MARK_AT..MARK_AT + 2] != MARK.to_be_bytes() {
            return None;
        }
        let stamp = &frame[at..at + STAMP_BYTES];
        Some(Self {
            flow: u16::from_le_bytes([stamp[0], stamp[1]]),
            sequence: u64::from_le_bytes(stamp[2..10].try_into().ok()?),
            ticks: u64::from_le_bytes(stamp[10..18].try_into().ok()?),
        })
    }
}

/// The bytes that all frames of a flow and a size begin with: the virtio-net header and the protocol headers.
#[derive(Debug, Clone)]
pub struct Template {
    /// virtio-net header (12 bytes), then the protocol headers.
    pub head: Vec<u8>,
    /// Bytes of the frame, without the virtio-net header.
    pub length: u32,
    /// Frames that arrive when one is sent: more than 1 when the receiver wants it segmented.
    pub parts: Parts,
}

/// How a frame arrives.
///
/// A frame that the switch must segment carries a stamp at the beginning of each segment's payload, so that each arriving
/// segment is a frame like any other: its sequence number is the sent frame's, times the number of parts, plus its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parts {
    /// How many.
    pub count: u32,
    /// Payload bytes of all but the last.
    pub size: u32,
}

impl Parts {
    /// A frame as it was sent.
    pub const UNSEGMENTED: Self = Self { count: 1, size: u32::MAX };

    /// In segments of `mss` payload bytes.
    pub fn segments(carrier: Carrier, length: u32, mss: u16) -> Self {
        let payload = length - carrier.stamp_at() as u32;
        Self { count: payload.div_ceil(mss.into()), size: mss.into() }
    }

    /// Lengths of the arriving frames, of a sent one of `length` bytes.
    pub fn lengths(self, carrier: Carrier, length: u32) -> impl Iterator<Item = u32> {
        let headers = carrier.stamp_at() as u32;
        let payload = length - headers;
        (0..self.count).map(move |part| headers + (payload - part * self.size.min(payload)).min(self.size))
    }
}

impl Template {
    /// Frames of `length` bytes from port `from` to port `to`; `number` tells flows between the same ports apart.
    pub fn new(carrier: Carrier, from: usize, to: usize, number: u16, length: u32) -> Self {
        let source = host(from).port(1000 + number);
        let destination = host(to).port(MARK);
        let payload = vec![0; length as usize - carrier.stamp_at()];
        let (header, mut frame) = match carrier {
            Carrier::Udp => (NetHeader::default(), Packet::udp(source, destination, payload).frame()),
            Carrier::Tcp { mss } => segmented(Packet::tcp(source, destination, 0, payload), mss),
        };
        if carrier == Carrier::Udp {
            // No checksum: it would have to be reckoned anew for every frame (RFC 768 allows that over IPv4).
            frame[40..42].fill(0);
        }
        let head = [&header.bytes()[..], &frame[..carrier.stamp_at()]].concat();
        Self { head, length, parts: Parts::UNSEGMENTED }
    }

    /// The same for a receiver that wants it segmented.
    #[must_use]
    pub fn in_parts(self, parts: Parts) -> Self {
        Self { parts, ..self }
    }
}

/// A TCP packet that asks for segmentation if it is longer than a segment, and for its checksum in any case.
fn segmented(packet: Packet, mss: u16) -> (NetHeader, Vec<u8>) {
    debug_assert!(matches!(packet.transport, Transport::Tcp(_)));
    let long = packet.payload.len() > usize::from(mss);
    let (header, frame) = packet.gso(mss);
    if long {
        return (header, frame);
    }
    (NetHeader { gso: GsoKind::None, gso_size: 0, header_length: 0, ..header }, frame)
}

/// MAC and IP address of port `index`: 02:00:00:00:hh:ll with hhll counted from 1, and 10.0.hh.ll.
pub fn host(index: usize) -> Host {
    Host::v4(index as u16 + 1)
}

/// The IPv4 address of port `index`.
pub fn address(index: usize) -> Ipv4Addr {
    let [high, low] = (index as u16 + 1).to_be_bytes();
    Ipv4Addr::new(10, 0, high, low)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frames::check;

    #[test]
    fn a_stamp_is_read_as_it_was_written() {
        let stamp = Stamp { flow: 513, sequence: 1 << 40, ticks: 77 };
        for carrier in [Carrier::Udp, Carrier::Tcp { mss: 1448 }] {
            let template = Template::new(carrier, 0, 1, 3, carrier.shortest() as u32);
            let mut frame = template.head[12..].to_vec();
            frame.resize(template.length as usize, 0);
            // SAFETY: the frame is as long as the shortest, which ends with the stamp.
            unsafe { stamp.write(frame[carrier.stamp_at()..].as_mut_ptr()) };
            assert_eq!(Stamp::read(&frame, carrier), Some(stamp));
            frame[MARK_AT] ^= 1;
            assert_eq!(Stamp::read(&frame, carrier), None);
            assert_eq!(Stamp::read(&frame[..50], carrier), None);
        }
    }

    #[test]
    fn parts_make_the_whole() {
        let carrier = Carrier::Tcp { mss: 1448 };
        let parts = Parts::segments(carrier, 3054, 1448);
        assert_eq!(parts.lengths(carrier, 3054).collect::<Vec<_>>(), [1502, 1502, 158]);
        assert_eq!(Parts::UNSEGMENTED.lengths(carrier, 3054).collect::<Vec<_>>(), [3054]);
        assert_eq!(Parts::segments(carrier, 100, 1448).count, 1);
    }

    #[test]
    fn templates_make_sound_frames() {
        for (carrier, length) in [
            (Carrier::Udp, 60),
            (Carrier::Udp, LONGEST as u32),
            (Carrier::Tcp { mss: 1448 }, 72),
            (Carrier::Tcp { mss: 1448 }, 60_000),
        ] {
            let template = Template::new(carrier, 0, 1, 0, length);
            let mut frame = template.head[12..].to_vec();
            frame.resize(length as usize, 0);
            let header = NetHeader::parse(&template.head).unwrap();
            check(&header, &frame).unwrap();
            assert_eq!(header.gso == GsoKind::Tcp4, length == 60_000);
        }
    }
}
