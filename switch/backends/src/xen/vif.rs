//! One vif of a guest: the states of its back end, which is ours, and of its front end (`xen/include/public/io/xenbus.h`), and
//! their feature negotiation (`xen/include/public/io/netif.h`).
//!
//! ```text
//!   back end   1 or 6 -- offers features --> 2 -------- maps, binds --> 4 --> 5 --> 6
//!   front end             1 ------------------> 4 (or 3, then 4) ----------> 5 --> 6 --> 1 ...
//! ```

use std::io;
use std::sync::{Arc, OnceLock};

use nix::sys::eventfd::EventFd;

use super::layer::{Domain, Layer};
use super::link::{QueueContext, SharedChannel};
use super::netif::{Fault, RX_SLOT, TX_REQUEST};
use super::receive::{Takes, XenReceive};
use super::ring::BackRing;
use super::store::Store;
use super::transmit::XenTransmit;
use crate::frame::MacAddress;
use crate::memory::Fetch;
use crate::network::Network;
use crate::offload::Offloads;
use crate::pool::Pool;
use crate::port::end::{Backend, Ends};
use crate::port::{Port, PortState};
use memlane_virtq::message::counted;

/// The states of either side (`enum xenbus_state`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum XenbusState {
    /// The key is missing or unreadable.
    Unknown = 0,
    Initialising = 1,
    InitWait = 2,
    Initialised = 3,
    Connected = 4,
    Closing = 5,
    Closed = 6,
}

impl XenbusState {
    fn of(text: Option<String>) -> Self {
        match text.as_deref() {
            Some("1") => Self::Initialising,
            Some("2") => Self::InitWait,
            Some("3") => Self::Initialised,
            Some("4") => Self::Connected,
            Some("5") => Self::Closing,
            Some("6") => Self::Closed,
            _ => Self::Unknown,
        }
    }
}

/// State that all vifs share.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) network: Arc<Network>,
    pub(super) layer: Arc<dyn Layer>,
    pub(super) fetch: Arc<dyn Fetch>,
    pub(super) wake_up: Arc<EventFd>,
}

/// The port that serves a vif, and the limits that apply.
#[derive(Clone, Debug)]
pub(super) struct VifSettings {
    pub(super) port: Arc<Port>,
    /// Most queues (pairs of transmit and receive ring).
    pub(super) queues: u16,
    /// Whether the guest may receive GSO frames and partial checksums.
    pub(super) receive_offloads: bool,
    /// The toolstack's MAC address is not tied to the port: the operator tied another.
    pub(super) has_address: bool,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Vif {
    domain: Domain,
    /// Path of its back end in xenstore, and of its front end.
    back: String,
    front: String,
    settings: VifSettings,
    /// The violation of the protocol by its front end, while it is served.
    served: Option<Arc<OnceLock<Fault>>>,
}

impl Vif {
    /// The vif of `domain` with its back end's path `back` and its front end's path `front`.
    pub(super) fn new(domain: Domain, back: String, front: String, settings: VifSettings) -> Self {
        Self { domain, back, front, settings, served: None }
    }

    pub(super) fn port(&self) -> &Arc<Port> {
        &self.settings.port
    }

    /// The path to watch for changes of its front end.
    pub(super) fn watched(&self) -> String {
        format!("{}/state", self.front)
    }

    /// Reads the state of both sides, and takes the next step of the handshake.
    ///
    /// # Errors
    /// xenstored does not answer any more.
    pub(super) fn step(&mut self, store: &mut dyn Store, host: &Host) -> io::Result<()> {
        let back = XenbusState::of(store.read(&self.key("state"))?);
        let front = XenbusState::of(store.read(&self.watched())?);
        let online = store.read(&self.key("online"))?.as_deref() == Some("1");
        match (back, front) {
            (XenbusState::Initialising, _) => self.offer(store),
            (XenbusState::Closed, XenbusState::Initialising) if online => self.offer(store),
            // The guest's driver has started again without closing.
            (XenbusState::Connected, XenbusState::Initialising) => {
                self.stop(host);
                self.offer(store)
            }
            (XenbusState::InitWait | XenbusState::Connected, XenbusState::Initialised | XenbusState::Connected)
                if self.served.is_none() =>
            {
                self.serve(store, host)
            }
            (XenbusState::Connected, XenbusState::Closing) => {
                self.stop(host);
                self.set_state(store, XenbusState::Closing)
            }
            (XenbusState::Closing, XenbusState::Closing) if online => Ok(()),
            (XenbusState::Closing, _) | (XenbusState::Connected, XenbusState::Closed) => {
                self.stop(host);
                self.set_state(store, XenbusState::Closed)
            }
            _ => Ok(()),
        }
    }

    fn key(&self, key: &str) -> String {
        format!("{}/{key}", self.back)
    }

