//! Filter programs: the verifier agrees with the kernel's, and the interpreter with libpcap's.

#![expect(unsafe_code, reason = "libpcap and the kernel, against which programs are held")]

use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;

use libloading::{Library, Symbol};
use memlane_observe::bpf::compile::{Failure, compile};
use memlane_observe::bpf::{Fault, Instruction, MOST_INSTRUCTIONS, Program};
use proptest::prelude::*;

type Filter = unsafe extern "C" fn(*const Instruction, *const u8, u32, u32) -> u32;

/// libpcap's interpreter.
struct Libpcap(Library);

impl Libpcap {
    fn open() -> Self {
        // SAFETY: its initialisers set up its own state.
        Self(unsafe { Library::new("libpcap.so.0.8") }.expect("libpcap (Debian package libpcap0.8)"))
    }

    fn run(&self, program: &[Instruction], frame: &[u8]) -> u32 {
        // SAFETY: the type is that of pcap/bpf.h.
        let filter: Symbol<'_, Filter> = unsafe { self.0.get(b"bpf_filter\0") }.unwrap();
        let length = frame.len() as u32;
        // SAFETY: the program was checked, and the frame has that length.
        unsafe { filter(program.as_ptr(), frame.as_ptr(), length, length) }
    }
}

/// Attaches a program to a socket, as its receive filter.
fn attach(socket: &UnixDatagram, program: &[Instruction]) -> bool {
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut().cast() };
    let size = size_of::<libc::sock_fprog>() as u32;
    // SAFETY: the kernel reads so many instructions of the same layout, and changes none.
    let result =
        unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, (&raw const filter).cast(), size) };
    result == 0
}

/// How many bytes of `frame` a socket receives under `program`, 0 if the frame is not selected. The kernel must accept the program.
fn kernel_run(program: &[Instruction], frame: &[u8]) -> usize {
    let (sender, receiver) = UnixDatagram::pair().unwrap();
    receiver.set_nonblocking(true).unwrap();
    assert!(attach(&receiver, program));
    sender.send(frame).unwrap();
    let mut received = [0; 256];
    receiver.recv(&mut received).unwrap_or(0)
}

/// Codes of all operations, and a few that are none.
fn code() -> impl Strategy<Value = u16> {
    let loads =
        prop::sample::select(vec![0x20, 0x28, 0x30, 0x40, 0x48, 0x50, 0x00, 0x60, 0x80, 0x01, 0x61, 0x81, 0xb1, 0x02, 0x03]);
    let alu = (0..11_u16, prop::bool::ANY).prop_map(|(operation, x)| 4 | operation << 4 | if x { 8 } else { 0 });
    let jumps = prop::sample::select(vec![0x05, 0x15, 0x25, 0x35, 0x45, 0x1d, 0x2d, 0x3d, 0x4d]);
    prop_oneof![8 => loads, 6 => alu, 6 => jumps, 2 => prop::sample::select(vec![0x06, 0x16, 0x07, 0x87]), 1 => any::<u16>()]
}

fn operand() -> impl Strategy<Value = u32> {
    prop_oneof![6 => 0..20_u32, 2 => 20..80_u32, 1 => 0..0xffdf_ffff_u32, 1 => Just(0x7fff_ffff)]
}

fn instruction() -> impl Strategy<Value = Instruction> {
    let jump = || prop_oneof![4 => 0..4_u8, 1 => any::<u8>()];
    (code(), jump(), jump(), operand()).prop_map(|(code, jt, jf, k)| Instruction { code, jt, jf, k })
}

/// Programs that are mostly valid: scratch memory is written first, jumps are short, the last instructions return.
fn program() -> impl Strategy<Value = Vec<Instruction>> {
    let returns = prop::collection::vec(prop_oneof![Just((0x16, 0)), operand().prop_map(|k| (0x06, k))], 5);
    (prop::bool::weighted(0.9), prop::collection::vec(instruction(), 0..30), returns, prop::bool::weighted(0.95)).prop_map(
        |(prepared, body, returns, ends)| {
            let writes = (0..16).filter(|_| prepared).map(|k| Instruction { code: 0x02, jt: 0, jf: 0, k });
            let returns = returns.into_iter().filter(|_| ends).map(|(code, k)| Instruction { code, jt: 0, jf: 0, k });
            writes.chain(body).chain(returns).collect()
        },
    )
}

