//! System calls of a worker that a frame wakes and that sleeps again. The kernel asks a supervisor about each call of the worker's thread
//! (seccomp_unotify(2)), which counts it and lets it go on.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use memlane::id::{Direction, PortId, RingKey, RouteEntry};
use memlane::offload::Offloads;
use memlane::policy::PortLimits;
use memlane::port::Port;
use memlane::ring::{Call, ReceiveQueue, TransmitQueue};
use memlane::settings::{Poll, Settings};
use memlane::shared::Shared;
use memlane::worker::{Mailbox, Start, Worker, links};
use memlane_rig::ring::Interrupts;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::bed::Guest;
use crate::common::wait_until;

/// Frames that are counted.
const FRAMES: u64 = 100;
/// After this, a worker that asks for kicks sleeps.
const ASLEEP: Duration = Duration::from_millis(2);
/// Between two lost-notification checks of a ring.
const CHECKS: Duration = Duration::from_millis(50);

/// System calls of a thread, by number. The supervisor neither allocates nor locks: the thread may hold the allocator's lock in a call.
struct Calls([AtomicU64; 512]);

impl Calls {
    /// The numbers of calls that were made, with their counts.
    fn counts(&self) -> BTreeMap<usize, u64> {
        self.0.iter().map(|count| count.load(Ordering::Acquire)).enumerate().filter(|&(_, count)| count > 0).collect()
    }
}

/// Runs `run` in a thread; returns the thread and its system calls, which are counted until it ends.
fn counted(run: impl FnOnce() + Send + 'static) -> (JoinHandle<()>, Arc<Calls>) {
    let calls = Arc::new(Calls(std::array::from_fn(|_| AtomicU64::new(0))));
    let listener = Arc::new(AtomicI32::new(-1));
    let told = Arc::clone(&listener);
    // The thread may make no call before its supervisor listens: the number of the descriptor comes by memory.
    let thread = std::thread::spawn(move || {
        told.store(ask_about_calls(), Ordering::Release);
        run();
    });
    while listener.load(Ordering::Acquire) < 0 {
        assert!(!thread.is_finished(), "the kernel asks about system calls");
        std::hint::spin_loop();
    }
    // SAFETY: the number is that of a descriptor that was made for this, and has no other owner.
    let listener = unsafe { OwnedFd::from_raw_fd(listener.load(Ordering::Acquire)) };
    let counts = Arc::clone(&calls);
    std::thread::spawn(move || supervise(&listener, &counts));
    (thread, calls)
}

/// Has the kernel ask about each later system call of this thread; returns the descriptor of the questions.
fn ask_about_calls() -> i32 {
    nix::sys::prctl::set_no_new_privs().unwrap();
    let mut program = [libc::sock_filter { code: libc::BPF_RET as u16, jt: 0, jf: 0, k: libc::SECCOMP_RET_USER_NOTIF }];
    let program = libc::sock_fprog { len: 1, filter: program.as_mut_ptr() };
    // SAFETY: the kernel reads a program of one instruction, which lives during the call.
    let listener = unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, libc::SECCOMP_FILTER_FLAG_NEW_LISTENER, &raw const program)
    };
    i32::try_from(listener).ok().filter(|&listener| listener >= 0).expect("a kernel that has seccomp_unotify (Linux 5.5)")
}

/// Counts system calls, and lets them go on, until their thread has ended.
fn supervise(listener: &OwnedFd, calls: &Calls) {
    loop {
        let mut ready = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
        let _ = poll(&mut ready, PollTimeout::NONE);
        let events = ready[0].revents().unwrap_or(PollFlags::empty());
        if !events.contains(PollFlags::POLLIN) {
            if events.contains(PollFlags::POLLHUP) {
                return;
            }
            continue;
        }
        // SAFETY: a structure of numbers, for which the kernel demands zeros.
        let mut question: libc::seccomp_notif = unsafe { std::mem::zeroed() };
        // SAFETY: the kernel fills in the structure.
        if unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut question) } == 0 {
            calls.0[question.data.nr as usize].fetch_add(1, Ordering::AcqRel);
            let flags = libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32;
            let mut answer = libc::seccomp_notif_resp { id: question.id, val: 0, error: 0, flags };
            // SAFETY: the kernel reads the structure.
            unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw mut answer) };
        }
    }
}

/// An eventfd for kicks or interrupts, and a second descriptor of it.
fn eventfd() -> (File, File) {
    let file = File::from(OwnedFd::from(EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC).unwrap()));
    (file.try_clone().unwrap(), file)
}

/// A guest at a worker, with its kick, and the interrupts of its transmit and receive queue.
struct Attached {
    guest: Guest,
    kick: File,
    interrupts: [File; 2],
}

