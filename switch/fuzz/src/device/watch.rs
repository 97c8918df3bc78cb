//! Listens to the switch's reads: changes memory between them, as the script says, and counts the **work** of a step.
//!
//! Only a fuzzer's build tells of reads (`--cfg fuzzing`); elsewhere nothing is heard, and scripts run without races.

use std::cell::RefCell;
use std::rc::Rc;

use super::memory::Memory;

/// Most work of a worker's step: reads, and lines of bytes that are copied.
#[cfg(fuzzing)]
const MOST: u64 = 100_000;

/// A change of memory that is to come.
struct Race {
    /// Reads until then.
    after: u32,
    memory: Rc<Memory>,
    offset: u64,
    bytes: Vec<u8>,
}

/// A ring with a driver that makes one more chain available whenever the switch looks.
struct Guarded {
    /// Where the switch sees its index.
    place: usize,
    memory: Rc<Memory>,
    offset: u64,
}

#[derive(Default)]
struct WatchState {
    races: Vec<Race>,
    guarded: Vec<Guarded>,
    #[cfg(fuzzing)]
    work: u64,
}

/// See the module.
pub struct Watch(Rc<RefCell<WatchState>>);

impl Watch {
    pub fn new() -> Self {
        let state = Rc::new(RefCell::new(WatchState::default()));
        #[cfg(fuzzing)]
        {
            let state = Rc::clone(&state);
            memlane::probe::listen(Some(Box::new(move |read| state.borrow_mut().hear(read))));
        }
        Self(state)
    }

    /// A step begins.
    pub fn begin_step(&self) {
        #[cfg(fuzzing)]
        {
            self.0.borrow_mut().work = 0;
        }
    }

    /// Has `bytes` written at `offset` of `memory` before the read after so many.
    pub fn race(&self, memory: &Rc<Memory>, after: u32, offset: u64, bytes: &[u8]) {
        let race = Race { after, memory: Rc::clone(memory), offset, bytes: bytes.to_vec() };
        self.0.borrow_mut().races.push(race);
    }

    /// From now on the available ring with its index at `offset` of `memory`, where the switch sees it at `place`, is never empty
    /// when it looks.
    pub fn keep(&self, memory: &Rc<Memory>, place: usize, offset: u64) {
        self.0.borrow_mut().guarded.push(Guarded { place, memory: Rc::clone(memory), offset });
    }

    /// No ring at `place` any more.
    pub fn keep_no_more(&self, place: usize) {
        self.0.borrow_mut().guarded.retain(|guarded| guarded.place != place);
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        #[cfg(fuzzing)]
        memlane::probe::listen(None);
    }
}

#[cfg(fuzzing)]
impl WatchState {
    fn hear(&mut self, read: memlane::probe::Read) {
        use memlane::probe::Read;
        self.work += 1;
        match read {
            Read::Index(place) => {
                for guarded in self.guarded.iter().filter(|guarded| guarded.place == place) {
                    let index = guarded.memory.word(guarded.offset).wrapping_add(1);
                    guarded.memory.write(guarded.offset, &index.to_le_bytes());
                }
            }
            Read::Entry => {}
            Read::Bytes(count) => self.work += count as u64 / 64,
        }
        assert!(self.work <= MOST, "too much work for a step");
        self.races.retain_mut(|race| {
            let due = race.after == 0;
            if due {
                race.memory.write(race.offset, &race.bytes);
            }
            race.after = race.after.wrapping_sub(1);
            !due
        });
    }
}
