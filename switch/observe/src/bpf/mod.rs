//! Classic BPF: the programs to which capture filters are compiled.
//!
//! `memlane capture` has libpcap compile the filter ([`compile`]) and sends the instructions. The switch accepts them only as a
//! [`Program`], which has passed every check that the kernel makes of a socket filter, so that a program from a foreign compiler
//! can neither loop nor read outside the frame.

mod check;
pub mod compile;
mod run;

use serde::{Deserialize, Serialize};

pub use check::{Fault, MOST_INSTRUCTIONS};
pub use run::{Frame, RECORDED, Reads};

/// Words of scratch memory that a program has.
pub const MEMORY_WORDS: usize = 16;

/// One instruction, as `struct sock_filter` of the kernel and `struct bpf_insn` of libpcap; as JSON the array `[code, jt, jf, k]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(u16, u8, u8, u32)", into = "(u16, u8, u8, u32)")]
#[repr(C)]
pub struct Instruction {
    /// Operation.
    pub code: u16,
    /// Instructions to skip if the condition holds.
    pub jt: u8,
    /// Instructions to skip if it does not.
    pub jf: u8,
    /// Operand.
    pub k: u32,
}

impl From<(u16, u8, u8, u32)> for Instruction {
    fn from((code, jt, jf, k): (u16, u8, u8, u32)) -> Self {
        Self { code, jt, jf, k }
    }
}

impl From<Instruction> for (u16, u8, u8, u32) {
    fn from(instruction: Instruction) -> Self {
        (instruction.code, instruction.jt, instruction.jf, instruction.k)
    }
}

/// A checked program: every run of it ends, with at most as many steps as it has instructions, and reads within the frame only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    instructions: Box<[Instruction]>,
}

impl Program {
    /// Checks `instructions`.
    ///
    /// # Errors
    /// The first rule that they break.
    pub fn new(instructions: &[Instruction]) -> Result<Self, Fault> {
        check::check(instructions)?;
        Ok(Self { instructions: instructions.into() })
    }

    /// The instructions.
    pub fn instructions(&self) -> &[Instruction] {
        &self.instructions
    }

    /// How many bytes of `frame` to capture; 0 if the frame is not selected.
    pub fn run(&self, frame: &(impl Frame + ?Sized)) -> u32 {
        self.trace(frame).0
    }

    /// The result of [`Self::run`], and the bits that it depends on: if that is neither the length nor bytes beyond the recorded ones, every frame of at
    /// least [`RECORDED`] bytes that agrees in the recorded ones has the same result.
    pub fn trace(&self, frame: &(impl Frame + ?Sized)) -> (u32, Reads) {
        run::run(&self.instructions, frame)
    }
}

/// Fields of an instruction's code, as the kernel's `linux/bpf_common.h` names them.
mod code {
    pub(super) const LD: u16 = 0x00;
    pub(super) const LDX: u16 = 0x01;
    pub(super) const ST: u16 = 0x02;
    pub(super) const STX: u16 = 0x03;
    pub(super) const ALU: u16 = 0x04;
    pub(super) const JMP: u16 = 0x05;
    pub(super) const RET: u16 = 0x06;
    pub(super) const MISC: u16 = 0x07;

    pub(super) const W: u16 = 0x00;
    pub(super) const H: u16 = 0x08;
    pub(super) const B: u16 = 0x10;

    pub(super) const IMM: u16 = 0x00;
    pub(super) const ABS: u16 = 0x20;
    pub(super) const IND: u16 = 0x40;
    pub(super) const MEM: u16 = 0x60;
    pub(super) const LEN: u16 = 0x80;
    pub(super) const MSH: u16 = 0xa0;

    pub(super) const ADD: u16 = 0x00;
    pub(super) const SUB: u16 = 0x10;
    pub(super) const MUL: u16 = 0x20;
    pub(super) const DIV: u16 = 0x30;
    pub(super) const OR: u16 = 0x40;
    pub(super) const AND: u16 = 0x50;
    pub(super) const LSH: u16 = 0x60;
    pub(super) const RSH: u16 = 0x70;
    pub(super) const NEG: u16 = 0x80;
    pub(super) const MOD: u16 = 0x90;
    pub(super) const XOR: u16 = 0xa0;

    pub(super) const JA: u16 = 0x00;
    pub(super) const JEQ: u16 = 0x10;
    pub(super) const JGT: u16 = 0x20;
    pub(super) const JGE: u16 = 0x30;
    pub(super) const JSET: u16 = 0x40;

    pub(super) const K: u16 = 0x00;
    pub(super) const X: u16 = 0x08;
    pub(super) const A: u16 = 0x10;

    pub(super) const TAX: u16 = 0x00;
    pub(super) const TXA: u16 = 0x80;
}
