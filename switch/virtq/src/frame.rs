//! The frame as the switch sees it: a virtio-net header, and headers copied once.
//!
//! 1. [`NetHeader`]: the sender's requests for checksum and segmentation offload (virtio 1.4, section 5.1.6).
//! 2. [`MacAddress`]: source or destination; [`Head`]: the first 16 bytes, which hold both; [`MatchMask`]: the match mask, some bits
//!    of those.
//! 3. [`Layers`]: offsets of the network and transport headers, found only when an offload must be checked or repaired.
//!
//! Everything here reads the switch's own copy, never guest memory.

#![expect(
    clippy::indexing_slicing,
    reason = "arrays of fixed length that a checked look at the frame yielded, and what follows an offset found within the start"
)]

use std::fmt;

use crate::copy::Block;

/// Bytes of an Ethernet header without tags: no frame is shorter.
pub const ETHERNET: usize = 14;
/// Bytes of the minimum frame on a wire, without its check sequence (IEEE 802.3). In fair queueing, shorter ones count as such.
pub const SHORTEST: u32 = 60;
/// Longest frame: an IP packet of 64 KiB behind an Ethernet header and two VLAN tags.
pub const MAX_FRAME: u32 = 65535 + ETHERNET as u32 + 8;

/// Most bytes of a frame that are copied on transmit: Ethernet, two VLAN tags, the longest IPv4 and the longest TCP header. Headers of IPv6 may be
/// longer, up to 2048 bytes for each extension (RFC 8200, section 4): those are read when they are needed.
pub const START: usize = 144;
/// Most bytes of a frame that are copied on transmit in fact: a VLAN tag can be inserted behind the addresses then. Longer headers are read when
/// they are needed.
pub const COPIED: usize = START - TAG;
/// Bytes of a VLAN tag.
pub const TAG: usize = 4;
/// Most bytes of headers that are read when they are needed: to segment a frame, and to find the ports of its flow.
pub const LONGEST_HEADERS: usize = 4096;
/// Bytes that suffice for the verdict on a frame without offloads.
pub const SHORT_START: usize = 64;

/// EtherType of IPv4.
pub const TYPE_IPV4: u16 = 0x0800;
/// EtherType of IPv6.
pub const TYPE_IPV6: u16 = 0x86dd;
/// EtherType of a VLAN tag (IEEE 802.1Q, C-tag).
pub const TYPE_VLAN: u16 = 0x8100;
/// EtherType of a service VLAN tag (IEEE 802.1Q, S-tag).
pub const TYPE_QINQ: u16 = 0x88a8;
/// The bits of a tag that are the VLAN's identifier.
const VLAN: u16 = 0xfff;
/// IP protocol number of TCP.
pub const TCP: u8 = 6;
/// IP protocol number of UDP.
pub const UDP: u8 = 17;
/// IP protocol number of SCTP.
pub const SCTP: u8 = 132;

/// An Ethernet address as a number: its six bytes in memory order are the low six bytes in little-endian order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct MacAddress(u64);

impl MacAddress {
    /// Broadcast: every MAC address.
    pub const BROADCAST: Self = Self(0xffff_ffff_ffff);

    /// The address with these bytes, in the order in which they are sent.
    pub fn new(bytes: [u8; 6]) -> Self {
        let [a, b, c, d, e, f] = bytes;
        Self(u64::from_le_bytes([a, b, c, d, e, f, 0, 0]))
    }

    /// Bytes of the address in the order in which they are sent.
    pub fn bytes(self) -> [u8; 6] {
        let [a, b, c, d, e, f, _, _] = self.0.to_le_bytes();
        [a, b, c, d, e, f]
    }

    /// The address as a number below 2^48.
    #[inline]
    pub fn number(self) -> u64 {
        self.0
    }

    /// True for group addresses, broadcast included (IEEE 802, individual/group bit).
    #[inline]
    pub fn is_group(self) -> bool {
        self.0 & 1 != 0
    }

    /// True for the group addresses 01:80:c2:00:00:00 to 0f, which no bridge forwards (IEEE 802.1Q, table 8-1).
    #[inline]
    pub fn is_reserved_group(self) -> bool {
        let [head @ .., last] = self.bytes();
        head == [0x01, 0x80, 0xc2, 0, 0] && last < 0x10
    }

