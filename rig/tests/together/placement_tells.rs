//! `memlane-rig placement`: the distance of two processors, as people and programs read it.

use std::process::{Command, Output};

fn placement(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_memlane-rig")).arg("placement").args(arguments).output().unwrap()
}

#[test]
fn a_processor_is_at_no_distance_from_itself() {
    let output = placement(&["--cpus", "0,0", "--json"]);
    assert!(output.status.success());
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(told, serde_json::json!({ "cpus": [0, 0], "distance": null }));
}

#[test]
fn two_processors_are_at_some_distance() {
    if std::thread::available_parallelism().unwrap().get() < 2 {
        return; // there is no second one to be at a distance from
    }
    let output = placement(&["--json"]);
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let nanoseconds = told["distance"]["nanoseconds"].as_f64().unwrap();
    assert!((5.0..100_000.0).contains(&nanoseconds), "{told}");
    assert!(["near", "between", "far"].contains(&told["distance"]["verdict"].as_str().unwrap()));
}

#[test]
fn one_processor_is_too_few() {
    let output = placement(&["--cpus", "0"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("takes two processors"));
}
