//! What is to happen to a frame: a pure function of its addresses and of what the segment knows.

use crate::frame::Addresses;
use crate::id::PortId;
use crate::stats::DropReason;
use crate::table::{Learned, Table};

/// Where a frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// To one port.
    To(PortId),
    /// To every port of the segment but the sender's.
    Flood,
    /// Nowhere.
    Drop(DropReason),
}

/// Decides on a frame with these `addresses` that came in at `port` in second `now`, and learns from it.
pub fn decide(addresses: Addresses, port: PortId, table: &Table, now: u32) -> Verdict {
    let (source, destination) = (addresses.source(), addresses.destination());
    if !source.is_station() || table.learn(source, port, now) == Learned::Pinned {
        return Verdict::Drop(DropReason::BadSource);
    }
    if destination.is_group() {
        return Verdict::Flood;
    }
    match table.find(destination) {
        Some(found) if found == port => Verdict::Drop(DropReason::SamePort),
        Some(found) => Verdict::To(found),
        None => Verdict::Flood,
    }
}

/// For how long a verdict holds unasked: until some address moves or goes, and no longer than this second, so that senders stay confirmed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// [`Table::generation`].
    pub generation: u32,
    /// Second.
    pub second: u32,
}

/// Remembers a sender's last decision: most frames of a batch have the same addresses as the one before.
#[derive(Clone, Copy, Debug)]
pub struct Memo {
    addresses: Addresses,
    moment: Moment,
    verdict: Verdict,
}

impl Default for Memo {
    fn default() -> Self {
        // Frames from the all-zero source never get a verdict other than this one.
        Self { addresses: Addresses::default(), moment: Moment::default(), verdict: Verdict::Drop(DropReason::BadSource) }
    }
}

impl Memo {
    /// The port that frames with these addresses from `port` go to, if that is known and holds.
    #[inline]
    pub fn destination(&mut self, port: PortId, table: &Table, moment: Moment) -> Option<(Addresses, PortId)> {
        let Verdict::To(to) = self.verdict else { return None };
        (self.moment == moment || self.still_goes(port, to, table, moment)).then_some((self.addresses, to))
    }

    /// Asks the table whether it was something else that moved or went, so that who invents addresses costs others a look and no more.
    #[cold]
    fn still_goes(&mut self, from: PortId, to: PortId, table: &Table, moment: Moment) -> bool {
        let holds = self.moment.second == moment.second
            && table.find(self.addresses.source()) == Some(from)
            && table.find(self.addresses.destination()) == Some(to);
        if holds {
            self.moment = moment;
        }
        holds
    }

    /// As [`decide`].
    #[inline]
    pub fn decide(&mut self, addresses: Addresses, port: PortId, table: &Table, moment: Moment) -> Verdict {
        if self.addresses == addresses && self.moment == moment {
            return self.verdict;
        }
        let verdict = decide(addresses, port, table, moment.second);
        // An address that appears is no news to the table, so who is unknown is asked for again.
        let is_unknown = verdict == Verdict::Flood && !addresses.destination().is_group();
        *self = if is_unknown { Self::default() } else { Self { addresses, moment, verdict } };
        verdict
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{MacAddress, START};

    fn addresses(source: MacAddress, destination: MacAddress) -> Addresses {
        let mut start = [0; START];
        start[..6].copy_from_slice(&destination.bytes());
        start[6..12].copy_from_slice(&source.bytes());
        let addresses = Addresses::of(&start);
        assert_eq!((addresses.source(), addresses.destination()), (source, destination));
        addresses
    }

    const A: MacAddress = MacAddress::BROADCAST;

    fn station(n: u8) -> MacAddress {
        MacAddress::new([2, 0, 0, 0, 0, n])
    }

    #[test]
    fn known_unknown_group_own_and_impossible() {
        let table = Table::new(3, 64, 1);
        table.learn(station(2), PortId(2), 0);
        table.learn(station(9), PortId(0), 0);
        let decide = |source, destination| decide(addresses(source, destination), PortId(0), &table, 0);
        assert_eq!(decide(station(1), station(2)), Verdict::To(PortId(2)));
        assert_eq!(decide(station(1), station(3)), Verdict::Flood);
        assert_eq!(decide(station(1), A), Verdict::Flood);
        assert_eq!(decide(station(1), station(9)), Verdict::Drop(DropReason::SamePort));
        assert_eq!(decide(A, station(2)), Verdict::Drop(DropReason::BadSource));
        assert_eq!(decide(MacAddress::default(), station(2)), Verdict::Drop(DropReason::BadSource));
    }

    #[test]
    fn who_invents_addresses_voids_no_memo_of_others() {
        let table = Table::new(3, 64, 1);
        let mut memo = Memo::default();
        let moment = || Moment { generation: table.generation(), second: 0 };
        table.learn(station(2), PortId(2), 0);
        memo.decide(addresses(station(1), station(2)), PortId(0), &table, moment());
        let before = moment();
        for n in 0..1000_u16 {
            let [a, b] = n.to_be_bytes();
            table.learn(MacAddress::new([2, 0, 0, 1, a, b]), PortId(1), 0);
        }
        assert_ne!(moment(), before, "some of its own had to give way");
        let known = Some((addresses(station(1), station(2)), PortId(2)));
        assert_eq!(memo.destination(PortId(0), &table, moment()), known);
        assert_eq!(memo.destination(PortId(0), &table, Moment { second: 1, ..moment() }), None, "the sender is to be confirmed");
        // Who was taken for the sender, or the receiver, elsewhere is news.
        table.learn(station(1), PortId(1), 0);
        assert_eq!(memo.destination(PortId(0), &table, moment()), None);
        memo.decide(addresses(station(1), station(2)), PortId(0), &table, moment());
        assert_eq!(memo.destination(PortId(0), &table, moment()), known);
        table.forget(PortId(2));
        assert_eq!(memo.destination(PortId(0), &table, moment()), None);
    }

    #[test]
    fn a_memo_forgets_when_the_table_changes() {
        let table = Table::new(3, 64, 1);
        let mut memo = Memo::default();
        let mut ask = || {
            memo.decide(addresses(station(1), station(2)), PortId(0), &table, Moment { generation: table.generation(), second: 0 })
        };
        assert_eq!(ask(), Verdict::Flood);
        assert_eq!(ask(), Verdict::Flood);
        table.learn(station(2), PortId(2), 0);
        assert_eq!(ask(), Verdict::To(PortId(2)));
        table.learn(station(2), PortId(1), 0);
        assert_eq!(ask(), Verdict::To(PortId(1)));
    }
}
