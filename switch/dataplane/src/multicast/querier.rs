//! The querier: asks the guests of segments with snooping for reports of their groups (RFC 3376, section 8; RFC 3810, section 9).
//!
//! The querier always asks, also beside a router, for memberships must not depend on a guest that pretends to be one. Its queries of IGMP come from
//! 0.0.0.0, so that no router yields to it (RFC 4541, section 2.1.1), those of MLD from a link-local address.

#![expect(clippy::indexing_slicing, reason = "messages of fixed length")]

use std::sync::atomic::Ordering;

use super::Snooping;
use super::reports::Address;
use crate::frame::MacAddress;
use crate::headers::{ICMPV6, link_local};
use crate::offload::checksum;

/// Seconds between two queries (RFC 3376, section 8.2), between the first two (section 8.6), and least between any two.
const INTERVAL: u32 = 125;
const STARTUP: u32 = 31;
const LEAST: u32 = 10;
/// Seconds in which guests answer a general query (section 8.3), and one about a group (section 8.8).
const RESPONSE: u8 = 10;
const LAST_MEMBER: u8 = 1;
/// The robustness variable (section 8.1), and the querier's interval.
const ROBUSTNESS: u8 = 2;

/// Source of queries: locally administered, and the same at every switch, for no query leaves by an uplink.
pub(crate) const QUERIER: [u8; 6] = [2, 0x6d, 0x65, 0x6d, 0x6c, 0x61];

/// A query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Query {
    /// For all groups of IPv4.
    General4,
    /// For all groups of IPv6.
    General6,
    /// For one group.
    Group(Address),
}

/// `message` with its checksum at byte `at`, over `pseudo` too, which has a whole number of words.
pub(super) fn checksummed(message: &[u8], at: usize, pseudo: &[u8]) -> Vec<u8> {
    let sum = checksum::over(&[pseudo, message]);
    let mut message = message.to_vec();
    message[at..at + 2].copy_from_slice(&sum);
    message
}

impl Query {
    /// The frame of it.
    pub(crate) fn frame(self) -> Vec<u8> {
        let from = MacAddress::new(QUERIER);
        match self {
            Self::General4 => igmp(from, [224, 0, 0, 1], [0; 4], RESPONSE),
            Self::General6 => {
                let mut all_nodes = [0; 16];
                (all_nodes[0], all_nodes[1], all_nodes[15]) = (0xff, 2, 1);
                mld(from, all_nodes, [0; 16], RESPONSE)
            }
            Self::Group(Address::V4(group)) => igmp(from, group, group, LAST_MEMBER),
            Self::Group(Address::V6(group)) => mld(from, group, group, LAST_MEMBER),
        }
    }
}

/// A query of IGMPv3, which hosts with earlier versions read as theirs (RFC 3376, section 4.1).
fn igmp(from: MacAddress, to: [u8; 4], group: [u8; 4], response: u8) -> Vec<u8> {
    let [_, b, c, d] = to;
    // In tenths of seconds.
    let message = [&[0x11, 10 * response, 0, 0][..], &group, &[ROBUSTNESS, INTERVAL as u8, 0, 0]].concat();
    // Precedence 6, lifetime 1, option router alert (RFC 2113), source 0.0.0.0.
    let header = [&[0x46, 0xc0, 0, 36, 0, 0, 0x40, 0, 1, 2, 0, 0, 0, 0, 0, 0][..], &to, &[0x94, 4, 0, 0]].concat();
    let ethernet = [&[1, 0, 0x5e, b & 0x7f, c, d][..], &from.bytes(), &[8, 0]].concat();
    let mut frame = [ethernet, checksummed(&header, 10, &[]), checksummed(&message, 2, &[])].concat();
    frame.resize(60, 0);
    frame
}