    /// True for a unicast address: not a group, not all zeroes.
    #[inline]
    pub fn is_unicast(self) -> bool {
        !self.is_group() && self.0 != 0
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.bytes();
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::str::FromStr for MacAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bytes: Vec<u8> = text
            .split(':')
            .map(|part| {
                // `from_str_radix` takes signs.
                let plain = part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_hexdigit());
                plain.then(|| u8::from_str_radix(part, 16).ok()).flatten()
            })
            .collect::<Option<_>>()
            .ok_or_else(|| format!("'{text}' is not a MAC address like 02:00:00:00:00:01"))?;
        let bytes: [u8; 6] = bytes.try_into().map_err(|_| format!("'{text}' is not a MAC address of six bytes"))?;
        Ok(Self::new(bytes))
    }
}

/// The first 16 bytes of a frame: destination, source, type or VLAN tag, two bytes more; of a frame of 14 bytes the last two mean nothing.
/// The first byte is the number's lowest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Head(u128);

impl Head {
    /// The bits of the destination.
    pub const DESTINATION: u128 = 0xffff_ffff_ffff;
    /// The bits of the source.
    pub const SOURCE: u128 = Self::DESTINATION << 48;

    /// The head of the frame that begins with `start`.
    #[inline]
    pub fn of(start: &[u8; START]) -> Self {
        Self(u128::from(load_u64(start, 0)) | u128::from(load_u64(start, 8)) << 64)
    }

    /// The destination address.
    #[inline]
    pub fn destination(self) -> MacAddress {
        MacAddress((self.0 & Self::DESTINATION) as u64)
    }

    /// The source address.
    #[inline]
    pub fn source(self) -> MacAddress {
        MacAddress(((self.0 & Self::SOURCE) >> 48) as u64)
    }

    /// The VLAN of its outer tag, and the mask of the bits that determine it. Frames without a tag are in VLAN 0, and so are
    /// priority tags (IEEE 802.1Q, section 6.9). Of an EtherType that is no tag, only the bits that distinguish it from one are in
    /// the mask, so that IPv4 and ARP match alike.
    #[inline]
    pub fn vlan(self) -> (u16, u128) {
        let at = 8 * (ETHERNET - 2);
        let (kind, tag) = ((self.0 >> at) as u16, (self.0 >> (at + 16)) as u16);
        let (kind, tag) = (u16::from_be(kind), u16::from_be(tag));
        // The highest bit in which the type differs from this one.
        let apart = |tag_type: u16| 0x8000_u16.checked_shr((kind ^ tag_type).leading_zeros()).unwrap_or(0);
        let (of_vlan, of_qinq) = (apart(TYPE_VLAN), apart(TYPE_QINQ));
        let bits = |mask: u16| u128::from(mask.to_be()) << at;
        if of_vlan == 0 || of_qinq == 0 { (tag & VLAN, bits(u16::MAX) | bits(VLAN) << 16) } else { (0, bits(of_vlan | of_qinq)) }
    }
}

/// Match mask: some bits of a frame's [`Head`], and their values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatchMask {
    mask: u128,
    bits: u128,
}

impl MatchMask {
    /// The bits of `head` that are set in `mask`.
    pub fn new(mask: u128, head: Head) -> Self {
        Self { mask, bits: head.0 & mask }
    }

    /// Whether the frame with this `head` has these bits.
    #[inline(always)]
    pub fn fits(self, head: Head) -> bool {
        head.0 & self.mask == self.bits
    }

    /// Like [`Self::fits`], for the frame that begins with `start`.
    #[inline(always)]
    pub fn fits_block(self, start: &Block) -> bool {
        start.begins_with(self.mask, self.bits)
    }

    /// The mask of the heads that fit both; `None` if there are none.
    pub fn and(self, other: Self) -> Option<Self> {
        let apart = (self.bits ^ other.bits) & self.mask & other.mask;
        (apart == 0).then_some(Self { mask: self.mask | other.mask, bits: self.bits | other.bits })
    }

    /// The known bits of every head that fits; the other bits are zero.
    pub fn head(self) -> Head {
        Head(self.bits)
    }
}

