//! Static tracepoints are in the binary that users run.

use std::collections::BTreeSet;
use std::process::Command;

const PROBES: [&str; 6] = ["call", "drop", "kick", "port_state", "session", "worker_iteration"];

fn lines(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn tracers_find_the_probes_in_the_binary() {
    let binary = env!("CARGO_BIN_EXE_memlane");
    let notes = lines("readelf", &["--notes", binary]).expect("readelf (Debian package binutils)");
    // "Provider: memlane", "Name: drop", "Location: ..., Semaphore: 0x0".
    let notes: Vec<&str> = notes.lines().map(str::trim).collect();
    let ours = notes.windows(3).filter(|lines| lines[0] == "Provider: memlane");
    let found: BTreeSet<&str> = ours
        .map(|lines| {
            assert!(lines[2].ends_with("Semaphore: 0x0000000000000000"), "costs a nop and no more: {lines:?}");
            lines[1].trim_start_matches("Name: ")
        })
        .collect();
    assert_eq!(found, BTreeSet::from(PROBES));
    // The probe serves root alone.
    if nix::unistd::Uid::effective().is_root() {
        let listed = lines("bpftrace", &["-l", &format!("usdt:{binary}:*")]).expect("bpftrace (lab/install-packages test)");
        PROBES.iter().for_each(|probe| assert!(listed.contains(&format!(":memlane:{probe}")), "{probe}: {listed}"));
    }
}
