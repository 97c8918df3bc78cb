//! Every message for a mistake of the operator, for each key of the file and each kind of mistake: [messages.txt](../messages.txt) holds them word for
//! word. Which keys and kinds there are follows from the schema, so that a new key has messages too. `MEMLANE_MESSAGES=write` writes the list anew:
//! then it is to be read.

use std::path::Path;

use crate::command::{Running, memlane, network, port, printed, told, write};
use memlane::config::check::check;
use memlane::config::document::schema;
use serde_json::Value;

/// Words of libraries: the reader of a network's file cannot know their meaning.
const FOREIGN: [&str; 16] = [
    "untagged",
    "variant",
    "invalid type",
    "invalid value",
    "unknown field",
    "missing field",
    "expected",
    "struct ",
    "usize",
    "u16",
    "u64",
    "i128",
    "tip:",
    "`--",
    "deserial",
    "Error(",
];

/// An input and its message.
struct Case {
    input: String,
    said: String,
}

fn text_of(cases: &[Case]) -> String {
    cases.iter().map(|Case { input, said }| format!("{input}\n    {}\n", said.replace('\n', "\n    "))).collect()
}

/// The message on a file; a line break is shown as a bar.
fn file(text: &str) -> Case {
    let said = match check(text) {
        Ok(_) => "(no mistake)".into(),
        Err(mistakes) => mistakes.in_file(Path::new("net.toml")).to_string(),
    };
    Case { input: text.trim_end().replace('\n', " | "), said }
}

/// The simple schemas that a value may have.
fn alternatives<'s>(root: &'s Value, schema: &'s Value) -> Vec<&'s Value> {
    if let Some(name) = schema["$ref"].as_str() {
        return alternatives(root, root.pointer(name.trim_start_matches('#')).unwrap());
    }
    match schema["anyOf"].as_array().or_else(|| schema["oneOf"].as_array()) {
        Some(several) => several.iter().flat_map(|one| alternatives(root, one)).collect(),
        None if schema["type"] == "null" => Vec::new(),
        None => vec![schema],
    }
}

fn is_of(schema: &Value, name: &str) -> bool {
    schema["type"] == name || schema["type"].as_array().is_some_and(|types| types.iter().any(|one| one == name))
}

/// Every kind of mistake of the key with these schemas, as its lines in the file.
fn mistaken(key: &str, simple: &[&Value]) -> Vec<String> {
    let takes = |name| simple.iter().any(|one| is_of(one, name));
    let mut values: Vec<String> = Vec::new();
    let types = [("integer", "7"), ("string", "\"soon\""), ("boolean", "true"), ("array", "[7]"), ("object", "{ x = 1 }")];
    let strange = types.iter().filter(|(name, _)| !(takes(name) || *name == "integer" && takes("number")));
    values.extend(strange.take(1).map(|(_, value)| (*value).to_owned()));
    for one in simple {
        if let Some(least) = one["minimum"].as_f64() {
            values.push(format!("{}", least - 1.0));
        }
        if let Some(most) = one["maximum"].as_f64() {
            values.push(format!("{}", most + 1.0));
        }
        if let Some(word) = one["const"].as_str() {
            values.push(format!("\"{}\"", &word[..word.len() - 1]));
        }
        if one["format"].is_string() && is_of(one, "string") {
            values.push("\"soon\"".into());
        }
    }
    values.dedup();
    let near = (key.len() > 2).then(|| format!("{}x = 1", &key[..key.len() - 1]));
    values.iter().map(|value| format!("{key} = {value}")).chain(near).collect()
}

