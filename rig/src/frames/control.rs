//! ARP, neighbour discovery and ping, as far as a toy guest needs them to be found and to answer.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use etherparse::{
    ArpEthIpv4Packet, ArpOperation, Icmpv4Slice, Icmpv4Type, Icmpv6Slice, Icmpv6Type, NetSlice, PacketBuilder, SlicedPacket,
    TransportSlice,
};

use super::{BROADCAST, ETHERNET_BYTES, Mac, SHORTEST_FRAME};

/// Addresses of the host that answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// Ethernet address.
    pub mac: Mac,
    /// IPv4 address.
    pub v4: Ipv4Addr,
    /// IPv6 address.
    pub v6: Ipv6Addr,
}

/// Kind of an answered question, to be shown to people.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Question {
    /// ARP request for our IPv4 address.
    Arp,
    /// Neighbour solicitation for our IPv6 address.
    Neighbour,
    /// Echo request from this address.
    Ping(IpAddr),
}

/// An ARP request for `wanted`.
pub fn arp_request(from: Mac, source: Ipv4Addr, wanted: Ipv4Addr) -> Vec<u8> {
    arp(BROADCAST, ArpOperation::REQUEST, (from, source), ([0; 6], wanted))
}

/// An announcement of one's own address (gratuitous ARP), from which a switch learns where `mac` is.
pub fn announcement(mac: Mac, ip: Ipv4Addr) -> Vec<u8> {
    arp(BROADCAST, ArpOperation::REQUEST, (mac, ip), ([0; 6], ip))
}

/// A broadcast frame of 60 bytes that tells its sender's MAC address and nothing else, with the EtherType for local experiments.
pub fn hello(mac: Mac) -> Vec<u8> {
    let mut frame = vec![0; SHORTEST_FRAME];
    frame[..6].fill(0xff);
    frame[6..12].copy_from_slice(&mac);
    frame[12..ETHERNET_BYTES].copy_from_slice(&0x88b5u16.to_be_bytes());
    frame
}

/// A ping (IPv4).
pub fn ping(from: (Mac, Ipv4Addr), to: (Mac, Ipv4Addr), number: u16, payload: &[u8]) -> Vec<u8> {
    let builder =
        PacketBuilder::ethernet2(from.0, to.0).ipv4(from.1.octets(), to.1.octets(), 64).icmpv4_echo_request(0x6d6c, number);
    let mut frame = Vec::new();
    builder.write(&mut frame, payload).expect("a short payload");
    padded(frame)
}

/// The answer of `me` to a frame, if that asks anything.
pub fn answer(me: &Identity, frame: &[u8]) -> Option<(Question, Vec<u8>)> {
    let sliced = SlicedPacket::from_ethernet(frame).ok()?;
    let asker: Mac = frame.get(6..12)?.try_into().ok()?;
    match (sliced.net.as_ref()?, sliced.transport.as_ref()) {
        (NetSlice::Arp(packet), _) => {
            let packet: ArpEthIpv4Packet = packet.to_packet().try_eth_ipv4().ok()?;
            let asked = packet.operation == ArpOperation::REQUEST && packet.target_ipv4 == me.v4.octets();
            let target = (asker, packet.sender_ipv4.into());
            asked.then(|| (Question::Arp, arp(asker, ArpOperation::REPLY, (me.mac, me.v4), target)))
        }
        (NetSlice::Ipv4(ip), Some(TransportSlice::Icmpv4(icmp))) => {
            let (from, to) = (ip.header().source_addr(), ip.header().destination_addr());
            answer_ping4(me, asker, from, to, icmp)
        }
        (NetSlice::Ipv6(ip), Some(TransportSlice::Icmpv6(icmp))) => {
            let (from, to) = (ip.header().source_addr(), ip.header().destination_addr());
            answer_icmp6(me, asker, from, to, icmp)
        }
        _ => None,
    }
}

/// An answer to one of our questions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The sender's MAC address.
    Arp(Mac),
    /// I am there; the ping's number.
    Ping(u16),
}

/// The answer of `from` in this frame, if there is one.
pub fn answered(frame: &[u8], from: Ipv4Addr) -> Option<Answer> {
    let sliced = SlicedPacket::from_ethernet(frame).ok()?;
    match (sliced.net.as_ref()?, sliced.transport.as_ref()) {
        (NetSlice::Arp(packet), _) => {
            let packet: ArpEthIpv4Packet = packet.to_packet().try_eth_ipv4().ok()?;
            let ours = packet.operation == ArpOperation::REPLY && packet.sender_ipv4 == from.octets();
            ours.then_some(Answer::Arp(packet.sender_mac))
        }
        (NetSlice::Ipv4(ip), Some(TransportSlice::Icmpv4(icmp))) if ip.header().source_addr() == from => match icmp.icmp_type() {
            Icmpv4Type::EchoReply(echo) => Some(Answer::Ping(echo.seq)),
            _ => None,
        },
        _ => None,
    }
}

