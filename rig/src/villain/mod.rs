//! The hostile guest: named misbehaviours, one function each.
//!
//! Nouns, in the order in which a test meets them:
//! 1. [`Case`]: a name, a group, one line about it, the [`Worst`] that it may cost, and the function that does it.
//!    [`cases`] lists all of them, [`by_name`] finds one.
//! 2. [`Stage`]: the villain's port (a socket), the peer to which it sends (a MAC), and a friend (an honest guest on another port,
//!    which some cases need to send something to the villain).
//! 3. [`Traces`]: left behind by the misbehaviour: the guest, still connected if it still is, and how many of its chains must be
//!    returned on the used ring.
//!
//! Every case demands of a switch that it lives on, touches no memory but the villain's, and lets other guests notice nothing: the
//! cost that a case may have at worst is the villain's own.

mod abuse;
mod connection;
mod descriptor;
mod descriptors;
mod hand;
mod header;
mod message;
mod parse;
mod race;
mod receive;
mod region;
mod ring;
mod stage;
mod trial;

use serde::Serialize;

pub use hand::Hand;
pub use stage::{Stage, Traces, VillainError};
pub use trial::{Judgement, Trial};

/// Kind of misbehaviour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Group {
    /// Descriptors and tables of them.
    Descriptor,
    /// virtio-net headers and frames.
    Header,
    /// Receive buffers.
    Receive,
    /// Memory that changes while it is read.
    Race,
    /// Indices, sizes and addresses of rings.
    Ring,
    /// The vhost-user conversation.
    Message,
    /// Regions of memory.
    Region,
    /// Nothing wrong by itself, but too much of it.
    Abuse,
}

/// The worst that a case may cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Worst {
    /// Nothing: it is legal, if odd, and must be served.
    Nothing,
    /// The frames or buffers in question. The port must go on working.
    Frame,
    /// The port, until its guest connects again.
    Port,
}

/// A misbehaviour.
#[derive(Clone, Copy)]
pub struct Case {
    /// Name of the case, in words with dashes.
    pub name: &'static str,
    /// Kind of misbehaviour.
    pub group: Group,
    /// One line about it, with the switch that had this bug where that is known.
    pub about: &'static str,
    /// The worst that it may cost.
    pub worst: Worst,
    /// Whether it needs a friend to send something to the villain.
    pub needs_friend: bool,
    act: fn(&mut Stage<'_>) -> Result<Traces, VillainError>,
}

impl Case {
    /// Does it.
    ///
    /// # Errors
    /// [`VillainError`] when it could not be done at all (no back end, a feature that is not offered); a back end that
    /// cuts the villain off in the midst of it is no error.
    pub fn act(&self, stage: &mut Stage<'_>) -> Result<Traces, VillainError> {
        if self.needs_friend && stage.friend.is_none() {
            return Err(VillainError::NeedsFriend(self.name));
        }
        (self.act)(stage)
    }
}

impl std::fmt::Debug for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Case").field("name", &self.name).field("worst", &self.worst).finish_non_exhaustive()
    }
}

/// A group's cases from lines of `name, function, worst, about`; a leading `friend` marks those that need one.
macro_rules! case_table {
    ($group:ident: $($name:literal $act:ident $worst:ident $(+ $friend:ident)? $about:literal)*) => {
        pub(super) const CASES: &[$crate::villain::Case] = &[$($crate::villain::Case {
            name: $name,
            group: $crate::villain::Group::$group,
            about: $about,
            worst: $crate::villain::Worst::$worst,
            needs_friend: case_table!(@ $($friend)?),
            act: $act,
        }),*];
    };
    (@ friend) => { true };
    (@) => { false };
}
use case_table;

/// Every case, group by group.
pub fn cases() -> impl Iterator<Item = &'static Case> {
    [
        descriptor::CASES,
        descriptors::CASES,
        header::CASES,
        parse::CASES,
        receive::CASES,
        race::CASES,
        ring::CASES,
        message::CASES,
        connection::CASES,
        region::CASES,
        abuse::CASES,
    ]
    .into_iter()
    .flatten()
}

/// The case called `name`.
pub fn by_name(name: &str) -> Option<&'static Case> {
    cases().find(|case| case.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_speak() {
        let mut names: Vec<_> = cases().map(|case| case.name).collect();
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
        for case in cases() {
            assert!(case.name.chars().all(|letter| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '-'));
            assert!(!case.about.is_empty() && !case.about.ends_with('.'), "{}", case.name);
            assert_eq!(by_name(case.name).map(|found| found.about), Some(case.about));
        }
    }
}
