//! One direction of an emulated link.
//!
//! The link emulates a wire, with frames no longer than an MTU (IEEE 802.3). A GSO frame is segmented before losses, queue and
//! transmitter, so that they apply to each segment by itself; on a path with a constant delay only, where that makes no difference,
//! it stays unsegmented.

#![expect(clippy::indexing_slicing, reason = "cut to the shorter of both lengths")]

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use fastrand::Rng;

use crate::budget::{Account, Permit};
use crate::frame::NetHeader;
use crate::held::{HeldFrame, HeldLine, OVERHEAD};
use crate::id::{PortId, RingKey};
use crate::link::chance::{draw, happens, loses};
use crate::link::{Impairment, Path};
use crate::memory::Iovec;
use crate::memory::holes::Look;
use crate::offload::segment::{Cutter, Segment};
use crate::packet::{Packet, Stamp};
use crate::port::Port;
use crate::time::{Cycles, frequency};

/// A frame in flight.
#[derive(Debug)]
struct Flight {
    source: PortId,
    header: NetHeader,
    capture_id: u32,
    frame: Box<[u8]>,
    /// Segments that were delivered already, if the receiver had room for some of them only.
    segments_done: u16,
    permit: Permit,
}

/// Result of sending one packet along the link, in frames of the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LineOutcome {
    /// All of them.
    pub frames: u32,
    /// Frames that were lost, by the loss of the path.
    pub lost: u32,
    /// Frames for which the transmitter's queue or the memory budget had no room.
    pub refused: u32,
}

/// A frame of the wire.
#[derive(Clone, Copy)]
struct WireFrame<'a> {
    source: PortId,
    header: NetHeader,
    capture_id: u32,
    length: u32,
    /// Makes a copy of its bytes.
    copy: &'a dyn Fn() -> Box<[u8]>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct DelayLine {
    path: Arc<Path>,
    account: Arc<Account>,
    rng: Rng,
    /// The state of [`crate::link::GilbertElliott`].
    bad: bool,
    /// Departure times of the frames in the transmitter's queue.
    leaving: VecDeque<Cycles>,
    /// When the last frame is due, for keeping order.
    last_due: Cycles,
    /// Frames in flight, by when they are due; those of the same moment arrive in the order in which they left.
    flights: BTreeMap<(Cycles, u64), Flight>,
    /// Frames that were placed: until the poll iteration ends the receiver may refer to them.
    placed: Vec<Flight>,
    taken: u64,
}

impl DelayLine {
    /// An emulated link along `path`, with frames that take memory from `account`; `seed` determines losses and delays.
    pub(crate) fn new(path: Arc<Path>, account: Arc<Account>, seed: u64) -> Self {
        Self {
            path,
            account,
            rng: Rng::with_seed(seed),
            bad: false,
            leaving: VecDeque::new(),
            last_due: 0,
            flights: BTreeMap::new(),
            placed: Vec::new(),
            taken: 0,
        }
    }

    /// The emulated link before queue pair `pair` of `port`, if there is one.
    pub(crate) fn before(port: &Port, pair: u16) -> Option<Self> {
        Some(Self::new(port.path()?, Arc::clone(port.on_links()), port.seed_of_link(pair)))
    }

    /// The emulated link before queue pair `pair` of `port`; without link emulation one that delays nothing, for frames that wait for the receiver outside of their senders' memory.
    pub(crate) fn before_or_clear(port: &Port, pair: u16) -> Self {
        let clear =
            || Self::new(Arc::new(Path::from(&Impairment::default())), Arc::clone(port.on_links()), port.seed_of_link(pair));
        Self::before(port, pair).unwrap_or_else(clear)
    }

    /// Uses `path` from now on; frames in flight keep their time of arrival.
    pub(crate) fn set_path(&mut self, path: Arc<Path>) {
        self.path = path;
    }

