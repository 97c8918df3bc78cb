//! Standard output, which may be a pipe that nobody reads to its end, or a file on a full disk.

use std::io::{self, Write};

use serde::Serialize;

use super::Failure;

/// Prints `text` whole. A reader that has seen enough and gone is no failure.
pub(super) fn print(text: &str) -> Result<(), Failure> {
    let mut output = io::stdout().lock();
    match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::Running(format!("what was asked for cannot be written: {error}")))
        }
        _ => Ok(()),
    }
}

/// Prints `value` as JSON for people and programs.
pub(super) fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    print(&format!("{}\n", serde_json::to_string_pretty(value).map_err(Failure::running)?))
}
