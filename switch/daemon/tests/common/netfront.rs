//! A guest's side of a Xen network interface, in a hypervisor in memory: acts of xen-netfront, and acts that it would never do.

use std::sync::Arc;
use std::time::{Duration, Instant};

use memlane::memory::{Iovec, SharedPage};
use memlane_backends::xen::in_memory::Hypervisor;
use memlane_backends::xen::netif::{RING, RX_SLOT, TX_REQUEST, rx_flag, tx_flag};
use nix::sys::eventfd::EventFd;

use super::{TIMEOUT, wait_until};

/// How a front end presents itself.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    pub queues: u32,
    /// An event channel for each direction.
    pub split: bool,
    /// Takes frames in several pages.
    pub scattered: bool,
    /// Takes large frames.
    pub gso: bool,
    /// Takes frames without checksums.
    pub checksum: bool,
    /// Receive requests that it posts.
    pub posts: u32,
}

impl Kind {
    pub const LINUX: Self = Self { queues: 1, split: true, scattered: true, gso: true, checksum: true, posts: RING };
}

/// Offload marks of a frame beside its bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    pub checksum_blank: bool,
    /// Kind and size of segmentation.
    pub gso: Option<(u8, u16)>,
}

/// A frame as it was received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    pub bytes: Vec<u8>,
    pub marks: Marks,
    /// Receive requests that it took, extras not counted.
    pub slots: usize,
}

/// One ring pair.
pub struct Queue {
    pub tx: SharedPage,
    pub rx: SharedPage,
    /// To ring the back end by, for each direction.
    pub channels: [Arc<EventFd>; 2],
    pub tx_pages: Vec<(SharedPage, u32)>,
    pub rx_pages: Vec<(SharedPage, u32)>,
    pub sent: u32,
    pub posted: u32,
    pub answered: u32,
    pub received: u32,
    /// Responses below zero to transmit requests.
    pub errors: u32,
}

/// See the module.
pub struct Front {
    pub hypervisor: Arc<Hypervisor>,
    pub domain: u16,
    pub queues: Vec<Queue>,
    port: u32,
}

pub fn at(page: &SharedPage, offset: u32) -> Iovec {
    page.iovec().skip(offset)
}

pub fn number(page: &SharedPage, offset: u32) -> u32 {
    at(page, offset).load_number().unwrap()
}

impl Front {
    /// The toolstack makes an interface of `domain`, which is called `name`.
    pub fn create(hypervisor: &Arc<Hypervisor>, domain: u16, name: &str, mac: [u8; 6]) -> Self {
        let front = Self { hypervisor: Arc::clone(hypervisor), domain, queues: Vec::new(), port: 0 };
        let mac: Vec<String> = mac.iter().map(|byte| format!("{byte:02x}")).collect();
        hypervisor.write(&format!("/local/domain/{domain}/name"), name);
        for (key, value) in [("online", "1"), ("state", "1"), ("mac", &mac.join(":")), ("bridge", "lan"), ("handle", "0")] {
            hypervisor.write(&front.back(key), value);
        }
        hypervisor.write(&front.key("state"), "1");
        hypervisor.write(&front.back("frontend"), &format!("/local/domain/{domain}/device/vif/0"));
        front
    }

    pub fn key(&self, key: &str) -> String {
        format!("/local/domain/{}/device/vif/0/{key}", self.domain)
    }

    pub fn back(&self, key: &str) -> String {
        format!("backend/vif/{}/0/{key}", self.domain)
    }

    pub fn await_back(&self, state: &str) {
        let is_so = || self.hypervisor.read(&self.back("state")).as_deref() == Some(state);
        wait_until(is_so, &format!("the back end's state is {state}"));
    }

    pub fn write(&self, key: &str, value: impl ToString) {
        self.hypervisor.write(&self.key(key), &value.to_string());
    }

    /// Offers an event channel: its port, and the eventfd that notifies the back end.
    fn channel(&mut self) -> (u32, Arc<EventFd>) {
        self.port += 1;
        let (_, channel) = self.hypervisor.channel(self.domain, self.port);
        (self.port, channel)
    }

    /// Waits for the back end, shares rings, and writes that it is connected.
    pub fn share(&mut self, kind: Kind) {
        self.share_but(kind, |_| {});
    }

