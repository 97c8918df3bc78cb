//! Checks of a received frame: lengths, checksums, and the promises of its virtio-net header.

use std::net::IpAddr;

use etherparse::{IpNumber, Ipv6ExtensionsSlice, NetSlice, SlicedPacket, TransportSlice};

use super::packet::final_destination;
use super::{GsoKind, NetHeader, SHORTEST_FRAME, checksum, pseudo_header_sum};

/// A flaw of a frame.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Flaw {
    /// A header is cut off or contradicts itself.
    #[error("the headers do not parse: {0}")]
    Malformed(String),
    /// The IP packet's length is not the frame's.
    #[error("the IP packet ends at byte {packet} of the frame, the frame at {frame}")]
    Length {
        /// Where the IP packet ends.
        packet: usize,
        /// Where the frame ends.
        frame: usize,
    },
    /// The IPv4 header's checksum is wrong.
    #[error("the IPv4 header checksum is wrong")]
    HeaderChecksum,
    /// The TCP or UDP checksum is wrong.
    #[error("the {0} checksum is wrong")]
    TransportChecksum(&'static str),
    /// The checksum is to be put in, but the field does not hold the pseudo header's sum.
    #[error("the partial checksum is {found:#06x}, the pseudo header's sum is {wanted:#06x}")]
    PartialChecksum {
        /// The field.
        found: u16,
        /// The right value.
        wanted: u16,
    },
    /// The virtio-net header contradicts the frame.
    #[error("the virtio-net header {0}")]
    Header(&'static str),
}

/// Kind of a sound frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sound {
    /// Not IP: nothing more was looked at.
    Other,
    /// IP, but neither TCP nor UDP, or a fragment: only lengths and the IP header were looked at.
    Network,
    /// TCP.
    Tcp {
        /// Payload bytes.
        payload: usize,
        /// Sequence number.
        sequence: u32,
    },
    /// UDP.
    Udp {
        /// Payload bytes.
        payload: usize,
    },
}

/// The fields that enter the transport checksum.
struct Carried<'a> {
    name: &'static str,
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    /// Where the transport header starts in the frame.
    start: usize,
    /// The transport header and its payload.
    segment: &'a [u8],
    checksum_offset: usize,
    header_length: usize,
}

/// Judges a frame that came with `header`.
///
/// # Errors
/// The first [`Flaw`] found.
pub fn check(header: &NetHeader, frame: &[u8]) -> Result<Sound, Flaw> {
    let sliced = SlicedPacket::from_ethernet(frame).map_err(|error| Flaw::Malformed(error.to_string()))?;
    let Some(net) = &sliced.net else {
        return no_promises(header).map(|()| Sound::Other);
    };
    let Some(ip) = network(net, frame)? else {
        return no_promises(header).map(|()| Sound::Other);
    };
    let end = ip.end;
    if end != frame.len() && frame.len() > SHORTEST_FRAME {
        return Err(Flaw::Length { packet: end, frame: frame.len() });
    }
    let Some((carried, sound)) = transport(&sliced, &ip, frame) else {
        return no_promises(header).map(|()| Sound::Network);
    };
    check_checksum(header, &carried)?;
    check_segmentation(header, &carried, frame.len())?;
    Ok(sound)
}

/// Addresses and end of an IP packet.
struct Routed {
    source: IpAddr,
    destination: IpAddr,
    /// Where the packet ends in the frame.
    end: usize,
}

/// Addresses and end of the IP packet; `None` for other protocols.
fn network(net: &NetSlice<'_>, frame: &[u8]) -> Result<Option<Routed>, Flaw> {
    let (source, destination, payload): (IpAddr, IpAddr, &[u8]) = match net {
        NetSlice::Ipv4(ip) => {
            let header = ip.header();
            if checksum(0, header.slice()) != 0 {
                return Err(Flaw::HeaderChecksum);
            }
            (header.source_addr().into(), header.destination_addr().into(), ip.payload().payload)
        }
        NetSlice::Ipv6(ip) => {
            let header = ip.header();
            let routed = routing_header(ip.extensions()).and_then(final_destination);
            let destination = routed.unwrap_or_else(|| header.destination_addr());
            (header.source_addr().into(), destination.into(), ip.payload().payload)
        }
        NetSlice::Arp(_) => return Ok(None),
    };
    let end = offset(frame, payload) + payload.len();
    Ok(Some(Routed { source, destination, end }))
}

/// The content of the routing header among `extensions`, behind its length.
fn routing_header<'a>(extensions: &Ipv6ExtensionsSlice<'a>) -> Option<&'a [u8]> {
    let (mut next, mut rest) = (extensions.first_header()?, extensions.slice());
    while next != IpNumber::IPV6_ROUTE_HEADER {
        let length = 8 + 8 * usize::from(*rest.get(1)?);
        next = IpNumber(*rest.first()?);
        rest = rest.get(length..)?;
    }
    rest.get(2..8 + 8 * usize::from(*rest.get(1)?))
}

fn transport<'a>(sliced: &SlicedPacket<'_>, ip: &Routed, frame: &'a [u8]) -> Option<(Carried<'a>, Sound)> {
    let (name, protocol, header, checksum_offset, sound) = match sliced.transport.as_ref()? {
        TransportSlice::Tcp(tcp) => {
            let sound = Sound::Tcp { payload: tcp.payload().len(), sequence: tcp.sequence_number() };
            ("TCP", 6, tcp.header_slice(), 16, sound)
        }
        TransportSlice::Udp(udp) => ("UDP", 17, udp.header_slice(), 6, Sound::Udp { payload: udp.payload().len() }),
        _ => return None,
    };
    let start = offset(frame, header);
    let segment = &frame[start..ip.end];
    let (source, destination, header_length) = (ip.source, ip.destination, header.len());
    Some((Carried { name, source, destination, protocol, start, segment, checksum_offset, header_length }, sound))
}

