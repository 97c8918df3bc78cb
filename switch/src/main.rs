//! The memlane command.
fn main() {}
