//! Target `messages`: the bytes that a front end sends, from its first to its last, to a port of a network that runs.
//!
//! The script is a list of **utterances**: messages with descriptors of some **kind**, and with size fields that may lie. Guest
//! memory holds two rings with frames in them, so that a conversation that gets so far moves frames. Afterwards two friends on the
//! same network still hear each other, and no descriptor was left open.

use std::fs::File;
use std::io::Write;
use std::net::Shutdown;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use memlane::frame::MacAddress;
use memlane::network::{AttachSettings, Network};
use memlane::port::settings::PortSettings;
use memlane::port::{Offer, Port};
use memlane::settings::Settings;
use memlane::shared::Shared;
use memlane_backends::listener::Second;
use memlane_backends::vhost_user::{DeviceSettings, converse};
use memlane_rig::guest::ToyGuest;
use vmm_sys_util::eventfd::EventFd;
use vmm_sys_util::sock_ctrl_msg::ScmSocket;

use super::script::Script;

/// Bytes of guest memory.
pub const MEMORY: u64 = 0x2_0000;
/// Entries of the two rings in it.
pub const RING: u16 = 16;
/// Where descriptors, driver area and device area of ring 0 (the receive queue) lie; ring 1 (the transmit queue) lies [`NEXT_RING`] further.
pub const AREAS: [u64; 3] = [0, 0x1000, 0x2000];
/// From ring to ring.
pub const NEXT_RING: u64 = 0x3000;
const BUFFERS: u64 = 0x8000;
const BUFFER: u64 = 0x800;

/// Most messages of a conversation, and most descriptors that they bring.
const MOST: (usize, usize) = (48, 128);
const TIMEOUT: Duration = Duration::from_secs(5);

/// Kinds of a descriptor in a message.
const KINDS: u8 = 6;

/// Has a front end send the messages of `data`.
pub fn run(data: &[u8]) {
    static BED: OnceLock<Mutex<Bed>> = OnceLock::new();
    let bed = BED.get_or_init(|| Mutex::new(Bed::new()));
    bed.lock().unwrap_or_else(PoisonError::into_inner).hear(data);
}

struct Bed {
    network: Arc<Network>,
    /// The port of the front end.
    port: Arc<Port>,
    friends: [ToyGuest; 2],
    goods: Goods,
    round: u64,
}

/// Files that messages bring.
struct Goods {
    memory: File,
    event: EventFd,
    pipe: std::io::PipeWriter,
    socket: UnixStream,
    null: File,
    short: File,
    /// The other ends.
    _ends: (std::io::PipeReader, UnixStream),
}

impl Bed {
    fn new() -> Self {
        let network = Network::start(Shared::new(1, 77, Settings::default()), &[]).expect("a network");
        let ports = [0, 1, 2].map(|n| add_port(&network, n));
        let friends = [1, 2].map(|n| befriend(&network, &ports[n]));
        Self { network, port: Arc::clone(&ports[0]), friends, goods: Goods::new(), round: 0 }
    }

    fn hear(&mut self, data: &[u8]) {
        self.goods.reset_memory();
        let before = open_descriptors();
        {
            let (ours, theirs) = UnixStream::pair().expect("a socket pair");
            self.goods.say(&theirs, Script::new(data));
            theirs.shutdown(Shutdown::Write).expect("a socket");
            let settings = settings(&self.port);
            // Whether it was well spoken is the front end's own affair.
            let _ = converse(&self.network, &settings, ours);
            self.network.stop_port(&self.port);
            self.port.forget_front_end();
        }
        // A port in quarantine is cleared away by a thread of its own.
        let deadline = Instant::now() + TIMEOUT;
        while open_descriptors() != before {
            assert!(Instant::now() < deadline, "{} descriptors were left open", open_descriptors() - before);
            std::thread::yield_now();
        }
        self.friends_hear_each_other();
    }

    fn friends_hear_each_other(&mut self) {
        self.round += 1;
        for (from, to) in [(0, 1), (1, 0)] {
            let mut frame = [0xab; 60];
            frame[..6].copy_from_slice(&self.friends[to].mac());
            frame[6..12].copy_from_slice(&self.friends[from].mac());
            frame[14..22].copy_from_slice(&self.round.to_le_bytes());
            self.friends[from].send(&frame).expect("a send buffer");
            while self.friends[to].receive(TIMEOUT).expect("the friend's frame").bytes != frame {}
        }
    }
}

fn add_port(network: &Network, number: u8) -> Arc<Port> {
    let attach_settings = AttachSettings {
        name: &format!("p{number}"),
        segment: "lan",
        settings: &PortSettings::default(),
        offer: Offer { mac: MacAddress::new([2, 0, 0, 0, 0, number]), mtu: Some(9000) },
    };
    network.add_port(&attach_settings, 3).expect("a port")
}

fn settings(port: &Arc<Port>) -> DeviceSettings {
    DeviceSettings { port: Arc::clone(port), receive_offloads: true, lazy_memory: false, pairs: 2, second: Second::Refuse }
}

