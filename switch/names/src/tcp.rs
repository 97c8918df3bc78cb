//! The server's side of TCP (RFC 9293), as far as DNS needs it (RFC 7766): short queries in, answers of one segment out.
//!
//! Each segment of a client causes one of the server at most, and no timer is needed: the bytes that the client has not acknowledged are
//! kept, and repeated when it repeats its own. A long answer goes in several segments, one for each acknowledgement. A query for a name outside
//! waits for its answer, and is acknowledged with that: until then the client repeats it. A port has at most
//! [`MOST_STREAMS`] connections: beyond, its oldest one ends.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::Arc;

use memlane_virtq::frame::MacAddress;

use crate::exchange::Refused;
use crate::wire::{self, TcpSegment, Way};

/// Most connections of a port.
const MOST_STREAMS: usize = 8;
/// Seconds after which a connection without segments ends (RFC 7766, section 6.2.3).
const IDLE: u64 = 30;
/// Longest query, with its length.
const LONGEST: usize = 2 + 1232;
/// Most bytes of answers that are kept; a query beyond them waits for the next segment of the client.
pub(crate) const MOST_SENT: usize = 4096;
/// Most bytes of answers in a segment: a packet of 1280 bytes, which every link of IPv6 carries.
const SEGMENT: usize = 1220;
/// Options of a SYN: the maximum segment size (RFC 9293, section 3.7.1).
const SYN_OPTIONS: [u8; 4] = [2, 4, (SEGMENT >> 8) as u8, SEGMENT as u8];

const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;

/// The client's end of a connection, and the server's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Peer {
    /// MAC address of the client.
    pub mac: MacAddress,
    /// IP address of the client.
    pub ip: IpAddr,
    /// IP address of the server.
    pub own: IpAddr,
    /// Port of the client.
    pub port: u16,
}

/// A segment of the server.
#[derive(Debug)]
pub(crate) struct Reply {
    ports: (u16, u16),
    sequence: u32,
    acknowledged: u32,
    flags: u8,
    window: u16,
    payload: Vec<u8>,
}

impl Reply {
    /// The frame that goes `way`.
    pub(crate) fn frame(&self, way: Way) -> Vec<u8> {
        let Self { ports, sequence, acknowledged, flags, window, payload } = self;
        let segment = TcpSegment { ports: *ports, sequence: *sequence, acknowledged: *acknowledged, flags: *flags, payload };
        wire::tcp_frame(way, &segment, *window, if flags & SYN != 0 { &SYN_OPTIONS } else { &[] })
    }
}

#[derive(Debug)]
struct Stream {
    peer: Peer,
    /// Second of its last segment.
    heard: u64,
    /// Number of the first byte that the client has not acknowledged, and of the next byte that it sends.
    unacknowledged: u32,
    wanted: u32,
    /// Bytes that the client has not acknowledged: those of answers.
    sent: Vec<u8>,
    /// Queries that are not answered.
    received: Vec<u8>,
    /// The first of them waits for an answer that comes later.
    is_waiting: bool,
    is_open: bool,
    /// The client, and so the server, has sent all.
    is_finished: bool,
}

/// The answer to a query.
#[derive(Debug)]
pub(crate) enum Asked {
    Now(Vec<u8>),
    /// The answer comes later, by [`Streams::give`].
    Later,
}

/// The connections of all ports.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    ports: HashMap<Arc<str>, Vec<Stream>>,
    /// Makes first sequence numbers unpredictable (RFC 6528).
    secret: RandomState,
    /// The second in which idle connections were last looked for.
    looked: u64,
}

impl Streams {
    /// Removes the connections of a port.
    pub(crate) fn remove_port(&mut self, port: &str) {
        self.ports.remove(port);
    }

    /// The answer to a segment of `peer` at `port` in second `now`; `ask` answers queries.
    ///
    /// # Errors
    /// The segment needs none.
    pub(crate) fn answer(
        &mut self,
        port: &str,
        peer: Peer,
        segment: &TcpSegment<'_>,
        now: u64,
        ask: impl FnMut(&[u8]) -> Result<Asked, Refused>,
    ) -> Result<Reply, Refused> {
        self.end_idle(now);
        let first = self.secret.hash_one((peer, now)) as u32;
        let streams = self.streams(port);
        let Some(index) = streams.iter().position(|stream| stream.peer == peer) else {
            return match segment.flags & (SYN | ACK | RST | FIN) {
                SYN => Ok(open(streams, peer, segment, (first, now))),
                _ => refuse(segment),
            };
        };
        let stream = &mut streams[index];
        stream.heard = now;
        let outcome = stream.hear(segment, ask);
        if !matches!(outcome, Outcome::Keep(_)) {
            streams.swap_remove(index);
        }
        match outcome {
            Outcome::Keep(reply) => reply.ok_or(Refused::NotAsked),
            Outcome::Reset => refuse(segment),
            Outcome::End => Err(Refused::NotAsked),
        }
    }

