use super::*;
use crate::policy::gate::Vlans;

fn mac(n: u8) -> MacAddress {
    MacAddress::new([2, 0, 0, 0, 0, n])
}

fn ip(n: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, n])
}

fn claim(n: u8, by: u8) -> Claim {
    Claim { ip: ip(n), mac: mac(by), router: None }
}

const A: PortId = PortId(0);
const B: PortId = PortId(1);
const C: PortId = PortId(2);

/// Entries that count against quotas.
fn held(map: &AddressMap) -> u32 {
    map.held.iter().map(|held| held.load(Ordering::Relaxed)).sum()
}

/// Address, owner's MAC address and port, origin.
fn owner(map: &AddressMap, n: u8, now: u32) -> Option<(MacAddress, PortId, Source)> {
    map.find(0, ip(n), now).map(|entry| (entry.mac.unwrap(), entry.port, entry.source))
}

#[test]
fn an_address_that_moves_is_known_at_once_and_answered_after_it_settled() {
    let map = AddressMap::default();
    assert_eq!(map.learn(0, claim(1, 1), A, 100), Learned::Known);
    assert_eq!(owner(&map, 1, 100), Some((mac(1), A, Source::Arp)));
    assert_eq!(map.learn(0, claim(1, 2), B, 101), Learned::Known);
    assert_eq!(owner(&map, 1, 101), Some((mac(2), B, Source::Arp)));
    let settles = |now| map.find(0, ip(1), now).unwrap().is_settling(now);
    assert!(settles(101) && settles(100 + SETTLING) && !settles(101 + SETTLING));
    assert_eq!(map.conflicts(), 0);
    // With its MAC address, as a machine that migrates or a virtual router: at once.
    assert_eq!(map.learn(0, claim(1, 2), C, 200), Learned::Known);
    assert_eq!((owner(&map, 1, 200), settles(200)), (Some((mac(2), C, Source::Arp)), false));
}

/// RFC 5227, section 2.4: the owner defends its address.
#[test]
fn the_first_owner_that_still_answers_keeps_a_disputed_address() {
    let map = AddressMap::default();
    map.learn(0, claim(1, 1), A, 100);
    map.learn(0, claim(1, 2), B, 101);
    assert_eq!(map.learn(0, claim(1, 1), A, 102), Learned::Conflict);
    assert_eq!(owner(&map, 1, 102), Some((mac(1), A, Source::Arp)));
    let [conflict] = map.log().take()[..] else { panic!("one conflict") };
    assert_eq!((conflict.key.ip, conflict.owner.port, conflict.claimant), (ip(1), A, (B, mac(2))));
    assert_eq!(map.learn(0, claim(1, 2), B, 130), Learned::Conflict);
    let entry = map.find(0, ip(1), 130).unwrap();
    assert_eq!((entry.mac, entry.is_settling(129 + DISPUTE), entry.is_settling(130 + DISPUTE)), (Some(mac(1)), true, false));
    assert_eq!(map.conflicts(), 2);
}

#[test]
fn precedence_is_configuration_lease_claim() {
    let map = AddressMap::default();
    map.learn(0, claim(1, 9), C, 100);
    map.configure(A, Some(mac(1)), Some(0), &[ip(1)], false);
    assert_eq!(owner(&map, 1, 100), Some((mac(1), A, Source::Configuration)), "effective at once");
    assert_eq!(map.learn(0, claim(1, 9), C, 100), Learned::Conflict);
    assert_eq!(map.acknowledge(0, ip(1), (mac(9), C), 3600, 100), Learned::Conflict);
    assert_eq!(map.tell(ip(1), (mac(9), C), false, 100), Learned::Conflict);
    assert_eq!(owner(&map, 1, u32::MAX - 1), Some((mac(1), A, Source::Configuration)), "without a timer");

    map.learn(0, claim(2, 9), C, 100);
    map.log().take();
    assert_eq!(map.acknowledge(0, ip(2), (mac(2), B), 50, 100), Learned::Known);
    let [conflict] = map.log().take()[..] else { panic!("another machine claims what was leased") };
    assert_eq!((conflict.key.ip, conflict.owner.port, conflict.claimant), (ip(2), B, (C, mac(9))));
    assert_eq!(map.learn(0, claim(2, 9), C, 101), Learned::Conflict);
    assert_eq!(owner(&map, 2, 149), Some((mac(2), B, Source::Dhcp)));
    assert_eq!(map.learn(0, claim(2, 9), C, 150), Learned::Known, "the lease has ended");
    assert_eq!(owner(&map, 2, 150), Some((mac(9), C, Source::Arp)));
    assert_eq!(map.conflicts(), 5);
}

