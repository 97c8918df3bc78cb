//! Places where a worker may panic, which ends the network. Clippy refuses each index, `unwrap`, `expect` and `panic!` in the crates with code of
//! workers, unless their file states why none of them panics (`#![expect(clippy::indexing_slicing, reason = ...)]`). Assertions, for which clippy has no
//! lint, are listed here. Arithmetic wraps in a release build and ends nothing; arithmetic on guests' numbers is proved by harnesses
//! (docs/adr/0031-proofs.md).

use std::collections::BTreeMap;

use crate::source_rules::{files, without_comments, without_tests};

/// Crates with code that workers run.
const CRATES: [&str; 3] = ["virtq", "dataplane", "backends"];

/// The lints, at the root of each of them.
const LINTS: &str =
    "#![warn(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable)]";

/// Files with assertions, their number, and why none of them fails in a worker.
const ASSERTIONS: [(&str, usize, &str); 10] = [
    ("backends/interface/batch.rs", 2, "a queue is asked right before whether it is full"),
    ("backends/system.rs", 1, "evaluated by the compiler"),
    ("backends/xen/in_memory.rs", 1, "a fake of tests"),
    ("dataplane/handover.rs", 1, "a queue's capacity, where it is made"),
    ("dataplane/network/mod.rs", 1, "evaluated by the compiler"),
    ("dataplane/port/reports.rs", 1, "evaluated by the compiler"),
    ("dataplane/table.rs", 1, "evaluated by the compiler"),
    ("dataplane/tap/watch.rs", 1, "evaluated by the compiler"),
    ("virtq/memory/iovec.rs", 2, "evaluated by the compiler"),
    ("virtq/packet.rs", 2, "evaluated by the compiler"),
];

/// Assertions in `code`, those of debug builds apart.
fn assertions(code: &str) -> usize {
    let count = |pattern: &str| code.matches(pattern).count();
    ["assert!(", "assert_eq!(", "assert_ne!("].map(count).iter().sum::<usize>()
        - ["debug_assert!(", "debug_assert_eq!(", "debug_assert_ne!("].map(count).iter().sum::<usize>()
}

#[test]
fn assertions_in_crates_of_workers_are_listed_with_the_reason_why_they_hold() {
    let files = files();
    assert!(CRATES.into_iter().all(|name| files[&format!("{name}/lib.rs")].contains(LINTS)), "clippy judges indices and unwraps");
    let is_judged = |name: &str| {
        CRATES.into_iter().any(|of| name.starts_with(&format!("{of}/")))
            && !["tests.rs", "proofs.rs"].iter().any(|end| name.ends_with(end))
    };
    let found: BTreeMap<&str, usize> = files
        .iter()
        .filter(|(name, _)| is_judged(name))
        .map(|(name, text)| (name.as_str(), assertions(&without_tests(&without_comments(text)))))
        .filter(|(_, count)| *count > 0)
        .collect();
    let listed: BTreeMap<&str, usize> = ASSERTIONS.iter().map(|&(name, count, _)| (name, count)).collect();
    assert_eq!(found, listed, "an assertion that a guest can fail ends the network: count a drop instead, or list the reason");
}
