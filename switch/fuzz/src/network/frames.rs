//! Frames of guests: each with a number, by which it is known wherever it arrives.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use memlane::frame::MacAddress;
use memlane::stats::DropReason;

use super::offloads::Request;

/// Bytes at the end of a frame: its number, and a mark that frames of the switch itself do not have.
const END: usize = 8;
const MARK: [u8; 4] = [0xfe, 0xed, 0x5e, 0xed];

/// An IP packet.
#[derive(Clone, Copy, Debug)]
pub struct Packet {
    pub protocol: u8,
    /// Source address and port; an echo's identifier is its source port.
    pub from: (IpAddr, u16),
    pub to: (IpAddr, u16),
    /// Flags of TCP, the type of ICMP.
    pub flags: u8,
    /// A later fragment, without ports.
    pub is_later: bool,
    /// A DHCP server acknowledges this lease of an address.
    pub lease: Option<(Ipv4Addr, MacAddress)>,
}

/// A neighbour discovery message (RFC 4861, section 4).
#[derive(Clone, Copy, Debug)]
pub struct Nd {
    /// The ICMPv6 type.
    pub kind: u8,
    pub from: Ipv6Addr,
    /// The target; advertisements of routers have none.
    pub target: Ipv6Addr,
    /// The link-layer address of the option.
    pub link: Option<MacAddress>,
}

/// ICMPv6 types of neighbour discovery.
pub const ROUTER: u8 = 134;
pub const SOLICITATION: u8 = 135;
pub const ADVERTISEMENT: u8 = 136;

impl Nd {
    fn bytes(&self) -> Vec<u8> {
        let mut message = vec![self.kind, 0, 0, 0, 0, 0, 0, 0];
        match self.kind {
            ROUTER => message.extend([0; 8]),
            _ => message.extend(self.target.octets()),
        }
        if let Some(link) = self.link {
            message.extend([if self.kind == ADVERTISEMENT { 2 } else { 1 }, 1]);
            message.extend(link.bytes());
        }
        let [high, low] = (message.len() as u16).to_be_bytes();
        let to = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
        [&[0x86, 0xdd, 0x60, 0, 0, 0, high, low, 58, 255][..], &self.from.octets(), &to.octets(), &message].concat()
    }
}

/// A DHCP acknowledgement without an end of the lease (RFC 2131, section 2; RFC 2132, sections 9.2 and 9.6).
fn lease(ip: Ipv4Addr, mac: MacAddress) -> Vec<u8> {
    let mut message = [0; 240];
    message[..3].copy_from_slice(&[2, 1, 6]);
    message[16..20].copy_from_slice(&ip.octets());
    message[28..34].copy_from_slice(&mac.bytes());
    message[236..].copy_from_slice(&[99, 130, 83, 99]);
    [&message[..], &[53, 1, 5, 51, 4, 255, 255, 255, 255, 255]].concat()
}

/// The payload.
#[derive(Clone, Debug)]
pub enum Body {
    /// Of no protocol that the switch knows.
    Other,
    /// An announcement of this pair.
    Arp(MacAddress, IpAddr),
    Nd(Nd),
    /// IPv4 in an IEEE 802.2 frame.
    Hidden,
    Ip(Packet),
}

/// A fault of a frame's descriptor chain.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// A buffer shorter than an Ethernet header.
    Short,
    /// A buffer outside the guest's memory.
    Outside,
    /// A buffer that the device may write.
    Writable,
}

impl Fault {
    pub const ALL: [Self; 3] = [Self::Short, Self::Outside, Self::Writable];

    /// The drop reason.
    pub fn reason(self) -> DropReason {
        match self {
            Self::Short => DropReason::Runt,
            Self::Outside => DropReason::ChainAddress,
            Self::Writable => DropReason::ChainDirection,
        }
    }
}

/// A frame; see the module.
#[derive(Clone, Debug)]
pub struct Frame {
    pub to: MacAddress,
    pub from: MacAddress,
    /// VLAN of its tag, 0 for none.
    pub tag: u16,
    pub body: Body,
    pub number: u32,
    /// Bytes without the tag, at least.
    pub length: usize,
    /// Offloads that it requests.
    pub request: Option<Request>,
    pub fault: Option<Fault>,
}

