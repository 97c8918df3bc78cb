//! A routing netlink socket (rtnetlink(7)): requests and dumps, one at a time, or notifications of changes.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkBuffer, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::Socket;
use netlink_sys::protocols::NETLINK_ROUTE;

use crate::netns;

/// The kernel puts no more into one datagram.
const DATAGRAM: usize = 64 << 10;
/// Receive buffer for notifications, in bytes; the kernel may allow less. Notifications beyond it are lost, and the whole table
/// is dumped again.
const BACKLOG: usize = 1 << 20;
/// Most dumps in a row that are repeated because the table changed meanwhile.
const TRIES: usize = 5;
/// Multicast group of changes to network devices.
pub const LINKS: u32 = 1;
/// Multicast group of changes to neighbour tables and bridge FDBs.
pub const NEIGHBOURS: u32 = 3;

/// See the module.
#[derive(Debug)]
pub struct Netlink {
    socket: Socket,
    sequence: u32,
    buffer: Vec<u8>,
}

/// Notifications since the last call of [`Netlink::news`].
#[derive(Debug)]
pub enum News {
    /// These messages, maybe none.
    Messages(Vec<RouteNetlinkMessage>),
    /// Some notifications were lost, so state built from them may be stale.
    Lost,
}

impl Netlink {
    /// For requests, in the namespace of this name, or else in memlane's own.
    ///
    /// # Errors
    /// There is no such namespace, or the kernel refuses.
    pub fn open(netns: Option<&str>) -> io::Result<Self> {
        let socket = within(netns, || {
            let mut socket = Socket::new(NETLINK_ROUTE)?;
            socket.bind_auto()?;
            Ok(socket)
        })?;
        Ok(Self { socket, sequence: 0, buffer: Vec::with_capacity(DATAGRAM) })
    }

    /// Opens a non-blocking socket for notifications of these multicast `groups`.
    ///
    /// # Errors
    /// The errors of [`Self::open`].
    pub fn listen(netns: Option<&str>, groups: &[u32]) -> io::Result<Self> {
        let netlink = Self::open(netns)?;
        // The kernel caps the size at net.core.rmem_max, and that is good enough.
        let _ = netlink.socket.set_rx_buf_sz(BACKLOG as libc::c_int);
        for &group in groups {
            netlink.socket.add_membership(group)?;
        }
        netlink.socket.set_non_blocking(true)?;
        Ok(netlink)
    }

    /// Sends a request and waits for its acknowledgement.
    ///
    /// # Errors
    /// The error that the kernel answers.
    pub fn request(&mut self, message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        let sequence = self.send(message, NLM_F_ACK | flags)?;
        loop {
            for answer in self.receive()? {
                match answer.payload {
                    NetlinkPayload::Error(error) if answer.header.sequence_number == sequence => {
                        return if error.code.is_none() { Ok(()) } else { Err(error.to_io()) };
                    }
                    // The answer to an earlier request that failed half way.
                    _ => {}
                }
            }
        }
    }

    /// Dumps the whole table that `question` asks for.
    ///
    /// # Errors
    /// The error that the kernel answers.
    pub fn dump(&mut self, question: &RouteNetlinkMessage) -> io::Result<Vec<RouteNetlinkMessage>> {
        for _ in 0..TRIES {
            if let Some(all) = self.dump_once(question.clone())? {
                return Ok(all);
            }
        }
        Err(io::Error::other("it changes faster than it can be read"))
    }

    /// `None` if the table changed during the dump.
    fn dump_once(&mut self, question: RouteNetlinkMessage) -> io::Result<Option<Vec<RouteNetlinkMessage>>> {
        let sequence = self.send(question, NLM_F_DUMP)?;
        let (mut all, mut whole) = (Vec::new(), true);
        loop {
            for answer in self.receive()?.into_iter().filter(|answer| answer.header.sequence_number == sequence) {
                whole &= answer.header.flags & NLM_F_DUMP_INTR == 0;
                match answer.payload {
                    NetlinkPayload::InnerMessage(message) => all.push(message),
                    NetlinkPayload::Done(_) => return Ok(whole.then_some(all)),
                    NetlinkPayload::Error(error) if error.code.is_some() => return Err(error.to_io()),
                    _ => {}
                }
            }
        }
    }

    /// Notifications received since the last call.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn news(&mut self) -> io::Result<News> {
        match self.receive() {
            Ok(messages) => {
                let inner = messages.into_iter().filter_map(|message| match message.payload {
                    NetlinkPayload::InnerMessage(message) => Some(message),
                    _ => None,
                });
                Ok(News::Messages(inner.collect()))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(News::Messages(Vec::new())),
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => Ok(News::Lost),
            Err(error) => Err(error),
        }
    }

    fn send(&mut self, message: RouteNetlinkMessage, flags: u16) -> io::Result<u32> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        header.sequence_number = self.sequence;
        let mut message = NetlinkMessage::new(header, message.into());
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.socket.send(&bytes, 0)?;
        Ok(self.sequence)
    }

    /// The messages of the next datagram. Messages that cannot be parsed are left out.
    fn receive(&mut self) -> io::Result<Vec<NetlinkMessage<RouteNetlinkMessage>>> {
        self.buffer.clear();
        while let Err(error) = self.socket.recv(&mut self.buffer, 0) {
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
        Ok(messages(&self.buffer))
    }
}

impl AsFd for Netlink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn within<T: Send>(netns: Option<&str>, action: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    match netns {
        Some(netns) => netns::inside(netns, action)?,
        None => action(),
    }
}

/// Messages lie one behind the other, each on a multiple of four bytes (netlink(7)).
fn messages(mut bytes: &[u8]) -> Vec<NetlinkMessage<RouteNetlinkMessage>> {
    let mut all = Vec::new();
    while let Ok(next) = NetlinkBuffer::new_checked(bytes) {
        let length = next.length() as usize;
        all.extend(NetlinkMessage::deserialize(bytes).ok());
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    all
}

#[cfg(test)]
mod tests {
    use netlink_packet_core::NLMSG_ERROR;

    use super::*;

    #[test]
    fn what_makes_no_sense_hides_nothing_that_does() {
        // An acknowledgement: 16 bytes of header, a code of zero, and the header that it answers to.
        let mut good = Vec::new();
        good.extend_from_slice(&36_u32.to_ne_bytes());
        good.extend_from_slice(&NLMSG_ERROR.to_ne_bytes());
        good.extend_from_slice(&[0; 30]);
        // A link's message that ends in the middle of its header.
        let mut cut = Vec::new();
        cut.extend_from_slice(&18_u32.to_ne_bytes());
        cut.extend_from_slice(&16_u16.to_ne_bytes());
        cut.extend_from_slice(&[0; 14]);
        let both = [&cut[..], &good[..], &[1, 2, 3]].concat();
        assert_eq!(messages(&both).len(), 1);
        assert!(messages(&[0; 64]).is_empty() && messages(&[]).is_empty());
    }
}
