//! Events of a network and its ports, for operators and programs (`memlane events`).
//!
//! The last [`KEPT`] events are kept, and of each port the last [`KEPT_OF_PORT`]. Events that a guest or front end can cause at
//! will have a rate limit for each port.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use memlane_observe::events::{Owned, Ring};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::author::Author;
use crate::denials::Denial;
use crate::known_addresses::Source;
use crate::quantity::{counted, was};

/// Events that are kept.
pub const KEPT: usize = 4096;

/// Events of a port that are kept: its next one evicts its own oldest, so that no guest pushes the events of others out.
pub const KEPT_OF_PORT: usize = 256;

/// Minimum interval between two events, or two lines of the log, about the same matter that a guest or front end can cause.
pub const REPEAT_PAUSE: Duration = Duration::from_secs(60);

/// Most bytes of a text in an event that a client of the control socket words, and most names of a list.
const LONGEST_TEXT: usize = 4 << 10;
const MOST_NAMES: usize = 32;

/// The last events of a network.
pub type Journal = Ring<NetworkEvent>;

/// Declares the events: what happened; the name; the MESSAGE_ID of systemd's journal, which programs search for and which never changes; `by` for a
/// change that may have an author; the fields; the field with the port that it is about; and its sentence, of these fields. To add an event, add it here,
/// and its explanation to contrib/systemd/memlane.catalog.
macro_rules! network_events {
    ($(
        $(#[$doc:meta])* $name:literal $id:literal $event:ident $($by:ident)? { $($fields:tt)* } $(of $port:ident)? ($($field:ident),*) => $sentence:expr,
    )*) => {
        /// Something that happened.
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        #[serde(tag = "event", rename_all_fields = "kebab-case")]
        pub enum NetworkEvent {
            $($(#[$doc])* #[serde(rename = $name)] $event {
                $($fields)*
                $(
                    /// Author of the change; none if the network did it by itself, as at a takeover.
                    #[serde(skip_serializing_if = "Option::is_none", default)]
                    $by: Option<Author>,
                )?
            },)*
        }

        impl NetworkEvent {
            /// The name of each event, and its MESSAGE_ID (systemd.journal-fields(7)).
            pub const MESSAGE_IDS: &[(&'static str, &'static str)] = &[$(($name, $id),)*];

            /// The names of all events.
            pub const NAMES: &[&'static str] = &[$($name,)*];

            /// Name of the event.
            pub fn name(&self) -> &'static str {
                match self {
                    $(Self::$event { .. } => $name,)*
                }
            }

            /// The port that it is about; of an address that moves or is claimed, the port of the guest that caused it: the new or the claiming one.
            pub fn port(&self) -> Option<&str> {
                match self {
                    $(Self::$event { $($port,)? .. } => None$(.or(Some($port.as_str())))?,)*
                }
            }

            /// The author of a change.
            pub fn by(&self) -> Option<&Author> {
                match self {
                    $(Self::$event { $($by,)? .. } => None$(.or($by.as_ref()))?,)*
                }
            }

            /// Sentence of the event, without the author.
            fn sentence(&self) -> String {
                match self {
                    $(Self::$event { $($field,)* .. } => $sentence,)*
                }
            }
        }
    };
}

network_events! {
    /// A port was attached.
    "port-attached" "910b9fd25a8a5dd89aa5a9546bf428ca" PortAttached by {
        /// The port.
        port: String,
        /// Its segment.
        segment: String,
        /// Labels of the port.
        #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
        labels: BTreeMap<String, String>,
    } of port (port, segment, labels) => {
        let labels: String = labels.iter().map(|(key, value)| format!(", {key}={value}")).collect();
        format!("{port}: attached to segment {segment}{labels}")
    },
    /// A port was detached.
    "port-detached" "3773f37f26ed5041b15fcc71d736a5a1" PortDetached by {
        /// The port.
        port: String,
    } of port (port) => format!("{port}: detached"),
    /// The operator sets a port administratively up.
    "port-enabled" "d560c12dcaec5c86849c418146aa964e" PortEnabled by {
        /// The port.
        port: String,
    } of port (port) => format!("{port}: enabled"),
    /// The operator sets a port administratively down.
    "port-disabled" "94426cdf5d015bf6b401701a26ee356b" PortDisabled by {
        /// The port.
        port: String,
    } of port (port) => format!("{port}: disabled"),
    /// A port was drained: it is disabled, and none of its frames is in flight.
    "port-drained" "47fee274d9a6903d365a75930e62d7a7" PortDrained by {
        /// The port.
        port: String,
        /// False if frames were still in flight at the timeout.
        drained: bool,
    } of port (port, drained) => match drained {
        true => format!("{port}: drained"),
        false => format!("{port}: disabled, and not drained within the timeout"),
    },
    /// Keys of a running port were changed.
    "port-changed" "5f363edf7b1d5571a83be1896fa25971" PortChanged by {
        /// The port.
        port: String,
        /// The keys, with their values before and after.
        changes: Vec<KeyChange>,
    } of port (port, changes) => format!("{port}: changed: {}", changed_keys(changes)),
    /// The interface of a port lost its carrier: its cable, or its other end, is down.
    "carrier-lost" "e1c601d31f096d00040c39f8f16584bc" CarrierLost {
        /// The port.
        port: String,
        /// The interface.
        interface: String,
    } of port (port, interface) => format!("{port}: interface {interface} has no carrier"),
    /// The interface of a port has a carrier again.
    "carrier-found" "887aee525ab25b8900f93b904527bf88" CarrierFound {
        /// The port.
        port: String,
        /// The interface.
        interface: String,
    } of port (port, interface) => format!("{port}: interface {interface} has a carrier again"),
    /// A front end has connected.
    "front-end-connected" "327763f31ecd524bb51e3870f2a9e4bb" FrontEndConnected {
        /// The port.
        port: String,
        /// Its program, as the kernel names it.
        program: String,
    } of port (port, program) => format!("{port}: front end connected: {program}"),
    /// Another front end has connected while the port has one, and was turned away.
    "front-end-turned-away" "b7ad6085c5cf51f89605c10d30a2ee9a" FrontEndTurnedAway {
        /// The port.
        port: String,
        /// Its program.
        program: String,
        /// The program that has the port.
        holder: String,
    } of port (port, program, holder) => {
        format!("{port}: another front end was refused: {program}; the port is in use by {holder}")
    },
    /// The front end has gone.
    "front-end-left" "5ef20ee613bb574ca260572d66124f60" FrontEndLeft {
        /// The port.
        port: String,
        /// Why.
        cause: String,
    } of port (port, cause) => format!("{port}: front end left: {cause}"),
    /// At least one ring of the port is served.
    "port-running" "461e130d3eba5ab89d879025daac60b7" PortRunning {
        /// The port.
        port: String,
    } of port (port) => format!("{port}: running"),
    /// The guest or front end broke a rule, and every ring of the port was stopped.
    "port-quarantined" "62bf0f76d5c25434a61f086193ad7019" PortQuarantined {
        /// The port.
        port: String,
        /// The rule.
        cause: String,
    } of port (port, cause) => format!("{port}: in quarantine: {cause}"),
    /// The first frames of a port were dropped for this reason.
    "first-drop" "90917f7b1df553e18b223cae444422ab" FirstDrop {
        /// The port.
        port: String,
        /// The reason, as in the counters.
        reason: String,
        /// Frames that were dropped for it so far.
        frames: u64,
    } of port (port, reason, frames) => format!("{port}: first drops for {reason}: {}", counted(*frames, "frame")),
    /// A frame was dropped because its addresses are not the port's, or its service is not allowed: told once a minute for each port
    /// and reason.
    "address-refused" "893dcafca35d52118c19c6a2faa644f4" AddressRefused {
        /// The port.
        port: String,
        /// The reason, as in the counters.
        reason: String,
        /// The MAC address that the frame claims for its sender.
        mac: String,
        /// The IP address that it claims for its sender, if it shows one.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        ip: Option<String>,
        /// The key of the port that would allow the frame.
        allowed_by: String,
    } of port (port, reason, mac, ip, allowed_by) => {
        let ip = ip.as_ref().map(|ip| format!(" with {ip}")).unwrap_or_default();
        format!("{port}: frame dropped as {reason}, from {mac}{ip}; key that would allow it: {allowed_by}")
    },
    /// Frames were dropped because a policy rule denies them: told at most 10 times a second for each sender, and once a minute for each
    /// destination and rule.
    "policy-denied" "b38cb162f08c44128e2bc3290f58424a" PolicyDenied {
        /// The sender.
        port: String,
        /// Labels of the sender.
        #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
        labels: BTreeMap<String, String>,
        /// The destination, the rule, and the number of frames since the last event about them.
        #[serde(flatten)]
        denial: Denial,
    } of port (port, denial) => format!("{port}: {}", denied(denial)),
    /// Frames passed that a policy rule with the action "audit" would refuse; told as often as `policy-denied`.
    "policy-audited" "9c10bac0702c44cba5c6db9ab382f288" PolicyAudited {
        /// The sender.
        port: String,
        /// Labels of the sender.
        #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
        labels: BTreeMap<String, String>,
        /// The destination, the rule, and the number of frames since the last event about them.
        #[serde(flatten)]
        denial: Denial,
    } of port (port, denial) => format!("{port}: {}", denied(denial)),
    /// A MAC address moves between two ports too often: a loop?
    "address-flaps" "ad05340157c95b6bbf5ff1e2489f1ad6" AddressFlaps {
        /// The segment.
        segment: String,
        /// The address.
        address: String,
        /// The port that it is held at.
        held_at: String,
        /// The port that it moves to.
        moves_to: String,
    } of moves_to (segment, address, held_at, moves_to) => {
        format!(
            "{segment}: address {address} moves between ports {held_at} and {moves_to}: a loop? It is held at {held_at}"
        )
    },
    /// A MAC address was learned at another port than before: told once a minute for each address.
    "address-moved" "05327ecd337f51de8d457d31287b235a" AddressMoved {
        /// The segment.
        segment: String,
        /// The address.
        address: String,
        /// The port where it was.
        from: String,
        /// The port of its last frame.
        to: String,
    } of to (segment, address, from, to) => format!("{segment}: address {address} moved from port {from} to port {to}"),
    /// Two machines claim one IP address: told once a minute for each address.
    "address-conflict" "1fe77db250cd4dd49ccb9e02e383d734" AddressConflict {
        /// The segment.
        segment: String,
        /// The IP address.
        ip: String,
        /// Its VLAN; none for untagged frames.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        vlan: Option<u16>,
        /// The port that it belongs to, as decided.
        port: String,
        /// The MAC address that it belongs to.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        mac: Option<String>,
        /// The origin by which that was decided.
        source: Source,
        /// The port that claims it, too.
        claimed_by: String,
        /// The MAC address that claims it.
        claimed_mac: String,
    } of claimed_by (segment, ip, vlan, port, mac, source, claimed_by, claimed_mac) => {
        let vlan = vlan.map(|vlan| format!(" in VLAN {vlan}")).unwrap_or_default();
        let mac = mac.as_ref().map(|mac| format!(" with {mac}")).unwrap_or_default();
        format!(
            "{segment}: IP address conflict: {ip}{vlan} belongs to {port}{mac} (by {}), and {claimed_by} claims it with {claimed_mac}",
            source.name()
        )
    },
    /// A rate limit held frames back: told once a minute for each port and direction.
    "limit-reached" "0f21b3b46edd5e169d3158d43989f542" LimitReached {
        /// The port.
        port: String,
        /// `transmit` or `receive`, seen from the guest.
        direction: String,
        /// How often since the last event.
        times: u64,
    } of port (port, direction, times) => {
        let frames = if direction == "receive" { "frames to it" } else { "its frames" };
        format!("{port}: the {direction} limit held {frames} back, {} since it was last told", counted(*times, "time"))
    },
    /// Events of a port that came too fast were left out.
    "left-out" "b26c17ef47215d73bebdc687e36c9bc2" LeftOut {
        /// The port.
        port: String,
        /// How many.
        events: u64,
    } of port (port, events) => format!("{port}: {} {} left out because of their rate", counted(*events, "event"), was(*events)),
    /// The network was changed to a file or document.
    "reloaded" "ab668ca480c0583a86ff8bea60e32b65" Reloaded by {
        /// Ports that came.
        added: Vec<String>,
        /// Ports that went.
        removed: Vec<String>,
        /// Ports that changed.
        changed: Vec<String>,
        /// Ports and uplinks of which something failed.
        failed: Vec<String>,
        /// Names that the lists do not have, because a list has the first 32 only.
        #[serde(default)]
        left_out: u64,
    } (added, removed, changed, failed, left_out) => format!(
        "network: reloaded: {} attached, {} detached, {} changed, {} failed{}",
        counted(added.len(), "port"),
        removed.len(),
        changed.len(),
        failed.len(),
        more(*left_out)
    ),
    /// A file or document was not taken over.
    "reload-refused" "a4c527dd22a453b8885f3bb4f40659b9" ReloadRefused by {
        /// Why.
        cause: String,
    } (cause) => format!("network: reload refused: {cause}"),
    /// A capture has begun.
    "capture-started" "84021039e6bb514ca1ef22bebd589b07" CaptureStarted by {
        /// Its ports; all if there are none.
        ports: Vec<String>,
        /// Its filter; empty if there is none.
        filter: String,
        /// Ports that the list does not have, because it has the first 32 only.
        #[serde(default)]
        left_out: u64,
    } (ports, filter, left_out) => {
        let ports = if ports.is_empty() { "all ports".into() } else { ports.join(", ") + &more(*left_out) };
        let filter = if filter.is_empty() { String::new() } else { format!(" with the filter '{filter}'") };
        format!("network: capture of {ports}{filter} begun")
    },
    /// A capture has ended.
    "capture-ended" "54fb233a371a50fabb2ebd6ff3ccc283" CaptureEnded by {
        /// Frames that were captured.
        frames: u64,
        /// Frames that it missed.
        missed: u64,
    } (frames, missed) => format!("network: capture ended: {}, {missed} missed", counted(*frames, "frame")),
    /// The recorder of verdicts has started.
    "recorder-started" "8d0c1f5b6a0e4e6f9d4a2c7be1f3a560" RecorderStarted by {
        /// Bytes of memory for records.
        memory: u64,
    } (memory) => format!("network: recorder started, with {} MiB", memory >> 20),
    /// The recorder of verdicts has stopped.
    "recorder-stopped" "5b7e3a9c20d64f0d8c1e94f6a7d25b38" RecorderStopped by {} () => "network: recorder stopped".into(),
    /// A recording has begun: a client reads the records of the recorder.
    "recording-started" "c2f94d1a7b3e4085a6d0e8b159c7f462" RecordingStarted by {} () => "network: recording of verdicts begun".into(),
    /// A recording has been written.
    "recording-ended" "0f6ad83be5174c92b1c8d7f420e96a3d" RecordingEnded by {
        /// Records that were written.
        records: u64,
        /// Records that were overwritten before.
        missed: u64,
    } (records, missed) => format!("network: recording ended: {}, {missed} missed", counted(*records, "verdict")),
    /// A trial of policy rules has begun: they decide on no frame.
    "policy-trial-started" "80b14edfed2119317ff5f7171e753a88" PolicyTrialStarted by {
        /// Number of the trial.
        trial: u64,
        /// The rules.
        rules: u64,
        /// Length of the trial in milliseconds.
        milliseconds: u64,
    } (trial, rules, milliseconds) => {
        format!(
            "network: trial {trial} of {} started for {} s",
            counted(*rules, "policy rule"),
            *milliseconds as f64 / 1000.0
        )
    },
    /// A trial of policy rules has ended: a client ended it, its time was over, or no client looked for 10 s.
    "policy-trial-ended" "7f2de1c6bc9bb73c2d83ec64dfa39937" PolicyTrialEnded by {
        /// Number of the trial.
        trial: u64,
    } (trial) => format!("network: trial {trial} of policy rules ended"),
    /// The network is frozen for a snapshot: no frame moves.
    "snapshot" "18891cefc5eb49e09e84b55568a6be96" Snapshot by {
        /// Frames in flight that the snapshot holds.
        frames: u64,
        /// Milliseconds after which the network goes on without a command.
        milliseconds: u64,
    } (frames, milliseconds) => format!(
        "network: frozen for a snapshot, with {} in flight; goes on after {} s at the latest",
        counted(*frames, "frame"),
        *milliseconds as f64 / 1000.0
    ),
    /// The frozen network goes on.
    "thawed" "ba0f14c4b74d4eb3b70866fe17258732" Thawed by {
        /// Why.
        cause: String,
        /// Milliseconds for which no frame moved.
        milliseconds: u64,
        /// Frames that were in flight.
        frames: u64,
        /// Frames that were dropped, because the queue of their receiver did not run.
        lost: u64,
    } (cause, milliseconds, frames, lost) => {
        let lost = if *lost > 0 { format!(", {lost} of them lost") } else { String::new() };
        let frames = counted(*frames, "frame");
        format!("network: thawed after {} s, with {frames} in flight{lost}: {cause}", *milliseconds as f64 / 1000.0)
    },
    /// Another process serves the network (takeover).
    "taken-over" "5fb27b82b204e73b58fa4b880928d9e7" TakenOver by {
        /// Version of memlane that serves it now.
        version: String,
    } (version) => format!("network: taken over by a process of memlane {version}"),
    /// The network ends.
    "network-ends" "9c456dd4df1e0a782a1ba1a68d415b2a" NetworkEnds by {
        /// Why.
        cause: String,
    } (cause) => format!("network: ends: {cause}"),
}

/// A key of a port with another value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct KeyChange {
    /// The key.
    pub key: String,
    /// Value of the key before, as JSON; null where it had none.
    pub from: String,
    /// Value of the key now, as JSON; null where it has none.
    pub to: String,
}