impl Frame {
    /// The bytes of the frame, with this tag.
    pub fn bytes(&self, tag: u16) -> Vec<u8> {
        let mut bytes = [self.to.bytes(), self.from.bytes()].concat();
        if tag != 0 {
            bytes.extend([0x81, 0]);
            bytes.extend(tag.to_be_bytes());
        }
        let start = bytes.len();
        self.put_body(&mut bytes);
        let filler = (self.length + start - 12).saturating_sub(bytes.len() + END);
        if self.request.is_some_and(|request| request.is_cut()) {
            (0..filler / END).for_each(|_| self.put_number(&mut bytes));
        } else {
            bytes.extend((0..filler).map(|at| (at as u8).wrapping_mul(7) ^ self.number as u8));
        }
        if bytes.len() > start + 2
            && let Body::Hidden = self.body
        {
            let length = (bytes.len() + END - start - 2) as u16;
            bytes[start..start + 2].copy_from_slice(&length.to_be_bytes());
        }
        self.put_number(&mut bytes);
        bytes
    }

    fn put_number(&self, bytes: &mut Vec<u8>) {
        bytes.extend(self.number.to_le_bytes());
        bytes.extend(MARK);
    }

    /// Whether it is a fragment of an IP packet.
    pub fn is_fragment(&self) -> bool {
        matches!(&self.body, Body::Ip(packet) if packet.is_later)
    }

    /// A number that frames of its flow have in common.
    pub fn flow(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.to, self.from, self.tag).hash(&mut hasher);
        if let Body::Ip(packet) = &self.body {
            (packet.protocol, packet.from, packet.to, packet.is_later).hash(&mut hasher);
        }
        if let Body::Nd(message) = &self.body {
            message.from.hash(&mut hasher);
        }
        hasher.finish()
    }

    /// The number of the frame, if `bytes` are those of a guest's frame.
    pub fn number_in(bytes: &[u8]) -> Option<u32> {
        let (number, mark) = bytes.last_chunk::<END>()?.split_first_chunk()?;
        (mark == MARK).then(|| u32::from_le_bytes(*number))
    }

    fn put_body(&self, bytes: &mut Vec<u8>) {
        match &self.body {
            Body::Other => bytes.extend([0x88, 0xb5]),
            Body::Hidden => bytes.extend([0, 0, 0xaa, 0xaa, 3, 0, 0, 0, 8, 0]),
            Body::Arp(mac, ip) => {
                bytes.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
                [(*mac, *ip), (MacAddress::default(), *ip)].into_iter().for_each(|(mac, ip)| put_pair(bytes, mac, ip));
            }
            Body::Nd(message) => bytes.extend(message.bytes()),
            Body::Ip(packet) => self.put_packet(bytes, packet),
        }
    }

    /// The addresses that the frame claims, as the switch may read it.
    pub fn claims(&self) -> Vec<(IpAddr, MacAddress)> {
        match &self.body {
            Body::Arp(mac, ip) => vec![(*ip, *mac)],
            Body::Nd(Nd { from, target, link, .. }) => {
                let links = [Some(self.from), *link].into_iter().flatten();
                links.flat_map(|link| [((*from).into(), link), ((*target).into(), link)]).collect()
            }
            _ => Vec::new(),
        }
    }

    fn put_packet(&self, bytes: &mut Vec<u8>, packet: &Packet) {
        let length = self.length.saturating_sub(14) as u16;
        match (packet.from.0, packet.to.0) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                bytes.extend([8, 0, 0x45, 0]);
                bytes.extend(length.to_be_bytes());
                bytes.extend([self.number as u8, 9, 0, if packet.is_later { 100 } else { 0 }, 64, packet.protocol, 0, 0]);
                bytes.extend(from.octets());
                bytes.extend(to.octets());
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                bytes.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
                bytes.extend(length.saturating_sub(40).to_be_bytes());
                bytes.extend([packet.protocol, 64]);
                bytes.extend(from.octets());
                bytes.extend(to.octets());
            }
            _ => {}
        }
        if packet.is_later {
            return;
        }
        let ports = [packet.from.1.to_be_bytes(), packet.to.1.to_be_bytes()].concat();
        match packet.protocol {
            1 => bytes.extend([&[packet.flags, 0, 0, 0], &ports[..2], &[0, 1]].concat()),
            6 => bytes.extend([&ports[..], &[0, 0, 0, 1, 0, 0, 0, 1, 0x50, packet.flags, 1, 0, 0, 0, 0, 0]].concat()),
            _ => bytes.extend(
                [&ports[..], &length.saturating_sub(if packet.from.0.is_ipv4() { 20 } else { 40 }).to_be_bytes(), &[0, 0]].concat(),
            ),
        }
        packet.lease.into_iter().for_each(|(ip, mac)| bytes.extend(lease(ip, mac)));
    }
}

fn put_pair(bytes: &mut Vec<u8>, mac: MacAddress, ip: IpAddr) {
    bytes.extend(mac.bytes());
    if let IpAddr::V4(ip) = ip {
        bytes.extend(ip.octets());
    }
}
