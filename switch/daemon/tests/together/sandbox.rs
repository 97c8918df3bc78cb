//! The sandbox of a network that runs, as the kernel shows it (proc(5)); a network on a kernel without Landlock.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use seccompiler::{SeccompAction, SeccompFilter, SeccompRule};

use crate::command::{Running, memlane, network, port, printed, told, write};
use crate::common::in_a_namespace;
use crate::reference::sandbox::{self, KINDS};
use crate::tap::guest;
use memlane_rig::frontend::features;

/// Of linux/capability.h, as the page on threats lists them: DAC_READ_SEARCH, LEASE, SYS_RESOURCE.
const FILES: u64 = 1 << 2 | 1 << 28 | 1 << 24;
const NET_ADMIN: u64 = 1 << 12;
const NET_RAW: u64 = 1 << 13;
const SYS_ADMIN: u64 = 1 << 21;
/// A finding of `memlane doctor`.
const WITHOUT: &str = "the kernel has no Landlock: networks confine system calls, by seccomp, and not files";

/// System calls of this thread, and of processes that it starts, fail from now on with `error` if `rules` match.
pub fn refuse(call: libc::c_long, rules: Vec<SeccompRule>, error: i32) {
    let (this, others) = (SeccompAction::Errno(error as u32), SeccompAction::Allow);
    let filter = SeccompFilter::new([(call, rules)].into(), others, this, std::env::consts::ARCH.try_into().unwrap()).unwrap();
    let program: seccompiler::BpfProgram = filter.try_into().unwrap();
    seccompiler::apply_filter(&program).unwrap();
}

/// Name and status of each thread of the process.
fn threads(process: u32) -> Vec<(String, String)> {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let status = threads.filter_map(|thread| std::fs::read_to_string(thread.ok()?.path().join("status")).ok());
    status.map(|status| (value(&status, "Name").to_owned(), status)).collect()
}

fn value<'s>(status: &'s str, key: &str) -> &'s str {
    status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(":\t")).unwrap_or_else(|| panic!("no {key}: {status}"))
}

fn rights(status: &str, set: &str) -> u64 {
    u64::from_str_radix(value(status, set), 16).unwrap()
}

/// Every thread of `running` has no more than these capabilities, of those that this process has, and its system calls are filtered.
fn is_confined(running: &Running, kept: u64) -> Vec<String> {
    let own = std::fs::read_to_string("/proc/self/status").unwrap();
    let threads = threads(running.0.id());
    for (name, status) in &threads {
        assert_eq!((value(status, "NoNewPrivs"), value(status, "Seccomp")), ("1", "2"), "{name}");
        assert_eq!(rights(status, "CapEff"), rights(&own, "CapEff") & kept, "{name}");
        assert_eq!(rights(status, "CapPrm"), rights(&own, "CapPrm") & kept, "{name}");
        assert_eq!(rights(status, "CapInh") | rights(status, "CapAmb"), 0, "{name}");
    }
    threads.into_iter().map(|(name, _)| name).collect()
}

#[test]
fn every_thread_of_a_network_is_confined() {
    let folder = network("web.sock");
    let folder = folder.path();
    let running = Running::start(memlane(folder, &["up", "net.toml"]));
    printed(folder, &["attach", "net.toml", "db", "--vhost-user", "db.sock", "--print", "nothing"]);
    let _guests = ["web.sock", "db.sock"].map(|socket| guest(features::LINUX, &folder.join(socket)));
    let names = is_confined(&running, FILES);
    for name in ["memlane", "worker-0", "sessions", "session-1"] {
        assert!(names.iter().any(|known| known == name), "{name} is not among {names:?}");
    }
}

#[test]
fn a_network_keeps_the_capabilities_of_its_kinds_of_ports_alone() {
    in_a_namespace("sandbox::a_network_keeps_the_capabilities_of_its_kinds_of_ports_alone", || {
        let kinds = [("tap", NET_ADMIN | SYS_ADMIN), ("af-packet", NET_ADMIN | NET_RAW | SYS_ADMIN)];
        for (kind, kept) in kinds {
            let folder = tempfile::tempdir().unwrap();
            write(
                folder.path(),
                "net.toml",
                &format!("sandbox = {{ kinds = [\"{kind}\"] }}\n[[port]]\nname = \"a\"\nnull = true\n"),
            );
            is_confined(&Running::start(memlane(folder.path(), &["up", "net.toml"])), FILES | kept);
        }
    });
}

