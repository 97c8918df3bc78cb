//! Errors of the plugin: a code and a sentence, as JSON on standard output (CNI specification 1.1, section 5).

use std::fmt;

use serde_json::{Value, json};

use crate::control::ControlError;

/// Codes of the specification; those from 100 on are the plugin's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Code {
    IncompatibleVersion = 1,
    InvalidEnvironment = 4,
    Io = 5,
    Undecodable = 6,
    InvalidConfiguration = 7,
    TryAgainLater = 11,
    NotAvailable = 50,
    /// The container has an interface of this name.
    InterfaceExists = 100,
    /// The network refuses the port.
    Refused = 101,
    /// The attachment is not as the result of ADD said.
    Check = 102,
}

/// An error of this plugin, or of the plugin that it delegated to.
#[derive(Debug)]
pub(super) enum CniError {
    Own { code: Code, text: String },
    Delegated(Value),
}

impl CniError {
    pub(super) fn new(code: Code, text: impl fmt::Display) -> Self {
        Self::Own { code, text: text.to_string() }
    }

    /// Whether the network does not answer.
    pub(super) fn is_for_later(&self) -> bool {
        matches!(self, Self::Own { code: Code::TryAgainLater, .. })
    }

    /// The object that the runtime reads.
    pub(super) fn json(&self, version: &str) -> Value {
        match self {
            Self::Own { code, text } => json!({ "cniVersion": version, "code": *code as u32, "msg": text }),
            Self::Delegated(error) => error.clone(),
        }
    }
}

impl From<ControlError> for CniError {
    fn from(error: ControlError) -> Self {
        let code = match error {
            ControlError::Refused(_) => Code::Refused,
            _ => Code::TryAgainLater,
        };
        Self::new(code, error)
    }
}
