//! TCP and UDP packets, and the frames that they become.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use etherparse::{IpFragOffset, IpHeaders, IpNumber, Ipv4Header, Ipv6Header, PacketBuilder, TcpHeader, VlanId};

use super::{ETHERNET_BYTES, GsoKind, Mac, NetHeader, checksum, pseudo_header_sum};

/// Who speaks.
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
    /// IPv6.
    V6(Ipv6Header),
}

/// What IP carries; lengths and checksum are filled in later.
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
    /// The IP header.
    pub network: Network,
    /// The TCP or UDP header.
    pub transport: Transport,
    /// What is said.
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
        Self { source: from.mac, destination: to.mac, vlan: None, network, transport, payload }
    }

    /// The same with a VLAN tag.
    #[must_use]
    pub fn tagged(mut self, vlan: u16) -> Self {
        self.vlan = Some(vlan);
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
            Network::V6(header) => IpHeaders::Ipv6(header.clone(), Default::default()),
        };
        let ethernet = PacketBuilder::ethernet2(self.source, self.destination);
        let ip = match self.vlan {
            Some(tag) => ethernet.single_vlan(VlanId::try_new(tag).expect("a tag of 12 bits")).ip(network),
            None => ethernet.ip(network),
        };
        let written = match &self.transport {
            Transport::Udp { source, destination } => ip.udp(*source, *destination).write(&mut bytes, &self.payload),
            Transport::Tcp(header) => ip.tcp_header((**header).clone()).write(&mut bytes, &self.payload),
        };
        written.expect("a payload that fits an IP packet");
        bytes
    }

    /// The frame with its checksum left to the device, and the header that says so.
    pub fn partial(&self) -> (NetHeader, Vec<u8>) {
        let mut frame = self.frame();
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
            (Network::V6(_), Transport::Tcp(_)) => GsoKind::Tcp6,
            (_, Transport::Udp { .. }) => GsoKind::UdpL4,
        };
        let ecn = matches!(&self.transport, Transport::Tcp(header) if header.cwr);
        let header_length = self.header_bytes() as u16;
        (NetHeader { gso, ecn, gso_size: size, header_length, ..header }, frame)
    }

    /// The packets into which segmentation by `size` must cut this one: TCP sequence numbers and IP identifications go on,
    /// FIN and PSH stay on the last, CWR on the first (RFC 3168 section 6.1.2).
    pub fn segments(&self, size: u16) -> Vec<Self> {
        let count = self.payload.len().div_ceil(size.into()).max(1);
        let segment = |index: usize| {
            let start = index * usize::from(size);
            let end = (start + usize::from(size)).min(self.payload.len());
            let mut packet = Self { payload: self.payload[start..end].to_vec(), ..self.clone() };
            if let Network::V4(header) = &mut packet.network {
                header.identification = header.identification.wrapping_add(index as u16);
            }
            packet.with_tcp(|header| {
                header.sequence_number = header.sequence_number.wrapping_add(start as u32);
                header.cwr &= index == 0;
                header.fin &= index + 1 == count;
                header.psh &= index + 1 == count;
            })
        };
        (0..count).map(segment).collect()
    }

    /// Where the IP header starts in the frame.
    pub fn network_offset(&self) -> usize {
        ETHERNET_BYTES + if self.vlan.is_some() { 4 } else { 0 }
    }

    /// Where the TCP or UDP header starts in the frame.
    pub fn transport_offset(&self) -> usize {
        self.network_offset()
            + match &self.network {
                Network::V4(header) => header.header_len(),
                Network::V6(_) => Ipv6Header::LEN,
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
            Network::V6(header) => (header.source.into(), header.destination.into()),
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
        (IpAddr::V6(from), IpAddr::V6(to)) => Network::V6(Ipv6Header {
            hop_limit: 64,
            next_header: protocol,
            source: from.octets(),
            destination: to.octets(),
            ..Ipv6Header::default()
        }),
        _ => panic!("a packet has addresses of one family"),
    }
}

/// Puts the checksum in that `header` says is missing, as a device would (virtio 1.4 section 5.1.6.2).
///
/// # Panics
/// When the header points outside the frame.
pub fn complete_checksum(header: &NetHeader, frame: &mut [u8]) {
    let (start, offset) = (usize::from(header.checksum_start), usize::from(header.checksum_offset));
    let sum = checksum(0, &frame[start..]);
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
                assert_eq!((last.cwr, last.fin, last.psh), (false, true, true));
                assert_eq!(last.sequence_number, 3007);
            }
        }
    }
}
