//! The compiler of capture filters in the pcap-filter language: the system's libpcap.
//!
//! The library is loaded only when a filter is compiled, so only the process of `memlane capture` ever holds it.

#![expect(unsafe_code, reason = "libpcap is a C library")]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::NonNull;

use libloading::{Library, Symbol};
use thiserror::Error;

use super::{Instruction, MOST_INSTRUCTIONS};

/// Why a filter was not compiled.
#[derive(Debug, Error)]
pub enum Failure {
    /// The library is not installed.
    #[error(
        "filters are compiled by libpcap, which cannot be opened: install the package libpcap0.8 (Debian) or libpcap (Fedora): {0}"
    )]
    NoLibrary(#[source] libloading::Error),
    /// The filter is invalid.
    #[error("the filter '{filter}' does not compile: {message}")]
    Mistake {
        /// The filter.
        filter: String,
        /// libpcap's error message.
        message: String,
    },
}

/// File names of libpcap: Debian's, and that of other distributions.
const FILES: [&str; 3] = ["libpcap.so.0.8", "libpcap.so.1", "libpcap.so"];
/// Link type of Ethernet.
const EN10MB: c_int = 1;
/// The value of `tcpdump`: the network mask is unknown.
const NETMASK_UNKNOWN: u32 = 0xffff_ffff;
/// Longest filter in bytes: libpcap's parser takes memory and time by the length, and its depth of nesting is the stack's.
const LONGEST: usize = 64 << 10;

/// `struct bpf_program`.
#[repr(C)]
struct Compiled {
    length: u32,
    instructions: *const Instruction,
}

type OpenDead = unsafe extern "C" fn(c_int, c_int) -> *mut c_void;
type Compile = unsafe extern "C" fn(*mut c_void, *mut Compiled, *const c_char, c_int, u32) -> c_int;
type GetError = unsafe extern "C" fn(*mut c_void) -> *const c_char;
type FreeCode = unsafe extern "C" fn(*mut Compiled);
type Close = unsafe extern "C" fn(*mut c_void);

/// Compiles `filter` for Ethernet frames of which at most `snaplen` bytes are captured.
///
/// # Errors
/// libpcap is missing, or the filter has a mistake.
pub fn compile(filter: &str, snaplen: u32) -> Result<Vec<Instruction>, Failure> {
    let mistake = |message: String| Failure::Mistake { filter: filter.into(), message };
    if filter.len() > LONGEST {
        return Err(mistake(format!("it has {} bytes, and may have {LONGEST}", filter.len())));
    }
    let text = CString::new(filter).map_err(|_| mistake("it contains a zero byte".into()))?;
    let library = open()?;
    let handle = Handle::open(&library, snaplen)?;
    handle.compile(&text).map_err(mistake)
}

fn open() -> Result<Library, Failure> {
    let mut first = None;
    for file in FILES {
        // SAFETY: libpcap's initialisers do nothing but set up its own state.
        match unsafe { Library::new(file) } {
            Ok(library) => return Ok(library),
            Err(error) => first = first.or(Some(error)),
        }
    }
    Err(Failure::NoLibrary(first.expect("there is a name")))
}

/// A `pcap_t` without an interface, and the functions that work on it.
struct Handle<'l> {
    pcap: NonNull<c_void>,
    compile: Symbol<'l, Compile>,
    get_error: Symbol<'l, GetError>,
    free_code: Symbol<'l, FreeCode>,
    close: Symbol<'l, Close>,
}

impl<'l> Handle<'l> {
    fn open(library: &'l Library, snaplen: u32) -> Result<Self, Failure> {
        // SAFETY: the types are those of pcap/pcap.h, which are part of libpcap's stable interface.
        let (open_dead, compile, get_error, free_code, close) = unsafe {
            (
                library.get::<OpenDead>(b"pcap_open_dead\0").map_err(Failure::NoLibrary)?,
                library.get::<Compile>(b"pcap_compile\0").map_err(Failure::NoLibrary)?,
                library.get::<GetError>(b"pcap_geterr\0").map_err(Failure::NoLibrary)?,
                library.get::<FreeCode>(b"pcap_freecode\0").map_err(Failure::NoLibrary)?,
                library.get::<Close>(b"pcap_close\0").map_err(Failure::NoLibrary)?,
            )
        };
        let snaplen = c_int::try_from(snaplen).unwrap_or(c_int::MAX);
        // SAFETY: any link type and length may be asked for.
        let pcap = NonNull::new(unsafe { open_dead(EN10MB, snaplen) }).expect("libpcap has memory for a handle");
        Ok(Self { pcap, compile, get_error, free_code, close })
    }

    fn compile(&self, filter: &CStr) -> Result<Vec<Instruction>, String> {
        let mut compiled = Compiled { length: 0, instructions: std::ptr::null() };
        // SAFETY: handle, text and result live through the call.
        if unsafe { (self.compile)(self.pcap.as_ptr(), &raw mut compiled, filter.as_ptr(), 1, NETMASK_UNKNOWN) } != 0 {
            // SAFETY: the text is the handle's own and ends in a zero.
            let text = unsafe { CStr::from_ptr((self.get_error)(self.pcap.as_ptr())) };
            return Err(text.to_string_lossy().into_owned());
        }
        let length = compiled.length as usize;
        // SAFETY: libpcap has made so many instructions there, and they stay until they are freed below.
        let program = unsafe { std::slice::from_raw_parts(compiled.instructions, length) }.to_vec();
        // SAFETY: it was filled above, and is not used after this.
        unsafe { (self.free_code)(&raw mut compiled) };
        if length > MOST_INSTRUCTIONS {
            return Err(format!("it compiles to {length} instructions, and may have {MOST_INSTRUCTIONS}"));
        }
        Ok(program)
    }
}

impl Drop for Handle<'_> {
    fn drop(&mut self) {
        // SAFETY: the handle is not used after this.
        unsafe { (self.close)(self.pcap.as_ptr()) };
    }
}
