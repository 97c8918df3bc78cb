//! Taps: copies of frames for a capture, made where a worker takes a frame from a guest, gives one to a guest, or drops one.
//!
//! A worker never waits for the reader of a capture: each has a bounded ring of its own to it, and frames that do not fit are
//! counted as missed. Without a capture a tap is one branch. Frames of the fast path are seen only where a capture may select them ([`watch`]).

#![expect(clippy::indexing_slicing, reason = "a record of fixed length, and a bit or a counter for each port's number")]

mod watch;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use memlane_observe::bpf;
use rtrb::chunks::ChunkError;
use rtrb::{Consumer, Producer, RingBuffer};

use crate::copy::Block;
use crate::frame::NetHeader;
use crate::id::{MAX_PORTS, PortId};
use crate::offload::checksum;
use crate::packet::Packet;
use crate::probes;
use crate::stats::DropReason;
use crate::time::{Cycles, cycles};
use watch::Rejected;
pub(crate) use watch::Watch;

/// Bytes of the rings of one capture, of all workers together, and of one.
const RINGS: usize = 32 << 20;
const MOST_RING: usize = 8 << 20;
const LEAST_RING: usize = 1 << 20;
/// Most bytes of a frame that are copied.
pub const MOST_SNAPLEN: u32 = 256 << 10;
/// Workers of a network at most.
const MOST_WORKERS: u8 = 64;
/// Captures at a time.
pub(crate) const CAPTURES: usize = 4;

/// Which frames a capture is to have, and how much of each.
#[derive(Clone, Debug, Default)]
pub struct CaptureOrder {
    /// At the ports of these names, also those that come later; at all if it is `None`.
    pub ports: Option<Vec<String>>,
    /// Only those that are dropped.
    pub drops_only: bool,
    /// Most bytes of a frame.
    pub snaplen: u32,
    /// Frames that the tap selects; all if there is none.
    pub filter: Option<bpf::Program>,
}

/// Where a frame is seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sight {
    /// The guest transmitted it.
    Transmit,
    /// The guest received it.
    Receive,
    /// The frame was dropped, for a reason that is counted at the port.
    Dropped(DropReason),
}

/// A frame that was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// When.
    pub at: Cycles,
    /// Number that all sights of the frame share; a worker gives each again after some 67 million frames.
    pub id: u32,
    /// The port.
    pub port: PortId,
    /// The guest of this port transmitted it.
    pub source: PortId,
    /// The event there.
    pub sight: Sight,
    /// Bytes of the frame.
    pub length: u32,
    /// Bytes that were copied.
    pub captured: u32,
    /// The checksum that its sender left to the device, in the copied bytes too.
    pub checksum: Option<PartialChecksum>,
}

/// Place of a partial checksum, as the sender's virtio-net header states it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartialChecksum {
    /// Start of the checksummed bytes.
    pub start: u16,
    /// Offset of the checksum from `start`.
    pub offset: u16,
}

impl PartialChecksum {
    fn of(header: NetHeader) -> Option<Self> {
        let (start, offset) = (header.csum_start(), header.csum_offset());
        (header.flags() & NetHeader::NEEDS_CSUM != 0).then_some(Self { start, offset })
    }

    /// Completes the checksum in the copy of the whole frame. A GSO frame then has one checksum for its whole length, as its sender's pseudo
    /// header has. False if the frame has no such field.
    pub fn complete(self, frame: &mut [u8]) -> bool {
        checksum::complete(frame, self.start.into(), usize::from(self.start) + usize::from(self.offset))
    }
}

const HEAD: usize = 32;
const TRANSMIT: u8 = 0;
const RECEIVE: u8 = 1;
const DROPPED: u8 = 2;

impl Seen {
    fn encode(&self) -> [u8; HEAD] {
        let (kind, reason) = match self.sight {
            Sight::Transmit => (TRANSMIT, 0),
            Sight::Receive => (RECEIVE, 0),
            Sight::Dropped(reason) => (DROPPED, reason as u8),
        };
        let mut head = [0; HEAD];
        head[..8].copy_from_slice(&self.at.to_ne_bytes());
        head[8..12].copy_from_slice(&self.id.to_ne_bytes());
        let checksum = self.checksum.unwrap_or(PartialChecksum { start: 0, offset: 0 });
        head[12..14].copy_from_slice(&checksum.start.to_ne_bytes());
        head[14..16].copy_from_slice(&checksum.offset.to_ne_bytes());
        head[16..20].copy_from_slice(&self.length.to_ne_bytes());
        head[20..24].copy_from_slice(&self.captured.to_ne_bytes());
        head[24..26].copy_from_slice(&self.port.0.to_ne_bytes());
        head[26..28].copy_from_slice(&self.source.0.to_ne_bytes());
        head[28..30].copy_from_slice(&[kind, reason]);
        head[30] = self.checksum.is_some().into();
        head
    }