/// A network in a folder of many other files; its file is replaced by another one: the answer to a reload.
fn replaced() -> Result<String, String> {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    write(folder, "net.toml", "control = \"control\"\n");
    let mut up = memlane(folder, &["up", "net.toml"]);
    up.env("HOME", folder);
    let running = Running::start(up);
    is_confined(&running, FILES);
    let other = write(folder, "other.toml", "control = \"control\"\n[[port]]\nname = \"db\"\nnull = true\n");
    std::fs::rename(other, folder.join("net.toml")).unwrap();
    let output = memlane(folder, &["reload", "--control", "control"]).output().unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), told(&output));
    if output.status.success() { Ok(text) } else { Err(text) }
}

#[test]
fn files_are_confined_by_landlock_and_a_kernel_without_it_is_told_of() {
    let doctor = || {
        let folder = tempfile::tempdir().unwrap();
        String::from_utf8(memlane(folder.path(), &["doctor", "--json"]).output().unwrap().stdout).unwrap()
    };
    if !doctor().contains(WITHOUT) {
        let refused = replaced().unwrap_err();
        assert!(refused.contains("the sandbox reads only the file that was there at the start"), "{refused}");
    }
    refuse(libc::SYS_landlock_create_ruleset, Vec::new(), libc::ENOSYS);
    assert!(doctor().contains(WITHOUT), "{}", doctor());
    assert!(replaced().unwrap().contains("added      db"));
}

