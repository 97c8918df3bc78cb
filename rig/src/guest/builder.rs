//! The settings of a guest.

use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use vhost::vhost_user::message::VhostUserProtocolFeatures;

use crate::frontend::features::{self, Features};
use crate::frontend::notify::{CallKind, KickKind};
use crate::frontend::{Acknowledge, Frontend};
use crate::memory::{GuestMemory, MemoryPlan};

use super::{Endpoint, GuestError, Habit, ToyGuest};

/// The buffers of a receive queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceiveBuffers {
    /// How many are posted at the start; `None`: as many as the ring holds. A slow reader posts 0.
    pub count: Option<u16>,
    /// Bytes of each, the header included.
    pub size: u32,
    /// Bytes a descriptor: smaller than `size` makes each buffer a chain.
    pub iovec: u32,
    /// Whether a buffer is posted again as soon as its frame is taken.
    pub repost: bool,
}

impl ReceiveBuffers {
    /// Mergeable-style: as many as the ring holds, 2 KiB and a header each.
    pub const SMALL: Self = Self { count: None, size: 2048 + 12, iovec: u32::MAX, repost: true };
    /// For guests without mergeable buffers: 64 KiB each, as chains of 17 descriptors of a page.
    pub const BIG: Self = Self { count: None, size: 17 * 4096, iovec: 4096, repost: true };

    /// Lengths of the descriptors of one buffer.
    pub(super) fn iovecs(&self) -> Vec<u32> {
        let iovec = self.iovec.clamp(1, self.size.max(1));
        let (whole, rest) = (self.size / iovec, self.size % iovec);
        (0..whole).map(|_| iovec).chain((rest > 0).then_some(rest)).collect()
    }

    /// Bytes from one buffer to the next.
    pub(super) fn stride(&self) -> u64 {
        u64::from(self.size).next_multiple_of(64) + 64
    }
}

/// The buffers of a transmit queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SendBuffers {
    /// How many frames may be in flight.
    pub count: u16,
    /// Bytes of each: header, frame and the gaps of its layout.
    pub size: u32,
}

/// A guest to be; every method returns it for the next. The defaults make a guest as Linux has it.
#[derive(Debug, Clone)]
pub struct GuestBuilder {
    pub(super) mac: [u8; 6],
    pub(super) wanted: Features,
    pub(super) protocol: VhostUserProtocolFeatures,
    pub(super) pairs: usize,
    pub(super) ring_size: u16,
    pub(super) indirect: u16,
    pub(super) receive: ReceiveBuffers,
    pub(super) send: SendBuffers,
    pub(super) memory: Option<MemoryPlan>,
    pub(super) habit: Habit,
    pub(super) kick: KickKind,
    pub(super) call: Option<CallKind>,
    pub(super) timeout: Duration,
    pub(super) acknowledge: Option<Acknowledge>,
    pub(super) start: bool,
    pub(super) enable: bool,
    pub(super) start_kick: bool,
}

impl Default for GuestBuilder {
    fn default() -> Self {
        Self {
            mac: [0x02, 0, 0, 0, 0, 0x01],
            wanted: features::LINUX,
            protocol: features::usual_protocol(),
            pairs: 1,
            ring_size: 256,
            indirect: 64,
            receive: ReceiveBuffers::SMALL,
            send: SendBuffers { count: 256, size: 128 << 10 },
            memory: None,
            habit: Habit::QEMU,
            kick: KickKind::default(),
            call: None,
            timeout: Duration::from_secs(5),
            acknowledge: None,
            start: true,
            enable: true,
            start_kick: true,
        }
    }
}

macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident -> $field:ident: $kind:ty;)*) => {
        impl GuestBuilder {
            $($(#[$doc])* #[must_use] pub fn $name(mut self, $field: $kind) -> Self {
                self.$field = $field;
                self
            })*
        }
    };
}

setters! {
    /// The guest's MAC address, as [`ToyGuest::mac`] returns it; frames are the caller's.
    mac -> mac: [u8; 6];
    /// The virtio features to take if they are offered.
    features -> wanted: Features;
    /// The protocol features to take if they are offered.
    protocol_features -> protocol: VhostUserProtocolFeatures;
    /// Queue pairs.
    queue_pairs -> pairs: usize;
    /// Entries of every ring: a power of two up to 32768.
    ring_size -> ring_size: u16;
    /// Longest indirect table of the transmit queues.
    indirect_tables -> indirect: u16;
    /// Receive buffers.
    receive_buffers -> receive: ReceiveBuffers;
    /// Send buffers.
    send_buffers -> send: SendBuffers;
    /// In which order the front end speaks.
    habit -> habit: Habit;
    /// Kind of the kick descriptors.
    kick -> kick: KickKind;
    /// How long each wait for the back end may take.
    timeout -> timeout: Duration;
    /// Whether the device is started at once: on by default. Otherwise call [`ToyGuest::start`].
    started -> start: bool;
    /// Whether the rings are enabled at the start: on by default.
    enabled -> enable: bool;
    /// Whether every ring is kicked when the back end gets its kick descriptor: on by default, as QEMU does.
    kicked -> start_kick: bool;
}

