//! Where the headers of a frame lie, found by taking it apart from the front: an independent second opinion on [`memlane::frame::Layers`].

/// Version (4 or 6), offsets of network and transport header, protocol.
pub type Found = (u8, usize, usize, u8);

/// Takes headers off the front of a frame, and knows how far it is.
struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let taken = self.bytes.get(self.at..)?.get(..length)?;
        self.at += length;
        Some(taken)
    }

    fn word(&mut self) -> Option<u16> {
        self.take(2).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]))
    }
}

/// Type and place of the network header behind at most two VLAN tags.
fn find_network(bytes: &[u8]) -> Option<(u16, Cursor<'_>)> {
    let mut cursor = Cursor { bytes, at: 0 };
    cursor.take(12)?;
    let mut kind = cursor.word()?;
    for _ in 0..2 {
        if kind == 0x8100 || kind == 0x88a8 {
            cursor.word()?;
            kind = cursor.word()?;
        }
    }
    Some((kind, cursor))
}

/// IP version and offset of the network header.
pub fn find_ip(bytes: &[u8]) -> Option<(u8, usize)> {
    match find_network(bytes)? {
        (0x0800, cursor) => Some((4, cursor.at)),
        (0x86dd, cursor) => Some((6, cursor.at)),
        _ => None,
    }
}

/// The headers of an IP frame that is no fragment of several, behind at most two VLAN tags, if all of the network header is in `bytes`.
pub fn find(bytes: &[u8]) -> Option<Found> {
    let (kind, mut cursor) = find_network(bytes)?;
    match kind {
        0x0800 => find_v4(&mut cursor),
        0x86dd => find_v6(&mut cursor),
        _ => None,
    }
}

fn find_v4(cursor: &mut Cursor) -> Option<Found> {
    let network = cursor.at;
    let header = cursor.take(20)?;
    let (version, words) = (header[0] >> 4, usize::from(header[0] & 15));
    let more_fragments = header[6] & 0x20 != 0;
    let fragment_offset = u16::from_be_bytes([header[6] & 0x1f, header[7]]);
    let good = version == 4 && words >= 5 && !more_fragments && fragment_offset == 0;
    good.then_some((4, network, network + words * 4, header[9]))
}

fn find_v6(cursor: &mut Cursor) -> Option<Found> {
    let network = cursor.at;
    let header = cursor.take(40)?;
    if header[0] >> 4 != 6 {
        return None;
    }
    let mut protocol = header[6];
    // Hop-by-hop options, routing, fragment, destination options.
    while [0, 43, 44, 60].contains(&protocol) {
        let start = cursor.take(4)?;
        if protocol != 44 {
            cursor.at += 4 + usize::from(start[1]) * 8;
        } else if u16::from_be_bytes([start[2], start[3]]) >> 3 == 0 && start[3] & 1 == 0 {
            cursor.at += 4;
        } else {
            return None;
        }
        protocol = start[0];
    }
    Some((6, network, cursor.at, protocol))
}

/// The ones' complement sum of `parts`, of which all but the last must be of even length (RFC 1071).
pub fn sum(parts: &[&[u8]]) -> u16 {
    let mut total = 0_u32;
    for part in parts {
        for pair in part.chunks(2) {
            total += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
            total = (total & 0xffff) + (total >> 16);
        }
    }
    total as u16
}
