//! The conversation with a front end: one message after the other.

use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use super::Pause;
use super::control::HeldControlQueue;
use super::device;
use super::front_end::{FrontEnd, SecondState, StandingConnection};
use super::messages;
use super::settings::DeviceSettings;
use super::shared_memory_check::SharedMemoryCheck;
use super::socket::Listener;
use super::wire::{Message, Reply, WireError};
use crate::descriptors;
use crate::executor::{Context, Executor, Watched};
use crate::listener::{self, Second};
use crate::network::Network;
use crate::session::GUEST_PAUSE;
use crate::takeover::{Progress, ReceivedFiles, RestoredDevice, SavedConnection};

/// A session of another process.
pub(super) struct Restored {
    pub(super) connection: SavedConnection,
    pub(super) files: ReceivedFiles,
    pub(super) progress: Progress,
}

/// Serves messages until the front end disconnects. The caller then stops the virtqueues that were started. For fuzzers, which bring a
/// connection of their own.
///
/// # Errors
/// The front end violated the protocol, or the connection failed; the kernel refuses a thread or descriptors.
pub fn converse(network: &Arc<Network>, settings: &DeviceSettings, stream: UnixStream) -> Result<&'static str, io::Error> {
    static EXECUTOR: OnceLock<Result<Executor, io::ErrorKind>> = OnceLock::new();
    let executor = EXECUTOR.get_or_init(|| Executor::new().map_err(|error| error.kind())).as_ref().map_err(|kind| *kind)?;
    executor.run_here(|context| async move {
        let own = (&context, network, settings);
        let front_end = FrontEnd::new(own, stream)?;
        Conversation::new(own, None, None, &mut None).run(front_end, None).await
    })
}

/// See the module.
pub(super) struct Conversation<'c> {
    context: &'c Context,
    network: &'c Arc<Network>,
    settings: &'c DeviceSettings,
    listener: Option<&'c Watched<Arc<Listener>>>,
    pause: Option<&'c Pause>,
    /// The front end that was admitted beside this one.
    second: &'c mut Option<FrontEnd>,
    /// Another front end is to have the port.
    is_replaced: bool,
}

/// An event for which a conversation waits.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// The session is to stand still.
    Standstill,
    /// The stream is readable or closed.
    Message,
    /// The stream of the second front end is.
    Second,
    /// A further front end has connected.
    Connection,
}

impl<'c> Conversation<'c> {
    /// A conversation of the session, with `second` beside it. Others connect at `listener` meanwhile.
    pub(super) fn new(
        (context, network, settings): (&'c Context, &'c Arc<Network>, &'c DeviceSettings),
        listener: Option<&'c Watched<Arc<Listener>>>,
        pause: Option<&'c Pause>,
        second: &'c mut Option<FrontEnd>,
    ) -> Self {
        Self { context, network, settings, listener, pause, second, is_replaced: false }
    }

    /// Runs to the end of the session with `front_end`; returns its reason.
    pub(super) async fn run(mut self, mut front_end: FrontEnd, restored: Option<Box<Restored>>) -> io::Result<&'static str> {
        let Self { context, settings, .. } = self;
        let kicks = settings.port.totals().kicks;
        if let Some(restored) = restored {
            self.restore(&mut front_end, *restored).await?;
        }
        loop {
            let received = match front_end.pending.take() {
                Some(message) => Ok(message),
                None => self.receive(&mut front_end, kicks).await,
            };
            let message = match received {
                Ok(message) => message,
                Err(WireError::HungUp) => return Ok(listener::end(self.is_replaced)),
                // The front end may have been in the middle of a message.
                Err(_) if self.is_replaced => return Ok(listener::end(true)),
                Err(WireError::Descriptors) if descriptors::are_short() => return Err(descriptors::ran_out()),
                Err(error) => return Err(io::Error::other(error)),
            };
            settings.port.log_message(format_args!("front end sends {message}"));
            settings.port.ephemeral.note_message();
            let mut reply = Reply::default();
            let served = messages::serve(message, &mut device::lock(&front_end.device), &mut reply);
            let served = self.send(&front_end, reply).await.and(served);
            let (short, fault) = {
                let mut device = device::lock(&front_end.device);
                (device.is_short(), device.take_fault())
            };
            if short || served.is_err() && fault.is_none() && descriptors::are_short() {
                return Err(descriptors::ran_out());
            }
            if let Some(cause) = fault {
                // The guest violated the protocol, not the front end.
                self.quarantine(&cause).await;
                continue;
            }
            match served {
                Ok(()) => {}
                // The front end was killed, or its machine rebooted, before it could read the reply: no violation.
                Err(error) if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {
                    return Ok(listener::end(self.is_replaced));
                }
                Err(error) => return Err(error),
            }
            // The sessions of other ports have their turn between two messages of a front end that sends many.
            context.yield_now().await;
        }
    }

