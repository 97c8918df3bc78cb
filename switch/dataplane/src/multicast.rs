//! Multicast snooping of a segment (RFC 4541): frames to an IP multicast group go to the ports from which a report of the group came, to
//! routers, and to uplinks.
//!
//! The switch reads IGMP (RFC 2236, RFC 3376) and MLD (RFC 2710, RFC 3810), and asks for reports itself, so that memberships are known
//! where there is no router. Groups are told apart by their MAC address. Never filtered are the groups with the numbers 0 to 255, as
//! 224.0.0.0/24 and ff02::1, and the solicited-node groups, which neighbour discovery needs without any report; nor frames with a
//! VLAN tag, for in those VLANs the switch does not ask.
//!
//! Each port has a table of fixed size, which workers read and change without locks. A report changes the table of its own port only.
//! Time is counted in seconds by the querier of the network.

pub(crate) mod querier;
mod reports;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::frame::MacAddress;
pub use reports::{Address, Change, read};
pub(crate) use reports::{LONGEST, may_say};

/// Groups of a port that are kept; a port with more gets every frame, as if snooping were off.
const MOST_GROUPS: usize = 64;
/// Seconds for which a report holds: the group membership interval (RFC 3376, section 8.4).
const MEMBERSHIP: u32 = 260;
/// Seconds for which a group holds after its last member left, unless another one reports it.
const LEAVING: u32 = 3;
/// Seconds for which a new port, and a new segment, get every frame: a query may be 10 seconds late, and has 10 seconds for its
/// answers.
const GRACE: u32 = 25;

/// A group, by its MAC address: 33:33 or 01:00:5e, and the four bytes behind that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Group(u64);

impl Group {
    const V6: u64 = 1 << 32;

    /// The group with this MAC address; `None` if frames to it are never filtered.
    pub fn of(address: MacAddress) -> Option<Self> {
        match address.bytes() {
            [1, 0, 0x5e, 0, 0, _] | [0x33, 0x33, 0xff, ..] | [0x33, 0x33, 0, 0, 0, _] => None,
            [1, 0, 0x5e, a @ 0..=0x7f, b, c] => Some(Self(u32::from_be_bytes([0, a, b, c]).into())),
            [0x33, 0x33, a, b, c, d] => Some(Self(Self::V6 | u64::from(u32::from_be_bytes([a, b, c, d])))),
            _ => None,
        }
    }

    /// MAC address.
    pub fn address(self) -> MacAddress {
        let [a, b, c, d] = (self.0 as u32).to_be_bytes();
        MacAddress::new(if self.0 & Self::V6 == 0 { [1, 0, 0x5e, b, c, d] } else { [0x33, 0x33, a, b, c, d] })
    }
}

/// Snooping of a segment.
#[derive(Debug, Default)]
pub struct Snooping {
    /// Seconds since it began, from 1 on; 0 while it is off.
    now: AtomicU32,
    /// Reports are wanted soon, because a port came.
    asked: AtomicBool,
}

impl Snooping {
    /// Whether it is on.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.now() != 0
    }

    /// Lets so many seconds pass at once; for tests.
    pub fn pass(&self, seconds: u32) {
        self.now.fetch_add(seconds, Ordering::Relaxed);
    }

    /// Begins the next second, and returns it; `None` where snooping is off, which it stays.
    fn next_second(&self) -> Option<u32> {
        let next = |now: u32| (now > 0).then(|| now.saturating_add(1));
        self.now.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).ok().and_then(next)
    }

    fn now(&self) -> u32 {
        self.now.load(Ordering::Relaxed)
    }

    /// Begins or ends.
    pub fn set_on(&self, on: bool) {
        if on != self.is_on() {
            self.now.store(on.into(), Ordering::Relaxed);
        }
    }
}

/// Groups of a port: see the module.
#[derive(Debug, Default)]
pub struct Groups {
    /// A group above the second until which it holds, each; made with the first one.
    entries: OnceLock<Box<[AtomicU64; MOST_GROUPS]>>,
    /// Until then it gets every frame: it is new, has too many groups, or leads to a router.
    all_until: AtomicU32,
}

impl Groups {
    const SECONDS: u64 = (1 << 31) - 1;

    fn entries(&self) -> &[AtomicU64] {
        self.entries.get().map_or(&[], |entries| &entries[..])
    }

    /// A guest begins here: it gets every multicast frame until it had time to report its groups, and is asked for them.
    pub(crate) fn begin(&self, snooping: &Snooping) {
        self.get_all_until(snooping.now().saturating_add(GRACE));
        snooping.asked.store(true, Ordering::Relaxed);
    }

    fn get_all_until(&self, second: u32) {
        self.all_until.fetch_max(second, Ordering::Relaxed);
    }

    fn get_all(&self, now: u32) -> bool {
        self.all_until.load(Ordering::Relaxed) >= now
    }

    /// Acts on IGMP or MLD from the port's guest. `leaving` is called with a group that may have lost its last member, and tells if the
    /// others are asked.
    pub(crate) fn change(&self, snooping: &Snooping, change: Change, leaving: impl FnOnce(Address) -> bool) {
        let now = snooping.now();
        match change {
            Change::Router => self.get_all_until(now.saturating_add(MEMBERSHIP)),
            Change::Join(group, _) => self.join(group, now),
            Change::Leave(group, address) => {
                if leaving(address) {
                    self.leave(group, now);
                }
            }
        }
    }

