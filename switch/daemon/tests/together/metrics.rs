//! A network's metrics: at its control socket, and at one of their own where nothing can be changed.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::command::{Running, memlane, printed, wait_until, write};
use crate::common::{TIMEOUT, frame, mac};
use crate::pages::{Page, top};
use memlane::stats::DropReason;
use memlane_rig::guest::ToyGuest;
use memlane_rig::memory::MemoryPlan;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const NETWORK: &str = "control = \"control\"\nmetrics = \"unix:metrics\"\nmetrics-access = { mode = \"0666\" }\n\
                       [[port]]\nname = \"web\"\nvhost-user = \"web.sock\"\n[[port]]\nname = \"db\"\nvhost-user = \"db.sock\"\n";

pub(super) fn up(folder: &Path, text: &str) -> Running {
    write(folder, "net.toml", text);
    Running::start(memlane(folder, &["up", "net.toml"]))
}

/// The answer of `stream` to a request: head and body.
pub(super) fn asked(stream: impl Read + Write, request: &str) -> (String, String) {
    asked_with(stream, request, "")
}

/// The same for a request with a body.
pub(super) fn asked_with(mut stream: impl Read + Write, request: &str, body: &str) -> (String, String) {
    write!(stream, "{request}\r\nhost: memlane\r\nconnection: close\r\n\r\n{body}").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.into(), body.into())
}

pub(super) fn scrape(socket: &Path) -> String {
    let (head, body) = asked(UnixStream::connect(socket).unwrap(), "GET /metrics HTTP/1.1");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains("content-type: text/plain; version=0.0.4"), "{head}");
    body
}

/// The samples of a text in the Prometheus format, by their names with labels.
fn samples(text: &str) -> BTreeMap<&str, f64> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| line.rsplit_once(' ').map(|(name, value)| (name, value.parse().unwrap())).unwrap()).collect()
}

fn promtool(text: &str) -> (Option<i32>, String) {
    let mut child = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("promtool (Debian package prometheus; lab/install-packages test): {error}"));
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

pub(super) fn guest(folder: &Path, name: &str, index: usize) -> ToyGuest {
    let builder = ToyGuest::builder().mac(mac(index)).timeout(TIMEOUT).memory(MemoryPlan::new(64 << 20));
    builder.connect(folder.join(format!("{name}.sock"))).unwrap()
}

#[test]
fn metrics_pass_promtool_and_move_with_frames() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let _running = up(folder, NETWORK);
    let text = scrape(&folder.join("control"));
    assert_eq!(promtool(&text), (Some(0), String::new()));
    let before = samples(&text);
    for reason in DropReason::ALL {
        let name = format!("memlane_port_dropped_frames_total{{network=\"net\",port=\"db\",reason=\"{}\"}}", reason.name());
        assert_eq!(before.get(&*name), Some(&0.0), "{name} is there from the start");
    }
    assert_eq!(before["memlane_port_state{network=\"net\",port=\"web\",state=\"waiting\"}"], 1.0);

    let (mut web, mut db) = (guest(folder, "web", 0), guest(folder, "db", 1));
    web.send(&frame(mac(0), mac(1), 100, 1)).unwrap();
    db.receive(TIMEOUT).unwrap();
    let counted = |text: &str| samples(text).get("memlane_port_receive_frames_total{network=\"net\",port=\"db\"}") == Some(&1.0);
    wait_until(|| counted(&scrape(&folder.join("metrics"))), "the frame is counted");
    let text = scrape(&folder.join("metrics"));
    let after = samples(&text);
    assert_eq!(after["memlane_port_receive_bytes_total{network=\"net\",port=\"db\"}"], 100.0);
    assert_eq!(after["memlane_port_transmit_frames_total{network=\"net\",port=\"web\"}"], 1.0);
    let sizes = |end: &str| after[&*format!("memlane_port_frame_size_bytes_{end}")];
    let web = "network=\"net\",port=\"web\"";
    let below = ["64.0", "127.0", "+Inf"].map(|bound| sizes(&format!("bucket{{{web},le=\"{bound}\"}}")));
    assert_eq!((below, sizes(&format!("count{{{web}}}")), sizes(&format!("sum{{{web}}}"))), ([0.0, 1.0, 1.0], 1.0, 100.0));
    assert!(after.contains_key("memlane_port_wait_seconds_bucket{network=\"net\",port=\"db\",le=\"0.001\"}"));
    assert_eq!(after["memlane_port_state{network=\"net\",port=\"web\",state=\"running\"}"], 1.0);
    assert_eq!(after["memlane_segment_mac_addresses{network=\"net\",segment=\"lan\"}"], 1.0);
    assert_eq!(after["memlane_segment_mac_address_moves_total{network=\"net\",segment=\"lan\"}"], 0.0);
    let fallen = |name: &&&str| name.contains("_total") && before[**name] > after[**name];
    assert_eq!(before.keys().filter(fallen).collect::<Vec<_>>(), [&""; 0], "no counter falls");
}

