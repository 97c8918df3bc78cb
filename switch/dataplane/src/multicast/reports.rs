//! IGMP and MLD messages of guests, read from a copy. A message with a wrong checksum, or that is not all there, changes nothing.

#![expect(
    clippy::indexing_slicing,
    reason = "offsets within headers that a parser found, and within a message that is not shorter; a property test reads any bytes"
)]

use super::Group;
use crate::frame::{ETHERNET, MacAddress, TYPE_IPV4, TYPE_IPV6, TYPE_QINQ, TYPE_VLAN};
use crate::headers::{Fragment, ICMPV6, IGMP, Ipv4, Ipv6, Upper, number_at};
use crate::offload::checksum;

/// Bytes of a frame that are read: those of Ethernet's MTU. A longer report has more groups than a port may have.
pub(crate) const LONGEST: usize = 1514;
/// Protocol number of PIM (RFC 7761), which routers speak.
const PIM: u8 = 103;

/// The IP address of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Address {
    /// Of IPv4.
    V4([u8; 4]),
    /// Of IPv6.
    V6([u8; 16]),
}

impl Address {
    /// The group of its MAC address (RFC 1112, section 6.4; RFC 2464, section 7), if frames to it are filtered.
    fn group(self) -> Option<Group> {
        match self {
            Self::V4([224..=239, b, c, d]) => Group::of(MacAddress::new([1, 0, 0x5e, b & 0x7f, c, d])),
            Self::V6([0xff, .., a, b, c, d]) => Group::of(MacAddress::new([0x33, 0x33, a, b, c, d])),
            _ => None,
        }
    }
}

/// The report of a message about its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The sender is a router.
    Router,
    /// The sender is a member of the group.
    Join(Group, Address),
    /// The sender is not a member of the group any more.
    Leave(Group, Address),
}

/// Reads the frame that begins with `bytes`: calls `each` with its reports, if it is IGMP or MLD.
pub fn read(bytes: &[u8], mut each: impl FnMut(Change)) {
    let Some(packet) = bytes.get(ETHERNET..) else { return };
    let _ = match number_at(bytes, ETHERNET - 2) {
        // A malformed part ends the reading.
        Some(TYPE_IPV4) => read_ipv4(packet, &mut each),
        Some(TYPE_IPV6) => read_ipv6(packet, &mut each),
        _ => None,
    };
}

/// Whether the frame that begins with `start` may be a message that [`read`] reads: most multicast frames are none.
pub(crate) fn may_say(start: &[u8]) -> bool {
    let at = |byte: usize| start.get(ETHERNET + byte).copied();
    match number_at(start, ETHERNET - 2) {
        Some(TYPE_IPV4) => matches!(at(9), Some(IGMP | PIM)),
        // MLD is behind a hop-by-hop option (RFC 3810, section 5).
        Some(TYPE_IPV6) => matches!(at(6), Some(0 | PIM)),
        _ => false,
    }
}

/// Whether the frame that begins with `start` is a report that only routers get; `None` if it is no frame of IP without a VLAN tag.
pub(super) fn to_routers_only(start: &[u8]) -> Option<bool> {
    const IGMP_V1_REPORT: u8 = 0x12;
    const IGMP_V2_REPORT: u8 = 0x16;
    const MLD_V1_REPORT: u8 = 131;
    let bytes = start.get(ETHERNET..)?;
    match number_at(start, ETHERNET - 2)? {
        TYPE_IPV4 => {
            let Some(packet) = Ipv4::parse(bytes).filter(|packet| packet.protocol == IGMP) else { return Some(false) };
            Some(matches!(bytes.get(packet.length), Some(&(IGMP_V1_REPORT | IGMP_V2_REPORT))))
        }
        TYPE_IPV6 => {
            let Some(packet) = Ipv6::parse(bytes) else { return Some(false) };
            let Upper::Header { protocol: ICMPV6, at, .. } = packet.upper(bytes) else { return Some(false) };
            Some(bytes.get(at) == Some(&MLD_V1_REPORT))
        }
        TYPE_VLAN | TYPE_QINQ => None,
        _ => Some(false),
    }
}

fn sums_up(parts: &[&[u8]]) -> bool {
    checksum::over(parts) == [0, 0]
}

fn read_ipv4(bytes: &[u8], each: &mut impl FnMut(Change)) -> Option<()> {
    let packet = Ipv4::parse(bytes).filter(|packet| packet.fragment == Fragment::Whole)?;
    let message = bytes.get(packet.length..usize::from(number_at(bytes, 2)?))?;
    if packet.protocol == PIM {
        each(Change::Router);
    }
    // Messages do not leave the link (RFC 3376, section 4).
    if packet.protocol != IGMP || bytes[8] != 1 || message.len() < 8 || !sums_up(&[message]) {
        return None;
    }
    let group = |at| Some(Address::V4(*message.get(at..)?.first_chunk()?));
    match message[0] {
        // A query from 0.0.0.0 is a switch's (RFC 4541, section 2.1.1).
        0x11 if !packet.source.is_unspecified() => each(Change::Router),
        0x12 | 0x16 => join(group(4)?, each),
        0x17 => leave(group(4)?, each),
        0x22 => records(message, 4, &group, each),
        _ => {}
    }
    Some(())
}

