//! DHCP for IPv4 (RFC 2131, RFC 2132).
//!
//! Requests of relay agents are refused: the client is on the segment, and the MAC address in its message is that of its frame.

use std::net::{IpAddr, Ipv4Addr};

use crate::exchange::{Client, Refused};
use crate::lease::{Holder, LeaseKind};
use crate::leases::{LEASE, Leases};
use crate::settings::Settings;

/// Port of DHCP clients.
pub(crate) const CLIENT: u16 = 68;
/// Bytes of a message before its options, the magic cookie included (RFC 2131, section 2).
const FIXED: usize = 240;
/// Fields that may have options (RFC 2131, section 2).
const SNAME: std::ops::Range<usize> = 44..108;
const FILE: std::ops::Range<usize> = 108..236;
/// The magic cookie (RFC 2131, section 3).
const MAGIC: [u8; 4] = [99, 130, 83, 99];
/// Operations, and hardware type and length of Ethernet.
const REQUEST: u8 = 1;
const REPLY: u8 = 2;
const ETHERNET: [u8; 2] = [1, 6];
/// Least bytes of a message (RFC 1542, section 2.1): some clients refuse shorter ones.
const LEAST: usize = 300;
/// The broadcast flag.
const BROADCAST: u8 = 0x80;

/// Message types (RFC 2132, section 9.6).
mod kind {
    pub(super) const DISCOVER: u8 = 1;
    pub(super) const OFFER: u8 = 2;
    pub(super) const REQUEST: u8 = 3;
    pub(super) const DECLINE: u8 = 4;
    pub(super) const ACK: u8 = 5;
    pub(super) const NAK: u8 = 6;
    pub(super) const RELEASE: u8 = 7;
    pub(super) const INFORM: u8 = 8;
}

/// Options (RFC 2132).
mod option {
    pub(super) const PAD: u8 = 0;
    pub(super) const SUBNET_MASK: u8 = 1;
    pub(super) const ROUTER: u8 = 3;
    pub(super) const DNS_SERVER: u8 = 6;
    pub(super) const HOST_NAME: u8 = 12;
    pub(super) const DOMAIN_NAME: u8 = 15;
    pub(super) const INTERFACE_MTU: u8 = 26;
    pub(super) const BROADCAST_ADDRESS: u8 = 28;
    pub(super) const REQUESTED_ADDRESS: u8 = 50;
    pub(super) const LEASE_TIME: u8 = 51;
    pub(super) const OVERLOAD: u8 = 52;
    pub(super) const MESSAGE_TYPE: u8 = 53;
    pub(super) const SERVER_IDENTIFIER: u8 = 54;
    pub(super) const RENEWAL_TIME: u8 = 58;
    pub(super) const REBINDING_TIME: u8 = 59;
    pub(super) const CLIENT_IDENTIFIER: u8 = 61;
    pub(super) const END: u8 = 255;
}

/// An answer, and the IP address that it goes to.
#[derive(Debug)]
pub(crate) struct Reply {
    pub to: Ipv4Addr,
    pub message: Vec<u8>,
}

/// A client's message, with the options that matter.
#[derive(Debug)]
struct Request<'b> {
    fixed: &'b [u8; FIXED],
    kind: Option<u8>,
    requested: Option<Ipv4Addr>,
    server: Option<Ipv4Addr>,
    /// The client identifier (DHCP option 61); empty without one.
    identifier: &'b [u8],
    /// Fields with further options, a bit each.
    overload: u8,
}

impl<'b> Request<'b> {
    /// Of a repeated option, the first counts; one of a wrong length is malformed. Options end with their field, if not before.
    fn of(bytes: &'b [u8]) -> Result<Self, Refused> {
        let (fixed, rest) = bytes.split_first_chunk::<FIXED>().ok_or(Refused::Malformed)?;
        let is_ours = fixed[0] == REQUEST && fixed[1..3] == ETHERNET && fixed[FIXED - MAGIC.len()..] == MAGIC;
        let mut request = Self { fixed, kind: None, requested: None, server: None, identifier: &[], overload: 0 };
        request.walk(rest)?;
        // Option overload (RFC 2131, section 4.1): the fields have options, file before sname.
        let fields = [(1, &fixed[FILE]), (2, &fixed[SNAME])];
        let overload = request.overload;
        for (_, field) in fields.into_iter().filter(|(bit, _)| overload & bit != 0) {
            request.walk(field)?;
        }
        is_ours.then_some(request).ok_or(Refused::Malformed)
    }

    /// Walks the options of a field. Each has a byte or more, so the walk ends.
    fn walk(&mut self, mut rest: &'b [u8]) -> Result<(), Refused> {
        while let Some((&code, after)) = rest.split_first() {
            match code {
                option::END => break,
                option::PAD => rest = after,
                _ => {
                    let (&length, after) = after.split_first().ok_or(Refused::Malformed)?;
                    let (value, after) = after.split_at_checked(length.into()).ok_or(Refused::Malformed)?;
                    self.note(code, value)?;
                    rest = after;
                }
            }
        }
        Ok(())
    }

