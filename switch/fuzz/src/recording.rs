//! Target `recording`: recordings from strangers, as `memlane replay` reads them. Each is read to its end or refused with a reason; a verdict that is made
//! twice is the same, and another policy on it ends too.

use memlane::explain::{self, Forecast};
use memlane::policy::PortLimits;
use memlane::policy::filter::PolicyRule;
use memlane::replay::{Replay, Tried};
use memlane::stats::DropReason;
use memlane_observe::recording::{
    AGAIN, BATCH, Block, COPIES, Clock, FRAME, FloodCopy, Frame, IS_GATED, IS_LONG, LONGEST_FRAME, Reader, begin, frames,
};

/// Description of the recordings that are made here.
fn description() -> String {
    let reasons: Vec<&str> = DropReason::ALL.iter().map(|reason| reason.name()).collect();
    serde_json::json!({ "program": "fuzz", "workers": 1, "reasons": reasons }).to_string()
}

/// Reads `data` as a recording, and as the blocks of one: for each a kind, the length of its content in two bytes, and the content.
pub fn run(data: &[u8]) {
    read(data);
    let mut bytes = begin(description().as_bytes());
    let mut rest = data;
    while let Some((&[kind, low, high], behind)) = rest.split_first_chunk() {
        let length = usize::from(u16::from_le_bytes([low, high])).min(behind.len());
        let (content, after) = behind.split_at(length);
        block(kind, content).encode(&mut bytes);
        rest = after;
    }
    read(&bytes);
}

fn block(kind: u8, content: &[u8]) -> Block {
    match kind % 5 {
        0 => Block::State(content.to_vec()),
        1 => Block::Clock(Clock { cycles: content.len() as u64, nanoseconds: 7, frequency: 0 }),
        2 => Block::Gap { worker: 0, lost: u64::MAX },
        _ => Block::Frames { worker: kind, records: content.to_vec() },
    }
}

/// Rules that are tried: a default, and destinations with DNS names.
fn tried() -> Tried {
    let rules = r#"[{"from":"a","protocol":"tcp","ports":[80],"action":"allow"},
        {"from":"a","destinations":["example.org","10.0.0.0/8"],"action":"allow"},{"default":"deny","members":"a"}]"#;
    let rules: Vec<PolicyRule> = serde_json::from_str(rules).unwrap();
    let limits = PortLimits { vlan: Some(10), isolated: true, ..PortLimits::default() };
    Tried::new(&rules, [("a".to_owned(), limits)].into_iter())
}

fn read(data: &[u8]) {
    let Ok((mut reader, description)) = Reader::new(data) else { return };
    let Ok(description) = serde_json::from_slice(&description) else { return };
    let (mut replay, mut tried, mut clock) = (Replay::new(&description), tried(), Clock::default());
    loop {
        match reader.block() {
            Ok(Some(Block::State(json))) => drop(serde_json::from_slice(&json).map(|state| replay.learn(state))),
            Ok(Some(Block::Clock(next))) => clock = next,
            Ok(Some(Block::Frames { records, .. })) => judge(&records, (&replay, &mut tried), clock),
            Ok(Some(_)) => {}
            Ok(None) => return,
            Err(error) => return assert!(!error.to_string().is_empty()),
        }
    }
}

fn judge(records: &[u8], (replay, tried): (&Replay, &mut Tried), clock: Clock) {
    for frame in frames(records) {
        clock.time(frame.moment);
        let once = replay.judge(&frame);
        assert_eq!(once, replay.judge(&frame));
        if let (Ok(recorded), Ok(again)) = (replay.recorded(&frame), &once) {
            let tell = |outcome| explain::outcome(replay, outcome, frame.moment);
            assert!(!tell(&recorded).is_empty() && !tell(again).is_empty());
        }
        replay.follow(&frame);
        let _ = (Forecast::recorded(replay, &frame, &[frame]), tried.judge(replay, &frame));
    }
}

/// Bytes of a block for [`run`].
fn piece(kind: u8, content: &[u8]) -> Vec<u8> {
    [&[kind][..], &(content.len() as u16).to_le_bytes(), content].concat()
}

fn record(frame: Frame<'_>) -> Vec<u8> {
    let mut record = [0; LONGEST_FRAME];
    let length = frame.encode(&mut record);
    [&record[..length], frame.parts].concat()
}

/// Recordings that reach far.
pub fn seeds() -> [(&'static str, Vec<u8>); 6] {
    const SENDER: &str =
        r#"{"sender":{"number":1,"port":0,"name":"a","segment":"lan","is-guarded":true,"identity":{"addresses":["10.0.0.1/32"]}}}"#;
    const RULES: &str = r#"{"rules":{"number":2,"rules":[{"from":"a","protocol":"tcp","action":"allow"},{"default":"deny","members":"b","line":7}],"ports":[{"port":0,"names":["a"],"segment":"lan"},{"port":1,"names":["b"],"segment":"lan"}]}}"#;
    const PORT: &str = r#"{"port":{"port":0,"name":"a","segment":"lan","since":0,"mac":"02:00:00:00:00:01"}}"#;
    let head = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    let tcp = [&head[..], &[0x9c, 0x40, 0, 80, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0x10, 0, 0, 0, 0, 0, 0]].concat();
    let states: Vec<u8> = [PORT, SENDER, RULES].into_iter().flat_map(|state| piece(0, state.as_bytes())).collect();
    // Pinned here, known, behind port 1, which carries the frame without a tag; its flow is open.
    let frame = Frame {
        kind: FRAME,
        sender: 1,
        filter: 2,
        flags: IS_GATED,
        to: 1,
        verdict: 1,
        answers: &[0, 0, 0, 1, 0, 4, 1],
        bytes: &tcp,
        ..Frame::default()
    };
    let mut broadcast = tcp.clone();
    broadcast[..6].fill(255);
    let mut copies = Vec::new();
    FloodCopy { port: 1, outcome: 1, reason: 0, answers: &[1, 4, 0x78, 5] }.encode(&mut copies);
    let flooded = Frame {
        kind: COPIES,
        flags: IS_GATED | IS_LONG,
        verdict: 4,
        length: 1514,
        answers: &[],
        bytes: &broadcast,
        parts: &copies,
        ..frame
    };
    let parts = [&[60, 0, 0, 0, tcp.len() as u8][..], &tcp, &[7, 0, 0, 0, AGAIN]].concat().repeat(2);
    let batch = Frame { kind: BATCH, bytes: &[], parts: &parts, ..frame };
    let clock = piece(1, &[0; 9]);
    [
        ("a-frame", [&states[..], &clock, &piece(3, &record(frame))].concat()),
        ("a-batch", [&states[..], &clock, &piece(3, &record(batch))].concat()),
        ("a-flooded-frame", [&states[..], &piece(3, &record(flooded))].concat()),
        ("a-record-that-is-cut", [&states[..], &piece(3, &record(frame)[..50])].concat()),
        (
            "rules-without-their-base",
            [piece(0, RULES.replace("\"number\":2", "\"number\":2,\"base\":9").as_bytes()), piece(3, &record(frame))].concat(),
        ),
        ("a-whole-file", [begin(description().as_bytes()), piece(2, &[])].concat()),
    ]
}
