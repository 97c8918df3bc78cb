//! The watchdog: frees a thread whose interrupt blocks (a write to an eventfd).
//!
//! Interrupts never block, because their descriptors are set so. But a descriptor's flags are shared with the front end, which can
//! clear the flag again and leave an eventfd full, and no system call writes to an eventfd with a non-blocking flag of its own. So
//! every thread that sends interrupts starts its **stopwatch** for each; the watchdog checks all stopwatches while interrupts are
//! sent, and signals a thread that is in one for too long. The write then fails, and its port is quarantined. Without interrupts,
//! the watchdog sleeps.

mod stopwatch;

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Thread;
use std::time::Duration;

use crate::system::ThreadId;
use crate::time::{cycles, driven, in_cycles};
use stopwatch::{Duty, Seen, Stopwatch};

/// Maximum duration of an interrupt.
const MOST: Duration = Duration::from_millis(100);
/// Check interval of the stopwatches while interrupts are sent.
const INTERVAL: Duration = Duration::from_millis(50);
/// Checks without an interrupt after which the watchdog sleeps.
const CALM: u32 = 20;

static STOPWATCHES: Mutex<Vec<Arc<Timed>>> = Mutex::new(Vec::new());
static DUTY: Duty = Duty::new();
static WATCHDOG: OnceLock<Thread> = OnceLock::new();

/// A thread that sends interrupts, with its stopwatch.
#[derive(Debug)]
struct Timed {
    thread: ThreadId,
    stopwatch: Stopwatch,
}

/// A thread's own stopwatch, which is removed from the watchdog when the thread ends.
struct Mine(Arc<Timed>);

thread_local! {
    static MINE: Mine = Mine::new();
}

impl Mine {
    fn new() -> Self {
        // A network has started it before. If it cannot be started, interrupts are not watched: that is no reason to end a thread.
        let _ = start();
        let timed = Arc::new(Timed { thread: ThreadId::own(), stopwatch: Stopwatch::default() });
        stopwatches().push(Arc::clone(&timed));
        Self(timed)
    }
}

impl Drop for Mine {
    fn drop(&mut self) {
        stopwatches().retain(|timed| !Arc::ptr_eq(timed, &self.0));
    }
}

fn stopwatches() -> MutexGuard<'static, Vec<Arc<Timed>>> {
    STOPWATCHES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `call`, which sends an interrupt, with the watchdog's time limit.
pub fn watched<T>(call: impl FnOnce() -> T) -> T {
    if driven::is_on() {
        return call();
    }
    MINE.with(|Mine(timed)| {
        if timed.stopwatch.begin(cycles(), &DUTY) {
            WATCHDOG.get().inspect(|watchdog| watchdog.unpark());
        }
        let result = call();
        timed.stopwatch.end();
        result
    })
}

/// Starts the watchdog, once in a process.
///
/// # Errors
/// The kernel refuses a thread or a signal handler; it is tried again the next time.
pub fn start() -> io::Result<()> {
    static STARTING: Mutex<()> = Mutex::new(());
    let _one = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
    if WATCHDOG.get().is_none() {
        vmm_sys_util::signal::register_signal_handler(signal(), on_signal)?;
        let thread = std::thread::Builder::new().name("watchdog".into()).stack_size(64 * 1024).spawn(|| watch())?;
        let _ = WATCHDOG.set(thread.thread().clone());
    }
    Ok(())
}

fn watch() -> ! {
    let most = in_cycles(MOST);
    let mut calm = 0;
    loop {
        std::thread::park_timeout(INTERVAL);
        calm = if look(most) { 0 } else { calm + 1 };
        if calm == CALM {
            DUTY.go_off();
            // An interrupt that began before it could see the flag is found by one more check.
            if !look(most) {
                sleep();
            }
            calm = 0;
        }
    }
}

fn sleep() {
    while DUTY.is_off() {
        std::thread::park();
    }
}

/// Signals each thread that is in an interrupt for longer than `most` cycles; true if any interrupt was sent since the last check.
fn look(most: u64) -> bool {
    // Held, so that no thread ends between being found late and being interrupted.
    let stopwatches = stopwatches();
    let mut called = false;
    for timed in stopwatches.iter() {
        let seen = timed.stopwatch.look(cycles(), most);
        called |= seen != Seen::Nothing;
        if seen == Seen::Late {
            // The thread lives: it removes its stopwatch, under this lock, before it ends.
            timed.thread.interrupt(signal());
        }
    }
    called
}

fn signal() -> libc::c_int {
    libc::SIGRTMIN() + 3
}

/// The handler's only effect is that the system call it interrupts fails.
extern "C" fn on_signal(_: libc::c_int, _: *mut libc::siginfo_t, _: *mut libc::c_void) {}
