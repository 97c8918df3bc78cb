//! The veth pair of an attachment (veth(4)), by rtnetlink: one end in the container's namespace, the other beside the switch.

use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsRawFd;
use std::path::Path;

use memlane_backends::netlink::Netlink;
use memlane_backends::netns;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage};
use netlink_packet_route::link::{InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteMetric, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use serde_json::{Value, json};

use super::error::{CniError, Code};
use super::ipam::{Addresses, Route};

/// Keeps the host's IP stack off a host end, for its frames are for the switch alone: no answer to ARP, no IPv6, and no packet from a
/// source that has no route through it, as none has.
const OFF_HOST: [(&str, &str); 3] =
    [("ipv4/conf/NAME/arp_ignore", "8"), ("ipv4/conf/NAME/rp_filter", "1"), ("ipv6/conf/NAME/disable_ipv6", "1")];

/// An interface, as it is found.
#[derive(Clone, Debug, Default)]
pub(super) struct Found {
    pub(super) index: u32,
    pub(super) name: String,
    pub(super) alias: String,
    pub(super) mac: String,
    is_up: bool,
}

/// The end in the container's namespace, as it is found.
#[derive(Debug)]
pub(super) struct End {
    found: Found,
    addresses: Vec<IpAddr>,
    /// Destinations of all routes of the namespace.
    destinations: Vec<(IpAddr, u8)>,
}

/// A pair to be made.
#[derive(Debug)]
pub(super) struct Pair<'p> {
    pub(super) host: &'p str,
    pub(super) container: &'p str,
    pub(super) mac: [u8; 6],
    pub(super) mtu: Option<u16>,
    pub(super) alias: String,
}

impl Pair<'_> {
    /// Makes the pair, with one end in the namespace at `netns`; nothing is left of it after an error.
    pub(super) fn make(&self, netns: &Path) -> Result<(), CniError> {
        let failed = |error: io::Error| CniError::new(Code::Io, format!("cannot make the veth pair {}: {error}", self.host));
        let namespace = File::open(netns).map_err(|error| no_namespace(netns, &error))?;
        let taken = || {
            let text = format!("the container has an interface {} already: ADD was called twice, or without DEL", self.container);
            CniError::new(Code::InterfaceExists, text)
        };
        if in_container(netns, |netlink| link(netlink, self.container))?.is_some() {
            return Err(taken());
        }
        let mut netlink = Netlink::open(None).map_err(failed)?;
        let made = netlink.request(RouteNetlinkMessage::NewLink(self.message(&namespace)), NLM_F_CREATE | NLM_F_EXCL);
        made.map_err(|error| if error.raw_os_error() == Some(libc::EEXIST) { taken() } else { failed(error) })?;
        self.finish(&mut netlink).map_err(|error| {
            // The error to be told is the first one.
            let _ = remove(self.host);
            failed(error)
        })
    }

    fn message(&self, namespace: &File) -> LinkMessage {
        let mtu = self.mtu.map(|mtu| LinkAttribute::Mtu(mtu.into()));
        let mut peer = LinkMessage::default();
        peer.attributes.extend([
            LinkAttribute::IfName(self.container.into()),
            LinkAttribute::Address(self.mac.to_vec()),
            LinkAttribute::NetNsFd(namespace.as_raw_fd()),
        ]);
        peer.attributes.extend(mtu.clone());
        let info = vec![LinkInfo::Kind(InfoKind::Veth), LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer)))];
        let mut message = LinkMessage::default();
        message.attributes.extend([LinkAttribute::IfName(self.host.into()), LinkAttribute::LinkInfo(info)]);
        message.attributes.extend(mtu);
        message
    }

    /// Marks the host's end, keeps the host's IP stack off it, and sets it up.
    fn finish(&self, netlink: &mut Netlink) -> io::Result<()> {
        let index = link(netlink, self.host)?.ok_or_else(|| io::Error::from_raw_os_error(libc::ENODEV))?.index;
        let mut message = LinkMessage::default();
        message.header.index = index;
        message.attributes.push(LinkAttribute::IfAlias(self.alias.clone()));
        netlink.request(RouteNetlinkMessage::SetLink(message), 0)?;
        for (path, value) in OFF_HOST {
            let path = format!("/proc/sys/net/{}", path.replace("NAME", self.host));
            match std::fs::write(path, value) {
                // A kernel without IPv6.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                written => written?,
            }
        }
        up(netlink, index)
    }
}

