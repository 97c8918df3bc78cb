//! Chance that can be had again: the rolls of a test follow from its seed, which is printed.

#![allow(dead_code, reason = "each test file uses some of it")]

use std::time::{SystemTime, UNIX_EPOCH};

/// A generator of numbers (SplitMix64; Steele, Lea and Flood, 2014).
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// Dice with MEMLANE_SEED as their seed, or else a new one every time. Says which.
    pub fn new() -> Self {
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
        let seed = std::env::var("MEMLANE_SEED").ok().map_or_else(now, |seed| seed.parse().expect("MEMLANE_SEED is a number"));
        println!("MEMLANE_SEED={seed} repeats this");
        Self(seed)
    }

    /// Dice with this seed.
    pub fn of(seed: u64) -> Self {
        Self(seed)
    }

    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// A number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        (self.number() % end as u64) as usize
    }

    /// True once in `times`.
    pub fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    pub fn pick<T: Clone>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())].clone()
    }

    pub fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.number() as u8).collect()
    }
}
