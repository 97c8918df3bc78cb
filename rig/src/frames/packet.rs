//! TCP and UDP packets, and the frames that they become.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use etherparse::{
    IpFragOffset, IpHeaders, IpNumber, Ipv4Header, Ipv4Options, Ipv6Extensions, Ipv6FragmentHeader, Ipv6Header, Ipv6RawExtHeader,
    Ipv6RoutingExtensions, PacketBuilder, TcpHeader, VlanId,
};

use super::{ETHERNET_BYTES, GsoKind, Mac, NetHeader, checksum, pseudo_header_sum};

/// MAC address, IP address and port of one end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Host {
    /// Ethernet address.
    pub mac: Mac,
    /// IP address.
    pub ip: IpAddr,
    /// TCP or UDP port.
    pub port: u16,
}

impl Host {
    /// Host `number` of the test network: 02:00:00:00:hh:ll, 10.0.hh.ll, port 1000.
    pub fn v4(number: u16) -> Self {
        let [high, low] = number.to_be_bytes();
        let ip = Ipv4Addr::new(10, 0, high, low);
        Self { mac: [2, 0, 0, 0, high, low], ip: ip.into(), port: 1000 }
    }

    /// The same on IPv6: fd00::hhll.
    pub fn v6(number: u16) -> Self {
        let ip = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, number);
        Self { ip: ip.into(), ..Self::v4(number) }
    }

    /// The same host at another port.
    #[must_use]
    pub fn port(self, port: u16) -> Self {
        Self { port, ..self }
    }
}

/// The IP header; lengths and checksum are filled in later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Network {
    /// IPv4.
    V4(Ipv4Header),
    /// IPv6, and the extension headers behind it.
    V6(Ipv6Header, Box<Ipv6Extensions>),
}

/// The transport header; lengths and checksum are filled in later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Transport {
    /// UDP.
    Udp {
        /// Source port.
        source: u16,
        /// Destination port.
        destination: u16,
    },
    /// TCP.
    Tcp(Box<TcpHeader>),
}

/// A packet to be sent; see [`super`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet {
    /// Ethernet source.
    pub source: Mac,
    /// Ethernet destination.
    pub destination: Mac,
    /// 802.1Q tag, 12 bits.
    pub vlan: Option<u16>,
    /// 802.1ad tag before that, 12 bits; for packets that have both.
    pub service_vlan: Option<u16>,
    /// The IP header.
    pub network: Network,
    /// The TCP or UDP header.
    pub transport: Transport,
    /// The bytes behind the transport header.
    pub payload: Vec<u8>,
}

impl Packet {
    /// A UDP packet.
    ///
    /// # Panics
    /// When the hosts' addresses are of different families.
    pub fn udp(from: Host, to: Host, payload: impl Into<Vec<u8>>) -> Self {
        let transport = Transport::Udp { source: from.port, destination: to.port };
        Self::new(from, to, transport, payload.into())
    }

    /// A TCP packet with ACK set.
    ///
    /// # Panics
    /// When the hosts' addresses are of different families.
    pub fn tcp(from: Host, to: Host, sequence: u32, payload: impl Into<Vec<u8>>) -> Self {
        let mut header = TcpHeader::new(from.port, to.port, sequence, 0xffff);
        (header.ack, header.acknowledgment_number) = (true, 1);
        Self::new(from, to, Transport::Tcp(Box::new(header)), payload.into())
    }

    fn new(from: Host, to: Host, transport: Transport, payload: Vec<u8>) -> Self {
        let protocol = match transport {
            Transport::Udp { .. } => IpNumber::UDP,
            Transport::Tcp(_) => IpNumber::TCP,
        };
        let network = network(from.ip, to.ip, protocol);
        Self { source: from.mac, destination: to.mac, vlan: None, service_vlan: None, network, transport, payload }
    }

    /// The same with a VLAN tag.
    #[must_use]
    pub fn tagged(mut self, vlan: u16) -> Self {
        self.vlan = Some(vlan);
        self
    }

    /// The same with two VLAN tags (QinQ).
    #[must_use]
    pub fn double_tagged(self, service: u16, customer: u16) -> Self {
        Self { service_vlan: Some(service), ..self.tagged(customer) }
    }

    /// The same with so many bytes of IPv4 options that mean nothing, a multiple of 4 up to 40; IPv6 stays as it is.
    ///
    /// # Panics
    /// With another number of bytes.
    #[must_use]
    pub fn with_options(mut self, bytes: usize) -> Self {
        if let Network::V4(header) = &mut self.network {
            header.options = Ipv4Options::try_from(&vec![1; bytes][..]).expect("words of options");
        }
        self
    }

