//! The flight recorder: the last verdicts of each worker, with all inputs, so that they can be made again ([`crate::replay`]).
//!
//! A worker writes one record for each frame into a ring of its own, of a fixed size: the headers (never payload), the sender's settings and the policy
//! rules by their numbers, the answers of shared state ([`crate::verdict::answers`]), and the verdict. A verdict that came from the flow cache or the
//! fast path has the answers of the frame on which it was made. A flooded frame has one more record at each worker that delivers it: its copies.
//!
//! A reader fetches records from the ring when it wants; overwritten records are a gap in their sequence numbers. Without a recorder this costs
//! a branch for each frame of the general path, and one for each batch on the fast path.

mod headers;
mod ring;
mod states;

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use memlane_observe::recording::{
    BATCH, COPIES, DROPS_RESERVED, FRAME, FloodCopy, Frame, HAS_HEADER, IS_CACHED, IS_EARLY, IS_GATED, IS_ISOLATED, IS_LONG,
    IS_SHORT, LONGEST_FRAME, LONGEST_RECORD, MOST_AGAIN, MTU_AT, PART, REASON_AT, SEQUEL_AT,
};

use crate::copy::Block;
use crate::frame::{NetHeader, SHORT_START};
use crate::id::PortId;
use crate::packet::{Packet, TagChange};
use crate::policy::filter::Filter;
use crate::policy::rules::PortRules;
use crate::port::Port;
use crate::stats::DropReason;
use crate::time::Cycles;
use crate::verdict::answers::{MOST, Tape};
use crate::verdict::flooded::Passage;
use crate::verdict::{Sender, Verdict};
use headers::{headers, length_of_headers};
pub use ring::Chunk;
use ring::RecordRing;
pub use states::States;

/// Numbers of verdicts in records.
pub(crate) const TO: u8 = 1;
pub(crate) const PUSH: u8 = 2;
pub(crate) const POP: u8 = 3;
pub(crate) const FLOOD: u8 = 4;
pub(crate) const DROP: u8 = 5;

/// Numbers of outcomes of copies of flooded frames: as they are, with or without a VLAN tag, or a drop reason.
pub(crate) const NONE: u8 = 0;
pub(crate) const SAME: u8 = 1;
pub(crate) const PUSHED: u8 = 2;
pub(crate) const POPPED: u8 = 3;
pub(crate) const DROPPED: u8 = 4;

/// Most frames of a batch.
pub(crate) const MOST_IN_BATCH: u16 = MOST_AGAIN as u16;

/// Sequel of a frame behind its verdict: no part of the verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sequel {
    /// The switch answered the frame itself, a question of ARP or neighbour discovery.
    Answered = 1,
    /// The frame was longer than the path MTU.
    TooLong = 2,
    /// The rate limit of flooded frames dropped it.
    Limited = 3,
}

/// A recording of a network: state that its workers and its readers share.
#[derive(Debug, Default)]
pub struct Recording {
    states: Mutex<States>,
    /// Records of workers that have ended, by worker.
    left: Mutex<BTreeMap<usize, Vec<Arc<Chunk>>>>,
    /// A worker has left its records.
    has_left: Condvar,
}

/// Longest time from the end of a worker's mailbox until the worker leaves its records: some poll iterations on a busy host.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(1);

impl Recording {
    /// The states that records refer to.
    pub fn states(&self) -> MutexGuard<'_, States> {
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The records of `worker`, whose mailbox is closed: waits until it has left them. `None` if it does not within [`LEAVE_TIMEOUT`].
    pub(crate) fn left(&self, worker: usize) -> Option<Vec<Arc<Chunk>>> {
        let left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        let is_missing = |left: &mut BTreeMap<_, _>| !left.contains_key(&worker);
        let (left, _) = self.has_left.wait_timeout_while(left, LEAVE_TIMEOUT, is_missing).unwrap_or_else(PoisonError::into_inner);
        left.get(&worker).cloned()
    }

    fn leave(&self, worker: usize, records: Vec<Arc<Chunk>>) {
        self.left.lock().unwrap_or_else(PoisonError::into_inner).insert(worker, records);
        self.has_left.notify_all();
    }
}

