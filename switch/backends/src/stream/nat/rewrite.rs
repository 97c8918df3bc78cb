//! IPv4 frames whose addresses and ports are rewritten, with checksums that change by increments (RFC 1624).

use std::net::Ipv4Addr;

use memlane_dataplane::headers::{Fragment, Ipv4, number_at};

use super::ICMP;
use super::flows::RemoteSide;
use crate::frame::{ETHERNET, MacAddress, TCP, UDP};
use crate::offload::checksum;

/// Offset of the checksum in an IPv4, TCP, UDP and ICMP header.
const OF_IP: usize = 10;
const OF_TCP: usize = 16;
const OF_UDP: usize = 6;
const OF_ICMP: usize = 2;
/// Offsets of the addresses in an IPv4 header.
const SOURCE: usize = 12;
const DESTINATION: usize = 16;
/// Bytes before the quoted packet of an ICMP error (RFC 792).
const BEFORE_QUOTED: usize = 8;

/// An ICMP message with an identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Echo {
    Request,
    Reply,
}

/// TCP's part in the life of a flow; all zeroes for other protocols.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tcp {
    flags: u8,
    /// Sequence number behind the segment.
    pub next: u32,
}

impl Tcp {
    const FIN: u8 = 1;
    const SYN: u8 = 2;
    const RST: u8 = 4;
    const ACK: u8 = 16;

    /// Whether the segment opens a connection.
    pub(super) fn opens(&self) -> bool {
        self.flags & (Self::SYN | Self::ACK | Self::RST) == Self::SYN
    }

    pub(super) fn ends(&self) -> bool {
        self.flags & Self::FIN != 0
    }

    pub(super) fn resets(&self) -> bool {
        self.flags & Self::RST != 0
    }
}

/// An IPv4 packet that is no fragment, with the ports of its transport; an echo message has its identifier in both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ip {
    /// Offset of the IPv4 header in the frame.
    at: usize,
    /// Offset of the transport's header.
    transport: usize,
    pub source: Ipv4Addr,
    pub destination: Ipv4Addr,
    pub protocol: u8,
    pub source_port: u16,
    pub destination_port: u16,
    pub echo: Option<Echo>,
    pub tcp: Tcp,
}

impl Ip {
    /// The packet in `frame`; `None` for a fragment, and where a header is cut off.
    pub(super) fn parse(frame: &[u8]) -> Option<Self> {
        Self::at(frame, ETHERNET, true)
    }

    /// The packet at byte `at`. Of a quoted one only 8 bytes of the transport are there for certain.
    fn at(frame: &[u8], at: usize, is_whole: bool) -> Option<Self> {
        let bytes = frame.get(at..)?;
        let ip = Ipv4::parse(bytes).filter(|ip| ip.fragment == Fragment::Whole)?;
        let total = usize::from(number_at(bytes, 2)?);
        if is_whole && (total > bytes.len() || total < ip.length) {
            return None;
        }
        let transport = bytes.get(ip.length..)?;
        let length = if is_whole { total - ip.length } else { transport.len() };
        let least = if ip.protocol == TCP && is_whole { 20 } else { 8 };
        if length < least {
            return None;
        }
        let ports = |from, to| Some((number_at(transport, from)?, number_at(transport, to)?));
        let (mut echo, mut tcp) = (None, Tcp::default());
        let (source_port, destination_port) = match ip.protocol {
            TCP => {
                if is_whole {
                    tcp = tcp_of(transport, length)?;
                }
                ports(0, 2)?
            }
            UDP => ports(0, 2)?,
            ICMP => {
                echo = match transport.first() {
                    Some(8) => Some(Echo::Request),
                    Some(0) => Some(Echo::Reply),
                    _ => None,
                };
                ports(4, 4)?
            }
            _ => return None,
        };
        let Ipv4 { source, destination, protocol, length, .. } = ip;
        Some(Self { at, transport: at + length, source, destination, protocol, source_port, destination_port, echo, tcp })
    }

    /// The packet that an ICMP error quotes: destination unreachable, time exceeded, or parameter problem.
    pub(super) fn quoted(&self, frame: &[u8]) -> Option<Self> {
        let is_error = self.protocol == ICMP && matches!(frame.get(self.transport), Some(3 | 11 | 12));
        if is_error { Self::at(frame, self.transport + BEFORE_QUOTED, false) } else { None }
    }

    pub(super) fn replace_source(&self, frame: &mut [u8], address: Ipv4Addr, port: u16) {
        let at = if self.protocol == ICMP { 4 } else { 0 };
        self.replace(frame, SOURCE, address, (at, port));
    }

    pub(super) fn replace_destination(&self, frame: &mut [u8], address: Ipv4Addr, port: u16) {
        let at = if self.protocol == ICMP { 4 } else { 2 };
        self.replace(frame, DESTINATION, address, (at, port));
    }

