//! The keeper: the thread that watches xenstore and serves the vifs that ports are for.
//!
//! It knows who is **wanted**: for each port a domain, by name or number, and which of its interfaces. When the toolstack makes a back end for
//! one, a [`Vif`](super::vif) stands for it until it goes. Of others that are memlane's by their script it sends [`News`], if it is asked to:
//! whoever hears of them makes a port.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::AsFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::device::{Devices, XenError};
use super::layer::{Domain, Layer};
use super::link::Fetcher;
use super::store::{Event, Store, Xenstore};
use super::vif::{Host, Terms, Vif};
use crate::frame::MacAddress;
use crate::id::PortId;
use crate::memory::Fetch;
use crate::network::Network;
use crate::port::Port;

/// Where back ends stand in xenstore.
const BACK: &str = "backend/vif";
/// The token of the watch that tells of them.
const BACK_ENDS: &str = "back ends";
/// The hotplug script by which the toolstack says that an interface is memlane's.
const SCRIPT: &str = "vif-memlane";
/// What the thread waits between two rounds at least, so that guests that write without end cost little.
const PAUSE: Duration = Duration::from_millis(1);
const STACK: usize = 512 * 1024;

/// Whom a port is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Name or number of the domain.
    pub domain: String,
    /// Which of its interfaces, from 0 on.
    pub vif: u16,
    /// Most queues.
    pub queues: u16,
    /// Whether frames may come to the guest with checksums and segmentation left undone.
    pub receive_offloads: bool,
    /// The operator ties an address to the port; else it is the toolstack's.
    pub has_address: bool,
}

/// An interface that no port is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Newcomer {
    /// Number of its domain.
    pub domain: Domain,
    /// Which of the domain's interfaces it is.
    pub vif: u16,
    /// The segment that it is to be on: what the toolstack calls its bridge, if anything.
    pub segment: Option<String>,
    /// Its address.
    pub mac: Option<MacAddress>,
}

/// What is told of interfaces that memlane is to take as they come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// One has come.
    Came(Newcomer),
    /// That of this domain with this number has gone.
    Gone(Domain, u16),
}

#[derive(Debug)]
enum Order {
    Serve(Wanted, Arc<Port>),
    /// From now on there is somebody to be told.
    Tell(Sender<News>),
    /// Done when the sender is dropped.
    Release(PortId, Sender<()>),
    Quit,
}

/// See the module.
#[derive(Debug)]
pub struct Keeper {
    orders: Sender<Order>,
    bell: Arc<EventFd>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Keeper {
    /// Serves vifs of this host's guests on `network`.
    ///
    /// # Errors
    /// A [`XenError`]: this is no Xen host, or the kernel's own back end is loaded.
    pub fn start(network: &Arc<Network>) -> Result<Self, XenError> {
        super::device::probe()?;
        let mut store = Xenstore::connect()?;
        let layer = Devices::open(store.own_domain()?)?;
        Ok(Self::start_on(network, Arc::new(layer), Box::new(store))?)
    }

    /// As [`Self::start`], on any kind of Xen.
    ///
    /// # Errors
    /// The kernel refuses a thread, pages or descriptors.
    pub fn start_on(network: &Arc<Network>, layer: Arc<dyn Layer>, store: Box<dyn Store>) -> io::Result<Self> {
        let bell = Arc::new(EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?);
        let fetch: Arc<dyn Fetch> = Arc::new(Fetcher::new(Arc::clone(&layer))?);
        // One network has one keeper.
        let _ = network.shared().foreign.set(Arc::clone(&fetch));
        let host = Host { network: Arc::clone(network), layer, fetch, bell: Arc::clone(&bell) };
        let (orders, inbox) = channel();
        let rounds =
            Rounds { host, store, inbox, wanted: Vec::new(), vifs: BTreeMap::new(), told: None, newcomers: BTreeSet::new() };
        let thread = std::thread::Builder::new().name("xen".into()).stack_size(STACK).spawn(move || {
            let network = Arc::clone(&rounds.host.network);
            if let Some(Err(error)) = network.fatal().guard("the server of Xen guests", || rounds.run()) {
                tracing::error!(%error, "xenstore cannot be reached any more: vifs that come or go are not noticed");
            }
        })?;
        Ok(Self { orders, bell, thread: Mutex::new(Some(thread)) })
    }

    /// Serves `port` to whom it is for, whenever that is there.
    pub fn serve(&self, wanted: Wanted, port: &Arc<Port>) {
        self.order(Order::Serve(wanted, Arc::clone(port)));
    }

    /// Tells `who` of interfaces that no port is for and whose script is memlane's, those that are there included.
    pub fn tell(&self, who: Sender<News>) {
        self.order(Order::Tell(who));
    }

    /// Serves `port` to nobody any more. Its guest is left as it is, to be served by another port or process.
    pub fn release(&self, port: &Port) {
        let (done, wait) = channel();
        self.order(Order::Release(port.id, done));
        // Ended one way or the other.
        let _ = wait.recv();
    }

    /// Serves nobody any more; guests are left as they are.
    pub fn stop(&self) {
        self.order(Order::Quit);
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
            // If it panicked, it has said so.
            let _ = thread.join();
        }
    }

