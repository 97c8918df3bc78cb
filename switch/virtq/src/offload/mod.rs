//! Checksum and segmentation offload: the requests of a sender (partial checksums, GSO frames), the features that a receiver
//! negotiated, and the repair of the difference.
//!
//! 1. [`check`]: on transmit, the virtio-net header of a frame is compared with the frame and with the negotiated features. Only the
//!    checksum of a transport header may be left to the switch, so that completing it changes no byte on which a verdict depends.
//! 2. [`plan`]: for one receiver, does the frame pass as it is, lack a checksum, or need segmentation?
//! 3. [`checksum`], [`segment`]: the repair, made while the frame is delivered, for each receiver by itself.

pub mod checksum;
#[cfg(test)]
mod proofs;
pub mod segment;

use crate::drop_reason::DropReason;
use crate::frame::{Extension, Layers, NetHeader, SCTP, Segmentation, TCP, UDP, has_usual_layers, ip_version};
use crate::packet::Packet;

/// Most segments of one frame: 64 KiB at the smallest segment size that Linux sends (48).
pub const MAX_SEGMENTS: u32 = 1366;
/// Most IPv6 extension headers behind the copied bytes of a frame with offloads: each kind once, and the second destination options (RFC 8200,
/// section 4.1).
const MOST_EXTENSIONS: usize = 5;

/// Negotiated offloads of one side: for a sender those that it may request (HOST_* and CSUM), for a receiver those that it accepts
/// (GUEST_*).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offloads {
    /// Partial checksums.
    pub checksum: bool,
    /// TSO: GSO frames of TCP over IPv4.
    pub tcp4: bool,
    /// TSO: GSO frames of TCP over IPv6.
    pub tcp6: bool,
    /// TSO: GSO frames of TCP with CWR set.
    pub ecn: bool,
    /// USO: GSO frames of UDP over IPv4.
    pub udp4: bool,
    /// USO: GSO frames of UDP over IPv6.
    pub udp6: bool,
}

impl Offloads {
    /// All of them.
    pub const ALL: Self = Self { checksum: true, tcp4: true, tcp6: true, ecn: true, udp4: true, udp6: true };

    fn allows(&self, kind: Segmentation, version: u8) -> bool {
        match kind {
            Segmentation::Tcp4 => self.tcp4,
            Segmentation::Tcp6 => self.tcp6,
            Segmentation::Udp if version == 4 => self.udp4,
            Segmentation::Udp => self.udp6,
        }
    }
}

/// Checks the offloads that the sender of `packet` requests, and rewrites the header so that receivers can rely on it: unknown
/// flags are cleared and `hdr_len` is right (virtio 1.4, section 5.1.6.2).
///
/// # Errors
/// The reason to drop the frame.
pub fn check(packet: &mut Packet, sender: &Offloads) -> Result<(), DropReason> {
    let header = packet.header;
    let kind = header.segmentation().map_err(|_| DropReason::BadSegmentation)?;
    let needs_checksum = header.flags() & NetHeader::NEEDS_CSUM != 0;
    packet.header = header.cleaned(0);
    if needs_checksum {
        check_range(packet, sender)?;
    }
    match kind {
        Some(_) if !needs_checksum => Err(DropReason::BadSegmentation),
        Some(kind) => check_segmentation(packet, kind, sender),
        None if needs_checksum => check_checksum(packet),
        None => Ok(()),
    }
}

fn check_range(packet: &Packet, sender: &Offloads) -> Result<(), DropReason> {
    if !sender.checksum {
        return Err(DropReason::OffloadNotAgreed);
    }
    let header = packet.header;
    let field_end = u32::from(header.csum_start()) + u32::from(header.csum_offset()) + 2;
    if usize::from(header.csum_start()) < crate::frame::ETHERNET || field_end > packet.length {
        return Err(DropReason::BadChecksumOffload);
    }
    Ok(())
}

