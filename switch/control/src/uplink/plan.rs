//! The steps that set up a segment's devices: a function of the existing devices, whose result is a list of steps, each of which
//! is a netlink request and, for operators of a memlane without rights, a command.

use std::net::Ipv4Addr;

use super::link::NetworkDevice;
use crate::config::VxlanConfig;
use crate::config::uplink::OVERHEAD;
use crate::quantity::counted;

/// MTU of an unknown underlay: Ethernet's.
const USUAL_UNDERLAY: u32 = 1500;
/// Least MTU of IPv6 (RFC 8200, section 5): no segment should have less.
const LEAST: u32 = 1280;

/// Reserved multicast addresses (01:80:c2:00:00:00 to 0f, by their last digit) that a bridge of memlane's forwards, as memlane
/// does within a host: all that the kernel allows, LLDP and EAPOL among them. It refuses 0 to 2: the spanning tree's (0) is
/// forwarded all the same, since the bridge takes no part in it, pause frames and LACP are not.
pub const RESERVED_GROUPS: u16 = 0xfff8;

/// A change to one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Create a bridge.
    Bridge {
        /// Name of the device.
        name: String,
    },
    /// Create a VXLAN device.
    Vxlan {
        /// Name of the device.
        name: String,
        /// VXLAN network identifier.
        vni: u32,
        /// Address of this host on the underlay.
        local: Ipv4Addr,
        /// UDP port of VXLAN at all hosts.
        udp_port: u16,
    },
    /// Set the MTU.
    Mtu {
        /// Name of the device.
        name: String,
        /// The MTU, in bytes.
        mtu: u32,
    },
    /// Disable IPv6 address generation: the host itself is not on the segment.
    NoAddress {
        /// Name of the device.
        name: String,
    },
    /// Attach a device to a bridge.
    Join {
        /// Name of the device.
        name: String,
        /// The bridge's name.
        bridge: String,
    },
    /// Set the flags of a bridge port.
    Flags {
        /// Name of the device.
        name: String,
        /// Whether the bridge does MAC learning from its frames.
        learning: bool,
        /// Whether the bridge answers ARP and ND requests for known addresses instead of flooding them there.
        suppress: bool,
    },
    /// Bring a device up.
    Up {
        /// Name of the device.
        name: String,
    },
}

impl Step {
    /// The command of iproute2 for this step, in the namespace `netns`.
    pub fn command(&self, netns: &str) -> String {
        let ip = if netns.is_empty() { "ip link".to_owned() } else { format!("ip -n {netns} link") };
        let on = |flag: bool| if flag { "on" } else { "off" };
        match self {
            Self::Bridge { name } => {
                format!("{ip} add name {name} type bridge mcast_snooping 0 group_fwd_mask {RESERVED_GROUPS:#x}")
            }
            Self::Vxlan { name, vni, local, udp_port } => {
                format!("{ip} add name {name} type vxlan id {vni} dstport {udp_port} local {local} nolearning")
            }
            Self::Mtu { name, mtu } => format!("{ip} set dev {name} mtu {mtu}"),
            Self::NoAddress { name } => format!("{ip} set dev {name} addrgenmode none"),
            Self::Join { name, bridge } => format!("{ip} set dev {name} master {bridge}"),
            Self::Flags { name, learning, suppress } => {
                format!("{ip} set dev {name} type bridge_slave learning {} neigh_suppress {}", on(*learning), on(*suppress))
            }
            Self::Up { name } => format!("{ip} set dev {name} up"),
        }
    }
}

/// The existing devices.
#[derive(Clone, Debug, Default)]
pub struct Present {
    /// All devices of the namespace.
    pub links: Vec<NetworkDevice>,
    /// The device with the address `local`, if there is one.
    pub underlay: Option<u32>,
}

impl Present {
    /// The device of this name.
    pub fn link(&self, name: &str) -> Option<&NetworkDevice> {
        self.links.iter().find(|link| link.name == name)
    }

    fn name_of(&self, index: u32) -> &str {
        self.links.iter().find(|link| link.index == index).map_or("?", |link| &link.name)
    }
}

