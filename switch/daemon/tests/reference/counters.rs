//! Counters: drops by reason, and the counters of ports and workers.

use memlane::stats::DropReason;
use serde_json::Value;

use super::{prose, table};

pub fn page(document: &Value) -> String {
    format!(
        "# Counters\n\n`memlane status FILE`, `memlane show FILE PORT` and `GET /v1/network` report them. Directions are the guest's: a frame \
         that the guest transmits (TX) enters the switch. Counters only grow, but for `waiting`.\n\n\
         ## Drops by reason\n\n{}## Of a port\n\n{}## Of a worker\n\n{}",
        reasons(),
        fields(document, "PortReport"),
        fields(document, "WorkerReport")
    )
}

fn reasons() -> String {
    let row = |reason: &DropReason| {
        let port = if reason.is_of_sender() { "sender" } else { "receiver" };
        vec![format!("`{}`", reason.name()), port.into(), reason.meaning().into()]
    };
    table(&["reason", "counted at", "meaning"], &DropReason::ALL.iter().map(row).collect::<Vec<_>>())
}

/// The numbers of a report, with their meaning.
fn fields(document: &Value, report: &str) -> String {
    let fields = document["components"]["schemas"][report]["properties"].as_object().expect(report);
    let is_number = |field: &&(&String, &Value)| field.1["type"] == "integer" && field.0 != "number";
    let row =
        |(name, field): (&String, &Value)| vec![format!("`{name}`"), prose(field["description"].as_str().unwrap_or_default())];
    table(&["counter", "meaning"], &fields.iter().filter(|field| is_number(&field)).map(row).collect::<Vec<_>>())
}
