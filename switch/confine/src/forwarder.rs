//! The forwarder: a process that asks resolvers for DNS names outside a segment. The network's own process has no socket of the Internet.
//!
//! 1. It is started by the helper, or by a network without a sandbox, with its resolvers as arguments and a socket of type SOCK_SEQPACKET as its
//!    standard input. It confines itself before it reads from that ([`crate::sandbox::forwarder`]).
//! 2. Each question has a UDP socket of its own, whose port the kernel chooses, and an id that nothing but this process knows; a truncated answer
//!    is fetched by TCP. Only an answer with the id and the question, from the resolver that was asked, is handed over (RFC 5452). The responder
//!    reads its records.
//! 3. A question is asked at most [`TRIES`] times, of one resolver after the other, and has an outcome after [`TIMEOUT`] at most; after [`BRIEF`] if no
//!    resolver is known to answer, and the guest has other servers to ask. At most [`MOST`] are asked at once.
//! 4. The process ends with the other end of its socket, and when the host's resolvers change: it is started again with the next question.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use memlane_names::forward::{Heard, LONGEST, Question, encode_answer};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, send, socketpair};
use socket2::{Domain, Protocol, Socket, Type};

use crate::config::resolver::Resolver;
use crate::resolvers;

/// Most questions that are asked at once; each has a descriptor.
pub(crate) const MOST: usize = 512;
/// Most times that a question is asked.
const TRIES: usize = 4;
/// Time for one try by UDP, and for one by TCP.
const TRY: Duration = Duration::from_millis(1000);
const TRY_TCP: Duration = Duration::from_millis(2000);
/// Time for a question: less than a client's own (resolv.conf(5), 5 s).
const TIMEOUT: Duration = Duration::from_millis(4500);
/// Time for a question of a guest with other servers while no resolver has answered for [`KNOWN`], as where this host has no way to any, and time
/// for one try of it.
const BRIEF: Duration = Duration::from_millis(600);
const BRIEF_TRY: Duration = Duration::from_millis(300);
/// Time after the last answer for which resolvers are known to answer.
const KNOWN: Duration = Duration::from_secs(60);
/// Most datagrams that are no answer to a try's question: a sender that guesses.
const MOST_STRANGE: u32 = 32;
/// Interval at which the host's resolvers are compared with those of before.
const INTERVAL: Duration = Duration::from_secs(1);
/// Longest datagram of the responder: a question.
const LONGEST_QUESTION: usize = 512;
/// File with the host's resolvers.
const HOSTS: &str = "/etc/resolv.conf";