/// The MTU of the segment, in bytes.
///
/// # Errors
/// A sentence: the underlay's MTU is too small for the requested one, or for any segment.
pub fn mtu(config: &VxlanConfig, present: &Present) -> Result<u32, String> {
    let link = present.underlay.and_then(|index| present.links.iter().find(|link| link.index == index));
    // An address of the loopback device is reached through other devices, by routes that are not known here.
    let known = link.filter(|link| !link.is_loopback);
    if let (Some(local), None) = (config.local, link) {
        return Err(format!("no device of this host has the address {local}: set local to this host's address on the underlay"));
    }
    let left = known.map_or(USUAL_UNDERLAY, |link| link.mtu).saturating_sub(OVERHEAD);
    let wanted = config.mtu.map_or(left, u32::from);
    if let Some(link) = known.filter(|_| wanted > left) {
        let (name, mtu, needed) = (&link.name, link.mtu, wanted + OVERHEAD);
        return Err(format!(
            "the underlay's {name} has an MTU of {mtu}, but frames of {} need {needed} with VXLAN headers: raise it, or \
             set mtu = {left}",
            counted(wanted, "byte")
        ));
    }
    if config.mtu.is_none() && left < LEAST {
        let name = known.map_or("", |link| &link.name);
        return Err(format!(
            "the underlay's {name} leaves the segment an MTU of {left}, less than IPv6 needs: raise it, or set mtu = {left}"
        ));
    }
    Ok(wanted.min(u32::from(u16::MAX)))
}

/// The steps that set up bridge and VXLAN device for a segment of this `mtu`.
///
/// # Errors
/// A sentence: an obstacle that the operator has to remove.
pub fn steps(config: &VxlanConfig, present: &Present, mtu: u32) -> Result<Vec<Step>, String> {
    let mut steps = Vec::new();
    let bridge = present.link(&config.bridge);
    match bridge {
        Some(link) => check_bridge(link)?,
        None => steps.push(Step::Bridge { name: config.bridge.clone() }),
    }
    let vxlan = present.link(&config.vxlan);
    match vxlan {
        Some(link) => check_vxlan(config, present, link)?,
        None => {
            check_rivals(config, present)?;
            let none = || {
                format!(
                    "device {} does not exist, and memlane can create it only with this host's address: set the key local",
                    config.vxlan
                )
            };
            steps.push(Step::Vxlan {
                name: config.vxlan.clone(),
                vni: config.vni,
                local: config.local.ok_or_else(none)?,
                udp_port: config.udp_port,
            });
        }
    }
    // The VXLAN device first: a bridge without any port takes no MTU of its own from it.
    steps.extend(finish(&config.vxlan, vxlan, mtu));
    steps.extend(join(&config.vxlan, vxlan, &config.bridge, bridge, true));
    steps.extend(finish(&config.bridge, bridge, mtu));
    steps.extend(up(&config.vxlan, vxlan));
    steps.extend(up(&config.bridge, bridge));
    Ok(steps)
}

/// The steps that set up the TAP device, which exists.
///
/// # Errors
/// The errors of [`steps`].
pub fn tap_steps(config: &VxlanConfig, present: &Present, mtu: u32) -> Result<Vec<Step>, String> {
    let (tap, bridge) = (present.link(&config.tap), present.link(&config.bridge));
    if let (Some(controller), Some(bridge)) = (tap.and_then(|tap| tap.controller), bridge)
        && controller != bridge.index
    {
        return Err(in_another_bridge(&config.tap, present.name_of(controller), &config.bridge));
    }
    let mut steps = finish(&config.tap, tap, mtu);
    steps.extend(join(&config.tap, tap, &config.bridge, bridge, false));
    steps.extend(up(&config.tap, tap));
    Ok(steps)
}

fn check_bridge(link: &NetworkDevice) -> Result<(), String> {
    let name = &link.name;
    if !link.is_bridge {
        return Err(format!("{name} exists and is not a bridge: remove it, or name another with bridge = \"...\""));
    }
    if link.vlan_filtering {
        return Err(format!("bridge {name} filters VLANs, which uplinks do not support: name another bridge for the segment"));
    }
    Ok(())
}

