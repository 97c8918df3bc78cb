//! A frozen network as a [snapshot](crate::snapshot), and a network that begins as one says.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};

use super::takeover::take::saved_grant;
use super::{Attached, Daemon, StartError};
use crate::config::Config;
use crate::description::PortRecord;
use crate::frame::{MacAddress, NetHeader};
use crate::held::{HeldFrame, HeldLine};
use crate::id::{Direction, MAX_PAIRS, PortId, RingKey};
use crate::policy::flows::SavedFlows;
use crate::port::Port;
use crate::snapshot::{Snapshot, SnapshotAddress, SnapshotFile, SnapshotFlows, SnapshotFrame, SnapshotLine, SnapshotPort};
use crate::table::LearnedAddress;
use crate::time::{Cycles, cycles, duration, in_cycles};

fn nanoseconds(left: Cycles) -> u64 {
    u64::try_from(duration(left).as_nanos()).unwrap_or(u64::MAX)
}

fn in_cycles_of(nanoseconds: u64) -> Cycles {
    in_cycles(Duration::from_nanos(nanoseconds))
}

/// The snapshot of a port without its queues.
fn port_at_rest(Attached { config, port, .. }: &Attached, record: PortRecord, now: Cycles) -> SnapshotPort {
    let SavedFlows { key, entries } = port.policy.flows.saved();
    SnapshotPort {
        entry: config.stated(),
        mtu: port.offer().mtu,
        record,
        buckets: port.policy.saved_buckets(now).map(nanoseconds),
        flows: SnapshotFlows { key, entries },
        running: Vec::new(),
        lines: Vec::new(),
    }
}

impl Daemon {
    /// The snapshot of the network, which has these keys beside its ports, on `machine`; `None` if it is not frozen.
    pub fn snapshot(&self, document: &Map<String, Value>, machine: String) -> Option<SnapshotFile> {
        let (records, addresses, departed) = (self.records(), self.addresses(), self.departed_leases());
        let uplinks: Vec<String> =
            self.all_uplinks().iter().map(|uplink| format!("uplink of segment {}", uplink.segment())).collect();
        let attached = self.attached();
        let is_inside = |attached: &Attached| attached.config.kind.about().in_snapshot;
        let inside: Vec<_> = attached.iter().zip(records).filter(|(attached, _)| is_inside(attached)).collect();
        let numbers: HashMap<PortId, u32> = inside.iter().map(|(attached, _)| attached.port.id).zip(0..).collect();
        let outside = attached.iter().filter(|attached| !is_inside(attached));
        let outside: Vec<String> =
            outside.map(|Attached { config, .. }| format!("port {} ({})", config.name, config.kind.name())).collect();
        let known: Vec<Option<u32>> = attached.iter().map(|attached| numbers.get(&attached.port.id).copied()).collect();
        let learned = addresses.into_iter().filter_map(|learned| {
            let port = (*known.get(learned.port as usize)?)?;
            Some(SnapshotAddress { port, address: learned.address, vlan: learned.vlan })
        });
        let now = cycles();
        let mut ports: Vec<_> = inside.into_iter().map(|(attached, record)| port_at_rest(attached, record, now)).collect();
        let mut frames = Vec::new();
        self.network.look_at_held(|lines, running| {
            for key in running {
                if let Some(port) = numbers.get(&key.port).and_then(|number| ports.get_mut(*number as usize)) {
                    port.running.push((key.pair, key.direction == Direction::Receive));
                }
            }
            // In the order of the ports, in which the bytes of frames are read again.
            let mut lines: Vec<_> = lines.iter().filter_map(|line| Some((*numbers.get(&line.port)?, line))).collect();
            lines.sort_by_key(|(number, line)| (*number, line.pair));
            for (number, line) in lines {
                if let Some(port) = ports.get_mut(number as usize) {
                    port.lines.push(described(line, &numbers, &mut frames));
                }
            }
        })?;
        let snapshot = Snapshot {
            network: self.config.name.clone(),
            addresses_of: self.config.seed().into(),
            machine,
            document: document.clone(),
            ports,
            outside: outside.into_iter().chain(uplinks).collect(),
            addresses: learned.collect(),
            departed,
        };
        Some(SnapshotFile { snapshot, frames })
    }

    /// Starts the network of `config`, frozen, with the state of the snapshot `file`; its configuration is that of the snapshot.
    ///
    /// # Errors
    /// A [`StartError`]; nothing is left running then.
    pub fn start_from(config: &Config, file: &SnapshotFile) -> Result<Self, StartError> {
        let daemon = Self::start_with(config, |daemon| daemon.restore(file))?;
        for port in &file.snapshot.ports {
            daemon.restore_leases(&port.record.leases);
        }
        daemon.restore_leases(&file.snapshot.departed);
        Ok(daemon)
    }

