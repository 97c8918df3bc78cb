//! The unplanned end of a network: a thread that it cannot do without has panicked.
//!
//! A worker that panics takes its virtqueues with it, and frames of the other workers that are in flight there. So all workers end,
//! commands that wait for one of them fail, and the process ends with one sentence: guests connect again when it is started again.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};
use std::sync::{Arc, Mutex, Once, OnceLock, PoisonError};

thread_local! {
    /// Nesting depth of [`caught`] in this thread.
    static CATCHES: Cell<u32> = const { Cell::new(0) };
    /// Place and message of its last panic there.
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
    /// The network that its panic ends, and the thread's name in the message.
    static GUARD: RefCell<Option<(Arc<Fatal>, String)>> = const { RefCell::new(None) };
}

/// Runs `run`, and catches its panic.
///
/// # Errors
/// The function panicked: place and message, for the operator. They are printed only if backtraces are enabled.
pub fn caught<R>(run: impl FnOnce() -> R) -> Result<R, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let silent = CATCHES.get() > 0 && std::env::var_os("RUST_BACKTRACE").is_none();
            if CATCHES.get() > 0 {
                let panic = sentence(info);
                // Before the channels are dropped, because waiting commands learn from that that the thread ended.
                GUARD.with_borrow(|guard| guard.iter().for_each(|(fatal, thread)| fatal.fail(thread, &panic)));
                PANIC.set(Some(panic));
            }
            if !silent {
                usual(info);
            }
        }));
    });
    CATCHES.set(CATCHES.get() + 1);
    let result = catch_unwind(AssertUnwindSafe(run));
    CATCHES.set(CATCHES.get() - 1);
    result.map_err(|payload| PANIC.take().unwrap_or_else(|| text(&*payload).into()))
}

/// The quarantine cause of a port whose own thread panicked.
pub fn defect(panic: &str) -> String {
    format!("a defect of memlane, please report it: {panic}")
}

fn sentence(info: &PanicHookInfo<'_>) -> String {
    let place = info.location().map(|place| format!(" at {}:{}", place.file(), place.line())).unwrap_or_default();
    format!("{}{place}", text(info.payload()).replace('\n', " "))
}

fn text(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<&str>().copied().or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("a panic without a message")
}

type Callback = Box<dyn FnOnce() + Send>;

/// See the module.
#[derive(Default)]
pub struct Fatal {
    cause: OnceLock<String>,
    callback: Mutex<Option<Callback>>,
}

impl std::fmt::Debug for Fatal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fatal").field("cause", &self.cause).finish_non_exhaustive()
    }
}

impl Fatal {
    /// The cause of the network's end, once it has ended: a sentence with the remedy.
    pub fn cause(&self) -> Option<&str> {
        self.cause.get().map(String::as_str)
    }

    /// Sets `callback` to be called once there is a cause, at once if there is one already.
    pub fn notify(&self, callback: impl FnOnce() + Send + 'static) {
        *self.callback() = Some(Box::new(callback));
        if self.cause.get().is_some() {
            self.notify_now();
        }
    }

    /// Runs `run`, a thread that the network cannot do without: its panic ends the network.
    pub fn guard<R>(self: &Arc<Self>, thread: &str, run: impl FnOnce() -> R) -> Option<R> {
        GUARD.set(Some((Arc::clone(self), thread.into())));
        let result = caught(run);
        GUARD.take();
        result.inspect_err(|panic| self.fail(thread, panic)).ok()
    }

    /// `thread` has panicked. If several do, the first one is the cause.
    fn fail(&self, thread: &str, panic: &str) {
        let _ = self.cause.set(format!(
            "{thread} failed: {panic}. This is a defect of memlane: report this line, and start the network again; its guests connect \
             again by themselves"
        ));
        self.notify_now();
    }

    fn notify_now(&self) {
        let callback = self.callback().take();
        callback.into_iter().for_each(|callback| callback());
    }

    fn callback(&self) -> std::sync::MutexGuard<'_, Option<Callback>> {
        self.callback.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn a_panic_is_one_line_with_its_place() {
        assert_eq!(caught(|| 7), Ok(7));
        let told = caught(|| panic!("a\nb")).unwrap_err();
        assert!(told.starts_with("a b at ") && told.contains("fatal.rs:") && !told.contains('\n'), "{told}");
    }

    #[test]
    fn the_first_cause_stays_and_the_bell_rings_once() {
        let (fatal, rung) = (Arc::new(Fatal::default()), Arc::new(AtomicU32::new(0)));
        let count = || {
            let rung = Arc::clone(&rung);
            move || {
                rung.fetch_add(1, Ordering::Relaxed);
            }
        };
        fatal.notify(count());
        assert!(fatal.guard("a", || 7) == Some(7) && fatal.cause().is_none());
        let failed = ["first", "second"].map(|why| fatal.guard(why, || panic!("{why}")));
        assert_eq!(failed, [None::<()>; 2]);
        assert!(fatal.cause().unwrap().starts_with("first failed: first at "), "{:?}", fatal.cause());
        assert_eq!(rung.load(Ordering::Relaxed), 1);
        fatal.notify(count());
        assert_eq!(rung.load(Ordering::Relaxed), 2, "who asks later hears at once");
    }
}
