//! Forecasts: the request with a frame, and the response with its expected outcome.

use std::net::IpAddr;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::causes::PortCauses;
use super::packet::{PacketEnd, PacketWords};
use crate::explain::Forecast;
use crate::frame::MacAddress;
use crate::network::Network;
use crate::port::Port;
use crate::table::Kind;

/// MAC address of the guest of `port`: the configured one, or else that of its last frame; `None` before its first frame.
pub fn address_of_guest(port: &Port) -> Option<MacAddress> {
    let records = port.segment.table().records().into_iter();
    let own = records.filter(|record| record.port == port.id && record.kind != Kind::Told);
    own.max_by_key(|record| (record.kind == Kind::Pinned, record.confirmed)).map(|record| record.learned_address.address)
}

/// A frame that a port's guest may transmit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct WhyFrame {
    /// Destination: the name of a port, a MAC address or an IP address; the frame is a small one from the address of the port's guest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// The packet in words, as "tcp,dst=5432", "arp" or "icmp6".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packet: Option<String>,
    /// Or the whole Ethernet frame, in hexadecimal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frame: Option<String>,
}

/// Most bytes of a frame: what virtio-net's longest has.
const LONGEST_FRAME: usize = 65_550;

/// A key that is mistaken, and how.
type Mistake = (&'static str, String);

/// The frame of a question, and the port that it is for, if the question names one.
#[derive(Debug)]
pub(super) struct Asked {
    /// The bytes of the frame.
    pub(super) frame: Vec<u8>,
    /// The port of the destination.
    pub(super) to: Option<Arc<Port>>,
}

/// A machine, and its port if that is known.
#[derive(Debug)]
struct Machine {
    end: PacketEnd,
    port: Option<Arc<Port>>,
}

/// The port of a question, its network, and the MAC address that a guest of a port has before its first frame.
#[derive(Clone, Copy)]
pub(super) struct Asking<'a> {
    pub(super) network: &'a Network,
    pub(super) port: &'a Arc<Port>,
    pub(super) default_mac: &'a dyn Fn(&str) -> MacAddress,
}

impl Asking<'_> {
    fn guest(self, port: &Arc<Port>) -> Machine {
        let mac = address_of_guest(port).unwrap_or_else(|| (self.default_mac)(&port.name));
        Machine { end: self.with_addresses(mac, port), port: Some(Arc::clone(port)) }
    }

    /// The machine with this `mac` behind `port`, with the IP addresses that the switch knows.
    fn with_addresses(self, mac: MacAddress, port: &Port) -> PacketEnd {
        let mut end = PacketEnd { mac, v4: None, v6: None };
        for (key, entry) in port.segment.addresses().records(self.network.second()) {
            match key.ip {
                _ if entry.port != port.id || entry.mac.is_some_and(|known| known != mac) => {}
                IpAddr::V4(ip) => end.v4 = end.v4.or(Some(ip)),
                IpAddr::V6(ip) => end.v6 = end.v6.or(Some(ip)),
            }
        }
        end
    }

    /// The machine that `to` names.
    fn machine(self, to: &str) -> Result<Machine, Mistake> {
        if let Ok(mac) = to.parse::<MacAddress>() {
            let table = self.port.segment.table();
            let found = table.records().into_iter().find(|record| record.learned_address.address == mac);
            let port = found.and_then(|record| self.network.port(record.port));
            let end = port.as_ref().map_or(PacketEnd { mac, v4: None, v6: None }, |port| self.with_addresses(mac, port));
            return Ok(Machine { end, port });
        }
        if let Ok(ip) = to.parse::<IpAddr>() {
            return self.owner(ip);
        }
        let port = self.network.find(to).ok_or_else(|| {
            ("to", format!("to is \"{to}\"; it must be a port of the network, a MAC address, or an IP address, as \"10.0.0.2\""))
        })?;
        Ok(self.guest(&port))
    }

    fn owner(self, ip: IpAddr) -> Result<Machine, Mistake> {
        let records = self.port.segment.addresses().records(self.network.second());
        let entry = records.into_iter().find(|(key, _)| key.ip == ip).map(|(_, entry)| entry);
        let owner = entry.and_then(|entry| Some((entry, self.network.port(entry.port)?)));
        let Some((entry, port)) = owner else {
            let segment = &self.port.segment.name;
            return Err((
                "to",
                format!(
                    "no port of segment {segment} is known to have {ip}: name the port or its MAC address (memlane addresses lists known ones)"
                ),
            ));
        };
        let Machine { end, port } = self.guest(&port);
        let mac = entry.mac.unwrap_or(end.mac);
        let (v4, v6) = match ip {
            IpAddr::V4(ip) => (Some(ip), end.v6),
            IpAddr::V6(ip) => (end.v4, Some(ip)),
        };
        Ok(Machine { end: PacketEnd { mac, v4, v6 }, port })
    }

    /// The frame of `question`.
    ///
    /// # Errors
    /// The key that is mistaken, and how.
    pub(super) fn frame(self, question: &WhyFrame) -> Result<Asked, Mistake> {
        let own = self.guest(self.port).end;
        let to = || question.to.as_deref().map(|to| self.machine(to)).transpose();
        match (&question.packet, &question.frame) {
            (Some(words), None) => {
                let packet = PacketWords::parse(words).map_err(|wanted| ("packet", format!("packet is \"{words}\"; {wanted}")))?;
                let named = packet.destination().filter(|_| question.to.is_none() && !packet.is_broadcast());
                let machine = named.map_or_else(to, |ip| self.owner(ip).map(Some))?;
                if machine.is_none() && packet.destination().is_none() {
                    return Err(("to", "name the destination of the packet: --to PORT, or dst=ADDRESS in its words".into()));
                }
                let everybody = PacketEnd { mac: MacAddress::new([0xff; 6]), v4: None, v6: None };
                let end = machine.as_ref().map_or(everybody, |machine| machine.end);
                Ok(Asked { frame: packet.frame(own, end), to: machine.and_then(|machine| machine.port) })
            }
            (None, Some(text)) if question.to.is_none() => Ok(Asked { frame: from_hexadecimal(text)?, to: None }),
            (None, None) if question.to.is_some() => {
                let Some(Machine { end, port }) = to()? else { return Err(nothing_named()) };
                // A type for experiments (IEEE 802), and nothing in it.
                let mut frame = [end.mac.bytes().as_slice(), &own.mac.bytes(), &[0x88, 0xb5]].concat();
                frame.resize(60, 0);
                Ok(Asked { frame, to: port })
            }
            _ => Err(nothing_named()),
        }
    }
}

