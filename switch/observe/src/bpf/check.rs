//! The verifier of filter programs, with the rules of the kernel's `bpf_check_classic`.

use thiserror::Error;

use super::code::{
    A, ABS, ADD, ALU, AND, B, DIV, H, IMM, IND, JA, JEQ, JGE, JGT, JMP, JSET, K, LD, LDX, LEN, LSH, MEM, MISC, MOD, MSH, MUL, NEG,
    OR, RET, RSH, ST, STX, SUB, TAX, TXA, W, XOR,
};
use super::{Instruction, MEMORY_WORDS};

/// Most instructions of a program, as in the kernel (`BPF_MAXINSNS`).
pub const MOST_INSTRUCTIONS: usize = 4096;

/// Offsets from here on are the kernel's ancillary data (`SKF_LL_OFF`), not bytes of the frame: protocol, interface, mark of a
/// packet.
const FIRST_ANCILLARY: u32 = 0xffe0_0000;

/// Why a program is refused. Instructions are counted from 0, as `tcpdump -d` shows them.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum Fault {
    /// No instruction at all.
    #[error("the filter program is empty")]
    Empty,
    /// More than [`MOST_INSTRUCTIONS`].
    #[error("the filter program has {0} instructions, and may have {MOST_INSTRUCTIONS}")]
    TooLong(usize),
    /// An operation that classic BPF does not have.
    #[error("instruction {at} of the filter program has the unknown code {code:#x}")]
    UnknownCode {
        /// The instruction.
        at: usize,
        /// Code of the instruction.
        code: u16,
    },
    /// A jump past the last instruction.
    #[error("instruction {0} of the filter program jumps past the end")]
    JumpOutside(usize),
    /// A division by the constant 0.
    #[error("instruction {0} of the filter program divides by 0")]
    DivisionByZero(usize),
    /// A shift by 32 bits or more.
    #[error("instruction {0} of the filter program shifts by more than 31 bits")]
    ShiftTooFar(usize),
    /// A word of scratch memory that does not exist.
    #[error("instruction {0} of the filter program uses scratch memory outside its {MEMORY_WORDS} words")]
    MemoryOutside(usize),
    /// A word of scratch memory that some path to the instruction has not written.
    #[error("instruction {0} of the filter program reads a word of scratch memory that was not written on every path to it")]
    MemoryNotWritten(usize),
    /// A load of ancillary data, which exists in the kernel only.
    #[error(
        "instruction {0} of the filter program asks for metadata of a Linux packet, which a frame of this switch does not have"
    )]
    Ancillary(usize),
    /// The last instruction is no return.
    #[error("the filter program does not end in a return")]
    NoReturn,
}

/// Checks all rules.
pub(super) fn check(program: &[Instruction]) -> Result<(), Fault> {
    if program.is_empty() {
        return Err(Fault::Empty);
    }
    if program.len() > MOST_INSTRUCTIONS {
        return Err(Fault::TooLong(program.len()));
    }
    for (at, instruction) in program.iter().enumerate() {
        check_one(program.len(), at, *instruction)?;
    }
    let last = program[program.len() - 1].code;
    if last != RET | K && last != RET | A {
        return Err(Fault::NoReturn);
    }
    check_memory(program)
}

/// The rules for one instruction.
fn check_one(length: usize, at: usize, instruction: Instruction) -> Result<(), Fault> {
    let Instruction { code, jt, jf, k } = instruction;
    if !is_known(code) {
        return Err(Fault::UnknownCode { at, code });
    }
    let fails = match code & 7 {
        ALU if (code == ALU | DIV | K || code == ALU | MOD | K) && k == 0 => Some(Fault::DivisionByZero(at)),
        ALU if (code == ALU | LSH | K || code == ALU | RSH | K) && k > 31 => Some(Fault::ShiftTooFar(at)),
        LD | LDX if code & 0xe0 == MEM && k as usize >= MEMORY_WORDS => Some(Fault::MemoryOutside(at)),
        ST | STX if k as usize >= MEMORY_WORDS => Some(Fault::MemoryOutside(at)),
        LD if code & 0xe0 == ABS && k >= FIRST_ANCILLARY => Some(Fault::Ancillary(at)),
        JMP => {
            let farthest = if code == JMP | JA { k as usize } else { usize::from(jt.max(jf)) };
            (farthest >= length - at - 1).then_some(Fault::JumpOutside(at))
        }
        _ => None,
    };
    fails.map_or(Ok(()), Err)
}

