//! The port of a segment's responder ([`memlane_names`]): requests of guests in, answers out.
//!
//! ```text
//!   worker:  ReceiveEnd -> filter, rate limit -> questions -+
//!                                                           |  session thread: Responder
//!   worker:  Buffered <-------- answers <-------------------+
//! ```
//!
//! 1. [`Asks`], the receive end, copies frames that the responder may answer to a bounded queue, and drops those of a port that sends
//!    too many; it never holds a sender up. Other frames, such as floods of the segment, cost one comparison of their first bytes.
//! 2. A session thread sleeps until there are questions, has the responder answer them, and enqueues the answers.
//! 3. [`Answers`], the transmit end, copies them to packet buffers.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use memlane_dataplane::headers::TYPE_ARP;
use memlane_names::{Refused, Responder};
use memlane_virtq::time::{Cycles, cycles, in_cycles};
use nix::sys::eventfd::{EfdFlags, EventFd};
use rtrb::{Consumer, Producer, RingBuffer};
use vmm_sys_util::epoll::EventSet;

use crate::frame::{Head, MacAddress, TCP, TYPE_IPV4, TYPE_IPV6, UDP};
use crate::id::PortId;
use crate::network::Network;
use crate::network::fatal::{caught, defect};
use crate::packet::Packet;
use crate::payload;
use crate::pool::Pool;
use crate::port::Port;
use crate::port::end::{Backend, Ends, ReceiveEnd};
use crate::ring::PlaceOutcome;
use crate::session::{Session, Watch, Woken};
use crate::store::{Buffered, Reader, Store};

/// Most questions, and most answers, that are queued.
const QUEUE: usize = 1024;
/// Most questions that are answered before the thread looks if it is to end.
const BATCH: usize = 64;
/// Longest frame that is handed over.
const LONGEST: u32 = 1600;
/// Questions of a port: so many a second, and so many at once.
const RATE: u32 = 2000;
const BURST: u32 = 64;
/// Hop-by-hop options, behind which some hosts send ICMPv6, and ICMPv6.
const IPV6_WANTED: [u8; 3] = [0, UDP, 58];
/// ICMP of IPv4.
const ICMP: u8 = 1;

/// Called by the session thread with the ports that have changed leases.
pub type News = Arc<dyn Fn(&[Arc<str>]) + Send + Sync>;

/// A frame, and the moment at which it came.
#[derive(Debug)]
struct Question {
    source: PortId,
    at: Cycles,
    bytes: Vec<u8>,
}

/// Seconds of a responder, from its start.
#[derive(Clone, Copy, Debug)]
pub struct Clock(Instant);

impl Clock {
    /// A clock that starts now.
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// The present second.
    pub fn now(self) -> u64 {
        self.0.elapsed().as_secs()
    }
}

/// A responder that its session thread shares with the control side.
pub type SharedResponder = Arc<Mutex<Responder>>;

/// Serves `port` by `responder`, in a session thread that calls `news` for each change.
///
/// # Errors
/// The kernel refuses a thread or a descriptor.
pub fn run(network: &Arc<Network>, port: &Arc<Port>, responder: SharedResponder, clock: Clock, news: News) -> io::Result<Session> {
    let bell = || EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC);
    let (asked, answered, dropped) = (Arc::new(bell()?), Arc::new(bell()?), Arc::new(AtomicU64::new(0)));
    let (questions, incoming) = RingBuffer::new(QUEUE);
    let (outgoing, answers) = RingBuffer::new(QUEUE);
    let mac = responder.lock().unwrap_or_else(PoisonError::into_inner).settings().mac;
    let ends = ResponderEnds {
        asks: Asks { mac, questions, rates: HashMap::new(), bell: Arc::clone(&asked), dropped: Arc::clone(&dropped), came: false },
        answers: Answers(answers),
        answered: File::from(answered.as_fd().try_clone_to_owned()?),
    };
    port.begin_session();
    network.serve(port, ends)?;
    let mut desk = Desk { network: Arc::clone(network), responder, clock, news, incoming, outgoing, asked, answered, dropped };
    let port = Arc::clone(port);
    Session::start(format!("port-{}", port.id.0), move |watch| {
        if let Err(panic) = caught(|| desk.run(&watch)) {
            desk.network.quarantine(&port, &defect(&panic));
        }
    })
}

