//! Target `multicast`: frames of guests that report multicast groups by IGMP and MLD. The reports of a frame are bounded by its length, and name
//! no group that address resolution needs.

use memlane::multicast::{Change, Group, read};

/// Reads the frame `data`.
pub fn run(data: &[u8]) {
    let mut reports = 0;
    read(data, |change| {
        reports += 1;
        if let Change::Join(group, _) | Change::Leave(group, _) = change {
            assert_eq!(Group::of(group.address()), Some(group), "frames to it are filtered");
        }
    });
    // A record of IGMPv3, the shortest, has eight bytes (RFC 3376, section 4.2.4).
    assert!(reports <= 1 + data.len() / 8, "{reports} reports in {} bytes", data.len());
}

/// A membership report of each version, a leave message and a query; inputs that fuzzing begins with.
pub fn seeds() -> [(&'static str, Vec<u8>); 8] {
    let igmp = |message: &[u8]| {
        let mut message = message.to_vec();
        let sum = checksum(&message);
        message[2..4].copy_from_slice(&sum);
        let length = (20 + message.len() as u16).to_be_bytes();
        let ip = [&[0x45, 0][..], &length, &[0, 0, 0, 0, 1, 2, 0, 0, 10, 0, 0, 1, 239, 1, 2, 3]].concat();
        [&[1, 0, 0x5e, 1, 2, 3, 2, 0, 0, 0, 0, 1, 8, 0][..], &ip, &message].concat()
    };
    let mld = |message: &[u8]| {
        let mut message = message.to_vec();
        let address = |first: [u8; 2]| [&first[..], &[0; 13], &[1]].concat();
        let (source, group) = (address([0xfe, 0x80]), address([0xff, 2]));
        let sum = checksum(&[&source, &group, &(message.len() as u32).to_be_bytes()[..], &[0, 0, 0, 58], &message].concat());
        message[2..4].copy_from_slice(&sum);
        let length = (8 + message.len() as u16).to_be_bytes();
        // Behind a hop-by-hop option with a router alert (RFC 3810, section 5).
        let ip = [&[0x60, 0, 0, 0][..], &length, &[0, 1], &source, &group, &[58, 0, 5, 2, 0, 0, 1, 0]].concat();
        [&[0x33, 0x33, 0, 0, 0, 1, 2, 0, 0, 0, 0, 1, 0x86, 0xdd][..], &ip, &message].concat()
    };
    let group = [&[0xff, 5][..], &[0; 12], &[1, 2]].concat();
    [
        ("igmp-v1-report", igmp(&[0x12, 0, 0, 0, 239, 1, 2, 3])),
        ("igmp-v2-report", igmp(&[0x16, 0, 0, 0, 239, 1, 2, 3])),
        ("igmp-v2-leave", igmp(&[0x17, 0, 0, 0, 239, 1, 2, 3])),
        ("igmp-query", igmp(&[0x11, 100, 0, 0, 0, 0, 0, 0])),
        ("igmp-v3-report", igmp(&[0x22, 0, 0, 0, 0, 0, 0, 2, 4, 0, 0, 0, 239, 1, 2, 3, 3, 0, 0, 0, 239, 1, 2, 4])),
        ("mld-v1-report", mld(&[&[131, 0, 0, 0, 0, 0, 0, 0][..], &group].concat())),
        ("mld-v1-done", mld(&[&[132, 0, 0, 0, 0, 0, 0, 0][..], &group].concat())),
        ("mld-v2-report", mld(&[&[143, 0, 0, 0, 0, 0, 0, 1, 4, 0, 0, 0][..], &group].concat())),
    ]
}

/// RFC 1071, over a message of an even length.
fn checksum(message: &[u8]) -> [u8; 2] {
    let mut sum: u32 = message.chunks_exact(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (!(sum as u16)).to_be_bytes()
}