/// All cases of the keys of one table; `place` puts a line of it into a file.
fn table(root: &Value, schema: &Value, place: &dyn Fn(&str, &str) -> String) -> Vec<Case> {
    let mut cases = Vec::new();
    // A table with any keys, as labels, has no properties.
    for (key, of_key) in schema["properties"].as_object().into_iter().flatten() {
        let simple = alternatives(root, of_key);
        cases.extend(mistaken(key, &simple).iter().map(|line| file(&place(key, line))));
        for object in simple.iter().filter(|one| is_of(one, "object")) {
            cases.extend(table(root, object, &|_, line| place(key, &format!("{key} = {{ {line} }}"))));
        }
        let entries = simple.iter().filter(|one| is_of(one, "array")).flat_map(|one| alternatives(root, &one["items"]));
        for entry in entries.filter(|entry| is_of(entry, "object")) {
            if !["port", "segment"].contains(&key.as_str()) {
                cases.extend(table(root, entry, &|_, line| place(key, &format!("{key} = [{{ {line} }}]"))));
                continue;
            }
            let usual: &[(&str, &str)] = match key.as_str() {
                "port" => &[("name", "name = \"a\"\n"), ("null", "null = true\n")],
                _ => &[
                    ("name", "name = \"lan\"\n"),
                    ("uplink", "uplink = true\n"),
                    ("vni", "vni = 100\n"),
                    ("local", "local = \"10.0.0.1\"\n"),
                ],
            };
            let place = |own: &str, line: &str| {
                let rest: String = usual.iter().filter(|(key, _)| *key != own).map(|(_, line)| *line).collect();
                format!("[[{key}]]\n{rest}{line}\n")
            };
            cases.extend(table(root, entry, &place));
        }
    }
    cases
}

/// Mistakes of several keys together, and files that are no TOML.
const FILES: [&str; 67] = [
    "[[segment]]\nname = \"lan\"\nmulticast = \"snoop\"\ndns = [\"192.0.2.53\", \"127.0.0.53\"]\n",
    "[[port]]\nname = \"a\"\nnull = true\nlabels = { pod = 7 }\n",
    "[[port]]\nname = \"a\"\nnull = true\nlabels = { \"a b\" = \"c\" }\n",
    "workers = \n",
    "workers 1\n",
    "workers: 1\n",
    "workers = 1\nworkers = 2\n",
    "name = web\n",
    "enabled = yes\n",
    "name = \"web\n",
    "name = 'web\n",
    "name = \"C:\\web\"\n",
    "[port]]\nname = \"a\"\n",
    "[[port]\nname = \"a\"\n",
    "[port\n",
    "cpus = [1, 2\n",
    "access = { group = \"a\"\n",
    "transmit = { rate: \"1Gbit\" }\n",
    "= 3\n",
    "workers = 01\n",
    "share = .5\n",
    "share = 1.\n",
    "age = 1__0\n",
    "{ \"workers\": 1 }\n",
    "[[port]]\nname = \"a\" null = true\n",
    "[[port]]\nname = \"a\"\n[port]\n",
    "[port]\nname = \"a\"\n",
    "port = [3]\n",
    "segment = \"lan\"\n",
    "[[port]]\nname = \"a\"\nnull = true\nworkers = 2\n",
    "weight = 2\n",
    "vni = 2\n",
    "vhost-user = \"a.sock\"\n",
    "colour = \"red\"\n",
    "[[port]]\nname = \"a\"\nnull = true\ncolour = \"red\"\n",
    "[[port]]\nname = \"a\"\nnull = true\ntransmit = { colour = \"red\" }\n",
    "[[port]]\nname = \"a\"\nnull = true\nmtu = \"1400\"\n",
    "[[port]]\nname = \"a\"\nnull = true\nenabled = \"true\"\n",
    "[[port]]\nname = \"a\"\nnull = true\nlink = { loss = \"150%\" }\n",
    "[[port]]\nname = \"a\"\nnull = true\nlink = { gilbert-elliott = { p = 0.1 } }\n",
    "workers = 99999999999999999999\n",
    "age = 5000000000\n",
    "share = nan\n",
    "cpus = [-1, \"x\", 99999999999999999999]\n",
    "name = 2026-01-01\n",
    "[[port]]\nname = \"a\"\nnull = true\nstorm = 99999999999999999999\n",
    "[[port]]\nnull = true\n",
    "[[port]]\nname = \"\"\nnull = true\n",
    "[[port]]\nname = \"a b\"\nnull = true\n",
    "[[port]]\nname = \"a\"\n",
    "[[port]]\nname = \"a\"\nnull = true\nloopback = true\n",
    "[[port]]\nname = \"a\"\nnull = true\nvif = 1\n",
    "[[port]]\nname = \"a\"\nnull = true\nconnect = true\n",
    "[[port]]\nname = \"a\"\nnull = true\nnetns = \"x\"\n",
    "[[port]]\nname = \"a\"\nnull = true\naccess = { group = \"kvm\" }\n",
    "[[port]]\nname = \"a\"\nvhost-user = \"a.sock\"\naccess = { mode = \"rw\" }\n",
    "[[port]]\nname = \"a\"\nvhost-user = \"\"\n",
    "[[port]]\nname = \"a\"\nstream = \"a\\u0007b\"\n",
    "[[port]]\nname = \"a\"\ntap = \"a/b\"\n",
    "[[port]]\nname = \"a\"\nxen = \"a b\"\n",
    "[[port]]\nname = \"a\"\nnull = true\nmac = \"02:00\"\n",
    "[[port]]\nname = \"a\"\nnull = true\nmac = \"01:00:00:00:00:01\"\n",
    "[[port]]\nname = \"a\"\nnull = true\nmac = \"02:00:00:00:00:01\"\n[[port]]\nname = \"a\"\nnull = true\nmac = \"02:00:00:00:00:01\"\n",
    "[[segment]]\nname = \"lan\"\n",
    "[[segment]]\nuplink = true\nvni = 100\nlocal = \"10.0.0.1\"\n",
    "[[segment]]\nname = \"lan\"\nuplink = true\n",
    "[[segment]]\nname = \"lan\"\nuplink = true\nvni = 100\nlocal = \"224.0.0.1\"\n",
];

