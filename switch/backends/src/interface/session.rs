//! Sessions of an interface: each lasts from the moment the interface is opened until another program deletes it.
//!
//! Deleting a TAP wakes its reader before reads begin to fail, so the worker may miss it. The session hears of it by
//! netlink notifications (rtnetlink(7)).

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::af_packet::{self, PacketSocket};
use super::handle::{Interface, InterfaceError};
use super::nic::{Nic, Opened};
use super::tap::{self, TapSettings};
use crate::executor::{Executor, Watched};
use crate::netlink::{LINKS, Netlink};
use crate::network::Network;
use crate::port::{Port, PortState};
use crate::session::{Backoff, LONGEST_PAUSE, RETRY, Serve, Session, SessionContext, UNWATCHED, serve_all};
use memlane_virtq::message::counted;

/// Where a port's interface comes from.
#[derive(Debug)]
pub enum Origin {
    /// A TAP device, which is created.
    Tap(TapSettings),
    /// An interface of another program, by a packet socket.
    Packet(PacketSocket),
    /// A NIC, by AF_XDP if that is possible.
    Nic(Nic),
}

impl Origin {
    fn open(&self) -> Result<Opened, String> {
        match self {
            Self::Tap(settings) => tap::open(settings).map(Opened::Interface).map_err(|error: InterfaceError| error.to_string()),
            Self::Packet(socket) => socket.bind().map(Opened::Interface).map_err(|error| error.to_string()),
            Self::Nic(nic) => nic.open().map_err(|error| error.to_string()),
        }
    }

    fn is_gone(&self, file: &File) -> bool {
        match self {
            Self::Tap(_) => tap::is_gone(file),
            Self::Packet(_) | Self::Nic(_) => af_packet::is_gone(file),
        }
    }

    /// The packet socket, which stays while its interface comes and goes.
    fn packet(&self) -> Option<&PacketSocket> {
        match self {
            Self::Tap(_) => None,
            Self::Packet(socket) => Some(socket),
            Self::Nic(nic) => Some(&nic.packet),
        }
    }

    fn netns(&self) -> Option<&str> {
        match self {
            Self::Tap(settings) => settings.netns.as_deref(),
            Self::Packet(socket) => socket.settings.netns.as_deref(),
            Self::Nic(nic) => nic.packet.settings.netns.as_deref(),
        }
    }

    /// Name of its interface.
    fn name(&self) -> &str {
        match self {
            Self::Tap(settings) => &settings.name,
            Self::Packet(socket) => &socket.settings.name,
            Self::Nic(nic) => &nic.packet.settings.name,
        }
    }

    /// Whether the interface is up and has a carrier; `None` if that is not known. `news` is a netlink socket in its namespace.
    fn carrier(&self, news: Option<&Netlink>) -> Option<bool> {
        let has_carrier = match (self.packet(), news) {
            (Some(socket), _) => tap::has_carrier(&socket.file, self.name()),
            (None, Some(news)) => tap::has_carrier(&news.as_fd(), self.name()),
            (None, None) => return None,
        };
        has_carrier.ok()
    }

    fn backoff(&self) -> Backoff {
        Backoff::new(RETRY.0, if matches!(self, Self::Tap(_)) { LONGEST_PAUSE } else { RETRY.1 })
    }

    /// Advice after `count` attempts that failed, the last one for this `cause`.
    fn absent(&self, count: u32, cause: &str) -> String {
        match self {
            Self::Tap(TapSettings { name, .. }) => {
                format!("its TAP device {name} was deleted, and cannot be created again ({}): {cause}", counted(count, "try"))
            }
            Self::Nic(nic) => {
                let told = format!("its NIC {} cannot be used: {cause}", nic.packet.settings.name);
                nic.lost(&told);
                told
            }
            Self::Packet(PacketSocket { settings, .. }) => {
                let (name, netns) = (&settings.name, settings.netns.as_deref());
                let place = netns.map_or(String::new(), |netns| format!(" in namespace {netns}"));
                format!(
                    "interface {name}{place} cannot be used: {cause}. Make it, as one end of a veth pair: ip link add {name} type veth peer name NAME"
                )
            }
        }
    }

    /// Advice once the interface has been opened again for the `times`th time.
    fn opened_again(&self, times: u32) -> Option<String> {
        let name = match self {
            Self::Tap(TapSettings { name, .. }) => name,
            Self::Packet(_) => return None,
            Self::Nic(nic) => return nic.note(),
        };
        let times = if times == 1 { "once".to_owned() } else { counted(times, "time") };
        Some(format!(
            "its TAP device {name} was deleted by another program and created again, {times}: set addresses, routes and bridge of {name} again, and find the \
             program"
        ))
    }
}

