//! The side of the helper, outside of the sandbox: requests, and their answers.

use std::collections::HashMap;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Child;

use memlane_backends::interface::af_packet::PacketSettings;
use memlane_backends::interface::nic::{Here, Opener, XdpFiles};
use memlane_backends::stream::Passt;
use memlane_backends::takeover;
use memlane_backends::vhost_user::access::Access;

use super::border::Border;
use super::record::Record;
use super::state as state_file;
use super::{Conversation, GRANTED, Helper, LINE, PasstPort, READY, Request, Served, StateStep, Subject, answer_of, read_line};
use crate::config::{Config, NicConfig, UplinkConfig, own_folder, runtime_folder, way_out};
use crate::folder;
use crate::forwarder;

/// The network of a helper.
#[derive(Debug)]
pub struct Desk {
    config: Config,
    file: Option<PathBuf>,
    state: Option<PathBuf>,
    border: Border,
    record: Option<Record>,
    /// Processes of passt, by the names of their ports, and forwarders: one for each.
    started: HashMap<String, Child>,
    /// Whether this is the service that opens NICs and does nothing else.
    is_service: bool,
}

impl Desk {
    /// Reads the network's file.
    ///
    /// # Errors
    /// The mistakes in it.
    pub fn of(served: Served<'_>) -> Result<Self, String> {
        let Served { file, name, state } = served;
        let config = file.map_or_else(|| Config::named(name), Config::load).map_err(|mistakes| mistakes.to_string())?;
        let (file, state) = (file.map(PathBuf::from), state.map(state_file::target));
        let border = Border::of(&config, file.as_deref());
        Ok(Self { config, file, state, border, record: None, started: HashMap::new(), is_service: false })
    }

    /// The service that opens the NICs of the network of `file`.
    ///
    /// # Errors
    /// The mistakes in the file.
    pub fn of_nics(file: &Path) -> Result<Self, String> {
        Ok(Self { is_service: true, ..Self::of(Served { file: Some(file), name: "", state: None })? })
    }

