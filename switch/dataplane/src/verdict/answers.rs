//! Answers of shared state: inputs of a verdict beside the frame and its sender's settings, such as the FDB entry of an address, the result of MAC
//! learning, the VLANs of the unicast receiver, or the state of a flow.
//!
//! A verdict asks each **question** through this module. Mostly the answer comes from the shared tables, at the cost of one branch. While a recorder is
//! on, a **tape** keeps the answers too, in the order of the questions; a replay reads them from the tape, and the tables are not asked. So the verdict
//! on a recorded frame can be made again, by the same code, in another process.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::net::IpAddr;

use crate::frame::MacAddress;
use crate::id::PortId;
use crate::policy::flows::Flow;
use crate::policy::gate::Entrance;
use crate::table::{Learned, LearnedAddress};

/// Most bytes of answers for one verdict. Only a frame that is compared with dozens of rules with DNS names has more.
pub(crate) const MOST: usize = 96;
/// No port's number.
const NO_PORT: u16 = u16::MAX;

/// A question to shared state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Question {
    /// Forwarding table (FDB): the port to which a MAC address is pinned.
    Pinned(MacAddress),
    /// The result of MAC learning of the source.
    Learned(LearnedAddress),
    /// Forwarding table (FDB): the port behind a unicast address.
    Behind(LearnedAddress),
    /// Whether a receiver carries this VLAN, as an access port or a trunk, and with which VLAN tag.
    Entrance(PortId, u16),
    /// Whether a flow that a port opened is open.
    Open(PortId, Flow),
    /// Whether a port was given an address by DNS for the names of a rule.
    Granted(PortId, IpAddr, u64),
    /// The path MTU to a port; 0 for none.
    Mtu(PortId),
    /// Whether a port is in the audience of a flooded frame: a member of its multicast group, or a DHCP server.
    Hears(PortId),
}

impl Question {
    /// Whether the answer has two bytes, and not one.
    fn is_wide(self) -> bool {
        matches!(self, Self::Pinned(_) | Self::Behind(_) | Self::Mtu(_))
    }
}

/// The source of answers for a question that no recording has.
pub(crate) type Guess = Box<dyn Fn(Question) -> Option<u16> + Send>;

/// Where answers come from.
enum Mode {
    /// The shared tables; they are kept.
    Record,
    /// The tape; the questions are kept with the answers.
    Replay(RefCell<Vec<(Question, u16)>>),
    /// Another policy is tried: its questions may be others than the recorded ones.
    Try(Guess),
}

/// See the module.
pub(crate) struct Tape {
    bytes: [Cell<u8>; MOST],
    length: Cell<u8>,
    at: Cell<u8>,
    /// More answers were asked for than there are, or than fit.
    is_short: Cell<bool>,
    is_begun: Cell<bool>,
    mode: Mode,
}

impl fmt::Debug for Tape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tape").field("length", &self.length).field("at", &self.at).finish_non_exhaustive()
    }
}

impl Tape {
    fn new(mode: Mode) -> Self {
        Self {
            bytes: std::array::from_fn(|_| Cell::new(0)),
            length: Cell::new(0),
            at: Cell::new(0),
            is_short: Cell::new(false),
            is_begun: Cell::new(false),
            mode,
        }
    }

    /// An empty tape, to be recorded.
    pub(crate) fn blank() -> Self {
        Self::new(Mode::Record)
    }

    /// A tape with these answers, to be replayed.
    pub(crate) fn of(answers: &[u8]) -> Self {
        let tape = Self::new(Mode::Replay(RefCell::default()));
        std::iter::zip(&tape.bytes, answers).for_each(|(to, &byte)| to.set(byte));
        tape.length.set(answers.len().min(MOST) as u8);
        tape
    }

    /// A tape with those of these answers that policy rules ask for.
    pub(crate) fn answering(asked: &[(Question, u16)]) -> Self {
        let answers = asked.iter().filter(|(question, _)| matches!(question, Question::Open(..) | Question::Granted(..)));
        Self::of(&answers.map(|(_, answer)| *answer as u8).collect::<Vec<_>>())
    }

    /// A tape that answers by `guess`.
    pub(crate) fn guessing(guess: Guess) -> Self {
        Self::new(Mode::Try(guess))
    }

    /// No decision has begun.
    pub(crate) fn rewind(&self) {
        self.is_begun.set(false);
    }

    /// A decision begins: forgets the answers of the one before.
    pub(crate) fn begin(&self) {
        if matches!(self.mode, Mode::Record) {
            self.clear();
        }
        self.is_begun.set(true);
    }

    /// Whether a decision has begun since [`Self::rewind`]; else the verdict is that of an earlier one.
    pub(crate) fn is_begun(&self) -> bool {
        self.is_begun.get()
    }

    /// Forgets all answers.
    pub(crate) fn clear(&self) {
        self.length.set(0);
        self.is_short.set(false);
    }

    /// Copies the answers to `to`; returns their bytes.
    pub(crate) fn read(&self, to: &mut [u8; MOST]) -> u8 {
        let length = self.length.get();
        std::iter::zip(to, &self.bytes).take(length.into()).for_each(|(to, byte)| *to = byte.get());
        length
    }

    /// Whether answers are missing: there were more than fit, or the verdict asked for others than were recorded.
    pub(crate) fn is_short(&self) -> bool {
        self.is_short.get()
    }

    /// The questions of a replay, with their answers.
    pub(crate) fn asked(&self) -> Vec<(Question, u16)> {
        match &self.mode {
            Mode::Replay(asked) => asked.borrow().clone(),
            Mode::Record | Mode::Try(_) => Vec::new(),
        }
    }

