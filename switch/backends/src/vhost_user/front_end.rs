//! A front end that has connected: its connection, and the device that it sets up.
//!
//! Where a second front end may replace the first (`second = "replace"`), it is **admitted** beside it: QEMU's cpr-transfer and Cloud
//! Hypervisor's local migration start the new process while the old one still runs the guest. Its questions are answered, and the
//! port stays with the first, until the second sends the first message that sets up memory or a virtqueue.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};

use super::device::{self, Device};
use super::messages;
use super::settings::DeviceSettings;
use super::wire::{Message, PartialMessage, Reply, WireError};
use crate::budget::Permit;
use crate::descriptors;
use crate::executor::{Context, Watched};
use crate::network::Network;
use crate::takeover::{FilesToSend, ReceivedFiles, SavedConnection};
use crate::worker::QueueFiles;

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

    /// The front end while its session stands still.
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

/// A connection of a session that stands still.
pub struct StandingConnection {
    pub(super) device: Arc<Mutex<Device>>,
    pub(super) stream: UnixStream,
    /// The part of the next message that has arrived.
    pub(super) part: PartialMessage,
    /// The control queue, if it runs.
    pub(super) control: Option<QueueFiles>,
    /// The front end that was admitted beside it.
    pub(super) second: Option<Box<Self>>,
}

impl fmt::Debug for StandingConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StandingConnection").finish_non_exhaustive()
    }
}

impl StandingConnection {
    /// Describes it, and adds its descriptors to `files`. `queues` are those of its virtqueues that run at workers
    /// ([`Network::queue_files`]).
    ///
    /// # Errors
    /// The kernel refuses a descriptor.
    pub fn save(self, mut queues: Vec<QueueFiles>, files: &mut FilesToSend) -> io::Result<SavedConnection> {
        let Self { device, stream, part, control, second } = self;
        queues.extend(control);
        let mut saved = device::lock(&device).save(files, queues)?;
        saved.socket = files.add(stream);
        saved.part = part.bytes;
        saved.part_files = part.files.into_iter().map(|file| files.add(file)).collect();
        saved.second = second.map(|second| second.save(Vec::new(), files)).transpose()?.map(Box::new);
        Ok(saved)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;

    use nix::sys::eventfd::EventFd;
    use nix::sys::memfd::{MFdFlags, memfd_create};
    use vhost::vhost_user::VhostUserProtocolFeatures as Protocol;
    use vhost::vhost_user::message::FrontendReq as Request;

    use super::super::features::{PROTOCOL_FEATURES, known_protocol};
    use super::*;
    use crate::listener::Second;
    use crate::port::Port;
    use crate::settings::Settings;
    use crate::shared::Shared;
    use crate::takeover::pair;

    /// The messages of a front end that has set up a bit of everything, but no virtqueue so far that it starts.
    fn conversation() -> Vec<(Request, Vec<u64>, Option<File>)> {
        let memory = File::from(memfd_create(c"guest", MFdFlags::MFD_CLOEXEC).unwrap());
        memory.set_len(1 << 20).unwrap();
        let memory = || Some(memory.try_clone().unwrap());
        let event = || Some(EventFd::new().unwrap().as_fd().try_clone_to_owned().unwrap().into());
        let (channel, _) = UnixStream::pair().unwrap();
        let (state, _) = io::pipe().unwrap();
        let protocol = known_protocol() & !(Protocol::CONFIG | Protocol::PAGEFAULT);
        vec![
            (Request::SET_OWNER, vec![], None),
            (Request::GET_PROTOCOL_FEATURES, vec![], None),
            (Request::SET_PROTOCOL_FEATURES, vec![protocol.bits()], None),
            (Request::SET_FEATURES, vec![1 << 32 | PROTOCOL_FEATURES], None),
            (Request::NET_SET_MTU, vec![1400], None),
            (Request::SET_STATUS, vec![11], None),
            (Request::SET_MEM_TABLE, vec![pair(1, 0), 0x1000, 0x8000, 0x7000_0000, 0x2000], memory()),
            (Request::ADD_MEM_REG, vec![0, 0x9000, 0x1000, 0x7000_8000, 0xa000], memory()),
            (Request::SET_LOG_BASE, vec![0x1000, 0xc000], memory()),
            (Request::SET_INFLIGHT_FD, vec![0x8000, 0x10000, pair(256 << 16 | 2, 0)], memory()),
            (Request::SET_DEVICE_STATE_FD, vec![pair(1, 0)], Some(OwnedFd::from(state).into())),
            (Request::SET_BACKEND_REQ_FD, vec![], Some(OwnedFd::from(channel).into())),
            (Request::SET_VRING_NUM, vec![pair(0, 256)], None),
            (Request::SET_VRING_BASE, vec![pair(0, 7)], None),
            (Request::SET_VRING_ADDR, vec![pair(0, 1), 0x7000_0000, 0x7000_2000, 0x7000_1000, 0x3000], None),
            (Request::SET_VRING_CALL, vec![0], event()),
            (Request::SET_VRING_ERR, vec![0], event()),
            (Request::SET_VRING_ENABLE, vec![pair(0, 1)], None),
            (Request::SET_VRING_KICK, vec![1], event()),
            (Request::SET_VRING_KICK, vec![2 | messages::WITHOUT_FILE], None),
        ]
    }

    #[test]
    fn a_device_to_which_a_session_was_replayed_is_described_as_the_one_before() {
        let network = Network::start(Shared::new(1, 7, Settings::default()), &[]).unwrap();
        let port = Port::row(network.shared(), 1).remove(0);
        let settings = DeviceSettings { port, receive_offloads: true, pairs: 1, lazy_memory: false, second: Second::Refuse };
        let device = || Device::new(Arc::clone(&network), settings.clone());
        let described = |device: &Device| {
            let mut files = FilesToSend::default();
            let saved = device.save(&mut files, Vec::new()).unwrap();
            (saved, ReceivedFiles::new(files.into_files().into_iter().map(File::from)))
        };
        let (mut first, mut next) = (device(), device());
        for (request, payload, file) in conversation() {
            let payload = payload.into_iter().flat_map(u64::to_ne_bytes).collect();
            let message = Message { request: request.into(), flags: 1, payload, files: file.into_iter().collect() };
            messages::serve(message, &mut first, &mut Reply::default()).unwrap();
        }
        let (saved, mut files) = described(&first);
        next.restore(&saved, &mut files).unwrap();
        assert_eq!(described(&next).0, saved);
        assert_eq!(saved.messages.len(), conversation().len() - 1, "no more is lost than a question: {:?}", saved.messages);
    }
}
