//! Hostile input, thrown at memlane by chance: the bodies of the fuzz targets.
//!
//! - [`script`]: the fuzzer's bytes, read as numbers.
//! - [`addresses`], [`config`], [`control`], [`filter`], [`frame`], [`names`], [`network`], [`offload`], [`messages`], [`multicast`], [`pcap`], [`device`], [`recording`], [`resolver`], [`stream`], [`takeover`], [`twin`], [`xen`]: a target each. `run` takes bytes and panics if a promise is broken.
//! - [`parser`], [`judge`]: the parts of a frame and its right result, computed again, simply, and with nothing from the switch.
//! - [`seeds`]: the inputs that fuzzing begins with; the folder `seeds/` holds them under speaking names.
//!
//! The targets are run by `make fuzz`; `switch/daemon/tests/fuzz_corpus.rs` includes this file and runs every seed through them in `make test`.

pub mod addresses;
pub mod config;
pub mod control;
pub mod device;
#[path = "../../daemon/tests/dice/mod.rs"]
pub mod dice;
pub mod filter;
pub mod frame;
pub mod judge;
pub mod messages;
pub mod multicast;
pub mod names;
pub mod network;
pub mod offload;
pub mod parser;
pub mod pcap;
pub mod recording;
pub mod resolver;
pub mod script;
pub mod seeds;
pub mod stream;
pub mod takeover;
pub mod twin;
pub mod xen;