    /// True if frames may bypass it: its path is clear and no frame is in flight.
    pub(crate) fn is_over(&self) -> bool {
        self.flights.is_empty() && self.path.is_clear()
    }

    /// True if it delays no frame.
    pub(crate) fn is_clear(&self) -> bool {
        self.path.is_clear()
    }

    /// True if a frame without further delay waits for the receiver, so that later frames have to wait behind it.
    pub(crate) fn is_ahead(&self, now: Cycles) -> bool {
        self.path.is_clear() && self.due().is_some_and(|due| due <= now)
    }

    /// Takes a copy of `packet`, which was waiting for the receiver, as a frame that has arrived. False if there is no room for it.
    pub(crate) fn keep(&mut self, packet: &Packet, now: Cycles) -> bool {
        let Some(permit) = self.account.take_again(u64::from(packet.length) + OVERHEAD) else { return false };
        self.taken += 1;
        let Packet { source, header, capture_id, segments_done, .. } = *packet;
        let flight = Flight { source, header, capture_id, frame: bytes(packet), segments_done, permit };
        self.flights.insert((now, self.taken), flight);
        true
    }

    /// The frames and the state of the link, apart from the receive queue `key`, with all times from `now` on.
    pub(crate) fn hold(self, key: RingKey, now: Cycles) -> HeldLine {
        let left = |moment: Cycles| moment.saturating_sub(now);
        let frame = |((due, _), flight): ((Cycles, u64), Flight)| HeldFrame {
            source: flight.source,
            header: flight.header,
            frame: flight.frame,
            segments_done: flight.segments_done,
            left: left(due),
            permit: flight.permit,
        };
        HeldLine {
            port: key.port,
            pair: key.pair,
            frames: self.flights.into_iter().map(frame).collect(),
            seed: self.rng.get_seed(),
            bad: self.bad,
            leaving: self.leaving.into_iter().map(left).collect(),
            last_due: left(self.last_due),
        }
    }

    /// Continues a link that was [held](Self::hold), from `now` on.
    pub(crate) fn go_on(&mut self, held: HeldLine, now: Cycles) {
        let HeldLine { frames, seed, bad, leaving, last_due, .. } = held;
        (self.rng, self.bad) = (Rng::with_seed(seed), bad);
        self.leaving = leaving.into_iter().map(|left| now.saturating_add(left)).collect();
        self.last_due = self.last_due.max(now.saturating_add(last_due));
        for HeldFrame { source, header, frame, segments_done, left, permit } in frames {
            self.taken += 1;
            let flight = Flight { source, header, capture_id: 0, frame, segments_done, permit };
            self.flights.insert((now.saturating_add(left), self.taken), flight);
        }
    }

    /// Sends a copy of `packet` in moment `now`: as it is, or each of its segments.
    pub(crate) fn take(&mut self, packet: &Packet, now: Cycles) -> LineOutcome {
        let mut taken = LineOutcome::default();
        if packet.segments_done > 0 {
            // The rest of a frame of which some segments were delivered, when there was no link.
            let refused = u32::from(!self.keep(packet, now));
            return LineOutcome { frames: 1, lost: 0, refused };
        }
        match if self.path.only_delays() { None } else { Cutter::new(packet, true) } {
            Some(cutter) => self.take_segments(packet, cutter, now, &mut taken),
            None => {
                let Packet { source, header, capture_id, length, .. } = *packet;
                self.take_frame(WireFrame { source, header, capture_id, length, copy: &|| bytes(packet) }, now, &mut taken);
            }
        }
        taken
    }

    /// Sends a copy of each segment.
    fn take_segments(&mut self, packet: &Packet, mut cutter: Cutter, now: Cycles, taken: &mut LineOutcome) {
        let whole = bytes(packet);
        for index in 0..cutter.count() {
            let Segment { header, headers, payload_offset, payload_length, .. } = cutter.segment(index);
            let from = headers.len() + payload_offset as usize;
            let Some(payload) = whole.get(from..from + payload_length as usize) else { return };
            let copy = &|| [headers, payload].concat().into_boxed_slice();
            let length = headers.len() as u32 + payload_length;
            let capture_id = packet.capture_id;
            self.take_frame(WireFrame { source: packet.source, header, capture_id, length, copy }, now, taken);
        }
    }

