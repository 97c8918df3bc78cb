//! The devices of an uplink: created or found by rtnetlink, and removed at the end if they were created here.
//!
//! A created device bears an alias, by which a memlane that starts after a crash recognises its own devices.

use std::io;
use std::net::{IpAddr, Ipv4Addr};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{
    AfSpecInet6, AfSpecUnspec, In6AddrGenMode, InfoBridge, InfoBridgePort, InfoData, InfoKind, InfoPortData, InfoPortKind,
    InfoVxlan, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use nix::unistd::{User, geteuid};

use super::link::NetworkDevice;
use super::plan::{self, Present, Step};
use crate::config::VxlanConfig;
use memlane_backends::netlink::Netlink;

/// Beginning of the alias of created devices, before the names of network and segment.
const MARK: &str = "memlane";

/// See the module. Created devices are removed when this is dropped.
#[derive(Debug)]
pub struct Devices {
    netlink: Netlink,
    config: VxlanConfig,
    alias: String,
    /// MTU of the segment, in bytes.
    pub mtu: u16,
    /// Names and numbers of the devices to remove: another device may have the name by then.
    made: Vec<(String, u32)>,
    /// Such devices of another process of the network, which still has them.
    taken: Vec<(String, u32)>,
}

impl Devices {
    /// Creates or finds bridge and VXLAN device of an uplink of the network `network`.
    ///
    /// # Errors
    /// A sentence with the obstacle, or, without the rights, the commands to run. Nothing is left behind then.
    pub fn make(config: &VxlanConfig, network: &str) -> Result<Self, String> {
        let mut netlink = opened(config)?;
        let present = present(&mut netlink, config).map_err(unread)?;
        let mtu = plan::mtu(config, &present)?;
        let alias = alias(network, config);
        let is_ours = |link: &&NetworkDevice| link.alias.as_ref() == Some(&alias);
        let made = present.links.iter().filter(is_ours).map(|link| (link.name.clone(), link.index)).collect();
        let mut devices = Self { netlink, config: config.clone(), alias, mtu: mtu as u16, made, taken: Vec::new() };
        for step in plan::steps(config, &present, mtu)? {
            devices.take(&step).map_err(|cause| refused(config, &present, mtu, &step, &cause))?;
        }
        Ok(devices)
    }

    /// The devices of an uplink of another process of the network, which created `taken` of them. They are that one's until
    /// [`Self::own`].
    ///
    /// # Errors
    /// The errors of [`Self::make`].
    pub fn taken_over(config: &VxlanConfig, network: &str, mtu: u16, taken: &[(String, u32)]) -> Result<Self, String> {
        let (netlink, alias) = (opened(config)?, alias(network, config));
        Ok(Self { netlink, config: config.clone(), alias, mtu, made: Vec::new(), taken: taken.to_vec() })
    }

    /// The devices are this process's from now on.
    pub fn own(&mut self) {
        self.made.append(&mut self.taken);
    }

    /// Names and numbers of the created devices.
    pub fn made(&self) -> &[(String, u32)] {
        &self.made
    }

    /// Attaches the TAP device, which exists by now, to the bridge. False if memlane lacks the rights and the operator has
    /// prepared it: then the bridge uses its own MAC learning.
    ///
    /// # Errors
    /// The errors of [`Self::make`].
    pub fn take_tap(&mut self) -> Result<bool, String> {
        let present = present(&mut self.netlink, &self.config).map_err(unread)?;
        let mut may = true;
        for step in plan::tap_steps(&self.config, &present, self.mtu.into())? {
            match self.take(&step) {
                Err(cause) if is_forbidden(&cause) && matches!(step, Step::Flags { .. }) => may = false,
                taken => taken.map_err(|cause| refused(&self.config, &present, self.mtu.into(), &step, &cause))?,
            }
        }
        Ok(may)
    }

    /// Interface indices of TAP, bridge and VXLAN device.
    ///
    /// # Errors
    /// One does not exist any more.
    pub fn indices(&mut self) -> Result<[u32; 3], String> {
        let present = present(&mut self.netlink, &self.config).map_err(unread)?;
        let index =
            |name: &str| present.link(name).map(|link| link.index).ok_or_else(|| format!("device {name} was deleted meanwhile"));
        Ok([index(&self.config.tap)?, index(&self.config.bridge)?, index(&self.config.vxlan)?])
    }

    fn take(&mut self, step: &Step) -> io::Result<()> {
        match step {
            Step::Bridge { name } => {
                let groups = InfoBridge::GroupFwdMask(plan::RESERVED_GROUPS);
                let data = InfoData::Bridge(vec![InfoBridge::MulticastSnooping(false), groups]);
                self.create(name, InfoKind::Bridge, data)
            }
            Step::Vxlan { name, vni, local, udp_port } => {
                let (id, local, port) = (InfoVxlan::Id(*vni), InfoVxlan::Local(*local), InfoVxlan::Port(*udp_port));
                self.create(name, InfoKind::Vxlan, InfoData::Vxlan(vec![id, local, port, InfoVxlan::Learning(false)]))
            }
            Step::Mtu { name, mtu } => self.set(name, vec![LinkAttribute::Mtu(*mtu)]),
            Step::NoAddress { name } => {
                let mode = AfSpecUnspec::Inet6(vec![AfSpecInet6::AddrGenMode(In6AddrGenMode::None)]);
                match self.set(name, vec![LinkAttribute::AfSpecUnspec(vec![mode])]) {
                    // A kernel without IPv6 assigns no address anyway.
                    Err(error) if matches!(error.raw_os_error(), Some(libc::EAFNOSUPPORT | libc::EOPNOTSUPP)) => Ok(()),
                    done => done,
                }
            }
            Step::Join { name, bridge } => {
                let controller = self.index(bridge)?;
                self.set(name, vec![LinkAttribute::Controller(controller)])
            }
            Step::Flags { name, learning, suppress } => {
                let flags = vec![InfoBridgePort::Learning(*learning), InfoBridgePort::NeighSupress(*suppress)];
                let info = vec![LinkInfo::PortKind(InfoPortKind::Bridge), LinkInfo::PortData(InfoPortData::BridgePort(flags))];
                let message = self.existing(name, vec![LinkAttribute::LinkInfo(info)])?;
                self.netlink.request(RouteNetlinkMessage::NewLink(message), 0)
            }
            Step::Up { name } => {
                let mut message = self.existing(name, Vec::new())?;
                (message.header.flags, message.header.change_mask) = (LinkFlags::Up, LinkFlags::Up);
                self.netlink.request(RouteNetlinkMessage::SetLink(message), 0)
            }
        }
    }

    fn create(&mut self, name: &str, kind: InfoKind, data: InfoData) -> io::Result<()> {
        let mut message = LinkMessage::default();
        let info = vec![LinkInfo::Kind(kind), LinkInfo::Data(data)];
        message.attributes = vec![LinkAttribute::IfName(name.into()), LinkAttribute::LinkInfo(info)];
        self.netlink.request(RouteNetlinkMessage::NewLink(message), NLM_F_CREATE | NLM_F_EXCL)?;
        let index = self.index(name)?;
        self.made.push((name.into(), index));
        let alias = LinkAttribute::IfAlias(self.alias.clone());
        self.set(name, vec![alias])
    }

    fn set(&mut self, name: &str, attributes: Vec<LinkAttribute>) -> io::Result<()> {
        let message = self.existing(name, attributes)?;
        self.netlink.request(RouteNetlinkMessage::SetLink(message), 0)
    }

    /// A netlink message about the device of this name.
    fn existing(&mut self, name: &str, attributes: Vec<LinkAttribute>) -> io::Result<LinkMessage> {
        let mut message = LinkMessage::default();
        message.header.index = self.index(name)?;
        message.attributes = attributes;
        Ok(message)
    }

    fn index(&mut self, name: &str) -> io::Result<u32> {
        let found = links(&mut self.netlink)?.into_iter().find(|link| link.name == name);
        found.map(|link| link.index).ok_or_else(|| io::Error::from_raw_os_error(libc::ENODEV))
    }
}

impl Drop for Devices {
    fn drop(&mut self) {
        for (name, index) in std::mem::take(&mut self.made).into_iter().rev() {
            let mut message = LinkMessage::default();
            message.header.index = index;
            let done = self.netlink.request(RouteNetlinkMessage::DelLink(message), 0);
            if let Err(cause) = done
                && cause.raw_os_error() != Some(libc::ENODEV)
            {
                tracing::warn!(
                    target: "memlane::uplink::devices",
                    device = %name, %cause, "cannot remove the device: remove it with ip link del {name}"
                );
            }
        }
    }
}

fn opened(config: &VxlanConfig) -> Result<Netlink, String> {
    Netlink::open(config.netns.as_deref()).map_err(|cause| match &config.netns {
        Some(netns) => {
            format!("network namespace {netns}: {cause}. Make it with `ip netns add`, and run memlane as root to enter it")
        }
        None => format!("cannot open a netlink socket: {cause}"),
    })
}

/// The alias of created devices.
fn alias(network: &str, config: &VxlanConfig) -> String {
    format!("{MARK} {network} {}", config.segment)
}

fn links(netlink: &mut Netlink) -> io::Result<Vec<NetworkDevice>> {
    let all = netlink.dump(&RouteNetlinkMessage::GetLink(LinkMessage::default()))?;
    Ok(all
        .into_iter()
        .filter_map(|message| match message {
            RouteNetlinkMessage::NewLink(message) => Some(NetworkDevice::of(message)),
            _ => None,
        })
        .collect())
}

fn present(netlink: &mut Netlink, config: &VxlanConfig) -> io::Result<Present> {
    let links = links(netlink)?;
    let underlay = match config.local {
        Some(local) => device_with(netlink, local)?,
        None => None,
    };
    Ok(Present { links, underlay })
}

/// The device with this address.
fn device_with(netlink: &mut Netlink, address: Ipv4Addr) -> io::Result<Option<u32>> {
    let all = netlink.dump(&RouteNetlinkMessage::GetAddress(AddressMessage::default()))?;
    Ok(all.into_iter().find_map(|message| match message {
        RouteNetlinkMessage::NewAddress(message) => {
            // The attribute Local is this host's end on a point-to-point link, and the address itself elsewhere.
            let has_it = message.attributes.contains(&AddressAttribute::Local(IpAddr::V4(address)));
            has_it.then_some(message.header.index)
        }
        _ => None,
    }))
}

fn unread(cause: io::Error) -> String {
    format!("cannot list network devices by netlink: {cause}")
}

/// Whether the error means that rights are missing.
pub fn is_forbidden(cause: &io::Error) -> bool {
    matches!(cause.raw_os_error(), Some(libc::EPERM | libc::EACCES))
}

fn refused(config: &VxlanConfig, present: &Present, mtu: u32, step: &Step, cause: &io::Error) -> String {
    let netns = config.namespace();
    if !is_forbidden(cause) {
        return format!(
            "the kernel refuses `{}`: {cause}. If it lacks VXLAN or bridges, load them: modprobe -a vxlan bridge",
            step.command(netns)
        );
    }
    let user = User::from_uid(geteuid()).ok().flatten().map_or_else(|| geteuid().to_string(), |user| user.name);
    let commands = plan::commands(config, present, mtu, &user).join("\n  ");
    format!(
        "its devices cannot be created without CAP_NET_ADMIN: run memlane with this capability, or create them as root:\n  {commands}"
    )
}
