//! Frames that a rule about addresses (`anti-spoof`) refuses, and the key of the port that would allow each.

use std::net::IpAddr;

use memlane_virtq::drop_reason::DropReason;
use memlane_virtq::frame::MacAddress;

/// A refused frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The MAC address that it claims for its sender.
    pub mac: MacAddress,
    /// The IP address that it claims for its sender, if it shows one.
    pub ip: Option<IpAddr>,
}

impl Refused {
    /// The key of the port that could allow the frame, which was refused for `reason`; `is_own` tells if its MAC address is the port's `mac`.
    pub fn remedy_key(&self, reason: DropReason, is_own: bool) -> Option<&'static str> {
        match (reason, self.ip) {
            (DropReason::NotAServer, Some(_)) => Some("may-serve"),
            (DropReason::SpoofedSource, _) => Some("allowed"),
            (_, Some(_)) if is_own => Some("addresses"),
            (_, Some(_)) => Some("allowed"),
            (_, None) => None,
        }
    }

    /// The configuration of the port that would allow the frame: [`Self::remedy_key`] and its value.
    pub fn remedy(&self, reason: DropReason, is_own: bool) -> String {
        let Some(key) = self.remedy_key(reason, is_own) else { return "none: the frame hides its addresses".into() };
        let mac = self.mac;
        let value = match (key, self.ip) {
            ("may-serve", _) => "[\"dhcp\", \"ra\"]".into(),
            ("addresses", Some(ip)) => format!("[\"{ip}\"]"),
            (_, Some(ip)) if reason != DropReason::SpoofedSource => format!("[{{ mac = \"{mac}\", ip = \"{ip}\" }}]"),
            _ => format!("[{{ mac = \"{mac}\" }}]"),
        };
        format!("{key} = {value}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_that_would_allow_a_frame_is_told() {
        let (mac, ip) = (MacAddress::new([0, 0, 0x5e, 0, 1, 7]), "10.0.0.100".parse().ok());
        let refused = Refused { mac, ip };
        assert_eq!(
            refused.remedy(DropReason::SpoofedArp, false),
            "allowed = [{ mac = \"00:00:5e:00:01:07\", ip = \"10.0.0.100\" }]"
        );
        assert_eq!(refused.remedy(DropReason::SpoofedIp, true), "addresses = [\"10.0.0.100\"]");
        assert_eq!(refused.remedy(DropReason::SpoofedSource, false), "allowed = [{ mac = \"00:00:5e:00:01:07\" }]");
        assert_eq!(refused.remedy(DropReason::NotAServer, true), "may-serve = [\"dhcp\", \"ra\"]");
        assert_eq!(Refused { ip: None, ..refused }.remedy(DropReason::SpoofedIp, true), "none: the frame hides its addresses");
    }
}