/// Makes mistakes in `program` rarer: operands and jumps are reduced to their valid range.
fn tamed(mut program: Vec<Instruction>) -> Vec<Instruction> {
    let length = program.len();
    for (at, instruction) in program.iter_mut().enumerate() {
        let left = length - at - 1;
        match instruction.code {
            code if code & 7 == 5 && left > 0 => {
                instruction.k = if code == 5 { instruction.k % left as u32 } else { instruction.k };
                instruction.jt %= left.min(255) as u8;
                instruction.jf %= left.min(255) as u8;
            }
            0x34 | 0x94 => instruction.k |= 1,
            0x64 | 0x74 => instruction.k %= 32,
            0x02 | 0x03 | 0x60 | 0x61 => instruction.k %= 16,
            code if code & 7 == 4 && code > 0xa8 => instruction.code = 0x04,
            0x8c => instruction.code = 0x84,
            _ => {}
        }
    }
    program
}

/// Whether libpcap's interpreter and the kernel agree on its meaning: libpcap's sees no sum of offsets beyond 32 bits, and no
/// shift by X beyond the word.
fn has_one_meaning(program: &[Instruction]) -> bool {
    let shifts = |code| matches!(code, 0x6c | 0x7c);
    let indirect = |code| matches!(code, 0x40 | 0x48 | 0x50);
    !program.iter().any(|instruction| shifts(instruction.code) || indirect(instruction.code))
}

#[test]
fn the_kernel_refuses_the_same_programs() {
    let (socket, _other) = UnixDatagram::pair().unwrap();
    let (mut accepted, mut refused) = (0, 0);
    let mut runner = proptest::test_runner::TestRunner::new(config(4000));
    runner
        .run(&(program(), prop::bool::ANY), |(program, tame)| {
            let program = if tame { tamed(program) } else { program };
            let checked = Program::new(&program);
            // Loads of the kernel's ancillary data are refused here only.
            if matches!(checked, Err(Fault::Ancillary(_))) {
                return Ok(());
            }
            prop_assert_eq!(checked.is_ok(), attach(&socket, &program), "{:?}", checked);
            Ok(())
        })
        .unwrap();
    // The same programs again, counted: both kinds occur.
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    for _ in 0..500 {
        use proptest::strategy::ValueTree;
        let sound = Program::new(&tamed(program().new_tree(&mut runner).unwrap().current())).is_ok();
        *(if sound { &mut accepted } else { &mut refused }) += 1;
    }
    assert!(accepted > 100 && refused > 50, "{accepted} accepted, {refused} refused");
}

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

/// The frame in segments that end at these places.
fn segments<'a>(frame: &'a [u8], ends: &[usize]) -> Vec<&'a [u8]> {
    let mut ends: Vec<_> = ends.iter().map(|end| end % (frame.len() + 1)).chain([0, frame.len()]).collect();
    ends.sort_unstable();
    ends.windows(2).map(|pair| &frame[pair[0]..pair[1]]).collect()
}

#[test]
fn libpcap_selects_the_same_frames() {
    let libpcap = Libpcap::open();
    let frame = prop::collection::vec(any::<u8>(), 0..100);
    let mut runner = proptest::test_runner::TestRunner::new(config(20_000));
    runner
        .run(&(program(), frame, prop::collection::vec(any::<usize>(), 0..5)), |(program, frame, ends)| {
            let program = tamed(program);
            if let Ok(checked) = Program::new(&program) {
                let expected = libpcap.run(&program, &frame);
                prop_assert_eq!(checked.run(&frame[..]), expected);
                prop_assert_eq!(checked.run(&segments(&frame, &ends)[..]), expected);
            }
            Ok(())
        })
        .unwrap();
}