    fn decode(head: &[u8; HEAD]) -> Self {
        let eight = |at: usize| u64::from_ne_bytes(std::array::from_fn(|n| head[at + n]));
        let four = |at: usize| u32::from_ne_bytes(std::array::from_fn(|n| head[at + n]));
        let two = |at: usize| u16::from_ne_bytes([head[at], head[at + 1]]);
        let sight = match head[28] {
            TRANSMIT => Sight::Transmit,
            RECEIVE => Sight::Receive,
            _ => Sight::Dropped(DropReason::ALL[usize::from(head[29])]),
        };
        let (port, source) = (PortId(two(24)), PortId(two(26)));
        let checksum = (head[30] != 0).then_some(PartialChecksum { start: two(12), offset: two(14) });
        Self { at: eight(0), id: four(8), port, source, sight, length: four(16), captured: four(20), checksum }
    }
}

/// State that all workers of one capture share.
#[derive(Debug)]
struct Shared {
    order: CaptureOrder,
    /// One bit a port; all are captured if there are none.
    ports: Option<Box<[AtomicU64]>>,
    /// Frames that found no room, by their ports.
    missed: Box<[AtomicU64]>,
}

/// A worker's end of a capture.
#[derive(Debug)]
pub struct Tap {
    /// The capture.
    pub number: u64,
    shared: Arc<Shared>,
    to: Producer<u8>,
    /// Frames that its filter rejects.
    rejected: Rejected,
}

/// The reader's end of a capture.
#[derive(Debug)]
pub struct TapReader {
    shared: Arc<Shared>,
    from: Vec<Consumer<u8>>,
    /// Taken, and not handed on yet, because a worker may have seen something before that is still to come.
    held: Vec<(Seen, Box<[u8]>)>,
}

/// A capture of what `workers` workers see: a tap for each, and their reader.
pub fn capture(number: u64, order: CaptureOrder, workers: usize) -> (Vec<Tap>, TapReader) {
    let ports = order.ports.is_some().then(|| std::iter::repeat_with(AtomicU64::default).take(MAX_PORTS.div_ceil(64)).collect());
    let missed = std::iter::repeat_with(AtomicU64::default).take(MAX_PORTS).collect();
    let shared = Arc::new(Shared { order, ports, missed });
    let bytes = (RINGS / workers.max(1)).clamp(LEAST_RING, MOST_RING);
    let (taps, from) = std::iter::repeat_with(|| RingBuffer::new(bytes))
        .take(workers)
        .map(|(to, from)| (Tap { number, shared: Arc::clone(&shared), to, rejected: Rejected::default() }, from))
        .unzip();
    (taps, TapReader { shared, from, held: Vec::new() })
}

/// A port's bit in the word of its number.
fn bit(port: PortId) -> u64 {
    1 << (port.index() % 64)
}

/// Tells a capture which port has a number now.
#[derive(Debug)]
pub(crate) struct Follower(Weak<Shared>);

impl Follower {
    /// The port called `name` has the number `port` from now on: whether it is captured does not depend on the port before.
    pub(crate) fn follow(&self, port: PortId, name: &str) {
        let Some(shared) = self.0.upgrade() else { return };
        let (Some(bits), Some(names)) = (&shared.ports, &shared.order.ports) else { return };
        let word = &bits[port.index() / 64];
        if names.iter().any(|wanted| wanted == name) {
            word.fetch_or(bit(port), Ordering::Relaxed);
        } else {
            word.fetch_and(!bit(port), Ordering::Relaxed);
        }
    }
}

/// A frame as a filter reads it.
struct Filtered<'p>(&'p Packet);

impl bpf::Frame for Filtered<'_> {
    fn length(&self) -> u32 {
        self.0.length
    }

    fn read(&self, from: u32, to: &mut [u8]) -> bool {
        self.0.read(from, to) == to.len()
    }
}

impl Tap {
    fn takes(&self, port: PortId, sight: Sight) -> bool {
        let Shared { order, ports, .. } = &*self.shared;
        let at_port = ports.as_ref().is_none_or(|bits| bits[port.index() / 64].load(Ordering::Relaxed) & bit(port) != 0);
        at_port && (!order.drops_only || matches!(sight, Sight::Dropped(_)))
    }

