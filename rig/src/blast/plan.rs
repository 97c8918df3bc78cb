//! The options of a run, and whether they can be satisfied.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use crate::frontend::features::Features;
use crate::guest::Habit;
use crate::memory::Pages;

use super::port::Shape;
pub use super::port::TapPlace;
use super::stamp::{Carrier, LONGEST, STAMP_BYTES};

/// Where a port is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PortPlace {
    /// A back end listens at this socket.
    Connect(PathBuf),
    /// We listen at this socket, the back end connects.
    Listen(PathBuf),
    /// A TAP device.
    Tap(TapPlace),
}

impl FromStr for PortPlace {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some(("vu", path)) if !path.is_empty() => Ok(Self::Connect(path.into())),
            Some(("vu-listen", path)) if !path.is_empty() => Ok(Self::Listen(path.into())),
            Some(("tap", place)) if !place.is_empty() => Ok(Self::Tap(tap_place(place))),
            _ => Err(format!("{text:?} is no port: vu:/path.sock, vu-listen:/path.sock or tap:NAME[@NETNS][,bridge=NAME] is")),
        }
    }
}

fn tap_place(text: &str) -> TapPlace {
    let (text, bridge) = match text.split_once(",bridge=") {
        Some((text, bridge)) => (text, Some(bridge.to_owned())),
        None => (text, None),
    };
    let (name, netns) = match text.split_once('@') {
        Some((name, netns)) => (name, Some(netns.to_owned())),
        None => (text, None),
    };
    TapPlace { name: name.to_owned(), netns, bridge }
}

impl std::fmt::Display for PortPlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Connect(path) => write!(f, "vu:{}", path.display()),
            Self::Listen(path) => write!(f, "vu-listen:{}", path.display()),
            Self::Tap(place) => write!(f, "tap:{}", place.name),
        }
    }
}

/// Which port sends to which.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pattern {
    /// Port 0 to port 1, port 2 to port 3, ...
    OneWay,
    /// Port 0 and port 1 to each other, port 2 and port 3, ...
    BothWays,
    /// Each port to the next, the last to the first.
    Ring,
    /// Each port to every other.
    AllToAll,
    /// All ports to the last.
    ManyToOne,
}

impl Pattern {
    /// The (sender, receiver) pairs among `ports` ports.
    pub fn pairs(self, ports: usize) -> Vec<(usize, usize)> {
        let couples = (0..ports / 2).map(|index| (2 * index, 2 * index + 1));
        match self {
            Self::OneWay => couples.collect(),
            Self::BothWays => couples.flat_map(|(one, two)| [(one, two), (two, one)]).collect(),
            Self::Ring => (0..ports).map(|port| (port, (port + 1) % ports)).collect(),
            Self::AllToAll => {
                let others = |from| (0..ports).filter(move |to| *to != from).map(move |to| (from, to));
                (0..ports).flat_map(others).collect()
            }
            Self::ManyToOne => (0..ports - 1).map(|port| (port, ports - 1)).collect(),
        }
    }
}

/// Frame sizes with their weights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SizeMix(pub Vec<(u32, u32)>);

impl FromStr for SizeMix {
    type Err = String;

    /// `64`, or `64,512,1518` (in turn), or `64:7,570:4,1518:1` (mixed by weight).
    fn from_str(text: &str) -> Result<Self, String> {
        let entry = |entry: &str| {
            let (size, weight) = entry.split_once(':').unwrap_or((entry, "1"));
            let number = |text: &str| text.trim().parse::<u32>().map_err(|_| format!("{text:?} is no number"));
            match (number(size)?, number(weight)?) {
                (_, 0) => Err(format!("size {size} has weight 0: leave it out")),
                pair => Ok(pair),
            }
        };
        text.split(',').map(entry).collect::<Result<_, _>>().map(Self)
    }
}