    /// Answers the query of `peer` at `port` that waits in second `now`, and, by `ask`, those behind it; `None` if there is no such connection any
    /// more.
    pub(crate) fn give(
        &mut self,
        port: &str,
        peer: Peer,
        answer: &[u8],
        now: u64,
        ask: impl FnMut(&[u8]) -> Result<Asked, Refused>,
    ) -> Option<Reply> {
        let streams = self.ports.get_mut(port)?;
        let index = streams.iter().position(|stream| stream.peer == peer && stream.is_waiting)?;
        let stream = &mut streams[index];
        stream.heard = now;
        stream.is_waiting = false;
        stream.send(answer);
        if stream.answer_queries(ask).is_none() {
            // The query behind it breaks a rule; its client repeats it, and is told then.
            stream.received.clear();
        }
        Some(stream.reply())
    }

    fn streams(&mut self, port: &str) -> &mut Vec<Stream> {
        if !self.ports.contains_key(port) {
            self.ports.insert(port.into(), Vec::new());
        }
        self.ports.entry(port.into()).or_default()
    }

    fn end_idle(&mut self, now: u64) {
        if now > self.looked {
            self.looked = now;
            self.ports.retain(|_, streams| {
                streams.retain(|stream| now < stream.heard + IDLE);
                !streams.is_empty()
            });
        }
    }
}

/// Opens a connection, in place of the oldest one if there are too many.
fn open(streams: &mut Vec<Stream>, peer: Peer, segment: &TcpSegment<'_>, (first, now): (u32, u64)) -> Reply {
    if streams.len() >= MOST_STREAMS
        && let Some(oldest) = (0..streams.len()).min_by_key(|&index| streams[index].heard)
    {
        streams.swap_remove(oldest);
    }
    let stream = Stream {
        peer,
        heard: now,
        unacknowledged: first,
        wanted: segment.sequence.wrapping_add(1),
        sent: Vec::new(),
        received: Vec::new(),
        is_waiting: false,
        is_open: false,
        is_finished: false,
    };
    let reply = stream.reply();
    streams.push(stream);
    reply
}

/// The answer to a segment of no connection (RFC 9293, section 3.10.7.1).
fn refuse(segment: &TcpSegment<'_>) -> Result<Reply, Refused> {
    if segment.flags & RST != 0 {
        return Err(Refused::NotAsked);
    }
    let length = segment.payload.len() as u32 + u32::from(segment.flags & SYN != 0) + u32::from(segment.flags & FIN != 0);
    let (sequence, acknowledged, flags) = match segment.flags & ACK {
        0 => (0, segment.sequence.wrapping_add(length), RST | ACK),
        _ => (segment.acknowledged, 0, RST),
    };
    let ports = (segment.ports.1, segment.ports.0);
    Ok(Reply { ports, sequence, acknowledged, flags, window: 0, payload: Vec::new() })
}

enum Outcome {
    /// The connection goes on, with an answer or without.
    Keep(Option<Reply>),
    /// The connection ends, and the client is told.
    Reset,
    /// The connection has ended.
    End,
}

