//! Old keys and options: each is refused with its new name, in a file, at the command line and at the control socket.

use std::path::Path;

use crate::command::{Running, memlane, network, told, write};
use memlane::config::check::check;
use memlane::control::{Client, ControlError};
use serde_json::{Value, json};

/// Old keys of ports and their new names.
const KEYS: [(&str, &str); 3] = [("intake", "transmit"), ("delivery", "receive"), ("delivery-offloads", "receive-offloads")];

#[test]
fn a_file_with_an_old_key_is_told_the_new_one() {
    for (old, new) in KEYS {
        let text = format!("[[port]]\nname = \"a\"\nnull = true\n{old} = {{}}\n");
        let mistakes = check(&text).unwrap_err().in_file(Path::new("net.toml"));
        assert_eq!(mistakes.to_string(), format!("net.toml:4: the key {old} was renamed to {new}"));
    }
}

#[test]
fn a_network_with_an_old_key_is_told_the_new_one() {
    let mistakes = check("patience-ms = 100\n").unwrap_err().in_file(Path::new("net.toml"));
    assert_eq!(mistakes.to_string(), "net.toml:1: the key patience-ms was renamed to stall-timeout-ms");
}

#[test]
fn a_command_with_an_old_option_is_told_the_new_one() {
    let folder = network("web.sock");
    for (old, new) in KEYS.into_iter().chain([("no-delivery-offloads", "no-receive-offloads")]) {
        let output = memlane(folder.path(), &["attach", "net.toml", "x", "--null", &format!("--{old}"), "1Gbit"]).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        let wanted = format!("the option --{old} was renamed to --{new}.");
        assert!(told(&output).contains(&wanted), "{}", told(&output));
    }
}

#[test]
fn a_request_with_an_old_key_is_told_the_new_one() {
    let folder = network("web.sock");
    write(folder.path(), "net.toml", &format!("control = \"net.control\"\n{}", crate::command::port("web.sock", "")));
    let _running = Running::start(memlane(folder.path(), &["up", "net.toml"]));
    let client = Client::new(&folder.path().join("net.control"));
    let problem = |method: hyper::Method, uri: &str, body: Value| match client.ask::<Value>(method, uri, Some(&body)) {
        Err(ControlError::Refused(refusal)) => serde_json::to_string(&refusal.problem).unwrap(),
        other => panic!("{uri} {body}: {other:?}"),
    };
    for (old, new) in KEYS {
        let wanted = format!("the key {old} was renamed to {new}");
        let attached = problem(hyper::Method::POST, "/v1/ports", json!({ "name": "a", "null": true, old: {} }));
        assert!(attached.contains(&wanted), "{attached}");
        let changed = problem(hyper::Method::PATCH, "/v1/ports/web", json!({ old: {} }));
        assert!(changed.contains(&wanted), "{changed}");
    }
}
