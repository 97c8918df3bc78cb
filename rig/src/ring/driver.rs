//! A well-behaved driver on a shared ring.

use std::sync::atomic::{Ordering, fence};

use super::chains::Chains;
use super::order::InOrder;
use super::{
    AVAIL_NO_INTERRUPT, DESC_INDIRECT, DESC_NEXT, DESC_WRITE, Descriptor, Iovec, MAX_RING_SIZE, SharedRing, USED_NO_NOTIFY, Used,
    passes_event,
};
use crate::memory::{GuestMemory, MemoryError};

/// Size and negotiated features of a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingOptions {
    /// Entries: a power of two, 1 to 32768.
    pub size: u16,
    /// VIRTIO_F_EVENT_IDX was negotiated.
    pub event_idx: bool,
    /// Longest indirect table, in descriptors; 0 when VIRTIO_F_INDIRECT_DESC was not negotiated.
    pub indirect: u16,
}

impl RingOptions {
    /// A ring of `size` entries without EVENT_IDX and without indirect tables.
    pub fn new(size: u16) -> Self {
        Self { size, event_idx: false, indirect: 0 }
    }
}

/// Why a ring cannot take or give a chain.
#[derive(Debug, thiserror::Error)]
pub enum RingError {
    /// Not enough free descriptors: release some first.
    #[error("the ring is full: {wanted} descriptors wanted, {left} free")]
    Full {
        /// Descriptors that the chain needs.
        wanted: usize,
        /// Descriptors that are free.
        left: u16,
    },
    /// A ring's size must be a power of two up to 32768 (section 2.7).
    #[error("{0} is no ring size: a power of two from 1 to 32768 is")]
    Size(u16),
    /// A chain must have 1 buffer segment or more, an indirect one no more than its table holds.
    #[error("a chain of {0} buffer segments does not fit a descriptor table")]
    Iovecs(usize),
    /// The device returned a head that is not in flight: a fault of the back end.
    #[error("the back end returned head {0}, which is not out")]
    NotOut(u32),
    /// The device moved the used index by more than the ring holds: a fault of the back end.
    #[error("the back end moved the used index from {from} to {to}, by more than the {size} entries of the ring")]
    UsedIndex {
        /// The index up to which the driver has read.
        from: u16,
        /// The index that it reads now.
        to: u16,
        /// Entries of the ring.
        size: u16,
    },
    /// Guest memory could not be had.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

/// When the driver wants an interrupt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interrupts {
    /// Never (a hint: the device may still send one).
    Off,
    /// Interrupt as soon as one more chain is used.
    Next,
    /// When this many more chains are used (without EVENT_IDX: as `Next`).
    After(u16),
}

/// The driver's half of a virtqueue; see the module's page.
#[derive(Debug)]
pub struct DriverRing {
    shared: SharedRing,
    options: RingOptions,
    chains: Chains,
    /// Guest address of `size` indirect tables of `options.indirect` descriptors, one for each head.
    tables: Option<u64>,
    /// Next entry of the available ring to fill.
    offered: u16,
    /// Available index as the device sees it.
    published: u16,
    /// Available index at the last decision on a kick.
    decided: u16,
    /// Next entry of the used ring to read.
    taken: u16,
    /// Used index as last read.
    seen: u16,
    /// With IN_ORDER: the chains in flight.
    order: Option<InOrder>,
}

/// A driver's notes beside the shared areas, for a guest that is saved.
#[derive(Debug, Clone)]
pub struct DriverState {
    chains: Chains,
    /// `offered`, `published`, `decided`, `taken` and `seen` of the ring.
    indices: [u16; 5],
    order: Option<InOrder>,
}

impl DriverRing {
    /// The driver's notes.
    pub fn state(&self) -> DriverState {
        let &Self { offered, published, decided, taken, seen, .. } = self;
        DriverState { chains: self.chains.clone(), indices: [offered, published, decided, taken, seen], order: self.order.clone() }
    }

    /// Goes on with the notes of a driver with a ring of the same options, whose shared areas lie at the same addresses.
    pub fn set_state(&mut self, state: &DriverState) {
        self.chains.clone_from(&state.chains);
        self.order.clone_from(&state.order);
        [self.offered, self.published, self.decided, self.taken, self.seen] = state.indices;
    }

    /// Lays a new ring (and its indirect tables) out in `memory`.
    ///
    /// # Errors
    /// [`RingError::Size`], [`RingError::Memory`].
    pub fn new(memory: &GuestMemory, options: RingOptions) -> Result<Self, RingError> {
        if !options.size.is_power_of_two() || options.size > MAX_RING_SIZE {
            return Err(RingError::Size(options.size));
        }
        let shared = SharedRing::new(memory, options.size)?;
        let bytes = 16 * u64::from(options.indirect) * u64::from(options.size);
        let tables = if bytes > 0 { Some(memory.allocate(bytes, 64)?) } else { None };
        Ok(Self {
            shared,
            options,
            chains: Chains::new(options.size),
            tables,
            offered: 0,
            published: 0,
            decided: 0,
            taken: 0,
            seen: 0,
            order: None,
        })
    }

