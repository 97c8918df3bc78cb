//! The thread that keeps bridge and table agreed: what is here the bridge is told, what is elsewhere the table.
//!
//! It sleeps until there is news or a tenth of a second is over. It looks through the table only if counts or generation say that something has
//! changed, and never spends more than a small part of its time on that, so that guests who invent addresses keep no CPU busy.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_REPLACE};
use netlink_packet_route::neighbour::{NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::announced::{Announced, Change, Station};
use super::devices::is_forbidden;
use super::remote::{self, Entry, Remote};
use super::{Seen, UplinkConfig};
use crate::frame::MacAddress;
use crate::id::PortId;
use crate::network::Network;
use crate::port::{Port, State};
use crate::table::{Kind, Record, Table};
use memlane_backends::netlink::{LINKS, NEIGHBOURS, Netlink, News};

/// Longest wait before it is looked whether stations came or went.
const LOOK: Duration = Duration::from_millis(LOOK_MS as u64);
const LOOK_MS: u8 = 100;
/// Pause after a look through the table, in times of what the look took.
const PAUSE: u32 = 20;
/// Pause between two confirmations of the table's entries for stations elsewhere.
const CONFIRM: Duration = Duration::from_secs(1);
/// Datagrams of news that are read before anything else is done.
const MOST_NEWS: usize = 256;

/// See the module.
#[derive(Debug)]
pub struct Keeper {
    network: Arc<Network>,
    uplink: Arc<Port>,
    /// For requests, and for news.
    requests: Netlink,
    news: Netlink,
    tap: u32,
    vxlan: u32,
    /// TAP, bridge and VXLAN device, by their numbers and names.
    devices: [u32; 3],
    names: [String; 3],
    announced: Announced,
    remote: Remote,
    seen: Arc<Mutex<Seen>>,
    /// False once it turned out that memlane may not tell the bridge.
    may_tell: bool,
    trouble: Option<String>,
    /// Something is to be seen that is not shown yet.
    has_changed: bool,
    started: Instant,
    looked: Look,
    looks_again: Instant,
    confirms_again: Instant,
}

/// What tells whether stations came or went since the last look.
#[derive(Debug, Default, PartialEq, Eq)]
struct Look {
    /// The table, which another takes the place of when the segment grows, and its generation.
    table: (usize, u32),
    /// Each port that runs, and how many addresses are behind it.
    ports: Vec<(PortId, u32)>,
}

impl Keeper {
    /// A keeper for the uplink port `uplink`, whose TAP, bridge and VXLAN device have these numbers.
    ///
    /// # Errors
    /// The kernel refuses a socket, or to tell what there is.
    pub(super) fn new(
        network: &Arc<Network>,
        uplink: &Arc<Port>,
        config: &UplinkConfig,
        devices: [u32; 3],
        may_tell: bool,
        seen: Arc<Mutex<Seen>>,
    ) -> io::Result<Self> {
        // Listening first: what changes while the whole is read is news.
        let news = Netlink::listen(config.netns.as_deref(), &[LINKS, NEIGHBOURS])?;
        let requests = Netlink::open(config.netns.as_deref())?;
        let now = Instant::now();
        let mut keeper = Self {
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
            seen,
            may_tell,
            trouble: None,
            has_changed: true,
            started: now,
            looked: Look::default(),
            looks_again: now,
            confirms_again: now,
        };
        if !may_tell {
            keeper.lament(
                "its bridge learns by itself, since memlane lacks CAP_NET_ADMIN: other hosts hear of a machine when it has spoken"
                    .into(),
            );
        }
        keeper.read_all()?;
        keeper.show();
        Ok(keeper)
    }

    /// Keeps on until told to end.
    pub(super) fn run(mut self, ends: &AtomicBool) {
        while !ends.load(Ordering::Relaxed) {
            self.wait();
            if let Err(cause) = self.hear() {
                self.lament(format!("the kernel does not tell which machines are elsewhere: {cause}"));
                // What fails at once would fail again at once.
                std::thread::sleep(LOOK);
            }
            self.look();
            self.confirm();
            if std::mem::take(&mut self.has_changed) {
                self.show();
            }
        }
    }

    /// Until there is news, or for a while.
    fn wait(&self) {
        let mut news = [PollFd::new(self.news.as_fd(), PollFlags::POLLIN)];
        // An interrupted wait is a short one.
        let _ = poll(&mut news, PollTimeout::from(LOOK_MS));
    }

    /// Says once, and shows from then on, what is not as it should be.
    fn lament(&mut self, trouble: String) {
        if self.trouble.as_ref() != Some(&trouble) {
            tracing::warn!(segment = %self.uplink.segment.name, "{trouble}");
            self.trouble = Some(trouble);
            self.has_changed = true;
        }
    }

    fn table(&self) -> Arc<Table> {
        self.uplink.segment.table()
    }

    /// What came of news.
    fn hear(&mut self) -> io::Result<()> {
        for _ in 0..MOST_NEWS {
            let messages = match self.news.news()? {
                News::Lost => {
                    self.read_all()?;
                    continue;
                }
                News::Messages(messages) if messages.is_empty() => break,
                News::Messages(messages) => messages,
            };
            self.has_changed = true;
            for message in messages {
                self.miss(&message);
                let change = match &message {
                    RouteNetlinkMessage::NewNeighbour(message) => {
                        Entry::of(message, self.vxlan).and_then(|entry| self.remote.came(entry))
                    }
                    RouteNetlinkMessage::DelNeighbour(message) => {
                        Entry::of(message, self.vxlan).and_then(|entry| self.remote.went(entry))
                    }
                    _ => None,
                };
                change.into_iter().for_each(|change| self.follow(change));
            }
        }
        if self.remote.lacks() { self.read_all() } else { Ok(()) }
    }

    /// Takes note if `message` says that a device of the uplink was deleted. That a port left a bridge is told of by messages of the bridge's family.
    fn miss(&mut self, message: &RouteNetlinkMessage) {
        let RouteNetlinkMessage::DelLink(link) = message else { return };
        let header = &link.header;
        let gone = self.devices.iter().position(|&index| index == header.index && header.interface_family == AddressFamily::Unspec);
        if let Some(gone) = gone {
            let (name, segment) = (&self.names[gone], &self.uplink.segment.name);
            self.lament(format!(
                "its device {name} was deleted by another program, and other hosts are cut off: take the uplink of segment {segment} out of the file, \
                 memlane reload, put it in again, memlane reload"
            ));
        }
    }

    /// Asks for all entries of the VXLAN device, whatever was known before.
    fn read_all(&mut self) -> io::Result<()> {
        let mut question = NeighbourMessage::default();
        question.header.family = AddressFamily::Bridge;
        let all = self.requests.dump(&RouteNetlinkMessage::GetNeighbour(question))?;
        let entries = all.iter().filter_map(|message| match message {
            RouteNetlinkMessage::NewNeighbour(message) => Entry::of(message, self.vxlan),
            _ => None,
        });
        for change in self.remote.replace(entries) {
            self.follow(change);
        }
        self.has_changed = true;
        Ok(())
    }

    /// The table follows what is known of other hosts.
    fn follow(&mut self, change: remote::Change) {
        let (table, uplink) = (self.table(), self.uplink.id);
        match change {
            remote::Change::Is(address) => {
                // In whichever VLAN it was learned here: EVPN does not tell the VLAN.
                table.unlearn(address, |port| port != uplink);
                table.tell(address, uplink);
                // The kernel has put that entry in the place of ours, if there was one.
                if self.announced.station(address).is_some_and(|station| !station.pinned) {
                    self.announced.retract(address);
                }
            }
            remote::Change::IsNot(address) => {
                table.unlearn(address, |port| port == uplink);
                self.announced.retract(address);
            }
        }
        self.looked = Look::default();
    }

    /// Tells the table again of stations elsewhere, whose entries may have given way. A station that has moved here is learned here, which goes first.
    fn confirm(&mut self) {
        let now = Instant::now();
        if now < self.confirms_again {
            return;
        }
        self.confirms_again = now + CONFIRM;
        let table = self.table();
        for (address, _) in self.remote.stations() {
            table.tell(address, self.uplink.id);
        }
    }

    /// Ports of this host that run, and may take part, by their numbers.
    fn running(&self) -> Vec<PortId> {
        let members = self.uplink.segment.members().into_iter().filter(|&port| port != self.uplink.id);
        let runs = |port: &Port| port.is_enabled() && port.state() == State::Running;
        let mut running: Vec<PortId> = members.filter(|&port| self.network.port(port).is_some_and(|port| runs(&port))).collect();
        running.sort_unstable();
        running
    }

    /// Has the bridge told of stations that came or went.
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
        let stations: Vec<Station> = table
            .records()
            .into_iter()
            .filter(|record| running.binary_search(&record.port).is_ok())
            // The bridge's table knows no VLANs: a station in several of them is told of once.
            .map(|Record { station, port, kind, .. }| Station { address: station.address, port, pinned: kind == Kind::Pinned })
            .collect();
        let remote = &self.remote;
        let changes =
            self.announced.update(&stations, self.started.elapsed().as_secs_f64(), |address| remote.host(address).is_some());
        for change in changes {
            if let Err(cause) = self.tell(change) {
                self.refused(change, &cause);
            }
        }
        self.looks_again = Instant::now() + start.elapsed() * PAUSE;
    }

    /// Tells the bridge.
    fn tell(&mut self, change: Change) -> io::Result<()> {
        let (Change::Here(address) | Change::Gone(address)) = change;
        let mut message = NeighbourMessage::default();
        message.header.family = AddressFamily::Bridge;
        message.header.ifindex = self.tap;
        message.header.flags = NeighbourFlags::Controller;
        message.header.state = NeighbourState::Noarp;
        message.attributes = vec![NeighbourAttribute::LinkLayerAddress(address.bytes().to_vec())];
        match change {
            Change::Here(_) => self.requests.request(RouteNetlinkMessage::NewNeighbour(message), NLM_F_CREATE | NLM_F_REPLACE),
            Change::Gone(_) => match self.requests.request(RouteNetlinkMessage::DelNeighbour(message), 0) {
                // Another host's entry is there by now, or none.
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
                done => done,
            },
        }
    }

    fn refused(&mut self, change: Change, cause: &io::Error) {
        if is_forbidden(cause) {
            self.may_tell = false;
            self.lament(
                "other hosts are not told of machines here, since memlane lacks CAP_NET_ADMIN: run it with that capability".into(),
            );
            return;
        }
        if let Change::Here(address) = change {
            self.announced.retract(address);
        }
        self.lament(format!("the bridge refuses to be told of a machine: {cause}"));
    }

    /// Whoever asks is shown what is known now.
    fn show(&self) {
        let table = self.table();
        let is_tied_here = |address: MacAddress| table.pinned(address).is_some();
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.announced = self.announced.count();
        seen.held_back = self.announced.held_back();
        seen.remote.clone_from(&self.remote);
        seen.disputed = self.remote.stations().filter(|(address, _)| is_tied_here(*address)).collect();
        seen.trouble.clone_from(&self.trouble);
    }
}