/// Bytes of a frame behind its [`Head`] that a match mask can hold: a frame's addresses and ports as far as a [`Block`] has them.
const FURTHER: usize = SHORT_START - 16;

/// Extension of a [`MatchMask`] over the bytes from 16 to 64, for verdicts that depend on IP addresses and ports too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FurtherMask {
    mask: [u128; FURTHER / 16],
    bits: [u128; FURTHER / 16],
    /// Length of the bytes that determine the verdict, from the start of the frame: a shorter frame does not fit.
    reach: u32,
}

impl FurtherMask {
    /// Adds the bits of `mask` of the byte at `at`, where the frame has `byte`. False if no match mask holds that byte.
    #[must_use]
    pub fn add(&mut self, at: usize, byte: u8, mask: u8) -> bool {
        if !(16..SHORT_START).contains(&at) {
            return false;
        }
        let (lane, shift) = (at / 16 - 1, 8 * (at % 16));
        self.mask[lane] |= u128::from(mask) << shift;
        self.bits[lane] |= u128::from(byte & mask) << shift;
        self.reach = self.reach.max(at as u32 + 1);
        true
    }

    /// Frames of fewer than `length` bytes do not fit.
    pub fn reach_to(&mut self, length: usize) {
        self.reach = self.reach.max(length.min(SHORT_START) as u32);
    }

    /// The mask of the frames that fit both; `None` if there are none.
    pub fn and(&self, other: &Self) -> Option<Self> {
        let lanes = |of: &Self| std::iter::zip(of.mask, of.bits);
        let differ =
            |((mask, bits), (other_mask, other_bits)): ((u128, u128), (u128, u128))| (bits ^ other_bits) & mask & other_mask != 0;
        let apart = std::iter::zip(lanes(self), lanes(other)).any(differ);
        let mut both = *self;
        std::iter::zip(&mut both.mask, other.mask).for_each(|(mask, other)| *mask |= other);
        std::iter::zip(&mut both.bits, other.bits).for_each(|(bits, other)| *bits |= other);
        both.reach = both.reach.max(other.reach);
        (!apart).then_some(both)
    }

    /// Whether every frame fits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.reach == 0
    }

    /// Whether the frame that begins with `start` has these bits, and is so long.
    pub fn fits(&self, start: &[u8]) -> bool {
        if let Some(block) = start.first_chunk() {
            return self.fits_block(&Block::of(block));
        }
        let Some(start) = start.get(..self.reach as usize) else { return false };
        let mut bytes = [0; SHORT_START];
        bytes[..start.len()].copy_from_slice(start);
        self.fits_lanes(|lane| {
            let mut word = [0; 16];
            word.copy_from_slice(&bytes[16 * lane..16 * lane + 16]);
            u128::from_le_bytes(word)
        })
    }

    /// Like [`Self::fits`], for the frame of at least 64 bytes that begins with `start`.
    #[inline]
    pub fn fits_block(&self, start: &Block) -> bool {
        self.fits_lanes(|lane| start.lane(lane))
    }

    #[inline(always)]
    fn fits_lanes(&self, lane: impl Fn(usize) -> u128) -> bool {
        (0..FURTHER / 16).all(|n| lane(n + 1) & self.mask[n] == self.bits[n])
    }
}

#[inline]
fn load_u64(bytes: &[u8; START], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

/// How a GSO frame is to be segmented (`gso_type` without the ECN bit).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segmentation {
    /// TCP over IPv4.
    Tcp4,
    /// TCP over IPv6.
    Tcp6,
    /// UDP, over either (USO).
    Udp,
}

/// A `gso_type` that memlane never offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownSegmentation;

impl Segmentation {
    /// The IP protocol of the frame, and the offset of the checksum in its transport header.
    pub fn transport(self) -> (u8, u16) {
        match self {
            Self::Tcp4 | Self::Tcp6 => (TCP, 16),
            Self::Udp => (UDP, 6),
        }
    }

    /// Whether an IP packet of this version can be segmented so.
    pub fn fits(self, version: u8) -> bool {
        match self {
            Self::Tcp4 => version == 4,
            Self::Tcp6 => version == 6,
            Self::Udp => true,
        }
    }
}