fn check_vxlan(config: &VxlanConfig, present: &Present, link: &NetworkDevice) -> Result<(), String> {
    let name = &link.name;
    let Some(vxlan) = &link.vxlan else {
        return Err(format!("{name} exists and is not a VXLAN device: remove it, or name another with vxlan = \"...\""));
    };
    if vxlan.vni != config.vni {
        return Err(format!(
            "VXLAN device {name} exists with VNI {}, not {}: remove it, or name another with vxlan = \"...\"",
            vxlan.vni, config.vni
        ));
    }
    if vxlan.udp_port != config.udp_port {
        return Err(format!(
            "VXLAN device {name} receives at UDP port {}, not {}: set udp-port = {}",
            vxlan.udp_port, config.udp_port, vxlan.udp_port
        ));
    }
    if let (Some(wanted), Some(local)) = (config.local, vxlan.local)
        && wanted != local
    {
        return Err(format!(
            "VXLAN device {name} sends from {local}, but the key local is {wanted}: set both to this host's address on the underlay"
        ));
    }
    if vxlan.local.is_none() {
        return Err(format!(
            "VXLAN device {name} has no local address, so FRR announces none of its MAC addresses: ip link set dev {name} type vxlan local ADDRESS"
        ));
    }
    if vxlan.learning {
        return Err(format!(
            "VXLAN device {name} learns from frames, which overrides FRR: disable learning with ip link set dev {name} type vxlan nolearning"
        ));
    }
    if let Some(controller) = link.controller {
        if present.name_of(controller) != config.bridge {
            return Err(in_another_bridge(name, present.name_of(controller), &config.bridge));
        }
        if link.learning {
            return Err(format!(
                "bridge {} learns from frames at {name}, which overrides FRR: disable learning with bridge link set dev {name} learning off",
                config.bridge
            ));
        }
    }
    Ok(())
}

/// Checks for another device with the same identifier, which prevents the creation of ours.
fn check_rivals(config: &VxlanConfig, present: &Present) -> Result<(), String> {
    let has_it = |link: &&NetworkDevice| {
        link.vxlan.as_ref().is_some_and(|vxlan| (vxlan.vni, vxlan.udp_port) == (config.vni, config.udp_port))
    };
    match present.links.iter().find(has_it) {
        Some(NetworkDevice { name, .. }) => {
            Err(format!("VXLAN device {name} has VNI {} already: name it with vxlan = \"{name}\", or remove it", config.vni))
        }
        None => Ok(()),
    }
}

fn in_another_bridge(name: &str, other: &str, bridge: &str) -> String {
    format!("{name} is in bridge {other}, not in {bridge}: name that bridge with bridge = \"{other}\", or take {name} out of it")
}

/// Sets the MTU, and disables addresses of the host. Bridges of the operator are left alone.
fn finish(name: &str, link: Option<&NetworkDevice>, mtu: u32) -> Vec<Step> {
    let is_others_bridge = link.is_some_and(|link| link.is_bridge);
    let mut steps = Vec::new();
    if link.is_none_or(|link| link.mtu != mtu) && !is_others_bridge {
        steps.push(Step::Mtu { name: name.into(), mtu });
    }
    if link.is_none_or(|link| !link.is_up) && !is_others_bridge {
        // A device that is up has its address already, and keeps it.
        steps.push(Step::NoAddress { name: name.into() });
    }
    steps
}

/// Attaches the device to the bridge, without MAC learning: memlane adds the FDB entries for the TAP, and FRR those for VXLAN.
fn join(name: &str, link: Option<&NetworkDevice>, bridge: &str, bridge_link: Option<&NetworkDevice>, suppress: bool) -> Vec<Step> {
    let is_in = link.is_some_and(|link| link.controller.is_some() && link.controller == bridge_link.map(|bridge| bridge.index));
    let mut steps = Vec::new();
    if !is_in {
        steps.push(Step::Join { name: name.into(), bridge: bridge.into() });
    }
    if !is_in || link.is_some_and(|link| link.learning || link.suppress != suppress) {
        steps.push(Step::Flags { name: name.into(), learning: false, suppress });
    }
    steps
}

