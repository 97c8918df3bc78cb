//! Eight faults in a network of ten guests, each found by an operator within two commands, with its remedy in plain words.

use std::path::Path;

use crate::command::{Running, memlane, printed, write};
use crate::common::*;
use memlane_rig::frontend::features::MRG_RXBUF;
use memlane_rig::guest::{GuestBuilder, ReceiveBuffers, ToyGuest};
use memlane_rig::memory::MemoryPlan;

const GUESTS: usize = 10;
const SERVER: usize = 1;

/// Ports with an address of their own.
const TIED: [usize; 4] = [SERVER, 4, 5, 6];
/// Lines of ports beside its name, socket and address.
const KEYS: [(usize, &str); 2] = [(6, "anti-spoof = \"mac\"\n"), (8, "transmit = { packets = 1 }\n")];

fn file() -> String {
    let port = |index: usize| {
        let more: String = KEYS.iter().filter(|(port, _)| *port == index).map(|(_, lines)| *lines).collect();
        let mac = if TIED.contains(&index) { format!("mac = \"02:00:00:00:00:0{index}\"\n") } else { String::new() };
        format!("[[port]]\nname = \"g{index}\"\nvhost-user = \"g{index}.sock\"\n{mac}{more}")
    };
    (0..GUESTS).map(port).collect()
}

fn builder(index: usize) -> GuestBuilder {
    ToyGuest::builder().mac(mac(index)).timeout(TIMEOUT).memory(MemoryPlan::new(64 << 20))
}

struct Operator<'f> {
    folder: &'f Path,
}

impl Operator<'_> {
    /// The output of a command, without line breaks.
    fn ask(&self, arguments: &[&str]) -> String {
        printed(self.folder, arguments).split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// Asks until the answer has all these words.
    fn finds(&self, arguments: &[&str], words: &[&str]) {
        let mut answer = String::new();
        wait_until(
            || {
                answer = self.ask(arguments);
                words.iter().all(|word| answer.contains(word))
            },
            &format!("{arguments:?} tells {words:?}; last it was: {}", self.ask(arguments)),
        );
    }

    /// Asks for the causes at port `index`.
    fn finds_at(&self, index: usize, words: &[&str]) {
        self.finds(&["why", "net.toml", &format!("g{index}")], words);
    }
}

fn connect(folder: &Path, index: usize, builder: GuestBuilder) -> ToyGuest {
    builder.connect(folder.join(format!("g{index}.sock"))).unwrap()
}

#[test]
fn eight_faults_among_ten_guests_are_found_within_two_commands() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    write(folder, "net.toml", &file());
    let _running = Running::start(memlane(folder, &["up", "net.toml"]));
    let operator = Operator { folder };
    let (mut client, mut server) = (connect(folder, 0, builder(0)), connect(folder, SERVER, builder(SERVER)));
    let mut others: Vec<ToyGuest> = [2, 3, 6, 7, 8, 9].into_iter().map(|index| connect(folder, index, builder(index))).collect();
    let short = builder(4).without(MRG_RXBUF);
    let few = ReceiveBuffers { count: Some(4), repost: false, ..ReceiveBuffers::SMALL };
    let (_short, _stopped) = (connect(folder, 4, short), connect(folder, 5, builder(5).receive_buffers(few)));
    client.send(&frame(mac(0), mac(SERVER), 60, 1)).unwrap();
    assert_eq!(server.receive(TIMEOUT).unwrap().bytes.len(), 60);
    let to_server = |number| frame(mac(0), mac(SERVER), 60, number);
    operator.finds(&["why", "net.toml", "g0", "--to", "02:00:00:00:00:01"], &["would be delivered to g1"]);
    operator.finds_at(0, &["the switch sees no problem"]);

    // 1. The port's socket is taken: a second guest gets no connection.
    let _second = std::os::unix::net::UnixStream::connect(folder.join("g2.sock")).unwrap();
    operator
        .finds(&["status", "net.toml"], &["g2: refused 1 connection of other front ends", &format!("(pid {}", std::process::id())]);
    operator.finds_at(2, &["uses the port", "Give each guest a port of its own, or end that program"]);

    // 2. One guest tags its frames, and the others do not.
    let mut tagged = frame(mac(0x33), BROADCAST, 60, 1);
    tagged[12..16].copy_from_slice(&[0x81, 0, 0, 30]);
    others[1].send(&tagged).unwrap();
    let to_tagged = ["why", "net.toml", "g0", "--frame", "020000000033 020000000000 0806"];
    operator.finds(&to_tagged, &["behind g3 in VLAN 30, and not without a VLAN tag: the guests use different VLAN tags"]);
    operator.finds_at(3, &["transmits in VLAN 30, and all others of the segment without a VLAN tag", "Use the same VLAN tag"]);

    // 3. Large frames to a guest with an MTU of 1500.
    client.send(&frame(mac(0), mac(4), 4000, 1)).unwrap();
    operator.finds(&["status", "net.toml"], &["g4 dropped: too-long-for-receiver 1"]);
    operator.finds_at(4, &["dropped as too-long-for-receiver", "Use the same MTU in all guests"]);

    // 4. A guest takes no frames any more.
    (0..20).for_each(|number| {
        client.send(&frame(mac(0), mac(5), 60, number)).unwrap();
    });
    operator.finds(&["status", "net.toml"], &["g5 dropped: receiver-"]);
    operator.finds_at(5, &["has posted no receive buffers for", "See at its console that the guest runs"]);

    // 5. Anti-spoofing, and a guest with another address than the port's.
    others[2].send(&frame(mac(60), BROADCAST, 60, 1)).unwrap();
    operator.finds(&["status", "net.toml"], &["g6 dropped: spoofed-source 1"]);
    operator.finds_at(6, &["dropped as spoofed-source", "Have the guest use the address of the port's key mac"]);

    // 6. A guest with the address of another port.
    others[3].send(&frame(mac(SERVER), BROADCAST, 60, 1)).unwrap();
    operator.finds(&["events", "net.toml"], &["g7", "bad-source"]);
    operator.finds_at(7, &["dropped as bad-source", "another port's configured address", "Give the guest an address of its own"]);

    // 7. A rate limit makes a guest slow.
    (0..100).for_each(|number| {
        others[4].send(&frame(mac(8), mac(0), 60, number)).unwrap();
    });
    operator.finds_at(
        8,
        &["its transmit limit of 1pps has held frames back", "Raise or remove it: memlane set net g8 --transmit none"],
    );
    operator.finds(&["status", "net.toml"], &["g8: its transmit queue 0 is blocked for another", "ms by its rate limit"]);
    let ends = || -> Option<u64> {
        let status: serde_json::Value = serde_json::from_str(&printed(folder, &["status", "net.toml", "--json"])).unwrap();
        let blocked = &status["ports"][8]["blocked"][0];
        blocked["ends-in-ms"].as_u64().filter(|_| blocked["reason"] == "rate-limit")
    };
    wait_until(|| ends().is_some(), "JSON tells the end");

    // 8. A driver breaks its ring.
    let queue = &mut others[5].pair(0).transmit.queue;
    queue.ring.shared().set_available_index(1000);
    queue.kick();
    operator.finds(&["status", "net.toml"], &["g9", "quarantined"]);
    operator.finds_at(9, &["it is in quarantine: the available index jumped", "reconnects or the guest resets the device"]);

    // The first two guests have noticed nothing of all this.
    client.send(&to_server(2)).unwrap();
    wait_until(|| server.receive(TIMEOUT).unwrap().bytes == to_server(2), "the server hears from the client");
}