    fn order(&self, order: Order) {
        // If the thread has ended, so has its work.
        if self.orders.send(order).is_ok() {
            let _ = self.bell.write(1);
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.stop();
    }
}

/// What the thread works with.
struct Rounds {
    host: Host,
    store: Box<dyn Store>,
    inbox: Receiver<Order>,
    wanted: Vec<(Wanted, Arc<Port>)>,
    vifs: BTreeMap<(Domain, u16), Vif>,
    /// Who hears of newcomers.
    told: Option<Sender<News>>,
    /// What was told of and is there still.
    newcomers: BTreeSet<(Domain, u16)>,
}

/// What there is to look at: what a guest writes has nobody else looked at.
#[derive(Debug, Default)]
struct Looks {
    /// Which vifs there are: some came or went.
    which: bool,
    /// These.
    vifs: BTreeSet<(Domain, u16)>,
}

/// Whether to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    GoOn,
    Quit,
}

/// Where a vif's back end stands below [`BACK`]; watches of its front end have that for a token.
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

    /// Waits until something comes, and looks at what it concerns.
    fn round(&mut self) -> io::Result<Then> {
        std::thread::sleep(PAUSE);
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

    /// Notes what `event` has looked at: the vif whose front or back end has changed, or which there are if this is none that is served.
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
        let mut files = [self.store.descriptor(), self.host.bell.as_fd()].map(|file| PollFd::new(file, PollFlags::POLLIN));
        let timeout = if self.store.has_events() { PollTimeout::ZERO } else { PollTimeout::NONE };
        match poll(&mut files, timeout) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        let [store, bell] = files.map(|file| file.any().unwrap_or(false));
        if bell {
            let _ = self.host.bell.read();
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

    /// Meets vifs that are new and wanted, and forgets those that are gone.
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

    /// All back ends that the toolstack made: domain and number.
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
            // Whoever was told may have ended before us.
            let _ = told.send(news);
        }
    }

    /// Tells of an interface that no port is for, once, if it is memlane's.
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
        // It is written together with the rest of what the toolstack writes.
        let Some(front) = self.store.read(&format!("{back}/frontend"))? else { return Ok(()) };
        let name = self.store.read(&format!("/local/domain/{domain}/name"))?;
        let is_it = |wanted: &Wanted| {
            wanted.vif == number && (wanted.domain == domain.to_string() || Some(&wanted.domain) == name.as_ref())
        };
        let Some((wanted, port)) = self.wanted.iter().find(|(wanted, _)| is_it(wanted)) else {
            return self.announce((domain, number), &back);
        };
        if self.vifs.values().any(|vif| vif.port().id == port.id) {
            // A domain that is being moved has two for a moment; the old one goes.
            return Ok(());
        }
        let terms = Terms {
            port: Arc::clone(port),
            queues: wanted.queues,
            receive_offloads: wanted.receive_offloads,
            has_address: wanted.has_address,
        };
        let vif = Vif::new(domain, back, front, terms);
        // It is looked at when the watch tells that it is there.
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
