//! Properties of every index and every chain: see `docs/adr/0031-proofs.md`.

use super::chain::{Access, Walk};
use super::passes;
use super::shared::{Descriptor, SplitRing};
use crate::memory::proofs::map_of;
use crate::memory::{Hint, Iovec};

/// A driver is interrupted when its event lies among the published entries: as counting one by one says, wherever indices wrap.
#[test]
#[cfg_attr(kani, kani::proof)]
fn a_call_is_wanted_when_the_event_was_passed() {
    bolero::check!().with_type::<(u16, u16, u16)>().cloned().for_each(|(event, old, shown)| {
        let new = old.wrapping_add(shown);
        // Both on a line of their own, where nothing wraps: `old` is 0.
        assert_eq!(passes(event, old, new), event.wrapping_sub(old) < shown);
    });
}

/// All cases for one starting point and small steps: the short form of the proof.
#[test]
#[cfg_attr(kani, kani::proof)]
fn a_call_is_wanted_as_counting_says() {
    bolero::check!().exhaustive().with_type::<(u8, u8)>().cloned().for_each(|(event, shown)| {
        let (old, event) = (u16::MAX - 99, (u16::MAX - 199).wrapping_add(event.into()));
        let counted = (0..u16::from(shown)).any(|n| old.wrapping_add(n) == event);
        assert_eq!(passes(event, old, old.wrapping_add(shown.into())), counted);
    });
}

const ENTRIES: usize = 4;
/// Bytes: the ring's table, an indirect table as long, and buffers.
const BYTES: usize = 256;
/// Their guest address.
const GUEST: u64 = 0x1_0000;

#[repr(C, align(16))]
struct Bytes([u8; BYTES]);

/// A descriptor as a guest might write it, good ones more often than by chance.
fn descriptor((place, length, flags, next): (u8, u16, u8, u8)) -> [u8; Descriptor::SIZE] {
    let mut bytes = [0; Descriptor::SIZE];
    let address = match place {
        0xf0.. => u64::MAX - u64::from(place & 15),
        _ => GUEST + u64::from(place) * 16 % (BYTES as u64 + 16),
    };
    let length = if flags & 4 != 0 { u32::from(length % 6) * 16 } else { u32::from(length) << (flags >> 5) };
    bytes[..8].copy_from_slice(&address.to_le_bytes());
    bytes[8..12].copy_from_slice(&length.to_le_bytes());
    bytes[12..14].copy_from_slice(&u16::from(flags & 7).to_le_bytes());
    bytes[14..].copy_from_slice(&u16::from(next % 5).to_le_bytes());
    bytes
}

/// For all descriptors that a guest may write: the buffer segments of its chain lie in its memory, are not empty, fit the available
/// room, and add up to the length that the walk returns, which is within the limit.
#[test]
#[cfg_attr(kani, kani::proof, kani::unwind(20))]
fn a_chain_adds_up_and_stays_inside() {
    type Input = ([(u8, u16, u8, u8); 2 * ENTRIES], u16, u8, u8);
    bolero::check!().with_type::<Input>().cloned().for_each(|(words, limit, room, mode)| {
        let mut bytes = Box::new(Bytes([0; BYTES]));
        for (place, word) in bytes.0.chunks_exact_mut(Descriptor::SIZE).zip(words) {
            place.copy_from_slice(&descriptor(word));
        }
        let start = (&raw mut bytes.0).cast::<u8>();
        // In two regions, side by side in the guest: an entry of the second table lies across their border.
        let (border, far) = (100, start.wrapping_add(100));
        let memory = map_of(&[(GUEST, border, start), (GUEST + border, BYTES as u64 - border, far)]);
        let ring = SplitRing::of_descriptors(&mut bytes.0[..ENTRIES * Descriptor::SIZE]);
        let access = [Access::Read, Access::Write, Access::Both][usize::from(mode % 3)];
        let (mut hint, limit) = (Hint::default(), u32::from(limit));
        let mut walk = Walk { ring: &ring, memory: &memory, hint: &mut hint, access, indirect: mode & 4 != 0, limit, walked: 0 };
        let mut iovecs: Vec<Iovec> = Vec::with_capacity(usize::from(room % 8));
        let capacity = iovecs.capacity();
        let result = walk.resolve(ring.descriptor(u16::from(mode >> 4)), &mut iovecs);
        assert_eq!(iovecs.capacity(), capacity, "nothing is allocated on the way");
        let mut total = 0_u64;
        for iovec in &iovecs {
            let offset = iovec.as_ptr().addr() - start.addr();
            assert!(iovec.length() > 0 && offset + iovec.length() as usize <= BYTES);
            total += u64::from(iovec.length());
        }
        assert!(total <= u64::from(limit));
        if let Ok(length) = result {
            assert_eq!(u64::from(length), total);
        }
    });
}
