//! Fragmenting pairs: IP addresses between which a port has sent fragments lately.
//!
//! Flows are spread over queues by their ports, which fragments have not. From the first fragment on, all datagrams between its addresses are
//! one flow, and keep their order: only those that are in flight then may be overtaken. Without fragments for [`MEMORY`] seconds, their ports
//! count again.

#![expect(clippy::indexing_slicing, reason = "a hash modulo the number of slots")]

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::frame;
use crate::packet::Packet;

/// Seconds.
const MEMORY: u32 = 60;
/// Pairs with the same remainder of their hash share a slot: a pair without fragments is one flow then, too.
const SLOTS: usize = 256;

/// See the module. The second of the last fragment of each slot, and one more; made by the first fragment.
#[derive(Debug, Default)]
pub(crate) struct FragmentingPairs(OnceLock<Box<[AtomicU32; SLOTS]>>);

impl FragmentingPairs {
    /// Determines the flow of `packet`, which the port sent in this `second`.
    #[inline]
    pub(crate) fn settle(&self, packet: &mut Packet, second: u32) {
        packet.of_pair = if packet.is_fragment() {
            self.note(packet, second);
            true
        } else {
            self.0.get().is_some_and(|slots| has(slots, packet, second))
        };
    }

    #[cold]
    fn note(&self, packet: &Packet, second: u32) {
        let slots = self.0.get_or_init(|| Box::new([const { AtomicU32::new(0) }; SLOTS]));
        slot(slots, packet).store(second + 1, Ordering::Relaxed);
    }
}

fn slot<'s>(slots: &'s [AtomicU32; SLOTS], packet: &Packet) -> &'s AtomicU32 {
    &slots[packet.pair_hash() as usize % SLOTS]
}

#[cold]
fn has(slots: &[AtomicU32; SLOTS], packet: &Packet, second: u32) -> bool {
    let last = slot(slots, packet).load(Ordering::Relaxed);
    last > 0 && (second + 1).saturating_sub(last) < MEMORY && frame::may_be_fragmented(packet.start())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::PortId;

    /// A datagram or TCP segment over IPv4 with this word of flags and offset, from port `port`.
    fn packet(protocol: u8, fragment: u16, port: u8) -> Packet {
        let [high, low] = fragment.to_be_bytes();
        let ip = [0x45, 0, 0, 40, 0, 1, high, low, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        Packet::from_bytes(PortId(0), &[&[2; 12][..], &[8, 0], &ip, &[0, port, 0, 53], &[0; 16]].concat())
    }

    #[test]
    fn a_flow_is_its_ports_until_it_is_fragmented_and_again_a_minute_later() {
        let pairs = FragmentingPairs::default();
        let flows = |protocol, fragment, second| -> Vec<u32> {
            let flow = |port| {
                let mut packet = packet(protocol, fragment, port);
                pairs.settle(&mut packet, second);
                packet.flow_hash()
            };
            let mut flows: Vec<u32> = (0..32).map(flow).collect();
            flows.sort_unstable();
            flows.dedup();
            flows
        };
        const MORE: u16 = 0x2000;
        const DONT_FRAGMENT: u16 = 0x4000;
        assert_eq!((flows(17, 0, 7).len(), flows(6, 0, 7).len()), (32, 32), "from the first datagram on");
        let of_pair = flows(17, MORE, 7);
        assert_eq!((of_pair.len(), flows(17, 100, 7)), (1, of_pair.clone()), "first and later fragments");
        assert_eq!((flows(17, 0, 7), flows(17, 0, 66), flows(6, 0, 66)), (of_pair.clone(), of_pair.clone(), of_pair));
        assert_eq!(flows(6, DONT_FRAGMENT, 66).len(), 32, "RFC 791: no fragment of it will be seen");
        assert_eq!(flows(17, 0, 67).len(), 32);
    }
}
