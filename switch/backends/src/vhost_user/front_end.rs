//! A front end that has connected: its connection, and the device that it sets up.
//!
//! Where a second front end may replace the first (`second = "replace"`), it is **admitted** beside it: QEMU's cpr-transfer and Cloud
//! Hypervisor's local migration start the new process while the old one still runs the guest. Its questions are answered, and the
//! port stays with the first, until the second sends the first message that sets up memory or a virtqueue.

#![expect(clippy::indexing_slicing, reason = "as many bytes as were received")]

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};

use vhost::vhost_user::BackendReqHandler;
use vhost::vhost_user::message::FrontendReq;

use super::device::{self, Device};
use super::extra;
use super::saved::{SavedConnection, SavedPostcopy, StandingConnection};
use super::settings::DeviceSettings;
use super::wire::{self, Message, PartialMessage, Reply, WireError};
use crate::budget::Permit;
use crate::descriptors;
use crate::executor::{Context, Watched};
use crate::network::Network;
use crate::system;
use crate::takeover::ReceivedFiles;

/// Requests that change nothing for the front end that has the port: they set up neither memory nor a virtqueue.
const HARMLESS: [FrontendReq; 19] = [
    FrontendReq::GET_FEATURES,
    FrontendReq::SET_OWNER,
    FrontendReq::GET_PROTOCOL_FEATURES,
    FrontendReq::SET_PROTOCOL_FEATURES,
    FrontendReq::SET_FEATURES,
    FrontendReq::NET_SET_MTU,
    FrontendReq::GET_STATUS,
    FrontendReq::SET_STATUS,
    FrontendReq::GET_QUEUE_NUM,
    FrontendReq::GET_MAX_MEM_SLOTS,
    FrontendReq::GET_CONFIG,
    FrontendReq::SET_CONFIG,
    FrontendReq::SET_BACKEND_REQ_FD,
    FrontendReq::SET_VRING_CALL,
    FrontendReq::SET_VRING_ERR,
    FrontendReq::SET_VRING_ENABLE,
    FrontendReq::RESET_DEVICE,
    FrontendReq::POSTCOPY_ADVISE,
    FrontendReq::POSTCOPY_LISTEN,
];

/// See the module.
pub(super) struct FrontEnd {
    pub(super) stream: Watched<UnixStream>,
    pub(super) device: Arc<Mutex<Device>>,
    /// The part of the next message that has arrived.
    pub(super) part: PartialMessage,
    /// The message by which it takes the port, to be served once the port is its own.
    pub(super) pending: Option<Message>,
    pub(super) handler: VhostHandler,
    /// Permit for the descriptors of the connection.
    _held: Permit,
}

/// The state of a second front end beside the one that has the port.
#[derive(Debug)]
pub(super) enum SecondState {
    /// The front end waits for the port.
    Waits,
    /// The connection is to be closed, for this reason; descriptors may have run out.
    Leaves(io::Error),
    /// The port is to be its own now.
    TakesOver,
}

impl FrontEnd {
    /// A front end that has connected by `stream`, which the session of `context` serves.
    ///
    /// # Errors
    /// Descriptors ran out: the port's quota, or the process's; or the kernel's, where it may watch no more of them (epoll(7)).
    pub(super) fn new(
        (context, network, settings): (&Context, &Arc<Network>, &DeviceSettings),
        stream: UnixStream,
    ) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        let stream = context.watch(stream)?;
        let held = settings.port.quotas.descriptors.take(descriptors::OF_CONNECTION).ok_or_else(descriptors::ran_out)?;
        let device = Arc::new(Mutex::new(Device::new(Arc::clone(network), settings.clone())));
        let handler = VhostHandler::new(&device)?;
        Ok(Self { stream, device, part: PartialMessage::default(), pending: None, handler, _held: held })
    }

    /// Admits the front end beside the one that has the port: from now on nothing that it does makes the session wait.
    pub(super) fn admit(&self) {
        device::lock(&self.device).wait_for_port();
    }

    /// The front end of another process's session, which was admitted beside the one that has the port.
    ///
    /// # Errors
    /// Descriptors ran out, or the description is damaged.
    pub(super) fn restore_beside(
        own: (&Context, &Arc<Network>, &DeviceSettings),
        saved: &SavedConnection,
        files: &mut ReceivedFiles,
    ) -> io::Result<Self> {
        let socket = files.take(saved.socket).ok_or(io::ErrorKind::InvalidData)?;
        let mut front_end = Self::new(own, OwnedFd::from(socket).into())?;
        front_end.admit();
        front_end.part = front_end.restore(saved, files)?;
        Ok(front_end)
    }

    /// Restores the device as another process's session has left it at a takeover, up to the start of its virtqueues; returns the part of
    /// a message that has arrived.
    ///
    /// # Errors
    /// The errors of the messages of a front end.
    pub(super) fn restore(&mut self, saved: &SavedConnection, files: &mut ReceivedFiles) -> io::Result<PartialMessage> {
        let lock = || device::lock(&self.device);
        lock().restore_offer(saved);
        self.handler.restore(saved)?;
        lock().restore(saved, files).map_err(io::Error::other)?;
        let part_files = saved.part_files.iter().map(|&number| files.take(number).ok_or(io::ErrorKind::InvalidData));
        Ok(PartialMessage { bytes: saved.part.clone(), files: part_files.collect::<Result<_, _>>()? })
    }

    /// The session of a front end that was admitted beside the one that has the port.
    ///
    /// # Errors
    /// The kernel refuses a descriptor.
    pub(super) fn standing(&self) -> io::Result<StandingConnection> {
        let part = match &self.pending {
            Some(message) => message.to_part()?,
            None => self.part.try_clone()?,
        };
        let (device, stream) = (Arc::clone(&self.device), self.stream.try_clone()?);
        Ok(StandingConnection { device, stream, part, control: None, second: None })
    }

    /// The port is this front end's now.
    pub(super) fn take_port(&self) {
        device::lock(&self.device).take_port();
    }

    /// Serves the next message of a front end beside the one that has the port, if it has arrived.
    pub(super) fn serve_beside(&mut self, settings: &DeviceSettings) -> SecondState {
        self.stream.clear();
        let message = match Message::receive(&self.stream, &mut self.part) {
            Ok(Some(message)) => message,
            Ok(None) => return SecondState::Waits,
            Err(WireError::Descriptors) if descriptors::are_short() => return SecondState::Leaves(descriptors::ran_out()),
            Err(error) => return SecondState::Leaves(io::Error::other(error)),
        };
        settings.port.log_message(format_args!("second front end sends {message}"));
        if !HARMLESS.iter().any(|&harmless| u32::from(harmless) == message.request) {
            self.pending = Some(message);
            return SecondState::TakesOver;
        }
        // The next message may be there already.
        self.stream.set_ready();
        let mut reply = Reply::default();
        let served = serve(&message, &mut self.handler, &self.device, &mut reply);
        // A front end that does not read its replies leaves.
        let is_sent = reply.send(&self.stream).and_then(|all| if all { Ok(()) } else { Err(io::ErrorKind::WouldBlock.into()) });
        let served = is_sent.and(served);
        let mut device = device::lock(&self.device);
        match (served, device.take_fault()) {
            _ if device.is_short() => SecondState::Leaves(descriptors::ran_out()),
            (_, Some(fault)) => SecondState::Leaves(io::Error::other(fault)),
            (Err(_), None) if descriptors::are_short() => SecondState::Leaves(descriptors::ran_out()),
            (Err(error), None) => SecondState::Leaves(error),
            (Ok(()), None) => SecondState::Waits,
        }
    }
}

