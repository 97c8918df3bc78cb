//! Guests for a vhost-user switch without a virtual machine.
//!
//! ```text
//!   ToyGuest ──┬── GuestMemory   a memfd, shared with the back end
//!   (guest)    ├── DriverRing    the driver's half of a virtqueue, in that memory
//!              └── Frontend      the vhost-user conversation that hands both over
//! ```
//!
//! A **habit** is how a kind of front end speaks (QEMU, UML, DPDK). A **blast** is guests that send and receive as fast as told, and measure.
//! A **villain** is a guest that misbehaves in one named way.
//!
//! Modules, in the order in which a frame meets them: [`frames`] builds it; [`memory`] and [`ring`] carry it, and work in
//! one process without any socket (fuzzers and benches hand them straight to the device side); [`frontend`] speaks with
//! the back end; [`guest`] is all of it in one. [`blast`] and [`villain`] are made of guests. [`deadline`] is how everything here waits.
//!
//! ```no_run
//! use std::time::Duration;
//! use memlane_rig::guest::{Habit, ToyGuest};
//!
//! let mut one = ToyGuest::builder().connect("/run/memlane/one.sock")?;
//! let mut two = ToyGuest::builder().habit(Habit::UML).connect("/run/memlane/two.sock")?;
//! one.send(&[0xff; 60])?;
//! assert_eq!(two.receive(Duration::from_secs(1))?.bytes, [0xff; 60]);
//! # Ok::<(), memlane_rig::guest::GuestError>(())
//! ```

// Frames, and the memory and rings that carry them.
pub mod frames;
pub mod memory;
pub mod ring;

// The front end that speaks with the back end, and the whole guest.
pub mod frontend;
pub mod guest;

// Traffic generator and hostile guests.
pub mod blast;
pub mod villain;

// Shared by all of these.
pub mod clock;
pub mod deadline;