fn answer_ping4(me: &Identity, asker: Mac, from: Ipv4Addr, to: Ipv4Addr, icmp: &Icmpv4Slice<'_>) -> Option<(Question, Vec<u8>)> {
    let Icmpv4Type::EchoRequest(echo) = icmp.icmp_type() else {
        return None;
    };
    if to != me.v4 {
        return None;
    }
    let builder =
        PacketBuilder::ethernet2(me.mac, asker).ipv4(me.v4.octets(), from.octets(), 64).icmpv4_echo_reply(echo.id, echo.seq);
    let mut frame = Vec::new();
    builder.write(&mut frame, icmp.payload()).ok()?;
    Some((Question::Ping(from.into()), padded(frame)))
}

fn answer_icmp6(me: &Identity, asker: Mac, from: Ipv6Addr, to: Ipv6Addr, icmp: &Icmpv6Slice<'_>) -> Option<(Question, Vec<u8>)> {
    let builder = PacketBuilder::ethernet2(me.mac, asker);
    let mut frame = Vec::new();
    match icmp.icmp_type() {
        Icmpv6Type::EchoRequest(echo) if to == me.v6 => {
            let builder = builder.ipv6(me.v6.octets(), from.octets(), 64).icmpv6_echo_reply(echo.id, echo.seq);
            builder.write(&mut frame, icmp.payload()).ok()?;
            Some((Question::Ping(from.into()), frame))
        }
        // RFC 4861 section 4.3: the target is the first 16 bytes of the payload.
        Icmpv6Type::NeighborSolicitation if icmp.payload().get(..16)? == me.v6.octets() => {
            // Section 4.4: solicited and override; then our address, and our MAC as target link-layer address option.
            let advertised = [&me.v6.octets()[..], &[2, 1], &me.mac].concat();
            let builder = builder.ipv6(me.v6.octets(), from.octets(), 255).icmpv6_raw(136, 0, [0x60, 0, 0, 0]);
            builder.write(&mut frame, &advertised).ok()?;
            Some((Question::Neighbour, frame))
        }
        _ => None,
    }
}

fn arp(to: Mac, operation: ArpOperation, sender: (Mac, Ipv4Addr), target: (Mac, Ipv4Addr)) -> Vec<u8> {
    let packet = ArpEthIpv4Packet {
        operation,
        sender_mac: sender.0,
        sender_ipv4: sender.1.octets(),
        target_mac: target.0,
        target_ipv4: target.1.octets(),
    };
    let mut frame = Vec::new();
    PacketBuilder::ethernet2(sender.0, to).arp(packet.into()).write(&mut frame).expect("writing to memory");
    padded(frame)
}

fn padded(mut frame: Vec<u8>) -> Vec<u8> {
    frame.resize(frame.len().max(SHORTEST_FRAME), 0);
    frame
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frames::{NetHeader, check};

    const ME: Identity =
        Identity { mac: [2, 0, 0, 0, 0, 9], v4: Ipv4Addr::new(10, 0, 0, 9), v6: Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 9) };
    const YOU: Mac = [2, 0, 0, 0, 0, 1];

    #[test]
    fn arp_and_ping_are_answered_soundly() {
        let asked = arp_request(YOU, Ipv4Addr::new(10, 0, 0, 1), ME.v4);
        let (question, reply) = answer(&ME, &asked).unwrap();
        assert_eq!((question, &reply[..12]), (Question::Arp, &[YOU, ME.mac].concat()[..]));
        let asked = ping((YOU, Ipv4Addr::new(10, 0, 0, 1)), (ME.mac, ME.v4), 3, b"hello there");
        let (question, reply) = answer(&ME, &asked).unwrap();
        assert_eq!(question, Question::Ping(Ipv4Addr::new(10, 0, 0, 1).into()));
        assert!(check(&NetHeader::default(), &reply).is_ok());
        assert!(reply.windows(11).any(|part| part == b"hello there"));
        assert_eq!(answered(&reply, ME.v4), Some(Answer::Ping(3)));
        let (_, reply) = answer(&ME, &arp_request(YOU, Ipv4Addr::new(10, 0, 0, 1), ME.v4)).unwrap();
        assert_eq!(answered(&reply, ME.v4), Some(Answer::Arp(ME.mac)));
    }

    #[test]
    fn neighbour_solicitation_is_answered() {
        let from = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
        let builder = PacketBuilder::ethernet2(YOU, [0x33, 0x33, 0xff, 0, 0, 9])
            .ipv6(from.octets(), [0xff; 16], 255)
            .icmpv6_raw(135, 0, [0; 4]);
        let mut asked = Vec::new();
        builder.write(&mut asked, &ME.v6.octets()).unwrap();
        let (question, reply) = answer(&ME, &asked).unwrap();
        assert_eq!(question, Question::Neighbour);
        assert!(reply.ends_with(&ME.mac));
    }

    #[test]
    fn what_is_meant_for_others_is_not_answered() {
        let other = Ipv4Addr::new(10, 0, 0, 77);
        assert!(answer(&ME, &arp_request(YOU, other, other)).is_none());
        assert!(answer(&ME, &ping((YOU, other), (ME.mac, other), 1, b"")).is_none());
        assert!(answer(&ME, &hello(YOU)).is_none());
        assert!(answer(&ME, &[0; 5]).is_none());
    }
}