fn nothing_named() -> Mistake {
    ("to", "name the destination (to), with a packet in words or without, or the whole frame (frame)".into())
}

fn from_hexadecimal(text: &str) -> Result<Vec<u8>, Mistake> {
    let digits: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace() && *byte != b':').collect();
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let byte = |pair: &[u8]| Some(digit(pair[0])? << 4 | digit(*pair.get(1)?)?);
    let frame: Option<Vec<u8>> = digits.chunks(2).map(byte).collect();
    frame
        .filter(|frame| frame.len() <= LONGEST_FRAME)
        .ok_or_else(|| ("frame", format!("frame must be an even number of hexadecimal digits, of at most {LONGEST_FRAME} bytes")))
}

/// The expected outcome of a frame.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Why {
    /// In one sentence.
    pub outcome: String,
    /// How that follows.
    #[serde(flatten)]
    pub forecast: Forecast,
    /// Causes that keep the port of a named destination from its work.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub receiver: Option<PortCauses>,
}

impl Why {
    /// Of a `forecast`, with the causes of the port of a named destination.
    pub(super) fn new(forecast: Forecast, receiver: Option<PortCauses>) -> Self {
        let obstacle = receiver.as_ref().filter(|causes| forecast.receivers.contains(&causes.port));
        let obstacle =
            obstacle.and_then(|causes| Some((causes, causes.causes.iter().find(|cause| cause.cause.keeps_frames_out())?)));
        let outcome = match obstacle {
            Some((causes, cause)) => {
                format!("{}; but {} takes no frames at this moment: {}", forecast.outcome(), causes.port, cause.text)
            }
            None => forecast.outcome(),
        };
        Self { outcome, forecast, receiver }
    }

    /// Of a frame to a port of another segment.
    pub(super) fn apart(from: &Port, to: &Port, receiver: Option<PortCauses>) -> Self {
        let outcome = format!(
            "would not reach {}: it is on segment {}, and {} on segment {}",
            to.name, to.segment.name, from.name, from.segment.name
        );
        let forecast = Forecast::of_step("frames pass between segments by a router alone: a guest with a port on both");
        Self { outcome, forecast, receiver }
    }
}
