//! The command as others meet it: pipes that end, disks that are full, logs that are files, paths with any characters, other folders.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;

use memlane::config::{Document, Reread};
use memlane::cpus::Cpus;

use crate::command::{Running, TIMEOUT, memlane, network, port, printed, told, wait_until, write};

/// Commands that print, with arguments for a file with a port "web".
const PRINTING: [&[&str]; 9] = [
    &["schema"],
    &["schema", "--api"],
    &["check", "net.toml"],
    &["qemu", "net.toml", "web"],
    &["uml", "net.toml", "web"],
    &["libvirt", "net.toml", "web"],
    &["completion", "bash"],
    &["evpn", "--as", "65000", "--peers", "10.0.0.2"],
    &["doctor"],
];

/// Breaks a rule of the conversation at `socket`, and waits until the connection has ended for that.
fn break_a_rule(socket: &Path) {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.write_all(&[0xff; 12]).unwrap();
    assert_eq!(stream.read(&mut [0; 12]).unwrap_or(0), 0, "the connection ends");
}

#[test]
fn who_reads_no_further_is_no_failure() {
    let folder = network("web.sock");
    for arguments in PRINTING {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = memlane(folder.path(), arguments).stdout(writer).output().unwrap();
        assert_eq!(told(&output), "", "{arguments:?}");
        // The doctor's exit code tells its findings all the same.
        let good = output.status.success() || (arguments[0] == "doctor" && output.status.code() == Some(3));
        assert!(good, "{arguments:?}: {}", output.status);
    }
}

#[test]
fn a_full_disk_is_told_in_one_sentence() {
    let folder = network("web.sock");
    for arguments in PRINTING {
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = memlane(folder.path(), arguments).stdout(full).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        let told = told(&output);
        assert!(told.contains("cannot write to standard output") && told.lines().count() == 1, "{arguments:?}: {told}");
    }
}

#[test]
fn a_network_outlives_a_full_disk_under_its_log() {
    let folder = network("web.sock");
    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut command = memlane(folder.path(), &["up", "net.toml"]);
    command.stderr(full);
    let mut running = Running::start(command);
    let socket = folder.path().join("web.sock");
    // The first of these is logged, or would be; the port still speaks afterwards.
    (0..3).for_each(|_| break_a_rule(&socket));
    assert!(running.lives());
    let status = printed(folder.path(), &["status", "net.toml", "--json"]);
    assert!(status.contains("\"quarantines\": 3"), "{status}");
}

#[test]
fn a_log_that_is_a_file_has_no_colours() {
    let folder = network("web.sock");
    let log = folder.path().join("log");
    let mut command = memlane(folder.path(), &["up", "net.toml"]);
    command.stderr(File::create(&log).unwrap());
    let _running = Running::start(command);
    break_a_rule(&folder.path().join("web.sock"));
    let logged = || std::fs::read_to_string(&log).unwrap();
    wait_until(|| logged().contains("quarantine"), "the fault is logged");
    assert!(!logged().contains('\x1b'), "{:?}", logged());
}

#[test]
fn relative_sockets_lie_beside_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let beside = folder.path().join("nets");
    std::fs::create_dir(&beside).unwrap();
    write(&beside, "net.toml", &format!("control = \"net.control\"\n{}", port("web.sock", "")));
    let socket = beside.canonicalize().unwrap().join("web.sock");
    for command in ["qemu", "uml", "libvirt"] {
        let text = printed(folder.path(), &[command, "nets/net.toml", "web"]);
        assert!(text.contains(socket.to_str().unwrap()), "{command}: {text}");
    }
    let _running = Running::start(memlane(folder.path(), &["up", "nets/net.toml"]));
    assert!(socket.exists() && beside.join("net.control").exists());
    assert!(printed(&beside, &["status", "net.toml"]).contains("web"));
}

#[test]
fn sockets_are_for_whom_the_file_says() {
    let own = std::fs::metadata(tempfile::tempdir().unwrap().path()).unwrap();
    for (top, more, mode) in [
        ("", "", 0o600),
        ("access = { group = \"GROUP\" }\n", "", 0o660),
        ("access = { owner = \"OWNER\", mode = \"0606\" }\n", "", 0o606),
        ("access = { mode = \"0666\" }\n", "access = { mode = \"0640\", group = \"GROUP\" }\n", 0o640),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let text = format!("{top}{}", port("web.sock", more));
        let text = text.replace("GROUP", &own.gid().to_string()).replace("OWNER", &own.uid().to_string());
        write(folder.path(), "net.toml", &text);
        let mut running = Running::start(memlane(folder.path(), &["up", "net.toml"]));
        let socket = std::fs::metadata(folder.path().join("web.sock")).unwrap();
        assert_eq!((socket.mode() & 0o777, socket.uid(), socket.gid()), (mode, own.uid(), own.gid()), "{text}");
        assert!(running.lives());
    }
}

