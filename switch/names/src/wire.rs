//! Frames: read by the switch's parsers of headers, and written with complete checksums.
//!
//! Checksums of frames that come in are not compared: between guests of a host they are often left to the receiver (partial checksums,
//! VIRTIO_NET_HDR_F_NEEDS_CSUM), and no wire damages frames here.

use std::net::{IpAddr, Ipv4Addr};

pub(crate) use memlane_dataplane::headers::solicited_node;
use memlane_dataplane::headers::{Fragment, IPV6_HEADER, Ipv4, Ipv6, Upper, number_at};
use memlane_virtq::frame::{ETHERNET, MacAddress, TCP, TYPE_IPV4, TYPE_IPV6, UDP};
use memlane_virtq::offload::checksum::{self, Sum};

/// Port of DNS servers, by UDP and TCP (RFC 1035, section 4.2).
pub(crate) const DNS: u16 = 53;

/// Bytes of a TCP header without options.
const TCP_HEADER: usize = 20;
/// Protocol number of ICMP.
pub(crate) const ICMP: u8 = 1;
/// Bytes of a UDP header.
const UDP_HEADER: usize = 8;
/// Hop limit of neighbour discovery, which no router lets through (RFC 4861, section 3.1).
pub(crate) const ND_HOPS: u8 = 255;
/// Hop limit of other answers.
const HOPS: u8 = 64;

/// Addresses of an answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way {
    /// Source and destination MAC address.
    pub link: (MacAddress, MacAddress),
    /// Source and destination IP address, of one version.
    pub ip: (IpAddr, IpAddr),
}

/// An IP packet, without its headers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Datagram<'f> {
    /// Source.
    pub source: IpAddr,
    /// Destination.
    pub destination: IpAddr,
    /// Protocol of the payload.
    pub protocol: u8,
    /// TTL or hop limit.
    pub hops: u8,
    /// The payload, without padding.
    pub payload: &'f [u8],
}

/// The whole IPv4 packet that begins with `bytes`; `None` for fragments and malformed packets.
pub(crate) fn ipv4(bytes: &[u8]) -> Option<Datagram<'_>> {
    let packet = Ipv4::parse(bytes)?;
    let end = usize::from(number_at(bytes, 2)?);
    let payload = bytes.get(packet.length..end)?;
    (packet.fragment == Fragment::Whole).then_some(Datagram {
        source: packet.source.into(),
        destination: packet.destination.into(),
        protocol: packet.protocol,
        hops: bytes[8],
        payload,
    })
}

/// The whole IPv6 packet that begins with `bytes`; `None` for fragments and malformed packets.
pub(crate) fn ipv6(bytes: &[u8]) -> Option<Datagram<'_>> {
    let packet = Ipv6::parse(bytes)?;
    let (whole, true) = packet.packet(bytes) else { return None };
    let Upper::Header { protocol, at, fragment: Fragment::Whole } = packet.upper(bytes) else { return None };
    Some(Datagram {
        source: packet.source.into(),
        destination: packet.destination.into(),
        protocol,
        hops: bytes[7],
        payload: whole.get(at..)?,
    })
}

/// A UDP datagram (RFC 768).
#[derive(Clone, Copy, Debug)]
pub(crate) struct UdpDatagram<'f> {
    /// Source port.
    pub source: u16,
    /// Destination port.
    pub destination: u16,
    /// Payload.
    pub payload: &'f [u8],
}

/// The UDP datagram with which `bytes` begin; `None` if it is cut off.
pub(crate) fn udp(bytes: &[u8]) -> Option<UdpDatagram<'_>> {
    let length = usize::from(number_at(bytes, 4)?);
    let payload = bytes.get(UDP_HEADER..length)?;
    Some(UdpDatagram { source: number_at(bytes, 0)?, destination: number_at(bytes, 2)?, payload })
}

/// A TCP segment (RFC 9293).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TcpSegment<'f> {
    /// Source and destination port.
    pub ports: (u16, u16),
    /// Sequence number.
    pub sequence: u32,
    /// Acknowledgement number.
    pub acknowledged: u32,
    /// Flags.
    pub flags: u8,
    /// Payload.
    pub payload: &'f [u8],
}

