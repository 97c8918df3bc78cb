//! TCP and UDP checksums of frames that arrive without a virtio-net header. A sender that relies on checksum offload, as guests
//! of libkrun do behind its passt interface, cannot say so without this header; but its checksum field holds the sum of the pseudo-header.
//! Such partial checksums are completed by default, before the verdict. A right checksum that happens to equal that sum stays as it is by that.
//! Depending on the configuration, all checksums are computed instead, or the partial ones are counted and reported.

#![expect(clippy::indexing_slicing, reason = "a field that a parser found within the frame")]

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::frame::{Layers, TCP, UDP};
use crate::offload::checksum::{self, Sum};
use crate::port::Port;

/// Incomplete checksums in a row that are no coincidence: a correct checksum equals the pseudo-header's sum once in 65536 frames.
const NO_ACCIDENT: u8 = 4;
/// The routing header of IPv6: behind it, the pseudo-header holds the final destination, not that of the IPv6 header (RFC 8200,
/// section 8.1).
const ROUTING: u8 = 43;
/// The advice to the operator in the log.
const ADVICE: &str = "the other side of its stream leaves checksums to the device, so receivers drop its TCP and UDP frames; \
                      set checksums = \"partial\" for this port";

/// Treatment of the checksums of arriving frames (configuration key `checksums`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Checksums {
    /// Partial checksums, fields that equal the sum of the pseudo-header, are completed; others are left as they are.
    #[default]
    Partial,
    /// Checksums are left as they are.
    Keep,
    /// TCP and UDP checksums are computed.
    Complete,
}

/// Checksum state of one connection.
#[derive(Debug)]
pub(super) struct ChecksumTracker {
    checksums: Checksums,
    port: Arc<Port>,
    in_a_row: u8,
}

impl ChecksumTracker {
    pub(super) fn new(checksums: Checksums, port: Arc<Port>) -> Self {
        Self { checksums, port, in_a_row: 0 }
    }

    /// Completes the checksum of `frame`, or counts it if it was left undone.
    pub(super) fn look_after(&mut self, frame: &mut [u8]) {
        let Some(transport) = Transport::find(frame) else { return };
        if self.checksums == Checksums::Complete {
            transport.complete(frame);
            return;
        }
        if !transport.is_undone(frame) {
            self.in_a_row = 0;
            return;
        }
        if self.checksums == Checksums::Partial {
            transport.complete(frame);
            return;
        }
        self.port.note_undone_checksum();
        self.in_a_row = self.in_a_row.saturating_add(1);
        if self.in_a_row == NO_ACCIDENT {
            self.port.set_advice(Some(ADVICE));
        }
    }
}

/// Start of the checksummed bytes of `frame`, and offset of the checksum from there, if its sender left it to the device.
pub(crate) fn undone(frame: &[u8]) -> Option<(u16, u16)> {
    let transport = Transport::find(frame).filter(|transport| transport.is_undone(frame))?;
    Some((transport.start as u16, (transport.field - transport.start) as u16))
}

/// The TCP or UDP part of an IP frame.
#[derive(Clone, Copy, Debug)]
struct Transport {
    start: usize,
    /// Offset of its checksum.
    field: usize,
    /// End of the IP packet; padding may follow.
    end: usize,
    /// Sum of the pseudo-header, which stands in the field if the sender left the checksum to offload.
    pseudo: [u8; 2],
}

impl Transport {
    /// The transport part of `frame`; `None` without one, in fragments, behind a routing header, and for UDP without a checksum
    /// (RFC 768).
    fn find(frame: &[u8]) -> Option<Self> {
        let layers = Layers::find(frame)?;
        let word = |at: usize| Some(usize::from(u16::from_be_bytes(*frame.get(at..)?.first_chunk()?)));
        let (network, start) = (layers.network, layers.transport);
        let (addresses, end) = match layers.version {
            4 => (frame.get(network + 12..network + 20)?, network + word(network + 2)?),
            _ if is_routed(frame, &layers) => return None,
            _ => (frame.get(network + 8..network + 40)?, network + 40 + word(network + 4)?),
        };
        let field = start
            + match layers.protocol {
                TCP => 16,
                UDP => 6,
                _ => return None,
            };
        if end > frame.len() || field + 2 > end {
            return None;
        }
        if layers.protocol == UDP && layers.version == 4 && word(field)? == 0 {
            return None;
        }
        let mut sum = Sum::default();
        sum.add(addresses);
        sum.add(&((end - start) as u32).to_be_bytes());
        sum.add(&u32::from(layers.protocol).to_be_bytes());
        Some(Self { start, field, end, pseudo: sum.partial() })
    }

    fn is_undone(&self, frame: &[u8]) -> bool {
        frame[self.field..self.field + 2] == self.pseudo
    }

    fn complete(&self, frame: &mut [u8]) {
        frame[self.field..self.field + 2].copy_from_slice(&self.pseudo);
        checksum::complete(&mut frame[..self.end], self.start, self.field);
    }
}

