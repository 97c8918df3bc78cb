//! The helper: a process outside of the sandbox that does the work for which the network's own process has no rights.
//!
//! - It makes, changes and removes the sockets of ports, control and metrics, and connects to those of others ([`border`] says which):
//!   the network's process, in its sandbox, has no right to any file of them.
//! - It makes the next version of the state file, which the network's process fills.
//! - It opens the sockets of NICs (`uplink::nic` of the daemon), which needs CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF; using them needs none.
//!   A service does so instead where one runs (`memlane-nic@NAME.socket`).
//! - It starts the forwarders of DNS ([`crate::forwarder`]), which have sockets of the Internet.
//! - It starts passt, because passt cannot make its own sandbox inside this one.
//!
//! The helper reads the network's file once, before the network's process gets any byte of a guest: a process that a guest has taken over gets
//! no other interface, no other socket and no other arguments of passt from it. Answers are descriptors (SCM_RIGHTS), or a sentence.
//!
//! 1. [`Helper`], [`Request`]: the side of the network's process.
//! 2. [`answers`]: the side of the helper.

pub mod answers;
pub(crate) mod border;
pub mod record;
pub mod state;

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use memlane_backends::takeover;
use memlane_backends::vhost_user::access::Access;
use memlane_backends::vhost_user::socket::Broker;
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv};
use serde::{Deserialize, Serialize};

use crate::config::later::LaterKind;
use crate::config::{Config, PortKind, UplinkConfig};

/// Longest request or answer, in bytes.
const LINE: usize = 4096;
/// Time in which the helper has to answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The answer before descriptors.
const GRANTED: &str = "granted";
/// The first answer: the helper has read the network's file.
const READY: &str = "ready";
/// The beginning of an answer about a file or socket: an error number follows, then the sentence.
const ERROR: &str = "error ";

/// The helper of this process, outside of its sandbox, if there is one.
static HELPER: OnceLock<Helper> = OnceLock::new();

/// See the module.
#[derive(Debug)]
pub struct Helper {
    conversation: Mutex<Conversation>,
    /// The passt ports of the network's file.
    passt: HashMap<String, PortKind>,
}

/// The network that a helper serves.
#[derive(Clone, Copy, Debug)]
pub struct Served<'a> {
    /// The network's file, if it has one.
    pub file: Option<&'a Path>,
    /// The network's name.
    pub name: &'a str,
    /// The network's state file, if it has one.
    pub state: Option<&'a Path>,
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// The packet socket of a segment's NIC.
    Packet,
    /// The AF_XDP socket of a segment's NIC, its frames, and its XDP program.
    Xdp,
    /// Whether the passt of a port can be started.
    Probe,
    /// The passt of a port: its socket, and its standard error.
    Passt,
    /// The run-time folder, made if it is missing.
    Folder,
    /// A listening socket, which the sandbox refuses by seccomp and Landlock.
    Bind,
    /// Owner, group and mode of a listening socket's file, for which the sandbox keeps no capability.
    Apply,
    /// A connection to a listening socket, which the sandbox refuses by seccomp.
    Connect,
    /// A listening socket's file, removed, which the sandbox refuses by seccomp and Landlock.
    Remove,
    /// The state file: opened, replaced.
    State,
    /// The link to the control socket in the run-time folder, made or removed.
    Record,
    /// The forwarder of DNS of a segment: its socket.
    Forwarder,
}

impl Request {
    const ALL: [Self; 12] = [
        Self::Packet,
        Self::Xdp,
        Self::Probe,
        Self::Passt,
        Self::Folder,
        Self::Bind,
        Self::Apply,
        Self::Connect,
        Self::Remove,
        Self::State,
        Self::Record,
        Self::Forwarder,
    ];

    fn word(self) -> &'static str {
        match self {
            Self::Packet => "packet",
            Self::Xdp => "xdp",
            Self::Probe => "probe",
            Self::Passt => "passt",
            Self::Folder => "folder",
            Self::Bind => "bind",
            Self::Apply => "apply",
            Self::Connect => "connect",
            Self::Remove => "remove",
            Self::State => "state",
            Self::Record => "record",
            Self::Forwarder => "forwarder",
        }
    }
}

