//! The control virtqueue (VIRTIO_NET_F_CTRL_VQ, for multiqueue) where the front end leaves it to the back end (UML, crosvm), served
//! by a thread of its own.
//!
//! A **kick** from the guest or an **order** from the session wakes the thread; it answers the pending commands and sleeps again.
//! The thread answers at most one queue full of commands per millisecond, so that no guest can use up a CPU here. An order waits for one
//! command at most, so the thread ends with its session.
//!
//! Queues are served once they start, enabled or not: commands change settings, from which disabling a queue does not protect.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use virtio_bindings::virtio_net as net;
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};

use crate::network::Network;
use crate::network::fatal::{caught, defect};
use crate::port::Port;
use crate::ring::{Answer, Call, Control, RingFault, RingLog, SplitRing, StoppedRing};
use crate::session::{END_TIMEOUT, GUEST_PAUSE};

/// How often a deferred interrupt is tried again.
const KEPT: Duration = Duration::from_millis(50);

type Order = Box<dyn FnOnce(&mut Control) -> Then + Send>;

/// Whether the thread goes on after an order.
enum Then {
    GoOn,
    End,
}

/// Objects that commands act on.
#[derive(Debug)]
pub(super) struct Commands {
    pub network: Arc<Network>,
    pub port: Arc<Port>,
    /// Queue pairs that the guest may use.
    pub pairs: u16,
}

impl Commands {
    /// Carries out one command: its class, its number, its data (virtio 1.4, section 5.1.6.5).
    fn obey(&self, command: &[u8]) -> Answer {
        match command {
            [class, number, low, high]
                if (u32::from(*class), u32::from(*number)) == (net::VIRTIO_NET_CTRL_MQ, net::VIRTIO_NET_CTRL_MQ_VQ_PAIRS_SET) =>
            {
                self.set_pairs(u16::from_le_bytes([*low, *high]))
            }
            // The announcement is the guest's own frames, which are on their way.
            [class, _] if u32::from(*class) == net::VIRTIO_NET_CTRL_ANNOUNCE => Answer::Done,
            _ => Answer::Refused,
        }
    }

    fn set_pairs(&self, pairs: u16) -> Answer {
        if !(1..=self.pairs).contains(&pairs) {
            return Answer::Refused;
        }
        self.port.limit_control_rate();
        self.network.set_active_pairs(&self.port, pairs);
        Answer::Done
    }
}

/// A running control virtqueue.
pub(super) struct ControlQueue {
    orders: Sender<Order>,
    /// Whether orders are pending: commands let them go first.
    waiting: Arc<AtomicBool>,
    wake_up: Arc<EventFd>,
    kick: Option<Arc<File>>,
}

/// The standstill of a control virtqueue, which ends when this is dropped.
#[derive(Debug)]
pub(super) struct HeldControlQueue {
    release: Sender<()>,
}

/// Descriptors of a control virtqueue: where its driver kicks, and where it is interrupted.
type ControlFiles = (Option<OwnedFd>, Option<OwnedFd>);

impl HeldControlQueue {
    /// Has the thread go on at the used index in memory: another process has served the virtqueue.
    pub(super) fn go_on_behind(self) {
        // A thread that has ended goes on no more.
        let _ = self.release.send(());
    }
}

impl ControlQueue {
    /// Serves the control virtqueue `control`, with kicks from `kick`, by `commands`.
    ///
    /// # Errors
    /// The kernel refuses a thread or descriptor.
    pub(super) fn start(control: Control, kick: Option<File>, commands: Commands) -> io::Result<Self> {
        let wake_up = Arc::new(EventFd::new(EFD_NONBLOCK | EFD_CLOEXEC)?);
        let (orders, taken) = channel();
        let epoll = Epoll::new()?;
        for descriptor in [Some(wake_up.as_raw_fd()), kick.as_ref().map(AsRawFd::as_raw_fd)].into_iter().flatten() {
            let event = EpollEvent::new(EventSet::IN | EventSet::EDGE_TRIGGERED, 0);
            epoll.ctl(ControlOperation::Add, descriptor, event)?;
        }
        let name = format!("control-{}", commands.port.id.0);
        let waiting = Arc::new(AtomicBool::new(false));
        let kick = kick.map(Arc::new);
        let thread = Thread { control, commands, orders: taken, waiting: Arc::clone(&waiting), epoll, kick: kick.clone() };
        std::thread::Builder::new().name(name).stack_size(128 * 1024).spawn(move || {
            let (network, port) = (Arc::clone(&thread.commands.network), Arc::clone(&thread.commands.port));
            if let Err(panic) = caught(|| thread.run()) {
                network.quarantine(&port, &defect(&panic));
            }
        })?;
        Ok(Self { orders, waiting, wake_up, kick })
    }

