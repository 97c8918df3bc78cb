//! Segments a GSO frame (TSO, USO) into the frames that its sender would have sent without offload (as RFC 9293 and Linux do): each
//! segment has the headers of the GSO frame, with lengths, sequence number, IPv4 id, flags and checksums of its own.
//!
//! All ECN flags stay as they were sent: CWR is part of a counter where Accurate ECN was negotiated (RFC 9768, section 3.3), and a
//! frame does not show whether it was. See `docs/adr/0005-offloads-per-receiver.md`.

#![expect(
    clippy::indexing_slicing,
    reason = "the cutter refuses frames whose headers do not reach so far; the harness in offload/proofs.rs proves it for every frame"
)]

use super::MAX_SEGMENTS;
use crate::frame::{LONGEST_HEADERS, Layers, NetHeader, START, TCP};
use crate::offload::checksum::Sum;
use crate::packet::Packet;

const FIN: u8 = 0x01;
const PSH: u8 = 0x08;

/// The headers of a GSO frame, which become those of one segment after the other.
#[derive(Clone, Debug)]
enum Headers {
    /// At most as many as the transmit side copies.
    Short([u8; START], usize),
    Long(Box<[u8]>),
}

impl Headers {
    /// The first `length` bytes of `packet`, if that is not too much to repeat in `count` segments.
    fn read(packet: &Packet, length: usize, count: u32) -> Option<Self> {
        if length <= packet.start().len() {
            return Some(Self::Short(packet.start, length));
        }
        // All segments together repeat no more than the most segments with short headers do.
        if length > LONGEST_HEADERS || length * count as usize > START * MAX_SEGMENTS as usize {
            return None;
        }
        let mut headers = vec![0; length].into_boxed_slice();
        (packet.read(0, &mut headers) == length).then_some(Self::Long(headers))
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Self::Short(bytes, length) => &bytes[..*length],
            Self::Long(bytes) => bytes,
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Short(bytes, length) => &mut bytes[..*length],
            Self::Long(bytes) => bytes,
        }
    }
}

/// Fields of the GSO frame that differ in each segment.
#[derive(Clone, Copy, Debug)]
struct Original {
    /// IPv4 identification.
    id: u16,
    /// TCP sequence number.
    sequence: u32,
    /// TCP flags.
    flags: u8,
    /// The sum of the pseudo header without a length.
    pseudo: Sum,
}

impl Original {
    /// The fields of a frame with these headers, and `length` bytes of transport header and payload. The sender has made the sum of
    /// the pseudo header for this length, with a destination that may stand elsewhere than in the IP header (RFC 8200, section
    /// 8.1).
    fn of(headers: &[u8], layers: &Layers, field: usize, length: u32) -> Option<Self> {
        let (ip, transport) = (headers.get(layers.network..)?, headers.get(layers.transport..)?);
        let mut pseudo = Sum::default();
        pseudo.add(transport.get(field..field + 2)?);
        // The ones' complement is the negative.
        pseudo.add(&(!length).to_be_bytes());
        let (sequence, flags) = match layers.protocol {
            TCP => (u32::from_be_bytes([transport[4], transport[5], transport[6], transport[7]]), transport[13]),
            _ => (0, 0),
        };
        Some(Self { id: u16::from_be_bytes([*ip.get(4)?, *ip.get(5)?]), sequence, flags, pseudo })
    }
}

/// Segmentation of a checked packet; made once for each delivered frame, then used for each segment.
#[derive(Clone, Debug)]
pub struct Cutter {
    headers: Headers,
    original: Original,
    layers: Layers,
    /// Offset of the checksum in the transport header.
    field: usize,
    payload: u32,
    size: u32,
    partial: bool,
}