/// The subject of a request about a socket.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Subject {
    path: PathBuf,
    /// Permissions of a new socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mode: Option<u32>,
    /// Owner, group and mode afterwards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    access: Option<Access>,
    /// Device and inode of its file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    file: Option<(u64, u64)>,
    /// Whether other users pass through the folder.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    shared: bool,
    /// Whether another process has made the socket.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    before: bool,
}

impl Subject {
    fn at(path: &Path) -> Self {
        Self { path: path.into(), mode: None, access: None, file: None, shared: false, before: false }
    }
}

/// The subject of a request about passt.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PasstPort {
    port: String,
    mtu: Option<u16>,
}

/// A step of opening or replacing the state file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StateStep {
    /// The present file, made if it is missing.
    Open,
    /// An empty file beside it.
    Fresh,
    /// The file beside it takes its place.
    Keep,
    /// The file beside it is removed.
    Drop,
    /// The present file is removed: it is empty at the end.
    Remove,
}

impl Helper {
    /// Whether the network has NICs, or announces them.
    pub(crate) fn is_needed_for_nics(config: &Config) -> bool {
        config.uplinks.iter().any(|uplink| matches!(uplink, UplinkConfig::Nic(_))) || config.later.kinds.contains(&LaterKind::Nic)
    }

    /// Whether a network without a sandbox needs a helper outside: for the capabilities of NICs, and for the descriptors of passt.
    pub fn is_needed(config: &Config) -> bool {
        Self::is_needed_for_nics(config) || config.ports.iter().any(|port| port.kind.passt().is_some())
    }

    /// Starts the helper of `config`, with the rights of this process: `program`, which serves the other end of its standard input.
    ///
    /// # Errors
    /// The kernel refuses a process, or the helper cannot read the network's file.
    pub fn provide(config: &Config, program: Command) -> io::Result<()> {
        let passt = config.ports.iter().filter(|port| port.kind.passt().is_some());
        let passt = passt.map(|port| (port.name.clone(), port.kind.clone())).collect();
        let _ = HELPER.set(Self { conversation: Mutex::new(start(program)?), passt });
        Ok(())
    }

