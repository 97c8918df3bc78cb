//! `memlane capture`: frames of a running network as a pcapng file.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::Args;
use memlane_observe::bpf::compile::compile;

use super::Failure;
use super::net::{Net, Socket};
use super::output::{self, count};
use crate::control::capture::{CONTENT_TYPE, CaptureRequest};
use crate::control::client::StreamEnd;
use crate::id::MAX_PORTS;
use crate::tap::MOST_SNAPLEN;

/// Arguments of `memlane capture`.
#[derive(Debug, Args)]
pub(super) struct Capture {
    /// The network: its file, or its name while it runs.
    net: PathBuf,
    /// Names of ports; by default frames of all ports are captured.
    ports: Vec<String>,
    /// Only frames that are dropped; each has its reason as a comment.
    #[arg(long)]
    drops: bool,
    /// Only frames that this filter selects, in the language of pcap-filter(7), as "arp or udp port 53".
    #[arg(short, long, value_name = "FILTER", default_value = "", hide_default_value = true)]
    filter: String,
    /// The file; "-" for standard output.
    #[arg(short, long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// End after so many frames.
    #[arg(short, long, value_name = "FRAMES", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Most bytes of a frame.
    #[arg(long, value_name = "BYTES", default_value_t = MOST_SNAPLEN, value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_SNAPLEN)))]
    snaplen: u32,
    /// Keep the last FILES files of MIB mebibytes each, called FILE.1, FILE.2 and so on.
    #[arg(long, value_name = "FILES,MIB", requires = "write")]
    ring: Option<Ring>,
    #[command(flatten)]
    socket: Socket,
    /// Write nothing to standard error unless the capture fails.
    #[arg(skip)]
    quiet: bool,
}

/// Files that a capture goes round in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ring {
    files: u64,
    bytes: u64,
}

impl FromStr for Ring {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("it must be two numbers of at least 1, as 10,100 for ten files of 100 MiB; not '{text}'");
        let (files, mebibytes) = text.split_once(',').ok_or_else(wrong)?;
        let number = |text: &str| text.trim().parse().ok().filter(|&number: &u64| number > 0 && number <= 1_000_000);
        let (files, mebibytes) = number(files).zip(number(mebibytes)).ok_or_else(wrong)?;
        Ok(Self { files, bytes: mebibytes << 20 })
    }
}

impl Capture {
    /// A capture of the network at the socket `control`, or of its port `port`, for the reader of the named pipe `fifo`.
    pub(super) fn into_fifo(
        control: PathBuf,
        port: Option<String>,
        drops: bool,
        filter: &str,
        snaplen: u32,
        fifo: PathBuf,
    ) -> Self {
        let (net, socket) = (control.clone(), Socket { control: Some(control) });
        let (ports, write, filter) = (port.into_iter().collect(), Some(fifo), filter.to_owned());
        Self { net, ports, drops, filter, write, count: None, snaplen, ring: None, socket, quiet: true }
    }

    pub(super) fn run(&self) -> Result<(), Failure> {
        let program = if self.filter.is_empty() { Vec::new() } else { compiled(&self.filter, self.snaplen)? };
        let mut request = CaptureRequest {
            ports: self.ports.clone(),
            drops: self.drops,
            snaplen: self.snaplen,
            frames: self.count,
            filter: self.filter.clone(),
            program,
        };
        let mut blocks = Blocks::default();
        let mut file = self.file()?;
        let client = Net { net: Some(self.net.clone()), socket: self.socket.clone() }.client()?;
        loop {
            let body = serde_json::to_value(&request).map_err(Failure::running)?;
            let (again, mut is_silent) = (blocks.begun, true);
            let ended = client.follow("/v1/capture", CONTENT_TYPE, Some(&body), |part| {
                is_silent = false;
                if blocks.rest.is_empty() && blocks.frames == 0 && !std::mem::replace(&mut blocks.begun, true) {
                    self.note("the capture has begun; Ctrl-C ends it");
                }
                blocks.take(part, |block| file.write(block))
            });
            if !StreamEnd::goes_on(ended, again, is_silent)? || !blocks.begun {
                break;
            }
            blocks.rest.clear();
            request.frames = self.count.map(|count| count.saturating_sub(blocks.frames));
            if request.frames == Some(0) {
                break;
            }
        }
        let missed = if blocks.missed > 0 { format!(", {} missed", count(blocks.missed)) } else { String::new() };
        self.note(&format!("{} {} captured{missed}", count(blocks.frames), if blocks.frames == 1 { "frame" } else { "frames" }));
        Ok(())
    }