impl End {
    /// Whether it is as the `result` of ADD says for `interface`; further addresses and routes are other plugins' affair.
    pub(super) fn check(&self, interface: &str, result: &Value) -> Result<(), CniError> {
        let wrong = |text: String| Err(CniError::new(Code::Check, text));
        let listed = result["interfaces"].as_array().into_iter().flatten();
        let expected = listed.enumerate().find(|(_, entry)| entry["name"] == json!(interface));
        let mac = expected.and_then(|(_, entry)| entry["mac"].as_str()).unwrap_or_default();
        if !mac.is_empty() && !mac.eq_ignore_ascii_case(&self.found.mac) {
            return wrong(format!("interface {interface} has the MAC address {}, and {mac} is expected", self.found.mac));
        }
        if !self.found.is_up {
            return wrong(format!("interface {interface} is down"));
        }
        let Addresses { ips, routes } = Addresses::of(result)?;
        let place = expected.map(|(place, _)| place);
        for ip in ips.iter().filter(|ip| ip.interface.is_none() || ip.interface == place) {
            let (address, _) = ip.prefix()?;
            if !self.addresses.contains(&address) {
                return wrong(format!("interface {interface} lacks the address {address}"));
            }
        }
        for route in &routes {
            let (address, length) = route.destination()?;
            if !self.destinations.contains(&(address, length)) {
                return wrong(format!("the container has no route to {address}/{length}"));
            }
        }
        Ok(())
    }
}

/// Gives `interface` in the namespace at `netns` its addresses, sets it up, and adds its routes.
pub(super) fn configure(netns: &Path, interface: &str, addresses: &Addresses) -> Result<(), CniError> {
    let mut wanted = Vec::new();
    for ip in &addresses.ips {
        wanted.push(ip.prefix()?);
    }
    let mut routes = Vec::new();
    for route in &addresses.routes {
        let destination = route.destination()?;
        let is_of_family = |gateway: &IpAddr| gateway.is_ipv4() == destination.0.is_ipv4();
        let gateway = route.gw.or_else(|| addresses.ips.iter().filter_map(|ip| ip.gateway).find(is_of_family));
        routes.push(route_message(route, destination, gateway));
    }
    in_container(netns, |netlink| {
        let index = link(netlink, interface)?.ok_or_else(|| io::Error::from_raw_os_error(libc::ENODEV))?.index;
        if wanted.iter().any(|(address, _)| address.is_ipv6()) {
            std::fs::write(format!("/proc/sys/net/ipv6/conf/{interface}/disable_ipv6"), "0")?;
        }
        up(netlink, index)?;
        for &(address, length) in &wanted {
            add_address(netlink, index, address, length)?;
        }
        for mut route in routes {
            route.attributes.push(RouteAttribute::Oif(index));
            netlink.request(RouteNetlinkMessage::NewRoute(route), NLM_F_CREATE | NLM_F_EXCL)?;
        }
        Ok(())
    })
}

/// The interface `name` in the namespace at `netns`.
pub(super) fn container_end(netns: &Path, name: &str) -> Result<Option<End>, CniError> {
    in_container(netns, |netlink| {
        let Some(found) = link(netlink, name)? else { return Ok(None) };
        let all = netlink.dump(&RouteNetlinkMessage::GetAddress(AddressMessage::default()))?;
        let address = |message: RouteNetlinkMessage| match message {
            RouteNetlinkMessage::NewAddress(message) if message.header.index == found.index => {
                message.attributes.into_iter().find_map(|attribute| match attribute {
                    AddressAttribute::Address(address) => Some(address),
                    _ => None,
                })
            }
            _ => None,
        };
        let addresses = all.into_iter().filter_map(address).collect();
        let all = netlink.dump(&RouteNetlinkMessage::GetRoute(RouteMessage::default()))?;
        let destinations = all.into_iter().filter_map(destination).collect();
        Ok(Some(End { found, addresses, destinations }))
    })
}

/// The destination of a route; that of a default route is left out by the kernel.
fn destination(message: RouteNetlinkMessage) -> Option<(IpAddr, u8)> {
    let RouteNetlinkMessage::NewRoute(route) = message else { return None };
    let stated = route.attributes.into_iter().find_map(|attribute| match attribute {
        RouteAttribute::Destination(RouteAddress::Inet(address)) => Some(IpAddr::from(address)),
        RouteAttribute::Destination(RouteAddress::Inet6(address)) => Some(IpAddr::from(address)),
        _ => None,
    });
    let address = stated.or(match route.header.address_family {
        AddressFamily::Inet => Some(Ipv4Addr::UNSPECIFIED.into()),
        AddressFamily::Inet6 => Some(Ipv6Addr::UNSPECIFIED.into()),
        _ => None,
    });
    Some((address?, route.header.destination_prefix_length))
}

/// Interfaces beside the switch.
pub(super) fn host_ends() -> io::Result<Vec<Found>> {
    links(&mut Netlink::open(None)?)
}