    /// Like [`Self::share`], with something changed before that.
    pub fn share_but(&mut self, kind: Kind, change: impl FnOnce(&Self)) {
        self.await_back("2");
        self.queues.clear();
        for index in 0..kind.queues {
            let folder = if kind.queues == 1 { String::new() } else { format!("queue-{index}/") };
            let (tx, tx_ref) = self.hypervisor.grant(self.domain, true);
            let (rx, rx_ref) = self.hypervisor.grant(self.domain, true);
            self.write(&format!("{folder}tx-ring-ref"), tx_ref);
            self.write(&format!("{folder}rx-ring-ref"), rx_ref);
            let (port, channel) = self.channel();
            let mut channels = [Arc::clone(&channel), channel];
            if kind.split {
                self.write(&format!("{folder}event-channel-tx"), port);
                let (port, rx_channel) = self.channel();
                self.write(&format!("{folder}event-channel-rx"), port);
                channels[1] = rx_channel;
            } else {
                self.write(&format!("{folder}event-channel"), port);
            }
            let tx_pages = (0..RING).map(|_| self.hypervisor.grant(self.domain, false)).collect();
            let rx_pages = (0..RING).map(|_| self.hypervisor.grant(self.domain, true)).collect();
            let mut queue = Queue { tx, rx, channels, tx_pages, rx_pages, sent: 0, posted: 0, answered: 0, received: 0, errors: 0 };
            queue.post(kind.posts);
            self.queues.push(queue);
        }
        self.write("request-rx-copy", 1);
        self.write("multi-queue-num-queues", kind.queues);
        self.write("feature-sg", u8::from(kind.scattered));
        self.write("feature-gso-tcpv4", u8::from(kind.gso));
        self.write("feature-gso-tcpv6", u8::from(kind.gso));
        self.write("feature-no-csum-offload", u8::from(!kind.checksum));
        self.write("feature-ipv6-csum-offload", u8::from(kind.checksum));
        change(self);
        self.write("state", 4);
    }

    /// Like [`Self::share`], and waits until it is served.
    pub fn connect(&mut self, kind: Kind) {
        self.share(kind);
        self.await_back("4");
    }

    /// Sends a frame in parts of these lengths; the last takes the rest.
    pub fn send(&mut self, bytes: &[u8], parts: &[usize], marks: Marks) {
        self.queues[0].send(bytes, parts, marks);
    }

    pub fn receive(&mut self) -> Received {
        self.queues[0].receive(TIMEOUT).expect("a frame comes")
    }

    pub fn assert_silent(&mut self) {
        assert_eq!(self.queues[0].receive(super::POLL_INTERVAL), None);
    }
}

impl Queue {
    fn place(page: &SharedPage, index: u32, size: usize) -> Iovec {
        at(page, 64 + index % RING * size as u32).first(size as u32)
    }

    /// Puts a raw request into the transmit ring; [`Self::push`] shows it.
    pub fn put(&mut self, request: [u8; TX_REQUEST]) {
        Self::place(&self.tx, self.sent, TX_REQUEST).write(&request);
        self.sent += 1;
    }

    /// Puts a frame that fits one page; [`Self::push`] shows it.
    pub fn put_frame(&mut self, bytes: &[u8]) {
        let id = self.sent % RING;
        let (page, reference) = &self.tx_pages[id as usize];
        at(page, 0).write(bytes);
        self.put(Self::request(*reference, 0, 0, id as u16, bytes.len() as u16));
    }

    pub fn push(&self) {
        self.show();
        self.channels[0].write(1).unwrap();
    }

    /// Shows the requests in the transmit ring, without a notification.
    pub fn show(&self) {
        at(&self.tx, 0).store_number(self.sent);
    }

    pub fn request(reference: u32, offset: u16, flags: u16, id: u16, size: u16) -> [u8; TX_REQUEST] {
        let mut bytes = [0; TX_REQUEST];
        bytes[..4].copy_from_slice(&reference.to_le_bytes());
        for (at, value) in [(4, offset), (6, flags), (8, id), (10, size)] {
            bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
        }
        bytes
    }