impl NetworkEvent {
    /// The event with texts and lists of bounded length: a client of the control socket may send long ones, and the journal keeps them.
    #[must_use]
    pub fn bounded(mut self) -> Self {
        match &mut self {
            Self::ReloadRefused { cause, .. } | Self::Thawed { cause, .. } => *cause = shortened(cause),
            Self::PortChanged { changes, .. } => changes.iter_mut().for_each(|change| {
                change.from = shortened(&change.from);
                change.to = shortened(&change.to);
            }),
            Self::Reloaded { added, removed, changed, failed, left_out, .. } => {
                *left_out = [added, removed, changed, failed].map(cut_names).iter().sum();
            }
            Self::CaptureStarted { ports, filter, left_out, .. } => {
                *filter = shortened(filter);
                *left_out = cut_names(ports);
            }
            _ => {}
        }
        self
    }
}

impl fmt::Display for NetworkEvent {
    /// The event as a sentence that begins with its subject.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence())?;
        self.by().map_or(Ok(()), |by| write!(f, ", by {by}"))
    }
}

/// Changes of keys in words.
fn changed_keys(changes: &[KeyChange]) -> String {
    let each = changes.iter().map(|KeyChange { key, from, to }| format!("{key} from {from} to {to}"));
    each.collect::<Vec<_>>().join(", ")
}

