//! Network address and port translation (NAPT, RFC 3022) between a segment and its passt, which serves one guest: the segment's guests
//! share one address and one MAC address towards it.
//!
//! ```text
//!   guest 10.9.0.7:40000 -> [StreamReceive] outbound -> 192.0.0.2:16384 -> passt -> host
//!   guest 10.9.0.7:40000 <- [StreamReader]   inbound <- 192.0.0.2:16384 <- passt
//! ```
//!
//! 1. [`Nat::outbound`] rewrites a frame of a guest, and enters its flow in a [bounded table](flows).
//! 2. [`Nat::inbound`] rewrites a frame of passt for the guest of its flow, or of a port forwarding, and drops any other. A guest whose MAC
//!    address is no longer at the port that opened the flow gets nothing: the frame would be flooded.
//! 3. [`rewrite`] changes addresses, ports and checksums.
//!
//! TCP, UDP and echo requests are translated, and ICMP errors about them; fragments are not, as passt drops them. Frames between guests are
//! not routed. passt closes the TCP connection of a flow that ends by eviction, because it gets a reset.

pub mod flows;
mod rewrite;

use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use memlane_dataplane::address_map::Source;
use memlane_dataplane::headers::{Arp, TYPE_ARP};
use memlane_dataplane::segment::Segment;
use memlane_dataplane::table::Table;
use memlane_virtq::time::{Cycles, cycles, frequency};

use crate::frame::{ETHERNET, MacAddress, TCP, TYPE_IPV4, UDP};
use crate::id::PortId;
use crate::port::Port;
use crate::stats::DropReason;
use flows::{Flow, FlowTable, Kind, RemoteSide, SavedFlow};
use rewrite::{Echo, Ip};

/// Address that passt has for its guest, and its own: of the block for such translators (RFC 7335).
pub const INSIDE: Ipv4Addr = Ipv4Addr::new(192, 0, 0, 2);
/// See [`INSIDE`].
pub const PASST: Ipv4Addr = Ipv4Addr::new(192, 0, 0, 1);
/// Length of the prefix of both.
pub const INSIDE_LENGTH: u8 = 29;
/// The one MAC address that passt knows its guest by; it is on no segment.
const INSIDE_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
/// Protocol number of ICMP.
const ICMP: u8 = 1;
/// Most resets that wait for the receive end.
const MOST_RESETS: usize = 256;

/// A port of the host that leads to a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forwarding {
    /// UDP instead of TCP.
    pub is_udp: bool,
    /// Port of the host.
    pub port: u16,
    /// Address and port of the guest.
    pub to: SocketAddrV4,
}

/// Settings of the translation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NatSettings {
    /// Address of the router, by which guests leave the segment.
    pub router: Ipv4Addr,
    /// MAC address of the router.
    pub mac: MacAddress,
    /// Network address and prefix length of the segment's subnet.
    pub subnet: (Ipv4Addr, u8),
    /// Port forwardings, as they are given to passt.
    pub forwardings: Vec<Forwarding>,
}

impl NatSettings {
    fn is_local(&self, address: Ipv4Addr) -> bool {
        let (network, length) = self.subnet;
        let mask = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
        u32::from(address) & mask == u32::from(network)
    }

    /// Whether `address` is one of a guest.
    fn is_guest(&self, address: Ipv4Addr) -> bool {
        self.is_local(address) && address != self.router
    }

    /// Whether a guest may reach `address` by the router.
    fn is_outside(&self, address: Ipv4Addr) -> bool {
        let is_inside = u32::from(address) ^ u32::from(INSIDE) < 1 << (32 - INSIDE_LENGTH);
        let is_one = !address.is_unspecified() && !address.is_broadcast() && !address.is_multicast() && !address.is_loopback();
        is_one && !self.is_local(address) && !is_inside
    }
}

/// Outcome of the translation of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Translated {
    /// The frame is rewritten and goes on.
    Sent,
    /// The frame is a flood that does not concern the router.
    Ignored,
    /// The frame is dropped.
    Dropped(DropReason),
}

const REFUSED: Translated = Translated::Dropped(DropReason::NotTranslated);
const UNKNOWN: Translated = Translated::Dropped(DropReason::NoFlow);

