//! xenstore: a tree of short texts that domains read, write and watch (`xen/docs/misc/xenstore.txt`,
//! `xen/include/public/io/xs_wire.h`).
//!
//! Paths that do not begin with a slash are those of our own domain. A message is a header of four numbers (kind, request,
//! transaction, length), then as many bytes, 4096 at most, of strings that end with a zero. A reply has the request's number;
//! watch events come in between.

#![expect(clippy::indexing_slicing, reason = "four bytes within the header")]

use std::collections::VecDeque;
use std::fmt::Debug;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use super::device::XenError;
use super::layer::Domain;

/// A watch event: `path`, or a path below it, has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The path that changed.
    pub path: String,
    /// The token with which the watch was set.
    pub token: String,
}

/// A connection to xenstore.
pub trait Store: Debug + Send {
    /// The text at `path`, if there is one.
    ///
    /// # Errors
    /// The connection is of no use any more.
    fn read(&mut self, path: &str) -> io::Result<Option<String>>;

    /// Names of the entries below `path`; none if it does not exist.
    ///
    /// # Errors
    /// The errors of [`Self::read`].
    fn list(&mut self, path: &str) -> io::Result<Vec<String>>;

    /// Writes `text` at `path`. A lack of permission is ignored.
    ///
    /// # Errors
    /// The errors of [`Self::read`].
    fn write(&mut self, path: &str, text: &str) -> io::Result<()>;

    /// Watches `path` and the paths below it: a first event at once, then one for each change, with this `token`.
    ///
    /// # Errors
    /// The errors of [`Self::read`].
    fn watch(&mut self, path: &str, token: &str) -> io::Result<()>;

    /// Removes a watch.
    ///
    /// # Errors
    /// The errors of [`Self::read`].
    fn unwatch(&mut self, path: &str, token: &str) -> io::Result<()>;

    /// Receives pending messages; to be called when the descriptor is readable.
    ///
    /// # Errors
    /// The errors of [`Self::read`].
    fn receive(&mut self) -> io::Result<()>;

    /// The oldest event that was received.
    fn next_event(&mut self) -> Option<Event>;

    /// Whether received events are pending: some arrive while a reply is awaited, and the descriptor does not become readable for
    /// those.
    fn has_events(&self) -> bool;

    /// The descriptor that becomes readable when a message arrives.
    fn descriptor(&self) -> BorrowedFd<'_>;
}

/// Kinds of messages (`enum xsd_sockmsg_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Directory = 1,
    Read = 2,
    Watch = 4,
    Unwatch = 5,
    Write = 11,
}

/// Watch events, a kind that only xenstored sends.
const EVENT: u32 = 15;
const ERROR: u32 = 16;
const HEADER: usize = 16;
/// Longest body (XENSTORE_PAYLOAD_MAX).
const MOST: usize = 4096;
/// Paths of xenstored's socket, then the kernel's own device.
const SOCKETS: [&str; 2] = ["/run/xenstored/socket", "/var/run/xenstored/socket"];
const DEVICE: &str = "/dev/xen/xenbus";

/// A connection to xenstored, by its socket or through the kernel.
#[derive(Debug)]
pub struct Xenstore {
    file: File,
    request: u32,
    events: VecDeque<Event>,
}

impl Xenstore {
    /// Connects.
    ///
    /// # Errors
    /// There is no xenstored.
    pub fn connect() -> Result<Self, XenError> {
        let file = SOCKETS.iter().find_map(|path| UnixStream::connect(path).ok()).map(|stream| File::from(OwnedFd::from(stream)));
        let file = match file {
            Some(file) => file,
            None => OpenOptions::new().read(true).write(true).open(DEVICE).map_err(XenError::Store)?,
        };
        Ok(Self::over(file))
    }

    /// A connection over `file`.
    fn over(file: File) -> Self {
        Self { file, request: 0, events: VecDeque::new() }
    }

    /// The number of our own domain.
    ///
    /// # Errors
    /// xenstored does not tell it.
    pub(crate) fn own_domain(&mut self) -> Result<Domain, XenError> {
        // dom0 may have no such key.
        let text = self.read("domid").map_err(XenError::Store)?;
        Ok(text.and_then(|text| text.trim().parse().ok()).unwrap_or(0))
    }

    /// Sends a request and waits for its reply: the body, or the error that xenstored names.
    fn ask(&mut self, kind: Kind, parts: &[&[u8]]) -> io::Result<Result<Vec<u8>, String>> {
        let body = parts.concat();
        if body.len() > MOST {
            return Ok(Err("E2BIG".into()));
        }
        self.request = self.request.wrapping_add(1);
        let mut message: Vec<u8> =
            [kind as u32, self.request, 0, body.len() as u32].iter().flat_map(|number| number.to_ne_bytes()).collect();
        message.extend(body);
        self.file.write_all(&message)?;
        loop {
            let (kind, request, body) = self.message()?;
            match kind {
                EVENT => self.note(&body),
                _ if request != self.request => {}
                ERROR => return Ok(Err(texts(&body).into_iter().next().unwrap_or_default())),
                _ => return Ok(Ok(body)),
            }
        }
    }

