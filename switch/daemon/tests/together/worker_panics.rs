//! Places where a worker may panic: each `expect`, `unwrap`, assertion and index in files with code that workers run, and why it
//! does not. A worker that panics ends the network: a new place is proved or becomes a counted drop, and is listed here. Arithmetic
//! wraps in a release build and ends nothing; arithmetic on guests' numbers is proved by harnesses (docs/adr/0031-proofs.md).

use std::collections::BTreeMap;

use crate::source_rules::{files, without_comments, without_tests};

/// Files and folders with code that workers run; a port's own threads, the operator's side and set-up stand elsewhere.
const RUN_BY_WORKERS: &[&str] = &[
    "dataplane/address_map.rs",
    "dataplane/address_map",
    "dataplane/timers.rs",
    "dataplane/cpu_time",
    "virtq/budget.rs",
    "virtq/copy.rs",
    "virtq/drop_reason.rs",
    "virtq/frame.rs",
    "dataplane/outcome.rs",
    "dataplane/handover.rs",
    "virtq/id.rs",
    "virtq/in_flight.rs",
    "dataplane/link",
    "virtq/memory",
    "virtq/notification.rs",
    "virtq/offload",
    "dataplane/egress",
    "virtq/packet.rs",
    "dataplane/policy.rs",
    "dataplane/port/end.rs",
    "dataplane/port/fragmenting.rs",
    "backends/loopback.rs",
    "backends/null.rs",
    "backends/payload.rs",
    "dataplane/pool.rs",
    "backends/store.rs",
    "backends/stream/nat.rs",
    "backends/stream/nat",
    "backends/stream/receive.rs",
    "backends/stream/transmit.rs",
    "backends/stream/wire.rs",
    "backends/interface/batch.rs",
    "backends/interface/messages.rs",
    "backends/interface/receive.rs",
    "backends/interface/transmit.rs",
    "backends/xen/receive.rs",
    "backends/xen/transmit.rs",
    "backends/xen/netif.rs",
    "backends/xen/ring.rs",
    "backends/xen/link.rs",
    "virtq/ring",
    "dataplane/slots.rs",
    "dataplane/ingress",
    "dataplane/stats.rs",
    "dataplane/table.rs",
    "dataplane/tap/watch.rs",
    "dataplane/multicast.rs",
    "dataplane/multicast",
    "dataplane/answer.rs",
    "dataplane/refusal.rs",
    "dataplane/too_long.rs",
    "dataplane/twin.rs",
    "virtq/threshold.rs",
    "virtq/time.rs",
    "dataplane/headers.rs",
    "dataplane/policy",
    "dataplane/denials.rs",
    "dataplane/trial.rs",
    "dataplane/port/refused.rs",
    "dataplane/verdict.rs",
    "dataplane/verdict",
    "virtq/watchdog.rs",
    "virtq/watchdog",
    "dataplane/worker",
];

