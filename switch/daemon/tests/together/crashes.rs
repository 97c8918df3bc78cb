//! The process is killed, and another one serves the same guests: each descriptor chain is completed once, connections go on, and no
//! frame is damaged.

use std::path::Path;

use memlane_rig::frontend::features;
use memlane_rig::guest::{GuestBuilder, GuestError, Habit, ReceiveBuffers, ToyGuest};
use memlane_rig::memory::MemoryPlan;
use vhost::vhost_user::message::VhostUserProtocolFeatures as Protocol;

use crate::command::{Running, memlane, printed, write};
use crate::common::{TIMEOUT, announce, assert_silent, frame, mac, wait_until};

/// Kills in one run; `make prove` makes more.
fn kills() -> u64 {
    std::env::var("MEMLANE_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(3)
}

fn net(folder: &Path, ports: usize) {
    // No frame is flooded after a restart.
    let port = |n: usize| format!("[[port]]\nname = \"p{n}\"\nvhost-user = \"p{n}.sock\"\nmac = \"02:00:00:00:00:{n:02x}\"\n");
    write(
        folder,
        "net.toml",
        &format!("workers = 1\nstall-timeout-ms = 60000\ncontrol = \"control\"\n{}", (0..ports).map(port).collect::<String>()),
    );
}

fn builder(index: usize) -> GuestBuilder {
    ToyGuest::builder().mac(mac(index)).timeout(TIMEOUT).memory(MemoryPlan::new(64 << 20))
}

/// A front end that keeps the record of chains in flight.
fn recording(index: usize) -> GuestBuilder {
    builder(index).protocol_features(features::usual_protocol() | Protocol::INFLIGHT_SHMFD)
}

fn connect(folder: &Path, index: usize, builder: GuestBuilder) -> ToyGuest {
    builder.connect(folder.join(format!("p{index}.sock"))).unwrap()
}

fn up(folder: &Path) -> Running {
    Running::start(memlane(folder, &["up", "net.toml"]))
}

/// Kills the process and starts another one.
fn crash(folder: &Path, running: &mut Running) {
    running.0.kill().unwrap();
    running.0.wait().unwrap();
    *running = up(folder);
}

#[test]
fn a_frame_sent_while_the_network_starts_reaches_no_stranger() {
    // The more ports, the longer the start, and the last is the destination.
    const PORTS: usize = 250;
    const FRAMES: u64 = 64;
    let folder = tempfile::tempdir().unwrap();
    net(folder.path(), PORTS);
    let mut running = up(folder.path());
    let guests = [0, 1].map(|index| connect(folder.path(), index, builder(index)));
    running.0.kill().unwrap();
    running.0.wait().unwrap();
    let come_back = |mut guest: ToyGuest, frames: u64| {
        std::thread::spawn(move || {
            (0..frames).for_each(|number| _ = guest.send(&frame(mac(0), mac(PORTS - 1), 60, number)));
            while !guest.connected() {
                let _ = guest.reconnect();
            }
            guest
        })
    };
    let [sender, stranger] = guests;
    let waiting = [come_back(sender, FRAMES), come_back(stranger, 0)];
    let _running = up(folder.path());
    let [mut sender, mut stranger] = waiting.map(|guest| guest.join().unwrap());
    sender.wait_sent(TIMEOUT).unwrap();
    assert_silent(&mut stranger);
}

fn port(folder: &Path, index: usize) -> serde_json::Value {
    let report: serde_json::Value = serde_json::from_str(&printed(folder, &["status", "net.toml", "--json"])).unwrap();
    report["ports"][index].clone()
}

fn used(guest: &mut ToyGuest) -> u16 {
    guest.pair(0).transmit.queue.ring.shared().used_index()
}

/// Port 0 has sent `BLOCKED` frames to port 1, which has four buffers, and then `OTHERS` to port 2, which were completed before those.
/// The process is killed.
struct Crashed {
    folder: tempfile::TempDir,
    path: std::path::PathBuf,
    running: Running,
    guests: [ToyGuest; 3],
}

const BLOCKED: u64 = 40;
const OTHERS: u64 = 20;
const BUFFERS: u64 = 4;

fn crashed_out_of_order(sender: GuestBuilder) -> Crashed {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_owned();
    net(&path, 3);
    let mut running = up(&path);
    let few = ReceiveBuffers { count: Some(BUFFERS as u16), ..ReceiveBuffers::SMALL };
    let mut guests = [connect(&path, 0, sender), connect(&path, 1, builder(1).receive_buffers(few)), connect(&path, 2, builder(2))];
    let [a, b, c] = &mut guests;
    announce(&mut [&mut *a, b, c]);
    let before = used(a);
    (0..BLOCKED).for_each(|number| _ = a.send(&frame(mac(0), mac(1), 100, number)).unwrap());
    (0..OTHERS).for_each(|number| _ = a.send(&frame(mac(0), mac(2), 100, number)).unwrap());
    for number in 0..OTHERS {
        assert_eq!(c.receive(TIMEOUT).unwrap().bytes, frame(mac(0), mac(2), 100, number));
    }
    wait_until(|| u64::from(used(a).wrapping_sub(before)) == BUFFERS + OTHERS, "chains are completed");
    crash(&path, &mut running);
    Crashed { folder, path, running, guests }
}

#[test]
fn chains_in_flight_at_a_crash_are_served_again_in_their_order_and_no_others() {
    let Crashed { folder: _folder, path, mut running, guests: [mut a, mut b, mut c] } = crashed_out_of_order(recording(0));
    // Frames that were completed before do not come again.
    c.reconnect().unwrap();
    b.reconnect().unwrap();
    a.reconnect().unwrap();
    for number in 0..BLOCKED {
        let received = b.receive(TIMEOUT);
        let received = received.unwrap_or_else(|error| panic!("frame {number}: {error}; {}", port(&path, 0)));
        assert_eq!(received.bytes, frame(mac(0), mac(1), 100, number));
    }
    a.wait_sent(TIMEOUT).unwrap();
    assert_silent(&mut c);
    assert_eq!(port(&path, 0)["resubmitted-chains"], BLOCKED - BUFFERS);
    // And all of it is forgotten.
    crash(&path, &mut running);
    [&mut a, &mut b, &mut c].into_iter().for_each(|guest| guest.reconnect().unwrap());
    announce(&mut [&mut a, &mut b, &mut c]);
    assert_eq!(port(&path, 0)["resubmitted-chains"], 0);
}

#[test]
fn kills_under_traffic_damage_no_frame_and_lose_no_chain() {
    kill_under_traffic(recording);
}

/// virtio-user keeps no record of chains in flight: the used index alone says where its rings go on.
#[test]
fn kills_under_traffic_of_dpdk_damage_no_frame_and_lose_no_chain() {
    kill_under_traffic(|index| builder(index).habit(Habit::DPDK));
}

/// Numbered frames in both directions while the process is killed again and again.
fn kill_under_traffic(front_end: fn(usize) -> GuestBuilder) {
    /// Most frames of a direction that are on their way.
    const WINDOW: u64 = 100;
    /// Most frames of a poll iteration, which may be lost or come twice.
    const BATCH: u64 = 256;
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    net(folder, 2);
    let mut running = up(folder);
    let mut guests = [0, 1].map(|index| connect(folder, index, front_end(index)));
    let [a, b] = &mut guests;
    announce(&mut [a, b]);
    let (mut sent, mut expected) = ([0_u64; 2], [0_u64; 2]);
    let (mut lost, mut doubled) = (0, 0);
    for round in 1..=kills() {
        let goal = expected.map(|number| number + 2000);
        while expected[0] < goal[0] || expected[1] < goal[1] {
            for side in [0, 1] {
                if sent[side] < expected[1 - side] + WINDOW {
                    match guests[side].send(&frame(mac(side), mac(1 - side), 200, sent[side])) {
                        Ok(_) => sent[side] += 1,
                        Err(GuestError::NoSendBuffer(_)) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
                while let Some(frame) = guests[side].try_receive().unwrap() {
                    take(&frame.bytes, side, &mut expected[side], (&mut lost, &mut doubled));
                }
            }
        }
        crash(folder, &mut running);
        guests.iter_mut().for_each(|guest| guest.reconnect().unwrap());
        // A chain that was completed twice, or never, ends this with an error.
        for side in [0, 1] {
            guests[side].wait_sent(TIMEOUT).unwrap();
            while let Some(frame) = guests[side].try_receive().unwrap() {
                take(&frame.bytes, side, &mut expected[side], (&mut lost, &mut doubled));
            }
            // The rest of the window is lost.
            let missing = sent[1 - side] - expected[side];
            (lost, expected[side]) = (lost + missing, sent[1 - side]);
        }
        assert!(lost + doubled <= 2 * BATCH * round, "{lost} frames lost, {doubled} twice after {round} kills");
    }
    println!("{} kills: {lost} frames lost, {doubled} twice, of {}", kills(), sent[0] + sent[1]);
}

/// Takes a frame that has arrived at `side`.
fn take(bytes: &[u8], side: usize, expected: &mut u64, (lost, doubled): (&mut u64, &mut u64)) {
    let number = u64::from_be_bytes(bytes[14..22].try_into().unwrap());
    assert_eq!(bytes, frame(mac(1 - side), mac(side), 200, number));
    if number < *expected {
        *doubled += 1;
    } else {
        *lost += number - *expected;
        *expected = number + 1;
    }
}
