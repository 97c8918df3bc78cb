//! The CNI plugin as a container runtime calls it (CNI specification 1.1): containers are processes in network namespaces of their own,
//! and the IPAM plugin is a script.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use memlane_backends::netns::inside_path;
use serde_json::{Value, json};

use crate::command::{Running, memlane, printed, told, wait_until, write};
use crate::common::in_a_namespace;
use crate::tap::ip;

/// Addresses by the container's name; the last call of each kind is recorded. All fail while there is a file "broken".
const IPAM: &str = r#"#!/bin/sh
cat > "$IPAM_RECORD/$CNI_COMMAND"
[ ! -e "$IPAM_RECORD/broken" ] || { echo '{ "cniVersion": "1.1.0", "code": 999, "msg": "the store is locked" }'; exit 1; }
[ "$CNI_COMMAND" = ADD ] || exit 0
case $CNI_CONTAINERID in
    one|next|third) host=5 ;;
    two) host=6 ;;
    many-*) host=1${CNI_CONTAINERID#many-} ;;
    *) echo '{ "cniVersion": "1.1.0", "code": 107, "msg": "no address is left" }'; exit 1 ;;
esac
echo '{ "cniVersion": "1.1.0", "ips": [{ "address": "10.1.0.'$host'/24", "gateway": "10.1.0.1" }, { "address": "fd00::'$host'/64" }],
        "routes": [{ "dst": "0.0.0.0/0" },
                   { "dst": "10.9.0.0/16", "gw": "10.1.0.7", "mtu": 1400, "advmss": 1300, "priority": 50, "table": 100, "scope": 0 }] }'
"#;

/// A container: a process with a network namespace.
struct Container {
    process: Child,
    name: &'static str,
}