fn read_ipv6(bytes: &[u8], each: &mut impl FnMut(Change)) -> Option<()> {
    let packet = Ipv6::parse(bytes)?;
    let Upper::Header { protocol, at, fragment: Fragment::Whole } = packet.upper(bytes) else { return None };
    if protocol == PIM {
        each(Change::Router);
    }
    let (whole, is_whole) = packet.packet(bytes);
    let message = whole.get(at..)?;
    let length = (message.len() as u32).to_be_bytes();
    let is_whole = is_whole && message.len() >= 24 && sums_up(&[&bytes[8..40], &length, &[0, 0, 0, ICMPV6], message]);
    let is_local = packet.source.is_unicast_link_local();
    if protocol != ICMPV6 || bytes[7] != 1 || !is_whole || !(is_local || packet.source.is_unspecified()) {
        return None;
    }
    let group = |at| Some(Address::V6(*message.get(at..)?.first_chunk()?));
    match message[0] {
        130 if is_local => each(Change::Router),
        131 => join(group(8)?, each),
        132 => leave(group(8)?, each),
        143 => records(message, 16, &group, each),
        _ => {}
    }
    Some(())
}

fn join(address: Address, each: &mut impl FnMut(Change)) {
    address.group().into_iter().for_each(|group| each(Change::Join(group, address)));
}

fn leave(address: Address, each: &mut impl FnMut(Change)) {
    address.group().into_iter().for_each(|group| each(Change::Leave(group, address)));
}

