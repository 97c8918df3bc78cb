//! The command as people and scripts meet it: exit codes, sentences, JSON.

use std::process::{Command, Output, Stdio};

use crate::hub::{Hub, OFFERED};
use serde_json::Value;

fn rig(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_memlane-rig")).args(arguments).stdin(Stdio::null()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn place(hub: &Hub, port: usize) -> String {
    format!("vu:{}", hub.path(port).display())
}

#[test]
fn wrong_arguments_are_code_2_and_name_the_mistake() {
    for (arguments, said) in [
        (&["blast"][..], "--port"),
        (&["blast", "-p", "nonsense"], "is no port"),
        (&["blast", "-p", "vu:a", "--sizes", "many"], "is no number"),
        (&["villain"], "NAME"),
        (&["fly"], "fly"),
    ] {
        let output = rig(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(text(&output.stderr).contains(said), "{arguments:?}: {}", text(&output.stderr));
    }
}

#[test]
fn what_cannot_be_done_is_code_1_and_all_mistakes_at_once() {
    let output = rig(&["blast", "-p", "vu:/nowhere/a", "--sizes", "10", "--ring-size", "7"]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    for mistake in ["1 ports are too few", "a frame of 10 bytes", "7 is no ring size"] {
        assert!(said.contains(mistake), "{said}");
    }
}

#[test]
fn a_missing_switch_is_one_sentence_with_a_remedy() {
    let output = rig(&["blast", "-p", "vu:/nowhere/a", "-p", "vu:/nowhere/b", "--timeout", "0.05"]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(said.contains("/nowhere/a") && said.contains("start the switch first"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
}

#[test]
fn a_blast_speaks_json() {
    let hub = Hub::new(2, OFFERED);
    let (one, two) = (place(&hub, 0), place(&hub, 1));
    let run = ["--window", "16", "--touch", "--seconds", "0.2", "--warm-up", "0.02", "--json"];
    let output = rig(&[&["blast", "-p", &one, "-p", &two][..], &run].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["schema"], 1);
    assert!(report["total"]["received"].as_u64().unwrap() > 0);
    assert_eq!(report["fate"]["corrupt"], 0);
    assert_eq!(report["directions"].as_array().unwrap().len(), 2);
    assert!(report["machine"]["command"][0].as_str().unwrap().contains("memlane-rig"));
}

#[test]
fn a_blast_is_a_table_for_people() {
    let hub = Hub::new(2, OFFERED);
    let (one, two) = (place(&hub, 0), place(&hub, 1));
    let output = rig(&["blast", "-p", &one, "-p", &two, "--window", "16", "--seconds", "0.2", "--warm-up", "0.02"]);
    let said = text(&output.stdout);
    for word in ["recv Mpps", "0 -> 1", "1 -> 0", "total", "latency us", "Jain's index", "generator"] {
        assert!(said.contains(word), "{said}");
    }
    assert!(!text(&output.stderr).contains('\x1b'), "no progress line where there is no terminal");
}

#[test]
fn villains_are_listed_with_all_that_scripts_want() {
    let listed = text(&rig(&["villain", "--list", "--json"]).stdout);
    let cases: Vec<Value> = listed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(cases.len() > 150);
    assert!(cases.iter().all(|case| case["name"].is_string() && case["about"].is_string()));
    let rings = text(&rig(&["villain", "--list", "ring"]).stdout);
    assert!(rings.lines().count() > 10 && rings.lines().all(|line| line.starts_with("ring ")), "{rings}");
}

#[test]
fn a_villain_is_tried_and_judged() {
    let hub = Hub::new(3, OFFERED);
    let paths: Vec<String> = (0..3).map(|port| hub.path(port).display().to_string()).collect();
    let at = ["-s", &paths[0], "--friend", &paths[1], "--observer", &paths[2], "--json"];
    let output = rig(&[&["villain", "header-split", "indirect-unaligned"][..], &at].concat());
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    let judged: Vec<Value> = text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(judged.len(), 2);
    assert!(judged.iter().all(|judgement| judgement["harm"].as_array().unwrap().is_empty()));
    let unknown = rig(&[&["villain", "angel"][..], &at].concat());
    assert!(text(&unknown.stderr).contains("--list shows them all"));
}

#[test]
fn idle_guests_connect_and_are_not_called() {
    let hub = Hub::new(3, OFFERED);
    let pattern = hub.path(0).with_file_name("{}.sock").display().to_string();
    let output = rig(&["idle", &pattern, "--count", "3", "--seconds", "0.1", "--json"]);
    let said = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let last: Value = serde_json::from_str(said.lines().last().unwrap()).unwrap();
    assert_eq!((&last["state"], &last["connected"]), (&Value::from("done"), &Value::from(3)));
}

#[test]
fn one_guest_pings_another() {
    let hub = Hub::new(2, OFFERED);
    let path = |port: usize| hub.path(port).display().to_string();
    let mut answering = Command::new(env!("CARGO_BIN_EXE_memlane-rig"))
        .args(["guest", &path(0), "--ip", "10.0.0.5", "--mac", "02:00:00:00:00:05", "--json", "--check"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let asking = rig(&["guest", &path(1), "--ip", "10.0.0.6", "--ping", "10.0.0.5", "--seconds", "4", "--json"]);
    answering.kill().unwrap();
    let heard = text(&answering.wait_with_output().unwrap().stdout);
    assert!(text(&asking.stdout).contains("\"pinged\""), "{}{heard}", text(&asking.stdout));
    assert!(heard.contains("an ARP request") && heard.contains("a ping from 10.0.0.6"), "{heard}");
    assert!(!heard.contains("flaw"), "{heard}");
}

#[test]
fn the_kernel_s_own_bridge_can_be_measured() {
    let blast = format!(
        "ip link add br0 type bridge && ip link set br0 up && {} blast -p tap:t0,bridge=br0 -p tap:t1,bridge=br0 \
         --window 8 --touch --seconds 0.3 --warm-up 0.05 --sizes 60,1514 --json",
        env!("CARGO_BIN_EXE_memlane-rig")
    );
    // A user and a network namespace of its own: no rights are needed and nothing is left behind.
    let output = Command::new("unshare").args(["-rn", "sh", "-c", &blast]).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["total"]["received"].as_u64().unwrap() > 20, "{report}");
    assert_eq!((&report["fate"]["lost"], &report["fate"]["corrupt"]), (&Value::from(0), &Value::from(0)));
}

#[test]
fn completion_scripts_come_out() {
    for shell in ["bash", "zsh", "fish"] {
        assert!(text(&rig(&["completion", shell]).stdout).contains("memlane-rig"), "{shell}");
    }
}
