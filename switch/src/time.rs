//! Time, passed in: a cheap cycle counter for the workers, and what it means in nanoseconds.
//!
//! Cycles are those of the time-stamp counter where there is one (x86-64, invariant on every machine that runs VMs), else
//! nanoseconds.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// A moment or a span, in cycles.
pub type Cycles = u64;

/// The counter now.
#[inline]
pub fn cycles() -> Cycles {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the instruction exists on every x86-64 and only reads a counter.
    unsafe {
        std::arch::x86_64::_rdtsc()
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        static START: OnceLock<Instant> = OnceLock::new();
        START.get_or_init(Instant::now).elapsed().as_nanos() as u64
    }
}

/// Cycles in a second, measured once against the monotonic clock.
pub fn frequency() -> u64 {
    static FREQUENCY: OnceLock<u64> = OnceLock::new();
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
    fn cycles_agree_with_the_clock() {
        frequency();
        let (from, start) = (cycles(), Instant::now());
        std::thread::sleep(Duration::from_millis(30));
        let (seen, real) = (duration(cycles() - from), start.elapsed());
        assert!(seen.abs_diff(real) < real / 20, "{seen:?} {real:?}");
    }
}
