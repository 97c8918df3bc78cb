//! The watchdog: frees a thread whose call blocks.
//!
//! Calls never block, because their descriptors are set so. But a descriptor's flags are shared with the front end, which can clear the flag
//! again and leave an eventfd full, and no system call writes to an eventfd with a wish of its own not to block. So every thread that calls
//! notes in its **stopwatch** when it begins; the watchdog looks at all stopwatches while calls are made, and interrupts a thread that has
//! been calling for too long with a signal. The call then fails, and its port is quarantined. Without calls, the watchdog sleeps.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, OnceLock, PoisonError};
use std::thread::Thread;
use std::time::Duration;

use crate::time::{cycles, in_cycles};

/// How long a call may take.
const MOST: Duration = Duration::from_millis(100);
/// How often stopwatches are looked at while calls are made.
const INTERVAL: Duration = Duration::from_millis(50);
/// Looks without a call after which the watchdog sleeps.
const CALM: u32 = 20;

static STOPWATCHES: Mutex<Vec<Arc<Stopwatch>>> = Mutex::new(Vec::new());
/// Set while the watchdog sleeps and wants to hear of the next call.
static SLEEPS: AtomicBool = AtomicBool::new(false);
static WATCHDOG: OnceLock<Thread> = OnceLock::new();

/// What one thread's calls are timed with.
#[derive(Debug)]
struct Stopwatch {
    thread: libc::pthread_t,
    /// When the thread began the call that it is in; zero if it is in none.
    since: AtomicU64,
    /// It has called since this was last looked at.
    called: AtomicBool,
}

/// A thread's own stopwatch, which the watchdog forgets when the thread ends.
struct Mine(Arc<Stopwatch>);

thread_local! {
    static MINE: Mine = Mine::new();
}

impl Mine {
    fn new() -> Self {
        start();
        // SAFETY: no arguments, always succeeds.
        let thread = unsafe { libc::pthread_self() };
        let stopwatch = Arc::new(Stopwatch { thread, since: AtomicU64::new(0), called: AtomicBool::new(false) });
        stopwatches().push(Arc::clone(&stopwatch));
        Self(stopwatch)
    }
}

impl Drop for Mine {
    fn drop(&mut self) {
        stopwatches().retain(|stopwatch| !Arc::ptr_eq(stopwatch, &self.0));
    }
}

fn stopwatches() -> MutexGuard<'static, Vec<Arc<Stopwatch>>> {
    STOPWATCHES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `call` under the eye of the watchdog.
pub fn watched<T>(call: impl FnOnce() -> T) -> T {
    MINE.with(|Mine(stopwatch)| {
        stopwatch.since.store(cycles() | 1, Ordering::Relaxed);
        // Sequentially consistent, so that either we see the watchdog sleep or it sees the call.
        stopwatch.called.swap(true, Ordering::SeqCst);
        if SLEEPS.load(Ordering::Relaxed) && SLEEPS.swap(false, Ordering::Relaxed) {
            WATCHDOG.get().inspect(|watchdog| watchdog.unpark());
        }
        let result = call();
        stopwatch.since.store(0, Ordering::Relaxed);
        result
    })
}

/// Puts the watchdog on duty, once in a process.
///
/// # Panics
/// The kernel refuses a thread or a signal handler, which it does not do to a process that begins.
fn start() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        vmm_sys_util::signal::register_signal_handler(signal(), on_signal).expect("a real-time signal can be handled");
        let name = std::thread::Builder::new().name("watchdog".into()).stack_size(64 * 1024);
        let thread = name.spawn(|| watch()).expect("a thread can be started");
        let _ = WATCHDOG.set(thread.thread().clone());
    });
}

fn watch() -> ! {
    let most = in_cycles(MOST);
    let mut calm = 0;
    loop {
        std::thread::park_timeout(INTERVAL);
        calm = if look(most) { 0 } else { calm + 1 };
        if calm == CALM {
            SLEEPS.store(true, Ordering::SeqCst);
            // A call that began before it could see the flag is found by one more look.
            if !look(most) {
                sleep();
            }
            calm = 0;
        }
    }
}

fn sleep() {
    while SLEEPS.load(Ordering::Relaxed) {
        std::thread::park();
    }
}

/// Interrupts who has been calling for longer than `most` cycles; true if anybody has called since the last look.
fn look(most: u64) -> bool {
    // Held, so that no thread ends between being found late and being interrupted.
    let stopwatches = stopwatches();
    let mut called = false;
    for stopwatch in stopwatches.iter() {
        called |= stopwatch.called.swap(false, Ordering::SeqCst);
        let since = stopwatch.since.load(Ordering::Relaxed);
        if since != 0 {
            called = true;
            if cycles().saturating_sub(since) > most {
                // SAFETY: the thread lives: it takes its stopwatch away, under this lock, before it ends.
                unsafe { libc::pthread_kill(stopwatch.thread, signal()) };
            }
        }
    }
    called
}

fn signal() -> libc::c_int {
    libc::SIGRTMIN() + 3
}

/// Its only effect is that the system call it interrupts fails.
extern "C" fn on_signal(_: libc::c_int, _: *mut libc::siginfo_t, _: *mut libc::c_void) {}
