//! Error responses: an HTTP status, and the cause as JSON.

use std::collections::HashSet;
use std::fmt;

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::Mistakes;
use crate::daemon::{ChangeError, NoSuchPort, StartError};
use crate::quantity::counted;

/// Beginnings of keys that name an element of a list.
const ENTRIES: [&str; 3] = ["port[", "ports[", "segment["];

/// Why a request failed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Problem {
    /// One sentence: the cause, and the remedy.
    pub error: String,
    /// All mistakes in the request.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mistakes: Vec<KeyMistake>,
}

/// A mistake in a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KeyMistake {
    /// The key, as `mac` or `port[0].mac`; empty for the whole.
    pub key: String,
    /// The mistake, and the correct form.
    pub text: String,
}

impl fmt::Display for Problem {
    /// The sentence, and each mistake that it does not contain in a line of its own; a mistake with several causes is printed
    /// once.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.error)?;
        let mut told = HashSet::new();
        let untold = self.mistakes.iter().filter(|mistake| !self.error.contains(&mistake.text));
        untold.filter(|mistake| told.insert(&mistake.text)).try_for_each(|mistake| write!(f, "\n  {mistake}"))
    }
}

impl fmt::Display for KeyMistake {
    /// The text names its key; the key names the port or segment.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.key.split_once(']') {
            Some((entry, _)) if ENTRIES.iter().any(|list| entry.starts_with(list)) => write!(f, "{entry}]: {}", self.text),
            _ => f.write_str(&self.text),
        }
    }
}

/// A [`Problem`] and its status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// HTTP status.
    pub status: StatusCode,
    /// The body.
    pub problem: Problem,
}

impl Refusal {
    /// A refusal with one cause.
    pub fn new(status: StatusCode, error: impl fmt::Display) -> Self {
        Self { status, problem: Problem { error: error.to_string(), mistakes: Vec::new() } }
    }

    /// A refusal of a request with mistakes in these keys.
    pub fn mistaken(status: StatusCode, mistakes: Vec<(String, String)>) -> Self {
        let mistakes: Vec<KeyMistake> = mistakes.into_iter().map(|(key, text)| KeyMistake { key, text }).collect();
        let error = match &mistakes[..] {
            [one] => one.to_string(),
            several => format!("nothing was changed, because the request has {}:", counted(several.len(), "mistake")),
        };
        Self { status, problem: Problem { error, mistakes } }
    }

    /// The same, about element `index` of the request's list `ports`.
    #[must_use]
    pub fn of_port(mut self, index: usize) -> Self {
        for mistake in &mut self.problem.mistakes {
            mistake.key = format!("ports[{index}].{}", mistake.key).trim_end_matches('.').into();
        }
        if let [one] = &self.problem.mistakes[..] {
            self.problem.error = one.to_string();
        }
        self
    }

    /// A refusal because the network is ending, or has ended.
    pub fn ending() -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "the network is shutting down")
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
        assert_eq!(
            told(&several),
            "nothing was changed, because the request has 4 mistakes:\n  mtu is 3\n  port[4]: mac is 7\n  no object"
        );
    }
}