#[test]
fn the_sockets_of_metrics_and_control_tell_health() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let _running = up(folder, NETWORK);
    for socket in ["control", "metrics"] {
        let get = |path: &str| asked(UnixStream::connect(folder.join(socket)).unwrap(), &format!("GET {path} HTTP/1.1"));
        let (head, body) = get("/livez");
        assert!(head.starts_with("HTTP/1.1 200 OK") && body == "{\"alive\":true}", "{head} {body}");
        wait_until(|| get("/readyz").0.starts_with("HTTP/1.1 200 OK"), "the worker answers in time");
    }
}

#[test]
fn alerts_and_dashboard_name_metrics_that_are_there_and_the_alerts_work() {
    let contrib = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib");
    let rules = contrib.join("prometheus");
    let output = Command::new("promtool").args(["test", "rules", "alerts_test.yml"]).current_dir(rules).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let folder = tempfile::tempdir().unwrap();
    let _running = up(folder.path(), NETWORK);
    let text = scrape(&folder.path().join("metrics"));
    for (file, fewest) in [("prometheus/alerts.yml", 8), ("grafana/memlane.json", 20)] {
        let page = std::fs::read_to_string(contrib.join(file)).unwrap();
        let words = page.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let names: std::collections::BTreeSet<_> = words.filter(|word| word.starts_with("memlane_")).collect();
        assert!(names.len() >= fewest, "{file}: {names:?}");
        let is_there = |name: &str| text.contains(&format!("\n{name}{{")) || is_of_uplinks(name);
        names.into_iter().for_each(|name| assert!(is_there(name), "{file}: {name} is no metric"));
    }
}

/// Whether the reference names a metric of uplinks, which this network has none of.
pub(super) fn is_of_uplinks(name: &str) -> bool {
    let page = std::fs::read_to_string(top().join("docs/reference/metrics.md")).unwrap();
    name.starts_with("memlane_uplink_") && page.contains(&format!("`{name}`"))
}

#[test]
fn every_alert_has_a_severity_and_every_guard_of_addresses_an_alert() {
    let alerts = std::fs::read_to_string(top().join("contrib/prometheus/alerts.yml")).unwrap();
    for alert in alerts.split("- alert: ").skip(1) {
        assert!(alert.contains("labels: {severity: critical}") || alert.contains("labels: {severity: warning}"), "{alert}");
    }
    let counters = std::fs::read_to_string(top().join("docs/reference/counters.md")).unwrap();
    let guards = counters.lines().filter(|line| line.contains("| Anti-spoofing: "));
    let names: Vec<_> = guards.map(|line| line.split('`').nth(1).unwrap()).collect();
    assert!(names.len() >= 4, "{names:?}");
    let spoofed = alerts.split("- alert: ").find(|alert| alert.starts_with("MemlaneSpoofedSource\n")).unwrap();
    names.into_iter().for_each(|name| assert!(spoofed.contains(name), "{name} has no alert"));
}