    /// Waits for the next message, and within the control rate of the port.
    async fn receive(&mut self, front_end: &mut FrontEnd, kicks: u64) -> Result<Message, WireError> {
        if let Some(pause) = self.settings.port.control_pause() {
            // A further front end waits, too: the messages of this one may have been its last.
            self.pause_until(front_end, Instant::now() + pause).await;
        }
        loop {
            if self.pause.is_some_and(Pause::is_asked) {
                self.stand(front_end).await;
            }
            front_end.stream.clear();
            if let Some(message) = Message::receive(&front_end.stream, &mut front_end.part)? {
                return Ok(message);
            }
            if front_end.part.bytes.is_empty() {
                self.check_memory(front_end, kicks).await;
            }
            self.wait(front_end, None).await;
        }
    }

    /// Checks from time to time whether the guest's memory is shared, until that need not be checked, or a message arrives.
    async fn check_memory(&mut self, front_end: &FrontEnd, kicks: u64) {
        let mut check = SharedMemoryCheck::new(&self.settings.port, &front_end.device, kicks);
        while let Some(pause) = check.pause() {
            if self.wait(front_end, Some(Instant::now() + pause)).await || !check.check() {
                return;
            }
        }
    }

    /// Waits until the moment `end`. Meanwhile the session stands still if it is asked to.
    async fn pause_until(&self, front_end: &FrontEnd, end: Instant) {
        let is_asked = || self.pause.is_some_and(Pause::is_asked).then_some(());
        while self.context.wait(Some(end), is_asked).await.is_some() {
            self.stand(front_end).await;
        }
    }

    /// Waits until the stream of `front_end`, of which all has been read, is readable or closed, or until the moment `end`; returns true if
    /// it is readable. Meanwhile the session stands still if it is asked to, further front ends are refused or admitted, and the
    /// messages of one that was admitted are served. None of its acts lengthens the wait.
    async fn wait(&mut self, front_end: &FrontEnd, end: Option<Instant>) -> bool {
        loop {
            let event = self.context.wait(end, || self.event(front_end)).await;
            match event {
                None => return false,
                Some(Event::Message) => return true,
                Some(Event::Standstill) => self.stand(front_end).await,
                Some(Event::Second) => {
                    self.serve_second(front_end);
                    self.context.yield_now().await;
                }
                Some(Event::Connection) => self.connected(front_end).await,
            }
        }
    }

    /// The next event. A message takes precedence over a new connection: it may be the end of the session, and then the new
    /// connection is not refused.
    fn event(&self, front_end: &FrontEnd) -> Option<Event> {
        if self.pause.is_some_and(Pause::is_asked) {
            Some(Event::Standstill)
        } else if front_end.stream.is_ready() {
            Some(Event::Message)
        } else if self.second.as_ref().is_some_and(|second| second.stream.is_ready()) {
            Some(Event::Second)
        } else {
            self.listener.is_some_and(Watched::is_readable).then_some(Event::Connection)
        }
    }

    /// Sends `reply`. While the front end does not read, it has no turn, and no other does.
    async fn send(&self, front_end: &FrontEnd, mut reply: Reply) -> io::Result<()> {
        let stream = &front_end.stream;
        if reply.send(stream)? {
            return Ok(());
        }
        stream.watch_writes(true)?;
        loop {
            stream.clear();
            if reply.send(stream)? {
                break;
            }
            self.context.wait(None, || stream.is_ready().then_some(())).await;
        }
        stream.watch_writes(false)
    }

    /// Quarantines the port and pauses, so that a front end that keeps breaking rules gets a small part of a CPU.
    async fn quarantine(&self, cause: &str) {
        self.network.quarantine(&self.settings.port, cause);
        self.context.sleep(GUEST_PAUSE).await;
    }