/// One segment.
#[derive(Debug)]
pub struct Segment<'a> {
    /// The virtio-net header for the receiver.
    pub header: NetHeader,
    /// All headers; the transport checksum is partial.
    pub headers: &'a [u8],
    /// Offset of its payload in the payload of the GSO frame.
    pub payload_offset: u32,
    /// Bytes of payload.
    pub payload_length: u32,
    /// The checksum to be completed: start of the range, offset of the field. `None` if the receiver completes it.
    pub complete: Option<(u32, u32)>,
}

impl Cutter {
    /// Prepares the segmentation of `packet`; `None` if its headers differ from those that [`super::check`] accepted, or are too
    /// long.
    pub fn new(packet: &Packet, partial: bool) -> Option<Self> {
        let (protocol, field) = packet.header.segmentation().ok()??.transport();
        let layers = Layers::said(packet.start(), protocol, packet.header.csum_start().into())?;
        let length = usize::from(packet.header.hdr_len());
        let payload = packet.length.checked_sub(length as u32)?;
        let size = u32::from(packet.header.gso_size());
        let transport_length = length.checked_sub(layers.transport)?;
        if size == 0 || transport_length < if protocol == TCP { 20 } else { 8 } {
            return None;
        }
        let headers = Headers::read(packet, length, count(payload, size))?;
        if matches!(headers, Headers::Long(_)) && Layers::find(headers.bytes()) != Some(layers) {
            return None;
        }
        let original = Original::of(headers.bytes(), &layers, field.into(), transport_length as u32 + payload)?;
        Some(Self { headers, original, layers, field: field.into(), payload, size, partial })
    }

    /// Number of segments, at least 1.
    pub fn count(&self) -> u32 {
        count(self.payload, self.size)
    }

    /// Segment `index`, below [`Self::count`].
    pub fn segment(&mut self, index: u32) -> Segment<'_> {
        let payload_offset = index * self.size;
        let payload_length = self.size.min(self.payload - payload_offset);
        self.set_network(index, payload_length);
        self.set_transport(index, payload_length);
        let (start, field) = (self.layers.transport, self.layers.transport + self.field);
        let (header, complete) = if self.partial {
            (NetHeader::partial_checksum(start as u16, self.field as u16), None)
        } else {
            (NetHeader::default(), Some((start as u32, field as u32)))
        };
        Segment { header, headers: self.headers.bytes(), payload_offset, payload_length, complete }
    }

    fn set_network(&mut self, index: u32, payload_length: u32) {
        let (network, transport) = (self.layers.network, self.layers.transport);
        let headers = self.headers.bytes_mut();
        let length = (headers.len() - network) as u32 + payload_length;
        let ip = &mut headers[network..transport];
        if self.layers.version == 4 {
            ip[2..4].copy_from_slice(&(length as u16).to_be_bytes());
            ip[4..6].copy_from_slice(&self.original.id.wrapping_add(index as u16).to_be_bytes());
            ip[10..12].fill(0);
            let mut sum = Sum::default();
            sum.add(ip);
            ip[10..12].copy_from_slice(&sum.finish());
        } else {
            ip[4..6].copy_from_slice(&((length - 40) as u16).to_be_bytes());
        }
    }

    fn set_transport(&mut self, index: u32, payload_length: u32) {
        let is_last = index + 1 == self.count();
        let Self { headers, original, layers, field, size, .. } = self;
        let transport = &mut headers.bytes_mut()[layers.transport..];
        let length = transport.len() as u32 + payload_length;
        if layers.protocol == TCP {
            let sequence = original.sequence.wrapping_add(index * *size);
            transport[4..8].copy_from_slice(&sequence.to_be_bytes());
            transport[13] = if is_last { original.flags } else { original.flags & !(FIN | PSH) };
        } else {
            transport[4..6].copy_from_slice(&(length as u16).to_be_bytes());
        }
        let mut pseudo = original.pseudo;
        pseudo.add(&length.to_be_bytes());
        transport[*field..][..2].copy_from_slice(&pseudo.partial());
    }
}

fn count(payload: u32, size: u32) -> u32 {
    payload.div_ceil(size).max(1)
}
