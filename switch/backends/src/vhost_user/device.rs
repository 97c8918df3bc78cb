//! The effect of each vhost-user message on a port.

#![expect(
    clippy::indexing_slicing,
    reason = "a virtqueue's index is checked where its message is read; the configuration space has a fixed length"
)]

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Result};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use vhost::vhost_user::message::FrontendReq as Request;
use vhost::vhost_user::{Error, VhostUserProtocolFeatures};

use super::control::{Commands, ControlQueue, HeldControlQueue};
use super::device_state;
use super::features::{self, Agreed, Circumstances, Opening};
use super::messages;
use super::settings::DeviceSettings;
use super::shared_memory_check::SharedMemoryProblem;
use super::vring::{Addresses, Kick, Vring, VringError};
use crate::budget::Permit;
use crate::descriptors::OF_CONTROL_QUEUE;
use crate::frame::MacAddress;
use crate::id::{Direction, MAX_PAIRS, RingKey};
use crate::memory::postcopy::Postcopy;
use crate::memory::{DirtyLog, InflightError, InflightRegion, MemoryMap, Region, RegionError, RegionTable, holes};
use crate::network::{Network, RingParts, StartingRing};
use crate::port::Offer;
use crate::port::PortState;
use crate::ring::{Call, Control, InflightQueue, Notifier, Ring, RingLog};
use crate::takeover::{FilesToSend, ReceivedFiles, SavedConnection, Script, pair};
use crate::worker::QueueFiles;
use memlane_virtq::message::{counted, is, was};

/// Virtqueues of a port: a pair of receive and transmit queue for each queue pair, and a control virtqueue after them.
const RINGS: u32 = 2 * MAX_PAIRS as u32 + 1;
/// Device status: something went wrong in the device (DEVICE_NEEDS_RESET).
const NEEDS_RESET: u8 = virtio_bindings::virtio_config::VIRTIO_CONFIG_S_NEEDS_RESET as u8;
/// Memory slots offered (QEMU asks for up to 509).
pub(super) const SLOTS: u64 = 509;

/// One connection's view of a port.
pub(super) struct Device {
    network: Arc<Network>,
    settings: DeviceSettings,
    /// The features offered to the guest, fixed for as long as this connection lasts.
    offer: Offer,
    protocol: u64,
    features: Agreed,
    memory: Arc<MemoryMap>,
    /// The dirty log that the front end set last; it is used while [`Agreed::logs`].
    log: Option<Arc<DirtyLog>>,
    /// The front end's inflight region.
    inflight: Option<Arc<InflightRegion>>,
    /// The channel of a device state that the front end has begun to send.
    state: Option<File>,
    /// The front end has announced postcopy, and it has not ended.
    postcopy: Option<Arc<Postcopy>>,
    /// POSTCOPY_LISTEN came: the guest runs while its memory comes, until postcopy has ended.
    listening: bool,
    rings: Vec<Vring>,
    control: Option<ControlQueue>,
    status: u8,
    /// Quarantines of the port before the device was reset last.
    quarantines: u64,
    /// SET_OWNER came.
    pub(super) owned: bool,
    /// MTU that the front end stated, see [`Self::set_mtu`].
    told_mtu: Option<u16>,
    /// The protocol features offered; fixed once the front end has asked for them.
    protocol_offer: Option<VhostUserProtocolFeatures>,
    /// The virtqueue that the guest broke. No queue starts until this one is set up again.
    broken: Option<u32>,
    /// The guest's violation of the protocol, until the session has reported it.
    fault: Option<String>,
    /// Kept open for messages to the front end, of which there are none yet.
    backend_channel: Option<File>,
    /// Permits of the port's descriptor quota, one for each open descriptor that the front end sent.
    held: HashMap<Held, Permit>,
    /// The quota did not suffice for the descriptors that the front end sent.
    short: bool,
    /// Error eventfds of a front end beside the one that has the port, until the port is its own; `None` while it is.
    waiting_errors: Option<HashMap<RingKey, Option<Call>>>,
    /// The messages of another process's session are replayed: no virtqueue starts.
    replays: bool,
    /// Virtqueues that another process has served, while they start: no news, and not waited for one by one.
    resumed: Option<Vec<StartingRing>>,
    /// The error of their start, until the session has taken it.
    resume_error: Option<io::Error>,
}

/// Purpose of a descriptor that the front end sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Held {
    Kick(u32),
    Call(u32),
    Error(u32),
    Channel,
    ControlQueue,
    State,
    Userfault,
}

/// The error for a description that refers to a descriptor that was not sent.
fn missing() -> io::Error {
    refuse("a descriptor of the description is missing")
}

/// An error that ends the connection, with its cause.
pub(super) fn refuse(cause: impl ToString) -> io::Error {
    io::Error::other(Error::ReqHandlerError(io::Error::other(cause.to_string())))
}

fn out_of_order(cause: &'static str) -> io::Error {
    io::Error::other(Error::InvalidOperation(cause))
}

