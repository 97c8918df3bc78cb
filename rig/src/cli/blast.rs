//! `memlane-rig blast`: the command line of [`memlane_rig::blast`].

use std::io::{IsTerminal, Write};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use memlane_rig::blast::collector::Collector;
use memlane_rig::blast::plan::{Load, Pattern, Plan, PortPlace, PortPlan, SizeMix};
use memlane_rig::blast::port::Shape;
use memlane_rig::blast::report::{Machine, Report, Surroundings};
use memlane_rig::blast::run;
use memlane_rig::blast::stamp::Carrier;
use memlane_rig::blast::wake::{self, WakePlan, WakeReport};
use memlane_rig::frontend::features::{self, Features};
use memlane_rig::guest::Habit;
use memlane_rig::memory::Pages;

use super::{Verdict, signal};

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    /// A port: vu:/path.sock, vu-listen:/path.sock or tap:NAME[@NETNS][,bridge=NAME]. Give two or more; the first is port 0.
    #[arg(short, long = "port", value_name = "PORT", required = true)]
    ports: Vec<PortPlace>,
    /// Which port sends to which.
    #[arg(long, value_enum, default_value_t = Pattern::BothWays)]
    pattern: Pattern,
    /// Frame sizes in bytes without virtio-net header (60 to 65549): one, several in turn, or a mix by weight (64:7,570:4,1518:1).
    #[arg(short, long, default_value = "64", value_name = "SIZES")]
    sizes: SizeMix,
    /// Other sizes for the frames of one port: PORT=SIZES.
    #[arg(long, value_name = "PORT=SIZES", value_parser = size_of)]
    size_of: Vec<(usize, SizeMix)>,
    /// At most so many frames a second and sender (suffixes k, M, G).
    #[arg(long, value_name = "PPS", value_parser = number, conflicts_with = "rate_bits")]
    rate_pps: Option<f64>,
    /// At most so many bits a second and sender (suffixes k, M, G).
    #[arg(long, value_name = "BITS", value_parser = number)]
    rate_bits: Option<f64>,
    /// At most so many frames in flight a flow; 0: as the rings have room.
    #[arg(short, long, default_value_t = 0, value_name = "FRAMES")]
    window: u64,
    /// Flows (UDP or TCP source ports) for each sender and receiver.
    #[arg(long, default_value_t = 1)]
    flows: u16,
    /// Queue pairs a port.
    #[arg(long, default_value_t = 1)]
    queues: usize,
    /// Write, read and verify every byte of the payload.
    #[arg(short, long)]
    touch: bool,
    /// Send payload from holes of the guests' memory, as a hostile guest that gives its pages back.
    #[arg(long, conflicts_with = "touch")]
    holes: bool,
    /// TCP frames that ask for segmentation into payloads of MSS bytes.
    #[arg(long, value_name = "MSS")]
    tso: Option<u16>,
    /// Frames a burst.
    #[arg(long, default_value_t = 32)]
    burst: u16,
    /// Entries a ring.
    #[arg(long, default_value_t = 256)]
    ring_size: u16,
    /// How a sent frame lies in descriptors.
    #[arg(long, value_enum, default_value_t = ShapeName::Single)]
    shape: ShapeName,
    /// Bytes of a receive buffer without the header; default: 2048, or the longest frame without mergeable buffers.
    #[arg(long, default_value_t = 0, hide_default_value = true, value_name = "BYTES")]
    receive_bytes: u32,
    /// Mergeable receive buffers.
    #[arg(long, value_enum, default_value_t = Switch::On)]
    mergeable: Switch,
    /// EVENT_IDX.
    #[arg(long, value_enum, default_value_t = Switch::On)]
    event_idx: Switch,
    /// IN_ORDER, if it is offered.
    #[arg(long, value_enum, default_value_t = Switch::On)]
    in_order: Switch,
    /// Take (+name) or leave (-name) any other virtio feature, for instance -guest_tso4,+bit-53.
    #[arg(long, value_name = "LIST", allow_hyphen_values = true)]
    features: Option<String>,
    /// In which order the front ends speak: qemu, uml, dpdk or cloud-hypervisor.
    #[arg(long, default_value = "dpdk", value_parser = super::habit)]
    habit: Habit,
    /// Wait for the receivers' interrupts instead of polling.
    #[arg(long)]
    interrupts: bool,
    /// Guest memory on 2 MiB huge pages.
    #[arg(long, conflicts_with = "madvise_collapse")]
    huge_pages: bool,
    /// Guest memory on normal pages that MADV_COLLAPSE merges.
    #[arg(long)]
    madvise_collapse: bool,
    /// Processor of the generator, or the source's and the sink's with --split (comma between).
    #[arg(long, value_delimiter = ',', value_name = "CPU")]
    cpus: Vec<usize>,
    /// Processor of the switch, for the probe of the distance and the bare wake-up (--wake); the probe takes 1 otherwise.
    #[arg(long, value_name = "CPU")]
    switch_cpu: Option<usize>,
    /// Process of the switch, to tell its processor time from that of others.
    #[arg(long, value_name = "PID")]
    switch_pid: Option<u32>,
    /// One thread for the sources and one for the sinks instead of one for both.
    #[arg(long)]
    split: bool,
    /// Send one frame each --interval-ms instead, and tell how long a sleeping switch takes to deliver it.
    #[arg(long)]
    wake: bool,
    /// Milliseconds between frames with --wake.
    #[arg(long, default_value_t = 5.0, value_name = "MS", requires = "wake")]
    interval_ms: f64,
    /// With --wake: a processor that has nothing else to do, from which the receivers' used rings are watched. So the switch's
    /// receive latency is told apart from the receiver's own wake-up.
    #[arg(long, value_name = "CPU", requires = "wake")]
    watch: Option<usize>,
    /// Seconds of the measurement.
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Seconds before the measurement.
    #[arg(long, default_value_t = 0.5, value_name = "SECONDS")]
    warm_up: f64,
    /// Seconds of a window of the time series.
    #[arg(long, default_value_t = 1.0, value_name = "SECONDS")]
    series: f64,
    /// Seconds to wait for the switch, and for the first frames to get through.
    #[arg(long, default_value_t = 10.0, value_name = "SECONDS")]
    timeout: f64,
    /// The report as JSON.
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  memlane-rig blast -p vu:/run/memlane/a.sock -p vu:/run/memlane/b.sock
  memlane-rig blast -p vu:a.sock -p vu:b.sock --pattern one-way --sizes 1518 --touch --cpus 0
  memlane-rig blast -p vu:a.sock -p vu:b.sock --tso 1448 --sizes 60000 --json
  memlane-rig blast -p vu:a.sock -p vu:b.sock --pattern one-way --wake --interrupts --cpus 0 --watch 1
  memlane-rig blast -p tap:t0@left,bridge=br0 -p tap:t1@left,bridge=br0 --rate-pps 100k";

