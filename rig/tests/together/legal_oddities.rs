//! Legal misbehaviour of villains must be served: an independent hub does so, and the trial says so.

use std::time::Duration;

use crate::hub::{Hub, OFFERED};
use memlane_rig::villain::{Group, Trial, Worst, cases};

#[test]
fn legal_oddities_are_served_by_an_honest_hub() {
    let hub = Hub::new(3, OFFERED);
    let timeout = Duration::from_secs(5);
    let mut trial = Trial::new(hub.path(0), hub.path(1), hub.path(2), timeout).unwrap();
    trial.duration = Duration::from_millis(50);
    let wanted = |group| matches!(group, Group::Descriptor | Group::Header | Group::Receive);
    let legal: Vec<_> = cases().filter(|case| case.worst == Worst::Nothing && wanted(case.group)).collect();
    assert!(legal.len() > 5);
    for case in legal {
        let judgement = trial.run(case);
        assert!(judgement.harm.is_empty() && judgement.not_done.is_none(), "{judgement:?}");
        assert_eq!(judgement.chains.0, judgement.chains.1, "{}", case.name);
    }
}
