//! A packet in words, for `memlane why`: as `tcp,dst=5432`, `icmp6` or `arp who-has 10.0.0.2`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::frame::MacAddress;

/// The accepted forms.
pub const FORMS: &str = "it must be a protocol (arp, icmp, tcp, udp, ip, icmp6, tcp6, udp6 or ip6) with src=, dst= (ports or IP addresses) and vlan=, as \"tcp,dst=5432\", \
     or \"arp who-has 10.0.0.2 tell 10.0.0.1\"; give other frames by --frame or --pcap";

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_ARP: u16 = 0x0806;
const ETHERTYPE_VLAN: u16 = 0x8100;
const ETHERTYPE_IPV6: u16 = 0x86dd;
/// Shortest Ethernet frame, without its checksum.
const SHORTEST: usize = 60;
/// A port of clients, from the dynamic ones of RFC 6335.
const CLIENT_PORT: u16 = 49_152;

/// A machine at an end of the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketEnd {
    /// The guest's MAC address.
    pub mac: MacAddress,
    /// The guest's IPv4 address.
    pub v4: Option<Ipv4Addr>,
    /// The guest's IPv6 address.
    pub v6: Option<Ipv6Addr>,
}

/// Addresses for documentation, which stand for those that are not known (RFC 5737, RFC 3849).
pub const UNKNOWN_V4: [Ipv4Addr; 2] = [Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2)];
const UNKNOWN_V6: [Ipv6Addr; 2] = [Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1), Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2)];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PacketKind {
    Arp,
    /// IPv4 with this protocol; none for a protocol that no rule names.
    V4(u8),
    /// IPv6 likewise.
    V6(u8),
}

/// A packet in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketWords {
    kind: PacketKind,
    ports: [Option<u16>; 2],
    addresses: [Option<IpAddr>; 2],
    vlan: Option<u16>,
    /// An ARP request that names its addresses: an unknown sender is 0.0.0.0 there (RFC 5227).
    is_probe: bool,
}

const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMPV6: u8 = 58;
/// For experiments (RFC 3692).
const OTHER: u8 = 253;