#[test]
fn folders_that_memlane_makes_can_be_entered_and_others_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let group = std::fs::metadata(folder.path()).unwrap().gid();
    let text = port("memlane/web.sock", &format!("access = {{ group = \"{group}\" }}\n"));
    write(folder.path(), "net.toml", &text);
    std::fs::set_permissions(folder.path(), Permissions::from_mode(0o711)).unwrap();
    // Made by the first network, under any umask; one that an older memlane has shut is opened.
    for round in 0..2 {
        let mut command = Command::new("sh");
        command.args(["-c", "umask 077; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_memlane"), "up", "net.toml"]);
        command
            .current_dir(folder.path())
            .env("XDG_RUNTIME_DIR", folder.path())
            .env("XDG_STATE_HOME", folder.path().join("state-home"));
        let _running = Running::start(command);
        let made = std::fs::metadata(folder.path().join("memlane")).unwrap();
        assert_eq!(made.mode() & 0o777, 0o711, "{round}");
        std::fs::set_permissions(folder.path().join("memlane"), Permissions::from_mode(0o700)).unwrap();
    }
    let checked = printed(folder.path(), &["check", "net.toml"]);
    let wanted = format!("cannot enter the folder {}", folder.path().join("memlane").display());
    assert!(checked.contains(&format!("note: port web: group {group}")) && checked.contains(&wanted), "{checked}");
    assert!(printed(folder.path(), &["libvirt", "net.toml", "web"]).contains(&wanted));
}

#[test]
fn a_slip_in_a_sockets_path_leaves_no_folder() {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in [
        ("port.toml", port("slip/web.sock", "")),
        ("stream.toml", port("slip/web.sock", "").replace("vhost-user", "stream")),
        ("control.toml", "control = \"slip/deep/net.control\"\n".to_owned()),
    ] {
        write(folder.path(), name, &text);
        let output = memlane(folder.path(), &["up", name]).output().unwrap();
        assert!(output.status.code() == Some(1) && told(&output).contains("there is no folder"), "{name}: {}", told(&output));
        assert!(!folder.path().join("slip").exists(), "{name}");
    }
}

#[test]
fn access_for_nobody_is_told_with_what_to_do() {
    for (access, wanted) in [
        ("{ group = \"no such\" }", "there is no group 'no such'"),
        ("{ owner = \"no such\" }", "there is no user 'no such'"),
        ("{ mode = \"rw\" }", "access.mode is \"rw\"; it must be octal digits"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), "net.toml", &port("web.sock", &format!("access = {access}\n")));
        let output = memlane(folder.path(), &["up", "net.toml"]).output().unwrap();
        assert!(!output.status.success() && told(&output).contains(wanted), "{}", told(&output));
        assert!(!folder.path().join("web.sock").exists(), "{access}");
    }
}

#[test]
fn a_shell_gives_qemu_the_path_that_was_meant() {
    let path = "/run/a & <b> 'c', \"d\" $e/web.sock";
    let folder = network(path);
    let arguments = printed(folder.path(), &["qemu", "net.toml", "web", "--qemu-version", "7.2"]);
    let script = format!("for word in {}; do printf '%s\\n' \"$word\"; done", arguments.trim());
    let words = Command::new("sh").arg("-c").arg(script).output().unwrap();
    let words = String::from_utf8(words.stdout).unwrap();
    // In the value of an option, QEMU takes two commas for one.
    let wanted = format!("socket,id=char-web,path={},reconnect=1", path.replace(',', ",,"));
    assert!(words.lines().any(|word| word == wanted), "{words}");
}

#[test]
fn arguments_are_for_the_qemu_on_the_path() {
    let folder = network("/run/web.sock");
    let programs = tempfile::tempdir().unwrap();
    let printed = |more: &[&str]| {
        let arguments = [&["qemu", "net.toml", "web"], more].concat();
        let output = memlane(folder.path(), &arguments).env("PATH", programs.path()).output().unwrap();
        assert!(output.status.success(), "{}", told(&output));
        (String::from_utf8_lossy(&output.stdout).into_owned(), told(&output))
    };
    for (version, option) in
        [("7.2.22 (Debian 1:7.2)", "reconnect=1 "), ("9.2.0", "reconnect-ms=1000 "), ("11.1.3", "reconnect-ms=1000 ")]
    {
        let program = write(
            programs.path(),
            &format!("qemu-system-{}", std::env::consts::ARCH),
            &format!("#!/bin/sh\necho 'QEMU emulator version {version}'\n"),
        );
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let (arguments, note) = printed(&[]);
        assert!(arguments.contains(&format!("/run/web.sock,{option}")) && note.is_empty(), "{version}: {arguments}{note}");
        std::fs::remove_file(program).unwrap();
    }
    // Another machine's.
    assert!(printed(&["--qemu-version", "8.0"]).0.contains("reconnect=1 "));
    let (arguments, note) = printed(&[]);
    assert!(arguments.contains("reconnect-ms=1000 ") && note.contains("--qemu-version"), "{arguments}{note}");
}

