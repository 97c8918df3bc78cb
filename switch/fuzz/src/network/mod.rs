//! Target `network`: a whole network in one thread, on a clock of its own, from a seed: guests, traffic, faults, changes of the configuration.
//!
//! - A **script** is a list of [`Step`]s, eight bytes each; a seed stands for a network and a script.
//! - [`world`]: the network and its [`guest`]s, which a script drives.
//! - [`model`] and [`flows`]: an independent model of the switch; [`ledger`]: what it owes each guest, against what happened.
//! - [`frames`], [`settings`]: traffic, settings and rules by chance.
//! - [`offloads`]: GSO frames and partial checksums.
//! - [`recorder`]: a recorder of the network, with verdicts that are replayed; [`capture`]: a packet capture.
//!
//! After each step nothing has arrived that the model does not allow, nothing twice or changed, and nothing is counted that is not right. Now and
//! then the network comes to rest: then every frame has arrived where it must, or was dropped for one counted drop reason, and every
//! descriptor chain of every virtqueue is completed once. Nothing sleeps: time passes only as the script says.

mod capture;
mod flows;
mod frames;
mod guest;
mod ledger;
mod model;
mod offloads;
mod recorder;
mod settings;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

pub use super::dice::Dice;
pub use ledger::Totals;
use world::{PORTS, World};

/// Steps of the script of a seed.
pub const STEPS: usize = 400;

/// Acts: traffic, lost notifications, changes, takeovers; by weight.
const ACTS: [(usize, Act); 22] = [
    (24, Act::Send),
    (6, Act::Stream),
    (40, Act::Work),
    (4, Act::Pass),
    (3, Act::SendLate),
    (3, Act::SleepLate),
    (2, Act::Contest),
    (1, Act::Wander),
    (3, Act::Attention),
    (4, Act::Settings),
    (3, Act::Policy),
    (2, Act::Flip),
    (1, Act::Restart),
    (1, Act::Replug),
    (1, Act::Detach),
    (2, Act::Attach),
    (1, Act::Announce),
    (1, Act::TakeOver),
    (3, Act::Resolve),
    (1, Act::Record),
    (1, Act::Capture),
    (4, Act::Rest),
];

/// The kind of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Send,
    Stream,
    Work,
    Pass,
    SendLate,
    SleepLate,
    Contest,
    Wander,
    Attention,
    Settings,
    Policy,
    Flip,
    Restart,
    Replug,
    Detach,
    Attach,
    Announce,
    TakeOver,
    Resolve,
    Record,
    Capture,
    Rest,
}

/// A step: an act, the place of a guest, and the seed of the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    act: Act,
    place: usize,
    seed: u64,
}

impl From<[u8; 8]> for Step {
    fn from(bytes: [u8; 8]) -> Self {
        let all: usize = ACTS.iter().map(|(weight, _)| weight).sum();
        let mut left = usize::from(bytes[0]) % all;
        let found = ACTS.iter().find(|(weight, _)| left.checked_sub(*weight).map(|rest| left = rest).is_none());
        let act = found.map_or(Act::Rest, |(_, act)| *act);
        Self { act, place: usize::from(bytes[1]) % PORTS, seed: u64::from_le_bytes(bytes) >> 16 }
    }
}

/// The script of a seed.
pub fn script(seed: u64) -> Vec<Step> {
    let mut dice = Dice::of(seed);
    (0..STEPS).map(|_| Step::from(dice.number().to_le_bytes())).collect()
}

/// Runs a script in the network of `seed`; each step is told if `is_told`.
pub fn drive(seed: u64, script: &[Step], is_told: bool) -> Totals {
    let mut world = World::new(seed, is_told);
    for step in script {
        if is_told {
            println!("{step:?}");
        }
        act(&mut world, *step);
        world.look();
    }
    world.end()
}

fn act(world: &mut World, Step { act, place, seed }: Step) {
    let mut dice = Dice::of(seed);
    world.begin(seed);
    match act {
        Act::Send => world.send(place, &mut dice),
        Act::Stream => world.stream(place, &mut dice),
        Act::Work => world.work(&mut dice),
        Act::Pass => world.pass(&mut dice),
        Act::SendLate => world.send_late(place, &mut dice),
        Act::SleepLate => world.sleep_late(place),
        Act::Contest => world.contest(&mut dice),
        Act::Wander => world.wander(place, &mut dice),
        Act::Attention => world.change_attention(place, &mut dice),
        Act::Settings => world.change_settings(place, &mut dice),
        Act::Policy => world.change_policy(&mut dice),
        Act::Flip => world.flip(place, &mut dice),
        Act::Restart => world.restart(place),
        Act::Replug => {
            world.detach(place);
            world.attach(place, &mut dice);
        }
        Act::Detach => world.detach(place),
        Act::Attach => world.attach(place, &mut dice),
        Act::Announce => world.announce(place, &mut dice),
        Act::TakeOver => world.take_over(),
        Act::Resolve => world.resolve(place, &mut dice),
        Act::Record => world.record(&mut dice),
        Act::Capture => world.capture(&mut dice),
        Act::Rest => world.rest(),
    }
}

/// Runs the script `data`: a seed of eight bytes, then the steps.
pub fn run(data: &[u8]) {
    let (records, _) = data.as_chunks::<8>();
    let Some((&seed, steps)) = records.split_first() else { return };
    let script: Vec<Step> = steps.iter().map(|&bytes| Step::from(bytes)).collect();
    drive(u64::from_le_bytes(seed), &script, false);
}

/// Seeds of the fuzz target: the beginnings of scripts.
pub fn seeds() -> Vec<(String, Vec<u8>)> {
    let bytes = |seed: u64| {
        let mut dice = Dice::of(seed);
        std::iter::once(seed).chain((0..60).map(|_| dice.number())).flat_map(u64::to_le_bytes).collect()
    };
    (1..=8).map(|seed| (format!("network-{seed}"), bytes(seed))).collect()
}

/// A script that fails, without the steps that are not needed for that; `fails` says whether one does.
pub fn shrink(script: Vec<Step>, fails: impl Fn(&[Step]) -> bool) -> Vec<Step> {
    let (mut script, mut size) = (script, STEPS / 2);
    while size > 0 {
        let mut at = 0;
        while at < script.len() {
            let mut without = script.clone();
            without.drain(at..(at + size).min(script.len()));
            if fails(&without) { script = without } else { at += size }
        }
        size /= 2;
    }
    script
}

/// Whether a script fails in the network of `seed`.
pub fn fails(seed: u64, script: &[Step]) -> bool {
    catch_unwind(AssertUnwindSafe(|| drive(seed, script, false))).is_err()
}
