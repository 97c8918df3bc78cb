//! Responders: addresses and names for the guests of segments (configuration keys `subnet`, `subnet6`).
//!
//! Each is a port of its segment ([`memlane_backends::names`]), with a name that no port of the operator can have. The daemon tells it of
//! the segment's ports, and makes of its leases addresses that the ports' `anti-spoof` allows. [`SavedLease`]s outlast the process in the
//! state file and in a takeover.

use std::net::IpAddr;
use std::process::Child;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use memlane_backends::executor::Executor;
use memlane_backends::names::{Clock, OpenForwarder, SharedResponder, run};
use memlane_backends::session::Session;
use memlane_names::{Admission, Holder, Lease, LeaseKind, NamePolicy, NamesReport, PortAddresses, Responder, Settings, Sightings};
use serde::{Deserialize, Serialize};

use crate::address_map::GivenLease;
use crate::config::names::RefusedNames;
use crate::config::{NamesConfig, PortConfig};
use crate::forwarder;
use crate::frame::MacAddress;
use crate::helper::Helper;
use crate::network::{AddError, AttachSettings, Network};
use crate::policy::rules::{Autoconf, Service};
use crate::policy::{AntiSpoof, PortLimits};
use crate::port::settings::PortSettings;
use crate::port::{Offer, Port, default_address};
use crate::resolvers;
use crate::segment::{Responds, Segment};
use crate::twin::Twin;

/// A lease, as it is stored.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct SavedLease {
    /// Segment of the responder.
    pub segment: String,
    /// Port of the lease.
    pub port: String,
    /// The address.
    pub address: IpAddr,
    /// MAC address of its guest.
    pub mac: String,
    /// Hash of the client identifier of its guest; 0 without one.
    #[serde(default, skip_serializing_if = "is_zero", with = "hexadecimal")]
    pub client: u64,
    /// Origin of the lease.
    pub source: SavedSource,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// A number of 64 bits as text: TOML has none without a sign.
mod hexadecimal {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(number: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{number:016x}"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
        u64::from_str_radix(&String::deserialize(deserializer)?, 16).map_err(D::Error::custom)
    }
}

/// Origin of a stored lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SavedSource {
    /// DHCP or DHCPv6.
    Dhcp,
    /// The guest has made it of the prefix.
    Slaac,
    /// The guest can make it of the prefix and its MAC address.
    Expected,
}

/// Where changes of leases are told, once there is a listener.
pub type LeaseNews = Arc<Mutex<Option<Sender<()>>>>;

/// See the module.
#[derive(Debug)]
pub struct Names {
    config: NamesConfig,
    port: Arc<Port>,
    responder: SharedResponder,
    clock: Clock,
    session: Option<Session>,
}

impl Names {
    /// Starts the responder `config` of the network called `name`, before there are ports on its segment, which may lead out. `news` is told
    /// of changes.
    ///
    /// # Errors
    /// The kernel refuses a thread or a descriptor, or the network another port.
    pub fn start(
        executor: &Executor,
        network: &Arc<Network>,
        name: &str,
        (config, has_way_out): (&NamesConfig, bool),
        members: usize,
        news: &LeaseNews,
    ) -> Result<Self, AddError> {
        let port_name = format!("names:{}", config.segment);
        let mac = default_address(name, &port_name);
        let settings = Settings {
            segment: config.segment.clone(),
            mac,
            subnet: config.subnet,
            subnet6: config.subnet6,
            domain: config.domain.clone(),
            router: config.router,
            dns: config.dns.clone().unwrap_or_else(|| if has_way_out { resolvers::of_host() } else { Vec::new() }),
            asked: asked_by_guests(config),
            forwards: !config.resolvers.is_empty(),
            tells_refusal: config.refused_names == RefusedNames::Refused,
        };
        let attach_settings = AttachSettings {
            name: &port_name,
            segment: &config.segment,
            settings: &PortSettings {
                mac: Some(mac),
                // The address map takes leases from answers of ports that may serve.
                // The responder's own addresses count as configured, so that the switch answers for known addresses on its segment.
                limits: PortLimits {
                    may_serve: vec![Service::Dhcp, Service::Ra],
                    addresses: [settings.own4().map(IpAddr::V4), settings.own6().map(IpAddr::V6)].into_iter().flatten().collect(),
                    ..PortLimits::default()
                },
                ..PortSettings::default()
            },
            offer: Offer { mac, mtu: None },
        };
        let port = network.add_port(&attach_settings, members)?;
        network.set_responder(&port, Some(Responds { v4: config.subnet.is_some(), v6: config.subnet6.is_some() }));
        let mut responder = Responder::new(settings);
        responder.heed(SegmentSightings { segment: Arc::clone(&port.segment), network: Arc::clone(network) });
        responder.resolve_by(PolicyOfNames(Arc::clone(network)));
        let responder = Arc::new(Mutex::new(responder));
        Ok(Self { config: config.clone(), port, responder, clock: Clock::start(), session: None }.serve(executor, network, news))
    }

