//! The guest's life: negotiate, start, stop, lose the back end, come back.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use vhost::VringConfigData;
use vhost::vhost_user::message::VhostUserProtocolFeatures as Protocol;

use crate::frontend::features::{self, Features};
use crate::frontend::{Frontend, FrontendError};
use crate::ring::{DriverRing, RingError, RingOptions};

use super::{Endpoint, GuestError, Pair, Queue, ReceiveQueue, RingStep, Step, ToldBase, ToyGuest, TransmitQueue};

/// Pause before a refused connection is tried again.
const PAUSE: Duration = Duration::from_millis(10);

type Result<T> = std::result::Result<T, GuestError>;

impl ToyGuest {
    /// Starts the device: the habit's messages, with the rings at their bases.
    ///
    /// # Errors
    /// [`GuestError::Frontend`] when the back end refuses.
    pub fn start(&mut self) -> Result<()> {
        self.make_pairs()?;
        self.share_inflight()?;
        self.run(self.plan.habit.start)?;
        self.synchronise()
    }

    /// Has the back end record chains in flight, if that was negotiated: in the region of the one before, if there was one (QEMU's block
    /// devices, Cloud Hypervisor).
    fn share_inflight(&mut self) -> Result<()> {
        if !self.frontend()?.protocol().contains(Protocol::INFLIGHT_SHMFD) {
            return Ok(());
        }
        if self.inflight.is_none() {
            let (queues, size) = (2 * self.plan.pairs as u16, self.plan.ring_size);
            self.inflight = Some(self.frontend()?.inflight(queues, size)?);
        }
        let frontend = self.frontend.as_mut().ok_or(GuestError::NotConnected)?;
        self.inflight.as_ref().map_or(Ok(()), |inflight| frontend.set_inflight(inflight))?;
        Ok(())
    }

    /// Waits until the back end has handled every message so far, by asking something that it must answer: few front ends
    /// have all their messages acknowledged, and a test wants to send as soon as the guest is started.
    ///
    /// # Errors
    /// [`GuestError::Frontend`] when the back end does not answer.
    pub fn synchronise(&mut self) -> Result<()> {
        self.frontend()?.features()?;
        Ok(())
    }

    /// Stops the device: the habit's messages. The bases that the back end tells are remembered for the next start.
    ///
    /// # Errors
    /// [`GuestError::Frontend`] when the back end refuses.
    pub fn stop(&mut self) -> Result<()> {
        self.run(self.plan.habit.stop)
    }

    /// Stops the device and starts it again on the same connection with other features and with new rings, as DPDK does.
    ///
    /// # Errors
    /// [`GuestError::Frontend`] when the back end refuses.
    pub fn restart_with(&mut self, wanted: Features) -> Result<()> {
        self.stop()?;
        self.plan.wanted = wanted;
        self.features = wanted & self.offered;
        self.renew_rings()?;
        self.start()
    }

    /// Lays all rings out anew, for the features negotiated now, with their receive buffers posted.
    fn renew_rings(&mut self) -> Result<()> {
        for index in 0..self.pairs.len() {
            let (receive, transmit) = self.new_rings()?;
            let pair = &mut self.pairs[index];
            (pair.receive.queue.ring, pair.transmit.queue.ring) = (receive, transmit);
            pair.begin_anew()?;
        }
        Ok(())
    }

    /// Resets all rings to index 0 and posts the receive buffers anew. Only while the device is stopped.
    ///
    /// # Errors
    /// [`GuestError::Ring`].
    pub fn reset_rings(&mut self) -> Result<()> {
        for pair in &mut self.pairs {
            pair.transmit.queue.ring.reset(0)?;
            pair.receive.queue.ring.reset(0)?;
            pair.begin_anew()?;
        }
        Ok(())
    }

    /// Hangs up. Memory and rings stay as they are.
    pub fn disconnect(&mut self) {
        self.frontend = None;
        self.channel = None;
        self.told.clear();
    }

