//! Wireshark's programs list running networks and ports as interfaces, and capture at them.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::command::{Running, memlane, printed, told, write};
use crate::common::{TIMEOUT, frame, mac};
use memlane_rig::guest::ToyGuest;

/// A network called "net" with the ports "web" and "db", and a folder of extcap programs.
fn up(folder: &Path) -> Running {
    let port = |name: &str| format!("[[port]]\nname = \"{name}\"\nvhost-user = \"{name}.sock\"\n");
    write(folder, "net.toml", &format!("{}{}", port("web"), port("db")));
    std::fs::create_dir_all(program(folder).parent().unwrap()).unwrap();
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_memlane"), program(folder)).unwrap();
    Running::start(memlane(folder, &["up", "net.toml"]))
}

/// In the user's own folder for extcap programs: root's tshark does not regard WIRESHARK_EXTCAP_DIR.
fn program(folder: &Path) -> std::path::PathBuf {
    folder.join(".config/wireshark/extcap/memlane-extcap")
}

fn tshark(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new("tshark");
    command.args(arguments).current_dir(folder).env("HOME", folder).env("XDG_RUNTIME_DIR", folder);
    command.env_remove("XDG_CONFIG_HOME").stdin(Stdio::null());
    command
}

/// Output of the program, as Wireshark runs it.
fn asked(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(program(folder)).args(arguments).current_dir(folder).env("XDG_RUNTIME_DIR", folder).output().unwrap()
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{}", told(output));
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn tshark_lists_networks_and_ports_and_captures_at_them() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let _running = up(folder);
    let listed = text(&tshark(folder, &["-D"]).output().unwrap());
    for interface in ["memlane-net (", "memlane-net-web (", "memlane-net-db ("] {
        assert!(listed.contains(interface), "{interface}: {listed}");
    }
    let guest = |name: &str, index: usize| {
        let builder = ToyGuest::builder().mac(mac(index)).timeout(TIMEOUT);
        builder.connect(folder.join(format!("{name}.sock"))).unwrap()
    };
    let (mut web, mut db) = (guest("web", 0), guest("db", 1));
    let fields = ["-l", "-T", "fields", "-e", "frame.interface_name", "-e", "frame.len", "-e", "eth.src"];
    let arguments = [&["-i", "memlane-net-web", "-f", "greater 70", "-c", "5"], &fields[..]].concat();
    let mut child = tshark(folder, &arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut has_ended = || {
        for length in [60, 80] {
            web.send(&frame(mac(0), mac(1), length, 1)).unwrap();
            db.receive(TIMEOUT).unwrap();
        }
        child.try_wait().unwrap().is_some()
    };
    // On a busy machine tshark alone, which asks each of its extcap programs, takes seconds to start.
    let deadline = Instant::now() + Duration::from_secs(120);
    while !has_ended() {
        assert!(Instant::now() < deadline, "waited in vain for five frames");
        std::thread::sleep(Duration::from_millis(2));
    }
    let output = child.wait_with_output().unwrap();
    let seen = text(&output);
    let lines: Vec<&str> = seen.lines().collect();
    assert_eq!(lines.len(), 5, "{seen}");
    assert!(lines.iter().all(|line| line.ends_with("\t80\t02:00:00:00:00:00")), "{seen}");
}

/// The lines of port web. Networks that run on this machine beside the test are listed too, and come and go.
fn of_web(listed: &str) -> Vec<&str> {
    listed.lines().filter(|line| line.ends_with("{display=memlane port web of net}")).collect()
}

#[test]
fn the_program_answers_as_wireshark_asks() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let running = up(folder);
    let version = format!("extcap {{version={}}}{{display=memlane}}\n", env!("CARGO_PKG_VERSION"));
    let listed = text(&asked(folder, &["--extcap-interfaces", "--extcap-version=4.0"]));
    assert!(listed.starts_with(&version), "{listed}");
    assert!(listed.contains("interface {value=memlane-net-web}{display=memlane port web of net}\n"), "{listed}");
    assert_eq!(of_web(&printed(folder, &["extcap", "--extcap-interfaces"])), of_web(&listed));
    assert_eq!(of_web(&printed(folder, &["--extcap-interfaces"])), of_web(&listed), "a link of any name in the folder");
    assert_eq!(text(&asked(folder, &["--extcap-version"])), version);
    let of = |arguments: &[&str]| asked(folder, &[&["--extcap-interface", "memlane-net-web"], arguments].concat());
    assert_eq!(text(&of(&["--extcap-dlts"])), "dlt {number=1}{name=EN10MB}{display=Ethernet}\n");
    let options = text(&of(&["--extcap-config"]));
    assert!(options.contains("{call=--drops}") && options.contains("{call=--snaplen}"), "{options}");
    assert_eq!(text(&of(&["--extcap-capture-filter", "udp port 53"])), "");
    assert!(text(&of(&["--extcap-capture-filter", "udp prt 53"])).contains("does not compile"));
    let unknown = asked(folder, &["--capture", "--extcap-interface", "memlane-other", "--fifo", "f"]);
    assert_eq!(unknown.status.code(), Some(1));
    assert!(told(&unknown).contains("no network that runs has the interface 'memlane-other'"), "{}", told(&unknown));
    assert_eq!(asked(folder, &[]).status.code(), Some(2));
    drop(running);
    assert!(of_web(&text(&asked(folder, &["--extcap-interfaces"]))).is_empty(), "the network has ended");
}