/// Checks that the field to be completed is the checksum of TCP, UDP or SCTP: a verdict depends on every other field of the headers.
fn check_checksum(packet: &Packet) -> Result<(), DropReason> {
    let protocol = match packet.header.csum_offset() {
        16 => TCP,
        6 => UDP,
        8 => SCTP,
        _ => return Err(DropReason::ChecksumMisplaced),
    };
    let transport = packet.header.csum_start();
    let is_usual = packet.start_length >= transport.into() && has_usual_layers(&packet.start, protocol, transport);
    if is_usual || layers(packet, protocol).is_some() { Ok(()) } else { Err(DropReason::ChecksumMisplaced) }
}

/// The headers of `packet`, if that of its transport has this `protocol` and begins at `csum_start`.
fn layers(packet: &Packet, protocol: u8) -> Option<Layers> {
    let layers = Layers::said(packet.start(), protocol, packet.header.csum_start().into())?;
    (layers.transport <= packet.start().len() || reaches(packet, &layers)).then_some(layers)
}

/// Whether the IPv6 extension headers behind the copied bytes of `packet` lead to its transport header. The sender can still change those
/// bytes, on which no verdict depends.
#[cold]
fn reaches(packet: &Packet, layers: &Layers) -> bool {
    let Some(mut extension) = Layers::extension_behind(packet.start()) else { return true };
    for _ in 0..MOST_EXTENSIONS {
        let mut bytes = [0; Extension::BYTES];
        let Ok(at) = u32::try_from(extension.at) else { return false };
        if packet.read(at, &mut bytes) != bytes.len() {
            return false;
        }
        let Some(next) = extension.next(bytes) else { return false };
        if !next.is_one() {
            return (next.protocol, next.at) == (layers.protocol, layers.transport);
        }
        extension = next;
    }
    false
}

fn check_segmentation(packet: &mut Packet, kind: Segmentation, sender: &Offloads) -> Result<(), DropReason> {
    let header = packet.header;
    let (protocol, field) = kind.transport();
    let layers = layers(packet, protocol).ok_or(DropReason::BadSegmentation)?;
    if !kind.fits(layers.version) || header.csum_offset() != field {
        return Err(DropReason::BadSegmentation);
    }
    if !sender.allows(kind, layers.version) || (header.gso_type() & NetHeader::ECN != 0 && !sender.ecn) {
        return Err(DropReason::OffloadNotAgreed);
    }
    let length = header_length(packet, &layers).ok_or(DropReason::BadSegmentation)?;
    let payload = packet.length.checked_sub(length.into()).ok_or(DropReason::BadSegmentation)?;
    if header.gso_size() == 0 || payload.div_ceil(header.gso_size().into()) > MAX_SEGMENTS {
        return Err(DropReason::BadSegmentation);
    }
    // A segment is an IP packet, so its length must fit the length field; that of IPv6 does not count its header (RFC 8200, section
    // 3).
    let told = usize::from(length) - layers.network - if layers.version == 6 { 40 } else { 0 };
    if told as u32 + payload.min(header.gso_size().into()) > u32::from(u16::MAX) {
        return Err(DropReason::BadSegmentation);
    }
    packet.header = header.cleaned(length);
    Ok(())
}

/// Bytes before the payload; `None` if the transport header is invalid.
fn header_length(packet: &Packet, layers: &Layers) -> Option<u16> {
    let transport = match layers.protocol {
        TCP => {
            let mut offset = [0];
            let place = u32::try_from(layers.transport + 12).ok()?;
            (packet.read(place, &mut offset) == 1).then_some(usize::from(offset[0] >> 4) * 4).filter(|&length| length >= 20)?
        }
        _ => 8,
    };
    u16::try_from(layers.transport + transport).ok()
}

/// Repair of a frame for one receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plan {
    /// Nothing.
    AsIs,
    /// The checksum completed.
    Checksum,
    /// Segmentation, with checksums that the receiver completes itself if `partial`.
    Segment {
        /// The receiver takes partial checksums.
        partial: bool,
    },
}

