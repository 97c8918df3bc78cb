//! The right result for a frame with an unfinished checksum or segmentation (offloads), for one receiver. Computed as plainly as it
//! can be.

use memlane::offload::Offloads;

use super::parser::{self, Found};

/// A transmit frame, after it was found to be in order.
pub struct Sent<'a> {
    /// The virtio-net header.
    pub header: [u8; 12],
    /// The frame.
    pub frame: &'a [u8],
    /// Offloads that the receiver takes undone.
    pub receiver: Offloads,
}

/// A received frame.
#[derive(Debug)]
pub struct Arrived {
    /// The virtio-net header.
    pub header: [u8; 12],
    /// The frame.
    pub bytes: Vec<u8>,
}

impl Arrived {
    fn word(&self, at: usize) -> u16 {
        u16::from_le_bytes([self.header[at], self.header[at + 1]])
    }
}

impl Sent<'_> {
    fn word(&self, at: usize) -> u16 {
        u16::from_le_bytes([self.header[at], self.header[at + 1]])
    }

    fn needs_checksum(&self) -> bool {
        self.header[0] & 1 != 0
    }

    fn segmentation(&self) -> u8 {
        self.header[1] & 0x7f
    }

    fn has_ecn(&self) -> bool {
        self.header[1] & 0x80 != 0
    }

    fn checksum_start(&self) -> usize {
        self.word(6).into()
    }

    fn checksum_field(&self) -> usize {
        self.checksum_start() + usize::from(self.word(8))
    }

    fn receiver_takes_it_unsegmented(&self, version: u8) -> bool {
        let kind = match (self.segmentation(), version) {
            (1, _) => self.receiver.tcp4,
            (4, _) => self.receiver.tcp6,
            (_, 4) => self.receiver.udp4,
            _ => self.receiver.udp6,
        };
        self.receiver.checksum && kind && (self.receiver.ecn || !self.has_ecn())
    }
}

impl Sent<'_> {
    /// Whether the checksum left undone is that of TCP, UDP or SCTP (virtio 1.2, section 5.1.6.2; RFC 9293, 768, 9260).
    fn is_of_transport(&self) -> bool {
        let field = parser::find(self.frame).and_then(|(_, _, transport, protocol)| match protocol {
            6 => Some(transport + 16),
            17 => Some(transport + 6),
            132 => Some(transport + 8),
            _ => None,
        });
        field == Some(self.checksum_field()) && parser::find(self.frame).is_some_and(|found| found.2 == self.checksum_start())
    }

    /// The sender's statement on a frame that is to be segmented: where its headers lie.
    fn said(&self) -> Found {
        let (version, network) = parser::find_ip(self.frame).expect("only IP is segmented");
        (version, network, self.checksum_start(), if self.segmentation() == 5 { 17 } else { 6 })
    }
}

/// Bytes of a frame that are looked at before it is passed on.
const LOOKED_AT: usize = 144;
/// Bytes of headers that are repeated in each segment, at most.
const REPEATED: usize = 4096;
/// Bytes of longer headers that are repeated in all segments together, at most.
const ALL_REPEATED: usize = 144 * 1366;

/// Panics unless the switch may refuse to segment a frame: its headers are too long for that, or contradict the sender's statement
/// further on.
pub fn judge_refusal(sent: &Sent) {
    let said = sent.said();
    let start = payload_start(sent.frame, said);
    let count = (sent.frame.len() - start).div_ceil(sent.word(4).into()).max(1);
    let too_long = start > REPEATED || start * count > ALL_REPEATED;
    assert!(!sent.receiver_takes_it_unsegmented(said.0), "nothing was to be cut");
    assert!(start > LOOKED_AT && (too_long || parser::find(&sent.frame[..start]) != Some(said)), "headers of {start} bytes");
}

/// Panics unless `arrived` is the right result for the receiver of `sent`.
pub fn judge(sent: &Sent, arrived: &[Arrived]) {
    if sent.segmentation() == 0 {
        let [only] = arrived else { panic!("one frame became {}", arrived.len()) };
        return judge_single(sent, only);
    }
    let found = sent.said();
    if sent.receiver_takes_it_unsegmented(found.0) {
        let [only] = arrived else { panic!("one frame became {}", arrived.len()) };
        assert!(only.bytes == sent.frame);
        assert_eq!((only.header[0], only.header[1]), (1, sent.header[1]));
        assert_eq!(usize::from(only.word(2)), payload_start(sent.frame, found));
        assert_eq!(only.header[4..10], sent.header[4..10]);
    } else {
        assert_eq!(parser::find(sent.frame), Some(found), "what is cut is what it was said to be");
        judge_segments(sent, found, arrived);
    }
}

fn judge_single(sent: &Sent, arrived: &Arrived) {
    assert_eq!(arrived.header[1..6], [0; 5], "nothing is segmented, and nothing is said of it");
    assert!(!sent.needs_checksum() || sent.is_of_transport(), "no other field of a frame is completed");
    if sent.needs_checksum() && !sent.receiver.checksum {
        let mut wanted = sent.frame.to_vec();
        let sum = !parser::sum(&[&wanted[sent.checksum_start()..]]);
        let sum = if sum == 0 { 0xffff } else { sum };
        wanted[sent.checksum_field()..][..2].copy_from_slice(&sum.to_be_bytes());
        assert_eq!(arrived.header[..10], [0; 10]);
        assert!(arrived.bytes == wanted);
        return;
    }
    assert!(arrived.bytes == sent.frame);
    assert_eq!(arrived.header[0], u8::from(sent.needs_checksum()));
    if sent.needs_checksum() {
        assert_eq!(arrived.header[6..10], sent.header[6..10]);
    }
}