/// Starts a forwarder for these resolvers; returns this process's end of its socket, and the process, which is to be awaited.
///
/// # Errors
/// The kernel refuses a process or a socket.
pub fn spawn(resolvers: &[Resolver]) -> io::Result<(OwnedFd, Child)> {
    let (ours, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?;
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("forwarder").args(resolvers.iter().map(Resolver::to_string));
    let child = command.stdin(Stdio::from(theirs)).stdout(Stdio::null()).spawn()?;
    Ok((ours, child))
}

/// Addresses of `resolvers`, each once.
pub fn addresses(resolvers: &[Resolver]) -> Vec<SocketAddr> {
    let mut addresses = Vec::new();
    for resolver in resolvers {
        match resolver {
            Resolver::Host => addresses.extend(resolvers::local().into_iter().map(|address| SocketAddr::new(address, 53))),
            Resolver::At(address) => addresses.push(*address),
        }
    }
    let mut seen = std::collections::HashSet::new();
    addresses.retain(|address| seen.insert(*address));
    addresses
}

/// Forwards questions from `control` to `resolvers`, of which those of the host may change, until its other end is closed.
///
/// # Errors
/// The kernel refuses to wait.
pub fn serve(control: OwnedFd, resolvers: Vec<SocketAddr>, is_of_host: bool) -> io::Result<()> {
    let watch = is_of_host.then(HostsFile::now);
    let (looked, key) = (Instant::now(), RandomState::new());
    Forwarder { control, resolvers, watch, looked, heard: None, key, asked: 0, queries: Vec::new() }.run()
}

/// Identity of the file with the host's resolvers.
#[derive(Debug, PartialEq, Eq)]
struct HostsFile(Option<(u64, u64, i64, i64)>);

impl HostsFile {
    fn now() -> Self {
        let file = std::fs::metadata(HOSTS).ok();
        Self(file.map(|file| (file.dev(), file.ino(), file.mtime(), file.mtime_nsec())))
    }
}

/// See the module.
struct Forwarder {
    control: OwnedFd,
    resolvers: Vec<SocketAddr>,
    watch: Option<HostsFile>,
    looked: Instant,
    /// When a resolver last answered.
    heard: Option<Instant>,
    /// Key of ids.
    key: RandomState,
    /// Tries so far.
    asked: u64,
    queries: Vec<Query>,
}

/// A question that is asked.
struct Query {
    question: Question,
    /// Tries so far.
    tries: usize,
    has_edns: bool,
    id: u16,
    socket: Transport,
    /// When this try ends, and the question.
    until: Instant,
    end: Instant,
    strange: u32,
}

/// The socket of a try.
enum Transport {
    Udp(UdpSocket),
    Tcp { stream: TcpStream, to_write: VecDeque<u8>, read: Vec<u8> },
}

/// The outcome of looking at a try.
enum Outcome {
    /// The forwarder goes on.
    Wait,
    Answer(Vec<u8>),
    /// The answer is to be fetched by TCP.
    Truncated,
    /// The same resolver is asked without EDNS.
    WithoutEdns,
    /// The next resolver is asked.
    Next,
}

impl Forwarder {
    fn run(mut self) -> io::Result<()> {
        loop {
            let ready = self.wait()?;
            let now = Instant::now();
            if now.duration_since(self.looked) >= INTERVAL {
                self.looked = now;
                if self.watch.as_ref().is_some_and(|before| *before != HostsFile::now()) {
                    return Ok(());
                }
            }
            // The first is that of the control socket.
            let mut ready = ready.into_iter();
            let control = ready.next().unwrap_or(false);
            for (mut query, is_ready) in std::mem::take(&mut self.queries).into_iter().zip(ready) {
                let outcome = if is_ready { query.look() } else { Outcome::Wait };
                let outcome = if matches!(outcome, Outcome::Wait) && now >= query.until { Outcome::Next } else { outcome };
                self.conclude(query, outcome, now);
            }
            if control && !self.take_questions(now) {
                return Ok(());
            }
        }
    }

    /// Waits until something is ready: tells for the control socket, then for each question, if it is.
    fn wait(&self) -> io::Result<Vec<bool>> {
        let now = Instant::now();
        let first = self.queries.iter().map(|query| query.until.saturating_duration_since(now)).min();
        // Rounded up, so that the try is over then. While nothing is asked, no change of the host's resolvers matters.
        let timeout =
            first.map_or(PollTimeout::NONE, |first| PollTimeout::try_from(first.as_millis() + 1).unwrap_or(PollTimeout::MAX));
        let mut files = vec![PollFd::new(self.control.as_fd(), PollFlags::POLLIN)];
        files.extend(self.queries.iter().map(Query::poll_fd));
        match poll(&mut files, timeout) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(files.iter().map(|file| file.any().unwrap_or(false)).collect())
    }

    /// Takes the questions that are there, up to a bound; false if the other end is closed, or breaks the protocol.
    fn take_questions(&mut self, now: Instant) -> bool {
        let mut datagram = [0; LONGEST_QUESTION];
        for _ in 0..64 {
            let length = match recv(self.control.as_raw_fd(), &mut datagram, MsgFlags::MSG_DONTWAIT) {
                Ok(length @ 1..) => length,
                Err(Errno::EAGAIN | Errno::EINTR) => return true,
                Ok(0) | Err(_) => return false,
            };
            let Some(question) = datagram.get(..length).and_then(Question::decode) else { return false };
            if self.queries.len() >= MOST || self.resolvers.is_empty() {
                self.answer(question.id, None);
                continue;
            }
            let time = if self.is_brief(&question, now) { BRIEF } else { TIMEOUT };
            self.ask(question, (0, true), now + time, now);
        }
        true
    }

    /// Asks the resolver whose turn it is, or the next one where the kernel has no way to it.
    fn ask(&mut self, question: Question, (mut tries, has_edns): (usize, bool), end: Instant, now: Instant) {
        while tries < TRIES && now < end {
            self.asked += 1;
            let id = self.key.hash_one(self.asked) as u16;
            let resolver = self.resolver(tries);
            tries += 1;
            if let Ok(socket) = udp(resolver)
                && socket.send(&question.query(id, has_edns)).is_ok()
            {
                let time = if self.is_brief(&question, now) { BRIEF_TRY } else { TRY };
                let (until, socket) = (end.min(now + time), Transport::Udp(socket));
                return self.queries.push(Query { question, tries, has_edns, id, socket, until, end, strange: 0 });
            }
        }
        self.answer(question.id, None);
    }

    /// Whether the guest that asks `question` does better to ask its other servers than to wait.
    fn is_brief(&self, question: &Question, now: Instant) -> bool {
        question.has_other_servers && self.heard.is_none_or(|heard| now.duration_since(heard) > KNOWN)
    }

    fn resolver(&self, tries: usize) -> SocketAddr {
        let index = tries % self.resolvers.len().max(1);
        self.resolvers.get(index).copied().unwrap_or(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 53))
    }

    fn conclude(&mut self, query: Query, outcome: Outcome, now: Instant) {
        if !matches!(outcome, Outcome::Wait | Outcome::Next) {
            self.heard = Some(now);
        }
        let Query { question, tries, has_edns, end, .. } = query;
        match outcome {
            Outcome::Wait => self.queries.push(Query { question, ..query }),
            Outcome::Answer(message) => self.answer(question.id, Some(&message)),
            // The one that was asked.
            Outcome::Truncated => {
                let id = self.key.hash_one((self.asked, tries)) as u16;
                let resolver = self.resolver(tries.saturating_sub(1));
                match Transport::tcp(resolver, &question.query(id, has_edns)) {
                    Ok(socket) => {
                        let until = end.min(now + TRY_TCP);
                        self.queries.push(Query { question, id, socket, until, strange: 0, ..query });
                    }
                    Err(_) => self.ask(question, (tries, has_edns), end, now),
                }
            }
            Outcome::WithoutEdns => self.ask(question, (tries.saturating_sub(1), false), end, now),
            Outcome::Next => self.ask(question, (tries, has_edns), end, now),
        }
    }

    /// Tells the responder the answer. If its queue is full, or it is gone, the guest asks again.
    fn answer(&self, id: u64, message: Option<&[u8]>) {
        let _ = send(self.control.as_raw_fd(), &encode_answer(id, message), MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL);
    }
}