#[test]
fn prometheus_accepts_the_configuration_of_the_how_to() {
    let blocks = Page::read("docs/how-to/monitor.md").blocks("yaml");
    let block = blocks.iter().find(|block| block.contains("scrape_configs:")).expect("the page shows how to scrape");
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "prometheus.yml", block);
    std::fs::copy(top().join("contrib/prometheus/alerts.yml"), folder.path().join("alerts.yml")).unwrap();
    let output = Command::new("promtool").args(["check", "config", "prometheus.yml"]).current_dir(folder.path()).output().unwrap();
    let told = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success() && told.contains("rules found"), "{told}");
}

/// The parts that Grafana's importer and its panels need (grafana.com, "Dashboard JSON model"), and queries that Prometheus can parse.
#[test]
fn the_dashboard_has_the_form_that_grafana_imports() {
    let contrib = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib");
    let text = std::fs::read_to_string(contrib.join("grafana/memlane.json")).unwrap();
    let dashboard: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert!(dashboard["id"].is_null(), "an import gives it its number");
    assert!(dashboard["uid"].as_str().is_some_and(|uid| (1..=40).contains(&uid.len())));
    assert!(dashboard["schemaVersion"].as_u64() >= Some(36) && dashboard["title"].is_string());
    let variables: Vec<&str> =
        dashboard["templating"]["list"].as_array().unwrap().iter().map(|variable| variable["name"].as_str().unwrap()).collect();
    let (mut ids, mut rules) = (std::collections::BTreeSet::new(), "groups:\n- name: panels\n  rules:\n".to_owned());
    let mut taken = std::collections::BTreeSet::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        let title = panel["title"].as_str().unwrap();
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "the number of {title} is taken");
        assert!(["stat", "timeseries"].contains(&panel["type"].as_str().unwrap()), "{title}");
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{title}");
        let at = |key: &str| panel["gridPos"][key].as_u64().unwrap();
        assert!(at("x") + at("w") <= 24, "{title} is beyond the grid");
        for cell in (at("x")..at("x") + at("w")).flat_map(|x| (at("y")..at("y") + at("h")).map(move |y| (x, y))) {
            assert!(taken.insert(cell), "{title} covers another panel");
        }
        for target in panel["targets"].as_array().unwrap() {
            let mut query = target["expr"].as_str().unwrap().replace("$__rate_interval", "5m");
            variables.iter().for_each(|variable| query = query.replace(&format!("${variable}"), "x"));
            assert!(!query.contains('$') && target["refId"].is_string(), "{title}: {query}");
            rules.push_str(&format!("  - record: panel:a\n    expr: {}\n", serde_json::json!(query)));
        }
    }
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "panels.yml", &rules);
    let checked =
        Command::new("promtool").args(["check", "rules", "--lint=none", "panels.yml"]).current_dir(folder.path()).output();
    let checked = checked.unwrap();
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
}

#[test]
fn a_thousand_ports_answer_with_less_than_a_megabyte_to_scrapers_that_take_gzip() {
    let folder = tempfile::tempdir().unwrap();
    let ports: String = (0..1000).map(|n| format!("[[port]]\nname = \"p{n}\"\nnull = true\n")).collect();
    let _running = up(folder.path(), &format!("control = \"control\"\n{ports}"));
    let mut stream = UnixStream::connect(folder.path().join("control")).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.0\r\nhost: a\r\naccept-encoding: deflate, gzip\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
    assert!(String::from_utf8_lossy(&answer[..end]).contains("content-encoding: gzip"));
    assert!(answer.len() < 1_000_000, "{} bytes", answer.len());
    let mut text = String::new();
    flate2::read::GzDecoder::new(&answer[end..]).read_to_string(&mut text).unwrap();
    assert_eq!(
        samples(&text).keys().filter(|name| name.starts_with("memlane_port_dropped_frames_total")).count(),
        1000 * DropReason::ALL.len()
    );
}