#[test]
fn a_lease_moves_with_its_machine_and_ends_when_it_is_given_back() {
    let map = AddressMap::default();
    map.acknowledge(0, ip(1), (mac(1), A), 1000, 0);
    assert_eq!(map.learn(0, claim(1, 1), B, 500), Learned::Known);
    assert_eq!(owner(&map, 1, 999), Some((mac(1), B, Source::Dhcp)));
    assert_eq!(owner(&map, 1, 1000), None);
    let lease = |last: u8| GivenLease { ip: ip(last), mac: mac(1), seconds: 100 };
    let give = |leases: &[GivenLease]| map.set_leases(B, leases, |ip| ip.is_ipv4(), false, 500);
    give(&[lease(2), lease(3)]);
    assert_eq!(owner(&map, 1, 500), None, "another server gave it, which this one takes over");
    give(&[lease(3)]);
    assert_eq!((owner(&map, 2, 500), owner(&map, 3, 599)), (None, Some((mac(1), B, Source::Dhcp))));
    give(&[]);
    assert!(map.records(500).is_empty() && held(&map) == 0);
    map.acknowledge(0, ip(4), (mac(1), B), u32::MAX, 500);
    assert_eq!(map.find(0, ip(4), u32::MAX - 1).unwrap().expires_in(600), None, "infinity (RFC 2132, section 9.2)");
}

/// Announcements to other hosts follow the generation.
#[test]
fn the_generation_follows_owners_of_assigned_addresses_and_no_claims() {
    let map = AddressMap::default();
    let mut last = map.generation();
    let mut changes = |map: &AddressMap| map.generation() != std::mem::replace(&mut last, map.generation());
    map.learn(0, claim(1, 1), A, 0);
    map.learn(0, claim(1, 2), B, 1);
    assert!(!changes(&map), "a claim is not announced");
    map.configure(A, None, Some(0), &[ip(2)], false);
    assert!(changes(&map));
    map.learn(0, claim(2, 1), A, 1);
    assert!(changes(&map), "its guest uses it");
    map.learn(0, claim(2, 1), A, 2);
    map.learn(0, claim(2, 9), B, 2);
    map.tell(ip(2), (mac(9), C), false, 2);
    assert!(!changes(&map), "no other one gets it");
    let leases = [GivenLease { ip: ip(3), mac: mac(3), seconds: 10 }];
    map.set_leases(B, &leases, |_| true, false, 2);
    assert!(changes(&map));
    map.set_leases(B, &leases, |_| true, false, 3);
    assert!(!changes(&map), "a renewal");
    map.learn(0, claim(3, 3), C, 4);
    assert!(changes(&map), "its machine moved");
    map.expire(20);
    assert!(changes(&map), "it ended");
    map.clear(A);
    assert!(changes(&map));
}

#[test]
fn an_ipv6_address_that_was_leased_is_answered_for_before_its_owner_advertises_it() {
    let map = AddressMap::default();
    let address: IpAddr = "fd00::7".parse().unwrap();
    map.set_leases(B, &[GivenLease { ip: address, mac: mac(1), seconds: u32::MAX }], |_| true, false, 5);
    assert_eq!(map.find(0, address, 5).and_then(|entry| entry.router), Some(false));
    map.learn(0, Claim { ip: address, mac: mac(1), router: Some(true) }, B, 6);
    map.set_leases(B, &[GivenLease { ip: address, mac: mac(1), seconds: 9 }], |_| true, false, 7);
    assert_eq!(map.find(0, address, 7).and_then(|entry| entry.router), Some(true), "as it says itself");
}

#[test]
fn an_address_of_another_host_comes_here_at_once_and_goes_back() {
    let map = AddressMap::default();
    let uplink = C;
    map.set_uplink(Some(uplink));
    map.tell(ip(1), (mac(1), uplink), false, 10);
    assert_eq!(owner(&map, 1, 10_000), Some((mac(1), uplink, Source::Evpn)), "until it is withdrawn");
    map.learn(0, claim(1, 1), A, 20);
    assert_eq!(owner(&map, 1, 20), Some((mac(1), A, Source::Arp)), "the machine has migrated to this host");
    map.untell(ip(1));
    assert_eq!(owner(&map, 1, 20), Some((mac(1), A, Source::Arp)));
    map.tell(ip(1), (mac(1), uplink), false, 30);
    map.learn(0, claim(1, 1), uplink, 31);
    assert_eq!(owner(&map, 1, 10_000), Some((mac(1), uplink, Source::Evpn)), "and back, where it speaks itself");
    map.untell(ip(1));
    assert_eq!(owner(&map, 1, 30), None);
    assert_eq!(map.conflicts(), 0);
    assert_eq!(held(&map), 0);
}