    /// The next message: its kind, its request, its body.
    fn message(&mut self) -> io::Result<(u32, u32, Vec<u8>)> {
        let mut header = [0; HEADER];
        self.file.read_exact(&mut header)?;
        let number = |at: usize| u32::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let length = number(12) as usize;
        if length > MOST {
            return Err(io::Error::new(ErrorKind::InvalidData, "a message of xenstore is too long"));
        }
        let mut body = vec![0; length];
        self.file.read_exact(&mut body)?;
        Ok((number(0), number(4), body))
    }

    fn note(&mut self, body: &[u8]) {
        let mut texts = texts(body).into_iter();
        if let (Some(path), Some(token)) = (texts.next(), texts.next()) {
            self.events.push_back(Event { path, token });
        }
    }
}

/// The strings of a body, each ended by a zero. Bytes that are no UTF-8 are replaced.
fn texts(body: &[u8]) -> Vec<String> {
    let mut parts: Vec<String> = body.split(|&byte| byte == 0).map(|part| String::from_utf8_lossy(part).into_owned()).collect();
    // The split leaves an empty string behind the last zero.
    if parts.last().is_some_and(String::is_empty) {
        parts.pop();
    }
    parts
}

impl Store for Xenstore {
    fn read(&mut self, path: &str) -> io::Result<Option<String>> {
        let answer = self.ask(Kind::Read, &[path.as_bytes(), b"\0"])?;
        Ok(answer.ok().map(|body| String::from_utf8_lossy(&body).trim_end_matches('\0').to_owned()))
    }

    fn list(&mut self, path: &str) -> io::Result<Vec<String>> {
        Ok(self.ask(Kind::Directory, &[path.as_bytes(), b"\0"])?.map(|body| texts(&body)).unwrap_or_default())
    }

    fn write(&mut self, path: &str, text: &str) -> io::Result<()> {
        self.ask(Kind::Write, &[path.as_bytes(), b"\0", text.as_bytes()]).map(drop)
    }

    fn watch(&mut self, path: &str, token: &str) -> io::Result<()> {
        self.ask(Kind::Watch, &[path.as_bytes(), b"\0", token.as_bytes(), b"\0"]).map(drop)
    }

    fn unwatch(&mut self, path: &str, token: &str) -> io::Result<()> {
        self.ask(Kind::Unwatch, &[path.as_bytes(), b"\0", token.as_bytes(), b"\0"]).map(drop)
    }

    fn receive(&mut self) -> io::Result<()> {
        let (kind, _, body) = self.message()?;
        if kind == EVENT {
            self.note(&body);
        }
        Ok(())
    }

    fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u32, request: u32, body: &[u8]) -> Vec<u8> {
        let header = [kind, request, 0, body.len() as u32];
        header.iter().flat_map(|number| number.to_ne_bytes()).chain(body.iter().copied()).collect()
    }

    /// Answers the first request with `answers`; returns that request.
    fn meet(answers: Vec<u8>) -> (Xenstore, std::thread::JoinHandle<Vec<u8>>) {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let daemon = std::thread::spawn(move || {
            let mut asked = vec![0; 1024];
            let count = theirs.read(&mut asked).unwrap();
            theirs.write_all(&answers).unwrap();
            asked.truncate(count);
            asked
        });
        (Xenstore::over(File::from(OwnedFd::from(ours))), daemon)
    }

    #[test]
    fn an_answer_is_found_behind_events() {
        let answers = [message(EVENT, 0, b"backend/vif/1\0be\0"), message(2, 99, b"not mine"), message(2, 1, b"4")].concat();
        let (mut store, daemon) = meet(answers);
        assert_eq!(store.read("backend/vif/1/0/state").unwrap().as_deref(), Some("4"));
        assert_eq!(daemon.join().unwrap(), message(2, 1, b"backend/vif/1/0/state\0"));
        assert!(store.has_events());
        assert_eq!(store.next_event(), Some(Event { path: "backend/vif/1".into(), token: "be".into() }));
        assert_eq!(store.next_event(), None);
    }

    #[test]
    fn what_is_not_there_is_nothing_and_lists_end_where_they_end() {
        let (mut store, daemon) = meet(message(ERROR, 1, b"ENOENT\0"));
        assert_eq!(store.read("domid").unwrap(), None);
        daemon.join().unwrap();
        let (mut store, daemon) = meet(message(1, 1, b"0\x001\0"));
        assert_eq!(store.list("backend/vif/1").unwrap(), ["0", "1"]);
        daemon.join().unwrap();
    }

    #[test]
    fn a_message_that_is_too_long_ends_the_connection() {
        let (mut store, daemon) = meet(message(2, 1, &[7; MOST + 1]));
        assert_eq!(store.read("a").unwrap_err().kind(), ErrorKind::InvalidData);
        daemon.join().unwrap();
    }
}