    fn note(&self, text: &str) {
        if !self.quiet {
            output::note(text);
        }
    }

    fn file(&self) -> Result<Output, Failure> {
        let is_stdout = self.write.as_deref().is_none_or(|path| path == Path::new("-"));
        match (&self.write, self.ring) {
            _ if is_stdout && io::stdout().is_terminal() => {
                let text = "a capture is binary and does not fit a terminal: name a file with -w, or pipe it, as in `memlane capture net.toml -w - | tcpdump -nr -`";
                Err(Failure::Configuration(text.into()))
            }
            (Some(path), Some(ring)) if !is_stdout => Ok(Output::Ring(Files::new(path, ring)?)),
            (Some(path), None) if !is_stdout => Ok(Output::File(create(path)?, path.clone())),
            _ if self.ring.is_some() => Err(Failure::Configuration("--ring needs a file: name one with -w".into())),
            _ => Ok(Output::Stdout),
        }
    }
}

/// The program of `filter`, as a request has it.
pub(super) fn compiled(filter: &str, snaplen: u32) -> Result<Vec<(u16, u8, u8, u32)>, Failure> {
    let program = compile(filter, snaplen).map_err(|error| Failure::Configuration(error.to_string()))?;
    Ok(program.into_iter().map(Into::into).collect())
}

fn create(path: &Path) -> Result<File, Failure> {
    File::create(path).map_err(|error| Failure::Running(format!("cannot write {}: {error}", path.display())))
}

/// Where a capture goes.
enum Output {
    Stdout,
    File(File, PathBuf),
    Ring(Files),
}

impl Output {
    /// Writes a whole block; false if its reader has gone.
    fn write(&mut self, block: &[u8]) -> Result<bool, Failure> {
        let (result, path) = match self {
            Self::Stdout => (io::stdout().lock().write_all(block), Path::new("standard output")),
            Self::File(file, path) => (file.write_all(block), path.as_path()),
            Self::Ring(files) => return files.write(block).map(|()| true),
        };
        match result {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
            Err(error) => Err(ended(path, &error)),
            Ok(()) => Ok(true),
        }
    }
}

fn ended(path: &Path, error: &io::Error) -> Failure {
    Failure::Running(format!("cannot write {}: {error}. The capture has ended; the network goes on", path.display()))
}

/// Files that a capture goes round in. Each can be read by itself: it begins with the capture's section, and describes the interfaces
/// that occur in it, with numbers of its own.
struct Files {
    path: PathBuf,
    ring: Ring,
    number: u64,
    file: File,
    written: u64,
    section: Vec<u8>,
    interfaces: Interfaces,
}

impl Files {
    fn new(path: &Path, ring: Ring) -> Result<Self, Failure> {
        let (file, interfaces) = (create(&numbered(path, 1))?, Interfaces::default());
        Ok(Self { path: path.into(), ring, number: 1, file, written: 0, section: Vec::new(), interfaces })
    }

