//! The network protocol between front end and back end (`xen/include/public/io/netif.h`): the entries of the rings, parsed to
//! frames and checked.
//!
//! A **request** of the transmit ring names part of a granted page. A frame is one request or several, each but the last with
//! [`MORE_DATA`](tx_flag::MORE_DATA); behind the first may stand **extras**, which take a slot of the ring each. The first
//! request states the length of the whole frame, the others their own.

#![expect(clippy::indexing_slicing, reason = "a request has at least its first part")]

use thiserror::Error;

use super::layer::{Domain, PAGE};
use crate::memory::{Foreign, Granted};

/// Slots of a ring of one page, of either kind.
pub const RING: u32 = 256;
/// Most requests of a frame (XEN_NETIF_NR_SLOTS_MIN): the number that every front end can keep to, and every Linux does.
pub const MOST_SLOTS: usize = 18;
/// Kinds of extras (XEN_NETIF_EXTRA_TYPE_MAX): a frame has one of each at most.
const EXTRA_KINDS: u8 = 6;
/// Bytes of a transmit request.
pub const TX_REQUEST: usize = 12;
/// Bytes of a receive request or response, and of an extra.
pub const RX_SLOT: usize = 8;

/// Flags of transmit requests.
pub mod tx_flag {
    /// The checksum is partial: the sum of the pseudo-header only.
    pub const CSUM_BLANK: u16 = 1;
    /// The frame goes on in the next request.
    pub const MORE_DATA: u16 = 4;
    /// An extra follows.
    pub const EXTRA_INFO: u16 = 8;
}

/// Flags of receive responses.
pub mod rx_flag {
    /// The checksum is correct, or will be once it is completed.
    pub const DATA_VALIDATED: u16 = 1;
    /// The checksum is partial: the sum of the pseudo-header only.
    pub const CSUM_BLANK: u16 = 2;
    /// The frame goes on in the next response.
    pub const MORE_DATA: u16 = 4;
    /// An extra follows.
    pub const EXTRA_INFO: u16 = 8;
}

/// Status of transmit responses.
pub mod status {
    /// The frame was not sent.
    pub const ERROR: i16 = -1;
    /// The frame was sent.
    pub const OKAY: i16 = 0;
    /// The slot held an extra, not a request.
    pub const NULL: i16 = 1;
}

/// Kind of segmentation (XEN_NETIF_GSO_TYPE_*).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GsoKind {
    /// TCP over IPv4.
    Tcp4 = 1,
    /// TCP over IPv6.
    Tcp6 = 2,
}

/// GSO metadata of a frame: the kind, and the payload of each segment in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gso {
    /// Kind of the GSO frame.
    pub kind: GsoKind,
    /// Bytes.
    pub size: u16,
}

impl Gso {
    const EXTRA: u8 = 1;

    /// The metadata as an extra.
    pub fn extra(self) -> [u8; RX_SLOT] {
        let [low, high] = self.size.to_le_bytes();
        [Self::EXTRA, 0, low, high, self.kind as u8, 0, 0, 0]
    }
}

/// A front end's violation of the protocol: no more requests are taken from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Fault {
    /// See the sentence.
    #[error("the front end's ring index jumped by more than the ring holds")]
    IndexJump,
    /// See the sentence.
    #[error("the front end sent a frame whose end is not in the ring")]
    Incomplete,
    /// See the sentence.
    #[error("the front end sent a frame of more than {MOST_SLOTS} requests")]
    TooManySlots,
    /// See the sentence.
    #[error("the front end sent a request that crosses its page")]
    CrossesPage,
    /// See the sentence.
    #[error("the front end sent a frame whose parts are longer than the whole")]
    Lengths,
    /// See the sentence.
    #[error("the front end sent an extra of a kind that does not exist, or too many of them")]
    Extra,
    /// See the sentence.
    #[error("the front end requested an unknown segmentation type")]
    Segmentation,
}

/// A slot of the transmit ring that a frame takes, to be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A request with this id.
    Request(u16),
    /// An extra.
    Extra,
}

