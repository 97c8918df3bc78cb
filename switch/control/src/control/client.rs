//! Client of the control socket, for the commands.

use std::error::Error;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::http::{HeaderValue, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::api::{FILE, UNSAVED};
use super::error::ControlError;
use super::identity::NetFile;
use super::problem::{Problem, Refusal};
use super::report::PortView;
use super::routes::ORIGIN;
use super::running;
use crate::config::PortOrigin;

/// Most bytes of a response: a network with the most ports sends fewer.
const MOST_BYTES: usize = 64 << 20;

/// Timeouts of requests that only read, and of changes.
const LOOK: Duration = Duration::from_secs(5);
const CHANGE: Duration = Duration::from_secs(60);
/// Pause before the next attempt to connect.
const PAUSE: Duration = Duration::from_millis(10);

/// A client of one control socket.
#[derive(Clone, Debug)]
pub struct Client {
    path: PathBuf,
    /// Timeout of a response, if it is not the usual one.
    timeout: Option<Duration>,
    tell: fn(&str),
    hint: fn(&NetFile) -> String,
    file: Option<NetFile>,
    most_bytes: usize,
    user: Option<u32>,
}

/// The process that listens at a control socket, from the kernel (SO_PEERCRED).
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// User id of the process.
    pub user: u32,
    /// Process id; none if it is in another PID namespace.
    pub pid: Option<u32>,
}

impl Client {
    /// A client of the socket `path`; each request opens a new connection.
    pub fn new(path: &Path) -> Self {
        Self {
            path: path.into(),
            timeout: None,
            tell: |_| {},
            hint: |_| String::new(),
            file: None,
            most_bytes: MOST_BYTES,
            user: None,
        }
    }

    /// Sets the timeout of responses.
    pub fn within(self, timeout: Duration) -> Self {
        Self { timeout: Some(timeout), ..self }
    }

    /// Limits the bytes read of a response.
    pub(super) fn reading(self, most_bytes: usize) -> Self {
        Self { most_bytes, ..self }
    }

    /// Sends requests only to a process of `user`, if one is given.
    pub(super) fn of_user(self, user: Option<u32>) -> Self {
        Self { user, ..self }
    }

    /// Has requests refused by a network of another file than `file`.
    pub fn about(self, file: Option<NetFile>) -> Self {
        Self { file, ..self }
    }

    /// Calls `tell` with a warning for a change that is applied but not saved.
    pub fn telling(self, tell: fn(&str)) -> Self {
        Self { tell, ..self }
    }

    /// Adds the sentence that `hint` returns to the error of a network of this file that cannot be reached.
    pub fn hinting(self, hint: fn(&NetFile) -> String) -> Self {
        Self { hint, ..self }
    }

    /// The socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the resource at `uri`.
    ///
    /// # Errors
    /// [`ControlError::Unreachable`], [`ControlError::Silent`], [`ControlError::Answer`], [`ControlError::Refused`],
    /// [`ControlError::System`].
    pub fn get<A: DeserializeOwned>(&self, uri: &str) -> Result<A, ControlError> {
        self.ask(Method::GET, uri, None::<&()>)
    }

    /// Sends a request with `body`, or without one, to `uri`.
    ///
    /// # Errors
    /// The errors of [`Self::get`].
    pub fn ask<A: DeserializeOwned>(&self, method: Method, uri: &str, body: Option<&impl Serialize>) -> Result<A, ControlError> {
        let nonsense = |error: serde_json::Error| ControlError::Answer(error.to_string());
        let body = body.map(serde_json::to_vec).transpose().map_err(nonsense)?.unwrap_or_default();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let timeout = self.timeout.unwrap_or(if method == Method::GET { LOOK } else { CHANGE });
        let silent = |_| ControlError::Silent { path: self.path.clone(), seconds: timeout.as_secs() };
        let answer =
            runtime.block_on(async { tokio::time::timeout(timeout, self.fetch(method, uri, body)).await.map_err(silent)? });
        let (answer, _) = answer.map_err(|error| self.hinted(error))?;
        serde_json::from_slice(&answer).map_err(nonsense)
    }

