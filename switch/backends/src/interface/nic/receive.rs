//! The receive end (RX) of a NIC by AF_XDP: copies each frame to one of the socket's, with its checksum completed, and a GSO frame
//! segmented, because a driver takes neither from such a socket.

#![expect(clippy::indexing_slicing, reason = "a frame was measured before it is copied")]

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{Expiration, TimerFd, TimerSetTimeFlags};

use super::xsk::{self, FRAMES, Frames, Ring};
use crate::offload::checksum;
use crate::offload::segment::{Cutter, Segment};
use crate::offload::{Offloads, Plan, plan};
use crate::packet::Packet;
use crate::port::end::ReceiveEnd;
use crate::ring::PlaceOutcome;
use crate::stats::DropReason;

/// Pause before frames that the driver had no room for are tried again. The socket tells of no completion.
const PAUSE: Duration = Duration::from_micros(50);
/// Calls of sendto(2) in one poll iteration; where the kernel copies frames, each sends 32 or more.
const CALLS: u32 = FRAMES / 32;

/// See the module.
#[derive(Debug)]
pub(super) struct XdpReceive {
    socket: Arc<File>,
    frames: Frames,
    transmit: Ring<libc::xdp_desc>,
    completion: Ring<u64>,
    /// Addresses of frames that the kernel does not use.
    free: Vec<u64>,
    timer: TimerFd,
    /// Whether the timer is set.
    waits: bool,
    /// Frames that were placed since the kernel was told.
    placed: u32,
    /// Whether the interface is down, or deleted.
    down: bool,
}

impl XdpReceive {
    /// The end of the second half of `frames`. `timer` wakes it.
    pub(super) fn new(
        socket: Arc<File>,
        frames: Frames,
        (transmit, completion): (Ring<libc::xdp_desc>, Ring<u64>),
        timer: TimerFd,
    ) -> Self {
        let free = (FRAMES..2 * FRAMES).map(|number| u64::from(number) * u64::from(frames.size)).collect();
        Self { socket, frames, transmit, completion, free, timer, waits: false, placed: 0, down: false }
    }

    /// Takes back the frames that were sent.
    fn reclaim(&mut self) {
        while let Some(address) = self.completion.peek() {
            self.completion.take();
            // A frame that was sent from its middle would come back by that address; ours begin where they begin.
            self.free.push(address);
        }
        self.completion.release();
    }

    /// A free frame.
    fn take(&mut self) -> Option<u64> {
        if self.free.is_empty() {
            self.kick();
            self.reclaim();
        }
        self.free.pop()
    }

    /// Fills a frame of `length` bytes by `fill`, and appends it to the transmit ring.
    fn add(&mut self, length: u32, fill: impl FnOnce(&mut [u8])) -> Result<(), PlaceOutcome> {
        if length > self.frames.size {
            return Err(PlaceOutcome::Refused(DropReason::TooLongForReceiver));
        }
        if self.down {
            self.kick();
        }
        if self.down {
            return Err(PlaceOutcome::Refused(DropReason::ReceiverAbsent));
        }
        let Some(address) = self.take() else { return Err(PlaceOutcome::NoRoom) };
        if let Some(frame) = self.frames.bytes(address, length) {
            fill(frame);
        }
        self.transmit.push(libc::xdp_desc { addr: address, len: length, options: 0 });
        self.placed += 1;
        Ok(())
    }

    fn place_unsegmented(&mut self, packet: &Packet, has_checksum: bool) -> PlaceOutcome {
        let (start, offset) = (usize::from(packet.header.csum_start()), usize::from(packet.header.csum_offset()));
        let fill = |frame: &mut [u8]| {
            packet.read(0, frame);
            if !has_checksum {
                checksum::complete(frame, start, start + offset);
            }
        };
        self.add(packet.length, fill).map_or_else(|outcome| outcome, |()| PlaceOutcome::Complete(1))
    }

    /// Segments the frame (TSO in software), as far as there are free frames.
    fn place_segments(&mut self, packet: &mut Packet) -> PlaceOutcome {
        let Some(mut cutter) = Cutter::new(packet, false) else { return PlaceOutcome::Refused(DropReason::BadSegmentation) };
        while u32::from(packet.segments_done) < cutter.count() {
            if let Err(outcome) = self.place_segment(packet, &cutter.segment(packet.segments_done.into())) {
                return outcome;
            }
            packet.segments_done += 1;
        }
        PlaceOutcome::Complete(cutter.count())
    }

    fn place_segment(&mut self, packet: &Packet, segment: &Segment<'_>) -> Result<(), PlaceOutcome> {
        let headers = segment.headers.len();
        self.add(headers as u32 + segment.payload_length, |frame| {
            frame[..headers].copy_from_slice(segment.headers);
            packet.read(headers as u32 + segment.payload_offset, &mut frame[headers..]);
            if let Some((start, field)) = segment.complete {
                checksum::complete(frame, start as usize, field as usize);
            }
        })
    }

    /// Has the kernel send the frames in the transmit ring; sets the timer if it does not send all.
    fn kick(&mut self) {
        self.transmit.publish();
        self.placed = 0;
        // Until a call says so: the driver may send without one.
        self.down = false;
        for _ in 0..CALLS {
            let before = self.transmit.left();
            if before == 0 || !self.transmit.needs_wakeup() {
                break;
            }
            let sent = xsk::send(&self.socket).map_err(|error| error.raw_os_error());
            self.down = matches!(sent, Err(Some(libc::ENETDOWN | libc::ENXIO | libc::EBADF)));
            if self.down || self.transmit.left() == before {
                break;
            }
        }
        if self.transmit.left() > 0 && !self.down {
            self.wait();
        }
    }

    fn wait(&mut self) {
        if !self.waits {
            let expiration = Expiration::OneShot(TimeSpec::from_duration(PAUSE));
            self.waits = self.timer.set(expiration, TimerSetTimeFlags::empty()).is_ok();
        }
    }
}

impl ReceiveEnd for XdpReceive {
    fn place(&mut self, packet: &mut Packet) -> PlaceOutcome {
        match plan(packet, &Offloads::default()) {
            Plan::AsIs => self.place_unsegmented(packet, true),
            Plan::Checksum => self.place_unsegmented(packet, false),
            Plan::Segment { .. } => self.place_segments(packet),
        }
    }

    fn publish(&mut self) {
        if self.placed > 0 || self.transmit.left() > 0 {
            self.kick();
        }
        self.reclaim();
    }

    fn has_room(&mut self) -> bool {
        self.reclaim();
        let has_room = !self.free.is_empty();
        if !has_room {
            self.wait();
        }
        has_room
    }

    fn wake(&mut self) {
        self.waits = false;
    }
}
