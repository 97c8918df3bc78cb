//! Counters: frames, bytes, interrupts, kicks, and drops by reason, for each port; poll iterations and cycles for each worker.
//!
//! Every worker counts into cells of its own, so a counter has one writer and needs no locked instruction; a reader adds the
//! workers' cells up. Counters only grow, except where a name says otherwise.

#![expect(
    clippy::indexing_slicing,
    reason = "one counter for each reason, one bucket for each bound and one more, a remainder of the number of entries"
)]

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub use memlane_model::totals::{PortTotals, SIZE_BOUNDS, WAIT_BOUNDS};
pub use memlane_virtq::drop_reason::DropReason;

use crate::id::PortId;
use crate::time::{Cycles, duration};

/// Age of news that are told as recent: growth of counters, conflicts.
pub const RECENT: Duration = Duration::from_secs(60);

/// A counter with a single writer.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `amount`. Only the owning worker may call this.
    #[inline]
    pub fn add(&self, amount: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(amount), Ordering::Relaxed);
    }

    /// Sets a value that may also fall.
    #[inline]
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// The present value.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A histogram: a bucket for each upper bound, and one above them.
#[derive(Debug)]
pub struct Histogram<const BUCKETS: usize>([Counter; BUCKETS]);

impl<const BUCKETS: usize> Default for Histogram<BUCKETS> {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Counter::default()))
    }
}

impl<const BUCKETS: usize> Histogram<BUCKETS> {
    /// Counts `count` values in the bucket that is above so many of the `bounds`.
    #[inline]
    fn add<T: PartialOrd + Copy>(&self, bounds: &[T], value: T, count: u64) {
        // Without a branch: eight comparisons are two vector instructions.
        let bucket = bounds.iter().filter(|&&bound| value > bound).count();
        self.0[bucket].add(count);
    }

    fn inherit(&self, counts: &[u64; BUCKETS]) {
        self.0.iter().zip(counts).for_each(|(counter, count)| counter.add(*count));
    }

    fn sum<'c>(cells: impl Iterator<Item = &'c Self>) -> [u64; BUCKETS] {
        let mut sums = [0; BUCKETS];
        for cell in cells {
            sums.iter_mut().zip(&cell.0).for_each(|(sum, counter)| *sum += counter.get());
        }
        sums
    }
}

/// Frames by size.
pub(crate) type FrameSizes = Histogram<{ SIZE_BOUNDS.len() + 1 }>;

impl FrameSizes {
    /// Counts `frames` of `length` bytes.
    #[inline]
    pub(crate) fn add_frames(&self, length: u32, frames: u64) {
        self.add(&SIZE_BOUNDS, length, frames);
    }
}

/// Latency of frames from transmit queue to receive queue, backpressure included: a histogram of a sample.
#[derive(Debug, Default)]
struct Waits {
    frames: Histogram<{ WAIT_BOUNDS.len() + 1 }>,
    cycles: Counter,
}

impl Waits {
    /// Counts a frame with this latency from transmit queue to receive queue.
    fn add(&self, waited: Cycles) {
        self.frames.add(&WAIT_BOUNDS, duration(waited), 1);
        self.cycles.add(waited);
    }
}

/// Samples of senders that are kept, by each worker.
const SENDERS: usize = 16;

/// Senders of the receive frames that were sampled last. Each entry is a moment, of which the lowest 16 bits are the sender's number.
#[derive(Debug, Default)]
struct Senders {
    entries: [Counter; SENDERS],
    added: Counter,
}

impl Senders {
    const NUMBER: u64 = u16::MAX as u64;

    fn add(&self, sender: PortId, now: Cycles) {
        self.entries[self.added.get() as usize % SENDERS].set(now & !Self::NUMBER | u64::from(sender.0));
        self.added.add(1);
    }

    fn all(&self) -> impl Iterator<Item = (PortId, Cycles)> {
        let entries = self.entries.iter().map(Counter::get).filter(|&entry| entry > 0);
        entries.map(|entry| (PortId((entry & Self::NUMBER) as u16), entry & !Self::NUMBER))
    }
}

/// Frames of which one is sampled: about a thousand, and a prime, so that samples fall on every place in a batch.
const SAMPLE: u16 = 1021;

/// Chooses the frames of which the latency from transmit queue to receive queue is measured.
#[derive(Debug)]
pub(crate) struct Sampler {
    /// Frames until the next sample.
    left: u16,
}

impl Default for Sampler {
    fn default() -> Self {
        Self { left: SAMPLE }
    }
}

impl Sampler {
    /// Counts `frames`, at most [`SAMPLE`]; true if one of them is to be measured.
    #[inline]
    pub(crate) fn takes(&mut self, frames: u16) -> bool {
        let takes = frames >= self.left;
        self.left = if takes { self.left + SAMPLE - frames } else { self.left - frames };
        takes
    }
}

const REASONS: usize = DropReason::ALL.len();

