//! The sentence of each step, and the keys beside it.

use super::*;
use crate::address_map::Source;
use crate::frame::MacAddress;
use crate::link::Impairment;
use crate::policy::PortLimits;
use crate::port::PortState;

const WEB: PortId = PortId(0);
const DB: PortId = PortId(1);

fn mac(last: u8) -> MacAddress {
    MacAddress::new([2, 0, 0, 0, 0, last])
}

fn forecast(destination: MacAddress, step: Step) -> Forecast {
    let grounds =
        Grounds { from: WEB, destination, steps: vec![step], receivers: Vec::new(), drops: Vec::new(), answered_for: None };
    Forecast::of(&grounds, &|port| ["web", "db"][port.index()].into())
}

/// The sentences of a step, each with its end of line.
fn told(step: Step) -> String {
    forecast(mac(9), step).steps.iter().map(|sentence| format!("{sentence}\n")).collect()
}

fn source(learned: Option<Learned>, verdict: Verdict, behind: Option<PortId>, vlan: u16) -> Step {
    Step::Source(Foreseen { verdict, source: mac(1), vlan, learned, behind })
}

/// Keys that deny (`-`), or that would allow (`+`) or allow (`=`) the frame.
fn keys(step: Step) -> String {
    let shown = |key: &super::super::DecidingKey| {
        let sign = if key.would_allow {
            '+'
        } else if key.allows {
            '='
        } else {
            '-'
        };
        let line = key.line.map_or_else(String::new, |line| line.to_string());
        format!("{sign}{}.{}{line}", key.port.as_deref().unwrap_or_default(), key.key)
    };
    forecast(mac(9), step).keys.iter().map(shown).collect::<Vec<_>>().join(" ")
}

fn refused(reason: DropReason, ip: Option<&str>, is_own: bool) -> Step {
    Step::Refused { reason, refused: Refused { mac: mac(1), ip: ip.and_then(|ip| ip.parse().ok()) }, is_own }
}

#[test]
fn a_step_about_the_source_is_told() {
    let to = Verdict::To(DB);
    let cases = [
        (source(Some(Learned::Known), to, None, 7), "source 02:00:00:00:00:01 in VLAN 7 is known behind web\n"),
        (source(Some(Learned::Changed), to, None, 0), "source 02:00:00:00:00:01 is new, and is learned behind web\n"),
        (source(Some(Learned::Changed), to, Some(DB), 0), "source 02:00:00:00:00:01 moves from db to web\n"),
        (
            source(Some(Learned::NoRoom), Verdict::Flood, None, 0),
            "source 02:00:00:00:00:01 is new, but is not learned: web has reached the limit of MAC addresses per port\n",
        ),
        (
            source(Some(Learned::Pinned), Verdict::Drop(DropReason::BadSource), Some(DB), 0),
            "source 02:00:00:00:00:01 is the mac of db, and no other port may send from it\n",
        ),
        (
            source(Some(Learned::Held), Verdict::Drop(DropReason::Loop), None, 0),
            "source 02:00:00:00:00:01 moved too often, as in a loop, and is held at another port\n",
        ),
        (
            source(Some(Learned::Known), Verdict::Drop(DropReason::SamePort), None, 0),
            "source 02:00:00:00:00:01 is known behind web\nthe destination is behind web too: the guest's own bridge delivers such frames\n",
        ),
        (
            source(None, Verdict::Drop(DropReason::SpoofedSource), None, 0),
            "source 02:00:00:00:00:01 is not the mac of web, and anti-spoof allows no other\n",
        ),
        (source(None, Verdict::Drop(DropReason::SpoofedArp), None, 0), "source 02:00:00:00:00:01 is a MAC address of web\n"),
        (source(None, Verdict::Drop(DropReason::VlanNotCarried), None, 0), ""),
        (
            source(None, Verdict::Drop(DropReason::BadSource), None, 0),
            "source 02:00:00:00:00:01 is not a unicast address: all zeroes, or a group address\n",
        ),
    ];
    cases.into_iter().for_each(|(step, wanted)| assert_eq!(told(step), wanted));
}