#[derive(Clone, Copy, ValueEnum)]
enum ShapeName {
    /// Header and frame in one descriptor.
    Single,
    /// The header in one, the frame in another.
    Split,
    /// The same two in an indirect table.
    Indirect,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Switch {
    On,
    Off,
}

/// Runs a blast and tells of it.
pub(super) fn run(arguments: &Arguments) -> anyhow::Result<Verdict> {
    let plan = arguments.plan()?;
    let mistakes = plan.mistakes();
    if !mistakes.is_empty() {
        bail!("this cannot be done:\n  {}", mistakes.join("\n  "));
    }
    let quit = signal::quit_flag()?;
    let machine = Machine::here();
    let generator = plan.cpus.first().copied().unwrap_or(0);
    let watch = Surroundings::watch((generator, arguments.switch_cpu.unwrap_or(1)), arguments.switch_pid);
    if arguments.wake {
        let wake = arguments.wake_plan()?;
        let woken = wake::run(&plan, &wake, quit)?;
        return arguments.tell_wake(&WakeReport::new(&plan, &wake, &woken, machine, watch.finish()));
    }
    let terminal = std::io::stderr().is_terminal();
    let progress = |collector: &Collector| {
        if terminal {
            show_progress(collector);
        }
    };
    let outcome = run::run(&plan, quit, &progress)?;
    if terminal {
        eprint!("\r\x1b[K");
    }
    let report = Report::new(&plan, &outcome, machine, watch.finish());
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&report).context("writing JSON")?);
    } else {
        print!("{}", report.table());
    }
    Ok(if report.fate.is_bad() { Verdict::Bad } else { Verdict::Good })
}

fn show_progress(collector: &Collector) {
    let meter = &collector.books.meter;
    let Some((seconds, bytes)) = meter.series.last() else {
        return;
    };
    let gbps = bytes.iter().sum::<u64>() as f64 * 8.0 / seconds / 1e9;
    let mpps = meter.slices.last().copied().unwrap_or(0.0) / 1e6;
    eprint!("\r\x1b[K{:6.1} s  {gbps:8.2} Gbit/s  {mpps:8.3} Mpps", meter.seconds());
    // A terminal that cannot be written to is no reason to stop.
    let _ = std::io::stderr().flush();
}

