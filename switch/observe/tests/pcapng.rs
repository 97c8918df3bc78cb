//! Captures can be read by other programs: Wireshark's own, and a reader that follows the specification word by word.

use std::io::{self, Write};
use std::process::{Command, Stdio};

use memlane_observe::pcapng::{Direction, Interface, MOST_SNAPLEN, Packet, Statistics, Writer};
use proptest::prelude::*;

/// A block: its type, its fixed part and the rest undivided.
#[derive(Debug)]
struct Block<'a> {
    kind: u32,
    body: &'a [u8],
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap())
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// Takes a file apart; every rule of lengths and padding holds.
fn blocks(mut file: &[u8]) -> Vec<Block<'_>> {
    let mut blocks = Vec::new();
    while !file.is_empty() {
        let (kind, length) = (u32_at(file, 0), u32_at(file, 4) as usize);
        assert_eq!(length % 4, 0, "blocks are padded");
        assert_eq!(u32_at(file, length - 4) as usize, length, "the length stands at both ends");
        blocks.push(Block { kind, body: &file[8..length - 4] });
        file = &file[length..];
    }
    blocks
}

/// The options after a block's fixed part of so many bytes, in order.
fn options(block: &[u8], fixed: usize) -> Vec<(u16, &[u8])> {
    let (mut rest, mut found) = (&block[fixed..], Vec::new());
    loop {
        let (code, length) = (u16_at(rest, 0), usize::from(u16_at(rest, 2)));
        if code == 0 {
            assert_eq!((length, rest.len()), (0, 4), "the end of the options is the end of the block");
            return found;
        }
        found.push((code, &rest[4..4 + length]));
        assert!(rest[4 + length..4 + length.next_multiple_of(4)].iter().all(|&byte| byte == 0), "padding is zero");
        rest = &rest[4 + length.next_multiple_of(4)..];
    }
}

fn option<'a>(options: &[(u16, &'a [u8])], code: u16) -> Option<&'a [u8]> {
    let mut all = options.iter().filter(|option| option.0 == code);
    let found = all.next().map(|option| option.1);
    assert!(all.next().is_none(), "each option stands once");
    found
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![4 => "\\PC{0,40}", 1 => Just("é\n".repeat(40_000)), 1 => Just(String::new())]
}

#[derive(Clone, Debug)]
struct Appearance {
    interface: usize,
    time: u64,
    outbound: bool,
    id: u64,
    bytes: Vec<u8>,
    cut: u32,
    missed: u64,
    comment: String,
}

fn appearance() -> impl Strategy<Value = Appearance> {
    let bytes = prop::collection::vec(any::<u8>(), 0..200);
    (any::<usize>(), any::<u64>(), any::<bool>(), any::<u64>(), bytes, 0..1000_u32, 0..3_u64, text()).prop_map(
        |(interface, time, outbound, id, bytes, cut, missed, comment)| Appearance {
            interface,
            time,
            outbound,
            id,
            bytes,
            cut,
            missed,
            comment,
        },
    )
}

