//! DHCPv6 (RFC 8415): addresses (IA_NA), DNS server and domain.

use std::net::{IpAddr, Ipv6Addr};

use crate::dns;
use crate::exchange::{Client, Refused};
use crate::lease::{Holder, LeaseKind};
use crate::leases::{LEASE, Leases};
use crate::settings::Settings;

/// Port of DHCPv6 clients.
pub(crate) const CLIENT: u16 = 546;
/// Most options of a message, and of one association, that are looked at.
const MOST_OPTIONS: usize = 64;
/// Most associations, and addresses of each, that are answered.
const MOST_ASSOCIATIONS: usize = 4;
/// Longest DHCP unique identifier, with its type (RFC 8415, section 11.1).
const DUID: usize = 130;

/// Codes of options (RFC 8415, section 21).
const CLIENT_ID: u16 = 1;
const SERVER_ID: u16 = 2;
const IA_NA: u16 = 3;
const IA_TA: u16 = 4;
const IA_ADDRESS: u16 = 5;
const STATUS: u16 = 13;
const RAPID_COMMIT: u16 = 14;
const DNS_SERVERS: u16 = 23;
const DOMAINS: u16 = 24;
const IA_PD: u16 = 25;

/// Message types (RFC 8415, section 7.3).
mod kind {
    pub(super) const SOLICIT: u8 = 1;
    pub(super) const ADVERTISE: u8 = 2;
    pub(super) const REQUEST: u8 = 3;
    pub(super) const CONFIRM: u8 = 4;
    pub(super) const RENEW: u8 = 5;
    pub(super) const REBIND: u8 = 6;
    pub(super) const REPLY: u8 = 7;
    pub(super) const RELEASE: u8 = 8;
    pub(super) const DECLINE: u8 = 9;
    pub(super) const INFORMATION_REQUEST: u8 = 11;
}

/// Status codes (RFC 8415, section 21.13).
mod status {
    pub(super) const SUCCESS: u16 = 0;
    pub(super) const NO_ADDRESS: u16 = 2;
    pub(super) const NO_BINDING: u16 = 3;
    pub(super) const NOT_ON_LINK: u16 = 4;
    pub(super) const NO_PREFIX: u16 = 6;
}

/// Appends an option.
fn put(message: &mut Vec<u8>, code: u16, value: &[u8]) {
    message.extend(code.to_be_bytes());
    message.extend((value.len() as u16).to_be_bytes());
    message.extend(value);
}

/// Splits `bytes` into options, their codes and contents.
///
/// # Errors
/// An option is cut off, or there are too many.
fn options(mut bytes: &[u8]) -> Result<Vec<(u16, &[u8])>, Refused> {
    let mut options = Vec::new();
    while let Some((&[a, b, c, d], rest)) = bytes.split_first_chunk() {
        let (content, after) = rest.split_at_checked(usize::from(u16::from_be_bytes([c, d]))).ok_or(Refused::Malformed)?;
        if options.len() >= MOST_OPTIONS {
            return Err(Refused::Malformed);
        }
        options.push((u16::from_be_bytes([a, b]), content));
        bytes = after;
    }
    if bytes.is_empty() { Ok(options) } else { Err(Refused::Malformed) }
}

/// An identity association for addresses, and the addresses that the client names in it.
#[derive(Debug)]
struct Association {
    id: u32,
    addresses: Vec<Ipv6Addr>,
}

impl Association {
    fn of(bytes: &[u8]) -> Result<Self, Refused> {
        // Identifier, T1 and T2.
        let (fixed, rest) = bytes.split_first_chunk::<12>().ok_or(Refused::Malformed)?;
        let address = |(code, content): (u16, &[u8])| {
            let bytes: [u8; 16] = *content.first_chunk().filter(|_| code == IA_ADDRESS)?;
            Some(Ipv6Addr::from(bytes))
        };
        let addresses = options(rest)?.into_iter().filter_map(address).take(MOST_ASSOCIATIONS).collect();
        Ok(Self { id: u32::from_be_bytes([fixed[0], fixed[1], fixed[2], fixed[3]]), addresses })
    }
}

