//! Xenstore watcher: the thread that watches xenstore and serves the vifs of configured ports.
//!
//! The watcher holds the list of **wanted** vifs: for each port a domain, by name or number, and the number of its interface. When the
//! toolstack creates a back end for such a vif, a [`Vif`](super::vif) serves it until it is removed. For other vifs whose hotplug
//! script names memlane it sends [`News`], if it is asked to, and the receiver of the news creates a port.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::AsFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::device::{Devices, XenError};
use super::layer::{Domain, Layer};
use super::link::Fetcher;
use super::store::{Event, Store, Xenstore};
use super::vif::{Host, Vif, VifSettings};
use crate::frame::MacAddress;
use crate::id::PortId;
use crate::memory::Fetch;
use crate::network::Network;
use crate::port::Port;
use crate::session::GUEST_PAUSE;

/// Path of back ends in xenstore.
const BACK: &str = "backend/vif";
/// Token of the watch on that path.
const BACK_ENDS: &str = "back ends";
/// The hotplug script by which the toolstack assigns an interface to memlane.
const SCRIPT: &str = "vif-memlane";
const STACK: usize = 512 * 1024;

/// The vif that a port serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Name or number of the domain.
    pub domain: String,
    /// Number of the domain's interface, from 0 on.
    pub vif: u16,
    /// Most queues (pairs of transmit and receive ring).
    pub queues: u16,
    /// Whether the guest may receive GSO frames and partial checksums (configuration key `receive-offloads`).
    pub receive_offloads: bool,
    /// The operator ties a MAC address to the port; otherwise it is the toolstack's.
    pub has_address: bool,
}

/// A vif that no port is configured for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Newcomer {
    /// Number of its domain.
    pub domain: Domain,
    /// Number of the domain's interface.
    pub vif: u16,
    /// The segment for its port: the toolstack's name of the bridge, if there is one.
    pub segment: Option<String>,
    /// MAC address of the guest.
    pub mac: Option<MacAddress>,
}

/// Notifications of vifs for which memlane is to create ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// A vif was created.
    Came(Newcomer),
    /// The vif of this domain with this number was removed.
    Gone(Domain, u16),
}

#[derive(Debug)]
enum Order {
    Serve(Wanted, Arc<Port>),
    /// Sends news through this channel from now on.
    Tell(Sender<News>),
    /// Complete when the sender is dropped.
    Release(PortId, Sender<()>),
    Quit,
}

/// See the module.
#[derive(Debug)]
pub struct XenstoreWatcher {
    orders: Sender<Order>,
    wake_up: Arc<EventFd>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl XenstoreWatcher {
    /// Serves vifs of this host's guests on `network`.
    ///
    /// # Errors
    /// A [`XenError`]: this is no Xen host, or xen-netback is loaded.
    pub fn start(network: &Arc<Network>) -> Result<Self, XenError> {
        super::device::probe()?;
        let mut store = Xenstore::connect()?;
        let layer = Devices::open(store.own_domain()?)?;
        Ok(Self::start_on(network, Arc::new(layer), Box::new(store))?)
    }

    /// Like [`Self::start`], on any implementation of the Xen layer.
    ///
    /// # Errors
    /// The kernel refuses a thread, pages or descriptors.
    pub fn start_on(network: &Arc<Network>, layer: Arc<dyn Layer>, store: Box<dyn Store>) -> io::Result<Self> {
        let wake_up = Arc::new(EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?);
        let fetch: Arc<dyn Fetch> = Arc::new(Fetcher::new(Arc::clone(&layer))?);
        // One network has one xenstore watcher.
        let _ = network.shared().foreign.set(Arc::clone(&fetch));
        let host = Host { network: Arc::clone(network), layer, fetch, wake_up: Arc::clone(&wake_up) };
        let (orders, inbox) = channel();
        let rounds =
            Rounds { host, store, inbox, wanted: Vec::new(), vifs: BTreeMap::new(), told: None, newcomers: BTreeSet::new() };
        let thread = std::thread::Builder::new().name("xen".into()).stack_size(STACK).spawn(move || {
            let network = Arc::clone(&rounds.host.network);
            if let Some(Err(error)) = network.fatal().guard("the server of Xen guests", || rounds.run()) {
                tracing::error!(%error, "the connection to xenstore is lost: new and removed vifs are not noticed; start the network again");
            }
        })?;
        Ok(Self { orders, wake_up, thread: Mutex::new(Some(thread)) })
    }

    /// Serves `port` to the vif `wanted`, whenever it exists.
    pub fn serve(&self, wanted: Wanted, port: &Arc<Port>) {
        self.order(Order::Serve(wanted, Arc::clone(port)));
    }

    /// Sends news of vifs with memlane's hotplug script and no configured port through `who`, existing ones included.
    pub fn tell(&self, who: Sender<News>) {
        self.order(Order::Tell(who));
    }

    /// Ends the service of `port`. Its vif stays as it is, to be served by another port or process.
    pub fn release(&self, port: &Port) {
        let (done, wait) = channel();
        self.order(Order::Release(port.id, done));
        // An error means that the thread has ended, and the service with it.
        let _ = wait.recv();
    }

    /// Ends the service of all ports; their vifs stay as they are.
    pub fn stop(&self) {
        self.order(Order::Quit);
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
            // A thread that panicked has logged it.
            let _ = thread.join();
        }
    }