/// See the module.
#[derive(Debug)]
pub struct Nat {
    settings: NatSettings,
    segment: Arc<Segment>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    tables: [FlowTable; 3],
    /// Frames that reset connections at passt.
    resets: Vec<Vec<u8>>,
    members: MacPorts,
}

impl State {
    fn table(&mut self, kind: Kind) -> &mut FlowTable {
        self.parts(kind).0
    }

    /// The table of `kind`, and the members of the segment.
    fn parts(&mut self, kind: Kind) -> (&mut FlowTable, &mut MacPorts) {
        let Self { tables: [tcp, udp, icmp], members, .. } = self;
        let table = match kind {
            Kind::Tcp => tcp,
            Kind::Udp => udp,
            Kind::Icmp => icmp,
        };
        (table, members)
    }

    /// Has passt close the connections of flows that ended.
    fn reset(&mut self, ended: Vec<(u16, Flow)>) {
        for (port, flow) in ended {
            if flow.kind() == Kind::Tcp && !flow.is_closed() && self.resets.len() < MOST_RESETS {
                self.resets.push(rewrite::reset(INSIDE_MAC, (INSIDE, port), flow.remote(), flow.next_sequence()));
            }
        }
    }
}

/// The ports of MAC addresses, by the segment's forwarding table.
#[derive(Debug)]
struct MacPorts {
    table: Arc<Table>,
    /// Second in which `table` was the segment's.
    second: u32,
}

impl MacPorts {
    /// The port behind which `mac` is. The segment's table is asked for once a second, and where the last one does not know `mac`.
    fn find(&mut self, segment: &Segment, mac: MacAddress, now: u32) -> Option<PortId> {
        let found = self.table.find(mac).filter(|_| self.second == now);
        found.or_else(|| {
            (self.table, self.second) = (segment.table(), now);
            self.table.find(mac)
        })
    }
}

/// Seconds of the present moment.
fn second(now: Cycles) -> u32 {
    (now / frequency()) as u32
}