    /// Restores the state of ports without virtqueues: counters, flows, token buckets, leases, frames in flight.
    fn restore(&self, file: &SnapshotFile) {
        let SnapshotFile { snapshot, frames } = file;
        let ports: Vec<Option<Arc<Port>>> = snapshot.ports.iter().map(|port| self.network.find(port.name())).collect();
        let now = cycles();
        let (mut lines, mut running, mut rest, mut lost) = (Vec::new(), Vec::new(), &frames[..], 0);
        for (saved, port) in snapshot.ports.iter().zip(&ports) {
            let Some(port) = port else {
                // Only a description that was made by hand names a port twice.
                for frame in saved.lines.iter().flat_map(|line| &line.frames) {
                    let _ = taken(&mut rest, frame);
                }
                continue;
            };
            port.inherit(&saved.record.totals, saved.record.quarantines, None);
            let grants: Vec<_> = saved.record.grants.iter().map(saved_grant).collect();
            self.network.restore_grants(port, &grants);
            port.policy.flows.restore(&SavedFlows { key: saved.flows.key, entries: saved.flows.entries.clone() });
            port.policy.restore_buckets(&saved.buckets.map(in_cycles_of), now);
            let direction = |receives| if receives { Direction::Receive } else { Direction::Transmit };
            let keys = saved.running.iter().filter(|(pair, _)| *pair < MAX_PAIRS);
            running.extend(keys.map(|&(pair, receives)| RingKey { port: port.id, pair, direction: direction(receives) }));
            for line in &saved.lines {
                let held = held(line, port, &ports, &mut rest);
                lost += line.frames.len() - held.frames.len();
                lines.push(held);
            }
        }
        if lost > 0 {
            tracing::warn!(
                target: "memlane::daemon::snapshot",
                lost, "frames of the snapshot were dropped: there is no memory for them, or they break a rule"
            );
        }
        for SnapshotAddress { port, address, vlan } in &snapshot.addresses {
            if let Some(Some(port)) = ports.get(*port as usize) {
                let address = LearnedAddress { address: MacAddress::new(*address), vlan: *vlan };
                port.segment.table().learn(address, port.id, 0);
            }
        }
        self.network.begin_frozen(lines, running);
    }
}

/// Describes the frames of `line`, and adds their bytes to `frames`.
fn described(line: &HeldLine, numbers: &HashMap<PortId, u32>, frames: &mut Vec<u8>) -> SnapshotLine {
    let frame = |held: &HeldFrame| {
        frames.extend(&held.frame);
        SnapshotFrame {
            from: numbers.get(&held.source).copied(),
            header: held.header.bytes(),
            length: held.frame.len() as u32,
            segments_done: held.segments_done,
            left: nanoseconds(held.left),
        }
    };
    SnapshotLine {
        pair: line.pair,
        seed: line.seed,
        bad: line.bad,
        leaving: line.leaving.iter().copied().map(nanoseconds).collect(),
        last_due: nanoseconds(line.last_due),
        frames: line.frames.iter().map(frame).collect(),
    }
}

/// The bytes of the next frame.
fn taken<'f>(rest: &mut &'f [u8], frame: &SnapshotFrame) -> Option<&'f [u8]> {
    let (bytes, after) = rest.split_at_checked(frame.length as usize)?;
    *rest = after;
    Some(bytes)
}

/// The frames of `line` for `port`, with their bytes from the beginning of `rest`. Those that break a rule are left out.
fn held(line: &SnapshotLine, port: &Arc<Port>, ports: &[Option<Arc<Port>>], rest: &mut &[u8]) -> HeldLine {
    let mut frame = |saved: &SnapshotFrame| {
        let bytes = taken(rest, saved)?;
        // A frame from outside has no sender here: the receiver stands for it.
        let from = saved.from.and_then(|from| ports.get(from as usize)?.as_ref()).unwrap_or(port);
        let header = NetHeader::from_bytes(saved.header);
        HeldFrame::new((from.id, port), header, bytes.into(), saved.segments_done, in_cycles_of(saved.left))
    };
    HeldLine {
        port: port.id,
        pair: line.pair,
        frames: line.frames.iter().filter_map(&mut frame).collect(),
        seed: line.seed,
        bad: line.bad,
        leaving: line.leaving.iter().copied().map(in_cycles_of).collect(),
        last_due: in_cycles_of(line.last_due),
    }
}