/// A UDP socket that hears `resolver` alone, at a port that the kernel chooses (RFC 5452, section 9.2).
fn udp(resolver: SocketAddr) -> io::Result<UdpSocket> {
    let any: IpAddr = if resolver.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0))?;
    socket.set_nonblocking(true)?;
    socket.connect(resolver)?;
    Ok(socket)
}

impl Transport {
    /// A connection to `resolver`, by which `query` is sent.
    fn tcp(resolver: SocketAddr, query: &[u8]) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(resolver), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_nonblocking(true)?;
        match socket.connect(&resolver.into()) {
            Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => return Err(error),
            _ => {}
        }
        let to_write = (query.len() as u16).to_be_bytes().into_iter().chain(query.iter().copied()).collect();
        Ok(Self::Tcp { stream: socket.into(), to_write, read: Vec::new() })
    }
}

impl Query {
    fn poll_fd(&self) -> PollFd<'_> {
        let (file, flags): (BorrowedFd<'_>, _) = match &self.socket {
            Transport::Udp(socket) => (socket.as_fd(), PollFlags::POLLIN),
            Transport::Tcp { stream, to_write, .. } if !to_write.is_empty() => (stream.as_fd(), PollFlags::POLLOUT),
            Transport::Tcp { stream, .. } => (stream.as_fd(), PollFlags::POLLIN),
        };
        PollFd::new(file, flags)
    }

    /// Looks at its socket, which is ready.
    fn look(&mut self) -> Outcome {
        let message = match &mut self.socket {
            Transport::Udp(socket) => {
                let mut datagram = [0; LONGEST];
                match socket.recv(&mut datagram) {
                    Ok(length) => datagram[..length].to_vec(),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Outcome::Wait,
                    // Nothing listens there, or nothing leads there.
                    Err(_) => return Outcome::Next,
                }
            }
            Transport::Tcp { stream, to_write, read } => match exchange(stream, to_write, read) {
                Ok(Some(message)) => message,
                Ok(None) => return Outcome::Wait,
                Err(_) => return Outcome::Next,
            },
        };
        let is_tcp = matches!(self.socket, Transport::Tcp { .. });
        match self.question.heard(self.id, &message) {
            Some(Heard::Answer) => Outcome::Answer(message),
            Some(Heard::Truncated) if !is_tcp => Outcome::Truncated,
            Some(Heard::FormatError) if self.has_edns => Outcome::WithoutEdns,
            Some(_) => Outcome::Next,
            None => {
                self.strange += 1;
                if is_tcp || self.strange >= MOST_STRANGE { Outcome::Next } else { Outcome::Wait }
            }
        }
    }
}

