//! Messages that the `vhost` crate's handler does not serve: SEND_RARP, NET_SET_MTU, SET_STATUS, GET_STATUS, SET_LOG_FD, which it
//! does not know; GET_INFLIGHT_FD and SET_INFLIGHT_FD, of which the answer has a descriptor and the body of some front ends is
//! padded; IOTLB_MSG and SET_CONFIG, which are refused and end no connection; SET_VRING_ENABLE, which the crate accepts only after
//! SET_FEATURES, while QEMU sends it before; and SET_VRING_ADDR, where the crate reports a wrong address, which is the guest's
//! fault, as a broken message of the front end.

#![expect(clippy::indexing_slicing, reason = "an array of a range of fixed length")]

use std::io;

use vhost::vhost_user::message::{FrontendReq, VhostUserConfigFlags, VhostUserInflight, VhostUserVringAddrFlags};
use vhost::vhost_user::{VhostUserBackendReqHandlerMut, VhostUserProtocolFeatures as Protocol};

use super::device::Device;
use super::wire::{self, Message, Reply};

/// The version of the protocol in the flags of a message.
pub(super) const VERSION: u32 = 1;
const VERSION_MASK: u32 = 3;
const REPLY: u32 = 1 << 2;
const NEED_REPLY: u32 = 1 << 3;

/// Bytes of a body of GET_INFLIGHT_FD and SET_INFLIGHT_FD, as specified; QEMU's compiler pads it to a multiple of eight.
const INFLIGHT: [usize; 2] = [20, 24];

/// Bytes before the content of SET_CONFIG: offset, size and flags.
const CONFIG: usize = 12;

const OURS: [FrontendReq; 11] = [
    FrontendReq::GET_INFLIGHT_FD,
    FrontendReq::SET_INFLIGHT_FD,
    FrontendReq::SET_LOG_FD,
    FrontendReq::SET_VRING_ADDR,
    FrontendReq::SET_VRING_ENABLE,
    FrontendReq::SEND_RARP,
    FrontendReq::NET_SET_MTU,
    FrontendReq::SET_STATUS,
    FrontendReq::GET_STATUS,
    FrontendReq::IOTLB_MSG,
    FrontendReq::SET_CONFIG,
];

/// The request of `message`, if it is served here.
pub(super) fn is_ours(message: &Message) -> Option<FrontendReq> {
    OURS.into_iter().find(|&ours| u32::from(ours) == message.request)
}

/// Serves `message`, which asks for `request`; adds the answer to `replies` where one is due.
///
/// # Errors
/// The message breaks a rule.
pub(super) fn serve(request: FrontendReq, message: &Message, device: &mut Device, replies: &mut Reply) -> io::Result<()> {
    let length = message.payload.len();
    let wanted = match request {
        FrontendReq::GET_STATUS | FrontendReq::SET_LOG_FD => 0,
        FrontendReq::SET_VRING_ADDR => 40,
        FrontendReq::IOTLB_MSG => 32,
        FrontendReq::SET_CONFIG => config(&message.payload).map_or(CONFIG, |(_, content)| CONFIG + content.len()),
        FrontendReq::GET_INFLIGHT_FD | FrontendReq::SET_INFLIGHT_FD if INFLIGHT.contains(&length) => length,
        FrontendReq::GET_INFLIGHT_FD | FrontendReq::SET_INFLIGHT_FD => INFLIGHT[0],
        _ => 8,
    };
    let well_formed = message.flags & VERSION_MASK == VERSION && message.flags & REPLY == 0;
    let files = usize::from(matches!(request, FrontendReq::SET_LOG_FD | FrontendReq::SET_INFLIGHT_FD));
    if !well_formed || length != wanted || message.files.len() != files {
        return Err(io::Error::other("a malformed message"));
    }
    if !device.agreed_protocol().contains(needed(request)) {
        return Err(io::Error::other("a message whose protocol feature was not agreed"));
    }
    if request == FrontendReq::GET_STATUS {
        reply(replies, message.request, device.status().into());
        return Ok(());
    }
    let result = match request {
        FrontendReq::GET_INFLIGHT_FD => return give_inflight(message, device, replies),
        FrontendReq::SET_INFLIGHT_FD => {
            let file = message.files.first().ok_or(io::ErrorKind::InvalidData)?.try_clone()?;
            device.set_inflight_fd(&inflight(&message.payload), file).map(Ok).map_err(io::Error::other)?
        }
        _ => act(request, &message.payload, device)?,
    };
    if message.flags & NEED_REPLY != 0 && device.agreed_protocol().contains(Protocol::REPLY_ACK) {
        reply(replies, message.request, result.is_err().into());
    }
    Ok(())
}