/// Locks the device of a session.
pub(super) fn lock(device: &Mutex<Device>) -> MutexGuard<'_, Device> {
    device.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Device {
    /// A device without memory, features or queues.
    pub(super) fn new(network: Arc<Network>, settings: DeviceSettings) -> Self {
        Self {
            network,
            offer: settings.port.offer_inside(),
            quarantines: settings.port.quarantines(),
            settings,
            protocol: 0,
            features: Agreed::default(),
            memory: Arc::default(),
            log: None,
            inflight: None,
            state: None,
            postcopy: None,
            listening: false,
            rings: (0..RINGS).map(|_| Vring::default()).collect(),
            control: None,
            status: 0,
            owned: false,
            told_mtu: None,
            protocol_offer: None,
            broken: None,
            fault: None,
            backend_channel: None,
            held: HashMap::new(),
            short: false,
            waiting_errors: None,
            replays: false,
            resumed: None,
            resume_error: None,
        }
    }

    /// The port is another front end's, and stays as it is until [`Self::take_port`].
    pub(super) fn wait_for_port(&mut self) {
        self.waiting_errors = Some(HashMap::new());
    }

    /// The port is this device's now.
    pub(super) fn take_port(&mut self) {
        for (key, error) in self.waiting_errors.take().into_iter().flatten() {
            self.settings.port.set_error(key, error);
        }
        self.note_config_offer();
    }

    /// Whether another front end has the port.
    fn is_beside(&self) -> bool {
        self.waiting_errors.is_some()
    }

    /// Notes whether the next front end is to be offered CONFIG though it asks before SET_OWNER: only the device that has the port
    /// tells.
    fn note_config_offer(&self) {
        if self.protocol != 0 && !self.is_beside() {
            let wants_config = !self.owned && self.agreed_protocol().contains(VhostUserProtocolFeatures::CONFIG);
            self.settings.port.set_offers_config(wants_config);
        }
    }

    /// Whether the port's descriptor quota is too small for its front end. That is no violation by the front end.
    pub(super) fn is_short(&self) -> bool {
        self.short
    }

    /// Accounts for the descriptor `what`, open or closed, in place of the one before.
    fn hold(&mut self, what: Held, is_open: bool) -> Result<()> {
        let count = if what == Held::ControlQueue { OF_CONTROL_QUEUE } else { 1 };
        if !is_open {
            self.held.remove(&what);
        } else if !self.held.contains_key(&what) {
            let permit = self.settings.port.quotas.descriptors.take(count);
            self.short |= permit.is_none();
            self.held.insert(what, permit.ok_or_else(|| refuse("more descriptors than the port may hold"))?);
        }
        Ok(())
    }

    /// Maps a memory region; `others` are mapped already.
    fn map(&mut self, table: RegionTable, file: File, others: &[Arc<Region>]) -> Result<Arc<Region>> {
        let region = Region::map_within(table, file, &self.settings.port.quotas.mapped, others);
        self.short |= matches!(region, Err(RegionError::Descriptors));
        region.map(Arc::new).map_err(refuse)
    }

    /// Takes the guest's violation since the last call. It quarantines the port, but its front end, which only passed it on,
    /// stays connected.
    pub(crate) fn take_fault(&mut self) -> Option<String> {
        self.fault.take()
    }

    /// The evidence that the guest's memory is not shared; `kicked` if a kick has arrived in this session.
    pub(super) fn shared_memory_problem(&self, kicked: bool) -> Option<SharedMemoryProblem> {
        if self.memory.regions().is_empty() {
            return self.rings.iter().any(Vring::is_complete).then_some(SharedMemoryProblem::Missing);
        }
        let running: Vec<_> =
            self.rings.iter().filter(|ring| ring.running).filter_map(|ring| ring.locate(&self.memory).ok()).collect();
        running.first()?;
        let is_blank = || running.iter().all(|ring| ring.available_index() == 0 && ring.used_index() == 0);
        let (blank, is_hole) = self.memory.settled(is_blank);
        if is_hole && self.memory.is_filling() {
            return Some(SharedMemoryProblem::Unfilled);
        }
        blank.then_some(if kicked { SharedMemoryProblem::Private } else { SharedMemoryProblem::Silence })
    }

    /// Marks virtqueue `index` as broken by the guest; it has to be set up again.
    fn broke(&mut self, index: u32, cause: impl ToString) -> io::Error {
        let ring = &mut self.rings[index as usize];
        (ring.size, ring.kick) = (0, None);
        self.broken = Some(index);
        self.fault = Some(cause.to_string());
        refuse(cause)
    }

    /// Protocol features that the front end agreed to.
    pub(crate) fn agreed_protocol(&self) -> VhostUserProtocolFeatures {
        VhostUserProtocolFeatures::from_bits_truncate(self.protocol)
    }

    /// NET_SET_MTU: the front end states the guest's MTU; the offered MTU is the maximum.
    ///
    /// # Errors
    /// Below 68 (RFC 791) or above the offered MTU.
    pub(super) fn set_mtu(&mut self, mtu: u64) -> Result<()> {
        let most = u64::from(self.offer.mtu.unwrap_or(u16::MAX));
        if !(68..=most).contains(&mtu) {
            return Err(refuse(format!("MTU {mtu} is outside the offered range of 68 to {most}")));
        }
        self.told_mtu = Some(mtu as u16);
        if self.rings.iter().any(|ring| ring.running) {
            self.settings.port.set_agreed_mtu(self.agreed_mtu());
        }
        Ok(())
    }

    /// The MTU on which the guest agreed: no longer packet may reach it (virtio 1.2, section 5.1.4.1).
    fn agreed_mtu(&self) -> Option<u16> {
        self.told_mtu.or(self.offer.mtu).filter(|_| self.features.mtu())
    }

    /// IOTLB_MSG: the guest's addresses go through a vIOMMU, which is not supported; ACCESS_PLATFORM alone does not mean that.
    ///
    /// # Errors
    /// Always. The port goes to quarantine; the front end stays connected.
    pub(crate) fn refuse_translation(&mut self) -> Result<()> {
        self.broken = Some(0);
        self.fault = Some(VringError::Translated.to_string());
        Err(refuse(VringError::Translated))
    }

    /// SEND_RARP: broadcasts the guest's MAC address on its segment, so that MAC learning finds its new place (after a
    /// migration).
    pub(super) fn send_rarp(&mut self, address: u64) {
        let [a, b, c, d, e, f, _, _] = address.to_le_bytes();
        self.count_control_operation();
        self.network.announce(&self.settings.port, MacAddress::new([a, b, c, d, e, f]));
    }

    /// Counts a request to workers; to be called before each. The session waits before the next message if there were too many.
    fn count_control_operation(&self) {
        self.settings.port.count_control_operation();
    }

    /// GET_STATUS: a device with virtqueues in quarantine needs a reset (virtio 1.4, section 2.1).
    pub(super) fn status(&self) -> u8 {
        let port = &self.settings.port;
        let is_broken =
            !self.is_beside() && port.quarantines() > self.quarantines && matches!(port.state(), PortState::Quarantined(_));
        if is_broken { self.status | NEEDS_RESET } else { self.status }
    }

    /// SET_STATUS: zero resets the device (virtio 1.4, section 2.1).
    pub(super) fn set_status(&mut self, status: u8) {
        self.status = status & !NEEDS_RESET;
        if status == 0 {
            self.stop_rings();
            self.quarantines = self.settings.port.quarantines();
        }
    }

    pub(super) fn protocol_offer(&mut self) -> VhostUserProtocolFeatures {
        let opening = Opening { owned: self.owned, wants_config: self.settings.port.offers_config() };
        *self.protocol_offer.get_or_insert_with(|| features::protocol(opening))
    }

    /// The interrupt through `fd`, behind the port's interrupt circuit breaker.
    fn call_through(&self, fd: Option<File>) -> Result<Option<Call>> {
        let call = fd.map(Call::new).transpose().map_err(refuse)?;
        Ok(call.map(|call| call.behind(&self.settings.port.virtqueues.breaker)))
    }

    fn key(&self, index: usize) -> RingKey {
        let direction = if index.is_multiple_of(2) { Direction::Receive } else { Direction::Transmit };
        RingKey { port: self.settings.port.id, pair: index as u16 / 2, direction }
    }

    fn ring(&mut self, index: u32) -> Result<&mut Vring> {
        self.rings
            .get_mut(index as usize)
            .ok_or_else(|| refuse(format!("ring index {index} is outside the {RINGS} rings of the device")))
    }

    /// Keeps the channel for messages to the front end open. No message is sent through it, so without quota for its descriptor it is
    /// closed.
    pub(super) fn keep_backend_channel(&mut self, channel: File) {
        self.backend_channel = self.hold(Held::Channel, true).is_ok().then_some(channel);
    }

    /// Has the control queue, if it runs, stand still until the second result is dropped; the first one is its descriptors.
    ///
    /// # Errors
    /// The kernel refuses a descriptor, or the thread of the control queue does not answer.
    pub(super) fn hold_control(&self) -> io::Result<Option<(QueueFiles, HeldControlQueue)>> {
        let Some(control) = &self.control else { return Ok(None) };
        let held = control.hold().ok_or_else(|| io::Error::other("its control queue does not stop"))?;
        let ((kick, call), held) = held?;
        let index = (0..self.rings.len()).find(|index| self.is_control(*index as u32));
        Ok(index.map(|index| (QueueFiles { key: self.key(index), kick, call }, held)))
    }

    /// Describes the device for another process, and adds its descriptors to `files`; `queues` are those of its virtqueues that run.
    ///
    /// # Errors
    /// The kernel refuses a descriptor.
    pub(super) fn save(&self, files: &mut FilesToSend, queues: Vec<QueueFiles>) -> io::Result<SavedConnection> {
        let port = &self.settings.port;
        let mut script = Script { messages: Vec::new(), files };
        self.save_agreement(&mut script);
        self.save_memory(&mut script)?;
        let mut queues: HashMap<RingKey, QueueFiles> = queues.into_iter().map(|queue| (queue.key, queue)).collect();
        let mut errors = self.error_files()?;
        for (index, ring) in self.rings.iter().enumerate() {
            let key = self.key(index);
            let queue = queues.remove(&key).filter(|_| ring.running);
            let kept = if self.is_beside() { None } else { port.kept_ring(key)? };
            ring.save(index as u32, kept, (queue, errors.remove(&key)), &mut script)?;
        }
        Ok(SavedConnection {
            mac: self.offer.mac.bytes(),
            mtu: self.offer.mtu,
            protocol_offer: self.protocol_offer.map(|offer| offer.bits()),
            messages: script.messages,
            filling: self.memory.is_filling(),
            active_pairs: if self.is_beside() { None } else { port.rings().active_pairs },
            ..SavedConnection::default()
        })
    }

    /// Adds the messages by which the front end agreed to features, and those about the device.
    fn save_agreement(&self, script: &mut Script<'_>) {
        if self.owned {
            script.say(Request::SET_OWNER, &[]);
        }
        let numbers = [
            (Request::SET_PROTOCOL_FEATURES, self.protocol),
            (Request::SET_FEATURES, self.features.0),
            (Request::NET_SET_MTU, self.told_mtu.unwrap_or_default().into()),
            (Request::SET_STATUS, self.status.into()),
        ];
        numbers.iter().filter(|(_, number)| *number != 0).for_each(|(request, number)| script.say(*request, &[*number]));
        if self.postcopy.is_some() {
            script.say(Request::POSTCOPY_ADVISE, &[]);
        }
        if self.is_listening() {
            script.say(Request::POSTCOPY_LISTEN, &[]);
        }
    }

    /// Adds the messages that brought memory and files.
    fn save_memory(&self, script: &mut Script<'_>) -> io::Result<()> {
        let mut pass = |request, payload: &[u64], file: Option<&File>| {
            let file = file.ok_or_else(|| io::Error::other("memory of the front end without a file"))?;
            script.pass(request, payload, file.try_clone()?);
            Ok::<_, io::Error>(())
        };
        for region in self.memory.regions() {
            let RegionTable { guest_start, length, user_start, file_offset } = *region.table();
            pass(Request::ADD_MEM_REG, &[0, guest_start, length, user_start, file_offset], region.file())?;
        }
        if let Some(log) = &self.log {
            pass(Request::SET_LOG_BASE, &[log.size(), log.offset()], log.file())?;
        }
        if let Some(region) = &self.inflight {
            let [[a, b], [c, d]] = [region.shape().0, region.shape().1].map(u16::to_ne_bytes);
            let shape = pair(u32::from_ne_bytes([a, b, c, d]), 0);
            pass(Request::SET_INFLIGHT_FD, &[region.length(), region.offset(), shape], region.file())?;
        }
        if let Some(state) = &self.state {
            pass(Request::SET_DEVICE_STATE_FD, &[pair(1, 0)], Some(state))?;
        }
        if let Some(channel) = &self.backend_channel {
            pass(Request::SET_BACKEND_REQ_FD, &[], Some(channel))?;
        }
        Ok(())
    }

    /// Copies of the eventfds by which the front end is told of errors of its virtqueues, for a takeover.
    fn error_files(&self) -> io::Result<HashMap<RingKey, OwnedFd>> {
        let Some(waiting) = &self.waiting_errors else { return Ok(self.settings.port.error_files()?.into_iter().collect()) };
        let set = waiting.iter().filter_map(|(key, error)| Some((*key, error.as_ref()?)));
        set.map(|(key, error)| Ok((key, error.descriptor().try_clone_to_owned()?))).collect()
    }

    /// Restores the device that another process described, up to the start of its virtqueues.
    ///
    /// # Errors
    /// The errors of the messages of a front end.
    pub(super) fn restore(&mut self, saved: &SavedConnection, files: &mut ReceivedFiles) -> io::Result<()> {
        // The offer of that process holds for as long as the connection lasts.
        self.offer = Offer { mac: MacAddress::new(saved.mac), mtu: saved.mtu };
        let known = features::known_protocol();
        self.protocol_offer = saved.protocol_offer.map(|offer| known & VhostUserProtocolFeatures::from_bits_truncate(offer));
        self.replays = true;
        for message in &saved.messages {
            let file = message.file.map(|number| files.take(number).ok_or_else(missing)).transpose()?;
            messages::replay(message, file, self)?;
        }
        self.replays = false;
        if saved.filling {
            self.memory.note_filling();
        }
        if let Some(pairs) = saved.active_pairs {
            self.network.set_active_pairs(&self.settings.port, pairs);
        }
        Ok(())
    }

    /// Starts the virtqueues of [`Self::restore`] that ran, which is no news and not logged; [`Network::finish_starts`] waits for those
    /// that are returned. In a port that is in quarantine, none of them starts before its front end sets it up again. An error is kept
    /// until [`Self::take_resume_error`].
    pub(super) fn start_restored(&mut self) -> Vec<StartingRing> {
        self.resumed = Some(Vec::new());
        let started = if matches!(self.settings.port.state(), PortState::Quarantined(_)) {
            (0..self.rings.len()).try_for_each(|index| {
                self.rings[index].kick = None;
                self.hold(Held::Kick(index as u32), false)
            })
        } else {
            (0..self.rings.len() as u32).try_for_each(|index| self.start_if_complete(index))
        };
        self.resume_error = started.err();
        self.resumed.take().unwrap_or_default()
    }

    /// The error of [`Self::start_restored`], as for the messages of a front end.
    pub(super) fn take_resume_error(&mut self) -> Option<io::Error> {
        self.resume_error.take()
    }

    /// Virtqueue `index`, which may be changed only while it is stopped.
    fn stopped_ring(&mut self, index: u32) -> Result<&mut Vring> {
        let ring = self.ring(index)?;
        if ring.running { Err(refuse("the front end changed a running ring")) } else { Ok(ring) }
    }

    /// Sets the kick descriptor of virtqueue `index`, or that it is polled; does not start it.
    fn set_kick(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let kick = match fd {
            Some(file) if Notifier::of(&file) == Some(Notifier::Event) => Kick::File(file),
            Some(_) => return Err(refuse("a kick descriptor that is no eventfd")),
            None => Kick::Poll,
        };
        self.hold(Held::Kick(index.into()), matches!(kick, Kick::File(_)))?;
        self.stopped_ring(index.into())?.kick = Some(kick);
        Ok(())
    }

    /// Starts virtqueue `index` if its setup is complete.
    fn start_if_complete(&mut self, index: u32) -> Result<()> {
        let key = self.key(index as usize);
        let is_control = self.is_control(index);
        let is_early = self.memory.regions().is_empty() || self.broken.is_some() || self.replays;
        let ring = &mut self.rings[index as usize];
        let is_ended = ring.ends_disabled && !ring.enabled && self.features.protocol() && !is_control;
        if ring.running || is_ended || is_early || !ring.is_complete() {
            return Ok(());
        }
        let log = self.ring_log(index as usize);
        if let Some(loss) = log.as_ref().and_then(|log| log.log.loss()) {
            return Err(self.broke(index, loss));
        }
        let ring = &mut self.rings[index as usize];
        let mut parts = match ring.parts(key, self.features, &self.memory) {
            Ok(parts) => parts,
            Err(cause) => return Err(self.broke(index, cause)),
        };
        parts.log = log;
        let ring = &mut self.rings[index as usize];
        parts.inflight = ring.inflight(index, self.inflight.as_ref(), (&parts.split, self.features));
        parts.start.session = self.settings.port.session();
        ring.running = true;
        self.wake_after_pages(index, parts.start.kick.as_ref());
        self.log_start(index);
        self.count_control_operation();
        if self.is_control(index) {
            return self.start_control(parts);
        }
        if let Some(count @ 1..) = parts.inflight.as_ref().map(InflightQueue::resubmitted) {
            let (chains, were, are) = (counted(count, "chain"), was(count), is(count));
            self.settings.port.log(format_args!("{chains} that {were} in flight at a crash {are} served again"));
        }
        self.settings.port.set_memory(Some(Arc::clone(&self.memory)));
        self.settings.port.set_agreed_mtu(self.agreed_mtu());
        self.settings.port.set_state(PortState::Running);
        match &mut self.resumed {
            Some(starting) => starting.extend(self.network.order_start(&self.settings.port, parts)),
            None => self.network.start_ring(&self.settings.port, parts),
        }
        Ok(())
    }

    /// During postcopy virtqueue `index` is kicked for each page that has come; without a descriptor for that it is looked at now and then.
    fn wake_after_pages(&self, index: u32, kick: Option<&File>) {
        let (Some(postcopy), Some(kick)) = (&self.postcopy, kick) else { return };
        let permit = self.settings.port.quotas.descriptors.take(1);
        let kick = kick.try_clone().ok().and_then(|kick| Call::new(kick).ok());
        if let (Some(permit), Some(kick)) = (permit, kick) {
            postcopy.wake_by(index, Box::new(kick), permit);
        }
    }

    /// Logs that virtqueue `index` starts, and before the first one the negotiated features.
    fn log_start(&self, index: u32) {
        if self.resumed.is_some() {
            return;
        }
        let (port, size) = (&self.settings.port, counted(self.rings[index as usize].size, "descriptor"));
        if port.state() != PortState::Running {
            port.log(format_args!("features agreed: {}", self.features));
        }
        match (self.is_control(index), self.key(index as usize)) {
            (true, _) => port.log(format_args!("control queue started, {size}")),
            (_, RingKey { pair, direction: Direction::Receive, .. }) => port.log(format_args!("RX queue {pair} started, {size}")),
            (_, RingKey { pair, .. }) => port.log(format_args!("TX queue {pair} started, {size}")),
        }
    }

    /// True if `index` is the control virtqueue of a guest that was offered one: it follows the queue pairs (virtio 1.4, section
    /// 5.1.2).
    fn is_control(&self, index: u32) -> bool {
        let pairs = if self.features.multiqueue() { self.settings.pairs } else { 1 };
        self.features.control_queue() && index == 2 * u32::from(pairs)
    }

    fn start_control(&mut self, parts: RingParts) -> Result<()> {
        let mut ring = Ring::new(parts.split, parts.memory, parts.options, parts.base);
        ring.set_call(parts.call);
        ring.set_log(parts.log);
        if !parts.start.at_once {
            // Until the driver asks for more, it uses the first pair (virtio 1.2, section 5.1.6.5.5). A request made before this
            // process began is not known: then the pairs with buffers in their receive queues count.
            self.network.set_active_pairs(&self.settings.port, 1);
        }
        let commands =
            Commands { network: Arc::clone(&self.network), port: Arc::clone(&self.settings.port), pairs: self.settings.pairs };
        self.hold(Held::ControlQueue, true)?;
        self.control = Some(ControlQueue::start(Control::new(ring), parts.start.kick, commands).map_err(refuse)?);
        Ok(())
    }

    /// Stops virtqueue `index` and returns its base.
    pub(super) fn stop_ring(&mut self, index: u32) -> Result<u16> {
        let key = self.key(index as usize);
        self.broken = None;
        let ring = self.ring(index)?;
        // A virtqueue starts again with the next kick descriptor, whether it has run or its setup was incomplete.
        ring.kick = None;
        if !ring.running {
            return Ok(ring.base);
        }
        ring.running = false;
        if self.is_control(index) {
            let stopped = self.control.take().and_then(|control| control.stop()).unwrap_or_default();
            return Ok(self.rings[index as usize].keep(stopped));
        }
        if let Some(stopped) = self.network.stop_ring(&self.settings.port, key) {
            self.rings[index as usize].keep(stopped);
        }
        self.settle_state();
        Ok(self.rings[index as usize].base)
    }

    /// Stops virtqueue `index`: its memory is the guest's while it is disabled; it goes on with the same descriptors once it is enabled.
    fn set_aside(&mut self, index: u32) -> Result<()> {
        let key = self.key(index as usize);
        let files = self.network.queue_files([&self.settings.port]).map_err(refuse)?;
        self.stop_ring(index)?;
        if let Some(QueueFiles { kick, .. }) = files.into_iter().find(|files| files.key == key) {
            self.rings[index as usize].kick = Some(kick.map_or(Kick::Poll, |kick| Kick::File(kick.into())));
        }
        Ok(())
    }

    /// A port without running virtqueues is in negotiation.
    fn settle_state(&self) {
        if self.rings.iter().all(|ring| !ring.running) {
            self.settings.port.set_state(PortState::Speaking);
        }
    }

    fn stop_rings(&mut self) {
        for index in 0..RINGS {
            // Only an index outside the list is an error.
            let _ = self.stop_ring(index);
        }
    }

    pub(super) fn reset(&mut self) {
        self.stop_rings();
        self.quarantines = self.settings.port.quarantines();
        self.rings.iter_mut().for_each(|ring| *ring = Vring::default());
        self.features = Agreed::default();
        self.inflight = None;
        if self.log.take().is_some() {
            self.settings.port.set_log(None);
        }
    }

    /// The dirty log in use, if the front end has writes logged.
    fn log_in_use(&self) -> Option<Arc<DirtyLog>> {
        self.log.clone().filter(|_| self.features.logs())
    }

    /// The dirty log of virtqueue `index`.
    fn ring_log(&self, index: usize) -> Option<RingLog> {
        self.log_in_use().map(|log| RingLog { log, used: self.rings[index].log_address })
    }

    /// Has running virtqueue `index` use the present dirty log, or none, from now on.
    fn update_log(&self, index: usize) {
        if !self.rings[index].running {
            return;
        }
        self.count_control_operation();
        match &self.control {
            Some(control) if self.is_control(index as u32) => control.set_log(self.ring_log(index)),
            _ => self.network.set_log(&self.settings.port, self.key(index), self.ring_log(index)),
        }
    }

    /// Like [`Self::update_log`] for all virtqueues: none of them uses an earlier log when this returns.
    fn update_logs(&self) {
        if !self.is_beside() {
            self.settings.port.set_log(self.log_in_use());
        }
        (0..self.rings.len()).for_each(|index| self.update_log(index));
    }

    /// Records chains in flight in `region` from the next start of virtqueues on.
    fn track_in(&mut self, region: std::result::Result<InflightRegion, InflightError>) -> Result<Arc<InflightRegion>> {
        if self.rings.iter().any(|ring| ring.running) {
            return Err(refuse("the front end changed its inflight region while rings run"));
        }
        self.short |= matches!(region, Err(InflightError::Region(RegionError::Descriptors)));
        let region = Arc::new(region.map_err(refuse)?);
        self.inflight = Some(Arc::clone(&region));
        Ok(region)
    }

    /// Whether the guest may have memory of `wanted` bytes. While a memory table replaces another, both exist for a moment; that
    /// is no reason to refuse the new one.
    fn check_length(&self, wanted: u64) -> Result<()> {
        let most = self.network.shared().settings.port_memory;
        if wanted <= most { Ok(()) } else { Err(refuse(RegionError::TooMuchForPort { wanted, most })) }
    }

    /// Makes `map` the guest memory of this port, for running virtqueues too.
    fn change_memory(&mut self, map: MemoryMap) -> Result<()> {
        if self.settings.lazy_memory
            && let Err(error) = holes::check()
        {
            return Err(refuse(format!("lazy-memory needs userfaultfd, which this kernel or container refuses: {error}")));
        }
        let fill_timeout = self.network.shared().settings.fill_timeout;
        let map =
            map.with_holes(self.settings.lazy_memory || self.is_listening(), fill_timeout).with_postcopy(self.postcopy.clone());
        let map = Arc::new(map);
        self.count_control_operation();
        for index in 0..self.rings.len() {
            if self.rings[index].running {
                let split = self.rings[index].locate(&map).map_err(refuse)?;
                match &self.control {
                    Some(control) if self.is_control(index as u32) => control.set_memory(split, Arc::clone(&map)),
                    _ => self.network.set_memory(&self.settings.port, self.key(index), split, Arc::clone(&map)),
                }
            }
        }
        if let Some(postcopy) = &self.postcopy {
            postcopy.keep_only(map.regions());
        }
        self.memory = Arc::clone(&map);
        self.settings.port.set_memory(Some(map));
        (0..RINGS).try_for_each(|index| self.start_if_complete(index))
    }

    /// Whether the guest runs while its memory comes.
    pub(super) fn is_listening(&self) -> bool {
        self.postcopy.is_some() && self.listening
    }

    /// Maps `region` for pages that the front end fetches; returns the address by which it knows their page faults.
    fn map_to_fetch(&self, region: &Arc<Region>) -> Result<u64> {
        let postcopy = self.postcopy.as_ref().ok_or_else(|| refuse("page faults without POSTCOPY_ADVISE"))?;
        postcopy.add(region, &self.settings.port.quotas.mapped).map_err(refuse)
    }

    fn end_postcopy(&mut self) {
        if let Some(postcopy) = self.postcopy.take() {
            let fetched = postcopy.end();
            if self.listening {
                let (pages, were) = (counted(fetched, "page"), was(fetched));
                self.settings.port.log(format_args!("postcopy has ended: {pages} {were} fetched for its queues"));
            }
        }
    }

    /// The part of the configuration space that a network device has (virtio 1.4, section 5.1.4).
    fn configuration(&self) -> [u8; 12] {
        let mut space = [0; 12];
        space[..6].copy_from_slice(&self.offer.mac.bytes());
        space[6..8].copy_from_slice(&1_u16.to_le_bytes());
        space[8..10].copy_from_slice(&self.settings.pairs.to_le_bytes());
        space[10..12].copy_from_slice(&self.offer.mtu.unwrap_or(1500).to_le_bytes());
        space
    }
}

