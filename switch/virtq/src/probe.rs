//! For a fuzzer only (`--cfg fuzzing`): tells of each read of guest memory before it is made, so that memory can change in between as it would under
//! a guest's hands, at a moment that can be repeated; and so that work can be counted.

use std::cell::RefCell;

/// What is about to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    /// The driver's index at this address of ours.
    Index(usize),
    /// An entry of the driver's ring, or a descriptor.
    Entry,
    /// So many bytes of frames or headers, which may also be our own.
    Bytes(usize),
}

type Listener = Box<dyn FnMut(Read)>;

thread_local! {
    static LISTENER: RefCell<Option<Listener>> = const { RefCell::new(None) };
}

/// Has `listener` hear of all reads of this thread from now on.
pub fn listen(listener: Option<Listener>) {
    LISTENER.with(|place| *place.borrow_mut() = listener);
}

/// A read is about to be made. What the listener itself reads is not told.
pub fn tell(read: Read) {
    LISTENER.with(|place| {
        if let Ok(mut place) = place.try_borrow_mut()
            && let Some(listener) = &mut *place
        {
            listener(read);
        }
    });
}
