//! Where a segment goes on at other hosts: by the kernel's VXLAN, with BGP EVPN (FRR) to tell hosts who is where (RFC 7432, RFC 8365).
//!
//! ```text
//!   segment -- port "uplink:lan" -- TAP -- bridge -- VXLAN -- underlay -- other hosts
//! ```
//!
//! 1. [`plan`]: what has to be done to these devices; [`devices`] does it, by [`netlink`], and takes away in the end what it made.
//! 2. [`announced`], *out*: which stations of this host the bridge is told of, for FRR to announce.
//! 3. [`remote`], *in*: which stations FRR says are at other hosts; they stand in the segment's table behind the uplink.
//! 4. [`netfilter`]: whether the host's packet filter stands in the way.
//! 5. [`keeper`]: the thread that does both for as long as the network runs. Workers know nothing of it.

pub mod announced;
pub mod devices;
pub mod keeper;
pub mod link;
pub mod netfilter;
pub mod plan;
pub mod remote;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::budget::{Account, Permit};
use crate::config::UplinkConfig;
use crate::descriptors::{self, OF_UPLINK};
use crate::frame::MacAddress;
use crate::network::{AddError, Network, PortTerms};
use crate::policy::Allowance;
use crate::port::{Offer, Port};
use crate::stats::PortTotals;
use devices::Devices;
use keeper::Keeper;
use memlane_backends::tap::Tap;

/// Why a segment cannot go on at other hosts.
#[derive(Debug, Error)]
#[error("segment {segment}: {what}")]
pub struct UplinkError {
    /// The segment.
    pub segment: String,
    /// Why not, and what to do about it.
    pub what: String,
}

/// See the module.
#[derive(Debug)]
pub struct Uplink {
    config: UplinkConfig,
    port: Arc<Port>,
    seen: Arc<Mutex<Seen>>,
    ends: Arc<AtomicBool>,
    keeper: Option<JoinHandle<()>>,
    devices: Devices,
    _own: Permit,
}

/// What the keeper knows, for whoever asks.
#[derive(Clone, Debug, Default)]
struct Seen {
    /// Stations of this host that others are told of, and that they are not.
    announced: usize,
    held_back: usize,
    /// Stations of other hosts.
    remote: remote::Remote,
    /// Addresses that are tied to a port here and that another host says are its own.
    disputed: BTreeMap<MacAddress, IpAddr>,
    /// Why others are not told as they should be.
    trouble: Option<String>,
}

/// An uplink, as an operator sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct UplinkReport {
    /// Its segment.
    pub segment: String,
    /// VXLAN network identifier.
    pub vni: u32,
    /// Names of TAP device, bridge and VXLAN device.
    pub devices: [String; 3],
    /// MTU of the segment.
    pub mtu: u16,
    /// Stations of this host that others are told of.
    pub announced: usize,
    /// Stations of this host that they are not told of: too many of a port, or another host has told of them.
    pub held_back: usize,
    /// Addresses on the underlay of the other hosts.
    pub hosts: Vec<String>,
    /// Stations of other hosts, by their addresses.
    pub stations: Vec<RemoteStation>,
    /// There are more than these: they are flooded for.
    pub more: bool,
    /// Stations that are tied to a port here, and that other hosts say are theirs.
    pub disputed: Vec<RemoteStation>,
    /// Why others are not told as they should be.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub trouble: Option<String>,
    /// What of the host stands in its way, perhaps, and what to do about it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub advice: Option<String>,
    /// Counters of its port: transmit is what comes from other hosts.
    #[serde(flatten)]
    pub totals: PortTotals,
}

/// A station at another host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RemoteStation {
    /// Its MAC address.
    pub address: String,
    /// The host's address on the underlay.
    pub host: String,
}

