//! Twins: guests that were restored from one snapshot, and so have the same addresses inside; each port has its own outside.
//!
//! A port with `inside` exchanges each inside address for the outside address that stands for it, and each such outside address for the
//! inside one: in every frame that its guest transmits, before the verdict, and in every frame that it receives, behind the queues. The
//! exchange has no state and is its own inverse. A machine that really has the inside address, such as the guest of which the snapshot was
//! taken, therefore appears to a twin under the twin's own outside address, and both can talk.
//!
//! Exchanged are the addresses of Ethernet, ARP, neighbour discovery and its link-layer options, IPv4 and IPv6, solicited-node groups
//! (also in MLD), the packet that an ICMP error quotes, and the client's addresses of DHCPv4. Checksums follow by increment (RFC 1624): those
//! of IPv4 headers, TCP, UDP, UDP-Lite, DCCP, ICMP and ICMPv6, and the pseudo-header's sum of a partial one. Everything lies in the copied
//! bytes; payload stays where it is.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use memlane_model::limits::PortLimits;

use crate::frame::{MacAddress, NetHeader, TCP, TYPE_IPV4, TYPE_IPV6, UDP, network_type};
use crate::headers::{
    Fragment, ICMPV6, IPV6_HEADER, Ipv4, Ipv6, LINK_OPTIONS, NdKind, REDIRECTED, TYPE_ARP, TYPE_RARP, Upper, link_local,
    solicited_node,
};
use crate::packet::Packet;

/// Protocol numbers of ICMP, DCCP (RFC 4340) and UDP-Lite (RFC 3828).
const ICMP: u8 = 1;
const DCCP: u8 = 33;
const UDP_LITE: u8 = 136;
/// Bytes of an ICMP header, behind which an error quotes a packet (RFC 792, RFC 4443).
const ICMP_HEADER: usize = 8;
/// Ports of messages of DHCP clients, and of servers (RFC 2131, section 4.1).
const DHCP: [[u16; 2]; 2] = [[68, 67], [67, 68]];
/// Bytes of an IPv4 header without options.
const IPV4_HEADER: usize = 20;

/// The headers of a frame to or from a twin lie behind the copied bytes, so its addresses or checksums cannot be exchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hidden;

/// The addresses that a port exchanges. See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Twin {
    /// The MAC address inside, and outside.
    mac: (MacAddress, MacAddress),
    v4: Vec<(Ipv4Addr, Ipv4Addr)>,
    v6: Vec<(Ipv6Addr, Ipv6Addr)>,
    /// Solicited-node groups of `v6`, each group once.
    groups: Vec<(Ipv6Addr, Ipv6Addr)>,
}

/// The partner of `address` in `pairs`, or itself.
fn exchanged<A: Copy + PartialEq>(pairs: &[(A, A)], address: A) -> A {
    let partner = |&(one, other): &(A, A)| {
        if one == address {
            Some(other)
        } else if other == address {
            Some(one)
        } else {
            None
        }
    };
    pairs.iter().find_map(partner).unwrap_or(address)
}

impl Twin {
    /// The exchange of a port with these `limits` and the MAC address `mac` outside; `None` if it has no `inside`. The n-th inside address of
    /// an IP version stands for the n-th of `addresses`; the link-local addresses made of both MAC addresses are a pair, too.
    pub fn of(limits: &PortLimits, mac: MacAddress) -> Option<Self> {
        let inside = limits.inside.as_ref()?;
        let inner = inside.mac.unwrap_or(mac);
        let v4_of = |list: &[IpAddr]| list.iter().filter_map(|ip| if let IpAddr::V4(ip) = ip { Some(*ip) } else { None }).collect();
        let v6_of = |list: &[IpAddr]| list.iter().filter_map(|ip| if let IpAddr::V6(ip) = ip { Some(*ip) } else { None }).collect();
        let (in4, out4): (Vec<Ipv4Addr>, Vec<Ipv4Addr>) = (v4_of(&inside.addresses), v4_of(&limits.addresses));
        let (in6, out6): (Vec<Ipv6Addr>, Vec<Ipv6Addr>) = (v6_of(&inside.addresses), v6_of(&limits.addresses));
        let made = (link_local(inner), link_local(mac));
        let mut v6 = Vec::new();
        for pair in std::iter::zip(in6, out6).chain([made]) {
            add_pair(&mut v6, pair);
        }
        let mut groups = Vec::new();
        v6.iter().for_each(|&(one, other)| add_pair(&mut groups, (solicited_node(one), solicited_node(other))));
        let mut v4 = Vec::new();
        std::iter::zip(in4, out4).for_each(|pair| add_pair(&mut v4, pair));
        Some(Self { mac: (inner, mac), v4, v6, groups })
    }

