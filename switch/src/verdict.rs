//! What is to happen to a frame: a pure function of its addresses and of what the segment knows.

use crate::frame::MacAddress;
use crate::port::PortId;
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

/// Decides on a frame that came in at `port` in second `now`, and learns from it.
pub fn decide(source: MacAddress, destination: MacAddress, port: PortId, table: &Table, now: u32) -> Verdict {
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

/// Remembers a sender's last decision: most frames of a batch have the same addresses as the one before.
#[derive(Clone, Copy, Debug)]
pub struct Memo {
    source: MacAddress,
    destination: MacAddress,
    /// Table generation and second for which the verdict holds; confirmation of the source must not be forgotten for longer.
    valid: (u32, u32),
    verdict: Verdict,
}

impl Default for Memo {
    fn default() -> Self {
        let none = MacAddress::default();
        // The all-zero source never gets a verdict other than this one.
        Self { source: none, destination: none, valid: (0, 0), verdict: Verdict::Drop(DropReason::BadSource) }
    }
}

impl Memo {
    /// The last verdict: a guess at the next.
    pub fn last(&self) -> Verdict {
        self.verdict
    }

    /// As [`decide`], for a caller who read `generation` from the table before the batch.
    #[inline]
    pub fn decide(&mut self, addresses: (MacAddress, MacAddress), port: PortId, table: &Table, valid: (u32, u32)) -> Verdict {
        let (source, destination) = addresses;
        if self.source == source && self.destination == destination && self.valid == valid {
            return self.verdict;
        }
        self.verdict = decide(source, destination, port, table, valid.1);
        (self.source, self.destination, self.valid) = (source, destination, valid);
        self.verdict
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: MacAddress = MacAddress::BROADCAST;

    fn station(n: u8) -> MacAddress {
        MacAddress::new([2, 0, 0, 0, 0, n])
    }

    #[test]
    fn known_unknown_group_own_and_impossible() {
        let table = Table::new(3, 64, 1);
        table.learn(station(2), PortId(2), 0);
        table.learn(station(9), PortId(0), 0);
        let decide = |source, destination| decide(source, destination, PortId(0), &table, 0);
        assert_eq!(decide(station(1), station(2)), Verdict::To(PortId(2)));
        assert_eq!(decide(station(1), station(3)), Verdict::Flood);
        assert_eq!(decide(station(1), A), Verdict::Flood);
        assert_eq!(decide(station(1), station(9)), Verdict::Drop(DropReason::SamePort));
        assert_eq!(decide(A, station(2)), Verdict::Drop(DropReason::BadSource));
        assert_eq!(decide(MacAddress::default(), station(2)), Verdict::Drop(DropReason::BadSource));
    }

    #[test]
    fn a_memo_forgets_when_the_table_changes() {
        let table = Table::new(3, 64, 1);
        let mut memo = Memo::default();
        let mut ask = || memo.decide((station(1), station(2)), PortId(0), &table, (table.generation(), 0));
        assert_eq!(ask(), Verdict::Flood);
        assert_eq!(ask(), Verdict::Flood);
        table.learn(station(2), PortId(2), 0);
        assert_eq!(ask(), Verdict::To(PortId(2)));
        table.learn(station(2), PortId(1), 0);
        assert_eq!(ask(), Verdict::To(PortId(1)));
    }
}
