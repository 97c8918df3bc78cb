//! Messages that the `vhost` crate's handler does not know: SEND_RARP, NET_SET_MTU, SET_STATUS, GET_STATUS; and SET_VRING_ENABLE, which it
//! takes only after SET_FEATURES, while QEMU sends it before.
//!
//! The next message's header is looked at without taking it; only if it is one of these is it read here, else the crate reads it. All
//! are a header of twelve bytes (request, flags, size; native order) and at most eight bytes of payload, without descriptors.

use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, PoisonError};

use vhost::vhost_user::message::FrontendReq;
use vhost::vhost_user::{VhostUserBackendReqHandlerMut, VhostUserProtocolFeatures as Protocol};

use super::device::Device;

const HEADER: usize = 12;
const VERSION: u32 = 1;
const REPLY: u32 = 1 << 2;
const NEED_REPLY: u32 = 1 << 3;

const OURS: [FrontendReq; 5] = [
    FrontendReq::SET_VRING_ENABLE,
    FrontendReq::SEND_RARP,
    FrontendReq::NET_SET_MTU,
    FrontendReq::SET_STATUS,
    FrontendReq::GET_STATUS,
];

/// What to do with the next message.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// It was one of ours, and was served.
    Served,
    /// The crate's handler is to read it.
    Other,
}

/// Serves the next message on `stream` if it is one of ours; waits for its header.
///
/// # Errors
/// The connection ended, or the message breaks a rule.
pub(super) fn serve(stream: &mut UnixStream, device: &Mutex<Device>) -> io::Result<Next> {
    let Some([request, ..]) = peek_header(stream)? else { return Ok(Next::Other) };
    let Some(request) = OURS.into_iter().find(|&ours| u32::from(ours) == request) else { return Ok(Next::Other) };
    let mut header = [0; HEADER];
    stream.read_exact(&mut header)?;
    let [_, flags, size] = words(header);
    let wanted = if request == FrontendReq::GET_STATUS { 0 } else { 8 };
    if flags & 3 != VERSION || flags & REPLY != 0 || size != wanted {
        return Err(io::Error::other("a malformed message"));
    }
    let mut payload = [0; 8];
    stream.read_exact(&mut payload[..size as usize])?;
    let mut device = device.lock().unwrap_or_else(PoisonError::into_inner);
    act(stream, &mut device, request, flags, u64::from_ne_bytes(payload))?;
    Ok(Next::Served)
}

fn act(stream: &mut UnixStream, device: &mut Device, request: FrontendReq, flags: u32, value: u64) -> io::Result<()> {
    let feature = match request {
        FrontendReq::SET_VRING_ENABLE => Protocol::empty(),
        FrontendReq::SEND_RARP => Protocol::RARP,
        FrontendReq::NET_SET_MTU => Protocol::MTU,
        _ => Protocol::STATUS,
    };
    if !device.agreed_protocol().contains(feature) {
        return Err(io::Error::other("a message whose protocol feature was not agreed"));
    }
    let mut result = Ok(());
    match request {
        FrontendReq::SET_VRING_ENABLE => {
            let (index, enable) = (value as u32, value >> 32);
            if enable > 1 {
                return Err(io::Error::other("a ring enabled by something other than 0 or 1"));
            }
            device.set_vring_enable(index, enable == 1).map_err(io::Error::other)?;
        }
        FrontendReq::SEND_RARP => device.send_rarp(value),
        FrontendReq::NET_SET_MTU => result = device.set_mtu(value),
        FrontendReq::SET_STATUS => device.set_status(value as u8),
        _ => return reply(stream, request, device.status().into()),
    }
    if flags & NEED_REPLY != 0 && device.agreed_protocol().contains(Protocol::REPLY_ACK) {
        reply(stream, request, result.is_err().into())?;
    }
    Ok(())
}

fn reply(stream: &mut UnixStream, request: FrontendReq, value: u64) -> io::Result<()> {
    let mut message = Vec::with_capacity(HEADER + 8);
    for word in [u32::from(request), VERSION | REPLY, 8] {
        message.extend_from_slice(&word.to_ne_bytes());
    }
    message.extend_from_slice(&value.to_ne_bytes());
    stream.write_all(&message)
}

fn words(header: [u8; HEADER]) -> [u32; 3] {
    let [a, b, c, d, e, f, g, h, i, j, k, l] = header;
    [[a, b, c, d], [e, f, g, h], [i, j, k, l]].map(u32::from_ne_bytes)
}

/// Waits for a message and looks at its header; `None` when the connection ended before a whole one came, which the crate's handler will
/// find out too.
fn peek_header(stream: &UnixStream) -> io::Result<Option<[u32; 3]>> {
    let mut header = [0_u8; HEADER];
    // SAFETY: the buffer is ours and outlives the call. MSG_WAITALL with MSG_PEEK waits until it is full or the peer is gone.
    let got = unsafe { libc::recv(stream.as_raw_fd(), header.as_mut_ptr().cast(), HEADER, libc::MSG_PEEK | libc::MSG_WAITALL) };
    match got {
        -1 => Err(io::Error::last_os_error()),
        got if got as usize == HEADER => Ok(Some(words(header))),
        _ => Ok(None),
    }
}
