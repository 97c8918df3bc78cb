//! FDB sync: the thread that copies MAC addresses of this host to the bridge's FDB, and those of other hosts to the segment's
//! forwarding table.
//!
//! The thread sleeps until a netlink notification arrives or a tenth of a second has passed. It walks the forwarding table only if counts
//! or generation show a change, and spends only a small part of its time on that, so that guests that invent addresses keep no
//! CPU busy.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_REPLACE};
use netlink_packet_route::neighbour::{NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::announced::{Announced, AnnouncedAddress, FdbChange};
use super::announced_neighbours::{self, AnnouncedNeighbours};
use super::devices::is_forbidden;
use super::neighbours::{Machine, NeighbourChange, RemoteNeighbours, ip_and_mac};
use super::remote::{Remote, RemoteChange, VxlanFdbEntry};
use super::{Seen, VxlanConfig};
use crate::address_map::{Entry, Key};
use crate::frame::MacAddress;
use crate::id::PortId;
use crate::network::Network;
use crate::port::{Port, PortState};
use crate::table::{Kind, Record, Table};
use memlane_backends::netlink::{LINKS, NEIGHBOURS, Netlink, News};

/// Longest wait before the forwarding table is checked for changes.
const LOOK: Duration = Duration::from_millis(LOOK_MS as u64);
const LOOK_MS: u8 = 100;
/// Pause after a walk of the forwarding table, in multiples of the walk's duration.
const PAUSE: u32 = 20;
/// Interval at which the table's entries for other hosts are refreshed, and IP addresses of this host are announced.
const CONFIRM: Duration = Duration::from_secs(1);
/// Most datagrams of notifications read in one round.
const MOST_NEWS: usize = 256;

/// See the module.
#[derive(Debug)]
pub struct FdbSync {
    network: Arc<Network>,
    uplink: Arc<Port>,
    /// Sockets for requests, and for notifications.
    requests: Netlink,
    news: Netlink,
    tap: u32,
    vxlan: u32,
    /// TAP, bridge and VXLAN device, by their indices and names.
    devices: [u32; 3],
    names: [String; 3],
    announced: Announced,
    remote: Remote,
    neighbours: RemoteNeighbours,
    announced_neighbours: AnnouncedNeighbours,
    /// Generation of the address map and running ports at the last update of these; none if they have to be updated.
    told_neighbours: Option<(u32, Vec<PortId>)>,
    seen: Arc<Mutex<Seen>>,
    /// False once the kernel has refused a change of the bridge's FDB.
    may_tell: bool,
    trouble: Option<String>,
    /// The bridge's FDB has entries of another process of the network, with which this one is to go on.
    adopts: bool,
    /// Notifications were lost, and no dump has succeeded since.
    is_stale: bool,
    /// The report is out of date.
    has_changed: bool,
    started: Instant,
    looked: Look,
    looks_again: Instant,
    confirms_again: Instant,
}

/// State at the last walk of the forwarding table, to detect changes.
#[derive(Debug, Default, PartialEq, Eq)]
struct Look {
    /// The table, which is replaced when the segment grows, and its generation.
    table: (usize, u32),
    /// Each running port, and its number of addresses.
    ports: Vec<(PortId, u32)>,
}

impl FdbSync {
    /// An FDB sync for the uplink port `uplink`, whose TAP, bridge and VXLAN device have these indices.
    ///
    /// # Errors
    /// The kernel refuses a socket or a dump.
    pub(super) fn new(
        network: &Arc<Network>,
        uplink: &Arc<Port>,
        config: &VxlanConfig,
        devices: [u32; 3],
        may_tell: bool,
        seen: Arc<Mutex<Seen>>,
    ) -> io::Result<Self> {
        // Subscribe before the dump: a change during the dump is then reported.
        let news = Netlink::listen(config.netns.as_deref(), &[LINKS, NEIGHBOURS])?;
        let requests = Netlink::open(config.netns.as_deref())?;
        let now = Instant::now();
        let mut fdb_sync = Self {
            network: Arc::clone(network),
            uplink: Arc::clone(uplink),
            requests,
            news,
            tap: devices[0],
            vxlan: devices[2],
            devices,
            names: [&config.tap, &config.bridge, &config.vxlan].map(String::clone),
            announced: Announced::default(),
            remote: Remote::default(),
            neighbours: RemoteNeighbours::default(),
            announced_neighbours: AnnouncedNeighbours::default(),
            told_neighbours: None,
            seen,
            may_tell,
            trouble: None,
            adopts: false,
            is_stale: true,
            has_changed: true,
            started: now,
            looked: Look::default(),
            looks_again: now,
            confirms_again: now,
        };
        if !may_tell {
            fdb_sync.lament(
                "memlane lacks CAP_NET_ADMIN, so the bridge learns local MAC addresses from frames: other hosts learn of a guest only after its first frame"
                    .into(),
            );
        }
        fdb_sync.read_all()?;
        fdb_sync.show();
        Ok(fdb_sync)
    }

    /// Goes on with the bridge's FDB entries of another process of the network.
    pub(super) fn adopting(self) -> Self {
        Self { adopts: true, ..self }
    }

    /// Whether the kernel lets it change the bridge's FDB.
    pub(super) fn may_tell(&self) -> bool {
        self.may_tell
    }

    /// Runs until told to end; removes the neighbours that it added, since the bridge may stay.
    pub(super) fn run(mut self, ends: &AtomicBool) {
        while !ends.load(Ordering::Relaxed) {
            self.wait();
            if let Err(cause) = self.hear() {
                self.lament(format!("cannot read the FDB of the VXLAN device: {cause}"));
                // An error at once would be an error at once again.
                std::thread::sleep(LOOK);
            }
            self.look();
            self.confirm();
            if std::mem::take(&mut self.has_changed) {
                self.show();
            }
        }
        let changes = self.announced_neighbours.update(std::iter::empty());
        self.enter_neighbours(&changes);
    }

    /// Waits for a notification, or for a tenth of a second.
    fn wait(&self) {
        let mut news = [PollFd::new(self.news.as_fd(), PollFlags::POLLIN)];
        // EINTR makes the wait shorter, no more.
        let _ = poll(&mut news, PollTimeout::from(LOOK_MS));
    }

    /// Logs a problem once, and reports it from then on.
    fn lament(&mut self, trouble: String) {
        if self.trouble.as_ref() != Some(&trouble) {
            tracing::warn!(target: "memlane::uplink::fdb_sync", segment = %self.uplink.segment.name, "{trouble}");
            self.trouble = Some(trouble);
            self.has_changed = true;
        }
    }

    fn table(&self) -> Arc<Table> {
        self.uplink.segment.table()
    }

    /// Processes notifications; dumps the FDB if some were lost. The kernel tells of a loss once, and drops further notifications without
    /// a word until all that are queued have been read (NETLINK_S_CONGESTED), so a dump before that would be out of date.
    fn hear(&mut self) -> io::Result<()> {
        let mut are_all_read = false;
        for _ in 0..MOST_NEWS {
            let messages = match self.news.news()? {
                News::Lost => {
                    self.is_stale = true;
                    continue;
                }
                News::Messages(messages) if messages.is_empty() => {
                    are_all_read = true;
                    break;
                }
                News::Messages(messages) => messages,
            };
            self.has_changed = true;
            for message in messages {
                self.miss(&message);
                let change = match &message {
                    RouteNetlinkMessage::NewNeighbour(message) => {
                        VxlanFdbEntry::of(message, self.vxlan).and_then(|entry| self.remote.came(entry))
                    }
                    RouteNetlinkMessage::DelNeighbour(message) => {
                        VxlanFdbEntry::of(message, self.vxlan).and_then(|entry| self.remote.went(entry))
                    }
                    _ => None,
                };
                change.into_iter().for_each(|change| self.follow(change));
                self.hear_of_neighbour(&message);
            }
        }
        if are_all_read && (self.is_stale || self.remote.lacks()) { self.read_all() } else { Ok(()) }
    }

    /// Processes a notification about a neighbour of the bridge.
    fn hear_of_neighbour(&mut self, message: &RouteNetlinkMessage) {
        let bridge = self.devices[1];
        let change = match message {
            RouteNetlinkMessage::NewNeighbour(message) => self.neighbours.came(message, bridge),
            RouteNetlinkMessage::DelNeighbour(message) => {
                let gone = ip_and_mac(message, bridge).map(|(ip, _)| ip);
                if gone.is_some_and(|ip| self.announced_neighbours.retract(ip)) {
                    self.told_neighbours = None;
                }
                self.neighbours.went(message, bridge)
            }
            _ => None,
        };
        change.into_iter().for_each(|change| self.follow_neighbour(change));
    }

    /// Records that `message` reports the deletion of an uplink's device. A port that leaves a bridge is reported by messages of
    /// the bridge family.
    fn miss(&mut self, message: &RouteNetlinkMessage) {
        let RouteNetlinkMessage::DelLink(link) = message else { return };
        let header = &link.header;
        let gone = self.devices.iter().position(|&index| index == header.index && header.interface_family == AddressFamily::Unspec);
        if let Some(gone) = gone {
            let (name, segment) = (&self.names[gone], &self.uplink.segment.name);
            self.lament(format!(
                "its device {name} was deleted by another program, and other hosts are unreachable: remove the uplink of segment {segment} from the file, \
                 memlane reload, add it again, memlane reload"
            ));
        }
    }

    /// Dumps the whole FDB of the VXLAN device and the neighbours of the bridge, in place of the entries known before.
    fn read_all(&mut self) -> io::Result<()> {
        let mut question = NeighbourMessage::default();
        question.header.family = AddressFamily::Bridge;
        let all = self.requests.dump(&RouteNetlinkMessage::GetNeighbour(question))?;
        let entries = all.iter().filter_map(|message| match message {
            RouteNetlinkMessage::NewNeighbour(message) => VxlanFdbEntry::of(message, self.vxlan),
            _ => None,
        });
        for change in self.remote.replace(entries) {
            self.follow(change);
        }
        // Of all families but that of bridges.
        let all = self.requests.dump(&RouteNetlinkMessage::GetNeighbour(NeighbourMessage::default()))?;
        let neighbours = all.iter().filter_map(|message| match message {
            RouteNetlinkMessage::NewNeighbour(message) => Some(message),
            _ => None,
        });
        self.announced_neighbours.adopt(neighbours.clone(), self.devices[1]);
        for change in self.neighbours.replace(neighbours, self.devices[1]) {
            self.follow_neighbour(change);
        }
        self.has_changed = true;
        self.is_stale = false;
        Ok(())
    }

    /// Applies a change at other hosts to the forwarding table.
    fn follow(&mut self, change: RemoteChange) {
        let (table, uplink) = (self.table(), self.uplink.id);
        match change {
            RemoteChange::Is(address) => {
                // In every VLAN in which it was learned here: EVPN does not state the VLAN.
                table.unlearn(address, |port| port != uplink);
                table.tell(address, uplink);
                // The kernel has replaced our entry, if there was one, by this.
                if self.announced.learned_address(address).is_some_and(|learned_address| !learned_address.pinned) {
                    self.announced.retract(address);
                }
            }
            RemoteChange::IsNot(address) => {
                table.unlearn(address, |port| port == uplink);
                self.announced.retract(address);
            }
        }
        self.looked = Look::default();
    }

    /// Applies a change at other hosts to the address map.
    fn follow_neighbour(&mut self, change: NeighbourChange) {
        let map = self.uplink.segment.addresses();
        match change {
            NeighbourChange::Is(ip, Machine { mac, is_router }) => {
                map.tell(ip, (mac, self.uplink.id), is_router, self.network.second());
            }
            NeighbourChange::IsNot(ip) => map.untell(ip),
        }
    }

    /// Refreshes the table's entries for other hosts, which may have been evicted. An address that has moved to this host is
    /// learned here, and this has priority. Announces the IP addresses of this host.
    fn confirm(&mut self) {
        let now = Instant::now();
        if now < self.confirms_again {
            return;
        }
        self.confirms_again = now + CONFIRM;
        self.tell_neighbours();
        let table = self.table();
        for (address, _) in self.remote.learned_addresses() {
            table.tell(address, self.uplink.id);
        }
        // An address that a machine here had claimed meanwhile, and no longer does.
        let (map, now) = (self.uplink.segment.addresses(), self.network.second());
        for (ip, Machine { mac, is_router }) in self.neighbours.all().filter(|&(ip, _)| map.find(0, ip, now).is_none()) {
            map.tell(ip, (mac, self.uplink.id), is_router, now);
        }
    }

    /// Updates the bridge's neighbours to the IP addresses of this host.
    fn tell_neighbours(&mut self) {
        let map = self.uplink.segment.addresses();
        let seen = Some((map.generation(), self.running()));
        if !self.may_tell || seen == self.told_neighbours {
            return;
        }
        let runs = |port: PortId| seen.as_ref().is_some_and(|(_, running)| running.binary_search(&port).is_ok());
        // EVPN does not state the VLAN.
        let here = map.records(self.network.second()).into_iter().filter(|(key, entry)| key.vlan == 0 && entry.is_assigned());
        let machine = |(key, entry): (Key, Entry)| {
            let is_router = entry.router == Some(true);
            entry.mac.filter(|_| runs(entry.port)).map(|mac| (key.ip, Machine { mac, is_router }))
        };
        let changes = self.announced_neighbours.update(here.filter_map(machine));
        self.told_neighbours = seen;
        self.enter_neighbours(&changes);
    }

    /// Makes these changes to the bridge's neighbours.
    fn enter_neighbours(&mut self, changes: &[NeighbourChange]) {
        for &change in changes {
            let Err(cause) = self.enter_neighbour(change) else { continue };
            let (NeighbourChange::Is(ip, _) | NeighbourChange::IsNot(ip)) = change;
            // The next update tries again.
            self.announced_neighbours.retract(ip);
            let remedy = match cause.raw_os_error() {
                Some(libc::EINVAL) if ip.is_ipv6() => {
                    format!(". Enable IPv6 there: sysctl -w net.ipv6.conf.{}.disable_ipv6=0", self.names[1])
                }
                _ => String::new(),
            };
            self.lament(format!(
                "IP addresses of this host are not announced to others, which flood questions for them: the kernel refuses neighbours of the bridge: \
                 {cause}{remedy}"
            ));
        }
    }

    fn enter_neighbour(&mut self, change: NeighbourChange) -> io::Result<()> {
        let request = announced_neighbours::request(change, self.devices[1]);
        match change {
            NeighbourChange::Is(..) => self.requests.request(request, NLM_F_CREATE | NLM_F_REPLACE),
            // FRR has replaced it: the machine is at another host.
            NeighbourChange::IsNot(ip) if self.neighbours.has(ip) => Ok(()),
            NeighbourChange::IsNot(_) => match self.requests.request(request, 0) {
                // The device is gone, perhaps with the bridge.
                Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV)) => Ok(()),
                done => done,
            },
        }
    }

    /// Numbers of the running, enabled ports of this host.
    fn running(&self) -> Vec<PortId> {
        let members = self.uplink.segment.members().into_iter().filter(|&port| port != self.uplink.id);
        let runs = |port: &Port| port.is_enabled() && port.state() == PortState::Running;
        let mut running: Vec<PortId> = members.filter(|&port| self.network.port(port).is_some_and(|port| runs(&port))).collect();
        running.sort_unstable();
        running
    }

    /// Updates the bridge's FDB to the addresses of this host.
    fn look(&mut self) {
        let start = Instant::now();
        if !self.may_tell || start < self.looks_again {
            return;
        }
        let table = self.table();
        let running = self.running();
        let look = Look {
            table: (Arc::as_ptr(&table).addr(), table.generation()),
            ports: running.iter().map(|&port| (port, table.held(port))).collect(),
        };
        if look == self.looked && !self.announced.is_owed() {
            return;
        }
        self.looked = look;
        self.has_changed = true;
        let learned_addresses: Vec<AnnouncedAddress> = table
            .records()
            .into_iter()
            .filter(|record| running.binary_search(&record.port).is_ok())
            // The bridge's FDB ignores VLANs: an address in several of them has one entry.
            .map(|Record { learned_address, port, kind, .. }| AnnouncedAddress {
                address: learned_address.address,
                port,
                pinned: kind == Kind::Pinned,
            })
            .collect();
        if std::mem::take(&mut self.adopts) {
            self.adopt(&learned_addresses);
        }
        let remote = &self.remote;
        let changes = self
            .announced
            .update(&learned_addresses, self.started.elapsed().as_secs_f64(), |address| remote.host(address).is_some());
        for change in changes {
            if let Err(cause) = self.tell(change) {
                self.refused(change, &cause);
            }
        }
        self.looks_again = Instant::now() + start.elapsed() * PAUSE;
    }

    /// Goes on with the entries of the bridge's FDB behind the TAP device, and removes those of addresses that are not here any more.
    fn adopt(&mut self, learned_addresses: &[AnnouncedAddress]) {
        let entries = match self.own_entries() {
            Ok(entries) => entries,
            Err(cause) => return self.lament(format!("cannot read the FDB of the bridge: {cause}")),
        };
        for change in self.announced.adopt(learned_addresses, &entries, self.started.elapsed().as_secs_f64()) {
            if let Err(cause) = self.tell(change) {
                self.refused(change, &cause);
            }
        }
    }

    /// Addresses of the entries that this network has added to the bridge's FDB.
    fn own_entries(&mut self) -> io::Result<Vec<MacAddress>> {
        let mut question = NeighbourMessage::default();
        question.header.family = AddressFamily::Bridge;
        let all = self.requests.dump(&RouteNetlinkMessage::GetNeighbour(question))?;
        let address = |attribute: &NeighbourAttribute| match attribute {
            NeighbourAttribute::LinkLayerAddress(bytes) => <[u8; 6]>::try_from(&bytes[..]).ok().map(MacAddress::new),
            _ => None,
        };
        let of = |message: &RouteNetlinkMessage| match message {
            RouteNetlinkMessage::NewNeighbour(message)
                if message.header.ifindex == self.tap && message.header.state == NeighbourState::Noarp =>
            {
                message.attributes.iter().find_map(address)
            }
            _ => None,
        };
        Ok(all.iter().filter_map(of).collect())
    }

    /// Adds or removes an entry of the bridge's FDB.
    fn tell(&mut self, change: FdbChange) -> io::Result<()> {
        let (FdbChange::Here(address) | FdbChange::Gone(address)) = change;
        let mut message = NeighbourMessage::default();
        message.header.family = AddressFamily::Bridge;
        message.header.ifindex = self.tap;
        message.header.flags = NeighbourFlags::Controller;
        message.header.state = NeighbourState::Noarp;
        message.attributes = vec![NeighbourAttribute::LinkLayerAddress(address.bytes().to_vec())];
        match change {
            FdbChange::Here(_) => self.requests.request(RouteNetlinkMessage::NewNeighbour(message), NLM_F_CREATE | NLM_F_REPLACE),
            FdbChange::Gone(_) => match self.requests.request(RouteNetlinkMessage::DelNeighbour(message), 0) {
                // The entry is another host's by now, or gone.
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
                done => done,
            },
        }
    }

    fn refused(&mut self, change: FdbChange, cause: &io::Error) {
        if is_forbidden(cause) {
            self.may_tell = false;
            self.lament(
                "local MAC addresses are not announced to other hosts, because memlane lacks CAP_NET_ADMIN: run it with this capability".into(),
            );
            return;
        }
        if let FdbChange::Here(address) = change {
            self.announced.retract(address);
        }
        self.lament(format!("cannot add a local MAC address to the FDB of the bridge: {cause}"));
    }

    /// Updates the report.
    fn show(&self) {
        let table = self.table();
        let is_tied_here = |address: MacAddress| table.pinned(address).is_some();
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.announced = self.announced.count();
        seen.held_back = self.announced.held_back();
        seen.remote.clone_from(&self.remote);
        seen.disputed = self.remote.learned_addresses().filter(|(address, _)| is_tied_here(*address)).collect();
        seen.trouble.clone_from(&self.trouble);
    }
}