impl Drop for Device {
    /// The front end has disconnected, and answers no page fault any more. Every front end that asks for the offer agrees to a part of it, except for one that needs
    /// CONFIG.
    fn drop(&mut self) {
        self.end_postcopy();
        if self.protocol_offer.is_some() && self.protocol == 0 {
            self.settings.port.set_offers_config(true);
        }
    }
}

/// The effects of messages.
impl Device {
    pub(super) fn reset_owner(&mut self) {
        self.stop_rings();
        self.rings.iter_mut().for_each(|ring| ring.enabled = false);
    }

    pub(super) fn get_features(&self) -> u64 {
        features::offer(Circumstances {
            pairs: self.settings.pairs,
            has_mtu: self.offer.mtu.is_some(),
            receive_offloads: self.settings.receive_offloads,
            in_order: self.network.shared().settings.in_order,
            protocol: self.protocol,
        })
    }

    pub(super) fn set_features(&mut self, features: u64) -> Result<()> {
        let surplus = features & !self.get_features();
        if surplus != 0 {
            return Err(refuse(format!("the front end set features {surplus:#x}, which were not offered")));
        }
        let features = Agreed(features);
        if !self.features.differs_in_logging(features) && self.rings.iter().any(|ring| ring.running) {
            return Err(refuse("the front end changed features while rings run"));
        }
        let is_switched = self.features.logs() != features.logs();
        self.features = features;
        if is_switched {
            self.update_logs();
        }
        Ok(())
    }

