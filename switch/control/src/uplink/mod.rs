//! Uplinks: extend a segment to other hosts by the kernel's VXLAN, with BGP EVPN (FRR) to exchange MAC addresses (RFC 7432, RFC
//! 8365).
//!
//! ```text
//!   segment -- port "uplink:lan" -- TAP -- bridge -- VXLAN -- underlay -- other hosts
//! ```
//!
//! 1. [`plan`]: the steps that set these devices up; [`devices`] carries them out, by `netlink`, and removes created devices at
//!    the end.
//! 2. [`announced`], outbound: MAC addresses of this host for the bridge's FDB, from which FRR announces them; [`announced_neighbours`]: their
//!    IP addresses, for its neighbours.
//! 3. [`remote`], inbound: MAC addresses that FRR has received from other hosts, for the segment's forwarding table; [`neighbours`]: their IP
//!    addresses, for its address map.
//! 4. [`netfilter`]: whether the host's netfilter drops bridged frames.
//! 5. [`nic`]: a NIC as the uplink, in place of all these devices.
//! 6. [`fdb_sync`]: the FDB sync, a thread that does both for as long as the network runs. Workers are not involved.

pub mod announced;
pub mod announced_neighbours;
pub mod devices;
pub mod fdb_sync;
pub mod link;
pub mod neighbours;
pub mod netfilter;
pub mod nic;
pub mod plan;
pub mod remote;

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::budget::{Account, Permit};
use crate::config::uplink::ETHERNET_MTU;
use crate::config::{NicConfig, UplinkConfig, VxlanConfig};
use crate::description::SavedUplink;
use crate::descriptors::{self, OF_UPLINK};
use crate::frame::MacAddress;
use crate::network::{AddError, AttachSettings, Network};
use crate::port::settings::PortSettings;
use crate::port::{Offer, Port};
use crate::stats::PortTotals;
use devices::Devices;
use fdb_sync::FdbSync;
use memlane_backends::executor::Executor;
use memlane_backends::interface::nic::NicState;
use memlane_backends::interface::{Interface, tap};
use nic::{NicReport, NicUplink};

/// Why a segment's uplink cannot be set up.
#[derive(Debug, Error)]
#[error("segment {segment}: {what}")]
pub struct UplinkError {
    /// The segment.
    pub segment: String,
    /// The cause and its remedy.
    pub what: String,
}

/// Returns the executor of the network's sessions, which is started if there is none.
pub type GetExecutor<'e> = &'e dyn Fn() -> io::Result<Arc<Executor>>;

/// See the module.
#[derive(Debug)]
pub struct Uplink {
    config: UplinkConfig,
    port: Arc<Port>,
    seen: Arc<Mutex<Seen>>,
    ends: Arc<AtomicBool>,
    may_tell: bool,
    /// FDB sync and TAP device until [`Self::sync`] and [`Self::serve`] start them.
    begins: (Option<FdbSync>, Option<Interface>),
    /// The thread of the FDB sync.
    fdb_sync: Option<JoinHandle<()>>,
    way: Way,
    mtu: u16,
    _own: Permit,
}

/// The way to other hosts.
#[derive(Debug)]
enum Way {
    Vxlan {
        /// A copy of the descriptor of the TAP device.
        tap: File,
        /// Removed at the end.
        devices: Box<Devices>,
    },
    /// `None` until it is opened, and once it is stopped.
    Nic(Option<NicUplink>),
}

/// State of the FDB sync, for reports.
#[derive(Clone, Debug, Default)]
struct Seen {
    /// Addresses of this host that are announced, and that are not.
    announced: usize,
    held_back: usize,
    /// Addresses of other hosts.
    remote: remote::Remote,
    /// Addresses that are tied to a port here and that another host announces.
    disputed: BTreeMap<MacAddress, IpAddr>,
    /// Why announcements are incomplete.
    trouble: Option<String>,
}