    /// Connects again (or waits until the back end does) and starts the device as its habit is: rings resume at the used index, so
    /// that chains in flight are read again, whichever base is stated; UML's begin anew. A back end that refuses the connection, since
    /// it has not seen the end of the one before, is tried again, as by QEMU's `reconnect-ms`.
    ///
    /// # Errors
    /// [`GuestError::NotOffered`] when the back end has lost features; any other [`GuestError`] of the handshake.
    pub fn reconnect(&mut self) -> Result<()> {
        let (agreed, deadline) = (self.features, Instant::now() + self.plan.timeout);
        while let Err(error) = self.connect_again() {
            // The first message of a connection.
            let refused = matches!(error, GuestError::Frontend(FrontendError::Message { message: "GET_FEATURES", .. }));
            if !refused || Instant::now() > deadline {
                return Err(error);
            }
            std::thread::sleep(PAUSE);
        }
        if self.features != agreed {
            return Err(GuestError::NotOffered(features::names(agreed & !self.features).join(", ")));
        }
        if self.plan.habit.resumes {
            for queue in self.queues() {
                queue.base = queue.ring.shared().used_index();
            }
        } else {
            self.reset_rings()?;
        }
        self.start()
    }

    /// A new connection, with features agreed.
    fn connect_again(&mut self) -> Result<()> {
        self.disconnect();
        self.frontend = Some(match &self.endpoint {
            Endpoint::Connect(path) => Frontend::connect(path, self.plan.timeout)?,
            Endpoint::Listen(listener) => Frontend::accept(listener, self.plan.timeout)?,
            Endpoint::Given => return Err(GuestError::NotConnected),
        });
        self.negotiate()
    }

    /// Tells the back end of these regions of the memory only (SET_MEM_TABLE), running or not.
    ///
    /// # Errors
    /// [`GuestError::Frontend`] when the back end refuses.
    pub fn announce_memory(&mut self, regions: &[usize]) -> Result<()> {
        let table: Vec<_> = regions.iter().map(|&index| self.memory.table_entry(index)).collect();
        self.frontend()?.set_memory_table(&table)?;
        self.announced = regions.to_vec();
        self.told = regions.to_vec();
        Ok(())
    }

    /// Tells the back end of one more region (ADD_MEM_REG), running or not.
    ///
    /// # Errors
    /// [`GuestError::Frontend`] when the back end refuses.
    pub fn add_region(&mut self, region: usize) -> Result<()> {
        let entry = self.memory.table_entry(region);
        self.frontend()?.add_region(&entry)?;
        self.told.push(region);
        Ok(())
    }

    /// Takes one region away from the back end (REM_MEM_REG), running or not.
    ///
    /// # Errors
    /// [`GuestError::Frontend`] when the back end refuses.
    pub fn remove_region(&mut self, region: usize) -> Result<()> {
        let entry = self.memory.table_entry(region);
        self.frontend()?.remove_region(&entry)?;
        self.told.retain(|&told| told != region);
        Ok(())
    }

    /// Every queue, receive and transmit queues in the order of their indices.
    pub fn queues(&mut self) -> impl Iterator<Item = &mut Queue> {
        self.pairs.iter_mut().flat_map(|pair| [&mut pair.receive.queue, &mut pair.transmit.queue])
    }

    /// SET_FEATURES with VHOST_F_LOG_ALL, or without it again: the back end marks the pages that it writes. Rings may run.
    /// Waits until it is done, as QEMU does.
    ///
    /// # Errors
    /// [`GuestError::Frontend`] when the back end refuses.
    pub fn log_writes(&mut self, on: bool) -> Result<()> {
        self.features = if on { self.features | features::LOG_ALL } else { self.features & !features::LOG_ALL };
        self.step(Step::SetFeatures)?;
        self.synchronise()
    }

    /// SET_VRING_ADDR of each ring, with VHOST_VRING_F_LOG and the used ring's guest address or without. Rings may run.
    /// Waits until it is done.
    ///
    /// # Errors
    /// [`GuestError::Frontend`] when the back end refuses.
    pub fn log_rings(&mut self, on: bool) -> Result<()> {
        let areas = self.queues().map(|queue| Ok((queue.index, addresses(queue)?, queue.ring.shared().addresses().used)));
        for (index, areas, used) in areas.collect::<Result<Vec<_>>>()? {
            let areas = VringConfigData { flags: on.into(), log_addr: on.then_some(used), ..areas };
            self.frontend()?.set_ring_addresses(index, &areas)?;
        }
        self.synchronise()
    }