#[test]
fn an_address_that_machines_of_two_hosts_have_is_disputed() {
    let map = AddressMap::default();
    let uplink = C;
    map.set_uplink(Some(uplink));
    map.learn(0, claim(1, 1), A, 100);
    assert_eq!(map.tell(ip(1), (mac(2), uplink), false, 101), Learned::Known, "it may have moved");
    assert_eq!(owner(&map, 1, 101), Some((mac(2), uplink, Source::Evpn)));
    assert!(map.find(0, ip(1), 101).unwrap().is_settling(101), "both are asked meanwhile");
    assert_eq!(map.learn(0, claim(1, 1), A, 102), Learned::Conflict);
    assert_eq!(owner(&map, 1, 102), Some((mac(1), A, Source::Arp)));
    let [conflict] = map.log().take()[..] else { panic!("one conflict") };
    assert_eq!((conflict.key.ip, conflict.owner.port, conflict.claimant), (ip(1), A, (uplink, mac(2))));
    map.untell(ip(1));
    assert_eq!(owner(&map, 1, 103), Some((mac(1), A, Source::Arp)), "the other host takes its route back");
    // A lease of this host is not for another one.
    map.acknowledge(0, ip(3), (mac(1), A), 1000, 100);
    assert_eq!(map.tell(ip(3), (mac(2), uplink), false, 101), Learned::Conflict);
    assert_eq!(owner(&map, 3, 101), Some((mac(1), A, Source::Dhcp)));
    assert_eq!(map.conflicts(), 2);
}

#[test]
fn claims_expire_and_a_port_takes_its_entries_away() {
    let map = AddressMap::default();
    map.set_age(30);
    map.learn(0, claim(1, 1), A, 100);
    map.learn(0, claim(1, 1), A, 110);
    assert_eq!((owner(&map, 1, 139).is_some(), owner(&map, 1, 140)), (true, None), "without anyone who removes it");
    map.learn(7, claim(2, 1), A, 130);
    map.configure(A, None, Some(0), &[ip(3)], false);
    map.expire(140);
    assert_eq!(map.records(0).len(), 2);
    map.forget(A);
    assert_eq!(map.records(0).iter().map(|(key, _)| key.ip).collect::<Vec<_>>(), [ip(3)], "its guest left");
    map.clear(A);
    assert!(map.records(0).is_empty() && held(&map) == 0 && !map.is_answering());
}

#[test]
fn a_guest_that_invents_addresses_fills_its_quota_only() {
    let map = AddressMap::default();
    let many = |n: u32| Claim { ip: IpAddr::from(n.to_be_bytes()), mac: mac(1), router: None };
    let known = |port| (0..10 * QUOTA).filter(|&n| map.learn(0, many(0x0b00_0000 + n), port, 5) == Learned::Known).count();
    assert_eq!(known(A), QUOTA as usize);
    assert_eq!(map.learn(0, claim(250, 2), B, 5), Learned::Known, "others are known all the same");
    // A port without room takes no address from its owner.
    map.learn(0, Claim { ip: ip(251), mac: mac(3), router: None }, C, 5);
    assert_eq!(map.learn(0, Claim { ip: ip(251), mac: mac(1), router: None }, A, 6), Learned::NoRoom);
    assert_eq!(owner(&map, 251, 6), Some((mac(3), C, Source::Arp)));
    map.expire(5 + DEFAULT_AGE);
    assert_eq!(known(A), QUOTA as usize, "its quota is free again");
}

#[test]
fn configured_addresses_change_at_once() {
    let map = AddressMap::default();
    map.configure(A, Some(mac(1)), Some(0), &[ip(1), ip(2)], false);
    assert!(map.is_answering(), "by default where addresses are configured");
    map.configure(A, Some(mac(7)), Some(0), &[ip(2), ip(3)], false);
    assert_eq!((1..=3).map(|n| owner(&map, n, 0).map(|owner| owner.0)).collect::<Vec<_>>(), [None, Some(mac(7)), Some(mac(7))]);
    map.configure(A, Some(mac(7)), Some(0), &[], false);
    assert!(!map.is_answering() && map.records(0).is_empty());
    map.set_answering(Some(true));
    assert!(map.is_answering());
    map.configure(A, Some(mac(7)), Some(0), &[ip(2)], false);
    map.set_answering(Some(false));
    assert!(!map.is_answering());
    map.set_answering(None);
    assert!(map.is_answering());
}

#[test]
fn a_port_without_mac_has_the_one_that_its_guest_uses() {
    let map = AddressMap::default();
    map.configure(A, None, Some(0), &[ip(1)], false);
    assert_eq!(map.learn(0, claim(1, 9), B, 3), Learned::Conflict);
    assert_eq!(map.find(0, ip(1), 3).unwrap().mac, None);
    for n in [1, 2] {
        assert_eq!(map.learn(0, claim(1, n), A, 4), Learned::Known);
        assert_eq!(owner(&map, 1, 5), Some((mac(n), A, Source::Configuration)));
    }
    // VRRP: the virtual MAC address with the router's own address (RFC 9568, section 5.1.1.1).
    map.configure(A, Some(mac(1)), Some(0), &[ip(1)], false);
    assert_eq!(map.learn(0, claim(1, 0x5e), A, 6), Learned::Known);
    assert_eq!(owner(&map, 1, 6), Some((mac(1), A, Source::Configuration)));
}