/// An uplink of a segment to other hosts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct UplinkReport {
    /// Its segment.
    pub segment: String,
    /// VXLAN network identifier; none with a NIC.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub vni: Option<u32>,
    /// Names of TAP device, bridge and VXLAN device, or of the NIC.
    pub devices: Vec<String>,
    /// The NIC, if it is the uplink.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub nic: Option<NicReport>,
    /// Whether its NIC has a carrier; none where that is not known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub carrier: Option<bool>,
    /// MTU of the segment.
    pub mtu: u16,
    /// Number of MAC addresses of this host that are announced to others.
    pub announced: usize,
    /// Number of MAC addresses of this host that are not announced: too many at a port, or announced by another host.
    pub held_back: usize,
    /// Underlay addresses of the other hosts.
    pub hosts: Vec<String>,
    /// MAC addresses of other hosts.
    pub learned_addresses: Vec<RemoteAddress>,
    /// There are more than these: frames to the others are flooded.
    pub more: bool,
    /// MAC addresses that are tied to a port here, and that other hosts announce.
    pub disputed: Vec<RemoteAddress>,
    /// Why announcements are incomplete, or the NIC is not used.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub trouble: Option<String>,
    /// An obstacle at this host, such as netfilter rules, and the remedy.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub advice: Option<String>,
    /// Counters of its port: transmit counts frames from other hosts.
    #[serde(flatten)]
    pub totals: PortTotals,
}

/// A MAC address at another host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RemoteAddress {
    /// Its MAC address.
    pub address: String,
    /// The host's underlay address.
    pub host: String,
}

impl Uplink {
    /// Sets up the uplink `config`. `name` is the network's, `members` the expected number of the segment's ports.
    ///
    /// # Errors
    /// A device cannot be set up, or rights are missing; nothing is left behind then.
    pub fn start(
        network: &Arc<Network>,
        executor: GetExecutor<'_>,
        name: &str,
        config: &UplinkConfig,
        members: usize,
    ) -> Result<Self, UplinkError> {
        let started = permit(network).and_then(|own| match config {
            UplinkConfig::Nic(nic) => Self::start_nic((network, executor), nic, members, own),
            UplinkConfig::Vxlan(vxlan) => Self::start_vxlan(network, name, vxlan, members, own),
        });
        started.map_err(|what| UplinkError { segment: config.segment().to_owned(), what })
    }

