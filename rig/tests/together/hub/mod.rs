//! A small vhost-user hub, for tests only: it sends each frame that comes in at one port out of all others.
//!
//! The hub is built on other people's code (`vhost` for the messages, `virtio-queue` for the rings, `vm-memory` for the guests'
//! memory), so that the rig is tested against something that it did not bring along. One thread a port handles messages, one
//! thread moves frames. That one sleeps until it is kicked: a kick that the driver wrongly spares makes a test hang.

#![allow(dead_code, unreachable_pub)]

mod port;

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use memlane_rig::deadline::Deadline;
use memlane_rig::frontend::wire;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::socket::MsgFlags;
use vhost::vhost_user::message::FrontendReq;
use vhost::vhost_user::{BackendReqHandler, VhostUserBackendReqHandlerMut};

pub use port::Port;

/// Features that a hub offers.
pub const OFFERED: u64 =
    memlane_rig::frontend::features::LINUX & !(memlane_rig::frontend::features::MAC | memlane_rig::frontend::features::MTU);

type Shared = Arc<Mutex<Port>>;

/// A running hub; it ends when dropped.
pub struct Hub {
    paths: Vec<PathBuf>,
    ports: Vec<Shared>,
    stop: Arc<AtomicBool>,
    changed: Arc<EventFd>,
    threads: Vec<JoinHandle<()>>,
    _folder: tempfile::TempDir,
}

impl Hub {
    /// A hub of `count` ports that offers `features`.
    pub fn new(count: usize, features: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let changed = Arc::new(EventFd::from_flags(EfdFlags::EFD_NONBLOCK).unwrap());
        let mut hub = Self {
            paths: (0..count).map(|index| folder.path().join(format!("{index}.sock"))).collect(),
            ports: (0..count).map(|_| Arc::new(Mutex::new(Port::new(features)))).collect(),
            stop: Arc::default(),
            changed,
            threads: Vec::new(),
            _folder: folder,
        };
        for index in 0..count {
            let listener = UnixListener::bind(&hub.paths[index]).unwrap();
            hub.serve(index, move || listener.accept().ok().map(|(stream, _)| stream));
        }
        hub.move_frames();
        hub
    }

    /// Where port `index` listens.
    pub fn path(&self, index: usize) -> &Path {
        &self.paths[index]
    }

    /// Takes port `index` as it is now, for questions.
    pub fn port(&self, index: usize) -> std::sync::MutexGuard<'_, Port> {
        self.ports[index].lock().unwrap()
    }

    /// Makes port `index` connect to a guest that listens at `path`.
    pub fn connect(&mut self, index: usize, path: &Path) {
        let path = path.to_path_buf();
        let mut stream = Some(UnixStream::connect(path).unwrap());
        self.serve(index, move || stream.take());
    }

    fn serve(&mut self, index: usize, mut next: impl FnMut() -> Option<UnixStream> + Send + 'static) {
        let (port, stop) = (self.ports[index].clone(), self.stop.clone());
        let changed = self.changed.clone();
        self.threads.push(std::thread::spawn(move || {
            while let Some(stream) = next() {
                if stop.load(Ordering::SeqCst) {
                    return;
                }
                port.lock().unwrap().connected();
                converse(stream, &port, &changed);
                port.lock().unwrap().disconnected();
                if stop.load(Ordering::SeqCst) {
                    return;
                }
            }
        }));
    }

    fn move_frames(&mut self) {
        let (ports, stop, changed) = (self.ports.clone(), self.stop.clone(), self.changed.clone());
        self.threads.push(std::thread::spawn(move || {
            let mut waiting: Vec<VecDeque<Vec<u8>>> = ports.iter().map(|_| VecDeque::new()).collect();
            while !stop.load(Ordering::SeqCst) {
                pass(&ports, &mut waiting);
                sleep(&ports, &changed);
            }
        }));
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        self.changed.write(1).unwrap();
        for path in &self.paths {
            drop(UnixStream::connect(path));
        }
        // Threads in a conversation end with their guests; tests drop those first or leave them to the process's end.
    }
}

