//! The interpreter of checked filter programs, over frames in one or several buffer segments.

use super::code::{
    A, ABS, ADD, ALU, AND, B, DIV, H, IMM, IND, JA, JEQ, JGE, JGT, JMP, JSET, K, LD, LDX, LEN, LSH, MEM, MISC, MOD, MSH, MUL, NEG,
    OR, RET, RSH, ST, STX, SUB, TAX, TXA, W, X, XOR,
};
use super::{Instruction, MEMORY_WORDS};

/// A frame that a program reads.
pub trait Frame {
    /// Length of the frame in bytes.
    fn length(&self) -> u32;

    /// Copies the `to.len()` bytes from byte `from` on, 1 to 4 of them within [`Self::length`]; false if they cannot be read.
    fn read(&self, from: u32, to: &mut [u8]) -> bool;
}

impl Frame for [u8] {
    fn length(&self) -> u32 {
        self.len() as u32
    }

    fn read(&self, from: u32, to: &mut [u8]) -> bool {
        match self.get(from as usize..).and_then(|rest| rest.get(..to.len())) {
            Some(bytes) => {
                to.copy_from_slice(bytes);
                true
            }
            None => false,
        }
    }
}

/// A frame in several buffer segments.
impl Frame for [&[u8]] {
    fn length(&self) -> u32 {
        self.iter().map(|segment| segment.len() as u32).sum()
    }

    fn read(&self, from: u32, to: &mut [u8]) -> bool {
        let (mut skip, mut done) = (from as usize, 0);
        for segment in self {
            let rest = segment.get(skip..).unwrap_or_default();
            skip = skip.saturating_sub(segment.len());
            let run = rest.len().min(to.len() - done);
            to[done..][..run].copy_from_slice(&rest[..run]);
            done += run;
        }
        done == to.len()
    }
}

/// Bytes of a frame's start at which a run records reads.
pub const RECORDED: u32 = 64;

/// The bits on which the result of a run depends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reads {
    /// The bytes that were read, of the first [`RECORDED`]: bit n stands for byte n.
    pub bytes: u64,
    /// Bytes behind these were read.
    pub beyond: bool,
    /// The frame's length was read, or a load lay outside the frame.
    pub length: bool,
}

impl Reads {
    /// Notes a load of `size` bytes from byte `from` on, and whether they lie inside the frame.
    fn note(&mut self, from: u64, size: u64, inside: bool) {
        if !inside {
            self.length = true;
        } else if from + size > RECORDED.into() {
            self.beyond = true;
        } else {
            self.bytes |= ((1 << size) - 1) << from;
        }
    }
}

/// The registers of a run.
#[derive(Default)]
struct Registers {
    a: u32,
    x: u32,
    memory: [u32; MEMORY_WORDS],
    reads: Reads,
}

/// Runs a checked `program`; returns its result, and the bits on which that depends. A load outside the frame and a division by X = 0 end the run with 0.
pub(super) fn run(program: &[Instruction], frame: &(impl Frame + ?Sized)) -> (u32, Reads) {
    let mut state = Registers::default();
    let result = run_in(&mut state, program, frame);
    (result, state.reads)
}

fn run_in(state: &mut Registers, program: &[Instruction], frame: &(impl Frame + ?Sized)) -> u32 {
    let mut at = 0;
    // Jumps are forward and the last instruction returns.
    while let Some(&Instruction { code, jt, jf, k }) = program.get(at) {
        at += 1;
        match code & 7 {
            LD | LDX => match load(code, k, state, frame) {
                Some(value) if code & 7 == LD => state.a = value,
                Some(value) => state.x = value,
                None => return 0,
            },
            ST => state.memory[k as usize & (MEMORY_WORDS - 1)] = state.a,
            STX => state.memory[k as usize & (MEMORY_WORDS - 1)] = state.x,
            ALU => match calculate(code, state.a, if code & X == X { state.x } else { k }) {
                Some(value) => state.a = value,
                None => return 0,
            },
            JMP if code & 0xf0 == JA => at += k as usize,
            JMP => {
                let holds = compare(code, state.a, if code & X == X { state.x } else { k });
                at += usize::from(if holds { jt } else { jf });
            }
            RET => return if code & 0x18 == A { state.a } else { k },
            MISC if code & 0xf8 == TXA => state.a = state.x,
            MISC => state.x = state.a,
            _ => return 0,
        }
    }
    0
}