/// The protocol feature that allows `request`.
fn needed(request: FrontendReq) -> Protocol {
    match request {
        FrontendReq::SEND_RARP => Protocol::RARP,
        FrontendReq::SET_LOG_FD => Protocol::LOG_SHMFD,
        FrontendReq::GET_INFLIGHT_FD | FrontendReq::SET_INFLIGHT_FD => Protocol::INFLIGHT_SHMFD,
        FrontendReq::NET_SET_MTU => Protocol::MTU,
        FrontendReq::SET_STATUS | FrontendReq::GET_STATUS => Protocol::STATUS,
        FrontendReq::SET_CONFIG => Protocol::CONFIG,
        _ => Protocol::empty(),
    }
}

/// Serves the request. The inner result is the reply to the front end if it asked for one; the outer error ends the connection.
fn act(request: FrontendReq, payload: &[u8], device: &mut Device) -> io::Result<Result<(), vhost::vhost_user::Error>> {
    let (number, rest) = first_number(payload);
    // Two 32-bit words in place of the number lie in this order in memory.
    let [index, second] = words(number);
    match request {
        FrontendReq::SET_VRING_ADDR => {
            let flags = VhostUserVringAddrFlags::from_bits(second).ok_or_else(|| io::Error::other("a malformed message"))?;
            let (descriptors, rest) = first_number(rest);
            let (used, rest) = first_number(rest);
            let (available, rest) = first_number(rest);
            let result = device.set_vring_addr(index, flags, descriptors, used, available, first_number(rest).0);
            return if device.has_fault() { Ok(result) } else { result.map(Ok).map_err(io::Error::other) };
        }
        FrontendReq::SET_VRING_ENABLE => {
            let enable = second;
            if enable > 1 {
                return Err(io::Error::other("a ring enabled by something other than 0 or 1"));
            }
            device.set_vring_enable(index, enable == 1).map_err(io::Error::other)?;
        }
        // The eventfd by which a back end may tell of marked pages. No known front end waits for it: they read the log when they copy
        // memory. So it is closed.
        FrontendReq::SET_LOG_FD => {}
        FrontendReq::SEND_RARP => device.send_rarp(number),
        FrontendReq::NET_SET_MTU => return Ok(device.set_mtu(number)),
        FrontendReq::IOTLB_MSG => return Ok(device.refuse_translation()),
        FrontendReq::SET_CONFIG => {
            let (offset, content) = config(payload).ok_or_else(|| io::Error::other("a malformed message"))?;
            return Ok(device.set_config(offset, content, VhostUserConfigFlags::empty()));
        }
        _ => device.set_status(number as u8),
    }
    Ok(Ok(()))
}

/// Answers GET_INFLIGHT_FD, in a body of the length of the request's.
fn give_inflight(message: &Message, device: &mut Device, replies: &mut Reply) -> io::Result<()> {
    let (given, file) = device.get_inflight_fd(&inflight(&message.payload)).map_err(io::Error::other)?;
    let mut payload = [given.mmap_size.to_ne_bytes(), given.mmap_offset.to_ne_bytes()].concat();
    payload.extend([given.num_queues.to_ne_bytes(), given.queue_size.to_ne_bytes()].concat());
    payload.resize(message.payload.len(), 0);
    replies.add(Message { request: message.request, flags: VERSION | REPLY, payload, files: vec![file] });
    Ok(())
}

/// The body of GET_INFLIGHT_FD and SET_INFLIGHT_FD.
fn inflight(payload: &[u8]) -> VhostUserInflight {
    let (size, rest) = first_number(payload);
    let (offset, rest) = first_number(rest);
    let half = |at: usize| rest.get(at..at + 2).map_or(0, |bytes| u16::from_ne_bytes([bytes[0], bytes[1]]));
    VhostUserInflight::new(size, offset, half(0), half(2))
}

/// Offset and content of SET_CONFIG; `None` if its length is not the stated one.
fn config(payload: &[u8]) -> Option<(u32, &[u8])> {
    let (head, content) = payload.split_first_chunk::<CONFIG>()?;
    let [offset, size, _] = wire::words(*head);
    (content.len() == size as usize).then_some((offset, content))
}

/// The first eight bytes of `payload`, of a checked length, and the rest.
fn first_number(payload: &[u8]) -> (u64, &[u8]) {
    payload.split_first_chunk().map_or((0, &[]), |(bytes, rest)| (u64::from_ne_bytes(*bytes), rest))
}

fn words(number: u64) -> [u32; 2] {
    let [a, b, c, d, e, f, g, h] = number.to_ne_bytes();
    [[a, b, c, d], [e, f, g, h]].map(u32::from_ne_bytes)
}

fn reply(replies: &mut Reply, request: u32, value: u64) {
    replies.add(Message { request, flags: VERSION | REPLY, payload: value.to_ne_bytes().to_vec(), files: Vec::new() });
}
