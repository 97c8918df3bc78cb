//! Offloads (virtio 1.4, section 5.1.6): what frames request by chance, which requests are refused, and what arrives.

use memlane::offload::Offloads;
use memlane::stats::DropReason;

use super::super::judge::{self, Arrived, Sent};
use super::Dice;
use super::frames::{Body, Frame, Packet};

/// Kinds of GSO in a virtio-net header, and the flag for frames with CWR.
const TCP4: u8 = 1;
const TCP6: u8 = 4;
const UDP: u8 = 5;
const ECN: u8 = 0x80;
/// One that no specification knows.
const UNKNOWN: u8 = 7;
/// Most segments of a frame.
pub const MOST_SEGMENTS: u64 = 12;
/// Least bytes of a segment: a multiple of the bytes by which the frame is known.
const LEAST: usize = 160;

/// The offloads that a frame requests.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// A partial checksum.
    checksum: bool,
    /// The field `gso_type`.
    gso: u8,
    /// Bytes of payload of a segment.
    size: u16,
    /// Bytes by which the start of the checksummed range is wrong.
    shift: u16,
}

/// Negotiated offloads of one side.
pub fn negotiated(dice: &mut Dice) -> Offloads {
    if dice.once_in(3) { Offloads::ALL } else { super::super::offload::offloads(dice.number() as u8) }
}

/// Bytes of the headers of a packet with its Ethernet header, and of that of its transport.
fn headers(packet: &Packet) -> (usize, usize) {
    (14 + if packet.from.0.is_ipv4() { 20 } else { 40 }, if packet.protocol == 6 { 20 } else { 8 })
}

/// A request by chance for a frame with this body, and the bytes of the frame then.
pub fn request(body: &Body, dice: &mut Dice) -> Option<(Request, Option<usize>)> {
    let Body::Ip(packet) = body else { return None };
    if packet.lease.is_some() {
        return None;
    }
    let checksum = Request { checksum: true, gso: 0, size: 0, shift: 0 };
    let fitting = match (packet.protocol, packet.from.0.is_ipv4()) {
        (6, true) => TCP4,
        (6, false) => TCP6,
        _ => UDP,
    };
    if fitting == UDP && !packet.from.0.is_ipv4() {
        // Segments of UDP over IPv6 are all alike.
        return Some((checksum, None));
    }
    let size = (LEAST + 8 * dice.below(60)) as u16;
    let gso = Request { gso: fitting | if dice.once_in(6) { ECN } else { 0 }, size, ..checksum };
    let request = match dice.below(20) {
        0..6 => return Some((checksum, None)),
        6 => return Some((Request { shift: 2, ..checksum }, None)),
        7 => Request { checksum: false, ..gso },
        8 => Request { gso: dice.pick(&[UNKNOWN, TCP4, TCP6, UDP]), ..gso },
        9 => Request { size: 0, ..gso },
        10 => Request { shift: 4, ..gso },
        _ => gso,
    };
    let (before, transport) = headers(packet);
    Some((request, Some(before + transport + 8 * (8 + dice.below(200)))))
}

impl Request {
    /// Whether the payload repeats the frame's number, so that each segment has it.
    pub fn is_cut(&self) -> bool {
        self.gso != 0
    }

    /// The virtio-net header of its `frame` with this tag.
    fn header(&self, frame: &Frame, tag: u16) -> [u8; 12] {
        let Body::Ip(packet) = &frame.body else { return [0; 12] };
        let (before, transport) = headers(packet);
        let before = before + if tag == 0 { 0 } else { 4 };
        let offset = if packet.protocol == 6 { 16 } else { 6 };
        let numbers =
            [(before + transport) as u16, self.size, before as u16 + self.shift, offset, 0].map(u16::to_le_bytes).concat();
        let mut header = [0; 12];
        header[..2].copy_from_slice(&[self.checksum.into(), self.gso]);
        header[2..].copy_from_slice(&numbers);
        header
    }

    /// The drop reason of a frame of `packet` with this request, if `sender` may not make it.
    fn refusal(&self, packet: &Packet, sender: &Offloads) -> Option<DropReason> {
        let (kind, is_v4) = (self.gso & !ECN, packet.from.0.is_ipv4());
        let is_misplaced = self.shift != 0 || packet.is_later || !matches!(packet.protocol, 6 | 17);
        let is_agreed = match (kind, is_v4) {
            (TCP4, _) => sender.tcp4,
            (TCP6, _) => sender.tcp6,
            (_, true) => sender.udp4,
            _ => sender.udp6,
        };
        let fits = match kind {
            TCP4 => packet.protocol == 6 && is_v4,
            TCP6 => packet.protocol == 6 && !is_v4,
            _ => packet.protocol == 17,
        };
        if kind == UNKNOWN || self.gso == UDP | ECN {
            Some(DropReason::BadSegmentation)
        } else if self.checksum && !sender.checksum {
            Some(DropReason::OffloadNotAgreed)
        } else if kind == 0 {
            is_misplaced.then_some(DropReason::ChecksumMisplaced)
        } else if !self.checksum || is_misplaced || !fits {
            Some(DropReason::BadSegmentation)
        } else if !is_agreed || self.gso & ECN != 0 && !sender.ecn {
            Some(DropReason::OffloadNotAgreed)
        } else {
            (self.size == 0).then_some(DropReason::BadSegmentation)
        }
    }
}

impl Frame {
    /// The frame's virtio-net header, with this tag.
    pub fn header(&self, tag: u16) -> [u8; 12] {
        self.request.map_or([0; 12], |request| request.header(self, tag))
    }

    /// The drop reason for offloads that `sender` may not request.
    pub fn refusal(&self, sender: &Offloads) -> Option<DropReason> {
        let Body::Ip(packet) = &self.body else { return None };
        self.request?.refusal(packet, sender)
    }

    /// Segments of the frame, where it is cut.
    pub fn segments(&self) -> usize {
        match (&self.request, &self.body) {
            (Some(request), Body::Ip(packet)) if request.gso != 0 && request.size > 0 => {
                let (before, transport) = headers(packet);
                (self.length - before - transport).div_ceil(request.size.into())
            }
            _ => 1,
        }
    }

    /// A number that grows with each segment, if one does: the IPv4 identification, or the lower half of the sequence number.
    fn order(&self, tag: u16, segment: &[u8]) -> u16 {
        let network = if tag == 0 { 14 } else { 18 };
        let at = match &self.body {
            Body::Ip(packet) if packet.from.0.is_ipv4() => network + 4,
            Body::Ip(packet) if packet.protocol == 6 => network + 40 + 6,
            _ => return 0,
        };
        u16::from_be_bytes([segment[at], segment[at + 1]])
    }

    /// Whether all has arrived with these parts, and panics if something is wrong. `receiver` accepts these offloads; link emulation `may_cut` a
    /// frame that it would take unsegmented.
    pub fn has_arrived(&self, tag: u16, parts: &mut [Arrived], receiver: Offloads, may_cut: bool) -> bool {
        let bytes = self.bytes(tag);
        let is_whole = parts[0].bytes.len() == bytes.len();
        if !is_whole && parts.len() < self.segments() {
            return false;
        }
        let is_cut = parts[0].header[1] == 0;
        if may_cut {
            // Jitter reorders segments; the last one may be shorter.
            parts.sort_by_key(|part| (self.order(tag, &part.bytes), usize::MAX - part.bytes.len()));
        }
        let receiver = if may_cut && is_cut { Offloads { checksum: receiver.checksum, ..Offloads::default() } } else { receiver };
        judge::judge(&Sent { header: self.header(tag), frame: &bytes, receiver }, parts);
        true
    }
}
