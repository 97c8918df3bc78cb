//! Forwarding decision: a pure function of a frame's first bytes and of the broadcast domain's forwarding table.
//!
//! A **verdict** comes with the **match mask** of the bits on which it depends ([`reading`] records the bits that a rule reads),
//! and a **flow cache** keeps a sender's last verdict: a frame that fits the mask needs no new decision. A new rule asks the
//! reading for the bits that it needs; the flow cache and the fast path ([`crate::ring::fast_path`]) follow from that. The rules of [`identity`]
//! and [`filter`] read more than Ethernet headers; verdicts on ARP and neighbour discovery are not kept.

pub(crate) mod answers;
pub mod filter;
pub(crate) mod flooded;
pub(crate) mod identity;
pub mod reading;
mod reply;
mod serving;

use crate::ablation;
use crate::frame::{FurtherMask, Head, MacAddress, MatchMask};
use crate::id::PortId;
use crate::packet::TagChange;
use crate::policy::filter::Changed;
use crate::policy::gate::Gate;
use crate::policy::rules::PortRules;
use crate::stats::DropReason;
use crate::table::{Learned, LearnedAddress, Table};
use answers::Question;
use reading::{Reading, Start};

/// Destination of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// To one port.
    To(PortId),
    /// To one port, with another VLAN tag.
    Retagged(PortId, TagChange),
    /// To every port of the broadcast domain but the sender's.
    Flood,
    /// Dropped.
    Drop(DropReason),
}

/// The port from which a frame came.
#[derive(Clone, Copy, Debug)]
pub struct Sender<'r> {
    /// The port.
    pub port: PortId,
    /// Rules about its frames.
    pub rules: &'r PortRules,
    /// Gate of the sender.
    pub gate: Gate<'r>,
    /// Whether gates decide on unicast frames of the segment.
    pub is_gated: bool,
}

impl From<PortId> for Sender<'_> {
    /// A port that may send from any address that is not pinned to another.
    fn from(port: PortId) -> Self {
        static NONE: PortRules = PortRules::NONE;
        Self { port, rules: &NONE, gate: Gate::OPEN, is_gated: false }
    }
}

/// A verdict, and the masks of the bits on which it depends.
#[derive(Clone, Copy, Debug)]
pub struct Decision {
    /// The verdict.
    pub verdict: Verdict,
    /// The VLAN of the frame.
    pub vlan: u16,
    /// The masks; `None` if the verdict holds for this frame only.
    pub masks: Option<(MatchMask, FurtherMask)>,
    /// MAC learning has entered the source at the sender, or moved it there.
    pub has_learned: bool,
}

/// Decides on a frame that begins with `start` and that `sender` sent in second `now`, with MAC learning of its source. `gate_of` tells the
/// gates of receivers, where gates decide.
pub fn decide<'f, 'r, 'g>(
    start: impl Into<Start<'f>>,
    sender: impl Into<Sender<'r>>,
    gate_of: impl Fn(PortId) -> Option<Gate<'g>>,
    table: &Table,
    now: u32,
) -> Decision {
    let (mut reading, sender) = (Reading::new(start.into()), sender.into());
    let (mut vlan, mut has_learned) = (0, false);
    let tape = reading.start.tape();
    if let Some(tape) = tape {
        tape.begin();
    }
    let learn = |address: LearnedAddress| {
        vlan = address.vlan;
        let learned = answers::learned(tape, address, || table.learn(address, sender.port, now));
        has_learned = learned == Learned::Changed;
        learned
    };
    let find = |address| answers::port(tape, Question::Behind(address), || table.find(address));
    let verdict = judge(&mut reading, sender, gate_of, table, learn, find).unwrap_or_else(Verdict::Drop);
    Decision { verdict, vlan, masks: reading.masks(), has_learned }
}

/// A forecast of [`decide`] for a frame, and its grounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Foreseen {
    /// Where it would go.
    pub verdict: Verdict,
    /// Source of the frame.
    pub source: MacAddress,
    /// VLAN of the frame.
    pub vlan: u16,
    /// The result of MAC learning; `None` if the source may not send at all.
    pub learned: Option<Learned>,
    /// The port that the source is known behind.
    pub behind: Option<PortId>,
}