struct ResponderEnds {
    asks: Asks,
    answers: Answers,
    answered: File,
}

impl Backend for ResponderEnds {
    fn into_ends(self, pool: &Arc<Pool>) -> io::Result<Ends> {
        let transmit = Box::new(Buffered::new(self.answers, Arc::clone(pool)));
        Ok(Ends { transmit, receive: Box::new(self.asks), readable: Some(self.answered), writable: None, room: None })
    }
}

/// See the module.
#[derive(Debug)]
struct Asks {
    mac: MacAddress,
    questions: Producer<Question>,
    /// When the rate limit of each port is full again.
    rates: HashMap<PortId, Cycles>,
    bell: Arc<EventFd>,
    dropped: Arc<AtomicU64>,
    came: bool,
}

impl Asks {
    /// Whether the responder may answer the frame that begins with `start`.
    fn is_wanted(&self, start: &[u8]) -> bool {
        let is_own = start.starts_with(&self.mac.bytes());
        let Some(&kind) = start.get(12..).and_then(<[u8]>::first_chunk) else { return false };
        match u16::from_be_bytes(kind) {
            TYPE_ARP => true,
            // A flood of TCP asks the responder nothing.
            TYPE_IPV4 => start.get(23).is_some_and(|&protocol| matches!(protocol, UDP | ICMP) || protocol == TCP && is_own),
            TYPE_IPV6 => start.get(20).is_some_and(|&next| IPV6_WANTED.contains(&next) || next == TCP && is_own),
            _ => false,
        }
    }

    /// Whether `source` may ask in moment `now`; counts the question (the generic cell rate algorithm, ITU-T I.371).
    fn may_ask(&mut self, source: PortId, now: Cycles) -> bool {
        let step = in_cycles(Duration::from_secs(1)) / u64::from(RATE);
        let full = self.rates.entry(source).or_default();
        let next = (*full).max(now) + step;
        let may = next - now <= step * u64::from(BURST);
        if may {
            *full = next;
        }
        may
    }
}

impl ReceiveEnd for Asks {
    fn place(&mut self, packet: &mut Packet) -> PlaceOutcome {
        let destination = Head::of(&packet.start).destination();
        if (destination != self.mac && !destination.is_group()) || !self.is_wanted(packet.start()) || packet.length > LONGEST {
            return PlaceOutcome::Complete(1);
        }
        let at = cycles();
        if self.questions.is_full() || !self.may_ask(packet.source, at) {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return PlaceOutcome::Complete(1);
        }
        let mut bytes = Vec::with_capacity(packet.length as usize);
        payload::append(packet, 0, packet.length, &mut bytes);
        // It is not full.
        self.came |= self.questions.push(Question { source: packet.source, at, bytes }).is_ok();
        PlaceOutcome::Complete(1)
    }

    fn publish(&mut self) {
        if std::mem::take(&mut self.came) {
            // Fails only if the eventfd is signalled already.
            let _ = self.bell.write(1);
        }
    }

    fn has_room(&mut self) -> bool {
        true
    }
}

/// See the module.
#[derive(Debug)]
struct Answers(Consumer<Vec<u8>>);

impl Reader for Answers {
    const HEADED: bool = false;

    fn read(&mut self, store: &mut Store, most: usize, _drained: bool) -> bool {
        while store.filled() < most && !self.0.is_empty() && store.make_room(1) > 0 {
            let Some(index) = store.take_free() else { break };
            let Ok(answer) = self.0.pop() else {
                store.put_back(index);
                break;
            };
            store.bytes(index)[..answer.len()].copy_from_slice(&answer);
            store.fill(index, answer.len() as u32);
        }
        self.0.is_empty()
    }
}

/// The session thread's side.
struct Desk {
    network: Arc<Network>,
    responder: SharedResponder,
    clock: Clock,
    news: News,
    incoming: Consumer<Question>,
    outgoing: Producer<Vec<u8>>,
    asked: Arc<EventFd>,
    answered: Arc<EventFd>,
    dropped: Arc<AtomicU64>,
}