impl PacketWords {
    /// The packet of these words.
    ///
    /// # Errors
    /// The words have another form.
    pub fn parse(words: &str) -> Result<Self, &'static str> {
        let words: Vec<String> = words.split([' ', ',']).filter(|word| !word.is_empty()).map(str::to_ascii_lowercase).collect();
        let (first, rest) = words.split_first().ok_or(FORMS)?;
        let kind = match first.as_str() {
            "arp" => PacketKind::Arp,
            "icmp" | "icmp4" => PacketKind::V4(ICMP),
            "tcp" | "tcp4" => PacketKind::V4(TCP),
            "udp" | "udp4" => PacketKind::V4(UDP),
            "ip" | "ip4" => PacketKind::V4(OTHER),
            "icmp6" => PacketKind::V6(ICMPV6),
            "tcp6" => PacketKind::V6(TCP),
            "udp6" => PacketKind::V6(UDP),
            "ip6" | "ipv6" => PacketKind::V6(OTHER),
            _ => return Err(FORMS),
        };
        let mut packet = Self { kind, ports: [None; 2], addresses: [None; 2], vlan: None, is_probe: false };
        if kind == PacketKind::Arp && rest.first().is_some_and(|word| word == "who-has") {
            packet.take_question(&rest[1..]).ok_or(FORMS)?;
        } else {
            rest.iter().try_for_each(|word| packet.take_field(word)).ok_or(FORMS)?;
        }
        Ok(packet)
    }

    fn take_question(&mut self, words: &[String]) -> Option<()> {
        let address = |word: &String| word.parse::<Ipv4Addr>().ok();
        let (target, sender) = match words {
            [target] => (address(target)?, Ipv4Addr::UNSPECIFIED),
            [target, tell, sender] if tell == "tell" => (address(target)?, address(sender)?),
            _ => return None,
        };
        self.addresses = [Some(sender.into()), Some(target.into())];
        self.is_probe = true;
        Some(())
    }

    fn take_field(&mut self, word: &str) -> Option<()> {
        let (key, value) = word.split_once('=')?;
        let end = match key {
            "vlan" => {
                self.vlan = Some(value.parse().ok().filter(|vlan| (1..4095).contains(vlan))?);
                return Some(());
            }
            "src" => 0,
            "dst" => 1,
            _ => return None,
        };
        match (value.parse::<IpAddr>(), self.kind) {
            (Ok(address), PacketKind::V4(_) | PacketKind::Arp) if address.is_ipv4() => self.addresses[end] = Some(address),
            (Ok(address), PacketKind::V6(_)) if address.is_ipv6() => self.addresses[end] = Some(address),
            (Err(_), PacketKind::V4(TCP | UDP) | PacketKind::V6(TCP | UDP)) => self.ports[end] = Some(value.parse().ok()?),
            _ => return None,
        }
        Some(())
    }

    /// The IP address that it goes to, if the words name it.
    pub fn destination(&self) -> Option<IpAddr> {
        self.addresses[1]
    }

    /// Whether it goes to all machines of its segment.
    pub fn is_broadcast(&self) -> bool {
        self.kind == PacketKind::Arp
    }

    /// The frame from the guest `from` to the machine `to`.
    pub fn frame(&self, from: PacketEnd, to: PacketEnd) -> Vec<u8> {
        let (kind, payload) = match self.kind {
            PacketKind::Arp => (ETHERTYPE_ARP, self.arp(from, to)),
            PacketKind::V4(protocol) => (ETHERTYPE_IPV4, self.ipv4(protocol, from, to)),
            PacketKind::V6(protocol) => (ETHERTYPE_IPV6, self.ipv6(protocol, from, to)),
        };
        let destination = if self.is_broadcast() { [0xff; 6] } else { to.mac.bytes() };
        let tag = self.vlan.map_or_else(Vec::new, |vlan| [ETHERTYPE_VLAN.to_be_bytes(), vlan.to_be_bytes()].concat());
        let mut frame = [&destination[..], &from.mac.bytes(), &tag, &kind.to_be_bytes(), &payload].concat();
        frame.resize(frame.len().max(SHORTEST), 0);
        frame
    }

    fn v4(&self, ends: [PacketEnd; 2]) -> [Ipv4Addr; 2] {
        std::array::from_fn(|end| match self.addresses[end] {
            Some(IpAddr::V4(address)) => address,
            _ => ends[end].v4.unwrap_or(UNKNOWN_V4[end]),
        })
    }

    fn v6(&self, ends: [PacketEnd; 2]) -> [Ipv6Addr; 2] {
        std::array::from_fn(|end| match self.addresses[end] {
            Some(IpAddr::V6(address)) => address,
            _ => ends[end].v6.unwrap_or(UNKNOWN_V6[end]),
        })
    }

    /// An ARP request (RFC 826): Ethernet and IPv4, with addresses of 6 and 4 bytes; operation 1 is the request.
    fn arp(&self, from: PacketEnd, to: PacketEnd) -> Vec<u8> {
        let [sender, target] = self.v4([from, to]);
        let fixed = [0x00, 0x01, 0x08, 0x00, 6, 4, 0x00, 0x01];
        [&fixed[..], &from.mac.bytes(), &sender.octets(), &[0; 6], &target.octets()].concat()
    }

    /// A packet of IPv4 (RFC 791).
    fn ipv4(&self, protocol: u8, from: PacketEnd, to: PacketEnd) -> Vec<u8> {
        let [source, destination] = self.v4([from, to]);
        let transport = self.transport(protocol);
        let length = (20 + transport.len()) as u16;
        let mut header = [&[0x45, 0], &length.to_be_bytes()[..], &[0, 0, 0x40, 0, 64, protocol, 0, 0]].concat();
        header.extend([source.octets(), destination.octets()].concat());
        let sum = header.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum::<u32>();
        let folded = (sum & 0xffff) + (sum >> 16);
        let checksum = !((folded & 0xffff) + (folded >> 16)) as u16;
        header[10..12].copy_from_slice(&checksum.to_be_bytes());
        [header, transport].concat()
    }

    /// A packet of IPv6 (RFC 8200).
    fn ipv6(&self, protocol: u8, from: PacketEnd, to: PacketEnd) -> Vec<u8> {
        let [source, destination] = self.v6([from, to]);
        let transport = self.transport(protocol);
        let length = (transport.len() as u16).to_be_bytes();
        [&[0x60, 0, 0, 0], &length[..], &[protocol, 64], &source.octets(), &destination.octets(), &transport].concat()
    }

    /// The header behind that of IP, without its checksum: a SYN of TCP, a datagram of UDP without data, an echo request.
    fn transport(&self, protocol: u8) -> Vec<u8> {
        let ports = [self.ports[0].unwrap_or(CLIENT_PORT), self.ports[1].unwrap_or(0)].map(u16::to_be_bytes).concat();
        match protocol {
            TCP => [&ports[..], &[0; 8], &[0x50, 0x02, 0xff, 0xff, 0, 0, 0, 0]].concat(),
            UDP => [&ports[..], &[0, 8, 0, 0]].concat(),
            ICMP => vec![8, 0, 0, 0, 0, 1, 0, 1],
            ICMPV6 => vec![128, 0, 0, 0, 0, 1, 0, 1],
            _ => vec![0; 8],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(last: u8, v4: Option<Ipv4Addr>) -> PacketEnd {
        PacketEnd { mac: MacAddress::new([2, 0, 0, 0, 0, last]), v4, v6: None }
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn frame(words: &str) -> Vec<u8> {
        let address = |last| Some(Ipv4Addr::new(10, 0, 0, last));
        PacketWords::parse(words).unwrap().frame(end(1, address(1)), end(2, address(2)))
    }

    #[test]
    fn an_arp_request_is_made_from_its_words() {
        let wanted = "ffffffffffff020000000001080600010800060400010200000000010a0000010000000000000a000002";
        for words in ["arp who-has 10.0.0.2 tell 10.0.0.1", "arp", "ARP, who-has 10.0.0.2, tell 10.0.0.1", "arp,dst=10.0.0.2"] {
            assert_eq!((&hex(&frame(words))[..84], frame(words).len()), (wanted, 60), "{words}");
        }
        assert_eq!(frame("arp who-has 10.0.0.9")[28..32], [0; 4], "a probe (RFC 5227)");
    }

    /// The checksum of the header is that of RFC 791: the sum of its words and it is all ones.
    #[test]
    fn packets_have_the_protocol_the_ports_and_the_addresses_of_their_words() {
        let tcp = frame("tcp,dst=5432,src=40000");
        assert_eq!(hex(&tcp[..14]), "0200000000020200000000010800");
        assert_eq!((tcp[23], hex(&tcp[26..34]).as_str()), (6, "0a0000010a000002"));
        assert_eq!((&tcp[34..38], tcp[47]), (&[0x9c, 0x40, 0x15, 0x38][..], 2));
        let sum: u32 = tcp[14..34].chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
        let tagged = frame("udp dst=53 vlan=30");
        assert_eq!((hex(&tagged[12..18]).as_str(), tagged[27], hex(&tagged[40..42]).as_str()), ("8100001e0800", 17, "0035"));
        let echo = frame("icmp6");
        assert_eq!((hex(&echo[12..15]).as_str(), echo[20], echo[54]), ("86dd60", 58, 128));
        assert_eq!(frame("icmp,dst=10.9.9.9")[30..34], [10, 9, 9, 9]);
        for words in ["icmp", "ip", "tcp6,dst=80", "udp6", "ip6", "arp", "tcp"] {
            assert!(frame(words).len() >= 60, "{words}");
        }
    }

    #[test]
    fn other_words_are_refused() {
        for words in [
            "",
            "arp who-has",
            "arp who-has x",
            "arp who-has 10.0.0.2 tell",
            "arp reply 10.0.0.2 is-at x",
            "icmp echo",
            "tcp,dst=x",
            "tcp,dst=70000",
            "tcp,dst=::1",
            "icmp,dst=80",
            "tcp,vlan=0",
            "tcp,flags=syn",
            "sctp",
        ] {
            assert_eq!(PacketWords::parse(words), Err(FORMS), "{words}");
        }
    }
}
