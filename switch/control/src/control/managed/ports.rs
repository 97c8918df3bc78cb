//! Ports that come and go by request, one or many at once.

use std::collections::HashSet;
use std::path::Path;
use std::sync::PoisonError;

use axum::http::StatusCode;
use serde_json::Value;

use super::{FileConfig, Managed};
use crate::config::difference::Changed;
use crate::config::{Config, Mistakes, PortConfig, PortEntry, PortOrigin, no_base};
use crate::control::problem::Refusal;
use crate::control::report::PortView;
use crate::daemon::NoSuchPort;

/// Key of an ephemeral port.
const EPHEMERAL: &str = "origin.ephemeral";

/// A port that a request attaches.
#[derive(Clone, Debug)]
pub struct WantedPort {
    /// Keys of the port.
    pub entry: Value,
    /// Origin of the port.
    pub origin: PortOrigin,
    /// The port may be attached already, with the same keys.
    pub may_exist: bool,
}

/// A refusal because of one port of a request.
struct RefusedPort {
    index: usize,
    refusal: Refusal,
}

/// The port of a request at `index`, or its refusal.
fn of_port<T>(index: usize, result: Result<T, Refusal>) -> Result<T, RefusedPort> {
    result.map_err(|refusal| RefusedPort { index, refusal })
}

/// A port of a request after its check.
struct CheckedPort {
    /// Place in the request.
    index: usize,
    config: PortConfig,
    may_exist: bool,
}

impl Managed {
    /// Attaches the port that `entry` describes, with this origin. Its socket has the file's access rights where the entry states none.
    ///
    /// # Errors
    /// The entry is invalid, claims a resource of another port, or the machine refuses; nothing has changed then.
    pub fn attach(&self, entry: &Value, origin: PortOrigin) -> Result<PortView, Refusal> {
        self.attach_one(&WantedPort { entry: entry.clone(), origin, may_exist: false })
    }

    /// Like [`Self::attach`], for a port that may exist.
    ///
    /// # Errors
    /// The errors of [`Self::attach`]; the port is attached with other keys.
    pub fn attach_one(&self, wanted: &WantedPort) -> Result<PortView, Refusal> {
        let config = PortConfig::from_json(&wanted.entry, &self.origin.folder)?;
        let port = self.checked((0, self.with_inside(config, &[])?), wanted)?;
        self.attach_missing(std::slice::from_ref(&port)).map_err(|refused| refused.refusal)?;
        self.view(&port.config.name)
    }

    /// Like [`Self::attach_one`], for all of these ports or none, with one write of the state file.
    ///
    /// # Errors
    /// The errors of [`Self::attach_one`], with the places of the ports in the keys of the mistakes.
    pub fn attach_all(&self, wanted: &[WantedPort]) -> Result<Vec<PortView>, Refusal> {
        let configs = read_all(wanted, &self.origin.folder)?;
        let check = |(index, (config, wanted)): (usize, (&PortConfig, &WantedPort))| {
            let config = self.with_inside(config.clone(), &configs);
            config.and_then(|config| self.checked((index, config), wanted)).map_err(|refusal| refusal.of_port(index))
        };
        let ports = configs.iter().zip(wanted).enumerate().map(check).collect::<Result<Vec<_>, _>>()?;
        self.attach_missing(&ports).map_err(|refused| refused.refusal.of_port(refused.index))?;
        ports.iter().map(|port| self.view(&port.config.name)).collect()
    }

    /// The port at `index` of a request, with its origin and the file's access rights.
    fn checked(&self, (index, read): (usize, PortConfig), wanted: &WantedPort) -> Result<CheckedPort, Refusal> {
        if wanted.origin.ephemeral && read.kind.front_ends().is_none_or(|socket| socket.connect) {
            let text = "only a vhost-user port at which memlane listens can be ephemeral: it goes with its front end";
            refuse(StatusCode::UNPROCESSABLE_ENTITY, vec![(EPHEMERAL, text.into())])?;
        }
        self.refuse_addresses(&read)?;
        let access = if read.kind.listens_at().is_some() { read.access.or(&self.changing().access) } else { read.access };
        let config = PortConfig { access, origin: wanted.origin.clone(), ..read };
        Ok(CheckedPort { index, config, may_exist: wanted.may_exist })
    }

