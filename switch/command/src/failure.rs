//! Failures of commands, and their exit codes.

use std::fmt;

use crate::config::Mistakes;
use crate::control::ControlError;

/// Why a command fails.
#[derive(Debug)]
pub enum Failure {
    /// Exit code 1.
    Running(String),
    /// Exit code 2.
    Configuration(String),
    /// Exit code 3; the findings are printed already.
    Lacking,
}

impl Failure {
    /// An error while the command ran.
    pub fn running(cause: impl fmt::Display) -> Self {
        Self::Running(cause.to_string())
    }

    /// The cause in words; empty if it was printed already.
    pub fn text(&self) -> &str {
        match self {
            Self::Running(text) | Self::Configuration(text) => text,
            Self::Lacking => "",
        }
    }
}

impl From<Mistakes> for Failure {
    fn from(mistakes: Mistakes) -> Self {
        Self::Configuration(mistakes.to_string())
    }
}

impl From<ControlError> for Failure {
    fn from(error: ControlError) -> Self {
        match error {
            // An invalid request, as an invalid file.
            ControlError::Refused(refusal) if refusal.status == axum::http::StatusCode::UNPROCESSABLE_ENTITY => {
                Self::Configuration(refusal.to_string())
            }
            error => Self::running(error),
        }
    }
}
