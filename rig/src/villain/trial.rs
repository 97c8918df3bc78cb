//! A trial: a villain does its worst, two honest guests look whether they are hurt.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::deadline::Deadline;
use crate::frames::{Host, Packet};
use crate::guest::{GuestBuilder, GuestError, Habit, ToyGuest};

use super::{Case, Group, Stage, VillainError, Worst};

/// Result of a trial.
#[derive(Debug, Clone, Serialize)]
pub struct Judgement {
    /// The case's name.
    pub case: &'static str,
    /// Group of the case.
    pub group: Group,
    /// The worst that it may cost.
    pub worst: Worst,
    /// Why it could not take place, if it could not.
    pub not_done: Option<String>,
    /// Chains shown to the back end, and how many were completed.
    pub chains: (u16, u16),
    /// The back end cut the villain off.
    pub cut_off: bool,
    /// The back end signalled a fault of a ring.
    pub fault_signalled: bool,
    /// The harm done; empty when the back end withstood the case.
    pub harm: Vec<String>,
    /// Milliseconds that all took.
    pub milliseconds: u64,
}

/// Two honest guests and a port for villains.
pub struct Trial {
    villain: PathBuf,
    friend: ToyGuest,
    observer: ToyGuest,
    builder: GuestBuilder,
    habit: Habit,
    timeout: Duration,
    /// How long races and floods last.
    pub duration: Duration,
    round: u32,
}

/// MAC address of every villain.
const VILLAIN: [u8; 6] = [0x02, 0xbb, 0, 0, 0, 0x01];
/// MAC addresses of the honest ones.
const FRIEND: [u8; 6] = [0x02, 0xaa, 0, 0, 0, 0x01];
const OBSERVER: [u8; 6] = [0x02, 0xaa, 0, 0, 0, 0x02];

impl Trial {
    /// Connects the honest guests, and sees that they reach each other. Front ends speak as QEMU does; each wait may take
    /// `timeout`.
    ///
    /// # Errors
    /// When they do not reach each other.
    pub fn new(villain: &Path, friend: &Path, observer: &Path, timeout: Duration) -> Result<Self, VillainError> {
        Self::with_habit(Habit::QEMU, [villain, friend, observer], timeout)
    }

    /// The same with front ends of another habit.
    ///
    /// # Errors
    /// When the honest guests do not reach each other.
    pub fn with_habit(habit: Habit, ports: [&Path; 3], timeout: Duration) -> Result<Self, VillainError> {
        let [villain, friend, observer] = ports;
        let builder = ToyGuest::builder().habit(habit).timeout(timeout);
        let mut trial = Self {
            villain: villain.to_path_buf(),
            friend: builder.clone().mac(FRIEND).connect(friend)?,
            observer: builder.clone().mac(OBSERVER).connect(observer)?,
            builder,
            habit,
            timeout,
            duration: Duration::from_millis(300),
            round: 0,
        };
        trial.honest_exchange()?;
        Ok(trial)
    }

    /// Lets `case` happen and judges its effects.
    pub fn run(&mut self, case: &Case) -> Judgement {
        let begun = Instant::now();
        let mut judgement = Judgement {
            case: case.name,
            group: case.group,
            worst: case.worst,
            not_done: None,
            chains: (0, 0),
            cut_off: false,
            fault_signalled: false,
            harm: Vec::new(),
            milliseconds: 0,
        };
        self.misbehave(case, &mut judgement);
        if let Err(error) = self.honest_exchange() {
            judgement.harm.push(format!("the others do not reach each other any more: {error}"));
        }
        if let Err(error) = self.comes_back() {
            judgement.harm.push(format!("an honest guest does not get through at the villain's port: {error}"));
        }
        judgement.milliseconds = begun.elapsed().as_millis() as u64;
        judgement
    }

    fn misbehave(&mut self, case: &Case, judgement: &mut Judgement) {
        let mut stage = Stage::new(&self.villain, VILLAIN, FRIEND).with_friend(&mut self.friend);
        (stage.timeout, stage.duration, stage.habit) = (self.timeout, self.duration, self.habit);
        let mut traces = match case.act(&mut stage) {
            Ok(traces) => traces,
            Err(error) => {
                judgement.not_done = Some(error.to_string());
                return;
            }
        };
        // Frames that wait for the friend are completed when the friend reads.
        let friend = &mut self.friend;
        let all = traces.wait_returned_while(self.timeout, || while let Ok(Some(_)) = friend.try_receive() {});
        judgement.chains = (traces.offered, traces.returned());
        judgement.cut_off = traces.cut_off() && traces.guest.is_some();
        judgement.fault_signalled = traces.fault_signalled();
        let given_up = judgement.cut_off || judgement.fault_signalled;
        if case.worst < Worst::Port && given_up {
            judgement.harm.push("the port was given up for less than that".into());
        }
        if case.worst < Worst::Port && !all && traces.offered > 0 {
            let (offered, returned) = judgement.chains;
            judgement.harm.push(format!("{offered} chains were shown, only {returned} came back"));
        }
    }

    /// The two honest guests send each other a frame.
    fn honest_exchange(&mut self) -> Result<(), VillainError> {
        self.round += 1;
        let (round, timeout) = (self.round, self.timeout);
        pass(&mut self.friend, &mut self.observer, round, timeout)?;
        pass(&mut self.observer, &mut self.friend, round, timeout)
    }

    /// A new guest at the villain's port and the friend send each other a frame.
    fn comes_back(&mut self) -> Result<(), VillainError> {
        self.round += 1;
        let (round, timeout) = (self.round, self.timeout);
        let mut guest = self.builder.clone().mac(VILLAIN).connect(&self.villain)?;
        pass(&mut guest, &mut self.friend, round, timeout)?;
        pass(&mut self.friend, &mut guest, round, timeout)
    }
}

/// How long an honest frame is waited for before it is sent again: a receiver that did not read while the villain flooded it
/// may have its next frame dropped, and rightly so.
const AGAIN: Duration = Duration::from_millis(100);

/// One guest sends a unique frame, until the other finds it among the frames that come.
fn pass(from: &mut ToyGuest, to: &mut ToyGuest, round: u32, timeout: Duration) -> Result<(), VillainError> {
    let host = |guest: &ToyGuest, number| Host { mac: guest.mac(), ..Host::v4(number) };
    let payload = format!("honest frame number {round}").into_bytes();
    let frame = Packet::udp(host(from, 3), host(to, 4), payload).frame();
    let deadline = Deadline::after(timeout);
    while to.try_receive()?.is_some() {}
    while !deadline.is_over() {
        from.wait_sent(timeout)?;
        from.send(&frame)?;
        if sees(to, &frame, Deadline::after(AGAIN.min(deadline.left())))? {
            return Ok(());
        }
    }
    Err(GuestError::TimedOut { what: "the arrival of an honest frame", waited: timeout }.into())
}

/// Whether a guest receives `wanted` in time.
fn sees(guest: &mut ToyGuest, wanted: &[u8], deadline: Deadline) -> Result<bool, VillainError> {
    loop {
        match guest.receive(deadline.left()) {
            Ok(frame) if frame.bytes == wanted => return Ok(true),
            Ok(_) => {}
            Err(GuestError::TimedOut { .. }) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
    }
}
