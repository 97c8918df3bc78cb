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
use crate::frame::{Extension, Layers, NetHeader, SCTP, Segmentation, TCP, UDP, ip_version};
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
    layers(packet, protocol).map(drop).ok_or(DropReason::ChecksumMisplaced)
}

/// The headers of `packet`, if that of its transport has this `protocol` and begins at `csum_start`.
#[inline]
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
}
