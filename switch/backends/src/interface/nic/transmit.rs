//! The transmit end (TX) of a NIC by AF_XDP: frames that the driver has received are forwarded from where they lie.

use std::fs::File;
use std::sync::Arc;

use super::xsk::{self, FRAMES, Frames, Ring};
use crate::frame::{ETHERNET, NetHeader};
use crate::packet::Packet;
use crate::port::end::TransmitEnd;
use crate::ring::OpenOutcome;
use crate::stats::DropReason;
use crate::stream::checksums;

/// Received frames after which the kernel's count of lost ones is read.
const COUNTED_EVERY: u32 = 4096;

/// See the module.
#[derive(Debug)]
pub(super) struct XdpTransmit {
    socket: Arc<File>,
    /// Keeps the XDP program attached.
    _link: File,
    frames: Frames,
    fill: Ring<u64>,
    receive: Ring<libc::xdp_desc>,
    /// Frames in the fill ring; the kernel has no others.
    given: u32,
    /// Whether the fill ring has frames that the kernel has not been told of.
    returned: bool,
    /// Frames until the kernel's count of lost ones is read.
    uncounted: u32,
    /// The count of lost frames when it was read last.
    lost: u64,
}

impl XdpTransmit {
    /// The end of the first half of `frames`, all of which the kernel gets.
    pub(super) fn new((socket, link): (Arc<File>, File), frames: Frames, fill: Ring<u64>, receive: Ring<libc::xdp_desc>) -> Self {
        let mut end = Self { socket, _link: link, frames, fill, receive, given: 0, returned: false, uncounted: 0, lost: 0 };
        (0..FRAMES).for_each(|number| end.give(number as u16));
        end.publish();
        end
    }

    fn give(&mut self, number: u16) {
        self.fill.push(u64::from(number) * u64::from(self.frames.size));
        self.given += 1;
        self.returned = true;
    }
}

impl TransmitEnd for XdpTransmit {
    fn look(&mut self, most: u16) -> u16 {
        self.receive.available().min(most.into()) as u16
    }

    fn open(&mut self, packet: &mut Packet) -> OpenOutcome {
        let Some(entry) = self.receive.peek() else { return OpenOutcome::Nothing };
        let number = (entry.addr / u64::from(self.frames.size)) as u16;
        packet.head = number;
        match self.frames.bytes(entry.addr, entry.len) {
            Some(frame) if frame.len() >= ETHERNET && u32::from(number) < FRAMES => {
                // A veth pair leaves checksums to the device, and the socket does not say so.
                let header = checksums::undone(frame);
                packet.set_frame(
                    header.map_or_else(NetHeader::default, |(start, offset)| NetHeader::partial_checksum(start, offset)),
                    frame,
                );
                OpenOutcome::Packet
            }
            _ => {
                self.keep(packet);
                if u32::from(number) < FRAMES {
                    self.release(number);
                }
                OpenOutcome::Dropped(DropReason::Runt)
            }
        }
    }

    fn keep(&mut self, _packet: &Packet) {
        self.receive.take();
        self.given = self.given.saturating_sub(1);
        self.uncounted = self.uncounted.saturating_sub(1);
    }

    fn release(&mut self, head: u16) {
        self.give(head);
    }

    fn size(&self) -> u16 {
        FRAMES as u16
    }

    fn has_news(&self) -> bool {
        self.receive.available() > 0
    }

    fn wake(&mut self) {}

    fn publish(&mut self) {
        self.receive.release();
        if std::mem::take(&mut self.returned) {
            self.fill.publish();
            if self.fill.needs_wakeup() {
                xsk::wake_receive(&self.socket);
            }
        }
    }

    fn take_lost(&mut self) -> [(DropReason, u32); 2] {
        let mut more = 0;
        if self.uncounted == 0 || self.given == 0 {
            self.uncounted = COUNTED_EVERY;
            let lost = xsk::dropped(&self.socket);
            more = lost.saturating_sub(std::mem::replace(&mut self.lost, lost));
        }
        [(DropReason::SocketFull, more.min(u32::MAX.into()) as u32), (DropReason::SocketFull, 0)]
    }
}
