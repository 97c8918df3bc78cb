//! A machine that is restored from a snapshot, or moved, finds its time-stamp counter set back. Guests are not to wait until it has caught up.
//!
//! Here the kernel is told to refuse reading the counter to the switch's threads, and a signal handler reads it for them, and adds
//! an offset.

#![cfg(target_arch = "x86_64")]

mod common;

use std::sync::atomic::{AtomicU64, Ordering};

use common::*;
use memlane::stats::DropReason;

/// The offset of the counter: the less, the further the clock was set back.
static ADDED: AtomicU64 = AtomicU64::new(0);

/// Lets threads started from now on by this one read the counter through [`on_refusal`] only, or again as usual.
fn refuse_counter(refuse: bool) {
    let how = if refuse { libc::PR_TSC_SIGSEGV } else { libc::PR_TSC_ENABLE };
    // SAFETY: concerns this thread's instruction alone.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_TSC, how) }, 0);
}

/// Carries out a refused `rdtsc` or `rdtscp`.
extern "C" fn on_refusal(signal: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes the context of the interrupted thread to a handler registered with SA_SIGINFO; its instruction pointer
    // points at code, of which we read no more than an instruction has.
    unsafe {
        let registers = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
        let code = registers[libc::REG_RIP as usize] as *const u8;
        let length = match (*code, *code.add(1)) {
            (0x0f, 0x31) => 2,
            (0x0f, 0x01) if *code.add(2) == 0xf9 => 3,
            // Not ours: with the default action back in place it comes again and ends the process.
            _ => {
                libc::signal(signal, libc::SIG_DFL);
                return;
            }
        };
        libc::prctl(libc::PR_SET_TSC, libc::PR_TSC_ENABLE);
        let counter = std::arch::x86_64::_rdtsc().wrapping_add(ADDED.load(Ordering::Relaxed));
        libc::prctl(libc::PR_SET_TSC, libc::PR_TSC_SIGSEGV);
        registers[libc::REG_RAX as usize] = (counter & 0xffff_ffff) as i64;
        registers[libc::REG_RDX as usize] = (counter >> 32) as i64;
        if length == 3 {
            registers[libc::REG_RCX as usize] = 0;
        }
        registers[libc::REG_RIP as usize] += length;
    }
}

#[test]
fn limits_and_calls_go_on_where_the_clock_goes_back() {
    // Measured before the switch's threads need a handler to ask.
    let hour = 3600 * memlane::time::frequency();
    ADDED.store(10 * hour, Ordering::Relaxed);
    vmm_sys_util::signal::register_signal_handler(libc::SIGSEGV, on_refusal).unwrap();
    refuse_counter(true);
    let limit = "transmit = { rate = \"8Mbit\", packets = 1000 }\nreceive = { rate = \"8Mbit\" }";
    let bed = Bed::with("workers = 2", &[limit, limit, ""]);
    refuse_counter(false);
    let (mut a, mut b, mut c) = (bed.guest(0), bed.guest(1), bed.guest(2));
    announce(&mut [&mut a, &mut b, &mut c]);
    for round in 0..3 {
        for number in 0..10 {
            let sent = frame(mac(0), mac(1), 1000, 10 * round + number);
            a.send(&sent).unwrap();
            assert_eq!(b.receive(TIMEOUT).unwrap().bytes, sent);
            let sent = frame(mac(2), mac(0), 1000, 10 * round + number);
            c.send(&sent).unwrap();
            assert_eq!(a.receive(TIMEOUT).unwrap().bytes, sent);
        }
        a.wait_sent(TIMEOUT).unwrap();
        c.wait_sent(TIMEOUT).unwrap();
        // Once while they wait, once more a little later.
        ADDED.fetch_sub(hour, Ordering::Relaxed);
    }
    for port in 0..3 {
        assert_eq!(bed.drops(port, DropReason::ReceiverStalled), 0);
    }
}