    fn note(&mut self, code: u8, value: &'b [u8]) -> Result<(), Refused> {
        let address = || <[u8; 4]>::try_from(value).map(Ipv4Addr::from).map_err(|_| Refused::Malformed);
        match (code, value) {
            (option::MESSAGE_TYPE, &[kind]) => self.kind = self.kind.or(Some(kind)),
            (option::OVERLOAD, &[fields @ 1..=3]) if self.overload == 0 => self.overload = fields,
            (option::MESSAGE_TYPE, _) => return Err(Refused::Malformed),
            (option::REQUESTED_ADDRESS, _) => self.requested = self.requested.or(Some(address()?)),
            (option::SERVER_IDENTIFIER, _) => self.server = self.server.or(Some(address()?)),
            (option::CLIENT_IDENTIFIER, _) if self.identifier.is_empty() => self.identifier = value,
            _ => {}
        }
        Ok(())
    }

    /// The address at byte `at`.
    fn address(&self, at: usize) -> Ipv4Addr {
        Ipv4Addr::from([0, 1, 2, 3].map(|byte| self.fixed[at + byte]))
    }

    fn ciaddr(&self) -> Ipv4Addr {
        self.address(12)
    }

    fn giaddr(&self) -> Ipv4Addr {
        self.address(24)
    }

    fn chaddr(&self) -> &[u8] {
        &self.fixed[28..34]
    }

    /// Whether the client identifier is the MAC address (RFC 2132, section 9.14), which tells no more than the MAC address itself.
    fn is_identified_by_mac(&self) -> bool {
        self.identifier.split_first().is_some_and(|(&kind, rest)| kind == ETHERNET[0] && rest == self.chaddr())
    }

    fn wants_broadcast(&self) -> bool {
        self.fixed[10] & BROADCAST != 0
    }
}

/// The answer to the message `bytes`.
pub(crate) fn answer(settings: &Settings, leases: &mut Leases, client: Client<'_>, bytes: &[u8]) -> Result<Reply, Refused> {
    let mut request = Request::of(bytes)?;
    // The switch exchanges the addresses of a twin in the fixed part of the message, and not those in options.
    request.requested = request.requested.map(|address| leases.exchanged4(client.port, address));
    if request.chaddr() != client.mac.bytes() || !request.giaddr().is_unspecified() {
        return Err(Refused::NotOwner);
    }
    let identifier = if request.is_identified_by_mac() { &[] } else { request.identifier };
    let holder = Holder::new(client.mac, identifier);
    Exchange { settings, leases, client, holder, request }.answer()
}

struct Exchange<'e, 'b> {
    settings: &'e Settings,
    leases: &'e mut Leases,
    client: Client<'e>,
    holder: Holder,
    request: Request<'b>,
}

impl Exchange<'_, '_> {
    fn answer(mut self) -> Result<Reply, Refused> {
        // A client that has chosen another server (RFC 2131, section 3.1).
        let is_for_other = self.request.server.is_some_and(|server| Some(server) != self.settings.own4());
        match self.request.kind {
            Some(kind::DISCOVER) => self.offer(),
            Some(_) if is_for_other => Err(Refused::NotAsked),
            Some(kind::REQUEST) => self.acknowledge(),
            Some(kind::DECLINE) => {
                let address = self.request.requested.ok_or(Refused::Malformed)?;
                self.decline(address)
            }
            Some(kind::RELEASE) => {
                let Client { port, now, .. } = self.client;
                self.leases.release(port, self.request.ciaddr().into(), self.holder, now);
                Err(Refused::NotAsked)
            }
            Some(kind::INFORM) => Ok(self.reply(kind::ACK, None)),
            // BOOTP has no message type (RFC 1534).
            _ => Err(Refused::NotAsked),
        }
    }

    fn its_address(&mut self, wanted: Option<Ipv4Addr>) -> Result<Ipv4Addr, Refused> {
        let Client { port, now, .. } = self.client;
        match self.leases.address_for(self.settings, port, self.holder, (true, wanted.map(IpAddr::V4)), now)? {
            IpAddr::V4(address) => Ok(address),
            IpAddr::V6(_) => Err(Refused::NoAddress),
        }
    }

    fn enter(&mut self, address: Ipv4Addr, kind: LeaseKind) -> bool {
        let Client { port, now, .. } = self.client;
        self.leases.enter(self.settings, port, (address.into(), self.holder), kind, now)
    }

    fn offer(&mut self) -> Result<Reply, Refused> {
        let address = self.its_address(self.request.requested)?;
        if !self.enter(address, LeaseKind::Offered) {
            return Err(Refused::NoAddress);
        }
        Ok(self.reply(kind::OFFER, Some(address)))
    }