/// Whether classic BPF has the operation.
fn is_known(code: u16) -> bool {
    let (mode, operation) = (code & 0xe0, code & 0xf0);
    match code & 7 {
        LD if code & !0xf8 == LD => match mode {
            ABS | IND => matches!(code & 0x18, W | H | B),
            IMM | LEN | MEM => code & 0x18 == W,
            _ => false,
        },
        LDX if code & !0xf8 == LDX => {
            matches!(code, c if c == LDX | W | IMM || c == LDX | W | LEN || c == LDX | W | MEM || c == LDX | B | MSH)
        }
        ST | STX => code == ST || code == STX,
        ALU => {
            let two = matches!(operation, ADD | SUB | MUL | DIV | MOD | AND | OR | XOR | LSH | RSH);
            (two && code & !0xf8 == ALU) || code == ALU | NEG
        }
        JMP => code == JMP | JA || (matches!(operation, JEQ | JGE | JGT | JSET) && code & !0xf8 == JMP),
        RET => code == RET | K || code == RET | A,
        MISC => code == MISC | TAX || code == MISC | TXA,
        _ => false,
    }
}

/// Checks that every word of scratch memory was written on every path to its read.
fn check_memory(program: &[Instruction]) -> Result<(), Fault> {
    // One bit per word; jumps are forward, so all paths to an instruction are known when it is reached.
    let mut at_entry = vec![u16::MAX; program.len()];
    let mut written = 0_u16;
    for (at, &Instruction { code, jt, jf, k }) in program.iter().enumerate() {
        written &= at_entry[at];
        match code & 7 {
            ST | STX => written |= 1 << k,
            LD | LDX if code & 0xe0 == MEM && written & (1 << k) == 0 => return Err(Fault::MemoryNotWritten(at)),
            JMP if code == JMP | JA => {
                at_entry[at + 1 + k as usize] &= written;
                written = u16::MAX;
            }
            JMP => {
                at_entry[at + 1 + usize::from(jt)] &= written;
                at_entry[at + 1 + usize::from(jf)] &= written;
                written = u16::MAX;
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::{Instruction, Program};
    use super::*;

    fn of(code: u16, jt: u8, jf: u8, k: u32) -> Instruction {
        Instruction { code, jt, jf, k }
    }

    fn refused(program: &[Instruction]) -> Fault {
        Program::new(program).unwrap_err()
    }

    const RETURN: Instruction = Instruction { code: RET, jt: 0, jf: 0, k: 1 };

    #[test]
    fn every_rule_refuses_what_breaks_it() {
        assert_eq!(refused(&[]), Fault::Empty);
        assert_eq!(refused(&[RETURN; MOST_INSTRUCTIONS + 1]), Fault::TooLong(MOST_INSTRUCTIONS + 1));
        assert_eq!(refused(&[of(0xffff, 0, 0, 0), RETURN]), Fault::UnknownCode { at: 0, code: 0xffff });
        assert_eq!(refused(&[of(JMP | JA, 0, 0, 1), RETURN]), Fault::JumpOutside(0));
        assert_eq!(refused(&[of(JMP | JA, 0, 0, u32::MAX), RETURN]), Fault::JumpOutside(0));
        assert_eq!(refused(&[of(JMP | JEQ, 0, 1, 0), RETURN]), Fault::JumpOutside(0));
        assert_eq!(refused(&[of(JMP | JEQ, 1, 0, 0), RETURN]), Fault::JumpOutside(0));
        assert_eq!(refused(&[of(ALU | DIV, 0, 0, 0), RETURN]), Fault::DivisionByZero(0));
        assert_eq!(refused(&[of(ALU | MOD, 0, 0, 0), RETURN]), Fault::DivisionByZero(0));
        assert_eq!(refused(&[of(ALU | LSH, 0, 0, 32), RETURN]), Fault::ShiftTooFar(0));
        assert_eq!(refused(&[of(ST, 0, 0, 16), RETURN]), Fault::MemoryOutside(0));
        assert_eq!(refused(&[of(LD | MEM, 0, 0, 16), RETURN]), Fault::MemoryOutside(0));
        assert_eq!(refused(&[of(LD | MEM, 0, 0, 3), RETURN]), Fault::MemoryNotWritten(0));
        assert_eq!(refused(&[of(LD | H | ABS, 0, 0, 0xffff_f000), RETURN]), Fault::Ancillary(0));
        assert_eq!(refused(&[of(LD, 0, 0, 0)]), Fault::NoReturn);
    }

    #[test]
    fn scratch_memory_must_be_written_on_every_path() {
        let jump = of(JMP | JEQ, 0, 1, 0);
        assert_eq!(refused(&[jump, of(ST, 0, 0, 2), of(LD | MEM, 0, 0, 2), RETURN]), Fault::MemoryNotWritten(2));
        assert!(Program::new(&[of(ST, 0, 0, 2), jump, of(LD, 0, 0, 2), of(LD | MEM, 0, 0, 2), RETURN]).is_ok());
    }

    #[test]
    fn a_jump_may_reach_the_last_instruction() {
        assert!(Program::new(&[of(JMP | JEQ, 1, 0, 0), RETURN, RETURN]).is_ok());
        assert!(Program::new(&[RETURN; MOST_INSTRUCTIONS]).is_ok());
    }
}