    /// Sends a frame, or two copies. If only the second copy finds no room, that is no loss.
    fn take_frame(&mut self, frame: WireFrame<'_>, now: Cycles, taken: &mut LineOutcome) {
        taken.frames += 1;
        if self.loses() {
            taken.lost += 1;
            return;
        }
        let twice = happens(self.path.duplicate, &mut self.rng);
        if self.take_copy(frame, now).is_none() {
            taken.refused += 1;
        } else if twice {
            let _ = self.take_copy(frame, now);
        }
    }

    /// Sends one copy; `None` if there is no room for it.
    fn take_copy(&mut self, frame: WireFrame<'_>, now: Cycles) -> Option<()> {
        let permit = self.account.take(u64::from(frame.length) + OVERHEAD)?;
        let left = self.transmit(frame.length, now)?;
        let due = self.arrival(left);
        self.taken += 1;
        let flight = Flight {
            source: frame.source,
            header: frame.header,
            capture_id: frame.capture_id,
            frame: (frame.copy)(),
            segments_done: 0,
            permit,
        };
        self.flights.insert((due, self.taken), flight);
        Some(())
    }

    /// Whether the next frame is lost.
    fn loses(&mut self) -> bool {
        happens(self.path.loss, &mut self.rng)
            || self.path.bursts.is_some_and(|bursts| loses(&bursts, &mut self.bad, &mut self.rng))
    }

    /// When a frame of `length` bytes has left the transmitter; `None` if its queue is full.
    fn transmit(&mut self, length: u32, now: Cycles) -> Option<Cycles> {
        if self.path.rate == 0 {
            return Some(now);
        }
        while self.leaving.front().is_some_and(|&left| left <= now) {
            self.leaving.pop_front();
        }
        // The frame that is being sent is not in the queue.
        if self.leaving.len() > self.path.queue as usize {
            return None;
        }
        let span = u128::from(length) * u128::from(frequency()) / u128::from(self.path.rate);
        let left = self.leaving.back().map_or(now, |&last| last.max(now)).saturating_add(span as u64);
        self.leaving.push_back(left);
        Some(left)
    }

    /// When a frame that left the transmitter at `left` arrives.
    fn arrival(&mut self, left: Cycles) -> Cycles {
        if happens(self.path.reorder, &mut self.rng) {
            return left;
        }
        let stray = if self.path.jitter == 0 { 0.0 } else { self.path.jitter as f64 * draw(self.path.distribution, &mut self.rng) };
        let due = left.saturating_add_signed(((self.path.delay as f64 + stray).max(0.0)) as i64);
        if self.path.keep_order {
            self.last_due = self.last_due.max(due);
            return self.last_due;
        }
        due
    }

    /// Frames in flight.
    pub(crate) fn len(&self) -> usize {
        self.flights.len()
    }

    /// True if no frame is in flight.
    pub(crate) fn is_empty(&self) -> bool {
        self.flights.is_empty()
    }

    /// Releases the frames that were placed. To be called once they were published to the receiver.
    pub(crate) fn forget_placed(&mut self) {
        self.placed.clear();
    }

    /// True if frames were placed and not released since.
    pub(crate) fn has_placed(&self) -> bool {
        !self.placed.is_empty()
    }

    /// When the next frame arrives.
    #[inline]
    pub(crate) fn due(&self) -> Option<Cycles> {
        self.flights.first_key_value().map(|(&(due, _), _)| due)
    }