    /// VIRTIO_F_IN_ORDER was negotiated: the device may show only the last chain of a batch (section 2.7.9).
    pub fn expect_in_order(&mut self) {
        self.order = Some(InOrder::default());
    }

    /// Whether chains are returned in order.
    pub fn expects_in_order(&self) -> bool {
        self.order.is_some()
    }

    /// The areas in memory, for raw access and for the device side.
    #[inline]
    pub fn shared(&self) -> &SharedRing {
        &self.shared
    }

    /// The options that the ring was made with.
    pub fn options(&self) -> RingOptions {
        self.options
    }

    /// Clears the areas and starts again at index `base` (0 after a device reset), forgetting all chains.
    ///
    /// # Errors
    /// None unless the memory was cut meanwhile.
    pub fn reset(&mut self, base: u16) -> Result<(), RingError> {
        self.shared.clear()?;
        self.chains = Chains::new(self.options.size);
        self.order = self.order.take().map(|_| InOrder::default());
        self.shared.set_available_index(base);
        self.shared.set_used_index(base);
        (self.offered, self.published, self.decided) = (base, base, base);
        (self.taken, self.seen) = (base, base);
        Ok(())
    }

    /// Free descriptors.
    pub fn free(&self) -> u16 {
        self.chains.left()
    }

    /// Chains published but not yet polled back.
    #[inline]
    pub fn in_flight(&self) -> u16 {
        self.published.wrapping_sub(self.taken)
    }

    /// Writes `iovecs` into the descriptor table as one descriptor chain and returns its head. The device does not see it yet.
    /// A prepared chain may be offered again and again until it is released.
    ///
    /// # Errors
    /// [`RingError::Full`], [`RingError::Iovecs`].
    pub fn prepare(&mut self, iovecs: &[Iovec]) -> Result<u16, RingError> {
        let Some((last, others)) = iovecs.split_last() else {
            return Err(RingError::Iovecs(0));
        };
        let head = self.take(iovecs.len())?;
        let mut index = head;
        for iovec in others {
            let next = self.chains.after(index);
            self.shared.set_descriptor(index, described(iovec, DESC_NEXT, next));
            index = next;
        }
        self.shared.set_descriptor(index, described(last, 0, 0));
        Ok(head)
    }

    /// The same with the buffer segments in an indirect table: the chain takes one descriptor.
    ///
    /// # Errors
    /// [`RingError::Full`]; [`RingError::Iovecs`] when the table is too short (`RingOptions::indirect`).
    pub fn prepare_indirect(&mut self, iovecs: &[Iovec]) -> Result<u16, RingError> {
        let Some(tables) = self.tables.filter(|_| fits(iovecs, self.options.indirect)) else {
            return Err(RingError::Iovecs(iovecs.len()));
        };
        let head = self.take(1)?;
        let table = tables + 16 * u64::from(self.options.indirect) * u64::from(head);
        self.write_table(table, iovecs)?;
        let length = 16 * iovecs.len() as u32;
        self.shared.set_descriptor(head, Descriptor { address: table, length, flags: DESC_INDIRECT, next: 0 });
        Ok(head)
    }

    /// Puts `head` into the next entry of the available ring; [`DriverRing::publish`] shows it.
    /// Any number may be put there: hostile tests do.
    #[inline]
    pub fn offer(&mut self, head: u16) {
        // The line is shared with the device: leave it alone when it already says so.
        if self.shared.available_entry(self.offered) != head {
            self.shared.set_available_entry(self.offered, head);
        }
        self.offered = self.offered.wrapping_add(1);
        if let Some(order) = &mut self.order {
            order.out.push_back(head);
        }
    }

    /// [`DriverRing::prepare`] and [`DriverRing::offer`] in one.
    ///
    /// # Errors
    /// The errors of `prepare`.
    pub fn add(&mut self, iovecs: &[Iovec]) -> Result<u16, RingError> {
        let head = self.prepare(iovecs)?;
        self.offer(head);
        Ok(head)
    }

    /// [`DriverRing::prepare_indirect`] and [`DriverRing::offer`] in one.
    ///
    /// # Errors
    /// The errors of `prepare_indirect`.
    pub fn add_indirect(&mut self, iovecs: &[Iovec]) -> Result<u16, RingError> {
        let head = self.prepare_indirect(iovecs)?;
        self.offer(head);
        Ok(head)
    }

    /// Shows everything offered to the device (release store of the available index, section 2.7.13.3).
    #[inline]
    pub fn publish(&mut self) {
        if self.published != self.offered {
            self.published = self.offered;
            self.shared.set_available_index(self.published);
        }
    }

    /// Whether the device asks for a kick for the chains published since the last such question (section 2.7.13.4).
    #[inline]
    pub fn kick_needed(&mut self) -> bool {
        let (old, new) = (self.decided, self.published);
        self.decided = new;
        if old == new {
            return false;
        }
        // The published index must be visible before the device's request for kicks is read, or both sides fall asleep.
        fence(Ordering::SeqCst);
        if self.options.event_idx {
            passes_event(self.shared.available_event(), new, old)
        } else {
            self.shared.used_flags() & USED_NO_NOTIFY == 0
        }
    }