/// Command lines, and the codes that they end with.
const COMMANDS: [(i32, &[&str]); 50] = [
    (0, &["check", "net.toml"]),
    (2, &["check", "missing.toml"]),
    (2, &["check"]),
    (2, &["check", "net.toml", "other.toml"]),
    (2, &["check", "bad.toml"]),
    (2, &["chek", "net.toml"]),
    (2, &["colour"]),
    (2, &["--colour"]),
    (2, &["up", "net.toml", "--stat", "x"]),
    (2, &["up", "net.toml", "--state"]),
    (2, &["up", "net.toml", "--name", "x"]),
    (2, &["up", "bad.toml"]),
    (1, &["status", "--control", "none.sock"]),
    (2, &["status", "net.toml", "--jsn"]),
    (2, &["ls", "net.toml", "--json=1"]),
    (1, &["show", "net.toml", "nobody"]),
    (2, &["show"]),
    (1, &["attach", "net.toml", "web", "--null"]),
    (2, &["attach", "net.toml", "x", "--null", "--loopback"]),
    (2, &["attach", "net.toml", "x", "--null", "--mtu", "3"]),
    (2, &["attach", "net.toml", "x", "--null", "--mtu", "many"]),
    (2, &["attach", "net.toml", "x", "--null", "--mtu", "3", "--weight", "0", "--queues", "x"]),
    (2, &["attach", "net.toml", "x", "--xen", "web", "--vif", "x"]),
    (2, &["attach", "net.toml", "x", "--access", "kvm"]),
    (2, &["attach", "net.toml", "x", "--null", "--print", "qem"]),
    (2, &["attach", "net.toml", "x", "--null", "--print", "bochs"]),
    (2, &["attach", "net.toml", "x", "--null", "--json", "--print", "qemu"]),
    (2, &["attach", "net.toml", "x", "--passt", "--tcp-ports 80:80"]),
    (2, &["attach", "net.toml", "x", "--null", "--receive-offloads", "yes"]),
    (2, &["attach", "net.toml", "a b", "--null"]),
    (2, &["attach", "net.toml", "x", "--null", "--netns", "x"]),
    (2, &["set", "net.toml", "web", "--wieght", "3"]),
    (2, &["set", "net.toml", "web", "--weight", "3", "--weight", "4"]),
    (2, &["set", "net.toml", "web", "--weight", "0"]),
    (2, &["set", "net.toml", "web", "--transmit", "quick"]),
    (2, &["set", "net.toml", "web", "--link", "10ms"]),
    (2, &["set", "net.toml", "web", "--link", "{ loss = \"soon\", dely = \"1ms\" }"]),
    (2, &["set", "net.toml", "web", "--link", "{ loss = }"]),
    (2, &["set", "net.toml", "web", "--mac", "nonsense"]),
    (2, &["set", "net.toml", "web", "--enabled", "maybe"]),
    (2, &["set", "net.toml", "web", "--enabled", "true", "--disabled"]),
    (1, &["set", "net.toml", "nobody", "--weight", "3"]),
    (2, &["drain", "net.toml", "web", "--timeout", "soon"]),
    (2, &["qemu", "net.toml", "nobody"]),
    (2, &["qemu", "net.toml", "web", "--memory", "soon"]),
    (2, &["reload", "bad.toml"]),
    (1, &["reload", "net.toml", "--force", "nobody"]),
    (2, &["completion", "bsh"]),
    (2, &["evpn", "--as", "0", "--peers", "10.0.0.2"]),
    (2, &["evpn", "--as", "65000", "--peers", "10.0.0.300"]),
];