/// The record of a source's last decision, for frames that get the same verdict from the flow cache or on the fast path.
#[derive(Debug)]
pub(crate) struct LastDecision {
    /// State of the sender.
    sender: u32,
    /// Number of the transmit queue.
    queue: u16,
    flags: u8,
    answers: [u8; MOST],
    length: u8,
}

impl LastDecision {
    fn answers(&self) -> &[u8] {
        self.answers.get(..self.length.into()).unwrap_or_default()
    }
}

/// The last frame of a batch.
#[derive(Debug)]
struct Before {
    start: Block,
    /// Ones where `start` has headers.
    headers: Block,
    length: u32,
    /// Frames with the same headers and length behind it.
    again: u32,
}

impl Before {
    /// No frame has its length.
    const NONE: Self = Self { start: Block::ZERO, headers: Block::ZERO, length: u32::MAX, again: 0 };
}

/// The recorder of a worker.
#[derive(Debug)]
pub struct Recorder {
    worker: u8,
    shared: Arc<Recording>,
    ring: RecordRing,
    tape: Tape,
    /// The last frame of the batch that was begun.
    before: Before,
    /// The record of the present frame, until its verdict stands.
    pending: Box<[u8; LONGEST_FRAME]>,
    pending_length: usize,
    /// Scratch for copies of a flooded frame.
    copies: Vec<u8>,
    filter: u32,
    now: Cycles,
}

impl Recorder {
    /// The recorder of worker `worker`, with a ring of about `bytes`.
    pub(crate) fn new(worker: u8, shared: &Arc<Recording>, bytes: usize) -> Self {
        Self {
            worker,
            shared: Arc::clone(shared),
            ring: RecordRing::new(bytes),
            tape: Tape::blank(),
            before: Before::NONE,
            pending: Box::new([0; LONGEST_FRAME]),
            pending_length: 0,
            copies: Vec::with_capacity(LONGEST_RECORD),
            filter: 0,
            now: 0,
        }
    }

    /// Verdicts are made by the rules of `filter` from now on.
    pub(crate) fn set_filter(&mut self, filter: &Arc<Filter>) {
        self.filter = if filter.is_empty() { 0 } else { self.shared.states().filter(filter) };
    }

    /// The records from number `first` on, and some before them.
    pub(crate) fn since(&self, first: u64) -> Vec<Arc<Chunk>> {
        self.ring.since(first)
    }

    /// Records that were too long.
    pub(crate) fn lost(&self) -> u64 {
        self.ring.lost()
    }

    /// The worker has ended: readers find its records with the recording.
    pub(crate) fn leave(&self) {
        self.shared.leave(self.worker.into(), self.ring.since(0));
    }

    /// The tape of the verdict that is made next, in moment `now`.
    pub(crate) fn begin(&mut self, now: Cycles) -> &Tape {
        self.now = now;
        self.pending_length = 0;
        self.tape.rewind();
        &self.tape
    }