impl Arguments {
    fn wake_plan(&self) -> anyhow::Result<WakePlan> {
        let interval = Duration::try_from_secs_f64(self.interval_ms / 1e3).context("--interval-ms is no time")?;
        Ok(WakePlan { interval, watch: self.watch, switch_cpu: self.switch_cpu })
    }

    fn tell_wake(&self, report: &WakeReport) -> anyhow::Result<Verdict> {
        if self.json {
            println!("{}", serde_json::to_string_pretty(report).context("writing JSON")?);
        } else {
            print!("{}", report.table());
        }
        Ok(if report.lost > 0 { Verdict::Bad } else { Verdict::Good })
    }

    fn plan(&self) -> anyhow::Result<Plan> {
        let seconds = |name: &str, seconds: f64| {
            Duration::try_from_secs_f64(seconds).map_err(|_| anyhow::anyhow!("{name} {seconds} is no time"))
        };
        Ok(Plan {
            ports: self.ports.clone(),
            port: self.port_plan()?,
            pattern: self.pattern,
            sizes: self.sizes.clone(),
            sizes_of: self.size_of.clone(),
            load: match (self.rate_pps, self.rate_bits) {
                (Some(rate), _) => Load::Packets(rate),
                (None, Some(rate)) => Load::Bits(rate),
                (None, None) => Load::Open,
            },
            window: self.window,
            flows: self.flows,
            burst: if self.wake { 1 } else { self.burst },
            carrier: self.tso.map_or(Carrier::Udp, |mss| Carrier::Tcp { mss }),
            touch: self.touch,
            warm_up: seconds("--warm-up", self.warm_up)?,
            duration: seconds("--seconds", self.seconds)?,
            series: seconds("--series", self.series)?,
            timeout: seconds("--timeout", self.timeout)?,
            cpus: self.cpus.clone(),
            split: self.split,
        })
    }

    fn port_plan(&self) -> anyhow::Result<PortPlan> {
        Ok(PortPlan {
            queues: self.queues,
            ring_size: self.ring_size,
            shape: match self.shape {
                ShapeName::Single => Shape::Single,
                ShapeName::Split => Shape::Split,
                ShapeName::Indirect => Shape::Indirect,
            },
            receive_bytes: self.receive_bytes,
            features: self.wanted_features()?,
            habit: self.habit,
            pages: match (self.huge_pages, self.madvise_collapse) {
                (true, _) => Pages::Huge,
                (_, true) => Pages::Collapsed,
                _ => Pages::Normal,
            },
            interrupts: self.interrupts,
            holes: self.holes,
        })
    }

    fn wanted_features(&self) -> anyhow::Result<Features> {
        let mut wanted = features::VERSION_1 | features::ANY_LAYOUT;
        let switches =
            [(self.mergeable, features::MRG_RXBUF), (self.event_idx, features::EVENT_IDX), (self.in_order, features::IN_ORDER)];
        for (_, feature) in switches.into_iter().filter(|(switch, _)| *switch == Switch::On) {
            wanted |= feature;
        }
        if matches!(self.shape, ShapeName::Indirect) {
            wanted |= features::INDIRECT_DESC;
        }
        if self.tso.is_some() {
            wanted |= features::TCP_OFFLOADS;
        }
        if self.queues > 1 {
            wanted |= features::MQ;
        }
        for word in self.features.iter().flat_map(|list| list.split(',')) {
            let (take, name) = match (word.strip_prefix('+'), word.strip_prefix('-')) {
                (Some(name), _) => (true, name),
                (_, Some(name)) => (false, name),
                _ => bail!("--features {word:?}: begin each name with + or -"),
            };
            let feature = features::by_name(name).with_context(|| format!("there is no virtio feature {name:?}"))?;
            wanted = if take { wanted | feature } else { wanted & !feature };
        }
        Ok(wanted)
    }
}

fn size_of(text: &str) -> Result<(usize, SizeMix), String> {
    let (port, sizes) = text.split_once('=').ok_or("PORT=SIZES is wanted")?;
    let port = port.parse().map_err(|_| format!("{port:?} is no port number"))?;
    Ok((port, sizes.parse()?))
}

/// A number with a suffix: 100k, 1.5M, 10G.
fn number(text: &str) -> Result<f64, String> {
    let (digits, factor) = match text.chars().last() {
        Some('k') => (&text[..text.len() - 1], 1e3),
        Some('M') => (&text[..text.len() - 1], 1e6),
        Some('G') => (&text[..text.len() - 1], 1e9),
        _ => (text, 1.0),
    };
    let number: f64 = digits.parse().map_err(|_| format!("{text:?} is no number"))?;
    if number > 0.0 { Ok(number * factor) } else { Err(format!("{text} is not above 0")) }
}