    fn told_file(&self) -> std::path::Display<'_> {
        self.file.as_deref().unwrap_or(Path::new("the network")).display()
    }

    /// The descriptors for a request, or the sentence.
    fn answer(&mut self, line: &str) -> Result<Vec<OwnedFd>, String> {
        let (word, subject) = line.split_once(' ').unwrap_or_default();
        let request = Request::ALL.into_iter().find(|request| request.word() == word);
        match request.ok_or_else(|| format!("unknown request {line:?}"))? {
            request @ (Request::Packet | Request::Xdp) => self.nic(request, subject),
            Request::Probe | Request::Passt if self.is_service => Err("the service starts no passt".into()),
            Request::Probe => self.passt(subject).and_then(|_| Passt::probe().map_err(|cause| cause.to_string())).map(|()| vec![]),
            Request::Passt => self.start_passt(subject),
            Request::Forwarder if !self.is_service => self.forwarder(subject),
            _ if self.is_service => Err("the service opens NICs alone".into()),
            request => self.files(request, subject).map_err(|error| answer_of(&error)),
        }
    }

    /// The NIC of a segment: opened by the service, if one runs, else here.
    fn nic(&self, request: Request, segment: &str) -> Result<Vec<OwnedFd>, String> {
        let service = runtime_folder().join(format!("{}.nic", self.config.name));
        if !self.is_service && service.exists() {
            let asked = UnixStream::connect(&service).and_then(|stream| Conversation::new(stream).ask(request, segment));
            let files = asked.map_err(|cause| format!("the service at {} does not answer: {cause}", service.display()))?;
            return files.map(|files| files.into_iter().map(OwnedFd::from).collect());
        }
        let settings = self.settings_of(segment)?;
        if request == Request::Packet {
            return Here.packet(&settings).map(|socket| vec![socket.into_file().into()]);
        }
        let XdpFiles { socket, frames, link } = Here.xdp(&settings)?;
        Ok(vec![socket.into(), frames.into(), link.into()])
    }

    /// The NIC of a segment in the network's file. A file that announces NICs is read again, for a reload may have brought one; the
    /// network's process cannot write it.
    fn settings_of(&self, segment: &str) -> Result<PacketSettings, String> {
        let read;
        let config = match &self.file {
            Some(file) if Helper::is_needed_for_nics(&self.config) => {
                read = Config::load(file).map_err(|mistakes| mistakes.to_string())?;
                &read
            }
            _ => &self.config,
        };
        match config.uplinks.iter().find(|uplink| uplink.segment() == segment) {
            Some(UplinkConfig::Nic(NicConfig { nic, netns, .. })) => Ok(PacketSettings { name: nic.clone(), netns: netns.clone() }),
            _ => Err(format!("{} has no NIC for segment {segment:?}", self.told_file())),
        }
    }

    /// The passt of a port.
    fn passt(&self, subject: &str) -> Result<(String, Passt), String> {
        let PasstPort { port, mtu } = serde_json::from_str(subject).map_err(|error| error.to_string())?;
        let own = self.config.port(&port);
        match own.and_then(|own| Some((own, own.kind.passt()?))) {
            Some((own, arguments)) => Ok((port, way_out::passt(arguments, mtu, self.config.nat_of(own)))),
            None => Err(format!("{} has no passt port {port:?}", self.told_file())),
        }
    }

    fn start_passt(&mut self, subject: &str) -> Result<Vec<OwnedFd>, String> {
        let (port, passt) = self.passt(subject)?;
        // A port asks for the next one when it has no use for the last, which ends with its stream.
        if let Some(mut last) = self.started.remove(&port) {
            last.kill().and_then(|()| last.wait()).map_err(|cause| cause.to_string())?;
        }
        let (stream, log, child) = passt.spawn().map_err(|cause| cause.to_string())?;
        self.started.insert(port, child);
        Ok(vec![stream.into(), log.into()])
    }

    /// The forwarder of a segment, in place of the last one.
    fn forwarder(&mut self, segment: &str) -> Result<Vec<OwnedFd>, String> {
        let names = self.config.names.iter().find(|names| names.segment == segment);
        let resolvers = names.map(|names| names.resolvers.clone()).filter(|resolvers| !resolvers.is_empty());
        let resolvers = resolvers.ok_or_else(|| {
            let file = self.told_file();
            format!("{file} had no dns to forward to for segment {segment:?} when the helper read it: restart the network, or take it over (`memlane up --takeover`)")
        })?;
        // No port has such a name.
        let key = format!("dns:{segment}");
        if let Some(mut last) = self.started.remove(&key) {
            last.kill().and_then(|()| last.wait()).map_err(|cause| cause.to_string())?;
        }
        let (socket, child) = forwarder::spawn(&resolvers).map_err(|cause| cause.to_string())?;
        self.started.insert(key, child);
        Ok(vec![socket])
    }

    /// Sockets, and the state file.
    fn files(&mut self, request: Request, subject: &str) -> io::Result<Vec<OwnedFd>> {
        match request {
            Request::State => return self.state(serde_json::from_str(subject)?),
            Request::Record => return self.record(serde_json::from_str(subject)?).map(|()| Vec::new()),
            _ => {}
        }
        let Subject { path, mode, access, file, shared, before } = serde_json::from_str(subject)?;
        match request {
            Request::Folder => folder::provide_here(&path, shared)?,
            Request::Bind => return Ok(vec![self.border.bind(&path, mode.unwrap_or(Access::PRIVATE))?.into()]),
            Request::Connect => return Ok(vec![self.border.connect(&path)?.into()]),
            Request::Apply => {
                self.border.may_change(&path)?;
                access.unwrap_or_default().apply_here(&path, file, before)?;
            }
            _ => self.border.remove(&path, file.unwrap_or_default())?,
        }
        Ok(Vec::new())
    }

    fn state(&self, step: StateStep) -> io::Result<Vec<OwnedFd>> {
        let path = self.state.as_deref().ok_or_else(|| io::Error::other("the network has no state file"))?;
        Ok(match step {
            StateStep::Open => vec![state_file::open_here(path)?.into()],
            StateStep::Fresh => vec![state_file::fresh_here(path)?.into()],
            StateStep::Keep => state_file::keep_here(path).map(|()| vec![])?,
            StateStep::Drop => state_file::drop_here(path).map(|()| vec![])?,
            StateStep::Remove => std::fs::remove_file(path).map(|()| vec![])?,
        })
    }

    /// Makes the link to the control socket, or removes it, at the end, with the network's own folder.
    fn record(&mut self, is_up: bool) -> io::Result<()> {
        let (name, file) = (&self.config.name, self.file.as_deref());
        if is_up {
            self.record = Record::make_here(&self.config.control_socket(file), name, file)?;
        } else {
            self.record = None;
            folder::remove_of_network(&own_folder(name, file));
        }
        Ok(())
    }
}

/// Answers requests from `stream`, until its other end is closed.
///
/// # Errors
/// The other side violates the protocol, or is gone while it is answered.
pub fn answer_all(mut stream: &UnixStream, desk: &mut Desk) -> io::Result<()> {
    loop {
        let line = match read_line(stream) {
            // Another process of the network, which has taken it over, may use the link now.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                std::mem::forget(desk.record.take());
                return Ok(());
            }
            line => line?,
        };
        let answer = desk.answer(&line);
        desk.started.retain(|_, child| matches!(child.try_wait(), Ok(None)));
        match answer {
            Ok(files) => {
                stream.write_all(format!("{GRANTED}\n").as_bytes())?;
                takeover::send(stream, &files)?;
            }
            Err(sentence) => tell(stream, &sentence)?,
        }
    }
}

/// Tells the other side that the network's file has been read.
///
/// # Errors
/// The other side is gone.
pub fn begin(mut stream: &UnixStream) -> io::Result<()> {
    stream.write_all(format!("{READY}\n").as_bytes())
}

/// Sends a sentence as the answer.
///
/// # Errors
/// The other side is gone.
pub fn tell(mut stream: &UnixStream, sentence: &str) -> io::Result<()> {
    let mut sentence = sentence.replace('\n', " ");
    sentence.truncate(sentence.floor_char_boundary(LINE));
    stream.write_all(format!("{sentence}\n").as_bytes())
}
