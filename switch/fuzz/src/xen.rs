//! Target `xen`: the requests of a Xen guest in its transmit ring, read into frames.

use memlane_backends::xen::netif::{Fault, MOST_SLOTS, Place, TX_REQUEST, TxFrame};

/// Bytes of a page.
const PAGE: u32 = 4096;
/// Places that one frame may take: its requests, and the extras behind the first.
const MOST_PLACES: usize = MOST_SLOTS + 6;

/// Reads frames from the places that `data` is, as the switch does, until none is left or a rule is broken; checks each.
pub fn run(data: &[u8]) {
    let places: Vec<[u8; TX_REQUEST]> = data.chunks_exact(TX_REQUEST).map(|place| place.try_into().expect("so long")).collect();
    let (mut frame, mut at) = (TxFrame::new(), 0);
    while at < places.len() {
        let begin = at;
        let next = || {
            let place = places.get(at).copied();
            at += usize::from(place.is_some());
            place
        };
        let result = frame.read(7, next);
        let taken = &places[begin..at];
        assert!(taken.len() <= MOST_PLACES, "{} places of one frame", taken.len());
        match result {
            Ok(()) => check(&frame, taken),
            Err(fault) => return assert!(fault != Fault::Incomplete || at == places.len(), "more was there"),
        }
    }
}

/// The frame agrees with its requests, and with the lengths that the copies rely on.
fn check(frame: &TxFrame, taken: &[[u8; TX_REQUEST]]) {
    assert_eq!(frame.places.len(), taken.len(), "each place is answered once");
    assert!(frame.parts.len() <= MOST_SLOTS);
    assert_eq!(frame.parts.iter().map(|part| part.length).sum::<u32>(), frame.length);
    for part in &frame.parts {
        assert!(part.length > 0 && u32::from(part.place.offset) + part.length <= PAGE && part.place.domain == 7, "{part:?}");
    }
    let requests = taken.iter().zip(&frame.places).filter_map(|(bytes, place)| match place {
        Place::Request(id) => Some((bytes, *id)),
        Place::Extra => None,
    });
    for (bytes, id) in requests {
        assert_eq!(id, u16::from_le_bytes([bytes[8], bytes[9]]));
    }
    assert_eq!(u32::from(u16::from_le_bytes([taken[0][10], taken[0][11]])), frame.length, "the first tells the whole");
}