fn commands() -> Vec<Case> {
    let folder = network("web.sock");
    let folder = folder.path();
    write(folder, "bad.toml", "workers = 0\n[[port]]\nname = \"a\"\ncolour = 1\n");
    let _running = Running::start(memlane(folder, &["up", "net.toml"]));
    let case = |(code, arguments): &(i32, &[&str])| {
        let output = memlane(folder, arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(*code), "{arguments:?}: {}", told(&output));
        let said = told(&output).replace(&folder.display().to_string(), "FOLDER");
        let quoted = arguments.iter().map(|one| if one.contains(' ') { format!("'{one}'") } else { (*one).into() });
        Case { input: format!("memlane {} ({code})", quoted.collect::<Vec<_>>().join(" ")), said: said.trim_end().into() }
    };
    COMMANDS.iter().map(case).collect()
}

/// Requests to the control socket.
fn sent() -> Vec<Case> {
    use memlane::control::{Client, ControlError};
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "net.toml", &format!("control = \"net.control\"\n{}", port("web.sock", "")));
    let _running = Running::start(memlane(folder.path(), &["up", "net.toml"]));
    let client = Client::new(&folder.path().join("net.control"));
    let place = folder.path().display().to_string();
    let problem = |refusal: &memlane::control::Refusal| serde_json::to_string(&refusal.problem).unwrap().replace(&place, "FOLDER");
    let case = |(method, uri, body): (&str, &str, Value)| {
        let method = hyper::Method::from_bytes(method.as_bytes()).unwrap();
        let said = match client.ask::<Value>(method.clone(), uri, Some(&body)) {
            Err(ControlError::Refused(refusal)) => {
                format!("{} {}", refusal.status.as_u16(), problem(&refusal))
            }
            other => panic!("{method} {uri} {body}: {other:?}"),
        };
        Case { input: format!("{method} {uri} {body}"), said }
    };
    let long = "x".repeat(50);
    [
        ("POST", "/v1/ports", serde_json::json!([1])),
        ("POST", "/v1/ports", serde_json::json!({ "name": "a", "null": true, "sise": 2 })),
        ("POST", "/v1/ports", serde_json::json!({ "name": [null], "null": true })),
        ("POST", "/v1/ports", serde_json::json!({ "name": "a", "null": true, "storm": u64::MAX })),
        ("POST", "/v1/ports", serde_json::json!({ "name": "a", "null": true, "mac": long })),
        ("POST", "/v1/ports", serde_json::json!({ "name": "web", "vhost-user": "web.sock" })),
        ("POST", "/v1/ports", serde_json::json!({ "name": "a", "null": true, "origin": { "by": "me", "label": 7 } })),
        ("POST", "/v1/ports", serde_json::json!({ "name": "a", "null": true, "origin": { "by": "file" } })),
        ("PATCH", "/v1/ports/web", serde_json::json!([1])),
        ("PATCH", "/v1/ports/web", serde_json::json!({ "mtu": 1, "weigth": 2 })),
        ("PATCH", "/v1/ports/web", serde_json::json!({ "queues": 2 })),
        ("PATCH", "/v1/ports/web", serde_json::json!({ "link": { "loss": "2%", "delay": 10 } })),
        ("POST", "/v1/ports/web/drain", serde_json::json!({ "timeout": 10 })),
        ("POST", "/v1/ports/web/drain", serde_json::json!({ "timeout-ms": "soon" })),
        ("POST", "/v1/reload", serde_json::json!({ "document": { "workers": 0, "port": [{ "name": "a", "null": 1 }] } })),
        ("POST", "/v1/reload", serde_json::json!({ "dry": true })),
    ]
    .map(case)
    .into_iter()
    .collect()
}