    fn write(&mut self, block: &[u8]) -> Result<(), Failure> {
        match kind(block) {
            // Another one, of the process that has taken the network over: its interfaces have numbers of their own.
            SECTION if !self.section.is_empty() => {
                (self.section, self.interfaces) = (block.to_vec(), Interfaces::default());
                return self.turn();
            }
            SECTION => self.section = block.to_vec(),
            INTERFACE => {
                self.interfaces.add(block);
                return Ok(());
            }
            PACKET | STATISTICS => return self.write_at_interface(block),
            _ => {}
        }
        self.append(block)
    }

    /// Writes a block that begins with the number of its interface, and the interface before it if this file does not have it.
    fn write_at_interface(&mut self, block: &[u8]) -> Result<(), Failure> {
        let number = four(block, HEAD);
        let needed = (block.len() + self.interfaces.missing(number).map_or(0, <[u8]>::len)) as u64;
        if self.written > self.section.len() as u64 && self.written + needed > self.ring.bytes {
            self.turn()?;
        }
        let interface = self.interfaces.missing(number).map(<[u8]>::to_vec).unwrap_or_default();
        self.append(&interface)?;
        let mut block = block.to_vec();
        block[HEAD..][..4].copy_from_slice(&self.interfaces.enter(number).to_le_bytes());
        self.append(&block)
    }

    fn append(&mut self, block: &[u8]) -> Result<(), Failure> {
        self.written += block.len() as u64;
        self.file.write_all(block).map_err(|error| ended(&numbered(&self.path, self.number), &error))
    }

    /// Goes on in the next file, and removes the oldest.
    fn turn(&mut self) -> Result<(), Failure> {
        self.number += 1;
        let path = numbered(&self.path, self.number);
        self.file = create(&path)?;
        self.file.write_all(&self.section).map_err(|error| ended(&path, &error))?;
        self.written = self.section.len() as u64;
        self.interfaces.places.clear();
        if let Some(oldest) = self.number.checked_sub(self.ring.files) {
            // The file may have been moved away.
            let _ = std::fs::remove_file(numbered(&self.path, oldest));
        }
        Ok(())
    }
}

/// Interfaces of a capture that goes round in files.
#[derive(Debug, Default)]
struct Interfaces {
    /// Blocks of those used last, by their numbers in the capture, and when each was used.
    known: HashMap<u32, (u64, Vec<u8>)>,
    added: u32,
    uses: u64,
    /// Numbers in the present file.
    places: HashMap<u32, u32>,
}

impl Interfaces {
    /// Adds the next interface of the capture. Ports come and go: the one that was unused for longest is forgotten.
    fn add(&mut self, block: &[u8]) {
        if self.known.len() >= MOST_INTERFACES {
            let oldest = self.known.iter().min_by_key(|(_, (used, _))| *used).map(|(number, _)| *number);
            oldest.and_then(|oldest| self.known.remove(&oldest));
        }
        self.uses += 1;
        self.known.insert(self.added, (self.uses, block.to_vec()));
        self.added += 1;
    }

    /// The block of interface `number`, if the present file does not have it; one without a name if it was forgotten.
    fn missing(&self, number: u32) -> Option<&[u8]> {
        let block = || self.known.get(&number).map_or(&NAMELESS[..], |(_, block)| block);
        (!self.places.contains_key(&number)).then(block)
    }

    /// Number of the interface in the present file, where it is a new one if it has none.
    fn enter(&mut self, number: u32) -> u32 {
        self.uses += 1;
        if let Some((used, _)) = self.known.get_mut(&number) {
            *used = self.uses;
        }
        let next = self.places.len() as u32;
        *self.places.entry(number).or_insert(next)
    }
}

fn numbered(path: &Path, number: u64) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{number}"));
    name.into()
}

const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const STATISTICS: u32 = 5;
const PACKET: u32 = 6;
/// Most interfaces of which descriptions are kept for further files: more than there are ports at a time.
const MOST_INTERFACES: usize = 2 * MAX_PORTS;
/// An interface description block for Ethernet, with stamps in nanoseconds and without a name.
const NAMELESS: [u8; 32] = [1, 0, 0, 0, 32, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 9, 0, 1, 0, 9, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0, 0];
/// Bytes of a block before its length is known.
const HEAD: usize = 8;