/// The beginning of a text of at most so many bytes.
fn beginning(text: &str, most: usize) -> &[u8] {
    &text.as_bytes()[..text.floor_char_boundary(most)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_is_written_is_read(
        ports in prop::collection::vec((text(), text(), any::<u32>(), text()), 1..4),
        frames in prop::collection::vec(appearance(), 0..8),
        seen in any::<(u64, u64)>(),
    ) {
        let mut writer = Writer::new(Vec::new(), "memlane").unwrap();
        let mut ids = Vec::new();
        for (name, description, snaplen, filter) in &ports {
            ids.push(writer.interface(Interface { name, description, snaplen: *snaplen, filter }).unwrap());
        }
        for frame in &frames {
            let direction = if frame.outbound { Direction::Outbound } else { Direction::Inbound };
            writer.packet(&Packet {
                interface: ids[frame.interface % ids.len()],
                time: frame.time,
                direction,
                id: frame.id,
                bytes: &frame.bytes,
                length: frame.bytes.len() as u32 + frame.cut,
                missed: frame.missed,
                comment: &frame.comment,
            }).unwrap();
        }
        writer.statistics(ids[0], 1, Statistics { received: seen.0, dropped: seen.1 }).unwrap();
        let file = writer.get_mut().clone();
        let blocks = blocks(&file);
        prop_assert_eq!(blocks.len(), 1 + ports.len() + frames.len() + 1);
        prop_assert_eq!((blocks[0].kind, u32_at(blocks[0].body, 0)), (0x0a0d_0d0a, 0x1a2b_3c4d));
        prop_assert_eq!(u64_at(blocks[0].body, 8), u64::MAX);
        for ((name, description, snaplen, filter), block) in ports.iter().zip(&blocks[1..]) {
            prop_assert_eq!(block.kind, 1);
            prop_assert_eq!((u16_at(block.body, 0), u32_at(block.body, 4)), (1, (*snaplen).min(MOST_SNAPLEN)));
            let options = options(block.body, 8);
            let expected = |text: &str| (!text.is_empty()).then(|| beginning(text, 65_535).to_vec());
            prop_assert_eq!(option(&options, 2).map(<[u8]>::to_vec), expected(name));
            prop_assert_eq!(option(&options, 3).map(<[u8]>::to_vec), expected(description));
            prop_assert_eq!(option(&options, 9), Some(&[9_u8][..]));
            let filter = expected(filter).map(|_| beginning(&format!("\0{filter}"), 65_535).to_vec());
            prop_assert_eq!(option(&options, 11).map(<[u8]>::to_vec), filter);
        }
        for (frame, block) in frames.iter().zip(&blocks[1 + ports.len()..]) {
            prop_assert_eq!(block.kind, 6);
            prop_assert_eq!(u32_at(block.body, 0) as usize, frame.interface % ports.len());
            prop_assert_eq!(u64::from(u32_at(block.body, 4)) << 32 | u64::from(u32_at(block.body, 8)), frame.time);
            prop_assert_eq!(u32_at(block.body, 12) as usize, frame.bytes.len());
            prop_assert_eq!(u32_at(block.body, 16) as usize, frame.bytes.len() + frame.cut as usize);
            prop_assert_eq!(&block.body[20..20 + frame.bytes.len()], &frame.bytes[..]);
            let options = options(block.body, 20 + frame.bytes.len().next_multiple_of(4));
            let comment = (!frame.comment.is_empty()).then(|| beginning(&frame.comment, 65_535));
            prop_assert_eq!(option(&options, 1), comment);
            prop_assert_eq!(u32_at(option(&options, 2).unwrap(), 0), if frame.outbound { 2 } else { 1 });
            prop_assert_eq!(option(&options, 4).map(|count| u64_at(count, 0)), (frame.missed > 0).then_some(frame.missed));
            prop_assert_eq!(option(&options, 5).map(|id| u64_at(id, 0)), Some(frame.id));
        }
        let last = blocks.last().unwrap();
        let options = options(last.body, 12);
        prop_assert_eq!(last.kind, 5);
        prop_assert_eq!((u64_at(option(&options, 4).unwrap(), 0), u64_at(option(&options, 5).unwrap(), 0)), seen);
    }
}

/// Runs a program of Wireshark's on `file`; returns its output.
fn wireshark(program: &str, arguments: &[&str], file: &[u8]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("capture.pcapng");
    std::fs::write(&path, file).unwrap();
    let output = Command::new(program)
        .args(arguments)
        .arg(&path)
        .env("HOME", folder.path())
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|error| panic!("{program} (Debian package tshark; lab/install-packages test): {error}"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// An ARP request of 42 bytes.
const ARP: [u8; 42] = [
    0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02, 0, 0, 0, 0, 1, 0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1, 10, 0, 0, 1, 0,
    0, 0, 0, 0, 0, 10, 0, 0, 2,
];

#[test]
fn wireshark_reads_ports_directions_ids_reasons_and_what_was_missed() {
    let mut writer = Writer::new(Vec::new(), "memlane 0.1.0").unwrap();
    let interface = |name, description| Interface { name, description, snaplen: 40, filter: "arp" };
    let web = writer.interface(interface("web \"1\"", "front")).unwrap();
    let arrives = Packet {
        interface: web,
        time: 1_764_151_455_123_456_789,
        direction: Direction::Outbound,
        id: 77,
        bytes: &ARP,
        length: 42,
        missed: 0,
        comment: "",
    };
    writer.packet(&arrives).unwrap();
    let db = writer.interface(interface("db", "back")).unwrap();
    let (bytes, comment) = (&ARP[..40], "dropped: receiver-stalled");
    writer.packet(&Packet { interface: db, direction: Direction::Inbound, bytes, missed: 3, comment, ..arrives }).unwrap();
    writer.statistics(db, arrives.time + 1, Statistics { received: 4, dropped: 3 }).unwrap();
    writer.flush().unwrap();
    let file = writer.get_mut().clone();
    let fields = [
        "frame.interface_name",
        "frame.interface_description",
        "frame.time_epoch",
        "frame.packet_flags_direction",
        "frame.packet_id",
        "frame.len",
        "frame.cap_len",
        "frame.drop_count",
        "frame.comment",
        "arp.dst.proto_ipv4",
    ];
    let mut arguments = vec!["-T", "fields"];
    fields.iter().for_each(|field| arguments.extend(["-e", field]));
    arguments.push("-r");
    let shown = wireshark("tshark", &arguments, &file);
    let lines: Vec<_> = shown.lines().map(|line| line.split('\t').collect::<Vec<_>>()).collect();
    let time = "1764151455.123456789";
    assert_eq!(lines[0], ["web \"1\"", "front", time, "0x00000002", "77", "42", "42", "", "", "10.0.0.2"]);
    assert_eq!(lines[1], ["db", "back", time, "0x00000001", "77", "42", "40", "3", "dropped: receiver-stalled", ""]);
    assert_eq!(lines.len(), 2);
    let about = wireshark("capinfos", &["-A"], &file);
    let parts =
        ["memlane 0.1.0", "Name = web \"1\"", "Name = db", "Description = front", "Filter string = arp", "Time resolution = 0x09"];
    parts.iter().for_each(|part| assert!(about.contains(part), "{part}: {about}"));
    assert!(about.contains("Number of stat entries = 1"), "{about}");
}

/// A writer that has no room after so many bytes.
struct Full(usize);

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0 < bytes.len() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.0 -= bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_disk_is_an_error_and_no_more() {
    let mut writer = Writer::new(Full(200), "memlane").unwrap();
    let web = writer.interface(Interface { name: "web", ..Interface::default() }).unwrap();
    let packet = Packet {
        interface: web,
        time: 0,
        direction: Direction::Inbound,
        id: 0,
        bytes: &[0; 100],
        length: 100,
        missed: 0,
        comment: "",
    };
    assert_eq!(writer.packet(&packet).unwrap_err().kind(), io::ErrorKind::StorageFull);
    assert_eq!(writer.packet(&packet).unwrap_err().kind(), io::ErrorKind::StorageFull);
}

#[test]
fn frames_are_cut_at_the_most_that_a_capture_takes() {
    let mut writer = Writer::new(Vec::new(), "memlane").unwrap();
    let web = writer.interface(Interface { name: "web", ..Interface::default() }).unwrap();
    let bytes = vec![7; MOST_SNAPLEN as usize + 5];
    let packet = Packet {
        interface: web,
        time: 0,
        direction: Direction::Inbound,
        id: 0,
        bytes: &bytes,
        length: u32::MAX,
        missed: 0,
        comment: "",
    };
    writer.packet(&packet).unwrap();
    let file = writer.get_mut().clone();
    let block = &blocks(&file)[2];
    assert_eq!((u32_at(block.body, 12), u32_at(block.body, 16)), (MOST_SNAPLEN, u32::MAX));
}
