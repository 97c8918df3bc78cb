//! A forecast for a frame comes true when the frame is sent, and changes nothing.

use std::collections::BTreeMap;

use crate::command::{Running, memlane, network, printed, told};
use crate::common::*;
use crate::dice::Dice;
use memlane::network::Forecast;

/// Frames received by each port, and frames dropped at each port by reason.
type Counts = (Vec<u64>, Vec<BTreeMap<String, u64>>);

fn counts(bed: &Bed, ports: usize) -> Counts {
    let totals: Vec<_> = (0..ports).map(|port| bed.totals(port)).collect();
    (totals.iter().map(|totals| totals.receive_frames).collect(), totals.into_iter().map(|totals| totals.drops).collect())
}

fn forecast(bed: &Bed, port: usize, frame: &[u8]) -> Forecast {
    let network = bed.daemon().network();
    network.why(&network.find(&format!("p{port}")).unwrap(), frame, 0)
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
        absent.contains("  web has no running receive queue (waiting)\nwould be dropped: receiver-absent (counted at web)\n"),
        "{absent}"
    );
    let pinned = told_of(&["db", "--frame", "ff:ff:ff:ff:ff:ff 020000000001 0806"]);
    assert!(pinned.contains("is the mac of web, and no other port may send from it\nwould be dropped: bad-source"), "{pinned}");
    let runt = told_of(&["web", "--frame", "0200"]);
    assert!(runt.contains("would be dropped: runt"), "{runt}");
    let json: serde_json::Value = serde_json::from_str(&told_of(&["db", "--to", "02:00:00:00:00:01", "--json"])).unwrap();
    assert_eq!(json["drops"], serde_json::json!([{ "port": "web", "reason": "receiver-absent" }]));
    for wrong in [["--to", "web"], ["--frame", "012"], ["--frame", "xx"]] {
        let output = memlane(folder, &[&["why", "net.toml", "web"], &wrong[..]].concat()).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{}", told(&output));
    }
}

#[test]
fn a_port_tells_what_keeps_it_from_its_work() {
    let folder = network("web.sock");
    let folder = folder.path();
    let _running = Running::start(memlane(folder, &["up", "net.toml"]));
    let why = || printed(folder, &["why", "net.toml", "web"]).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(why().contains("web: no front end is connected: start the guest, which must connect to "), "{}", why());
    let stream = std::os::unix::net::UnixStream::connect(folder.join("web.sock")).unwrap();
    let speaking = "is connected, but no virtqueue has started";
    wait_until(|| why().contains(speaking), "the front end is told");
    drop(stream);
    wait_until(|| why().contains("no front end is connected"), "its end is told");
    let builder = memlane_rig::guest::ToyGuest::builder().mac(mac(0)).timeout(TIMEOUT);
    let mut guest = builder.memory(memlane_rig::memory::MemoryPlan::new(64 << 20)).connect(folder.join("web.sock")).unwrap();
    wait_until(|| why().contains("its guest has transmitted nothing yet"), "it runs");
    guest.send(&frame(mac(0), BROADCAST, 60, 1)).unwrap();
    wait_until(|| why().contains("the switch sees no problem"), "it works");
    guest.send(&frame(mac(0), mac(0), 60, 1)).unwrap();
    wait_until(|| why().contains("web dropped: same-port 1"), "drops are told");
    printed(folder, &["set", "net.toml", "web", "--enabled", "false"]);
    assert!(why().contains("web: it is disabled"), "{}", why());
}