/// The verdict of [`decide`], without learning from the frame.
pub(crate) fn foresee<'f, 'r, 'g>(
    start: impl Into<Start<'f>>,
    sender: impl Into<Sender<'r>>,
    gate_of: impl Fn(PortId) -> Option<Gate<'g>>,
    table: &Table,
    now: u32,
) -> Foreseen {
    let (mut reading, sender) = (Reading::new(start.into()), sender.into());
    let head = reading.start.head();
    let tag = head.vlan().0;
    let source = LearnedAddress { address: head.source(), vlan: sender.gate.vlans.of_sent(tag).unwrap_or(tag) };
    let (learned, after) = table.foresee(source, sender.port, now);
    let mut asked = None;
    let learn = |_| *asked.insert(learned);
    let find = |address| if address == source { after } else { table.find(address) };
    let verdict = judge(&mut reading, sender, gate_of, table, learn, find).unwrap_or_else(Verdict::Drop);
    Foreseen { verdict, source: source.address, vlan: source.vlan, learned: asked, behind: table.find(source) }
}

/// Decides; `learn` is called with the source, then `find` with the destination.
#[inline]
fn judge<'g>(
    frame: &mut Reading<'_>,
    sender: Sender<'_>,
    gate_of: impl Fn(PortId) -> Option<Gate<'g>>,
    table: &Table,
    learn: impl FnOnce(LearnedAddress) -> Learned,
    find: impl FnOnce(LearnedAddress) -> Option<PortId>,
) -> Result<Verdict, DropReason> {
    let (source, tape) = (frame.source(), frame.start.tape());
    let is_own = |mac| is_own(mac, sender, |mac| answers::port(tape, Question::Pinned(mac), || table.pinned(mac)));
    may_use(source, sender, is_own)?;
    let tag = frame.vlan();
    let vlan = if sender.is_gated { sender.gate.vlans.of_sent(tag).ok_or(DropReason::VlanNotCarried)? } else { tag };
    let asks = match &sender.rules.identity {
        Some(identity) => identity::check(frame, source, identity, is_own)?,
        None => None,
    };
    if sender.rules.tells_leases {
        serving::mark(frame);
    }
    let flood = match learn(LearnedAddress { address: source, vlan }) {
        Learned::Pinned => return Err(DropReason::BadSource),
        // The frame's floods would circulate in the loop.
        Learned::Held => Verdict::Drop(DropReason::Loop),
        Learned::Known | Learned::Changed | Learned::NoRoom => Verdict::Flood,
    };
    let destination = frame.destination();
    if let (Some(responder), Verdict::Flood) = (asks, flood) {
        return Ok(Verdict::To(responder));
    }
    if destination.is_group() {
        let is_refused = sender.gate.drops_reserved && destination.is_reserved_group();
        return if is_refused { Err(DropReason::ReservedGroup) } else { Ok(flood) };
    }
    match find(LearnedAddress { address: destination, vlan }) {
        Some(found) if found == sender.port => Err(DropReason::SamePort),
        Some(found) if sender.is_gated => through_gates(frame, sender, found, gate_of, (vlan, tag)),
        Some(found) => Ok(Verdict::To(found)),
        None => Ok(flood),
    }
}

fn through_gates<'g>(
    frame: &mut Reading<'_>,
    sender: Sender<'_>,
    to: PortId,
    gate_of: impl FnOnce(PortId) -> Option<Gate<'g>>,
    (vlan, tag): (u16, u16),
) -> Result<Verdict, DropReason> {
    let entrance = || gate_of(to).unwrap_or(Gate::OPEN).entrance(vlan);
    let change = sender.gate.pass_into(answers::entrance(frame.start.tape(), (to, vlan), entrance), vlan, tag)?;
    sender.gate.filtered.map_or(Ok(()), |filtered| filtered.check(frame, vlan, to))?;
    Ok(change.map_or(Verdict::To(to), |change| Verdict::Retagged(to, change)))
}

/// Whether `sender` may send from `source`, as far as that does not depend on MAC learning.
///
/// # Errors
/// The port may not, for this reason.
pub(crate) fn may_send_from(source: MacAddress, sender: Sender<'_>, table: &Table) -> Result<(), DropReason> {
    may_use(source, sender, |mac| is_own(mac, sender, |mac| table.pinned(mac)))
}