/// Serves `port` by the interface of this `origin`, which is `opened` already or is opened now. A task of `executor` watches it and,
/// whenever it is deleted, opens the next one.
///
/// # Errors
/// The kernel refuses a thread or a descriptor.
pub fn run(
    executor: &Executor,
    network: Arc<Network>,
    port: &Arc<Port>,
    origin: Origin,
    opened: Option<Interface>,
) -> io::Result<(Session, PresentInterface)> {
    let present = PresentInterface::of(&origin)?;
    let opened = opened.map_or_else(|| origin.open(), |interface| Ok(Opened::Interface(interface)));
    if let Origin::Tap(settings) = &origin {
        port.set_agreed_mtu(settings.mtu);
    }
    let first = match opened {
        Ok(opened) => {
            let file = begin(&network, port, opened)?;
            if let Origin::Nic(nic) = &origin
                && let Some(note) = nic.note()
            {
                port.set_trouble(1, note);
            }
            present.show(Some(Arc::clone(&file)));
            Ok(file)
        }
        Err(cause) => {
            port.set_trouble(1, origin.absent(1, &cause));
            Err(())
        }
    };
    let (backoff, shown) = (origin.backoff(), present.clone());
    let server = InterfaceServer { network, port: Arc::clone(port), origin, shown, backoff, deleted: 0 };
    let session = Session::new(executor, port, |context| Ok(serve_all(server, context, Some(first))))?;
    session.notify();
    Ok((session, present))
}

/// A port, and its interface whenever that is there.
struct InterfaceServer {
    network: Arc<Network>,
    port: Arc<Port>,
    origin: Origin,
    shown: PresentInterface,
    backoff: Backoff,
    /// Number of interfaces that were deleted.
    deleted: u32,
}

impl Serve for InterfaceServer {
    type Open = Arc<File>;
    type End = ();

    async fn open(&mut self, context: &SessionContext) -> Result<Arc<File>, ()> {
        let Self { network, port, origin, backoff, .. } = self;
        let opened = origin.open();
        // The port may have been detached while the kernel made the interface.
        if context.quits() {
            return Err(());
        }
        let opened = opened.and_then(|opened| begin(network, port, opened).map_err(|error| error.to_string()));
        let interface = opened.map_err(|cause| port.set_trouble(backoff.failures, origin.absent(backoff.failures, &cause)))?;
        self.shown.show(Some(Arc::clone(&interface)));
        match origin.opened_again(self.deleted) {
            Some(advice) => port.set_trouble(self.deleted, advice),
            None => port.set_advice(None),
        }
        Ok(interface)
    }

    async fn serve(&mut self, context: &SessionContext, interface: Arc<File>) {
        self.await_end(context, &interface).await;
        if !context.quits() {
            let Self { network, port, origin, shown, .. } = self;
            port.set_carrier(origin.name(), None);
            shown.show(None);
            network.stop_port(port);
            port.set_state(PortState::Waiting);
            self.deleted += 1;
        }
    }

    fn pause(&mut self, (): (), lasted: Duration) -> Duration {
        self.backoff.after(lasted)
    }
}

impl InterfaceServer {
    /// Waits until `interface` is deleted, or the task is to end. Tells the port of its carrier meanwhile.
    async fn await_end(&mut self, context: &SessionContext, interface: &File) {
        // Subscribe before the check: a deletion after the check is then reported. A NIC may be in a namespace that this process cannot enter.
        let news = match &self.origin {
            Origin::Nic(_) => None,
            origin => Netlink::listen(origin.netns(), &[LINKS]).ok(),
        };
        let mut news = news.and_then(|news| context.task.watch(news).ok());
        while !context.quits() && !self.origin.is_gone(interface) {
            // Unknown is no change: an interface that was renamed has its carrier still.
            if let Some(carrier) = self.origin.carrier(news.as_deref()) {
                self.port.set_carrier(self.origin.name(), Some(carrier));
            }
            let most = news.is_none().then_some(UNWATCHED);
            context.rest(most, || news.as_ref().is_some_and(Watched::is_readable)).await;
            // The messages are not examined: any of them, a lost one included, leads to another check of the interface.
            if news.as_mut().is_some_and(|news| news.news().is_err()) {
                news = None;
            }
        }
    }
}

/// The descriptor of a port's interface at present, for a takeover.
#[derive(Clone, Debug)]
pub struct PresentInterface(Arc<Mutex<Option<Arc<File>>>>, Option<Arc<File>>);

impl PresentInterface {
    fn of(origin: &Origin) -> io::Result<Self> {
        let socket = origin.packet().map(|socket| socket.file.try_clone().map(Arc::new)).transpose()?;
        Ok(Self(Arc::default(), socket))
    }

    fn show(&self, device: Option<Arc<File>>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = device;
    }

    /// A copy of its descriptor; `None` while a TAP device is deleted.
    ///
    /// # Errors
    /// The kernel refuses a descriptor.
    pub fn copy(&self) -> io::Result<Option<OwnedFd>> {
        let device = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let file = self.1.as_ref().or(device.as_ref());
        file.map(|file| file.as_fd().try_clone_to_owned()).transpose()
    }
}

/// Has a worker serve the port by `interface`; returns another descriptor of it.
fn begin(network: &Arc<Network>, port: &Arc<Port>, opened: Opened) -> io::Result<Arc<File>> {
    let file = match &opened {
        Opened::Interface(interface) => &interface.file,
        Opened::Xdp(xdp) => &xdp.watched,
    };
    let file = Arc::new(file.try_clone()?);
    port.begin_session();
    match opened {
        Opened::Interface(interface) => network.serve(port, interface)?,
        Opened::Xdp(xdp) => network.serve(port, xdp)?,
    }
    Ok(file)
}