/// The virtio-net header: offloads that the sender requests (virtio 1.4, section 5.1.6).
///
/// Kept as the two words in which it is loaded and stored, because a load over several smaller stores costs more than everything else
/// that happens to it.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct NetHeader {
    /// `flags`, `gso_type`, `hdr_len`, `gso_size`, `csum_start`, from the lowest byte on.
    first: u64,
    /// `csum_offset`, `num_buffers`.
    last: u32,
}

impl fmt::Debug for NetHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NetHeader")
            .field("flags", &self.flags())
            .field("gso_type", &self.gso_type())
            .field("hdr_len", &self.hdr_len())
            .field("gso_size", &self.gso_size())
            .field("csum_start", &self.csum_start())
            .field("csum_offset", &self.csum_offset())
            .finish()
    }
}

impl NetHeader {
    /// Bytes with `num_buffers`: VERSION_1 or MRG_RXBUF.
    pub const SIZE: usize = 12;
    /// Flag: the checksum is the pseudo-header's only.
    pub const NEEDS_CSUM: u8 = 1;
    /// Flag: the checksum was verified.
    pub const DATA_VALID: u8 = 2;
    /// Type: no segmentation.
    pub const GSO_NONE: u8 = 0;
    /// Type: TCP over IPv4.
    pub const GSO_TCPV4: u8 = 1;
    /// Type: TCP over IPv6.
    pub const GSO_TCPV6: u8 = 4;
    /// Type: UDP.
    pub const GSO_UDP_L4: u8 = 5;
    /// Added to a TCP type: the ECN bit CWR is set.
    pub const ECN: u8 = 0x80;

    /// The header with these bytes; a legacy guest sends only the first ten.
    #[inline]
    pub fn from_bytes(bytes: [u8; Self::SIZE]) -> Self {
        let [a, b, c, d, e, f, g, h, i, j, k, l] = bytes;
        Self { first: u64::from_le_bytes([a, b, c, d, e, f, g, h]), last: u32::from_le_bytes([i, j, k, l]) }
    }

    /// Bytes of the header in memory.
    #[inline]
    pub fn bytes(self) -> [u8; Self::SIZE] {
        let [a, b, c, d, e, f, g, h] = self.first.to_le_bytes();
        let [i, j, k, l] = self.last.to_le_bytes();
        [a, b, c, d, e, f, g, h, i, j, k, l]
    }

    /// The header of these words, as they lie in memory ([`Iovec::header`](crate::memory::Iovec::header)).
    #[inline]
    pub fn from_words((first, last): (u64, u32)) -> Self {
        Self { first, last }
    }

    /// Words of the header in memory.
    #[inline]
    pub fn words(self) -> (u64, u32) {
        (self.first, self.last)
    }

    /// A header that requests checksum offload: the checksum is partial.
    pub fn partial_checksum(csum_start: u16, csum_offset: u16) -> Self {
        Self { first: u64::from(Self::NEEDS_CSUM) | u64::from(csum_start) << 48, last: csum_offset.into() }
    }

    /// The same header with a request for segments of `size` bytes of payload; `kind` is a `gso_type`.
    #[must_use]
    pub fn cut(self, kind: u8, size: u16) -> Self {
        Self { first: self.first | u64::from(kind) << 8 | u64::from(size) << 32, ..self }
    }

    /// The same header of a frame with `by` bytes more, or fewer, before its network header.
    #[must_use]
    pub fn moved(self, by: i16) -> Self {
        if self.is_plain() {
            return self;
        }
        // Without GSO no length of headers is stated.
        let hdr_len = if self.hdr_len() == 0 { 0 } else { self.hdr_len().saturating_add_signed(by) };
        let start = self.csum_start().saturating_add_signed(by);
        let kept = self.first & !(0xffff << 48 | 0xffff << 16);
        Self { first: kept | u64::from(start) << 48 | u64::from(hdr_len) << 16, ..self }
    }

    /// The same header, without flags that mean nothing to a receiver, and with this `hdr_len`.
    #[must_use]
    pub fn cleaned(self, hdr_len: u16) -> Self {
        let kept = self.first & !0xffff_00fe;
        let size = if self.gso_type() == Self::GSO_NONE { kept & !0xffff_0000_0000 } else { kept };
        Self { first: size | u64::from(hdr_len) << 16, last: self.last & 0xffff }
    }