impl Nat {
    /// The translation of `port`.
    pub fn new(settings: NatSettings, port: &Port) -> Arc<Self> {
        let segment = Arc::clone(&port.segment);
        let taken = |is_udp| {
            let of_kind = settings.forwardings.iter().filter(move |one| one.is_udp == is_udp);
            of_kind.map(|one| one.port).collect()
        };
        let tables = [
            FlowTable::new(Kind::Tcp, taken(false)),
            FlowTable::new(Kind::Udp, taken(true)),
            FlowTable::new(Kind::Icmp, Vec::new()),
        ];
        let members = MacPorts { table: segment.table(), second: 0 };
        Arc::new(Self { settings, segment, state: Mutex::new(State { tables, resets: Vec::new(), members }) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets all flows: a new passt knows none of them.
    pub(super) fn clear(&self) {
        let state = &mut *self.state();
        state.tables.iter_mut().for_each(FlowTable::clear);
        state.resets.clear();
    }

    /// The flows, for another process of the network.
    pub(super) fn save(&self) -> Vec<SavedFlow> {
        self.state().tables.iter().flat_map(FlowTable::save).collect()
    }

    /// Goes on with the flows that another process of the network has left.
    pub(super) fn restore(&self, saved: &[SavedFlow]) {
        let (now, state) = (second(cycles()), &mut *self.state());
        for kind in [Kind::Tcp, Kind::Udp, Kind::Icmp] {
            state.table(kind).restore(saved.iter().filter(|flow| flow.kind == kind), now);
        }
    }

    /// Frames to passt that reset connections of flows that have ended.
    pub(super) fn take_resets(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.state().resets)
    }

    /// Rewrites `frame`, which the guest of `source` sent, for passt.
    pub(super) fn outbound(&self, frame: &mut [u8], source: PortId) -> Translated {
        self.outbound_at(frame, source, second(cycles()))
    }

    fn outbound_at(&self, frame: &mut [u8], source: PortId, now: u32) -> Translated {
        let Some(&[first, .., high, low]) = frame.first_chunk::<ETHERNET>() else { return REFUSED };
        let is_group = first & 1 != 0;
        match u16::from_be_bytes([high, low]) {
            TYPE_ARP => {
                let arp = frame.get(ETHERNET..).and_then(Arp::parse);
                let is_asked = arp.is_some_and(|arp| arp.operation == 1 && arp.target.1 == self.settings.router);
                if is_asked { Translated::Sent } else { Translated::Ignored }
            }
            TYPE_IPV4 if !is_group => self.outbound_ip(frame, source, now).unwrap_or(REFUSED),
            _ if is_group => Translated::Ignored,
            _ => REFUSED,
        }
    }

    fn outbound_ip(&self, frame: &mut [u8], source: PortId, now: u32) -> Option<Translated> {
        let ip = Ip::parse(frame).filter(|ip| self.settings.is_guest(ip.source))?;
        if let Some((port, to)) = self.forwarded_reply(frame, &ip) {
            ip.replace_source(frame, INSIDE, port);
            ip.replace_destination(frame, to, ip.destination_port);
            ip.replace_links(frame, None, INSIDE_MAC);
            return Some(Translated::Sent);
        }
        if !self.settings.is_outside(ip.destination) {
            return None;
        }
        let kind = match ip.protocol {
            TCP => Kind::Tcp,
            UDP => Kind::Udp,
            ICMP if ip.echo == Some(Echo::Request) => Kind::Icmp,
            _ => return None,
        };
        let mac = rewrite::source(frame)?;
        let flow = Flow::new(kind, (ip.source, ip.source_port), RemoteSide(ip.destination, ip.destination_port), (mac, source));
        let state = &mut *self.state();
        let known = state.table(kind).find(&flow, now);
        let slot = match known {
            Some(slot) => slot,
            // The connection of a segment that opens none has ended.
            None if kind == Kind::Tcp && !ip.tcp.opens() => return None,
            None => {
                let (table, members) = state.parts(kind);
                let is_there =
                    |flow: &Flow| flow.port().is_none_or(|port| members.find(&self.segment, flow.mac(), now) == Some(port));
                let (slot, ended) = table.open(flow, now, is_there)?;
                state.reset(ended);
                slot
            }
        };
        state.table(kind).note_sent(slot, &ip.tcp);
        ip.replace_source(frame, INSIDE, slot);
        ip.replace_links(frame, None, INSIDE_MAC);
        Some(Translated::Sent)
    }

    /// The host's port, and the address towards passt, of a frame that answers a forwarded connection.
    fn forwarded_reply(&self, frame: &[u8], ip: &Ip) -> Option<(u16, Ipv4Addr)> {
        let is_udp = ip.protocol == UDP;
        if !(is_udp || ip.protocol == TCP && !ip.tcp.opens()) {
            return None;
        }
        let guest = SocketAddrV4::new(ip.source, ip.source_port);
        let forwarding = self.settings.forwardings.iter().find(|one| one.is_udp == is_udp && one.to == guest)?;
        // A connection that the guest opened from the same port goes on.
        let mac = rewrite::source(frame)?;
        let kind = if is_udp { Kind::Udp } else { Kind::Tcp };
        let own = Flow::new(kind, (ip.source, ip.source_port), RemoteSide(ip.destination, ip.destination_port), (mac, PortId(0)));
        if self.state().table(kind).has(&own) {
            return None;
        }
        let to = if ip.destination == self.settings.router { PASST } else { ip.destination };
        (to == PASST || self.settings.is_outside(to)).then_some((forwarding.port, to))
    }

    /// Rewrites `frame`, which passt sent, for the guest that it is for.
    pub(super) fn inbound(&self, frame: &mut [u8]) -> Translated {
        self.inbound_at(frame, second(cycles()))
    }

    fn inbound_at(&self, frame: &mut [u8], now: u32) -> Translated {
        let Some(&[first, .., high, low]) = frame.first_chunk::<ETHERNET>() else { return UNKNOWN };
        match u16::from_be_bytes([high, low]) {
            TYPE_ARP => {
                let arp = frame.get(ETHERNET..).and_then(Arp::parse);
                let answers = arp.is_some_and(|arp| arp.operation == 2 && arp.sender.1 == self.settings.router);
                if !answers || first & 1 != 0 {
                    return Translated::Ignored;
                }
                rewrite::arp_sender(frame, self.settings.mac.bytes());
                Translated::Sent
            }
            TYPE_IPV4 => self.inbound_ip(frame, now).unwrap_or(UNKNOWN),
            // Announcements of IPv6.
            _ => Translated::Ignored,
        }
    }

    fn inbound_ip(&self, frame: &mut [u8], now: u32) -> Option<Translated> {
        let ip = Ip::parse(frame).filter(|ip| ip.destination == INSIDE)?;
        let kind = match ip.protocol {
            TCP => Kind::Tcp,
            UDP => Kind::Udp,
            ICMP if ip.echo == Some(Echo::Reply) => Kind::Icmp,
            ICMP => return self.inbound_error(frame, &ip, now),
            _ => return None,
        };
        let is_forwarded =
            |one: &&Forwarding| one.port == ip.destination_port && kind == if one.is_udp { Kind::Udp } else { Kind::Tcp };
        if let Some(forwarding) = self.settings.forwardings.iter().find(is_forwarded) {
            let to = forwarding.to;
            // The addresses of the configuration never expire.
            let owner =
                self.segment.addresses().find(0, (*to.ip()).into(), 0).filter(|owner| owner.source == Source::Configuration)?;
            let mac = owner.mac?;
            let state = &mut *self.state();
            (state.members.find(&self.segment, mac, now) == Some(owner.port)).then_some(())?;
            if ip.source == PASST {
                ip.replace_source(frame, self.settings.router, ip.source_port);
            }
            ip.replace_destination(frame, *to.ip(), to.port());
            ip.replace_links(frame, Some(mac.bytes()), self.settings.mac.bytes());
            return Some(Translated::Sent);
        }
        let remote =
            if kind == Kind::Icmp { RemoteSide(ip.source, ip.destination_port) } else { RemoteSide(ip.source, ip.source_port) };
        let guest =
            self.guest_of(kind, ip.destination_port, |flow| kind == Kind::Icmp && flow.0 == remote.0 || flow == remote, now)?;
        self.state().table(kind).note_received(ip.destination_port, &ip.tcp);
        ip.replace_destination(frame, guest.address, guest.port);
        ip.replace_links(frame, Some(guest.mac.bytes()), self.settings.mac.bytes());
        Some(Translated::Sent)
    }

    /// An ICMP error about a frame of a flow.
    fn inbound_error(&self, frame: &mut [u8], ip: &Ip, now: u32) -> Option<Translated> {
        let about = ip.quoted(frame).filter(|about| about.source == INSIDE)?;
        let kind = match about.protocol {
            TCP => Kind::Tcp,
            UDP => Kind::Udp,
            ICMP if about.echo == Some(Echo::Request) => Kind::Icmp,
            _ => return None,
        };
        let guest = self.guest_of(kind, about.source_port, |remote| remote.0 == about.destination, now)?;
        about.replace_source(frame, guest.address, guest.port);
        ip.replace_destination_of_error(frame, guest.address);
        ip.replace_links(frame, Some(guest.mac.bytes()), self.settings.mac.bytes());
        Some(Translated::Sent)
    }

    /// The guest of the flow with passt's `port`, if the flow is with a remote side that `is_remote` accepts, and the guest is still at
    /// the port that opened it.
    fn guest_of(&self, kind: Kind, port: u16, is_remote: impl Fn(RemoteSide) -> bool, now: u32) -> Option<Guest> {
        let state = &mut *self.state();
        let flow = state.table(kind).get(port).filter(|flow| is_remote(flow.remote()))?;
        let (mac, owner, (address, guest_port)) = (flow.mac(), flow.port(), flow.guest());
        let found = state.members.find(&self.segment, mac, now)?;
        if owner.is_some_and(|owner| owner != found) {
            let ended = state.table(kind).end(port, now);
            state.reset(ended.into_iter().collect());
            return None;
        }
        Some(Guest { mac, address, port: guest_port })
    }
}

/// The guest's side of a flow.
#[derive(Clone, Copy, Debug)]
struct Guest {
    mac: MacAddress,
    address: Ipv4Addr,
    port: u16,
}

#[cfg(test)]
mod tests;