impl Stream {
    /// Hears a segment of its client (RFC 9293, section 3.10.7.4).
    fn hear(&mut self, segment: &TcpSegment<'_>, ask: impl FnMut(&[u8]) -> Result<Asked, Refused>) -> Outcome {
        let is_next = segment.sequence == self.wanted;
        if segment.flags & RST != 0 {
            // Only one with the next number ends it (RFC 5961, section 3.2).
            return if is_next { Outcome::End } else { Outcome::Keep(None) };
        }
        // A SYN is a repetition, or opens another connection: its client resets this one when it is answered (RFC 5961, section 4.2).
        if segment.flags & SYN != 0 || segment.flags & ACK == 0 {
            return Outcome::Keep((segment.flags & SYN != 0).then(|| self.reply()));
        }
        let (all, is_all, before) = (self.next(), self.sent.len() <= SEGMENT, self.unacknowledged);
        if !self.hear_acknowledgement(segment.acknowledged) {
            return if self.is_open { Outcome::Keep(Some(self.reply())) } else { Outcome::Reset };
        }
        if self.is_finished && is_all && segment.acknowledged == all {
            return Outcome::End;
        }
        let has_next = self.unacknowledged != before && !self.sent.is_empty();
        let has_content = !segment.payload.is_empty() || segment.flags & FIN != 0;
        if !is_next || self.is_finished {
            // The segment is repeated, or one is missing: so are the answers.
            let is_told = has_content || !is_next || has_next;
            return Outcome::Keep((is_told && !self.is_silent()).then(|| self.reply()));
        }
        let taken = segment.payload.len().min(LONGEST - self.received.len());
        self.received.extend(&segment.payload[..taken]);
        self.wanted = self.wanted.wrapping_add(taken as u32);
        let before = self.sent.len();
        let Some(is_answered) = self.answer_queries(ask) else { return Outcome::Reset };
        if segment.flags & FIN != 0 && taken == segment.payload.len() && is_answered {
            self.wanted = self.wanted.wrapping_add(1);
            self.is_finished = true;
        }
        let is_told = has_content || has_next || self.sent.len() > before;
        Outcome::Keep((is_told && !self.is_silent()).then(|| self.reply()))
    }

    /// Whether the client is to repeat its query: the answer comes later.
    fn is_silent(&self) -> bool {
        self.is_waiting && self.sent.is_empty()
    }

    /// Bytes of answers in the next segment.
    fn in_segment(&self) -> usize {
        self.sent.len().min(SEGMENT)
    }

    /// Whether the next segment is the last one.
    fn is_last(&self) -> bool {
        self.is_finished && self.sent.len() <= SEGMENT
    }

    /// Number behind all that the server has sent.
    fn next(&self) -> u32 {
        // The first number is that of its SYN.
        let syn = u32::from(!self.is_open);
        self.unacknowledged.wrapping_add(syn + self.in_segment() as u32 + u32::from(self.is_last()))
    }

    /// Notes that the client has all bytes before `number`; false if they were not sent.
    fn hear_acknowledgement(&mut self, number: u32) -> bool {
        let (count, most) = (number.wrapping_sub(self.unacknowledged), self.next().wrapping_sub(self.unacknowledged));
        if !self.is_open {
            self.is_open = count == 1;
            self.unacknowledged = self.unacknowledged.wrapping_add(u32::from(self.is_open));
            return self.is_open;
        }
        // An old one says nothing.
        if count > u32::MAX / 2 {
            return true;
        }
        if count <= most {
            self.sent.drain(..self.sent.len().min(count as usize));
            self.unacknowledged = number;
        }
        count <= most
    }

    /// Answers the complete queries, for as long as the answers are there and fit; tells if they did. `None` if one breaks a rule.
    fn answer_queries(&mut self, mut ask: impl FnMut(&[u8]) -> Result<Asked, Refused>) -> Option<bool> {
        while let Some((&length, rest)) = self.received.split_first_chunk::<2>() {
            let length = usize::from(u16::from_be_bytes(length));
            if 2 + length > LONGEST {
                return None;
            }
            let Some(query) = rest.get(..length) else { return Some(true) };
            // Room for any answer, so that no query is asked twice.
            if self.is_waiting || self.sent.len() > MOST_SENT {
                return Some(false);
            }
            match ask(query).ok()? {
                Asked::Now(answer) => self.send(&answer),
                Asked::Later => {
                    self.is_waiting = true;
                    return Some(false);
                }
            }
        }
        Some(true)
    }

    /// Sends the answer to the first query.
    fn send(&mut self, answer: &[u8]) {
        self.sent.extend((answer.len() as u16).to_be_bytes());
        self.sent.extend(answer);
        let length = self.received.first_chunk::<2>().map_or(0, |&length| 2 + usize::from(u16::from_be_bytes(length)));
        self.received.drain(..length.min(self.received.len()));
    }

    /// The server's next segment: the first bytes that the client has not acknowledged.
    fn reply(&self) -> Reply {
        let flags = match (self.is_open, self.is_last()) {
            (false, _) => SYN | ACK,
            (true, true) => FIN | ACK,
            (true, false) => ACK,
        };
        let window = (LONGEST - self.received.len()) as u16;
        let ports = (wire::DNS, self.peer.port);
        Reply {
            ports,
            sequence: self.unacknowledged,
            acknowledged: self.wanted,
            flags,
            window,
            payload: self.sent[..self.in_segment()].to_vec(),
        }
    }
}