    fn start_nic(
        (network, executor): (&Arc<Network>, GetExecutor<'_>),
        config: &NicConfig,
        members: usize,
        own: Permit,
    ) -> Result<Self, String> {
        let mut uplink = Self::prepare_nic(network, config, members, own)?;
        uplink.run_nic(network, executor).inspect_err(|_| withdraw(network, &uplink.port))?;
        Ok(uplink)
    }

    fn start_vxlan(network: &Arc<Network>, name: &str, config: &VxlanConfig, members: usize, own: Permit) -> Result<Self, String> {
        let mut devices = Devices::make(config, name)?;
        let tap = tap::attach(&config.tap, config.netns.as_deref()).map_err(|error| error.to_string())?;
        let may_tell = devices.take_tap()?;
        let mut uplink = Self::prepare(network, config, (devices, own), tap, members, may_tell)?;
        if let Some(advice) = netfilter::advice(&config.bridge, config.netns.as_deref()) {
            tracing::warn!(target: "memlane::uplink", segment = %config.segment, "{advice}");
        }
        let begun = uplink.serve(network).and_then(|()| uplink.sync(network));
        begun.map_err(|cause| {
            withdraw(network, &uplink.port);
            unstarted(&cause)
        })?;
        Ok(uplink)
    }

    /// Makes the uplink that another process of the network has `saved`, with its TAP device. That process still serves it: this one begins
    /// with [`Self::serve`] and [`Self::go_on`].
    ///
    /// # Errors
    /// Rights are missing, or a device was deleted; nothing has changed then.
    pub fn take_over(
        network: &Arc<Network>,
        name: &str,
        saved: &SavedUplink,
        tap: File,
        members: usize,
    ) -> Result<Self, UplinkError> {
        let SavedUplink { config, mtu, made, may_tell } = saved;
        let failed = |what: String| UplinkError { segment: config.segment().to_owned(), what };
        let own = permit(network).map_err(failed)?;
        let config = match config {
            UplinkConfig::Nic(nic) => return Self::prepare_nic(network, nic, members, own).map_err(failed),
            UplinkConfig::Vxlan(vxlan) => vxlan,
        };
        let devices = Devices::taken_over(config, name, *mtu, made).map_err(failed)?;
        let tap = tap::taken_over(&config.tap, tap).map_err(|error| failed(error.to_string()))?;
        let mut uplink = Self::prepare(network, config, (devices, own), tap, members, *may_tell).map_err(failed)?;
        uplink.begins.0 = uplink.begins.0.take().map(FdbSync::adopting);
        Ok(uplink)
    }

    /// Adds the port of an uplink by the NIC of `config`, which may be missing.
    fn prepare_nic(network: &Arc<Network>, config: &NicConfig, members: usize, own: Permit) -> Result<Self, String> {
        let mtu = config.mtu.unwrap_or(ETHERNET_MTU);
        let port = add_port(network, &config.segment, mtu, members).map_err(|error| error.to_string())?;
        // A guest's spanning tree shuts no port of a switch there.
        port.policy.usually_drop_reserved();
        Ok(Self {
            config: UplinkConfig::Nic(config.clone()),
            port,
            seen: Arc::default(),
            ends: Arc::default(),
            may_tell: false,
            begins: (None, None),
            fdb_sync: None,
            way: Way::Nic(None),
            mtu,
            _own: own,
        })
    }

    /// Opens the NIC, if it is one that is not open.
    fn run_nic(&mut self, network: &Arc<Network>, executor: GetExecutor<'_>) -> Result<(), String> {
        if let (Way::Nic(nic @ None), UplinkConfig::Nic(config)) = (&mut self.way, &self.config) {
            let opened = NicUplink::open(config, self.mtu)?;
            let run = executor().and_then(|executor| NicUplink::run(&executor, network, &self.port, opened));
            *nic = Some(run.map_err(|cause| unstarted(&cause))?);
        }
        Ok(())
    }

    /// Adds its port, which no worker serves yet.
    fn prepare(
        network: &Arc<Network>,
        config: &VxlanConfig,
        (mut devices, own): (Devices, Permit),
        tap: Interface,
        members: usize,
        may_tell: bool,
    ) -> Result<Self, String> {
        let indices = devices.indices()?;
        let copy = tap.copy().map_err(|cause| unstarted(&cause))?;
        let port = add_port(network, &config.segment, devices.mtu, members).map_err(|error| error.to_string())?;
        let seen = Arc::default();
        let fdb_sync = FdbSync::new(network, &port, config, indices, may_tell, Arc::clone(&seen)).map_err(|cause| {
            withdraw(network, &port);
            unstarted(&cause)
        })?;
        Ok(Self {
            config: UplinkConfig::Vxlan(config.clone()),
            port,
            seen,
            ends: Arc::default(),
            may_tell: fdb_sync.may_tell(),
            begins: (Some(fdb_sync), Some(tap)),
            fdb_sync: None,
            mtu: devices.mtu,
            way: Way::Vxlan { tap: copy, devices: Box::new(devices) },
            _own: own,
        })
    }

    /// Has a worker serve its TAP device.
    ///
    /// # Errors
    /// The kernel refuses a descriptor.
    pub fn serve(&mut self, network: &Network) -> io::Result<()> {
        self.begins.1.take().map_or(Ok(()), |tap| network.serve(&self.port, tap))
    }

    /// Starts its FDB sync.
    fn sync(&mut self, network: &Arc<Network>) -> io::Result<()> {
        let (Some(fdb_sync), UplinkConfig::Vxlan(config)) = (self.begins.0.take(), &self.config) else { return Ok(()) };
        let stopped = Arc::clone(&self.ends);
        let thread = std::thread::Builder::new().name(format!("uplink-{}", config.vni)).stack_size(256 * 1024);
        let (network, name) = (Arc::clone(network), format!("the uplink of segment {}", config.segment));
        let run = move || network.fatal().guard(&name, || fdb_sync.run(&stopped)).unwrap_or_default();
        self.fdb_sync = Some(thread.spawn(run)?);
        Ok(())
    }

    /// The process that had it has ended: its devices or its NIC are this one's, and its MAC addresses are kept in step.
    ///
    /// # Errors
    /// The kernel refuses a thread, or the NIC cannot be opened.
    pub fn go_on(&mut self, network: &Arc<Network>, executor: GetExecutor<'_>) -> io::Result<()> {
        match &mut self.way {
            Way::Vxlan { devices, .. } => devices.own(),
            // The NIC has one user: the process that had it has closed it.
            Way::Nic(_) => self.run_nic(network, executor).map_err(io::Error::other)?,
        }
        self.sync(network)
    }

    /// Describes it for a process that takes the network over, with a copy of the descriptor of its TAP device.
    ///
    /// # Errors
    /// The kernel refuses a descriptor.
    pub fn save(&self) -> io::Result<(SavedUplink, OwnedFd)> {
        let (made, file) = match &self.way {
            Way::Vxlan { tap, devices } => (devices.made().to_vec(), tap.try_clone()?),
            // The next process opens the NIC itself; each uplink has one descriptor.
            Way::Nic(_) => (Vec::new(), File::open("/dev/null")?),
        };
        let saved = SavedUplink { config: self.config.clone(), mtu: self.mtu, made, may_tell: self.may_tell };
        Ok((saved, file.into()))
    }

    /// Port of the uplink.
    pub fn port(&self) -> &Arc<Port> {
        &self.port
    }

    /// Configuration of the uplink.
    pub fn config(&self) -> &UplinkConfig {
        &self.config
    }

    /// Name of the uplink's segment.
    pub fn segment(&self) -> &str {
        self.config.segment()
    }

    /// MTU of its segment, in bytes.
    pub fn mtu(&self) -> u16 {
        self.mtu
    }

    /// The report of the uplink.
    pub fn report(&self) -> UplinkReport {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let learned_address =
            |(address, host): (MacAddress, IpAddr)| RemoteAddress { address: address.to_string(), host: host.to_string() };
        let (vni, devices, nic, trouble, advice) = match &self.config {
            UplinkConfig::Vxlan(VxlanConfig { vni, tap, bridge, vxlan, netns, .. }) => {
                let advice = netfilter::advice(bridge, netns.as_deref());
                (Some(*vni), [tap, bridge, vxlan].map(String::clone).into(), None, seen.trouble, advice)
            }
            UplinkConfig::Nic(NicConfig { nic, .. }) => {
                let NicState { socket, note } = self.nic_state();
                let cut = (self.port.carrier() == Some(false)).then(|| no_carrier(nic));
                let (trouble, advice) = if socket.is_some() { (cut, note) } else { (note, None) };
                let report = NicReport { name: nic.clone(), socket: socket.map(str::to_owned) };
                (None, vec![nic.clone()], Some(report), trouble, advice)
            }
        };
        UplinkReport {
            segment: self.segment().to_owned(),
            vni,
            devices,
            nic,
            carrier: self.port.carrier(),
            mtu: self.mtu,
            announced: seen.announced,
            held_back: seen.held_back,
            hosts: seen.remote.hosts().iter().map(IpAddr::to_string).collect(),
            learned_addresses: seen.remote.learned_addresses().map(learned_address).collect(),
            more: seen.remote.is_full(),
            disputed: seen.disputed.into_iter().map(learned_address).collect(),
            trouble,
            advice,
            totals: self.port.totals(),
        }
    }

    /// Removes the uplink, and the devices created for it.
    pub fn stop(mut self, network: &Network) {
        self.end();
        withdraw(network, &self.port);
    }

    fn nic_state(&self) -> NicState {
        match &self.way {
            Way::Nic(Some(nic)) => nic.state(),
            Way::Nic(None) | Way::Vxlan { .. } => NicState::default(),
        }
    }

    fn end(&mut self) {
        if let Way::Nic(nic) = &mut self.way
            && let Some(nic) = nic.take()
        {
            nic.stop();
        }
        self.ends.store(true, Ordering::Relaxed);
        if let Some(fdb_sync) = self.fdb_sync.take() {
            // A thread that panicked has logged it on standard error.
            let _ = fdb_sync.join();
        }
    }
}

impl Drop for Uplink {
    fn drop(&mut self) {
        self.end();
    }
}

/// Permits for its descriptors.
fn permit(network: &Network) -> Result<Permit, String> {
    let own = Account::with_floor(&network.shared().descriptors.budget, OF_UPLINK).take(OF_UPLINK);
    own.ok_or_else(|| format!("no file descriptors are left for its uplink. {}", descriptors::REMEDY))
}

/// Of a NIC without a carrier, with the remedy.
pub fn no_carrier(nic: &str) -> String {
    format!(
        "NIC {nic} is down or has no carrier, so nothing reaches other hosts: see ip link show {nic}, its cable, and the switch at its other end"
    )
}

fn unstarted(cause: &io::Error) -> String {
    format!("its uplink cannot be started: {cause}")
}

/// Adds the port of an uplink to its segment. Its name contains a character that is invalid in names of the operator's ports, so the two
/// cannot clash.
fn add_port(network: &Network, segment: &str, mtu: u16, members: usize) -> Result<Arc<Port>, AddError> {
    let attach_settings = AttachSettings {
        name: &format!("uplink:{segment}"),
        segment,
        settings: &PortSettings::default(),
        offer: Offer { mtu: Some(mtu), ..Offer::default() },
    };
    let port = network.add_port(&attach_settings, members)?;
    port.segment.set_uplink(Some(port.id));
    port.segment.set_uplink_mtu(mtu);
    Ok(port)
}

/// Removes the port of an uplink from its segment.
fn withdraw(network: &Network, port: &Arc<Port>) {
    port.segment.set_uplink(None);
    network.remove_port(port);
}
