//! The sandbox of a network that runs, as the kernel shows it (proc(5)); a network on a kernel without Landlock.

use seccompiler::{SeccompAction, SeccompFilter, SeccompRule};

use crate::command::{Running, memlane, network, printed, told, write};
use crate::common::in_a_namespace;
use crate::tap::guest;
use memlane_rig::frontend::features;

/// Of linux/capability.h, as the page on threats lists them: CHOWN, DAC_OVERRIDE, FOWNER, LEASE, SYS_RESOURCE.
const FILES: u64 = 1 | 1 << 1 | 1 << 3 | 1 << 28 | 1 << 24;
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
    for name in ["memlane", "worker-0", "port-0", "port-1"] {
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

/// A network in a folder of many other files, whose file is replaced by another one: the answer to a reload.
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
