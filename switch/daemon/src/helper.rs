//! The helper: a process outside of the sandbox that does the work for which the network's own process has no rights.
//!
//! - It opens the sockets of NICs ([`crate::uplink::nic`]), which needs CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF; using them needs none.
//! - It starts passt, because passt cannot make its own sandbox inside this one.
//!
//! It is told the name of a segment or port, and reads the rest in the network's file: a process that a guest has taken over gets no other
//! interface and no other arguments of passt from it. Answers are descriptors (SCM_RIGHTS), or a sentence.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use crate::config::later::LaterKind;
use crate::config::{Config, NicConfig, PortKind, UplinkConfig, runtime_folder};
use memlane_backends::interface::af_packet::PacketSettings;
use memlane_backends::interface::nic::{Here, Opener, XdpFiles};
use memlane_backends::stream::Passt;
use memlane_backends::takeover;

/// Longest request or answer, in bytes.
const LINE: usize = 1024;
/// Time in which the helper has to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// The answer before descriptors.
const GRANTED: &str = "granted";

/// The helper of this process, if there is one.
static HELPER: OnceLock<Helper> = OnceLock::new();

/// See the module.
#[derive(Debug)]
pub struct Helper {
    way: Way,
    /// Names of the ports for which it starts passt.
    passt: HashSet<String>,
}

/// How it is reached.
#[derive(Debug)]
enum Way {
    /// A child process, started before the sandbox was entered.
    Child(Mutex<Conversation>),
    /// A service that opens NICs, which listens at this socket.
    Service(PathBuf),
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
}

impl Request {
    const ALL: [Self; 4] = [Self::Packet, Self::Xdp, Self::Probe, Self::Passt];

    fn word(self) -> &'static str {
        match self {
            Self::Packet => "packet",
            Self::Xdp => "xdp",
            Self::Probe => "probe",
            Self::Passt => "passt",
        }
    }
}

impl Helper {
    /// Whether the network has NICs, or announces them.
    pub(crate) fn is_needed_for_nics(config: &Config) -> bool {
        config.uplinks.iter().any(|uplink| matches!(uplink, UplinkConfig::Nic(_))) || config.later.kinds.contains(&LaterKind::Nic)
    }

    /// Provides the helper of `config`, the network of `file`, if it needs one: the service, if it runs, else a new process with the rights
    /// of this one.
    ///
    /// # Errors
    /// The kernel refuses a process.
    pub fn provide(config: &Config, file: &Path) -> io::Result<()> {
        let is_passt = |kind: &PortKind| matches!(kind, PortKind::Passt(_));
        let passt: HashSet<_> = config.ports.iter().filter(|port| is_passt(&port.kind)).map(|port| port.name.clone()).collect();
        let service = runtime_folder().join(format!("{}.nic", config.name));
        let helper = if passt.is_empty() && !Self::is_needed_for_nics(config) {
            return Ok(());
        } else if service.exists() {
            Self { way: Way::Service(service), passt: HashSet::new() }
        } else {
            Self { way: Self::start(file)?, passt }
        };
        let _ = HELPER.set(helper);
        Ok(())
    }

    /// The helper of this process, if there is one.
    pub fn get() -> Option<&'static Self> {
        HELPER.get()
    }

    /// The helper, if it starts passt for the port called `name`.
    pub fn starting_passt(name: &str) -> Option<&'static Self> {
        Self::get().filter(|helper| helper.passt.contains(name))
    }

    fn start(file: &Path) -> io::Result<Way> {
        let (ours, theirs) = UnixStream::pair()?;
        // It ends when this process does, with the other end of its socket.
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("helper").arg(file).stdin(Stdio::from(OwnedFd::from(theirs))).stdout(Stdio::null()).spawn()?;
        Ok(Way::Child(Mutex::new(Conversation::new(ours))))
    }

    /// Makes a `request` about the segment or port called `name`; returns the descriptors.
    ///
    /// # Errors
    /// The sentence of the helper.
    pub fn ask(&self, request: Request, name: &str) -> Result<Vec<File>, String> {
        let asked = match &self.way {
            Way::Child(conversation) => conversation.lock().unwrap_or_else(PoisonError::into_inner).ask(request, name),
            Way::Service(path) => UnixStream::connect(path).and_then(|stream| Conversation::new(stream).ask(request, name)),
        };
        asked.map_err(|cause| format!("the helper does not answer: {cause}"))?
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
        self.stream.set_read_timeout(Some(PATIENCE))?;
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

/// Reads up to the next newline, byte by byte, for descriptors come with the next one.
fn read_line(mut stream: &UnixStream) -> io::Result<String> {
    let mut line = Vec::new();
    let mut byte = [0];
    loop {
        stream.read_exact(&mut byte)?;
        match byte {
            [b'\n'] => return String::from_utf8(line).map_err(|_| io::ErrorKind::InvalidData.into()),
            _ if line.len() == LINE => return Err(io::ErrorKind::InvalidData.into()),
            [other] => line.push(other),
        }
    }
}

/// Answers requests from `stream` about the network of `file`, until its other end is closed. A service starts no passt, for it has rights
/// that passt is not to have.
///
/// # Errors
/// The other side violates the protocol, or is gone while it is answered.
pub fn answer_all(mut stream: &UnixStream, file: &Path, is_service: bool) -> io::Result<()> {
    let mut started = HashMap::new();
    loop {
        let line = match read_line(stream) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            line => line?,
        };
        let (word, name) = line.split_once(' ').unwrap_or_default();
        let answer = match Request::ALL.into_iter().find(|request| request.word() == word) {
            Some(Request::Probe | Request::Passt) if is_service => Err("the service starts no passt".into()),
            Some(request) => granted(request, name, file, &mut started),
            None => Err(format!("unknown request {line:?}")),
        };
        started.retain(|_, child| matches!(child.try_wait(), Ok(None)));
        match answer {
            Ok(files) => {
                stream.write_all(format!("{GRANTED}\n").as_bytes())?;
                takeover::send(stream, &files)?;
            }
            Err(sentence) => {
                let mut sentence = sentence.replace('\n', " ");
                sentence.truncate(sentence.floor_char_boundary(LINE));
                stream.write_all(format!("{sentence}\n").as_bytes())?;
            }
        }
    }
}