    fn serve(mut self, executor: &Executor, network: &Arc<Network>, news: &LeaseNews) -> Self {
        let (responder, clock, news, told) = (Arc::clone(&self.responder), self.clock, Arc::clone(news), Arc::clone(network));
        let tell = move |changed: &[Arc<str>]| {
            changed.iter().for_each(|port| allow_leased(&told, &responder, clock, port));
            // Without a state file nothing stores leases.
            let news = news.lock().unwrap_or_else(PoisonError::into_inner);
            news.iter().for_each(|news| news.send(()).unwrap_or_default());
        };
        let open = (!self.config.resolvers.is_empty()).then(|| forwarder_of(&self.config));
        match run(executor, network, &self.port, (Arc::clone(&self.responder), open), self.clock, Arc::new(tell)) {
            Ok(session) => self.session = Some(session),
            Err(cause) => {
                tracing::error!(
                    target: "memlane::names",
                    segment = %self.config.segment, %cause, "the responder for addresses and names cannot be started"
                );
                network.quarantine(&self.port, &cause.to_string());
            }
        }
        self
    }

    fn responder(&self) -> MutexGuard<'_, Responder> {
        self.responder.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Configuration of the responder.
    pub fn config(&self) -> &NamesConfig {
        &self.config
    }

    /// Adds a port of its segment, or changes its static addresses.
    pub fn set_port(&self, network: &Network, port: &PortConfig, offer: Offer) {
        if port.segment != self.config.segment {
            return;
        }
        let limits = &port.settings.limits;
        let is_guarded = limits.anti_spoof == AntiSpoof::All;
        let changed = {
            let mut responder = self.responder();
            let twin = Twin::of(limits, offer.mac);
            let addresses =
                PortAddresses { fixed: limits.addresses.clone(), mtu: offer.mtu, leases: limits.leases, is_guarded, twin };
            responder.set_port(&port.name, addresses, self.clock.now());
            responder.take_changed()
        };
        if let (Some(prefix), Some(port)) = (self.config.subnet6, network.find(&port.name)) {
            // The advertisements ask guests to make addresses of the prefix.
            port.policy.rules.set_autoconf(Autoconf { prefix, responder: self.port.id });
        }
        changed.iter().for_each(|port| allow_leased(network, &self.responder, self.clock, port));
    }

    /// Removes a port: its name ends, and its leases are kept in case that it comes back.
    pub fn remove_port(&self, port: &PortConfig) {
        if port.segment == self.config.segment {
            let mut responder = self.responder();
            responder.remove_port(&port.name, self.clock.now());
            responder.take_changed();
        }
    }

    /// Whether `port` has a lease that is in use.
    pub fn has_lease(&self, port: &str) -> bool {
        self.responder().in_use(port, self.clock.now()).next().is_some()
    }

    /// Active leases of the segment, and those that are kept for ports that have left.
    pub fn leases(&self) -> Vec<SavedLease> {
        let saved = |(port, lease): (&str, Lease)| SavedLease {
            segment: self.config.segment.clone(),
            port: port.into(),
            address: lease.address,
            mac: lease.holder.mac.to_string(),
            client: lease.holder.id,
            source: match lease.kind {
                LeaseKind::Claimed | LeaseKind::Probed => SavedSource::Slaac,
                LeaseKind::Expected => SavedSource::Expected,
                LeaseKind::Leased | LeaseKind::Offered | LeaseKind::Declined => SavedSource::Dhcp,
            },
        };
        let (responder, now) = (self.responder(), self.clock.now());
        responder.leases(now).into_iter().chain(responder.departed(now)).map(saved).collect()
    }