    /// The partner of a MAC address, or itself.
    pub fn mac(&self, address: MacAddress) -> MacAddress {
        exchanged(&[self.mac], address)
    }

    /// The partner of an IP address, or itself.
    pub fn ip(&self, address: IpAddr) -> IpAddr {
        match address {
            IpAddr::V4(address) => self.v4(address).into(),
            IpAddr::V6(address) => self.v6(address).into(),
        }
    }

    /// Whether `address` is the MAC address inside, and another one outside.
    pub fn is_inside(&self, address: MacAddress) -> bool {
        address == self.mac.0 && self.mac.0 != self.mac.1
    }

    /// The MAC addresses inside and outside, if they differ.
    pub fn mac_pair(&self) -> Option<(MacAddress, MacAddress)> {
        Some(self.mac).filter(|(inside, outside)| inside != outside)
    }

    /// The IP addresses inside and outside, without the link-local ones that are made of the MAC addresses.
    pub fn ip_pairs(&self) -> Vec<(IpAddr, IpAddr)> {
        let v4 = self.v4.iter().map(|&(inside, outside)| (inside.into(), outside.into()));
        let v6 = self.v6.iter().filter(|(inside, _)| *inside != link_local(self.mac.0));
        v4.chain(v6.map(|&(inside, outside)| (inside.into(), outside.into()))).collect()
    }

    fn v4(&self, address: Ipv4Addr) -> Ipv4Addr {
        exchanged(&self.v4, address)
    }

    fn v6(&self, address: Ipv6Addr) -> Ipv6Addr {
        exchanged(if address.is_multicast() { &self.groups } else { &self.v6 }, address)
    }

    /// Exchanges the addresses of `packet`, in its copied bytes, of which it copies more first.
    ///
    /// # Errors
    /// The frame is to be dropped: some of its addresses may be exchanged already, others are not.
    pub fn exchange(&self, packet: &mut Packet) -> Result<(), Hidden> {
        packet.copy_more();
        let (header, length) = (packet.header, packet.length as usize);
        self.exchange_in(packet.start_mut(), header, length)
    }

    /// Like [`Self::exchange`], for a frame of `length` bytes that begins with `start` and has this virtio-net header.
    ///
    /// # Errors
    /// The errors of [`Self::exchange`].
    pub fn exchange_in(&self, start: &mut [u8], header: NetHeader, length: usize) -> Result<(), Hidden> {
        let is_partial = header.flags() & NetHeader::NEEDS_CSUM != 0;
        let partial = is_partial.then(|| usize::from(header.csum_start()) + usize::from(header.csum_offset()));
        Frame { twin: self, start, length, partial }.exchange()
    }
}

/// Adds a pair of different addresses, neither of which is in another pair: each address has one partner.
fn add_pair<A: Copy + PartialEq>(pairs: &mut Vec<(A, A)>, (one, other): (A, A)) {
    let is_known = |address| pairs.iter().any(|&(first, second)| first == address || second == address);
    if one != other && !is_known(one) && !is_known(other) {
        pairs.push((one, other));
    }
}

