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

/// Rows in columns: the first three words flush left, numbers flush right.
pub(super) fn columns(rows: impl Iterator<Item = Vec<String>>) -> String {
    let rows: Vec<Vec<String>> = rows.collect();
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> =
        (0..count).map(|n| rows.iter().filter_map(|row| row.get(n)).map(String::len).max().unwrap_or(0)).collect();
    let mut text = String::new();
    for row in &rows {
        let cells = row.iter().zip(&widths).map(|(cell, &width)| {
            let is_number = cell.chars().all(|c| c.is_ascii_digit() || c == '-');
            if is_number { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
        });
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}
