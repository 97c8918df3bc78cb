//! `memlane-rig placement`: how far two processors are apart, so that only measurements of the same placement are compared.

use clap::Args;
use memlane_rig::blast::cpu::{self, Distance};

use super::Verdict;

#[derive(Args)]
pub(super) struct Arguments {
    /// The two processors.
    #[arg(long, value_delimiter = ',', default_values_t = [0, 1], value_name = "CPU,CPU")]
    cpus: Vec<usize>,
    /// Tell it as JSON: `distance` is null where there is none to be measured.
    #[arg(long)]
    json: bool,
}

/// Probes once, in some milliseconds.
pub(super) fn run(arguments: &Arguments) -> anyhow::Result<Verdict> {
    let [one, other] = arguments.cpus[..] else {
        anyhow::bail!("--cpus takes two processors, such as 0,1");
    };
    let distance = cpu::distance(one, other);
    if arguments.json {
        println!("{}", serde_json::json!({ "cpus": [one, other], "distance": distance }));
    } else {
        println!("{}", told(one, other, distance));
    }
    Ok(Verdict::Good)
}

fn told(one: usize, other: usize, distance: Option<Distance>) -> String {
    match distance {
        Some(Distance { nanoseconds, verdict }) => {
            format!("processors {one} and {other}: {verdict}, a cache line goes there and back in {nanoseconds:.0} ns")
        }
        None => format!("processors {one} and {other}: no distance (the same one, or this process may not run on both)"),
    }
}
