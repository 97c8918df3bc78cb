//! A forecast for a frame comes true when the frame is sent, and changes nothing.

use std::collections::BTreeMap;

use crate::command::{Running, memlane, network, printed, told};
use crate::common::*;
use crate::dice::Dice;
use memlane::control::causes::remedies::remedy;
use memlane::control::causes::{CauseKind, PortCauses};
use memlane::explain::Forecast;
use memlane::port::PortState;
use memlane::stats::DropReason;
use memlane_rig::frontend::notify::CallKind;
use memlane_rig::guest::{ReceiveBuffers, ToyGuest};
use memlane_rig::ring::Iovec;

/// Frames received by each port, and frames dropped at each port by reason.
type Counts = (Vec<u64>, Vec<BTreeMap<String, u64>>);

fn counts(bed: &Bed, ports: usize) -> Counts {
    let totals: Vec<_> = (0..ports).map(|port| bed.totals(port)).collect();
    (totals.iter().map(|totals| totals.receive_frames).collect(), totals.into_iter().map(|totals| totals.drops).collect())
}

fn forecast(bed: &Bed, port: usize, frame: &[u8]) -> Forecast {
    let network = bed.daemon().network();
    Forecast::foresee(network, &network.find(&format!("p{port}")).unwrap(), frame, 0)
}

/// `counts` after the forecast has come true.
fn expected(counts: &Counts, forecast: &Forecast) -> Counts {
    let (mut received, mut dropped) = counts.clone();
    let index = |name: &String| name[1..].parse::<usize>().unwrap();
    forecast.receivers.iter().for_each(|name| received[index(name)] += 1);
    forecast.drops.iter().for_each(|drop| *dropped[index(&drop.port)].entry(drop.reason.clone()).or_default() += 1);
    (received, dropped)
}

#[test]
fn what_is_foreseen_is_what_then_happens() {
    const PORTS: usize = 5;
    // One may send from its own address only, one has an address and no guest, one is disabled.
    let own = "mac = \"02:00:00:00:00:00\"\nanti-spoof = \"mac\"";
    let absent = "mac = \"02:00:00:00:00:03\"";
    let bed = Bed::with("address-moves = 0\n", &[own, "", "", absent, "enabled = false"]);
    let mut guests: Vec<_> = (0..3).map(|index| bed.guest(index)).collect();
    let mut dice = Dice::new();
    let mut reasons = std::collections::BTreeSet::new();
    for number in 0..3000 {
        let address = |n: usize| match n {
            7 => BROADCAST,
            8 => [0; 6],
            n => mac(n),
        };
        let (sender, from, to) = (dice.below(3), address(dice.below(9)), address(dice.below(8)));
        let frame = frame(from, to, 60 + dice.below(200), number);
        let before = counts(&bed, PORTS);
        let foreseen = forecast(&bed, sender, &frame);
        assert_eq!(forecast(&bed, sender, &frame), foreseen, "asking changes nothing");
        assert_eq!(counts(&bed, PORTS), before);
        guests[sender].send(&frame).unwrap();
        let wanted = expected(&before, &foreseen);
        wait_until(|| counts(&bed, PORTS) == wanted, &format!("{foreseen:?}"));
        for name in &foreseen.receivers {
            guests[name[1..].parse::<usize>().unwrap()].receive(TIMEOUT).unwrap();
        }
        reasons.extend(foreseen.drops.iter().map(|drop| drop.reason.clone()));
    }
    let reached: Vec<_> = reasons.iter().map(String::as_str).collect();
    assert_eq!(reached, ["bad-source", "receiver-absent", "same-port", "spoofed-source"]);
}