#[test]
fn a_scraper_that_takes_openmetrics_gets_it() {
    let folder = tempfile::tempdir().unwrap();
    let _running = up(folder.path(), NETWORK);
    let stream = UnixStream::connect(folder.path().join("metrics")).unwrap();
    let request = "GET /metrics HTTP/1.1\r\naccept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5";
    let (head, body) = asked(stream, request);
    assert!(head.contains("content-type: application/openmetrics-text; version=1.0.0; charset=utf-8"), "{head}");
    assert!(body.contains("# TYPE memlane_port_receive_frames counter\n") && body.ends_with("# EOF\n"));
}

#[test]
fn nothing_can_be_changed_where_metrics_are() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let _running = up(folder, NETWORK);
    let socket = folder.join("metrics");
    assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o666);
    let status = |request: &str| asked(UnixStream::connect(&socket).unwrap(), request).0.split(' ').nth(1).unwrap().to_owned();
    assert_eq!(status("PATCH /metrics HTTP/1.1"), "405");
    for request in ["DELETE /v1/ports/web", "GET /v1/network", "POST /v1/reload", "GET /"] {
        assert_eq!(status(&format!("{request} HTTP/1.1")), "404", "{request}");
    }
    assert!(printed(folder, &["ls", "net.toml"]).contains("web"));
}

#[test]
fn another_user_may_scrape_where_access_says_so_and_change_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755)).unwrap();
    let _running = up(folder, NETWORK);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let is_root = nix::unistd::geteuid().is_root();
            if is_root {
                // Root may connect to any socket. This is the thread's alone, and ends with it.
                nix::unistd::setfsuid(nix::unistd::Uid::from_raw(65534));
                let refused = UnixStream::connect(folder.join("control")).unwrap_err();
                assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied);
            }
            assert!(scrape(&folder.join("metrics")).contains("memlane_build_info"));
        });
        other.join().unwrap();
    });
}

#[test]
fn metrics_may_be_at_a_tcp_address() {
    let folder = tempfile::tempdir().unwrap();
    // One that is free: the kernel does not give it to another process so soon.
    let address: SocketAddr = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let text = NETWORK.replace("unix:metrics", &address.to_string()).replace("metrics-access = { mode = \"0666\" }\n", "");
    let _running = up(folder.path(), &text);
    let (head, body) = asked(TcpStream::connect(address).unwrap(), "GET /metrics HTTP/1.1");
    assert!(head.starts_with("HTTP/1.1 200") && body.contains("memlane_build_info{version=\"0.1.0\",revision=\""), "{head}");
}

#[test]
fn a_place_for_metrics_that_is_taken_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    write(folder.path(), "net.toml", &format!("metrics = \"{address}\"\n"));
    let output = memlane(folder.path(), &["up", "net.toml"]).output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(told.contains(&format!("cannot listen for scrapes of metrics at {address}: ")), "{told}");
}

#[test]
fn a_mistaken_place_for_metrics_is_told_with_its_line() {
    let folder = tempfile::tempdir().unwrap();
    let told = |text: &str| {
        write(folder.path(), "net.toml", text);
        let output = memlane(folder.path(), &["check", "net.toml"]).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{text}");
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(told("metrics = \"localhost\"\n").contains("net.toml:1: metrics is \"localhost\"; it must be a Unix socket, as"));
    assert!(told("metrics-access = { mode = \"0666\" }\n").contains("add one, as metrics ="));
    assert!(
        told("metrics = \"127.0.0.1:9\"\nmetrics-access = { group = \"kvm\" }\n").contains("metrics is a TCP address: remove it")
    );
    assert!(
        told("control = \"here\"\nmetrics = \"unix:here\"\n[[port]]\nname = \"a\"\nvhost-user = \"here\"\n").contains("used twice")
    );
    assert!(told("metrics = \"unix:m\"\nmetrics-access = { mode = \"9\" }\n").contains("metrics-access.mode is \"9\""));
}

#[test]
fn a_reload_that_fails_is_seen_in_metrics() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let running = up(folder, NETWORK);
    let success = || samples(&scrape(&folder.join("metrics")))["memlane_config_reload_success{network=\"net\"}"];
    assert_eq!(success(), 1.0);
    let hang_up = || kill(Pid::from_raw(running.0.id() as i32), Signal::SIGHUP).unwrap();
    write(folder, "net.toml", &format!("{NETWORK}weight = 0\n"));
    hang_up();
    wait_until(|| success() == 0.0, "the failure is seen");
    write(folder, "net.toml", &format!("{NETWORK}weight = 7\n"));
    hang_up();
    wait_until(|| success() == 1.0, "the success is seen");
}