/// Like [`may_send_from`]; `is_own` tells whether an address is one of the port.
fn may_use(source: MacAddress, sender: Sender<'_>, is_own: impl FnOnce(MacAddress) -> bool) -> Result<(), DropReason> {
    if !source.is_unicast() {
        return Err(DropReason::BadSource);
    }
    let may = !sender.rules.is_guarded || is_own(source);
    may.then_some(()).ok_or(DropReason::SpoofedSource)
}

/// Whether `mac` is pinned to the port, as `pinned` tells, or it may use it beside that.
fn is_own(mac: MacAddress, sender: Sender<'_>, pinned: impl FnOnce(MacAddress) -> Option<PortId>) -> bool {
    pinned(mac) == Some(sender.port) || sender.rules.macs.contains(&mac)
}

/// Validity of a verdict: until some address moves or goes, and no longer than this second, so that senders' FDB entries are
/// confirmed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Epoch {
    /// [`Table::generation`].
    pub generation: u32,
    /// Second.
    pub second: u32,
}

/// The masks of a flow cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Masks<'c> {
    /// Bits of the Ethernet header.
    pub head: MatchMask,
    /// Bits behind it; for most verdicts none.
    pub further: &'c FurtherMask,
}

/// Flow cache: a sender's last verdict, because most frames of a batch are like the one before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlowCache {
    match_mask: MatchMask,
    further: FurtherMask,
    epoch: Epoch,
    verdict: Verdict,
    /// The VLAN of its frames.
    vlan: u16,
    /// The source of the frame that was decided on last, if that is to be flooded and its decision learned or moved it.
    learned: Option<LearnedAddress>,
}

impl Default for FlowCache {
    fn default() -> Self {
        // Frames from the all-zero source never get another verdict than this one.
        let match_mask = MatchMask::new(Head::SOURCE, Head::default());
        let further = FurtherMask::default();
        Self { match_mask, further, epoch: Epoch::default(), verdict: Verdict::Drop(DropReason::BadSource), vlan: 0, learned: None }
    }
}

impl FlowCache {
    /// The masks of frames from `port` that go to one other port, and that port, as far as the flow cache is valid.
    #[inline]
    pub(crate) fn destination(&mut self, port: PortId, table: &Table, epoch: Epoch) -> Option<(Masks<'_>, PortId)> {
        let Verdict::To(to) = self.verdict else { return None };
        if !ablation::FAST_PATH {
            return None;
        }
        let holds = self.epoch == epoch || self.still_goes(port, to, table, epoch);
        holds.then_some((Masks { head: self.match_mask, further: &self.further }, to))
    }

    /// Checks whether another address moved or went, so that a guest that invents addresses costs the others only one look-up.
    #[cold]
    fn still_goes(&mut self, from: PortId, to: PortId, table: &Table, epoch: Epoch) -> bool {
        let head = self.match_mask.head();
        let find = |address| table.find(LearnedAddress { address, vlan: self.vlan });
        let holds = self.epoch.second == epoch.second && find(head.source()) == Some(from) && find(head.destination()) == Some(to);
        if holds {
            self.epoch = epoch;
        }
        holds
    }

    /// Whether it has the verdict on a frame that begins with `start`.
    #[inline]
    pub(crate) fn fits(&self, start: Start<'_>, epoch: Epoch) -> bool {
        let fits = ablation::FLOW_CACHE && self.epoch == epoch && self.match_mask.fits(start.head());
        fits && (self.further.is_empty() || self.further.fits(start.bytes()))
    }

    /// Whether the verdict is on a frame to a port for which the rules have `changed`, or to any port by a rule.
    pub(crate) fn is_concerned(&self, changed: &Changed) -> bool {
        match self.verdict {
            Verdict::To(to) | Verdict::Retagged(to, _) => changed.concerns(to),
            Verdict::Drop(reason) => reason == DropReason::PolicyDenied || *changed == Changed::All,
            Verdict::Flood => *changed == Changed::All,
        }
    }

    /// The source that the frame to be flooded now has taught or moved. To be taken for each frame with that verdict.
    #[inline]
    pub(crate) fn take_learned(&mut self) -> Option<LearnedAddress> {
        self.learned.take()
    }