    /// Runs of guest addresses, first address and bytes, that only the back end writes: used rings and receive buffers.
    pub fn back_end_ranges(&mut self) -> Vec<(u64, u64)> {
        let used = |queue: &Queue| (queue.ring.shared().addresses().used, 6 + 8 * u64::from(queue.ring.options().size));
        let mut ranges: Vec<_> = self.queues().map(|queue| used(queue)).collect();
        ranges.extend(self.pairs.iter().map(|pair| pair.receive.range()));
        ranges
    }

    /// The messages of the connection's beginning.
    pub(super) fn negotiate(&mut self) -> Result<()> {
        self.run(self.plan.habit.connect)
    }

    fn run(&mut self, steps: &[Step]) -> Result<()> {
        steps.iter().try_for_each(|step| self.step(*step))
    }

    /// One of a habit's messages.
    ///
    /// # Errors
    /// [`GuestError::Frontend`] when the back end refuses.
    pub fn step(&mut self, step: Step) -> Result<()> {
        let protocol = self.frontend()?.protocol();
        match step {
            Step::Owner => self.frontend()?.set_owner()?,
            Step::GetFeatures => {
                self.offered = self.frontend()?.features()?;
                self.features = self.plan.wanted & self.offered;
            }
            Step::ProtocolFeatures => self.agree_on_protocol()?,
            Step::QueueNumber if protocol.contains(Protocol::MQ) => self.check_queue_number()?,
            Step::MemorySlots if protocol.contains(Protocol::CONFIGURE_MEM_SLOTS) => {
                self.frontend()?.memory_slots()?;
            }
            Step::BackendChannel if protocol.contains(Protocol::BACKEND_REQ) => self.open_channel()?,
            Step::SetFeatures => {
                let features = self.features;
                self.frontend()?.set_features(features)?;
            }
            Step::MemoryRegions if protocol.contains(Protocol::CONFIGURE_MEM_SLOTS) => self.add_regions()?,
            Step::MemoryTable | Step::MemoryRegions => self.announce_memory(&self.announced.clone())?,
            Step::Status(status) if protocol.contains(Protocol::STATUS) => self.frontend()?.set_status(status)?,
            Step::EachRing(steps) => self.each_ring(steps)?,
            Step::QueueNumber | Step::MemorySlots | Step::BackendChannel | Step::Status(_) => {}
        }
        Ok(())
    }

    fn add_regions(&mut self) -> Result<()> {
        let missing: Vec<_> = self.announced.iter().copied().filter(|region| !self.told.contains(region)).collect();
        missing.into_iter().try_for_each(|region| self.add_region(region))
    }

    fn agree_on_protocol(&mut self) -> Result<()> {
        if self.offered & features::PROTOCOL_FEATURES == 0 {
            return Ok(());
        }
        let wanted = self.plan.protocol;
        let acknowledge = self.plan.acknowledge.unwrap_or(self.plan.habit.acknowledge);
        let frontend = self.frontend()?;
        let offered = frontend.protocol_features()?;
        Ok(frontend.set_protocol_features(offered & wanted, acknowledge)?)
    }

    fn check_queue_number(&mut self) -> Result<()> {
        let number = self.frontend()?.queue_number()?;
        if number < self.plan.pairs as u64 {
            return Err(GuestError::NotOffered(format!("{} queue pairs, only {number}", self.plan.pairs)));
        }
        Ok(())
    }

    fn open_channel(&mut self) -> Result<()> {
        let refused = |cause| GuestError::Refused { step: "making the channel for the back end's requests", cause };
        let (ours, theirs) = UnixStream::pair().map_err(refused)?;
        self.frontend()?.set_backend_channel(&OwnedFd::from(theirs))?;
        self.channel = Some(ours);
        Ok(())
    }

    pub(super) fn make_pairs(&mut self) -> Result<()> {
        for index in self.pairs.len()..self.plan.pairs {
            let pair = self.new_pair(index)?;
            self.pairs.push(pair);
        }
        Ok(())
    }

    /// A receive queue's and a transmit queue's ring, for the negotiated features.
    fn new_rings(&self) -> Result<(DriverRing, DriverRing)> {
        let has = |feature| self.features & feature != 0;
        let indirect = if has(features::INDIRECT_DESC) { self.plan.indirect } else { 0 };
        let ring = |indirect| {
            let options = RingOptions { size: self.plan.ring_size, event_idx: has(features::EVENT_IDX), indirect };
            let mut ring = DriverRing::new(&self.memory, options)?;
            if has(features::IN_ORDER) {
                ring.expect_in_order();
            }
            Ok::<_, RingError>(ring)
        };
        Ok((ring(0)?, ring(indirect)?))
    }

