//! Standard output, which may be a pipe without a reader or a file on a full disk; tables and numbers.

use std::io::{self, Write};

use serde::Serialize;

use super::Failure;

/// Characters of a line that every terminal shows.
pub const WIDTH: usize = 80;
/// Characters between two columns of a table.
const GAP: usize = 2;
/// Narrowest width of a column of words.
const NARROW: usize = 6;

/// Prints all of `text`. A closed pipe is no failure: its reader has seen enough.
///
/// # Errors
/// Standard output cannot be written.
pub fn print(text: &str) -> Result<(), Failure> {
    print_on(text).map(|_| ())
}

/// Prints a part of continuing output; false if the pipe is closed.
///
/// # Errors
/// Standard output cannot be written.
pub fn print_on(text: &str) -> Result<bool, Failure> {
    let mut output = io::stdout().lock();
    match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::Running(format!("cannot write to standard output: {error}"))),
    }
}

/// Prints `text` to standard error, beside the output.
pub fn note(text: &str) {
    // If standard error is closed, the output is correct still.
    let _ = writeln!(io::stderr(), "memlane: {text}");
}

/// Prints `value` as JSON, indented.
///
/// # Errors
/// Standard output cannot be written.
pub fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    print(&format!("{}\n", serde_json::to_string_pretty(value).map_err(Failure::running)?))
}

/// Prints `value` as JSON, or else the `text`.
///
/// # Errors
/// Standard output cannot be written.
pub fn print_either(json: bool, value: &impl Serialize, text: impl FnOnce() -> String) -> Result<(), Failure> {
    if json { print_json(value) } else { print(&text()) }
}

/// A table of text: its first columns hold words, flush left, the others numbers, flush right.
#[derive(Debug)]
pub struct Table {
    /// How many columns hold words.
    words: usize,
    /// The heading first: a name of two words stands in two lines.
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with `words` columns of words at first; a line break in a heading puts the rest of it into a second line.
    pub fn new<const N: usize>(words: usize, heading: [&str; N], rows: impl Iterator<Item = Vec<String>>) -> Self {
        let above = heading.map(|name| name.split_once('\n').map_or("", |(first, _)| first).to_owned());
        let below = heading.map(|name| name.split_once('\n').map_or(name, |(_, second)| second).to_owned());
        let above = above.iter().any(|cell| !cell.is_empty()).then(|| above.to_vec());
        Self { words, rows: above.into_iter().chain([below.to_vec()]).chain(rows).collect() }
    }

    /// The table as wide as it needs.
    pub fn text(&self) -> String {
        self.laid_out(&self.widths())
    }

    /// The table in lines of at most [`WIDTH`] characters, if its numbers allow that. A word wider than its column is not cut:
    /// the rest of its row stands in the next line.
    pub fn narrow(&self) -> String {
        let mut widths = self.widths();
        let total: usize = widths.iter().sum::<usize>() + GAP * widths.len().saturating_sub(1);
        for _ in WIDTH..total {
            let widest = widths.iter_mut().take(self.words).max_by_key(|width| **width).filter(|width| **width > NARROW);
            widest.into_iter().for_each(|width| *width -= 1);
        }
        self.laid_out(&widths)
    }

    fn widths(&self) -> Vec<usize> {
        let count = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |n: usize| self.rows.iter().filter_map(|row| row.get(n)).map(|cell| cell.chars().count()).max().unwrap_or(0);
        (0..count).map(width).collect()
    }

    fn laid_out(&self, widths: &[usize]) -> String {
        self.rows.iter().fold(String::new(), |text, row| text + &self.line(row, widths))
    }

    /// A row in a line, or in several where a word is wider than its column.
    fn line(&self, row: &[String], widths: &[usize]) -> String {
        let (mut text, mut line, mut start) = (String::new(), String::new(), 0);
        for (n, (cell, &width)) in row.iter().zip(widths).enumerate() {
            if start > 0 && line.chars().count() + GAP > start {
                text.push_str(&format!("{}\n", line.trim_end()));
                line.clear();
            }
            let space = start - line.chars().count();
            line.push_str(&if n < self.words { format!("{:space$}{cell}", "") } else { format!("{:space$}{cell:>width$}", "") });
            start += width + GAP;
        }
        text + line.trim_end() + "\n"
    }
}

