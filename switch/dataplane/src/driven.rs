//! Workers that a test drives in its own thread, on its own clock ([`crate::time::driven`]): where the control side waits for the answer of a
//! worker, it lets the test run poll iterations meanwhile.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::mpsc::{Receiver, TryRecvError};

use crate::time::driven;

/// Runs a poll iteration of some worker.
type Step = Rc<dyn Fn()>;

thread_local! {
    static STEP: RefCell<Option<Step>> = const { RefCell::new(None) };
}

/// Has `step` called again and again while the calling thread waits for workers, or none.
pub fn while_waiting(step: Option<Step>) {
    STEP.set(step);
}

/// Waits for an answer of a worker; `None` if the worker has ended.
pub(crate) fn await_answer<R>(answer: &Receiver<R>) -> Option<R> {
    if driven::is_on() { await_stepping(answer) } else { answer.recv().ok() }
}

#[cold]
fn await_stepping<R>(answer: &Receiver<R>) -> Option<R> {
    let step = STEP.with_borrow(Option::clone)?;
    loop {
        match answer.try_recv() {
            Ok(answer) => return Some(answer),
            Err(TryRecvError::Disconnected) => return None,
            Err(TryRecvError::Empty) => step(),
        }
    }
}