impl Uplink {
    /// Has the segment of `config` go on at other hosts. `name` is the network's, `members` as many ports as the segment is expected to have.
    ///
    /// # Errors
    /// Something is in the way, or rights are missing; nothing is left behind then.
    pub fn start(network: &Arc<Network>, name: &str, config: &UplinkConfig, members: usize) -> Result<Self, UplinkError> {
        let failed = |what: String| UplinkError { segment: config.segment.clone(), what };
        let own = Account::with_floor(&network.shared().descriptors.budget, OF_UPLINK).take(OF_UPLINK);
        let own = own.ok_or_else(|| failed(format!("no descriptors are left for its uplink. {}", descriptors::REMEDY)))?;
        let mut devices = Devices::make(config, name).map_err(failed)?;
        let tap = Tap::attach(&config.tap, config.netns.as_deref()).map_err(|error| failed(error.to_string()))?;
        let may_tell = devices.take_tap().map_err(failed)?;
        let port = add_port(network, config, devices.mtu, members).map_err(|error| failed(error.to_string()))?;
        port.segment.set_uplink(Some(port.id));
        let started = Self::begin(network, config, (devices, own), tap, &port, may_tell);
        started.map_err(|what| {
            port.segment.set_uplink(None);
            network.remove_port(&port);
            failed(what)
        })
    }

    fn begin(
        network: &Arc<Network>,
        config: &UplinkConfig,
        (mut devices, own): (Devices, Permit),
        tap: Tap,
        port: &Arc<Port>,
        may_tell: bool,
    ) -> Result<Self, String> {
        let system = |cause: std::io::Error| format!("its uplink cannot be started: {cause}");
        let (seen, stop) = (Arc::new(Mutex::default()), Arc::new(AtomicBool::new(false)));
        let keeper = Keeper::new(network, port, config, devices.indices()?, may_tell, Arc::clone(&seen)).map_err(system)?;
        network.serve(port, tap).map_err(system)?;
        if let Some(advice) = netfilter::advice(&config.bridge, config.netns.as_deref()) {
            tracing::warn!(segment = %config.segment, "{advice}");
        }
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name(format!("uplink-{}", config.vni)).stack_size(256 * 1024);
        let (network, name) = (Arc::clone(network), format!("the uplink of segment {}", config.segment));
        let run = move || network.fatal().guard(&name, || keeper.run(&stopped)).unwrap_or_default();
        let keeper = thread.spawn(run).map_err(system)?;
        Ok(Self { config: config.clone(), port: Arc::clone(port), seen, ends: stop, keeper: Some(keeper), devices, _own: own })
    }

    /// As it was asked for.
    pub fn config(&self) -> &UplinkConfig {
        &self.config
    }

    /// Its segment's name.
    pub fn segment(&self) -> &str {
        &self.config.segment
    }

    /// MTU of its segment, in bytes.
    pub fn mtu(&self) -> u16 {
        self.devices.mtu
    }

    /// What is to be seen of it.
    pub fn report(&self) -> UplinkReport {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let station =
            |(address, host): (MacAddress, IpAddr)| RemoteStation { address: address.to_string(), host: host.to_string() };
        let UplinkConfig { tap, bridge, vxlan, .. } = &self.config;
        UplinkReport {
            segment: self.config.segment.clone(),
            vni: self.config.vni,
            devices: [tap, bridge, vxlan].map(String::clone),
            mtu: self.devices.mtu,
            announced: seen.announced,
            held_back: seen.held_back,
            hosts: seen.remote.hosts().iter().map(IpAddr::to_string).collect(),
            stations: seen.remote.stations().map(station).collect(),
            more: seen.remote.is_full(),
            disputed: seen.disputed.into_iter().map(station).collect(),
            trouble: seen.trouble,
            advice: netfilter::advice(bridge, self.config.netns.as_deref()),
            totals: self.port.totals(),
        }
    }

    /// Takes it away, and with it what was made for it.
    pub fn stop(mut self, network: &Network) {
        self.end();
        self.port.segment.set_uplink(None);
        network.remove_port(&self.port);
    }

    fn end(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(keeper) = self.keeper.take() {
            // One that panicked has said so on standard error.
            let _ = keeper.join();
        }
    }
}

impl Drop for Uplink {
    fn drop(&mut self) {
        self.end();
    }
}

/// No port of an operator's can have its name, which has a character that names have not.
fn add_port(network: &Network, config: &UplinkConfig, mtu: u16, members: usize) -> Result<Arc<Port>, AddError> {
    let terms = PortTerms {
        name: &format!("uplink:{}", config.segment),
        segment: &config.segment,
        allowance: &Allowance::default(),
        link: &None,
        mac: None,
        offer: Offer { mtu: Some(mtu), ..Offer::default() },
        enabled: true,
    };
    network.add_port(&terms, members)
}