/// `text` in lines of at most [`WIDTH`] characters, broken at spaces, all but the first of them indented by four.
pub fn wrapped(text: &str) -> String {
    let (mut all, mut line) = (String::new(), String::new());
    for word in text.split_inclusive(' ') {
        if !line.trim().is_empty() && line.chars().count() + word.trim_end().chars().count() > WIDTH {
            all.push_str(&format!("{}\n", line.trim_end()));
            line = " ".repeat(4);
        }
        line.push_str(word);
    }
    all + line.trim_end() + "\n"
}

/// A number in full below 100 000, else three digits with a unit prefix, as 1.23M.
pub fn count(number: u64) -> String {
    if number < 100_000 { number.to_string() } else { scaled(number) }
}

/// A number of bytes, in units of a thousand.
pub fn bytes(number: u64) -> String {
    format!("{}B", if number < 1000 { number.to_string() } else { scaled(number) })
}

/// A rate per second: one decimal below 100, else as a count.
pub fn rate(rate: f64) -> String {
    if rate == 0.0 || rate >= 99.95 { count(rate.round() as u64) } else { format!("{rate:.1}") }
}

/// Text of any origin on one line: characters that control a terminal or the direction of text are replaced.
pub fn shown(text: &str) -> String {
    let hidden = |c: char| matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}');
    text.replace(|c: char| c.is_control() || hidden(c), "?")
}

/// Three digits of `number`, which is 1000 or more, with a unit prefix.
fn scaled(number: u64) -> String {
    let (mut value, mut prefix) = (number as f64, "");
    for larger in ["k", "M", "G", "T", "P", "E"] {
        // A value that would be rounded to 1000 is 1.00 of the next unit.
        if value >= 999.5 {
            (value, prefix) = (value / 1000.0, larger);
        }
    }
    let digits = if value < 9.995 { 2 } else { usize::from(value < 99.95) };
    format!("{value:.digits$}{prefix}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_have_their_unit() {
        let cases = [
            (0, "0"),
            (99_999, "99999"),
            (100_000, "100k"),
            (999_499, "999k"),
            (999_500, "1.00M"),
            (12_345_678, "12.3M"),
            (u64::MAX, "18.4E"),
        ];
        for (number, wanted) in cases {
            assert_eq!(count(number), wanted);
        }
        for (number, wanted) in
            [(0, "0B"), (999, "999B"), (1000, "1.00kB"), (1514, "1.51kB"), (9_996, "10.0kB"), (3_400_000_000, "3.40GB")]
        {
            assert_eq!(bytes(number), wanted);
        }
    }

    #[test]
    fn rates_have_a_decimal_while_they_are_small() {
        for (number, wanted) in [(0.0, "0"), (0.25, "0.2"), (12.0, "12.0"), (99.9, "99.9"), (99.96, "100"), (1.5e6, "1.50M")] {
            assert_eq!(rate(number), wanted);
        }
    }

    #[test]
    fn text_cannot_control_the_terminal() {
        assert_eq!(shown("a\x1b[2J\u{202e}b\n\u{9b}宽"), "a?[2J?b??宽");
    }

    #[test]
    fn a_long_word_has_a_line_for_itself_and_the_columns_stay() {
        let row = |name: &str| vec![name.to_owned(), "lan".to_owned(), "7".to_owned()];
        let long = "n".repeat(90);
        let table = Table::new(2, ["port", "segment", "RX\nframes"], [row("a"), row(&long)].into_iter());
        let lines: Vec<String> = table.narrow().lines().map(str::to_owned).collect();
        assert_eq!(lines[0].trim(), "RX");
        assert_eq!(lines[3], long);
        assert_eq!(lines[2][1..], lines[4][1..], "{lines:?}");
        assert_eq!(table.text().lines().count(), 4);
    }

    #[test]
    fn prose_is_broken_at_spaces() {
        let text = wrapped(&format!("  a: {}", "word ".repeat(40)));
        assert!(text.lines().all(|line| line.len() <= WIDTH), "{text}");
        assert_eq!(text.split_whitespace().count(), 41);
        assert_eq!(wrapped(&"x".repeat(100)), format!("{}\n", "x".repeat(100)));
    }
}