impl Attached {
    fn new(worker: &mut Worker, index: u16) -> Self {
        let (guest, mut transmit, mut receive) = Guest::alone(false);
        let (kicks, calls) = ([eventfd(), eventfd()], [eventfd(), eventfd()]);
        let [(kick, transmit_kick), (_, receive_kick)] = kicks;
        let [(transmit_interrupt, transmit_call), (receive_interrupt, receive_call)] = calls;
        transmit.set_call(Some(Call::new(transmit_call).unwrap()));
        receive.set_call(Some(Call::new(receive_call).unwrap()));
        let key = |direction| RingKey { port: PortId(index), pair: 0, direction };
        let start = |kick| Start { kick: Some(kick), at_once: true, enabled: true, session: 0 };
        worker
            .add_transmit_queue(key(Direction::Transmit), TransmitQueue::new(transmit), Offloads::ALL, start(transmit_kick))
            .unwrap();
        let receive = ReceiveQueue::new(receive, Offloads::ALL, true);
        let slot = worker.add_receive_queue(key(Direction::Receive), receive, start(receive_kick)).unwrap();
        worker.set_route(PortId(index), vec![RouteEntry { worker: 0, slot }]);
        Self { guest, kick, interrupts: [transmit_interrupt, receive_interrupt] }
    }

    /// Sends a frame to guest `to`, with a kick if the worker asks for one; returns whether it did.
    fn send(&mut self, from: u16, to: u16) -> bool {
        self.guest.send(from, to, 60, 1);
        let is_kicked = self.guest.transmit.kick_needed();
        if is_kicked {
            self.kick.write_all(&1_u64.to_ne_bytes()).unwrap();
        }
        is_kicked
    }

    /// Waits for a frame.
    fn receive(&mut self) {
        wait_until(|| self.guest.settle() == 1, "the frame arrives");
    }

    /// Interrupts of the transmit and receive queue since this was last asked.
    fn interrupts(&mut self) -> [u64; 2] {
        self.interrupts.each_mut().map(|file| {
            let mut count = [0; 8];
            file.read(&mut count).map_or(0, |_| u64::from_ne_bytes(count))
        })
    }
}

/// The system calls of a worker to which guest 0 sends frames, each of which finds it asleep, for guest 1, which asks for interrupts. `completions`
/// says whether guest 0 asks for interrupts, too. Returns also how many calls lost-notification checks may add.
fn calls_of_frames(completions: Interrupts) -> (BTreeMap<usize, u64>, u64) {
    let shared = Arc::new(Shared::new(1, 77, Settings { poll: Poll::Never, ..Settings::default() }));
    let mailbox = Mailbox::new().unwrap();
    let links = links(&[Arc::clone(&mailbox)]).remove(0);
    let mut worker = Worker::new(0, Arc::clone(&shared), Arc::clone(&mailbox), links, channel().0).unwrap();
    let ports = Port::row(&shared, 2);
    ports.iter().for_each(|port| worker.enter_port(port));
    // So that no frame costs its sender too much in a build for tests, after which the worker would look once more before it sleeps.
    ports[0].policy.set(&PortLimits { weight: 1000, ..PortLimits::default() });
    let mut guests = [0, 1].map(|index| Attached::new(&mut worker, index));
    // So that the first interrupt does not start the watchdog in the worker's thread.
    memlane::watchdog::start().unwrap();
    let (thread, calls) = counted(move || {
        worker.run();
    });
    let [sender, receiver] = &mut guests;
    receiver.send(1, 0);
    sender.receive();
    sender.guest.transmit.set_interrupts(completions);
    receiver.guest.transmit.set_interrupts(Interrupts::Off);
    let (mut before, mut begun) = (BTreeMap::new(), Instant::now());
    for number in 0..=FRAMES {
        wait_until(|| sender.guest.transmit.shared().used_flags() == 0, "the worker asks for a kick");
        std::thread::sleep(ASLEEP);
        if number == 1 {
            (before, begun) = (calls.counts(), Instant::now());
        }
        assert!(sender.send(0, 1), "frame {number} finds the worker asleep");
        receiver.receive();
        wait_until(|| receiver.interrupts()[1] > 0, "the receiver is interrupted");
        wait_until(|| completions == Interrupts::Off || sender.interrupts()[0] > 0, "the sender is interrupted");
    }
    std::thread::sleep(ASLEEP);
    let mut counts = calls.counts();
    let checks = begun.elapsed().div_duration_f64(CHECKS) as u64 + 1;
    counts.iter_mut().for_each(|(number, count)| *count -= before.get(number).copied().unwrap_or(0));
    mailbox.close();
    thread.join().unwrap();
    // The thread's clock is read after each millisecond awake, which lasts longer under supervision.
    counts.remove(&(libc::SYS_clock_gettime as usize));
    // At each check of two rings a timer is set, and ends a wait.
    (counts, 6 * checks)
}

#[test]
fn a_frame_that_wakes_a_worker_takes_an_interrupt_and_a_wait() {
    let (counts, others) = calls_of_frames(Interrupts::Off);
    let all: u64 = counts.values().sum();
    assert_eq!(counts.get(&(libc::SYS_write as usize)), Some(&FRAMES), "an interrupt for each frame: {counts:?}");
    assert!(all <= 2 * FRAMES + others, "{all} system calls for {FRAMES} frames, by number: {counts:?}");
}

#[test]
fn a_frame_with_a_late_completion_takes_two_interrupts_and_two_waits() {
    let (counts, others) = calls_of_frames(Interrupts::Next);
    let all: u64 = counts.values().sum();
    assert_eq!(counts.get(&(libc::SYS_write as usize)), Some(&(2 * FRAMES)), "both guests are interrupted: {counts:?}");
    assert!(all <= 4 * FRAMES + others, "{all} system calls for {FRAMES} frames, by number: {counts:?}");
}
