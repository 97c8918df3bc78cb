//! The virtio-net header (virtio 1.4 section 5.1.6) that goes before each frame.

use virtio_bindings::virtio_net as net;

/// Segmentation that is left to the device (or, towards the guest, was left undone: unsegmented GSO frames).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum GsoKind {
    /// Nothing: one frame as it goes over the wire.
    #[default]
    None,
    /// TCP over IPv4.
    Tcp4,
    /// TCP over IPv6.
    Tcp6,
    /// UDP, each segment a datagram of its own (USO).
    UdpL4,
    /// UDP to be fragmented by IP (legacy UFO).
    Udp,
    /// A value of no meaning, for hostile tests.
    Other(u8),
}

impl GsoKind {
    /// The type field's lower bits.
    pub fn bits(self) -> u8 {
        match self {
            Self::None => net::VIRTIO_NET_HDR_GSO_NONE as u8,
            Self::Tcp4 => net::VIRTIO_NET_HDR_GSO_TCPV4 as u8,
            Self::Tcp6 => net::VIRTIO_NET_HDR_GSO_TCPV6 as u8,
            Self::UdpL4 => net::VIRTIO_NET_HDR_GSO_UDP_L4 as u8,
            Self::Udp => net::VIRTIO_NET_HDR_GSO_UDP as u8,
            Self::Other(bits) => bits,
        }
    }

    fn from_bits(bits: u8) -> Self {
        let known = [Self::None, Self::Tcp4, Self::Tcp6, Self::UdpL4, Self::Udp];
        known.into_iter().find(|kind| kind.bits() == bits).unwrap_or(Self::Other(bits))
    }
}

/// The header's fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NetHeader {
    /// `csum_start` and `csum_offset` say where a checksum is still to be put in.
    pub needs_checksum: bool,
    /// The checksums are known to be right.
    pub data_valid: bool,
    /// Further flag bits as they are.
    pub other_flags: u8,
    /// Kind of the GSO frame.
    pub gso: GsoKind,
    /// The ECN bit of the type field.
    pub ecn: bool,
    /// Bytes of the headers to be copied into each segment: a hint.
    pub header_length: u16,
    /// Payload bytes a segment.
    pub gso_size: u16,
    /// Where the checksum begins, from the start of the frame.
    pub checksum_start: u16,
    /// Where it is stored, from `checksum_start`.
    pub checksum_offset: u16,
    /// Receive buffers that the frame fills (towards the guest only).
    pub buffers: u16,
}

impl NetHeader {
    /// Bytes of the longest form, virtio 1's.
    pub const BYTES: usize = 12;

    /// The header as it lies in memory; a legacy one is the first 10 bytes.
    pub fn bytes(&self) -> [u8; Self::BYTES] {
        let flag = |set: bool, bit: u32| if set { bit as u8 } else { 0 };
        let mut bytes = [0; Self::BYTES];
        bytes[0] = flag(self.needs_checksum, net::VIRTIO_NET_HDR_F_NEEDS_CSUM)
            | flag(self.data_valid, net::VIRTIO_NET_HDR_F_DATA_VALID)
            | self.other_flags;
        bytes[1] = self.gso.bits() | flag(self.ecn, net::VIRTIO_NET_HDR_GSO_ECN);
        let words = [self.header_length, self.gso_size, self.checksum_start, self.checksum_offset, self.buffers];
        for (place, word) in bytes[2..].chunks_exact_mut(2).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Reads a header of 10 or 12 bytes; `None` when there are fewer.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
        let (flags, kind) = (*bytes.first()?, *bytes.get(1)?);
        let named = (net::VIRTIO_NET_HDR_F_NEEDS_CSUM | net::VIRTIO_NET_HDR_F_DATA_VALID) as u8;
        Some(Self {
            needs_checksum: flags & net::VIRTIO_NET_HDR_F_NEEDS_CSUM as u8 != 0,
            data_valid: flags & net::VIRTIO_NET_HDR_F_DATA_VALID as u8 != 0,
            other_flags: flags & !named,
            gso: GsoKind::from_bits(kind & !(net::VIRTIO_NET_HDR_GSO_ECN as u8)),
            ecn: kind & net::VIRTIO_NET_HDR_GSO_ECN as u8 != 0,
            header_length: word(2)?,
            gso_size: word(4)?,
            checksum_start: word(6)?,
            checksum_offset: word(8)?,
            buffers: word(10).unwrap_or(1),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_survives_the_way_through_memory() {
        let header = NetHeader {
            needs_checksum: true,
            gso: GsoKind::Tcp6,
            ecn: true,
            header_length: 74,
            gso_size: 1440,
            checksum_start: 54,
            checksum_offset: 16,
            buffers: 3,
            ..NetHeader::default()
        };
        assert_eq!(NetHeader::parse(&header.bytes()), Some(header));
        assert_eq!(NetHeader::parse(&header.bytes()[..10]), Some(NetHeader { buffers: 1, ..header }));
        assert_eq!(NetHeader::parse(&[0; 9]), None);
    }
}