    /// Attaches a port of this origin; without it at a network of an earlier version, before its takeover.
    ///
    /// # Errors
    /// The errors of [`Self::get`].
    pub fn attach(&self, mut entry: Map<String, Value>, origin: &PortOrigin) -> Result<PortView, ControlError> {
        entry.insert(ORIGIN.into(), serde_json::to_value(origin).map_err(|error| ControlError::Answer(error.to_string()))?);
        let attached = self.ask(Method::POST, "/v1/ports", Some(&entry));
        let is_unknown = |refusal: &Refusal| refusal.problem.mistakes.iter().any(|mistake| mistake.key == ORIGIN);
        match attached {
            Err(ControlError::Refused(refusal)) if is_unknown(&refusal) => {
                entry.remove(ORIGIN);
                self.ask(Method::POST, "/v1/ports", Some(&entry))
            }
            attached => attached,
        }
    }

    /// `error`, with a hint if the network cannot be reached.
    fn hinted(&self, mut error: ControlError) -> ControlError {
        if error.is_no_listener()
            && let Some(holder) = running::holder(&self.path, self.file.as_ref())
        {
            return ControlError::Lost { path: self.path.clone(), holder };
        }
        if let (ControlError::Unreachable { hint, .. }, Some(file)) = (&mut error, &self.file) {
            *hint = (self.hint)(file);
        }
        error
    }

    async fn connect(&self) -> io::Result<tokio::net::UnixStream> {
        loop {
            match tokio::net::UnixStream::connect(&self.path).await {
                // The listen queue is full.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => tokio::time::sleep(PAUSE).await,
                result => return result,
            }
        }
    }

    /// Like [`Self::ask`]; returns the raw response and the process that sent it.
    ///
    /// # Errors
    /// The errors of [`Self::get`].
    pub(super) async fn fetch(&self, method: Method, uri: &str, body: Vec<u8>) -> Result<(Vec<u8>, Peer), ControlError> {
        let (response, peer) = self.open(method, uri, "application/json", body).await?;
        Ok((self.read(response).await?, peer))
    }

