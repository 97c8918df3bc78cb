//! Messages that are malformed, out of place, or carry values or descriptors that they should not.

use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;

use vhost::vhost_user::message::FrontendReq as Request;

use crate::frontend::wire;
use crate::guest::{Habit, ToyGuest};

use super::ring::say;
use super::{Stage, Traces, VillainError, case_table};

type Done = Result<Traces, VillainError>;

case_table! { Message:
    "size-field-too-large" size_field_too_large Port "A size field that promises more than comes (and then the end)"
    "size-field-too-small" size_field_too_small Port "A size field that promises less than comes"
    "size-field-huge" size_field_huge Port "Size fields of 64 KiB, 2 GiB and 4 GiB"
    "unknown-request" unknown_request Port "Requests 0, 45, 9999 and 2^32 - 1"
    "wrong-version" wrong_version Port "Protocol versions 0, 2 and 3"
    "reply-to-nobody" reply_to_nobody Port "Requests marked as replies, and reserved header flags"
    "body-too-short" body_too_short Port "Every request with a body of 0 to 7 bytes"
    "body-too-long" body_too_long Port "Every request with a body of 4000 bytes"
    "surplus-descriptors" surplus_descriptors Port "File descriptors with every request that wants none (DPDK CVE-2019-14818, CVE-2022-0669)"
    "missing-descriptors" missing_descriptors Port "Requests that need a file descriptor, without one"
    "descriptor-flood" descriptor_flood Port "Thousands of file descriptors, 28 with each message (DPDK CVE-2020-10726)"
    "wrong-descriptors" wrong_descriptors Port "Kicks that are always readable, calls that cannot be written to, memory that is a socket"
    "inflight-flood" inflight_flood Port "GET_INFLIGHT_FD a thousand times (DPDK CVE-2020-10726)"
    "inflight-nonsense" inflight_nonsense Port "GET_ and SET_INFLIGHT_FD with sizes that overflow (DPDK CVE-2021-3839, QEMU #3675)"
    "log-base-overflow" log_base_overflow Port "SET_LOG_BASE with size and offset that overflow (DPDK CVE-2020-10722, CVE-2026-86563)"
    "features-unoffered" features_unoffered Port "SET_FEATURES with every bit set (QEMU #3623, #4166)"
    "features-without-dependencies" features_without_dependencies Port "Segmentation features without the checksum features that they need"
    "features-while-running" features_while_running Port "SET_FEATURES with something else while rings run"
    "protocol-features-unoffered" protocol_features_unoffered Port "SET_PROTOCOL_FEATURES with every bit set"
    "config-beyond" config_beyond Port "GET_CONFIG and SET_CONFIG beyond the configuration space"
    "mtu-nonsense" mtu_nonsense Port "NET_SET_MTU of 0, 67, 65536 and 2^64 - 1"
    "foreign-requests" foreign_requests Port "IOTLB, post-copy, crypto, GPU and device-state requests, with made-up bodies"
    "reset-while-running" reset_while_running Port "RESET_OWNER and RESET_DEVICE in the midst of traffic"
}

fn size_field_too_large(stage: &mut Stage<'_>) -> Done {
    for request in requests() {
        let stream = stage.connect()?;
        send(&stream, &[&wire::header(request, wire::VERSION, 40)[..], &[0; 8]].concat());
    }
    Ok(Traces::none(None))
}

fn size_field_too_small(stage: &mut Stage<'_>) -> Done {
    for request in requests() {
        let stream = stage.connect()?;
        send(&stream, &[&wire::header(request, wire::VERSION, 4)[..], &[0xff; 36]].concat());
        send(&stream, &wire::header(Request::GET_FEATURES as u32, wire::VERSION, 0));
    }
    Ok(Traces::none(None))
}

fn size_field_huge(stage: &mut Stage<'_>) -> Done {
    for size in [1 << 16, 1 << 31, u32::MAX, u32::MAX - 11] {
        let stream = stage.connect()?;
        send(&stream, &wire::header(Request::SET_MEM_TABLE as u32, wire::VERSION, size));
        send(&stream, &[0x41; 8192]);
    }
    Ok(Traces::none(None))
}

fn unknown_request(stage: &mut Stage<'_>) -> Done {
    headers(stage, &[0, 45, 9999, u32::MAX].map(|code| wire::header(code, wire::VERSION, 0)))
}

fn wrong_version(stage: &mut Stage<'_>) -> Done {
    headers(stage, &[0, 2, 3].map(|version| wire::header(Request::GET_FEATURES as u32, version, 0)))
}

fn reply_to_nobody(stage: &mut Stage<'_>) -> Done {
    let flags = [wire::REPLY, wire::REPLY | wire::NEED_REPLY, 0x10, 0xffff_fff0];
    headers(stage, &flags.map(|flags| wire::header(Request::GET_FEATURES as u32, wire::VERSION | flags, 0)))
}

fn body_too_short(stage: &mut Stage<'_>) -> Done {
    bodies(stage, &[0, 1, 4, 7])
}