/// Writes what is left of a query, and reads the answer behind its length; `None` until it is whole.
fn exchange(stream: &mut TcpStream, to_write: &mut VecDeque<u8>, read: &mut Vec<u8>) -> io::Result<Option<Vec<u8>>> {
    if !to_write.is_empty() {
        let written = match stream.write(to_write.as_slices().0) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => written,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            Err(error) => return Err(error),
        };
        to_write.drain(..written);
        return Ok(None);
    }
    let mut part = [0; 4096];
    match stream.read(&mut part) {
        Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(length) => read.extend(&part[..length]),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
        Err(error) => return Err(error),
    }
    let Some((length, message)) = read.split_first_chunk::<2>() else { return Ok(None) };
    let length = usize::from(u16::from_be_bytes(*length));
    if length > LONGEST {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok(message.get(..length).map(<[u8]>::to_vec))
}

#[cfg(test)]
mod tests {
    use memlane_names::forward::decode_answer;

    use super::*;

    /// A forwarder with one resolver, which this test plays.
    struct Bench {
        control: OwnedFd,
        resolver: UdpSocket,
    }

    impl Bench {
        fn start() -> Self {
            let resolver = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            resolver.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
            let (control, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).unwrap();
            let address = resolver.local_addr().unwrap();
            std::thread::spawn(move || serve(theirs, vec![address], false).unwrap());
            Self { control, resolver }
        }

        fn ask(&self, id: u64, has_other_servers: bool) {
            let bytes = b"\x03api\x07example\x03org\0\0\x01\0\x01".to_vec();
            let question = Question { id, bytes, checking_disabled: false, has_other_servers };
            send(self.control.as_raw_fd(), &question.encode(), MsgFlags::empty()).unwrap();
        }

        /// The next outcome, and whether it is an answer; `None` if it does not come in this time.
        fn outcome(&self, time: Duration) -> Option<(u64, bool)> {
            let mut files = [PollFd::new(self.control.as_fd(), PollFlags::POLLIN)];
            if poll(&mut files, PollTimeout::try_from(time.as_millis()).unwrap()).unwrap() == 0 {
                return None;
            }
            let mut datagram = [0; 512];
            let length = recv(self.control.as_raw_fd(), &mut datagram, MsgFlags::empty()).unwrap();
            decode_answer(&datagram[..length]).map(|(id, message)| (id, message.is_some()))
        }

        /// The resolver answers queries, and old ones among them, until one has its outcome, which is returned.
        fn answered(&self) -> Option<(u64, bool)> {
            let (mut query, end) = ([0; 512], Instant::now() + TIMEOUT);
            while Instant::now() < end {
                if let Ok((length, client)) = self.resolver.recv_from(&mut query) {
                    let message = [&query[..2], &[0x81, 0x80], &query[4..length]].concat();
                    // The socket of an old query is closed.
                    let _ = self.resolver.send_to(&message, client);
                }
                if let Some(outcome) = self.outcome(Duration::ZERO) {
                    return Some(outcome);
                }
            }
            None
        }
    }

    #[test]
    fn a_guest_with_other_servers_waits_briefly_until_a_resolver_is_known_to_answer() {
        let bench = Bench::start();
        bench.ask(1, true);
        let start = Instant::now();
        assert_eq!(bench.outcome(TIMEOUT), Some((1, false)));
        assert!(start.elapsed() >= BRIEF);
        bench.ask(2, false);
        assert_eq!(bench.outcome(2 * BRIEF), None, "it has no other servers");
        assert_eq!(bench.answered(), Some((2, true)));
        bench.ask(3, true);
        assert_eq!(bench.outcome(2 * BRIEF), None, "the resolver is known to answer");
    }
}