/// Deletes the interface `name` beside the switch, and with it the other end; no error if there is none.
pub(super) fn remove(name: &str) -> io::Result<()> {
    let mut netlink = Netlink::open(None)?;
    match link(&mut netlink, name)? {
        Some(found) => delete(&mut netlink, found.index),
        None => Ok(()),
    }
}

fn delete(netlink: &mut Netlink, index: u32) -> io::Result<()> {
    let mut message = LinkMessage::default();
    message.header.index = index;
    match netlink.request(RouteNetlinkMessage::DelLink(message), 0) {
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(()),
        done => done,
    }
}

/// Runs `action` in the namespace at `netns`.
fn in_container<T: Send>(netns: &Path, action: impl FnOnce(&mut Netlink) -> io::Result<T> + Send) -> Result<T, CniError> {
    let result = netns::inside_path(netns, || action(&mut Netlink::open(None)?)).map_err(|error| no_namespace(netns, &error))?;
    result.map_err(|error| CniError::new(Code::Io, format!("in the namespace {}: {error}", netns.display())))
}

fn no_namespace(netns: &Path, error: &io::Error) -> CniError {
    CniError::new(Code::InvalidEnvironment, format!("CNI_NETNS is {}, which cannot be entered: {error}", netns.display()))
}

fn up(netlink: &mut Netlink, index: u32) -> io::Result<()> {
    let mut message = LinkMessage::default();
    message.header.index = index;
    (message.header.flags, message.header.change_mask) = (LinkFlags::Up, LinkFlags::Up);
    netlink.request(RouteNetlinkMessage::SetLink(message), 0)
}

fn family(address: IpAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

fn add_address(netlink: &mut Netlink, index: u32, address: IpAddr, length: u8) -> io::Result<()> {
    let mut message = AddressMessage::default();
    (message.header.family, message.header.prefix_len, message.header.index) = (family(address), length, index);
    message.attributes.extend([AddressAttribute::Local(address), AddressAttribute::Address(address)]);
    if address.is_ipv6() {
        // IPAM has seen to it that no other has the address; without this it cannot be used for a second.
        message.attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
    }
    netlink.request(RouteNetlinkMessage::NewAddress(message), NLM_F_CREATE | NLM_F_EXCL)
}

/// The message that adds `route`, but for its interface.
fn route_message(route: &Route, (destination, length): (IpAddr, u8), gateway: Option<IpAddr>) -> RouteMessage {
    let mut message = RouteMessage::default();
    let nearest = if gateway.is_some() { RouteScope::Universe } else { RouteScope::Link };
    message.header = RouteHeader {
        address_family: family(destination),
        destination_prefix_length: length,
        table: RouteHeader::RT_TABLE_MAIN,
        protocol: RouteProtocol::Static,
        scope: route.scope.map_or(nearest, RouteScope::from),
        kind: RouteType::Unicast,
        ..RouteHeader::default()
    };
    if length > 0 {
        message.attributes.push(RouteAttribute::Destination(destination.into()));
    }
    message.attributes.extend(gateway.map(|gateway| RouteAttribute::Gateway(RouteAddress::from(gateway))));
    message.attributes.extend(route.priority.map(RouteAttribute::Priority));
    message.attributes.extend(route.table.map(RouteAttribute::Table));
    let metrics: Vec<_> = route.mtu.map(RouteMetric::Mtu).into_iter().chain(route.advmss.map(RouteMetric::Advmss)).collect();
    message.attributes.extend((!metrics.is_empty()).then_some(RouteAttribute::Metrics(metrics)));
    message
}

fn link(netlink: &mut Netlink, name: &str) -> io::Result<Option<Found>> {
    Ok(links(netlink)?.into_iter().find(|found| found.name == name))
}

fn links(netlink: &mut Netlink) -> io::Result<Vec<Found>> {
    let all = netlink.dump(&RouteNetlinkMessage::GetLink(LinkMessage::default()))?;
    let found = |message: RouteNetlinkMessage| match message {
        RouteNetlinkMessage::NewLink(message) => Some(Found::of(message)),
        _ => None,
    };
    Ok(all.into_iter().filter_map(found).collect())
}

impl Found {
    fn of(message: LinkMessage) -> Self {
        let is_up = message.header.flags.contains(LinkFlags::Up);
        let mut found = Self { index: message.header.index, is_up, ..Self::default() };
        for attribute in message.attributes {
            match attribute {
                LinkAttribute::IfName(name) => found.name = name,
                LinkAttribute::IfAlias(alias) => found.alias = alias,
                LinkAttribute::Address(bytes) => {
                    found.mac = bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(":");
                }
                _ => {}
            }
        }
        found
    }
}