/// A client's message.
#[derive(Debug)]
struct Request<'b> {
    kind: u8,
    transaction: [u8; 3],
    client: Option<&'b [u8]>,
    server: Option<&'b [u8]>,
    associations: Vec<Association>,
    /// Associations of kinds that are not served, by their codes and identifiers.
    unserved: Vec<(u16, [u8; 4])>,
    rapid: bool,
}

impl<'b> Request<'b> {
    fn of(bytes: &'b [u8]) -> Result<Self, Refused> {
        let (&[kind, a, b, c], rest) = bytes.split_first_chunk().ok_or(Refused::Malformed)?;
        let all = options(rest)?;
        let find = |code| all.iter().find(|(known, _)| *known == code).map(|(_, content)| *content);
        let associations = all.iter().filter(|(code, _)| *code == IA_NA).take(MOST_ASSOCIATIONS);
        let (client, server) = (find(CLIENT_ID), find(SERVER_ID));
        if client.is_some_and(|id| id.is_empty() || id.len() > DUID) {
            return Err(Refused::Malformed);
        }
        let unserved = all.iter().filter(|(code, _)| matches!(*code, IA_TA | IA_PD)).take(MOST_ASSOCIATIONS);
        let unserved = unserved.map(|(code, content)| Some((*code, *content.first_chunk()?)));
        Ok(Self {
            kind,
            transaction: [a, b, c],
            client,
            server,
            associations: associations.map(|(_, content)| Association::of(content)).collect::<Result<_, _>>()?,
            unserved: unserved.collect::<Option<_>>().ok_or(Refused::Malformed)?,
            rapid: find(RAPID_COMMIT).is_some(),
        })
    }
}

/// The identifier of the responder: DUID-LL (RFC 8415, section 11.4).
fn own_id(settings: &Settings) -> Vec<u8> {
    [&[0, 3, 0, 1][..], &settings.mac.bytes()].concat()
}

/// The answer to the message `bytes`.
pub(crate) fn answer(settings: &Settings, leases: &mut Leases, client: Client<'_>, bytes: &[u8]) -> Result<Vec<u8>, Refused> {
    let mut request = Request::of(bytes)?;
    for address in request.associations.iter_mut().flat_map(|one| &mut one.addresses) {
        *address = leases.exchanged6(client.port, *address);
    }
    let own = own_id(settings);
    // RFC 8415, section 16.
    let (needs_client, server) = match request.kind {
        kind::SOLICIT | kind::CONFIRM | kind::REBIND => (true, Some(false)),
        kind::REQUEST | kind::RENEW | kind::DECLINE | kind::RELEASE => (true, Some(true)),
        kind::INFORMATION_REQUEST => (false, None),
        _ => return Err(Refused::NotAsked),
    };
    if needs_client && request.client.is_none() || server.is_some_and(|needed| needed != request.server.is_some()) {
        return Err(Refused::Malformed);
    }
    if request.server.is_some_and(|server| server != own) {
        return Err(Refused::NotAsked);
    }
    let holder = Holder::new(client.mac, request.client.unwrap_or_default());
    let mut exchange = Exchange { settings, leases, client, holder, offers: request.kind == kind::SOLICIT && !request.rapid };
    let [a, b, c] = request.transaction;
    let mut message = vec![if exchange.offers { kind::ADVERTISE } else { kind::REPLY }, a, b, c];
    request.client.iter().for_each(|id| put(&mut message, CLIENT_ID, id));
    put(&mut message, SERVER_ID, &own);
    exchange.put_answer(&request, &mut message)?;
    let servers: Vec<u8> = settings.dns6().iter().flat_map(Ipv6Addr::octets).collect();
    put(&mut message, DNS_SERVERS, &servers);
    dns::encoded(&settings.domain).iter().for_each(|domain| put(&mut message, DOMAINS, domain));
    Ok(message)
}

struct Exchange<'e> {
    settings: &'e Settings,
    leases: &'e mut Leases,
    client: Client<'e>,
    holder: Holder,
    /// Addresses are only offered.
    offers: bool,
}

