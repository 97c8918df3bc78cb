#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| memlane_fuzz::recording::run(data));
