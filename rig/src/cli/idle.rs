//! `memlane-rig idle`: guests that are connected and do nothing, to measure the cost of an idle network.

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use memlane_rig::guest::{GuestError, ReceiveBuffers, SendBuffers, ToyGuest};

use super::{Verdict, signal};

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    /// Sockets of the ports; `{}` stands for the numbers 0 to COUNT - 1.
    #[arg(required = true, value_name = "PATH")]
    sockets: Vec<String>,
    /// How many ports a path with `{}` stands for.
    #[arg(short, long, default_value_t = 100)]
    count: usize,
    /// Stay so many seconds instead of until a signal.
    #[arg(long)]
    seconds: Option<f64>,
    /// Entries a ring.
    #[arg(long, default_value_t = 256)]
    ring_size: u16,
    /// Seconds to wait for the switch.
    #[arg(long, default_value_t = 10.0)]
    timeout: f64,
    /// Tell the state as JSON.
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  memlane-rig idle '/run/memlane/p{}.sock' --count 100 --seconds 10
  memlane-rig idle /run/memlane/a.sock /run/memlane/b.sock";

/// Connects guests and waits.
pub(super) fn run(arguments: &Arguments) -> anyhow::Result<Verdict> {
    let quit = signal::quit_flag()?;
    let timeout = Duration::try_from_secs_f64(arguments.timeout).context("--timeout is no time")?;
    let mut guests: Vec<ToyGuest> =
        arguments.paths().iter().map(|path| connect(path, arguments.ring_size, timeout)).collect::<Result<_, _>>()?;
    tell(arguments.json, "connected", &mut guests)?;
    let end = arguments.seconds.map(|seconds| Instant::now() + Duration::from_secs_f64(seconds.max(0.0)));
    // Doing nothing is the point here: this is no wait for a condition but for the operator.
    while !quit.load(Ordering::Relaxed) && end.is_none_or(|end| Instant::now() < end) {
        let left = end.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
        std::thread::sleep(left.min(Duration::from_millis(200)));
    }
    tell(arguments.json, "done", &mut guests)?;
    Ok(Verdict::Good)
}

impl Arguments {
    fn paths(&self) -> Vec<PathBuf> {
        let expand = |path: &String| -> Vec<PathBuf> {
            match path.contains("{}") {
                true => (0..self.count).map(|number| path.replace("{}", &number.to_string()).into()).collect(),
                false => vec![path.into()],
            }
        };
        self.sockets.iter().flat_map(expand).collect()
    }
}

fn connect(path: &PathBuf, ring_size: u16, timeout: Duration) -> Result<ToyGuest, GuestError> {
    ToyGuest::builder()
        .ring_size(ring_size)
        .receive_buffers(ReceiveBuffers::SMALL)
        .send_buffers(SendBuffers { count: 1, size: 4096 })
        .timeout(timeout)
        .connect(path)
}

/// How many guests are connected, and how many interrupts they got (there should be none).
fn tell(json: bool, state: &str, guests: &mut [ToyGuest]) -> anyhow::Result<()> {
    let connected = guests.iter().filter(|guest| guest.connected()).count();
    let calls: u64 = guests.iter_mut().flat_map(ToyGuest::queues).map(|queue| queue.call.drain()).sum();
    if json {
        let line = serde_json::json!({ "state": state, "guests": guests.len(), "connected": connected, "calls": calls });
        println!("{line}");
    } else {
        println!("{state}: {connected} of {} guests connected, {calls} calls", guests.len());
    }
    std::io::Write::flush(&mut std::io::stdout()).context("writing to standard output")
}