#[test]
fn a_step_about_the_frame_is_told() {
    let cases = [
        (Step::Runt(1), "the frame has 1 byte, fewer than the 14 of an Ethernet header\n"),
        (Step::Disabled, "web is disabled: its frames stay in its transmit ring until it is enabled\n"),
        (Step::TwinHeaders, "its headers are too long: its addresses cannot be exchanged\n"),
        (
            refused(DropReason::SpoofedIp, Some("10.0.0.7"), true),
            "anti-spoof = \"all\": its IP source 10.0.0.7 is not an address of web behind 02:00:00:00:00:01; key that would allow it: addresses = [\"10.0.0.7\"]\n",
        ),
        (
            refused(DropReason::SpoofedArp, None, false),
            "anti-spoof = \"all\": it tells the segment that an address that it hides is at 02:00:00:00:00:01, and web has no such pair of addresses; key that would allow it: none: the frame hides its addresses\n",
        ),
        (
            refused(DropReason::NotAServer, Some("10.0.0.7"), true),
            "anti-spoof = \"all\": it is a DHCP answer, a router advertisement or a redirect, and web may not serve them; key that would allow it: may-serve = [\"dhcp\", \"ra\"]\n",
        ),
        (refused(DropReason::SpoofedSource, None, false), ""),
        (
            Step::VlanNotCarried { is_trunk: false },
            "the frame is in no VLAN of web: an access port sends without tags, a trunk with tags of its VLANs\n",
        ),
        (Step::ReservedGroup, "destination 02:00:00:00:00:09 is a reserved group address, and web drops these (key reserved)\n"),
        (
            Step::NothingLearned,
            "the address map learns nothing from it and gives no answer: it is malformed, or its source has no IP address yet\n",
        ),
        (Step::Answered(None), "the switch answers it, and no other port receives the question\n"),
        (Step::Answered(Some(mac(5))), "the switch answers with 02:00:00:00:00:05, and no other port receives the question\n"),
        (Step::Flooded("lan".into()), "destination 02:00:00:00:00:09 is unknown: the frame is flooded to segment lan\n"),
        (Step::Storm, "web has used up its limit of flooded frames (storm) at this moment\n"),
    ];
    cases.into_iter().for_each(|(step, wanted)| assert_eq!(told(step), wanted));
    let early = told(Step::Early(DropReason::Runt));
    assert_eq!(early, format!("the frame was dropped before a verdict: {}\n", DropReason::Runt.meaning()));
    assert_eq!(
        forecast(MacAddress::BROADCAST, Step::Flooded("lan".into())).steps,
        ["destination ff:ff:ff:ff:ff:ff is a group address: the frame is flooded to segment lan"]
    );
}

#[test]
fn a_step_about_a_passage_is_told() {
    let denied = PassageStep::Denied { rule: "R (in line 3)".into(), line: 3, allowing: "A".into() };
    let cases = [
        (PassageStep::Behind(None), "destination 02:00:00:00:00:09 is behind db\n"),
        (PassageStep::Behind(Some(4)), "destination 02:00:00:00:00:09 is behind db, last heard 4 s ago\n"),
        (
            PassageStep::OtherVlan { known: 0, unknown: 7 },
            "destination 02:00:00:00:00:09 is behind db without a VLAN tag, and not in VLAN 7: the guests use different VLAN tags\n",
        ),
        (PassageStep::Probe, "it is a probe for an address that guests may make: it goes to the responder, db\n"),
        (PassageStep::Isolated, "destination 02:00:00:00:00:09 is behind db, and both ports are isolated\n"),
        (
            PassageStep::VlanNotCarried { is_trunk: true },
            "destination 02:00:00:00:00:09 is behind db, which does not carry the VLAN\n",
        ),
        (denied, "frames from web to db meet the rule R (in line 3); before it, this one would allow the frame: A\n"),
        (PassageStep::Allowed("R".into(), 0), "frames from web to db meet the rule R, which allows them\n"),
        (PassageStep::NoRule, "no policy rule is about such frames from web to db, so they pass\n"),
        (PassageStep::KeptApart, "db does not receive it: by isolated, vlan, trunk or reserved of db or web\n"),
        (PassageStep::NoMember, "db does not receive it: its guest has not reported the group (multicast = \"snoop\")\n"),
        (
            PassageStep::NoServer,
            "db does not receive it: memlane answers requests to servers (subnet), and the port has no may-serve\n",
        ),
    ];
    cases.into_iter().for_each(|(step, wanted)| assert_eq!(told(Step::Passage(DB, step)), wanted));
    let owner = PassageStep::Owner("10.0.0.7".parse().unwrap(), Source::Dhcp);
    assert_eq!(told(Step::Passage(DB, owner)), format!("IP address 10.0.0.7 belongs to db ({})\n", Source::Dhcp.name()));
}

