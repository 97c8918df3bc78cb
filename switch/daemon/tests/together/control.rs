//! A running network is asked and changed over its control socket.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::common::*;
use hyper::{Method, StatusCode};
use memlane::config::{Attacher, Config, PortConfig, PortOrigin};
use memlane::control::reload::{LeftPort, ReloadOptions, Reloaded, is_same};
use memlane::control::routes::{DrainOrder, Drained};
use memlane::control::state::SavedNetwork;
use memlane::control::{self, Client, ControlError, Managed, Origin, PortReport, Refusal, document, listen, serve};
use memlane_rig::guest::{GuestBuilder, ReceiveBuffers, ToyGuest};
use memlane_rig::memory::MemoryPlan;
use proptest::prelude::*;
use serde_json::{Value, json};
use tokio::task::AbortHandle;

/// A network in this process that answers at a socket.
struct Net {
    folder: tempfile::TempDir,
    managed: Arc<Managed>,
    client: Client,
    /// The thread that answers, and how to end it.
    server: Option<(JoinHandle<()>, AbortHandle)>,
}

impl Net {
    /// The network of this file, in which FOLDER stands for the folder of its sockets.
    fn of(text: &str) -> Self {
        Self::in_folder(tempfile::tempdir().unwrap(), text, false).unwrap()
    }

    fn in_folder(folder: tempfile::TempDir, text: &str, state: bool) -> Result<Self, Refusal> {
        let config = parse(&folder, text);
        let state = state.then(|| folder.path().join("state.toml"));
        let origin = Origin { folder: folder.path().into(), state, ..Origin::default() };
        let managed = Arc::new(Managed::start(config, origin)?);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let socket = folder.path().join("control");
        let ((listener, file), served) = (runtime.block_on(async { listen(&socket).unwrap() }), Arc::clone(&managed));
        let task = runtime.spawn(async move {
            let served = serve(listener, &served).await;
            drop(file);
            served
        });
        let abort = task.abort_handle();
        let thread = std::thread::spawn(move || {
            assert!(runtime.block_on(task).unwrap_err().is_cancelled());
            runtime.shutdown_timeout(TIMEOUT);
        });
        let server = Some((thread, abort));
        Ok(Self { folder, managed, client: Client::new(&socket), server })
    }

    /// Ends it, and starts it again in the same folder with this file.
    fn restart(mut self, text: &str) -> Result<Self, Refusal> {
        self.end();
        let folder = std::mem::replace(&mut self.folder, tempfile::tempdir().unwrap());
        Self::in_folder(folder, text, true)
    }

    fn end(&mut self) {
        self.managed.stop();
        if let Some((thread, abort)) = self.server.take() {
            abort.abort();
            thread.join().unwrap();
        }
    }

    fn ask(&self, method: Method, uri: &str, body: &Value) -> Result<Value, Refusal> {
        match self.client.ask(method, uri, Some(body)) {
            Err(ControlError::Refused(refusal)) => Err(refusal),
            answer => Ok(answer.unwrap()),
        }
    }