    /// The same header for a frame that fills `buffers` receive buffers.
    #[inline]
    #[must_use]
    pub fn in_buffers(self, buffers: u16) -> Self {
        Self { last: self.last & 0xffff | u32::from(buffers) << 16, ..self }
    }

    /// [`Self::NEEDS_CSUM`], [`Self::DATA_VALID`].
    #[inline]
    pub fn flags(self) -> u8 {
        self.first as u8
    }

    /// Segmentation type, [`Self::ECN`] included.
    #[inline]
    pub fn gso_type(self) -> u8 {
        (self.first >> 8) as u8
    }

    /// Length of all headers, a hint.
    pub fn hdr_len(self) -> u16 {
        (self.first >> 16) as u16
    }

    /// Payload bytes of each segment.
    pub fn gso_size(self) -> u16 {
        (self.first >> 32) as u16
    }

    /// Start of the checksummed range, from the start of the frame.
    pub fn csum_start(self) -> u16 {
        (self.first >> 48) as u16
    }

    /// Offset of the checksum field, from `csum_start`.
    pub fn csum_offset(self) -> u16 {
        self.last as u16
    }

    /// True if the sender requests no offload.
    #[inline]
    pub fn is_plain(self) -> bool {
        self.first & 0xff01 == 0
    }

    /// How the frame is to be segmented; `None` if it is not.
    ///
    /// # Errors
    /// Types that cannot have been negotiated (UFO among them).
    pub fn segmentation(self) -> Result<Option<Segmentation>, UnknownSegmentation> {
        let ecn = self.gso_type() & Self::ECN != 0;
        match self.gso_type() & !Self::ECN {
            Self::GSO_NONE if !ecn => Ok(None),
            Self::GSO_TCPV4 => Ok(Some(Segmentation::Tcp4)),
            Self::GSO_TCPV6 => Ok(Some(Segmentation::Tcp6)),
            Self::GSO_UDP_L4 if !ecn => Ok(Some(Segmentation::Udp)),
            _ => Err(UnknownSegmentation),
        }
    }
}

/// Offsets of the headers of an IP frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layers {
    /// 4 or 6.
    pub version: u8,
    /// Offset of the IP header.
    pub network: usize,
    /// Offset of the TCP or UDP header.
    pub transport: usize,
    /// Protocol number of the transport.
    pub protocol: u8,
}

impl Layers {
    /// Finds the headers of the IP frame that begins with `start`; `None` if it is no IP frame, is a fragment of several, or its headers
    /// reach past `start`.
    pub fn find(start: &[u8]) -> Option<Self> {
        let (kind, network) = network_type(start)?;
        match kind {
            TYPE_IPV4 => Self::find_v4(start, network),
            TYPE_IPV6 => Self::find_v6(start, network),
            _ => None,
        }
    }

    fn find_v4(start: &[u8], network: usize) -> Option<Self> {
        let header = start.get(network..network + 20)?;
        let length = usize::from(header[0] & 0xf) * 4;
        let fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0;
        if header[0] >> 4 != 4 || length < 20 || fragment {
            return None;
        }
        Some(Self { version: 4, network, transport: network + length, protocol: header[9] })
    }

    fn find_v6(start: &[u8], network: usize) -> Option<Self> {
        match Chain::follow(start, network)? {
            Chain::Ends { protocol, transport } => Some(Self { version: 6, network, transport, protocol }),
            Chain::GoesOn(_) => None,
        }
    }

    /// The first extension header of the IPv6 frame that begins with `start` which lies behind `start`; `None` if there is none.
    pub fn extension_behind(start: &[u8]) -> Option<Extension> {
        let (_, network) = network_type(start).filter(|&(kind, _)| kind == TYPE_IPV6)?;
        match Chain::follow(start, network)? {
            Chain::Ends { .. } => None,
            Chain::GoesOn(extension) => Some(extension),
        }
    }