/// A frame as it was parsed from a transmit ring, kept for as long as it is not answered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TxFrame {
    /// Buffer segments of the frame, in order: each within a page, and together as long as the frame.
    pub parts: Vec<Foreign>,
    /// Slots of the frame, in order.
    pub places: Vec<Place>,
    /// Bytes of the whole frame.
    pub length: u32,
    /// Whether the checksum is partial.
    pub checksum_blank: bool,
    /// GSO metadata; `None` for a frame that is not to be segmented.
    pub gso: Option<Gso>,
}

impl TxFrame {
    /// An empty one, with capacity for most frames.
    pub fn new() -> Self {
        Self { parts: Vec::with_capacity(MOST_SLOTS), places: Vec::with_capacity(MOST_SLOTS + 1), ..Self::default() }
    }

    /// Parses the next frame of `domain` from the slots that `next` returns one after the other; no frame if there are none.
    ///
    /// # Errors
    /// The [`Fault`] of the front end.
    pub fn read(&mut self, domain: Domain, mut next: impl FnMut() -> Option<[u8; TX_REQUEST]>) -> Result<(), Fault> {
        self.parts.clear();
        self.places.clear();
        (self.length, self.gso) = (0, None);
        loop {
            let is_first = self.parts.is_empty();
            let request = Request::from_bytes(next().ok_or(Fault::Incomplete)?);
            if self.parts.len() == MOST_SLOTS {
                return Err(Fault::TooManySlots);
            }
            self.places.push(Place::Request(request.id));
            self.parts.push(Foreign {
                place: Granted { reference: request.reference, offset: request.offset, domain },
                length: request.size.into(),
            });
            if is_first {
                self.length = request.size.into();
                self.checksum_blank = request.flags & tx_flag::CSUM_BLANK != 0;
                if request.flags & tx_flag::EXTRA_INFO != 0 {
                    self.read_extras(&mut next)?;
                }
            }
            if request.flags & tx_flag::MORE_DATA == 0 {
                return self.check_parts();
            }
        }
    }

    /// Parses the extras. They follow the first request, and each says whether another follows.
    fn read_extras(&mut self, next: &mut impl FnMut() -> Option<[u8; TX_REQUEST]>) -> Result<(), Fault> {
        for _ in 1..EXTRA_KINDS {
            let [kind, flags, low, high, gso_kind, ..] = next().ok_or(Fault::Incomplete)?;
            self.places.push(Place::Extra);
            if !(1..EXTRA_KINDS).contains(&kind) {
                return Err(Fault::Extra);
            }
            if kind == Gso::EXTRA {
                let size = u16::from_le_bytes([low, high]);
                let kind = match gso_kind {
                    1 => GsoKind::Tcp4,
                    2 => GsoKind::Tcp6,
                    _ => return Err(Fault::Segmentation),
                };
                self.gso = Some(Gso { kind, size });
            }
            if flags & 1 == 0 {
                return Ok(());
            }
        }
        Err(Fault::Extra)
    }

    /// The first part's own length is the frame's length less those of the other parts.
    fn check_parts(&mut self) -> Result<(), Fault> {
        let others: u32 = self.parts[1..].iter().map(|part| part.length).sum();
        self.parts[0].length = self.length.checked_sub(others).ok_or(Fault::Lengths)?;
        if self.parts.iter().any(|part| u32::from(part.place.offset) + part.length > PAGE) {
            return Err(Fault::CrossesPage);
        }
        self.parts.retain(|part| part.length > 0);
        Ok(())
    }
}

struct Request {
    reference: u32,
    offset: u16,
    flags: u16,
    id: u16,
    size: u16,
}

impl Request {
    fn from_bytes(bytes: [u8; TX_REQUEST]) -> Self {
        let [a, b, c, d, e, f, g, h, i, j, k, l] = bytes;
        let number = |low, high| u16::from_le_bytes([low, high]);
        Self {
            reference: u32::from_le_bytes([a, b, c, d]),
            offset: number(e, f),
            flags: number(g, h),
            id: number(i, j),
            size: number(k, l),
        }
    }
}