/// The records of a report of IGMPv3 or MLDv2, with addresses of so many bytes (RFC 3376, section 4.2; RFC 3810, section 5.2). Each has
/// eight bytes or more, so the walk ends.
fn records(message: &[u8], size: usize, group: &impl Fn(usize) -> Option<Address>, each: &mut impl FnMut(Change)) {
    const MODE_IS_INCLUDE: u8 = 1;
    const CHANGE_TO_INCLUDE: u8 = 3;
    const BLOCK_OLD_SOURCES: u8 = 6;
    let mut at = 8;
    for _ in 0..number_at(message, 6).unwrap_or(0) {
        let (Some(&[kind, data, ..]), Some(sources)) = (message.get(at..at + 4), number_at(message, at + 2)) else { return };
        let Some(address) = group(at + 4) else { return };
        match (kind, sources) {
            (CHANGE_TO_INCLUDE, 0) => leave(address, each),
            (MODE_IS_INCLUDE, 0) | (BLOCK_OLD_SOURCES, _) => {}
            (1..=5, _) => join(address, each),
            _ => {}
        }
        at += 4 + size + size * usize::from(sources) + 4 * usize::from(data);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::multicast::querier::{Query, checksummed};

    /// An IGMP message without its checksum, in a frame.
    fn igmp(ttl: u8, message: &[u8]) -> Vec<u8> {
        let message = checksummed(message, 2, &[]);
        let head = [&[1, 0, 0x5e, 0, 0, 22, 2, 0, 0, 0, 0, 1, 8, 0][..], &[0x46, 0xc0, 0, 24 + message.len() as u8, 0, 0, 0x40, 0]];
        [&head.concat()[..], &[ttl, 2, 0, 0, 10, 0, 0, 1, 224, 0, 0, 22, 0x94, 4, 0, 0], &message].concat()
    }

    /// An MLD message without its checksum, in a frame.
    fn mld(message: &[u8]) -> Vec<u8> {
        let (from, to) = ([&[0xfe, 0x80][..], &[0; 13], &[1]].concat(), [&[0xff, 2][..], &[0; 13], &[22]].concat());
        let pseudo = [&from[..], &to, &(message.len() as u32).to_be_bytes(), &[0, 0, 0, 58]].concat();
        let message = checksummed(message, 2, &pseudo);
        let head = [
            &[0x33, 0x33, 0, 0, 0, 22, 2, 0, 0, 0, 0, 1, 0x86, 0xdd, 0x60, 0, 0, 0, 0, 8 + message.len() as u8, 0, 1][..],
            &from,
            &to,
        ];
        [&head.concat()[..], &[58, 0, 5, 2, 0, 0, 1, 0], &message].concat()
    }

    fn changes(frame: &[u8]) -> Vec<(char, String)> {
        let mut changes = Vec::new();
        read(frame, |change| {
            changes.push(match change {
                Change::Router => ('r', String::new()),
                Change::Join(group, _) => ('j', group.address().to_string()),
                Change::Leave(group, _) => ('l', group.address().to_string()),
            });
        });
        changes
    }

    const ONE: [u8; 4] = [239, 1, 2, 3];
    const TWO: [u8; 4] = [225, 130, 0, 9];

    #[test]
    fn reports_of_igmp_are_read() {
        let (one, two) = ("01:00:5e:01:02:03".to_owned(), "01:00:5e:02:00:09".to_owned());
        for kind in [0x12, 0x16] {
            assert_eq!(changes(&igmp(1, &[&[kind, 0, 0, 0][..], &ONE].concat())), [('j', one.clone())]);
        }
        assert_eq!(changes(&igmp(1, &[&[0x17, 0, 0, 0][..], &ONE].concat())), [('l', one.clone())]);
        let report = |first: u8, second: u8| {
            let records = [&[first, 0, 0, 0][..], &ONE, &[second, 1, 0, 2], &TWO, &[9; 12], &[4, 0, 0, 0, 224, 0, 0, 251]];
            igmp(1, &[&[0x22, 0, 0, 0, 0, 0, 0, 3][..], &records.concat()].concat())
        };
        assert_eq!(changes(&report(4, 1)), [('j', one.clone()), ('j', two.clone())], "224.0.0.251 is never filtered");
        assert_eq!(changes(&report(3, 3)), [('l', one), ('j', two)]);
        assert_eq!(changes(&report(1, 6)), []);
        assert_eq!(changes(&igmp(1, &[0x11, 100, 0, 0, 0, 0, 0, 0])), [('r', String::new())]);
        assert_eq!(changes(&igmp(1, &[0x22, 0, 0, 0, 0, 0, 0xff, 0xff])), [], "fewer records than it says");
    }

    #[test]
    fn reports_of_mld_are_read() {
        let (group, name) = ([&[0xff, 5][..], &[0; 10], &[1, 2, 3, 4]].concat(), "33:33:01:02:03:04".to_owned());
        let simple = |kind: u8| mld(&[&[kind, 0, 0, 0, 0, 0, 0, 0][..], &group].concat());
        assert_eq!(changes(&simple(131)), [('j', name.clone())]);
        assert_eq!(changes(&simple(132)), [('l', name.clone())]);
        assert_eq!(changes(&simple(130)), [('r', String::new())]);
        let solicited = [&[0xff, 2][..], &[0; 9], &[1, 0xff, 0, 0, 7]].concat();
        let records = [&[4, 0, 0, 0][..], &solicited, &[4, 1, 0, 1], &group, &[7; 20], &[3, 0, 0, 0], &group].concat();
        let report = mld(&[&[143, 0, 0, 0, 0, 0, 0, 3][..], &records].concat());
        assert_eq!(changes(&report), [('j', name.clone()), ('l', name)]);
    }

    #[test]
    fn messages_that_are_wrong_change_nothing() {
        let good = igmp(1, &[&[0x16, 0, 0, 0][..], &ONE].concat());
        assert_eq!(changes(&igmp(2, &[&[0x16, 0, 0, 0][..], &ONE].concat())), [], "it came from another link");
        let changed = |at: usize| {
            let mut frame = good.clone();
            frame[at] ^= 1;
            changes(&frame)
        };
        assert_eq!((changed(45), changed(23)), (vec![], vec![]), "a wrong checksum, another protocol");
        assert_eq!(changes(&good[..good.len() - 1]), [], "cut off");
        assert_eq!(changes(&igmp(1, &[0x16, 0, 0, 0, 10, 0, 0, 1])), [], "no group");
    }

    #[test]
    fn reports_that_others_would_not_repeat_go_to_routers_only() {
        let report = |kind| to_routers_only(&igmp(1, &[&[kind, 0, 0, 0][..], &ONE].concat()));
        assert_eq!([0x12, 0x16, 0x17, 0x22, 0x11].map(report), [true, true, false, false, false].map(Some));
        let group = [&[0xff, 5][..], &[0; 14]].concat();
        let of_mld = |kind: u8| to_routers_only(&mld(&[&[kind, 0, 0, 0, 0, 0, 0, 0][..], &group].concat()));
        assert_eq!([131, 132, 143].map(of_mld), [Some(true), Some(false), Some(false)]);
        assert_eq!(to_routers_only(&[&[0; 12][..], &[0x81, 0, 0, 7]].concat()), None, "with a tag");
    }

    #[test]
    fn the_queriers_own_igmp_is_no_routers() {
        for query in [Query::General4, Query::General6, Query::Group(Address::V4(ONE)), Query::Group(Address::V6([0xff; 16]))] {
            let frame = query.frame();
            let is_v6 = matches!(query, Query::General6 | Query::Group(Address::V6(_)));
            // The query has a link-local source, as every query of MLD must.
            assert_eq!(changes(frame.as_slice()).len(), usize::from(is_v6), "{query:?}");
        }
    }

    #[test]
    fn any_bytes_are_read_without_a_panic() {
        bolero::check!().with_type::<(bool, Vec<u8>)>().for_each(|(is_v6, bytes)| {
            let mut frame = if *is_v6 {
                mld(&[&[143, 0, 0, 0, 0, 0][..], bytes].concat())
            } else {
                igmp(1, &[&[0x22, 0, 0, 0, 0, 0][..], bytes].concat())
            };
            let mut count = 0;
            read(&frame, |_| count += 1);
            assert!(count <= frame.len() / 8);
            frame.truncate(bytes.len());
            read(&frame, |_| {});
            let _ = (to_routers_only(&frame), may_say(&frame));
            read(bytes, |_| {});
        });
    }
}
