//! The log in systemd's journal, by its native protocol (https://systemd.io/JOURNAL_NATIVE_PROTOCOL): each line keeps its level
//! and its fields, so that `journalctl MEMLANE_PORT=web` finds the lines of a port.
//!
//! A line about an event has its name as MEMLANE_EVENT, and the MESSAGE_ID of this kind of event (systemd.journal-fields(7)), by which
//! `journalctl --catalog` finds its explanation in contrib/systemd/memlane.catalog.

use std::fmt::{self, Write as _};
use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use nix::sys::stat::fstat;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer};

use super::log;
use crate::journal::NetworkEvent;

/// The journal's socket.
const SOCKET: &str = "/run/systemd/journal/socket";

/// Writes log lines of a network to the journal.
#[derive(Debug)]
pub(super) struct Journald {
    socket: UnixDatagram,
    path: PathBuf,
    network: String,
}

impl Journald {
    /// For the `network` of this process, if systemd has connected its standard error to the journal (JOURNAL_STREAM of
    /// systemd.exec(5)).
    pub(super) fn behind_stderr(network: &str) -> Option<Self> {
        let status = fstat(io::stderr()).ok()?;
        let is_journal =
            std::env::var("JOURNAL_STREAM").is_ok_and(|stream| stream == format!("{}:{}", status.st_dev, status.st_ino));
        if is_journal { Self::at(Path::new(SOCKET), network).ok() } else { None }
    }

    /// For the journal at `path`.
    fn at(path: &Path, network: &str) -> io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        // A journal that stands still must not hold up the network.
        socket.set_nonblocking(true)?;
        Ok(Self { socket, path: path.into(), network: network.into() })
    }
}

impl<S: Subscriber> Layer<S> for Journald {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut entry = JournalEntry::default();
        entry.add("PRIORITY", priority(*event.metadata().level()));
        entry.add("SYSLOG_IDENTIFIER", "memlane");
        entry.add("MEMLANE_NETWORK", &self.network);
        entry.add("MEMLANE_MODULE", event.metadata().target());
        event.record(&mut entry);
        // Not connected: the journal may be restarted.
        if self.socket.send_to(&entry.bytes, &self.path).is_err() {
            log::write_line(format!("{}\n", entry.message).as_bytes());
        }
    }
}

/// The priority of syslog(3).
fn priority(level: Level) -> &'static str {
    match level {
        Level::ERROR => "3",
        Level::WARN => "4",
        Level::INFO => "6",
        Level::DEBUG | Level::TRACE => "7",
    }
}

/// A journal entry: its fields, one after the other.
#[derive(Debug, Default)]
struct JournalEntry {
    bytes: Vec<u8>,
    message: String,
}

impl JournalEntry {
    /// Adds a field. Its length stands before a value of several lines.
    fn add(&mut self, name: &str, value: &str) {
        self.bytes.extend(name.as_bytes());
        if value.contains('\n') {
            self.bytes.push(b'\n');
            self.bytes.extend((value.len() as u64).to_le_bytes());
        } else {
            self.bytes.push(b'=');
        }
        self.bytes.extend(value.as_bytes());
        self.bytes.push(b'\n');
    }
}

impl Visit for JournalEntry {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let mut text = String::new();
        let _ = write!(text, "{value:?}");
        self.record_str(field, &text);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            self.message = value.into();
            return self.add("MESSAGE", value);
        }
        if field.name() == "event"
            && let Some((_, id)) = NetworkEvent::MESSAGE_IDS.iter().find(|(event, _)| *event == value)
        {
            self.add("MESSAGE_ID", id);
        }
        // Names have capital letters, digits and underscores.
        let name: String =
            field.name().chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' }).collect();
        self.add(&format!("MEMLANE_{name}"), value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing_subscriber::layer::SubscriberExt;

    #[test]
    fn a_line_reaches_the_journal_with_its_fields() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let journal = UnixDatagram::bind(&path).unwrap();
        let subscriber = tracing_subscriber::registry().with(Journald::at(&path, "net").unwrap());
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!(port = %"web", event = "port-quarantined", left_out = 3, cause = "two\nlines", "port in quarantine");
        });
        let mut bytes = [0; 1000];
        let length = journal.recv(&mut bytes).unwrap();
        let (expected, module) = ("PRIORITY=4\nSYSLOG_IDENTIFIER=memlane\nMEMLANE_NETWORK=net\nMEMLANE_MODULE=", module_path!());
        let fields = "\nMESSAGE=port in quarantine\nMEMLANE_PORT=web\nMESSAGE_ID=62bf0f76d5c25434a61f086193ad7019\n\
                      MEMLANE_EVENT=port-quarantined\nMEMLANE_LEFT_OUT=3\nMEMLANE_CAUSE\n\t\0\0\0\0\0\0\0two\nlines\n";
        assert_eq!(String::from_utf8_lossy(&bytes[..length]), format!("{expected}{module}{fields}"));
    }

    #[test]
    fn every_kind_of_event_has_an_id_of_its_own_and_the_catalog_knows_no_other() {
        const IDS: &[(&str, &str)] = NetworkEvent::MESSAGE_IDS;
        let schema = schemars::schema_for!(NetworkEvent).to_value();
        let kinds = schema["oneOf"].as_array().unwrap().iter().map(|kind| kind["properties"]["event"]["const"].as_str().unwrap());
        assert_eq!(kinds.collect::<Vec<_>>(), IDS.iter().map(|(event, _)| *event).collect::<Vec<_>>());
        let ids: std::collections::BTreeSet<&str> = IDS.iter().map(|(_, id)| *id).collect();
        assert!(ids.len() == IDS.len() && ids.iter().all(|id| u128::from_str_radix(id, 16).is_ok() && id.len() == 32));
        let catalog = include_str!("../../../../contrib/systemd/memlane.catalog");
        let explained: Vec<&str> = catalog.lines().filter_map(|line| line.strip_prefix("-- ")).collect();
        assert!(explained.len() >= 4 && explained.iter().all(|id| ids.contains(id)), "{explained:?}");
    }

    #[test]
    fn a_journal_that_is_full_or_gone_holds_nothing_up() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let journal = UnixDatagram::bind(&path).unwrap();
        let subscriber = tracing_subscriber::registry().with(Journald::at(&path, "net").unwrap());
        tracing::subscriber::with_default(subscriber, || {
            (0..1000).for_each(|_| tracing::debug!("nobody reads this"));
            drop(journal);
            tracing::error!("nor this");
        });
    }
}