fn check_checksum(header: &NetHeader, carried: &Carried<'_>) -> Result<(), Flaw> {
    let at = carried.checksum_offset;
    let found = u16::from_be_bytes([carried.segment[at], carried.segment[at + 1]]);
    let pseudo = pseudo_header_sum(carried.source, carried.destination, carried.protocol, carried.segment.len());
    if header.needs_checksum {
        if (usize::from(header.checksum_start), usize::from(header.checksum_offset)) != (carried.start, at) {
            return Err(Flaw::Header("says that the checksum is elsewhere than it is"));
        }
        let right = found == pseudo;
        return if right { Ok(()) } else { Err(Flaw::PartialChecksum { found, wanted: pseudo }) };
    }
    // UDP over IPv4 may go without (RFC 768).
    let absent = found == 0 && carried.protocol == 17 && carried.source.is_ipv4();
    if !absent && checksum(pseudo, carried.segment) != 0 {
        return Err(Flaw::TransportChecksum(carried.name));
    }
    Ok(())
}

fn check_segmentation(header: &NetHeader, carried: &Carried<'_>, frame: usize) -> Result<(), Flaw> {
    if header.gso == GsoKind::None {
        return Ok(());
    }
    let fitting = match (carried.protocol, carried.source) {
        (6, IpAddr::V4(_)) => GsoKind::Tcp4,
        (6, IpAddr::V6(_)) => GsoKind::Tcp6,
        _ => GsoKind::UdpL4,
    };
    if header.gso != fitting {
        return Err(Flaw::Header("asks for another kind of segmentation than the packet's"));
    }
    if header.gso_size == 0 {
        return Err(Flaw::Header("asks for segments of 0 bytes"));
    }
    if !header.needs_checksum {
        return Err(Flaw::Header("asks for segmentation without a checksum"));
    }
    let headers = carried.start + carried.header_length;
    if frame <= headers {
        return Err(Flaw::Header("asks for segmentation of a packet without payload"));
    }
    Ok(())
}

/// A frame that is neither TCP nor UDP can promise nothing.
fn no_promises(header: &NetHeader) -> Result<(), Flaw> {
    match header.needs_checksum || header.gso != GsoKind::None {
        true => Err(Flaw::Header("asks for offloads on a frame that is neither TCP nor UDP")),
        false => Ok(()),
    }
}

/// Where `part` starts in `whole`, of which it is a part.
fn offset(whole: &[u8], part: &[u8]) -> usize {
    part.as_ptr() as usize - whole.as_ptr() as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frames::{Host, Packet};

    fn packets() -> Vec<Packet> {
        let pairs = [(Host::v4(1), Host::v4(2)), (Host::v6(1), Host::v6(2))];
        let both = |(from, to)| [Packet::udp(from, to, vec![5; 2000]), Packet::tcp(from, to, 1, vec![6; 2001])];
        pairs.into_iter().flat_map(both).flat_map(|packet| [packet.clone().tagged(5), packet]).collect()
    }

    #[test]
    fn sound_frames_are_sound() {
        for packet in packets() {
            assert!(check(&NetHeader::default(), &packet.frame()).is_ok(), "{packet:?}");
            let (header, frame) = packet.partial();
            assert!(check(&header, &frame).is_ok());
            let (header, frame) = packet.gso(1000);
            assert!(check(&header, &frame).is_ok());
            for segment in packet.segments(700) {
                assert!(check(&NetHeader::default(), &segment.frame()).is_ok());
            }
        }
    }

    #[test]
    fn every_spoilt_byte_after_the_ethernet_header_is_noticed() {
        for packet in packets() {
            let frame = packet.frame();
            for at in packet.network_offset()..frame.len() {
                let mut spoilt = frame.clone();
                spoilt[at] ^= 0x11;
                // Traffic class, flow label and hop limit of IPv6 are under no checksum.
                let free = frame[packet.network_offset()] >> 4 == 6 && matches!(at - packet.network_offset(), 0..4 | 7);
                let flawed = check(&NetHeader::default(), &spoilt);
                assert!(free || !matches!(flawed, Ok(Sound::Tcp { .. } | Sound::Udp { .. })), "byte {at}: {flawed:?}");
            }
        }
    }

    #[test]
    fn false_promises_are_noticed() {
        let packet = Packet::tcp(Host::v4(1), Host::v4(2), 1, vec![1; 100]);
        let (header, frame) = packet.gso(50);
        let flawed = |header: NetHeader| check(&header, &frame).unwrap_err();
        assert!(matches!(flawed(NetHeader { gso_size: 0, ..header }), Flaw::Header(_)));
        assert!(matches!(flawed(NetHeader { gso: GsoKind::Tcp6, ..header }), Flaw::Header(_)));
        assert!(matches!(flawed(NetHeader { checksum_start: 33, ..header }), Flaw::Header(_)));
        assert!(matches!(flawed(NetHeader::default()), Flaw::TransportChecksum("TCP")));
        let complete = packet.frame();
        let partial = NetHeader { gso: GsoKind::None, ..header };
        assert!(matches!(check(&partial, &complete), Err(Flaw::PartialChecksum { .. })));
        let longer = [packet.frame(), vec![0; 3]].concat();
        assert!(matches!(check(&NetHeader::default(), &longer), Err(Flaw::Length { .. })));
        assert_eq!(check(&NetHeader::default(), &[0xff; 60]), Ok(Sound::Other));
        assert!(check(&partial, &[0xff; 60]).is_err());
    }
}
