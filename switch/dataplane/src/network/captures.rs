//! Packet captures: taps at all workers, and the readers of their copies.

use std::sync::{Arc, MutexGuard, PoisonError};

use thiserror::Error;

use super::{Network, Told};
use crate::driven::await_answer;
use crate::id::PortId;
use crate::port::Port;
use crate::tap::{self, CAPTURES, CaptureOrder, Follower, Seen, TapReader};
use crate::time::Cycles;

/// The most captures that may run are running.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("{CAPTURES} captures run already, which is the limit: end one")]
pub struct TooManyCaptures;

/// A capture; it ends when this is dropped.
#[derive(Debug)]
pub struct Capture {
    network: Arc<Network>,
    number: u64,
    reader: TapReader,
}

impl Network {
    /// Begins a capture. Frames that are transmitted after this returns are in it.
    ///
    /// # Errors
    /// [`TooManyCaptures`].
    pub fn capture(self: &Arc<Self>, order: CaptureOrder) -> Result<Capture, TooManyCaptures> {
        let (number, taps, reader) = {
            // No port is added meanwhile.
            let _alone = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
            let mut captures = self.running_captures();
            if captures.len() >= CAPTURES {
                return Err(TooManyCaptures);
            }
            let number = captures.last().map_or(1, |(last, _)| last + 1);
            let (taps, reader) = tap::capture(number, order, self.workers.len());
            let follower = reader.follower();
            self.ports().iter().for_each(|port| follower.follow(port.id, &port.name));
            captures.push((number, follower));
            (number, taps, reader)
        };
        let told = self.workers.iter().zip(taps).map(|(worker, tap)| worker.order(move |worker| worker.add_tap(tap)));
        Told(told.collect()).wait();
        Ok(Capture { network: Arc::clone(self), number, reader })
    }

    fn running_captures(&self) -> MutexGuard<'_, Vec<(u64, Follower)>> {
        self.captures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells captures of a port that is about to be added.
    pub(super) fn tell_captures(&self, port: &Port) {
        self.running_captures().iter().for_each(|(_, follower)| follower.follow(port.id, &port.name));
    }
}

impl Capture {
    /// See [`TapReader::read`].
    pub fn read(&mut self, most: usize, until: Cycles, each: impl FnMut(Seen, &[u8])) {
        self.reader.read(most, until, each);
    }

    /// Frames at `port` for which there was no room.
    pub fn missed(&self, port: PortId) -> u64 {
        self.reader.missed(port)
    }

    /// The capture's order.
    pub fn order(&self) -> &CaptureOrder {
        self.reader.order()
    }

    /// The network.
    pub fn network(&self) -> &Arc<Network> {
        &self.network
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        let number = self.number;
        let taps: Vec<_> =
            self.network.workers.iter().map(|worker| worker.order(move |worker| worker.remove_tap(number))).collect();
        // The rings are freed by this thread: to unmap some megabytes takes a worker longer than many frames do.
        taps.into_iter().for_each(|tap| drop(await_answer(&tap)));
        self.network.running_captures().retain(|&(other, _)| other != number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;
    use crate::shared::Shared;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    #[test]
    fn workers_do_not_free_the_rings_of_a_capture() {
        let network = Network::start(Shared::new(2, 7, Settings::default()), &[]).unwrap();
        let capture = network.capture(CaptureOrder::default()).unwrap();
        let taps = capture.reader.taps();
        assert_eq!(taps.strong_count(), 3);
        let (go_on, held) = channel::<()>();
        network.workers[1].tell(move |_| held.recv().unwrap_or_default());
        let release = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            drop(go_on);
        });
        drop(capture);
        assert_eq!(taps.strong_count(), 0, "no worker has a tap after this");
        release.join().unwrap();
        network.shut_down();
    }
}
