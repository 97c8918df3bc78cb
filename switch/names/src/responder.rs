//! One frame in, at most one answer out.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use memlane_dataplane::headers::{Arp, ICMPV6, TYPE_ARP, link_local};
use memlane_virtq::frame::{ETHERNET, MacAddress, TCP, TYPE_IPV4, TYPE_IPV6, UDP};

use crate::dns::{NoRecords, Outside, Reaction};
use crate::exchange::{Answer, Client, Refused, Service};
use crate::forward::Question;
use crate::lease::{Holder, Lease, LeaseKind};
use crate::leases::{Leases, Sightings};
use crate::outside::{self, Response};
use crate::pending::{Full, Pending, Via, Waiting};
use crate::report::{LeaseReport, NamesReport};
use crate::settings::{PortAddresses, Settings};
use crate::tcp::{self, Asked, Peer, Streams};
use crate::wire::{self, DNS, Datagram, ICMP, ND_HOPS, Way};
use crate::{dhcp4, dhcp6, dns, nd};

/// Longest frame that is looked at: messages of all services are shorter.
const LONGEST: usize = 1600;
const HOPS: u8 = 64;
/// Ports of UDP: DHCP servers (RFC 2131), DHCPv6 servers (RFC 8415).
const DHCP: u16 = 67;
const DHCPV6: u16 = 547;
/// All DHCPv6 servers and relay agents of the link (RFC 8415, section 7.1).
const DHCPV6_SERVERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);

/// Decides which names outside the guest of a port may ask for.
pub trait NamePolicy: Send {
    /// Whether `port` may ask for `name`, which is in lower case and without the root's dot; a refusal is told to the operator.
    fn admit(&self, port: &str, name: &str) -> Admission;

    /// Whether some rule limits the names or destinations of a port, so that no guest is to ask another server.
    fn limits(&self) -> bool;
}

/// A decision about a name outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// A resolver is asked.
    Ask,
    /// The rules of the port refuse it.
    Refuse,
}

/// An answer to a question for a name outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given {
    /// The port that asked.
    pub port: Arc<str>,
    /// The name, in lower case.
    pub name: Arc<str>,
    /// Addresses that the guest is told, and the TTL of each, which may break RFC 2181.
    pub addresses: Vec<(IpAddr, u32)>,
    /// The frame with the answer; the port may use the addresses before its guest gets it.
    pub frame: Vec<u8>,
}

/// See the module.
pub struct Responder {
    settings: Settings,
    leases: Leases,
    streams: Streams,
    pending: Pending,
    resolver: Option<Box<dyn NamePolicy>>,
    /// [`Settings::asked`], which is empty while rules limit names.
    asked: Vec<IpAddr>,
    /// Answers to questions that gave way to others.
    displaced: Vec<Given>,
    answers: [u64; Service::ALL.len()],
    refused: [u64; Refused::ALL.len()],
}

