//! How far a quiet ring was looked at, and what seems to have got lost: the worker asks, see `worker/lost_notifications.rs`.

/// What seems to have got lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Missed {
    /// The driver added entries, and was asked for a kick.
    Kick,
    /// The driver asks to hear of something that it was shown. Some take it and leave their wish as it was: they are called in vain.
    Call,
}

/// How far a quiet ring was looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Quiet {
    /// Not yet since something happened.
    #[default]
    Unseen,
    /// Once. That may have been right after something happened.
    Seen,
    /// Something seems to be missed, or is on its way.
    Doubted,
    /// As often as needed.
    Settled,
}

impl Quiet {
    /// Another look, which sees what seems to be missed; returns how far it got with that, and what has been missed for two looks.
    pub(crate) fn look(self, seen: impl FnOnce() -> Option<Missed>) -> (Self, Option<Missed>) {
        match self {
            Self::Unseen => (Self::Seen, None),
            Self::Seen => (if seen().is_some() { Self::Doubted } else { Self::Settled }, None),
            Self::Doubted => (Self::Settled, seen()),
            Self::Settled => (Self::Settled, None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missed_for_two_looks_is_told_once() {
        let mut quiet = Quiet::default();
        for told in [None, None, Some(Missed::Kick), None, None] {
            let (next, missed) = quiet.look(|| Some(Missed::Kick));
            assert_eq!(missed, told);
            quiet = next;
        }
    }

    #[test]
    fn what_was_on_its_way_is_not_missed() {
        let mut quiet = Quiet::default();
        for seen in [None, Some(Missed::Call), None, Some(Missed::Call)] {
            let (next, missed) = quiet.look(|| seen);
            assert_eq!(missed, None);
            quiet = next;
        }
        assert_eq!(quiet, Quiet::Settled);
    }
}