macro_rules! define_counters {
    ($($(#[$doc:meta])* $name:ident: $life:ident, $metric:expr;)*) => {
        /// Counters of one port, written by one worker.
        #[derive(Debug, Default)]
        #[repr(align(128))]
        pub struct PortCounters {
            $($(#[$doc])* pub $name: Counter,)*
            /// Sizes of frames taken from the guest's transmit queues.
            pub sizes: FrameSizes,
            /// Latency of frames placed in the guest's receive queues.
            waits: Waits,
            /// Senders of frames placed in the guest's receive queues.
            senders: Senders,
            drops: Drops,
        }

        impl PortCounters {
            /// Goes on with the counters of an earlier process, but for those of its moment.
            fn inherit_sums(&self, totals: &PortTotals) {
                $(define_counters!($life, self.$name.add(totals.$name));)*
            }
        }

        /// The sums of the counters in `cells`; all else is empty.
        fn sums(cells: &[PortCounters]) -> PortTotals {
            PortTotals { $($name: cells.iter().map(|cell| cell.$name.get()).sum(),)* ..PortTotals::default() }
        }
    };
    (inherited, $add:expr) => {
        $add
    };
    (present, $add:expr) => {};
}

memlane_model::port_counters!(define_counters);

/// Dropped frames by reason.
#[derive(Debug)]
struct Drops([Counter; REASONS]);

impl Default for Drops {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Counter::default()))
    }
}

impl PortCounters {
    /// Counts a sample of the frames placed in the guest's receive queues: its sender, and its latency from transmit queue to receive
    /// queue.
    pub fn sample(&self, sender: PortId, latency: Cycles, now: Cycles) {
        self.waits.add(latency);
        self.senders.add(sender, now);
    }

    /// Senders of the receive frames that were sampled last, and when.
    pub fn senders(&self) -> impl Iterator<Item = (PortId, Cycles)> {
        self.senders.all()
    }

    /// Counts a dropped frame.
    #[inline]
    pub(crate) fn drop_frame(&self, reason: DropReason) {
        self.drop_frames(reason, 1);
    }

    /// Counts dropped frames.
    #[inline]
    pub(crate) fn drop_frames(&self, reason: DropReason, count: u32) {
        if count > 0 {
            self.drops.0[reason as usize].add(count.into());
        }
    }

    /// Adds the totals of an earlier process: all but the frames that are enqueued, and drops for reasons that this version does not
    /// know. Before the owning worker counts here.
    pub fn inherit(&self, totals: &PortTotals) {
        self.inherit_sums(totals);
        for (reason, counter) in DropReason::ALL.iter().zip(&self.drops.0) {
            counter.add(totals.drops.get(reason.name()).copied().unwrap_or(0));
        }
        self.sizes.inherit(&totals.frame_sizes);
        self.waits.frames.inherit(&totals.waits);
        self.waits.cycles.add(totals.waited_cycles);
    }

    /// Frames dropped for `reason`.
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.drops.0[reason as usize].get()
    }
}

/// Counters of one worker.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct WorkerCounters {
    /// Poll iterations that moved frames.
    pub busy_iterations: Counter,
    /// Poll iterations without frames.
    pub empty_iterations: Counter,
    /// TSC cycles in busy poll iterations.
    pub busy_cycles: Counter,
    /// When the last busy poll iteration began.
    pub last_busy: Counter,
    /// Frames delivered or dropped in them.
    pub frames: Counter,
    /// Times it went to sleep.
    pub sleeps: Counter,
    /// Non-blocking epoll calls, without sleeping.
    pub polls: Counter,
    /// Frames handed over to other workers.
    pub handed_over: Counter,
    /// Wake-ups sent to other workers.
    pub wakes: Counter,
}

/// The sum of `cells`, one of each worker.
pub fn totals(cells: &[PortCounters]) -> PortTotals {
    let dropped = |reason| cells.iter().map(|cell| cell.dropped(reason)).sum::<u64>();
    PortTotals {
        frame_sizes: Histogram::sum(cells.iter().map(|cell| &cell.sizes)),
        waits: Histogram::sum(cells.iter().map(|cell| &cell.waits.frames)),
        waited_cycles: cells.iter().map(|cell| cell.waits.cycles.get()).sum(),
        drops: DropReason::ALL.iter().map(|&r| (r.name().to_owned(), dropped(r))).filter(|&(_, count)| count > 0).collect(),
        ..sums(cells)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The borders of RFC 2819: etherStatsPkts64Octets has frames of 64 octets, etherStatsPkts65to127Octets of 65 to 127, and so on.
    #[test]
    fn a_frame_is_counted_in_the_bucket_of_its_size() {
        let sizes = FrameSizes::default();
        let bounds = [(60, 0), (64, 0), (65, 1), (127, 1), (128, 2), (255, 2), (256, 3), (511, 3), (512, 4), (1023, 4)];
        let longer = [(1024, 5), (1518, 5), (1519, 6), (9000, 6), (9001, 7), (65535, 7), (65536, 8), (u32::MAX, 8)];
        let mut expected = [0; 9];
        for (length, bucket) in bounds.into_iter().chain(longer) {
            sizes.add_frames(length, 3);
            expected[bucket] += 3;
            assert_eq!(Histogram::sum([&sizes].into_iter()), expected, "{length} bytes");
        }
    }

    #[test]
    fn the_last_senders_are_kept() {
        let counters = PortCounters::default();
        assert_eq!(counters.senders().count(), 0);
        (0..20).for_each(|n| counters.sample(PortId(n), 0, u64::from(n + 1) << 16));
        let mut senders: Vec<_> = counters.senders().collect();
        senders.sort_by_key(|&(_, at)| at);
        assert_eq!(senders, (4..20).map(|n| (PortId(n), u64::from(n + 1) << 16)).collect::<Vec<_>>());
    }

    #[test]
    fn one_frame_in_a_thousand_is_sampled_whatever_the_batches() {
        for batch in [1, 7, 32, 64] {
            let mut sampler = Sampler::default();
            let taken = (0..SAMPLE * 8).filter(|_| sampler.takes(batch)).count();
            assert_eq!(taken, usize::from(8 * batch), "batches of {batch}");
        }
    }
}