/// File, calls that may panic, indices, and why none of them does.
const LISTED: &[(&str, usize, usize, &str)] = &[
    (
        "dataplane/timers.rs",
        0,
        3,
        "the list is grown to the slot's index before, and what is on the timer list has its place there",
    ),
    ("dataplane/cpu_time/accounting.rs", 0, 1, "a pattern over all items"),
    ("virtq/copy.rs", 0, 2, "an array of fixed length, by numbers that callers have as constants"),
    (
        "virtq/frame.rs",
        0,
        29,
        "arrays of fixed length that a checked look at the frame yielded, and what follows an offset found within the start",
    ),
    ("dataplane/handover.rs", 1, 3, "a queue's capacity is checked where it is made, and positions are taken modulo it"),
    ("dataplane/egress/delay.rs", 0, 1, "cut to the shorter of both lengths"),
    ("virtq/in_flight.rs", 0, 2, "both lists are grown to the head before"),
    ("virtq/memory/mod.rs", 0, 3, "windows of two, and the span before a partition point that is not the first"),
    ("virtq/memory/iovec.rs", 2, 0, "checked by the compiler"),
    (
        "virtq/memory/second_copy.rs",
        0,
        1,
        "a place that is moved to the start where the end is too near; in builds for measurement only",
    ),
    ("virtq/memory/region.rs", 0, 1, "from a partition point of the same list on"),
    (
        "virtq/memory/sigbus.rs",
        1,
        6,
        "a watch's number is below the table's length; whoever maps installs the handler, which is no worker",
    ),
    ("virtq/offload/checksum.rs", 0, 2, "the frame has the checksum's two bytes, which lie behind the start: checked before"),
    ("virtq/offload/mod.rs", 0, 1, "an array of one byte"),
    (
        "virtq/offload/segment.rs",
        0,
        19,
        "the cutter refuses frames whose headers do not reach so far; the harness in offload/proofs.rs proves it for every frame",
    ),
    ("dataplane/egress/mod.rs", 0, 2, "all of a slice, and a number modulo the length of a list that is not empty"),
    ("dataplane/egress/queue.rs", 0, 2, "an array of two"),
    (
        "virtq/packet.rs",
        2,
        34,
        "sizes are checked by the compiler, lengths cut to the shorter of both, and a chunk's number is one that its pool lent",
    ),
    ("backends/loopback.rs", 0, 3, "sixty bytes of its own, in buffers that are longer"),
    ("backends/payload.rs", 0, 3, "offsets were checked on transmit, lengths are cut to the shorter of both"),
    ("backends/store.rs", 0, 12, "buffers are numbered by the store"),
    (
        "backends/stream/receive.rs",
        0,
        4,
        "what was appended begins where the bytes ended before; what was sent is no more than there was",
    ),
    (
        "backends/stream/transmit.rs",
        0,
        5,
        "begin, end and the stage's length follow each other; a frame was measured before it is copied",
    ),
    (
        "backends/interface/batch.rs",
        2,
        6,
        "it is asked right before whether it is full; heads have room for three headers; completions bear what was submitted",
    ),
    (
        "backends/interface/messages.rs",
        0,
        17,
        "arrays of a batch, no more of which are taken; rooms of whole buffers; lengths that the kernel wrote into a room, with a tag's more",
    ),
    ("backends/interface/receive.rs", 0, 2, "headers are within their array, and as long as the kind says"),
    ("backends/interface/transmit.rs", 0, 1, "as many rooms as were filled in"),
    ("backends/xen/receive.rs", 0, 5, "copies and answers are counted where they are appended"),
    (
        "backends/xen/transmit.rs",
        0,
        15,
        "records are numbered by the transmit itself, a start's length is that of its array at most",
    ),
    ("backends/xen/netif.rs", 0, 2, "a request has at least its first part"),
    ("backends/xen/link.rs", 0, 1, "a place was taken from the same pages"),
    ("virtq/ring/ahead.rs", 0, 2, "positions are taken modulo the array's length"),
    ("virtq/ring/control.rs", 0, 3, "a command without a byte for the answer is refused before"),
    ("virtq/ring/receive.rs", 0, 3, "header and headers have their lengths in arrays of the longest"),
    (
        "virtq/ring/transmit.rs",
        0,
        4,
        "a head is below the ring's size where it was read; a start's length is that of its array at most",
    ),
    ("virtq/ring/notify.rs", 0, 1, "an array of one"),
    ("virtq/ring/rooms.rs", 0, 2, "an offset is within what is written, and there is a first room"),
    ("dataplane/egress/account.rs", 0, 4, "the position of one that was found or just added"),
    ("dataplane/egress/flows.rs", 0, 8, "buckets are numbered by a byte, or by a list of them that is not empty"),
    ("dataplane/egress/wait_queue.rs", 0, 6, "spots are numbered by the wait queue itself and freed once"),
    (
        "dataplane/slots.rs",
        1,
        1,
        "a network has no more rings than slots (`const` in network/mod.rs), and an index is one that was made",
    ),
    ("dataplane/ingress/source.rs", 0, 1, "the list is grown to the port's index before"),
    (
        "dataplane/stats.rs",
        0,
        4,
        "one counter for each reason, one bucket for each bound and one more, a remainder of the number of entries",
    ),
    (
        "dataplane/table.rs",
        1,
        22,
        "a bucket's number is a hash shifted to the table's size, a way's is below the bucket's, so each entry has its place in the arrays of confirmations and moves, and the size of ports is checked by the compiler",
    ),
    (
        "dataplane/headers.rs",
        0,
        17,
        "arrays of fixed length that a checked look at the bytes yielded, and options cut by a checked length",
    ),
    ("dataplane/multicast.rs", 0, 1, "all of a list"),
    (
        "dataplane/multicast/reports.rs",
        0,
        5,
        "offsets within headers that a parser found, and within a message that is not shorter; a property test reads any bytes",
    ),
    ("dataplane/multicast/querier.rs", 0, 11, "messages of fixed length"),
    (
        "dataplane/policy/destinations.rs",
        0,
        6,
        "in the control thread: a set has a bit for each rule, each bound has the index of its own rule, and what stands at one address is not empty",
    ),
    ("dataplane/policy/gate.rs", 0, 3, "all of a list, and a VLAN modulo the number of bits"),
    ("dataplane/policy/rule_list.rs", 0, 1, "all of an empty list"),
    (
        "dataplane/policy/rulebook.rs",
        0,
        9,
        "in the control thread: counts of the elements of the same lists, and places that were found in them",
    ),
    ("dataplane/policy/flows.rs", 0, 4, "none: array types and literals, and a level that a test looks at"),
    (
        "dataplane/answer.rs",
        0,
        37,
        "offsets within headers that a parser found, and within an array whose length they sum up to; property tests take any bytes",
    ),
    (
        "dataplane/refusal.rs",
        0,
        26,
        "offsets within headers that a parser found, and within an array whose length they sum up to; a property test takes any bytes",
    ),
    ("dataplane/port/refused.rs", 0, 2, "the position of a reason in an array of all"),
    (
        "dataplane/verdict/filter.rs",
        0,
        6,
        "offsets that a parser found within the same bytes, and lengths cut to theirs; the fuzz target `frame` and a property test judge any bytes",
    ),
    (
        "dataplane/verdict/identity.rs",
        0,
        9,
        "offsets that a parser found within the same bytes; the fuzz target `frame` and a property test judge any bytes",
    ),
    (
        "dataplane/tap/watch.rs",
        1,
        5,
        "an assertion about constants, evaluated by the compiler; a number modulo the length of the list, bytes of the first 64, and all of an array",
    ),
    ("dataplane/verdict/reading.rs", 0, 1, "a length cut to that of the array"),
    (
        "dataplane/too_long.rs",
        0,
        42,
        "offsets within headers that a parser found, and within an array whose length they sum up to; a property test takes any bytes",
    ),
    ("dataplane/address_map.rs", 0, 1, "a hash modulo the number of shards"),
    ("dataplane/port/fragmenting.rs", 0, 1, "a hash modulo the number of slots"),
    ("dataplane/address_map/lease.rs", 0, 4, "offsets below the length at which the message was split"),
    (
        "dataplane/address_map/resolution.rs",
        0,
        19,
        "offsets that a parser found within the same bytes, and within an array that was asked for; the fuzz target `addresses` and a property test take any bytes",
    ),
    ("dataplane/verdict/serving.rs", 0, 1, "an offset found within the same bytes"),
    ("dataplane/worker/port_table.rs", 0, 2, "the list is grown to the index before"),
    ("dataplane/worker/iteration.rs", 0, 4, "a worker's own number, and others' below their count"),
    ("dataplane/worker/peers.rs", 0, 6, "workers' numbers below their count, when they are connected"),
    ("dataplane/worker/rest.rs", 0, 3, "a worker's own number; as many events as the kernel filled in"),
    ("dataplane/worker/turn.rs", 0, 2, "below the count of others, and as many bytes as were read"),
];

