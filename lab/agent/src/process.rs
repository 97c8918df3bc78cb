//! Processes: each in a group of its own, three threads beside it: one writes its input, two relay its outputs.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, Sender as Queue};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::frame::{Kind, Sender};

/// A running process as the agent knows it.
struct Running {
    /// Also the number of its process group.
    pid: i32,
    /// Bytes for its standard input, in order; dropped to close it.
    stdin: Option<Queue<Vec<u8>>>,
}

/// All processes that the lab has started and that have not ended.
pub(crate) struct Processes {
    sender: Sender,
    running: Arc<Mutex<HashMap<u32, Running>>>,
}

impl Processes {
    pub(crate) fn new(sender: Sender) -> Self {
        Self { sender, running: Arc::default() }
    }

    /// Starts the command in `arguments` (each ended by NUL) under `handle`.
    pub(crate) fn spawn(&mut self, handle: u32, arguments: &[u8]) -> Result<(), String> {
        let mut words =
            arguments.split_inclusive(|byte| *byte == 0).map(|word| OsStr::from_bytes(word.strip_suffix(&[0]).unwrap_or(word)));
        let program = words.next().ok_or("no command given")?;
        let mut child = Command::new(program)
            .args(words)
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{}: {error}", program.to_string_lossy()))?;
        let (queue, bytes) = mpsc::channel();
        let stdin = child.stdin.take();
        let pid = child.id() as i32;
        self.table().insert(handle, Running { pid, stdin: Some(queue) });
        thread::spawn(move || stdin.map(|stdin| feed(stdin, &bytes)));
        let (sender, running) = (self.sender.clone(), Arc::clone(&self.running));
        thread::spawn(move || attend(child, handle, &sender, &running));
        Ok(())
    }

    /// Hands `bytes` to the process's standard input; no bytes close it. Late bytes for an ended process are dropped.
    pub(crate) fn feed(&mut self, handle: u32, bytes: &[u8]) -> Result<(), String> {
        if let Some(process) = self.table().get_mut(&handle) {
            if bytes.is_empty() {
                process.stdin = None;
            } else if let Some(queue) = &process.stdin {
                let _ = queue.send(bytes.to_vec());
            }
        }
        Ok(())
    }

    /// Sends the signal with the number in `payload` to the process's group, unless it has ended.
    pub(crate) fn signal(&mut self, handle: u32, payload: &[u8]) -> Result<(), String> {
        let number = payload.try_into().map(i32::from_le_bytes).map_err(|_| "a signal number has four bytes")?;
        if let Some(process) = self.table().get(&handle) {
            kill_group(process.pid, number);
        }
        Ok(())
    }

    /// Ends all that still runs.
    pub(crate) fn kill_all(&mut self) {
        for process in self.table().values() {
            kill_group(process.pid, libc::SIGKILL);
        }
    }

    fn table(&self) -> std::sync::MutexGuard<'_, HashMap<u32, Running>> {
        self.running.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

fn kill_group(pid: i32, signal: i32) {
    // SAFETY: kill() touches no memory of ours. The group is a child's that has not been reaped (it leaves the
    // table before it is reaped), so its number cannot have been given to another.
    unsafe { libc::kill(-pid, signal) };
}

/// Writes queued bytes to the process until the queue or the process closes.
fn feed(mut stdin: ChildStdin, bytes: &Receiver<Vec<u8>>) {
    for chunk in bytes {
        if stdin.write_all(&chunk).is_err() {
            return;
        }
    }
}

/// Relays both outputs to their ends, then tells how the process ended.
fn attend(mut child: Child, handle: u32, sender: &Sender, running: &Mutex<HashMap<u32, Running>>) {
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    thread::scope(|scope| {
        scope.spawn(|| stderr.map(|mut stream| sender.relay(Kind::Stderr, handle, &mut stream)));
        stdout.map(|mut stream| sender.relay(Kind::Stdout, handle, &mut stream))
    });
    wait_unreaped(child.id());
    running.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).remove(&handle);
    match child.wait() {
        Ok(status) => {
            let code = status.code().unwrap_or_else(|| -status.signal().unwrap_or(0));
            sender.send(Kind::Exit, handle, &code.to_le_bytes());
        }
        Err(error) => sender.send(Kind::Failed, handle, error.to_string().as_bytes()),
    }
}

/// Waits until the process has ended but leaves it a zombie, so that its number stays taken.
fn wait_unreaped(pid: u32) {
    // SAFETY: an all-zero siginfo_t is a valid value; waitid() writes only to it, and it outlives the call.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        while libc::waitid(libc::P_PID, pid, &raw mut info, libc::WEXITED | libc::WNOWAIT) == -1
            && std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted
        {}
    }
}