fn up(name: &str, link: Option<&NetworkDevice>) -> Option<Step> {
    link.is_none_or(|link| !link.is_up).then(|| Step::Up { name: name.into() })
}

/// The commands with which an operator prepares the uplink for a memlane without rights, if no device exists.
pub fn commands(config: &VxlanConfig, present: &Present, mtu: u32, user: &str) -> Vec<String> {
    let netns = config.namespace();
    let ip = if netns.is_empty() { "ip".to_owned() } else { format!("ip -n {netns}") };
    let mut all: Vec<String> = steps(config, present, mtu).unwrap_or_default().iter().map(|step| step.command(netns)).collect();
    if present.link(&config.tap).is_none() {
        all.push(format!("{ip} tuntap add dev {} mode tap vnet_hdr user {user}", config.tap));
    }
    let tap = tap_steps(config, present, mtu).unwrap_or_default().into_iter().map(|step| match step {
        // A memlane without rights cannot add FDB entries, so the bridge needs MAC learning.
        Step::Flags { name, suppress, .. } => Step::Flags { name, learning: true, suppress },
        other => other,
    });
    all.extend(tap.map(|step| step.command(netns)));
    all
}

#[cfg(test)]
mod tests {
    use super::super::link::Vxlan;
    use super::*;

    fn config() -> VxlanConfig {
        VxlanConfig {
            segment: "lan".into(),
            vni: 100,
            local: Some([10, 0, 0, 1].into()),
            udp_port: 4789,
            netns: None,
            mtu: None,
            tap: "ml-tap100".into(),
            bridge: "ml-br100".into(),
            vxlan: "ml-vx100".into(),
        }
    }

    fn link(index: u32, name: &str, mtu: u32) -> NetworkDevice {
        NetworkDevice { index, name: name.into(), mtu, is_up: true, ..NetworkDevice::default() }
    }

    /// An underlay of this MTU, without other devices.
    fn bare(mtu: u32) -> Present {
        Present { links: vec![link(2, "eth0", mtu)], underlay: Some(2) }
    }

    /// All devices, set up correctly.
    fn complete() -> Present {
        let mut present = bare(1500);
        let vxlan = Vxlan { vni: 100, local: Some([10, 0, 0, 1].into()), udp_port: 4789, learning: false };
        present.links.push(NetworkDevice { is_bridge: true, ..link(3, "ml-br100", 1450) });
        present.links.push(NetworkDevice { vxlan: Some(vxlan), controller: Some(3), suppress: true, ..link(4, "ml-vx100", 1450) });
        present.links.push(NetworkDevice { controller: Some(3), ..link(5, "ml-tap100", 1450) });
        present
    }

    #[test]
    fn the_segment_gets_what_the_underlay_leaves() {
        let with = |mtu| VxlanConfig { mtu, ..config() };
        assert_eq!(mtu(&config(), &bare(1500)), Ok(1450));
        assert_eq!(mtu(&with(Some(1400)), &bare(1500)), Ok(1400));
        assert_eq!(mtu(&config(), &bare(9000)), Ok(8950));
        let small = mtu(&with(Some(1500)), &bare(1500)).unwrap_err();
        assert!(
            small.contains("eth0 has an MTU of 1500") && small.contains("need 1550") && small.contains("mtu = 1450"),
            "{small}"
        );
        assert!(mtu(&config(), &bare(1300)).unwrap_err().contains("IPv6"));
        assert_eq!(mtu(&with(Some(1250)), &bare(1300)), Ok(1250));
        let loopback = Present { links: vec![NetworkDevice { is_loopback: true, ..link(1, "lo", 65536) }], underlay: Some(1) };
        assert_eq!(mtu(&config(), &loopback), Ok(1450));
        assert!(mtu(&config(), &Present::default()).unwrap_err().contains("no device of this host has the address 10.0.0.1"));
    }