    /// Notes the verdict on a packet, which stands once [`Self::commit`] is called.
    pub(crate) fn decided(
        &mut self,
        last: &mut Option<Box<LastDecision>>,
        (sender, port, queue): (&Sender<'_>, &Port, u16),
        rules: &Arc<PortRules>,
        (packet, is_long): (&Packet, bool),
        verdict: Verdict,
    ) {
        let last = self.last(last, (port, queue), rules);
        let is_cached = !self.tape.is_begun();
        if !is_cached {
            last.length = self.tape.read(&mut last.answers);
            let flag = |flag: u8, is_set: bool| if is_set { flag } else { 0 };
            last.flags = flag(IS_GATED, sender.is_gated)
                | flag(IS_ISOLATED, sender.gate.isolated)
                | flag(DROPS_RESERVED, sender.gate.drops_reserved)
                | flag(IS_SHORT, self.tape.is_short());
        }
        let (kind, to, tag, reason) = numbers(verdict);
        let flags = last.flags | if is_cached { IS_CACHED } else { 0 } | if is_long { IS_LONG } else { 0 };
        let frame = Frame { flags, verdict: kind, to, tag, reason, sender: last.sender, ..self.frame(FRAME, packet) };
        let frame = Frame { queue, answers: last.answers(), ..frame };
        self.pending_length = with_header(frame, packet.header).encode(&mut self.pending);
    }

    /// The state of a source's sender, and the answers of its last decision.
    fn last<'l>(
        &self,
        last: &'l mut Option<Box<LastDecision>>,
        (port, queue): (&Port, u16),
        rules: &Arc<PortRules>,
    ) -> &'l mut LastDecision {
        let sender = || self.shared.states().sender(port, rules);
        last.get_or_insert_with(|| Box::new(LastDecision { sender: sender(), queue, flags: 0, answers: [0; MOST], length: 0 }))
    }

    fn frame<'p>(&self, kind: u8, packet: &'p Packet) -> Frame<'p> {
        Frame {
            kind,
            port: packet.source.0,
            moment: self.now,
            length: packet.length,
            filter: self.filter,
            bytes: headers(packet.start()),
            ..Frame::default()
        }
    }

    /// Notes the path MTU that was looked at after the verdict.
    pub(crate) fn note_mtu(&mut self, mtu: Option<u16>) {
        if let Some(place) = self.pending.get_mut(MTU_AT..MTU_AT + 2) {
            place.copy_from_slice(&mtu.unwrap_or(0).to_le_bytes());
        }
    }

    /// Notes the sequel of the frame behind its verdict.
    pub(crate) fn note_sequel(&mut self, sequel: Sequel, reason: Option<DropReason>) {
        let numbers = [(SEQUEL_AT, Some(sequel as u8)), (REASON_AT, reason.map(|reason| reason as u8))];
        for (at, number) in numbers {
            if let (Some(place), Some(number)) = (self.pending.get_mut(at), number) {
                *place = number;
            }
        }
    }

    /// The verdict stands: the frame's record is written, once.
    pub(crate) fn commit(&mut self) {
        let length = std::mem::take(&mut self.pending_length);
        if let Some(record) = self.pending.get(..length).filter(|record| !record.is_empty()) {
            self.ring.write(record, &[], self.now);
        }
    }
}

impl Recorder {
    /// Writes the record of a frame that was dropped before it was read.
    pub(crate) fn unread(&mut self, (port, queue): (PortId, u16), reason: DropReason, now: Cycles) {
        (self.now, self.pending_length) = (now, 0);
        let (flags, reason, filter) = (IS_EARLY, reason as u8, self.filter);
        let frame =
            Frame { kind: FRAME, flags, port: port.0, queue, moment: now, filter, verdict: DROP, reason, ..Frame::default() };
        self.pending_length = frame.encode(&mut self.pending);
        self.commit();
    }

    /// Writes the record of a frame that was dropped before a verdict.
    pub(crate) fn dropped_early(
        &mut self,
        last: &mut Option<Box<LastDecision>>,
        sender: (&Port, u16),
        rules: &Arc<PortRules>,
        (packet, reason): (&Packet, DropReason),
        now: Cycles,
    ) {
        self.begin(now);
        let (state, queue) = (self.last(last, sender, rules).sender, sender.1);
        let frame =
            Frame { flags: IS_EARLY, queue, sender: state, verdict: DROP, reason: reason as u8, ..self.frame(FRAME, packet) };
        self.pending_length = with_header(frame, packet.header).encode(&mut self.pending);
        self.commit();
    }

    /// Begins the record of frames that go to the port `to` on the fast path in moment `now`, [`MOST_IN_BATCH`] at most; [`Self::end_batch`] must follow.
    #[inline]
    pub(crate) fn begin_batch(&mut self, last: &LastDecision, (from, to): (PortId, PortId), now: Cycles) {
        self.now = now;
        let batch = Frame {
            kind: BATCH,
            flags: last.flags | IS_CACHED,
            port: from.0,
            queue: last.queue,
            moment: now,
            sender: last.sender,
            filter: self.filter,
            to: to.0,
            verdict: TO,
            answers: last.answers(),
            ..Frame::default()
        };
        let length = batch.encode(&mut self.pending);
        let most = length + usize::from(MOST_IN_BATCH) * (PART + SHORT_START);
        self.before = Before::NONE;
        self.ring.begin(self.pending.get(..length).unwrap_or_default(), most);
    }

    /// Adds a frame of `length` bytes that begins with `start` to the batch.
    #[inline]
    pub(crate) fn carried(&mut self, start: &Block, length: u32) {
        if self.before.length == length && self.before.start.is_same(start, &self.before.headers) {
            self.before.again += 1;
        } else {
            self.put(start, length);
        }
    }

