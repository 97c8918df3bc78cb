//! Leases that a DHCP server acknowledges (RFC 2131, section 4.3.1): the address, its machine, and the time.

#![expect(clippy::indexing_slicing, reason = "offsets below the length at which the message was split")]

use std::net::Ipv4Addr;

use crate::frame::{ETHERNET, MacAddress, TYPE_IPV4, UDP, network_type};
use crate::headers::{Fragment, Ipv4, number_at};
use crate::packet::Packet;

/// Ports of servers and clients (RFC 2131, section 4.1).
const SERVER: u16 = 67;
pub(crate) const CLIENT: u16 = 68;
/// Bytes before the options: the fixed part and the magic cookie (section 3).
const FIXED: usize = 240;
const COOKIE: [u8; 4] = [99, 130, 83, 99];
/// Most bytes of options that are read: all of a message that every client accepts (section 2) but its fixed part.
const OPTIONS: usize = 312;
const UDP_HEADER: usize = 8;
/// Options (RFC 2132, section 9): padding, end, lease time, message type; and the type of an acknowledgement.
const PAD: u8 = 0;
const END: u8 = 255;
const LEASE_TIME: u8 = 51;
const MESSAGE_TYPE: u8 = 53;
const ACK: u8 = 5;

/// A lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The address.
    pub ip: Ipv4Addr,
    /// The MAC address of its machine.
    pub mac: MacAddress,
    /// Time of the lease in seconds; the greatest number has no end.
    pub seconds: u32,
}

/// Byte of the frame that begins with `start` at which a DHCP server's message begins, if there is one.
fn message_at(start: &[u8]) -> Option<usize> {
    let (kind, at) = network_type(start)?;
    let bytes = start.get(at..).filter(|_| kind == TYPE_IPV4 && at >= ETHERNET)?;
    let packet = Ipv4::parse(bytes).filter(|packet| packet.protocol == UDP && packet.fragment == Fragment::Whole)?;
    let ports = (number_at(bytes, packet.length)?, number_at(bytes, packet.length + 2)?);
    (ports == (SERVER, CLIENT)).then_some(at + packet.length + UDP_HEADER)
}

impl Lease {
    /// The lease that a whole `frame` acknowledges, if it does.
    pub fn of_frame(frame: &[u8]) -> Option<Self> {
        Self::parse(frame.get(message_at(frame)?..)?)
    }

    /// The lease that `packet` acknowledges, if it does.
    pub(crate) fn of(packet: &Packet) -> Option<Self> {
        let at = message_at(packet.start())?;
        let mut message = [0; FIXED + OPTIONS];
        let length = packet.read(at as u32, &mut message);
        Self::parse(message.get(..length)?)
    }

    /// The lease in a DHCP message.
    fn parse(message: &[u8]) -> Option<Self> {
        const REPLY_TO_ETHERNET: [u8; 3] = [2, 1, 6];
        let (fixed, options) = message.split_at_checked(FIXED)?;
        let is_reply = fixed[..3] == REPLY_TO_ETHERNET && fixed[236..] == COOKIE;
        let ip = Ipv4Addr::from(*fixed[16..].first_chunk::<4>()?);
        let mac = MacAddress::new(*fixed[28..].first_chunk()?);
        let (mut seconds, mut is_ack) = (u32::MAX, false);
        for (option, value) in (Options { rest: options }) {
            match (option, value) {
                (MESSAGE_TYPE, [kind]) => is_ack = *kind == ACK,
                (LEASE_TIME, &[a, b, c, d]) => seconds = u32::from_be_bytes([a, b, c, d]),
                _ => {}
            }
        }
        // One that answers DHCPINFORM gives no address (section 4.3.5).
        let is_good = is_reply && is_ack && !ip.is_unspecified() && !ip.is_multicast() && !ip.is_broadcast() && mac.is_unicast();
        is_good.then_some(Self { ip, mac, seconds })
    }
}

/// The options of a message, each with its value: RFC 2132, section 2.
struct Options<'m> {
    rest: &'m [u8],
}

impl<'m> Iterator for Options<'m> {
    type Item = (u8, &'m [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        while let [PAD, rest @ ..] = self.rest {
            self.rest = rest;
        }
        let [option, length, rest @ ..] = self.rest else { return None };
        let (value, rest) = rest.split_at_checked((*length).into()).filter(|_| *option != END)?;
        self.rest = rest;
        Some((*option, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A DHCPACK of 10.0.0.7 for 02:00:00:00:00:01, with these options behind its type.
    fn message(kind: u8, options: &[u8]) -> Vec<u8> {
        let mut message = vec![0; FIXED];
        message[..3].copy_from_slice(&[2, 1, 6]);
        message[16..20].copy_from_slice(&[10, 0, 0, 7]);
        message[28..34].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
        message[236..].copy_from_slice(&COOKIE);
        [&message[..], &[MESSAGE_TYPE, 1, kind], options].concat()
    }

    fn lease() -> Lease {
        Lease { ip: Ipv4Addr::new(10, 0, 0, 7), mac: MacAddress::new([2, 0, 0, 0, 0, 1]), seconds: 3600 }
    }

    #[test]
    fn an_acknowledgement_has_address_machine_and_time() {
        let time = [LEASE_TIME, 4, 0, 0, 14, 16];
        assert_eq!(Lease::parse(&message(ACK, &time)), Some(lease()));
        assert_eq!(
            Lease::parse(&message(ACK, &[&[PAD, PAD][..], &time, &[END, LEASE_TIME, 4, 0, 0, 0, 1]].concat())),
            Some(lease())
        );
        assert_eq!(Lease::parse(&message(ACK, &[])), Some(Lease { seconds: u32::MAX, ..lease() }));
        assert_eq!(Lease::parse(&message(2, &time)), None, "an offer");
        assert_eq!(Lease::parse(&message(6, &time)), None, "a refusal");
        let changed = |at: usize, byte: u8| {
            let mut message = message(ACK, &time);
            message[at] = byte;
            Lease::parse(&message)
        };
        for (at, byte) in [(0, 1), (1, 6), (2, 8), (236, 0), (16, 224), (28, 1)] {
            assert_eq!(changed(at, byte), None, "byte {at}");
        }
        assert_eq!(Lease::parse(&message(ACK, &[LEASE_TIME, 200, 1])), Some(Lease { seconds: u32::MAX, ..lease() }), "cut off");
    }

    #[test]
    fn any_message_is_read_without_a_panic() {
        bolero::check!().with_type::<(Vec<u8>, Vec<u8>)>().for_each(|(options, frame)| {
            let _ = (Lease::parse(&message(ACK, options)), Lease::parse(options), message_at(frame));
        });
    }
}