    fn set_state(&self, store: &mut dyn Store, state: XenbusState) -> io::Result<()> {
        store.write(&self.key("state"), &(state as u8).to_string())
    }

    /// Publishes the back end's features, and that it waits for the front end.
    fn offer(&self, store: &mut dyn Store) -> io::Result<()> {
        let queues = self.settings.queues.to_string();
        for (feature, value) in [
            ("feature-rx-copy", "1"),
            ("feature-rx-flip", "0"),
            ("feature-sg", "1"),
            ("feature-gso-tcpv4", "1"),
            ("feature-gso-tcpv6", "1"),
            ("feature-ipv6-csum-offload", "1"),
            ("feature-split-event-channels", "1"),
            ("multi-queue-max-queues", &queues),
        ] {
            store.write(&self.key(feature), value)?;
        }
        self.settings.port.set_state(PortState::Speaking);
        self.set_state(store, XenbusState::InitWait)
    }

    /// Serves the front end, which is ready; quarantines the port if that is not possible. A front end that another process
    /// served before resumes where that process stopped.
    fn serve(&mut self, store: &mut dyn Store, host: &Host) -> io::Result<()> {
        let asks = Asks::read(store, &self.front, self.settings.queues, self.settings.receive_offloads)?;
        let mac = store.read(&self.key("mac"))?.and_then(|mac| mac.parse::<MacAddress>().ok());
        let queues = asks.as_ref().map_or(0, |asks| asks.queues.len());
        match asks.and_then(|asks| self.connect(&asks, host)) {
            Ok(fault) => {
                self.served = Some(fault);
                let queues = counted(queues, "queue pair");
                self.settings.port.log(format_args!("front end of domain {} connected: {queues} started", self.domain));
                if !self.settings.has_address
                    && let Some(Err(error)) = mac.map(|mac| host.network.set_address(&self.settings.port, Some(mac)))
                {
                    tracing::warn!(port = %self.settings.port.name, %error, "the MAC address of the vif cannot be configured at its port");
                }
                self.settings.port.set_state(PortState::Running);
                self.set_state(store, XenbusState::Connected)
            }
            Err(cause) => self.refuse(store, host, &cause),
        }
    }

    /// Maps the rings, binds the event channels and has a worker serve each queue.
    fn connect(&self, asks: &Asks, host: &Host) -> Result<Arc<OnceLock<Fault>>, String> {
        let port = &self.settings.port;
        port.begin_session();
        let fault = Arc::default();
        for (pair, queue) in asks.queues.iter().enumerate() {
            let link = QueueContext {
                layer: Arc::clone(&host.layer),
                domain: self.domain,
                fault: Arc::clone(&fault),
                wake_up: Arc::clone(&host.wake_up),
            };
            let queue = GrantedQueue { link: Arc::new(link), queue, takes: asks.takes, fetch: &host.fetch };
            host.network.serve_queue(port, pair as u16, queue).map_err(|error| error.to_string())?;
        }
        Ok(fault)
    }

    /// Quarantines the port for `cause`, and reports to the front end that it is closed: it may begin again.
    fn refuse(&mut self, store: &mut dyn Store, host: &Host, cause: &str) -> io::Result<()> {
        self.served = None;
        self.settings.port.log(format_args!("front end of domain {} left: {cause}", self.domain));
        host.network.quarantine(&self.settings.port, cause);
        self.set_state(store, XenbusState::Closing)
    }

    /// Ends the service and unmaps the guest's pages. A quarantine lasts until the front end begins again.
    pub(super) fn stop(&mut self, host: &Host) {
        if self.served.take().is_some() {
            host.network.stop_port(&self.settings.port);
            self.settings.port.log(format_args!("front end of domain {} left: the connection ended", self.domain));
            self.settings.port.set_state(PortState::Waiting);
        }
    }

    /// Ends the service if the front end violated the protocol since the last call; true if so.
    ///
    /// # Errors
    /// The errors of [`Self::step`].
    pub(super) fn judge(&mut self, store: &mut dyn Store, host: &Host) -> io::Result<bool> {
        let Some(fault) = self.served.as_ref().and_then(|fault| fault.get().copied()) else { return Ok(false) };
        self.refuse(store, host, &fault.to_string())?;
        Ok(true)
    }
}

/// One queue of a front end, with rings that it granted.
struct GrantedQueue<'h> {
    link: Arc<QueueContext>,
    queue: &'h Queue,
    takes: Takes,
    fetch: &'h Arc<dyn Fetch>,
}

impl Backend for GrantedQueue<'_> {
    /// Maps the rings and binds the event channels.
    fn into_ends(self, _: &Arc<Pool>) -> io::Result<Ends> {
        self.ends().map_err(io::Error::other)
    }
}