    /// Attaches those of `ports` that are not attached already and may be, or none.
    fn attach_missing(&self, ports: &[CheckedPort]) -> Result<(), RefusedPort> {
        let may_exist = ports.iter().any(|port| port.may_exist);
        // The socket of a port that another such request is about to attach is no clash.
        let _alone = may_exist.then(|| self.repeatable.lock().unwrap_or_else(PoisonError::into_inner));
        self.attach_those_missing(ports)
    }

    fn attach_those_missing(&self, ports: &[CheckedPort]) -> Result<(), RefusedPort> {
        let missing = self.missing(ports)?;
        match self.attach_read(ports, &missing) {
            // Another command has attached or detached one of them meanwhile.
            Err(_) if self.missing(ports)?.len() != missing.len() => self.attach_those_missing(ports),
            attached => attached,
        }
    }

    /// The `ports` that are to be attached: all but those that may exist, and do with the same keys.
    fn missing<'p>(&self, ports: &'p [CheckedPort]) -> Result<Vec<&'p CheckedPort>, RefusedPort> {
        let mut missing = Vec::new();
        for port in ports {
            if !port.may_exist || !of_port(port.index, self.is_attached(&port.config))? {
                missing.push(port);
            }
        }
        Ok(missing)
    }

    /// Whether `port` is attached.
    ///
    /// # Errors
    /// A port of its name is attached with other keys.
    fn is_attached(&self, port: &PortConfig) -> Result<bool, Refusal> {
        let Some(present) = self.ask(|daemon| daemon.port(&port.name))? else { return Ok(false) };
        let keys = match Changed::between(&present, port) {
            Some(changed) => changed.keys.join(", "),
            None if present.origin.ephemeral == port.origin.ephemeral => return Ok(true),
            None => EPHEMERAL.into(),
        };
        let text =
            format!("port '{}' is attached with another value of {keys}: set these keys, or detach the port first", port.name);
        Err(Refusal::mistaken(StatusCode::CONFLICT, vec![("name".into(), text)]))
    }

    /// Attaches the `missing` ones of the `wanted` ports, or none.
    fn attach_read(&self, wanted: &[CheckedPort], ports: &[&CheckedPort]) -> Result<(), RefusedPort> {
        let refuse_clashes = || ports.iter().try_for_each(|port| of_port(port.index, self.refuse_clashes(&port.config, "")));
        refuse_clashes()?;
        // Opening an interface or asking a name service may take long: other changes do not wait for this.
        let prepare = |port: &&CheckedPort| of_port(port.index, self.daemon.prepare(&port.config));
        let prepared = ports.iter().map(prepare).collect::<Result<Vec<_>, _>>()?;
        let base = of_port(0, self.changing_unfrozen())?;
        refuse_clashes()?;
        self.renew_others(wanted, ports)?;
        let mut attached = Vec::with_capacity(ports.len());
        for (port, prepared) in ports.iter().zip(prepared) {
            let result = self.ask(|daemon| daemon.attach_prepared(&port.config, prepared));
            if let Err(refusal) = result.and_then(|attached| attached.map_err(Refusal::from)) {
                // Refused only while the network ends, and all ports with it.
                let _ = self.ask(|daemon| daemon.detach_all(&attached));
                return Err(RefusedPort { index: port.index, refusal });
            }
            attached.push(port.config.name.as_str());
        }
        let kept = ports.iter().map(|port| (port.config.name.as_str(), Some(&port.config)));
        of_port(0, self.keep_ports(&base, kept))
    }

    /// Has those of the `wanted` ports that are not `missing` stay for the front end that is to come.
    ///
    /// # Errors
    /// One was detached meanwhile.
    fn renew_others(&self, wanted: &[CheckedPort], missing: &[&CheckedPort]) -> Result<(), RefusedPort> {
        let missing: HashSet<usize> = missing.iter().map(|port| port.index).collect();
        for CheckedPort { index, config, .. } in wanted.iter().filter(|port| !missing.contains(&port.index)) {
            let is_there = of_port(*index, self.ask(|daemon| daemon.renew(&config.name)))?;
            of_port(*index, if is_there { Ok(()) } else { Err(NoSuchPort(config.name.clone()).into()) })?;
        }
        Ok(())
    }

    /// The same port, with the addresses that the guest of a twin has inside: those of the guest of one of the `others`, or of a port that is
    /// attached.
    pub(super) fn with_inside(&self, mut port: PortConfig, others: &[PortConfig]) -> Result<PortConfig, Refusal> {
        let Some(base) = &port.twin_of else { return Ok(port) };
        let other = others.iter().find(|other| other.name == *base && other.twin_of.is_none()).cloned();
        let found = self.ask(|daemon| Some(other.or_else(|| daemon.port(base))?.addresses_inside(daemon.seed())))?;
        match found {
            Some(inside) => port.set_inside(inside),
            None => refuse(StatusCode::UNPROCESSABLE_ENTITY, vec![("twin-of", no_base(base))])?,
        }
        Ok(port)
    }

    /// Refuses addresses that no guest of the port's segment can have.
    pub(super) fn refuse_addresses(&self, port: &PortConfig) -> Result<(), Refusal> {
        refuse(StatusCode::UNPROCESSABLE_ENTITY, self.ask(|daemon| daemon.address_mistakes(port))?)
    }

    /// Refuses claims to resources of other ports than the one called `own`.
    pub(super) fn refuse_clashes(&self, port: &PortConfig, own: &str) -> Result<(), Refusal> {
        refuse(StatusCode::CONFLICT, self.ask(|daemon| daemon.clashes(port, own))?)
    }

    /// Detaches a port; returns the entry that attaches it again.
    ///
    /// # Errors
    /// There is no port of this name.
    pub fn detach(&self, name: &str) -> Result<PortEntry, Refusal> {
        let gone = self.detach_all(&[name], false)?;
        gone.into_iter().next().ok_or_else(|| NoSuchPort(name.into()).into())
    }

    /// Detaches all of these ports, or none; with `if_exists` those that are attached. Returns the entries that attach them again.
    ///
    /// # Errors
    /// There is no port of one of these names.
    pub fn detach_all(&self, names: &[&str], if_exists: bool) -> Result<Vec<PortEntry>, Refusal> {
        self.detach_locked(&self.changing(), names, if_exists)
    }

    /// Detaches those of these ports that are ephemeral and closed.
    ///
    /// # Errors
    /// The network ends.
    pub(in crate::control) fn detach_closed(&self, names: &[String]) -> Result<(), Refusal> {
        let base = self.changing();
        // A command may have detached one, attached another of its name, or opened it again.
        let closed =
            self.ask(|daemon| names.iter().map(String::as_str).filter(|name| daemon.is_closed(name)).collect::<Vec<_>>())?;
        self.detach_locked(&base, &closed, true).map(drop)
    }

    fn detach_locked(&self, base: &FileConfig, names: &[&str], if_exists: bool) -> Result<Vec<PortEntry>, Refusal> {
        let mut told = HashSet::new();
        let names = names.iter().copied().filter(|name| told.insert(*name));
        let (has_lease, gone) = self.ask(|daemon| {
            let (present, missing): (Vec<&str>, Vec<&str>) = names.partition(|name| daemon.port(name).is_some());
            if let Some(&missing) = missing.first().filter(|_| !if_exists) {
                return Err(NoSuchPort(missing.into()));
            }
            let has_lease = present.iter().any(|name| daemon.has_lease(name));
            Ok((has_lease, daemon.detach_all(&present).into_iter().collect::<Result<Vec<PortConfig>, _>>()?))
        })??;
        // Steps have no leases, and these may not be stored yet.
        if has_lease {
            self.keep(base)?;
        } else {
            self.keep_ports(base, gone.iter().map(|port| (port.name.as_str(), None)))?;
        }
        Ok(gone.iter().map(PortConfig::entry).collect())
    }
}

/// The ports of `wanted`.
///
/// # Errors
/// All mistakes at once, by their places in the request.
fn read_all(wanted: &[WantedPort], folder: &Path) -> Result<Vec<PortConfig>, Mistakes> {
    let entries: Vec<&Value> = wanted.iter().map(|wanted| &wanted.entry).collect();
    Config::ports_from_json(&entries, folder).map_err(|mut mistakes| {
        for mistake in &mut mistakes.list {
            if let Some(rest) = mistake.key.strip_prefix("port") {
                mistake.key = format!("ports{rest}");
            }
        }
        mistakes
    })
}

/// Refuses these mistakes, if there are any.
fn refuse(status: StatusCode, mistakes: Vec<(&'static str, String)>) -> Result<(), Refusal> {
    if mistakes.is_empty() {
        return Ok(());
    }
    Err(Refusal::mistaken(status, mistakes.into_iter().map(|(key, text)| (key.to_owned(), text)).collect()))
}