/// Serves `message`; adds the answer to `replies` where one is due.
///
/// # Errors
/// The message breaks a rule.
pub(super) fn serve(message: &Message, handler: &mut VhostHandler, device: &Mutex<Device>, replies: &mut Reply) -> io::Result<()> {
    if let Some(request) = extra::is_ours(message) {
        return extra::serve(request, message, &mut device::lock(device), replies);
    }
    let channel = backend_channel(message)?;
    handler.serve(message, replies)?;
    channel.into_iter().for_each(|channel| device::lock(device).keep_backend_channel(channel));
    Ok(())
}

/// A copy of the channel for messages to the front end, if `message` brings it.
fn backend_channel(message: &Message) -> io::Result<Option<File>> {
    let brings = message.request == u32::from(FrontendReq::SET_BACKEND_REQ_FD);
    message.files.first().filter(|_| brings).map(File::try_clone).transpose()
}

/// The `vhost` crate's handler, behind a socket pair.
pub(super) struct VhostHandler {
    handler: BackendReqHandler<Mutex<Device>>,
    ours: UnixStream,
}

impl VhostHandler {
    pub(super) fn new(device: &Arc<Mutex<Device>>) -> io::Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        Ok(Self { handler: BackendReqHandler::from_stream(theirs, Arc::clone(device)), ours })
    }

    /// Has the handler agree to the features of another process's session, as its front end did.
    pub(super) fn restore(&mut self, saved: &SavedConnection) -> io::Result<()> {
        let number = |request: FrontendReq, number: u64| (request, number.to_ne_bytes().to_vec());
        let ask = |request: FrontendReq| (request, Vec::new());
        let mut messages = Vec::new();
        if saved.owned {
            messages.push(ask(FrontendReq::SET_OWNER));
        }
        messages.push(ask(FrontendReq::GET_FEATURES));
        if saved.protocol_offer.is_some() {
            messages.push(ask(FrontendReq::GET_PROTOCOL_FEATURES));
        }
        if saved.protocol != 0 {
            messages.push(number(FrontendReq::SET_PROTOCOL_FEATURES, saved.protocol));
        }
        if saved.features != 0 {
            // The offer depends on the protocol features, the crate's handling of these on the features.
            messages.push(ask(FrontendReq::GET_FEATURES));
            messages.push(number(FrontendReq::SET_FEATURES, saved.features));
        }
        let postcopy: &[FrontendReq] = match saved.postcopy {
            SavedPostcopy::Inactive => &[],
            SavedPostcopy::Advised => &[FrontendReq::POSTCOPY_ADVISE],
            SavedPostcopy::Listening => &[FrontendReq::POSTCOPY_ADVISE, FrontendReq::POSTCOPY_LISTEN],
        };
        messages.extend(postcopy.iter().map(|&request| ask(request)));
        for (request, payload) in messages {
            let message = Message { request: request.into(), flags: extra::VERSION, payload, files: Vec::new() };
            // The reply is not for the front end, which has had its own.
            self.serve(&message, &mut Reply::default())?;
        }
        Ok(())
    }

    /// Has the handler serve `message`, and adds its reply to `replies`, with the file descriptor that it may carry.
    fn serve(&mut self, message: &Message, replies: &mut Reply) -> io::Result<()> {
        message.send(&self.ours)?;
        let result = self.handler.handle_request();
        let (mut answer, mut files) = ([0; wire::HEADER + wire::MAX_PAYLOAD], Vec::new());
        match system::receive::<1>(&self.ours, &mut answer, &mut files) {
            Ok(length) => replies.add_bytes(&answer[..length], files),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        result.map_err(io::Error::other)
    }
}
