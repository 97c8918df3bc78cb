//! DHCP servers: the switch learns leases from the answers of a port that may give them (`may-serve`), so a verdict on such a frame
//! holds for it alone, and the fast path carries none.

#![expect(clippy::indexing_slicing, reason = "an offset found within the same bytes")]

use super::reading::Reading;
use crate::address_map::lease::CLIENT;
use crate::frame::{TYPE_IPV4, UDP, network_type};
use crate::headers::{Fragment, Ipv4, number_at};

/// Reads the bytes that distinguish the frame from an answer to a DHCP client.
pub(super) fn mark(frame: &mut Reading<'_>) {
    let bytes = frame.start.bytes();
    let Some((kind, at)) = network_type(bytes) else { return frame.once() };
    (12..at).step_by(4).for_each(|at| frame.mark(at..at + 2));
    if kind != TYPE_IPV4 {
        return;
    }
    let Some(packet) = Ipv4::parse(&bytes[at..]) else { return frame.once() };
    frame.reach_to(at + packet.length);
    frame.mark(at..at + 1);
    frame.mark(at + 9..at + 10);
    if packet.protocol != UDP {
        return;
    }
    frame.mark_number(at + 6, Ipv4::OFFSET);
    let port = at + packet.length + 2;
    match number_at(bytes, port).filter(|_| packet.fragment != Fragment::Later) {
        Some(to) if !frame.is_number(port, to, CLIENT) => {}
        None if packet.fragment == Fragment::Later => {}
        _ => frame.once(),
    }
}
