//! For a fuzzer only (`--cfg fuzzing`): reports each read of guest memory before it is made, so that memory can change in between
//! as a guest would change it, at a reproducible moment; and so that work can be counted.

use std::cell::RefCell;

/// The read that is about to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    /// The driver's available index at this host address.
    Index(usize),
    /// An entry of the available ring, or a descriptor.
    Entry,
    /// So many bytes of frames or headers, which may also be the switch's own.
    Bytes(usize),
}

type Listener = Box<dyn FnMut(Read)>;

thread_local! {
    static LISTENER: RefCell<Option<Listener>> = const { RefCell::new(None) };
}

/// Calls `listener` for all reads of this thread from now on.
pub fn listen(listener: Option<Listener>) {
    LISTENER.with(|place| *place.borrow_mut() = listener);
}

/// A read is about to be made. Reads by the listener itself are not reported.
pub fn tell(read: Read) {
    LISTENER.with(|place| {
        if let Ok(mut place) = place.try_borrow_mut()
            && let Some(listener) = &mut *place
        {
            listener(read);
        }
    });
}