    /// A connection is pending at the listener: refuses it unless the present one ends, or admits it, where it may replace that.
    async fn connected(&mut self, front_end: &FrontEnd) {
        let Some(listener) = self.listener else { return };
        match self.settings.second {
            Second::Refuse => {
                let has_message = || front_end.stream.is_ready().then_some(());
                listener::refuse(self.context, listener.socket(), &self.settings.port, has_message).await;
            }
            Second::Replace => {
                // A pause, so that a program that connects in a loop gets a small part of a CPU.
                self.context.sleep(GUEST_PAUSE).await;
                if let Ok((stream, _)) = listener.socket().accept() {
                    self.admit(stream);
                }
            }
        }
    }

    /// Admits a further front end. It takes the place of one that was admitted before.
    fn admit(&mut self, stream: UnixStream) {
        match FrontEnd::new((self.context, self.network, self.settings), stream) {
            Ok(second) => {
                second.admit();
                *self.second = Some(second);
            }
            Err(error) => self.tell_end_of_second(&error),
        }
    }

    /// Serves a message of the front end that was admitted beside this one, which ends if the other is to have the port.
    fn serve_second(&mut self, front_end: &FrontEnd) {
        let state = self.second.as_mut().map(|second| second.serve_beside(self.settings));
        match state {
            None | Some(SecondState::Waits) => {}
            Some(SecondState::Leaves(error)) => {
                self.second.take();
                self.tell_end_of_second(&error);
            }
            Some(SecondState::TakesOver) => {
                self.is_replaced = true;
                // The stream reads as closed here, and is still open for the front end.
                let _ = front_end.stream.shutdown(Shutdown::Read);
                front_end.stream.set_ready();
            }
        }
    }

    /// Tells why the connection of a second front end was closed.
    fn tell_end_of_second(&self, error: &io::Error) {
        if descriptors::is_shortage(error) {
            self.network.note_shortage(&self.settings.port);
        }
        self.settings.port.log_message(format_args!("second front end left: {error}"));
    }

    /// Goes on with a session of another process: restores its state, and waits until the virtqueues were started.
    async fn restore(&mut self, front_end: &mut FrontEnd, restored: Restored) -> io::Result<()> {
        let Restored { connection: saved, mut files, progress } = restored;
        let restored = front_end.restore(&saved, &mut files);
        let device = Arc::clone(&front_end.device);
        let device_to_start = RestoredDevice(Box::new(move || device::lock(&device).start_restored()));
        progress.report(restored.as_ref().map(|_| Some(device_to_start)).map_err(io::Error::to_string));
        let part = restored?;
        let own = (self.context, self.network, self.settings);
        let second = saved.second.as_ref().map(|second| FrontEnd::restore_beside(own, second, &mut files));
        match second.transpose() {
            Ok(second) => *self.second = second,
            Err(error) => self.tell_end_of_second(&error),
        }
        progress.gate.pass(self.context).await;
        let (fault, error) = {
            let mut device = device::lock(&front_end.device);
            (device.take_fault(), device.take_resume_error())
        };
        match (fault, error) {
            (Some(cause), _) => self.quarantine(&cause).await,
            (None, Some(error)) => return Err(error),
            (None, None) => {}
        }
        front_end.part = part;
        Ok(())
    }

    /// Stands still if that was asked for, with its threads.
    async fn stand(&self, front_end: &FrontEnd) {
        let (Some(pause), mut held) = (self.pause, None) else { return };
        let ready = || self.standing(front_end, &mut held).map(Some);
        if pause.stand_if_asked(self.context, ready).await {
            held.into_iter().for_each(HeldControlQueue::go_on_behind);
        }
    }

    /// The session with `front_end`, and the front end beside it; its control queue is `held`.
    fn standing(&self, front_end: &FrontEnd, held: &mut Option<HeldControlQueue>) -> io::Result<StandingConnection> {
        let second = self.second.as_ref().map(FrontEnd::standing).transpose()?.map(Box::new);
        let (control, of_control) = device::lock(&front_end.device).hold_control()?.unzip();
        *held = of_control;
        Ok(StandingConnection { control, second, ..front_end.standing()? })
    }
}