    /// The helper of this process, if there is one.
    pub fn get() -> Option<&'static Self> {
        HELPER.get()
    }

    /// The helper, if it starts passt for the port called `name`.
    pub fn starting_passt(name: &str) -> Option<&'static Self> {
        Self::get().filter(|helper| helper.passt.contains_key(name))
    }

    /// The port called `name`, if the helper starts its passt.
    pub(crate) fn passt_port(name: &str) -> Option<&'static PortKind> {
        Self::get()?.passt.get(name)
    }

    /// Makes a `request` about the segment or port called `name`; returns the descriptors.
    ///
    /// # Errors
    /// The sentence of the helper.
    pub fn ask(&self, request: Request, name: &str) -> Result<Vec<File>, String> {
        let asked = self.conversation.lock().unwrap_or_else(PoisonError::into_inner).ask(request, name);
        asked.map_err(|cause| {
            format!("the helper outside of the sandbox does not answer: {cause}. Restart the network, or take it over (`memlane up --takeover`)")
        })?
    }

    /// Makes a `request` about a file or socket; returns the descriptors.
    fn ask_about(&self, request: Request, subject: &impl Serialize) -> io::Result<Vec<File>> {
        self.ask(request, &serde_json::to_string(subject)?).map_err(|told| error_of(&told))
    }

    fn one(&self, request: Request, subject: &impl Serialize) -> io::Result<OwnedFd> {
        let file = self.ask_about(request, subject)?.pop().map(OwnedFd::from);
        file.ok_or_else(|| io::Error::other("the helper sent no descriptor"))
    }

    /// Asks whether the passt of `port` can be started.
    ///
    /// # Errors
    /// The reason.
    pub fn probe_passt(&self, port: &str) -> io::Result<()> {
        self.ask_about(Request::Probe, &PasstPort { port: port.into(), mtu: None }).map(drop)
    }

    /// Starts the passt of `port`: its socket, and its standard error.
    ///
    /// # Errors
    /// The reason.
    pub fn start_passt(&self, port: &str, mtu: Option<u16>) -> io::Result<(UnixStream, File)> {
        let files = self.ask_about(Request::Passt, &PasstPort { port: port.into(), mtu })?;
        let [socket, log] = files.try_into().map_err(|_| io::Error::other("the helper sent no socket"))?;
        Ok((UnixStream::from(OwnedFd::from(socket)), log))
    }

    /// Starts the forwarder of `segment`: its socket.
    ///
    /// # Errors
    /// The reason.
    pub fn start_forwarder(&self, segment: &str) -> io::Result<OwnedFd> {
        let file = self.ask(Request::Forwarder, segment).map_err(io::Error::other)?.pop().map(OwnedFd::from);
        file.ok_or_else(|| io::Error::other("the helper sent no socket"))
    }

    /// Makes the run-time folder of the socket `path`, as [`folder::provide`](memlane_config::folder::provide) does without a sandbox.
    pub(crate) fn provide_folder(&self, path: &Path, shared: bool) -> io::Result<()> {
        self.ask_about(Request::Folder, &Subject { shared, ..Subject::at(path) }).map(drop)
    }

    /// Does a step of opening or replacing the state file outside of the sandbox; returns the file of the first two.
    ///
    /// # Errors
    /// The error of the kernel.
    pub fn state(&self, step: StateStep) -> io::Result<Option<File>> {
        Ok(self.ask_about(Request::State, &step)?.pop())
    }

    /// Makes the link to the control socket in the run-time folder, or removes it with the network's own folder there.
    ///
    /// # Errors
    /// The error of the kernel.
    pub fn record(&self, is_up: bool) -> io::Result<()> {
        self.ask_about(Request::Record, &is_up).map(drop)
    }
}

impl Broker for &'static Helper {
    fn bind(&self, path: &Path, mode: u32) -> io::Result<UnixListener> {
        self.one(Request::Bind, &Subject { mode: Some(mode), ..Subject::at(path) }).map(UnixListener::from)
    }

    fn apply(&self, path: &Path, file: Option<(u64, u64)>, before: bool, access: &Access) -> io::Result<()> {
        self.ask_about(Request::Apply, &Subject { access: Some(access.clone()), file, before, ..Subject::at(path) }).map(drop)
    }

    fn connect(&self, path: &Path) -> io::Result<UnixStream> {
        self.one(Request::Connect, &Subject::at(path)).map(UnixStream::from)
    }

    fn remove(&self, path: &Path, file: (u64, u64)) -> io::Result<()> {
        self.ask_about(Request::Remove, &Subject { file: Some(file), ..Subject::at(path) }).map(drop)
    }
}

/// Starts the process, which has read the network's file when this returns.
fn start(mut program: Command) -> io::Result<Conversation> {
    let (ours, theirs) = UnixStream::pair()?;
    // The helper ends when this process does, with the other end of its socket.
    program.stdin(Stdio::from(OwnedFd::from(theirs))).stdout(Stdio::null()).spawn()?;
    ours.set_read_timeout(Some(TIMEOUT))?;
    match read_line(&ours)? {
        line if line == READY => Ok(Conversation::new(ours)),
        told => Err(io::Error::other(told)),
    }
}

/// The answer to a request about a file, for this error.
fn answer_of(error: &io::Error) -> String {
    let number = error.raw_os_error().unwrap_or(match error.kind() {
        io::ErrorKind::AddrInUse => libc::EADDRINUSE,
        io::ErrorKind::NotFound => libc::ENOENT,
        io::ErrorKind::PermissionDenied => libc::EACCES,
        io::ErrorKind::TimedOut => libc::ETIMEDOUT,
        io::ErrorKind::ConnectionRefused => libc::ECONNREFUSED,
        io::ErrorKind::WouldBlock => libc::EAGAIN,
        _ => 0,
    });
    format!("{ERROR}{number} {error}")
}

