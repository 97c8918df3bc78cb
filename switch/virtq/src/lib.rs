//! The device side of virtio-net's split virtqueues (virtio 1.4, section 2.7), for a device that trusts no guest: available and
//! used rings, descriptor chains, offloads, guest memory, and notifications (kicks, interrupts, EVENT_IDX, coalescing).
//!
//! 1. [`memory`]: guest memory that a front end shares, and checked access to it. A guest that truncates its file loses its memory, and
//!    the process of the device survives.
//! 2. [`ring`]: a transmit queue yields packets, a receive queue takes them. Each descriptor is read once, then checked.
//! 3. [`packet`]: a packet in the memory of its sender; [`frame`]: its headers, copied once; [`offload`]: segmentation and checksums for a
//!    receiver without these offloads.
//! 4. [`in_flight`]: the frames of a transmit queue that are in flight, with their holders.
//! 5. [`copy`]: the only copy of the payload, from guest memory to guest memory.
//! 6. [`notification`], [`watchdog`]: lost notifications, and interrupts that block.
//! 7. [`threshold`], [`budget`]: quotas; [`time`]: the cycle counter; [`message`]: numbers in sentences.
//!
//! An example carries one packet from the transmit ring of a guest to its receive ring:
//!
//! ```
//! use std::fs::File;
//! use std::os::unix::fs::FileExt;
//! use std::sync::Arc;
//!
//! use memlane_virtq::memory::{MemoryMap, Region, RegionTable};
//! use memlane_virtq::offload::Offloads;
//! use memlane_virtq::packet::Packet;
//! use memlane_virtq::ring::{Areas, OpenOutcome, PlaceOutcome, ReceiveQueue, Ring, RingOptions, SplitRing, TransmitQueue};
//! use nix::sys::memfd::{MFdFlags, memfd_create};
//!
//! /// VIRTQ_DESC_F_WRITE: a buffer for the device to write to.
//! const WRITE: u16 = 2;
//!
//! /// The driver's side: its first descriptor, made available.
//! fn post(memory: &File, ring: u64, address: u64, length: u32, flags: u16) -> std::io::Result<()> {
//!     memory.write_all_at(&address.to_le_bytes(), ring)?;
//!     memory.write_all_at(&length.to_le_bytes(), ring + 8)?;
//!     memory.write_all_at(&flags.to_le_bytes(), ring + 12)?;
//!     memory.write_all_at(&1_u16.to_le_bytes(), ring + 0x102)
//! }
//!
//! /// The device's side: a ring of four entries, whose areas begin at `ring`.
//! fn open(map: &Arc<MemoryMap>, ring: u64) -> Ring {
//!     let find = |offset, length| map.find_user(ring + offset, length).expect("a place in the guest's memory");
//!     let areas = Areas {
//!         descriptors: find(0, Areas::descriptor_bytes(4)),
//!         available: find(0x100, Areas::available_bytes(4)),
//!         used: find(0x200, Areas::used_bytes(4)),
//!     };
//!     // SAFETY: the areas lie in the map, which the ring holds.
//!     let split = unsafe { SplitRing::new(areas, 4) }.expect("aligned areas");
//!     let options = RingOptions { event_index: false, indirect: false, in_order: false, header_length: 12 };
//!     Ring::new(split, Arc::clone(map), options, 0)
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // A guest's memory, with a transmit ring at 0 and a receive ring at 0x1000.
//! let memory = File::from(memfd_create("guest", MFdFlags::MFD_CLOEXEC)?);
//! memory.set_len(0x1_0000)?;
//! let table = RegionTable { guest_start: 0, length: 0x1_0000, user_start: 0, file_offset: 0 };
//! let map = Arc::new(MemoryMap::new(vec![Arc::new(Region::map(table, memory.try_clone()?)?)])?);
//! let mut transmit = TransmitQueue::new(open(&map, 0));
//! let mut receive = ReceiveQueue::new(open(&map, 0x1000), Offloads::ALL, true);
//!
//! // The driver sends 60 bytes behind a virtio-net header of 12, and posts a receive buffer.
//! memory.write_all_at(&[7; 60], 0x2000 + 12)?;
//! post(&memory, 0, 0x2000, 72, 0)?;
//! post(&memory, 0x1000, 0x3000, 2048, WRITE)?;
//!
//! // The device takes the packet, copies it once, and tells the driver.
//! let mut packet = Packet::default();
//! assert_eq!(transmit.look(32)?, 1);
//! assert_eq!(transmit.open(&mut packet)?, OpenOutcome::Packet);
//! assert_eq!(receive.place(&mut packet)?, PlaceOutcome::Complete(1));
//! transmit.finish(&packet);
//! receive.ring().publish();
//! transmit.ring().publish();
//!
//! let (mut frame, mut used) = ([0; 60], [0; 2]);
//! memory.read_exact_at(&mut frame, 0x3000 + 12)?;
//! memory.read_exact_at(&mut used, 0x1202)?;
//! assert_eq!((frame, u16::from_le_bytes(used)), ([7; 60], 1));
//! # Ok(())
//! # }
//! ```

#![deny(unsafe_code)]
#![warn(unreachable_pub)]
// A worker that panics ends the network: a place that may panic states why it does not, as its file's expectation.
#![warn(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable)]

pub mod ablation;
pub mod budget;
pub mod copy;
pub mod drop_reason;
pub mod frame;
pub mod id;
pub mod in_flight;
pub mod memory;
pub mod message;
pub mod notification;
pub mod offload;
pub mod packet;
#[cfg(fuzzing)]
pub mod probe;
pub mod ring;
pub mod system;
pub mod threshold;
pub mod time;
pub mod watchdog;
