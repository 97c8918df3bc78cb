//! An uplink by a NIC of this host.
//!
//! ```text
//!   segment -- port "uplink:lan" -- AF_XDP or AF_PACKET -- NIC -- other hosts
//! ```
//!
//! Where there is a [`Helper`], it opens the sockets.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::NicConfig;
use crate::helper::{Helper, Request};
use crate::network::Network;
use crate::port::Port;
use memlane_backends::executor::Executor;
use memlane_backends::interface::af_packet::{PacketSettings, PacketSocket};
use memlane_backends::interface::nic::{Here, Nic, NicState, Opener, XdpFiles};
use memlane_backends::interface::{self, Origin};
use memlane_backends::session::Session;

/// A NIC as an uplink, while it is used.
#[derive(Debug)]
pub(super) struct NicUplink {
    session: Session,
    state: Arc<Mutex<NicState>>,
}

impl NicUplink {
    /// Opens the sockets of the NIC of `config`, which may be missing. Its packets have at most `mtu` bytes.
    pub(super) fn open(config: &NicConfig, mtu: u16) -> Result<Nic, String> {
        let settings = PacketSettings { name: config.nic.clone(), netns: config.netns.clone() };
        let opener: Box<dyn Opener> = match Helper::get() {
            Some(helper) => Box::new(Asking { helper, segment: config.segment.clone() }),
            None => Box::new(Here),
        };
        Nic::new(&settings, opener, mtu)
    }

    /// Serves `port` by it.
    pub(super) fn run(executor: &Executor, network: &Arc<Network>, port: &Arc<Port>, nic: Nic) -> io::Result<Self> {
        let state = nic.state();
        let (session, _) = interface::run(executor, Arc::clone(network), port, Origin::Nic(nic), None)?;
        Ok(Self { session, state })
    }

    pub(super) fn state(&self) -> NicState {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn stop(self) {
        Session::stop(vec![self.session]);
    }
}

/// A NIC as an uplink.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct NicReport {
    /// Name of the interface.
    pub name: String,
    /// Kind of socket, "af-xdp" or "af-packet"; none while the interface is missing.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub socket: Option<String>,
}

/// Has the helper open the NIC of a segment.
#[derive(Debug)]
struct Asking {
    helper: &'static Helper,
    segment: String,
}

impl Opener for Asking {
    fn packet(&self, settings: &PacketSettings) -> Result<PacketSocket, String> {
        let mut files = self.helper.ask(Request::Packet, &self.segment)?;
        let file = files.pop().ok_or("the helper sent no socket")?;
        PacketSocket::taken_over(settings, file).map_err(|error| error.to_string())
    }

    fn xdp(&self, _: &PacketSettings) -> Result<XdpFiles, String> {
        let files = self.helper.ask(Request::Xdp, &self.segment)?;
        let [socket, frames, link] = files.try_into().map_err(|_| "the helper sent no AF_XDP socket")?;
        Ok(XdpFiles { socket, frames, link })
    }
}
