//! Time in ticks of the processor's counter: two loads apart from free, so that every burst can be stamped.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The counter now. Counts at a constant rate on every machine that we run on (`constant_tsc`, `cntvct_el0`).
#[inline(always)]
pub fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: RDTSC reads a counter and has no other effect; it is allowed in user mode on Linux.
        unsafe { core::arch::x86_64::_rdtsc() }
    }
    #[cfg(target_arch = "aarch64")]
    {
        let count: u64;
        // SAFETY: reads the virtual counter, which Linux lets user mode do.
        unsafe { core::arch::asm!("mrs {}, cntvct_el0", out(reg) count, options(nomem, nostack)) };
        count
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        static ORIGIN: OnceLock<Instant> = OnceLock::new();
        ORIGIN.get_or_init(Instant::now).elapsed().as_nanos() as u64
    }
}

/// Ticks a second, measured once against the monotonic clock (20 ms).
pub fn frequency() -> f64 {
    static FREQUENCY: OnceLock<f64> = OnceLock::new();
    *FREQUENCY.get_or_init(|| {
        let (begun, start) = both();
        while begun.elapsed() < Duration::from_millis(20) {
            std::hint::spin_loop();
        }
        let (ended, end) = both();
        (end - start) as f64 / (ended - begun).as_secs_f64()
    })
}

/// Both clocks at one moment: of some attempts the one that was least interrupted.
fn both() -> (Instant, u64) {
    let attempt = |_| {
        let before = ticks();
        let now = Instant::now();
        let spent = ticks() - before;
        (spent, now, before + spent / 2)
    };
    let best = (0..16).map(attempt).min_by_key(|(spent, ..)| *spent);
    best.map_or_else(|| (Instant::now(), ticks()), |(_, now, ticks)| (now, ticks))
}

/// `duration` in ticks.
pub fn ticks_of(duration: Duration) -> u64 {
    (duration.as_secs_f64() * frequency()) as u64
}

/// `ticks` in seconds.
pub fn seconds(ticks: u64) -> f64 {
    ticks as f64 / frequency()
}

/// `ticks` in nanoseconds.
pub fn nanoseconds(ticks: u64) -> u64 {
    (seconds(ticks) * 1e9) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_follow_the_monotonic_clock() {
        let (begun, start) = both();
        while begun.elapsed() < Duration::from_millis(30) {
            std::hint::spin_loop();
        }
        let (ended, end) = both();
        let ratio = seconds(end - start) / (ended - begun).as_secs_f64();
        assert!((0.99..1.01).contains(&ratio), "{ratio}");
    }
}
