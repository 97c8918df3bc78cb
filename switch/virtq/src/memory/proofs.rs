//! Properties of every address, length and region: see `docs/adr/0031-proofs.md`.

use std::ptr;

use super::{Hint, HostAddress, MemoryMap, RegionTable, Span};

/// A map of these spans (guest address, bytes, place), sorted and apart, without regions that keep them.
pub(crate) fn map_of(spans: &[(u64, u64, *mut u8)]) -> MemoryMap {
    let span = |&(guest_start, length, start): &(u64, u64, *mut u8)| Span {
        guest_start,
        length,
        host_start: HostAddress::new(start),
        to_readable: 0,
    };
    MemoryMap { spans: spans.iter().map(span).collect(), ..MemoryMap::default() }
}

/// Any number: all numbers in a proof; in a test, more often than by chance one at an edge.
type Any = (u64, u8, u8);

fn any((wide, edge, low): Any) -> u64 {
    match edge % 8 {
        0 | 1 => low.into(),
        2 => (1 << 47) + u64::from(low),
        3 => i64::MAX as u64 - 128 + u64::from(low),
        4 | 5 => u64::MAX - u64::from(low),
        _ => wide,
    }
}

/// An address is placed if and only if it is in the span, and the rest that follows ends where the span ends.
#[test]
#[cfg_attr(kani, kani::proof)]
fn a_span_places_its_own_addresses_and_no_others() {
    bolero::check!().with_type::<(Any, Any, Any, u32, u8)>().cloned().for_each(|(guest_start, length, address, host, step)| {
        let [guest_start, length, address] = [guest_start, length, address].map(any);
        // The length is one that `RegionTable::check` accepts.
        let length = length.min(u64::MAX - guest_start);
        let (first, behind) = (guest_start, guest_start + length);
        let step = u64::from(step % 3);
        let host_start = HostAddress::new(ptr::without_provenance_mut(host as usize));
        let span = Span { guest_start, length, host_start, to_readable: 0 };
        for address in
            [address, first.saturating_sub(step), first + step.min(length), behind - step.min(length), behind.saturating_add(step)]
        {
            let inside = address >= guest_start && address - guest_start < length;
            match span.place(address) {
                None => assert!(!inside),
                Some((place, follow)) => {
                    let offset = address - guest_start;
                    assert!(inside && follow >= 1);
                    assert_eq!((place.addr(), offset + follow), ((host as usize).wrapping_add(offset as usize), length));
                }
            }
        }
    });
}

/// An address is found in the region that holds it, for every hint and every sequence of look-ups.
#[test]
#[cfg_attr(kani, kani::proof, kani::unwind(6))]
fn a_hint_changes_no_answer() {
    bolero::check!().with_type::<([(u16, u16); 3], [u32; 4])>().cloned().for_each(|(layout, asked)| {
        let mut at = 0_u64;
        let spans = layout.map(|(gap, length)| {
            let start = at + u64::from(gap);
            at = start + u64::from(length);
            (start, u64::from(length), ptr::without_provenance_mut(start as usize + 7))
        });
        let (map, mut hint) = (map_of(&spans), Hint::default());
        for address in asked.map(|asked| u64::from(asked) % (at + 2)) {
            let wanted = spans.iter().find(|span| address >= span.0 && address < span.0 + span.1);
            let wanted = wanted.map(|span| (address as usize + 7, span.0 + span.1 - address));
            assert_eq!(map.find(address, &mut hint).map(|(place, follow)| (place.addr(), follow)), wanted);
        }
    });
}

/// A front end's description of a region that the check accepts can be added up.
#[test]
#[cfg_attr(kani, kani::proof)]
fn no_end_of_a_region_overflows() {
    bolero::check!().with_type::<[Any; 4]>().cloned().for_each(|numbers| {
        let [guest_start, length, user_start, file_offset] = numbers.map(any);
        let table = RegionTable { guest_start, length, user_start, file_offset };
        if table.check().is_ok() {
            assert!(length > 0);
            let ends = [guest_start, user_start, file_offset].map(|start| start.checked_add(length));
            assert!(ends.iter().all(Option::is_some));
        }
    });
}

/// A ring's area lies wholly in a region or is refused.
#[test]
#[cfg_attr(kani, kani::proof)]
fn an_area_is_inside_or_refused() {
    bolero::check!().with_type::<([Any; 4], u8)>().cloned().for_each(|(numbers, step)| {
        let [user_start, length, address, wanted] = numbers.map(any);
        let length = length.min(u64::MAX - user_start);
        let table = RegionTable { guest_start: 0, length, user_start, file_offset: 0 };
        // For any start in the region, it may end just before, at, or just behind the region's end.
        let near = user_start + address.min(length);
        let left = user_start + length - near;
        let ends = left.saturating_sub(1).saturating_add(u64::from(step % 3));
        for (address, wanted) in [(address, wanted), (near, wanted), (near, ends)] {
            let end = u128::from(address) + u128::from(wanted);
            let inside = address >= user_start && end <= u128::from(user_start) + u128::from(length);
            let offset = inside.then(|| address - user_start);
            assert_eq!(table.offset_of_user(address, wanted), offset);
        }
    });
}