fn body_too_long(stage: &mut Stage<'_>) -> Done {
    bodies(stage, &[4000])
}

fn surplus_descriptors(stage: &mut Stage<'_>) -> Done {
    for request in requests() {
        let mut guest = stage.negotiated()?;
        let fds = vec![guest.memory().raw_file(); 8];
        let _ = wire::send(guest.frontend()?.stream(), request, wire::VERSION, &[0; 8], &fds);
    }
    Ok(Traces::none(None))
}

fn missing_descriptors(stage: &mut Stage<'_>) -> Done {
    let wanting = [
        Request::SET_VRING_KICK,
        Request::SET_VRING_CALL,
        Request::SET_VRING_ERR,
        Request::SET_LOG_BASE,
        Request::SET_LOG_FD,
        Request::SET_BACKEND_REQ_FD,
        Request::SET_INFLIGHT_FD,
        Request::SET_MEM_TABLE,
        Request::ADD_MEM_REG,
    ];
    for request in wanting {
        let mut guest = stage.negotiated()?;
        // A count of one region, an index of one ring: well-formed but for the descriptor.
        say(&mut guest, request, &[&1u64.to_le_bytes()[..], &[0; 32]].concat(), &[])?;
        say(&mut guest, request, &1u64.to_le_bytes(), &[])?;
    }
    Ok(Traces::none(None))
}

fn descriptor_flood(stage: &mut Stage<'_>) -> Done {
    let mut guest = stage.guest(|builder| builder)?;
    let fds = [guest.memory().raw_file(); 28];
    for turn in 0..300u64 {
        let (request, body) = match turn % 4 {
            0 => (Request::SET_VRING_CALL, turn % 2),
            1 => (Request::SET_VRING_ERR, turn % 2),
            2 => (Request::GET_FEATURES, 0),
            _ => (Request::SET_VRING_NUM, 256 << 32),
        };
        let few = if turn % 4 < 2 { 1 } else { fds.len() };
        say(&mut guest, request, &body.to_le_bytes(), &fds[..few])?;
    }
    Ok(Traces::none(Some(guest)))
}

fn wrong_descriptors(stage: &mut Stage<'_>) -> Done {
    let open = |path: &str, write: bool| {
        let opened = std::fs::File::options().read(!write).write(write).open(path);
        opened.map_err(|cause| VillainError::Socket { step: "opening a device to misuse", cause })
    };
    let (zero, null, full) = (open("/dev/zero", false)?, open("/dev/null", true)?, open("/dev/full", true)?);
    let (closed, _) = UnixStream::pair().map_err(|cause| VillainError::Socket { step: "making a socket pair", cause })?;
    let (_reader, pipe) = std::io::pipe().map_err(|cause| VillainError::Socket { step: "making a pipe", cause })?;
    let descriptors: [RawFd; 5] = [zero.as_raw_fd(), null.as_raw_fd(), full.as_raw_fd(), closed.as_raw_fd(), pipe.as_raw_fd()];
    let mut guest = stage.guest(|builder| builder)?;
    for fd in descriptors {
        for request in [Request::SET_VRING_CALL, Request::SET_VRING_ERR, Request::SET_VRING_KICK] {
            for ring in [0u64, 1] {
                say(&mut guest, request, &ring.to_le_bytes(), &[fd])?;
            }
        }
        // A frame, so that the back end has a reason for an interrupt.
        let _ = guest.send(&stage.frame(100));
    }
    Ok(Traces::none(Some(guest)))
}

fn inflight_flood(stage: &mut Stage<'_>) -> Done {
    let mut guest = stage.negotiated()?;
    for _ in 0..1000 {
        say(&mut guest, Request::GET_INFLIGHT_FD, &inflight(0, 0, 2, 1024), &[])?;
    }
    Ok(Traces::none(Some(guest)))
}

fn inflight_nonsense(stage: &mut Stage<'_>) -> Done {
    let mut guest = stage.negotiated()?;
    let fd = guest.memory().raw_file();
    for body in [
        inflight(u64::MAX, 0, u16::MAX, u16::MAX),
        inflight(0, u64::MAX, 0, 0),
        inflight(4096, u64::MAX - 4095, 2, 256),
        inflight(1, 0, u16::MAX, u16::MAX),
    ] {
        say(&mut guest, Request::GET_INFLIGHT_FD, &body, &[])?;
        say(&mut guest, Request::SET_INFLIGHT_FD, &body, &[fd])?;
    }
    Ok(Traces::none(Some(guest)))
}

fn log_base_overflow(stage: &mut Stage<'_>) -> Done {
    let mut guest = stage.negotiated()?;
    let fd = guest.memory().raw_file();
    for (size, offset) in [(u64::MAX, 0), (4096, u64::MAX - 4095), (1 << 63, 1 << 63), (0, 0), (1 << 50, 4096)] {
        let body = [size.to_le_bytes(), offset.to_le_bytes()].concat();
        say(&mut guest, Request::SET_LOG_BASE, &body, &[fd])?;
    }
    Ok(Traces::none(Some(guest)))
}