/// Processes of passt, by the names of their ports: one for each.
type Started = HashMap<String, Child>;

/// The descriptors for a request. A process of passt is added to `started`.
fn granted(request: Request, name: &str, file: &Path, started: &mut Started) -> Result<Vec<OwnedFd>, String> {
    let config = Config::load(file).map_err(|mistakes| mistakes.to_string())?;
    match request {
        Request::Packet => Here.packet(&nic(&config, name, file)?).map(|socket| vec![socket.into_file().into()]),
        Request::Xdp => {
            let XdpFiles { socket, frames, link } = Here.xdp(&nic(&config, name, file)?)?;
            Ok(vec![socket.into(), frames.into(), link.into()])
        }
        Request::Probe => {
            passt(&config, name, file).and_then(|_| Passt::probe().map_err(|cause| cause.to_string())).map(|()| Vec::new())
        }
        Request::Passt => {
            let passt = passt(&config, name, file)?;
            // A port asks for the next one when it has no use for the last, which ends with its stream.
            if let Some(mut last) = started.remove(name) {
                last.kill().and_then(|()| last.wait()).map_err(|cause| cause.to_string())?;
            }
            let (stream, log, child) = passt.spawn().map_err(|cause| cause.to_string())?;
            started.insert(name.to_owned(), child);
            Ok(vec![stream.into(), log.into()])
        }
    }
}

/// The NIC of a segment.
fn nic(config: &Config, segment: &str, file: &Path) -> Result<PacketSettings, String> {
    let uplink = config.uplinks.iter().find(|uplink| uplink.segment() == segment);
    match uplink {
        Some(UplinkConfig::Nic(NicConfig { nic, netns, .. })) => Ok(PacketSettings { name: nic.clone(), netns: netns.clone() }),
        _ => Err(format!("{} has no NIC for segment {segment:?}", file.display())),
    }
}

/// The passt of a port.
fn passt(config: &Config, port: &str, file: &Path) -> Result<Passt, String> {
    let found = config.port(port).and_then(|port| match &port.kind {
        PortKind::Passt(arguments) => Some((arguments, port.settings.mtu)),
        _ => None,
    });
    let (arguments, mtu) = found.ok_or_else(|| format!("{} has no passt port {port:?}", file.display()))?;
    Ok(Passt::new(arguments.iter().map(Into::into).collect(), mtu))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NET: &str = "[[segment]]\nname = \"lan\"\nnic = \"ml-none\"\n[[segment]]\nname = \"back\"\nsubnet = \"10.0.0.0/24\"\n\
                       [[port]]\nname = \"a\"\nnull = true\n[[port]]\nname = \"out\"\npasst = [\"--no-such-option\"]\n";

    /// The answers to these requests, for a network with a NIC that does not exist.
    fn answers(requests: &[(Request, &str)], is_service: bool) -> Vec<Result<Vec<File>, String>> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("net.toml");
        std::fs::write(&file, NET).unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let theirs = theirs;
                answer_all(&theirs, &file, is_service).unwrap();
            });
            let helper = Helper { way: Way::Child(Mutex::new(Conversation::new(ours))), passt: HashSet::new() };
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
        let requests = [(Request::Passt, "a"), (Request::Probe, "none")];
        for told in answers(&requests, false) {
            assert!(told.unwrap_err().contains("net.toml has no passt port \""));
        }
        for told in answers(&[(Request::Passt, "out"), (Request::Probe, "out")], true) {
            assert_eq!(told.unwrap_err(), "the service starts no passt");
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
        let (ours, theirs) = UnixStream::pair().unwrap();
        (&ours).write_all(&[b'x'; LINE + 1]).unwrap();
        assert_eq!(answer_all(&theirs, Path::new("/none"), false).unwrap_err().kind(), io::ErrorKind::InvalidData);
        let (ours, theirs) = UnixStream::pair().unwrap();
        (&ours).write_all(b"\npacket\nodd \x1b[2J\npacket lan\n").unwrap();
        ours.shutdown(std::net::Shutdown::Write).unwrap();
        answer_all(&theirs, Path::new("/none"), false).unwrap();
        drop(theirs);
        let mut told = String::new();
        (&ours).read_to_string(&mut told).unwrap();
        assert!(told.lines().count() == 4 && !told.contains('\x1b') && told.starts_with("unknown request \"\"\n"), "{told}");
    }
}