    fn see(&mut self, packet: &Packet, seen: Seen) {
        if !self.takes(seen.port, seen.sight) {
            return;
        }
        let selected = self.select(packet);
        if selected > 0 {
            let captured = packet.length.min(selected).min(self.shared.order.snaplen);
            self.write(Seen { at: cycles(), captured, ..seen }, Some(packet));
        }
    }

    /// How many bytes the filter selects of a frame.
    fn select(&mut self, packet: &Packet) -> u32 {
        let Some(filter) = &self.shared.order.filter else { return u32::MAX };
        let start = packet.start().first_chunk();
        if start.is_some_and(|start| self.rejected.has(packet.source, &Block::of(start))) {
            return 0;
        }
        let (selected, reads) = filter.trace(&Filtered(packet));
        if selected == 0
            && let Some(start) = start
        {
            self.rejected.add(packet.source, start, reads);
        }
        selected
    }

    /// A frame that was dropped before it was read.
    fn see_nothing(&mut self, seen: Seen) {
        if self.takes(seen.port, seen.sight) && self.shared.order.filter.is_none() {
            self.write(seen, None);
        }
    }

    fn write(&mut self, seen: Seen, packet: Option<&Packet>) {
        let Ok(mut chunk) = self.to.write_chunk(HEAD + seen.captured as usize) else {
            self.shared.missed[seen.port.index()].fetch_add(1, Ordering::Relaxed);
            return;
        };
        let (first, second) = chunk.as_mut_slices();
        let split = first.len().saturating_sub(HEAD);
        let copied = match packet {
            Some(packet) if first.len() >= HEAD => {
                let copied = packet.read(0, &mut first[HEAD..]);
                if copied == split { copied + packet.read(copied as u32, second) } else { copied }
            }
            Some(packet) => packet.read(0, &mut second[HEAD - first.len()..]),
            None => 0,
        };
        let head = Seen { captured: copied as u32, ..seen }.encode();
        let in_first = first.len().min(HEAD);
        first[..in_first].copy_from_slice(&head[..in_first]);
        second[..HEAD - in_first].copy_from_slice(&head[in_first..]);
        chunk.commit(HEAD + copied);
    }
}

impl TapReader {
    /// Takes what workers have seen, at most about `most` bytes of each, and hands what they saw before `until` to `each`, in the order of time. What
    /// comes later of an earlier moment is out of order: `until` should lie a little in the past.
    pub fn read(&mut self, most: usize, until: Cycles, mut each: impl FnMut(Seen, &[u8])) {
        for from in &mut self.from {
            let mut taken = 0;
            while taken < most {
                let Ok(seen) = take::<HEAD>(from).map(|head| Seen::decode(&head)) else { break };
                // A record is there as a whole.
                let Ok(chunk) = from.read_chunk(seen.captured as usize) else { break };
                let (first, second) = chunk.as_slices();
                self.held.push((seen, [first, second].concat().into_boxed_slice()));
                chunk.commit_all();
                taken += HEAD + seen.captured as usize;
            }
        }
        self.held.sort_by_key(|(seen, _)| seen.at);
        let ready = self.held.partition_point(|(seen, _)| seen.at < until);
        self.held.drain(..ready).for_each(|(seen, bytes)| each(seen, &bytes));
    }

    /// Frames at `port` that found no room so far.
    pub fn missed(&self, port: PortId) -> u64 {
        self.shared.missed[port.index()].load(Ordering::Relaxed)
    }

    /// The capture's order.
    pub fn order(&self) -> &CaptureOrder {
        &self.shared.order
    }

    /// Tells the capture of new ports.
    pub(crate) fn follower(&self) -> Follower {
        Follower(Arc::downgrade(&self.shared))
    }

    /// Counts this reader and all taps of the capture.
    #[cfg(test)]
    pub(crate) fn taps(&self) -> Weak<impl Sized + use<>> {
        Arc::downgrade(&self.shared)
    }
}

/// Takes so many bytes.
fn take<const N: usize>(from: &mut Consumer<u8>) -> Result<[u8; N], ChunkError> {
    let chunk = from.read_chunk(N)?;
    let (first, second) = chunk.as_slices();
    let mut bytes = [0; N];
    bytes[..first.len()].copy_from_slice(first);
    bytes[first.len()..].copy_from_slice(second);
    chunk.commit_all();
    Ok(bytes)
}

/// The taps of a worker.
#[derive(Debug, Default)]
pub(crate) struct Taps {
    taps: Vec<Tap>,
    worker: u8,
    /// How many frames got a number here.
    numbered: u32,
}

impl Taps {
    /// Whether there is any.
    #[inline]
    pub(crate) fn are_on(&self) -> bool {
        !self.taps.is_empty()
    }