impl Container {
    fn start(name: &'static str) -> Self {
        // The shell tells that it runs, and waits for its standard input to end.
        let mut command = Command::new("unshare");
        command.args(["--net", "--", "sh", "-c", "echo; ip link set lo up; read end"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().expect("`unshare` of util-linux can be started");
        process.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
        Self { process, name }
    }

    fn netns(&self) -> PathBuf {
        format!("/proc/{}/ns/net", self.process.id()).into()
    }

    /// Changes the network of its namespace.
    fn ip(&self, command: &str) {
        inside_path(&self.netns(), || ip(command)).unwrap();
    }

    /// Names of its interfaces.
    fn interfaces(&self) -> Vec<String> {
        let list = || String::from_utf8(Command::new("ip").args(["-o", "link"]).output().unwrap().stdout).unwrap();
        let text = inside_path(&self.netns(), list).unwrap();
        text.lines().filter_map(|line| Some(line.split([':', '@']).nth(1)?.trim().to_owned())).collect()
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A folder with a network, the plugin and an IPAM plugin.
struct Bed {
    folder: tempfile::TempDir,
    network: Option<Running>,
}

impl Bed {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        symlink(env!("CARGO_BIN_EXE_memlane"), folder.path().join("memlane-cni")).unwrap();
        let ipam = write(folder.path(), "addresses", IPAM);
        std::fs::set_permissions(ipam, std::fs::Permissions::from_mode(0o755)).unwrap();
        write(folder.path(), "net.toml", "control = \"control\"\nsandbox = { kinds = [\"af-packet\"] }\n");
        let mut bed = Self { folder, network: None };
        bed.up();
        bed
    }

    fn up(&mut self) {
        self.network = Some(Running::start(memlane(self.path(), &["up", "net.toml", "--state", "state"])));
    }

    /// Ends the network in order.
    fn down(&mut self) {
        printed(self.path(), &["down", "net.toml"]);
        self.network = None;
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The network configuration, with these keys more.
    fn configuration(&self, more: &Value) -> Value {
        let mut configuration = json!({ "cniVersion": "1.1.0", "name": "pods", "type": "memlane-cni", "control": self.path().join("control"),
            "ipam": { "type": "addresses" } });
        for (key, value) in more.as_object().into_iter().flatten() {
            configuration[key] = value.clone();
        }
        configuration
    }

    fn call(&self, command: &str, environment: &[(&str, &str)], input: &str) -> Output {
        let mut plugin = Command::new(self.path().join("memlane-cni"));
        plugin.env_clear().env("PATH", std::env::var("PATH").unwrap()).env("IPAM_RECORD", self.path());
        plugin.env("CNI_COMMAND", command).env("CNI_PATH", self.path()).envs(environment.iter().copied());
        let mut plugin = plugin.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let _ = plugin.stdin.take().unwrap().write_all(input.as_bytes());
        plugin.wait_with_output().unwrap()
    }

    /// Calls the plugin for interface eth0 of `container`; its answer, or its error.
    fn eth0(&self, command: &str, container: &Container, more: &Value) -> Result<Value, Value> {
        let netns = container.netns();
        let environment = [("CNI_CONTAINERID", container.name), ("CNI_NETNS", netns.to_str().unwrap()), ("CNI_IFNAME", "eth0")];
        answer(&self.call(command, &environment, &self.configuration(more).to_string()))
    }

    /// Calls the plugin for the whole CNI network.
    fn whole(&self, command: &str, more: &Value) -> Result<Value, Value> {
        answer(&self.call(command, &[], &self.configuration(more).to_string()))
    }

    fn ports(&self) -> Vec<String> {
        let ports: Value = serde_json::from_str(&printed(self.path(), &["ls", "net.toml", "--json"])).unwrap();
        ports.as_array().unwrap().iter().map(|port| port["name"].as_str().unwrap().to_owned()).collect()
    }
}

fn answer(output: &Output) -> Result<Value, Value> {
    let answer = serde_json::from_slice(&output.stdout).unwrap_or_default();
    if output.status.success() { Ok(answer) } else { Err(answer) }
}

/// Ends of veth pairs beside the switch.
fn host_ends() -> Vec<String> {
    let names = std::fs::read_to_string("/proc/net/dev").unwrap();
    names
        .lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(name, _)| name.trim().to_owned())
        .filter(|name| name.starts_with("ml"))
        .collect()
}

#[test]
fn containers_reach_each_other_and_leave_nothing() {
    in_a_namespace("cni::containers_reach_each_other_and_leave_nothing", || {
        let bed = Bed::new();
        let (one, two) = (Container::start("one"), Container::start("two"));
        assert_eq!(bed.whole("STATUS", &Value::Null), Ok(Value::Null));
        let result = bed.eth0("ADD", &one, &Value::Null).unwrap();
        let names = bed.ports();
        assert_eq!(result["cniVersion"], "1.1.0");
        assert_eq!(result["interfaces"][0]["name"], names[0]);
        assert_eq!((&result["interfaces"][1]["name"], &result["interfaces"][1]["sandbox"]), (&json!("eth0"), &json!(one.netns())));
        assert_eq!((&result["ips"][0]["address"], &result["ips"][0]["interface"]), (&json!("10.1.0.5/24"), &json!(1)));
        // Behind another plugin, which has made an interface in the namespace.
        let earlier = json!({ "cniVersion": "1.1.0", "interfaces": [{ "name": "other0" }], "dns": { "domain": "lan" } });
        let more =
            json!({ "runtimeConfig": { "mac": "02:00:00:00:00:77" }, "port": { "transmit": "50Gbit" }, "prevResult": earlier });
        let other = bed.eth0("ADD", &two, &more).unwrap();
        assert_eq!((&other["interfaces"][0]["name"], &other["dns"]["domain"]), (&json!("other0"), &json!("lan")));
        assert_eq!((&other["interfaces"][2]["mac"], &other["ips"][0]["interface"]), (&json!("02:00:00:00:00:77"), &json!(2)));
        assert_eq!(bed.eth0("CHECK", &two, &json!({ "prevResult": other })), Ok(Value::Null));

        for (from, to, address) in [(&one, &two, "10.1.0.6:80"), (&two, &one, "10.1.0.5:80"), (&one, &two, "[fd00::6]:80")] {
            let listener = inside_path(&to.netns(), || TcpListener::bind("[::]:80").unwrap()).unwrap();
            let mut sender = inside_path(&from.netns(), || TcpStream::connect(address).unwrap()).unwrap();
            let (mut receiver, _) = listener.accept().unwrap();
            let sent: Vec<u8> = (0..1_000_000_u32).map(|n| (n * 7) as u8).collect();
            let copy = sent.clone();
            let writer = std::thread::spawn(move || sender.write_all(&copy).unwrap());
            let mut received = vec![0; sent.len()];
            receiver.read_exact(&mut received).unwrap();
            writer.join().unwrap();
            assert!(received == sent);
        }

        let before = json!({ "prevResult": result });
        assert_eq!(bed.eth0("CHECK", &one, &before), Ok(Value::Null));
        let again = bed.eth0("ADD", &one, &Value::Null).unwrap_err();
        assert_eq!((&again["code"], &again["cniVersion"]), (&json!(100), &json!("1.1.0")));
        assert_eq!(bed.eth0("CHECK", &one, &before), Ok(Value::Null), "the second ADD has harmed nothing");

        for _ in 0..2 {
            assert_eq!(bed.eth0("DEL", &one, &before), Ok(Value::Null));
        }
        assert_eq!(one.interfaces(), ["lo"]);
        assert_eq!(bed.eth0("CHECK", &one, &before).unwrap_err()["code"], 102);
        drop(two);
        // The namespace of the second one is gone, and with it the interface.
        let environment = [("CNI_CONTAINERID", "two"), ("CNI_IFNAME", "eth0")];
        assert!(bed.call("DEL", &environment, &bed.configuration(&Value::Null).to_string()).status.success());
        assert!(bed.ports().is_empty() && host_ends().is_empty(), "{:?} {:?}", bed.ports(), host_ends());
    });
}

/// The specification's case for CHECK: a part of the result of ADD is missing from the namespace, or invalid there.
#[test]
fn check_finds_each_part_of_an_attachment_that_is_missing() {
    in_a_namespace("cni::check_finds_each_part_of_an_attachment_that_is_missing", || {
        let bed = Bed::new();
        let one = Container::start("one");
        let result = bed.eth0("ADD", &one, &Value::Null).unwrap();
        let list =
            || String::from_utf8(Command::new("ip").args(["route", "show", "table", "100"]).output().unwrap().stdout).unwrap();
        let routes = inside_path(&one.netns(), list).unwrap();
        for part in ["10.9.0.0/16 via 10.1.0.7 dev eth0", "metric 50", "mtu 1400", "advmss 1300"] {
            assert!(routes.contains(part), "{part}: {routes}");
        }
        let before = json!({ "prevResult": result });
        let missing = [
            ("link set dev eth0 down", "is down"),
            ("link set dev eth0 address 02:00:00:00:00:99", "MAC address"),
            ("addr del 10.1.0.5/24 dev eth0", "lacks the address 10.1.0.5"),
            ("route del default", "no route to 0.0.0.0/0"),
            ("route del 10.9.0.0/16 table 100", "no route to 10.9.0.0/16"),
            ("link del dev eth0", "no interface eth0"),
        ];
        for (spoil, told) in missing {
            assert_eq!(bed.eth0("CHECK", &one, &before), Ok(Value::Null));
            one.ip(spoil);
            let error = bed.eth0("CHECK", &one, &before).unwrap_err();
            assert!(error["code"] == 102 && error["msg"].as_str().unwrap().contains(told), "{spoil}: {error}");
            assert_eq!(bed.eth0("DEL", &one, &before), Ok(Value::Null));
            let again = bed.eth0("ADD", &one, &Value::Null).unwrap();
            assert_eq!((&again["interfaces"][1], &again["ips"]), (&result["interfaces"][1], &result["ips"]));
        }
    });
}

/// A runtime may start several containers at a time, each in its namespace.
#[test]
fn containers_are_added_and_deleted_side_by_side() {
    in_a_namespace("cni::containers_are_added_and_deleted_side_by_side", || {
        let bed = Bed::new();
        let containers = ["many-1", "many-2", "many-3", "many-4"].map(Container::start);
        let all = |command: &str| {
            std::thread::scope(|scope| {
                let calls = containers.each_ref().map(|each| scope.spawn(|| bed.eth0(command, each, &Value::Null)));
                calls.map(|call| call.join().unwrap().unwrap())
            })
        };
        let added = all("ADD");
        let mut names = added.map(|result| result["interfaces"][0]["name"].as_str().unwrap().to_owned());
        names.sort();
        let (mut ports, mut ends) = (bed.ports(), host_ends());
        ports.sort();
        ends.sort();
        assert!(ports == names && ends == names, "{ports:?} {ends:?} {names:?}");
        all("DEL");
        assert!(bed.ports().is_empty() && host_ends().is_empty());
    });
}

#[test]
fn an_add_that_fails_or_is_killed_leaves_nothing_for_long() {
    in_a_namespace("cni::an_add_that_fails_or_is_killed_leaves_nothing_for_long", || {
        let mut bed = Bed::new();
        let (one, two) = (Container::start("one"), Container::start("two"));
        // No address is left: the error is the IPAM plugin's own.
        let other = Container::start("other");
        assert_eq!(bed.eth0("ADD", &other, &Value::Null).unwrap_err()["code"], 107);
        std::fs::remove_file(bed.path().join("DEL")).expect("an IPAM plugin whose ADD failed is called to delete");
        // The network refuses the port.
        let bad = json!({ "port": { "weight": 0 } });
        assert_eq!(bed.eth0("ADD", &one, &bad).unwrap_err()["code"], 101);
        assert!(bed.path().join("DEL").exists(), "the address is given back");
        assert!(one.interfaces() == ["lo"] && other.interfaces() == ["lo"] && host_ends().is_empty() && bed.ports().is_empty());

        // The remains of an ADD that is killed before it has attached the port, and of a container that has ended without DEL.
        let name = bed.eth0("ADD", &one, &Value::Null).unwrap()["interfaces"][0]["name"].as_str().unwrap().to_owned();
        let gone = bed.eth0("ADD", &two, &Value::Null).unwrap()["interfaces"][0]["name"].as_str().unwrap().to_owned();
        printed(bed.path(), &["detach", "net.toml", &name]);
        drop(two);
        wait_until(|| host_ends() == [name.clone()], "the interface is gone with its namespace");
        assert_eq!(bed.ports(), [gone]);
        let left = |ids: &[&str]| {
            let list: Vec<Value> = ids.iter().map(|id| json!({ "containerID": id, "ifname": "eth0" })).collect();
            json!({ "cni.dev/valid-attachments": list })
        };
        // A container of another CNI network on the same memlane network.
        let (three, elsewhere) = (Container::start("one"), json!({ "name": "others" }));
        let kept = bed.eth0("ADD", &three, &elsewhere).unwrap()["interfaces"][0]["name"].as_str().unwrap().to_owned();
        assert_eq!(bed.whole("GC", &left(&["one"])), Ok(Value::Null));
        let mut ends = host_ends();
        ends.sort_by_key(|end| *end == kept);
        assert_eq!((ends, bed.ports()), (vec![name, kept.clone()], vec![kept.clone()]));
        assert_eq!(bed.whole("GC", &left(&[])), Ok(Value::Null));
        assert_eq!((host_ends(), bed.ports()), (vec![kept.clone()], vec![kept]));
        assert!(bed.path().join("GC").exists(), "the IPAM plugin hears of it");

        // Without the network, ADD is to be tried later, and DEL succeeds.
        bed.network = None;
        assert_eq!(bed.eth0("ADD", &one, &Value::Null).unwrap_err()["code"], 11);
        assert_eq!(bed.whole("STATUS", &Value::Null).unwrap_err()["code"], 50);
        assert_eq!(bed.eth0("DEL", &three, &elsewhere), Ok(Value::Null));
        assert!(one.interfaces() == ["lo"] && host_ends().is_empty());
    });
}

#[test]
fn what_is_no_request_is_answered_with_its_code() {
    in_a_namespace("cni::what_is_no_request_is_answered_with_its_code", || {
        let bed = Bed::new();
        let one = Container::start("one");
        let code = |command: &str, environment: &[(&str, &str)], input: &str| {
            let output = bed.call(command, environment, input);
            assert_eq!(output.status.code(), Some(1), "{command} {input}");
            serde_json::from_slice::<Value>(&output.stdout).expect("an error as JSON")["code"].clone()
        };
        let good = bed.configuration(&Value::Null).to_string();
        let netns = one.netns();
        let all = [("CNI_CONTAINERID", "one"), ("CNI_NETNS", netns.to_str().unwrap()), ("CNI_IFNAME", "eth0")];
        for garbage in ["", "garbage", "{\"cniVersion\": ", "\u{0}\u{1}"] {
            assert_eq!(code("ADD", &all, garbage), 6);
        }
        assert_eq!(code("ADD", &all, &good.replace("1.1.0", "0.2.0")), 1);
        assert_eq!(code("GC", &all, &good.replace("1.1.0", "1.0.0")), 1);
        assert_eq!(code("ADD", &all, &good.replace("pods", "")), 7);
        assert_eq!(code("ADD", &all, &bed.configuration(&json!({ "ipam": { "type": "missing" } })).to_string()), 7);
        assert_eq!(code("ADD", &all, &bed.configuration(&json!({ "ipam": { "type": "../addresses" } })).to_string()), 7);
        assert_eq!((code("", &all, &good), code("FETCH", &all, &good)), (json!(4), json!(4)));
        for (missing, _) in &all {
            let some: Vec<_> = all.iter().copied().filter(|(name, _)| name != missing).collect();
            assert_eq!(code("ADD", &some, &good), 4, "{missing}");
        }
        for (name, value) in [("CNI_IFNAME", "a/b"), ("CNI_IFNAME", ".."), ("CNI_CONTAINERID", "-x"), ("CNI_NETNS", "/dev/null")] {
            let changed: Vec<_> = all.iter().map(|&(key, old)| (key, if key == name { value } else { old })).collect();
            assert_eq!(code("ADD", &changed, &good), 4, "{name}={value}");
        }
        assert_eq!(code("CHECK", &all, &good), 7, "CHECK without prevResult");
        // Out of order: before ADD.
        let empty = json!({ "prevResult": { "cniVersion": "1.1.0", "interfaces": [], "ips": [] } });
        assert_eq!(code("CHECK", &all, &bed.configuration(&empty).to_string()), 102);
        assert_eq!(bed.eth0("DEL", &one, &Value::Null), Ok(Value::Null));
        assert_eq!(bed.whole("GC", &json!({ "cni.dev/valid-attachments": [] })), Ok(Value::Null));
        let versions: Value = serde_json::from_slice(&bed.call("VERSION", &[], r#"{"cniVersion":"1.0.0"}"#).stdout).unwrap();
        assert_eq!(versions["cniVersion"], "1.0.0");
        assert!(
            ["0.3.1", "0.4.0", "1.0.0", "1.1.0"]
                .iter()
                .all(|version| versions["supportedVersions"].as_array().unwrap().contains(&json!(version)))
        );
        assert!(one.interfaces() == ["lo"] && host_ends().is_empty() && bed.ports().is_empty());
    });
}

/// The specification's words on GC: "plugins should generally complete a GC action without error"; one that ends early leaves the rest to the next.
#[test]
fn gc_removes_all_it_can_after_an_error_and_the_rest_at_the_next_call() {
    in_a_namespace("cni::gc_removes_all_it_can_after_an_error_and_the_rest_at_the_next_call", || {
        let bed = Bed::new();
        let containers = ["one", "two", "many-1", "many-2"].map(Container::start);
        let added = containers.each_ref().map(|each| bed.eth0("ADD", each, &Value::Null).unwrap());
        let names = added.map(|result| result["interfaces"][0]["name"].as_str().unwrap().to_owned());
        let [one, two, many, gone] = containers;
        // A container that has ended without DEL: its port is left.
        drop(gone);
        wait_until(|| host_ends().len() == 3, "the interface is gone with its namespace");
        let left = |ids: &[&str]| {
            let list: Vec<Value> = ids.iter().map(|id| json!({ "containerID": id, "ifname": "eth0" })).collect();
            json!({ "cni.dev/valid-attachments": list })
        };
        let sorted = |mut list: Vec<String>| {
            list.sort();
            list
        };
        let are_there = |wanted: &[&String]| {
            let wanted = sorted(wanted.iter().map(|name| (*name).clone()).collect());
            assert_eq!((sorted(host_ends()), sorted(bed.ports())), (wanted.clone(), wanted));
        };

        // A list that is no list removes nothing.
        let error = bed.whole("GC", &json!({})).unwrap_err();
        assert!(error["code"] == 7 && error["msg"].as_str().unwrap().contains("valid-attachments"), "{error}");
        for garbage in [json!("one"), json!({}), json!([7]), json!([["one"]]), json!([{ "containerID": "one" }])] {
            let error = bed.whole("GC", &json!({ "cni.dev/valid-attachments": garbage })).unwrap_err();
            assert_eq!(error["code"], 7, "{garbage}: {error}");
        }
        assert_eq!((host_ends().len(), bed.ports().len()), (3, 4));

        // The network refuses to detach: each attachment is tried, none is half removed, and the error is told.
        let refusing = Refusing::start(bed.path().join("refusing"));
        let mut to_it = left(&["one"]);
        to_it["control"] = json!(refusing.path);
        let error = bed.whole("GC", &to_it).unwrap_err();
        assert!(error["code"] == 101 && error["msg"].as_str().unwrap().contains("not now"), "{error}");
        assert_eq!(refusing.deletions(), 2, "an error ends nothing");
        assert_eq!((host_ends().len(), bed.ports().len()), (3, 4));

        // The IPAM plugin fails: its error is told, and the rest is done.
        let broken = write(bed.path(), "broken", "");
        assert_eq!(bed.whole("GC", &left(&["one", "two"])).unwrap_err()["code"], 999);
        are_there(&[&names[0], &names[1]]);
        assert_eq!(bed.whole("GC", &left(&["one", "two"])).unwrap_err()["code"], 999, "the same again");
        are_there(&[&names[0], &names[1]]);
        std::fs::remove_file(broken).unwrap();

        // Out of order: the list has attachments that are gone, and others that never were.
        for ids in [&["one", "two", "many-1", "many-2", "never"][..], &["one", "never"], &["one"]] {
            assert_eq!(bed.whole("GC", &left(ids)), Ok(Value::Null));
            let kept: Vec<&String> =
                names[..2].iter().zip(["one", "two"]).filter(|(_, id)| ids.contains(id)).map(|(name, _)| name).collect();
            are_there(&kept);
        }
        // libcni writes a list without elements.
        for none in [Value::Null, json!([])] {
            assert_eq!(bed.whole("GC", &json!({ "cni.dev/valid-attachments": none })), Ok(Value::Null));
            are_there(&[]);
        }
        assert!([&one, &two, &many].iter().all(|container| container.interfaces() == ["lo"]));
        // A port that GC has removed may come again.
        bed.eth0("ADD", &many, &Value::Null).unwrap();
        are_there(&[&names[2]]);
    });
}

#[test]
fn a_container_that_is_deleted_while_the_network_is_stopped_does_not_come_back() {
    in_a_namespace("cni::a_container_that_is_deleted_while_the_network_is_stopped_does_not_come_back", || {
        let mut bed = Bed::new();
        let note = bed.path().join("control.detach");
        let (one, two) = (Container::start("one"), Container::start("two"));
        bed.eth0("ADD", &one, &Value::Null).unwrap();
        let added = bed.eth0("ADD", &two, &Value::Null).unwrap();
        let name = |added: &Value| added["interfaces"][0]["name"].as_str().unwrap().to_owned();
        bed.down();
        for _ in 0..2 {
            assert_eq!(bed.eth0("DEL", &one, &Value::Null), Ok(Value::Null), "also a second time");
        }
        assert!(note.exists());
        bed.up();
        assert!(!note.exists(), "the note is carried out");
        assert_eq!(bed.ports(), [name(&added)]);
        // The next container gets the address from the IPAM plugin.
        let next = Container::start("next");
        let added = bed.eth0("ADD", &next, &Value::Null).unwrap();

        // The same attachment, deleted meanwhile and added again: the note holds no more.
        bed.down();
        bed.eth0("DEL", &next, &Value::Null).unwrap();
        let noted = std::fs::read(&note).unwrap();
        bed.up();
        std::fs::write(&note, noted).unwrap();
        assert_eq!(name(&bed.eth0("ADD", &next, &Value::Null).unwrap()), name(&added));
        assert!(!note.exists());

        // A note that is lost, as with the run-time folder when the host restarts: the interface is gone too.
        bed.down();
        bed.eth0("DEL", &next, &Value::Null).unwrap();
        std::fs::remove_file(&note).unwrap();
        bed.up();
        assert_eq!(bed.ports().len(), 2);
        bed.eth0("ADD", &Container::start("third"), &Value::Null).unwrap();
        assert_eq!(bed.ports().len(), 2);

        // Without a note nothing is deleted.
        bed.down();
        std::fs::create_dir(&note).unwrap();
        let error = bed.eth0("DEL", &two, &Value::Null).unwrap_err();
        assert!(error["code"] == 11 && error["msg"].as_str().unwrap().contains("the note to detach"), "{error}");
        assert_eq!(two.interfaces(), ["lo", "eth0"]);
    });
}

/// The plugin is root, the network has a user of its own, as in the packaged units.
#[test]
fn notes_of_root_are_carried_out_by_a_network_of_another_user() {
    const USER: u32 = 12_345;
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let program = folder.join("program");
    std::fs::copy(env!("CARGO_BIN_EXE_memlane"), &program).unwrap();
    write(folder, "net.toml", "control = \"control\"\n");
    std::os::unix::fs::chown(folder, Some(USER), Some(USER)).unwrap();
    let memlane = |arguments: &[&str]| {
        let mut command = Command::new(&program);
        command.args(arguments).current_dir(folder).env("XDG_RUNTIME_DIR", folder).uid(USER).gid(USER);
        command
    };
    let says = |arguments: &[&str]| {
        let output = memlane(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", told(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    let up = || Running::start(memlane(&["up", "net.toml", "--state", "state"]));
    let running = up();
    for port in ["gone", "stays"] {
        says(&["attach", "net.toml", port, "--null"]);
    }
    says(&["down", "net.toml"]);
    drop(running);
    memlane::control::detach_notes::add(&folder.join("control"), "gone").unwrap();
    let _running = up();
    let ports = says(&["ls", "net.toml"]);
    assert!(ports.contains("stays") && !ports.contains("gone"), "{ports}");
    assert!(!folder.join("control.detach").exists());
}

/// A network that refuses each change.
struct Refusing {
    path: PathBuf,
    deletions: Arc<AtomicUsize>,
}

impl Refusing {
    fn start(path: PathBuf) -> Self {
        let (listener, deletions) = (UnixListener::bind(&path).unwrap(), Arc::new(AtomicUsize::new(0)));
        let counted = Arc::clone(&deletions);
        // The thread ends with the process.
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n") {
                    let mut byte = [0];
                    stream.read_exact(&mut byte).unwrap();
                    request.push(byte[0]);
                }
                if request.starts_with(b"DELETE ") {
                    counted.fetch_add(1, Ordering::Relaxed);
                }
                let problem = json!({ "error": "not now" }).to_string();
                let head = format!("HTTP/1.1 409 Conflict\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", problem.len());
                stream.write_all(format!("{head}{problem}").as_bytes()).unwrap();
            }
        });
        Self { path, deletions }
    }

    fn deletions(&self) -> usize {
        self.deletions.load(Ordering::Relaxed)
    }
}

/// Configurations that are cut off, or larger than any network's.
#[test]
fn a_configuration_of_any_size_is_answered() {
    in_a_namespace("cni::a_configuration_of_any_size_is_answered", || {
        let bed = Bed::new();
        let error = |input: &str| {
            let output = bed.call("STATUS", &[], input);
            assert_eq!(output.status.code(), Some(1), "{}", input.len());
            serde_json::from_slice::<Value>(&output.stdout).expect("an error as JSON")
        };
        let good = bed.configuration(&Value::Null).to_string();
        for length in [1, good.len() / 2, good.len() - 1] {
            assert_eq!(error(&good[..length])["code"], 6, "{length} bytes");
        }
        let padding = |bytes: usize| bed.configuration(&json!({ "padding": "x".repeat(bytes) })).to_string();
        assert!(bed.call("STATUS", &[], &padding(3 << 20)).status.success(), "3 MiB are read");
        // Also where the part that is read would be valid.
        for huge in [padding(16 << 20), "[".repeat(16 << 20), " ".repeat(16 << 20), format!("{good}{}", " ".repeat(16 << 20))] {
            let error = error(&huge);
            assert!(error["code"] == 6 && error["msg"].as_str().unwrap().contains("4 MiB"), "{error}");
        }
        // Levels of nesting, as many as fit.
        assert_eq!(error(&"[".repeat(3 << 20))["code"], 6);
        let ten_thousand: Vec<Value> =
            (0..10_000).map(|n| json!({ "containerID": format!("{n:064}"), "ifname": "eth0" })).collect();
        assert_eq!(bed.whole("GC", &json!({ "cni.dev/valid-attachments": ten_thousand })), Ok(Value::Null));
    });
}
