//! `memlane list` and `down`: lists running networks, and ends one.

use std::path::Path;
use std::time::{Duration, Instant};

use clap::Args;
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, Uid, User};

use super::net::{DEFAULT_NAME, Net};
use super::output::Table;
use super::{Failure, output};
use crate::control::identity::Identity;
use crate::control::running::{self, Running};

/// Interval at which the end of a process is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Arguments of `memlane list`.
#[derive(Debug, Args)]
pub(super) struct List {
    /// As JSON, with the control sockets.
    #[arg(long)]
    json: bool,
}

/// Arguments of `memlane down`.
#[derive(Debug, Args)]
pub(super) struct Down {
    #[command(flatten)]
    net: Net,
    /// Timeout for its end, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(0..=3600))]
    timeout: u64,
}

impl List {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let running = running::all();
        output::print_either(self.json, &running, || table(&running))
    }
}

fn table(running: &[Running]) -> String {
    let rows = running.iter().map(|Running { identity, user, control }| {
        let file = identity.file.as_ref().map_or_else(|| format!("- ({})", told(control)), |file| told(&file.path));
        vec![told(Path::new(&identity.name)), user_name(*user), identity.pid.to_string(), identity.ports.to_string(), file]
    });
    Table::new(5, ["network", "user", "process", "ports", "file"], rows).text()
}

/// A path from a process of any user, without characters that control a terminal.
fn told(path: &Path) -> String {
    path.display().to_string().replace(char::is_control, "?")
}

fn user_name(user: u32) -> String {
    User::from_uid(Uid::from_raw(user)).ok().flatten().map_or_else(|| user.to_string(), |user| user.name)
}

impl Down {
    pub(super) fn run(&self) -> Result<(), Failure> {
        // The only network that runs may be another than the one that is meant: the end is to be asked for by name.
        let net = Net { net: self.net.net.clone().or_else(|| Some(DEFAULT_NAME.into())), socket: self.net.socket.clone() };
        let client = net.client()?;
        // Refused if the control socket is that of another file's network.
        client.get::<Identity>("/v1/identity")?;
        let found = running::identify(vec![client.path().into()]).pop();
        let Some(Running { identity, .. }) = found else { return Err(Failure::Running("the network has ended meanwhile".into())) };
        let pid = Pid::from_raw(identity.pid as i32);
        let told = identity.told();
        let Some(start) = start_of(pid) else { return Err(gone_elsewhere(&told)) };
        match kill(pid, Signal::SIGTERM) {
            Ok(()) | Err(Errno::ESRCH) => {}
            Err(error) => {
                return Err(Failure::Running(format!(
                    "cannot send SIGTERM to {told}: {error}. Run this command as its user or as root"
                )));
            }
        }
        let end = Instant::now() + Duration::from_secs(self.timeout);
        while start_of(pid) == Some(start) {
            if Instant::now() >= end {
                let text = format!("{told} has not ended after {} s. Wait, or end it with: kill -KILL {pid}", self.timeout);
                return Err(Failure::Running(text));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        output::print(&format!("{}: ended\n", identity.name))
    }
}

fn gone_elsewhere(told: &str) -> Failure {
    Failure::Running(format!("{told} runs in another PID namespace: end it inside its container"))
}

/// The start time of the process `pid` (proc_pid_stat(5)), which distinguishes it from a later one of the same number; `None`
/// once it has ended.
fn start_of(pid: Pid) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may contain any characters.
    let mut words = text.rsplit_once(") ")?.1.split(' ');
    let ended = matches!(words.next()?, "Z" | "X");
    words.nth(18)?.parse().ok().filter(|_| !ended)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::identity::NetFile;

    #[test]
    fn a_process_is_known_by_its_start() {
        assert!(start_of(Pid::this()).is_some_and(|start| start > 0));
        assert_eq!(start_of(Pid::from_raw(i32::MAX)), None);
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = Pid::from_raw(child.id() as i32);
        let deadline = Instant::now() + Duration::from_secs(10);
        // The process has ended although it is a zombie.
        while start_of(pid).is_some() {
            assert!(Instant::now() < deadline);
        }
        child.wait().unwrap();
    }

    #[test]
    fn each_network_has_a_row_and_no_control_characters() {
        let file = NetFile { path: "/a/\x1b[2J.toml".into(), stated: "/a".into(), device: 1, inode: 2 };
        let identity = Identity { name: "n\x1bet".into(), version: "1".into(), pid: 7, uptime: 1, file: Some(file), ports: 3 };
        let bare = Identity { file: None, ..identity.clone() };
        let run = |identity| Running { identity, user: 0, control: "/run/x.control".into() };
        let text = table(&[run(identity), run(bare)]);
        let lines: Vec<&str> = text.lines().collect();
        let words: Vec<&str> = lines[1].split_whitespace().collect();
        assert_eq!(words, ["n?et", "root", "7", "3", "/a/?[2J.toml"]);
        assert!(lines[2].ends_with("- (/run/x.control)"), "{text}");
    }
}