/// The error that an answer tells of.
fn error_of(answer: &str) -> io::Error {
    let parts = answer.strip_prefix(ERROR).and_then(|rest| rest.split_once(' '));
    let number = parts.and_then(|(number, _)| number.parse().ok()).filter(|number| *number != 0);
    match (parts, number.map(io::Error::from_raw_os_error)) {
        (Some((_, sentence)), Some(error)) if error.to_string() == sentence => error,
        (Some((_, sentence)), Some(error)) => io::Error::new(error.kind(), sentence),
        (Some((_, sentence)), None) => io::Error::other(sentence.to_owned()),
        (None, _) => io::Error::other(answer.to_owned()),
    }
}

/// Requests and their answers, which come in the same order.
#[derive(Debug)]
struct Conversation {
    stream: UnixStream,
    /// Requests without an answer so far. A late answer is not one to the next request.
    unanswered: u32,
}

impl Conversation {
    fn new(stream: UnixStream) -> Self {
        Self { stream, unanswered: 0 }
    }

    /// Makes a request; returns the descriptors, or the sentence of the helper.
    fn ask(&mut self, request: Request, name: &str) -> io::Result<Result<Vec<File>, String>> {
        self.stream.set_read_timeout(Some(TIMEOUT))?;
        while self.unanswered > 0 {
            drop(self.answer()?);
        }
        (&self.stream).write_all(format!("{} {name}\n", request.word()).as_bytes())?;
        self.unanswered += 1;
        self.answer()
    }

    /// Reads the next answer.
    fn answer(&mut self) -> io::Result<Result<Vec<File>, String>> {
        let answer = read_line(&self.stream)?;
        let mut files = Vec::new();
        if answer == GRANTED {
            takeover::receive(&self.stream, &mut files)?;
        }
        self.unanswered -= 1;
        Ok(if answer == GRANTED { Ok(files) } else { Err(answer) })
    }
}