    /// Passes the next frame, if it has arrived at `now`, to `place` as a packet. It stays the first in flight until `place`
    /// returns that it is done with.
    pub(crate) fn serve<R>(&mut self, now: Cycles, packet: &mut Packet, place: impl FnOnce(&mut Packet) -> (R, bool)) -> Option<R> {
        let mut first = self.flights.first_entry().filter(|first| first.key().0 <= now)?;
        let flight = first.get_mut();
        packet.source = flight.source;
        packet.capture_id = flight.capture_id;
        // The latency histogram leaves link emulation out.
        packet.stamp = Stamp::NONE;
        packet.set_frame(flight.header, &mut flight.frame);
        packet.segments_done = flight.segments_done;
        let (result, done) = place(packet);
        if done {
            self.placed.push(first.remove());
        } else {
            flight.segments_done = packet.segments_done;
        }
        Some(result)
    }
}

/// The frame's bytes.
fn bytes(packet: &Packet) -> Box<[u8]> {
    let look = Look::begin(packet.memory);
    let frame = bytes_by(packet, |iovec, frame| iovec.append_to(frame));
    // Where another thread has covered pages of the sender's memory as holes, the file has the bytes.
    if look.end().by_others { bytes_by(packet, |iovec, frame| iovec.append_from_file(frame)) } else { frame }
}

