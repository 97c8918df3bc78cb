//! `memlane snapshot` and `memlane thaw`: a network is frozen, its state written to a folder, its guests saved by the operator's command; then it
//! goes on.

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use clap::Args;
use hyper::Method;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use super::net::{Net, Socket};
use super::usage::timeout;
use super::{Failure, output};
use crate::control::Client;
use crate::control::frozen::{CONTENT_TYPE, MOST, SnapshotOrder, ThawOrder, ThawView};
use crate::quantity::counted;
use crate::snapshot::{NewFolder, Snapshot, SnapshotFile, machine, remove};
use memlane_confine::system::outlive_full_files;

/// Part of the time of a freeze that is left for the thaw after commands that were ended.
const MARGIN: Duration = Duration::from_millis(500);
/// Pause between two looks at the commands.
const PAUSE: Duration = Duration::from_millis(10);

/// Arguments of `memlane snapshot`.
#[derive(Debug, Args)]
pub(super) struct SnapshotCommand {
    /// The network: its file, or its name while it runs; by default the network "memlane", which `memlane up` runs without a file, or else the
    /// only one that runs.
    net: Option<PathBuf>,
    /// The folder, which must not exist.
    dir: PathBuf,
    #[command(flatten)]
    socket: Socket,
    /// Command that saves the guest of a port while the network is frozen, run by the shell for all ports with a guest at once. {port} stands for
    /// the port's name. If one fails, the network goes on, and there is no snapshot.
    #[arg(long, value_name = "COMMAND")]
    run: Option<String>,
    /// Time after which the network goes on without `memlane thaw`, so that a command that died leaves no guest without a network.
    #[arg(long = "for", value_name = "TIME", default_value = "60s", value_parser = bound)]
    most: Duration,
    /// Leave the network frozen though a command of --run failed.
    #[arg(long, requires = "run")]
    stay_frozen: bool,
}

/// Arguments of `memlane thaw`.
#[derive(Debug, Args)]
pub(super) struct Thaw {
    #[command(flatten)]
    net: Net,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

fn bound(text: &str) -> Result<Duration, String> {
    let time = timeout(text)?;
    if (Duration::from_millis(1)..=MOST).contains(&time) { Ok(time) } else { Err("from 1ms to 3600s".into()) }
}

impl SnapshotCommand {
    pub(super) fn run(&self) -> Result<(), Failure> {
        outlive_full_files();
        let client = Net { net: self.net.clone(), socket: self.socket.clone() }.client()?;
        // A folder that cannot be made freezes nothing.
        let folder = NewFolder::make(&self.dir).map_err(Failure::running)?;
        let (begun, mut frozen) = (Instant::now(), false);
        let written = self.write(&client, folder, &mut frozen);
        let (path, snapshot) = written.map_err(|failure| match frozen {
            true => thawed(&client, &failure, "the snapshot was not written"),
            // Another command may have frozen it.
            false => failure,
        })?;
        output::print(&told(&snapshot, &path))?;
        if let Some(command) = &self.run
            && let Err(cause) = save_all(command, &snapshot.running(), begun + self.most.saturating_sub(MARGIN))
        {
            let failure = Failure::Running(cause);
            if self.stay_frozen {
                return Err(failure);
            }
            // Without the guests it is no snapshot.
            remove(&path);
            return Err(thawed(&client, &failure, "a guest was not saved"));
        }
        let (paused, net) = (begun.elapsed().as_secs_f32(), &snapshot.network);
        let left = self.most.saturating_sub(begun.elapsed()).as_secs_f32();
        output::print(&format!("frozen for {paused:.2} s; goes on by memlane thaw {net}, or by itself in {left:.0} s\n"))
    }