#[test]
fn every_message_is_as_it_is_listed() {
    let root = schema().to_value();
    let mut list = String::from("Messages for mistakes: the input, then what is said of it. See messages.rs.\n");
    for (what, cases) in [
        ("Each key of the file, each kind of mistake", table(&root, &root, &|_, line| format!("{line}\n"))),
        ("Keys together, and what is no TOML", FILES.iter().map(|text| file(text)).collect()),
        ("Commands, with their exit codes", commands()),
        ("The control socket", sent()),
    ] {
        list.push_str(&format!("\n== {what}\n\n{}", text_of(&cases)));
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/messages.txt");
    if std::env::var_os("MEMLANE_MESSAGES").is_some_and(|value| value == "write") {
        std::fs::write(&path, &list).unwrap();
    }
    let held = std::fs::read_to_string(path).unwrap();
    let different: Vec<String> =
        list.lines().zip(held.lines()).filter(|(now, held)| now != held).map(|(now, held)| format!("- {held}\n+ {now}")).collect();
    assert!(list == held, "{}", different.join("\n"));
    for line in held.lines().filter(|line| line.starts_with("    ")) {
        assert!(!FOREIGN.iter().any(|word| line.contains(word)), "words of a library: {line}");
    }
}

#[test]
fn mistakes_are_looked_for_to_a_bound() {
    let keys: String = (0..5000).map(|n| format!("key{n} = 1\n")).collect();
    let list = check(&keys).unwrap_err().list;
    assert_eq!(list.len(), 1001);
    assert_eq!(list[1000].text, "the file has more than 1000 mistakes: correct these first");
}

#[test]
fn one_mistake_made_often_is_told_once() {
    let ports: String = (0..100).map(|n| format!("[[port]]\nname = \"p{n}\"\nnull = true\ncolour = 1\n")).collect();
    let told = check(&ports).unwrap_err();
    assert_eq!(told.list.len(), 100);
    let told = told.in_file(Path::new("net.toml")).to_string();
    assert_eq!(told.lines().count(), 1, "{told}");
    assert!(told.starts_with("net.toml:4: unknown key colour; "), "{told}");
    assert!(told.ends_with(" (also in lines 8, 12, 16, 20, 24 and 94 more)"), "{told}");
}

/// One dialect: a value that a key takes it takes in the file, at the command line and at the control socket, and it is the same
/// there.
#[test]
fn quantities_are_written_alike_everywhere() {
    use memlane::config::{Config, PortConfig};
    let pairs = [
        ("link = { loss = \"1%\" }", "link = { loss = 0.01 }"),
        ("link = { duplicate = \"50%\", reorder = 1 }", "link = { duplicate = 0.5, reorder = \"100%\" }"),
        ("link = { gilbert-elliott = { p = \"1%\", r = \"50%\" } }", "link = { gilbert-elliott = { p = 0.01, r = 0.5 } }"),
        ("link = \"none\"", ""),
        ("transmit = \"100Mbit\"", "transmit = { rate = \"100Mbit\" }"),
        ("receive = \"1Gbit,10kpps\"", "receive = { rate = \"1Gbit\", packets = 10000 }"),
        ("transmit = \"none\"", ""),
        ("transmit = { rate = \"1Gbit\", burst-ms = \"20ms\" }", "transmit = { rate = \"1Gbit\", burst-ms = 20 }"),
    ];
    let folder = network("web.sock");
    let folder = folder.path();
    let _running = Running::start(memlane(folder, &["up", "net.toml"]));
    for (one, other) in pairs {
        let port =
            |line: &str| Config::parse(&format!("[[port]]\nname = \"a\"\nnull = true\n{line}\n"), "net").unwrap().ports.remove(0);
        assert_eq!(port(one), port(other), "{one}");
        let value: Value =
            serde_json::to_value(toml::from_str::<toml::Table>(&format!("name = \"a\"\nnull = true\n{one}")).unwrap()).unwrap();
        assert_eq!(PortConfig::from_json(&value, Path::new("")).unwrap(), port(other), "{one}");
        let (key, text) = one.split_once(" = ").unwrap();
        let now = |command: &[&str]| -> Value { serde_json::from_str(&printed(folder, command)).unwrap() };
        let changed = now(&["set", "net.toml", "web", &format!("--{key}"), text.trim_matches('"'), "--json"]);
        let attached = now(&["attach", "net.toml", "x", "--null", &format!("--{key}"), text.trim_matches('"'), "--json"]);
        printed(folder, &["detach", "net.toml", "x"]);
        printed(folder, &["set", "net.toml", "web", &format!("--{key}"), "none"]);
        let wanted = port(other).stated().get(key).cloned();
        assert_eq!(
            (changed.get(key).cloned(), attached["entry"].get(key).cloned().filter(|value| !value.is_null())),
            (wanted.clone(), wanted.or_else(|| usual(key))),
            "{one}"
        );
    }
    for (one, other) in [
        ("stall-timeout-ms = \"1.5s\"", "stall-timeout-ms = 1500"),
        ("age = \"5min\"", "age = 300"),
        ("share = \"25%\"", "share = 0.25"),
        ("memory-mib = \"1GiB\"", "memory-mib = 1024"),
        ("guest-memory-gib = \"1T\"", "guest-memory-gib = 1024"),
        ("port-memory-gib = \"64GiB\"", "port-memory-gib = 64"),
    ] {
        assert_eq!(Config::parse(one, "net").unwrap(), Config::parse(other, "net").unwrap(), "{one}");
    }
    for (disabled, enabled) in [("--enabled=false", "--enabled=true"), ("--disabled", "--enabled=true")] {
        assert!(printed(folder, &["set", "net.toml", "web", disabled]).contains("disabled"));
        assert!(!printed(folder, &["set", "net.toml", "web", enabled]).contains("disabled"));
        printed(folder, &["attach", "net.toml", "x", "--null", disabled]);
        assert!(printed(folder, &["show", "net.toml", "x"]).contains("disabled"));
        printed(folder, &["detach", "net.toml", "x"]);
    }
}

/// Value of this key of a port if none is stated, where that is shown.
fn usual(key: &str) -> Option<Value> {
    (key != "link").then(|| serde_json::json!({}))
}