    fn push(&self, byte: u8) {
        match self.bytes.get(usize::from(self.length.get())) {
            Some(place) => {
                place.set(byte);
                self.length.set(self.length.get() + 1);
            }
            None => self.is_short.set(true),
        }
    }

    fn pull(&self) -> u8 {
        let at = self.at.get();
        match self.bytes.get(usize::from(at)).filter(|_| at < self.length.get()) {
            Some(byte) => {
                self.at.set(at + 1);
                byte.get()
            }
            None => {
                self.is_short.set(true);
                0
            }
        }
    }

    #[cold]
    fn answer(&self, question: Question, live: impl FnOnce() -> u16) -> u16 {
        match &self.mode {
            Mode::Record => {
                let answer = live();
                let [low, high] = answer.to_le_bytes();
                self.push(low);
                if question.is_wide() {
                    self.push(high);
                }
                answer
            }
            Mode::Replay(asked) => {
                let low = self.pull();
                let answer = u16::from_le_bytes([low, if question.is_wide() { self.pull() } else { 0 }]);
                asked.borrow_mut().push((question, answer));
                answer
            }
            Mode::Try(guess) => guess(question).unwrap_or_else(|| {
                self.is_short.set(true);
                0
            }),
        }
    }
}

/// A reference to the tape of a verdict, if there is one.
pub(crate) type Answers<'t> = Option<&'t Tape>;

/// The answer "yes" or "no".
#[inline]
pub(crate) fn is(tape: Answers<'_>, question: Question, live: impl FnOnce() -> bool) -> bool {
    match tape {
        None => live(),
        Some(tape) => tape.answer(question, || live().into()) != 0,
    }
}

/// The answer is a port, or none.
#[inline]
pub(crate) fn port(tape: Answers<'_>, question: Question, live: impl FnOnce() -> Option<PortId>) -> Option<PortId> {
    match tape {
        None => live(),
        Some(tape) => port_of(tape.answer(question, || number_of(live()))),
    }
}

/// The number of a port in answers.
pub(crate) fn number_of(port: Option<PortId>) -> u16 {
    port.map_or(NO_PORT, |port| port.0)
}

/// The port with this number in answers.
pub(crate) fn port_of(number: u16) -> Option<PortId> {
    (number != NO_PORT).then_some(PortId(number))
}

/// The result of MAC learning in the forwarding table (FDB).
#[inline]
pub(crate) fn learned(tape: Answers<'_>, source: LearnedAddress, live: impl FnOnce() -> Learned) -> Learned {
    match tape {
        None => live(),
        Some(tape) => learned_of(tape.answer(Question::Learned(source), || live() as u16)),
    }
}

/// The result of MAC learning with this number in answers.
pub(crate) fn learned_of(number: u16) -> Learned {
    const ALL: [Learned; 5] = [Learned::Known, Learned::Changed, Learned::NoRoom, Learned::Pinned, Learned::Held];
    ALL.get(usize::from(number)).copied().unwrap_or(Learned::Known)
}

/// How frames of `vlan` enter the port `to`, an access port or a trunk.
#[inline]
pub(crate) fn entrance(tape: Answers<'_>, (to, vlan): (PortId, u16), live: impl FnOnce() -> Entrance) -> Entrance {
    match tape {
        None => live(),
        Some(tape) => Entrance::of_number(tape.answer(Question::Entrance(to, vlan), || live().number())),
    }
}

/// The path MTU to the port `to`.
pub(crate) fn mtu(tape: Answers<'_>, to: PortId, live: impl FnOnce() -> Option<u16>) -> Option<u16> {
    match tape {
        None => live(),
        Some(tape) => Some(tape.answer(Question::Mtu(to), || live().unwrap_or(0))).filter(|&mtu| mtu > 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tape_gives_the_answers_again_and_tells_if_there_are_not_enough() {
        let tape = Tape::blank();
        let mac = MacAddress::new([2, 0, 0, 0, 0, 1]);
        let source = LearnedAddress { address: mac, vlan: 7 };
        let ask = |tape: &Tape, live: bool| {
            let refused = || -> bool { panic!("a replay asks no table") };
            let tape = Some(tape);
            (
                port(tape, Question::Pinned(mac), || if live { None } else { Some(PortId(u16::from(refused()))) }),
                learned(tape, source, || if live { Learned::Held } else { panic!("a replay learns nothing") }),
                port(tape, Question::Behind(source), || if live { Some(PortId(4000)) } else { Some(PortId(u16::from(refused()))) }),
                is(tape, Question::Hears(PortId(3)), || live || refused()),
                mtu(tape, PortId(3), || if live { Some(1400) } else { Some(u16::from(refused())) }),
            )
        };
        let expected = (None, Learned::Held, Some(PortId(4000)), true, Some(1400));
        assert_eq!(ask(&tape, true), expected);
        let mut bytes = [0; MOST];
        let length = tape.read(&mut bytes);
        let again = Tape::of(&bytes[..length.into()]);
        assert_eq!(ask(&again, false), expected);
        assert!(again.at == again.length && !again.is_short());
        assert_eq!(again.asked().len(), 5);
        let cut = Tape::of(&bytes[..usize::from(length) - 1]);
        ask(&cut, false);
        assert!(cut.is_short());
        tape.clear();
        assert!((0..=MOST).all(|_| is(Some(&tape), Question::Hears(PortId(0)), || true)));
        assert!(tape.is_short());
    }
}