/// A question of A for address `n`, as the switch answers it in second `now`; the owner's port may receive.
fn answer(map: &AddressMap, n: u8, is_probe: bool, now: u32) -> Option<PortId> {
    let sender = if is_probe { [0; 4] } else { [10, 0, 0, 1] };
    let head = [&[0xff; 6][..], &mac(1).bytes(), &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]].concat();
    let request = [&head[..], &mac(1).bytes(), &sender, &[0; 6], &[10, 0, 0, n]].concat();
    let said = Resolution::of(&request, crate::frame::NetHeader::default()).unwrap();
    let reach = |_| Some((Gate::OPEN, true));
    map.answer(&request, &said, (A, Gate::OPEN, 0), reach, now).map(|given| given.owner.port)
}

#[test]
fn the_switch_answers_for_known_owners_only() {
    let map = AddressMap::default();
    map.configure(A, Some(mac(1)), Some(0), &[ip(1)], false);
    map.configure(B, Some(mac(2)), Some(0), &[ip(2)], false);
    map.learn(0, claim(3, 3), C, 0);
    map.learn(5, claim(4, 3), C, 0);
    assert_eq!((1..=5).map(|n| answer(&map, n, false, 1)).collect::<Vec<_>>(), [None, Some(B), Some(C), None, None]);
    assert_eq!(
        (1..=3).map(|n| answer(&map, n, true, 1)).collect::<Vec<_>>(),
        [None, Some(B), None],
        "probes: configured ones only"
    );
    map.learn(0, claim(3, 4), B, 2);
    assert_eq!(answer(&map, 3, false, 2), None, "it settles");
    assert_eq!(answer(&map, 3, false, 2 + SETTLING), Some(B));
    map.learn(0, claim(6, 6), A, 2);
    assert_eq!(answer(&map, 6, false, 2), None, "behind the asker's own port");
    map.set_answering(Some(false));
    assert_eq!(answer(&map, 2, false, 2), None);
}

#[test]
fn no_answer_passes_a_gate() {
    let map = AddressMap::default();
    map.configure(B, Some(mac(2)), Some(0), &[ip(2)], false);
    let request = [&[0xff; 6][..], &mac(1).bytes(), &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]].concat();
    let request = [&request[..], &mac(1).bytes(), &[10, 0, 0, 1], &[0; 6], &[10, 0, 0, 2]].concat();
    let said = Resolution::of(&request, crate::frame::NetHeader::default()).unwrap();
    let isolated = Gate { isolated: true, ..Gate::OPEN };
    let (access, answered) = (Vlans::Access(9), |from, reach| map.answer(&request, &said, (A, from, 0), |_| reach, 0).is_some());
    assert!(answered(isolated, Some((Gate::OPEN, true))));
    assert!(!answered(isolated, Some((isolated, true))));
    assert!(!answered(Gate { vlans: &access, ..Gate::OPEN }, Some((Gate::OPEN, true))), "in another VLAN");
    assert!(!answered(Gate::OPEN, Some((Gate::OPEN, false))), "its guest is not there");
    assert!(!answered(Gate::OPEN, None));
}

/// RFC 4861, section 7.2.5: a wrong router flag would remove a router from the tables of hosts.
#[test]
fn an_ipv6_address_is_answered_for_once_its_router_flag_is_known() {
    let map = AddressMap::default();
    map.set_answering(Some(true));
    let target: IpAddr = "fd00::2".parse().unwrap();
    let learn = |router| map.learn(0, Claim { ip: target, mac: mac(2), router }, B, 1);
    let known = || map.find(0, target, 1).unwrap().router;
    learn(None);
    assert_eq!(known(), None);
    learn(Some(true));
    learn(None);
    assert_eq!(known(), Some(true));
    learn(Some(false));
    assert_eq!(known(), Some(false));
}

#[test]
fn workers_and_the_control_side_change_it_at_once() {
    let map = AddressMap::default();
    std::thread::scope(|scope| {
        for port in [A, B] {
            let map = &map;
            scope.spawn(move || {
                for n in 0..20_000_u32 {
                    map.learn(0, claim((n % 50) as u8, port.0 as u8), port, n / 1000);
                }
            });
        }
        for n in 0..200 {
            map.expire(n / 10);
            map.forget(A);
            assert!(map.records(0).len() <= 50);
        }
    });
    assert_eq!(held(&map) as usize, map.records(0).len(), "each entry is counted once");
}