fn bytes_by(packet: &Packet, append: impl Fn(Iovec, &mut Vec<u8>)) -> Box<[u8]> {
    let mut frame = Vec::with_capacity(packet.length as usize);
    frame.extend_from_slice(&packet.start()[..packet.start().len().min(packet.length as usize)]);
    for iovec in packet.rest() {
        append(iovec.first(packet.length - frame.len() as u32), &mut frame);
    }
    frame.into_boxed_slice()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Budget;
    use crate::link::Impairment;
    use crate::time::in_cycles;
    use std::time::Duration;

    fn line(impairment: Impairment) -> DelayLine {
        DelayLine::new(Arc::new(Path::from(&impairment)), Account::new(&Budget::new(1 << 21)), 3)
    }

    fn frame(number: u32) -> Packet {
        let mut bytes = vec![0; 1000];
        bytes[500..504].copy_from_slice(&number.to_be_bytes());
        let mut packet = Packet::default();
        // Leaked for the duration of the test, because packets point into their frames.
        packet.set_frame(NetHeader::default(), Box::leak(bytes.into_boxed_slice()));
        packet
    }

    /// Whether `line` takes frame `number` at `now`.
    fn takes(line: &mut DelayLine, number: u32, now: Cycles) -> bool {
        line.take(&frame(number), now) == LineOutcome { frames: 1, ..LineOutcome::default() }
    }

    /// A GSO frame of `segments` TCP segments of 946 bytes of payload, 1000 with their headers.
    fn large(segments: u32) -> Packet {
        let mut bytes = vec![0; 54 + 946 * segments as usize];
        bytes[12..15].copy_from_slice(&[8, 0, 0x45]);
        (bytes[23], bytes[46]) = (6, 5 << 4);
        let mut packet = Packet::default();
        let header = NetHeader::partial_checksum(34, 16).cut(NetHeader::GSO_TCPV4, 946).cleaned(54);
        packet.set_frame(header, Box::leak(bytes.into_boxed_slice()));
        packet
    }

    /// Numbers of the segments of [`large`] frames that have arrived at `now`, by their TCP sequence numbers.
    fn segments(line: &mut DelayLine, now: Cycles) -> Vec<u32> {
        line.forget_placed();
        let mut packet = Packet::default();
        let number = |packet: &mut Packet| {
            assert_eq!((packet.length, packet.header), (1000, NetHeader::partial_checksum(34, 16)));
            (u32::from_be_bytes(bytes(packet)[38..42].try_into().unwrap()) / 946, true)
        };
        std::iter::from_fn(|| line.serve(now, &mut packet, number)).collect()
    }

    #[test]
    fn segments_are_lost_and_come_twice_one_by_one() {
        let mut line = line(Impairment { delay: Some("1ms".into()), loss: 0.1, duplicate: 0.1, ..Impairment::default() });
        let (mut lost, mut arrived, mut bursts) = (0, 0, 0);
        for round in 0..1000 {
            let taken = line.take(&large(40), milliseconds(2 * round));
            assert_eq!((taken.frames, taken.refused), (40, 0));
            let mut numbers = segments(&mut line, milliseconds(2 * round + 1));
            arrived += numbers.len();
            numbers.dedup();
            assert!(numbers.is_sorted() && numbers.len() as u32 == 40 - taken.lost);
            bursts += (1..40).filter(|n| !numbers.contains(n) && numbers.contains(&(n - 1))).count();
            lost += taken.lost;
        }
        let share = |count: usize| count as f64 / 40_000.0;
        assert!((share(lost as usize) - 0.1).abs() < 0.01 && (share(arrived) - 0.99).abs() < 0.02, "{lost} {arrived}");
        // Losses are independent: a burst of them begins behind a segment that is not lost.
        assert!((share(bursts) - 0.9 * 0.1).abs() < 0.01, "{bursts}");
    }

    #[test]
    fn segments_wait_and_are_spaced_one_by_one() {
        let mut line = line(Impairment { rate: Some("8Mbit".into()), queue: Some(9), ..Impairment::default() });
        assert_eq!(line.take(&large(40), 0), LineOutcome { frames: 40, lost: 0, refused: 30 });
        for sent in 1..=10 {
            assert_eq!(segments(&mut line, milliseconds(sent)), [sent as u32 - 1]);
        }
        assert!(line.is_empty());
    }

    #[test]
    fn a_gso_frame_stays_unsegmented_where_all_its_segments_meet_the_same() {
        let mut line = line(Impairment { delay: Some("1ms".into()), ..Impairment::default() });
        assert_eq!(line.take(&large(40), 0).frames, 1);
        let mut packet = Packet::default();
        line.serve(milliseconds(1), &mut packet, |_| ((), true)).unwrap();
        assert_eq!((packet.length, packet.header), (large(40).length, large(40).header));
    }

    /// Numbers of the frames that have arrived at `now`.
    fn arrived(line: &mut DelayLine, now: Cycles) -> Vec<u32> {
        line.forget_placed();
        let mut packet = Packet::default();
        let number = |packet: &mut Packet| (u32::from_be_bytes(bytes(packet)[500..504].try_into().unwrap()), true);
        std::iter::from_fn(|| line.serve(now, &mut packet, number)).collect()
    }

    fn milliseconds(number: u64) -> Cycles {
        in_cycles(Duration::from_millis(number))
    }

    #[test]
    fn a_delay_is_kept_to_the_cycle() {
        let mut line = line(Impairment { delay: Some("10ms".into()), ..Impairment::default() });
        for number in 0..3 {
            line.take(&frame(number), u64::from(number));
        }
        assert_eq!(line.due(), Some(milliseconds(10)));
        assert!(arrived(&mut line, milliseconds(10) - 1).is_empty());
        assert_eq!(arrived(&mut line, milliseconds(10) + 1), [0, 1]);
        assert_eq!((arrived(&mut line, milliseconds(11)), line.is_empty()), (vec![2], true));
    }

    #[test]
    fn a_rate_spaces_frames_and_its_queue_is_bounded() {
        let mut line = line(Impairment { rate: Some("8Mbit".into()), queue: Some(3), ..Impairment::default() });
        let taken = (0..10).filter(|&number| takes(&mut line, number, 0)).count();
        assert_eq!(taken, 4, "one is being sent, three wait");
        // 1000 bytes at 8 Mbit/s take a millisecond.
        for sent in 1..=4 {
            assert_eq!(arrived(&mut line, milliseconds(sent)), [sent as u32 - 1]);
        }
        assert!(takes(&mut line, 9, milliseconds(4)));
    }

    #[test]
    fn jitter_strays_to_both_sides_and_keeps_order_if_asked() {
        for keep_order in [false, true] {
            let jitter = Impairment { delay: Some("10ms".into()), jitter: Some("2ms".into()), keep_order, ..Impairment::default() };
            let mut line = line(jitter);
            for number in 0..500 {
                line.take(&frame(number), 0);
            }
            assert!(arrived(&mut line, milliseconds(8) - 1).is_empty());
            let order = arrived(&mut line, milliseconds(12) + 1);
            assert_eq!((order.len(), order.is_sorted()), (500, keep_order));
        }
    }

    #[test]
    fn losses_duplicates_and_overtaking_happen_as_often_as_asked() {
        let mut line =
            line(Impairment { delay: Some("1ms".into()), loss: 0.1, duplicate: 0.2, reorder: 0.3, ..Impairment::default() });
        let (mut lost, mut early, mut late) = (0, 0, 0);
        for round in 0..10_000 {
            let now = milliseconds(2 * round);
            lost += line.take(&frame(0), now).lost;
            early += arrived(&mut line, now).len();
            late += arrived(&mut line, now + milliseconds(1)).len();
        }
        let close = |count: usize, share: f64| (count as f64 / 10_000.0 - share).abs() < 0.02;
        assert!(
            close(lost as usize, 0.1) && close(early + late, 0.9 * 1.2) && close(early, 0.9 * 1.2 * 0.3),
            "{lost} {early} {late}"
        );
    }

    #[test]
    fn frames_under_way_take_no_more_than_the_budget() {
        let path = Impairment { delay: Some("1s".into()), ..Impairment::default() };
        let budget = Budget::new(10_000);
        let mut line = DelayLine::new(Arc::new(Path::from(&path)), Account::new(&budget), 1);
        let taken = (0..100).filter(|&number| takes(&mut line, number, 0)).count();
        assert_eq!(taken, 10_000 / 2 / (1000 + OVERHEAD as usize), "half of it: the rest is for others");
        drop(line);
        assert_eq!(budget.left(), budget.most());
    }

    #[test]
    fn what_finds_no_memory_does_not_occupy_the_transmitter() {
        let path = Impairment { rate: Some("8Mbit".into()), ..Impairment::default() };
        let mut line = DelayLine::new(Arc::new(Path::from(&path)), Account::new(&Budget::new(3000)), 1);
        let taken = (0..100).filter(|&number| takes(&mut line, number, 0)).count();
        assert_eq!(taken, 1, "half of the memory is for others");
        // Only its millisecond at the transmitter counts.
        assert_eq!(arrived(&mut line, milliseconds(1)).len(), 1);
        line.forget_placed();
        assert!(takes(&mut line, 100, milliseconds(1)));
        assert!(line.due().is_some_and(|due| due.abs_diff(milliseconds(2)) <= 1), "{:?}", line.due());
    }

    #[test]
    fn a_second_copy_that_finds_no_room_is_no_loss() {
        let path = Impairment { duplicate: 1.0, ..Impairment::default() };
        let mut line = DelayLine::new(Arc::new(Path::from(&path)), Account::new(&Budget::new(3000)), 1);
        assert!(takes(&mut line, 1, 0));
        assert_eq!(arrived(&mut line, 0).len(), 1);
    }

    #[test]
    fn what_finds_no_room_stays_first() {
        let mut line = line(Impairment::default());
        line.take(&frame(5), 0);
        let mut packet = Packet::default();
        assert_eq!(
            line.serve(0, &mut packet, |packet| {
                packet.segments_done = 2;
                ((), false)
            }),
            Some(())
        );
        assert_eq!(line.serve(0, &mut packet, |packet| (packet.segments_done, true)), Some(2));
        assert!(line.is_empty());
    }
}