#[test]
fn a_step_about_a_receiver_is_told() {
    let link = Impairment { delay: Some("10ms".into()), ..Impairment::default() };
    let on_link = format!("the emulated link of db is on the path, and may lose the frame: {link}\n");
    let cases = [
        (ReceiverStep::TagAdded(7), "db carries VLAN 7 with a tag: it is added\n"),
        (ReceiverStep::TagRemoved(7), "db carries VLAN 7 without a tag: it is removed\n"),
        (ReceiverStep::TooLong(1400, true), "the packet is longer than the MTU of db (1400): its sender is told by ICMP\n"),
        (
            ReceiverStep::TooLong(1400, false),
            "the packet is longer than the MTU of db (1400), and a flooded frame is not answered\n",
        ),
        (ReceiverStep::Disabled(PortState::Running), "db is disabled (running)\n"),
        (ReceiverStep::NoQueue(PortState::Waiting), "db has no running receive queue (waiting)\n"),
        (ReceiverStep::Link(link), &*on_link),
        (ReceiverStep::Limit, "the receive rate limit of db delays frames at this moment: the frame would wait\n"),
        (
            ReceiverStep::Waiting(2),
            "2 frames waiting for db at this moment: the frame would wait behind, or be dropped as receiver-full\n",
        ),
        (ReceiverStep::LongForDriver(1500), "the frame is longer than the MTU of db (1500): its driver may refuse it\n"),
    ];
    cases.into_iter().for_each(|(step, wanted)| assert_eq!(told(Step::Receiver(DB, step)), wanted));
}

#[test]
fn the_addresses_of_a_twin_are_told() {
    let limits: PortLimits = serde_json::from_str(
        r#"{"addresses": ["10.0.0.7", "fd00::7"], "inside": {"mac": "02:00:00:00:00:01", "addresses": ["10.0.0.1", "fd00::1"]}}"#,
    )
    .unwrap();
    let twin = |outside| Twin::of(&limits, mac(outside)).unwrap();
    let pairs = "10.0.0.1 inside for 10.0.0.7, fd00::1 inside for fd00::7";
    assert_eq!(told(Step::Twin(twin(1))), format!("web is a twin, whose guest has {pairs}\n"));
    let pairs = format!("02:00:00:00:00:01 inside for 02:00:00:00:00:07, {pairs}");
    let received = told(Step::Receiver(DB, ReceiverStep::Twin(twin(7))));
    assert_eq!(received, format!("db is a twin: its guest receives the frame with {pairs}\n"));
}

#[test]
fn the_keys_that_decide_are_told() {
    let pinned = source(Some(Learned::Pinned), Verdict::Drop(DropReason::BadSource), Some(DB), 0);
    let passage = |step| Step::Passage(DB, step);
    let cases = [
        (pinned, "-db.mac"),
        (refused(DropReason::SpoofedSource, None, false), "-web.anti-spoof +web.allowed"),
        (refused(DropReason::SpoofedIp, Some("10.0.0.7"), true), "-web.anti-spoof +web.addresses"),
        (refused(DropReason::SpoofedIp, None, true), "-web.anti-spoof"),
        (Step::VlanNotCarried { is_trunk: true }, "-web.trunk"),
        (Step::ReservedGroup, "-web.reserved"),
        (passage(PassageStep::Isolated), "-web.isolated -db.isolated"),
        (passage(PassageStep::VlanNotCarried { is_trunk: false }), "-db.vlan"),
        (passage(PassageStep::Denied { rule: "R".into(), line: 3, allowing: "A".into() }), "-.policy3"),
        (passage(PassageStep::Allowed("R".into(), 0)), "=.policy"),
        (passage(PassageStep::NoRule), ""),
    ];
    cases.into_iter().for_each(|(step, wanted)| assert_eq!(keys(step), wanted));
}
