//! A front end that has connected: its connection, and the device that it sets up.
//!
//! Where a second front end may replace the first (`second = "replace"`), it is **admitted** beside it: QEMU's cpr-transfer and Cloud
//! Hypervisor's local migration start the new process while the old one still runs the guest. Its questions are answered, and the
//! port stays with the first, until the second sends the first message that sets up memory or a virtqueue.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};

use super::device::{self, Device};
use super::messages;
use super::saved::{SavedConnection, StandingConnection};
use super::settings::DeviceSettings;
use super::wire::{Message, PartialMessage, Reply, WireError};
use crate::budget::Permit;
use crate::descriptors;
use crate::executor::{Context, Watched};
use crate::network::Network;
use crate::takeover::ReceivedFiles;

/// See the module.
pub(super) struct FrontEnd {
    pub(super) stream: Watched<UnixStream>,
    pub(super) device: Arc<Mutex<Device>>,
    /// The part of the next message that has arrived.
    pub(super) part: PartialMessage,
    /// The message by which it takes the port, to be served once the port is its own.
    pub(super) pending: Option<Message>,
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
        let held = settings.port.quotas.descriptors.take(descriptors::OF_FRONT_END).ok_or_else(descriptors::ran_out)?;
        let device = Arc::new(Mutex::new(Device::new(Arc::clone(network), settings.clone())));
        Ok(Self { stream, device, part: PartialMessage::default(), pending: None, _held: held })
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
    pub(super) fn restore(&self, saved: &SavedConnection, files: &mut ReceivedFiles) -> io::Result<PartialMessage> {
        device::lock(&self.device).restore(saved, files)?;
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
        if !messages::is_harmless(message.request) {
            self.pending = Some(message);
            return SecondState::TakesOver;
        }
        // The next message may be there already.
        self.stream.set_ready();
        let mut reply = Reply::default();
        let mut device = device::lock(&self.device);
        let served = messages::serve(message, &mut device, &mut reply);
        // A front end that does not read its replies leaves.
        let is_sent = reply.send(&self.stream).and_then(|all| if all { Ok(()) } else { Err(io::ErrorKind::WouldBlock.into()) });
        let served = is_sent.and(served);
        match (served, device.take_fault()) {
            _ if device.is_short() => SecondState::Leaves(descriptors::ran_out()),
            (_, Some(fault)) => SecondState::Leaves(io::Error::other(fault)),
            (Err(_), None) if descriptors::are_short() => SecondState::Leaves(descriptors::ran_out()),
            (Err(error), None) => SecondState::Leaves(error),
            (Ok(()), None) => SecondState::Waits,
        }
    }
}