/// Change of a ones' complement sum: the new words and the complements of the old ones (RFC 1624, equation 3).
#[derive(Clone, Copy, Debug, Default)]
struct Change {
    sum: u32,
    is_one: bool,
}

impl Change {
    const NONE: Self = Self { sum: 0, is_one: false };

    /// From `old` to `new`, of even length. Headers begin at even offsets, so both are made of 16-bit words of the checksum.
    fn between(old: &[u8], new: &[u8]) -> Self {
        if old == new {
            return Self::NONE;
        }
        let words = |bytes: &[u8], mask: u16| -> u32 {
            let (pairs, _) = bytes.as_chunks::<2>();
            pairs.iter().map(|pair| u32::from(u16::from_be_bytes(*pair) ^ mask)).sum()
        };
        Self { sum: fold(words(old, 0xffff) + words(new, 0)).into(), is_one: true }
    }

    fn and(self, other: Self) -> Self {
        // Each sum is folded: no overflow.
        Self { sum: fold(self.sum + other.sum).into(), is_one: self.is_one || other.is_one }
    }

    /// The sum that was `sum`.
    fn of_sum(self, sum: u16) -> u16 {
        fold(u32::from(sum) + self.sum)
    }
}

fn fold(sum: u32) -> u16 {
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

/// A checksum field.
#[derive(Clone, Copy, Debug)]
struct Checksum {
    /// Place of the checksum in the frame.
    at: usize,
    /// Zero means that there is none (RFC 768).
    is_optional: bool,
}

impl Checksum {
    /// The checksum of the transport header of `protocol` at byte `at`, if it covers a pseudo-header.
    fn of(protocol: u8, at: usize) -> Option<Self> {
        let field = match protocol {
            TCP => 16,
            UDP | UDP_LITE | DCCP => 6,
            ICMPV6 => 2,
            _ => return None,
        };
        Some(Self { at: at + field, is_optional: protocol == UDP })
    }
}

/// A frame of which the addresses are exchanged.
struct Frame<'t, 'f> {
    twin: &'t Twin,
    /// Copied bytes of the frame.
    start: &'f mut [u8],
    /// Bytes of the whole frame.
    length: usize,
    /// Place of a checksum field that holds the pseudo-header's sum only.
    partial: Option<usize>,
}

impl Frame<'_, '_> {
    fn read<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        self.start.get(at..)?.first_chunk().copied()
    }

    fn byte(&self, at: usize) -> Option<u8> {
        self.start.get(at).copied()
    }

    fn number(&self, at: usize) -> Option<u16> {
        self.read(at).map(u16::from_be_bytes)
    }

    /// Whether the frame has `end` bytes.
    ///
    /// # Errors
    /// The headers are not all copied.
    fn reaches(&self, end: usize) -> Result<bool, Hidden> {
        match (end <= self.start.len(), end <= self.length) {
            (true, _) => Ok(true),
            (false, true) => Err(Hidden),
            (false, false) => Ok(false),
        }
    }

    /// Writes `new` at `at`, if there are so many bytes.
    fn write<const N: usize>(&mut self, at: usize, new: [u8; N]) -> Change {
        let Some(place) = self.start.get_mut(at..).and_then(<[u8]>::first_chunk_mut::<N>) else { return Change::NONE };
        let old = std::mem::replace(place, new);
        Change::between(&old, &new)
    }

    fn mac(&mut self, at: usize) -> Change {
        let Some(old) = self.read(at) else { return Change::NONE };
        self.write(at, self.twin.mac(MacAddress::new(old)).bytes())
    }

    fn v4(&mut self, at: usize) -> Change {
        let Some(old) = self.read::<4>(at) else { return Change::NONE };
        self.write(at, self.twin.v4(old.into()).octets())
    }

    fn v6(&mut self, at: usize) -> Change {
        let Some(old) = self.read::<16>(at) else { return Change::NONE };
        self.write(at, self.twin.v6(old.into()).octets())
    }

    /// Has a checksum follow a change of its pseudo-header and one of the bytes that it covers itself. Returns its own change.
    ///
    /// # Errors
    /// The frame has the field, but not in the copied bytes.
    fn mend(&mut self, checksum: Checksum, (pseudo, covered): (Change, Change)) -> Result<Change, Hidden> {
        let Checksum { at, is_optional } = checksum;
        let all = pseudo.and(covered);
        if !all.is_one || !self.reaches(at + 2)? {
            return Ok(Change::NONE);
        }
        let Some(old) = self.number(at) else { return Ok(Change::NONE) };
        let new = match old {
            // The switch or the receiver adds the covered bytes.
            _ if self.partial == Some(at) => pseudo.of_sum(old),
            0 if is_optional => 0,
            _ => match !all.of_sum(!old) {
                0 if is_optional => 0xffff,
                new => new,
            },
        };
        Ok(self.write(at, new.to_be_bytes()))
    }

    fn exchange(&mut self) -> Result<(), Hidden> {
        self.mac(0);
        self.mac(6);
        match network_type(self.start) {
            Some((TYPE_IPV4, at)) => self.ipv4(at),
            Some((TYPE_IPV6, at)) => self.ipv6(at),
            Some((TYPE_ARP | TYPE_RARP, at)) => {
                self.arp(at);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// ARP for IPv4 on Ethernet (RFC 826).
    fn arp(&mut self, at: usize) {
        if self.read(at) == Some([0, 1, 8, 0, 6, 4]) {
            for (mac, ip) in [(8, 14), (18, 24)] {
                self.mac(at + mac);
                self.v4(at + ip);
            }
        }
    }

    fn ipv4(&mut self, at: usize) -> Result<(), Hidden> {
        let said = self.byte(at).map_or(0, |first| usize::from(first & 0xf) * 4);
        let is_whole = self.start.len() >= at + said.max(IPV4_HEADER);
        let Some(packet) = self.start.get(at..).and_then(Ipv4::parse) else {
            // One that is cut off or malformed has no addresses; one of which not all is copied may have some.
            return if is_whole || self.start.len() == self.length { Ok(()) } else { Err(Hidden) };
        };
        let is_routed = self.start.get(at..).is_some_and(|bytes| packet.is_routed(bytes));
        let source = self.v4(at + 12);
        let destination = self.v4(at + 16);
        self.mend(Checksum { at: at + 10, is_optional: false }, (source.and(destination), Change::NONE))?;
        // The pseudo-header has the last destination of a source route.
        let pseudo = if is_routed { source } else { source.and(destination) };
        let transport = at + packet.length;
        if packet.fragment == Fragment::Later {
            return Ok(());
        }
        let covered = match packet.protocol {
            UDP if packet.fragment == Fragment::Whole => self.dhcp(transport),
            ICMP => {
                let covered = self.icmp(transport);
                self.mend(Checksum { at: transport + 2, is_optional: false }, (Change::NONE, covered))?;
                return Ok(());
            }
            _ => Change::NONE,
        };
        if let Some(checksum) = Checksum::of(packet.protocol, transport).filter(|_| packet.protocol != ICMPV6) {
            self.mend(checksum, (pseudo, covered))?;
        }
        Ok(())
    }

    /// The client's addresses in a message of DHCP (RFC 2131, section 2); its options lie behind the copied bytes.
    fn dhcp(&mut self, at: usize) -> Change {
        let ports = [0, 2].map(|port| self.number(at + port).unwrap_or(0));
        let message = at + 8;
        let is_ethernet = self.read(message + 1) == Some([1, 6]);
        if !DHCP.contains(&ports) || !is_ethernet {
            return Change::NONE;
        }
        let (ciaddr, yiaddr) = (self.v4(message + 12), self.v4(message + 16));
        ciaddr.and(yiaddr).and(self.mac(message + 28))
    }

    /// Addresses in an ICMP message (RFC 792): the packet that an error quotes, and the router of a redirect.
    fn icmp(&mut self, at: usize) -> Change {
        const REDIRECT: u8 = 5;
        const ERRORS: [u8; 5] = [3, 4, REDIRECT, 11, 12];
        let Some(kind) = self.byte(at).filter(|kind| ERRORS.contains(kind)) else { return Change::NONE };
        let router = if kind == REDIRECT { self.v4(at + 4) } else { Change::NONE };
        router.and(self.quoted_v4(at + ICMP_HEADER))
    }

    /// A quoted packet of IPv4, which may be cut off anywhere.
    fn quoted_v4(&mut self, at: usize) -> Change {
        let Some(header) = self.read::<IPV4_HEADER>(at).filter(|[first, ..]| first >> 4 == 4) else { return Change::NONE };
        let addresses = self.v4(at + 12).and(self.v4(at + 16));
        let sum = self.mend_quoted(Checksum { at: at + 10, is_optional: false }, addresses);
        let [first, _, _, _, _, _, high, low, _, protocol, ..] = header;
        let is_later = u16::from_be_bytes([high, low]) & Ipv4::OFFSET != 0;
        let length = usize::from(first & 0xf) * 4;
        let has_checksum = length >= IPV4_HEADER && protocol != ICMPV6 && !is_later;
        let checksum = Checksum::of(protocol, at + length).filter(|_| has_checksum);
        let own = checksum.map_or(Change::NONE, |checksum| self.mend_quoted(checksum, addresses));
        addresses.and(sum).and(own)
    }

    /// Has a quoted checksum follow, as far as it is there: its receiver does not rely on it.
    fn mend_quoted(&mut self, checksum: Checksum, pseudo: Change) -> Change {
        let partial = self.partial.take();
        let change = self.mend(checksum, (pseudo, Change::NONE)).unwrap_or(Change::NONE);
        self.partial = partial;
        change
    }

    fn ipv6(&mut self, at: usize) -> Result<(), Hidden> {
        if !self.reaches(at + IPV6_HEADER)? {
            return Ok(());
        }
        let Some(packet) = self.start.get(at..).and_then(Ipv6::parse) else { return Ok(()) };
        // Bytes behind the length that the header says are looked at, too: a GSO frame may say any.
        let long = Ipv6 { payload: u16::MAX, ..packet };
        let (upper, is_routed) =
            self.start.get(at..).map_or((Upper::Later, false), |bytes| (long.upper(bytes), long.is_routed(bytes)));
        let asked = match upper {
            Upper::Header { protocol: ICMPV6, at: upper, fragment: Fragment::Whole } => {
                self.solicited(at + upper, packet.destination)
            }
            _ => None,
        };
        let source = self.v6(at + 8);
        let destination = match asked {
            Some(target) => self.write(at + 24, solicited_node(self.twin.v6(target)).octets()),
            None => self.v6(at + 24),
        };
        self.group(packet.destination, at + 24);
        // The pseudo-header has the last destination of a routing header (RFC 8200, section 8.1).
        let pseudo = if is_routed { source } else { source.and(destination) };
        match upper {
            Upper::Later => Ok(()),
            Upper::Beyond if self.start.len() < self.length && pseudo.is_one => Err(Hidden),
            Upper::Beyond => Ok(()),
            Upper::Header { protocol, at: upper, .. } => {
                let upper = at + upper;
                let covered = if protocol == ICMPV6 { self.icmpv6(upper) } else { Change::NONE };
                let checksum = Checksum::of(protocol, upper);
                checksum.map_or(Ok(()), |checksum| self.mend(checksum, (pseudo, covered)).map(drop))
            }
        }
    }

    /// The target of the neighbour solicitation at byte `at`, if it goes to the target's solicited-node group. Targets of one group inside
    /// may have different groups outside.
    fn solicited(&self, at: usize, destination: Ipv6Addr) -> Option<Ipv6Addr> {
        let is_solicitation = NdKind::of(self.byte(at)?) == Some(NdKind::NeighbourSolicitation);
        let target = Ipv6Addr::from(self.read::<16>(at + 8)?);
        (is_solicitation && destination == solicited_node(target)).then_some(target)
    }

    /// Has the Ethernet destination follow that of IPv6 at byte `at`, which was the group `old` (RFC 2464, section 7).
    fn group(&mut self, old: Ipv6Addr, at: usize) {
        let mac_of = |group: [u8; 16]| {
            let [.., a, b, c, d] = group;
            [0x33, 0x33, a, b, c, d]
        };
        if let Some(new) = self.read::<16>(at).filter(|_| old.is_multicast())
            && self.read(0) == Some(mac_of(old.octets()))
        {
            self.write(0, mac_of(new));
        }
    }

    /// Addresses in an ICMPv6 message: the packet that an error quotes (RFC 4443), neighbour discovery (RFC 4861), and groups of MLD (RFC
    /// 2710, RFC 3810).
    fn icmpv6(&mut self, at: usize) -> Change {
        let Some(kind) = self.byte(at) else { return Change::NONE };
        match (kind, NdKind::of(kind)) {
            (1..=4, _) => self.quoted_v6(at + ICMP_HEADER, self.start.len()),
            (130..=132, _) => self.v6(at + 8),
            (143, _) => self.reports(at),
            (_, Some(kind)) => {
                let target = if kind.has_target() { self.v6(at + 8) } else { Change::NONE };
                let destination = if kind == NdKind::Redirect { self.v6(at + 24) } else { Change::NONE };
                target.and(destination).and(self.options(at + kind.options()))
            }
            _ => Change::NONE,
        }
    }

    /// Group records of a report (RFC 3810, section 5.2), as far as they are copied. Each has 20 bytes or more, so the walk ends.
    fn reports(&mut self, at: usize) -> Change {
        let (mut record, mut all) = (at + 8, Change::NONE);
        for _ in 0..self.number(at + 6).unwrap_or(0) {
            let Some([_, words, high, low]) = self.read(record) else { break };
            if self.read::<16>(record + 4).is_none() {
                break;
            }
            all = all.and(self.v6(record + 4));
            record += 20 + 16 * usize::from(u16::from_be_bytes([high, low])) + 4 * usize::from(words);
        }
        all
    }

    /// Options of neighbour discovery (RFC 4861, section 4.6), as far as they are copied. Each has 8 bytes or more, so the walk ends.
    fn options(&mut self, at: usize) -> Change {
        let (mut option, mut all) = (at, Change::NONE);
        while let Some([kind, units]) = self.read(option).filter(|&[_, units]| units > 0) {
            let change = match kind {
                // On Ethernet it has 8 bytes (RFC 2464, section 6).
                kind if LINK_OPTIONS.contains(&kind) && units == 1 => self.mac(option + 2),
                REDIRECTED => self.quoted_v6(option + 8, option + 8 * usize::from(units)),
                _ => Change::NONE,
            };
            all = all.and(change);
            option += 8 * usize::from(units);
        }
        all
    }

    /// A quoted packet of IPv6, which ends before byte `end` and may be cut off anywhere.
    fn quoted_v6(&mut self, at: usize, end: usize) -> Change {
        let end = end.min(self.start.len());
        let Some(bytes) = self.start.get(at..end) else { return Change::NONE };
        let Some(packet) = Ipv6::parse(bytes) else { return Change::NONE };
        let upper = Ipv6 { payload: u16::MAX, ..packet }.upper(bytes);
        let addresses = self.v6(at + 8).and(self.v6(at + 24));
        let checksum = match upper {
            Upper::Header { protocol, at: upper, .. } => {
                Checksum::of(protocol, at + upper).filter(|checksum| checksum.at + 2 <= end)
            }
            Upper::Later | Upper::Beyond => None,
        };
        addresses.and(checksum.map_or(Change::NONE, |checksum| self.mend_quoted(checksum, addresses)))
    }
}

#[cfg(test)]
mod tests;