/// Denied frames in words.
fn denied(denial: &Denial) -> String {
    let Denial { to, flooded, rule, allowed_by, frames, audited, .. } = denial;
    if let Some(name) = &denial.name {
        let asked = counted(*frames, "question");
        return format!(
            "{asked} for the name {name} refused as policy-denied, by {rule}; rule that would allow it, before that one: {allowed_by}"
        );
    }
    let to = if *flooded { format!("the segment, as {to}") } else { to.clone() };
    let outcome = if *audited { "passed, and would be refused" } else { "dropped as policy-denied" };
    format!(
        "{} to {to} (destination {}) {outcome}, by {rule}; rule that would allow them, before that one: {allowed_by}",
        counted(*frames, "frame"),
        denial.destination_in_words()
    )
}

/// Names that the lists of an event do not have.
fn more(left_out: u64) -> String {
    if left_out == 0 { String::new() } else { format!(", and {left_out} more") }
}

/// Adds `event`, a change by a command, to `journal`, and a line to the log if it has an author.
pub fn note(journal: &Journal, event: NetworkEvent) {
    log_change(&event);
    journal.add(event.bounded());
}

/// A line of the log about a change, if it has an author.
pub fn log_change(event: &NetworkEvent) {
    let Some(by) = event.by() else { return };
    let (by_user, by_uid, by_pid, by_program) = (by.user.as_str(), by.uid, by.pid, by.program.as_str());
    let (port, name) = (event.port(), event.name());
    match event {
        NetworkEvent::ReloadRefused { .. } => tracing::error!(port, event = name, by_user, by_uid, by_pid, by_program, "{event}"),
        _ => tracing::info!(port, event = name, by_user, by_uid, by_pid, by_program, "{event}"),
    }
}

