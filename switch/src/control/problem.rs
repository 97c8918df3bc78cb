//! What is answered when something cannot be done: a status of HTTP and, as JSON, why.

use std::fmt;

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::Mistakes;
use crate::daemon::{ChangeError, NoSuchPort, StartError};

/// Why something was not done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Problem {
    /// One sentence: the cause, and what to do about it.
    pub error: String,
    /// What is wrong with what was sent, all of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mistakes: Vec<KeyMistake>,
}

/// What is wrong with a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KeyMistake {
    /// The key, as `mac` or `port[0].mac`; empty for the whole.
    pub key: String,
    /// What is wrong, and what would be right.
    pub text: String,
}

impl fmt::Display for Problem {
    /// With the mistakes, each in a line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.error)?;
        self.mistakes.iter().try_for_each(|KeyMistake { key, text }| {
            let last = key.rsplit('.').next().unwrap_or(key);
            match text.strip_prefix(last) {
                // Most texts begin with the key, which needs not be said twice.
                Some(_) if key == last => write!(f, "\n  {text}"),
                Some(rest) => write!(f, "\n  {key}{rest}"),
                None => write!(f, "\n  {key}: {text}"),
            }
        })
    }
}

/// A [`Problem`] and its status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Of HTTP.
    pub status: StatusCode,
    /// Why.
    pub problem: Problem,
}

impl Refusal {
    /// A refusal for one reason.
    pub fn new(status: StatusCode, error: impl fmt::Display) -> Self {
        Self { status, problem: Problem { error: error.to_string(), mistakes: Vec::new() } }
    }

    /// What was sent is mistaken in these keys.
    pub fn mistaken(status: StatusCode, mistakes: Vec<(String, String)>) -> Self {
        let error = match mistakes.len() {
            1 => "there is a mistake in what was sent".into(),
            count => format!("there are {count} mistakes in what was sent"),
        };
        let mistakes = mistakes.into_iter().map(|(key, text)| KeyMistake { key, text }).collect();
        Self { status, problem: Problem { error, mistakes } }
    }

    /// The network is about to end, or has.
    pub fn ending() -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "the network ends")
    }
}

impl From<Mistakes> for Refusal {
    fn from(mistakes: Mistakes) -> Self {
        let list = mistakes.list.into_iter().map(|mistake| (mistake.key, mistake.text)).collect();
        Self::mistaken(StatusCode::UNPROCESSABLE_ENTITY, list)
    }
}

impl From<NoSuchPort> for Refusal {
    fn from(error: NoSuchPort) -> Self {
        Self::new(StatusCode::NOT_FOUND, error)
    }
}

impl From<ChangeError> for Refusal {
    fn from(error: ChangeError) -> Self {
        match error {
            ChangeError::NoSuchPort(error) => error.into(),
            error => Self::new(StatusCode::CONFLICT, error),
        }
    }
}

impl From<StartError> for Refusal {
    fn from(error: StartError) -> Self {
        match error {
            StartError::System(_) => Self::new(StatusCode::INTERNAL_SERVER_ERROR, error),
            error => Self::new(StatusCode::CONFLICT, error),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.problem.fmt(f)
    }
}

impl std::error::Error for Refusal {}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.status, Json(self.problem)).into_response()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistake_says_its_key_once() {
        let list =
            [("mtu", "mtu is 3; it can be 68"), ("name", "'a b' is no name"), ("port[0].mac", "mac: bad"), ("", "no object")];
        let list = list.map(|(key, text)| (key.to_owned(), text.to_owned()));
        let told = Refusal::mistaken(StatusCode::UNPROCESSABLE_ENTITY, list.to_vec()).to_string();
        let lines: Vec<&str> = told.lines().map(str::trim).collect();
        assert_eq!(
            lines,
            [
                "there are 4 mistakes in what was sent",
                "mtu is 3; it can be 68",
                "name: 'a b' is no name",
                "port[0].mac: bad",
                "no object"
            ]
        );
    }
}