impl SizeMix {
    /// The longest size.
    pub fn longest(&self) -> u32 {
        self.0.iter().map(|(size, _)| *size).max().unwrap_or(0)
    }

    /// Indices into the list, in an order that spreads each size evenly: the largest debt goes next.
    pub fn schedule(&self) -> Vec<usize> {
        let total: u32 = self.0.iter().map(|(_, weight)| weight).sum();
        let mut credit = vec![0i64; self.0.len()];
        let next = |_| {
            credit.iter_mut().zip(&self.0).for_each(|(credit, (_, weight))| *credit += i64::from(*weight));
            let index = (0..credit.len()).max_by_key(|&index| (credit[index], std::cmp::Reverse(index))).unwrap_or(0);
            credit[index] -= i64::from(total);
            index
        };
        (0..total).map(next).collect()
    }
}

/// How hard a sender pushes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Load {
    /// Send as soon as the ring has room.
    Open,
    /// So many frames a second and sender.
    Packets(f64),
    /// So many bits a second and sender, counted in frames without virtio-net headers.
    Bits(f64),
}

/// Rings and features of the ports.
#[derive(Debug, Clone)]
pub struct PortPlan {
    /// Queue pairs.
    pub queues: usize,
    /// Entries a ring.
    pub ring_size: u16,
    /// How frames lie in descriptors.
    pub shape: Shape,
    /// Bytes of a receive buffer without header; 0: 2048, or the longest frame without mergeable buffers.
    pub receive_bytes: u32,
    /// Features to take if offered.
    pub features: Features,
    /// In which order the front ends speak.
    pub habit: Habit,
    /// Pages of the guests' memory.
    pub pages: Pages,
    /// Wait for interrupts instead of busy polling.
    pub interrupts: bool,
    /// The payload of frames lies in holes of the guests' memory.
    pub holes: bool,
}

/// All that a run needs to know.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The ports.
    pub ports: Vec<PortPlace>,
    /// Their rings and features.
    pub port: PortPlan,
    /// Which port sends to which.
    pub pattern: Pattern,
    /// Frame sizes.
    pub sizes: SizeMix,
    /// Frame sizes of single ports that differ from `sizes`.
    pub sizes_of: Vec<(usize, SizeMix)>,
    /// How hard.
    pub load: Load,
    /// Frames in flight a flow; 0: no bound.
    pub window: u64,
    /// Flows for each (sender, receiver).
    pub flows: u16,
    /// Frames a burst.
    pub burst: u16,
    /// Which headers.
    pub carrier: Carrier,
    /// Write, read and verify whole payloads.
    pub touch: bool,
    /// Time before the measurement.
    pub warm_up: Duration,
    /// Time of the measurement.
    pub duration: Duration,
    /// Length of a window of the time series.
    pub series: Duration,
    /// How long to wait for back ends and first frames.
    pub timeout: Duration,
    /// Processors: of the one thread, or of the source's and the sink's.
    pub cpus: Vec<usize>,
    /// A thread for the sources and one for the sinks.
    pub split: bool,
}