impl Owned for NetworkEvent {
    fn owner(&self) -> Option<&str> {
        self.port()
    }
}

/// The first 4 KiB of `text`, with dots if there is more.
pub fn shortened(text: &str) -> String {
    let end = text.floor_char_boundary(LONGEST_TEXT);
    let dots = if end < text.len() { " ..." } else { "" };
    [&text[..end], dots].concat()
}

/// Cuts a list after its first names; returns the number of the others.
fn cut_names(names: &mut Vec<String>) -> u64 {
    let left_out = names.len().saturating_sub(MOST_NAMES);
    names.truncate(MOST_NAMES);
    names.shrink_to_fit();
    left_out as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_clients_word_is_kept_in_part() {
        let refused = NetworkEvent::ReloadRefused { cause: "ä".repeat(1 << 20), by: None }.bounded();
        assert!(
            matches!(&refused, NetworkEvent::ReloadRefused { cause, .. } if cause.len() == (4 << 10) + 4 && cause.ends_with("ä ..."))
        );
        let names = |count: usize| (0..count).map(|name| name.to_string()).collect::<Vec<_>>();
        let (ports, filter) = (names(100), "arp".repeat(5000));
        let started = NetworkEvent::CaptureStarted { ports, filter, left_out: 0, by: None }.bounded();
        assert!(
            matches!(&started, NetworkEvent::CaptureStarted { ports, filter, left_out: 68, .. } if *ports == names(32) && filter.len() == 4100)
        );
        let reloaded = |count, left_out| {
            let (added, removed, changed, failed) = (names(count), names(count), names(3), Vec::new());
            NetworkEvent::Reloaded { added, removed, changed, failed, left_out, by: None }
        };
        assert_eq!(reloaded(40, 0).bounded(), reloaded(32, 16));
        assert_eq!(reloaded(32, 0).bounded(), reloaded(32, 0));
    }

    /// A guest that keeps to the rate limit of events still adds thousands an hour.
    #[test]
    fn events_of_one_port_evict_none_of_another() {
        let journal = std::sync::Arc::new(Journal::new(KEPT, KEPT_OF_PORT));
        let attached = NetworkEvent::PortAttached { port: "db".into(), segment: "lan".into(), labels: BTreeMap::new(), by: None };
        journal.add(attached.clone());
        let moved = NetworkEvent::AddressMoved {
            segment: "lan".into(),
            address: "02:00:00:00:00:01".into(),
            from: "db".into(),
            to: "web".into(),
        };
        let running = NetworkEvent::PortRunning { port: "web".into() };
        (0..KEPT).for_each(|_| [&moved, &running].into_iter().for_each(|event| drop(journal.add(event.clone()))));
        let batch = journal.reader(memlane_observe::events::From::Oldest).take(2 * KEPT);
        assert_eq!(batch.records.len(), 1 + KEPT_OF_PORT);
        assert_eq!((&batch.records[0].event, batch.records[0].sequence), (&attached, 0));
        assert_eq!(batch.missed as usize, 2 * KEPT - KEPT_OF_PORT);
    }

    #[test]
    fn the_name_is_what_json_says() {
        let event = NetworkEvent::AddressFlaps {
            segment: "lan".into(),
            address: "02:00:00:00:00:01".into(),
            held_at: "web".into(),
            moves_to: "db".into(),
        };
        let json = serde_json::to_value(&event).unwrap();
        assert_eq!((json["event"].as_str(), json["held-at"].as_str()), (Some(event.name()), Some("web")));
        assert_eq!(serde_json::from_value::<NetworkEvent>(json).unwrap(), event);
    }
}