/// The value of a load; `None` outside the frame.
fn load(code: u16, k: u32, state: &mut Registers, frame: &(impl Frame + ?Sized)) -> Option<u32> {
    match code & 0xe0 {
        IMM => Some(k),
        LEN => {
            state.reads.length = true;
            Some(frame.length())
        }
        MEM => Some(state.memory[k as usize & (MEMORY_WORDS - 1)]),
        ABS => read(frame, k.into(), code, &mut state.reads),
        IND => read(frame, u64::from(state.x) + u64::from(k), code, &mut state.reads),
        MSH => read(frame, k.into(), code, &mut state.reads).map(|byte| (byte & 0xf) << 2),
        _ => None,
    }
}

/// Reads a word, half-word or byte, big-endian.
fn read(frame: &(impl Frame + ?Sized), from: u64, code: u16, reads: &mut Reads) -> Option<u32> {
    let size = match code & 0x18 {
        W => 4,
        H => 2,
        B => 1,
        _ => return None,
    };
    let mut bytes = [0; 4];
    let inside = from + size as u64 <= u64::from(frame.length());
    reads.note(from, size as u64, inside);
    (inside && frame.read(from as u32, &mut bytes[4 - size..])).then(|| u32::from_be_bytes(bytes))
}

/// Applies `operation` to the accumulator; `None` for a division by 0.
fn calculate(code: u16, a: u32, operand: u32) -> Option<u32> {
    match code & 0xf0 {
        ADD => Some(a.wrapping_add(operand)),
        SUB => Some(a.wrapping_sub(operand)),
        MUL => Some(a.wrapping_mul(operand)),
        DIV => a.checked_div(operand),
        MOD => a.checked_rem(operand),
        AND => Some(a & operand),
        OR => Some(a | operand),
        XOR => Some(a ^ operand),
        LSH => Some(a.checked_shl(operand).unwrap_or(0)),
        RSH => Some(a.checked_shr(operand).unwrap_or(0)),
        NEG => Some(a.wrapping_neg()),
        _ => None,
    }
}

fn compare(code: u16, a: u32, operand: u32) -> bool {
    match code & 0xf0 {
        JEQ => a == operand,
        JGT => a > operand,
        JGE => a >= operand,
        JSET => a & operand != 0,
        _ => false,
    }
}

const _: () = assert!(K == 0 && TAX == 0 && MEMORY_WORDS.is_power_of_two());

#[cfg(test)]
mod tests {
    use super::super::{Instruction, Program};
    use super::*;

    fn of(code: u16, k: u32) -> Instruction {
        Instruction { code, jt: 0, jf: 0, k }
    }

    fn result(program: &[Instruction], frame: &[u8]) -> u32 {
        Program::new(program).unwrap().run(frame)
    }

    #[test]
    fn loads_are_big_endian_and_stay_inside() {
        let frame = [1, 2, 3, 4, 5];
        let load = |size, at| result(&[of(LD | size | ABS, at), of(RET | A, 0)], &frame);
        assert_eq!(load(W, 0), 0x0102_0304);
        assert_eq!(load(H, 3), 0x0405);
        assert_eq!(load(B, 4), 5);
        assert_eq!([load(W, 2), load(H, 4), load(B, 5), load(W, 0xffdf_ffff)], [0; 4], "outside");
        let indirect = [of(LDX | IMM, u32::MAX), of(LD | B | IND, 2), of(RET, 7)];
        assert_eq!(result(&indirect, &frame), 0, "the sum of offsets does not wrap");
    }

    #[test]
    fn loads_reach_over_segments() {
        let program = Program::new(&[of(LD | W | ABS, 1), of(RET | A, 0)]).unwrap();
        let segments: [&[u8]; 4] = [&[0, 1], &[], &[2, 3], &[4, 5]];
        assert_eq!(program.run(&segments[..]), 0x0102_0304);
    }

    #[test]
    fn a_division_by_x_of_zero_selects_nothing() {
        assert_eq!(result(&[of(ALU | DIV | X, 0), of(RET, 9)], &[]), 0);
        assert_eq!(result(&[of(ALU | MOD | X, 0), of(RET, 9)], &[]), 0);
    }
}