    /// Returns the addresses by which the front end knows page faults of the regions, while postcopy listens.
    pub(super) fn set_mem_table(&mut self, tables: &[RegionTable], files: Vec<File>) -> Result<Option<Vec<u64>>> {
        self.check_length(tables.iter().fold(0, |all, table| all.saturating_add(table.length)))?;
        let mut regions = Vec::new();
        for (table, file) in tables.iter().zip(files) {
            regions.push(self.map(*table, file, &regions)?);
        }
        let bases = self.is_listening().then(|| regions.iter().map(|region| self.map_to_fetch(region)).collect());
        self.change_memory(MemoryMap::new(regions).map_err(refuse)?)?;
        bases.transpose()
    }

    /// QEMU before 8.2 sends each region once for every queue pair; the repetitions are ignored.
    pub(super) fn add_mem_region(&mut self, table: RegionTable, file: File) -> Result<Option<u64>> {
        // The page faults of another process are not answered: after a takeover, pages come as the front end sends them.
        let fetches = self.is_listening() && !self.replays;
        if let Some(known) = self.memory.regions().iter().find(|known| *known.table() == table) {
            return fetches.then(|| self.map_to_fetch(known)).transpose();
        }
        self.check_length(self.memory.length().saturating_add(table.length))?;
        let mut regions = self.memory.regions().to_vec();
        if regions.len() as u64 >= SLOTS {
            return Err(refuse(format!("more than {SLOTS} memory regions")));
        }
        let region = self.map(table, file, &regions)?;
        let base = fetches.then(|| self.map_to_fetch(&region)).transpose()?;
        regions.push(region);
        self.change_memory(MemoryMap::new(regions).map_err(refuse)?)?;
        Ok(base)
    }