/// Clients that ask and never read take the places of each other only.
#[test]
fn scrapers_that_never_read_lock_nobody_out() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let _running = up(folder, NETWORK);
    let stuck: Vec<_> = (0..50)
        .map(|_| {
            let mut stream = UnixStream::connect(folder.join("metrics")).unwrap();
            (0..100).for_each(|_| drop(stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: a\r\n\r\n")));
            stream
        })
        .collect();
    let scrapes = || {
        let mut stream = UnixStream::connect(folder.join("metrics")).unwrap();
        let mut answer = String::new();
        // One that comes while all are answered is turned away.
        let asked = stream.write_all(b"GET /metrics HTTP/1.0\r\nhost: a\r\n\r\n").and_then(|()| stream.read_to_string(&mut answer));
        asked.is_ok() && answer.contains("memlane_build_info")
    };
    wait_until(scrapes, "a scraper that reads is answered");
    assert!(printed(folder, &["ls", "net.toml"]).contains("web"));
    drop(stuck);
}

/// Clients that never read the network's report lock no command out.
#[test]
fn clients_that_never_read_the_report_lock_nobody_out() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let ports: String = (0..200).map(|n| format!("[[port]]\nname = \"p{n}\"\nnull = true\n")).collect();
    let _running = up(folder, &format!("control = \"control\"\n{ports}"));
    let stuck: Vec<_> = (0..64)
        .map(|_| {
            let mut stream = UnixStream::connect(folder.join("control")).unwrap();
            (0..100).for_each(|_| drop(stream.write_all(b"GET /v1/network HTTP/1.1\r\nhost: a\r\n\r\n")));
            stream
        })
        .collect();
    let lists = || memlane(folder, &["ls", "net.toml"]).output().unwrap().status.success();
    wait_until(lists, "a command is answered");
    assert!(printed(folder, &["status", "net.toml"]).contains("p199"));
    drop(stuck);
}

/// Labels that the file chooses are in metrics, with names that metrics may have; those that it does not are not.
#[test]
fn chosen_labels_of_ports_are_in_metrics() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let port = |name: &str, labels: &str| format!("[[port]]\nname = \"{name}\"\nnull = true\nlabels = {{ {labels} }}\n");
    let ports = port("a", "task = 'say \"42\"', \"k8s.io/pod\" = 'web', secret = 'x'") + &port("b", "secret = 'y'");
    let _running = up(folder, &format!("control = \"control\"\nmetrics-labels = [\"task\", \"k8s.io/pod\"]\n{ports}"));
    let text = scrape(&folder.join("control"));
    assert_eq!(promtool(&text), (Some(0), String::new()));
    let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("memlane_port_labels{")).collect();
    let wanted = r#"memlane_port_labels{network="net",port="a",label_task="say \"42\"",label_k8s_io_pod="web"} 1"#;
    assert_eq!(lines, [wanted]);
    assert!(!text.contains("secret"));
    for (labels, told) in [
        (r#"["a.b", "a/b"]"#, "metrics-labels has \"a.b\" and \"a/b\", which metrics would call the same"),
        (r#"["a b"]"#, "metrics-labels has \"a b\"; a label has 1 to 63 letters"),
    ] {
        let mistakes =
            memlane::config::Config::parse(&format!("metrics-labels = {labels}\n{ports}"), "net").unwrap_err().to_string();
        assert!(mistakes.contains(told), "{mistakes}");
    }
}