/// The TCP segment `bytes`; `None` if its header is cut off.
pub(crate) fn tcp(bytes: &[u8]) -> Option<TcpSegment<'_>> {
    let number = |at| Some(u32::from(number_at(bytes, at)?) << 16 | u32::from(number_at(bytes, at + 2)?));
    let length = 4 * usize::from(bytes.get(12)? >> 4);
    let payload = bytes.get(length..).filter(|_| length >= TCP_HEADER)?;
    let ports = (number_at(bytes, 0)?, number_at(bytes, 2)?);
    Some(TcpSegment { ports, sequence: number(4)?, acknowledged: number(8)?, flags: bytes[13], payload })
}

/// A frame with a TCP segment, which has these options, a multiple of 4 bytes.
pub(crate) fn tcp_frame(way: Way, segment: &TcpSegment<'_>, window: u16, options: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(TCP_HEADER + options.len() + segment.payload.len());
    bytes.extend([segment.ports.0, segment.ports.1].into_iter().flat_map(u16::to_be_bytes));
    bytes.extend([segment.sequence, segment.acknowledged].into_iter().flat_map(u32::to_be_bytes));
    bytes.extend([(((TCP_HEADER + options.len()) / 4) << 4) as u8, segment.flags]);
    bytes.extend(window.to_be_bytes());
    bytes.extend([0; 4]);
    bytes.extend(options);
    bytes.extend(segment.payload);
    ip_frame(way, TCP, HOPS, &bytes, 16)
}

/// The Ethernet header.
pub(crate) fn ethernet((source, destination): (MacAddress, MacAddress), kind: u16) -> Vec<u8> {
    let mut frame = Vec::with_capacity(1536);
    frame.extend(destination.bytes());
    frame.extend(source.bytes());
    frame.extend(kind.to_be_bytes());
    frame
}

/// A frame with the IP packet of `payload`, with a checksum at `field`.
fn ip_frame(way: Way, protocol: u8, hops: u8, payload: &[u8], field: usize) -> Vec<u8> {
    let (mut frame, has_pseudo_header) = match way.ip {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let mut frame = ethernet(way.link, TYPE_IPV4);
            put_ipv4(&mut frame, (source, destination), protocol, payload.len());
            (frame, protocol != ICMP)
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let mut frame = ethernet(way.link, TYPE_IPV6);
            frame.extend([0x60, 0, 0, 0]);
            frame.extend((payload.len() as u16).to_be_bytes());
            frame.extend([protocol, hops]);
            frame.extend(source.octets());
            frame.extend(destination.octets());
            (frame, true)
        }
        _ => return Vec::new(),
    };
    let start = frame.len();
    frame.extend(payload);
    let pseudo = if has_pseudo_header { pseudo_header(way.ip, protocol, payload.len()) } else { [0; 2] };
    if let Some(sum) = frame.get_mut(start + field..start + field + 2) {
        sum.copy_from_slice(&pseudo);
        checksum::complete(&mut frame, start, start + field);
    }
    frame
}