impl Plan {
    /// Everything that cannot be done, in sentences; empty when the plan is sound.
    pub fn mistakes(&self) -> Vec<String> {
        let mut mistakes = Vec::new();
        let mut unless = |right: bool, mistake: String| {
            if !right {
                mistakes.push(mistake);
            }
        };
        let ports = self.ports.len();
        unless(ports >= 2, format!("{ports} ports are too few: give --port twice or more"));
        let even = !matches!(self.pattern, Pattern::OneWay | Pattern::BothWays) || ports.is_multiple_of(2);
        unless(even, format!("{ports} ports make no pairs: give an even number, or another --pattern"));
        let shortest = self.carrier.shortest();
        for size in self.all_sizes() {
            let fits = (shortest..=LONGEST).contains(&(size as usize));
            unless(fits, format!("a frame of {size} bytes cannot be sent: {shortest} to {LONGEST} can"));
        }
        if let Carrier::Tcp { mss } = self.carrier {
            unless(usize::from(mss) >= STAMP_BYTES, format!("--tso {mss}: a segment must hold {STAMP_BYTES} bytes"));
            for size in self.all_sizes().filter(|size| *size as usize >= shortest) {
                let last = (size as usize - self.carrier.stamp_at()) % usize::from(mss.max(1));
                unless(
                    last == 0 || last >= STAMP_BYTES,
                    format!("a frame of {size} bytes ends in a segment of {last}: at least {STAMP_BYTES} must be"),
                );
            }
        }
        for (port, _) in &self.sizes_of {
            unless(*port < ports, format!("--size-of names port {port}, the last is {}", ports.saturating_sub(1)));
        }
        let flows = if ports < 2 { 0 } else { self.pattern.pairs(ports).len() * usize::from(self.flows) };
        unless(flows <= 1 << 16, format!("{flows} flows are too many: 65536 can be told apart"));
        unless(self.burst > 0, "a burst of 0 frames sends nothing".into());
        unless(self.flows > 0, "0 flows send nothing".into());
        let ring = self.port.ring_size;
        unless(ring.is_power_of_two() && ring <= 32768, format!("{ring} is no ring size: a power of two to 32768 is"));
        unless((1..=128).contains(&self.port.queues), "1 to 128 queue pairs can be had".into());
        mistakes
    }

    /// Frame sizes that port `port` sends.
    pub fn sizes(&self, port: usize) -> &SizeMix {
        self.sizes_of.iter().find(|(of, _)| *of == port).map_or(&self.sizes, |(_, sizes)| sizes)
    }

    /// The longest frame of all.
    pub fn longest(&self) -> u32 {
        self.all_sizes().max().unwrap_or(0)
    }

    fn all_sizes(&self) -> impl Iterator<Item = u32> {
        let all = std::iter::once(&self.sizes).chain(self.sizes_of.iter().map(|(_, sizes)| sizes));
        all.flat_map(|mix| mix.0.iter().map(|(size, _)| *size))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_pair_ports() {
        assert_eq!(Pattern::OneWay.pairs(4), [(0, 1), (2, 3)]);
        assert_eq!(Pattern::BothWays.pairs(2), [(0, 1), (1, 0)]);
        assert_eq!(Pattern::Ring.pairs(3), [(0, 1), (1, 2), (2, 0)]);
        assert_eq!(Pattern::AllToAll.pairs(3).len(), 6);
        assert_eq!(Pattern::ManyToOne.pairs(3), [(0, 2), (1, 2)]);
    }

    #[test]
    fn sizes_come_by_weight_and_evenly() {
        let mix: SizeMix = "64:7,570:4,1518:1".parse().unwrap();
        let schedule = mix.schedule();
        let count = |index| schedule.iter().filter(|&&at| at == index).count();
        assert_eq!((schedule.len(), count(0), count(1), count(2)), (12, 7, 4, 1));
        assert_eq!("60,90".parse::<SizeMix>().unwrap().schedule(), [0, 1]);
        assert!("60:0".parse::<SizeMix>().is_err() && "sixty".parse::<SizeMix>().is_err());
    }

    #[test]
    fn places_are_read() {
        assert_eq!("vu:/a/b".parse(), Ok(PortPlace::Connect("/a/b".into())));
        assert_eq!("vu-listen:/a".parse(), Ok(PortPlace::Listen("/a".into())));
        let place = |netns: Option<&str>, bridge: Option<&str>| {
            let [netns, bridge] = [netns, bridge].map(|name| name.map(str::to_owned));
            PortPlace::Tap(TapPlace { name: "t0".into(), netns, bridge })
        };
        assert_eq!("tap:t0".parse(), Ok(place(None, None)));
        assert_eq!("tap:t0@n,bridge=b".parse(), Ok(place(Some("n"), Some("b"))));
        assert!("t0".parse::<PortPlace>().is_err());
    }
}
