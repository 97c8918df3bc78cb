//! The other side of the control socket, for the commands.

use std::path::{Path, PathBuf};
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::ControlError;
use super::api::UNSAVED;
use super::problem::{Problem, Refusal};

/// Longest wait for what is only looked at, and for a change.
const LOOK: Duration = Duration::from_secs(5);
const CHANGE: Duration = Duration::from_secs(60);

/// Who asks at a control socket.
#[derive(Clone, Debug)]
pub struct Client {
    path: PathBuf,
    /// How long an answer may take, where that is not as usual.
    patience: Option<Duration>,
    tell: fn(&str),
}

impl Client {
    /// Who asks at the socket `path`; each question connects anew.
    pub fn new(path: &Path) -> Self {
        Self { path: path.into(), patience: None, tell: |_| {} }
    }

    /// Has answers take so long at most.
    pub fn within(self, patience: Duration) -> Self {
        Self { patience: Some(patience), ..self }
    }

    /// Has `tell` called with the sentence for an answer whose change is applied but not saved.
    pub fn telling(self, tell: fn(&str)) -> Self {
        Self { tell, ..self }
    }

    /// The socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Asks for what is at `uri`.
    ///
    /// # Errors
    /// [`ControlError::Unreachable`], [`ControlError::Silent`], [`ControlError::Answer`], [`ControlError::Refused`], [`ControlError::System`].
    pub fn get<A: DeserializeOwned>(&self, uri: &str) -> Result<A, ControlError> {
        self.ask(Method::GET, uri, None::<&()>)
    }

    /// Sends `body`, or nothing, to `uri`.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub fn ask<A: DeserializeOwned>(&self, method: Method, uri: &str, body: Option<&impl Serialize>) -> Result<A, ControlError> {
        let nonsense = |error: serde_json::Error| ControlError::Answer(error.to_string());
        let body = body.map(serde_json::to_vec).transpose().map_err(nonsense)?.unwrap_or_default();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let patience = self.patience.unwrap_or(if method == Method::GET { LOOK } else { CHANGE });
        let silent = |_| ControlError::Silent { path: self.path.clone(), seconds: patience.as_secs() };
        let answer =
            runtime.block_on(async { tokio::time::timeout(patience, self.fetch(method, uri, body)).await.map_err(silent)? })?;
        serde_json::from_slice(&answer).map_err(nonsense)
    }

    async fn fetch(&self, method: Method, uri: &str, body: Vec<u8>) -> Result<Vec<u8>, ControlError> {
        let unreachable = |cause| ControlError::Unreachable { path: self.path.clone(), cause };
        let nonsense = |error: hyper::Error| ControlError::Answer(error.to_string());
        let stream = tokio::net::UnixStream::connect(&self.path).await.map_err(unreachable)?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(nonsense)?;
        tokio::spawn(connection);
        let request = Request::builder().method(method).uri(uri);
        let request = request.header("host", "memlane").header("content-type", "application/json");
        let request = request.body(Full::new(Bytes::from(body))).map_err(|error| ControlError::Answer(error.to_string()))?;
        let response = sender.send_request(request).await.map_err(nonsense)?;
        let status = response.status();
        if let Some(unsaved) = response.headers().get(UNSAVED) {
            (self.tell)(&String::from_utf8_lossy(unsaved.as_bytes()));
        }
        let answer = response.into_body().collect().await.map_err(nonsense)?.to_bytes().to_vec();
        if status.is_success() {
            return Ok(answer);
        }
        let plain = |_| Problem { error: String::from_utf8_lossy(&answer).into_owned(), mistakes: Vec::new() };
        let problem = serde_json::from_slice(&answer).unwrap_or_else(plain);
        Err(ControlError::Refused(Refusal { status, problem }))
    }
}

/// A name as it stands in a path: what is not plain is written as its bytes.
pub fn name_in_path(name: &str) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(byte);
    name.bytes().map(|byte| if plain(&byte) { char::from(byte).into() } else { format!("%{byte:02X}") }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_any_characters_stand_in_a_path() {
        assert_eq!(name_in_path("web-1.x_y"), "web-1.x_y");
        assert_eq!(name_in_path("a b/ü"), "a%20b%2F%C3%BC");
    }
}