impl std::fmt::Debug for Responder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Responder").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl Responder {
    /// A responder without ports.
    pub fn new(settings: Settings) -> Self {
        Self {
            asked: settings.asked.clone(),
            settings,
            leases: Leases::default(),
            streams: Streams::default(),
            pending: Pending::default(),
            resolver: None,
            displaced: Vec::new(),
            answers: Default::default(),
            refused: Default::default(),
        }
    }

    /// Heeds the use of addresses that `seen` tells: new leases pass over those of other machines, where others are free, and a port
    /// keeps claims that are in use.
    pub fn heed(&mut self, seen: impl Sightings + 'static) {
        self.leases.heed(Box::new(seen));
    }

    /// Has `resolver` decide which names outside guests may ask for; without one they may ask for all.
    pub fn resolve_by(&mut self, resolver: impl NamePolicy + 'static) {
        self.resolver = Some(Box::new(resolver));
    }

    /// Questions for the forwarder since this was last asked.
    pub fn take_questions(&mut self) -> Vec<Question> {
        self.pending.take_queries()
    }

    /// Answers to questions that no resolver is asked any more.
    pub fn take_displaced(&mut self) -> Vec<Given> {
        std::mem::take(&mut self.displaced)
    }

    /// The answer of the forwarder to the question `id` came in second `now`: a resolver's message, or none. `None` if nothing waits for it, or
    /// the client asks by TCP and has gone.
    pub fn hear(&mut self, id: u64, message: Option<&[u8]>, now: u64) -> Option<Given> {
        let waiting = self.pending.take(id)?;
        let read = |message| outside::read(&self.settings, &waiting.asked.question, message);
        match message.and_then(read) {
            Some(response) => self.give(&waiting, |longest| waiting.asked.with(&response, longest), &response, now),
            None => self.fail(&waiting, now),
        }
    }

    /// The forwarder has ended: questions that wait are for the next one; returns the answers to those that were asked twice.
    pub fn hear_end(&mut self, now: u64) -> Vec<Given> {
        let twice = self.pending.repeat();
        twice.into_iter().filter_map(|id| self.hear(id, None, now)).collect()
    }

    fn fail(&mut self, waiting: &Waiting, now: u64) -> Option<Given> {
        let failure = waiting.asked.without_records(NoRecords::Failure);
        self.give(waiting, |_| (failure.clone(), true), &Response::default(), now)
    }

    /// The frame with an answer, which `answer` makes for a longest length, and tells if it is whole.
    fn give(
        &mut self,
        waiting: &Waiting,
        answer: impl Fn(usize) -> (Vec<u8>, bool),
        response: &Response,
        now: u64,
    ) -> Option<Given> {
        let (frame, is_whole) = match waiting.via {
            Via::Udp(port) => {
                let (message, is_whole) = answer(waiting.asked.longest());
                (wire::udp_frame(waiting.way, (DNS, port), &message), is_whole)
            }
            Via::Tcp(peer) => {
                let (message, is_whole) = answer(tcp::MOST_SENT);
                let client = (&*waiting.port, waiting.way);
                let Self { settings, leases, pending, streams, resolver, displaced, .. } = self;
                let mut questions = Questions { settings, leases, pending, resolver: resolver.as_deref(), displaced, now };
                let ask = |query: &[u8]| questions.ask(query, client, Via::Tcp(peer));
                (streams.give(&waiting.port, peer, &message, now, ask)?.frame(waiting.way), is_whole)
            }
        };
        self.answers[Service::DnsOutside as usize] += 1;
        Some(Given {
            port: Arc::clone(&waiting.port),
            name: waiting.asked.name.as_str().into(),
            addresses: if is_whole { response.addresses.clone() } else { Vec::new() },
            frame,
        })
    }

    /// Settings of the responder.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Adds a port, or changes its static addresses. A port that comes back in second `now` has its running leases again.
    pub fn set_port(&mut self, port: &str, addresses: PortAddresses, now: u64) {
        self.leases.set_port(port, addresses, now);
    }

    /// Removes a port in second `now`: its name ends, and its leases are kept in case that it comes back.
    pub fn remove_port(&mut self, port: &str, now: u64) {
        self.leases.remove_port(port, now);
        self.streams.remove_port(port);
        self.pending.remove_port(port);
    }

    /// Ports with leases that changed since this was last asked.
    pub fn take_changed(&mut self) -> Vec<Arc<str>> {
        self.leases.take_changed().into_iter().collect()
    }

    /// Addresses that the guest of `port` may use by leases.
    pub fn allowed(&self, port: &str, now: u64) -> Vec<IpAddr> {
        self.leases.of_port(port).iter().filter(|lease| lease.is_active(now)).map(|lease| lease.address).collect()
    }

    /// Leases of `port` that are in use, as far as is known.
    pub fn in_use(&self, port: &str, now: u64) -> impl Iterator<Item = &Lease> {
        self.leases.of_port(port).iter().filter(move |lease| lease.is_in_use(now))
    }

    /// Active leases of all ports.
    pub fn leases(&self, now: u64) -> Vec<(&str, Lease)> {
        self.leases.all().filter(|(_, lease)| lease.is_active(now)).map(|(port, lease)| (port, *lease)).collect()
    }

    /// Leases that are kept for ports that have left.
    pub fn departed(&self, now: u64) -> Vec<(&str, Lease)> {
        self.leases.departed.running(now).map(|(port, lease)| (port, *lease)).collect()
    }

    /// Restores a lease that was stored; it lasts as long as a new one, also for a port that comes later. False if its address is another
    /// port's, or none.
    pub fn restore(&mut self, port: &str, address: IpAddr, holder: Holder, kind: LeaseKind, now: u64) -> bool {
        if !self.leases.has_port(port) {
            return self.leases.keep_for(&self.settings, port, (address, holder), kind, now);
        }
        kind >= LeaseKind::Expected && self.leases.enter(&self.settings, port, (address, holder), kind, now)
    }

    /// Running leases of `port`, if it was refused another one in the last hour.
    pub fn shortage(&self, port: &str, now: u64) -> Option<usize> {
        self.leases.shortage(port, now)
    }

    /// Makes claims of probes that no other machine answered until second `now`.
    pub fn settle(&mut self, now: u64) {
        self.leases.settle(now);
    }

    /// Counts a frame that was not handed over.
    pub fn refuse(&mut self, reason: Refused) {
        self.refused[reason as usize] += 1;
    }

    /// The answer to `frame`, which the guest of `port` sent in second `now`; none is needed, or possible, for most frames.
    pub fn answer(&mut self, frame: &[u8], port: &str, now: u64) -> Option<Vec<u8>> {
        self.settle(now);
        self.pending.end_old(now);
        self.follow_rules();
        match self.respond(frame, port, now) {
            Ok((service, answer)) => {
                self.answers[service as usize] += 1;
                Some(answer)
            }
            Err(reason) => {
                self.refuse(reason);
                None
            }
        }
    }

    /// Tells guests of the forwarder's servers, or no more, as rules limit names.
    fn follow_rules(&mut self) {
        let limits = || self.resolver.as_ref().is_some_and(|resolver| resolver.limits());
        if !self.asked.is_empty() && limits() != self.settings.asked.is_empty() {
            self.settings.asked = if self.settings.asked.is_empty() { self.asked.clone() } else { Vec::new() };
        }
    }

    fn respond(&mut self, frame: &[u8], port: &str, now: u64) -> Answer {
        let Some((head, payload)) = frame.split_first_chunk::<ETHERNET>() else { return Err(Refused::Malformed) };
        let [destination, source] = [0, 6].map(|at| MacAddress::new([0, 1, 2, 3, 4, 5].map(|byte| head[at + byte])));
        if frame.len() > LONGEST || !source.is_unicast() || source == self.settings.mac {
            return Err(Refused::Malformed);
        }
        if !self.leases.has_port(port) || (destination != self.settings.mac && !destination.is_group()) {
            return Err(Refused::NotAsked);
        }
        let client = Client { port, mac: source, now };
        match u16::from_be_bytes([head[12], head[13]]) {
            TYPE_ARP => self.arp(client, payload),
            TYPE_IPV4 => self.ipv4(client, &wire::ipv4(payload).ok_or(Refused::Malformed)?),
            TYPE_IPV6 if self.settings.subnet6.is_some() => self.ipv6(client, &wire::ipv6(payload).ok_or(Refused::Malformed)?),
            _ => Err(Refused::NotAsked),
        }
    }

    fn arp(&self, client: Client<'_>, bytes: &[u8]) -> Answer {
        let arp = Arp::parse(bytes).ok_or(Refused::Malformed)?;
        let own = self.settings.own4().ok_or(Refused::NotAsked)?;
        if arp.sender.1 == own {
            return Err(Refused::NotOwner);
        }
        if arp.operation != 1 || arp.target.1 != own {
            return Err(Refused::NotAsked);
        }
        let mut answer = wire::ethernet((self.settings.mac, client.mac), TYPE_ARP);
        answer.extend([0, 1, 8, 0, 6, 4, 0, 2]);
        for (mac, ip) in [(self.settings.mac, own), arp.sender] {
            answer.extend(mac.bytes());
            answer.extend(ip.octets());
        }
        Ok((Service::Neighbour, answer))
    }

    fn ipv4(&mut self, client: Client<'_>, packet: &Datagram<'_>) -> Answer {
        let own = self.settings.own4().ok_or(Refused::NotAsked)?;
        let is_own = packet.destination == own;
        let is_broadcast =
            packet.destination == Ipv4Addr::BROADCAST || self.settings.broadcast().map(IpAddr::V4) == Some(packet.destination);
        match packet.protocol {
            ICMP if is_own => self.echo(client, packet, (8, 0)),
            TCP if is_own => self.tcp(client, packet),
            UDP if is_own || is_broadcast => {
                let datagram = wire::udp(packet.payload).ok_or(Refused::Malformed)?;
                match datagram.destination {
                    DHCP => {
                        let reply = dhcp4::answer(&self.settings, &mut self.leases, client, datagram.payload)?;
                        let way = self.way(client, own.into(), reply.to.into());
                        Ok((Service::Dhcp, wire::udp_frame(way, (DHCP, dhcp4::CLIENT), &reply.message)))
                    }
                    DNS if is_own => self.dns(client, packet, &datagram),
                    _ => Err(Refused::NotAsked),
                }
            }
            _ => Err(Refused::NotAsked),
        }
    }

    fn ipv6(&mut self, client: Client<'_>, packet: &Datagram<'_>) -> Answer {
        let own = [self.settings.own6(), Some(link_local(self.settings.mac))].map(|address| address.map(IpAddr::V6));
        let is_own = own.contains(&Some(packet.destination));
        match packet.protocol {
            ICMPV6 => match packet.payload.first() {
                Some(128) if is_own => self.echo(client, packet, (128, 129)),
                Some(133 | 135 | 136) => nd::answer(&self.settings, &mut self.leases, client, packet),
                _ => Err(Refused::NotAsked),
            },
            TCP if is_own => self.tcp(client, packet),
            UDP => {
                let datagram = wire::udp(packet.payload).ok_or(Refused::Malformed)?;
                match datagram.destination {
                    DHCPV6 if is_own || packet.destination == DHCPV6_SERVERS => {
                        let reply = dhcp6::answer(&self.settings, &mut self.leases, client, datagram.payload)?;
                        let way = self.way(client, link_local(self.settings.mac).into(), packet.source);
                        Ok((Service::Dhcpv6, wire::udp_frame(way, (DHCPV6, dhcp6::CLIENT), &reply)))
                    }
                    DNS if is_own => self.dns(client, packet, &datagram),
                    _ => Err(Refused::NotAsked),
                }
            }
            _ => Err(Refused::NotAsked),
        }
    }

    fn way(&self, client: Client<'_>, from: IpAddr, to: IpAddr) -> Way {
        Way { link: (self.settings.mac, client.mac), ip: (from, to) }
    }

    /// Answers an echo request of type `kinds.0` (RFC 792; RFC 4443, section 4).
    fn echo(&self, client: Client<'_>, packet: &Datagram<'_>, kinds: (u8, u8)) -> Answer {
        let is_for_one = !packet.source.is_unspecified() && !packet.source.is_multicast();
        if packet.payload.len() < 8 || packet.payload[0] != kinds.0 || packet.payload[1] != 0 || !is_for_one {
            return Err(Refused::NotAsked);
        }
        let mut message = packet.payload.to_vec();
        message[0] = kinds.1;
        let way = self.way(client, packet.destination, packet.source);
        Ok((Service::Echo, wire::icmp_frame(way, packet.protocol, HOPS, &message)))
    }

    fn dns(&mut self, client: Client<'_>, packet: &Datagram<'_>, datagram: &wire::UdpDatagram<'_>) -> Answer {
        // Nothing answers another server, or a source that is none (RFC 5452, section 9.2; reflection).
        if datagram.source == DNS || datagram.source == 0 || packet.source.is_unspecified() || packet.source.is_multicast() {
            return Err(Refused::NotAsked);
        }
        let way = self.way(client, packet.destination, packet.source);
        let mut questions = self.questions(client.now);
        match questions.ask(datagram.payload, (client.port, way), Via::Udp(datagram.source))? {
            Asked::Now(reply) => Ok((Service::Dns, wire::udp_frame(way, (DNS, datagram.source), &reply))),
            Asked::Later => Err(Refused::Forwarded),
        }
    }

    fn questions(&mut self, now: u64) -> Questions<'_> {
        let Self { settings, leases, pending, resolver, displaced, .. } = self;
        Questions { settings, leases, pending, resolver: resolver.as_deref(), displaced, now }
    }

    /// DNS over TCP (RFC 7766).
    fn tcp(&mut self, client: Client<'_>, packet: &Datagram<'_>) -> Answer {
        let segment = wire::tcp(packet.payload).ok_or(Refused::Malformed)?;
        let is_for_one = !packet.source.is_unspecified() && !packet.source.is_multicast();
        if segment.ports.1 != DNS || segment.ports.0 == 0 || !is_for_one {
            return Err(Refused::NotAsked);
        }
        let way = self.way(client, packet.destination, packet.source);
        let peer = Peer { mac: client.mac, ip: packet.source, own: packet.destination, port: segment.ports.0 };
        let Self { settings, leases, pending, streams, resolver, displaced, .. } = self;
        let mut questions = Questions { settings, leases, pending, resolver: resolver.as_deref(), displaced, now: client.now };
        let ask = |query: &[u8]| questions.ask(query, (client.port, way), Via::Tcp(peer));
        let answer = streams.answer(client.port, peer, &segment, client.now, ask)?;
        Ok((Service::Dns, answer.frame(way)))
    }

    /// Report of the responder in second `now`.
    pub fn report(&self, now: u64) -> NamesReport {
        let lease = |(port, lease): (&str, Lease)| LeaseReport {
            address: lease.address.to_string(),
            port: port.into(),
            mac: lease.holder.mac.to_string(),
            source: if lease.kind == LeaseKind::Leased { "dhcp" } else { "slaac" }.into(),
            expires_in: (lease.until < u64::MAX).then(|| lease.until.saturating_sub(now)),
        };
        let mut leases = self.leases(now);
        leases.retain(|(_, lease)| lease.is_in_use(now));
        leases.sort_by_key(|(_, lease)| lease.address);
        let own = [self.settings.own4().map(IpAddr::V4), self.settings.own6().map(IpAddr::V6)];
        NamesReport {
            segment: self.settings.segment.clone(),
            addresses: own.into_iter().flatten().map(|address| address.to_string()).collect(),
            mac: self.settings.mac.to_string(),
            domain: self.settings.domain.clone(),
            leases: leases.into_iter().map(lease).collect(),
            answers: Service::ALL.iter().map(|&(service, name)| (name.into(), self.answers[service as usize])).collect(),
            refused: Refused::ALL.iter().map(|&(reason, name)| (name.into(), self.refused[reason as usize])).collect(),
        }
    }
}