    /// The headers of the IP frame that begins with `start`, with the sender's claim of a transport header of `protocol` at byte
    /// `transport`; `None` if `start` contradicts it. IPv6 extension headers behind `start` are not verified.
    pub fn said(start: &[u8], protocol: u8, transport: usize) -> Option<Self> {
        let (kind, network) = network_type(start)?;
        match kind {
            TYPE_IPV4 => Self::find_v4(start, network).filter(|found| (found.protocol, found.transport) == (protocol, transport)),
            TYPE_IPV6 => {
                let fits = match Chain::follow(start, network)? {
                    Chain::Ends { protocol: found, transport: at } => (found, at) == (protocol, transport),
                    Chain::GoesOn(Extension { at, .. }) => transport > at && (transport - at).is_multiple_of(8),
                };
                fits.then_some(Self { version: 6, network, transport, protocol })
            }
            _ => None,
        }
    }
}

/// An extension header of an IPv6 packet, or the header behind the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extension {
    /// Protocol number of the header.
    pub protocol: u8,
    /// The byte of the frame at which it begins.
    pub at: usize,
}

impl Extension {
    /// Bytes of an extension header that tell its end.
    pub const BYTES: usize = 4;
    const FRAGMENT: u8 = 44;

    /// Whether it is an extension header: hop-by-hop, routing, fragment or destination options (RFC 8200, section 4).
    #[inline]
    pub fn is_one(self) -> bool {
        matches!(self.protocol, 0 | 43 | Self::FRAGMENT | 60)
    }

    /// The header behind it, if it begins with `bytes`; `None` behind a fragment header, unless the whole packet is that fragment (RFC
    /// 6946).
    #[inline]
    pub fn next(self, bytes: [u8; Self::BYTES]) -> Option<Self> {
        let [protocol, length, high, low] = bytes;
        let length = match self.protocol {
            // Bits 1 and 2 are reserved.
            Self::FRAGMENT if u16::from_be_bytes([high, low]) & !0x6 != 0 => return None,
            Self::FRAGMENT => 8,
            _ => 8 + 8 * usize::from(length),
        };
        Some(Self { protocol, at: self.at + length })
    }
}

/// Whether the frame that begins with `start` has a transport header of `protocol` at byte `transport` in the most frequent layout: without
/// tags, IPv4 options, fragments and IPv6 extension headers. For other layouts, see [`Layers::said`].
#[inline]
pub fn has_usual_layers(start: &[u8; START], protocol: u8, transport: u16) -> bool {
    // EtherType, version and length of the header; then flags, offset and protocol of IPv4, or the next header of IPv6.
    let (first, second) = (load_u64(start, ETHERNET - 2), load_u64(start, ETHERNET + 6));
    let is_v4 = first & 0xff_ffff == 0x45_0008 && second & 0xff00_ff3f == u64::from(protocol) << 24;
    let is_v6 = first & 0xf0_ffff == 0x60_dd86 && second & 0xff == u64::from(protocol);
    is_v4 && transport == 34 || is_v6 && transport == 54
}

/// The extension headers of an IPv6 packet, as far as they are known.
enum Chain {
    /// The headers end with a header of this protocol, which may lie behind the known bytes.
    Ends { protocol: u8, transport: usize },
    /// The next one is not known.
    GoesOn(Extension),
}

impl Chain {
    /// Follows the extension headers behind the IPv6 header at `network`; each is a multiple of 8 bytes, so the walk ends. `None` if it is
    /// no IPv6 header, is not all in `start`, or is that of a fragment.
    fn follow(start: &[u8], network: usize) -> Option<Self> {
        let header = start.get(network..network + 40)?;
        if header[0] >> 4 != 6 {
            return None;
        }
        let mut extension = Extension { protocol: header[6], at: network + 40 };
        while extension.is_one() {
            let Some(bytes) = start.get(extension.at..).and_then(<[u8]>::first_chunk) else { return Some(Self::GoesOn(extension)) };
            extension = extension.next(*bytes)?;
        }
        Some(Self::Ends { protocol: extension.protocol, transport: extension.at })
    }
}

/// The IP version of the frame that begins with `start`; `None` if it is no IP frame.
pub fn ip_version(start: &[u8]) -> Option<u8> {
    match network_type(start)?.0 {
        TYPE_IPV4 => Some(4),
        TYPE_IPV6 => Some(6),
        _ => None,
    }
}

