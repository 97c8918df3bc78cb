//! Causes that counters tell: frames by drop reason, rate limits, refused front ends and lost notifications, in the last minute or before.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::cause::{Cause, CauseKind};
use super::remedies::remedy;
use super::{Subject, queues};
use crate::moment::whole_second;
use crate::policy::Limit;
use crate::port::history::{Counted, Growth};
use crate::quantity::{counted, was};
use crate::stats::DropReason;

/// A cause in its words: of the last minute, with the time behind a count; and of an earlier time.
struct Words {
    /// Before the time.
    count: String,
    /// Behind it.
    rest: String,
    remedy: String,
}

impl Subject<'_> {
    /// Causes of the last minute, and those that have ended.
    pub(super) fn of_counts(&self) -> (Vec<Cause>, Vec<Cause>) {
        let (mut recent, mut earlier) = (Vec::new(), Vec::new());
        let refused = |counted| self.words_of_refused(counted);
        let mut tell = |counted, kind, reason: Option<DropReason>, words: &dyn Fn(u64) -> Option<Words>| {
            let Some(growth) = self.port.growth(counted) else { return };
            let is_recent = growth.is_recent();
            let Some(words) = words(if is_recent { growth.recent } else { growth.total }) else { return };
            let cause = Cause { reason: reason.map(|reason| reason.name().into()), ..timed(kind, &growth, words) };
            if is_recent { recent.push(cause) } else { earlier.push(cause) }
        };
        tell(Counted::TurnedAway, CauseKind::PortInUse, None, &refused);
        for (counted, direction, limit) in [
            (Counted::TransmitLimited, "transmit", &self.report.limits.transmit),
            (Counted::ReceiveLimited, "receive", &self.report.limits.receive),
        ] {
            tell(counted, CauseKind::Limited, None, &|times| self.words_of_limit(direction, limit, times));
        }
        tell(Counted::MissedKicks, CauseKind::MissedKicks, None, &|times| Some(words_of_kicks(times)));
        for &reason in DropReason::ALL {
            tell(Counted::Drop(reason), CauseKind::Dropped, Some(reason), &|count| Some(self.words_of_drops(reason, count)));
        }
        (recent, earlier)
    }

    fn words_of_refused(&self, count: u64) -> Option<Words> {
        let front_end = self.report.front_end.as_ref().map_or_else(|| "a front end".to_owned(), ToString::to_string);
        Some(Words {
            count: format!("it refused {} of other front ends", counted(count, "connection")),
            rest: format!(", because {front_end} uses the port"),
            remedy: "Give each guest a port of its own, or end that program; set second = \"replace\" where the newest one is to have the port, as for QEMU's cpr-transfer".into(),
        })
    }

    fn words_of_limit(&self, direction: &str, limit: &Limit, times: u64) -> Option<Words> {
        (*limit != Limit::default()).then(|| Words {
            count: format!("its {direction} limit of {limit} has held frames back {}", counted(times, "time")),
            rest: String::new(),
            remedy: format!("Raise or remove it: memlane set {} {} --{direction} none", self.config.name, self.entry.name),
        })
    }

    fn words_of_drops(&self, reason: DropReason, count: u64) -> Words {
        let name = reason.name();
        let is_deaf = self.report.totals.receive_frames == 0;
        let count = match (reason.is_of_sender(), is_deaf) {
            (true, _) => format!("{} of its guest {} dropped as {name}", counted(count, "frame"), was(count)),
            (false, true) => format!("all frames for it were dropped, {count} as {name}"),
            (false, false) => format!("{} for it {} dropped as {name}", counted(count, "frame"), was(count)),
        };
        Words { count, rest: format!(": {}", meaning(reason)), remedy: remedy(reason).into() }
    }
}

fn words_of_kicks(times: u64) -> Words {
    Words {
        count: format!("its guest did not kick {} when it should have, and was served a moment later", counted(times, "time")),
        rest: String::new(),
        remedy: "A guest of one processor in QEMU without KVM does well with -smp 1,maxcpus=2".into(),
    }
}

/// The cause with its times. One that has ended has no remedy.
fn timed(kind: CauseKind, growth: &Growth, words: Words) -> Cause {
    let last = growth.age.map(seconds_at);
    if growth.is_recent() {
        let age = queues::told(growth.age.unwrap_or_default());
        let text = format!("{} in the last minute, the last {age} ago{}", words.count, words.rest);
        return Cause { recent: Some(growth.recent), last, ..Cause::new(kind, text, words.remedy) };
    }
    let at = last.map_or_else(
        || "before this process took the network over".into(),
        |last| format!("the last at {} UTC", whole_second(last)),
    );
    Cause { recent: Some(0), last, ..Cause::new(kind, format!("{}, {at}", words.count), "") }
}

/// The moment so long ago, in seconds since 1970.
fn seconds_at(age: Duration) -> f64 {
    let at = SystemTime::now().checked_sub(age).and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    at.unwrap_or_default().as_secs_f64()
}

/// The meaning of a reason, to stand behind a colon.
fn meaning(reason: DropReason) -> String {
    let meaning = reason.meaning().trim_end_matches('.').replace('\n', " ");
    let mut letters = meaning.chars();
    letters.next().map_or_else(String::new, |first| first.to_lowercase().chain(letters).collect())
}
