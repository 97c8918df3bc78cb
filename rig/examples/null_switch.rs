//! The fastest wrong switch: it forwards between two ports with no check, no table, no feature but the plainest.
//!
//! The null switch finds the generator's own limit: no switch that does its work exceeds the rate that `memlane-rig blast` reaches against it.
//! Never run it with a guest that you do not trust.
//!
//! `null_switch A.sock B.sock`, then `memlane-rig blast -p vu:A.sock -p vu:B.sock`. It ends when a guest hangs up.

use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use memlane_rig::deadline::Deadline;
use memlane_rig::frontend::features::{MRG_RXBUF, VERSION_1};
use memlane_rig::frontend::wire::{self, Message};

/// Frames a burst.
const BURST: u16 = 64;
/// A message may be so long in coming.
const TIMEOUT: Duration = Duration::from_secs(3600);

/// After the kicks, silence for so long means that the guest has started.
const SILENCE: Duration = Duration::from_millis(50);

/// A ring's areas in our mapping.
#[derive(Clone, Copy)]
struct Ring {
    size: u16,
    descriptors: *const [u64; 2],
    available: *const u16,
    used: *mut u8,
    next: u16,
    done: u16,
}

impl Default for Ring {
    fn default() -> Self {
        let null = std::ptr::null_mut();
        Self { size: 0, descriptors: null as _, available: null as _, used: null, next: 0, done: 0 }
    }
}

#[derive(Default)]
struct Port {
    /// (user address, guest address, length, our mapping).
    regions: Vec<(u64, u64, u64, *mut u8)>,
    rings: [Ring; 2],
    kicked: [bool; 2],
}

impl Port {
    /// Speaks with a guest until both rings are kicked and nothing more is said for a while.
    fn handshake(stream: &UnixStream) -> Self {
        let mut port = Self::default();
        loop {
            let timeout = if port.running() { SILENCE } else { TIMEOUT };
            match wire::receive(stream, Deadline::after(timeout)) {
                Ok(message) => port.hear(stream, &message),
                Err(error) if error.kind() == ErrorKind::TimedOut => return port,
                Err(error) => panic!("the guest does not speak vhost-user: {error}"),
            }
        }
    }

    fn hear(&mut self, stream: &UnixStream, message: &Message) {
        let word = |at: usize| u64::from_le_bytes(message.body[at..at + 8].try_into().expect("eight bytes"));
        let ring = message.body.first().map_or(0, |index| usize::from(index & 1));
        match message.code {
            1 => answer(stream, message, VERSION_1 | MRG_RXBUF),
            5 => self.map(message),
            8 => self.rings[ring].size = (word(0) >> 32) as u16,
            9 => {
                let (descriptors, used, available) = (self.user(word(8)), self.user(word(16)), self.user(word(24)));
                let ring = &mut self.rings[ring];
                (ring.descriptors, ring.used, ring.available) = (descriptors.cast(), used, available.cast());
            }
            11 => {
                // Frames after the first stop (GET_VRING_BASE) do not matter: the run is over.
                self.kicked[ring] = false;
                answer(stream, message, word(0) | u64::from(self.rings[ring].next) << 32);
            }
            12 => {
                self.kicked[ring] = true;
                // No kicks wanted: the flag is the area's first word.
                // SAFETY: the area lies in a live mapping; its addresses came before the kick.
                unsafe { self.rings[ring].used.cast::<u16>().write_volatile(1) };
            }
            _ => {}
        }
    }

    fn map(&mut self, message: &Message) {
        let word = |at: usize| u64::from_le_bytes(message.body[at..at + 8].try_into().expect("eight bytes"));
        for (index, fd) in message.fds.iter().enumerate() {
            let at = 8 + 32 * index;
            let (guest, size, user, offset) = (word(at), word(at + 8), word(at + 16), word(at + 24));
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let (null, length) = (std::ptr::null_mut(), size as usize);
            // SAFETY: a fresh shared mapping of a descriptor that we own, at an address of the kernel's choice.
            let start = unsafe { libc::mmap(null, length, protection, libc::MAP_SHARED, fd.as_raw_fd(), offset as i64) };
            assert_ne!(start, libc::MAP_FAILED, "mapping the guest's memory");
            self.regions.push((user, guest, size, start.cast()));
        }
    }

    #[inline(always)]
    fn running(&self) -> bool {
        self.kicked == [true; 2]
    }

    fn user(&self, address: u64) -> *mut u8 {
        let region = self.regions.iter().find(|region| (region.0..region.0 + region.2).contains(&address));
        let region = region.expect("an address inside the memory");
        region.3.wrapping_add((address - region.0) as usize)
    }

    #[inline(always)]
    fn guest(&self, address: u64) -> *mut u8 {
        self.regions[0].3.wrapping_add((address - self.regions[0].1) as usize)
    }
}