fn four(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |bytes| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
}

fn kind(block: &[u8]) -> u32 {
    four(block, 0)
}

/// The blocks of a capture, whole, however the network sends them.
#[derive(Debug, Default)]
struct Blocks {
    rest: Vec<u8>,
    begun: bool,
    frames: u64,
    /// Of each interface, as its last statistics say; those of the present section begin at `section`.
    dropped: Vec<u64>,
    section: usize,
    missed: u64,
}

impl Blocks {
    /// Hands each whole block to `write`, until that is false.
    fn take(&mut self, part: &[u8], mut write: impl FnMut(&[u8]) -> Result<bool, Failure>) -> Result<bool, Failure> {
        self.rest.extend_from_slice(part);
        let mut at = 0;
        while self.rest.len() - at >= HEAD {
            let length = four(&self.rest, at + 4) as usize;
            if length < HEAD + 4 {
                return Err(Failure::Running(
                    "the response is not a capture: does another version of memlane run the network?".into(),
                ));
            }
            if self.rest.len() - at < length {
                break;
            }
            let block = &self.rest[at..at + length];
            if !write(block)? {
                return Ok(false);
            }
            count_block(block, &mut self.frames, &mut self.dropped, &mut self.section);
            at += length;
        }
        self.rest.drain(..at);
        self.missed = self.dropped.iter().sum();
        Ok(true)
    }
}