    fn order(&self, order: Order) {
        // If the thread has ended, so has its work.
        if self.orders.send(order).is_ok() {
            let _ = self.wake_up.write(1);
        }
    }
}

impl Drop for XenstoreWatcher {
    fn drop(&mut self) {
        self.stop();
    }
}

/// State of the thread.
struct Rounds {
    host: Host,
    store: Box<dyn Store>,
    inbox: Receiver<Order>,
    wanted: Vec<(Wanted, Arc<Port>)>,
    vifs: BTreeMap<(Domain, u16), Vif>,
    /// Receiver of news.
    told: Option<Sender<News>>,
    /// Vifs that were reported as new and still exist.
    newcomers: BTreeSet<(Domain, u16)>,
}

/// The vifs to examine in the next round: a guest's writes lead to an examination of its own vif only.
#[derive(Debug, Default)]
struct Looks {
    /// The list of vifs: some were created or removed.
    which: bool,
    /// These vifs.
    vifs: BTreeSet<(Domain, u16)>,
}

/// Whether to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    GoOn,
    Quit,
}

/// Path of a vif's back end below [`BACK`], which is also the token of the watch on its front end.
fn place((domain, vif): (Domain, u16)) -> String {
    format!("{domain}/{vif}")
}

/// The vif that a path at its [`place`] or below belongs to, and whether the path is below.
fn vif_at(place: &str) -> Option<((Domain, u16), bool)> {
    let mut parts = place.split('/');
    let key = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    Some((key, parts.next().is_some()))
}