    /// Answers a request: of a client that was offered an address, that starts again, renews or rebinds (RFC 2131, section 4.3.2).
    fn acknowledge(&mut self) -> Result<Reply, Refused> {
        let ciaddr = self.request.ciaddr();
        let wanted = self.request.requested.unwrap_or(ciaddr);
        if wanted.is_unspecified() {
            return Err(Refused::Malformed);
        }
        if self.its_address(Some(wanted)) == Ok(wanted) && self.enter(wanted, LeaseKind::Leased) {
            return Ok(self.reply(kind::ACK, Some(wanted)));
        }
        Ok(self.reply(kind::NAK, None))
    }

    /// Only a lease of the client itself can be declined: it counts against its port's `leases`.
    fn decline(&mut self, address: Ipv4Addr) -> Result<Reply, Refused> {
        let Client { port, now, .. } = self.client;
        let is_its = self.leases.lease(port, address.into(), now).is_some_and(|lease| lease.holder == self.holder);
        if is_its {
            self.enter(address, LeaseKind::Declined);
        }
        Err(if is_its { Refused::NotAsked } else { Refused::NotOwner })
    }

    fn reply(&self, kind: u8, yours: Option<Ipv4Addr>) -> Reply {
        let request = &self.request;
        let is_nak = kind == kind::NAK;
        let ciaddr = if is_nak { Ipv4Addr::UNSPECIFIED } else { request.ciaddr() };
        // Table 3 of RFC 2131: transaction, flags and MAC address are the client's.
        let mut message = vec![0; FIXED];
        message[0] = REPLY;
        message[1..3].copy_from_slice(&ETHERNET);
        message[4..8].copy_from_slice(&request.fixed[4..8]);
        message[10] = request.fixed[10] & BROADCAST;
        message[12..16].copy_from_slice(&ciaddr.octets());
        message[16..20].copy_from_slice(&yours.unwrap_or(Ipv4Addr::UNSPECIFIED).octets());
        message[28..34].copy_from_slice(request.chaddr());
        message[FIXED - MAGIC.len()..].copy_from_slice(&MAGIC);
        self.put_options(&mut message, kind, yours.is_some());
        message.resize(message.len().max(LEAST), option::PAD);
        // RFC 2131, section 4.1; the frame itself goes to the client only.
        let to = match yours {
            _ if is_nak => Ipv4Addr::BROADCAST,
            _ if !ciaddr.is_unspecified() => ciaddr,
            Some(address) if !request.wants_broadcast() => address,
            _ => Ipv4Addr::BROADCAST,
        };
        Reply { to, message }
    }

    fn put_options(&self, message: &mut Vec<u8>, kind: u8, has_lease: bool) {
        let settings = self.settings;
        let own = settings.own4().unwrap_or(Ipv4Addr::UNSPECIFIED).octets();
        // Values have at most 255 bytes.
        let mut put = |code: u8, value: &[u8]| {
            message.extend([code, value.len() as u8]);
            message.extend(value);
        };
        put(option::MESSAGE_TYPE, &[kind]);
        put(option::SERVER_IDENTIFIER, &own);
        // The identifier is as the client sent it (RFC 6842, section 3).
        if !self.request.identifier.is_empty() {
            put(option::CLIENT_IDENTIFIER, self.request.identifier);
        }
        if has_lease {
            // RFC 2131, section 4.4.5.
            put(option::LEASE_TIME, &(LEASE as u32).to_be_bytes());
            put(option::RENEWAL_TIME, &((LEASE / 2) as u32).to_be_bytes());
            put(option::REBINDING_TIME, &((LEASE * 7 / 8) as u32).to_be_bytes());
        }
        if kind != kind::NAK {
            put(option::SUBNET_MASK, &settings.mask().octets());
            put(option::DNS_SERVER, &settings.dns4().iter().flat_map(Ipv4Addr::octets).collect::<Vec<_>>());
            put(option::DOMAIN_NAME, settings.domain.as_bytes());
            settings.broadcast().iter().for_each(|address| put(option::BROADCAST_ADDRESS, &address.octets()));
            settings.router.iter().for_each(|router| put(option::ROUTER, &router.octets()));
            if is_label(self.client.port) {
                put(option::HOST_NAME, self.client.port.as_bytes());
            }
            self.leases.mtu(self.client.port).iter().for_each(|mtu| put(option::INTERFACE_MTU, &mtu.to_be_bytes()));
        }
        message.push(option::END);
    }
}

/// Whether a port's name is a host name (RFC 952, RFC 1123).
fn is_label(name: &str) -> bool {
    let is_good = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    (1..=63).contains(&name.len()) && name.bytes().all(is_good) && !name.starts_with('-') && !name.ends_with('-')
}