#[test]
fn plain_paths_are_printed_as_they_are() {
    let folder = network("/run/memlane/web-1.sock");
    let arguments = printed(folder.path(), &["qemu", "net.toml", "web", "--memory", "1G"]);
    assert!(!arguments.contains(['\'', '"', '\\']), "{arguments}");
}

#[test]
fn libvirt_reads_the_path_that_was_meant() {
    let folder = network("/run/a & <b> 'c', \"d\"/web.sock");
    let xml = printed(folder.path(), &["libvirt", "net.toml", "web"]);
    assert!(xml.contains("path='/run/a &amp; &lt;b&gt; &apos;c&apos;, &quot;d&quot;/web.sock'"), "{xml}");
}

#[test]
fn user_mode_linux_is_given_no_path_that_it_would_cut() {
    for path in ["/run/a b/web.sock", "/run/a:b/web.sock", "/run/a\"b/web.sock"] {
        let folder = network(path);
        let output = memlane(folder.path(), &["uml", "net.toml", "web"]).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{path}");
        assert!(told(&output).contains(path), "{}", told(&output));
    }
}

#[test]
fn no_socket_has_control_characters() {
    let folder = network("/run/a\nb/web.sock");
    let output = memlane(folder.path(), &["check", "net.toml"]).output().unwrap();
    assert!(told(&output).contains("control characters"), "{}", told(&output));
}

#[test]
fn a_folder_whose_path_is_no_text_is_told() {
    use std::os::unix::ffi::OsStrExt;
    let folder = tempfile::tempdir().unwrap();
    let odd = folder.path().join(std::ffi::OsStr::from_bytes(b"o\xffdd"));
    std::fs::create_dir(&odd).unwrap();
    write(&odd, "net.toml", &port("web.sock", ""));
    let output = memlane(&odd, &["check", "net.toml"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(told(&output).contains("not UTF-8"), "{}", told(&output));
}

#[test]
fn workers_may_be_tied_to_the_cpus_on_which_memlane_may_run() {
    let folder = tempfile::tempdir().unwrap();
    let all = Cpus::allowed().unwrap();
    let (own, other, missing) = (all.0[all.0.len() - 1], all.0[0], 1023);
    let check = |cpu: usize| {
        write(folder.path(), "net.toml", &format!("cpus = [{cpu}]\n{}", port("web.sock", "")));
        let mut command = Command::new("taskset");
        command.args(["-c", &own.to_string(), env!("CARGO_BIN_EXE_memlane"), "check", "net.toml"]).current_dir(folder.path());
        command.output().expect("`taskset` of util-linux can be started")
    };
    assert!(check(own).status.success(), "{}", told(&check(own)));
    // The affinity that it inherits is no bound: with isolcpus=, no process has that of the CPUs that are meant for it.
    assert!(check(other).status.success(), "{}", told(&check(other)));
    let refused = check(missing);
    let wanted = format!("memlane may run on {all}");
    assert!(!refused.status.success() && told(&refused).contains(&wanted), "{}", told(&refused));
}

#[test]
fn a_run_time_folder_that_another_user_may_have_made_is_told_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o1777);
    std::fs::set_permissions(folder.path(), open).unwrap();
    std::fs::create_dir(folder.path().join("elsewhere")).unwrap();
    std::os::unix::fs::symlink("elsewhere", folder.path().join("memlane")).unwrap();
    write(folder.path(), "net.toml", &port("memlane/web.sock", "access = { mode = \"0666\" }\n"));
    let output = memlane(folder.path(), &["up", "net.toml"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let told = told(&output);
    assert!(told.contains("belongs to another user") && told.contains("set XDG_RUNTIME_DIR"), "{told}");
}

#[test]
fn a_reload_leaves_it_to_the_network_on_which_cpus_it_may_run() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), "net.toml", &format!("cpus = [1023]\n{}", port("web.sock", "")));
    assert!(Document::load(&path).unwrap_err().to_string().contains("CPU 1023"));
    assert_eq!(Reread::load(&path, false).unwrap().document.cpus, [1023]);
}

#[test]
fn the_doctors_code_says_that_something_is_missing() {
    let root = nix::unistd::geteuid().is_root();
    let mut command = Command::new("unshare");
    command.arg("--mount").args(if root { &[][..] } else { &["--user", "--map-root-user"] });
    // Without /proc, there is no kernel that is new enough.
    command.args(["--", "sh", "-c", "mount -t tmpfs none /proc && exec \"$0\" doctor", env!("CARGO_BIN_EXE_memlane")]);
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(3), "{text}{}", told(&output));
    assert!(text.contains("LACK  kernel") && text.contains("-> use Linux 5.10 or newer"), "{text}");
}