    /// The same with hop-by-hop options of so many bytes, a multiple of 8 up to 2048; IPv4 stays as it is.
    ///
    /// # Panics
    /// With another number of bytes.
    #[must_use]
    pub fn with_hop_by_hop(self, bytes: usize) -> Self {
        self.with_extensions(|extensions| extensions.hop_by_hop_options = Some(padding(bytes)))
    }

    /// The same with destination options of so many bytes, a multiple of 8 up to 2048; IPv4 stays as it is.
    ///
    /// # Panics
    /// With another number of bytes.
    #[must_use]
    pub fn with_destination_options(self, bytes: usize) -> Self {
        self.with_extensions(|extensions| extensions.destination_options = Some(padding(bytes)))
    }

    /// The same on its way to the first of so many `segments` (RFC 8754), the last of which is `last`; IPv4 stays as it is.
    ///
    /// # Panics
    /// Without segments, or with more than 127.
    #[must_use]
    pub fn routed(self, segments: u8, last: Ipv6Addr) -> Self {
        let mut header = vec![4, segments - 1, segments - 1, 0, 0, 0];
        header.extend(last.octets());
        header.extend((1..segments).flat_map(|number| Ipv6Addr::new(0xfd00, 1, 0, 0, 0, 0, 0, number.into()).octets()));
        let routing = Ipv6RawExtHeader::new_raw(IpNumber(0), &header).expect("a header of this length");
        let routing = Ipv6RoutingExtensions { routing, final_destination_options: None };
        self.with_extensions(|extensions| extensions.routing = Some(routing))
    }

    /// The same as a fragment, `offset` times 8 bytes into its datagram, and the last unless there is `more`.
    ///
    /// # Panics
    /// With an offset of more than 13 bits.
    #[must_use]
    pub fn fragment(mut self, offset: u16, more: bool) -> Self {
        let offset = IpFragOffset::try_new(offset).expect("an offset of 13 bits");
        if let Network::V4(header) = &mut self.network {
            (header.dont_fragment, header.more_fragments, header.fragment_offset) = (false, more, offset);
        }
        self.with_extensions(|extensions| extensions.fragment = Some(Ipv6FragmentHeader::new(IpNumber(0), offset, more, 7)))
    }

    fn with_extensions(mut self, change: impl FnOnce(&mut Ipv6Extensions)) -> Self {
        if let Network::V6(_, extensions) = &mut self.network {
            change(extensions);
        }
        self
    }

    /// The same with its TCP header changed; UDP stays as it is.
    #[must_use]
    pub fn with_tcp(mut self, change: impl FnOnce(&mut TcpHeader)) -> Self {
        if let Transport::Tcp(header) = &mut self.transport {
            change(header);
        }
        self
    }