/// The parts of a responder that a DNS query needs.
struct Questions<'r> {
    settings: &'r Settings,
    leases: &'r Leases,
    pending: &'r mut Pending,
    resolver: Option<&'r dyn NamePolicy>,
    displaced: &'r mut Vec<Given>,
    now: u64,
}

impl Questions<'_> {
    /// The answer to the query `bytes` of a client behind `port`.
    fn ask(&mut self, bytes: &[u8], (port, way): (&str, Way), via: Via) -> Result<Asked, Refused> {
        let client = Client { port, mac: way.link.1, now: self.now };
        let asked = match dns::react(self.settings, self.leases, client, bytes)? {
            Reaction::Answer(answer) => return Ok(Asked::Now(answer)),
            Reaction::Outside(asked) => asked,
        };
        if self.resolver.is_some_and(|resolver| resolver.admit(port, &asked.name) == Admission::Refuse) {
            let why = if self.settings.tells_refusal { NoRecords::Refused } else { NoRecords::NoName };
            return Ok(Asked::Now(asked.without_records(why)));
        }
        let failure = asked.without_records(NoRecords::Failure);
        match self.pending.enter(port, (way, via), asked, self.now) {
            Ok(displaced) => {
                self.displaced.extend(displaced.and_then(given_up));
                Ok(Asked::Later)
            }
            Err(Full::Repeated) => Ok(Asked::Later),
            Err(Full::TooMany) => Ok(Asked::Now(failure)),
        }
    }
}

/// The answer to a question by UDP that gave way; by TCP the connection ends by itself.
fn given_up(waiting: Waiting) -> Option<Given> {
    let Via::Udp(port) = waiting.via else { return None };
    let Outside { name, .. } = &waiting.asked;
    let failure = waiting.asked.without_records(NoRecords::Failure);
    Some(Given {
        name: name.as_str().into(),
        addresses: Vec::new(),
        frame: wire::udp_frame(waiting.way, (DNS, port), &failure),
        port: waiting.port,
    })
}

const _: () = assert!(ND_HOPS == 255);
