//! The log in systemd's journal, by its native protocol (https://systemd.io/JOURNAL_NATIVE_PROTOCOL): each line keeps its level
//! and its fields, so that `journalctl MEMLANE_PORT=web` finds the lines of a port.

use std::fmt::{self, Write as _};
use std::io::{self, Write as _};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use nix::sys::stat::fstat;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer};

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
        let mut entry = Entry::default();
        entry.add("PRIORITY", priority(*event.metadata().level()));
        entry.add("SYSLOG_IDENTIFIER", "memlane");
        entry.add("MEMLANE_NETWORK", &self.network);
        entry.add("MEMLANE_MODULE", event.metadata().target());
        event.record(&mut entry);
        // Not connected: the journal may be restarted.
        if self.socket.send_to(&entry.bytes, &self.path).is_err() {
            let _ = writeln!(io::stderr(), "{}", entry.message);
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
struct Entry {
    bytes: Vec<u8>,
    message: String,
}

impl Entry {
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

impl Visit for Entry {
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
            tracing::warn!(port = %"web", left_out = 3, cause = "two\nlines", "port in quarantine");
        });
        let mut bytes = [0; 1000];
        let length = journal.recv(&mut bytes).unwrap();
        let (expected, module) = ("PRIORITY=4\nSYSLOG_IDENTIFIER=memlane\nMEMLANE_NETWORK=net\nMEMLANE_MODULE=", module_path!());
        let fields =
            "\nMESSAGE=port in quarantine\nMEMLANE_PORT=web\nMEMLANE_LEFT_OUT=3\nMEMLANE_CAUSE\n\t\0\0\0\0\0\0\0two\nlines\n";
        assert_eq!(String::from_utf8_lossy(&bytes[..length]), format!("{expected}{module}{fields}"));
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
