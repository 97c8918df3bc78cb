//! The Internet checksum (RFC 1071), in the plainest way: it judges others, so it must not share their cleverness.

use std::net::IpAddr;

/// The ones' complement sum of `bytes` as 16-bit words, folded, starting from `sum`.
fn folded(sum: u32, bytes: &[u8]) -> u32 {
    let word = |pair: &[u8]| u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0));
    bytes.chunks(2).fold(sum, |sum, pair| {
        let sum = sum + word(pair);
        (sum & 0xffff) + (sum >> 16)
    })
}

/// The Internet checksum of `bytes`, with `sum` (a pseudo header's, or 0) added in.
/// Over bytes that contain a right checksum it is 0.
pub fn checksum(sum: u16, bytes: &[u8]) -> u16 {
    !(folded(sum.into(), bytes) as u16)
}

/// The sum (not inverted) of the pseudo header that TCP and UDP checksums begin with (RFC 9293 section 3.1, RFC 8200 section 8.1):
/// the content of a partial checksum field (checksum offload).
///
/// # Panics
/// When the addresses are of different families.
pub fn pseudo_header_sum(source: IpAddr, destination: IpAddr, protocol: u8, length: usize) -> u16 {
    let sum = match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => folded(folded(0, &source.octets()), &destination.octets()),
        (IpAddr::V6(source), IpAddr::V6(destination)) => folded(folded(0, &source.octets()), &destination.octets()),
        _ => panic!("a packet has addresses of one family"),
    };
    let length = (length as u32).to_be_bytes();
    folded(folded(sum, &length), &[0, protocol]) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The worked example of RFC 1071 section 3.
    #[test]
    fn the_rfcs_example_sums_up() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(checksum(0, &bytes), !0xddf2);
        assert_eq!(checksum(0, &[0xab]), !0xab00, "an odd byte is padded");
    }
}