    /// Has the thread carry out `order` and waits for the result; `None` if the thread is gone or timed out.
    fn ask<R: Send + 'static>(&self, then: Then, order: impl FnOnce(&mut Control) -> R + Send + 'static) -> Option<R> {
        let (reply, answer) = channel();
        let order = move |control: &mut Control| {
            let _ = reply.send(order(control));
            then
        };
        self.order(Box::new(order))?;
        answer.recv_timeout(END_TIMEOUT).ok()
    }

    /// Sends an order and wakes the thread; `None` if it is gone.
    fn order(&self, order: Order) -> Option<()> {
        self.orders.send(order).ok()?;
        self.waiting.store(true, Ordering::Release);
        // Fails only when the eventfd's counter is at its maximum, and then the thread is being woken already.
        let _ = self.wake_up.write(1);
        Some(())
    }

    /// Stops the thread and its virtqueue.
    pub(super) fn stop(&self) -> Option<StoppedRing> {
        self.ask(Then::End, Control::stop)
    }

    /// Has the thread stand still; `None` if it is gone or timed out.
    pub(super) fn hold(&self) -> Option<io::Result<(ControlFiles, HeldControlQueue)>> {
        let (release, released) = channel();
        let (reply, answer) = channel();
        self.order(Box::new(move |control| {
            let copied = control.call().map(|call| call.descriptor().try_clone_to_owned()).transpose();
            let _ = reply.send(copied);
            if released.recv().is_ok() {
                control.resume();
            }
            Then::GoOn
        }))?;
        let call = answer.recv_timeout(END_TIMEOUT).ok()?;
        let kick = self.kick.as_ref().map(|kick| kick.as_fd().try_clone_to_owned()).transpose();
        Some(call.and_then(|call| Ok(((kick?, call), HeldControlQueue { release }))))
    }

    /// Changes how the driver is interrupted.
    pub(super) fn set_call(&self, call: Option<Call>) {
        self.ask(Then::GoOn, move |control| control.set_call(call));
    }

    /// Has writes marked in `log` from now on, or in none.
    pub(super) fn set_log(&self, log: Option<RingLog>) {
        self.ask(Then::GoOn, move |control| control.set_log(log));
    }

    /// Moves the virtqueue to other memory.
    pub(super) fn set_memory(&self, split: SplitRing, memory: Arc<crate::memory::MemoryMap>) {
        self.ask(Then::GoOn, move |control| control.set_memory(split, memory));
    }
}

impl Drop for ControlQueue {
    fn drop(&mut self) {
        // The thread may have ended already.
        let _ = self.order(Box::new(|_| Then::End));
    }
}

struct Thread {
    control: Control,
    commands: Commands,
    orders: Receiver<Order>,
    waiting: Arc<AtomicBool>,
    epoll: Epoll,
    /// Kept open while it is watched.
    kick: Option<Arc<File>>,
}

impl Thread {
    /// Runs until it is told to end, or until the session that could tell it is gone.
    fn run(mut self) {
        let mut events = [EpollEvent::default(); 2];
        loop {
            if !self.take_orders() {
                return;
            }
            let may_go_on = || !self.waiting.load(Ordering::Acquire);
            match self.control.serve(may_go_on, |command| self.commands.obey(command)) {
                Ok(more) => {
                    std::thread::sleep(GUEST_PAUSE);
                    let kept = match self.control.call_kept() {
                        Ok(kept) => kept,
                        Err(fault) => return self.give_up(fault),
                    };
                    let polls = more || self.kick.is_none();
                    let most = if polls {
                        0
                    } else if kept || self.control.waits_until().is_some() {
                        KEPT.as_millis() as i32
                    } else {
                        -1
                    };
                    // Without a kick eventfd the queue is polled. EINTR counts as a wake-up.
                    let _ = self.epoll.wait(most, &mut events);
                }
                Err(fault) => return self.give_up(fault),
            }
        }
    }

    /// Quarantines the port, unless this thread was to end: another session may own the port by now.
    fn give_up(&mut self, fault: RingFault) {
        if self.take_orders() {
            self.commands.network.quarantine(&self.commands.port, &fault.to_string());
        }
    }

    /// Carries out pending orders; false if one of them ends the thread.
    fn take_orders(&mut self) -> bool {
        // Cleared before the orders are taken: the sender of a later one sets it again.
        self.waiting.store(false, Ordering::Release);
        loop {
            match self.orders.try_recv() {
                Ok(order) => {
                    if matches!(order(&mut self.control), Then::End) {
                        return false;
                    }
                }
                Err(error) => return error == std::sync::mpsc::TryRecvError::Empty,
            }
        }
    }
}
