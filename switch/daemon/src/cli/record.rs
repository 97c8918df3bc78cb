//! `memlane record`: the flight recorder of a running network, and recordings of its verdicts.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, IsTerminal, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use hyper::Method;

use super::net::Net;
use super::recording::Tally;
use super::usage::timeout;
use super::{Failure, output};
use crate::control::client::StreamEnd;
use crate::control::record::{CONTENT_TYPE, RecorderOrder, RecorderView, RecordingOrder};
use crate::quantity::{Quantity, Read, counted};

/// Resource of the recorder.
const RECORDER: &str = "/v1/recorder";

/// Arguments of `memlane record`.
#[derive(Debug, Args)]
pub(super) struct Record {
    #[command(flatten)]
    net: Net,
    /// The file; "-" for standard output.
    #[arg(short, long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// Write the records that the flight recorder has now.
    #[arg(long, requires = "write")]
    dump: bool,
    /// Write no older verdicts than this; implies --dump, unless --on is given.
    #[arg(long, value_name = "TIME", requires = "write", value_parser = timeout)]
    last: Option<Duration>,
    /// Write the records of the flight recorder when an event of this kind happens, as port-quarantined, or the network fails.
    #[arg(long, value_name = "EVENT", requires = "write", value_delimiter = ',', conflicts_with = "dump")]
    on: Vec<String>,
    /// Most bytes of the file, as 1G; without -w, memory of the flight recorder, by default 64M.
    #[arg(long, value_name = "SIZE", value_parser = size, conflicts_with_all = ["dump", "last", "on"])]
    size: Option<u64>,
    /// Stop the flight recorder.
    #[arg(long, conflicts_with_all = ["write", "size"])]
    stop: bool,
}

/// A number of bytes.
fn size(text: &str) -> Result<u64, String> {
    match Quantity::Mebibytes.read(text) {
        Some(Read::Whole(mebibytes)) if (1..=1 << 30).contains(&mebibytes) => Ok(mebibytes << 20),
        _ => Err("a size with its unit, as 64M or 1G".into()),
    }
}

impl Record {
    pub(super) fn run(&self) -> Result<(), Failure> {
        match &self.write {
            _ if self.stop => self.change(Method::DELETE, None, "the recorder has stopped"),
            None => {
                let order = RecorderOrder { memory: self.size.unwrap_or(RecorderOrder::default().memory) };
                self.change(Method::POST, Some(&order), "the recorder runs; `memlane record NET -w FILE --dump` writes what it has")
            }
            Some(path) => self.record(path),
        }
    }

    fn change(&self, method: Method, order: Option<&RecorderOrder>, done: &str) -> Result<(), Failure> {
        let _: RecorderView = self.net.client()?.ask(method, RECORDER, order)?;
        output::note(done);
        Ok(())
    }

    fn order(&self) -> RecordingOrder {
        let last = self.last.map(|last| u64::try_from(last.as_millis()).unwrap_or(u64::MAX).max(1));
        RecordingOrder { dump: self.on.is_empty() && (self.dump || last.is_some()), on: self.on.clone(), last }
    }

    fn record(&self, path: &Path) -> Result<(), Failure> {
        let is_stdout = path == Path::new("-");
        if is_stdout && io::stdout().is_terminal() {
            let text = "a recording is binary and does not fit a terminal: name a file with -w";
            return Err(Failure::Configuration(text.into()));
        }
        let (client, order) = (self.net.client()?, self.order());
        let mut file = if is_stdout { None } else { Some(create(path)?) };
        let body = serde_json::to_value(&order).map_err(Failure::running)?;
        if !order.dump {
            output::note(if self.on.is_empty() {
                "the recording begins; Ctrl-C ends it"
            } else {
                "waiting for the event; Ctrl-C ends this"
            });
        }
        let (mut tally, mut written, most) = (Tally::default(), 0, self.size.unwrap_or(u64::MAX));
        let ended = client.follow("/v1/recording", CONTENT_TYPE, Some(&body), |part| {
            tally.take(part);
            written += part.len() as u64;
            Ok::<_, Failure>(write(file.as_mut(), path, part)? && written < most)
        })?;
        if tally.is_empty() {
            return Err(Failure::Running("the network has ended, and sent no recording".into()));
        }
        let missed = if tally.missed > 0 { format!(", {} missed", tally.missed) } else { String::new() };
        output::note(&format!("{} recorded{missed}", counted(tally.records, "verdict")));
        match ended {
            StreamEnd::Cut if written < most => Err(Failure::Running("the network has ended: the recording ends before it".into())),
            _ => Ok(()),
        }
    }
}

/// Creates a file that only its owner may read.
fn create(path: &Path) -> Result<File, Failure> {
    let failed = |error: io::Error| Failure::Running(format!("cannot write {}: {error}", path.display()));
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path).map_err(failed)?;
    // One that was there may have other rights; a device has those of its folder.
    if file.metadata().is_ok_and(|metadata| metadata.is_file()) {
        file.set_permissions(Permissions::from_mode(0o600)).map_err(failed)?;
    }
    Ok(file)
}

/// Writes a part; false if its reader has gone.
fn write(file: Option<&mut File>, path: &Path, part: &[u8]) -> Result<bool, Failure> {
    let result = match file {
        Some(file) => file.write_all(part),
        None => io::stdout().lock().write_all(part),
    };
    match result {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => {
            Err(Failure::Running(format!("cannot write {}: {error}. The recording has ended; the network goes on", path.display())))
        }
        Ok(()) => Ok(true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        assert_eq!([size("64M"), size("1G")], [Ok(64 << 20), Ok(1 << 30)]);
        assert!(["", "0", "-1M", "1", "x"].iter().all(|text| size(text).is_err()));
    }
}