/// The EtherType behind up to two VLAN tags, and the offset of the header that it names; `None` if there are more tags, or the frame ends before.
pub fn network_type(start: &[u8]) -> Option<(u16, usize)> {
    let mut at = ETHERNET - 2;
    for _ in 0..3 {
        let kind = u16::from_be_bytes([*start.get(at)?, *start.get(at + 1)?]);
        if kind != TYPE_VLAN && kind != TYPE_QINQ {
            return Some((kind, at + 2));
        }
        at += 4;
    }
    None
}

/// Flow hash: the same for all frames of one flow, in both directions; spreads flows over queues. `None` if the ports lie behind
/// `start`.
///
/// A TCP connection is a flow, and so are the datagrams of UDP between two ports; everything else between two IP addresses is one flow
/// together. Fragments are of the latter, for only the first one of a datagram has ports. The datagrams of one socket are fragmented or not by
/// their length: see [`may_be_fragmented`].
pub fn flow_hash(start: &[u8]) -> Option<u32> {
    let Some((version, network, addresses)) = addresses(start) else { return Some(0) };
    let transport = match version {
        4 => transport_v4(&start[network..]).map(|length| network + length),
        _ => match Chain::follow(start, network) {
            Some(Chain::Ends { protocol: TCP | UDP, transport }) => Some(transport),
            Some(Chain::GoesOn(_)) => return None,
            _ => None,
        },
    };
    let ports = match transport {
        Some(transport) => start.get(transport..transport + 4)?,
        None => &[0; 4],
    };
    let ports = u32::from(u16::from_be_bytes([ports[0], ports[1]])) + u32::from(u16::from_be_bytes([ports[2], ports[3]]));
    Some(mix(addresses, ports))
}

/// The same for a frame with unknown ports.
pub fn pair_hash(start: &[u8]) -> u32 {
    addresses(start).map_or(0, |(_, _, addresses)| mix(addresses, 0))
}

/// Version and offset of the IP header of the frame that begins with `start`, and its addresses.
fn addresses(start: &[u8]) -> Option<(u8, usize, &[u8])> {
    let (kind, network) = network_type(start)?;
    let (version, from, length) = match kind {
        TYPE_IPV4 => (4, network + 12, 8),
        TYPE_IPV6 => (6, network + 8, 32),
        _ => return None,
    };
    Some((version, network, start.get(from..from + length)?))
}

/// Whether the frame that begins with `start` is one of several fragments of an IP packet; `None` if the header that says so lies behind `start`.
#[inline]
pub fn is_fragment(start: &[u8]) -> Option<bool> {
    match network_type(start) {
        Some((TYPE_IPV4, network)) => Some(fragment_v4(start.get(network..).unwrap_or_default()) & 0x3fff != 0),
        Some((TYPE_IPV6, network)) => {
            let Some(&protocol) = start.get(network + 6) else { return Some(false) };
            if !(Extension { protocol, at: 0 }).is_one() {
                return Some(false);
            }
            match Chain::follow(start, network) {
                Some(Chain::GoesOn(_)) => None,
                Some(Chain::Ends { .. }) => Some(false),
                None => Some(true),
            }
        }
        _ => Some(false),
    }
}

/// Whether frames of the flow of the frame that begins with `start` may be fragmented: by IPv4, unless it says that they may not (DF, RFC 791); by
/// IPv6 at the source (RFC 8200, section 5), where TCP does without.
pub fn may_be_fragmented(start: &[u8]) -> bool {
    const DONT_FRAGMENT: u16 = 0x4000;
    match network_type(start) {
        Some((TYPE_IPV4, network)) => {
            let packet = start.get(network..).unwrap_or_default();
            packet.get(9) != Some(&TCP) || fragment_v4(packet) != DONT_FRAGMENT
        }
        Some((TYPE_IPV6, network)) => !matches!(Chain::follow(start, network), Some(Chain::Ends { protocol: TCP, .. })),
        _ => false,
    }
}

/// The word of the IPv4 header at the beginning of `packet` with its place among fragments; the highest bit is reserved.
fn fragment_v4(packet: &[u8]) -> u16 {
    packet.get(6..8).map_or(0, |word| u16::from_be_bytes([word[0], word[1]]) & 0x7fff)
}

/// The length of the IPv4 header at the beginning of `packet`, if ports follow it.
fn transport_v4(packet: &[u8]) -> Option<usize> {
    let length = usize::from(packet[0] & 0xf) * 4;
    (matches!(packet[9], TCP | UDP) && fragment_v4(packet) & 0x3fff == 0 && length >= 20).then_some(length)
}