    pub fn send(&mut self, bytes: &[u8], parts: &[usize], marks: Marks) {
        let mut left = bytes;
        let mut parts: Vec<usize> = parts.to_vec();
        let told: usize = parts.iter().sum();
        assert!(told <= bytes.len());
        let mut rest = bytes.len() - told;
        while rest > 0 {
            parts.push(rest.min(4000));
            rest -= rest.min(4000);
        }
        for (index, &length) in parts.iter().enumerate() {
            let id = self.sent % RING;
            let (part, behind) = left.split_at(length);
            left = behind;
            let (page, reference) = &self.tx_pages[id as usize];
            let offset = (id * 8 % 96) as u16;
            at(page, offset.into()).write(part);
            let mut flags = if index + 1 < parts.len() { tx_flag::MORE_DATA } else { 0 };
            if index == 0 {
                flags |= if marks.checksum_blank { tx_flag::CSUM_BLANK } else { 0 };
                flags |= if marks.gso.is_some() { tx_flag::EXTRA_INFO } else { 0 };
            }
            let size = if index == 0 { bytes.len() } else { length };
            let request = Self::request(*reference, offset, flags, id as u16, size as u16);
            self.put(request);
            if index == 0
                && let Some((kind, size)) = marks.gso
            {
                let [low, high] = size.to_le_bytes();
                self.put([1, 0, low, high, kind, 0, 0, 0, 0, 0, 0, 0]);
            }
        }
        self.push();
    }

    /// Takes the responses to transmit requests; returns how many are awaited.
    pub fn collect(&mut self) -> u32 {
        let shown = number(&self.tx, 8);
        while self.answered != shown {
            let mut answer = [0; 4];
            Self::place(&self.tx, self.answered, TX_REQUEST).copy_in(&mut answer);
            self.errors += u32::from(i16::from_le_bytes([answer[2], answer[3]]) < 0);
            self.answered += 1;
        }
        self.sent - self.answered
    }

    pub fn await_answers(&mut self) {
        let deadline = Instant::now() + TIMEOUT;
        while self.collect() > 0 {
            assert!(Instant::now() < deadline, "all that was sent is answered");
            std::thread::yield_now();
        }
    }

    /// Posts `count` more receive requests.
    pub fn post(&mut self, count: u32) {
        for _ in 0..count {
            let id = self.posted % RING;
            let mut request = [0; RX_SLOT];
            request[..2].copy_from_slice(&(id as u16).to_le_bytes());
            request[4..].copy_from_slice(&self.rx_pages[id as usize].1.to_le_bytes());
            Self::place(&self.rx, self.posted, RX_SLOT).write(&request);
            self.posted += 1;
        }
        at(&self.rx, 0).store_number(self.posted);
        self.channels[1].write(1).unwrap();
    }

    fn next(&mut self, deadline: Instant) -> Option<[u8; RX_SLOT]> {
        while number(&self.rx, 8) == self.received {
            if Instant::now() >= deadline {
                return None;
            }
            std::thread::yield_now();
        }
        let mut answer = [0; RX_SLOT];
        Self::place(&self.rx, self.received, RX_SLOT).copy_in(&mut answer);
        self.received += 1;
        Some(answer)
    }

    /// The next complete frame, and as many new receive requests as it took.
    pub fn receive(&mut self, timeout: Duration) -> Option<Received> {
        let deadline = Instant::now() + timeout;
        let mut frame = Received { bytes: Vec::new(), marks: Marks::default(), slots: 0 };
        let (mut taken, mut failed) = (0, false);
        loop {
            let place = self.received % RING;
            let [_, _, offset, _, low, high, a, b] = self.next(deadline)?;
            let (flags, status) = (u16::from_le_bytes([low, high]), i16::from_le_bytes([a, b]));
            taken += 1;
            assert_eq!(offset, 0);
            if status >= 0 {
                let mut bytes = vec![0; status as usize];
                self.rx_pages[place as usize].0.iovec().copy_in(&mut bytes);
                frame.bytes.extend(bytes);
            }
            failed |= status < 0;
            if frame.slots == 0 {
                frame.marks.checksum_blank = flags & rx_flag::CSUM_BLANK != 0;
                if flags & rx_flag::EXTRA_INFO != 0 {
                    let [kind, more, low, high, gso, ..] = self.next(deadline)?;
                    assert_eq!((kind, more), (1, 0));
                    frame.marks.gso = Some((gso, u16::from_le_bytes([low, high])));
                    taken += 1;
                }
            }
            frame.slots += 1;
            if flags & rx_flag::MORE_DATA == 0 {
                self.post(taken);
                if !failed {
                    return Some(frame);
                }
                frame = Received { bytes: Vec::new(), marks: Marks::default(), slots: 0 };
                (taken, failed) = (0, false);
            }
        }
    }
}
