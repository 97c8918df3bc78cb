//! Counters of a port, as reported.

use std::collections::BTreeMap;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Longest frames of the buckets of [`PortTotals::frame_sizes`], in bytes without FCS: those of RMON (RFC 2819, etherStatsPkts64Octets and the
/// following), jumbo frames, and the longest GSO frames.
pub const SIZE_BOUNDS: [u32; 8] = [64, 127, 255, 511, 1023, 1518, 9000, 65535];

/// Latency bounds of the buckets of [`PortTotals::waits`].
pub const WAIT_BOUNDS: [Duration; 7] = [
    Duration::from_micros(10),
    Duration::from_micros(100),
    Duration::from_millis(1),
    Duration::from_millis(10),
    Duration::from_millis(100),
    Duration::from_secs(1),
    Duration::from_secs(10),
];

/// Declares the counters of a port that each worker adds up, by the macro `$define`: what a counter counts, its name, whether a process that takes the
/// network over goes on with it (`inherited`) or it tells of this moment (`present`), and its metric. All else follows: the workers' cells, their sums,
/// [`PortTotals`] and its JSON, the metrics and their page. To add a counter, add a row here, and count where it happens:
/// `counters.NAME.add(1)`.
#[macro_export]
macro_rules! port_counters {
    ($define:ident) => {
        $define! {
            /// Frames that the guest transmitted.
            transmit_frames: inherited, Metric::Counter(
                "memlane_port_transmit_frames",
                "Frames that the guest transmitted to the network."
            );
            /// Their bytes, virtio-net headers not counted.
            transmit_bytes: inherited, Metric::Counter(
                "memlane_port_transmit_bytes",
                "Bytes that the guest transmitted to the network."
            );
            /// Frames that the guest received; a segmented GSO frame counts once for each TCP segment.
            receive_frames: inherited, Metric::Counter(
                "memlane_port_receive_frames",
                "Frames that the guest received from the network."
            );
            /// Bytes that the guest received, headers of added TCP segments not counted.
            receive_bytes: inherited, Metric::Counter(
                "memlane_port_receive_bytes",
                "Bytes that the guest received from the network."
            );
            /// Frames that were flooded to the segment.
            flooded: inherited, Metric::Counter(
                "memlane_port_flooded_frames",
                "Frames that the guest transmitted and the switch flooded to its segment."
            );
            /// Kicks: notifications from the guest.
            kicks: inherited, Metric::Notification("kick");
            /// Interrupts: notifications of the guest.
            interrupts: inherited, Metric::Notification("interrupt");
            /// Lost kicks: a ring had entries for which a kick was asked and none came.
            missed_kicks: inherited, Metric::Notification("missed-kick");
            /// Interrupts repeated because the driver had not noticed completions.
            repeated_interrupts: inherited, Metric::Notification("repeated-interrupt");
            /// Receive chains that broke a rule.
            bad_receive_chains: inherited, Metric::Counter(
                "memlane_port_bad_receive_chains",
                "Receive chains of the guest that violated the virtio specification."
            );
            /// Chains that were in flight when a process of the network crashed, and were served again: their frames may have arrived before.
            /// Only front ends that keep the record of these chains tell.
            resubmitted_chains: inherited, Metric::Counter(
                "memlane_port_resubmitted_chains",
                "Chains in flight at a crash that were served again; their frames may have arrived before."
            );
            /// Frames that wait for this port now (backpressure).
            waiting: present, Metric::Gauge(
                "memlane_port_waiting_frames",
                "Frames that wait for receive buffers of the guest now (backpressure)."
            );
            /// TSC cycles that workers spent on frames from this port.
            cycles: inherited, Metric::None;
            /// Service quanta of senders while frames waited for this port.
            turns: inherited, Metric::None;
            /// Times that the port's transmit limit held it back.
            transmit_limited: inherited, Metric::Limited("transmit");
            /// Times that the port's receive limit held its senders back.
            receive_limited: inherited, Metric::Limited("receive");
        }
    };
}

/// The metric of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    /// None.
    None,
    /// A counter of this name, with this help.
    Counter(&'static str, &'static str),
    /// A gauge of this name, with this help.
    Gauge(&'static str, &'static str),
    /// The notifications of this kind.
    Notification(&'static str),
    /// The times that the rate limit of this direction held frames back.
    Limited(&'static str),
}

/// A counter of a port, of [`port_counters`].
#[derive(Clone, Copy, Debug)]
pub struct PortCounter {
    /// Name of the field.
    pub name: &'static str,
    /// Metric of the counter.
    pub metric: Metric,
    /// Value of the counter.
    pub value: fn(&PortTotals) -> u64,
}

macro_rules! define_totals {
    ($($(#[$doc:meta])* $name:ident: $life:ident, $metric:expr;)*) => {
        /// A port's counters, added up. Counters that a network of an older version lacks are zero.
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        #[serde(rename_all = "kebab-case", default)]
        pub struct PortTotals {
            $($(#[$doc])* pub $name: u64,)*
            /// Stream frames with an incomplete checksum.
            pub undone_checksums: u64,
            /// Frames that the guest transmitted, by size: at most 64, 127, 255, 511, 1023, 1518, 9000 and 65535 bytes, and longer.
            pub frame_sizes: [u64; SIZE_BOUNDS.len() + 1],
            /// A sample of the frames that the guest received, by the time that they waited in the switch: at most 10 us, 100 us, 1 ms, 10 ms,
            /// 100 ms, 1 s and 10 s, and longer.
            pub waits: [u64; WAIT_BOUNDS.len() + 1],
            /// TSC cycles that the frames of the sample waited, all together.
            pub waited_cycles: u64,
            /// Drops by reason; reasons that never occurred are left out.
            pub drops: BTreeMap<String, u64>,
        }

        impl PortTotals {
            /// The counters that workers add up.
            pub const COUNTERS: &[PortCounter] =
                &[$(PortCounter { name: stringify!($name), metric: $metric, value: |totals| totals.$name },)*];
        }
    };
}

port_counters!(define_totals);
