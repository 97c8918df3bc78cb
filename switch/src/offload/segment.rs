//! Cuts a large frame into the frames that its sender would have sent without offload (as RFC 9293 and Linux do): each segment has the
//! headers of the whole, with lengths, sequence number, IPv4 id, flags and checksums of its own.

use crate::frame::{Layers, NetHeader, START, TCP};
use crate::offload::checksum::Sum;
use crate::parcel::Parcel;

const FIN: u8 = 0x01;
const PSH: u8 = 0x08;
const CWR: u8 = 0x80;

/// How a checked parcel is cut; made once a delivery, then asked for each segment.
#[derive(Clone, Debug)]
pub struct Cutter {
    headers: [u8; START],
    headers_length: usize,
    layers: Layers,
    payload: u32,
    size: u32,
    partial: bool,
}

/// One segment.
#[derive(Debug)]
pub struct Segment {
    /// What to tell the receiver.
    pub header: NetHeader,
    /// All headers; the transport checksum is partial.
    pub headers: [u8; START],
    /// Bytes of `headers` in use.
    pub headers_length: usize,
    /// Where its payload begins in the payload of the whole.
    pub payload_offset: u32,
    /// Bytes of payload.
    pub payload_length: u32,
    /// Where the checksum is to be completed: start of the range, place of the field. `None` if the receiver does it.
    pub complete: Option<(u32, u32)>,
}

impl Cutter {
    /// How to cut `parcel`; `None` if its headers are not what [`super::check`] vouched for.
    pub fn new(parcel: &Parcel, partial: bool) -> Option<Self> {
        let layers = Layers::find(parcel.start())?;
        let headers_length = usize::from(parcel.header.hdr_len());
        let payload = parcel.length.checked_sub(headers_length as u32)?;
        let size = u32::from(parcel.header.gso_size());
        let whole = headers_length <= parcel.start().len() && headers_length >= layers.transport + 8 && size > 0;
        whole.then_some(Self { headers: parcel.start, headers_length, layers, payload, size, partial })
    }

    /// Number of segments, at least 1.
    pub fn count(&self) -> u32 {
        self.payload.div_ceil(self.size).max(1)
    }

    /// Segment `index`, below [`Self::count`].
    pub fn segment(&self, index: u32) -> Segment {
        let payload_offset = index * self.size;
        let payload_length = self.size.min(self.payload - payload_offset);
        let mut segment = Segment {
            header: NetHeader::default(),
            headers: self.headers,
            headers_length: self.headers_length,
            payload_offset,
            payload_length,
            complete: None,
        };
        self.set_network(&mut segment, index);
        self.set_transport(&mut segment, index);
        segment
    }

    fn set_network(&self, segment: &mut Segment, index: u32) {
        let length = (self.headers_length - self.layers.network) as u32 + segment.payload_length;
        let (network, transport) = (self.layers.network, self.layers.transport);
        let ip = &mut segment.headers[network..transport];
        if self.layers.version == 4 {
            ip[2..4].copy_from_slice(&(length as u16).to_be_bytes());
            let id = u16::from_be_bytes([ip[4], ip[5]]).wrapping_add(index as u16);
            ip[4..6].copy_from_slice(&id.to_be_bytes());
            ip[10..12].fill(0);
            let mut sum = Sum::default();
            sum.add(ip);
            ip[10..12].copy_from_slice(&sum.finish());
        } else {
            ip[4..6].copy_from_slice(&((length - 40) as u16).to_be_bytes());
        }
    }

    fn set_transport(&self, segment: &mut Segment, index: u32) {
        let start = self.layers.transport;
        let length = (self.headers_length - start) as u32 + segment.payload_length;
        let pseudo = self.pseudo_header(length);
        let transport = &mut segment.headers[start..self.headers_length];
        let field = if self.layers.protocol == TCP {
            self.set_tcp(transport, index);
            16
        } else {
            transport[4..6].copy_from_slice(&(length as u16).to_be_bytes());
            6
        };
        transport[field..field + 2].copy_from_slice(&pseudo.partial());
        if self.partial {
            segment.header = NetHeader::partial_checksum(start as u16, field as u16);
        } else {
            segment.complete = Some((start as u32, (start + field) as u32));
        }
    }

    fn set_tcp(&self, tcp: &mut [u8], index: u32) {
        let sequence = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]).wrapping_add(index * self.size);
        tcp[4..8].copy_from_slice(&sequence.to_be_bytes());
        if index > 0 {
            tcp[13] &= !CWR;
        }
        if index + 1 < self.count() {
            tcp[13] &= !(FIN | PSH);
        }
    }

    /// RFC 9293, section 3.1 and RFC 8200, section 8.1. A routing header's final destination is already in the sum that the sender
    /// would have made only if it had none left to visit, as is always so for what a guest sends in large frames.
    fn pseudo_header(&self, length: u32) -> Sum {
        let network = self.layers.network;
        let addresses = if self.layers.version == 4 { network + 12..network + 20 } else { network + 8..network + 40 };
        let mut sum = Sum::default();
        sum.add(&self.headers[addresses]);
        sum.add(&length.to_be_bytes());
        sum.add(&[0, self.layers.protocol]);
        sum
    }
}