/// An honest guest on `port`.
fn befriend(network: &Arc<Network>, port: &Arc<Port>) -> ToyGuest {
    let (ours, theirs) = UnixStream::pair().expect("a socket pair");
    let (network, settings, mac) = (Arc::clone(network), settings(port), port.offer().mac);
    std::thread::spawn(move || converse(&network, &settings, ours));
    ToyGuest::builder().mac(mac.bytes()).timeout(TIMEOUT).on_stream(theirs).expect("a guest")
}

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("/proc is mounted").count()
}

impl Goods {
    fn new() -> Self {
        let (socket, peer) = UnixStream::pair().expect("a socket pair");
        let (reader, pipe) = std::io::pipe().expect("a pipe");
        let event = EventFd::new(libc::EFD_NONBLOCK).expect("an eventfd");
        event.write(1).expect("a counter far from its end");
        let null = File::open("/dev/null").expect("/dev/null");
        Self { memory: memfd(MEMORY), event, pipe, socket, null, short: memfd(100), _ends: (reader, peer) }
    }

    /// Puts the two rings and their buffers into memory, as a driver would that has sent six frames.
    fn reset_memory(&self) {
        static IMAGE: OnceLock<Vec<u8>> = OnceLock::new();
        self.memory.write_all_at(IMAGE.get_or_init(image), 0).expect("a memfd that long");
    }

    fn say(&self, stream: &UnixStream, mut script: Script) {
        let mut descriptors = MOST.1;
        for _ in 0..MOST.0 {
            if script.is_over() {
                return;
            }
            let message = Utterance::read(&mut script);
            let count = usize::from(message.descriptors).min(descriptors);
            descriptors -= count;
            let files = vec![self.descriptor(message.kind); count];
            let bytes = message.bytes();
            // A front end that is not listened to any more may speak no further.
            match stream.send_with_fds(&[&bytes[..]], &files) {
                Ok(sent) if (&mut &*stream).write_all(&bytes[sent..]).is_ok() => {}
                _ => return,
            }
        }
    }

    fn descriptor(&self, kind: u8) -> RawFd {
        match kind % KINDS {
            0 => self.memory.as_raw_fd(),
            1 => self.event.as_raw_fd(),
            2 => self.pipe.as_raw_fd(),
            3 => self.socket.as_raw_fd(),
            4 => self.null.as_raw_fd(),
            _ => self.short.as_raw_fd(),
        }
    }
}

fn memfd(length: u64) -> File {
    // SAFETY: a plain system call; the descriptor that it returns is ours.
    let file = unsafe { File::from(OwnedFd::from_raw_fd(libc::memfd_create(c"fuzz".as_ptr(), libc::MFD_CLOEXEC))) };
    file.set_len(length).expect("a memfd can grow");
    file
}

/// See [`Goods::reset_memory`].
fn image() -> Vec<u8> {
    let mut image = vec![0; MEMORY as usize];
    let mut put = |at: u64, bytes: &[u8]| image[at as usize..][..bytes.len()].copy_from_slice(bytes);
    for ring in 0..2 {
        let start = u64::from(ring) * NEXT_RING;
        let count: u16 = if ring == 0 { RING } else { 6 };
        for index in 0..count {
            let number = u64::from(ring * RING + index);
            put(start + AREAS[0] + 16 * u64::from(index), &(BUFFERS + number * BUFFER).to_le_bytes());
            let (length, flags) = if ring == 0 { (BUFFER as u32, 2) } else { (12 + 60 + u32::from(index) * 100, 0) };
            put(start + AREAS[0] + 16 * u64::from(index) + 8, &length.to_le_bytes());
            put(start + AREAS[0] + 16 * u64::from(index) + 12, &[flags]);
            put(start + AREAS[1] + 4 + 2 * u64::from(index), &index.to_le_bytes());
            // A broadcast frame, from port 0's own address.
            put(BUFFERS + number * BUFFER + 12, &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 0, 0x88, 0xb5]);
        }
        put(start + AREAS[1] + 2, &count.to_le_bytes());
    }
    image
}

/// A message of the script: request, flags, number and kind of its descriptors, by how much its size field is wrong, length and
/// payload.
#[derive(Clone, Debug, Default)]
pub struct Utterance {
    /// Number of the request.
    pub request: u8,
    /// Version 1 and the bits 2 (reply) and 3 (need reply).
    pub flags: u8,
    /// Descriptors.
    pub descriptors: u8,
    /// Kind of the descriptors.
    pub kind: u8,
    /// Added to the size field.
    pub lie: u8,
    /// Body of the message.
    pub payload: Vec<u8>,
}

impl Utterance {
    fn read(script: &mut Script) -> Self {
        let [request, flags, descriptors, kind, lie] = script.array();
        let length = script.word() & 0x1fff;
        Self { request, flags, descriptors: descriptors % 40, kind, lie, payload: script.bytes(length.into()).to_vec() }
    }

    /// The bytes of a script that send it.
    pub fn script(&self) -> Vec<u8> {
        let mut script = vec![self.request, self.flags, self.descriptors, self.kind, self.lie];
        script.extend((self.payload.len() as u16).to_le_bytes());
        script.extend(&self.payload);
        script
    }

    fn bytes(&self) -> Vec<u8> {
        let size = (self.payload.len() as u32).wrapping_add((i32::from(self.lie as i8) << 4) as u32);
        let words = [self.request.into(), self.flags.into(), size].map(u32::to_ne_bytes);
        [words.concat(), self.payload.clone()].concat()
    }
}