    /// Calls `part` with each part of a streaming response, until it returns false, the response ends, or the user interrupts
    /// (Ctrl-C). Sends `body`, if there is one. Another process may serve the network after [`StreamEnd::Cut`] (takeover).
    ///
    /// # Errors
    /// The errors of [`Self::get`], and the error of `part`.
    pub fn follow<E: From<ControlError>>(
        &self,
        uri: &str,
        accept: &str,
        body: Option<&serde_json::Value>,
        mut part: impl FnMut(&[u8]) -> Result<bool, E>,
    ) -> Result<StreamEnd, E> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(ControlError::from)?;
        let (method, body) = body.map_or((Method::GET, Vec::new()), |body| (Method::POST, body.to_string().into_bytes()));
        let silent = |_| ControlError::Silent { path: self.path.clone(), seconds: CHANGE.as_secs() };
        let open = async { tokio::time::timeout(CHANGE, self.open(method, uri, accept, body)).await.map_err(silent)? };
        let (response, _) = runtime.block_on(open).map_err(|error| self.hinted(error))?;
        runtime.block_on(async {
            if !response.status().is_success() {
                return self.read(response).await.map(|_| StreamEnd::Complete).map_err(E::from);
            }
            let mut body = response.into_body();
            let mut interrupt = std::pin::pin!(tokio::signal::ctrl_c());
            loop {
                let frame = tokio::select! {
                    frame = body.frame() => frame,
                    _ = &mut interrupt => return Ok(StreamEnd::Complete),
                };
                match frame {
                    None => return Ok(StreamEnd::Complete),
                    Some(Ok(frame)) => {
                        if let Ok(data) = frame.into_data()
                            && !part(&data)?
                        {
                            return Ok(StreamEnd::Complete);
                        }
                    }
                    Some(Err(error)) if is_end(&error) => return Ok(StreamEnd::Cut),
                    Some(Err(error)) => return Err(self.unanswered(&error).into()),
                }
            }
        })
    }

    /// Makes a connection to the process a plain stream of `protocol`, by a request to `uri`.
    ///
    /// # Errors
    /// The errors of [`Self::get`].
    pub fn upgrade(&self, uri: &str, protocol: &str, more: Option<(&str, &str)>) -> Result<UnixStream, ControlError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let silent = |_| ControlError::Silent { path: self.path.clone(), seconds: LOOK.as_secs() };
        let upgraded = async {
            let headers: Vec<_> = [("connection", "upgrade"), ("upgrade", protocol)].into_iter().chain(more).collect();
            let (response, _) = self.send(Method::POST, uri, &headers, Vec::new()).await?;
            if response.status() != StatusCode::SWITCHING_PROTOCOLS {
                let answer = self.read(response).await?;
                return Err(ControlError::Answer(String::from_utf8_lossy(&answer).into_owned()));
            }
            let upgraded = hyper::upgrade::on(response).await.map_err(|error| self.unanswered(&error))?;
            let foreign = |_| ControlError::Answer("the connection is no Unix socket".into());
            let parts = upgraded.downcast::<TokioIo<tokio::net::UnixStream>>().map_err(foreign)?;
            let stream = parts.io.into_inner().into_std()?;
            stream.set_nonblocking(false)?;
            Ok(stream)
        };
        let result = runtime.block_on(async { tokio::time::timeout(LOOK, upgraded).await.map_err(silent)? });
        result.map_err(|error| self.hinted(error))
    }

    fn unanswered(&self, error: &(dyn Error + 'static)) -> ControlError {
        match is_end(error) {
            true => ControlError::Ended { path: self.path.clone() },
            false => ControlError::Answer(error.to_string()),
        }
    }

    /// Sends a request; returns the response unread, and the process that sent it.
    async fn open(
        &self,
        method: Method,
        uri: &str,
        accept: &str,
        body: Vec<u8>,
    ) -> Result<(Response<Incoming>, Peer), ControlError> {
        self.send(method, uri, &[("accept", accept), ("content-type", "application/json")], body).await
    }

    async fn send(
        &self,
        method: Method,
        uri: &str,
        headers: &[(&str, &str)],
        body: Vec<u8>,
    ) -> Result<(Response<Incoming>, Peer), ControlError> {
        let unreachable = |cause| ControlError::Unreachable { path: self.path.clone(), cause, hint: String::new() };
        let unanswered = |error: &(dyn Error + 'static)| self.unanswered(error);
        let stream = self.connect().await.map_err(unreachable)?;
        let credentials = stream.peer_cred()?;
        let pid = credentials.pid().and_then(|pid| u32::try_from(pid).ok()).filter(|&pid| pid != 0);
        let peer = Peer { user: credentials.uid(), pid };
        if self.user.is_some_and(|user| user != peer.user) {
            return Err(ControlError::Answer("the process that listens there belongs to another user".into()));
        }
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|error| unanswered(&error))?;
        tokio::spawn(connection.with_upgrades());
        let request = Request::builder().method(method).uri(uri).header("host", "memlane");
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        // A path that fits no header is not compared.
        let file = self.file.as_ref().and_then(|file| serde_json::to_vec(file).ok());
        let file = file.and_then(|file| HeaderValue::from_bytes(&file).ok());
        let request = file.into_iter().fold(request, |request, file| request.header(FILE, file));
        let request = request.body(Full::new(Bytes::from(body))).map_err(|error| ControlError::Answer(error.to_string()))?;
        let response = sender.send_request(request).await.map_err(|error| unanswered(&error))?;
        Ok((response, peer))
    }

    /// Reads a whole response.
    async fn read(&self, response: Response<Incoming>) -> Result<Vec<u8>, ControlError> {
        let status = response.status();
        if let Some(unsaved) = response.headers().get(UNSAVED) {
            (self.tell)(&String::from_utf8_lossy(unsaved.as_bytes()));
        }
        let body = Limited::new(response.into_body(), self.most_bytes).collect().await;
        let body = body.map_err(|error| self.unanswered(error.as_ref()))?;
        let answer = body.to_bytes().to_vec();
        if status.is_success() {
            return Ok(answer);
        }
        let plain = |_| Problem { error: String::from_utf8_lossy(&answer).into_owned(), mistakes: Vec::new() };
        let problem = serde_json::from_slice(&answer).unwrap_or_else(plain);
        Err(ControlError::Refused(Refusal { status, problem }))
    }
}