impl GrantedQueue<'_> {
    fn ends(self) -> Result<Ends, String> {
        let Self { link, queue, takes, fetch } = self;
        let map = |what: &str, reference: u32| {
            let page = link.layer.map(link.domain, reference);
            page.map_err(|error| format!("the {what} ring that the front end granted cannot be mapped: {error}"))
        };
        let bind = |port: u32| -> Result<SharedChannel, String> {
            let channel = link.layer.bind(link.domain, port);
            channel.map(Arc::new).map_err(|error| format!("the front end's event channel cannot be bound: {error}"))
        };
        let transmit_ring = BackRing::new(map("transmit", queue.transmit_ring)?, TX_REQUEST);
        let receive_ring = BackRing::new(map("receive", queue.receive_ring)?, RX_SLOT);
        let transmit_channel = bind(queue.transmit_channel)?;
        let receive_channel = if queue.receive_channel == queue.transmit_channel {
            Arc::clone(&transmit_channel)
        } else {
            bind(queue.receive_channel)?
        };
        // Responses that an earlier process wrote may lack their notification, so notify now.
        transmit_channel.notify();
        let shared = Arc::ptr_eq(&transmit_channel, &receive_channel);
        if !shared {
            receive_channel.notify();
        }
        let text = |error: io::Error| {
            format!(
                "grant pages or file descriptors ran out: {error}. Raise /sys/module/xen_gntalloc/parameters/limit (36 for each queue, 18 for \
                 each interface), or memlane's limit of open files"
            )
        };
        let readable = transmit_channel.readable().map_err(text)?;
        // If both directions share one event channel, only the transmit end watches it, and the poll iteration that follows serves
        // the receive ring too: clearing the channel removes the event, and a second watcher would miss it.
        let room = if shared { None } else { Some(receive_channel.readable().map_err(text)?) };
        let transmit = XenTransmit::new(Arc::clone(&link), transmit_channel, transmit_ring).map_err(text)?;
        let receive = XenReceive::new(link, receive_channel, receive_ring, takes, Arc::clone(fetch)).map_err(text)?;
        Ok(Ends { transmit: Box::new(transmit), receive: Box::new(receive), readable: Some(readable), writable: None, room })
    }
}

/// One queue's grant references and event channels, from the front end's keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Queue {
    transmit_ring: u32,
    receive_ring: u32,
    transmit_channel: u32,
    receive_channel: u32,
}

/// The front end's choice of features, and its queues.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Asks {
    queues: Vec<Queue>,
    takes: Takes,
}

impl Asks {
    /// Reads the keys below `front`, for at most so many `queues`; the inner error says which one is wrong.
    fn read(store: &mut dyn Store, front: &str, most: u16, receive_offloads: bool) -> io::Result<Result<Self, String>> {
        let mut number = |key: &str| -> io::Result<Option<u32>> {
            Ok(store.read(&format!("{front}/{key}"))?.and_then(|text| text.trim().parse().ok()))
        };
        if number("request-rx-copy")? != Some(1) {
            return Ok(Err("the front end does not support receive by copy (request-rx-copy)".into()));
        }
        let count = number("multi-queue-num-queues")?.unwrap_or(1);
        if count == 0 || count > most.into() {
            return Ok(Err(format!("the front end requests {}, more than the {most} offered", counted(count, "queue"))));
        }
        let mut queues = Vec::new();
        for index in 0..count {
            let folder = if count == 1 { String::new() } else { format!("queue-{index}/") };
            let mut of = |key: &str| number(&format!("{folder}{key}"));
            let both = of("event-channel")?;
            let (transmit_channel, receive_channel) = (of("event-channel-tx")?.or(both), of("event-channel-rx")?.or(both));
            let parts = (of("tx-ring-ref")?, of("rx-ring-ref")?, transmit_channel, receive_channel);
            let (Some(transmit_ring), Some(receive_ring), Some(transmit_channel), Some(receive_channel)) = parts else {
                return Ok(Err("the front end published no ring references and event channels in xenstore".into()));
            };
            queues.push(Queue { transmit_ring, receive_ring, transmit_channel, receive_channel });
        }
        let mut has = |key: &str| number(key).map(|value| value == Some(1));
        let scattered = has("feature-sg")?;
        let no_checksum = has("feature-no-csum-offload")? || !receive_offloads;
        let with = |checksum: bool, gso: bool| Offloads { checksum, tcp4: gso, tcp6: gso, ..Offloads::default() };
        let v4 = with(!no_checksum, scattered && has("feature-gso-tcpv4")?);
        let v6 = with(receive_offloads && has("feature-ipv6-csum-offload")?, scattered && has("feature-gso-tcpv6")?);
        Ok(Ok(Self { queues, takes: Takes { scattered, v4, v6 } }))
    }
}