/// The repair that `receiver` needs of a frame with this checked `header`.
#[inline]
pub fn plan(packet: &Packet, receiver: &Offloads) -> Plan {
    if packet.header.is_plain() { Plan::AsIs } else { plan_offload(packet, receiver) }
}

fn plan_offload(packet: &Packet, receiver: &Offloads) -> Plan {
    let header = packet.header;
    match header.segmentation() {
        Ok(Some(kind)) if !takes(receiver, kind, packet) => Plan::Segment { partial: receiver.checksum },
        _ if receiver.checksum => Plan::AsIs,
        _ => Plan::Checksum,
    }
}

fn takes(receiver: &Offloads, kind: Segmentation, packet: &Packet) -> bool {
    let ecn = packet.header.gso_type() & NetHeader::ECN != 0;
    let version = ip_version(packet.start()).unwrap_or(0);
    receiver.checksum && receiver.allows(kind, version) && (receiver.ecn || !ecn)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A GSO frame of TCP/IPv4 with `payload` bytes, to be segmented into `size` bytes each.
    fn packet(payload: u32, size: u16) -> Packet {
        let mut packet = Packet::default();
        packet.start[12..15].copy_from_slice(&[8, 0, 0x45]);
        packet.start[23] = TCP;
        packet.start[46] = 5 << 4;
        (packet.length, packet.start_length) = (54 + payload, 54);
        let [a, b] = size.to_le_bytes();
        packet.header = NetHeader::from_bytes([1, 1, 0, 0, a, b, 34, 0, 16, 0, 0, 0]);
        packet
    }

    #[test]
    fn no_segment_is_longer_than_an_ip_packet() {
        let check = |payload, size| check(&mut packet(payload, size), &Offloads::ALL);
        assert_eq!(check(65_495, u16::MAX), Ok(()));
        assert_eq!(check(65_496, u16::MAX), Err(DropReason::BadSegmentation));
        assert_eq!(check(65_503, 65_495), Ok(()));
    }

    /// A frame of an Ethernet header with these tags, then `kind` and `rest`.
    fn frame(tags: &[u16], kind: u16, rest: &[&[u8]]) -> Vec<u8> {
        let tags: Vec<u8> = tags.iter().flat_map(|tag| [tag.to_be_bytes(), [0, 7]].concat()).collect();
        [&[2; 12][..], &tags, &kind.to_be_bytes(), &rest.concat(), &[0; 40]].concat()
    }

    fn ipv4(protocol: u8, fragment: u16) -> Vec<u8> {
        let [high, low] = fragment.to_be_bytes();
        [&[0x45, 0, 0, 60, 0, 1, high, low, 64, protocol, 0, 0][..], &[10; 8]].concat()
    }

    fn ipv6(next: u8) -> Vec<u8> {
        [&[0x60, 0, 0, 0, 0, 60, next, 64][..], &[0xfd; 32]].concat()
    }

    /// The result for `frame` with the checksum at these offsets left undone.
    fn request(frame: &[u8], start: usize, offset: u16) -> Result<(), DropReason> {
        let mut bytes = frame.to_vec();
        let mut packet = Packet::default();
        packet.set_frame(NetHeader::partial_checksum(start as u16, offset), &mut bytes);
        check(&mut packet, &Offloads::ALL)
    }

    /// Virtio 1.2, section 5.1.6.2; offsets by RFC 9293 (16), RFC 768 (6) and RFC 9260 (8); atomic fragments by RFC 6946.
    #[test]
    fn only_the_checksum_of_a_transport_header_is_completed() {
        const DONT_FRAGMENT: u16 = 0x4000;
        let options = [&[0x46][..], &ipv4(6, DONT_FRAGMENT)[1..], &[1; 4]].concat();
        let extended = [&ipv6(0)[..], &[60, 0, 1, 4, 0, 0, 0, 0], &[44, 1], &[0; 14], &[17, 0, 0, 0, 0, 0, 0, 9]].concat();
        let good: [(Vec<u8>, usize, u16); 9] = [
            (frame(&[], 0x0800, &[&ipv4(6, DONT_FRAGMENT)]), 34, 16),
            (frame(&[], 0x0800, &[&ipv4(17, 0)]), 34, 6),
            (frame(&[], 0x0800, &[&ipv4(132, 0)]), 34, 8),
            (frame(&[], 0x0800, &[&options]), 38, 16),
            (frame(&[0x8100], 0x0800, &[&ipv4(17, 0)]), 38, 6),
            (frame(&[0x88a8, 0x8100], 0x86dd, &[&ipv6(6)]), 62, 16),
            (frame(&[], 0x86dd, &[&ipv6(17)]), 54, 6),
            (frame(&[], 0x86dd, &[&ipv6(132)]), 54, 8),
            (frame(&[], 0x86dd, &[&extended]), 86, 6),
        ];
        for (frame, at, field) in good {
            for start in 14..frame.len() - 20 {
                for offset in 0..20 {
                    let wanted = if (start, offset) == (at, field) { Ok(()) } else { Err(DropReason::ChecksumMisplaced) };
                    assert_eq!(request(&frame, start, offset), wanted, "{start} + {offset} of {frame:02x?}");
                }
            }
        }
    }

    #[test]
    fn no_checksum_of_what_is_hidden_or_fragmented_is_completed() {
        let fragment = |word: u16| [&[17, 0][..], &word.to_be_bytes(), &[0; 4]].concat();
        let inner = [&[0x12, 0x34, 0x12, 0xb5, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 1, 0][..], &[2; 12], &[8, 0], &ipv4(6, 0)].concat();
        let snap = [&[0xaa, 0xaa, 3, 0, 0, 0, 8, 0][..], &ipv4(17, 0)].concat();
        let bad: [(Vec<u8>, usize, u16); 10] = [
            (frame(&[], 0x0800, &[&ipv4(17, 0x2000)]), 34, 6),
            (frame(&[], 0x0800, &[&ipv4(17, 100)]), 34, 6),
            (frame(&[], 0x86dd, &[&ipv6(44), &fragment(1)]), 62, 6),
            (frame(&[], 0x86dd, &[&ipv6(44), &fragment(8)]), 62, 6),
            (frame(&[0x8100, 0x8100, 0x8100], 0x0800, &[&ipv4(17, 0)]), 46, 6),
            (frame(&[], 100, &[&snap]), 42, 6),
            (frame(&[], 0x0806, &[&[0; 28]]), 34, 6),
            (frame(&[], 0x86dd, &[&ipv6(58)]), 54, 2),
            (frame(&[], 0x0800, &[&ipv4(1, 0)]), 34, 6),
            // VXLAN (RFC 7348), with the checksum of the inner TCP header left undone.
            (frame(&[], 0x0800, &[&ipv4(17, 0), &inner]), 34 + 16 + 14 + 20, 16),
        ];
        for (frame, start, offset) in bad {
            assert_eq!(request(&frame, start, offset), Err(DropReason::ChecksumMisplaced), "{frame:02x?}");
        }
    }

    /// Extension headers behind the copied bytes are read, as many as a packet may have (RFC 8200, section 4.1).
    #[test]
    fn extension_headers_behind_the_copied_bytes_are_followed() {
        let long = |count: usize| {
            let options: Vec<u8> =
                (0..count).flat_map(|n| [&[if n + 1 < count { 60 } else { 6 }, 15][..], &[0; 126]].concat()).collect();
            frame(&[], 0x86dd, &[&ipv6(60), &options])
        };
        for count in 1..8 {
            let (frame, at) = (long(count), 54 + 128 * count);
            let wanted = if count <= 6 { Ok(()) } else { Err(DropReason::ChecksumMisplaced) };
            assert_eq!(request(&frame, at, 16), wanted, "{count}");
            for wrong in [at - 8, at + 8, at - 128] {
                assert_eq!(request(&frame, wrong, 16), Err(DropReason::ChecksumMisplaced), "{count}: {wrong}");
            }
            assert_eq!(request(&frame, at, 6), Err(DropReason::ChecksumMisplaced));
        }
    }
}