fn payload_start(frame: &[u8], (_, _, transport, protocol): Found) -> usize {
    transport + if protocol == 6 { usize::from(frame[transport + 12] >> 4) * 4 } else { 8 }
}

fn judge_segments(sent: &Sent, found: Found, arrived: &[Arrived]) {
    let start = payload_start(sent.frame, found);
    let payload = &sent.frame[start..];
    let size = usize::from(sent.word(4));
    let count = payload.len().div_ceil(size).max(1);
    assert_eq!(arrived.len(), count);
    let mut runs = payload.chunks(size);
    for (index, segment) in arrived.iter().enumerate() {
        assert!(segment.bytes[start..] == *runs.next().unwrap_or_default(), "payload of segment {index}");
        judge_network(sent.frame, found, index, &segment.bytes);
        judge_transport(sent.frame, found, (index, count, size), &segment.bytes);
        judge_checksum(sent, found, segment);
    }
}

/// Lengths, identification and header checksum; all else as in the GSO frame.
fn judge_network(original: &[u8], (version, network, transport, _): Found, index: usize, segment: &[u8]) {
    assert_eq!(segment[..network], original[..network]);
    let word = |bytes: &[u8], at: usize| u16::from_be_bytes([bytes[network + at], bytes[network + at + 1]]);
    if version == 6 {
        assert_eq!(usize::from(word(segment, 4)), segment.len() - network - 40);
        assert_eq!(segment[network..network + 4], original[network..network + 4]);
        assert_eq!(segment[network + 6..transport], original[network + 6..transport]);
        return;
    }
    assert_eq!(usize::from(word(segment, 2)), segment.len() - network);
    assert_eq!(word(segment, 4), word(original, 4).wrapping_add(index as u16));
    assert_eq!(parser::sum(&[&segment[network..transport]]), 0xffff, "IPv4 header checksum");
    assert_eq!(segment[network..network + 2], original[network..network + 2]);
    assert_eq!(segment[network + 6..network + 10], original[network + 6..network + 10]);
    assert_eq!(segment[network + 12..transport], original[network + 12..transport]);
}

/// Sequence number and flags, or the length of UDP; all else as in the GSO frame.
fn judge_transport(original: &[u8], found: Found, (index, count, size): (usize, usize, usize), segment: &[u8]) {
    let (_, _, at, protocol) = found;
    assert_eq!(segment[at..at + 4], original[at..at + 4], "ports");
    if protocol != 6 {
        assert_eq!(usize::from(u16::from_be_bytes([segment[at + 4], segment[at + 5]])), segment.len() - at);
        return;
    }
    let long = |bytes: &[u8]| u32::from_be_bytes([bytes[at + 4], bytes[at + 5], bytes[at + 6], bytes[at + 7]]);
    assert_eq!(long(segment), long(original).wrapping_add((index * size) as u32));
    // FIN and PSH belong to the last segment; AE, CWR and ECE to all (RFC 9768, section 3.3).
    let last = if index + 1 == count { 0 } else { 0x09 };
    assert_eq!(segment[at + 13], original[at + 13] & !last);
    assert_eq!(segment[at + 8..at + 13], original[at + 8..at + 13]);
    assert_eq!(segment[at + 14..at + 16], original[at + 14..at + 16]);
    let start = payload_start(original, found);
    assert_eq!(segment[at + 18..start], original[at + 18..start], "urgent pointer and options");
}

/// The transport checksum is right if the sender's partial sum was, or is a partial sum again and the receiver is told to complete it.
fn judge_checksum(sent: &Sent, found: Found, segment: &Arrived) {
    let (_, _, at, protocol) = found;
    let field = if protocol == 6 { 16 } else { 6 };
    let transport = &segment.bytes[at..];
    // The sender's partial sum, but for the length: that was the GSO frame's.
    let without_length = !(sent.frame.len() as u32 - at as u32);
    let pseudo = [&sent.frame[at + field..][..2], &without_length.to_be_bytes(), &(transport.len() as u32).to_be_bytes()].concat();
    let stored = &transport[field..field + 2];
    assert_eq!(segment.header[1..6], [0; 5]);
    if sent.receiver.checksum {
        assert_eq!(segment.header[0], 1);
        assert_eq!((usize::from(segment.word(6)), usize::from(segment.word(8))), (at, field));
        // There are two zeroes.
        assert_eq!(parser::sum(&[stored]) % 0xffff, parser::sum(&[&pseudo]) % 0xffff);
    } else {
        assert_eq!(segment.header[..10], [0; 10]);
        assert_eq!(parser::sum(&[&pseudo, transport]), 0xffff, "transport checksum");
        assert!(protocol == 6 || *stored != [0; 2], "UDP without a checksum");
    }
}
