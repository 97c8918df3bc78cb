//! Faults that an operator plants on a live network are named by one command each, and an operator's questions are answered by one
//! command each.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::command::{Running, memlane, write};
use crate::common::{BROADCAST, TIMEOUT, frame, in_namespaces, mac};
use crate::front_ends::{NOWHERE, kick, send, tell, tell_addresses};
use memlane::control::packet::{PacketEnd, PacketWords};
use memlane::frame::MacAddress;
use memlane_rig::frontend::{features, wire};
use memlane_rig::guest::{GuestBuilder, ReceiveBuffers, ToyGuest};
use memlane_rig::memory::MemoryPlan;
use vhost::vhost_user::message::FrontendReq as Request;

/// Guests named, of the faults planted.
const LEAST_NAMED: usize = 21;
/// Answers, of the questions asked.
const LEAST_ANSWERED: usize = 20;

/// A network of two guests' ports, a and b, that runs in a folder of its own.
struct Live {
    folder: tempfile::TempDir,
    running: Running,
    guests: Vec<ToyGuest>,
    streams: Vec<UnixStream>,
}

const A: &str = "mac = \"02:00:00:00:00:00\"\naddresses = [\"10.0.0.1\"]\n";
const B: &str = "mac = \"02:00:00:00:00:01\"\naddresses = [\"10.0.0.2\"]\n";

impl Live {
    /// With these keys of the ports, and `more` in the file.
    fn new(a: &str, b: &str, more: &str) -> Self {
        let port = |name: &str, keys: &str| format!("[[port]]\nname = \"{name}\"\nvhost-user = \"{name}.sock\"\n{keys}");
        Self::of(&format!("{}{}{more}", port("a", a), port("b", b)))
    }

    fn of(file: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), "net.toml", file);
        let mut command = memlane(folder.path(), &["up", "net.toml", "--state", "net.state", "--sandbox", "none"]);
        command.stderr(Stdio::null());
        let running = Running::start(command);
        Self { folder, running, guests: Vec::new(), streams: Vec::new() }
    }

    fn builder(index: usize) -> GuestBuilder {
        ToyGuest::builder().mac(mac(index)).timeout(TIMEOUT).memory(MemoryPlan::new(64 << 20))
    }

    fn socket(&self, index: usize) -> std::path::PathBuf {
        self.folder.path().join(["a.sock", "b.sock"][index])
    }

    /// A guest at port a (0) or b (1).
    fn guest(&mut self, index: usize) -> &mut ToyGuest {
        self.guest_like(index, Self::builder(index))
    }

    fn guest_like(&mut self, index: usize, builder: GuestBuilder) -> &mut ToyGuest {
        self.guests.push(builder.connect(self.socket(index)).unwrap());
        self.guests.last_mut().unwrap()
    }

    /// Guests at both ports, the first of which is returned.
    fn both(&mut self) -> &mut ToyGuest {
        self.guest(0);
        self.guest(1);
        &mut self.guests[0]
    }

    /// Both outputs of a command, in words with one space between them.
    fn says(&self, arguments: &[&str]) -> String {
        says(self.folder.path(), arguments)
    }

    /// Whether the command says all of these words soon.
    fn names(&self, arguments: &[&str], wanted: &[&str]) -> Result<(), String> {
        let end = Instant::now() + TIMEOUT;
        loop {
            let said = self.says(arguments);
            if wanted.iter().all(|words| said.contains(words)) {
                return Ok(());
            }
            if Instant::now() > end {
                return Err(said);
            }
        }
    }
}