impl Exchange<'_> {
    /// Appends the options that depend on the kind of request.
    fn put_answer(&mut self, request: &Request<'_>, message: &mut Vec<u8>) -> Result<(), Refused> {
        let named = || request.associations.iter().flat_map(|one| &one.addresses);
        match request.kind {
            kind::SOLICIT | kind::REQUEST | kind::RENEW | kind::REBIND => {
                for (index, one) in request.associations.iter().enumerate() {
                    put(message, IA_NA, &self.associate(index == 0, one));
                }
                request.unserved.iter().for_each(|association| put_unserved(message, request.kind, *association));
                if request.kind == kind::SOLICIT && request.rapid {
                    put(message, RAPID_COMMIT, &[]);
                }
            }
            kind::CONFIRM if named().next().is_none() => return Err(Refused::NotAsked),
            kind::CONFIRM => {
                let is_on_link = named().all(|address| self.settings.contains(IpAddr::V6(*address)));
                put(message, STATUS, &if is_on_link { status::SUCCESS } else { status::NOT_ON_LINK }.to_be_bytes());
            }
            kind::RELEASE | kind::DECLINE => {
                named().for_each(|address| self.give_up(*address, request.kind == kind::DECLINE));
                put(message, STATUS, &status::SUCCESS.to_be_bytes());
            }
            _ => {}
        }
        Ok(())
    }

    /// The answer to one association. A client has one address, which its first association gets; other addresses that the client names
    /// are not valid any more (RFC 8415, section 18.3.4).
    fn associate(&mut self, is_first: bool, wanted: &Association) -> Vec<u8> {
        let address = if is_first { self.address(wanted.addresses.first().copied()) } else { None };
        let inside = |address: &Ipv6Addr| self.leases.exchanged6(self.client.port, *address);
        let mut association = wanted.id.to_be_bytes().to_vec();
        association.extend(((LEASE / 2) as u32).to_be_bytes());
        association.extend(((LEASE * 4 / 5) as u32).to_be_bytes());
        // Address, preferred and valid lifetime (section 21.6).
        let mut put_address = |address: &Ipv6Addr, life: u32| {
            put(&mut association, IA_ADDRESS, &[&inside(address).octets()[..], &life.to_be_bytes(), &life.to_be_bytes()].concat());
        };
        address.iter().for_each(|address| put_address(address, LEASE as u32));
        wanted.addresses.iter().filter(|named| Some(**named) != address).for_each(|named| put_address(named, 0));
        if address.is_none() {
            put(&mut association, STATUS, &status::NO_ADDRESS.to_be_bytes());
        }
        association
    }

    fn address(&mut self, wanted: Option<Ipv6Addr>) -> Option<Ipv6Addr> {
        let Client { port, now, .. } = self.client;
        let found = self.leases.address_for(self.settings, port, self.holder, (false, wanted.map(IpAddr::V6)), now);
        let Ok(IpAddr::V6(address)) = found else { return None };
        let kind = if self.offers { LeaseKind::Offered } else { LeaseKind::Leased };
        self.leases.enter(self.settings, port, (address.into(), self.holder), kind, now).then_some(address)
    }

    fn give_up(&mut self, address: Ipv6Addr, is_declined: bool) {
        let Client { port, now, .. } = self.client;
        let is_its = self.leases.lease(port, address.into(), now).is_some_and(|lease| lease.holder == self.holder);
        match is_declined {
            true if is_its => {
                self.leases.enter(self.settings, port, (address.into(), self.holder), LeaseKind::Declined, now);
            }
            true => {}
            false => self.leases.release(port, address.into(), self.holder, now),
        }
    }
}

/// Appends the answer to an association that is not served: of prefixes (RFC 8415, section 18.3.9) or temporary addresses. One that a
/// client renews is not known (section 18.3.4).
fn put_unserved(message: &mut Vec<u8>, request: u8, (code, id): (u16, [u8; 4])) {
    let status = match code {
        _ if matches!(request, kind::RENEW | kind::REBIND) => status::NO_BINDING,
        IA_PD => status::NO_PREFIX,
        _ => status::NO_ADDRESS,
    };
    let mut content = id.to_vec();
    if code == IA_PD {
        // T1 and T2 (section 21.21), which the client ignores then.
        content.extend([0; 8]);
    }
    put(&mut content, STATUS, &status.to_be_bytes());
    put(message, code, &content);
}