/// Handles one connection's messages until it ends.
fn converse(stream: UnixStream, port: &Shared, changed: &EventFd) {
    let messages = stream.try_clone().unwrap();
    let mut handler = BackendReqHandler::from_stream(stream, port.clone());
    loop {
        if let Some((ring, enable)) = early_enable(&messages, port) {
            port.lock().unwrap().set_vring_enable(ring, enable).unwrap();
        } else if handler.handle_request().is_err() {
            return;
        }
        changed.write(1).unwrap();
    }
}

/// QEMU enables rings before it acknowledges features, and not again. The crate refuses such a message, so it is taken
/// away from under its nose here.
fn early_enable(stream: &UnixStream, port: &Shared) -> Option<(u32, bool)> {
    let mut header = [0; 20];
    let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_WAITALL;
    nix::sys::socket::recv(stream.as_raw_fd(), &mut header[..4], flags).ok()?;
    let early = port.lock().unwrap().features == 0;
    if !early || header[0] != FrontendReq::SET_VRING_ENABLE as u8 {
        return None;
    }
    let message = wire::receive(stream, Deadline::after(Duration::from_secs(5))).ok()?;
    assert_eq!(message.flags & wire::NEED_REPLY, 0);
    Some((u32::from(message.body[0]), message.body[4] == 1))
}

/// Moves all that can be moved: takes from each transmit queue, gives to every other port.
fn pass(ports: &[Shared], waiting: &mut [VecDeque<Vec<u8>>]) {
    loop {
        let mut moved = false;
        for (from, port) in ports.iter().enumerate() {
            let frames = port.lock().unwrap().take_frames();
            moved |= !frames.is_empty();
            for frame in frames {
                for (to, queue) in waiting.iter_mut().enumerate().filter(|(to, _)| *to != from) {
                    let port = ports[to].lock().unwrap();
                    if port.running() && queue.len() < 4096 {
                        queue.extend(if port.takes_unsegmented() { vec![frame.clone()] } else { segments(&frame) });
                    }
                }
            }
        }
        for (port, queue) in ports.iter().zip(waiting.iter_mut()) {
            let mut port = port.lock().unwrap();
            while queue.front().is_some_and(|frame| port.give_frame(frame)) {
                queue.pop_front();
                moved = true;
            }
            port.call();
        }
        // Arming says whether something came meanwhile.
        for (port, queue) in ports.iter().zip(waiting.iter()) {
            moved |= port.lock().unwrap().arm(!queue.is_empty());
        }
        if !moved {
            return;
        }
    }
}

/// Cuts a frame (with its header) that asks for it into segments; TCP over IPv4 without options, checksums left wrong.
fn segments(frame: &[u8]) -> Vec<Vec<u8>> {
    const HEADERS: usize = 12 + 54;
    if frame[1] == 0 {
        return vec![frame.to_vec()];
    }
    let size = usize::from(u16::from_le_bytes([frame[4], frame[5]]));
    let segment = |(number, payload): (usize, &[u8])| {
        let mut segment = [&[0; 12][..], &frame[12..HEADERS], payload].concat();
        segment[28..30].copy_from_slice(&(40 + payload.len() as u16).to_be_bytes());
        segment[50..54].copy_from_slice(&((number * size) as u32).to_be_bytes());
        segment
    };
    frame[HEADERS..].chunks(size).enumerate().map(segment).collect()
}

/// Waits for a kick or a message.
fn sleep(ports: &[Shared], changed: &EventFd) {
    let kicks: Vec<_> = ports.iter().flat_map(|port| port.lock().unwrap().kicks()).collect();
    let fds: Vec<BorrowedFd<'_>> = kicks.iter().map(AsFd::as_fd).chain([changed.as_fd()]).collect();
    let mut polled: Vec<_> = fds.iter().map(|fd| PollFd::new(*fd, PollFlags::POLLIN)).collect();
    poll(&mut polled, PollTimeout::NONE).unwrap();
    for (fd, polled) in fds.iter().zip(&polled) {
        if polled.any() == Some(true) {
            let _ = nix::unistd::read(fd, &mut [0; 8]);
        }
    }
}