    /// The region is found as when it is added: removing a region that is not there is no error (QEMU before 8.2 repeats the message for each queue
    /// pair).
    pub(super) fn remove_mem_region(&mut self, table: &RegionTable) -> Result<()> {
        let is_it = |known: &Arc<Region>| {
            let known = known.table();
            (known.guest_start, known.length, known.user_start) == (table.guest_start, table.length, table.user_start)
        };
        let mut regions = self.memory.regions().to_vec();
        let before = regions.len();
        regions.retain(|known| !is_it(known));
        if regions.len() == before {
            return Ok(());
        }
        self.change_memory(MemoryMap::new(regions).map_err(refuse)?)
    }

    pub(super) fn set_vring_num(&mut self, index: u32, num: u32) -> Result<()> {
        self.stopped_ring(index)?;
        if self.broken == Some(index) {
            self.broken = None;
        }
        match Vring::check_size(num) {
            Ok(size) => self.rings[index as usize].size = size,
            Err(cause) => return Err(self.broke(index, cause)),
        }
        self.start_if_complete(index)
    }

    /// `log` is the guest address at which writes to the used ring are logged.
    pub(super) fn set_vring_addr(&mut self, index: u32, addresses: Addresses, log: Option<u64>) -> Result<()> {
        let addresses = Some(addresses);
        let ring = self.ring(index)?;
        if ring.running && ring.addresses != addresses {
            return Err(refuse("the front end moved a running ring"));
        }
        ring.addresses = addresses;
        if std::mem::replace(&mut ring.log_address, log) != log {
            self.update_log(index as usize);
        }
        self.start_if_complete(index)
    }