    /// The status of an answer that may be no JSON, or go on.
    fn status(&self, method: &Method, uri: &str, body: &Value) -> StatusCode {
        use std::io::{Read, Write};
        let (body, mut head) = (body.to_string(), [0; 12]);
        let mut stream = std::os::unix::net::UnixStream::connect(self.client.path()).unwrap();
        let request = format!("{method} {uri} HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        stream.write_all(request.as_bytes()).unwrap();
        stream.read_exact(&mut head).unwrap();
        StatusCode::from_bytes(&head[9..]).unwrap()
    }

    fn post(&self, uri: &str, body: &Value) -> Result<Value, Refusal> {
        self.ask(Method::POST, uri, body)
    }

    fn patch(&self, port: &str, body: &Value) -> Result<Value, Refusal> {
        self.ask(Method::PATCH, &format!("/v1/ports/{port}"), body)
    }

    fn delete(&self, port: &str) -> Result<Value, Refusal> {
        self.ask(Method::DELETE, &format!("/v1/ports/{port}"), &json!({}))
    }

    fn get(&self, uri: &str) -> Result<Value, Refusal> {
        self.ask(Method::GET, uri, &json!({}))
    }

    fn port(&self, name: &str) -> PortReport {
        self.client.get(&format!("/v1/ports/{name}")).unwrap()
    }

    fn config(&self, text: &str) -> Config {
        parse(&self.folder, text)
    }

    fn socket(&self, name: &str) -> PathBuf {
        self.folder.path().join(format!("{name}.sock"))
    }

    /// A guest with address 02:00:00:00:00:`index` on port `name`.
    fn guest(&self, name: &str, index: usize) -> ToyGuest {
        self.guest_like(name, builder(index))
    }

    /// A guest made by `builder` on port `name`.
    fn guest_like(&self, name: &str, builder: GuestBuilder) -> ToyGuest {
        let guest = builder.connect(self.socket(name)).unwrap();
        wait_until(|| self.port(name).state == "running", "the port runs");
        guest
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        self.end();
    }
}

fn builder(index: usize) -> GuestBuilder {
    ToyGuest::builder().mac(mac(index)).timeout(TIMEOUT).memory(MemoryPlan::new(64 << 20))
}

fn parse(folder: &tempfile::TempDir, text: &str) -> Config {
    let text = text.replace("FOLDER", &folder.path().display().to_string());
    Config::parse(&text, "test").unwrap()
}

/// Ports at sockets called after them, each with these lines.
fn ports(ports: &[(&str, &str)]) -> String {
    let port =
        |(name, lines): &(&str, &str)| format!("[[port]]\nname = \"{name}\"\nvhost-user = \"FOLDER/{name}.sock\"\n{lines}\n");
    ports.iter().map(port).collect()
}

fn keys(refusal: &Refusal) -> Vec<&str> {
    let mut keys: Vec<&str> = refusal.problem.mistakes.iter().map(|mistake| mistake.key.as_str()).collect();
    keys.sort_unstable();
    keys
}

#[test]
fn a_port_comes_changes_and_goes() {
    let net = Net::of(&ports(&[("a", "")]));
    let mut a = net.guest("a", 0);
    let view = net.post("/v1/ports", &json!({ "name": "b", "vhost-user": "b.sock", "weight": 3 })).unwrap();
    assert_eq!((&view["name"], &view["entry"]["weight"]), (&json!("b"), &json!(3)));
    let mut b = net.guest("b", 1);
    announce(&mut [&mut a, &mut b]);
    let now = net.patch("b", &json!({ "transmit": { "rate": "1Gbit" }, "weight": null, "mtu": 1400 })).unwrap();
    assert_eq!((&now["transmit"]["rate"], &now["weight"], &now["mtu"]), (&json!("1Gbit"), &json!(1), &json!(1400)));
    let now = net.patch("b", &json!({ "mtu": null, "link": { "delay": "1ms" } })).unwrap();
    assert_eq!((&now["mtu"], &now["link"]["delay"], &now["transmit"]["rate"]), (&Value::Null, &json!("1ms"), &json!("1Gbit")));
    let now = net.patch("b", &json!({ "link": {} })).unwrap();
    assert_eq!(now["link"], Value::Null);

    let segment = net.get("/v1/segments/lan").unwrap();
    assert_eq!(segment["ports"], json!(["a", "b"]));
    let learned_addresses: Vec<_> =
        segment["learned-addresses"].as_array().unwrap().iter().map(|one| (&one["address"], &one["port"])).collect();
    assert_eq!(learned_addresses, [(&json!("02:00:00:00:00:00"), &json!("a")), (&json!("02:00:00:00:00:01"), &json!("b"))]);

    assert_eq!(net.post("/v1/ports/b/drain", &json!({ "timeout-ms": 10_000 })).unwrap(), json!({ "drained": true }));
    assert!(!net.port("b").enabled);
    a.send(&frame(mac(0), mac(1), 100, 1)).unwrap();
    a.wait_sent(TIMEOUT).unwrap();
    assert_silent(&mut b);
    assert_eq!(net.delete("b").unwrap()["name"], json!("b"));
    assert_eq!(net.delete("b").unwrap_err().status, StatusCode::NOT_FOUND);
    assert_eq!(net.get("/v1/ports").unwrap().as_array().unwrap().len(), 1);
}

#[test]
fn addresses_of_ports_at_run_time_fit_the_subnet_too() {
    let lan = "[[segment]]\nname = \"lan\"\nsubnet = \"10.0.0.0/24\"\n";
    let net = Net::in_folder(tempfile::tempdir().unwrap(), lan, true).unwrap();
    let port = |addresses: Value| json!({ "name": "a", "vhost-user": "a.sock", "segment": "lan", "addresses": addresses });
    for address in ["10.0.0.255", "10.0.1.5"] {
        let refusal = net.post("/v1/ports", &port(json!([address]))).unwrap_err();
        assert_eq!((refusal.status, keys(&refusal)), (StatusCode::UNPROCESSABLE_ENTITY, vec!["addresses"]), "{refusal}");
    }
    net.post("/v1/ports", &port(json!(["10.0.0.5"]))).unwrap();
    let outside = net.patch("a", &json!({ "addresses": ["10.0.1.5"] })).unwrap_err();
    assert_eq!((outside.status, keys(&outside)), (StatusCode::UNPROCESSABLE_ENTITY, vec!["addresses"]), "{outside}");
    net.patch("a", &json!({ "addresses": null, "anti-spoof": "all" })).unwrap();
    let elsewhere = json!({ "name": "b", "vhost-user": "b.sock", "segment": "other", "anti-spoof": "all" });
    assert_eq!(keys(&net.post("/v1/ports", &elsewhere).unwrap_err()), ["anti-spoof"]);
    // A port keeps what the state file says: `subnet` may have changed in the network's file meanwhile.
    let net = net.restart(&lan.replace("/24", "/28")).unwrap();
    assert_eq!(net.port("a").name, "a");
    let whole = json!({ "segment": [{ "name": "lan", "subnet": "10.0.0.0/28" }], "port": [port(json!(["10.0.0.15"]))] });
    let refusal = net.post("/v1/reload", &json!({ "document": whole })).unwrap_err();
    assert_eq!(refusal.status, StatusCode::UNPROCESSABLE_ENTITY, "{refusal}");
    assert!(refusal.problem.error.contains("broadcast"), "{refusal}");
}

#[test]
fn ports_come_and_go_together_or_not_at_all() {
    let net = Net::in_folder(tempfile::tempdir().unwrap(), &ports(&[("a", "")]), true).unwrap();
    let port = |name: &str| json!({ "name": name, "vhost-user": format!("{name}.sock") });
    let names = |net: &Net| net.managed.config().unwrap().ports.into_iter().map(|port| port.name).collect::<Vec<_>>();
    let many: Vec<Value> = (0..100).map(|n| port(&format!("m{n}"))).collect();
    assert_eq!(net.post("/v1/attach", &json!({ "ports": many })).unwrap().as_array().unwrap().len(), 100);
    assert_eq!(names(&net).len(), 101);
    let new = port("new");
    for (last, status, key) in [
        (json!({ "name": "m7", "null": true }), StatusCode::CONFLICT, "ports[1].name"),
        (json!({ "name": "bad", "null": true, "mtu": 1 }), StatusCode::UNPROCESSABLE_ENTITY, "ports[1].mtu"),
        (json!({ "name": "bad", "null": true, "may-exist": 1 }), StatusCode::UNPROCESSABLE_ENTITY, "ports[1].may-exist"),
        (json!({ "name": "bad", "null": true, "origin": { "by": 1 } }), StatusCode::UNPROCESSABLE_ENTITY, "ports[1].origin.by"),
        (json!({ "name": "bad", "vhost-user": "m7.sock" }), StatusCode::CONFLICT, "ports[1].vhost-user"),
        (json!({ "name": "new", "null": true }), StatusCode::UNPROCESSABLE_ENTITY, "ports[1].name"),
    ] {
        let refusal = net.post("/v1/attach", &json!({ "ports": [&new, &last] })).unwrap_err();
        assert_eq!((refusal.status, keys(&refusal)), (status, vec![key]), "{last}: {refusal}");
        assert_eq!((names(&net).len(), net.socket("new").exists()), (101, false), "{last}");
    }
    // The second of these is attached already, and may be.
    let mut again = port("m7");
    again["may-exist"] = json!(true);
    let both = json!({ "ports": [port("new"), again] });
    assert_eq!(net.post("/v1/attach", &both).unwrap()[1]["name"], json!("m7"));
    let refusal = net.post("/v1/detach", &json!({ "ports": ["m7", "none"] })).unwrap_err();
    assert_eq!((refusal.status, names(&net).len()), (StatusCode::NOT_FOUND, 102));
    let gone: Vec<String> = (0..100).rev().map(|n| format!("m{n}")).collect();
    assert_eq!(net.post("/v1/detach", &json!({ "ports": gone })).unwrap()[99]["name"], json!("m0"));
    assert_eq!(net.post("/v1/detach", &json!({ "ports": ["m7", "none"], "if-exists": true })).unwrap(), json!([]));
    let net = net.restart(&ports(&[("a", "")])).unwrap();
    assert_eq!(names(&net), ["a", "new"]);
}

#[test]
fn ports_that_the_kernel_refuses_leave_no_port_of_their_request() {
    let net = Net::of("");
    let taken = json!({ "name": "t", "null": true, "mac": "02:00:00:00:00:77" });
    net.post("/v1/ports", &json!({ "name": "guarded", "vhost-user": "g.sock", "anti-spoof": "mac" })).unwrap();
    let printed = net.port("guarded").address.unwrap();
    // No claim of the configuration tells that this address is another port's.
    let refused = json!({ "name": "u", "null": true, "mac": printed });
    let refusal = net.post("/v1/attach", &json!({ "ports": [taken, refused] })).unwrap_err();
    assert_eq!(refusal.status, StatusCode::CONFLICT, "{refusal}");
    assert_eq!(net.managed.config().unwrap().ports.len(), 1);
}

#[test]
fn a_port_that_may_exist_is_attached_once_and_never_changed() {
    let net = Net::of("");
    let port = json!({ "name": "a", "null": true, "weight": 3, "may-exist": true });
    (0..2).for_each(|_| assert_eq!(net.post("/v1/ports", &port).unwrap()["entry"]["weight"], json!(3)));
    let other = json!({ "name": "a", "null": true, "weight": 4, "may-exist": true });
    let refusal = net.post("/v1/ports", &other).unwrap_err();
    assert_eq!((refusal.status, keys(&refusal)), (StatusCode::CONFLICT, vec!["name"]));
    assert!(refusal.problem.error.contains("another value of weight"), "{refusal}");
    let mistaken = json!({ "name": "a", "null": true, "may-exist": 1 });
    assert_eq!(keys(&net.post("/v1/ports", &mistaken).unwrap_err()), ["may-exist"]);
}

#[test]
fn one_port_is_attached_by_many_requests_at_once_where_it_may_exist() {
    let net = Net::of("");
    let port = json!({ "name": "a", "vhost-user": "a.sock", "may-exist": true });
    for _ in 0..20 {
        std::thread::scope(|scope| {
            let requests: Vec<_> = (0..8).map(|_| scope.spawn(|| net.post("/v1/ports", &port).map(drop))).collect();
            requests.into_iter().for_each(|request| request.join().unwrap().unwrap());
        });
        assert!(net.socket("a").exists());
        assert_eq!(net.managed.config().unwrap().ports.len(), 1);
        net.delete("a").unwrap();
    }
}

/// A vhost-user port called `name` that goes with its front end.
fn ephemeral(name: &str) -> Value {
    json!({ "name": name, "vhost-user": format!("{name}.sock"), "origin": { "by": "command", "ephemeral": true } })
}

#[test]
fn an_ephemeral_port_goes_with_its_front_end_and_no_other_port_does() {
    let net = Net::in_folder(tempfile::tempdir().unwrap(), &ports(&[("stays", "")]), true).unwrap();
    control::ephemeral::detach(&net.managed).unwrap();
    let exists = |net: &Net, name: &str| net.managed.config().unwrap().port(name).is_some();
    for name in ["goes", "waits", "probed", "restarts"] {
        net.post("/v1/ports", &ephemeral(name)).unwrap();
    }
    let probe = std::os::unix::net::UnixStream::connect(net.socket("probed")).unwrap();
    wait_until(|| net.port("probed").state == "speaking", "a program that sends nothing");
    drop(probe);
    wait_until(|| net.port("probed").state == "waiting", "the program has left");
    let guests = [net.guest("goes", 0), net.guest("stays", 1)];
    let restarts = net.guest("restarts", 2);
    drop(guests);
    // A port leaves the list before its socket is removed.
    wait_until(|| !exists(&net, "goes") && !net.socket("goes").exists(), "the port goes with its front end");
    assert!(["stays", "waits", "probed", "restarts"].iter().all(|name| exists(&net, name)));
    // The name is free for another port.
    net.post("/v1/ports", &json!({ "name": "goes", "vhost-user": "goes.sock" })).unwrap();
    // No front end leaves where the network ends.
    let net = net.restart(&ports(&[("stays", "")])).unwrap();
    drop(restarts);
    control::ephemeral::detach(&net.managed).unwrap();
    drop([net.guest("restarts", 2), net.guest("goes", 0)]);
    wait_until(|| !exists(&net, "restarts"), "the port goes with its front end after a restart, too");
    assert!(["stays", "waits", "probed", "goes"].iter().all(|name| exists(&net, name)));
}

/// Either command comes before the port goes, and keeps it; or after that, and attaches it anew.
#[test]
fn an_ephemeral_port_that_is_attached_again_stays() {
    let net = Net::of("");
    control::ephemeral::detach(&net.managed).unwrap();
    for name in ["adopted", "renewed"] {
        net.post("/v1/ports", &ephemeral(name)).unwrap();
        drop(net.guest(name, 0));
    }
    let mut renewed = ephemeral("renewed");
    renewed["may-exist"] = json!(true);
    net.post("/v1/ports", &renewed).unwrap();
    net.managed.reload(&net.config(&ports(&[("adopted", "")])), ReloadOptions::default()).unwrap();
    std::thread::sleep(memlane::port::ephemeral::GRACE + Duration::from_millis(500));
    let report = |name: &str| net.port(name).origin.unwrap().to_string();
    assert_eq!((report("adopted"), report("renewed")), ("file".into(), "command (ephemeral)".into()));
    // Both have their sockets.
    drop([net.guest("adopted", 0), net.guest("renewed", 1)]);
}

#[test]
fn ephemeral_ports_are_those_at_which_memlane_listens() {
    let net = Net::of("");
    for (kind, value) in [("null", json!(true)), ("stream", json!("s.sock")), ("connect", json!(true))] {
        let mut port = ephemeral("a");
        if kind != "connect" {
            port.as_object_mut().unwrap().remove("vhost-user");
        }
        port[kind] = value;
        let refusal = net.post("/v1/ports", &port).unwrap_err();
        assert_eq!((refusal.status, keys(&refusal)), (StatusCode::UNPROCESSABLE_ENTITY, vec!["origin.ephemeral"]), "{refusal}");
    }
    net.post("/v1/ports", &ephemeral("a")).unwrap();
    let permanent = json!({ "name": "a", "vhost-user": "a.sock", "may-exist": true });
    let refusal = net.post("/v1/ports", &permanent).unwrap_err();
    assert!(refusal.status == StatusCode::CONFLICT && refusal.to_string().contains("origin.ephemeral"), "{refusal}");
}

#[test]
fn a_segment_comes_with_its_first_port_and_goes_with_its_last() {
    let net = Net::of("");
    assert_eq!(net.get("/v1/segments").unwrap(), json!([]));
    assert_eq!(net.get("/v1/segments/x-y").unwrap_err().status, StatusCode::NOT_FOUND);
    net.post("/v1/ports", &json!({ "name": "a", "null": true, "segment": "x-y" })).unwrap();
    assert_eq!(net.get("/v1/segments/x-y").unwrap()["ports"], json!(["a"]));
    net.delete("a").unwrap();
    assert_eq!(net.get("/v1/segments").unwrap(), json!([]));
}

#[test]
fn what_is_wrong_is_told_all_at_once_and_changes_nothing() {
    let net = Net::of(&ports(&[("a", "mac = \"02:00:00:00:00:01\"\naddresses = [\"10.0.0.5\"]"), ("b", "")]));
    let before = net.managed.config().unwrap();
    let wrong = net.post("/v1/ports", &json!({ "name": "b b", "vhost-user": 3, "mtu": 1, "sise": 2 })).unwrap_err();
    assert_eq!((wrong.status, keys(&wrong)), (StatusCode::UNPROCESSABLE_ENTITY, vec!["mtu", "name", "sise", "vhost-user"]));
    let taken = json!({ "name": "a", "vhost-user": "a.sock", "mac": "02:00:00:00:00:01" });
    let taken = net.post("/v1/ports", &taken).unwrap_err();
    assert_eq!((taken.status, keys(&taken)), (StatusCode::CONFLICT, vec!["mac", "name", "vhost-user"]));
    let owned = net.patch("b", &json!({ "addresses": ["10.0.0.6", "10.0.0.5"] })).unwrap_err();
    assert_eq!((owned.status, keys(&owned)), (StatusCode::CONFLICT, vec!["addresses"]));
    let fixed = net.patch("a", &json!({ "queues": 2, "colour": 1, "weight": 0 })).unwrap_err();
    assert_eq!((fixed.status, keys(&fixed)), (StatusCode::UNPROCESSABLE_ENTITY, vec!["colour", "queues", "weight"]));
    assert!(fixed.problem.mistakes.iter().any(|mistake| mistake.text.contains("detach the port")));
    let nobody = net.patch("nobody", &json!({ "weight": 2 })).unwrap_err();
    assert_eq!(nobody.status, StatusCode::NOT_FOUND);
    for (uri, status) in [("/v1/ports", StatusCode::UNPROCESSABLE_ENTITY), ("/v1/nothing", StatusCode::NOT_FOUND)] {
        assert_eq!(net.post(uri, &json!([1])).unwrap_err().status, status, "{uri}");
    }
    assert_eq!(net.ask(Method::PUT, "/v1/ports/a", &json!({})).unwrap_err().status, StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(net.managed.config().unwrap(), before);
}

#[test]
fn a_segment_has_a_name_that_a_terminal_may_show() {
    let net = Net::of("");
    let long = "x".repeat(100_000);
    for bad in ["", "a b", "a/b", "\u{1b}]0;owned\u{7}", &long] {
        let refused = net.post("/v1/ports", &json!({ "name": "a", "null": true, "segment": bad })).unwrap_err();
        assert_eq!((refused.status, keys(&refused)), (StatusCode::UNPROCESSABLE_ENTITY, vec!["segment"]));
        let told = refused.to_string();
        assert!(told.len() < 1000 && !told.contains(['\u{1b}', '\u{7}']), "{told:?}");
    }
    assert_eq!(net.get("/v1/segments").unwrap(), json!([]));
}

#[test]
fn a_socket_that_cannot_be_had_leaves_no_half_port() {
    let net = Net::of("");
    let refused = net.post("/v1/ports", &json!({ "name": "a", "vhost-user": "/proc/no/a.sock" })).unwrap_err();
    assert_eq!(refused.status, StatusCode::CONFLICT);
    assert!(refused.problem.error.contains("/proc/no/a.sock"), "{refused}");
    net.post("/v1/ports", &json!({ "name": "a", "vhost-user": "a.sock" })).unwrap();
}

/// Sends these raw bytes; returns the status of the answer.
fn raw(net: &Net, bytes: &[u8]) -> String {
    raw_answer(net, bytes)[9..12].to_owned()
}

/// The start of the answer to these bytes, its headers among them.
fn raw_answer(net: &Net, bytes: &[u8]) -> String {
    use std::io::{Read, Write};
    let mut stream = std::os::unix::net::UnixStream::connect(net.client.path()).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    // A request that is refused early may not be read to its end.
    let _ = stream.write_all(bytes);
    let mut start = [0; 4096];
    let length = stream.read(&mut start).unwrap();
    String::from_utf8_lossy(&start[..length]).into_owned()
}

#[test]
fn what_is_no_json_or_too_much_is_refused() {
    let net = Net::of("");
    let post = |length: usize, body: &[u8]| {
        let head = format!("POST /v1/ports HTTP/1.1\r\nhost: memlane\r\ncontent-length: {length}\r\n\r\n");
        raw(&net, &[head.as_bytes(), body].concat())
    };
    assert_eq!(post(5, b"{\"a\":"), "400");
    assert_eq!(post(4, &[0xff; 4]), "400");
    assert_eq!(post(1 << 40, b""), "413");
    let deep = "[".repeat(100_000);
    assert_eq!(post(deep.len(), deep.as_bytes()), "400");
    assert!(net.get("/v1/network").is_ok());
}

#[test]
fn connections_on_which_nothing_is_asked_make_way() {
    use std::io::Read;
    let net = Net::of("");
    let idle: Vec<_> = (0..300).map(|_| std::os::unix::net::UnixStream::connect(net.client.path()).unwrap()).collect();
    assert!(net.get("/v1/network").is_ok());
    // Connections that came first are closed.
    idle[0].set_read_timeout(Some(TIMEOUT)).unwrap();
    assert_eq!((&idle[0]).read(&mut [0]).unwrap(), 0);
}

#[test]
fn bodies_that_are_not_finished_hold_so_much_memory_and_no_more() {
    use std::io::{Read, Write};
    let net = Net::of("");
    let part = vec![b' '; 12 << 20];
    let begin = || {
        let mut stream = std::os::unix::net::UnixStream::connect(net.client.path()).unwrap();
        stream.set_write_timeout(Some(TIMEOUT)).unwrap();
        stream.write_all(b"POST /v1/ports HTTP/1.1\r\nhost: memlane\r\ncontent-length: 16000000\r\n\r\n").unwrap();
        let _ = stream.write_all(&part);
        stream
    };
    let _held = [begin(), begin()];
    let mut refused = begin();
    refused.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut start = [0; 12];
    refused.read_exact(&mut start).unwrap();
    assert_eq!(&start[9..], b"503");
    assert!(net.post("/v1/ports", &json!({ "name": "a", "null": true })).is_ok(), "a little is still read");
}

/// A network in which frames of port "a" stay in flight, with its guests. A third port "c" is a sink.
fn with_frames_in_flight(state: bool) -> (Net, [ToyGuest; 2]) {
    let sink = "[[port]]\nname = \"c\"\nnull = true\nmac = \"02:00:00:00:00:02\"\n";
    let text = format!("stall-timeout-ms = 60000\n{sink}{}", ports(&[("a", ""), ("b", "mac = \"02:00:00:00:00:01\"")]));
    let net = Net::in_folder(tempfile::tempdir().unwrap(), &text, state).unwrap();
    let few = ReceiveBuffers { count: Some(4), repost: false, ..ReceiveBuffers::SMALL };
    let mut a = net.guest("a", 0);
    let b = net.guest_like("b", builder(1).receive_buffers(few));
    // Some are for another receiver, so that the others have to step aside (no head-of-line blocking).
    for number in 0..20 {
        a.send(&frame(mac(0), mac(1 + number % 2), 100, number as u64)).unwrap();
    }
    wait_until(|| net.port("b").totals.waiting > 0, "frames wait for the receiver");
    (net, [a, b])
}

/// The answer to a command that drains `port`.
fn drain(client: &Client, port: &str, timeout_ms: u64) -> Result<Drained, ControlError> {
    client.ask(Method::POST, &format!("/v1/ports/{port}/drain"), Some(&DrainOrder { timeout_ms }))
}

#[test]
fn waits_for_ports_to_be_drained_leave_room_for_other_questions() {
    let (net, _guests) = with_frames_in_flight(false);
    let (tell, answers) = std::sync::mpsc::channel();
    for _ in 0..40 {
        let (client, tell) = (net.client.clone(), tell.clone());
        std::thread::spawn(move || {
            let _ = tell.send(drain(&client, "a", 3_600_000));
        });
    }
    // More than may wait are told so at once.
    let refused = answers.recv_timeout(TIMEOUT).unwrap();
    let told = format!("{:?}", refused.unwrap_err());
    assert!(told.contains("32 ports are being drained"), "{told}");
    assert!(net.get("/v1/network").is_ok());
    assert!(net.patch("c", &json!({ "weight": 2 })).is_ok());
}

#[test]
fn the_document_has_every_route_and_no_other() {
    let net = Net::of(&ports(&[("a", "")]));
    let document = document();
    assert_eq!(net.get("/v1/openapi.json").unwrap(), document);
    let paths = document["paths"].as_object().unwrap();
    assert!(paths.len() >= 8);
    for (path, operations) in paths {
        let uri = path.replace("{name}", "nobody");
        for method in [Method::GET, Method::PUT, Method::POST, Method::PATCH, Method::DELETE, Method::OPTIONS] {
            let described = operations.get(method.as_str().to_lowercase()).is_some();
            // A body that no route takes: nothing is to happen.
            let served = net.status(&method, &uri, &json!({ "nonsense": 1 })) != StatusCode::METHOD_NOT_ALLOWED;
            assert_eq!(served, described, "{method} {path}");
        }
    }
}

/// The document's schema for the answer with `status`, or for the request.
fn schema(document: &Value, method: &str, path: &str, status: Option<u16>) -> jsonschema::Validator {
    let operation = &document["paths"][path][method];
    let place = status.map_or(&operation["requestBody"], |status| &operation["responses"][status.to_string()]);
    let mut schema = place["content"]["application/json"]["schema"].clone();
    assert!(schema.is_object(), "{method} {path} has no schema for {status:?}");
    schema["components"] = document["components"].clone();
    jsonschema::draft202012::new(&schema).unwrap()
}

#[test]
fn answers_are_what_the_document_says() {
    let net = Net::of(&ports(&[("a", "mac = \"02:00:00:00:00:01\"\nlink = { delay = \"1ms\" }")]));
    let document = document();
    let port = json!({ "name": "b", "vhost-user": "b.sock", "transmit": { "rate": "1Gbit" } });
    let whole =
        json!({ "document": { "port": [{ "name": "c", "null": true }] }, "ports-only": true, "prune": true, "force": ["a", "b"] });
    for (method, path, uri, status, body) in [
        ("get", "/v1/network", "/v1/network", 200, json!({})),
        ("get", "/v1/ports", "/v1/ports", 200, json!({})),
        ("post", "/v1/ports", "/v1/ports", 201, port.clone()),
        ("post", "/v1/ports", "/v1/ports", 409, port),
        ("post", "/v1/attach", "/v1/attach", 201, json!({ "ports": [{ "name": "e", "null": true }] })),
        ("post", "/v1/attach", "/v1/attach", 409, json!({ "ports": [{ "name": "e", "null": true }] })),
        ("post", "/v1/detach", "/v1/detach", 200, json!({ "ports": ["e"] })),
        ("post", "/v1/detach", "/v1/detach", 404, json!({ "ports": ["e"] })),
        ("get", "/v1/ports/{name}", "/v1/ports/a", 200, json!({})),
        ("get", "/v1/ports/{name}", "/v1/ports/z", 404, json!({})),
        ("patch", "/v1/ports/{name}", "/v1/ports/a", 200, json!({ "mac": null, "mtu": 1400, "enabled": false })),
        ("patch", "/v1/ports/{name}", "/v1/ports/a", 422, json!({ "mtu": 1 })),
        ("get", "/v1/ports/{name}/why", "/v1/ports/a/why", 200, json!({})),
        ("get", "/v1/ports/{name}/why", "/v1/ports/z/why", 404, json!({})),
        ("get", "/v1/segments", "/v1/segments", 200, json!({})),
        ("get", "/v1/segments/{name}", "/v1/segments/lan", 200, json!({})),
        ("post", "/v1/ports/{name}/drain", "/v1/ports/a/drain", 200, json!({ "timeout-ms": 10 })),
        ("post", "/v1/reload", "/v1/reload", 200, whole),
        ("delete", "/v1/ports/{name}", "/v1/ports/c", 200, json!({})),
    ] {
        let answer = net.ask(Method::from_bytes(method.to_uppercase().as_bytes()).unwrap(), uri, &body);
        let answer = answer.unwrap_or_else(|refusal| {
            assert_eq!(refusal.status.as_u16(), status, "{method} {uri}: {refusal}");
            serde_json::to_value(refusal.problem).unwrap()
        });
        let answered = schema(&document, method, path, Some(status));
        assert!(answered.is_valid(&answer), "{method} {uri}: {:?}", answered.validate(&answer).err());
        assert!(!answered.is_valid(&json!(7)), "{method} {path} says something of its answer");
        if body != json!({}) && status < 300 {
            assert!(schema(&document, method, path, None).is_valid(&body), "{method} {uri}: {body}");
        }
    }
}

#[test]
fn a_port_with_something_under_way_is_not_drained_and_holds_up_no_end() {
    let (net, _guests) = with_frames_in_flight(false);
    assert_eq!(drain(&net.client, "a", 20).unwrap(), Drained { drained: false });
    assert!(!net.port("a").enabled);
    let client = net.client.clone();
    let asker = std::thread::spawn(move || drain(&client, "a", 3_600_000));
    // Another client's question is answered meanwhile, and the network ends though one is open.
    assert!(net.get("/v1/network").is_ok());
    net.managed.stop();
    let answer = asker.join().unwrap();
    assert!(
        matches!(&answer, Err(ControlError::Refused(refusal)) if refusal.status == StatusCode::SERVICE_UNAVAILABLE),
        "{answer:?}"
    );
}

#[test]
fn a_wait_for_a_drain_ends_when_its_port_is_enabled_or_detached_and_undoes_no_command() {
    let (net, _guests) = with_frames_in_flight(true);
    let path = net.folder.path().join("state.toml");
    let state = || SavedNetwork::parse(&std::fs::read_to_string(&path).unwrap(), &path).unwrap().text().unwrap();
    let begin = || {
        let client = net.client.clone();
        let waits = std::thread::spawn(move || drain(&client, "a", 3_600_000));
        wait_until(|| !net.port("a").enabled, "the drain has disabled the port");
        waits
    };
    let refused = |waits: JoinHandle<Result<Drained, ControlError>>| match waits.join().unwrap() {
        Err(ControlError::Refused(refusal)) => refusal,
        answer => panic!("{answer:?}"),
    };
    let waits = begin();
    wait_until(|| state().contains("enabled = false"), "the state says so");
    net.patch("a", &json!({ "enabled": true })).unwrap();
    let refusal = refused(waits);
    let told = "port 'a' is not drained: it was enabled meanwhile. Drain it again once it may be disabled";
    assert_eq!((refusal.status, refusal.to_string().as_str()), (StatusCode::CONFLICT, told));
    // Longer than a step of the wait: no remains of it disable the port again.
    std::thread::sleep(Duration::from_millis(300));
    assert!(net.port("a").enabled && !state().contains("enabled = false"), "{}", state());

    let waits = begin();
    net.delete("a").unwrap();
    match waits.join().unwrap() {
        // The guest's frames are dropped before the port is gone.
        Ok(Drained { drained }) => assert!(drained),
        Err(ControlError::Refused(refusal)) => assert_eq!(refusal.status, StatusCode::NOT_FOUND),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_reload_loses_no_frame_of_ports_that_it_does_not_touch() {
    let same = [("a", ""), ("b", "")];
    let one = ports(&[same[0], same[1], ("c", "weight = 2"), ("d", "queues = 1"), ("e", "")]);
    let two = ports(&[same[0], same[1], ("c", "weight = 3\nmtu = 1400"), ("d", "queues = 2"), ("f", "segment = \"x\"")]);
    let net = Net::of(&format!("workers = 2\n{one}"));
    let (mut a, mut b) = (net.guest("a", 0), net.guest("b", 1));
    announce(&mut [&mut a, &mut b]);
    let over = AtomicBool::new(false);
    let (sent, received) = std::thread::scope(|scope| {
        let over = &over;
        let sender = scope.spawn(move || {
            let mut number = 0;
            while !over.load(Ordering::Relaxed) {
                a.send(&frame(mac(0), mac(1), 200, number)).unwrap();
                a.wait_sent(TIMEOUT).unwrap();
                number += 1;
            }
            (a, number)
        });
        let receiver = scope.spawn(move || {
            let mut number = 0;
            loop {
                match b.receive(Duration::from_millis(100)) {
                    Ok(got) => assert_eq!(got.bytes, frame(mac(0), mac(1), 200, number), "in order, and none is missing"),
                    Err(_) if over.load(Ordering::Relaxed) => return (b, number),
                    Err(_) => continue,
                }
                number += 1;
            }
        });
        for (from, to) in (0..6).map(|round| if round % 2 == 0 { (&one, &two) } else { (&two, &one) }) {
            let wanted = net.config(&format!("workers = 2\n{to}"));
            let done = net.managed.reload(&wanted, ReloadOptions::default()).unwrap();
            assert_eq!((done.untouched.len(), done.failed.len()), (2, 0), "{from} {done:?}");
            assert_eq!(done.changed.iter().filter(|port| port.anew).count(), 1);
            assert!(is_same(&net.managed.config().unwrap(), &wanted));
        }
        over.store(true, Ordering::Relaxed);
        (sender.join().unwrap().1, receiver.join().unwrap().1)
    });
    assert_eq!(sent, received);
    assert!(sent > 0);
}

#[test]
fn a_dry_run_and_a_bad_document_change_nothing() {
    let net = Net::of(&ports(&[("a", ""), ("b", "")]));
    let before = net.managed.config().unwrap();
    let document = json!({ "workers": 2, "port": [
        { "name": "a", "vhost-user": "a.sock", "weight": 3 }, { "name": "c", "null": true }
    ] });
    let plan = net.post("/v1/reload", &json!({ "document": document, "dry-run": true })).unwrap();
    let plan: Reloaded = serde_json::from_value(plan).unwrap();
    assert_eq!((plan.added, plan.removed, plan.restart), (vec!["c".into()], vec!["b".into()], vec!["workers".into()]));
    assert_eq!((plan.changed[0].keys.clone(), plan.changed[0].anew, plan.dry_run), (vec!["weight".to_owned()], false, true));
    let restart = net.post("/v1/reload", &json!({ "document": document })).unwrap_err();
    assert_eq!(restart.status, StatusCode::CONFLICT);
    assert!(restart.problem.error.contains("workers"), "{restart}");
    let bad = json!({ "document": { "workers": 0, "port": [{ "name": "a", "null": true }, { "name": "a", "null": true }] } });
    let bad = net.post("/v1/reload", &bad).unwrap_err();
    assert_eq!((bad.status, keys(&bad)), (StatusCode::UNPROCESSABLE_ENTITY, vec!["port[1].name", "workers"]));
    assert_eq!(net.post("/v1/reload", &json!({})).unwrap_err().status, StatusCode::CONFLICT, "there is no file to read again");
    assert_eq!(net.managed.config().unwrap(), before);
    net.post("/v1/reload", &json!({ "document": document, "ports-only": true })).unwrap();
    assert_eq!(net.managed.config().unwrap().ports.len(), 2);
}

#[test]
fn a_reload_detaches_all_ports_only_by_force() {
    let net = Net::of(&ports(&[("a", ""), ("b", ""), ("c", "")]));
    let before = net.managed.config().unwrap();
    let (none, others) = (json!({}), json!({ "port": [{ "name": "z", "null": true }] }));
    for document in [&none, &others] {
        let refused = net.post("/v1/reload", &json!({ "document": document })).unwrap_err();
        assert_eq!(refused.status, StatusCode::CONFLICT);
        assert!(refused.problem.error.contains("all of them would be detached (3 now)"), "{refused}");
        let plan = net.post("/v1/reload", &json!({ "document": document, "dry-run": true })).unwrap();
        assert!(plan["refused"].as_str().unwrap().contains("--force"), "{plan}");
    }
    // A file that was cut off may still be a good one, of fewer ports.
    let fewer = json!({ "port": [{ "name": "a", "vhost-user": "a.sock" }] });
    let refused = net.post("/v1/reload", &json!({ "document": fewer, "cut-off": true })).unwrap_err();
    assert!(refused.problem.error.contains("middle of a line") && refused.problem.error.contains("b, c"), "{refused}");
    assert_eq!(net.managed.config().unwrap(), before);
    net.post("/v1/reload", &json!({ "document": fewer })).unwrap();
    net.post("/v1/reload", &json!({ "document": none, "force": ["a"] })).unwrap();
    assert!(net.managed.config().unwrap().ports.is_empty());
    net.post("/v1/reload", &json!({ "document": none })).unwrap();
}

fn prune() -> ReloadOptions {
    ReloadOptions { prune: true, ..ReloadOptions::default() }
}

fn forced(names: &[&str]) -> ReloadOptions {
    ReloadOptions { force: names.iter().map(|&name| name.into()).collect(), ..ReloadOptions::default() }
}

/// Removed by the file, to be attached anew, and attached by others: none is touched while its guest is there, each is named.
#[test]
fn a_reload_leaves_connected_ports_as_they_are_and_names_them() {
    let net = Net::of(&ports(&[("gone", ""), ("anew", ""), ("mixed", ""), ("free", "")]));
    let hook = json!({ "by": "libvirt", "label": "db" });
    net.post("/v1/ports", &json!({ "name": "hook", "vhost-user": "hook.sock", "origin": hook })).unwrap();
    net.post("/v1/ports", &json!({ "name": "idle", "vhost-user": "idle.sock" })).unwrap();
    assert_eq!(net.port("hook").origin, Some(PortOrigin::labelled(Attacher::Libvirt, "db")));
    assert_eq!(net.port("idle").origin, Some(PortOrigin::COMMAND));
    let names = ["gone", "anew", "mixed", "hook"];
    let mut guests: Vec<ToyGuest> = names.iter().zip(0..).map(|(name, index)| net.guest(name, index)).collect();
    announce(&mut guests.iter_mut().collect::<Vec<_>>());
    let sessions = |net: &Net| names.map(|name| net.port(name).sessions);
    let before = sessions(&net);
    let wanted = net.config(&ports(&[("anew", "queues = 2"), ("mixed", "queues = 2\nweight = 7"), ("new", "")]));
    let plan = net.managed.reload(&wanted, ReloadOptions { dry_run: true, ..ReloadOptions::default() }).unwrap();
    let done = net.managed.reload(&wanted, ReloadOptions::default()).unwrap();
    let told = |done: &Reloaded| done.left.iter().map(|port| (port.name.clone(), port.keys.join(","))).collect::<Vec<_>>();
    let wanted_left =
        [("gone", ""), ("anew", "queues"), ("mixed", "queues")].map(|(name, keys)| (name.to_owned(), keys.to_owned()));
    assert_eq!((told(&done), told(&plan)), (wanted_left.to_vec(), wanted_left.to_vec()));
    assert_eq!((done.removed.clone(), done.added.clone()), (vec!["free".to_owned()], vec!["new".to_owned()]));
    assert_eq!(done.kept.iter().map(|port| port.name.as_str()).collect::<Vec<_>>(), ["hook", "idle"]);
    assert!(!done.is_complete() && done.failed.is_empty());
    // A reload that removes the others' ports leaves those with a guest, too.
    let pruned = net.managed.reload(&wanted, prune()).unwrap();
    assert_eq!((pruned.removed, pruned.left.len()), (vec!["idle".to_owned()], 4));
    assert_eq!(net.port("mixed").limits.weight, 1, "it is left whole");
    assert_eq!(sessions(&net), before, "no front end was disconnected");
    announce(&mut guests.iter_mut().collect::<Vec<_>>());
    // By name, each goes; a name that no port has is a mistake.
    let unknown = net.managed.reload(&wanted, forced(&["webb"])).unwrap_err();
    assert_eq!(unknown.status, StatusCode::NOT_FOUND);
    let done = net.managed.reload(&wanted, forced(&["gone", "anew"])).unwrap();
    assert_eq!((done.removed, told_names(&done.left)), (vec!["gone".to_owned()], vec!["mixed".to_owned()]));
    assert!(done.changed.iter().any(|port| port.name == "anew" && port.anew));
    guests.remove(2);
    wait_until(|| net.port("mixed").state == "waiting", "its guest has gone");
    assert!(net.managed.reload(&wanted, ReloadOptions::default()).unwrap().is_complete());
}

fn told_names(left: &[LeftPort]) -> Vec<String> {
    left.iter().map(|port| port.name.clone()).collect()
}

/// Also not where the other ports of the network have no guest, and where the operator names those.
#[test]
fn a_file_without_the_running_ports_costs_no_guest() {
    let net = Net::of(&ports(&[("a", ""), ("b", "")]));
    let mut guest = net.guest("a", 0);
    for document in [json!({}), json!({ "port": [{ "name": "z", "null": true }] })] {
        for order in [json!({}), json!({ "prune": true }), json!({ "cut-off": true }), json!({ "ports-only": true })] {
            let mut order = order;
            order["document"] = document.clone();
            assert_eq!(net.post("/v1/reload", &order).unwrap_err().status, StatusCode::CONFLICT, "{order}");
        }
    }
    let refused = net.post("/v1/reload", &json!({ "document": {}, "force": ["b"] })).unwrap_err();
    assert!(refused.problem.error.ends_with("`memlane reload --force a`"), "{refused}");
    announce(&mut [&mut guest]);
    assert_eq!(net.port("a").sessions, 1);
    net.post("/v1/reload", &json!({ "document": {}, "force": ["a", "b"] })).unwrap();
    assert!(net.managed.config().unwrap().ports.is_empty());
}

/// Ports of the file that were attached by others before are the file's from a reload on.
#[test]
fn a_port_that_the_file_has_now_is_the_files() {
    let net = Net::of(&ports(&[("a", "")]));
    net.post("/v1/ports", &json!({ "name": "b", "vhost-user": "b.sock" })).unwrap();
    net.post("/v1/ports", &json!({ "name": "c", "vhost-user": "c.sock" })).unwrap();
    let both = net.config(&ports(&[("a", ""), ("b", "weight = 2"), ("c", "")]));
    assert!(net.managed.reload(&both, ReloadOptions::default()).unwrap().is_complete());
    assert!(net.managed.config().unwrap().ports.iter().all(|port| port.origin.is_file()));
    let done = net.managed.reload(&net.config(&ports(&[("a", "")])), ReloadOptions::default()).unwrap();
    assert_eq!((done.removed, done.kept), (vec!["b".to_owned(), "c".to_owned()], vec![]));
}

#[test]
fn a_port_attached_by_command_has_the_access_of_the_file() {
    use std::os::unix::fs::PermissionsExt;
    let file = format!("access = {{ mode = \"0606\" }}\n{}", ports(&[("a", "")]));
    let net = Net::of(&file);
    let mode = |name: &str| std::fs::metadata(net.socket(name)).unwrap().permissions().mode() & 0o777;
    net.post("/v1/ports", &json!({ "name": "b", "vhost-user": "b.sock" })).unwrap();
    net.post("/v1/ports", &json!({ "name": "c", "vhost-user": "c.sock", "access": { "mode": "0600" } })).unwrap();
    assert_eq!(["a", "b", "c"].map(mode), [0o606, 0o606, 0o600]);
    net.managed.reload(&net.config(&file.replace("0606", "0666")), ReloadOptions::default()).unwrap();
    net.post("/v1/ports", &json!({ "name": "d", "vhost-user": "d.sock" })).unwrap();
    assert_eq!(mode("d"), 0o666, "as the file says since the reload");
}

#[test]
fn an_origin_that_cannot_be_is_refused() {
    let net = Net::of("");
    let long = "x".repeat(257);
    for (origin, key) in [
        (json!({ "by": "file" }), "origin.by"),
        (json!({ "by": "me" }), "origin.by"),
        (json!("libvirt"), "origin"),
        (json!({ "by": "cni", "label": long }), "origin.label"),
        (json!({ "by": "cni", "label": "a\u{1b}b" }), "origin.label"),
    ] {
        let refused = net.post("/v1/ports", &json!({ "name": "a", "null": true, "origin": origin })).unwrap_err();
        assert_eq!((refused.status, keys(&refused)), (StatusCode::UNPROCESSABLE_ENTITY, vec![key]), "{refused}");
    }
    assert!(net.managed.config().unwrap().ports.is_empty());
}

#[test]
fn two_ports_swap_their_addresses_and_sockets() {
    let (one, two) = ("mac = \"02:00:00:00:00:01\"", "mac = \"02:00:00:00:00:02\"");
    let net = Net::of(&ports(&[("a", one), ("b", two)]));
    let wanted = net.config(&ports(&[("a", two), ("b", one)]));
    assert_eq!(net.managed.reload(&wanted, ReloadOptions::default()).unwrap().failed, []);
    assert!(is_same(&net.managed.config().unwrap(), &wanted));
    let text =
        ports(&[("a", two), ("b", one)]).replace("/a.sock", "/x.sock").replace("/b.sock", "/a.sock").replace("/x.sock", "/b.sock");
    let wanted = net.config(&text);
    assert_eq!(net.managed.reload(&wanted, ReloadOptions::default()).unwrap().failed, []);
    assert!(is_same(&net.managed.config().unwrap(), &wanted));
}

#[test]
fn what_cannot_be_attached_is_told_and_the_port_is_as_it_was() {
    let net = Net::of(&ports(&[("a", ""), ("b", "")]));
    let _taken = std::os::unix::net::UnixListener::bind(net.socket("taken")).unwrap();
    let text = ports(&[("a", ""), ("b", "weight = 7"), ("c", "")]).replace("/a.sock", "/taken.sock");
    let done = net.managed.reload(&net.config(&text), ReloadOptions::default()).unwrap();
    assert_eq!((done.failed.len(), done.failed[0].name.as_str()), (1, "a"));
    assert!(
        done.failed[0].error.contains("taken.sock") && done.failed[0].error.contains("former settings were restored"),
        "{:?}",
        done.failed
    );
    assert_eq!((done.added, done.changed[0].name.as_str()), (vec!["c".to_owned()], "b"));
    assert_eq!(net.port("a").place, net.socket("a").display().to_string());
    net.guest("a", 0);
}

#[test]
fn what_was_changed_comes_back_with_the_state() {
    let file = ports(&[("a", "mac = \"02:00:00:00:00:01\""), ("b", ""), ("c", "")]);
    let net = Net::in_folder(tempfile::tempdir().unwrap(), &file, true).unwrap();
    net.post("/v1/ports", &json!({ "name": "d", "vhost-user": "d.sock", "link": { "delay": "5ms", "loss": 0.5 } })).unwrap();
    net.patch("a", &json!({ "weight": 9, "mac": null })).unwrap();
    net.delete("b").unwrap();
    net.post("/v1/ports/c/drain", &json!({})).unwrap();
    let now = net.managed.config().unwrap();
    // The file may change meanwhile: keys in the state win, the rest is the file's.
    let net = net.restart(&format!("{file}{}", ports(&[("e", "")]))).unwrap();
    let mut wanted = now.clone();
    wanted.ports.extend(net.config(&ports(&[("e", "")])).ports);
    assert!(is_same(&net.managed.config().unwrap(), &wanted));
    // A reload makes the file win, for the next start too; a port that the file lacks stays, and goes by `prune`.
    let wanted = net.config(&file);
    let done = net.managed.reload(&wanted, ReloadOptions::default()).unwrap();
    assert_eq!((done.kept[0].name.as_str(), &done.kept[0].origin), ("d", &PortOrigin::COMMAND));
    let net = net.restart(&file).unwrap();
    assert_eq!(net.managed.config().unwrap().port("d").map(|port| port.origin.clone()), Some(PortOrigin::COMMAND));
    net.managed.reload(&wanted, prune()).unwrap();
    assert!(is_same(&net.managed.config().unwrap(), &wanted));
    let net = net.restart(&file).unwrap();
    assert!(is_same(&net.managed.config().unwrap(), &wanted));
    std::fs::write(net.folder.path().join("state.toml"), "nonsense").unwrap();
    let told = net.restart(&file).err().expect("a broken state is not dropped").to_string();
    assert!(told.contains("state.toml") && told.contains("move it away"), "{told}");
}

#[test]
fn a_change_that_cannot_be_saved_is_applied_told_and_saved_later() {
    let mut net = Net::in_folder(tempfile::tempdir().unwrap(), "", true).unwrap();
    let state = net.folder.path().join("state.toml");
    let obstacle = net.folder.path().join(".state.toml.new");
    std::fs::create_dir_all(obstacle.join("in the way")).unwrap();
    net.post("/v1/ports", &json!({ "name": "a", "null": true })).unwrap();
    assert_eq!(net.managed.config().unwrap().ports.len(), 1);
    let told = net.get("/v1/network").unwrap();
    let told = told["unsaved"].as_str().expect("status tells it");
    assert!(told.contains("state.toml cannot be written") && told.contains("tries again"), "{told}");
    // Told with each change, too, beside its result.
    let answer =
        raw_answer(&net, b"POST /v1/ports HTTP/1.1\r\nhost: m\r\ncontent-length: 29\r\n\r\n{ \"name\": \"b\", \"null\": true }");
    assert!(answer.starts_with("HTTP/1.1 201") && answer.contains("memlane-unsaved: the state file"), "{answer}");
    std::fs::remove_dir_all(obstacle).unwrap();
    wait_until(|| net.get("/v1/network").unwrap().get("unsaved").is_none(), "the state is saved");
    assert!(std::fs::read_to_string(state).unwrap().contains("name = \"b\""));
    net.end();
    assert_eq!(net.managed.config().unwrap_err().status, StatusCode::SERVICE_UNAVAILABLE);
}

#[test]
fn two_networks_share_no_state_file() {
    let net = Net::in_folder(tempfile::tempdir().unwrap(), "", true).unwrap();
    let origin = Origin { state: Some(net.folder.path().join("state.toml")), ..Origin::default() };
    let told = Managed::start(Config::parse("", "other").unwrap(), origin).unwrap_err().to_string();
    assert!(told.contains("state.toml is in use by") && told.contains(&format!("process {}", std::process::id())), "{told}");
    net.post("/v1/ports", &json!({ "name": "a", "null": true })).unwrap();
    let net = net.restart("").unwrap();
    assert_eq!(net.managed.config().unwrap().ports.len(), 1);
}

/// A port of the network that [`any_network`] makes, as its lines in the file.
fn any_port() -> impl Strategy<Value = Option<String>> {
    // Mostly alike, so that often only keys that can change in place differ.
    let kind = prop_oneof![
        9 => Just("vhost-user = \"FOLDER/NAME.sock\""),
        1 => Just("null = true"),
        1 => Just("loopback = true"),
        1 => Just("stream = \"FOLDER/NAME.sock\""),
        1 => Just("vhost-user = \"FOLDER/other.sock\"\nconnect = true"),
    ];
    let segment = prop_oneof![9 => Just("lan"), 1 => Just("back")];
    let mac = proptest::option::of(1..8_u8);
    let queues = prop_oneof![9 => Just(1_u16), 1 => Just(2)];
    let keys = (queues, proptest::option::of(68..2000_u16), any::<bool>(), 1..3_u16, proptest::option::of(1..9_u8));
    proptest::option::weighted(
        0.8,
        (kind, segment, mac, keys).prop_map(|(kind, segment, mac, (queues, mtu, enabled, weight, delay))| {
            let mac = mac.map(|mac| format!("mac = \"02:00:00:00:00:{mac:02}\"\n")).unwrap_or_default();
            let mtu = mtu.map(|mtu| format!("mtu = {mtu}\n")).unwrap_or_default();
            let link = delay.map(|delay| format!("link = {{ delay = \"{delay}ms\" }}\n")).unwrap_or_default();
            format!("{kind}\nsegment = \"{segment}\"\nqueues = {queues}\nenabled = {enabled}\nweight = {weight}\n{mac}{mtu}{link}")
        }),
    )
}

fn any_network() -> impl Strategy<Value = String> {
    let text = |ports: Vec<Option<String>>| {
        let port = |(index, lines): (usize, Option<String>)| {
            lines.map(|lines| format!("[[port]]\nname = \"p{index}\"\n{}", lines.replace("NAME", &format!("p{index}"))))
        };
        ports.into_iter().enumerate().filter_map(port).collect::<String>()
    };
    let good = |text: &String| Config::parse(text, "test").is_ok();
    proptest::collection::vec(any_port(), 5).prop_map(text).prop_filter("two ports claim the same", good)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// From any network to any other, and pruned: guests that are connected stay connected, at their ports.
    #[test]
    fn no_reload_detaches_a_connected_guest(first in any_network(), second in any_network(), prunes in any::<bool>()) {
        let net = Net::of(&first);
        let has_guest = |port: &&PortConfig| port.settings.enabled && port.kind.place().ends_with(&format!("/{}.sock", port.name));
        let config = net.managed.config().unwrap();
        let listening = config.ports.iter().filter(|port| port.kind.name() == "vhost-user").filter(has_guest);
        let guests: Vec<(String, ToyGuest)> = listening.zip(0..).map(|(port, index)| (port.name.clone(), net.guest(&port.name, index))).collect();
        let before: Vec<_> = guests.iter().map(|(name, _)| net.port(name)).collect();
        // One that would detach every port is refused, which detaches no guest either.
        let done = net.managed.reload(&net.config(&second), ReloadOptions { prune: prunes, ..ReloadOptions::default() });
        for report in &before {
            let now = net.port(&report.name);
            prop_assert_eq!((now.sessions, &now.place), (report.sessions, &report.place));
            prop_assert!(now.front_end.is_some(), "{done:?}");
        }
    }

    /// From any network to any other, where no guest is connected: the network that runs then agrees with the file, and the state makes it again.
    #[test]
    fn after_a_reload_the_network_is_what_the_file_says(first in any_network(), second in any_network(), third in any_network()) {
        let net = Net::in_folder(tempfile::tempdir().unwrap(), &first, true).unwrap();
        for text in [&second, &third] {
            let wanted = net.config(text);
            let names = net.managed.config().unwrap().ports.into_iter().map(|port| port.name).collect();
            let done = net.managed.reload(&wanted, ReloadOptions { force: names, ..prune() }).unwrap();
            prop_assert_eq!(&done.failed, &[]);
            prop_assert!(is_same(&net.managed.config().unwrap(), &wanted));
        }
        // By single changes, which the state keeps.
        let now = net.config(&first);
        let names: Vec<String> = net.managed.config().unwrap().ports.into_iter().map(|port| port.name).collect();
        names.iter().for_each(|name| drop(net.delete(name).unwrap()));
        now.ports.iter().for_each(|port| drop(net.post("/v1/ports", &Value::Object(port.stated())).unwrap()));
        let net = net.restart(&third).unwrap();
        prop_assert!(is_same(&net.managed.config().unwrap(), &now));
    }
}