    #[test]
    fn what_is_right_is_left_alone() {
        assert_eq!(steps(&config(), &complete(), 1450), Ok(Vec::new()));
        assert_eq!(tap_steps(&config(), &complete(), 1450), Ok(Vec::new()));
        assert!(commands(&config(), &complete(), 1450, "me").is_empty());
    }

    #[test]
    fn commands_make_all_of_it() {
        let wanted = [
            "ip -n blue link add name ml-br100 type bridge mcast_snooping 0 group_fwd_mask 0xfff8",
            "ip -n blue link add name ml-vx100 type vxlan id 100 dstport 4789 local 10.0.0.1 nolearning",
            "ip -n blue link set dev ml-vx100 mtu 1450",
            "ip -n blue link set dev ml-vx100 addrgenmode none",
            "ip -n blue link set dev ml-vx100 master ml-br100",
            "ip -n blue link set dev ml-vx100 type bridge_slave learning off neigh_suppress on",
            "ip -n blue link set dev ml-br100 mtu 1450",
            "ip -n blue link set dev ml-br100 addrgenmode none",
            "ip -n blue link set dev ml-vx100 up",
            "ip -n blue link set dev ml-br100 up",
            "ip -n blue tuntap add dev ml-tap100 mode tap vnet_hdr user me",
            "ip -n blue link set dev ml-tap100 mtu 1450",
            "ip -n blue link set dev ml-tap100 addrgenmode none",
            "ip -n blue link set dev ml-tap100 master ml-br100",
            "ip -n blue link set dev ml-tap100 type bridge_slave learning on neigh_suppress off",
            "ip -n blue link set dev ml-tap100 up",
        ];
        let config = VxlanConfig { netns: Some("blue".into()), ..config() };
        assert_eq!(commands(&config, &bare(1500), 1450, "me"), wanted);
    }

    /// The sentence for a device `name` with one wrong setting.
    fn told(name: &str, change: impl FnOnce(&mut NetworkDevice)) -> String {
        let mut present = complete();
        change(present.links.iter_mut().find(|link| link.name == name).unwrap());
        let both = steps(&config(), &present, 1450).and_then(|_| tap_steps(&config(), &present, 1450));
        both.expect_err("a sentence")
    }

    #[test]
    fn what_is_in_the_way_is_told_in_a_sentence() {
        let vxlan = |change: fn(&mut Vxlan)| told("ml-vx100", |link| change(link.vxlan.as_mut().unwrap()));
        assert!(vxlan(|vxlan| vxlan.vni = 7).contains("exists with VNI 7, not 100"));
        assert!(vxlan(|vxlan| vxlan.udp_port = 8472).contains("set udp-port = 8472"));
        assert!(vxlan(|vxlan| vxlan.local = Some([10, 0, 0, 9].into())).contains("sends from 10.0.0.9"));
        assert!(vxlan(|vxlan| vxlan.local = None).contains("no local address"));
        assert!(vxlan(|vxlan| vxlan.learning = true).contains("nolearning"));
        assert!(told("ml-vx100", |link| link.vxlan = None).contains("is not a VXLAN device"));
        assert!(told("ml-vx100", |link| link.learning = true).contains("bridge ml-br100 learns"));
        assert!(told("ml-vx100", |link| link.controller = Some(2)).contains("is in bridge eth0, not in ml-br100"));
        assert!(told("ml-br100", |link| link.is_bridge = false).contains("is not a bridge"));
        assert!(told("ml-br100", |link| link.vlan_filtering = true).contains("filters VLANs"));
        assert!(told("ml-tap100", |link| link.controller = Some(2)).contains("is in bridge eth0"));
        assert!(told("ml-vx100", |link| link.name = "vx7".into()).contains("vxlan = \"vx7\""));
    }

    #[test]
    fn without_an_address_no_device_can_be_made() {
        let config = VxlanConfig { local: None, ..config() };
        assert!(steps(&config, &bare(1500), 1450).unwrap_err().contains("set the key local"));
    }
}