    /// The frame with every length and checksum right.
    ///
    /// # Panics
    /// When the payload is too long for IP (65535 bytes with headers), or the VLAN tag has more than 12 bits.
    pub fn frame(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.header_bytes() + self.payload.len());
        let network = match &self.network {
            Network::V4(header) => IpHeaders::Ipv4(header.clone(), Default::default()),
            Network::V6(header, extensions) => IpHeaders::Ipv6(header.clone(), (**extensions).clone()),
        };
        let ethernet = PacketBuilder::ethernet2(self.source, self.destination);
        let tag = |tag: u16| VlanId::try_new(tag).expect("a tag of 12 bits");
        let ip = match (self.service_vlan, self.vlan) {
            (Some(service), Some(customer)) => ethernet.double_vlan(tag(service), tag(customer)).ip(network),
            (_, Some(vlan)) => ethernet.single_vlan(tag(vlan)).ip(network),
            _ => ethernet.ip(network),
        };
        let written = match &self.transport {
            Transport::Udp { source, destination } => ip.udp(*source, *destination).write(&mut bytes, &self.payload),
            Transport::Tcp(header) => ip.tcp_header((**header).clone()).write(&mut bytes, &self.payload),
        };
        written.expect("a payload that fits an IP packet");
        if self.final_destination().is_some() {
            // The builder takes the next destination for the pseudo header.
            let (header, mut bytes) = self.left_to_device(bytes);
            complete_checksum(&header, &mut bytes);
            return bytes;
        }
        bytes
    }

    /// Where a packet with a routing header goes in the end: its pseudo header has this destination (RFC 8200, section 8.1).
    fn final_destination(&self) -> Option<IpAddr> {
        match &self.network {
            Network::V6(_, extensions) => final_destination(extensions.routing.as_ref()?.routing.payload()).map(IpAddr::from),
            Network::V4(_) => None,
        }
    }

    /// The frame with its checksum left to the device, and the header that says so.
    pub fn partial(&self) -> (NetHeader, Vec<u8>) {
        self.left_to_device(self.frame())
    }

    fn left_to_device(&self, frame: Vec<u8>) -> (NetHeader, Vec<u8>) {
        let mut frame = frame;
        let (start, offset) = (self.transport_offset(), self.checksum_offset());
        let length = frame.len() - start;
        let (source, destination) = self.addresses();
        let sum = pseudo_header_sum(source, destination, self.protocol(), length);
        frame[start + offset..start + offset + 2].copy_from_slice(&sum.to_be_bytes());
        let header = NetHeader {
            needs_checksum: true,
            checksum_start: start as u16,
            checksum_offset: offset as u16,
            ..NetHeader::default()
        };
        (header, frame)
    }

    /// The frame with segmentation into payloads of `size` bytes left to the device, and the header that says so.
    pub fn gso(&self, size: u16) -> (NetHeader, Vec<u8>) {
        let (header, frame) = self.partial();
        let gso = match (&self.network, &self.transport) {
            (Network::V4(_), Transport::Tcp(_)) => GsoKind::Tcp4,
            (Network::V6(..), Transport::Tcp(_)) => GsoKind::Tcp6,
            (_, Transport::Udp { .. }) => GsoKind::UdpL4,
        };
        let ecn = matches!(&self.transport, Transport::Tcp(header) if header.cwr);
        let header_length = self.header_bytes() as u16;
        (NetHeader { gso, ecn, gso_size: size, header_length, ..header }, frame)
    }

    /// The packets into which segmentation by `size` must cut this one: TCP sequence numbers and IP identifications go on,
    /// FIN and PSH stay on the last, AE, CWR and ECE are on all (RFC 9768 section 3.3).
    pub fn segments(&self, size: u16) -> Vec<Self> {
        let count = self.payload.len().div_ceil(size.into()).max(1);
        // Without the payload, which is long.
        let headers = Self { payload: Vec::new(), ..self.clone() };
        let segment = |index: usize| {
            let start = index * usize::from(size);
            let end = (start + usize::from(size)).min(self.payload.len());
            let mut packet = Self { payload: self.payload[start..end].to_vec(), ..headers.clone() };
            if let Network::V4(header) = &mut packet.network {
                header.identification = header.identification.wrapping_add(index as u16);
            }
            packet.with_tcp(|header| {
                header.sequence_number = header.sequence_number.wrapping_add(start as u32);
                header.fin &= index + 1 == count;
                header.psh &= index + 1 == count;
            })
        };
        (0..count).map(segment).collect()
    }

    /// Where the IP header starts in the frame.
    pub fn network_offset(&self) -> usize {
        ETHERNET_BYTES + 4 * (usize::from(self.vlan.is_some()) + usize::from(self.service_vlan.is_some()))
    }

    /// Where the TCP or UDP header starts in the frame.
    pub fn transport_offset(&self) -> usize {
        self.network_offset()
            + match &self.network {
                Network::V4(header) => header.header_len(),
                Network::V6(_, extensions) => Ipv6Header::LEN + extensions.header_len(),
            }
    }

    /// Bytes of all headers.
    pub fn header_bytes(&self) -> usize {
        self.transport_offset()
            + match &self.transport {
                Transport::Udp { .. } => 8,
                Transport::Tcp(header) => header.header_len(),
            }
    }

    fn checksum_offset(&self) -> usize {
        match self.transport {
            Transport::Udp { .. } => 6,
            Transport::Tcp(_) => 16,
        }
    }

    fn protocol(&self) -> u8 {
        match self.transport {
            Transport::Udp { .. } => IpNumber::UDP.0,
            Transport::Tcp(_) => IpNumber::TCP.0,
        }
    }

    fn addresses(&self) -> (IpAddr, IpAddr) {
        match &self.network {
            Network::V4(header) => (header.source.into(), header.destination.into()),
            Network::V6(header, _) => (header.source.into(), self.final_destination().unwrap_or_else(|| header.destination.into())),
        }
    }
}

fn network(from: IpAddr, to: IpAddr, protocol: IpNumber) -> Network {
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => Network::V4(Ipv4Header {
            time_to_live: 64,
            dont_fragment: true,
            identification: 0x1234,
            fragment_offset: IpFragOffset::ZERO,
            protocol,
            source: from.octets(),
            destination: to.octets(),
            ..Ipv4Header::default()
        }),
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let header = Ipv6Header {
                hop_limit: 64,
                next_header: protocol,
                source: from.octets(),
                destination: to.octets(),
                ..Ipv6Header::default()
            };
            Network::V6(header, Box::default())
        }
        _ => panic!("a packet has addresses of one family"),
    }
}