/// Compiles attempts.c, to be preloaded.
fn attempts(folder: &Path) -> PathBuf {
    let (source, library) = (Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sandbox/attempts.c"), folder.join("attempts.so"));
    let compiled = Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(source).status();
    assert!(compiled.expect("cc, which links Rust programs, can be started").success());
    library
}

/// The error number of each attempt from inside a network with these keys in its file, by the attempt's name.
fn attempted(kind: &str, keys: &str, options: &[&str]) -> BTreeMap<String, i32> {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    for path in ["run", "own/below", "other", "bin"] {
        std::fs::create_dir_all(folder.join(path)).unwrap();
    }
    let at = |path: &str| folder.join(path);
    for path in ["foreign", "secret", "own/beside", "own/below/file"] {
        write(folder, path, "");
    }
    let passt = write(folder, "bin/passt", "#!/bin/sh\ncase \"$*\" in *--version*) echo passt 1 ;; *) exec sleep 60 ;; esac\n");
    std::fs::set_permissions(passt, std::fs::Permissions::from_mode(0o755)).unwrap();
    let programs = format!("{}:{}", at("bin").display(), std::env::var("PATH").unwrap());
    write(folder, "other/other.toml", "[[port]]\nname = \"a\"\nnull = true\n");
    let network = write(folder, "own/net.toml", &format!("control = \"../control\"\n{keys}\n{}", port("web.sock", "")));
    let command = |arguments: &[&str]| {
        let mut command = memlane(folder, arguments);
        command.env("XDG_RUNTIME_DIR", at("run")).env("PATH", &programs);
        command
    };
    let _other = Running::start(command(&["up", "other/other.toml", "--state", "other/state"]));
    let of_other = |ending: &str| {
        let entries = std::fs::read_dir(at("run/memlane")).unwrap().map(|entry| entry.unwrap().path());
        entries.into_iter().find(|path| path.to_string_lossy().ends_with(ending)).unwrap()
    };
    let mut up = command(&[&["up", "own/net.toml", "--state", "own/state"], options].concat());
    up.env("LD_PRELOAD", attempts(folder)).env("GO", at("go")).env("NET", &network).env("KEY", of_other(".d").join("takeover"));
    up.env("CONTROL", of_other(".control")).env("STATE", at("other/state")).env("NIC", at("run/memlane/other.nic"));
    let places = [
        ("FOREIGN", "foreign"),
        ("SECRET", "secret"),
        ("BESIDE", "own/beside"),
        ("BELOW", "own/below/file"),
        ("MOVED", "own/moved"),
    ];
    let made =
        [("NEW", "own/new"), ("LINK", "own/link"), ("SYMLINK", "own/symlink"), ("MKDIR", "own/made"), ("BIND", "own/bound.sock")];
    for (key, path) in places.into_iter().chain(made).chain([("SOCKET", "own/web.sock")]) {
        up.env(key, at(path));
    }
    let mut running = Running::start({
        up.stderr(Stdio::piped());
        up
    });
    if kind == "late" {
        let attach = ["attach", "own/net.toml", "db", "--vhost-user", "own/db.sock", "--print", "nothing"];
        assert!(command(&attach).status().unwrap().success());
    }
    write(folder, "go", "");
    // A request wakes the thread that waits for it.
    let _ = command(&["status", "own/net.toml"]).output();
    let lines = BufReader::new(running.0.stderr.take().unwrap()).lines().map(Result::unwrap);
    let told: Vec<_> = lines.take_while(|line| line != "attempts over").collect();
    let results = told.iter().filter_map(|line| {
        let (name, number) = line.strip_prefix("attempt ")?.split_once(' ')?;
        Some((name.to_owned(), number.parse().unwrap()))
    });
    results.collect()
}

fn is_refused(error: i32) -> bool {
    [libc::EPERM, libc::EACCES].contains(&error)
}

#[test]
fn a_thread_inside_has_the_rights_of_the_table_and_no_others() {
    in_a_namespace("sandbox::a_thread_inside_has_the_rights_of_the_table_and_no_others", || {
        let rights = sandbox::rights();
        let has_landlock = !printed(Path::new("/"), &["doctor", "--json"]).contains(WITHOUT);
        let keys = |kind: &str| match kind {
            "tap" | "af-packet" => format!("sandbox = {{ kinds = [\"{kind}\"] }}"),
            "passt" => "[[port]]\nname = \"out\"\npasst = true".into(),
            _ => String::new(),
        };
        for kind in KINDS {
            let results = attempted(kind, &keys(kind), &[]);
            let names: Vec<_> = rights.iter().map(|right| right.name.as_str()).collect();
            let unknown: Vec<_> = results.keys().filter(|name| !names.contains(&name.as_str())).collect();
            assert!(unknown.is_empty(), "the table lacks {unknown:?}");
            for right in rights.iter().filter(|right| has_landlock || right.by != "Landlock") {
                let error = *results.get(&right.name).unwrap_or_else(|| panic!("{kind}: no attempt {} in {results:?}", right.name));
                let has = right.has.iter().any(|known| known == kind);
                if has && right.depends_on_kernel {
                    continue;
                }
                assert_eq!(!is_refused(error), has, "{kind}: {}: error {error}", right.name);
                assert!(!has || error == 0, "{kind}: {}: error {error}", right.name);
            }
        }
        // The attempts are real: without the sandbox none is refused, but where this machine refuses it to all.
        let results = attempted("plain", "", &["--sandbox", "none"]);
        let of_machine =
            ["io-uring", "io-uring-register", "read-other-memory", "read-other-environment", "enter-mount-namespace", "bpf"];
        let refused: Vec<_> =
            results.iter().filter(|(name, error)| is_refused(**error) && !of_machine.contains(&name.as_str())).collect();
        assert!(refused.is_empty(), "{refused:?}");
        // Without Landlock, system calls and capabilities are confined all the same.
        refuse(libc::SYS_landlock_create_ruleset, Vec::new(), libc::ENOSYS);
        let results = attempted("plain", "", &[]);
        for right in rights.iter().filter(|right| right.by != "Landlock") {
            let has = right.has.iter().any(|kind| kind == "plain");
            assert_eq!(!is_refused(results[&right.name]), has, "without Landlock: {}", right.name);
        }
        assert_eq!(results["write-foreign"], 0, "files are Landlock's");
    });
}

/// Whether the network's file and the sandbox survive the acts of a thread inside with its own state file beside.
#[test]
fn a_network_keeps_its_sandbox_beside_a_service_for_nics_and_with_a_state_that_asks_for_passt() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    write(folder, "passt", "#!/bin/sh\ncase \"$*\" in *--version*) echo passt 1 ;; *) exec sleep 60 ;; esac\n");
    std::fs::set_permissions(folder.join("passt"), std::fs::Permissions::from_mode(0o755)).unwrap();
    write(folder, "net.toml", "[[port]]\nname = \"out\"\npasst = true\n");
    std::fs::create_dir(folder.join("memlane")).unwrap();
    write(folder, "memlane/net.nic", "");
    let up = |state: &[&str]| {
        let mut up = memlane(folder, &[&["up", "net.toml"], state].concat());
        up.env("PATH", format!("{}:{}", folder.display(), std::env::var("PATH").unwrap()));
        up
    };
    is_confined(&Running::start(up(&[])), FILES);
    // A state is written by the confined process: it gives no rights.
    let state = "[[port]]\nname = \"late\"\npasst = [\"--log-file\", \"/etc/cron.d/x\"]\n";
    write(folder, "state", state);
    let output = up(&["--state", "state"]).output().unwrap();
    assert!(!output.status.success() && told(&output).contains("the sandbox has no rights for passt ports"), "{}", told(&output));
}