    /// Like [`decide`].
    #[inline]
    pub(crate) fn decide<'f, 'r, 'g>(
        &mut self,
        start: impl Into<Start<'f>>,
        sender: impl Into<Sender<'r>>,
        gate_of: impl Fn(PortId) -> Option<Gate<'g>>,
        table: &Table,
        epoch: Epoch,
    ) -> Verdict {
        let start = start.into();
        if self.fits(start, epoch) {
            return self.verdict;
        }
        let Decision { verdict, vlan, masks, has_learned } = decide(start, sender, gate_of, table, epoch.second);
        // A new address does not change the table's generation, so an unknown destination is not cached.
        let is_unknown = verdict == Verdict::Flood && !start.head().destination().is_group();
        *self = match masks {
            Some((match_mask, further)) if !is_unknown => Self { match_mask, further, epoch, verdict, vlan, learned: None },
            _ => Self::default(),
        };
        let address = start.head().source();
        self.learned = (has_learned && verdict == Verdict::Flood).then_some(LearnedAddress { address, vlan });
        verdict
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{MacAddress, START};

    /// The head of a frame with these addresses and EtherType `kind`.
    fn head_of_type(source: MacAddress, destination: MacAddress, kind: u16) -> Head {
        let mut start = [0; START];
        start[..6].copy_from_slice(&destination.bytes());
        start[6..12].copy_from_slice(&source.bytes());
        start[12..14].copy_from_slice(&kind.to_be_bytes());
        let head = Head::of(&start);
        assert_eq!((head.source(), head.destination()), (source, destination));
        head
    }

    fn head(source: MacAddress, destination: MacAddress) -> Head {
        head_of_type(source, destination, 0x0800)
    }

    /// A verdict that a flow cache can keep, with its match mask.
    fn masked(decision: Decision) -> (Verdict, MatchMask) {
        let (match_mask, further) = decision.masks.unwrap();
        assert!(further.is_empty());
        (decision.verdict, match_mask)
    }

    const A: MacAddress = MacAddress::BROADCAST;

    /// No port has rules.
    fn open(_: PortId) -> Option<Gate<'static>> {
        None
    }

    fn learned_address(n: u8) -> MacAddress {
        MacAddress::new([2, 0, 0, 0, 0, n])
    }

    #[test]
    fn known_unknown_group_own_and_impossible() {
        let table = Table::new(3, 64, 1);
        table.learn(learned_address(2), PortId(2), 0);
        table.learn(learned_address(9), PortId(0), 0);
        let decide = |source, destination| decide(head(source, destination), PortId(0), open, &table, 0).verdict;
        assert_eq!(decide(learned_address(1), learned_address(2)), Verdict::To(PortId(2)));
        assert_eq!(decide(learned_address(1), learned_address(3)), Verdict::Flood);
        assert_eq!(decide(learned_address(1), A), Verdict::Flood);
        assert_eq!(decide(learned_address(1), learned_address(9)), Verdict::Drop(DropReason::SamePort));
        assert_eq!(decide(A, learned_address(2)), Verdict::Drop(DropReason::BadSource));
        assert_eq!(decide(MacAddress::default(), learned_address(2)), Verdict::Drop(DropReason::BadSource));
    }

    #[test]
    fn a_verdict_is_foreseen_and_nothing_is_learned_from_that() {
        let table = Table::new(4, 64, 1);
        table.pin(learned_address(9), PortId(2));
        for n in 0..2000_u32 {
            let source = [learned_address((n % 5) as u8), learned_address(9), A, MacAddress::default()][n as usize / 3 % 4];
            let destination = [learned_address((n % 7) as u8), learned_address(9), A][n as usize / 5 % 3];
            let rules = PortRules { is_guarded: n % 11 == 0, ..PortRules::NONE };
            let sender = Sender { port: PortId((n % 3) as u16), rules: &rules, gate: Gate::OPEN, is_gated: false };
            let (head, generation) = (head(source, destination), table.generation());
            let foreseen = foresee(head, sender, open, &table, n / 100);
            assert_eq!((table.generation(), foreseen.source), (generation, source));
            assert_eq!(decide(head, sender, open, &table, n / 100).verdict, foreseen.verdict, "{n}: {foreseen:?}");
        }
    }

    #[test]
    fn a_verdict_tells_what_it_read() {
        let table = Table::new(3, 64, 1);
        table.learn(learned_address(2), PortId(2), 0);
        let (verdict, match_mask) = masked(decide(head(learned_address(1), learned_address(2)), PortId(0), open, &table, 0));
        assert_eq!(verdict, Verdict::To(PortId(2)));
        assert!(
            match_mask.fits(head_of_type(learned_address(1), learned_address(2), 0x0806)),
            "of the type only that it is no tag"
        );
        assert!(
            !match_mask.fits(head_of_type(learned_address(1), learned_address(2), 0x8100))
                && !match_mask.fits(head_of_type(learned_address(1), learned_address(2), 0x88a8))
        );
        assert!(
            !match_mask.fits(head(learned_address(1), learned_address(3)))
                && !match_mask.fits(head(learned_address(3), learned_address(2)))
        );
        let (verdict, match_mask) = masked(decide(head(A, learned_address(2)), PortId(0), open, &table, 0));
        assert_eq!(verdict, Verdict::Drop(DropReason::BadSource));
        assert!(match_mask.fits(head(A, learned_address(3))), "from such a source nothing goes anywhere");
    }

    /// The head of a frame with these addresses and an outer tag of EtherType `kind` that holds `tag`.
    fn tagged(source: MacAddress, destination: MacAddress, kind: u16, tag: u16) -> Head {
        let mut start = [0; START];
        start[..6].copy_from_slice(&destination.bytes());
        start[6..12].copy_from_slice(&source.bytes());
        start[12..14].copy_from_slice(&kind.to_be_bytes());
        start[14..16].copy_from_slice(&tag.to_be_bytes());
        Head::of(&start)
    }

    #[test]
    fn answers_go_where_the_address_is_in_their_vlan() {
        let table = Table::new(3, 64, 1);
        let (client, firewall, server) = (PortId(0), PortId(1), PortId(2));
        let decide = |head, port: PortId| decide(head, port, open, &table, 0).verdict;
        for kind in [0x8100, 0x88a8] {
            assert_eq!(decide(tagged(learned_address(1), learned_address(3), kind, 10), client), Verdict::Flood);
            assert_eq!(
                decide(tagged(learned_address(1), learned_address(3), kind, 20), firewall),
                Verdict::Flood,
                "passed on with its source"
            );
            assert_eq!(
                decide(tagged(learned_address(3), learned_address(1), kind, 0xe000 | 20), server),
                Verdict::To(firewall),
                "whatever its priority"
            );
            assert_eq!(decide(tagged(learned_address(3), learned_address(1), kind, 10), firewall), Verdict::To(client));
            [client, firewall, server].into_iter().for_each(|port| table.forget(port));
        }
        decide(head(learned_address(1), A), client);
        assert_eq!(
            decide(tagged(learned_address(3), learned_address(1), 0x8100, 0xa000), server),
            Verdict::To(client),
            "a priority is no VLAN"
        );
        assert_eq!(decide(head(learned_address(1), learned_address(3)), client), Verdict::To(server));
    }

    #[test]
    fn a_guarded_port_sends_from_its_own_address_only() {
        let table = Table::new(3, 64, 1);
        table.pin(learned_address(1), PortId(0));
        let rules = PortRules { is_guarded: true, ..PortRules::NONE };
        let guarded = Sender { port: PortId(0), rules: &rules, gate: Gate::OPEN, is_gated: false };
        let decide = |source, sender| decide(head(source, A), sender, open, &table, 0).verdict;
        assert_eq!(decide(learned_address(1), guarded), Verdict::Flood);
        assert_eq!(decide(learned_address(2), guarded), Verdict::Drop(DropReason::SpoofedSource));
        assert_eq!(table.find(learned_address(2)), None, "nothing is learned from it");
        assert_eq!(decide(learned_address(2), PortId(0).into()), Verdict::Flood);
    }

    #[test]
    fn what_a_loop_floods_goes_nowhere_and_what_is_for_one_port_goes_there() {
        let table = Table::new(4, 64, 1);
        table.learn(learned_address(2), PortId(3), 0);
        let ask = |destination, port: u16| decide(head(learned_address(1), destination), PortId(port), open, &table, 0).verdict;
        ask(A, 0);
        for n in 0..100 {
            ask(A, 1 + n % 2);
        }
        assert_eq!([1, 2].map(|port| ask(A, port)), [Verdict::Drop(DropReason::Loop); 2]);
        assert_eq!(ask(learned_address(9), 1), Verdict::Drop(DropReason::Loop), "unknown");
        assert_eq!(ask(learned_address(2), 1), Verdict::To(PortId(3)));
        assert_eq!(ask(A, 0), Verdict::Flood, "where it is at home");
    }

    #[test]
    fn a_memo_holds_in_its_vlan() {
        let table = Table::new(3, 64, 1);
        let mut flow_cache = FlowCache::default();
        let epoch = || Epoch { generation: table.generation(), second: 0 };
        let (here, ten, twenty) = (PortId(0), PortId(1), PortId(2));
        table.learn(LearnedAddress { address: learned_address(2), vlan: 10 }, ten, 0);
        table.learn(LearnedAddress { address: learned_address(2), vlan: 20 }, twenty, 0);
        let to = |vlan| tagged(learned_address(1), learned_address(2), 0x8100, vlan);
        for _ in 0..2 {
            assert_eq!(flow_cache.decide(to(10), here, open, &table, epoch()), Verdict::To(ten));
            assert_eq!(flow_cache.decide(to(0x6000 | 10), here, open, &table, epoch()), Verdict::To(ten));
            assert_eq!(flow_cache.decide(to(20), here, open, &table, epoch()), Verdict::To(twenty));
        }
        // A move in another VLAN does not invalidate it.
        table.learn(LearnedAddress { address: learned_address(2), vlan: 10 }, here, 0);
        assert_eq!(flow_cache.destination(here, &table, epoch()).map(|(_, to)| to), Some(twenty));
        table.learn(LearnedAddress { address: learned_address(2), vlan: 20 }, ten, 0);
        assert!(flow_cache.destination(here, &table, epoch()).is_none());
    }

    #[test]
    fn who_invents_addresses_voids_no_memo_of_others() {
        let table = Table::new(3, 64, 1);
        let mut flow_cache = FlowCache::default();
        let epoch = || Epoch { generation: table.generation(), second: 0 };
        table.learn(learned_address(2), PortId(2), 0);
        flow_cache.decide(head(learned_address(1), learned_address(2)), PortId(0), open, &table, epoch());
        let goes = |cache: &mut FlowCache, epoch| cache.destination(PortId(0), &table, epoch).map(|(masks, to)| (masks.head, to));
        let before = epoch();
        for n in 0..1000_u16 {
            let [a, b] = n.to_be_bytes();
            table.learn(MacAddress::new([2, 0, 0, 1, a, b]), PortId(1), 0);
        }
        assert_ne!(epoch(), before, "some of its own had to give way");
        let match_mask = masked(decide(head(learned_address(1), learned_address(2)), PortId(0), open, &table, 0)).1;
        let known = Some((match_mask, PortId(2)));
        assert_eq!(goes(&mut flow_cache, epoch()), known);
        assert_eq!(goes(&mut flow_cache, Epoch { second: 1, ..epoch() }), None, "the sender is to be confirmed");
        // A move of the sender or the receiver does.
        table.learn(learned_address(1), PortId(1), 0);
        assert_eq!(goes(&mut flow_cache, epoch()), None);
        flow_cache.decide(head(learned_address(1), learned_address(2)), PortId(0), open, &table, epoch());
        assert_eq!(goes(&mut flow_cache, epoch()), known);
        table.forget(PortId(2));
        assert_eq!(goes(&mut flow_cache, epoch()), None);
    }

    #[test]
    fn a_memo_forgets_when_the_table_changes() {
        let table = Table::new(3, 64, 1);
        let mut flow_cache = FlowCache::default();
        let mut ask = || {
            flow_cache.decide(
                head(learned_address(1), learned_address(2)),
                PortId(0),
                open,
                &table,
                Epoch { generation: table.generation(), second: 0 },
            )
        };
        assert_eq!(ask(), Verdict::Flood);
        assert_eq!(ask(), Verdict::Flood);
        table.learn(learned_address(2), PortId(2), 0);
        assert_eq!(ask(), Verdict::To(PortId(2)));
        table.learn(learned_address(2), PortId(1), 0);
        assert_eq!(ask(), Verdict::To(PortId(1)));
    }
}
