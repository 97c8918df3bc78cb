//! What is answered when something cannot be done: a status of HTTP and, as JSON, why.

use std::collections::HashSet;
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
    /// With the mistakes that it does not tell itself, each in a line; one that is made of several things is told once.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.error)?;
        let mut told = HashSet::new();
        let untold = self.mistakes.iter().filter(|mistake| !self.error.contains(&mistake.text));
        untold.filter(|mistake| told.insert(&mistake.text)).try_for_each(|mistake| write!(f, "\n  {mistake}"))
    }
}

impl fmt::Display for KeyMistake {
    /// A text says its key; of which port or segment, the key does.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.key.split_once(']') {
            Some((entry, _)) if entry.starts_with("port[") || entry.starts_with("segment[") => write!(f, "{entry}]: {}", self.text),
            _ => f.write_str(&self.text),
        }
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
        let mistakes: Vec<KeyMistake> = mistakes.into_iter().map(|(key, text)| KeyMistake { key, text }).collect();
        let error = match &mistakes[..] {
            [one] => one.to_string(),
            several => format!("{} mistakes, for which nothing was changed:", several.len()),
        };
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
    fn one_mistake_is_a_sentence_and_several_are_a_list() {
        let told = |list: &[(&str, &str)]| {
            let list = list.iter().map(|(key, text)| ((*key).to_owned(), (*text).to_owned())).collect();
            Refusal::mistaken(StatusCode::UNPROCESSABLE_ENTITY, list).to_string()
        };
        assert_eq!(told(&[("mtu", "mtu is 3")]), "mtu is 3");
        assert_eq!(told(&[("port[0].mtu", "mtu is 3")]), "port[0]: mtu is 3");
        let several = [("mtu", "mtu is 3"), ("port[4].mac", "mac is 7"), ("port[5].mac", "mac is 7"), ("", "no object")];
        assert_eq!(told(&several), "4 mistakes, for which nothing was changed:\n  mtu is 3\n  port[4]: mac is 7\n  no object");
    }
}