fn says(folder: &Path, arguments: &[&str]) -> String {
    let output = memlane(folder, arguments).output().unwrap();
    let text = [output.stdout, output.stderr].map(|part| String::from_utf8_lossy(&part).into_owned()).concat();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn ip(arguments: &str) {
    assert!(Command::new("ip").args(arguments.split(' ')).status().unwrap().success(), "ip {arguments}");
}

/// An ARP announcement (RFC 5227, section 3).
fn announcement(mac: [u8; 6], last: u8) -> Vec<u8> {
    let fixed = [0x08, 0x06, 0x00, 0x01, 0x08, 0x00, 6, 4, 0x00, 0x01];
    let mut frame = [&[0xff; 6][..], &mac, &fixed, &mac, &[10, 0, 0, last], &[0; 6], &[10, 0, 0, last]].concat();
    frame.resize(60, 0);
    frame
}

fn packet(words: &str) -> Vec<u8> {
    let end = |index: usize, last: u8| PacketEnd {
        mac: MacAddress::new(mac(index)),
        v4: Some(std::net::Ipv4Addr::new(10, 0, 0, last)),
        v6: None,
    };
    PacketWords::parse(words).unwrap().frame(end(0, 1), end(1, 2))
}

fn post(guest: &mut ToyGuest, frames: impl IntoIterator<Item = Vec<u8>>) {
    frames.into_iter().for_each(|frame| drop(guest.send(&frame)));
}

/// A fault, and the command that names it with its words.
type Fault = (&'static str, fn() -> Live, &'static [&'static str], &'static [&'static str]);

const WHY_A: &[&str] = &["why", "net.toml", "a"];
const WHY_B: &[&str] = &["why", "net.toml", "b"];

fn wrong_vlan() -> Live {
    let mut live = Live::new("", "", "");
    let mut tagged = frame(mac(1), BROADCAST, 60, 1);
    tagged[12..16].copy_from_slice(&[0x81, 0, 0, 30]);
    post(live.guest(0), [frame(mac(0), BROADCAST, 60, 1)]);
    post(live.guest(1), [tagged]);
    live
}

fn policy() -> Live {
    let mut live = Live::new(A, B, "[[policy]]\nfrom = \"a\"\nprotocol = \"icmp\"\naction = \"deny\"\n");
    post(live.both(), [packet("icmp")]);
    live
}

fn spoofed_arp() -> Live {
    let mut live = Live::new(&format!("{A}anti-spoof = \"all\"\n"), B, "");
    post(live.both(), [announcement(mac(0), 9)]);
    live
}

fn link_loss() -> Live {
    let mut live = Live::new(A, &format!("{B}link = {{ loss = \"100%\" }}\n"), "");
    post(live.both(), (0..5).map(|number| frame(mac(0), mac(1), 60, number)));
    live
}

fn second_front_end() -> Live {
    let mut live = Live::new(A, B, "");
    live.both();
    live.streams.push(UnixStream::connect(live.socket(0)).unwrap());
    live
}

fn no_shared_memory(started: impl Fn(&mut ToyGuest)) -> Live {
    let mut live = Live::new(A, B, "");
    let guest = live.guest_like(0, Live::builder(0).started(false));
    let features = guest.features();
    guest.frontend().unwrap().set_features(features).unwrap();
    started(guest);
    live
}

fn memory_not_shared() -> Live {
    no_shared_memory(|guest| {
        for ring in [0, 1] {
            tell(guest, Request::SET_VRING_NUM, ring, 256);
            tell_addresses(guest, ring, NOWHERE);
            kick(guest, ring);
            tell(guest, Request::SET_VRING_ENABLE, ring, 1);
        }
    })
}

/// VHOST_IOTLB_UPDATE of a page, for reading and writing.
fn viommu() -> Live {
    let mut live = Live::new(A, B, "");
    let guest = live.guest_like(0, Live::builder(0).with(features::ACCESS_PLATFORM));
    let entry = [0x1000_u64, 0x1000, 0x7000_0000, 0x0203].map(u64::to_ne_bytes).concat();
    send(guest, Request::IOTLB_MSG, wire::VERSION, &entry, &[]);
    live
}

fn same_mac_twice() -> Live {
    let mut live = Live::new("", "", "[[port]]\nname = \"c\"\nnull = true\n");
    live.both();
    for number in 0..60 {
        post(&mut live.guests[number % 2], [frame(mac(7), BROADCAST, 60, number as u64)]);
        std::thread::sleep(std::time::Duration::from_millis(3));
    }
    live
}

fn same_ip_twice() -> Live {
    let mut live = Live::new("", "", "");
    live.both();
    for _ in 0..3 {
        (0..2).for_each(|index| post(&mut live.guests[index], [announcement(mac(index), 9)]));
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    live
}

fn nic(file: &str, command: &str) -> Live {
    ip("link add nic0 type veth peer name nic1");
    ip("link set nic0 up");
    ip("link set nic1 up");
    let live = Live::of(file);
    ip(command);
    live
}

const ON_NIC: &str = "[[segment]]\nname = \"lan\"\nnic = \"nic0\"\n[[port]]\nname = \"a\"\nvhost-user = \"a.sock\"\n";

const FAULTS: [Fault; 22] = [
    ("wrong VLAN", wrong_vlan, WHY_B, &["in VLAN 30"]),
    ("alone on its segment", || Live::new(A, "segment = \"apart\"\n", ""), WHY_B, &["the only port of segment apart"]),
    ("policy", policy, WHY_A, &["policy-denied"]),
    ("spoofed ARP", spoofed_arp, WHY_A, &["spoofed-arp"]),
    ("link loss", link_loss, WHY_B, &["link-loss"]),
    ("second front end", second_front_end, WHY_A, &["refused 1 connection of other front ends"]),
    ("port disabled", || Live::new(A, &format!("{B}enabled = false\n"), ""), WHY_B, &["it is disabled. Enable it"]),
    ("memory not shared", memory_not_shared, WHY_A, &["passed no guest memory", "share=on"]),
    ("vIOMMU", viommu, WHY_A, &["vIOMMU"]),
    (
        "a pinned MAC used elsewhere",
        || {
            let mut live = Live::new(A, "", "");
            live.both();
            post(&mut live.guests[1], [frame(mac(0), BROADCAST, 60, 1)]);
            live
        },
        WHY_B,
        &["bad-source", "address of its own"],
    ),
    ("the same MAC twice", same_mac_twice, WHY_A, &["02:00:00:00:00:07 moves between ports"]),
    (
        "receive limit",
        || {
            let mut live = Live::new(A, &format!("{B}receive = \"1pps\"\n"), "");
            post(live.both(), (0..200).map(|number| frame(mac(0), mac(1), 60, number)));
            live
        },
        WHY_B,
        &["its receive limit of 1pps"],
    ),
    ("NIC gone", || nic(ON_NIC, "link del nic0"), &["status", "net.toml"], &["NIC nic0", "cannot be used"]),
    ("the same IP twice", same_ip_twice, WHY_A, &["10.0.0.9", "claim"]),
    ("mixed MTU", || Live::new("mtu = 9000\n", B, ""), WHY_A, &["its mtu is 9000, and that of b is 1500"]),
    (
        "driver not loaded",
        || {
            let mut live = Live::new(A, B, "");
            live.streams.push(UnixStream::connect(live.socket(0)).unwrap());
            live
        },
        WHY_A,
        &["no virtqueue has started"],
    ),
    ("VMM gone", || Live::new(A, B, ""), WHY_A, &["no front end is connected"]),
    (
        "guest's interface down",
        || {
            let mut live = Live::new(A, B, "");
            live.guest_like(0, Live::builder(0).receive_buffers(ReceiveBuffers { count: Some(0), ..ReceiveBuffers::SMALL }));
            live
        },
        WHY_A,
        &["its interface is down", "ip link set"],
    ),
    (
        "libvirt-qemu not in the group",
        || Live::new(A, "access = { group = \"vms\" }\n", ""),
        WHY_B,
        &["libvirt-qemu", "not in the group vms: usermod -aG vms libvirt-qemu"],
    ),
    (
        "a hung guest",
        || {
            let mut live = Live::new(A, B, "");
            post(live.both(), [frame(mac(0), mac(1), 60, 1)]);
            live
        },
        &["why", "net.toml"],
        &["b: its guest was interrupted, and has not looked at 1 received frames"],
    ),
    (
        "a paused guest",
        || {
            let mut live = Live::new(A, B, "");
            live.both().stop().unwrap();
            live
        },
        WHY_A,
        &["its guest is paused", "Resume it"],
    ),
    ("NIC without carrier", || nic(ON_NIC, "link set nic1 down"), WHY_A, &["NIC nic0 is down or has no carrier"]),
];

/// Users and groups of this test's machine: QEMU's user is in no group of the sockets.
fn set_users() {
    let folder = tempfile::tempdir().unwrap().keep();
    for (name, text) in [
        ("passwd", "root:x:0:0:root:/root:/bin/sh\nlibvirt-qemu:x:64055:64055::/:/bin/false\n"),
        ("group", "vms:x:0:\nroot:x:0:\nkvm:x:64055:\n"),
    ] {
        let path = write(&folder, name, text);
        let mounted = Command::new("mount").args(["--bind".as_ref(), path.as_os_str(), format!("/etc/{name}").as_ref()]).status();
        assert!(mounted.unwrap().success(), "mount --bind");
    }
}

#[test]
fn planted_faults_are_named_by_one_command_each() {
    in_namespaces(&["--net", "--mount"], "faults::planted_faults_are_named_by_one_command_each", || {
        set_users();
        let mut unnamed = Vec::new();
        for (fault, plant, command, wanted) in FAULTS {
            let live = plant();
            if let Err(said) = live.names(command, wanted) {
                unnamed.push(format!("{fault}: `memlane {}` says: {said}", command.join(" ")));
            }
            let remedies = live.says(command);
            assert!(!remedies.contains("restart the guest"), "{fault}: {remedies}");
        }
        println!("{} of {} named", FAULTS.len() - unnamed.len(), FAULTS.len());
        assert!(FAULTS.len() - unnamed.len() >= LEAST_NAMED, "{unnamed:#?}");
    });
}

/// A question, the command that answers it, and words of the answer.
type Question = (&'static str, &'static [&'static str], &'static [&'static str]);

const QUESTIONS: [Question; 18] = [
    ("who sends most?", &["top", "net.toml", "--once", "--sort", "tx"], &["a"]),
    ("who drops, and why?", &["status", "net.toml"], &["a dropped: same-port"]),
    ("did the guest boot?", &["show", "net.toml", "a"], &["state running"]),
    ("is it healthy?", &["status", "net.toml", "--check"], &["network net is ready", "workers answer"]),
    ("which networks run?", &["list"], &["net.toml"]),
    ("what after a reboot, and does the network differ from the file?", &["reload", "net.toml", "--dry-run"], &["late"]),
    ("which port has this IP address?", &["addresses", "net.toml"], &["10.0.0.2", "b"]),
    ("what does it cost?", &["status", "net.toml"], &["CPU s", "guest memory"]),
    ("limit it", &["set", "net.toml", "a", "--transmit", "100Mbit"], &["transmit 100Mbit"]),
    ("who is attached?", &["ls", "net.toml"], &["a lan", "b lan", "late lan"]),
    ("which rules apply?", &["why", "net.toml", "a", "--to", "b", "--packet", "tcp,dst=80"], &["meet the rule", "in line"]),
    ("why can A not reach B?", &["why", "net.toml", "a", "--to", "b", "--packet", "icmp"], &["b takes no frames at this moment"]),
    (
        "who changed this, and when?",
        &["events", "net.toml"],
        &["a: changed: transmit from null to", "by user root (uid 0), program memlane (pid"],
    ),
    ("who floods?", &["why", "net.toml"], &["a: ", "dropped as storm"]),
    ("which of the guests is stuck?", &["why", "net.toml"], &["b: its guest was interrupted, and has not looked at"]),
    ("what limit would this guest need?", &["ls", "net.toml", "--rates"], &["bit/s", "a lan"]),
    ("capture it", &["capture", "net.toml", "a", "-c", "1", "-w", "a.pcapng"], &[]),
    ("stop it", &["down", "net.toml"], &["net: ended"]),
];

#[test]
fn an_operators_questions_are_answered_by_one_command_each() {
    in_namespaces(&["--net", "--mount"], "faults::an_operators_questions_are_answered_by_one_command_each", || {
        set_users();
        let rules = "[[policy]]\nto = \"b\"\nprotocol = \"tcp\"\naction = \"allow\"\n[[policy]]\nto = \"b\"\nprotocol = \"udp\"\naction = \"deny\"\n";
        let mut live = Live::new(&format!("{A}storm = 10\n"), B, rules);
        live.both();
        assert!(live.says(&["attach", "net.toml", "late", "--null"]).contains("late"));
        let state = std::fs::read_to_string(live.folder.path().join("net.state")).unwrap();
        // Two more: the state file is text, and the upgrade below.
        let mut answered = usize::from(state.contains("late"));
        let [mut a, b] = <[ToyGuest; 2]>::try_from(std::mem::take(&mut live.guests)).unwrap_or_else(|_| panic!("two guests"));
        post(&mut a, [frame(mac(0), mac(1), 60, 1), frame(mac(0), mac(0), 60, 1)]);
        post(&mut a, (0..200).map(|number| frame(mac(0), BROADCAST, 60, number)));
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        // Frames for the capture and the rates, now and then.
        let traffic = std::thread::spawn(move || {
            let _b = b;
            while stopped
                .recv_timeout(std::time::Duration::from_millis(50))
                .is_err_and(|error| error == std::sync::mpsc::RecvTimeoutError::Timeout)
            {
                post(&mut a, (0..20).map(|number| frame(mac(0), BROADCAST, 60, number)));
            }
        });
        let mut failed = Vec::new();
        for (question, command, wanted) in QUESTIONS {
            if command[0] == "down" {
                let other = Running::start(memlane(
                    live.folder.path(),
                    &["up", "net.toml", "--state", "net.state", "--sandbox", "none", "--takeover"],
                ));
                let mut before = std::mem::replace(&mut live.running, other);
                answered += usize::from(before.0.wait().unwrap().success());
            }
            match live.names(command, wanted) {
                Ok(()) => answered += 1,
                Err(said) => failed.push(format!("{question} `memlane {}` says: {said}", command.join(" "))),
            }
        }
        drop(stop);
        traffic.join().unwrap();
        println!("{answered} of {} answered", QUESTIONS.len() + 3);
        // The reload without changes answers two questions: the ports after a reboot, and the differences to the file.
        assert!(answered + 1 >= LEAST_ANSWERED, "{failed:#?}");
    });
}