    /// The groups with members, and whether the port gets the others too.
    pub(crate) fn report(&self, snooping: &Snooping) -> (Vec<MacAddress>, bool) {
        let now = snooping.now();
        (self.present(now).into_iter().map(Group::address).collect(), self.get_all(now))
    }

    fn find(&self, group: Group) -> Option<&AtomicU64> {
        self.entries().iter().find(|entry| entry.load(Ordering::Relaxed) >> 31 == group.0)
    }

    fn has(&self, group: Group, now: u32) -> bool {
        self.find(group).is_some_and(|entry| holds(entry.load(Ordering::Relaxed), now))
    }

    /// A member of `group` is behind the port.
    fn join(&self, group: Group, now: u32) {
        let until = now.saturating_add(MEMBERSHIP);
        let new = group.0 << 31 | u64::from(until) & Self::SECONDS;
        if let Some(entry) = self.find(group) {
            return entry.store(new, Ordering::Relaxed);
        }
        let entries = self.entries.get_or_init(|| Box::new(std::array::from_fn(|_| AtomicU64::new(0))));
        let is_placed = entries.iter().any(|entry| {
            let present = entry.load(Ordering::Relaxed);
            !holds(present, now) && entry.compare_exchange(present, new, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        });
        if !is_placed {
            self.get_all_until(until);
        }
    }

    /// The last member of `group` may have left.
    fn leave(&self, group: Group, now: u32) {
        if let Some(entry) = self.find(group) {
            let present = entry.load(Ordering::Relaxed);
            let until = (present & Self::SECONDS).min(u64::from(now.saturating_add(LEAVING)));
            entry.store(present & !Self::SECONDS | until, Ordering::Relaxed);
        }
    }

    fn present(&self, now: u32) -> Vec<Group> {
        let entries = self.entries().iter().map(|entry| entry.load(Ordering::Relaxed));
        let mut groups: Vec<Group> = entries.filter(|&entry| holds(entry, now)).map(|entry| Group(entry >> 31)).collect();
        groups.sort_unstable();
        groups.dedup();
        groups
    }
}

fn holds(entry: u64, now: u32) -> bool {
    entry & Groups::SECONDS >= u64::from(now) && entry != 0
}

/// The members of a multicast group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GroupMembers {
    /// The members of this group, and routers; only routers if there is none.
    group: Option<Group>,
    now: u32,
}

impl GroupMembers {
    /// Receivers of the frame that begins with `start` in a segment with this `snooping`; `None` for all ports.
    pub(crate) fn of(snooping: &Snooping, start: &[u8]) -> Option<Self> {
        let now = snooping.now();
        if now <= GRACE {
            return None;
        }
        let group = Group::of(MacAddress::new(*start.first_chunk()?))?;
        // A member that hears another's report would not send its own (RFC 2236, section 3).
        let is_for_routers = reports::to_routers_only(start)?;
        Some(Self { group: (!is_for_routers).then_some(group), now })
    }

    /// Whether a port with these `groups` is one of them.
    pub(crate) fn has(self, groups: &Groups) -> bool {
        self.group.is_some_and(|group| groups.has(group, self.now)) || groups.get_all(self.now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(last: u8) -> Group {
        Group::of(MacAddress::new([1, 0, 0x5e, 1, 2, last])).unwrap()
    }

    #[test]
    fn what_address_resolution_needs_is_no_group() {
        for address in [
            "01:00:5e:00:00:fb",
            "33:33:00:00:00:01",
            "33:33:00:00:00:02",
            "33:33:ff:00:00:07",
            "01:80:c2:00:00:00",
            "ff:ff:ff:ff:ff:ff",
            "01:00:5e:80:00:01",
        ] {
            assert_eq!(Group::of(address.parse().unwrap()), None, "{address}");
        }
        for address in ["01:00:5e:00:01:00", "01:00:5e:7f:ff:fa", "33:33:00:01:00:03", "33:33:fe:00:00:01"] {
            assert_eq!(Group::of(address.parse().unwrap()).unwrap().address().to_string(), address);
        }
    }

    #[test]
    fn memberships_end_with_their_time() {
        let groups = Groups::default();
        assert!(!groups.has(group(1), 30));
        groups.join(group(1), 30);
        assert!(groups.has(group(1), 30 + MEMBERSHIP) && !groups.has(group(1), 31 + MEMBERSHIP) && !groups.has(group(2), 30));
        groups.leave(group(1), 40);
        assert!(groups.has(group(1), 40 + LEAVING) && !groups.has(group(1), 41 + LEAVING));
        groups.join(group(1), 41);
        assert!(groups.has(group(1), 41 + MEMBERSHIP), "another member is there");
        assert_eq!((groups.present(50), groups.present(900)), (vec![group(1)], vec![]));
    }

    #[test]
    fn a_port_with_too_many_groups_gets_every_frame() {
        let (snooping, groups) = (Snooping::default(), Groups::default());
        snooping.now.store(100, Ordering::Relaxed);
        let join = |n| groups.change(&snooping, Change::Join(group(n), Address::V4([0; 4])), |_| false);
        (0..MOST_GROUPS as u8).for_each(join);
        assert_eq!((groups.report(&snooping).0.len(), groups.report(&snooping).1), (MOST_GROUPS, false));
        join(200);
        assert_eq!((groups.report(&snooping).0.len(), groups.report(&snooping).1), (MOST_GROUPS, true));
        snooping.now.store(101 + MEMBERSHIP, Ordering::Relaxed);
        assert_eq!(groups.report(&snooping), (vec![], false), "the places are free again");
    }
}