    /// Adds one, at worker `worker`.
    pub(crate) fn add(&mut self, tap: Tap, worker: u8) {
        self.worker = worker;
        self.taps.push(tap);
    }

    /// The number of the next frame: no other worker gives it, and it is not 0.
    fn next_id(&mut self) -> u32 {
        const COUNT: u32 = u32::MAX / MOST_WORKERS as u32;
        self.numbered = (self.numbered + 1) % COUNT;
        u32::from(self.worker) * COUNT + self.numbered + 1
    }

    /// Removes the tap of capture `number`, and returns it: its ring is freed elsewhere.
    pub(crate) fn remove(&mut self, number: u64) -> Option<Tap> {
        let index = self.taps.iter().position(|tap| tap.number == number)?;
        Some(self.taps.swap_remove(index))
    }

    /// The guest of its source transmitted `packet`, which gets its number here.
    #[cold]
    #[inline(never)]
    pub(crate) fn transmit(&mut self, packet: &mut Packet) {
        packet.capture_id = self.next_id();
        self.see(packet, packet.source, Sight::Transmit);
    }

    /// The guest of `port` received `packet`.
    #[inline]
    pub(crate) fn receive(&mut self, packet: &mut Packet, port: PortId) {
        if self.are_on() {
            self.see_numbered(packet, port, Sight::Receive);
        }
    }

    /// `packet` was dropped on its way to `port`, or there, for `reason`.
    #[inline]
    pub(crate) fn dropped(&mut self, packet: &Packet, port: PortId, reason: DropReason) {
        // Counted at the sender, wherever it is noticed.
        let is_senders = matches!(reason, DropReason::SenderMemory | DropReason::PolicyDenied);
        let port = if is_senders { packet.source } else { port };
        probes::drop(port, reason, packet.length);
        if self.are_on() {
            self.see(packet, port, Sight::Dropped(reason));
        }
    }

    /// A frame of `port` was dropped for `reason` before it was read.
    #[inline]
    pub(crate) fn unread(&mut self, port: PortId, reason: DropReason) {
        probes::drop(port, reason, 0);
        if self.are_on() {
            let id = self.next_id();
            let seen = Seen {
                at: cycles(),
                id,
                port,
                source: port,
                sight: Sight::Dropped(reason),
                length: 0,
                captured: 0,
                checksum: None,
            };
            self.taps.iter_mut().for_each(|tap| tap.see_nothing(seen));
        }
    }

    /// A frame that no guest transmitted has no number yet.
    #[cold]
    #[inline(never)]
    fn see_numbered(&mut self, packet: &mut Packet, port: PortId, sight: Sight) {
        if packet.capture_id == 0 {
            packet.capture_id = self.next_id();
        }
        self.see(packet, port, sight);
    }

