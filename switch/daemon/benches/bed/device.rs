//! The device's side of a driver in the same process: its memory mapped, its rings opened.

use std::fs::File;
use std::sync::Arc;

use memlane::memory::{MemoryMap, Region, RegionTable};
use memlane::ring::{Areas, Ring, RingOptions, SplitRing};
use memlane_rig::memory::GuestMemory;
use memlane_rig::ring::DriverRing;

/// All of `memory`, as a front end would share it.
pub fn map(memory: &GuestMemory) -> Arc<MemoryMap> {
    let region = &memory.regions()[0];
    let table = RegionTable {
        guest_start: region.guest(),
        length: region.size(),
        user_start: region.user(),
        file_offset: region.file_offset(),
    };
    let file = File::from(memory.file().try_clone_to_owned().expect("a descriptor"));
    Arc::new(MemoryMap::new(vec![Arc::new(Region::map(table, file).expect("a region"))]).expect("one region"))
}

/// Where the ring of `driver` lies in `map`.
pub fn split(driver: &DriverRing, map: &Arc<MemoryMap>) -> SplitRing {
    let (at, memory, options) = (driver.shared().addresses(), driver.shared().memory(), driver.options());
    let find = |address, length| map.find_user(memory.user(address).expect("inside memory"), length).expect("inside the map");
    let areas = Areas {
        descriptors: find(at.descriptors, Areas::descriptor_bytes(options.size)),
        available: find(at.available, Areas::available_bytes(options.size)),
        used: find(at.used, Areas::used_bytes(options.size)),
    };
    // SAFETY: the map vouches for the areas, and the ring holds it.
    unsafe { SplitRing::new(areas, options.size) }.expect("aligned areas")
}

/// The ring of `driver`, with the features that the driver has, from index `start` on.
pub fn ring(driver: &DriverRing, map: &Arc<MemoryMap>, start: u16) -> Ring {
    let (split, options) = (split(driver, map), driver.options());
    let options = RingOptions {
        event_index: options.event_idx,
        indirect: options.indirect > 0,
        in_order: driver.expects_in_order(),
        header_length: 12,
    };
    Ring::new(split, Arc::clone(map), options, start)
}
