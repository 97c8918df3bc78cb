//! Target `addresses`: guests that say anything in ARP and neighbour discovery, and the answers of the switch.
//!
//! The script is a list of acts, each a byte for the port and the act, a byte for its length, and bytes of a frame behind its Ethernet
//! addresses. Two addresses are configured: whichever guest claims them, the switch answers with their owners only.

use std::net::IpAddr;

use memlane::address_map::resolution::Resolution;
use memlane::address_map::{AddressMap, QUOTA, SETTLING, Source};
use memlane::frame::{MacAddress, NetHeader, START};
use memlane::id::PortId;
use memlane::policy::gate::Gate;

const PORTS: u8 = 4;

fn mac(port: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, port]
}

fn configured() -> [IpAddr; 2] {
    ["10.0.0.1".parse().expect("an address"), "fd00::1".parse().expect("an address")]
}

/// Runs the script `data`.
pub fn run(mut data: &[u8]) {
    let map = AddressMap::default();
    map.configure(PortId(0), Some(MacAddress::new(mac(0))), Some(0), &configured(), false);
    let mut now = 1;
    while let [what, length, rest @ ..] = data {
        let (body, after) = rest.split_at(rest.len().min(usize::from(*length) % START));
        data = after;
        let port = what % PORTS;
        match what / PORTS % 8 {
            0 => now += 1,
            1 => now += SETTLING,
            2 => map.expire(now),
            3 => map.forget(PortId(port.into())),
            4 => drop(map.acknowledge(
                0,
                IpAddr::from([10, 0, 0, *length]),
                (MacAddress::new(mac(port)), PortId(port.into())),
                5,
                now,
            )),
            _ => speak(&map, port, body, now),
        }
        let records = map.records(now);
        let own = records.iter().filter(|(_, entry)| entry.source == Source::Configuration);
        assert_eq!(own.filter(|(_, entry)| entry.port == PortId(0) && entry.mac == Some(MacAddress::new(mac(0)))).count(), 2);
        for port in 0..PORTS {
            let of_port = |(_, entry): &&(_, memlane::address_map::Entry)| {
                entry.port == PortId(port.into()) && entry.source != Source::Configuration
            };
            assert!(records.iter().filter(of_port).count() <= QUOTA as usize);
        }
    }
}

/// The guest of `port` sends a frame with this `body` behind its addresses, to all.
fn speak(map: &AddressMap, port: u8, body: &[u8], now: u32) {
    let frame = [&[0x33, 0x33, 0, 0, 0, 1][..], &mac(port), body].concat();
    // Half of all frames have their checksums left to the other side.
    let header = if body.len().is_multiple_of(2) { NetHeader::partial_checksum(54, 2) } else { NetHeader::default() };
    let start = &frame[..frame.len().min(START)];
    let Some(said) = Resolution::of(start, header) else { return };
    if let Some(claim) = said.claim {
        assert_eq!(claim.mac, MacAddress::new(mac(port)), "a claim is the sender's own");
        map.learn(0, claim, PortId(port.into()), now);
    }
    let asker = (PortId(port.into()), Gate::OPEN, 0);
    let Some(given) = map.answer(start, &said, asker, |_| Some((Gate::OPEN, true)), now) else { return };
    let target = said.question.expect("only questions are answered").target;
    assert_ne!(given.owner.port, PortId(port.into()), "the owner is not the asker");
    assert!(given.frame().len() <= START);
    let answer = Resolution::of(given.frame(), NetHeader::default()).expect("the answer keeps every rule");
    let claim = answer.claim.expect("the answer names the owner");
    assert_eq!((claim.ip, Some(claim.mac), answer.question), (target, given.owner.mac, None));
    if configured().contains(&target) {
        assert_eq!(claim.mac, MacAddress::new(mac(0)), "whoever claims it");
    }
}