const PANICS: [&str; 7] = [".expect(\"", ".unwrap()", "panic!(", "unreachable!(", "assert!(", "assert_eq!(", "assert_ne!("];

/// Assertions and the like in `code`, those of debug builds apart.
fn panics(code: &str) -> usize {
    let count = |pattern: &str| code.matches(pattern).count();
    PANICS.iter().map(|pattern| count(pattern)).sum::<usize>()
        - ["debug_assert!(", "debug_assert_eq!(", "debug_assert_ne!("].iter().map(|pattern| count(pattern)).sum::<usize>()
}

/// Places in `code` where something is indexed: a bracket that follows a name or another bracket.
fn indices(code: &str) -> usize {
    let follows = |letter: u8| letter.is_ascii_alphanumeric() || matches!(letter, b'_' | b')' | b']');
    code.as_bytes().windows(2).filter(|pair| pair[1] == b'[' && follows(pair[0])).count()
}

#[test]
fn what_may_panic_in_a_worker_is_listed_with_the_reason_why_it_does_not() {
    let is_run = |name: &str| {
        RUN_BY_WORKERS.iter().any(|part| name == *part || name.starts_with(&format!("{part}/")))
            && !["proofs.rs", "tests.rs"].iter().any(|end| name.ends_with(end))
    };
    let files = files();
    let found: BTreeMap<&str, (usize, usize)> = files
        .iter()
        .filter(|(name, _)| is_run(name))
        .map(|(name, text)| (name.as_str(), without_tests(&without_comments(text))))
        .map(|(name, code)| (name, (panics(&code), indices(&code))))
        .filter(|(_, counts)| *counts != (0, 0))
        .collect();
    let listed: BTreeMap<&str, (usize, usize)> =
        LISTED.iter().map(|&(name, panics, indices, _)| (name, (panics, indices))).collect();
    let mut more = Vec::new();
    for (name, counts) in &found {
        let most = listed.get(name).copied().unwrap_or_default();
        if counts.0 > most.0 || counts.1 > most.1 {
            more.push(format!("{name} has {counts:?}, and {most:?} are listed with a reason"));
        }
    }
    assert!(more.is_empty(), "expects, unwraps and assertions, and indices: {more:#?}");
    assert!(LISTED.iter().all(|(name, _, _, why)| files.contains_key(*name) && !why.is_empty()));
    // Does the reading of sources still work?
    assert_eq!(found["virtq/memory/iovec.rs"], (2, 0));
}