fn mix(addresses: &[u8], ports: u32) -> u32 {
    let (from, to) = addresses.split_at(addresses.len() / 2);
    let both = fold(from).wrapping_add(fold(to)).wrapping_add(ports.wrapping_mul(0x9e37_79b1));
    (both ^ both >> 15).wrapping_mul(0x85eb_ca6b) >> 8
}

fn fold(address: &[u8]) -> u32 {
    address.chunks_exact(4).fold(0, |sum, word| {
        let word = u32::from_be_bytes([word[0], word[1], word[2], word[3]]);
        (sum ^ word).wrapping_mul(0x0100_0193)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_six_pairs_of_hexadecimal_digits() {
        let text = "02:00:0a:0b:0c:ff";
        assert_eq!(text.parse::<MacAddress>().unwrap().to_string(), text);
        for wrong in ["", "02:00:0a:0b:0c", "02:00:0a:0b:0c:ff:00", "02:00:0a:0b:0c:+f", "2:0:a:b:c:f", "02-00-0a-0b-0c-ff"] {
            assert!(wrong.parse::<MacAddress>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_block_fits_a_pattern_where_its_head_does() {
        let bytes: [u8; START] = std::array::from_fn(|n| n as u8 + 2);
        let match_mask = MatchMask::new(Head::SOURCE, Head::of(&bytes));
        for changed in 0..20 {
            let mut other = bytes;
            other[changed] ^= 0x80;
            let block = Block::of(other.first_chunk().unwrap());
            let fits = !(6..12).contains(&changed);
            assert_eq!((match_mask.fits(Head::of(&other)), match_mask.fits_block(&block)), (fits, fits), "byte {changed}");
        }
    }

    #[test]
    fn both_masks_fit_where_their_union_does() {
        let bytes: [u8; START] = std::array::from_fn(|n| n as u8 + 2);
        let mask = |byte: u8| {
            (MatchMask::new(0xff << (8 * byte), Head::of(&bytes)), {
                let mut further = FurtherMask::default();
                assert!(further.add(16 + usize::from(byte), bytes[16 + usize::from(byte)], 0xff));
                further
            })
        };
        let ((head, further), (other_head, other_further)) = (mask(3), mask(7));
        let (both_heads, both) = (head.and(other_head).unwrap(), further.and(&other_further).unwrap());
        for changed in 0..SHORT_START {
            let mut other = bytes;
            other[changed] ^= 0x80;
            let block = Block::of(other.first_chunk().unwrap());
            assert_eq!(both_heads.fits_block(&block), head.fits_block(&block) && other_head.fits_block(&block));
            assert_eq!(both.fits_block(&block), further.fits_block(&block) && other_further.fits_block(&block));
        }
        let mut apart = bytes;
        (apart[3], apart[19]) = (!apart[3], !apart[19]);
        let mut far = FurtherMask::default();
        assert!(far.add(19, apart[19], 0xff));
        assert_eq!((head.and(MatchMask::new(0xff << 24, Head::of(&apart))), further.and(&far)), (None, None), "no frame fits both");
    }

    #[test]
    fn a_further_mask_compares_its_bytes_only() {
        let bytes: [u8; START] = std::array::from_fn(|n| n as u8 + 2);
        let mut further = FurtherMask::default();
        assert!(further.fits(&[]), "no byte is compared");
        for at in [16, 31, 32, 50] {
            assert!(further.add(at, bytes[at], 0xf0));
        }
        assert!(!further.add(15, 0, 1) && !further.add(SHORT_START, 0, 1));
        assert!(!further.fits(&bytes[..50]) && further.fits(&bytes[..51]), "too short a frame does not fit");
        for changed in 0..SHORT_START {
            let mut other = bytes;
            other[changed] ^= 0x80;
            let fits = ![16, 31, 32, 50].contains(&changed);
            let block = Block::of(other.first_chunk().unwrap());
            assert_eq!((further.fits(&other), further.fits_block(&block)), (fits, fits), "byte {changed}");
            let mut other = bytes;
            other[changed] ^= 1;
            assert!(further.fits(&other), "bit 0 of byte {changed} is not compared");
        }
    }
}