/// How a streaming response has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamEnd {
    /// With its last part, or as the user wanted.
    Complete,
    /// The process that sent it has ended: the network has, or another process has taken it over.
    Cut,
}

/// Pause before the process is asked that has taken the network over.
const SUCCESSION: Duration = Duration::from_millis(20);

impl StreamEnd {
    /// Whether to ask again after a response that `ended`, and after a pause: another process may have taken the network over. If it has ended
    /// instead, asking `again` fails, before the first part of a response (`is_silent`).
    ///
    /// # Errors
    /// The error of the response, if it is no end of the network.
    pub fn goes_on<E>(ended: Result<Self, E>, again: bool, is_silent: bool) -> Result<bool, E> {
        match ended {
            Ok(Self::Complete) => Ok(false),
            Ok(Self::Cut) => {
                std::thread::sleep(SUCCESSION);
                Ok(true)
            }
            Err(_) if again && is_silent => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Whether `error` means that the connection was closed in the middle of the response.
fn is_end(error: &(dyn Error + 'static)) -> bool {
    let is_cut = error.downcast_ref().is_some_and(|error: &hyper::Error| error.is_incomplete_message() || error.is_canceled());
    let closed = [io::ErrorKind::ConnectionReset, io::ErrorKind::BrokenPipe, io::ErrorKind::UnexpectedEof];
    is_cut
        || error.downcast_ref().is_some_and(|error: &io::Error| closed.contains(&error.kind()))
        || error.source().is_some_and(is_end)
}

/// A name as part of a path: percent-encoded, except for unreserved characters.
pub fn name_in_path(name: &str) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(byte);
    name.bytes().map(|byte| if plain(&byte) { char::from(byte).into() } else { format!("%{byte:02X}") }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_users_process_is_sent_nothing() {
        use std::io::Read;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let another = nix::unistd::geteuid().as_raw() + 1;
        let refused = Client::new(&path).of_user(Some(another)).get::<serde_json::Value>("/v1/identity").unwrap_err();
        assert!(refused.to_string().contains("belongs to another user"), "{refused}");
        let mut sent = Vec::new();
        listener.accept().unwrap().0.read_to_end(&mut sent).unwrap();
        assert_eq!(sent, b"");
    }

    #[test]
    fn a_network_that_ends_before_its_answer_is_told_as_that() {
        use std::io::{Read, Write};
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        for begun in ["", "HTTP/1.1 200 OK\r\ncontent-", "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{"] {
            let client = Client::new(&path);
            let asks = std::thread::spawn(move || client.get::<serde_json::Value>("/v1/identity").unwrap_err());
            let mut stream = listener.accept().unwrap().0;
            assert_ne!(stream.read(&mut [0; 4096]).unwrap(), 0);
            stream.write_all(begun.as_bytes()).unwrap();
            drop(stream);
            let told = asks.join().unwrap();
            assert!(matches!(told, ControlError::Ended { .. }), "{begun:?}: {told}");
        }
    }

    #[test]
    fn names_with_any_characters_stand_in_a_path() {
        assert_eq!(name_in_path("web-1.x_y"), "web-1.x_y");
        assert_eq!(name_in_path("a b/ü"), "a%20b%2F%C3%BC");
    }
}