    #[cold]
    #[inline(never)]
    fn see(&mut self, packet: &Packet, port: PortId, sight: Sight) {
        let (id, source, length) = (packet.capture_id, packet.source, packet.length);
        let checksum = PartialChecksum::of(packet.header);
        let seen = Seen { at: 0, id, port, source, sight, length, captured: 0, checksum };
        self.taps.iter_mut().for_each(|tap| tap.see(packet, seen));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taps(order: CaptureOrder) -> (Taps, TapReader) {
        let (mut made, reader) = capture(1, order, 1);
        let mut taps = Taps::default();
        assert!(!taps.are_on());
        taps.add(made.remove(0), 0);
        (taps, reader)
    }

    fn all(reader: &mut TapReader) -> Vec<(Seen, Vec<u8>)> {
        let mut found = Vec::new();
        reader.read(usize::MAX, Cycles::MAX, |seen, bytes| found.push((seen, bytes.to_vec())));
        found
    }

    fn whole() -> CaptureOrder {
        CaptureOrder { snaplen: MOST_SNAPLEN, ..CaptureOrder::default() }
    }

    #[test]
    fn a_frame_has_one_number_wherever_it_is_seen() {
        let (mut taps, mut reader) = taps(whole());
        for n in 0..200_u8 {
            let mut packet = Packet::from_bytes(PortId(3), &[n; 60]);
            taps.transmit(&mut packet);
            taps.receive(&mut packet, PortId(5));
            taps.dropped(&packet, PortId(6), DropReason::ReceiverStalled);
            let found = all(&mut reader);
            assert!(found.iter().all(|(seen, bytes)| seen.id == found[0].0.id && bytes == &[n; 60] && seen.length == 60));
            let sights: Vec<_> = found.iter().map(|(seen, _)| (seen.port.0, seen.sight)).collect();
            assert_eq!(sights, [(3, Sight::Transmit), (5, Sight::Receive), (6, Sight::Dropped(DropReason::ReceiverStalled))]);
        }
        let mut own = Packet::from_bytes(PortId(3), &[0; 60]);
        taps.receive(&mut own, PortId(5));
        assert_ne!(all(&mut reader)[0].0.id, 0);
    }

    #[test]
    fn every_reason_is_told() {
        let (mut taps, mut reader) = taps(whole());
        let packet = Packet::from_bytes(PortId(0), &[1; 14]);
        DropReason::ALL.iter().for_each(|&reason| taps.dropped(&packet, PortId(1), reason));
        let told: Vec<_> = all(&mut reader).iter().map(|(seen, _)| seen.sight).collect();
        assert!(told.into_iter().eq(DropReason::ALL.iter().map(|&reason| Sight::Dropped(reason))));
        taps.unread(PortId(2), DropReason::ChainLoop);
        let found = all(&mut reader);
        assert_eq!((found[0].0.sight, found[0].0.length, found[0].1.len()), (Sight::Dropped(DropReason::ChainLoop), 0, 0));
    }

    #[test]
    fn what_does_not_fit_is_counted_and_nothing_is_torn() {
        let (mut taps, mut reader) = taps(whole());
        let (mut number, mut read) = (0_u32, 0);
        for round in 0..3 {
            let frames = 2 * MOST_RING / 100;
            for _ in 0..frames {
                let mut packet = Packet::from_bytes(PortId(0), &[[0; 14].as_slice(), &number.to_ne_bytes().repeat(12)].concat());
                taps.transmit(&mut packet);
                number += 1;
            }
            for (_, bytes) in all(&mut reader) {
                assert_eq!(bytes.len(), 62);
                assert!(bytes[14..].chunks(4).all(|chunk| chunk == &bytes[14..18]));
                read += 1;
            }
            assert_eq!(read + reader.missed(PortId(0)), u64::from(number), "round {round}");
        }
        assert!(reader.missed(PortId(0)) > 0 && read > 0);
        assert_eq!(reader.missed(PortId(1)), 0);
    }

    #[test]
    fn only_what_was_ordered_is_copied() {
        let filter =
            bpf::Program::new(&[(0x28, 0, 0, 12).into(), (0x15, 0, 1, 0x0806).into(), (6, 0, 0, 20).into(), (6, 0, 0, 0).into()]);
        let order = CaptureOrder { ports: Some(vec!["two".into()]), filter: Some(filter.unwrap()), ..whole() };
        let (mut taps, mut reader) = taps(order);
        (0..4).for_each(|n| reader.follower().follow(PortId(n), if n == 2 { "two" } else { "other" }));
        let frame = |kind: [u8; 2]| [[2; 12].as_slice(), &kind, &[7; 40]].concat();
        let (mut arp, mut ip) = (Packet::from_bytes(PortId(2), &frame([8, 6])), Packet::from_bytes(PortId(2), &frame([8, 0])));
        [&mut arp, &mut ip].into_iter().for_each(|packet| taps.transmit(packet));
        taps.receive(&mut arp, PortId(3));
        taps.unread(PortId(2), DropReason::ChainLoop);
        let found = all(&mut reader);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].0.captured, found[0].0.length, &found[0].1[..]), (20, 54, &frame([8, 6])[..20]));

        let (mut taps, mut reader) = self::taps(CaptureOrder { drops_only: true, snaplen: 5, ..CaptureOrder::default() });
        taps.transmit(&mut arp);
        taps.dropped(&arp, PortId(2), DropReason::Storm);
        assert_eq!(
            all(&mut reader).iter().map(|(seen, _)| (seen.sight, seen.captured)).collect::<Vec<_>>(),
            [(Sight::Dropped(DropReason::Storm), 5)]
        );
        assert!(taps.remove(2).is_none() && taps.remove(1).is_some());
        assert!(!taps.are_on());
    }

    #[test]
    fn a_named_port_is_captured_by_whichever_number_it_has() {
        let (mut taps, mut reader) = taps(CaptureOrder { ports: Some(vec!["web".into()]), ..whole() });
        let follower = reader.follower();
        let mut sights = |number: u16| {
            taps.transmit(&mut Packet::from_bytes(PortId(number), &[1; 60]));
            all(&mut reader).len()
        };
        assert_eq!(sights(3), 0);
        follower.follow(PortId(3), "web");
        assert_eq!((sights(3), sights(67)), (1, 0));
        // The port goes, and comes back with another number.
        follower.follow(PortId(3), "db");
        follower.follow(PortId(67), "web");
        assert_eq!((sights(3), sights(67)), (0, 1));
    }
}