    fn new_pair(&self, index: usize) -> Result<Pair> {
        let (plan, memory) = (&self.plan, &self.memory);
        let (receive, transmit) = self.new_rings()?;
        let queue = |ring, index| Queue::new(ring, index, plan.kick, plan.call.unwrap_or(plan.habit.call));
        let mut receive = ReceiveQueue::new(queue(receive, 2 * index)?, memory, plan.receive)?;
        receive.fill()?;
        let transmit = TransmitQueue::new(queue(transmit, 2 * index + 1)?, memory, plan.send.count, plan.send.size)?;
        Ok(Pair { receive, transmit })
    }

    fn each_ring(&mut self, steps: &[RingStep]) -> Result<()> {
        self.make_pairs()?;
        for pair in 0..self.pairs.len() {
            for index in [2 * pair, 2 * pair + 1] {
                steps.iter().try_for_each(|step| self.ring_step(index, *step))?;
            }
        }
        Ok(())
    }

    /// One of the habit's messages about ring `index`.
    ///
    /// # Errors
    /// [`GuestError::Frontend`] when the back end refuses.
    pub fn ring_step(&mut self, index: usize, step: RingStep) -> Result<()> {
        let mut pairs = std::mem::take(&mut self.pairs);
        let pair = &mut pairs[index / 2];
        let queue = if index.is_multiple_of(2) { &mut pair.receive.queue } else { &mut pair.transmit.queue };
        let result = self.queue_step(queue, step);
        self.pairs = pairs;
        result
    }

    /// The same for a queue that is not among the pairs.
    pub(super) fn queue_step(&mut self, queue: &mut Queue, step: RingStep) -> Result<()> {
        let index = queue.index;
        let can_enable = self.features & features::PROTOCOL_FEATURES != 0;
        let wants_enable = self.plan.enable;
        let frontend = self.frontend.as_mut().ok_or(GuestError::NotConnected)?;
        match step {
            RingStep::Call => frontend.set_ring_call(index, queue.call.fd())?,
            RingStep::Error => queue.fault.fd().map_or(Ok(()), |fd| frontend.set_ring_error(index, fd))?,
            RingStep::Size => frontend.set_ring_size(index, queue.ring.options().size)?,
            RingStep::Base => frontend.set_ring_base(index, told_base(self.plan.habit.base, queue))?,
            RingStep::Addresses => frontend.set_ring_addresses(index, &addresses(queue)?)?,
            RingStep::Kick => frontend.set_ring_kick(index, queue.kick.fd())?,
            RingStep::Enable if can_enable && wants_enable => frontend.enable_ring(index, true)?,
            RingStep::Disable if can_enable => frontend.enable_ring(index, false)?,
            RingStep::Stop => queue.base = frontend.ring_base(index)? as u16,
            RingStep::Enable | RingStep::Disable => {}
        }
        // Buffers may have been posted before the back end knew of the ring.
        if step == RingStep::Kick && self.plan.start_kick {
            queue.kick();
        }
        Ok(())
    }
}

/// The base of `queue` that a front end with the habit `base` states.
fn told_base(base: ToldBase, queue: &Queue) -> u16 {
    match base {
        ToldBase::Kept => queue.base,
        ToldBase::Available => queue.ring.shared().available_index(),
        ToldBase::Zero => 0,
    }
}

/// A ring's areas as user addresses.
fn addresses(queue: &Queue) -> Result<VringConfigData> {
    let shared = queue.ring.shared();
    let (memory, at) = (shared.memory(), shared.addresses());
    Ok(VringConfigData {
        queue_max_size: shared.size(),
        queue_size: shared.size(),
        flags: 0,
        desc_table_addr: memory.user(at.descriptors)?,
        used_ring_addr: memory.user(at.used)?,
        avail_ring_addr: memory.user(at.available)?,
        log_addr: None,
    })
}

impl From<GuestError> for std::io::Error {
    fn from(error: GuestError) -> Self {
        match error {
            GuestError::Refused { cause, .. } | GuestError::Frontend(FrontendError::Socket { cause, .. }) => cause,
            other => Self::other(other),
        }
    }
}
