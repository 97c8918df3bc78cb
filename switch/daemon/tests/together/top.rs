//! `memlane top` on a terminal: lines fit, keys work, the terminal is restored, rates are differences of counters.

use std::fs::File;
use std::io::{Read, Write};
use std::num::NonZero;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::command::{Running, memlane, network, printed, told, write};
use nix::fcntl::OFlag;
use nix::pty::{Winsize, grantpt, openpty, posix_openpt, ptsname_r, unlockpt};
use nix::sys::signal::{Signal, kill};
use nix::sys::termios::{LocalFlags, Termios, tcgetattr};
use nix::unistd::Pid;
use serde_json::{Value, json};

/// A busy machine may take long to draw.
const DEADLINE: Duration = Duration::from_secs(60);
/// Columns of the emulated screen beyond those that the terminal is said to have: they stay empty.
const BEYOND: u16 = 100;

nix::ioctl_write_ptr_bad!(
    /// Sets a terminal's size (ioctl_tty(2)).
    set_size,
    nix::libc::TIOCSWINSZ,
    Winsize
);

/// `memlane top` on a terminal of its own.
struct Screen {
    child: Child,
    keys: File,
    terminal: OwnedFd,
    before: Termios,
    emulator: Arc<Mutex<vt100::Parser>>,
    width: u16,
}