fn put_ipv4(frame: &mut Vec<u8>, (source, destination): (Ipv4Addr, Ipv4Addr), protocol: u8, length: usize) {
    const HEADER: usize = 20;
    const DONT_FRAGMENT: u8 = 0x40;
    let [high, low] = ((HEADER + length) as u16).to_be_bytes();
    let mut header = [0x45, 0, high, low, 0, 0, DONT_FRAGMENT, 0, HOPS, protocol, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    header[12..16].copy_from_slice(&source.octets());
    header[16..20].copy_from_slice(&destination.octets());
    let sum = checksum::over(&[&header]);
    header[10..12].copy_from_slice(&sum);
    frame.extend(header);
}

/// The sum of the pseudo-header (RFC 768; RFC 8200, section 8.1).
fn pseudo_header(ip: (IpAddr, IpAddr), protocol: u8, length: usize) -> [u8; 2] {
    let mut sum = Sum::default();
    for address in [ip.0, ip.1] {
        match address {
            IpAddr::V4(address) => sum.add(&address.octets()),
            IpAddr::V6(address) => sum.add(&address.octets()),
        }
    }
    sum.add(&(length as u32).to_be_bytes());
    sum.add(&u32::from(protocol).to_be_bytes());
    sum.partial()
}

/// A frame with a UDP datagram from port `ports.0` to `ports.1`.
pub(crate) fn udp_frame(way: Way, ports: (u16, u16), payload: &[u8]) -> Vec<u8> {
    let mut datagram = Vec::with_capacity(UDP_HEADER + payload.len());
    datagram.extend(ports.0.to_be_bytes());
    datagram.extend(ports.1.to_be_bytes());
    datagram.extend(((UDP_HEADER + payload.len()) as u16).to_be_bytes());
    datagram.extend([0, 0]);
    datagram.extend(payload);
    ip_frame(way, UDP, HOPS, &datagram, 6)
}

/// A frame with an ICMP or ICMPv6 message.
pub(crate) fn icmp_frame(way: Way, protocol: u8, hops: u8, message: &[u8]) -> Vec<u8> {
    ip_frame(way, protocol, hops, message, 2)
}

const _: () = assert!(ETHERNET == 14 && IPV6_HEADER == 40);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_datagram_has_a_complete_checksum() {
        // The example of RFC 1071 gives the sum; here the whole of it: the receiver's sum over pseudo-header and datagram is all ones.
        let link = (MacAddress::new([2, 0, 0, 0, 0, 1]), MacAddress::new([2, 0, 0, 0, 0, 2]));
        for ip in [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")] {
            let ip: (IpAddr, IpAddr) = (ip.0.parse().unwrap(), ip.1.parse().unwrap());
            for payload in [&b""[..], b"odd", b"even"] {
                let frame = udp_frame(Way { link, ip }, (53, 4000), payload);
                let bytes = &frame[ETHERNET..];
                let datagram = if ip.0.is_ipv4() { ipv4(bytes) } else { ipv6(bytes) }.unwrap();
                assert_eq!((datagram.source, datagram.destination, datagram.protocol), (ip.0, ip.1, UDP));
                let mut sum = Sum::default();
                let pseudo = pseudo_header(ip, UDP, datagram.payload.len());
                sum.add(&pseudo);
                sum.add(datagram.payload);
                assert_eq!(sum.partial(), [0xff; 2]);
                let udp = udp(datagram.payload).unwrap();
                assert_eq!((udp.source, udp.destination, udp.payload), (53, 4000, payload));
            }
        }
    }

    #[test]
    fn an_ipv4_header_has_the_checksum_of_rfc_791() {
        let way = Way {
            link: (MacAddress::default(), MacAddress::default()),
            ip: (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2])),
        };
        let frame = icmp_frame(way, ICMP, HOPS, &[0, 0, 0, 0, 0, 1, 0, 1]);
        let mut sum = Sum::default();
        sum.add(&frame[14..34]);
        assert_eq!(sum.partial(), [0xff; 2]);
        let mut sum = Sum::default();
        sum.add(&frame[34..]);
        assert_eq!(sum.partial(), [0xff; 2]);
    }

    #[test]
    fn fragments_and_packets_that_are_cut_off_are_refused() {
        let header = |length: u8, word: u8| {
            [&[0x45, 0, 0, length, 0, 0, word, 0, 64, UDP, 0, 0][..], &[10, 0, 0, 1, 10, 0, 0, 2], &[0; 8]].concat()
        };
        assert!(ipv4(&header(28, 0)).is_some() && ipv4(&header(24, 0)).is_some_and(|packet| packet.payload.len() == 4));
        assert!(ipv4(&header(29, 0)).is_none() && ipv4(&header(19, 0)).is_none() && ipv4(&header(28, 0x20)).is_none());
        assert!(udp(&[0, 53, 0, 54, 0, 9, 0, 0]).is_none() && udp(&[0, 53, 0, 54, 0, 7, 0, 0]).is_none());
    }
}
