//! Every villain does its misbehaviour, as far as a back end that withstands everything can show: none fails by itself, none needs
//! anything that it does not say, those with chains show some.

use std::time::Duration;

use crate::deaf::Deaf;
use memlane_rig::guest::ToyGuest;
use memlane_rig::villain::{Group, Stage, VillainError, cases};

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 0xbb];
const PEER: [u8; 6] = [2, 0, 0, 0, 0, 0xaa];

#[test]
fn every_villain_can_act() {
    let deaf = Deaf::new();
    for case in cases() {
        let mut friend = ToyGuest::builder().mac(PEER).connect(deaf.path()).unwrap();
        let mut stage = Stage::new(deaf.path(), MAC, PEER).with_friend(&mut friend);
        stage.duration = Duration::from_millis(20);
        let mut traces = case.act(&mut stage).unwrap_or_else(|error| panic!("{}: {error}", case.name));
        assert_eq!(traces.returned(), 0, "{}: a deaf back end returns nothing", case.name);
        let shows_chains = matches!(case.group, Group::Descriptor | Group::Header);
        assert!(!shows_chains || traces.offered > 0, "{} shows no chain", case.name);
    }
}

#[test]
fn a_villain_without_the_friend_that_it_needs_says_so() {
    let deaf = Deaf::new();
    for case in cases().filter(|case| case.needs_friend) {
        let alone = case.act(&mut Stage::new(deaf.path(), MAC, PEER));
        assert!(matches!(alone, Err(VillainError::NeedsFriend(name)) if name == case.name));
    }
}

#[test]
fn there_are_cases_of_every_group() {
    for group in
        [Group::Descriptor, Group::Header, Group::Receive, Group::Race, Group::Ring, Group::Message, Group::Region, Group::Abuse]
    {
        let count = cases().filter(|case| case.group == group).count();
        assert!(count >= 10, "{group:?}: {count}");
    }
}