impl Screen {
    fn start(folder: &Path, arguments: &[&str], width: u16, height: u16) -> Self {
        let size = Winsize { ws_row: height, ws_col: width, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = openpty(Some(&size), None).unwrap();
        let end = || Stdio::from(pty.slave.try_clone().unwrap());
        let before = tcgetattr(&pty.slave).unwrap();
        // In a session of its own, with the pseudoterminal as its controlling terminal (setsid(1)). Tests may run under nohup, which has signals ignored.
        let mut command = Command::new("setsid");
        command.args([
            "--ctty",
            "env",
            "--default-signal=HUP,INT,TERM",
            env!("CARGO_BIN_EXE_memlane"),
            "top",
            "--interval",
            "200ms",
        ]);
        command.args(arguments).current_dir(folder);
        let child = command
            .env("XDG_RUNTIME_DIR", folder)
            .env("XDG_STATE_HOME", folder.join("state-home"))
            .env("TERM", "xterm-256color")
            .stdin(end())
            .stdout(end())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (rows, columns) = (NonZero::new(height).unwrap(), NonZero::new(width + BEYOND).unwrap());
        let emulator = Arc::new(Mutex::new(vt100::Parser::new(rows, columns, 0)));
        let (mut output, drawn) = (File::from(pty.master.try_clone().unwrap()), emulator.clone());
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(read @ 1..) = output.read(&mut bytes) {
                drawn.lock().unwrap().process(&bytes[..read]);
            }
        });
        Self { child, keys: File::from(pty.master), terminal: pty.slave, before, emulator, width }
    }

    fn text(&self) -> String {
        self.emulator.lock().unwrap().screen().contents()
    }

    /// Gives the terminal another size, of which the kernel tells the program (SIGWINCH).
    fn resize(&mut self, width: u16, height: u16) {
        let (rows, columns) = (NonZero::new(height).unwrap(), NonZero::new(width + BEYOND).unwrap());
        self.emulator.lock().unwrap().set_size(rows, columns);
        self.width = width;
        let size = Winsize { ws_row: height, ws_col: width, ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: the request reads a size from a reference.
        unsafe { set_size(self.terminal.as_raw_fd(), &size) }.unwrap();
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    fn wait_for(&mut self, condition: impl Fn(&str) -> bool, what: &str) {
        let start = Instant::now();
        while !condition(&self.text()) {
            let ended = self.child.try_wait().unwrap();
            assert!(start.elapsed() < DEADLINE && ended.is_none(), "waited in vain until {what}: {ended:?}: {}", self.text());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Nothing was drawn beyond the terminal's width.
    fn fits(&self) {
        let emulator = self.emulator.lock().unwrap();
        let screen = emulator.screen();
        let (height, _) = screen.size();
        let is_drawn = |y, x| screen.cell(y, x).is_some_and(|cell| !cell.contents().trim().is_empty());
        let outside =
            (0..height.get()).flat_map(|y| (self.width..self.width + BEYOND).map(move |x| (y, x))).find(|&(y, x)| is_drawn(y, x));
        assert_eq!(outside, None, "{}", screen.contents());
    }

    /// Waits for the end; returns its code and its standard error.
    fn end(mut self) -> (std::process::ExitStatus, String) {
        let start = Instant::now();
        while self.child.try_wait().unwrap().is_none() {
            assert!(start.elapsed() < DEADLINE, "it does not end: {}", self.text());
            std::thread::sleep(Duration::from_millis(5));
        }
        let output = self.child.wait_with_output().unwrap();
        let after = tcgetattr(&self.terminal).unwrap();
        assert_eq!(after.local_flags, self.before.local_flags);
        assert!(after.local_flags.contains(LocalFlags::ICANON | LocalFlags::ECHO));
        let is_restored = || {
            let emulator = self.emulator.lock().unwrap();
            !emulator.screen().alternate_screen() && !emulator.screen().hide_cursor()
        };
        while !is_restored() {
            assert!(start.elapsed() < DEADLINE, "the screen is not restored");
            std::thread::sleep(Duration::from_millis(5));
        }
        let told = told(&output);
        (output.status, told)
    }
}

/// Two reports of a network called "net" with these ports, a second apart.
fn reports(names: &[String]) -> [Value; 2] {
    [1_u64, 3].map(|n| {
        let port = |(index, name): (usize, &String)| {
            let frames = n * (index as u64 + 1);
            json!({
                "name": name, "segment": "lan", "kind": "null", "place": "", "state": "running", "quarantines": 0, "learned-addresses": 0,
                "limits": { "weight": 1, "transmit": {}, "receive": {}, "storm": 20_000 }, "transmit-frames": 10 * frames,
                "transmit-bytes": 1000 * frames, "receive-frames": 7 * frames, "receive-bytes": 700 * frames, "interrupts": frames,
                "waiting": index, "cycles": 1000 * frames, "drops": { "storm": frames }
            })
        };
        let ports: Vec<Value> = names.iter().enumerate().map(port).collect();
        json!({
            "name": "net", "version": "0.1.0", "pid": 1, "uptime": n, "uptime-ns": n * 1_000_000_000, "cycles-per-second": 1_000_000,
            "memory-held": 0, "memory-most": 1, "ports": ports, "workers": []
        })
    })
}

/// A control socket that answers with `reports` in turn.
fn answer(folder: &Path, reports: [Value; 2]) -> PathBuf {
    let path = folder.join("answers.control");
    let listener = UnixListener::bind(&path).unwrap();
    let bodies = reports.map(|report| report.to_string());
    std::thread::spawn(move || {
        for (stream, body) in listener.incoming().zip(bodies.iter().cycle()) {
            answer_one(stream.unwrap(), body);
        }
    });
    path
}

fn answer_one(mut stream: UnixStream, body: &str) {
    let (mut request, mut bytes) = (Vec::new(), [0; 4096]);
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        match stream.read(&mut bytes) {
            Ok(read @ 1..) => request.extend_from_slice(&bytes[..read]),
            _ => return,
        }
    }
    // The command may have ended.
    let _ = write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
}

/// A running network with this many ports.
fn running(ports: usize) -> (tempfile::TempDir, Running) {
    let folder = tempfile::tempdir().unwrap();
    let ports: String = (0..ports).map(|n| format!("[[port]]\nname = \"port-{n:04}\"\nnull = true\n")).collect();
    write(folder.path(), "net.toml", &ports);
    let running = Running::start(memlane(folder.path(), &["up", "net.toml"]));
    (folder, running)
}

#[test]
fn every_line_fits_the_terminal_and_q_quits() {
    for ports in [1, 100, 1000] {
        let (folder, _running) = running(ports);
        for (width, height) in [(80, 24), (200, 50)] {
            let mut screen = Screen::start(folder.path(), &["net.toml"], width, height);
            screen.wait_for(|text| text.contains("port-0000") && text.contains("worker load"), "the ports are there");
            screen.fits();
            screen.press("n\x1b[F");
            screen.wait_for(|text| text.contains(&format!("port-{:04}", ports - 1)), "the last port is there");
            screen.press("\r");
            screen.wait_for(|text| text.contains("waiting frames"), "the page is there");
            screen.fits();
            screen.press("q");
            let (status, told) = screen.end();
            assert!(status.success() && told.is_empty(), "{told}");
        }
    }
}

#[test]
fn the_screen_follows_the_size_of_its_terminal() {
    let (folder, _running) = running(3);
    let mut screen = Screen::start(folder.path(), &["net.toml"], 80, 24);
    screen.wait_for(|text| text.contains("port-0002"), "the ports are there");
    assert!(!screen.text().contains("segment"), "{}", screen.text());
    screen.resize(200, 50);
    screen.wait_for(|text| text.contains("segment") && text.contains("state"), "there are columns for all");
    screen.fits();
    screen.press("p");
    screen.wait_for(|text| text.contains("from") && !text.contains("port-0002"), "pairs have a list of their own");
    screen.press("q");
    assert!(screen.end().0.success());
}

#[test]
fn names_with_any_characters_do_not_break_the_screen() {
    let folder = tempfile::tempdir().unwrap();
    let names = ["a\x1b[2J\x1b[31mb", "\u{202e}right", &"宽".repeat(60), "e\u{301}\u{301}", "x\ny\r\u{9b}2J"].map(str::to_owned);
    let control = answer(folder.path(), reports(&names));
    let arguments = ["--control", control.to_str().unwrap()];
    for (width, height) in [(80, 24), (200, 50)] {
        let mut screen = Screen::start(folder.path(), &arguments, width, height);
        screen
            .wait_for(|text| text.contains("a?[2J?[31mb") && text.contains("?right") && text.contains("x?y??2J"), "names are told");
        screen.fits();
        screen.press("/宽");
        screen.wait_for(|text| text.contains("宽宽宽") && !text.contains("right"), "the list is filtered");
        screen.fits();
        screen.press("\x03");
        assert!(screen.end().0.success());
    }
}

#[test]
fn the_terminal_is_restored_after_a_signal() {
    use std::os::unix::process::ExitStatusExt;
    let (folder, _running) = running(1);
    for signal in [Signal::SIGTERM, Signal::SIGHUP, Signal::SIGINT] {
        let mut screen = Screen::start(folder.path(), &["net.toml"], 80, 24);
        screen.wait_for(|text| text.contains("port-0000"), "the port is there");
        kill(Pid::from_raw(screen.child.id() as i32), signal).unwrap();
        let (status, _) = screen.end();
        assert_eq!(status.signal(), Some(signal as i32));
    }
}

/// A terminal window that is closed, of a command that gets no signal for it.
#[test]
fn a_terminal_that_is_closed_ends_the_command() {
    let (folder, _running) = running(1);
    // No other process that tests start meanwhile holds it open.
    let mut window = posix_openpt(OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC).unwrap();
    grantpt(&window).unwrap();
    unlockpt(&window).unwrap();
    let terminal =
        File::options().read(true).write(true).custom_flags(nix::libc::O_NOCTTY).open(ptsname_r(&window).unwrap()).unwrap();
    let size = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the request reads a size from a reference.
    unsafe { set_size(terminal.as_raw_fd(), &size) }.unwrap();
    let mut command = memlane(folder.path(), &["top", "net.toml", "--interval", "200ms"]);
    command.env("TERM", "xterm-256color").stdin(terminal.try_clone().unwrap()).stdout(terminal).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    drop(command);
    assert!(window.read(&mut [0; 4096]).unwrap() > 0, "it draws");
    drop(window);
    let start = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if start.elapsed() > DEADLINE {
            child.kill().unwrap();
            panic!("it does not end");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let output = child.wait_with_output().unwrap();
    assert!(output.status.code() == Some(1) && told(&output).contains("memlane: the terminal "), "{}", told(&output));
}

#[test]
fn a_network_that_ends_is_told_after_the_terminal_is_restored() {
    let (folder, network) = running(1);
    let mut screen = Screen::start(folder.path(), &["net.toml"], 80, 24);
    screen.wait_for(|text| text.contains("port-0000"), "the port is there");
    drop(network);
    let (status, told) = screen.end();
    assert_eq!(status.code(), Some(1));
    assert_eq!(told, "memlane: the network net has ended; `memlane list` shows those that run\n");
}

#[test]
fn without_a_terminal_it_asks_for_once() {
    let folder = network("web.sock");
    let _running = Running::start(memlane(folder.path(), &["up", "net.toml"]));
    let output = memlane(folder.path(), &["top", "net.toml"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(told(&output).contains("print one measurement with --once"), "{}", told(&output));
}

#[test]
fn rates_are_differences_of_the_counters() {
    let folder = tempfile::tempdir().unwrap();
    let names: Vec<String> = (0..3).map(|n| format!("port-{n}")).collect();
    let control = answer(folder.path(), reports(&names));
    let json = printed(folder.path(), &["top", "--control", control.to_str().unwrap(), "--once", "--json", "--interval", "100ms"]);
    let rates: Value = serde_json::from_str(&json).unwrap();
    // Two seconds by the clock of the network, however long the command took.
    assert_eq!(rates["seconds"], 2.0);
    for (index, port) in (1..).zip(rates["ports"].as_array().unwrap()) {
        let frames = f64::from(index);
        assert_eq!(port["transmit-frames-per-second"], 10.0 * frames);
        assert_eq!(port["transmit-bits-per-second"], 8000.0 * frames);
        assert_eq!(port["receive-frames-per-second"], 7.0 * frames);
        assert_eq!(port["receive-bits-per-second"], 5600.0 * frames);
        assert_eq!(port["drops-per-second"], json!({ "storm": frames }));
        assert_eq!((&port["waiting"], &port["totals"]["transmit-frames"]), (&json!(index - 1), &json!(30 * index)));
    }
}
