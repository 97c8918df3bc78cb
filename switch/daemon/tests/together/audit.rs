//! Every change is an event and a line of the journal with its author. The journal is a socket of the test at the place of systemd's
//! (/run/systemd/journal/socket, in a mount namespace), and gets the fields that `journalctl -o json` shows.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use crate::command::{Running, told, wait_until, write};
use crate::common::in_namespaces;

/// The second user, beside root.
const ANN: u32 = 12_345;

/// A journal entry: its fields.
type Entry = BTreeMap<String, String>;

/// Entries of the test's journal, in their order.
#[derive(Clone, Default)]
struct Journal(Arc<Mutex<Vec<Entry>>>);

impl Journal {
    /// The journal of this mount namespace.
    fn open() -> Self {
        let mounted = Command::new("mount").args(["-t", "tmpfs", "tmpfs", "/run"]).status().unwrap();
        assert!(mounted.success(), "mount");
        std::fs::create_dir_all("/run/systemd/journal").unwrap();
        // The sender does not wait for room.
        std::fs::write("/proc/sys/net/unix/max_dgram_qlen", "10000").unwrap();
        let socket = UnixDatagram::bind("/run/systemd/journal/socket").unwrap();
        let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions("/run/systemd/journal/socket", everybody).unwrap();
        let journal = Self::default();
        let entries = Arc::clone(&journal.0);
        std::thread::spawn(move || {
            let mut bytes = vec![0; 1 << 16];
            while let Ok(length) = socket.recv(&mut bytes) {
                let text = String::from_utf8_lossy(&bytes[..length]).into_owned();
                let fields = text.lines().filter_map(|line| line.split_once('=')).map(|(key, value)| (key.into(), value.into()));
                entries.lock().unwrap().push(fields.collect());
            }
        });
        journal
    }

    fn entries(&self) -> Vec<Entry> {
        self.0.lock().unwrap().clone()
    }

    /// Entries of an event by a user, with words in the message.
    fn find(&self, event: &str, user: &str, words: &str) -> Option<Entry> {
        let has = |entry: &Entry, field: &str, value: &str| entry.get(field).is_some_and(|known| known == value);
        let fits = |entry: &&Entry| {
            has(entry, "MEMLANE_EVENT", event) && has(entry, "MEMLANE_BY_USER", user) && entry["MESSAGE"].contains(words)
        };
        self.entries().iter().find(fits).cloned()
    }

    fn wait_for(&self, event: &str, user: &str, words: &str) -> Entry {
        wait_until(|| self.find(event, user, words).is_some(), &format!("{event} by {user} ({words}): {:#?}", self.entries()));
        self.find(event, user, words).unwrap()
    }
}

/// A network of a user, and commands of that user.
struct Audited<'a> {
    folder: &'a Path,
    user: u32,
    log: File,
}

impl Audited<'_> {
    fn memlane(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.folder.join("bin/memlane"));
        command.args(arguments).current_dir(self.folder).env("XDG_RUNTIME_DIR", self.folder).env_remove("MEMLANE_LOG");
        command.uid(self.user).gid(self.user).stdin(Stdio::null());
        command
    }

    fn up(&self, more: &[&str]) -> Running {
        let mut command = self.memlane(&[&["up", "net.toml"], more].concat());
        let metadata = self.log.metadata().unwrap();
        command.env("JOURNAL_STREAM", format!("{}:{}", metadata.dev(), metadata.ino())).stderr(self.log.try_clone().unwrap());
        Running::start(command)
    }

    fn says(&self, arguments: &[&str]) -> String {
        let output = self.memlane(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", told(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    /// A shell of the user sends a signal to the network, and lives on for a moment: its name is read when the signal is handled.
    fn signal(&self, name: &str, running: &Running) -> Child {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("kill -{name} {}; sleep 2", running.0.id())]).uid(self.user).gid(self.user);
        command.spawn().unwrap()
    }

    fn capture(&self, arguments: &[&str], journal: &Journal, user: &str) {
        let mut capture = self.memlane(&[&["capture", "net.toml", "web"], arguments].concat());
        let mut capture = capture.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let before =
            |event| journal.entries().iter().filter(|entry| entry.get("MEMLANE_EVENT").is_some_and(|e| e == event)).count();
        let ended = before("capture-ended");
        wait_until(|| before("capture-started") > ended, "the capture is told");
        capture.kill().unwrap();
        capture.wait().unwrap();
        wait_until(|| before("capture-ended") > ended, "its end is told");
        assert!(journal.find("capture-started", user, "capture of web begun").is_some());
    }
}

const PORTS: &str = "[[port]]\nname = \"web\"\nnull = true\n";

