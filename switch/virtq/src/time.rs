//! Time: a cheap cycle counter for the workers, and its conversion to durations.
//!
//! Cycles are those of the time-stamp counter where there is one (x86-64, invariant on every machine that runs VMs), else
//! nanoseconds. Where the host is itself a virtual machine, that counter goes backwards when it is restored from a snapshot or
//! migrated. **Time** does not: the first worker that notices adds the difference, for all ([`cycles_after`]).
//!
//! In builds with debug assertions a thread may have a clock of its own, which a test sets ([`driven`]).

pub mod driven;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};

/// A moment or a span, in cycles.
pub type Cycles = u64;

/// A second: the unit of counts and rates.
pub const SECOND: Duration = Duration::from_secs(1);

/// Longest time that is spent at a stretch for one guest; the rest of its work waits for its next service quantum.
pub const SLICE: Duration = Duration::from_micros(200);

/// Difference between time and the counter, after that went backwards.
static AHEAD: AtomicU64 = AtomicU64::new(0);

/// Counters of different CPUs may differ by this much, which is not corrected.
const JITTER: Duration = Duration::from_millis(1);

/// The present moment.
#[inline]
pub fn cycles() -> Cycles {
    if driven::is_on() {
        return driven::read();
    }
    counter().wrapping_add(AHEAD.load(Ordering::Relaxed))
}

#[inline]
fn counter() -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        crate::system::time_stamp()
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        static START: OnceLock<Instant> = OnceLock::new();
        START.get_or_init(Instant::now).elapsed().as_nanos() as u64
    }
}

/// The present moment, but not before `last`, an earlier reading.
#[inline]
pub fn cycles_after(last: Cycles) -> Cycles {
    let now = cycles();
    if now >= last { now } else { catch_up(&AHEAD, last, counter) }
}

/// Lets `ahead` correct a `counter` that went backwards, so that no moment is before `last`.
#[cold]
fn catch_up(ahead: &AtomicU64, last: Cycles, counter: impl Fn() -> u64) -> Cycles {
    let jitter = in_cycles(JITTER);
    loop {
        let before = ahead.load(Ordering::Relaxed);
        let now = counter().wrapping_add(before);
        let missing = last.saturating_sub(now);
        if missing <= jitter {
            return now.max(last);
        }
        // If another thread was faster, this one reads its correction.
        let _ = ahead.compare_exchange(before, before.wrapping_add(missing), Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// Cycles in a second, measured once against the monotonic clock.
pub fn frequency() -> u64 {
    static FREQUENCY: OnceLock<u64> = OnceLock::new();
    if driven::is_on() {
        return driven::FREQUENCY;
    }
    *FREQUENCY.get_or_init(measure)
}

#[cfg(target_arch = "x86_64")]
fn measure() -> u64 {
    let (from, start) = (cycles(), Instant::now());
    std::thread::sleep(Duration::from_millis(20));
    let (to, elapsed) = (cycles(), start.elapsed());
    ((to - from) as u128 * 1_000_000_000 / elapsed.as_nanos()) as u64
}

#[cfg(not(target_arch = "x86_64"))]
fn measure() -> u64 {
    1_000_000_000
}

/// CPU time of the calling thread so far. Costs a system call.
pub fn thread_time() -> Cycles {
    if driven::is_on() {
        return driven::read();
    }
    // The clock exists since Linux 2.6.12.
    in_cycles(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from))
}

/// `duration` in cycles.
pub fn in_cycles(duration: Duration) -> Cycles {
    (duration.as_nanos() * u128::from(frequency()) / 1_000_000_000) as u64
}

/// `cycles` as a duration.
pub fn duration(cycles: Cycles) -> Duration {
    Duration::from_nanos((u128::from(cycles) * 1_000_000_000 / u128::from(frequency())) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_goes_on_where_the_counter_went_back() {
        let (ahead, second) = (AtomicU64::new(0), frequency());
        let hour = 3600 * second;
        assert_eq!(catch_up(&ahead, 2 * hour, || second), 2 * hour);
        // Another thread, with a last moment a little earlier or later, adds nothing.
        for last in [2 * hour - second, 2 * hour + in_cycles(JITTER)] {
            assert_eq!(catch_up(&ahead, last, || second), last.max(2 * hour));
        }
        assert_eq!(ahead.load(Ordering::Relaxed), 2 * hour - second);
        // And once more, to nothing at all.
        assert_eq!(catch_up(&ahead, 2 * hour + second, || 0), 2 * hour + second);
    }

    #[test]
    fn counters_that_differ_a_little_are_no_clock_that_went_back() {
        let (ahead, last) = (AtomicU64::new(0), 1 << 40);
        assert_eq!(catch_up(&ahead, last, || last - in_cycles(JITTER)), last);
        assert_eq!(ahead.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn cycles_agree_with_the_clock() {
        frequency();
        let (from, start) = (cycles(), Instant::now());
        std::thread::sleep(Duration::from_millis(30));
        let (seen, real) = (duration(cycles() - from), start.elapsed());
        assert!(seen.abs_diff(real) < real / 20, "{seen:?} {real:?}");
    }
}