    /// Freezes the network, and writes the snapshot that it sends. `frozen` tells whether it was frozen.
    fn write(&self, client: &Client, mut folder: NewFolder, frozen: &mut bool) -> Result<(PathBuf, Snapshot), Failure> {
        let order = SnapshotOrder { milliseconds: self.most.as_millis() as u64, machine: machine() };
        let body = serde_json::to_value(order).map_err(Failure::running)?;
        let mut bytes = Vec::new();
        client.follow("/v1/snapshot", CONTENT_TYPE, Some(&body), |part| {
            *frozen = true;
            bytes.extend_from_slice(part);
            folder.write(part).map(|()| true).map_err(Failure::running)
        })?;
        *frozen = true;
        let file = SnapshotFile::decode(&bytes).map_err(Failure::running)?;
        Ok((folder.finish().map_err(Failure::running)?, file.snapshot))
    }
}

/// Lets the network go on after a failure, which is returned with the outcome.
fn thawed(client: &Client, failure: &Failure, cause: &str) -> Failure {
    let order = ThawOrder { cause: Some(cause.into()) };
    let thawed = client.ask::<ThawView>(Method::POST, "/v1/thaw", Some(&order));
    let outcome =
        thawed.map_or_else(|_| String::new(), |view| format!(". The network goes on: it was frozen for {}", seconds(&view)));
    Failure::Running(format!("{}{outcome}", failure.text()))
}

fn seconds(view: &ThawView) -> String {
    format!("{:.2} s", view.milliseconds as f64 / 1000.0)
}

/// The snapshot in words.
fn told(snapshot: &Snapshot, path: &Path) -> String {
    let Snapshot { network, ports, outside, .. } = snapshot;
    let frames = counted(snapshot.frames(), "frame");
    let mut text = format!("network {network}: {}, {frames} in flight, in {}\n", counted(ports.len(), "port"), path.display());
    if !outside.is_empty() {
        text += &output::wrapped(&format!("outside of the snapshot: {}", outside.join(", ")));
    }
    text
}

/// Runs `command` for all `ports` at once, until `deadline`. The first failure in words.
fn save_all(command: &str, ports: &[&str], deadline: Instant) -> Result<(), String> {
    let mut running: Vec<(&str, Child)> = Vec::new();
    let mut failure = None;
    for port in ports {
        let child = Command::new("/bin/sh")
            .args(["-c", &command.replace("{port}", &quoted(port))])
            .stdin(Stdio::null())
            .process_group(0)
            .spawn();
        match child {
            Ok(child) => running.push((port, child)),
            Err(cause) => {
                failure = Some(format!("the command for port {port} cannot be started: {cause}"));
                break;
            }
        }
    }
    while failure.is_none() && !running.is_empty() {
        let mut left = Vec::new();
        for (port, mut child) in running {
            match child.try_wait() {
                Ok(None) => left.push((port, child)),
                Ok(Some(status)) if status.success() => {}
                Ok(Some(status)) => failure = failure.or_else(|| Some(format!("the command for port {port} {}", ended(status)))),
                Err(cause) => failure = failure.or_else(|| Some(format!("the command for port {port} is lost: {cause}"))),
            }
        }
        running = left;
        match running.first() {
            Some((port, _)) if Instant::now() >= deadline => {
                failure = failure.or_else(|| Some(format!("the command for port {port} did not end within the time of --for")));
            }
            _ => std::thread::sleep(PAUSE),
        }
    }
    for (_, mut child) in running {
        // A child that was waited for is not in this list, so its number is its own.
        let _ = killpg(Pid::from_raw(child.id() as i32), Signal::SIGKILL);
        let _ = child.wait();
    }
    failure.map_or(Ok(()), Err)
}

fn ended(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("failed with exit code {code}"),
        (None, signal) => format!("was ended by signal {}", signal.unwrap_or_default()),
    }
}

/// `word` as one word of the shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

impl Thaw {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let view: ThawView = self.net.client()?.ask(Method::POST, "/v1/thaw", Some(&ThawOrder::default()))?;
        if self.json {
            return output::print_json(&view);
        }
        let lost = if view.lost > 0 { format!(", {} of them lost", view.lost) } else { String::new() };
        let mut text = format!("thawed after {}, with {} in flight{lost}\n", seconds(&view), counted(view.frames, "frame"));
        if !view.not_running.is_empty() {
            text += &output::wrapped(&format!("not running yet: {}", view.not_running.join(", ")));
        }
        output::print(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_run_at_once_within_the_time_and_the_first_failure_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let soon = || Instant::now() + Duration::from_secs(30);
        let run =
            |command: &str, deadline| save_all(&format!("cd {} && {command}", folder.path().display()), &["a", "b'c"], deadline);
        let begun = Instant::now();
        run("echo saved > {port}; sleep 0.2", soon()).unwrap();
        assert!(begun.elapsed() < Duration::from_secs(20));
        assert!(folder.path().join("a").exists() && folder.path().join("b'c").exists());
        assert_eq!(run("test {port} = a || exit 3", soon()).unwrap_err(), "the command for port b'c failed with exit code 3");
        let begun = Instant::now();
        let late = run("sleep 60 & sleep 60", Instant::now() + Duration::from_millis(50)).unwrap_err();
        assert_eq!(late, "the command for port a did not end within the time of --for");
        assert!(begun.elapsed() < Duration::from_secs(20), "the commands were ended");
        save_all("exit 1", &[], soon()).unwrap();
    }

    #[test]
    fn a_freeze_has_a_bound() {
        assert_eq!(bound("5s"), Ok(Duration::from_secs(5)));
        assert!(bound("0").is_err() && bound("2h").is_err());
    }
}