fn features_unoffered(stage: &mut Stage<'_>) -> Done {
    numbers(stage, Request::SET_FEATURES, &[u64::MAX])
}

fn features_without_dependencies(stage: &mut Stage<'_>) -> Done {
    use crate::frontend::features as f;
    let lonely = [f::HOST_TSO4, f::GUEST_TSO4, f::HOST_ECN, f::GUEST_ECN, f::GUEST_USO4, f::HOST_USO];
    numbers(stage, Request::SET_FEATURES, &lonely.map(|feature| f::PLAIN | feature))
}

fn features_while_running(stage: &mut Stage<'_>) -> Done {
    use crate::frontend::features as f;
    let mut guest = stage.guest(|builder| builder)?;
    for features in [f::PLAIN, 0, f::LINUX & guest.offered()] {
        guest.send(&stage.frame(100))?;
        say(&mut guest, Request::SET_FEATURES, &features.to_le_bytes(), &[])?;
    }
    Ok(Traces::none(Some(guest)))
}

fn protocol_features_unoffered(stage: &mut Stage<'_>) -> Done {
    numbers(stage, Request::SET_PROTOCOL_FEATURES, &[u64::MAX, 1 << 63])
}

fn config_beyond(stage: &mut Stage<'_>) -> Done {
    // QEMU never asks for the space of a network device, and may not be offered it.
    let mut guest = stage.guest(|builder| builder.started(false).habit(Habit::UML))?;
    for (offset, size) in [(0, 4096u32), (255, 2), (4096, 1), (u32::MAX, u32::MAX), (0, u32::MAX), (0, 0)] {
        let head = [offset.to_le_bytes(), size.to_le_bytes(), [0; 4]].concat();
        let body = [&head[..], &vec![0xee; size.min(4000) as usize]].concat();
        say(&mut guest, Request::GET_CONFIG, &body, &[])?;
        say(&mut guest, Request::SET_CONFIG, &body, &[])?;
    }
    Ok(Traces::none(Some(guest)))
}

fn mtu_nonsense(stage: &mut Stage<'_>) -> Done {
    numbers(stage, Request::NET_SET_MTU, &[0, 67, 65536, u64::MAX])
}

fn foreign_requests(stage: &mut Stage<'_>) -> Done {
    for request in [22, 23, 26, 27, 28, 29, 30, 33, 35, 41, 42, 43, 44] {
        let mut guest = stage.negotiated()?;
        let stream = guest.frontend()?.stream();
        let _ = wire::send(stream, request, wire::VERSION | wire::NEED_REPLY, &[0x77; 40], &[]);
        let _ = wire::send(stream, request, wire::VERSION, &[], &[]);
    }
    Ok(Traces::none(None))
}

fn reset_while_running(stage: &mut Stage<'_>) -> Done {
    let mut guest = stage.guest(|builder| builder)?;
    for request in [Request::RESET_OWNER, Request::RESET_DEVICE, Request::RESET_OWNER] {
        guest.send(&stage.frame(100))?;
        say(&mut guest, request, &[], &[])?;
    }
    Ok(Traces::none(Some(guest)))
}

/// All requests that a front end may send.
fn requests() -> impl Iterator<Item = u32> {
    1..=44
}

/// Sends bytes as they are. A back end that has hung up already is no error: the misbehaviour took place.
pub(super) fn send(stream: &UnixStream, bytes: &[u8]) {
    let _ = wire::send_bytes(stream, bytes, &[]);
}

/// Each of these headers on a connection of its own, after an honest beginning.
fn headers(stage: &Stage<'_>, headers: &[[u8; wire::HEADER_BYTES]]) -> Done {
    for header in headers {
        let mut guest: ToyGuest = stage.negotiated()?;
        send(guest.frontend()?.stream(), header);
    }
    Ok(Traces::none(None))
}

/// Every request with bodies of these lengths, each request on a connection of its own.
fn bodies(stage: &Stage<'_>, lengths: &[usize]) -> Done {
    for request in requests() {
        let mut guest = stage.negotiated()?;
        for &length in lengths {
            let _ = wire::send(guest.frontend()?.stream(), request, wire::VERSION, &vec![0x55; length], &[]);
        }
    }
    Ok(Traces::none(None))
}

/// A request with each of these numbers, each on a connection of its own.
fn numbers(stage: &Stage<'_>, request: Request, numbers: &[u64]) -> Done {
    let mut last = None;
    for number in numbers {
        // One guest at a time: the next connects when the last has gone.
        drop(last.take());
        let mut guest = stage.negotiated()?;
        say(&mut guest, request, &number.to_le_bytes(), &[])?;
        last = Some(guest);
    }
    Ok(Traces::none(last))
}

fn inflight(size: u64, offset: u64, queues: u16, ring: u16) -> Vec<u8> {
    [&size.to_le_bytes()[..], &offset.to_le_bytes(), &queues.to_le_bytes(), &ring.to_le_bytes()].concat()
}