    /// Writes the headers of a frame of the batch that is unlike the one before. Apart, so that the loop of the fast path stays small.
    #[inline(never)]
    fn put(&mut self, start: &Block, length: u32) {
        self.put_again();
        let bytes = start.bytes();
        let count = length_of_headers(&bytes);
        self.ring.put_part(length, &bytes, count);
        self.before = Before { start: *start, headers: Block::ones(count.into()), length, again: 0 };
    }

    /// Writes how many frames were like the last one of the batch.
    #[inline]
    fn put_again(&mut self) {
        if self.before.again > 0 {
            self.ring.put_again(self.before.again);
        }
    }

    /// Ends the batch of `frames`, which were carried.
    #[inline]
    pub(crate) fn end_batch(&mut self, frames: u16) {
        self.put_again();
        self.ring.end(frames, self.now);
    }

    /// Writes the record of the copies of a flooded frame in `vlan` of a sender in a `gate`: `passage` tells the outcome for each of the
    /// `receivers`, and asks shared state by the tape.
    #[cold]
    pub(crate) fn flooded<R>(
        &mut self,
        (packet, rules, sender): (&Packet, &Arc<PortRules>, &Port),
        (vlan, is_long): (u16, bool),
        receivers: impl Iterator<Item = R>,
        passage: impl Fn(R, &Tape) -> (PortId, Passage),
        now: Cycles,
    ) {
        (self.now, self.pending_length) = (now, 0);
        let mut copies = std::mem::take(&mut self.copies);
        copies.clear();
        let (mut flags, gate) = (0, sender.policy.gate());
        for receiver in receivers {
            self.tape.begin();
            let (port, passage) = passage(receiver, &self.tape);
            let (outcome, reason) = outcome_of(passage);
            let mut answers = [0; MOST];
            let length = self.tape.read(&mut answers);
            flags |= if self.tape.is_short() { IS_SHORT } else { 0 };
            if copies.len() + LONGEST_FRAME + MOST > LONGEST_RECORD {
                flags |= IS_SHORT;
                break;
            }
            let answers = answers.get(..length.into()).unwrap_or_default();
            FloodCopy { port: port.0, outcome, reason, answers }.encode(&mut copies);
        }
        let flag = |flag: u8, is_set: bool| if is_set { flag } else { 0 };
        flags |= flag(IS_GATED, sender.segment.is_gated())
            | flag(IS_LONG, is_long)
            | flag(IS_ISOLATED, gate.isolated)
            | flag(DROPS_RESERVED, gate.drops_reserved);
        let state = self.shared.states().sender(sender, rules);
        let frame = Frame { flags, sender: state, tag: vlan, verdict: FLOOD, parts: &copies, ..self.frame(COPIES, packet) };
        let length = with_header(frame, packet.header).encode(&mut self.pending);
        self.ring.write(self.pending.get(..length).unwrap_or_default(), &copies, now);
        self.copies = copies;
    }
}

/// The frame with its virtio-net header, if that requests something.
fn with_header(frame: Frame<'_>, header: NetHeader) -> Frame<'_> {
    let has_header = if header.is_plain() { 0 } else { HAS_HEADER };
    Frame { flags: frame.flags | has_header, header: header.bytes(), ..frame }
}

/// Kind, receiver, tag and reason of a verdict in a record.
pub(crate) fn numbers(verdict: Verdict) -> (u8, u16, u16, u8) {
    match verdict {
        Verdict::To(to) => (TO, to.0, 0, 0),
        Verdict::Retagged(to, TagChange::Push(vlan)) => (PUSH, to.0, vlan, 0),
        Verdict::Retagged(to, TagChange::Pop) => (POP, to.0, 0, 0),
        Verdict::Flood => (FLOOD, 0, 0, 0),
        Verdict::Drop(reason) => (DROP, 0, 0, reason as u8),
    }
}

/// Outcome and reason of a copy in a record.
pub(crate) fn outcome_of(passage: Passage) -> (u8, u8) {
    match passage {
        Passage::None => (NONE, 0),
        Passage::Same => (SAME, 0),
        Passage::Retagged(TagChange::Push(_)) => (PUSHED, 0),
        Passage::Retagged(TagChange::Pop) => (POPPED, 0),
        Passage::Dropped(reason) => (DROPPED, reason as u8),
    }
}