/// A query of MLDv2, which hosts with the earlier version read as theirs (RFC 3810, section 5.1).
fn mld(from: MacAddress, to: [u8; 16], group: [u8; 16], response: u8) -> Vec<u8> {
    let [.., a, b, c, d] = to;
    // In milliseconds.
    let [high, low] = (u16::from(response) * 1000).to_be_bytes();
    let message = [&[130, 0, 0, 0, high, low, 0, 0][..], &group, &[ROBUSTNESS, INTERVAL as u8, 0, 0]].concat();
    let source = link_local(from).octets();
    let pseudo = [&source[..], &to, &(message.len() as u32).to_be_bytes(), &[0, 0, 0, ICMPV6]].concat();
    let message = checksummed(&message, 2, &pseudo);
    let ethernet = [&[0x33, 0x33, a, b, c, d][..], &from.bytes(), &[0x86, 0xdd]].concat();
    // Hop limit 1, and the hop-by-hop option router alert (RFC 2711).
    let header = [&[0x60, 0, 0, 0, 0, 8 + message.len() as u8, 0, 1][..], &source, &to, &[ICMPV6, 0, 5, 2, 0, 0, 1, 0]].concat();
    [ethernet, header, message].concat()
}

/// When the querier asks: of one segment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Schedule {
    /// Queries so far, and the second of the last one.
    queries: u32,
    last: u32,
}

impl Schedule {
    /// A second of `snooping` has begun; whether a query is due. Never where snooping was turned off meanwhile.
    pub(crate) fn tick(&mut self, snooping: &Snooping) -> bool {
        let Some(now) = snooping.next_second() else { return false };
        if now <= 2 {
            *self = Self::default();
        }
        let since = now - self.last;
        let regular = if self.queries == 1 { STARTUP } else { INTERVAL };
        let is_due = self.queries == 0 || since >= regular || since >= LEAST && snooping.asked.load(Ordering::Relaxed);
        if is_due {
            snooping.asked.store(false, Ordering::Relaxed);
            *self = Self { queries: self.queries.saturating_add(1), last: now };
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_come_at_the_start_then_regularly_and_soon_after_a_port_came() {
        let (snooping, mut schedule) = (Snooping::default(), Schedule::default());
        snooping.set_on(true);
        let mut asked = Vec::new();
        for second in 2..400 {
            if second == 300 || second == 301 || second == 305 {
                snooping.asked.store(true, Ordering::Relaxed);
            }
            if schedule.tick(&snooping) {
                asked.push(second);
            }
        }
        assert_eq!(asked, [2, 33, 158, 283, 300, 310]);
    }

    /// Offsets by RFC 3376, section 4.1, and RFC 3810, section 5.1.
    #[test]
    fn a_second_that_begins_late_does_not_turn_snooping_on_again() {
        let (snooping, mut schedule) = (Snooping::default(), Schedule::default());
        snooping.set_on(true);
        assert!(schedule.tick(&snooping));
        snooping.set_on(false);
        assert!(!schedule.tick(&snooping) && !snooping.is_on());
    }

    #[test]
    fn a_query_is_whole() {
        let frame = Query::General4.frame();
        assert_eq!((&frame[..6], frame.len()), (&[1, 0, 0x5e, 0, 0, 1][..], 60));
        assert_eq!((&frame[38..40], &frame[42..50]), (&[0x11, 100][..], &[0, 0, 0, 0, 2, 125, 0, 0][..]));
        assert_eq!((checksum::over(&[&frame[14..38]]), checksum::over(&[&frame[38..50]])), ([0, 0], [0, 0]));
        let frame = Query::Group(Address::V6([0xff, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4])).frame();
        assert_eq!((&frame[..6], frame[21], frame.len()), (&[0x33, 0x33, 1, 2, 3, 4][..], 1, 90));
        assert_eq!((&frame[62..64], &frame[66..68]), (&[130, 0][..], &1000_u16.to_be_bytes()[..]));
        assert_eq!(checksum::over(&[&frame[22..54], &28_u32.to_be_bytes(), &[0, 0, 0, 58], &frame[62..]]), [0, 0]);
    }
}
