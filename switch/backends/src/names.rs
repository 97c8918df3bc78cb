//! The port of a segment's responder ([`memlane_names`]): requests of guests in, answers out.
//!
//! ```text
//!   worker:  ReceiveEnd -> filter, rate limit -> questions -+
//!                                                           |  task: Responder
//!   worker:  Buffered <-------- answers <-------------------+  <--> a forwarder, for names outside
//! ```
//!
//! 1. [`Asks`], the receive end, copies frames that the responder may answer to a bounded queue, and drops those of a port that sends
//!    too many; it never holds a sender up. Other frames, such as floods of the segment, cost one comparison of their first bytes.
//! 2. A task of the executor sleeps until there are questions, has the responder answer them, and enqueues the answers.
//!    The answer to a question for a name outside is enqueued once all workers know the grants of its addresses: a guest's first frame to them
//!    passes.
//! 3. [`Answers`], the transmit end, copies them to packet buffers.

#![expect(clippy::indexing_slicing, reason = "an answer is no longer than a buffer")]

mod forwarder;

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use memlane_dataplane::headers::TYPE_ARP;
use memlane_names::{Given, Refused, Responder};
use memlane_virtq::time::{Cycles, cycles, in_cycles};
use nix::sys::eventfd::{EfdFlags, EventFd};
use rtrb::{Consumer, Producer, RingBuffer};

use self::forwarder::Forwarder;
pub use self::forwarder::OpenForwarder;
use crate::executor::{Executor, Watched};
use crate::frame::{Head, MacAddress, TCP, TYPE_IPV4, TYPE_IPV6, UDP};
use crate::id::PortId;
use crate::network::Network;
use crate::network::fatal::defect;
use crate::packet::Packet;
use crate::payload;
use crate::pool::Pool;
use crate::port::Port;
use crate::port::end::{Backend, Ends, ReceiveEnd};
use crate::ring::PlaceOutcome;
use crate::session::{Session, SessionContext, catching};
use crate::store::{Buffered, Reader, Store};

/// Most questions, and most answers, that are queued.
const QUEUE: usize = 1024;
/// Most questions that are answered before other tasks have their turn.
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

/// Called by the responder's task with the ports that have changed leases.
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

/// A responder that its task shares with the control side.
pub type SharedResponder = Arc<Mutex<Responder>>;