/// A receive request: its id and its grant.
pub(crate) fn rx_request(bytes: [u8; RX_SLOT]) -> (u16, u32) {
    let [a, b, _, _, e, f, g, h] = bytes;
    (u16::from_le_bytes([a, b]), u32::from_le_bytes([e, f, g, h]))
}

/// A receive response: the number of bytes, from the page's first on, or a negative status.
pub(crate) fn rx_response(id: u16, flags: u16, status: i16) -> [u8; RX_SLOT] {
    let ([a, b], [c, d], [e, f]) = (id.to_le_bytes(), flags.to_le_bytes(), status.to_le_bytes());
    [a, b, 0, 0, c, d, e, f]
}

/// A transmit response.
pub(crate) fn tx_response(id: u16, status: i16) -> [u8; 4] {
    let ([a, b], [c, d]) = (id.to_le_bytes(), status.to_le_bytes());
    [a, b, c, d]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(offset: u16, size: u16, flags: u16, id: u16) -> [u8; TX_REQUEST] {
        let mut bytes = [0; TX_REQUEST];
        bytes[0] = 9;
        bytes[4..6].copy_from_slice(&offset.to_le_bytes());
        bytes[6..8].copy_from_slice(&flags.to_le_bytes());
        bytes[8..10].copy_from_slice(&id.to_le_bytes());
        bytes[10..].copy_from_slice(&size.to_le_bytes());
        bytes
    }

    fn extra(kind: u8, more: u8, size: u16, gso: u8) -> [u8; TX_REQUEST] {
        let [low, high] = size.to_le_bytes();
        [kind, more, low, high, gso, 0, 0, 0, 0, 0, 0, 0]
    }

    fn read(places: &[[u8; TX_REQUEST]]) -> Result<TxFrame, Fault> {
        let (mut frame, mut places) = (TxFrame::new(), places.iter());
        frame.read(7, || places.next().copied())?;
        Ok(frame)
    }

    #[test]
    fn the_first_request_tells_the_length_of_all() {
        let frame = read(&[
            request(10, 5000, tx_flag::MORE_DATA | tx_flag::EXTRA_INFO | tx_flag::CSUM_BLANK, 1),
            extra(1, 0, 1448, 1),
            request(0, 4096, tx_flag::MORE_DATA, 2),
            request(100, 838, 0, 3),
        ])
        .unwrap();
        assert_eq!(frame.parts.iter().map(|part| part.length).collect::<Vec<_>>(), [66, 4096, 838]);
        assert_eq!((frame.length, frame.checksum_blank), (5000, true));
        assert_eq!(frame.gso, Some(Gso { kind: GsoKind::Tcp4, size: 1448 }));
        assert_eq!(frame.places, [Place::Request(1), Place::Extra, Place::Request(2), Place::Request(3)]);
    }

    #[test]
    fn each_rule_that_is_broken_is_named() {
        let more = tx_flag::MORE_DATA;
        let with_extra = tx_flag::EXTRA_INFO;
        for (places, fault) in [
            (vec![], Fault::Incomplete),
            (vec![request(0, 60, more, 0)], Fault::Incomplete),
            (vec![request(0, 60, with_extra, 0)], Fault::Incomplete),
            (vec![request(4000, 97, 0, 0)], Fault::CrossesPage),
            (vec![request(u16::MAX, 60, 0, 0)], Fault::CrossesPage),
            (vec![request(0, 200, more, 0), request(4090, 100, 0, 1)], Fault::CrossesPage),
            (vec![request(0, 100, more, 0), request(0, 101, 0, 1)], Fault::Lengths),
            (vec![request(0, 60, with_extra, 0), extra(0, 0, 0, 0)], Fault::Extra),
            (vec![request(0, 60, with_extra, 0), extra(6, 0, 0, 0)], Fault::Extra),
            ([vec![request(0, 60, with_extra, 0)], vec![extra(2, 1, 0, 0); 300]].concat(), Fault::Extra),
            (vec![request(0, 60, with_extra, 0), extra(1, 0, 0, 3)], Fault::Segmentation),
            (vec![request(0, 60_000, more, 0); 300], Fault::TooManySlots),
        ] {
            assert_eq!(read(&places), Err(fault), "{places:?}");
        }
    }
}
