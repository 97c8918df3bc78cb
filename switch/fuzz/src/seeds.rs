//! Inputs that fuzzing begins with: for each target a few that reach far, by name. `cargo run --bin make-seeds` writes them to
//! `seeds/`.

use memlane::frame::START;
use memlane_rig::frames::{Host, Packet};
use memlane_rig::frontend::features;

use super::device::acts;
use super::messages::{AREAS, MEMORY, NEXT_RING, RING, Utterance};

/// Target, name and bytes of a seed.
pub type Seed = (&'static str, String, Vec<u8>);

/// Bodies of messages of a takeover.
const TAKEOVER: [(&str, &str); 6] = [
    ("hello", r#"{"hello":{"state":"/var/lib/memlane/net.state"}}"#),
    ("prepared", r#"{"prepared":{}}"#),
    (
        "go",
        r#"{"go":{"records":[{"totals":{"transmit-frames":7,"drops":{"runt":1}},"quarantines":1,"quarantined":"a fault","leases":[{"segment":"lan","port":"a","address":"10.0.0.7","mac":"02:00:00:00:00:01","source":"dhcp"}]}],"events":[{"sequence":8,"time":1000000001,"event":{"event":"port-enabled","port":"a"}}],"next-event":9}}"#,
    ),
    ("failed", r#"{"failed":"no descriptors are left"}"#),
    ("an-unknown-key", r#"{"hello":{"state":null,"later":1}}"#),
    (
        "a-description",
        r#"{"description":{"file-ports":[],"file-uplinks":[],"uplinks":[{"config":{"vxlan":{"segment":"lan","vni":100,"local":"10.0.0.1","udp-port":4789,"netns":null,"mtu":1400,"tap":"t","bridge":"b","vxlan":"v"}},"mtu":1400,"made":[["t",7]],"may-tell":true}],"ports":[{"entry":{"name":"a","vhost-user":"/run/a"},"origin":{"by":"libvirt","label":"a"},"files":4,"listener":{"socket":3,"file":[1,2]},"connection":{"socket":0,"mac":[2,0,0,0,0,1],"mtu":null,"protocol-offer":1,"messages":[{"request":3},{"request":16,"payload":[1]},{"request":2,"payload":[4294967296]},{"request":37,"payload":[0,0,4096,0,0],"file":1},{"request":8,"payload":[1099511627777]},{"request":9,"payload":[1,0,8192,4096,0]},{"request":12,"payload":[1],"file":2}],"active-pairs":1,"part":[1,2],"part-files":[]},"tap":null}],"addresses":[{"port":0,"address":[2,0,0,0,0,1],"vlan":0}],"events":[{"sequence":7,"time":1000000000,"event":{"event":"port-detached","port":"a"}}],"sockets":{"control":{"socket":0,"file":null},"metrics":null,"web":["127.0.0.1:1",1],"state":null},"service":{"socket":null,"watchdog":null}}}"#,
    ),
];

/// All seeds.
pub fn seeds() -> Vec<Seed> {
    let mut seeds = Vec::new();
    let mut add = |target, list: Vec<(String, Vec<u8>)>| seeds.extend(list.into_iter().map(|(name, bytes)| (target, name, bytes)));
    add("addresses", named(resolutions()));
    add("config", named(CONFIG.map(|(name, text)| (name, text.as_bytes().to_vec()))));
    add("control", named(CONTROL.map(|(name, text)| (name, text.as_bytes().to_vec()))));
    add("filter", filters());
    add("frame", frames());
    add("pcap", named(captures()));
    add("multicast", named(super::multicast::seeds()));
    add("names", named(super::names::seeds()));
    add("network", super::network::seeds());
    add("recording", named(super::recording::seeds()));
    add("resolver", named(super::resolver::seeds()));
    add("offload", offloads());
    add("messages", conversations());
    add("device", scenes());
    add("stream", streams());
    add("takeover", named(TAKEOVER.map(|(name, text)| (name, text.as_bytes().to_vec()))));
    add("twin", named(super::twin::seeds()));
    add("xen", rings());
    seeds
}

fn named<const N: usize>(list: [(&str, Vec<u8>); N]) -> Vec<(String, Vec<u8>)> {
    list.into_iter().map(|(name, bytes)| (name.to_owned(), bytes)).collect()
}

/// Guests that ask, claim and probe; see the target.
fn resolutions() -> [(&'static str, Vec<u8>); 7] {
    const WAIT: u8 = 4;
    let say = |port: u8, body: Vec<u8>| [&[20 + port, body.len() as u8][..], &body].concat();
    let arp = |port: u8, operation: u8, own: u8, target: u8| {
        let sender = [&[2, 0, 0, 0, 0, port][..], &[10, 0, 0, own]].concat();
        say(port, [&[8, 6, 0, 1, 8, 0, 6, 4, 0, operation][..], &sender, &[0; 6], &[10, 0, 0, target]].concat())
    };
    let probe = |port: u8, target: u8| {
        say(port, [&[8, 6, 0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, port][..], &[0; 10], &[10, 0, 0, target]].concat())
    };
    // Of even length, so that its checksum is left to the other side.
    let nd = |port: u8, source: &[u8; 16], message: [u8; 8], target: u8, option: u8| {
        let ip = [&[0x86, 0xdd, 0x60, 0, 0, 0, 0, 32, 58, 255][..], source, &[0xff, 2], &[0; 13], &[1]].concat();
        let target = [&[0xfd][..], &[0; 14], &[target]].concat();
        say(port, [&ip[..], &message, &target, &[option, 1, 2, 0, 0, 0, 0, port]].concat())
    };
    let from = |last: u8| std::array::from_fn(|n| if n == 0 { 0xfd } else { u8::from(n == 15) * last });
    let solicit = [135, 0, 0, 0, 0, 0, 0, 0];
    [
        ("a-request-for-a-configured-address", arp(1, 1, 2, 1)),
        ("a-probe-for-a-configured-address", probe(1, 1)),
        ("a-request-for-a-claimed-address", [arp(1, 1, 2, 2), arp(2, 1, 3, 2)].concat()),
        ("a-move-and-a-dispute", [arp(1, 1, 9, 9), arp(2, 2, 9, 9), arp(1, 2, 9, 9), vec![WAIT, 0], arp(3, 1, 3, 9)].concat()),
        ("a-forged-configured-address", [arp(3, 2, 1, 1), arp(2, 1, 3, 1)].concat()),
        ("a-solicitation", nd(2, &from(2), solicit, 1, 1)),
        (
            "an-advertisement-and-a-solicitation",
            [nd(1, &from(2), [136, 0, 0, 0, 0xa0, 0, 0, 0], 2, 2), nd(2, &from(3), solicit, 2, 1)].concat(),
        ),
    ]
}

const CONFIG: [(&str, &str); 10] = [
    (
        "policy-rules",
        "[[policy]]\nfrom = \"front\"\nto = [\"db\", \"b\"]\nprotocol = \"tcp\"\nports = [22, \"8000-8099\"]\nestablished = true\naction = \"allow\"\n\
         [[policy]]\nprotocol = 47\naction = \"deny\"\n[[port]]\nname = \"db\"\nnull = true\ngroups = [\"front\"]\n",
    ),
    (
        "policy-rules-all-wrong",
        "[[policy]]\nfrom = []\nto = [\"a b\"]\nprotocol = \"icmp\"\nports = [\"9-8\", 70000]\nestablished = true\n[[policy]]\nprotocol = 256\nline = 3\n",
    ),
    ("smallest", "[[port]]\nname = \"a\"\nvhost-user = \"/run/a.sock\"\n"),
    (
        "everything",
        "name = \"net\"\nworkers = 2\ncpus = [0]\npoll = \"always\"\nin-order = true\ncontrol = \"/run/net.control\"\nstall-timeout-ms = 5\n\
         waiting-frames = 64\nage = 30\n[[port]]\nname = \"web\"\nvhost-user = \"/run/web.sock\"\nconnect = true\nsegment = \"dmz\"\n\
         mac = \"02:00:00:00:00:01\"\nmtu = 9000\nqueues = 4\n[[port]]\nname = \"host\"\ntap = \"tap0\"\nnetns = \"blue\"\n",
    ),
    (
        "everything-wrong",
        "workers = 0\npoll = 3\nage = -1\n[[port]]\nname = \"\"\nmac = \"01:00:00:00:00:00\"\nmtu = 1\nqueues = 99\n",
    ),
    (
        "shares-and-limits",
        "share = 0.25\n[[port]]\nname = \"a\"\ntap = \"t\"\nweight = 7\nstorm = 0\ntransmit = { rate = \"1.5Gbit\", packets = 1000, burst-ms = 5 }\n\
         receive = { rate = \"10Mbit\" }\n",
    ),
    ("a-share-that-is-no-number", "share = nan\n[[port]]\nname = \"a\"\ntap = \"t\"\n"),
    ("twice-the-same", "[[port]]\nname = \"a\"\ntap = \"t\"\n[[port]]\nname = \"a\"\ntap = \"t\"\n"),
    ("broken-syntax", "workers = \n[[port]\nname = 'a\n\"\"\""),
    ("ports-that-are-no-tables", "port = [1, {name = \"a\"}, [[]]]\n"),
];

/// Programs as compilers make them, and what breaks a rule, each with a frame.
fn filters() -> Vec<(String, Vec<u8>)> {
    let arp: &[Operation] = &[(0x28, 0, 0, 12), (0x15, 0, 1, 0x806), (6, 0, 0, 262_144), (6, 0, 0, 0)];
    let udp_port: &[Operation] = &[
        (0x28, 0, 0, 12),
        (0x15, 0, 8, 0x800),
        (0x30, 0, 0, 23),
        (0x15, 0, 6, 17),
        (0x28, 0, 0, 20),
        (0x45, 4, 0, 0x1fff),
        (0xb1, 0, 0, 14),
        (0x48, 0, 0, 16),
        (0x15, 0, 1, 53),
        (6, 0, 0, 262_144),
        (6, 0, 0, 0),
    ];
    let scratch: &[Operation] = &[
        (0x80, 0, 0, 0),
        (2, 0, 0, 3),
        (1, 0, 0, 7),
        (0x61, 0, 0, 3),
        (0x3c, 0, 0, 0),
        (0x87, 0, 0, 0),
        (0xa4, 0, 0, 9),
        (0x16, 0, 0, 0),
    ];
    let loops: &[Operation] = &[(5, 0, 0, u32::MAX), (6, 0, 0, 0)];
    let outside: &[Operation] = &[(0x20, 0, 0, 200), (0x40, 0, 0, u32::MAX), (6, 0, 0, 1)];
    let list =
        [("arp", arp), ("udp-port", udp_port), ("scratch-memory", scratch), ("a-jump-back", loops), ("outside-the-frame", outside)];
    let bytes = |&(code, jt, jf, k): &Operation| [code.to_le_bytes().as_slice(), &[jt, jf], &k.to_le_bytes()].concat();
    let seed = |program: &[Operation]| {
        let mut frame = [0; 60];
        frame[12..14].copy_from_slice(&[8, 0]);
        (frame[14], frame[23], frame[37]) = (0x45, 17, 53);
        [[program.len() as u8, 20].as_slice(), &program.iter().flat_map(bytes).collect::<Vec<u8>>(), &frame].concat()
    };
    list.into_iter().map(|(name, program)| (name.to_owned(), seed(program))).collect()
}

/// Capture files of both formats and byte orders, and files that break them.
fn captures() -> [(&'static str, Vec<u8>); 7] {
    let frame = [7; 60];
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let pcap = |link: u32| [words(&[0xa1b2_c3d4, 0x0004_0002, 0, 0, 65_535, link, 1, 2, 60, 60]), frame.to_vec()].concat();
    let big_endian = {
        let head = [0xa1b2_3c4d_u32, 0x0002_0004, 0, 0, 65_535, 1, 1, 2, 60, 1514];
        [head.iter().flat_map(|word| word.to_be_bytes()).collect::<Vec<u8>>(), frame.to_vec()].concat()
    };
    let block = |kind: u32, body: &[u8]| {
        let length = 12 + body.len() as u32;
        [&words(&[kind, length]), body, &length.to_le_bytes()].concat()
    };
    let section = block(0x0a0d_0d0a, &words(&[0x1a2b_3c4d, 1, u32::MAX, u32::MAX]));
    let interface = block(1, &words(&[1, 65_535]));
    let packet = |interface: u32| block(6, &[words(&[interface, 0, 0, 60, 60]), frame.to_vec()].concat());
    let simple = block(3, &[words(&[60]), frame.to_vec()].concat());
    let pcapng = [section.clone(), interface.clone(), packet(0), simple].concat();
    let cut = pcapng[..pcapng.len() - 30].to_vec();
    let endless = [section.clone(), words(&[6, u32::MAX - 3])].concat();
    [
        ("pcap", pcap(1)),
        ("pcap-big-endian", big_endian),
        ("pcap-of-another-link", pcap(113)),
        ("pcapng", pcapng),
        ("pcapng-cut-off", cut),
        ("pcapng-no-such-interface", [section, interface, packet(9)].concat()),
        ("pcapng-endless-block", endless),
    ]
}

/// An instruction of classic BPF.
type Operation = (u16, u8, u8, u32);

const CONTROL: [(&str, &str); 11] = [
    ("smallest", r#"{"name":"a","null":true}"#),
    (
        "every-key",
        r#"{"name":"x","vhost-user":"x.sock","access":{"group":"7","mode":"0660"},"connect":false,"segment":"s","enabled":false,"mac":"02:00:00:00:00:0a",
            "mtu":9000,"receive-offloads":false,"queues":2,"weight":3,"transmit":{"rate":"1Gbit","packets":7,"burst-ms":3},"receive":{},"storm":0,
            "link":{"delay":"10ms","jitter":"1ms","loss":0.5,"gilbert-elliott":{"p":0.1,"r":0.5,"bad":1.0,"good":0.0},"rate":"1Mbit","queue":9}}"#,
    ),
    ("what-can-change", r#"{"weight":2,"transmit":{"packets":9},"link":{},"mac":null,"mtu":null,"enabled":false,"storm":null}"#),
    ("what-cannot-change", r#"{"queues":2,"tap":null,"name":"b","colour":1,"weight":0}"#),
    ("the-others-address", r#"{"mac":"02:00:00:00:00:01","mtu":68}"#),
    ("nulls-everywhere", r#"{"name":null,"transmit":{"rate":null},"passt":[null],"link":null}"#),
    ("numbers-beyond", r#"{"storm":18446744073709551615,"weight":-1,"mtu":1e400,"queues":1.5}"#),
    (
        "a-whole-network",
        r#"{"workers":1,"port":[{"name":"a","vhost-user":"/run/a.sock","weight":2},{"name":"c","passt":["-t","80"]}]}"#,
    ),
    ("a-whole-network-wrong", r#"{"workers":0,"port":[{"name":"a"},7,{"name":"a","tap":"t"},{"name":"a","tap":"t"}]}"#),
    (
        "a-state",
        "removed = [\"b\"]\n[[change]]\nname = \"a\"\nunset = [\"mac\"]\nweight = 3\n[[port]]\nname = \"c\"\nnull = true\n",
    ),
    (
        "a-state-that-does-not-fit",
        "[[port]]\nname = \"c\"\nvhost-user = \"/run/a.sock\"\n[[change]]\nname = \"a\"\nunset = [\"vhost-user\"]\n",
    ),
];

/// Every kind of packet with headers that are easy to get wrong.
fn packets(payload: usize) -> Vec<(String, Packet)> {
    let payload: Vec<u8> = (0..payload).map(|n| n as u8).collect();
    let mut packets = Vec::new();
    for (family, from, to) in [("v4", Host::v4(1), Host::v4(2)), ("v6", Host::v6(1), Host::v6(2))] {
        let tcp = Packet::tcp(from, to, u32::MAX - 100, payload.clone());
        let all_flags = tcp.clone().with_tcp(|tcp| (tcp.cwr, tcp.ece, tcp.fin, tcp.psh) = (true, true, true, true));
        packets.push((format!("tcp-{family}"), tcp.clone()));
        packets.push((format!("tcp-{family}-cwr-fin-psh"), all_flags));
        packets.push((format!("tcp-{family}-tagged"), tcp.tagged(5)));
        packets.push((format!("udp-{family}"), Packet::udp(from, to, payload.clone())));
        packets.push((format!("udp-{family}-tagged"), Packet::udp(from, to, payload.clone()).tagged(7)));
    }
    packets
}

/// Packets with headers that are longer than usual, some longer than the headers copied on transmit.
fn long_packets(payload: usize) -> Vec<(String, Packet)> {
    let tcp = |from, to| Packet::tcp(from, to, 1, vec![3; payload]);
    let (v4, v6) = (tcp(Host::v4(1), Host::v4(2)), tcp(Host::v6(1), Host::v6(2)));
    let last = "fd00::99".parse().expect("an address");
    let packets = [
        ("tcp-v4-options", v4.with_options(40)),
        ("tcp-v6-tagged-twice", v6.clone().double_tagged(5, 6)),
        ("tcp-v6-routed", v6.clone().routed(2, last)),
        ("tcp-v6-routed-far", v6.clone().routed(12, last)),
        ("tcp-v6-hop-by-hop-72", v6.clone().with_hop_by_hop(72)),
        ("tcp-v6-all-extensions", v6.with_hop_by_hop(2048).with_destination_options(64).routed(9, last)),
        ("udp-v6-options-248", Packet::udp(Host::v6(1), Host::v6(2), vec![3; payload]).with_destination_options(248)),
    ];
    packets.map(|(name, packet)| (name.to_owned(), packet)).into()
}

/// Rules of the target `frame`: TCP to ports from 80 on, established TCP, UDP to ports from 53 on, and nothing else.
const POLICY: [u8; 8] = [0x15, 80, 0x19, 0, 0x16, 53, 0, 0];

fn frames() -> Vec<(String, Vec<u8>)> {
    let long = long_packets(40).into_iter().map(|(name, packet)| (name, packet.frame()));
    let complete = packets(40).into_iter().map(|(name, packet)| (name, packet.frame()));
    let cut = packets(40).into_iter().map(|(name, packet)| (format!("{name}-cut-in-the-transport-header"), cut(&packet)));
    let mut extensions = packets(0)[5].1.frame();
    // Hop-by-hop, routing and destination options of 8, 24 and 16 bytes, then TCP.
    extensions[20] = 0;
    extensions.splice(54..54, [[43, 0], [60, 2], [6, 1]].into_iter().flat_map(|[next, length]| option(next, length)));
    let tags = [[0x88, 0xa8, 0, 1], [0x81, 0, 0, 2], [0x81, 0, 0, 3]].concat();
    let more = [
        ("tcp-v6-behind-three-extensions", extensions),
        ("three-tags", [vec![2; 12], tags, vec![8, 0, 0x45]].concat()),
        ("an-address", b"02:00:00:0A:0b:ff".to_vec()),
        ("an-address-with-a-sign", b"02:00:00:0A:0b:+f".to_vec()),
        ("a-fragment", fragment()),
        ("dhcp-acknowledgement", acknowledgement()),
        ("empty", Vec::new()),
        ("policy-and-tcp", [&POLICY[..], &packets(40)[0].1.frame()].concat()),
        ("policy-and-tcp-v6", [&POLICY[..], &packets(40)[5].1.frame()].concat()),
        ("policy-and-a-fragment", [&POLICY[..], &fragment()].concat()),
        // MTU and segment size, then the packet.
        ("too-long-tcp", [&[0xaa, 5, 0, 0][..], &packets(40)[0].1.frame()].concat()),
        ("too-long-tcp-v6", [&[0, 4, 0, 0][..], &packets(40)[5].1.frame()].concat()),
    ];
    complete.chain(long).chain(cut).chain(named(more)).collect()
}

fn cut(packet: &Packet) -> Vec<u8> {
    packet.frame()[..packet.transport_offset() + 3].to_vec()
}

fn option(next: u8, length: u8) -> Vec<u8> {
    let mut bytes = vec![0; 8 + 8 * usize::from(length)];
    (bytes[0], bytes[1]) = (next, length);
    bytes
}

fn fragment() -> Vec<u8> {
    let mut frame = packets(40)[0].1.frame();
    frame[20] |= 0x20;
    frame
}

/// A DHCP server's acknowledgement of a lease for an hour (RFC 2131, section 4.3.1).
fn acknowledgement() -> Vec<u8> {
    let mut frame = super::names::dhcp(1, &[53, 1, 5, 51, 4, 0, 0, 14, 16]);
    frame[34..38].copy_from_slice(&[0, 67, 0, 68]);
    frame[42] = 2;
    frame[58..62].copy_from_slice(&[10, 0, 0, 7]);
    frame
}

/// The size of crumbs, then frames behind their lengths.
fn stream(crumb: u8, frames: &[&[u8]]) -> Vec<u8> {
    let behind_lengths = frames.iter().map(|frame| [&(frame.len() as u32).to_be_bytes(), *frame].concat());
    [vec![crumb], behind_lengths.collect::<Vec<_>>().concat()].concat()
}

fn streams() -> Vec<(String, Vec<u8>)> {
    let long = vec![7; 3000];
    let frames: [&[u8]; 4] = [&[1; 60], &[], &[2; 13], &long];
    let mut cut = stream(90, &frames);
    cut.truncate(1000);
    let too_long = [stream(30, &frames[..2]), vec![0, 1, 0, 16], vec![0; 30]].concat();
    let longest = [stream(255, &frames[..2]), vec![0, 1, 0, 21], vec![0; 30]].concat();
    named([
        ("byte-by-byte", stream(0, &frames)),
        ("all-at-once", stream(255, &[&long[..]; 3])),
        ("cut-in-a-frame", cut),
        ("a-frame-that-is-too-long", too_long),
        ("one-of-the-longest-that-never-ends", longest),
        ("nothing", vec![0]),
    ])
}

/// A transmit request, see `xen/include/public/io/netif.h`.
fn request(offset: u16, size: u16, flags: u16, id: u16) -> Vec<u8> {
    let reference = 9 + u32::from(id);
    [&reference.to_le_bytes()[..], &offset.to_le_bytes(), &flags.to_le_bytes(), &id.to_le_bytes(), &size.to_le_bytes()].concat()
}

/// An extra in a request's place.
fn extra(kind: u8, more: u8, gso_size: u16, gso_kind: u8) -> Vec<u8> {
    [&[kind, more][..], &gso_size.to_le_bytes(), &[gso_kind, 0, 0, 0, 0, 0, 0, 0]].concat()
}

/// Transmit rings; the flags are 1 for a checksum left to others, 4 for more parts, 8 for an extra.
fn rings() -> Vec<(String, Vec<u8>)> {
    let small = request(0, 60, 0, 1);
    let large = [request(10, 5000, 13, 1), extra(1, 0, 1448, 1), request(0, 4096, 4, 2), request(100, 838, 0, 3)].concat();
    named([
        ("small-frames", small.repeat(40)),
        ("large-frames", large.repeat(9)),
        ("all-extras", [request(0, 60, 8, 0), extra(2, 1, 0, 0), extra(4, 1, 0, 0), extra(1, 0, 1, 2)].concat()),
        ("extras-without-end", [request(0, 60, 8, 0), extra(2, 1, 0, 0).repeat(200)].concat()),
        ("parts-without-end", request(0, 60000, 4, 0).repeat(200)),
        ("parts-longer-than-the-whole", [request(0, 100, 4, 0), request(0, 101, 0, 1)].concat()),
        ("a-part-that-crosses-its-page", [small.clone(), request(4000, 97, 0, 2)].concat()),
        ("a-frame-that-is-cut-off", [small, large[..30].to_vec()].concat()),
        ("a-first-part-of-nothing", [request(4095, 100, 4, 0), request(0, 100, 0, 1)].concat()),
        ("an-unknown-segmentation", [request(0, 60, 8, 0), extra(1, 0, 1448, 3)].concat()),
    ])
}

/// Agreements, layout and tail before header and frame, see [`super::offload::run`].
fn offload(receiver: u8, shape: u8, more: u16, header: [u8; 12], frame: &[u8]) -> Vec<u8> {
    let [low, high] = more.to_le_bytes();
    [&[0xff, receiver, shape, low, high], &header[..], frame].concat()
}

fn offloads() -> Vec<(String, Vec<u8>)> {
    let mut seeds = Vec::new();
    for (name, packet) in packets(60).into_iter().chain(long_packets(60)) {
        let (partial, frame) = packet.partial();
        let (gso, _) = packet.gso(1000);
        seeds.push((format!("checksum-{name}"), offload(0, 0, 0, partial.bytes(), &frame)));
        seeds.push((format!("segments-{name}"), offload(0, 0, 5000, gso.bytes(), &frame)));
        seeds.push((format!("partial-segments-{name}-in-pieces"), offload(1, 9, 5000, gso.bytes(), &frame)));
        seeds.push((format!("unsegmented-{name}"), offload(0xff, 2, 5000, gso.bytes(), &frame)));
    }
    let (name, packet) = packets(0).remove(0);
    let largest = u16::MAX - START as u16;
    seeds.push((format!("many-segments-{name}"), offload(0, 4, largest, packet.gso(48).0.bytes(), &packet.partial().1)));
    seeds.push((
        format!("segments-too-long-for-ip-{name}"),
        offload(0, 0, u16::MAX, packet.gso(u16::MAX).0.bytes(), &packet.partial().1),
    ));
    seeds
}

/// A message with a payload of 64-bit numbers.
fn say(request: u8, descriptors: u8, kind: u8, payload: &[u64]) -> Utterance {
    let payload = payload.iter().flat_map(|number| number.to_le_bytes()).collect();
    Utterance { request, flags: 9, descriptors, kind, lie: 0, payload }
}

/// Two 32-bit numbers as the one that they are together.
fn two(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

const USER: u64 = 0x1000_0000;

fn memory_table() -> Utterance {
    say(5, 1, 0, &[1, 0, MEMORY, USER, 0])
}

fn ring(index: u32, base: u32) -> Vec<Utterance> {
    let [descriptors, available, used] = AREAS.map(|area| USER + u64::from(index) * NEXT_RING + area);
    vec![
        say(8, 0, 0, &[two(index, RING.into())]),
        say(10, 0, 0, &[two(index, base)]),
        say(9, 0, 0, &[two(index, 0), descriptors, used, available, 0]),
        say(13, 1, 1, &[index.into()]),
        say(12, 1, 1, &[index.into()]),
        say(18, 0, 0, &[two(index, 1)]),
    ]
}

fn begin(features: u64) -> Vec<Utterance> {
    vec![
        say(1, 0, 0, &[]),
        say(15, 0, 0, &[]),
        say(16, 0, 0, &[features::usual_protocol().bits()]),
        say(17, 0, 0, &[]),
        say(3, 0, 0, &[]),
        say(1, 0, 0, &[]),
        say(2, 0, 0, &[features]),
    ]
}

fn script(list: &[Utterance]) -> Vec<u8> {
    list.iter().flat_map(Utterance::script).collect()
}

fn conversations() -> Vec<(String, Vec<u8>)> {
    let agreed = features::PLAIN | features::INDIRECT_DESC | features::EVENT_IDX;
    let started = [begin(agreed), vec![memory_table()], ring(0, 0), ring(1, 0)].concat();
    let then = |more: Vec<Utterance>| script(&[started.clone(), more].concat());
    let lie = Utterance { lie: 1, ..say(2, 0, 0, &[0]) };
    named([
        ("starts-two-rings-and-hangs-up", script(&started)),
        ("stops-its-rings", then(vec![say(11, 0, 0, &[two(0, 0)]), say(11, 0, 0, &[two(1, 0)])])),
        ("changes-memory-while-rings-run", then(vec![memory_table(), memory_table()])),
        (
            "adds-and-removes-regions",
            then(vec![
                say(36, 0, 0, &[]),
                say(37, 1, 0, &[0, 0x10_0000, 0x1000, 0x9000_0000, 0x1000]),
                say(38, 0, 0, &[0, 0x10_0000, 0x1000, 0x9000_0000, 0x1000]),
            ]),
        ),
        ("disables-a-ring-and-resets", then(vec![say(18, 0, 0, &[two(1, 0)]), say(34, 0, 0, &[]), say(4, 0, 0, &[])])),
        (
            "announces-mtu-and-status",
            then(vec![say(19, 0, 0, &[0x0605_0403_0202]), say(20, 0, 0, &[1500]), say(39, 0, 0, &[15]), say(40, 0, 0, &[])]),
        ),
        ("asks-for-the-configuration", script(&[begin(agreed), vec![say(24, 0, 0, &[two(0, 12), 0, 0])]].concat())),
        ("resumes-where-it-was", script(&[begin(agreed), vec![memory_table()], ring(1, 3), ring(0, 2)].concat())),
        (
            "resumes-where-it-cannot-have-been",
            script(&[begin(agreed), vec![memory_table()], ring(0, 0), ring(1, 0x400), vec![memory_table()]].concat()),
        ),
        ("speaks-before-features", script(&[ring(1, 0), vec![memory_table()]].concat())),
        ("offers-a-region-longer-than-its-file", script(&[begin(agreed), vec![say(5, 1, 5, &[1, 0, MEMORY, USER, 0])]].concat())),
        ("brings-far-too-many-descriptors", script(&[begin(agreed), vec![say(5, 33, 0, &[1, 0, MEMORY, USER, 0])]].concat())),
        ("lies-about-the-size", script(&[begin(agreed), vec![lie]].concat())),
        (
            "asks-for-what-was-not-offered",
            script(&[begin(u64::MAX), vec![say(31, 0, 0, &[4096, 0, 4]), say(6, 1, 0, &[4096, 0])]].concat()),
        ),
        (
            "kicks-with-a-pipe",
            script(&[begin(agreed), vec![say(12, 1, 2, &[1]), say(13, 1, 3, &[1]), say(14, 1, 2, &[1])]].concat()),
        ),
    ])
}

/// A frame of the hostile guest `from`, see [`acts::SEND`].
fn send(from: u8, layout: u8, header: [u8; 12], length: u16, frame: &[u8]) -> Vec<u8> {
    [&[acts::SEND, from, layout], &header[..], &length.to_le_bytes(), &[frame.len() as u8], frame].concat()
}

fn ethernet(to: [u8; 6], from: u8) -> Vec<u8> {
    [&to[..], &[2, 0, 0, 0, 1, from, 0x88, 0xb5], &[0x5a; 46]].concat()
}

#[expect(clippy::too_many_lines, reason = "a list of scenes")]
fn scenes() -> Vec<(String, Vec<u8>)> {
    const PLAIN: [u8; 12] = [0; 12];
    const EVERYBODY: [u8; 6] = [0xff; 6];
    const STEP: [u8; 2] = [acts::STEP, 3];
    const ROUND: [u8; 1] = [acts::ROUND];
    let post = |guest: u8, count: u8, length: u16| [&[acts::POST, guest, count], &length.to_le_bytes()[..]].concat();
    let restart = |ring: u8, options: u16| [&[acts::RESTART, ring], &options.to_le_bytes()[..], &[0, 0]].concat();
    let each_other = [[2, 0, 0, 0, 1, 0], [2, 0, 0, 0, 1, 1]];
    let tcp = packets(100)[0].1.clone();
    let (gso, large) = (tcp.gso(200).0.bytes(), tcp.partial().1);
    let scene = |parts: &[&[u8]]| [&[0], &parts.concat()[..]].concat();
    let hello = [send(0, 0, PLAIN, 60, &ethernet(EVERYBODY, 0)), send(1, 1 | 12 << 2, PLAIN, 60, &ethernet(EVERYBODY, 1))].concat();
    let talk = [
        send(0, 2 | 30 << 2, PLAIN, 300, &ethernet(each_other[1], 0)),
        send(0, 3 | 12 << 2, PLAIN, 300, &ethernet(each_other[1], 0)),
    ]
    .concat();
    named([
        ("two-strangers-talk", scene(&[&post(0, 16, 2048), &post(1, 16, 2048), &hello, &STEP, &talk, &STEP, &ROUND])),
        ("a-receiver-without-room", scene(&[&hello, &STEP, &talk, &talk, &STEP, &ROUND, &post(1, 4, 2048), &STEP])),
        ("tiny-receive-buffers", scene(&[&post(1, 16, 13), &hello, &STEP, &talk, &STEP])),
        ("a-large-frame-for-everybody", scene(&[&post(1, 16, 100), &send(0, 0, gso, 5000, &large), &STEP, &ROUND])),
        (
            "in-order-with-the-short-header",
            scene(&[&restart(0, 0x7f1b), &restart(3, 0x001f), &post(1, 3, 2048), &hello, &talk, &STEP, &STEP]),
        ),
        (
            "stopped-while-frames-are-out",
            scene(&[&hello, &STEP, &talk, &talk, &STEP, &restart(0, 3), &restart(3, 7), &talk, &STEP]),
        ),
        ("moved-while-frames-are-out", scene(&[&hello, &STEP, &talk, &STEP, &[acts::REMAP, 0], &[acts::REMAP, 3], &STEP])),
        (
            "disabled-and-enabled",
            scene(&[&[acts::ENABLE, 0, 0], &hello, &STEP, &[acts::ENABLE, 0, 1, acts::ENABLE, 3, 0], &talk, &STEP]),
        ),
        (
            "a-chain-that-loops",
            scene(&[
                &[acts::DESCRIBE, 0, 0, 0, 16, 20, 0, 1, 1, acts::DESCRIBE, 0, 1, 0, 16, 20, 0, 1, 0, acts::OFFER, 0, 0],
                &STEP,
            ]),
        ),
        (
            "a-table-in-a-table",
            scene(&[
                &[
                    acts::DESCRIBE,
                    0,
                    0,
                    0,
                    8,
                    32,
                    0,
                    4,
                    0,
                    acts::SCRIBBLE,
                    0,
                    0,
                    8,
                    16,
                    0,
                    8,
                    1,
                    0,
                    0,
                    0,
                    0,
                    0,
                    16,
                    0,
                    0,
                    0,
                    4,
                    0,
                    0,
                    0,
                    acts::OFFER,
                    0,
                    0,
                ],
                &STEP,
            ]),
        ),
        (
            "a-buffer-across-two-regions",
            scene(&[
                &[
                    acts::DESCRIBE,
                    0,
                    0,
                    0xf0,
                    0xbf,
                    200,
                    0,
                    0,
                    0,
                    acts::OFFER,
                    0,
                    0,
                    acts::DESCRIBE,
                    3,
                    0,
                    0xf0,
                    0xbf,
                    200,
                    0,
                    2,
                    0,
                    acts::OFFER,
                    3,
                    0,
                ],
                &STEP,
                &ROUND,
            ]),
        ),
        ("a-buffer-past-the-end", scene(&[&[acts::DESCRIBE, 0, 0, 0xf0, 0xff, 200, 0, 0, 0, acts::OFFER, 0, 0], &STEP, &ROUND])),
        ("a-head-outside-the-ring", scene(&[&[acts::OFFER, 0, 99], &STEP, &ROUND, &restart(0, 3), &STEP])),
        ("an-index-that-jumps", scene(&[&[acts::JUMP, 2, 0, 0x80], &hello, &STEP, &ROUND])),
        ("a-head-twice", scene(&[&hello, &STEP, &talk, &STEP, &[acts::OFFER, 0, 6, acts::OFFER, 0, 6], &STEP])),
        (
            "receive-buffers-over-the-used-ring",
            scene(&[&[acts::DESCRIBE, 3, 0, 0, 6, 0, 2, 2, 0, acts::OFFER, 3, 0], &hello, &STEP, &ROUND]),
        ),
        (
            "held-to-limits",
            [&[4], &scene(&[&post(0, 16, 2048), &post(1, 16, 2048), &hello, &STEP, &talk, &talk, &STEP, &ROUND])[1..]].concat(),
        ),
        ("frames-of-the-switch-itself", scene(&[&post(0, 4, 64), &[acts::INJECT, 1], &ethernet(EVERYBODY, 9), &STEP])),
    ])
    .into_iter()
    .chain(abuses())
    .collect()
}

/// Scenes of guests that want more than their share of a worker's time, or memory that is not theirs. The numbers are guest 0's
/// rings (0 and 2) and guest 1's (1 and 3).
#[expect(clippy::too_many_lines, reason = "a list of scenes")]
fn abuses() -> Vec<(String, Vec<u8>)> {
    const PLAIN: [u8; 12] = [0; 12];
    const STEP: [u8; 2] = [acts::STEP, 3];
    const ROUND: [u8; 1] = [acts::ROUND];
    // Options of rings: mergeable buffers or IN_ORDER, and sizes.
    const MERGEABLE: u16 = 7;
    const SENDS: u16 = 0x7f03;
    const IN_ORDER: u16 = 0x7f0b;
    const OF_256: u16 = 0x20;
    const OF_1024: u16 = 0x40;
    const LARGEST: u16 = 0x60;
    // Kinds of chains that fill a ring.
    const CHAINED: u8 = 1;
    const WRONG: u8 = 2;
    // Moods: which ports the second worker serves.
    const ALL_AT_ONE: u8 = 0;
    const SECOND: u8 = 1 << 4;
    const SECOND_AND_FOURTH: u8 = 1 << 4 | 1 << 6;
    let post = |guest: u8, count: u8, length: u16| [&[acts::POST, guest, count], &length.to_le_bytes()[..]].concat();
    let restart = |ring: u8, options: u16| [&[acts::RESTART, ring], &options.to_le_bytes()[..], &[0, 0]].concat();
    let fill = |ring: u8, kind: u8, length: u16, count: u16| {
        [&[acts::FILL, ring, kind], &length.to_le_bytes()[..], &count.to_le_bytes()[..]].concat()
    };
    let stream = |guest: u8, head: u8, count: u16| [&[acts::STREAM, guest, head], &count.to_le_bytes()[..]].concat();
    let to_second = send(0, 0, PLAIN, 300, &ethernet([2, 0, 0, 0, 0, 1], 0));
    let to_everybody = send(0, 0, PLAIN, 300, &ethernet([0xff; 6], 0));
    let tcp = packets(100)[0].1.clone();
    let mut dust = tcp.partial().1;
    dust[..12].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0]);
    let gso = send(0, 0, tcp.gso(1).0.bytes(), 1400, &dust);
    let scene = |mood: u8, parts: &[&[u8]]| [&[mood], &parts.concat()[..]].concat();
    named([
        (
            "bad-buffers-posted-while-they-are-looked-at",
            scene(
                ALL_AT_ONE,
                &[&restart(3, MERGEABLE | OF_256), &fill(3, WRONG, 100, 100), &[acts::KEEP, 3, 1], &to_everybody, &STEP, &ROUND],
            ),
        ),
        (
            "the-largest-ring-in-one-chain",
            scene(ALL_AT_ONE, &[&restart(0, IN_ORDER | LARGEST), &fill(0, CHAINED, 0, 32768), &STEP, &ROUND, &STEP]),
        ),
        (
            "more-than-a-ring-behind-one-that-waits",
            scene(
                SECOND,
                &[
                    &restart(0, IN_ORDER | LARGEST),
                    &STEP,
                    &restart(3, MERGEABLE | OF_256),
                    &to_second,
                    &STEP,
                    &stream(0, 5, 65535),
                    &STEP,
                    &restart(0, 3),
                    &STEP,
                ],
            ),
        ),
        (
            "a-slot-that-changes-hands",
            scene(
                SECOND_AND_FOURTH,
                &[&post(1, 16, 2048), &to_second, &[acts::STEP_ONE, 0, acts::STOP, 3, acts::HONEST_RESTART, 1], &STEP, &ROUND],
            ),
        ),
        (
            "an-index-that-jumps-between-frames-of-one-way",
            scene(
                ALL_AT_ONE,
                &[
                    &restart(3, MERGEABLE | OF_1024),
                    &fill(3, CHAINED, 0, 1),
                    &[acts::DESCRIBE, 3, 0, 0, 0x10, 0, 8, 2, 0],
                    &to_second,
                    &STEP,
                    &[acts::DESCRIBE, 3, 0, 0, 0x10, 0, 0, 3, 1],
                    &[acts::JUMP, 3, 0, 0],
                    &to_second,
                    &STEP,
                    &to_second,
                    &STEP,
                ],
            ),
        ),
        (
            "looping-buffers-and-frames-for-everybody",
            scene(
                ALL_AT_ONE,
                &[
                    &restart(3, MERGEABLE | OF_1024),
                    &fill(3, CHAINED, 0, 1024),
                    &restart(0, SENDS | OF_256),
                    &to_everybody.repeat(32),
                    &STEP,
                    &STEP,
                    &ROUND,
                ],
            ),
        ),
        (
            "looping-buffers-and-frames-for-their-guest",
            scene(
                ALL_AT_ONE,
                &[
                    &restart(3, MERGEABLE | OF_1024),
                    &fill(3, CHAINED, 0, 1024),
                    &restart(0, SENDS | OF_256),
                    &to_second.repeat(32),
                    &STEP,
                    &STEP,
                    &ROUND,
                ],
            ),
        ),
        (
            "segments-of-one-byte",
            scene(
                ALL_AT_ONE,
                &[
                    &gso.repeat(4),
                    &STEP,
                    &restart(3, MERGEABLE | LARGEST),
                    &fill(3, 0, 200, 32768),
                    &restart(0, SENDS | OF_256),
                    &fill(0, 0, 1412, 256),
                    &STEP,
                    &STEP,
                    &ROUND,
                ],
            ),
        ),
        (
            "a-head-that-changes-under-our-hands",
            scene(
                SECOND,
                &[
                    &post(1, 16, 2048),
                    &[acts::RACE, 0, 3, 8, 0, 4, 0xff, 0xff, 0xff, 0xff, acts::RACE, 1, 9, 2, 4, 2, 0xff, 0xff],
                    &to_second,
                    &STEP,
                ],
            ),
        ),
        (
            "moved-while-the-other-worker-has-it",
            scene(
                SECOND,
                &[&to_second, &[acts::STEP_ONE, 0, acts::REMAP, 0], &post(1, 16, 2048), &STEP, &to_second, &STEP, &ROUND],
            ),
        ),
    ])
}
