//! `memlane-rig villain`: the command line of [`memlane_rig::villain`].

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use memlane_rig::guest::Habit;
use memlane_rig::villain::{self, Case, Judgement, Trial};

use super::Verdict;

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    /// Names of misbehaviours (--list shows them), or of groups of them.
    #[arg(value_name = "NAME", required_unless_present_any = ["all", "list"])]
    names: Vec<String>,
    /// All of them, one after the other.
    #[arg(long)]
    all: bool,
    /// List the misbehaviours.
    #[arg(long)]
    list: bool,
    /// Socket of the villain's port.
    #[arg(short, long, value_name = "PATH", required_unless_present = "list")]
    socket: Option<PathBuf>,
    /// Socket of an honest guest's port: it exchanges frames with the villain.
    #[arg(long, value_name = "PATH", required_unless_present = "list")]
    friend: Option<PathBuf>,
    /// Socket of another honest guest's port: whether the two still reach each other tells whether others were hurt.
    #[arg(long, value_name = "PATH", required_unless_present = "list")]
    observer: Option<PathBuf>,
    /// In which order the front ends speak: qemu, uml, dpdk or cloud-hypervisor.
    #[arg(long, default_value = "qemu", value_parser = super::habit)]
    habit: Habit,
    /// Seconds that races and floods last.
    #[arg(long, default_value_t = 0.3)]
    seconds: f64,
    /// Seconds to wait for the back end at each step.
    #[arg(long, default_value_t = 5.0)]
    timeout: f64,
    /// JSON, one object a line.
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  memlane-rig villain --list
  memlane-rig villain descriptor-loop -s /run/memlane/c.sock --friend /run/memlane/a.sock --observer /run/memlane/b.sock
  memlane-rig villain --all -s c.sock --friend a.sock --observer b.sock --json

Exit code 3: a misbehaviour hurt others, or the port did not come back.";

/// Lists or tries misbehaviours.
pub(super) fn run(arguments: &Arguments) -> anyhow::Result<Verdict> {
    let chosen = arguments.chosen()?;
    if arguments.list {
        return list(&chosen, arguments.json);
    }
    let (Some(socket), Some(friend), Some(observer)) = (&arguments.socket, &arguments.friend, &arguments.observer) else {
        bail!("--socket, --friend and --observer are needed to misbehave");
    };
    let duration = Duration::try_from_secs_f64(arguments.seconds).context("--seconds is no time")?;
    let timeout = Duration::try_from_secs_f64(arguments.timeout).context("--timeout is no time")?;
    let mut trial = Trial::with_habit(arguments.habit, [socket, friend, observer], timeout).context("before any misbehaviour")?;
    trial.duration = duration;
    let mut verdict = Verdict::Good;
    for case in chosen {
        let judgement = trial.run(case);
        if !judgement.harm.is_empty() {
            verdict = Verdict::Bad;
        }
        tell(&judgement, arguments.json)?;
    }
    Ok(verdict)
}

impl Arguments {
    fn chosen(&self) -> anyhow::Result<Vec<&'static Case>> {
        if self.all || self.names.is_empty() {
            return Ok(villain::cases().collect());
        }
        let mut chosen = Vec::new();
        for name in &self.names {
            let before = chosen.len();
            let called = |case: &&Case| case.name == name || group(case).eq_ignore_ascii_case(name);
            chosen.extend(villain::cases().filter(called));
            if chosen.len() == before {
                bail!("there is no misbehaviour or group called {name:?}; --list shows them all");
            }
        }
        Ok(chosen)
    }
}

fn group(case: &Case) -> String {
    format!("{:?}", case.group)
}

fn list(cases: &[&Case], json: bool) -> anyhow::Result<Verdict> {
    for case in cases {
        if json {
            let line = serde_json::json!({
                "name": case.name, "group": case.group, "worst": case.worst,
                "needs_friend": case.needs_friend, "about": case.about,
            });
            println!("{line}");
        } else {
            println!("{:<11} {:<32} {}", group(case).to_lowercase(), case.name, case.about);
        }
    }
    Ok(Verdict::Good)
}

fn tell(judgement: &Judgement, json: bool) -> anyhow::Result<()> {
    if json {
        println!("{}", serde_json::to_string(judgement).context("writing JSON")?);
        return Ok(());
    }
    let state = match &judgement.not_done {
        _ if !judgement.harm.is_empty() => "HURT",
        Some(_) => "not done",
        None => "stood",
    };
    let port = match (judgement.cut_off, judgement.fault_signalled) {
        (true, _) => ", port cut off",
        (_, true) => ", fault signalled",
        _ => "",
    };
    let chains = match judgement.chains {
        (0, _) => String::new(),
        (offered, returned) => format!(", {returned} of {offered} chains came back"),
    };
    println!("{state:<8} {:<32} {} ms{chains}{port}", judgement.case, judgement.milliseconds);
    for line in judgement.not_done.iter().chain(&judgement.harm) {
        println!("           {line}");
    }
    Ok(())
}
