//! Target `filter`: programs of classic BPF from strangers. Each is refused, or ends and reads within the frame only, wherever the frame's bytes lie.

use memlane_observe::bpf::{Frame, Instruction, Program, RECORDED};

/// Bytes of an instruction.
const INSTRUCTION: usize = 8;

/// Reads `data` as how many instructions there are, where the frame is cut, the instructions, and the frame.
pub fn run(data: &[u8]) {
    let Some((&[count, cut], rest)) = data.split_first_chunk() else { return };
    let (instructions, frame) = rest.split_at(rest.len().min(INSTRUCTION * usize::from(count)));
    let instructions: Vec<Instruction> = instructions.chunks_exact(INSTRUCTION).map(instruction).collect();
    let Ok(program) = Program::new(&instructions) else { return };
    assert_eq!(program.instructions(), &instructions[..]);
    let (result, reads) = program.trace(frame);
    assert_eq!(program.run(&Watched(frame)), result, "what a run reads lies within the frame");
    let (first, second) = frame.split_at(usize::from(cut).min(frame.len()));
    assert_eq!(program.run(&[first, second][..]), result, "wherever its bytes lie");
    if frame.len() >= RECORDED as usize && !reads.beyond && !reads.length {
        assert_eq!(program.run(&others(frame, reads.bytes)[..]), result, "it depends on the recorded bytes only");
    }
}

/// A longer frame that differs in every byte but these of the first [`RECORDED`].
fn others(frame: &[u8], kept: u64) -> Vec<u8> {
    let is_kept = |at: usize| at < RECORDED as usize && kept & 1 << at != 0;
    let mut other: Vec<u8> = frame.iter().enumerate().map(|(at, &byte)| if is_kept(at) { byte } else { !byte }).collect();
    other.push(0);
    other
}

fn instruction(bytes: &[u8]) -> Instruction {
    let code = u16::from_le_bytes([bytes[0], bytes[1]]);
    (code, bytes[2], bytes[3], u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]])).into()
}

/// Panics where a run reads what it may not.
struct Watched<'f>(&'f [u8]);

impl Frame for Watched<'_> {
    fn length(&self) -> u32 {
        self.0.len() as u32
    }

    fn read(&self, from: u32, to: &mut [u8]) -> bool {
        assert!((1..=4).contains(&to.len()));
        to.copy_from_slice(&self.0[from as usize..][..to.len()]);
        true
    }
}