    /// Restores leases, also of ports that may come back.
    pub fn restore(&self, network: &Network, leases: &[SavedLease]) {
        for lease in leases.iter().filter(|lease| lease.segment == self.config.segment) {
            let kind = match lease.source {
                SavedSource::Dhcp => LeaseKind::Leased,
                SavedSource::Slaac => LeaseKind::Claimed,
                SavedSource::Expected => LeaseKind::Expected,
            };
            let Ok(mac) = lease.mac.parse() else { continue };
            let holder = Holder { mac, id: lease.client };
            // An address that is another port's now is left out.
            self.responder().restore(&lease.port, lease.address, holder, kind, self.clock.now());
        }
        let changed = self.responder().take_changed();
        changed.iter().for_each(|port| allow_leased(network, &self.responder, self.clock, port));
    }

    /// Report of the responder.
    pub fn report(&self) -> NamesReport {
        let (mut responder, now) = (self.responder(), self.clock.now());
        responder.settle(now);
        responder.report(now)
    }

    /// Running leases of `port`, if it was lately refused another one.
    pub fn shortage(&self, port: &str) -> Option<usize> {
        self.responder().shortage(port, self.clock.now())
    }

    /// Removes the responder.
    pub fn stop(mut self, network: &Network) {
        Session::stop(self.session.take().into_iter().collect());
        network.set_responder(&self.port, None);
        network.remove_port(&self.port);
    }
}

/// The names that policy rules allow.
struct PolicyOfNames(Arc<Network>);

impl NamePolicy for PolicyOfNames {
    fn admit(&self, port: &str, name: &str) -> Admission {
        let is_admitted = self.0.find(port).is_some_and(|port| self.0.admits_name(&port, name));
        if is_admitted { Admission::Ask } else { Admission::Refuse }
    }

    fn limits(&self) -> bool {
        self.0.limits_names()
    }
}

/// Resolvers of `config` that guests can ask, too: clients know port 53 only, and have another loopback address.
fn asked_by_guests(config: &NamesConfig) -> Vec<IpAddr> {
    config.resolvers.iter().filter_map(|resolver| resolver.usual()).filter(|address| !address.is_loopback()).collect()
}

/// Starts forwarders for `config`: by the helper, or as a child of this process. One ends when the next is started, and with its socket.
fn forwarder_of(config: &NamesConfig) -> OpenForwarder {
    let (segment, resolvers, mut last) = (config.segment.clone(), config.resolvers.clone(), None::<Child>);
    Box::new(move || {
        if let Some(helper) = Helper::get() {
            return helper.start_forwarder(&segment);
        }
        if let Some(mut last) = last.take() {
            last.kill().and_then(|()| last.wait())?;
        }
        let (socket, child) = forwarder::spawn(&resolvers)?;
        last = Some(child);
        Ok(socket)
    })
}

/// Addresses in use, by the address map of the segment.
struct SegmentSightings {
    segment: Arc<Segment>,
    network: Arc<Network>,
}

impl Sightings for SegmentSightings {
    fn is_used_by_other(&self, address: IpAddr, mac: MacAddress) -> bool {
        let owner = self.segment.addresses().find(0, address, self.network.second());
        owner.is_some_and(|owner| owner.source.is_claim() && owner.mac != Some(mac))
    }

    fn idle(&self, address: IpAddr) -> Option<u64> {
        let now = self.network.second();
        self.segment.addresses().find(0, address, now).map(|owner| now.saturating_sub(owner.confirmed).into())
    }
}

/// Has `anti-spoof` of `port` allow its leased addresses, and no others that were; and the switch answer for them.
fn allow_leased(network: &Network, responder: &Mutex<Responder>, clock: Clock, port: &str) {
    let Some(port) = network.find(port) else { return };
    let (responder, now) = (responder.lock().unwrap_or_else(PoisonError::into_inner), clock.now());
    port.policy.rules.set_leased(&responder.allowed(&port.name, now));
    let left = |lease: &Lease| u32::try_from(lease.until.saturating_sub(now)).unwrap_or(u32::MAX);
    let given = |lease: &Lease| GivenLease { ip: lease.address, mac: lease.holder.mac, seconds: left(lease) };
    let in_use: Vec<GivenLease> = responder.in_use(&port.name, now).map(given).collect();
    let (is_router, gives) = (port.policy.may_serve(Service::Ra), |ip| responder.settings().contains(ip));
    port.segment.addresses().set_leases(port.id, &in_use, gives, is_router, network.second());
}
