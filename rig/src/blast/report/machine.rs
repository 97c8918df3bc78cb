//! The machine of a run, and the disturbances during it.

use std::time::Instant;

use serde::Serialize;

use crate::blast::cpu::{self, Distance};

/// The machine, as far as it matters to the figures.
#[derive(Debug, Clone, Serialize)]
pub struct Machine {
    /// `uname -r`.
    pub kernel: String,
    /// The processor's name.
    pub cpu: String,
    /// Processors.
    pub cpus: usize,
    /// The command line.
    pub command: Vec<String>,
    /// Version of this program.
    pub version: &'static str,
}

impl Machine {
    /// The machine that this program runs on.
    pub fn here() -> Self {
        let kernel = read("/proc/sys/kernel/osrelease").trim().to_owned();
        let cpuinfo = read("/proc/cpuinfo");
        let name = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        Self {
            kernel,
            cpu: name.map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, name)| name.to_owned()),
            cpus: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            command: std::env::args().collect(),
            version: env!("CARGO_PKG_VERSION"),
        }
    }
}

/// State of the machine around a run.
#[derive(Debug, Clone, Serialize)]
pub struct Surroundings {
    /// The two processors between which the distance was probed.
    pub probed_cpus: (usize, usize),
    /// Their distance before the run; none when there is only one processor.
    pub distance_before: Option<Distance>,
    /// And after.
    pub distance_after: Option<Distance>,
    /// "near", "far", or "mixed" when before and after differ or lie between.
    pub placement: &'static str,
    /// Processor time of others during the run, in per cent of one processor; the switch's own is others' too unless its
    /// process was named.
    pub foreign_cpu_percent: f64,
    /// Processor time of the switch during the run, in per cent of one processor, if its process was named.
    pub switch_cpu_percent: Option<f64>,
}

/// Watches the surroundings from before a run to after it.
pub struct Watch {
    cpus: (usize, usize),
    switch: Option<u32>,
    before: Option<Distance>,
    begun: Instant,
    busy: u64,
    own: u64,
    switch_busy: Option<u64>,
}

impl Surroundings {
    /// Begins to watch; `cpus` are the generator's and the switch's processor, `switch` its process.
    pub fn watch(cpus: (usize, usize), switch: Option<u32>) -> Watch {
        Watch {
            cpus,
            switch,
            before: cpu::distance(cpus.0, cpus.1),
            begun: Instant::now(),
            busy: busy_clocks(),
            own: process_clocks("self").unwrap_or(0),
            switch_busy: switch.and_then(|pid| process_clocks(&pid.to_string())),
        }
    }
}

impl Watch {
    /// Ends the watch.
    pub fn finish(self) -> Surroundings {
        let clocks = self.begun.elapsed().as_secs_f64() * clocks_a_second();
        let percent = |busy: u64| 100.0 * busy as f64 / clocks;
        let own = process_clocks("self").unwrap_or(self.own) - self.own;
        let now = self.switch.and_then(|pid| process_clocks(&pid.to_string()));
        let switch = now.zip(self.switch_busy).map(|(now, before)| now.saturating_sub(before));
        let busy = busy_clocks() - self.busy;
        let after = cpu::distance(self.cpus.0, self.cpus.1);
        Surroundings {
            probed_cpus: self.cpus,
            distance_before: self.before,
            distance_after: after,
            placement: placement(self.before, after),
            foreign_cpu_percent: percent(busy.saturating_sub(own + switch.unwrap_or(0))),
            switch_cpu_percent: switch.map(percent),
        }
    }
}

fn placement(before: Option<Distance>, after: Option<Distance>) -> &'static str {
    match (before, after) {
        (Some(before), Some(after)) if before.verdict == after.verdict && before.verdict != "between" => before.verdict,
        (None, None) => "unknown",
        _ => "mixed",
    }
}

/// Clock ticks that all processors were not idle (proc(5): the first line of /proc/stat).
fn busy_clocks() -> u64 {
    let stat = read("/proc/stat");
    let fields = stat.lines().next().unwrap_or("").split_whitespace().skip(1).take(8);
    let fields: Vec<u64> = fields.map(|field| field.parse().unwrap_or(0)).collect();
    // user, nice, system, idle, iowait, irq, softirq, steal: all but idle and iowait.
    fields.iter().enumerate().filter(|(index, _)| !matches!(index, 3 | 4)).map(|(_, clocks)| clocks).sum()
}

/// Clock ticks that a process used (proc(5): fields 14 and 15 of its stat).
fn process_clocks(pid: &str) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    let clock = |index| fields.split_whitespace().nth(index)?.parse::<u64>().ok();
    Some(clock(11)? + clock(12)?)
}

fn clocks_a_second() -> f64 {
    nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK).ok().flatten().unwrap_or(100) as f64
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}