    pub(super) fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        let base = u16::try_from(base).map_err(|_| refuse(format!("a ring base of {base}")))?;
        self.stopped_ring(index)?.base = base;
        Ok(())
    }

    pub(super) fn set_vring_kick(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        self.set_kick(index, fd)?;
        self.start_if_complete(index.into())
    }

    pub(super) fn set_vring_call(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let call = self.call_through(fd)?;
        let ring = self.ring(index.into())?;
        ring.ends_disabled = call.as_ref().is_some_and(Call::is_socket);
        let running = ring.running;
        self.hold(Held::Call(index.into()), call.is_some())?;
        if let Some(control) = self.control.as_ref().filter(|_| running && self.is_control(index.into())) {
            control.set_call(call);
            return Ok(());
        }
        let key = self.key(index.into());
        if running {
            self.count_control_operation();
        }
        let unused = if running { self.network.set_call(&self.settings.port, key, call) } else { Err(call) };
        if let Err(call) = unused {
            self.ring(index.into())?.call = call;
        }
        Ok(())
    }

    pub(super) fn set_vring_err(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let error = self.call_through(fd)?;
        self.ring(index.into())?;
        self.hold(Held::Error(index.into()), error.is_some())?;
        let key = self.key(index.into());
        match &mut self.waiting_errors {
            Some(waiting) => _ = waiting.insert(key, error),
            None => self.settings.port.set_error(key, error),
        }
        Ok(())
    }

    pub(super) fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        let ring = self.ring(index)?;
        ring.enabled = enable;
        let (running, ends) = (ring.running, ring.ends_disabled && !enable);
        match (running, ends) {
            _ if self.is_control(index) => Ok(()),
            (true, true) => self.set_aside(index),
            (true, false) => {
                self.count_control_operation();
                self.network.set_enabled(&self.settings.port, self.key(index as usize), enable);
                Ok(())
            }
            (false, _) => self.start_if_complete(index),
        }
    }

    pub(super) fn set_protocol_features(&mut self, features: u64) -> Result<()> {
        let surplus = features & !self.protocol_offer().bits();
        if surplus != 0 {
            return Err(refuse(format!("the front end set protocol features {surplus:#x}, which were not offered")));
        }
        self.protocol = features;
        self.note_config_offer();
        Ok(())
    }

    pub(super) fn get_config(&self, offset: u32, size: u32) -> Vec<u8> {
        let space = self.configuration();
        let byte = |at: u64| usize::try_from(at).ok().and_then(|at| space.get(at)).copied().unwrap_or(0);
        (0..u64::from(size)).map(|at| byte(u64::from(offset) + at)).collect()
    }

    /// No field of a network device's configuration space is writable for a driver (virtio 1.4, section 5.1.4): a write that would
    /// change one is refused.
    pub(super) fn set_config(&self, offset: u32, content: &[u8]) -> Result<()> {
        if self.get_config(offset, content.len() as u32) == content {
            Ok(())
        } else {
            Err(refuse("the fields of the configuration space are read-only"))
        }
    }

    /// Creates an inflight region for `queues` of `size` descriptors; returns its length and its file.
    pub(super) fn get_inflight_fd(&mut self, (queues, size): (u16, u16)) -> Result<(u64, File)> {
        if u32::from(queues) > RINGS {
            return Err(refuse(InflightError::Shape(queues, size)));
        }
        // The one before is unmapped first: a front end that asks again and again needs no more of its quota.
        self.inflight = None;
        let region = self.track_in(InflightRegion::create(queues, size, &self.settings.port.quotas.mapped))?;
        let file = region.file().ok_or_else(|| refuse("an inflight region without a file"))?;
        Ok((region.length(), file.try_clone().map_err(refuse)?))
    }

    /// Keeps records in the inflight region of `size` bytes at `offset` of `file`, for virtqueues of this `shape`: their number, and the
    /// descriptors of each.
    pub(super) fn set_inflight_fd(&mut self, (size, offset): (u64, u64), shape: (u16, u16), file: File) -> Result<()> {
        if u32::from(shape.0) > RINGS {
            return Err(refuse(InflightError::Shape(shape.0, shape.1)));
        }
        self.inflight = None;
        self.track_in(InflightRegion::map(file, offset, size, shape, &self.settings.port.quotas.mapped)).map(drop)
    }

    /// The front end is to send a device state through `channel`, or else to be sent one.
    pub(super) fn set_device_state_fd(&mut self, loads: bool, channel: File) -> Result<()> {
        if self.rings.iter().any(|ring| ring.running) {
            return Err(refuse("a device state was requested while rings run"));
        }
        // To be saved is nothing: the end of the file says so.
        self.hold(Held::State, loads)?;
        self.state = loads.then_some(channel);
        Ok(())
    }

    pub(super) fn check_device_state(&mut self) -> Result<()> {
        self.hold(Held::State, false)?;
        self.state.take().map_or(Ok(()), |state| device_state::check_empty(&state).map_err(refuse))
    }

    /// Returns the userfaultfd for the front end; `None` if there is none to be had.
    ///
    /// # Errors
    /// The front end has announced postcopy before.
    pub(super) fn postcopy_advice(&mut self) -> Result<Option<File>> {
        if self.postcopy.is_some() || self.listening {
            return Err(out_of_order("postcopy already advised"));
        }
        Ok(self.begin_postcopy().ok())
    }

    fn begin_postcopy(&mut self) -> Result<File> {
        self.hold(Held::Userfault, true)?;
        let postcopy = Postcopy::advise().map_err(refuse)?;
        let userfault = postcopy.userfault().try_clone().map_err(refuse)?;
        self.postcopy = Some(postcopy);
        Ok(userfault)
    }

    pub(super) fn postcopy_listen(&mut self) -> Result<()> {
        if self.postcopy.is_none() || self.listening {
            return Err(out_of_order("postcopy not advised"));
        }
        self.listening = true;
        self.memory.note_filling();
        self.settings.port.log(format_args!("postcopy: its guest runs while its memory comes; queues wait for their pages"));
        Ok(())
    }

    pub(super) fn postcopy_ack_mem_regions(&mut self) -> Result<()> {
        self.postcopy.as_ref().map_or(Ok(()), |postcopy| postcopy.begin().map_err(refuse))
    }

    pub(super) fn postcopy_end(&mut self) -> Result<()> {
        if !self.is_listening() {
            return Err(out_of_order("postcopy not listening"));
        }
        self.end_postcopy();
        self.hold(Held::Userfault, false)?;
        if !self.settings.lazy_memory {
            self.memory.end_filling();
        }
        Ok(())
    }

    /// Marks writes in the dirty log of `size` bytes at `offset` of `file`.
    pub(super) fn set_log_base(&mut self, size: u64, offset: u64, file: File) -> Result<()> {
        let mapped = DirtyLog::map(file, offset, size, &self.settings.port.quotas.mapped);
        self.short |= matches!(mapped, Err(RegionError::Descriptors));
        let mapped = mapped.map_err(|error| refuse(format!("the front end's dirty log cannot be mapped: {error}")))?;
        // The front end reads the one before as soon as this is answered, and expects no more bits there.
        self.log = Some(Arc::new(mapped));
        self.update_logs();
        Ok(())
    }
}
