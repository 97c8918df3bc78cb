//! The program at the other end of a port's socket, as the kernel names it.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The program at the other end of a connection: the one that connected, or that listens where the switch connected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Peer {
    /// Its process; 0 if that cannot be seen from here, as from within a container.
    pub pid: i32,
    /// Its user.
    pub uid: u32,
    /// Its name, as `ps` shows it.
    pub program: String,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (pid {}, uid {})", self.program, self.pid, self.uid)
    }
}