#[test]
fn the_result_depends_on_what_was_recorded() {
    let frame = || prop::collection::vec(any::<u8>(), 64..100);
    let mut runner = proptest::test_runner::TestRunner::new(config(20_000));
    runner
        .run(&(program(), frame(), frame()), |(program, frame, mut other)| {
            let Ok(checked) = Program::new(&tamed(program)) else { return Ok(()) };
            let (result, reads) = checked.trace(&frame[..]);
            prop_assert_eq!(checked.run(&frame[..]), result);
            if !reads.beyond && !reads.length {
                (0..64).filter(|at| reads.bytes & 1 << at != 0).for_each(|at| other[at] = frame[at]);
                prop_assert_eq!(checked.run(&other[..]), result, "{:?}", reads);
            }
            Ok(())
        })
        .unwrap();
    // Most programs of capture filters read headers only.
    for filter in
        ["udp port 53 and host 10.0.0.2", "icmp or tcp[tcpflags] & tcp-syn != 0", "vlan 7 and ip6", "ether host 2:0:0:0:0:1"]
    {
        let program = Program::new(&compile(filter, 65_535).unwrap()).unwrap();
        let (_, reads) = program.trace(&[&datagram()[..], &[0; 64]].concat()[..]);
        assert!(!reads.beyond && !reads.length && reads.bytes != 0, "{filter}: {reads:?}");
    }
    for (filter, length, beyond) in [("less 100", true, false), ("ether[100] = 1", false, true), ("ether[200] = 1", true, false)] {
        let program = Program::new(&compile(filter, 65_535).unwrap()).unwrap();
        let (_, reads) = program.trace(&[&datagram()[..], &[0; 100]].concat()[..]);
        assert_eq!((reads.length, reads.beyond), (length, beyond), "{filter}");
    }
}

#[test]
fn the_kernel_selects_the_same_frames() {
    let frame = prop::collection::vec(any::<u8>(), 1..100);
    let mut runner = proptest::test_runner::TestRunner::new(config(2000));
    runner
        .run(&(program(), frame), |(program, frame)| {
            let program = tamed(program);
            if let Ok(checked) = Program::new(&program)
                && has_one_meaning(&program)
            {
                let expected = kernel_run(&program, &frame);
                prop_assert_eq!((checked.run(&frame[..]) as usize).min(frame.len()), expected);
            }
            Ok(())
        })
        .unwrap();
}

/// A UDP datagram over IPv4 from 10.0.0.1 port 4000 to 10.0.0.2 port 53.
fn datagram() -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
    frame.extend([0x45, 0, 0, 32, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    frame.extend([0x0f, 0xa0, 0, 53, 0, 12, 0, 0, 1, 2, 3, 4]);
    frame
}

#[test]
fn filters_of_the_whole_language_select_what_they_say() {
    let frame = datagram();
    let mut tagged = frame.clone();
    tagged.splice(12..12, [0x81, 0, 0, 7]);
    let selects = |filter: &str, frame: &[u8]| Program::new(&compile(filter, 65_535).unwrap()).unwrap().run(frame) > 0;
    for filter in [
        "",
        "udp",
        "udp port 53 and host 10.0.0.1",
        "ether src 02:00:00:00:00:01",
        "not arp",
        "ip[8] = 64",
        "udp[8:4] = 0x01020304",
        "less 60",
        "src net 10.0.0.0/24",
        "portrange 50-60",
    ] {
        assert!(selects(filter, &frame), "{filter}");
    }
    for filter in ["arp", "ip6", "tcp", "host 10.0.0.3", "greater 60", "ether dst 02:00:00:00:00:01", "vlan"] {
        assert!(!selects(filter, &frame), "{filter}");
    }
    assert!(selects("vlan 7 and udp port 53", &tagged) && !selects("vlan 8", &tagged) && !selects("udp", &tagged));
}

#[test]
fn the_snaplen_is_what_a_filter_returns() {
    assert_eq!(Program::new(&compile("udp", 96).unwrap()).unwrap().run(&datagram()[..]), 96);
}

#[test]
fn a_mistake_in_a_filter_is_told_with_the_compilers_words() {
    let told = |filter: &str| match compile(filter, 65_535) {
        Err(error @ Failure::Mistake { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    };
    let mistake = told("udp prt 53");
    assert!(mistake.starts_with("the filter 'udp prt 53' does not compile: ") && mistake.contains("syntax error"), "{mistake}");
    assert!(told("a\0b").contains("zero byte"));
    assert!(told(&"(".repeat(70_000)).contains("70000 bytes"));
    let long = vec!["host 10.0.0.1 and port 1"; 2500].join(" or ");
    let program = compile(&long, 65_535);
    assert!(matches!(&program, Err(Failure::Mistake { .. })) || program.unwrap().len() <= MOST_INSTRUCTIONS);
}