/// A key has a line where the network has it from the file: also after a reload, and not where the control socket has changed it since.
#[test]
fn a_denied_frame_is_told_with_the_lines_of_the_file() {
    let folder = network("web.sock");
    let folder = folder.path();
    let path = folder.canonicalize().unwrap().join("net.toml").display().to_string();
    let guarded = "mac = \"02:00:00:00:00:01\"\naddresses = [\"10.0.0.1\"]\nanti-spoof = \"all\"\n";
    let file = format!("{}[[port]]\nname = \"db\"\nvhost-user = \"db.sock\"\n", crate::command::port("web.sock", guarded));
    crate::command::write(folder, "net.toml", &file);
    let _running = Running::start(memlane(folder, &["up", "net.toml"]));
    // The lines are as long as those of a terminal.
    let why = |port: &str, frame: &str| {
        let said = printed(folder, &["why", "net.toml", port, "--frame", frame]);
        said.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    // An ARP announcement of 10.0.0.9 (RFC 5227, section 3).
    let arp = |mac: &str| format!("ffffffffffff {mac} 0806 0001080006040001 {mac} 0a000009 000000000000 0a000009");
    let (own, foreign) = (arp("020000000001"), arp("020000000002"));
    let place = |what: &str, line: usize| format!("{what}: {path}:{line}");
    let said = why("web", &own);
    assert!(said.contains(&place("denied by anti-spoof of web", 6)), "{said}");
    assert!(said.contains(&place("would be allowed by addresses of web", 5)), "{said}");
    let said = why("web", &foreign);
    assert!(said.contains(&place("would be allowed by allowed of web", 1)), "it would be added to this table: {said}");
    // A DHCP offer: RFC 2131.
    let offer = "ffffffffffff 020000000001 0800 4500 011c 0000 0000 4011 0000 0a000001 ffffffff 0043 0044 0108 0000 020106";
    let said = why("web", &format!("{offer}{}", "00".repeat(257)));
    assert!(said.contains("not-a-server") && said.contains(&place("would be allowed by may-serve of web", 1)), "{said}");
    let said = why("db", &own);
    assert!(said.contains(&place("denied by mac of web", 4)), "{said}");
    let json = printed(folder, &["why", "net.toml", "web", "--frame", &own, "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let key = serde_json::json!({ "port": "web", "key": "anti-spoof", "would-allow": false, "file": path, "line": 6 });
    assert_eq!(json["keys"][0], key);
    // The lines move, and a rule with them.
    let rule = "[[policy]]\nto = \"db\"\naction = \"deny\"\n";
    crate::command::write(folder, "net.toml", &format!("{file}{rule}"));
    printed(folder, &["reload", "net.toml"]);
    let to_db = "020000000003 020000000001 88b5";
    printed(folder, &["set", "net.toml", "db", "--mac", "02:00:00:00:00:03"]);
    let said = why("web", to_db);
    assert!(said.contains(&place("denied by the policy rule", 10)), "{said}");
    crate::command::write(folder, "net.toml", &format!("# Two lines\n# more.\n{file}mac = \"02:00:00:00:00:03\"\n{rule}"));
    printed(folder, &["reload", "net.toml"]);
    let (moved, denied) = (why("web", &own), why("web", to_db));
    assert!(moved.contains(&place("denied by anti-spoof of web", 8)), "{moved}");
    assert!(denied.contains(&place("denied by the policy rule", 13)) && denied.contains("(in line 13)"), "{denied}");
    printed(folder, &["set", "net.toml", "web", "--addresses", "[\"10.0.0.2\"]"]);
    let changed = why("web", &own);
    assert!(changed.contains(&place("denied by anti-spoof of web", 8)) && !changed.contains("addresses of web"), "{changed}");
    printed(folder, &["attach", "net.toml", "later", "--null", "--anti-spoof", "mac", "--mac", "02:00:00:00:00:04"]);
    let attached = why("later", &own);
    assert!(attached.contains("spoofed-source") && !attached.contains("of later:"), "{attached}");
}

#[test]
fn a_command_tells_the_steps_and_the_outcome() {
    let folder = network("web.sock");
    let folder = folder.path();
    let more = "mac = \"02:00:00:00:00:01\"\n[[port]]\nname = \"db\"\nvhost-user = \"db.sock\"\n";
    crate::command::write(folder, "net.toml", &crate::command::port("web.sock", more));
    let _running = Running::start(memlane(folder, &["up", "net.toml"]));
    let told_of = |arguments: &[&str]| printed(folder, &[&["why", "net.toml"], arguments].concat());
    let dropped = "  source 02:00:00:00:00:01 is known behind web\n  the destination is behind web too: the guest's own bridge delivers such frames\nwould be dropped: same-port (counted at web)\n";
    assert_eq!(told_of(&["web", "--to", "02:00:00:00:00:01"]), dropped);
    let absent = told_of(&["db", "--to", "02:00:00:00:00:01"]);
    assert!(
        absent.contains("  web has no running receive queue (waiting)\n  web: no front end is connected. ")
            && absent.ends_with("would be dropped: receiver-absent (counted at web)\n"),
        "{absent}"
    );
    let pinned = told_of(&["db", "--frame", "ff:ff:ff:ff:ff:ff 020000000001 0806"]);
    assert!(pinned.contains("is the mac of web, and no other port may send from it\n  denied by mac of web: "), "{pinned}");
    assert!(pinned.contains("/net.toml:4\nwould be dropped: bad-source"), "{pinned}");
    let runt = told_of(&["web", "--frame", "0200"]);
    assert!(runt.contains("would be dropped: runt"), "{runt}");
    let json: serde_json::Value = serde_json::from_str(&told_of(&["db", "--to", "02:00:00:00:00:01", "--json"])).unwrap();
    assert_eq!(json["drops"], serde_json::json!([{ "port": "web", "reason": "receiver-absent" }]));
    for wrong in [["--to", "nobody"], ["--to", "10.9.9.9"], ["--frame", "012"], ["--frame", "xx"], ["--packet", "tcp,dst=80"]] {
        let output = memlane(folder, &[&["why", "net.toml", "web"], &wrong[..]].concat()).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{}", told(&output));
    }
}

#[test]
fn a_port_tells_what_keeps_it_from_its_work() {
    let folder = network("web.sock");
    let folder = folder.path();
    crate::command::write(folder, "net.toml", &crate::command::port("web.sock", "[[port]]\nname = \"sink\"\nnull = true\n"));
    let _running = Running::start(memlane(folder, &["up", "net.toml"]));
    let why = || printed(folder, &["why", "net.toml", "web"]).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(why().contains("web: no front end is connected. Start the guest, which must connect to "), "{}", why());
    let stream = std::os::unix::net::UnixStream::connect(folder.join("web.sock")).unwrap();
    let speaking = "is connected, but no virtqueue has started. Wait until";
    wait_until(|| why().contains(speaking), "the front end is told");
    drop(stream);
    wait_until(|| why().contains("no front end is connected"), "its end is told");
    let builder = ToyGuest::builder().mac(mac(0)).timeout(TIMEOUT);
    let mut guest = builder.memory(memlane_rig::memory::MemoryPlan::new(64 << 20)).connect(folder.join("web.sock")).unwrap();
    wait_until(|| why().contains("its guest has transmitted nothing yet. Bring"), "it runs");
    guest.send(&frame(mac(0), BROADCAST, 60, 1)).unwrap();
    wait_until(|| why().contains("the switch sees no problem"), "it works");
    for question in [["--to", "02:00:00:00:00:07"], ["--packet", "arp who-has 10.0.0.2"]] {
        let told = printed(folder, &[&["why", "net.toml", "web"], &question[..]].concat());
        assert!(told.contains("  source 02:00:00:00:00:00 is known behind web\n"), "as its guest sends: {told}");
    }
    guest.send(&frame(mac(0), mac(0), 60, 1)).unwrap();
    wait_until(|| why().contains("1 frame of its guest was dropped as same-port in the last minute, the last "), "drops are told");
    printed(folder, &["set", "net.toml", "web", "--enabled", "false"]);
    assert!(why().contains("web: it is disabled. Enable it: memlane set net web --enabled true"), "{}", why());
    let json: PortCauses = serde_json::from_str(&printed(folder, &["why", "net.toml", "web", "--json"])).unwrap();
    assert_eq!((json.causes[0].cause, &*json.state), (CauseKind::Disabled, "disabled"));
    // The remedy helps.
    printed(folder, &["set", "net", "web", "--enabled", "true"]);
    assert!(!why().contains("disabled"), "{}", why());
}

/// Sends `count` frames from guest `from` to the address of guest `to`.
fn send(from: &mut ToyGuest, to: usize, count: u64) {
    (0..count).for_each(|number| {
        from.send(&frame(from.mac(), mac(to), 60, number)).unwrap();
    });
}

#[test]
fn a_front_end_that_holds_the_port_is_named() {
    let bed = Bed::new(2);
    let _holder = bed.guest(0);
    let _refused = std::os::unix::net::UnixStream::connect(bed.socket(0)).unwrap();
    let line = bed.wait_for_cause(0, CauseKind::PortInUse);
    assert!(
        line.contains("because together")
            && line.contains(" uses the port. Give each guest")
            && line.contains(&format!("(pid {}, uid ", std::process::id())),
        "{line}"
    );
}

#[test]
fn missing_receive_buffers_are_told() {
    let bed = Bed::with("", &["", "mac = \"02:00:00:00:00:01\"", "mac = \"02:00:00:00:00:02\""]);
    let mut sender = bed.guest(0);
    let none = ReceiveBuffers { count: Some(0), ..ReceiveBuffers::SMALL };
    let (_down, _few) = (bed.guest_like(1, bed.builder(1).receive_buffers(none)), bed.guest_with_four_buffers(2));
    let line = bed.wait_for_cause(1, CauseKind::InterfaceDown);
    assert!(line.contains("no receive buffers yet: its interface is down. Bring it up"), "{line}");
    assert!(!bed.causes(2).iter().any(|cause| cause.cause == CauseKind::InterfaceDown));
    [1, 2].into_iter().for_each(|to| send(&mut sender, to, 20));
    let line = bed.wait_for_cause(2, CauseKind::NoReceiveBuffers);
    assert!(line.contains("its guest has posted no receive buffers for ") && line.contains("paused"), "{line}");
    let line = bed.wait_for_cause(1, CauseKind::Dropped);
    assert!(line.contains("all frames for it were dropped, ") && line.contains(" as receiver-"), "{line}");
    let line = bed.wait_for_cause(2, CauseKind::Dropped);
    assert!(!line.contains("all frames"), "it received four: {line}");
    // Once it takes frames, that is no cause any more, even between two frames.
    let mut few = _few;
    few.pair(0).receive.post(4).unwrap();
    send(&mut sender, 2, 1);
    wait_until(|| !bed.causes(2).iter().any(|cause| cause.cause == CauseKind::NoReceiveBuffers), "it has buffers");
}

#[test]
fn a_blocked_transmit_queue_is_told_with_the_end() {
    let bed = Bed::with(
        "stall-timeout-ms = 60000\n",
        &["transmit = \"1pps\"", "mac = \"02:00:00:00:00:01\"", "mac = \"02:00:00:00:00:02\""],
    );
    let (mut limited, mut sender) = (bed.guest(0), bed.guest(1));
    let _full = bed.guest_with_four_buffers(2);
    // More than the burst of a limit, which is 32 packets: the rest takes more than a minute.
    send(&mut limited, 1, 100);
    let line = bed.wait_for_cause(0, CauseKind::Blocked);
    assert!(
        line.contains("its transmit queue 0 is blocked for another ") && line.contains(" ms by its rate limit. Raise"),
        "{line}"
    );
    // A sender with one receiver is left to wait once that holds its quota of the ring.
    let mut blocked = None;
    let more = || {
        (0..200).for_each(|number| drop(sender.send(&frame(mac(1), mac(2), 60, number))));
        // While this process sends without end, its port may be throttled for a moment, too.
        let is_full = |line: &str| line.contains("has no room");
        blocked = bed.causes(1).into_iter().find(|cause| cause.cause == CauseKind::Blocked && is_full(&cause.line()));
        blocked.is_some()
    };
    wait_until(more, "its transmit queue is blocked");
    let line = blocked.unwrap().line();
    assert!(line.contains(" ms, because p2 has no room (backpressure). Ask again"), "{line}");
}

#[test]
fn a_guest_that_does_not_look_or_cannot_be_interrupted_is_told() {
    let addresses = ["", "mac = \"02:00:00:00:00:01\"", "mac = \"02:00:00:00:00:02\"", "mac = \"02:00:00:00:00:03\""];
    let bed = Bed::with("", &addresses);
    let mut sender = bed.guest(0);
    let (_paused, mut awake) = (bed.guest(1), bed.guest(3));
    let _deaf = bed.guest_like(2, bed.builder(2).call(CallKind::None));
    [1, 2, 3].into_iter().for_each(|to| send(&mut sender, to, 5));
    (0..5).for_each(|_| drop(awake.receive(TIMEOUT).unwrap()));
    let line = bed.wait_for_cause(1, CauseKind::NotLooking);
    assert!(line.contains("was interrupted, and has not looked at 5 received frames"), "{line}");
    let line = bed.wait_for_cause(2, CauseKind::NotInterrupted);
    assert!(line.contains("waits for an interrupt for 5 received frames") && line.contains("SET_VRING_CALL"), "{line}");
    let wrong = [CauseKind::NotLooking, CauseKind::NotInterrupted, CauseKind::NotKicked];
    assert!(!bed.causes(3).iter().any(|cause| wrong.contains(&cause.cause)), "{:?}", bed.causes(3));
}

#[test]
fn a_guest_that_has_not_kicked_is_told() {
    let bed = Bed::new(2);
    let mut guest = bed.builder(0).kicked(false).connect(bed.socket(0)).unwrap();
    bed.wait_for(|bed| bed.state(0) == PortState::Running, "the port runs");
    let at = guest.memory().allocate(100, 64).unwrap();
    let ring = &mut guest.pair(0).transmit.queue.ring;
    ring.add(&[Iovec::readable(at, 72)]).unwrap();
    ring.publish();
    let line = bed.wait_for_cause(0, CauseKind::NotKicked);
    assert!(line.contains(" available, and has not kicked. See that its VMM passes kicks on"), "{line}");
}

#[test]
fn a_quarantine_is_told_with_its_rule() {
    let bed = Bed::new(2);
    let mut guest = bed.guest(0);
    let queue = &mut guest.pair(0).transmit.queue;
    queue.ring.shared().set_available_index(1000);
    queue.kick();
    let line = bed.wait_for_cause(0, CauseKind::Quarantined);
    assert!(line.contains("the available index jumped by more than the ring size. It works again when"), "{line}");
}

#[test]
fn settings_that_do_not_fit_the_segment_are_told() {
    let limited = "transmit = { packets = 1 }";
    let bed = Bed::with("", &["mtu = 9000", limited, "segment = \"apart\""]);
    let line = bed.wait_for_cause(0, CauseKind::Mtu);
    assert!(line.contains("its mtu is 9000, and that of p1 is 1500") && line.contains("Give all ports of segment lan"), "{line}");
    let line = bed.wait_for_cause(2, CauseKind::Alone);
    assert!(line.contains("the only port of segment apart. Give the ports"), "{line}");
    let (mut a, mut b) = (bed.guest(0), bed.guest(1));
    a.send(&frame(mac(0), BROADCAST, 60, 1)).unwrap();
    let mut tagged = frame(mac(1), BROADCAST, 60, 1);
    tagged[12..16].copy_from_slice(&[0x81, 0, 0, 30]);
    (0..100).for_each(|_| {
        b.send(&tagged).unwrap();
    });
    let line = bed.wait_for_cause(1, CauseKind::Vlan);
    assert!(line.contains("its guest transmits in VLAN 30, and all others of the segment without a VLAN tag. Use"), "{line}");
    let line = bed.wait_for_cause(1, CauseKind::Limited);
    assert!(line.contains("its transmit limit of 1pps has held frames back") && line.contains("--transmit none"), "{line}");
}

#[test]
fn addresses_of_others_are_told() {
    let bed = Bed::with(
        "address-moves = 2\n",
        &["mac = \"02:00:00:00:00:00\"", "anti-spoof = \"mac\"\nmac = \"02:00:00:00:00:01\"", "", ""],
    );
    let mut guests: Vec<_> = (0..4).map(|index| bed.guest(index)).collect();
    guests[2].send(&frame(mac(0), BROADCAST, 60, 1)).unwrap();
    let line = bed.wait_for_cause(2, CauseKind::Dropped);
    assert!(line.contains("as bad-source in the last minute, ") && line.contains("Give the guest an address of its own"), "{line}");
    guests[1].send(&frame(mac(9), BROADCAST, 60, 1)).unwrap();
    let line = bed.wait_for_cause(1, CauseKind::Dropped);
    assert!(line.contains("as spoofed-source in the last minute, ") && line.contains("key mac"), "{line}");
    for number in 0..12 {
        guests[2 + number % 2].send(&frame(mac(8), BROADCAST, 60, 1)).unwrap();
        let received = 1 + number as u64;
        bed.wait_for(
            |bed| bed.totals(0).receive_frames + bed.drops(2, DropReason::Loop) + bed.drops(3, DropReason::Loop) >= received,
            "it is sent",
        );
    }
    let line = bed.wait_for_cause(3, CauseKind::Loop);
    assert!(line.contains("address 02:00:00:00:00:08 moves between ports p") && line.contains("a loop?"), "{line}");
}

#[test]
fn a_tap_whose_link_is_down_is_told() {
    in_a_namespace("why::a_tap_whose_link_is_down_is_told", || {
        let bed = Bed::of(
            "[[port]]\nname = \"p0\"\nvhost-user = \"FOLDER/p0.sock\"\n[[port]]\nname = \"p1\"\ntap = \"why0\"\nmac = \"02:00:00:00:00:01\"\n",
        );
        let mut guest = bed.guest(0);
        let down = std::process::Command::new("ip").args(["link", "set", "why0", "down"]).status().unwrap();
        assert!(down.success());
        send(&mut guest, 1, 3);
        let line = bed.wait_for_cause(1, CauseKind::InterfaceDown);
        assert!(line.contains("its TAP device why0 is down or has no carrier. Set it up: ip link set why0 up"), "{line}");
        let line = bed.wait_for_cause(0, CauseKind::NoCarrier);
        assert!(line.contains("TAP device why0 of p1, the only way out of segment lan, is down or has no carrier"), "{line}");
        assert!(std::process::Command::new("ip").args(["link", "set", "why0", "up"]).status().unwrap().success());
        let of_carrier = [CauseKind::InterfaceDown, CauseKind::NoCarrier];
        let has_ended = |port| !bed.causes(port).iter().any(|cause| of_carrier.contains(&cause.cause));
        wait_until(|| has_ended(0) && has_ended(1), "the interface is up");
    });
}

#[test]
fn all_remedies_are_sentences() {
    for &reason in DropReason::ALL {
        let remedy = remedy(reason);
        assert!(remedy.starts_with(char::is_uppercase) && !remedy.ends_with('.') && remedy.len() > 20, "{remedy}");
    }
}

#[test]
fn the_frames_of_a_file_are_foreseen_and_packets_in_words() {
    let folder = network("web.sock");
    let folder = folder.path();
    let null = "\n[[port]]\nname = \"sink\"\nnull = true\n";
    let net = std::fs::read_to_string(folder.join("net.toml")).unwrap() + null;
    std::fs::write(folder.join("net.toml"), net).unwrap();
    let _running = Running::start(memlane(folder, &["up", "net.toml"]));
    let arp = printed(folder, &["why", "net.toml", "web", "--packet", "arp who-has 10.0.0.2"]);
    let outcome = arp.lines().last().unwrap();
    assert!(outcome.contains("would be delivered to sink"), "{arp}");

    // pcap-savefile(5): the header, and three frames to all, of which the last is cut short; each has its two times and lengths.
    let mut file = Vec::new();
    let header = [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65_535, 1];
    header.iter().for_each(|word| file.extend_from_slice(&word.to_le_bytes()));
    for length in [60_u32, 60, 1000] {
        [1, 2, 60, length].iter().for_each(|word| file.extend_from_slice(&word.to_le_bytes()));
        file.extend_from_slice(&frame(mac(1), BROADCAST, 60, 0));
    }
    std::fs::write(folder.join("frames.pcap"), &file).unwrap();
    let text = printed(folder, &["why", "net.toml", "web", "--pcap", "frames.pcap"]);
    assert!(text.contains(&format!("  frames 1 to 2: {outcome}\n")) && text.contains("frame 3: unknown"), "{text}");
    let json = printed(folder, &["why", "net.toml", "web", "--pcap", "frames.pcap", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json[1]["number"], &json[1]["outcome"]), (&2.into(), &outcome.into()));
    std::fs::write(folder.join("frames.pcap"), "GIF89a").unwrap();
    for arguments in [["--pcap", "frames.pcap"], ["--packet", "icmp echo"]] {
        let output = memlane(folder, &[&["why", "net.toml", "web"], &arguments[..]].concat()).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{}", told(&output));
    }
}

/// The receiver's side of "why does A not reach B".
#[test]
fn names_and_addresses_lead_to_a_receiver_whose_causes_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let port = |name: &str, index: usize, more: &str| {
        let address = format!("mac = \"02:00:00:00:00:0{index}\"\naddresses = [\"10.0.0.{index}\", \"fd00::{index}\"]\n");
        format!("[[port]]\nname = \"{name}\"\nvhost-user = \"{name}.sock\"\n{address}{more}")
    };
    let apart = "[[port]]\nname = \"far\"\nnull = true\nsegment = \"back\"\n";
    let rules = "[[policy]]\nto = \"db\"\nprotocol = \"tcp\"\nports = [5432]\naction = \"allow\"\n[[policy]]\nto = \"db\"\nprotocol = \"tcp\"\naction = \"deny\"\n";
    let net = format!("{}{}{apart}{rules}", port("web", 1, "anti-spoof = \"all\"\n"), port("db", 2, ""));
    crate::command::write(folder, "net.toml", &net);
    let _running = Running::start(memlane(folder, &["up", "net.toml"]));
    let why = |arguments: &[&str]| {
        let said = printed(folder, &[&["why", "net.toml", "web"], arguments].concat());
        said.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    for to in ["db", "10.0.0.2", "fd00::2", "02:00:00:00:00:02"] {
        let said = why(&["--to", to]);
        assert!(said.contains("db: no front end is connected. Start the guest"), "{to}: {said}");
        assert!(said.ends_with("would be dropped: receiver-absent (counted at db)"), "{to}: {said}");
    }
    let guest = |name: &str, index: usize| {
        let builder = ToyGuest::builder().mac(mac(index)).timeout(TIMEOUT).memory(memlane_rig::memory::MemoryPlan::new(64 << 20));
        builder.connect(folder.join(format!("{name}.sock"))).unwrap()
    };
    let (mut web, _db) = (guest("web", 1), guest("db", 2));
    let allowed = why(&["--to", "db", "--packet", "tcp,dst=5432"]);
    assert!(allowed.contains("which allows them") && allowed.contains("allowed by the policy rule: "), "{allowed}");
    assert!(allowed.ends_with("would be delivered to db"), "{allowed}");
    let denied = why(&["--to", "10.0.0.2", "--packet", "tcp,dst=80"]);
    assert!(
        denied.contains("denied by the policy rule: ") && denied.ends_with("would be dropped: policy-denied (counted at web)"),
        "{denied}"
    );
    let echo = why(&["--to", "db", "--packet", "icmp6"]);
    assert!(
        echo.contains("no policy rule is about such frames from web to db, so they pass") && echo.ends_with("delivered to db"),
        "{echo}"
    );
    let arp = why(&["--to", "db", "--packet", "arp"]);
    assert!(arp.contains("IP address 10.0.0.2 belongs to db"), "{arp}");
    let spoofed = why(&["--to", "db", "--packet", "icmp,src=10.0.0.9"]);
    assert!(spoofed.contains("spoofed-ip"), "{spoofed}");
    assert!(why(&["--to", "far"]).ends_with("would not reach far: it is on segment back, and web on segment lan"));
    // A receiver that does not look at its frames.
    send(&mut web, 2, 5);
    wait_until(|| why(&["--to", "db"]).contains("would be delivered to db; but db takes no frames at this moment: "), "it is told");
    printed(folder, &["set", "net.toml", "db", "--enabled", "false"]);
    let said = why(&["--to", "db"]);
    assert!(said.contains("db: it is disabled. Enable it"), "{said}");
}

#[test]
fn all_ports_with_a_cause_are_told_the_worst_first() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let port = |name: &str, kind: &str| format!("[[port]]\nname = \"{name}\"\n{kind}\n");
    let listens = |name: &str| port(name, &format!("vhost-user = \"{name}.sock\""));
    let net = [
        listens("absent"),
        port("sink", "null = true"),
        port("off", "null = true\nenabled = false"),
        listens("bad"),
        listens("held"),
    ];
    crate::command::write(folder, "net.toml", &net.concat());
    let _running = Running::start(memlane(folder, &["up", "net.toml"]));
    let guest = |name: &str, index: usize| {
        let builder = ToyGuest::builder().mac(mac(index)).timeout(TIMEOUT).memory(memlane_rig::memory::MemoryPlan::new(64 << 20));
        builder.connect(folder.join(format!("{name}.sock"))).unwrap()
    };
    let (mut bad, mut held) = (guest("bad", 1), guest("held", 2));
    held.stop().unwrap();
    let queue = &mut bad.pair(0).transmit.queue;
    queue.ring.shared().set_available_index(1000);
    queue.kick();
    let ports = || {
        let said = printed(folder, &["why", "net.toml"]);
        let lines =
            said.lines().filter_map(|line| line.strip_prefix("  ")?.split_once(": ")).filter(|(name, _)| !name.starts_with(' '));
        let mut names: Vec<String> = lines.map(|(name, _)| name.to_owned()).collect();
        names.dedup();
        names
    };
    wait_until(|| ports() == ["bad", "held", "absent", "off"], "all are told");
    let said = printed(folder, &["why", "net.toml", "held"]);
    let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        said.contains("stopped its virtqueues") && said.contains("its guest is paused") && said.contains("virsh resume"),
        "{said}"
    );
    assert!(!said.contains("restart"), "{said}");
    let json: Vec<PortCauses> = serde_json::from_str(&printed(folder, &["why", "net.toml", "--json"])).unwrap();
    assert_eq!((json[0].port.as_str(), json[0].causes[0].cause), ("bad", CauseKind::Quarantined));
    // The tables mark them.
    for command in ["ls", "status"] {
        let table = printed(folder, &[command, "net.toml"]);
        let state =
            |port: &str| table.lines().find(|line| line.starts_with(port)).unwrap().split_whitespace().nth(2).unwrap().to_owned();
        let states = ["bad", "held", "absent", "off", "sink"].map(state);
        assert_eq!(states, ["quarantined!", "speaking!", "waiting!", "disabled!", "running"], "{command}: {table}");
    }
    assert!(printed(folder, &["status", "net.toml"]).contains("memlane why net\n"));
}

/// A guest behind one ping a second: frames arrive, and it does nothing.
#[test]
fn a_guest_that_hangs_is_found_behind_a_frame_now_and_then() {
    let bed = Bed::with("", &["", "mac = \"02:00:00:00:00:01\""]);
    let (mut sender, _hangs) = (bed.guest(0), bed.guest(1));
    send(&mut sender, 1, 1);
    bed.wait_for_cause(1, CauseKind::NotLooking);
    // A frame at any moment of the looks.
    for number in 0..20 {
        let sent = std::thread::scope(|scope| {
            let causes = scope.spawn(|| bed.causes(1));
            std::thread::sleep(std::time::Duration::from_millis(10 * number));
            sender.send(&frame(mac(0), mac(1), 60, number)).unwrap();
            causes.join().unwrap()
        });
        assert!(sent.iter().any(|cause| cause.cause == CauseKind::NotLooking), "{sent:?}");
    }
}

#[test]
fn two_guests_with_one_ip_address_are_told_at_both_ports() {
    let bed = Bed::new(2);
    let (mut one, mut other) = (bed.guest(0), bed.guest(1));
    // An ARP announcement of 10.0.0.9 (RFC 5227, section 3).
    let announce = |mac: [u8; 6]| {
        let fixed = [0x08, 0x06, 0x00, 0x01, 0x08, 0x00, 6, 4, 0x00, 0x01];
        let mut frame = [&[0xff; 6][..], &mac, &fixed, &mac, &[10, 0, 0, 9], &[0; 6], &[10, 0, 0, 9]].concat();
        frame.resize(60, 0);
        frame
    };
    let told =
        |port| bed.causes(port).into_iter().find(|cause| cause.cause == CauseKind::AddressConflict).map(|cause| cause.line());
    wait_until(
        || {
            one.send(&announce(mac(0))).unwrap();
            other.send(&announce(mac(1))).unwrap();
            told(0).is_some() && told(1).is_some()
        },
        "the conflict is told",
    );
    let lines = [0, 1].map(|port| told(port).unwrap());
    assert!(lines.iter().all(|line| line.contains("10.0.0.9") && line.contains("Give one of the two guests another")), "{lines:?}");
    assert!(lines[0].contains("p1") && lines[1].contains("p0"), "{lines:?}");
}