impl GuestBuilder {
    /// Leaves these features out.
    #[must_use]
    pub fn without(mut self, features: Features) -> Self {
        self.wanted &= !features;
        self
    }

    /// Takes these features too, if offered.
    #[must_use]
    pub fn with(mut self, features: Features) -> Self {
        self.wanted |= features;
        self
    }

    /// Leaves these protocol features out.
    #[must_use]
    pub fn without_protocol(mut self, features: VhostUserProtocolFeatures) -> Self {
        self.protocol.remove(features);
        self
    }

    /// Asks for these protocol features, too.
    #[must_use]
    pub fn with_protocol(mut self, features: VhostUserProtocolFeatures) -> Self {
        self.protocol.insert(features);
        self
    }

    /// The guest's memory; by default one region, as large as rings and buffers need and 1 MiB more.
    #[must_use]
    pub fn memory(mut self, plan: MemoryPlan) -> Self {
        self.memory = Some(plan);
        self
    }

    /// For which messages to want an acknowledgement; by default as the habit does.
    #[must_use]
    pub fn acknowledge(mut self, what: Acknowledge) -> Self {
        self.acknowledge = Some(what);
        self
    }

    /// Kind of the call descriptors; by default the habit's.
    #[must_use]
    pub fn call(mut self, kind: CallKind) -> Self {
        self.call = Some(kind);
        self
    }

    /// Connects to the back end that listens at `path`, and starts the device.
    ///
    /// # Errors
    /// Any [`GuestError`] of connection and handshake.
    pub fn connect(self, path: impl AsRef<Path>) -> Result<ToyGuest, GuestError> {
        let frontend = Frontend::connect(path.as_ref(), self.timeout)?;
        self.on(frontend, Endpoint::Connect(path.as_ref().to_path_buf()))
    }

    /// Listens at `path` (a stale socket there is replaced) until a back end connects, and starts the device.
    ///
    /// # Errors
    /// Any [`GuestError`] of connection and handshake.
    pub fn listen(self, path: impl AsRef<Path>) -> Result<ToyGuest, GuestError> {
        // A stale socket without a listener would make the bind fail; anything else there still does.
        if UnixStream::connect(path.as_ref()).is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused) {
            let _ = std::fs::remove_file(path.as_ref());
        }
        let refused = |cause| GuestError::Refused { step: "listening on the guest's socket", cause };
        let listener = UnixListener::bind(path.as_ref()).map_err(refused)?;
        self.accept(listener)
    }

    /// Waits for a back end that connects to `listener`, and starts the device.
    ///
    /// # Errors
    /// Any [`GuestError`] of connection and handshake.
    pub fn accept(self, listener: UnixListener) -> Result<ToyGuest, GuestError> {
        let frontend = Frontend::accept(&listener, self.timeout)?;
        self.on(frontend, Endpoint::Listen(listener))
    }

    /// Speaks on a connection that stands already, and starts the device.
    ///
    /// # Errors
    /// Any [`GuestError`] of connection and handshake.
    pub fn on_stream(self, stream: UnixStream) -> Result<ToyGuest, GuestError> {
        let frontend = Frontend::from_stream(stream, self.timeout)?;
        self.on(frontend, Endpoint::Given)
    }

    /// The memory plan, made up if none was given.
    pub fn memory_plan(&self) -> MemoryPlan {
        self.memory.clone().unwrap_or_else(|| MemoryPlan::new(self.memory_needed()))
    }

    fn on(self, frontend: Frontend, endpoint: Endpoint) -> Result<ToyGuest, GuestError> {
        let memory = GuestMemory::with_plan(&self.memory_plan())?;
        let start = self.start;
        let mut guest = ToyGuest {
            announced: (0..memory.regions().len()).collect(),
            told: Vec::new(),
            plan: self,
            memory,
            endpoint,
            frontend: Some(frontend),
            offered: 0,
            features: 0,
            pairs: Vec::new(),
            channel: None,
            inflight: None,
        };
        guest.negotiate()?;
        if start {
            guest.start()?;
        }
        Ok(guest)
    }

    fn memory_needed(&self) -> u64 {
        let size = u64::from(self.ring_size);
        let rings = 2 * 32 * size + 16 * size * u64::from(self.indirect);
        let receive = size * self.receive.stride();
        let send = u64::from(self.send.count) * u64::from(self.send.size);
        // Rings may be laid out anew (other features): room for that a few times over.
        self.pairs as u64 * (4 * rings + receive + send) + (1 << 20)
    }
}