fn answer(stream: &UnixStream, message: &Message, number: u64) {
    let flags = wire::VERSION | wire::REPLY;
    wire::send(stream, message.code, flags, &number.to_le_bytes(), &[]).expect("a guest that listens");
}

impl Ring {
    /// Chains that wait.
    #[inline(always)]
    fn waiting(&self) -> u16 {
        // SAFETY: the area lies in a live mapping; the index is its second word.
        let index = unsafe { self.available.add(1).read_volatile() };
        std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
        index.wrapping_sub(self.next)
    }

    /// The address of a chain that waits.
    #[inline(always)]
    fn peek(&self, ahead: u16) -> u64 {
        let slot = usize::from(self.next.wrapping_add(ahead) & (self.size - 1));
        // SAFETY: as in `take`.
        unsafe {
            let head = self.available.add(2 + slot).read_volatile();
            self.descriptors.add(usize::from(head)).read_volatile()[0]
        }
    }

    /// The next chain: head, address and length of its (only) descriptor.
    #[inline(always)]
    fn take(&mut self) -> (u16, u64, u32) {
        let slot = usize::from(self.next & (self.size - 1));
        self.next = self.next.wrapping_add(1);
        // SAFETY: slots and heads of a well-behaved guest lie inside its areas; others are not to be run with this.
        unsafe {
            let head = self.available.add(2 + slot).read_volatile();
            let [address, rest] = self.descriptors.add(usize::from(head)).read_volatile();
            (head, address, rest as u32)
        }
    }

    #[inline(always)]
    fn give(&mut self, head: u16, length: u32) {
        let slot = usize::from(self.done & (self.size - 1));
        self.done = self.done.wrapping_add(1);
        // SAFETY: as in `take`.
        unsafe { self.used.add(4 + 8 * slot).cast::<[u32; 2]>().write_volatile([head.into(), length]) };
    }

    #[inline(always)]
    fn publish(&self) {
        std::sync::atomic::fence(std::sync::atomic::Ordering::Release);
        // SAFETY: as in `waiting`.
        unsafe { self.used.add(2).cast::<u16>().write_volatile(self.done) };
    }
}

/// Fetches the two lines in which a short frame and its header lie.
#[inline(always)]
fn prefetch(place: *mut u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch of any address has no effect that a program could see.
    unsafe {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(place.cast());
        _mm_prefetch::<_MM_HINT_T0>(place.wrapping_add(64).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}

/// Moves a burst from one port's transmit queue to the other's receive queue; small frames only.
#[inline(always)]
fn forward(from: &mut Port, to: &mut Port) {
    let count = from.rings[1].waiting().min(BURST);
    let count = if count > 0 { count.min(to.rings[0].waiting()) } else { 0 };
    for ahead in 0..count {
        prefetch(from.guest(from.rings[1].peek(ahead)));
        prefetch(to.guest(to.rings[0].peek(ahead)));
    }
    for _ in 0..count {
        let (head, source, length) = from.rings[1].take();
        let (place, target, room) = to.rings[0].take();
        assert!(length <= room, "this switch is for frames that fit one buffer");
        let (source, target) = (from.guest(source), to.guest(target));
        // SAFETY: as in `take`; two guests' buffers do not overlap.
        unsafe {
            target.copy_from_nonoverlapping(source, length as usize);
            target.add(10).cast::<u16>().write_unaligned(1);
        }
        from.rings[1].give(head, 0);
        to.rings[0].give(place, length);
    }
    if count > 0 {
        to.rings[0].publish();
        from.rings[1].publish();
    }
}

fn main() {
    let paths: Vec<String> = std::env::args().skip(1).collect();
    assert_eq!(paths.len(), 2, "usage: null_switch A.sock B.sock");
    let listeners: Vec<UnixListener> = paths
        .iter()
        .map(|path| {
            let _ = std::fs::remove_file(path);
            UnixListener::bind(path).expect("a path to listen at")
        })
        .collect();
    let guest = |listener: &UnixListener| {
        let (stream, _) = listener.accept().expect("a guest");
        let port = Port::handshake(&stream);
        (stream, port)
    };
    let (streams, mut ports): (Vec<UnixStream>, Vec<Port>) = listeners.iter().map(guest).unzip();
    let [one, other] = &mut ports[..] else { unreachable!("two ports") };
    loop {
        for _ in 0..100_000 {
            if one.running() && other.running() {
                forward(one, other);
                forward(other, one);
            }
        }
        for (stream, port) in streams.iter().zip([&mut *one, &mut *other]) {
            let now = Deadline::after(Duration::ZERO);
            match wire::receive(stream, now) {
                Ok(message) => port.hear(stream, &message),
                Err(error) if error.kind() == ErrorKind::TimedOut => {}
                Err(_) => return,
            }
        }
    }
}