/// Serves `port` by `responder`, in a task of `executor` that calls `news` for each change, and has `open` start a forwarder when the first question
/// for a name outside comes.
///
/// # Errors
/// The kernel refuses a thread or a descriptor.
pub fn run(
    executor: &Executor,
    network: &Arc<Network>,
    port: &Arc<Port>,
    (responder, open): (SharedResponder, Option<OpenForwarder>),
    clock: Clock,
    news: News,
) -> io::Result<Session> {
    let wake_up = || EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC);
    let (asked, answered, dropped) = (Arc::new(wake_up()?), Arc::new(wake_up()?), Arc::new(AtomicU64::new(0)));
    let (questions, incoming) = RingBuffer::new(QUEUE);
    let (outgoing, answers) = RingBuffer::new(QUEUE);
    let mac = responder.lock().unwrap_or_else(PoisonError::into_inner).settings().mac;
    let ends = ResponderEnds {
        asks: Asks {
            mac,
            questions,
            rates: HashMap::new(),
            wake_up: Arc::clone(&asked),
            dropped: Arc::clone(&dropped),
            came: false,
        },
        answers: Answers(answers),
        answered: File::from(answered.as_fd().try_clone_to_owned()?),
    };
    port.begin_session();
    network.serve(port, ends)?;
    let mut desk = Desk {
        network: Arc::clone(network),
        responder,
        clock,
        news,
        forwarder: open.map(Forwarder::new),
        incoming,
        outgoing,
        held: VecDeque::new(),
        asked,
        answered,
        dropped,
    };
    let served = Arc::clone(port);
    let session = Session::new(executor, port, |context| {
        let asked = context.task.watch(Arc::clone(&desk.asked))?;
        Ok(async move {
            if let Err(panic) = catching(desk.run(&context, asked)).await {
                desk.network.quarantine(&served, &defect(&panic));
            }
        })
    })?;
    session.notify();
    Ok(session)
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
    wake_up: Arc<EventFd>,
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
        // The queue is not full.
        self.came |= self.questions.push(Question { source: packet.source, at, bytes }).is_ok();
        PlaceOutcome::Complete(1)
    }

    fn publish(&mut self) {
        if std::mem::take(&mut self.came) {
            // Fails only if the eventfd is signalled already.
            let _ = self.wake_up.write(1);
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

/// Answers to questions for names outside, and whether all workers know the grants of their addresses.
type Held = (Arc<AtomicBool>, Vec<Vec<u8>>);

/// The task's side.
struct Desk {
    network: Arc<Network>,
    responder: SharedResponder,
    clock: Clock,
    news: News,
    forwarder: Option<Forwarder>,
    incoming: Consumer<Question>,
    outgoing: Producer<Vec<u8>>,
    /// In the order in which they are to be enqueued, at most [`QUEUE`].
    held: VecDeque<Held>,
    /// Signalled for questions, and when workers know grants.
    asked: Arc<EventFd>,
    answered: Arc<EventFd>,
    dropped: Arc<AtomicU64>,
}

impl Desk {
    /// Acts on questions and answers of the forwarder until the task is to end.
    async fn run(&mut self, context: &SessionContext, asked: Watched<Arc<EventFd>>) {
        let mut answers: Option<Watched<Arc<OwnedFd>>> = None;
        loop {
            context.rest(None, || asked.is_readable() || answers.as_ref().is_some_and(Watched::is_readable)).await;
            if context.quits() {
                return;
            }
            self.step();
            let forwarder = self.forwarder.as_ref().and_then(Forwarder::socket);
            if answers.as_deref().map(Arc::as_ptr) != forwarder.map(Arc::as_ptr) {
                // If it cannot be watched, its answers are looked for with the next question.
                answers = forwarder.and_then(|socket| context.task.watch(Arc::clone(socket)).ok());
            }
            context.task.yield_now().await;
        }
    }

    /// Acts on all that has come, up to a batch of each kind.
    fn step(&mut self) {
        let _ = self.asked.read();
        let questions: Vec<Question> = (0..BATCH).map_while(|_| self.incoming.pop().ok()).collect();
        let mut frames: Vec<Vec<u8>> = questions.iter().filter_map(|question| self.answer(question)).collect();
        let given = self.forward();
        frames.extend(self.grant(given));
        while self.held.front().is_some_and(|(is_known, _)| is_known.load(Ordering::Acquire)) {
            frames.extend(self.held.pop_front().into_iter().flat_map(|(_, ready)| ready));
        }
        // If the worker takes no answers, guests ask again.
        if frames.into_iter().fold(false, |any, frame| any | self.outgoing.push(frame).is_ok()) {
            let _ = self.answered.write(1);
        }
        if !self.incoming.is_empty() {
            let _ = self.asked.write(1);
        }
    }

    /// Sends the questions for names outside, and hears the answers.
    fn forward(&mut self) -> Vec<Given> {
        let now = self.clock.now();
        let (mut questions, mut given) = {
            let mut responder = self.responder.lock().unwrap_or_else(PoisonError::into_inner);
            (responder.take_questions(), responder.take_displaced())
        };
        // The control side must not wait for a forwarder that is started.
        questions.retain(|question| !self.forwarder.as_mut().is_some_and(|forwarder| forwarder.ask(question)));
        let mut responder = self.responder.lock().unwrap_or_else(PoisonError::into_inner);
        given.extend(questions.iter().filter_map(|unasked| responder.hear(unasked.id, None, now)));
        let Some(forwarder) = &mut self.forwarder else { return given };
        for _ in 0..BATCH {
            match forwarder.hear() {
                forwarder::Heard::Nothing => return given,
                forwarder::Heard::Answer(id, message) => given.extend(responder.hear(id, message, now)),
                forwarder::Heard::End => {
                    given.extend(responder.hear_end(now));
                    break;
                }
            }
        }
        // There may be more, or questions for the next forwarder.
        let _ = self.asked.write(1);
        given
    }

    /// Grants the addresses of answers to their ports; returns the frames of those without any. The others wait until all workers know the grants.
    fn grant(&mut self, given: Vec<Given>) -> Vec<Vec<u8>> {
        let (mut frames, mut held) = (Vec::new(), Vec::new());
        for Given { port, name, addresses, frame } in given {
            let port = self.network.find(&port);
            let is_granted = port.is_some_and(|port| self.network.grant(&port, &name, &addresses));
            if is_granted { held.push(frame) } else { frames.push(frame) }
        }
        // Beyond, some worker stands still, and guests ask again.
        if !held.is_empty() && self.held.len() < QUEUE {
            let (is_known, wake_up) = (Arc::new(AtomicBool::new(false)), Arc::clone(&self.asked));
            self.held.push_back((Arc::clone(&is_known), held));
            self.network.when_all_have_looked(move || {
                is_known.store(true, Ordering::Release);
                let _ = wake_up.write(1);
            });
        }
        frames
    }

    /// The answer to a question, if there is one.
    fn answer(&mut self, question: &Question) -> Option<Vec<u8>> {
        // Another port may have the number now.
        let port = self.network.port(question.source).filter(|port| port.added <= question.at)?;
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
        answer
    }
}

#[cfg(test)]
mod tests {
    use memlane_names::PortAddresses;
    use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, send, socketpair};

    use super::*;
    use crate::network::AttachSettings;
    use crate::port::Offer;
    use crate::port::settings::PortSettings;
    use crate::settings::Settings;
    use crate::shared::Shared;
    use crate::worker::Worker;
    use memlane_dataplane::policy::filter::{Action, PolicyRule};
    use std::os::fd::AsRawFd;

    fn asks() -> (Asks, Consumer<Question>) {
        let (questions, incoming) = RingBuffer::new(QUEUE);
        let wake_up = Arc::new(EventFd::from_flags(EfdFlags::EFD_NONBLOCK).unwrap());
        let mac = MacAddress::new([2, 0, 0, 0, 0, 9]);
        (Asks { mac, questions, rates: HashMap::new(), wake_up, dropped: Arc::default(), came: false }, incoming)
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

    const OWN: [u8; 6] = [2, 0, 0, 0, 0, 9];
    const QUESTION: &[u8] = b"\x03api\x07example\x03org\0\0\x01\0\x01";

    /// A query of a guest with this id, in a frame to the responder.
    fn query(id: u16) -> Vec<u8> {
        let message = [&id.to_be_bytes()[..], &[1, 0, 0, 1, 0, 0, 0, 0, 0, 0], QUESTION].concat();
        let udp = [&[0x0f, 0xa0, 0, 53][..], &(8 + message.len() as u16).to_be_bytes(), &[0, 0], &message].concat();
        let length = (20 + udp.len() as u16).to_be_bytes();
        let ip = [&[0x45, 0][..], &length, &[0, 0, 0, 0, 64, UDP, 0, 0, 10, 0, 0, 9, 10, 0, 0, 1]].concat();
        [&OWN[..], &[2, 0, 0, 0, 0, 1, 8, 0], &ip, &udp].concat()
    }

    /// Has the workers run commands while another thread does `work`.
    fn meanwhile(workers: &mut [Worker], work: impl FnOnce() + Send + 'static) {
        let operator = std::thread::spawn(work);
        while !operator.is_finished() {
            for worker in workers.iter_mut() {
                worker.step();
            }
            std::thread::yield_now();
        }
        operator.join().unwrap();
    }

    const GUESTS: usize = 12;

    /// A responder's task and its network, step by step.
    struct World {
        network: Arc<Network>,
        workers: Vec<Worker>,
        /// Guests, of which one may ask 100 questions a second.
        ports: Vec<Arc<crate::port::Port>>,
        desk: Desk,
        questions: Producer<Question>,
        answers: Consumer<Vec<u8>>,
        forwarder: OwnedFd,
    }

    impl World {
        fn new() -> Self {
            let (network, mut workers, _) = Network::unstarted(Shared::new(2, 7, Settings::default())).unwrap();
            let settings = PortSettings::default();
            let add = |port: usize| {
                let name = format!("box{port}");
                let attach = AttachSettings { name: &name, segment: "lan", settings: &settings, offer: Offer::default() };
                network.add_port_ahead(&attach, GUESTS).unwrap()
            };
            let ports: Vec<_> = (0..GUESTS).map(add).collect();
            let rule = PolicyRule {
                destinations: vec!["*.example.org".parse().unwrap()],
                action: Some(Action::Allow),
                ..PolicyRule::default()
            };
            let changed = Arc::clone(&network);
            meanwhile(&mut workers, move || changed.set_policy(&[rule]));
            let mut responder = Responder::new(memlane_names::Settings {
                segment: "lan".into(),
                mac: MacAddress::new(OWN),
                subnet: Some(([10, 0, 0, 0].into(), 24)),
                subnet6: None,
                domain: "lan".into(),
                router: None,
                dns: Vec::new(),
                asked: Vec::new(),
                forwards: true,
                tells_refusal: false,
            });
            ports.iter().for_each(|port| responder.set_port(&port.name, PortAddresses::default(), 0));
            let (ours, forwarder) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).unwrap();
            let mut ours = Some(ours);
            let wake_up = || Arc::new(EventFd::from_flags(EfdFlags::EFD_NONBLOCK).unwrap());
            let (questions, incoming) = RingBuffer::new(QUEUE);
            let (outgoing, answers) = RingBuffer::new(QUEUE);
            let desk = Desk {
                network: Arc::clone(&network),
                responder: Arc::new(Mutex::new(responder)),
                clock: Clock::start(),
                news: Arc::new(|_| {}),
                forwarder: Some(Forwarder::new(Box::new(move || ours.take().ok_or_else(|| io::ErrorKind::NotFound.into())))),
                incoming,
                outgoing,
                held: VecDeque::new(),
                asked: wake_up(),
                answered: wake_up(),
                dropped: Arc::default(),
            };
            Self { network, workers, ports, desk, questions, answers, forwarder }
        }

        /// The guest asks, and the forwarder answers with an address that ends with these bytes.
        fn ask(&mut self, id: u16) {
            let source = self.ports[usize::from(id) % GUESTS].id;
            self.questions.push(Question { source, at: cycles(), bytes: query(id) }).unwrap();
            self.desk.step();
            let mut datagram = [0; 512];
            let length = recv(self.forwarder.as_raw_fd(), &mut datagram, MsgFlags::MSG_DONTWAIT).unwrap();
            let question = memlane_names::forward::Question::decode(&datagram[..length]).unwrap();
            let [high, low] = id.to_be_bytes();
            let record = [0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 192, 0, high, low];
            let message = [&[0, 7, 0x81, 0x80, 0, 1, 0, 1, 0, 0, 0, 0][..], QUESTION, &record].concat();
            let answer = memlane_names::forward::encode_answer(question.id, Some(&message));
            send(self.forwarder.as_raw_fd(), &answer, MsgFlags::empty()).unwrap();
            self.desk.step();
        }
    }

    /// The responder's task and two workers, step by step in every order: the guest's receive queue gets the answer after both workers have
    /// run a command that was sent after the grant, and not before.
    #[test]
    fn an_answer_waits_until_every_worker_knows_its_grants() {
        let mut world = World::new();
        for (id, order) in [[0, 1], [1, 0], [0, 1]].into_iter().enumerate() {
            world.ask(id as u16);
            assert_eq!(world.ports[id].policy.grants.saved().len(), 1, "granted");
            for worker in order {
                assert!(world.answers.is_empty(), "a worker may still take frames by the former grants");
                world.workers[worker].step();
                world.desk.step();
            }
            assert!(world.answers.pop().unwrap().ends_with(&[192, 0, 0, id as u8]));
        }
        // Without a forwarder each question has an outcome.
        let World { ports, mut desk, mut questions, mut answers, forwarder, .. } = world;
        drop(forwarder);
        questions.push(Question { source: ports[9].id, at: cycles(), bytes: query(9) }).unwrap();
        desk.step();
        desk.step();
        assert_eq!(answers.pop().unwrap()[45] & 0xf, 2, "SERVFAIL");
    }

    /// A worker that stands still lets a bounded number of DNS answers wait; later ones are lost, and guests ask again.
    #[test]
    fn answers_that_wait_for_workers_are_bounded() {
        let mut world = World::new();
        let count = QUEUE as u16 + 40;
        for id in 0..count {
            world.ask(id);
            world.workers[0].step();
            assert!(world.desk.held.len() <= QUEUE && world.answers.is_empty());
        }
        assert_eq!(world.desk.held.len(), QUEUE);
        // The workers go on, one by one.
        assert!(Arc::strong_count(&world.network) > 1);
        for _ in 0..4 {
            world.workers.iter_mut().for_each(|worker| {
                worker.step();
            });
            world.desk.step();
        }
        let ends: Vec<[u8; 2]> =
            std::iter::from_fn(|| world.answers.pop().ok()).map(|answer| *answer.last_chunk().unwrap()).collect();
        assert_eq!(ends, (0..QUEUE as u16).map(u16::to_be_bytes).collect::<Vec<_>>(), "the first ones, in their order");
        assert!(world.desk.held.is_empty());
        world.ask(count);
        world.workers.iter_mut().for_each(|worker| {
            worker.step();
        });
        world.desk.step();
        assert!(world.answers.pop().unwrap().ends_with(&count.to_be_bytes()));
    }
}
