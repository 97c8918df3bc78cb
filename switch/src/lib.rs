//! memlane