    fn replace(&self, frame: &mut [u8], address_at: usize, address: Ipv4Addr, (port_at, port): (usize, u16)) {
        let of_address = set(frame, self.at + address_at, address.octets());
        adjust(frame, self.at + OF_IP, of_address, false);
        let of_port = set(frame, self.transport + port_at, port.to_be_bytes());
        match self.protocol {
            TCP => adjust(frame, self.transport + OF_TCP, of_address + of_port, false),
            UDP => adjust(frame, self.transport + OF_UDP, of_address + of_port, true),
            // Without a pseudo-header.
            _ => adjust(frame, self.transport + OF_ICMP, of_port, false),
        }
    }

    /// Replaces the destination of an ICMP error, and computes its checksum, as the quoted packet has changed.
    pub(super) fn replace_destination_of_error(&self, frame: &mut [u8], address: Ipv4Addr) {
        let change = set(frame, self.at + DESTINATION, address.octets());
        adjust(frame, self.at + OF_IP, change, false);
        let total = number_at(frame, self.at + 2).map_or(0, usize::from);
        set(frame, self.transport + OF_ICMP, [0; 2]);
        if let Some(message) = frame.get(self.transport..self.at + total) {
            let sum = checksum::over(&[message]);
            set(frame, self.transport + OF_ICMP, sum);
        }
    }

    /// Replaces the MAC addresses; the destination of a frame to passt stays.
    pub(super) fn replace_links(&self, frame: &mut [u8], destination: Option<[u8; 6]>, source: [u8; 6]) {
        if let Some(destination) = destination {
            set(frame, 0, destination);
        }
        set(frame, 6, source);
    }
}

fn tcp_of(segment: &[u8], length: usize) -> Option<Tcp> {
    let (header, flags) = (usize::from(segment.get(12)? >> 4) * 4, *segment.get(13)?);
    if header < 20 || header > length {
        return None;
    }
    let [high, low] = [number_at(segment, 4)?, number_at(segment, 6)?].map(u32::from);
    let occupied = (length - header) as u32 + u32::from(flags & Tcp::SYN != 0) + u32::from(flags & Tcp::FIN != 0);
    Some(Tcp { flags, next: (high << 16 | low).wrapping_add(occupied) })
}

/// Sets bytes; returns the change of the ones' complement sum over them.
fn set<const N: usize>(frame: &mut [u8], at: usize, new: [u8; N]) -> u32 {
    let Some(field) = frame.get_mut(at..at + N) else { return 0 };
    let mut change = 0;
    for at in (0..N).step_by(2) {
        change += u32::from(!number_at(field, at).unwrap_or_default()) + u32::from(number_at(&new, at).unwrap_or_default());
    }
    field.copy_from_slice(&new);
    change
}

/// Adds `change` to the checksum at byte `at`. A UDP checksum of zero is none, and one that becomes zero is sent as its complement
/// (RFC 768).
fn adjust(frame: &mut [u8], at: usize, change: u32, is_udp: bool) {
    let Some(old) = number_at(frame, at) else { return };
    if is_udp && old == 0 {
        return;
    }
    let mut sum = u32::from(!old) + change;
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    let new = !(sum as u16);
    let new = if is_udp && new == 0 { u16::MAX } else { new };
    set(frame, at, new.to_be_bytes());
}

/// The source of a frame.
pub(super) fn source(frame: &[u8]) -> Option<MacAddress> {
    frame.get(6..)?.first_chunk().copied().map(MacAddress::new)
}

/// Replaces the sender's MAC address of an ARP packet and of its frame.
pub(super) fn arp_sender(frame: &mut [u8], mac: [u8; 6]) {
    set(frame, 6, mac);
    set(frame, ETHERNET + 8, mac);
}

/// A frame that resets the connection of passt's guest, at `own`, with `remote` (RFC 9293, section 3.10.7).
pub(super) fn reset(mac: [u8; 6], own: (Ipv4Addr, u16), remote: RemoteSide, sequence: u32) -> Vec<u8> {
    let mut frame = Vec::with_capacity(ETHERNET + 40);
    frame.extend([0xff; 6]);
    frame.extend(mac);
    frame.extend([8, 0]);
    frame.extend([0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, TCP, 0, 0]);
    frame.extend(own.0.octets());
    frame.extend(remote.0.octets());
    let of_ip = checksum::over(&[frame.get(ETHERNET..).unwrap_or_default()]);
    set(&mut frame, ETHERNET + OF_IP, of_ip);
    let mut segment = Vec::with_capacity(20);
    segment.extend(own.1.to_be_bytes());
    segment.extend(remote.1.to_be_bytes());
    segment.extend(sequence.to_be_bytes());
    segment.extend([0, 0, 0, 0, 0x50, Tcp::RST, 0, 0, 0, 0, 0, 0]);
    let sum = checksum::over(&[&own.0.octets(), &remote.0.octets(), &[0, TCP, 0, 20], &segment]);
    set(&mut segment, OF_TCP, sum);
    frame.extend(segment);
    frame
}