fn count_block(block: &[u8], frames: &mut u64, dropped: &mut Vec<u64>, section: &mut usize) {
    match kind(block) {
        SECTION => *section = dropped.len(),
        INTERFACE => dropped.push(0),
        PACKET => *frames += 1,
        // Options of eight bytes each: received, then dropped.
        STATISTICS => {
            if let Some(place) = dropped.get_mut(*section + four(block, HEAD) as usize) {
                *place = u64::from(four(block, 36)) | u64::from(four(block, 40)) << 32;
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memlane_observe::pcapng::{Direction, Interface, InterfaceId, Packet, Statistics, Writer};

    fn capture(frames: usize) -> Vec<u8> {
        let mut writer = Writer::new(Vec::new(), "test").unwrap();
        writer.interface(Interface { name: "web", ..Interface::default() }).unwrap();
        let packet = Packet {
            interface: InterfaceId(0),
            time: 0,
            direction: Direction::Inbound,
            id: 1,
            bytes: &[7; 1000],
            length: 1000,
            missed: 0,
            comment: "",
        };
        (0..frames).for_each(|_| writer.packet(&packet).unwrap());
        writer.statistics(InterfaceId(0), 0, Statistics { received: 9, dropped: 5 << 33 }).unwrap();
        writer.get_mut().clone()
    }

    #[test]
    fn blocks_are_whole_however_they_come() {
        let capture = capture(3);
        for size in [1, 7, 8, 100, capture.len()] {
            let (mut blocks, mut written) = (Blocks::default(), Vec::new());
            for part in capture.chunks(size) {
                let write = |block: &[u8]| {
                    assert_eq!(four(block, 4) as usize, block.len());
                    written.extend_from_slice(block);
                    Ok(true)
                };
                assert!(blocks.take(part, write).unwrap());
            }
            assert_eq!((written == capture, blocks.frames, blocks.missed), (true, 3, 5 << 33), "{size}");
        }
        assert!(Blocks::default().take(&[0; 8], |_| Ok(true)).is_err(), "no capture");
    }

    #[test]
    fn a_ring_of_files_keeps_the_last_ones_and_each_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("c");
        let mut files = Files::new(&path, Ring { files: 2, bytes: 10_000 }).unwrap();
        let mut blocks = Blocks::default();
        blocks.take(&capture(100), |block| files.write(block).map(|()| true)).unwrap();
        drop(files);
        let mut left: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        left.sort();
        assert_eq!(left, [numbered(&path, 11), numbered(&path, 12)]);
        for path in left {
            let file = std::fs::read(path).unwrap();
            assert!(file.len() <= 10_000 && kind(&file) == SECTION);
            let mut blocks = Blocks::default();
            blocks.take(&file, |_| Ok(true)).unwrap();
            assert!(blocks.rest.is_empty() && blocks.dropped.len() == 1 && blocks.frames > 0);
        }
    }

    /// Names of the interfaces of a file, and of that of each packet.
    fn names(file: &[u8]) -> (Vec<String>, Vec<String>) {
        let (mut interfaces, mut packets) = (Vec::new(), Vec::new());
        let each = |block: &[u8]| {
            match kind(block) {
                // The first option, behind link type and snaplen, is the name.
                INTERFACE if block[16] == 2 => {
                    interfaces.push(String::from_utf8(block[20..][..usize::from(block[18])].to_vec()).unwrap());
                }
                INTERFACE => interfaces.push(String::new()),
                PACKET => packets.push(interfaces[four(block, HEAD) as usize].clone()),
                _ => {}
            }
            Ok(true)
        };
        Blocks::default().take(file, each).unwrap();
        (interfaces, packets)
    }

    #[test]
    fn a_ring_of_files_describes_only_the_interfaces_that_occur() {
        const LATER: u32 = MOST_INTERFACES as u32 + 1000;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("c");
        let mut files = Files::new(&path, Ring { files: 3, bytes: 100_000 }).unwrap();
        let mut writer = Writer::new(Vec::new(), "test").unwrap();
        let mut packet = Packet {
            interface: InterfaceId(0),
            time: 0,
            direction: Direction::Inbound,
            id: 1,
            bytes: &[7; 60],
            length: 60,
            missed: 0,
            comment: "",
        };
        let mut blocks = Blocks::default();
        writer.interface(Interface { name: "stays", ..Interface::default() }).unwrap();
        writer.interface(Interface { name: "idle", ..Interface::default() }).unwrap();
        for number in 2..LATER {
            packet.interface = writer.interface(Interface { name: &format!("port{number}"), ..Interface::default() }).unwrap();
            writer.packet(&packet).unwrap();
            packet.interface = InterfaceId(0);
            writer.packet(&packet).unwrap();
            let part = std::mem::take(writer.get_mut());
            blocks.take(&part, |block| files.write(block).map(|()| true)).unwrap();
            assert!(files.interfaces.known.len() <= MOST_INTERFACES);
        }
        // Not seen for so long that its name is forgotten.
        packet.interface = InterfaceId(1);
        writer.packet(&packet).unwrap();
        blocks.take(writer.get_mut(), |block| files.write(block).map(|()| true)).unwrap();
        let number = files.number;
        drop(files);
        let mut seen = Vec::new();
        for number in number - 2..=number {
            let file = std::fs::read(numbered(&path, number)).unwrap();
            assert!(file.len() <= 100_000);
            let (interfaces, packets) = names(&file);
            assert!(interfaces.len() <= packets.len());
            seen.extend(packets);
        }
        let pairs = (LATER - seen.len() as u32 / 2..LATER).flat_map(|number| [format!("port{number}"), "stays".into()]);
        let expected: Vec<String> = pairs.chain([String::new()]).collect();
        let later = expected.len().min(seen.len());
        assert!(later > 500 && expected[expected.len() - later..] == seen[seen.len() - later..]);
    }

    #[test]
    fn a_ring_is_two_numbers() {
        assert_eq!("10,100".parse(), Ok(Ring { files: 10, bytes: 100 << 20 }));
        for wrong in ["", "1", "0,1", "1,0", "a,b", "1,2,3", "99999999999999999999,1"] {
            assert!(wrong.parse::<Ring>().is_err(), "{wrong}");
        }
    }
}