/// An options header of so many bytes that mean nothing (PadN of RFC 8200, section 4.2, as often as it takes).
fn padding(bytes: usize) -> Ipv6RawExtHeader {
    let mut options = Vec::new();
    let mut left = bytes.checked_sub(2).expect("a header of 8 bytes at least");
    while left > 0 {
        let length = left.min(257);
        // One byte alone is Pad1.
        options.extend((0..length).map(|at| match at {
            0 => u8::from(length > 1),
            1 => (length - 2) as u8,
            _ => 0,
        }));
        left -= length;
    }
    Ipv6RawExtHeader::new_raw(IpNumber(0), &options).expect("a multiple of 8, up to 2048")
}

/// Where the routing header with this `content`, behind its length, leads in the end, if there is a way to go: the first of an SRH's segments
/// (RFC 8754, section 2), or the home address (RFC 6275, section 6.4).
pub(super) fn final_destination(content: &[u8]) -> Option<Ipv6Addr> {
    let (&kind, &left) = (content.first()?, content.get(1)?);
    let address: [u8; 16] = content.get(6..22)?.try_into().ok()?;
    (left > 0 && matches!(kind, 2 | 4)).then_some(address.into())
}

/// Offset of the checksum in a UDP header, where zero means that there is none (RFC 768).
const UDP_CHECKSUM: usize = 6;

/// Puts the checksum in that `header` says is missing, as a device would (virtio 1.4 section 5.1.6.2).
///
/// # Panics
/// When the header points outside the frame.
pub fn complete_checksum(header: &NetHeader, frame: &mut [u8]) {
    let (start, offset) = (usize::from(header.checksum_start), usize::from(header.checksum_offset));
    let sum = match checksum(0, &frame[start..]) {
        0 if offset == UDP_CHECKSUM => u16::MAX,
        sum => sum,
    };
    frame[start + offset..start + offset + 2].copy_from_slice(&sum.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packets() -> Vec<Packet> {
        let payload: Vec<u8> = (0..3001u32).map(|index| (index * 31) as u8).collect();
        let pairs = [(Host::v4(1), Host::v4(2)), (Host::v6(1), Host::v6(2))];
        pairs
            .into_iter()
            .flat_map(|(from, to)| [Packet::udp(from, to, payload.clone()), Packet::tcp(from, to, 7, payload.clone())])
            .flat_map(|packet| [packet.clone(), packet.tagged(9)])
            .collect()
    }

    #[test]
    fn a_udp_checksum_of_zero_is_sent_as_all_ones() {
        // RFC 8200, section 8.1; with a routing header the pseudo header has the final destination.
        let packet =
            |number: u16| Packet::udp(Host::v6(1), Host::v6(2), number.to_be_bytes()).routed(2, "fd00::99".parse().unwrap());
        let sums: std::collections::HashSet<[u8; 2]> = (0..=u16::MAX)
            .map(|number| {
                let frame = packet(number).frame();
                frame[frame.len() - 4..frame.len() - 2].try_into().unwrap()
            })
            .collect();
        assert!(sums.contains(&[0xff; 2]) && !sums.contains(&[0; 2]));
    }

    #[test]
    fn a_partial_checksum_completed_is_the_right_one() {
        for packet in packets() {
            let (header, mut frame) = packet.partial();
            assert_ne!(frame, packet.frame());
            complete_checksum(&header, &mut frame);
            assert_eq!(frame, packet.frame());
        }
    }

    #[test]
    fn segments_carry_the_whole_payload_once() {
        for packet in packets() {
            let packet = packet.with_tcp(|tcp| (tcp.cwr, tcp.fin, tcp.psh) = (true, true, true));
            let segments = packet.segments(1000);
            assert_eq!(segments.len(), 4);
            let payload: Vec<u8> = segments.iter().flat_map(|segment| segment.payload.clone()).collect();
            assert_eq!(payload, packet.payload);
            if let (Transport::Tcp(first), Transport::Tcp(last)) = (&segments[0].transport, &segments[3].transport) {
                assert_eq!((first.cwr, first.fin, first.psh), (true, false, false));
                assert_eq!((last.cwr, last.fin, last.psh), (true, true, true));
                assert_eq!(last.sequence_number, 3007);
            }
        }
    }
}