    /// The next chain returned on the used ring, if any. Its descriptors stay taken until [`DriverRing::release`].
    ///
    /// # Errors
    /// [`RingError::UsedIndex`], [`RingError::NotOut`]: the back end broke the rules.
    pub fn poll(&mut self) -> Result<Option<Used>, RingError> {
        if self.completed()? == 0 {
            return Ok(None);
        }
        let used = self.take_used();
        let used = match &mut self.order {
            Some(order) => order.next(used).ok_or(RingError::NotOut(used.head))?,
            None => used,
        };
        if self.chains.is_in_flight(used.head) { Ok(Some(used)) } else { Err(RingError::NotOut(used.head)) }
    }

    /// Polls one chain and releases it.
    ///
    /// # Errors
    /// The errors of [`DriverRing::poll`].
    pub fn reclaim(&mut self) -> Result<Option<Used>, RingError> {
        let used = self.poll()?;
        if let Some(used) = used {
            self.release(used.head as u16);
        }
        Ok(used)
    }

    /// How many chains on the used ring were not taken yet; reads the device's index only when none is known.
    ///
    /// # Errors
    /// [`RingError::UsedIndex`].
    #[inline]
    pub fn completed(&mut self) -> Result<u16, RingError> {
        if self.seen == self.taken {
            self.seen = self.shared.used_index();
            if self.seen.wrapping_sub(self.taken) > self.shared.size() {
                return Err(RingError::UsedIndex { from: self.taken, to: self.seen, size: self.shared.size() });
            }
        }
        Ok(self.seen.wrapping_sub(self.taken))
    }

    /// How many chains on the used ring are known and were not taken yet, without reading the device's index.
    #[inline]
    pub fn known(&self) -> u16 {
        self.seen.wrapping_sub(self.taken)
    }

    /// The used element `ahead` places after the next one, unchecked: for prefetching. Only below `completed()`.
    #[inline]
    pub fn peek_used(&self, ahead: u16) -> Used {
        self.shared.used_entry(self.taken.wrapping_add(ahead))
    }

    /// Takes the next used element without a check that its head is in flight. Only after `completed()` said so.
    #[inline]
    pub fn take_used(&mut self) -> Used {
        let used = self.shared.used_entry(self.taken);
        self.taken = self.taken.wrapping_add(1);
        used
    }

    /// Takes a chain's descriptors back; `false` when no such chain is in flight.
    pub fn release(&mut self, head: u16) -> bool {
        self.chains.give_back(head)
    }

    /// Says when the driver wants an interrupt. `true` means that the condition is met already: poll again, no interrupt may come.
    pub fn set_interrupts(&mut self, when: Interrupts) -> bool {
        let count = match when {
            Interrupts::Off => 0,
            Interrupts::Next => 1,
            Interrupts::After(count) => count.max(1),
        };
        if self.options.event_idx {
            // The flag must stay 0 (section 2.7.7.1); "off" is an index that lies a whole round of the ring ahead.
            self.shared.set_used_event(self.taken.wrapping_add(count).wrapping_sub(1));
        } else {
            self.shared.set_available_flags(if count == 0 { AVAIL_NO_INTERRUPT } else { 0 });
        }
        if count == 0 {
            return false;
        }
        // The driver's request must be visible before the index is read again (section 2.7.14).
        fence(Ordering::SeqCst);
        let wanted = if self.options.event_idx { count } else { 1 };
        self.shared.used_index().wrapping_sub(self.taken) >= wanted
    }

    /// The index up to which the driver has read the used ring.
    pub fn taken_index(&self) -> u16 {
        self.taken
    }

    /// The available index last published.
    pub fn published_index(&self) -> u16 {
        self.published
    }

    /// Tells the driver that the available index is `index`, after a hostile test wrote it by hand.
    pub fn resume_at(&mut self, index: u16) {
        (self.offered, self.published, self.decided) = (index, index, index);
    }

    fn take(&mut self, count: usize) -> Result<u16, RingError> {
        let full = RingError::Full { wanted: count, left: self.chains.left() };
        let count = u16::try_from(count).map_err(|_| RingError::Iovecs(count))?;
        self.chains.take(count).ok_or(full)
    }

    fn write_table(&self, table: u64, iovecs: &[Iovec]) -> Result<(), MemoryError> {
        for (index, iovec) in iovecs.iter().enumerate() {
            let last = index + 1 == iovecs.len();
            let (flags, next) = if last { (0, 0) } else { (DESC_NEXT, index as u16 + 1) };
            let entry = described(iovec, flags, next);
            self.shared.memory().write(table + 16 * index as u64, &entry.bytes())?;
        }
        Ok(())
    }
}

fn fits(iovecs: &[Iovec], table: u16) -> bool {
    !iovecs.is_empty() && iovecs.len() <= usize::from(table)
}

fn described(iovec: &Iovec, flags: u16, next: u16) -> Descriptor {
    let write = if iovec.writable { DESC_WRITE } else { 0 };
    Descriptor { address: iovec.address, length: iovec.length, flags: flags | write, next }
}