impl Rounds {
    fn run(mut self) -> io::Result<()> {
        self.store.watch(BACK, BACK_ENDS)?;
        let result = loop {
            match self.round() {
                Ok(Then::GoOn) => {}
                Ok(Then::Quit) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        for vif in self.vifs.values_mut() {
            vif.stop(&self.host);
        }
        result
    }

    /// Waits for events, and examines the vifs that they concern.
    fn round(&mut self) -> io::Result<Then> {
        std::thread::sleep(GUEST_PAUSE);
        self.wait()?;
        let mut looks = Looks::default();
        if self.take_orders(&mut looks)? == Then::Quit {
            return Ok(Then::Quit);
        }
        while let Some(event) = self.store.next_event() {
            self.note(&event, &mut looks);
        }
        if looks.which {
            self.find()?;
        }
        for (key, vif) in &mut self.vifs {
            if vif.judge(&mut *self.store, &self.host)? || looks.vifs.contains(key) {
                vif.step(&mut *self.store, &self.host)?;
            }
        }
        Ok(Then::GoOn)
    }

    /// Notes the vif to examine after `event`: the one whose front or back end has changed, or the list of vifs if it is one that
    /// is not served.
    fn note(&self, event: &Event, looks: &mut Looks) {
        if event.token != BACK_ENDS {
            looks.vifs.extend(vif_at(&event.token).map(|(key, _)| key));
            return;
        }
        let changed = event.path.strip_prefix(BACK).and_then(|rest| vif_at(rest.strip_prefix('/')?));
        match changed {
            Some((key, true)) if self.vifs.contains_key(&key) => _ = looks.vifs.insert(key),
            _ => looks.which = true,
        }
    }

    fn wait(&mut self) -> io::Result<()> {
        let mut files = [self.store.descriptor(), self.host.wake_up.as_fd()].map(|file| PollFd::new(file, PollFlags::POLLIN));
        let timeout = if self.store.has_events() { PollTimeout::ZERO } else { PollTimeout::NONE };
        match poll(&mut files, timeout) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        let [store, wake_up] = files.map(|file| file.any().unwrap_or(false));
        if wake_up {
            let _ = self.host.wake_up.read();
        }
        if store { self.store.receive() } else { Ok(()) }
    }

    fn take_orders(&mut self, looks: &mut Looks) -> io::Result<Then> {
        while let Ok(order) = self.inbox.try_recv() {
            looks.which = true;
            match order {
                Order::Serve(wanted, port) => self.wanted.push((wanted, port)),
                Order::Release(id, done) => {
                    self.release(id)?;
                    drop(done);
                }
                Order::Tell(who) => self.told = Some(who),
                Order::Quit => return Ok(Then::Quit),
            }
        }
        Ok(Then::GoOn)
    }

    fn release(&mut self, id: PortId) -> io::Result<()> {
        self.wanted.retain(|(_, port)| port.id != id);
        let keys: Vec<_> = self.vifs.iter().filter(|(_, vif)| vif.port().id == id).map(|(key, _)| *key).collect();
        keys.into_iter().try_for_each(|key| self.forget(key))
    }

    fn forget(&mut self, key: (Domain, u16)) -> io::Result<()> {
        let Some(mut vif) = self.vifs.remove(&key) else { return Ok(()) };
        vif.stop(&self.host);
        self.store.unwatch(&vif.watched(), &place(key))
    }

    /// Finds vifs that are new and wanted, and forgets those that were removed.
    fn find(&mut self) -> io::Result<()> {
        let there = self.there()?;
        let left: Vec<_> = self.newcomers.iter().filter(|key| !there.contains(key)).copied().collect();
        for (domain, vif) in left {
            self.newcomers.remove(&(domain, vif));
            self.say(News::Gone(domain, vif));
        }
        let gone: Vec<_> = self.vifs.keys().filter(|key| !there.contains(key)).copied().collect();
        gone.into_iter().try_for_each(|key| self.forget(key))?;
        for key in there {
            if !self.vifs.contains_key(&key) {
                self.meet(key)?;
            }
        }
        Ok(())
    }

    /// All back ends that the toolstack created: domain and number of each.
    fn there(&mut self) -> io::Result<Vec<(Domain, u16)>> {
        let mut found = Vec::new();
        for domain in self.store.list(BACK)? {
            let Ok(number) = domain.parse() else { continue };
            let vifs = self.store.list(&format!("{BACK}/{domain}"))?;
            found.extend(vifs.iter().filter_map(|vif| Some((number, vif.parse().ok()?))));
        }
        Ok(found)
    }

    fn say(&self, news: News) {
        if let Some(told) = &self.told {
            // The receiver may have ended before this thread.
            let _ = told.send(news);
        }
    }

    /// Sends news of a vif that no port is configured for, once, if its script is memlane's.
    fn announce(&mut self, (domain, vif): (Domain, u16), back: &str) -> io::Result<()> {
        if self.told.is_none() || self.newcomers.contains(&(domain, vif)) {
            return Ok(());
        }
        let script = self.store.read(&format!("{back}/script"))?.unwrap_or_default();
        if script.rsplit('/').next() != Some(SCRIPT) {
            return Ok(());
        }
        let segment = self.store.read(&format!("{back}/bridge"))?.filter(|name| !name.is_empty());
        let mac = self.store.read(&format!("{back}/mac"))?.and_then(|mac| mac.parse().ok());
        self.newcomers.insert((domain, vif));
        self.say(News::Came(Newcomer { domain, vif, segment, mac }));
        Ok(())
    }

    fn meet(&mut self, (domain, number): (Domain, u16)) -> io::Result<()> {
        let back = format!("{BACK}/{domain}/{number}");
        // The toolstack writes this key together with the others.
        let Some(front) = self.store.read(&format!("{back}/frontend"))? else { return Ok(()) };
        let name = self.store.read(&format!("/local/domain/{domain}/name"))?;
        let is_it = |wanted: &Wanted| {
            wanted.vif == number && (wanted.domain == domain.to_string() || Some(&wanted.domain) == name.as_ref())
        };
        let Some((wanted, port)) = self.wanted.iter().find(|(wanted, _)| is_it(wanted)) else {
            return self.announce((domain, number), &back);
        };
        if self.vifs.values().any(|vif| vif.port().id == port.id) {
            // A domain in migration exists twice for a moment; the old one is about to end.
            return Ok(());
        }
        let settings = VifSettings {
            port: Arc::clone(port),
            queues: wanted.queues,
            receive_offloads: wanted.receive_offloads,
            has_address: wanted.has_address,
        };
        let vif = Vif::new(domain, back, front, settings);
        // The first event of the watch leads to an examination.
        self.store.watch(&vif.watched(), &place((domain, number)))?;
        self.vifs.insert((domain, number), vif);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_tells_whose_back_end_it_is() {
        assert_eq!(vif_at(&place((7, 0))), Some(((7, 0), false)), "it has come or gone");
        assert_eq!(vif_at("7/0/state"), Some(((7, 0), true)));
        for other in ["", "7", "x/0", "7/", "7/x"] {
            assert_eq!(vif_at(other), None, "{other}");
        }
    }
}