/// Makes each kind of change as the user, and finds it in the journal with its author.
fn changes_are_found(journal: &Journal, user: u32, name: &str) {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    // Beside the run-time folder of its name.
    std::fs::create_dir(folder.join("bin")).unwrap();
    std::fs::copy(env!("CARGO_BIN_EXE_memlane"), folder.join("bin/memlane")).unwrap();
    std::os::unix::fs::chown(folder, Some(user), Some(user)).unwrap();
    write(folder, "net.toml", PORTS);
    let log = File::create(folder.join("log")).unwrap();
    let audited = Audited { folder, user, log };
    let mut running = audited.up(&[]);
    let found = |event: &str, words: &str, program: &str| {
        let entry = journal.wait_for(event, name, words);
        assert_eq!(entry.get("MEMLANE_BY_PROGRAM").map(String::as_str), Some(program), "{entry:?}");
        assert_eq!(entry["MEMLANE_BY_UID"], user.to_string());
        assert!(entry["MEMLANE_BY_PID"].parse::<u32>().is_ok_and(|pid| pid > 1) && entry.contains_key("MESSAGE_ID"), "{entry:?}");
        assert!(entry["MESSAGE"].contains(&format!("by user {name}")), "{entry:?}");
    };
    let port = |event: &str, words: &str| {
        found(event, words, "memlane");
        assert_eq!(journal.find(event, name, words).unwrap()["MEMLANE_PORT"], "late");
    };
    audited.says(&["attach", "net.toml", "late", "--null", "--labels", "{ pod = \"a/b\" }"]);
    port("port-attached", "late: attached to segment lan, pod=a/b");
    audited.says(&["set", "net.toml", "late", "--weight", "3"]);
    port("port-changed", "late: changed: weight from null to 3");
    audited.says(&["set", "net.toml", "late", "--enabled", "false"]);
    port("port-disabled", "late: disabled");
    audited.says(&["set", "net.toml", "late", "--enabled", "true"]);
    port("port-enabled", "late: enabled");
    audited.says(&["drain", "net.toml", "late"]);
    port("port-drained", "late: drained");
    audited.says(&["detach", "net.toml", "late"]);
    port("port-detached", "late: detached");
    audited.capture(&["-w", "one.pcapng"], journal, name);
    audited.capture(&["-w", "ring.pcapng", "--ring", "2,1"], journal, name);
    found("capture-ended", "capture ended", "memlane");
    write(folder, "net.toml", &format!("{PORTS}weight = 2\n"));
    audited.says(&["reload", "net.toml"]);
    found("reloaded", "1 changed", "memlane");
    write(folder, "net.toml", &format!("{PORTS}weight = 3\n"));
    let mut shell = audited.signal("HUP", &running);
    found("reloaded", "1 changed, 0 failed, by user", "memlane");
    wait_until(
        || journal.entries().iter().any(|entry| entry.get("MEMLANE_BY_PROGRAM").is_some_and(|program| program == "sh")),
        "SIGHUP is told",
    );
    shell.wait().unwrap();
    write(folder, "net.toml", "weight = 1\n");
    let mut shell = audited.signal("HUP", &running);
    found("reload-refused", "reload refused", "sh");
    shell.wait().unwrap();
    write(folder, "net.toml", PORTS);
    let other = audited.up(&["--takeover"]);
    let mut before = std::mem::replace(&mut running, other);
    assert!(before.0.wait().unwrap().success());
    found("taken-over", "taken over by a process of memlane", "memlane");
    found("taken-over", "the network was handed over to process", "memlane");
    // The events of the process before are there, with their dates.
    let events = audited.says(&["events", "net.toml"]);
    let line = events.lines().find(|line| line.contains("late: detached")).unwrap();
    assert!(line.starts_with("20") && line.as_bytes()[10] == b' ' && line.contains(&format!("by user {name}")), "{line}");
    audited.says(&["down", "net.toml"]);
    found("network-ends", "memlane down", "memlane");
    assert!(journal.entries().last().is_some_and(|last| last["MESSAGE"].contains("network: ends: memlane down (SIGTERM)")));
    let running = audited.up(&[]);
    let mut shell = audited.signal("TERM", &running);
    found("network-ends", "ends: SIGTERM, by user", "sh");
    shell.wait().unwrap();
    let kinds: std::collections::BTreeSet<String> = journal
        .entries()
        .into_iter()
        .filter(|entry| entry.get("MEMLANE_BY_USER").is_some_and(|by| by == name))
        .map(|entry| entry["MEMLANE_EVENT"].clone())
        .collect();
    assert!(kinds.len() >= 12, "{kinds:?}");
}

#[test]
fn changes_of_two_users_are_in_the_journal_with_their_authors() {
    in_namespaces(&["--net", "--mount"], "audit::changes_of_two_users_are_in_the_journal_with_their_authors", || {
        let journal = Journal::open();
        let folder = tempfile::tempdir().unwrap();
        let users = write(folder.path(), "passwd", &format!("root:x:0:0::/:/bin/sh\nann:x:{ANN}:{ANN}::/:/bin/sh\n"));
        let mounted = Command::new("mount").args(["--bind".as_ref(), users.as_os_str(), "/etc/passwd".as_ref()]).status().unwrap();
        assert!(mounted.success(), "mount --bind");
        changes_are_found(&journal, 0, "root");
        // A user namespace without newuidmap(1) has one user alone.
        let map = std::fs::read_to_string("/proc/self/uid_map").unwrap();
        if map.split_whitespace().last().is_some_and(|count| count != "1") {
            changes_are_found(&journal, ANN, "ann");
        }
    });
}
