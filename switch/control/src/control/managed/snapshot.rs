//! Snapshots of the network: it freezes, and goes on by a command or after a time; a copy, once its guests run.

use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::{FileConfig, Managed};
use crate::author;
use crate::control::frozen::{CONTENT_TYPE, FrozenView, MOST, SnapshotOrder, ThawOrder, ThawView};
use crate::control::problem::Refusal;
use crate::daemon::StartError;
use crate::held::FreezeError;
use crate::journal::{NetworkEvent, note};
use crate::network::Network;

/// Timeout for frames in flight to leave the queues.
const FREEZE: Duration = Duration::from_secs(2);
/// Longest wait at a thaw for virtqueues that ran before.
const QUEUES: Duration = Duration::from_secs(1);
/// Pause between two looks at them, and at the time.
const PAUSE: Duration = Duration::from_millis(10);

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl Managed {
    /// Locks out other changes, unless the network is frozen.
    ///
    /// # Errors
    /// The network is frozen, or ends.
    pub(super) fn changing_unfrozen(&self) -> Result<MutexGuard<'_, FileConfig>, Refusal> {
        let base = self.changing();
        match self.ask(|daemon| daemon.network().frozen_for())? {
            None => Ok(base),
            Some(_) => {
                let text = format!(
                    "the network is frozen, and a change would be missing in its snapshot: try again after `memlane thaw {}`",
                    self.config()?.name
                );
                Err(Refusal::new(StatusCode::CONFLICT, text))
            }
        }
    }

    /// The freeze of the network, if it is frozen.
    ///
    /// # Errors
    /// The network ends.
    pub fn frozen(&self) -> Result<Option<FrozenView>, Refusal> {
        let network = self.ask(|daemon| Arc::clone(daemon.network()))?;
        let most = Duration::from_millis(self.frozen_most.load(Ordering::Relaxed));
        Ok(network.frozen_for().map(|time| FrozenView {
            milliseconds: milliseconds(time),
            left: (most > Duration::ZERO).then(|| milliseconds(most.saturating_sub(time))),
            not_running: network.not_running(),
        }))
    }

    /// Freezes the network; returns its snapshot, as a file. It goes on by [`Self::thaw`], or when the time of `order` is over.
    ///
    /// # Errors
    /// The network is frozen, or does not freeze; it goes on then.
    pub fn snapshot(self: &Arc<Self>, order: &SnapshotOrder) -> Result<Response, Refusal> {
        let most = Duration::from_millis(order.milliseconds).clamp(Duration::from_millis(1), MOST);
        let base = self.changing();
        let network = self.ask(|daemon| Arc::clone(daemon.network()))?;
        let refused = |error: FreezeError| Refusal::new(StatusCode::CONFLICT, error);
        network.freeze(FREEZE).map_err(refused)?;
        let begun = self.described(&base, order).and_then(|file| self.thaw_after(&network, most).map(|()| file));
        let (frames, file) = begun.inspect_err(|refusal| {
            self.end_freeze(&network, &format!("the snapshot failed: {refusal}"));
        })?;
        note(&network.shared().journal, NetworkEvent::Snapshot { frames, milliseconds: milliseconds(most), by: author::current() });
        Ok(([(header::CONTENT_TYPE, CONTENT_TYPE)], file).into_response())
    }

    /// The frames in flight, and the file.
    fn described(&self, base: &FileConfig, order: &SnapshotOrder) -> Result<(u64, Vec<u8>), Refusal> {
        let file = self.ask(|daemon| daemon.snapshot(base.stated.keys(), order.machine.clone()))?;
        let thawed = || Refusal::new(StatusCode::CONFLICT, "another command has let the network go on meanwhile");
        let file = file.ok_or_else(thawed)?;
        let failed = |error: crate::snapshot::SnapshotError| Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, error);
        Ok((file.snapshot.frames(), file.encode().map_err(failed)?))
    }

    /// Starts a thread that lets the network go on after the time `most`.
    fn thaw_after(self: &Arc<Self>, network: &Arc<Network>, most: Duration) -> Result<(), Refusal> {
        self.frozen_most.store(milliseconds(most), Ordering::Relaxed);
        let cause = format!("no command came within {} s", most.as_secs_f32());
        self.thaw_when(network, move |network| network.frozen_for().is_some_and(|time| time >= most), cause)
    }

    /// Starts a thread that lets a network which was restored from a snapshot go on, once all its guests run; nothing if it is not frozen.
    ///
    /// # Errors
    /// The network ends, or the kernel refuses a thread.
    pub fn thaw_when_running(self: &Arc<Self>) -> Result<(), Refusal> {
        let network = self.ask(|daemon| Arc::clone(daemon.network()))?;
        if network.frozen_for().is_none() {
            return Ok(());
        }
        self.thaw_when(&network, |network| network.not_running().is_empty(), "all guests of the snapshot run".into())
    }

    fn thaw_when(
        self: &Arc<Self>,
        network: &Arc<Network>,
        is_over: impl Fn(&Network) -> bool + Send + 'static,
        cause: String,
    ) -> Result<(), Refusal> {
        let (managed, network) = (Arc::downgrade(self), Arc::downgrade(network));
        let freeze = self.freezes.fetch_add(1, Ordering::Relaxed) + 1;
        let watch = move || {
            loop {
                std::thread::sleep(PAUSE);
                let (Some(managed), Some(network)) = (managed.upgrade(), network.upgrade()) else { return };
                let is_another = managed.freezes.load(Ordering::Relaxed) != freeze;
                if is_another || network.frozen_for().is_none() || managed.ending.load(Ordering::Relaxed) {
                    return;
                }
                if is_over(&network) {
                    managed.end_freeze(&network, &cause);
                    return;
                }
            }
        };
        let started = std::thread::Builder::new().name("thaw".into()).stack_size(256 * 1024).spawn(watch);
        started.map(drop).map_err(|error| StartError::from(error).into())
    }

    /// Lets a frozen network go on; waits a moment for virtqueues that ran before.
    ///
    /// # Errors
    /// The network is not frozen, or ends.
    pub fn thaw(&self, order: &ThawOrder) -> Result<ThawView, Refusal> {
        let network = self.ask(|daemon| Arc::clone(daemon.network()))?;
        let begun = Instant::now();
        while network.frozen_for().is_some() && !network.not_running().is_empty() && begun.elapsed() < QUEUES {
            std::thread::sleep(PAUSE);
        }
        let cause = order.cause.as_deref().unwrap_or("by command");
        let thawed = self.end_freeze(&network, cause);
        thawed.ok_or_else(|| Refusal::new(StatusCode::CONFLICT, "the network is not frozen: it goes on already"))
    }

    fn end_freeze(&self, network: &Network, cause: &str) -> Option<ThawView> {
        let not_running = network.not_running();
        let thawed = network.thaw()?;
        self.frozen_most.store(0, Ordering::Relaxed);
        let view = ThawView { milliseconds: milliseconds(thawed.paused), frames: thawed.frames, lost: thawed.lost, not_running };
        let ThawView { milliseconds, frames, lost, .. } = view;
        note(
            &network.shared().journal,
            NetworkEvent::Thawed { cause: cause.into(), milliseconds, frames, lost, by: author::current() },
        );
        Some(view)
    }
}