impl Desk {
    fn run(&mut self, watch: &Watch) {
        loop {
            match watch.wait_for(self.asked.as_raw_fd(), EventSet::IN) {
                Woken::Quit => return,
                Woken::File => {}
                Woken::Visitor | Woken::Otherwise => continue,
            }
            let _ = self.asked.read();
            let answered = (0..BATCH).map_while(|_| self.incoming.pop().ok().map(|question| self.answer(&question)));
            // All of them, not up to the first.
            if answered.fold(false, |any, one| any | one) {
                let _ = self.answered.write(1);
            }
            if !self.incoming.is_empty() {
                let _ = self.asked.write(1);
            }
        }
    }

    /// Answers a question; true if an answer was enqueued.
    fn answer(&mut self, question: &Question) -> bool {
        // Another port may have the number now.
        let Some(port) = self.network.port(question.source).filter(|port| port.added <= question.at) else { return false };
        let now = self.clock.now();
        let (answer, changed) = {
            let mut responder = self.responder.lock().unwrap_or_else(PoisonError::into_inner);
            (0..self.dropped.swap(0, Ordering::Relaxed)).for_each(|_| responder.refuse(Refused::Rate));
            (responder.answer(&question.bytes, &port.name, now), responder.take_changed())
        };
        // First: the guest may use its address as soon as it has the answer.
        if !changed.is_empty() {
            (self.news)(&changed);
        }
        // If the worker takes no answers, guests ask again.
        answer.is_some_and(|answer| self.outgoing.push(answer).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asks() -> (Asks, Consumer<Question>) {
        let (questions, incoming) = RingBuffer::new(QUEUE);
        let bell = Arc::new(EventFd::from_flags(EfdFlags::EFD_NONBLOCK).unwrap());
        let mac = MacAddress::new([2, 0, 0, 0, 0, 9]);
        (Asks { mac, questions, rates: HashMap::new(), bell, dropped: Arc::default(), came: false }, incoming)
    }

    #[test]
    fn a_port_that_asks_too_often_takes_nothing_from_others() {
        let (mut asks, _) = asks();
        let now = cycles();
        let (first, second) = (PortId(1), PortId(2));
        assert_eq!((0..1000).filter(|_| asks.may_ask(first, now)).count(), BURST as usize);
        assert!(asks.may_ask(second, now) && !asks.may_ask(first, now));
        let later = now + in_cycles(Duration::from_secs(1));
        let passed = (0..u64::from(RATE)).filter(|n| asks.may_ask(first, now + n * (later - now) / u64::from(RATE))).count();
        assert!((RATE as usize - 2 * BURST as usize..=RATE as usize).contains(&passed), "{passed}");
    }

    #[test]
    fn floods_that_the_responder_never_answers_are_not_handed_over() {
        let (mut asks, incoming) = asks();
        let mut place = |destination: [u8; 6], kind: u16, protocol: u8, length: usize| {
            let mut bytes = vec![0; length];
            bytes[..6].copy_from_slice(&destination);
            bytes[12..14].copy_from_slice(&kind.to_be_bytes());
            (bytes[20], bytes[23]) = (protocol, protocol);
            let mut packet = Packet::default();
            packet.set_frame(crate::frame::NetHeader::default(), &mut bytes);
            assert_eq!(asks.place(&mut packet), PlaceOutcome::Complete(1));
            incoming.slots()
        };
        let (own, broadcast) = ([2, 0, 0, 0, 0, 9], [0xff; 6]);
        assert_eq!(place([2, 0, 0, 0, 0, 7], TYPE_ARP, 0, 60), 0, "unknown unicast");
        assert_eq!(place(broadcast, TYPE_IPV4, 6, 60), 0, "TCP");
        assert_eq!(place(broadcast, 0x88cc, 0, 60), 0, "LLDP");
        assert_eq!(place(own, TYPE_IPV4, UDP, 9000), 0, "too long");
        assert_eq!(place(broadcast, TYPE_ARP, 0, 60), 1);
        assert_eq!(place(own, TYPE_IPV4, UDP, 300), 2);
        assert_eq!(place([0x33, 0x33, 0, 0, 0, 2], TYPE_IPV6, 58, 100), 3);
    }
}
