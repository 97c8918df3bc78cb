//! Messages that the `vhost` crate's handler does not serve: SEND_RARP, NET_SET_MTU, SET_STATUS, GET_STATUS, which it does not know; and
//! SET_VRING_ENABLE, which it takes only after SET_FEATURES, while QEMU sends it before.

use std::io;
use std::os::unix::net::UnixStream;

use vhost::vhost_user::message::FrontendReq;
use vhost::vhost_user::{VhostUserBackendReqHandlerMut, VhostUserProtocolFeatures as Protocol};

use super::device::Device;
use super::wire::Message;

const VERSION: u32 = 1;
const VERSION_MASK: u32 = 3;
const REPLY: u32 = 1 << 2;
const NEED_REPLY: u32 = 1 << 3;

const OURS: [FrontendReq; 5] = [
    FrontendReq::SET_VRING_ENABLE,
    FrontendReq::SEND_RARP,
    FrontendReq::NET_SET_MTU,
    FrontendReq::SET_STATUS,
    FrontendReq::GET_STATUS,
];

/// What `message` asks, if it is one of ours.
pub(super) fn is_ours(message: &Message) -> Option<FrontendReq> {
    OURS.into_iter().find(|&ours| u32::from(ours) == message.request)
}

/// Serves `message`, which asks for `request`, and answers on `stream` where an answer is due.
///
/// # Errors
/// The message breaks a rule, or the connection ended.
pub(super) fn serve(request: FrontendReq, message: &Message, device: &mut Device, stream: &UnixStream) -> io::Result<()> {
    let wanted = if request == FrontendReq::GET_STATUS { 0 } else { 8 };
    let well_formed = message.flags & VERSION_MASK == VERSION && message.flags & REPLY == 0;
    if !well_formed || message.payload.len() != wanted || !message.files.is_empty() {
        return Err(io::Error::other("a malformed message"));
    }
    if !device.agreed_protocol().contains(needed(request)) {
        return Err(io::Error::other("a message whose protocol feature was not agreed"));
    }
    if request == FrontendReq::GET_STATUS {
        return reply(stream, message.request, device.status().into());
    }
    let result = act(request, &message.payload, device)?;
    if message.flags & NEED_REPLY != 0 && device.agreed_protocol().contains(Protocol::REPLY_ACK) {
        reply(stream, message.request, result.is_err().into())?;
    }
    Ok(())
}

/// The protocol feature that allows `request`.
fn needed(request: FrontendReq) -> Protocol {
    match request {
        FrontendReq::SEND_RARP => Protocol::RARP,
        FrontendReq::NET_SET_MTU => Protocol::MTU,
        FrontendReq::SET_STATUS | FrontendReq::GET_STATUS => Protocol::STATUS,
        _ => Protocol::empty(),
    }
}

/// Does what is asked. The inner result is what the front end is told if it wants to know; the outer one ends the connection.
fn act(request: FrontendReq, payload: &[u8], device: &mut Device) -> io::Result<Result<(), vhost::vhost_user::Error>> {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(payload);
    let number = u64::from_ne_bytes(bytes);
    match request {
        FrontendReq::SET_VRING_ENABLE => {
            let [a, b, c, d, e, f, g, h] = bytes;
            let (index, enable) = (u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([e, f, g, h]));
            if enable > 1 {
                return Err(io::Error::other("a ring enabled by something other than 0 or 1"));
            }
            device.set_vring_enable(index, enable == 1).map_err(io::Error::other)?;
        }
        FrontendReq::SEND_RARP => device.send_rarp(number),
        FrontendReq::NET_SET_MTU => return Ok(device.set_mtu(number)),
        _ => device.set_status(number as u8),
    }
    Ok(Ok(()))
}

fn reply(stream: &UnixStream, request: u32, value: u64) -> io::Result<()> {
    Message { request, flags: VERSION | REPLY, payload: value.to_ne_bytes().to_vec(), files: Vec::new() }.send(stream)
}
