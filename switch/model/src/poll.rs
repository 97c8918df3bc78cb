//! Busy polling, as configured.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Busy polling: when a worker polls for work instead of sleeping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Poll {
    /// Sleep as soon as there is no work.
    Never,
    /// Poll a little longer where that found work before and no other task needs the CPU (adaptive busy polling).
    #[default]
    Adaptive,
    /// Never sleep: for a dedicated CPU.
    Always,
}