/// Reads up to the next newline, and no byte after it: descriptors come with that.
fn read_line(mut stream: &UnixStream) -> io::Result<String> {
    let mut line = Vec::new();
    loop {
        let mut bytes = [0; 256];
        let there = match recv(stream.as_raw_fd(), &mut bytes, MsgFlags::MSG_PEEK) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => count,
            Err(Errno::EINTR) => continue,
            Err(error) => return Err(error.into()),
        };
        let end = bytes[..there].iter().position(|&byte| byte == b'\n');
        let part = &mut bytes[..end.map_or(there, |end| end + 1)];
        stream.read_exact(part)?;
        line.extend_from_slice(part);
        if line.len() - usize::from(end.is_some()) > LINE {
            return Err(io::ErrorKind::InvalidData.into());
        }
        if end.is_some() {
            line.pop();
            return String::from_utf8(line).map_err(|_| io::ErrorKind::InvalidData.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::answers::{Desk, answer_all};
    use super::*;

    const NET: &str = "[[segment]]\nname = \"lan\"\nnic = \"ml-none\"\n[[segment]]\nname = \"back\"\nsubnet = \"10.0.0.0/24\"\n\
                       [[port]]\nname = \"a\"\nnull = true\n[[port]]\nname = \"out\"\npasst = [\"--no-such-option\"]\n";

    /// The answers to these requests, for a network with a NIC that does not exist.
    fn answers(requests: &[(Request, &str)], is_service: bool) -> Vec<Result<Vec<File>, String>> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("net.toml");
        std::fs::write(&file, NET).unwrap();
        let served = Served { file: Some(&file), name: "net", state: None };
        let mut desk = if is_service { Desk::of_nics(&file) } else { Desk::of(served) }.unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let theirs = theirs;
                answer_all(&theirs, &mut desk).unwrap();
            });
            let helper = Helper { conversation: Mutex::new(Conversation::new(ours)), passt: HashMap::new() };
            requests.iter().map(|&(request, name)| helper.ask(request, name)).collect()
        })
    }

    #[test]
    fn the_helper_opens_the_nics_of_the_file_and_no_others() {
        let requests = [(Request::Xdp, "lan"), (Request::Xdp, "back"), (Request::Packet, "none"), (Request::Packet, "lan")];
        let told = answers(&requests, true);
        let sentence = |n: usize| told[n].as_ref().unwrap_err().as_str();
        assert!(sentence(0).contains("No such device"), "{told:?}");
        assert!(sentence(1).ends_with("has no NIC for segment \"back\""), "{told:?}");
        assert!(sentence(2).ends_with("has no NIC for segment \"none\""), "{told:?}");
        // The interface may come later, the socket is there; without rights there is none.
        assert!(told[3].as_ref().is_ok_and(|files| files.len() == 1) || sentence(3).contains("CAP_NET_RAW"), "{told:?}");
    }

    #[test]
    fn the_helper_starts_passt_for_ports_of_the_file_only_and_no_service_does() {
        let [a, none, out] = ["a", "none", "out"].map(|port| format!("{{\"port\":\"{port}\",\"mtu\":null}}"));
        for told in answers(&[(Request::Passt, &a), (Request::Probe, &none)], false) {
            assert!(told.unwrap_err().contains("net.toml has no passt port \""));
        }
        for told in answers(&[(Request::Passt, &out), (Request::Probe, &out)], true) {
            assert_eq!(told.unwrap_err(), "the service starts no passt");
        }
        let bind = "{\"path\":\"/tmp/x\"}";
        assert_eq!(answers(&[(Request::Bind, bind)], true)[0].as_ref().unwrap_err(), "the service opens NICs alone");
    }

    #[test]
    fn an_error_arrives_as_it_was() {
        let errors = [
            io::Error::from_raw_os_error(libc::ENOSPC),
            io::Error::new(io::ErrorKind::AddrInUse, "a listening program is there"),
            io::Error::new(io::ErrorKind::NotFound, "there is no folder /x"),
            io::Error::other("it is odd"),
        ];
        for error in errors {
            let arrived = error_of(&answer_of(&error));
            let told = |error: &io::Error| (error.kind(), error.raw_os_error(), error.to_string());
            assert_eq!(told(&arrived), told(&error));
        }
    }

    #[test]
    fn a_late_answer_is_not_one_to_the_next_request() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut conversation = Conversation { stream: ours, unanswered: 2 };
        (&theirs).write_all(format!("{GRANTED}\n").as_bytes()).unwrap();
        takeover::send(&theirs, &[File::open("/dev/null").unwrap().into()]).unwrap();
        (&theirs).write_all(b"too late\nthe third\n").unwrap();
        assert_eq!(conversation.ask(Request::Probe, "a").unwrap().unwrap_err(), "the third");
        assert_eq!(conversation.unanswered, 0);
    }

    #[test]
    fn requests_end_and_make_sense() {
        let mut desk = Desk::of(Served { file: None, name: "net", state: None }).unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        (&ours).write_all(&[b'x'; LINE + 1]).unwrap();
        assert_eq!(answer_all(&theirs, &mut desk).unwrap_err().kind(), io::ErrorKind::InvalidData);
        let (ours, theirs) = UnixStream::pair().unwrap();
        (&ours).write_all(b"\npacket\nodd \x1b[2J\npacket lan\nstate \"fresh\"\nbind {\"path\":\"/etc/a.sock\"}\n").unwrap();
        ours.shutdown(std::net::Shutdown::Write).unwrap();
        answer_all(&theirs, &mut desk).unwrap();
        drop(theirs);
        let mut told = String::new();
        (&ours).read_to_string(&mut told).unwrap();
        assert!(told.lines().count() == 6 && !told.contains('\x1b') && told.starts_with("unknown request \"\"\n"), "{told}");
        assert!(
            told.contains("the network has no state file") && told.contains("the sandbox has no right to the socket"),
            "{told}"
        );
    }
}
