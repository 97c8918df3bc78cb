//! Metrics pass Prometheus' own checker, with any text in labels.

use std::io::Write;
use std::process::{Command, Stdio};

use memlane_observe::metrics::{Bounds, Exposition, Format, Kind, Labels};

/// The complaints of promtool about `text`.
fn promtool(text: &str) -> String {
    let mut child = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("promtool (Debian package prometheus; lab/install-packages test): {error}"));
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    format!("{}{}{:?}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr), output.status.code())
}

#[test]
fn promtool_has_nothing_to_say() {
    let mut text = Exposition::new(Format::Prometheus);
    text.family("memlane_build", Kind::Info, "The program that serves the network.").info(&[("version", "0.1.0")]);
    let mut frames = text.family("memlane_port_receive_frames", Kind::Counter, "Frames that the guest received.");
    for port in ["web", "a\"b", "back\\slash", "new\nline", "Grüße 網路", "}", "{le=\"1\"}", ""] {
        frames.sample(&[("network", "net"), ("port", port)], 3_u64);
    }
    let mut load = text.family("memlane_worker_load_ratio", Kind::Gauge, "Load \\ of a worker,\nin two lines.");
    for (worker, value) in [f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 1e300, 1e-300, 0.1].into_iter().enumerate() {
        load.sample(&[("worker", &worker.to_string())], value);
    }
    let mut sizes = text.family("memlane_port_frame_size_bytes", Kind::Histogram, "Frames by size.");
    sizes.histogram(&Labels::new(&[("port", "web")]), &Bounds::new(&[64.0, 127.0]), &[5, 0, 1], 1000_u64);
    assert_eq!(promtool(&text.finish()), "Some(0)");
}

#[test]
fn promtool_finds_mistakes() {
    assert_ne!(promtool("# TYPE memlane_frames counter\nmemlane_frames 1\n"), "Some(0)", "this test can fail");
}