/// Whether one of the extension headers before the transport is a routing header. Each is a multiple of 8 bytes, so the walk ends.
fn is_routed(frame: &[u8], layers: &Layers) -> bool {
    let mut at = layers.network + 40;
    let mut kind = frame[layers.network + 6];
    while at < layers.transport {
        if kind == ROUTING {
            return true;
        }
        let Some([next, length]) = frame.get(at..).and_then(<[u8]>::first_chunk) else { return true };
        (kind, at) = (*next, at + 8 + 8 * usize::from(*length));
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;
    use crate::shared::Shared;
    use memlane_rig::frames::{Host, Packet};

    fn tracker(checksums: Checksums) -> ChecksumTracker {
        let shared = Arc::new(Shared::new(1, 7, Settings::default()));
        ChecksumTracker::new(checksums, Port::row(&shared, 1).remove(0))
    }

    fn packets() -> Vec<Packet> {
        let payloads = [0, 1, 9, 1400].map(|length| vec![0xa5; length]);
        let hosts = [(Host::v4(1), Host::v4(2)), (Host::v6(1), Host::v6(2))];
        let each = |payload: &Vec<u8>| {
            hosts.map(|(from, to)| [Packet::tcp(from, to, 7, payload.clone()), Packet::udp(from.port(9), to, payload.clone())])
        };
        payloads.iter().flat_map(each).flatten().collect()
    }

    #[test]
    fn what_was_left_undone_is_done_and_what_was_done_stays() {
        for packet in packets() {
            let whole = packet.frame();
            for mut frame in [packet.partial().1, whole.clone()] {
                // Ethernet padding is no part of the IP packet.
                frame.extend([0x11; 7]);
                tracker(Checksums::Complete).look_after(&mut frame);
                assert!(frame[..whole.len()] == whole && frame[whole.len()..] == [0x11; 7]);
            }
        }
    }

    /// RFC 9293, section 3.1, and RFC 768: the ones' complement of the sum over pseudo-header and packet; a wrong one is the receiver's to find.
    #[test]
    fn partial_checksums_are_completed_by_default_and_others_stay() {
        let mut tracker = tracker(Checksums::default());
        let port = Arc::clone(&tracker.port);
        for packet in packets() {
            let whole = packet.frame();
            let mut spoilt = whole.clone();
            *spoilt.last_mut().unwrap() ^= 0x40;
            for (sent, wanted) in [(packet.partial().1, &whole), (whole.clone(), &whole), (spoilt.clone(), &spoilt)] {
                let mut frame = sent;
                tracker.look_after(&mut frame);
                assert!(frame == *wanted, "{packet:?}");
            }
        }
        assert_eq!((port.totals().undone_checksums, port.advice()), (0, None));
    }

    /// A payload with a sum of zero makes the right checksum the complement of the pseudo-header's sum; one that makes it equal stays too.
    #[test]
    fn a_right_checksum_that_equals_the_sum_of_the_pseudo_header_stays() {
        let found = (0..=u16::MAX).find_map(|number| {
            let frame = Packet::udp(Host::v4(1), Host::v4(2), number.to_be_bytes()).frame();
            Transport::find(&frame).filter(|transport| transport.is_undone(&frame)).map(|_| frame)
        });
        let frame = found.expect("one of 65536 sums");
        let mut copy = frame.clone();
        tracker(Checksums::Partial).look_after(&mut copy);
        assert!(copy == frame);
    }

    #[test]
    fn what_was_left_undone_is_counted_and_left() {
        let mut tracker = tracker(Checksums::Keep);
        let port = Arc::clone(&tracker.port);
        for packet in packets() {
            let mut frame = packet.frame();
            tracker.look_after(&mut frame);
            assert_eq!((frame, port.totals().undone_checksums), (packet.frame(), 0));
        }
        for (count, packet) in (1..).zip(packets()) {
            let mut frame = packet.partial().1;
            tracker.look_after(&mut frame);
            assert_eq!((frame, port.totals().undone_checksums), (packet.partial().1, count));
            assert_eq!(port.advice().is_some(), count >= 4);
        }
    }

    #[test]
    fn fragments_routed_packets_and_udp_without_a_checksum_are_left() {
        let udp = Packet::udp(Host::v4(1), Host::v4(2), vec![1; 100]);
        let mut fragment = udp.partial().1;
        fragment[20] = 0x20;
        let mut without = udp.frame();
        without[40..42].fill(0);
        let tcp = Packet::tcp(Host::v6(1), Host::v6(2), 7, vec![1; 100]).frame();
        let mut routed = [&tcp[..54], &[TCP, 0, 0, 0, 0, 0, 0, 0], &tcp[54..]].concat();
        (routed[19], routed[20]) = (tcp[19] + 8, ROUTING);
        for frame in [fragment, without, routed, vec![0xff; 14], tcp[..60].to_vec()] {
            let mut copy = frame.clone();
            tracker(Checksums::Complete).look_after(&mut copy);
            assert!(copy == frame, "{frame:02x?}");
        }
    }
}
