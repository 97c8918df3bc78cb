//! Shared by the tests of the command: folders with networks, commands in them, networks that run.

#![allow(dead_code, reason = "each test file uses some of it")]

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

pub const TIMEOUT: Duration = Duration::from_secs(10);

/// A folder with a network and its port "web" at `socket`.
pub fn network(socket: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "net.toml", &port(socket, ""));
    folder
}

pub fn port(socket: &str, more: &str) -> String {
    format!("[[port]]\nname = \"web\"\nvhost-user = {}\n{more}", toml::Value::from(socket))
}

pub fn write(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    path
}

pub fn memlane(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_memlane"));
    command.args(arguments).current_dir(folder).env_remove("MEMLANE_LOG").stdin(Stdio::null());
    command.env("XDG_RUNTIME_DIR", folder).env("XDG_STATE_HOME", folder.join("state-home"));
    command
}

/// Output of a command that succeeds.
pub fn printed(folder: &Path, arguments: &[&str]) -> String {
    let output = memlane(folder, arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", told(&output));
    String::from_utf8(output.stdout).unwrap()
}

pub fn told(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A network that runs, and ends with the test.
pub struct Running(pub Child);

impl Running {
    pub fn start(mut command: Command) -> Self {
        let mut running = Self(command.stdout(Stdio::piped()).spawn().unwrap());
        let mut line = String::new();
        BufReader::new(running.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.contains(" is up"), "{line}");
        running
    }

    pub fn lives(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub fn wait_until(mut condition: impl FnMut() -> bool, what: &str) {
    let deadline = Instant::now() + TIMEOUT;
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
