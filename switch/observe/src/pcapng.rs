//! Captures in the pcapng format (draft-ietf-opsawg-pcapng), as Wireshark and tcpdump read it.
//!
//! A port is an interface. Directions are the guest's: transmitted frames (TX) are outbound, received frames (RX) inbound. All
//! appearances of a frame have one packet id. Times are nanoseconds since 1970.
//!
//! Blocks are little-endian. Each is assembled in memory of bounded size and written by a single call, so that a truncated file
//! ends between two blocks, or within one.

use std::io::{self, Write};

/// Most bytes of a frame that are written.
pub const MOST_SNAPLEN: u32 = 256 << 10;
/// Longest text of an option: lengths have 16 bits.
const LONGEST_TEXT: usize = u16::MAX as usize;

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const INTERFACE_STATISTICS: u32 = 5;
const ENHANCED_PACKET: u32 = 6;
const BYTE_ORDER: u32 = 0x1a2b_3c4d;
const ETHERNET: u16 = 1;

/// Numbers of options in blocks of each kind.
mod option {
    pub(super) const COMMENT: u16 = 1;
    pub(super) const SECTION_APPLICATION: u16 = 4;
    pub(super) const INTERFACE_NAME: u16 = 2;
    pub(super) const INTERFACE_DESCRIPTION: u16 = 3;
    pub(super) const INTERFACE_RESOLUTION: u16 = 9;
    pub(super) const INTERFACE_FILTER: u16 = 11;
    pub(super) const PACKET_FLAGS: u16 = 2;
    pub(super) const PACKET_DROP_COUNT: u16 = 4;
    pub(super) const PACKET_ID: u16 = 5;
    pub(super) const STATISTICS_RECEIVED: u16 = 4;
    pub(super) const STATISTICS_DROPPED: u16 = 5;
}

/// A port, as an interface of the capture.
#[derive(Clone, Copy, Debug, Default)]
pub struct Interface<'a> {
    /// Name of the interface.
    pub name: &'a str,
    /// Segment of the port.
    pub description: &'a str,
    /// Most bytes of a frame that are captured.
    pub snaplen: u32,
    /// The filter in the pcap-filter language; empty if there is none.
    pub filter: &'a str,
}

/// Number of an interface in the capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InterfaceId(pub u32);

/// Direction of a frame, seen from the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The guest received it, or was to receive it.
    Inbound,
    /// The guest transmitted it (TX).
    Outbound,
}

/// A frame at a port.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// The port.
    pub interface: InterfaceId,
    /// Nanoseconds since 1970.
    pub time: u64,
    /// Direction of the frame.
    pub direction: Direction,
    /// Number that all appearances of the frame share.
    pub id: u64,
    /// The first bytes.
    pub bytes: &'a [u8],
    /// Original length.
    pub length: u32,
    /// Frames that this interface has missed since its last packet.
    pub missed: u64,
    /// A comment, such as the drop reason; empty for none.
    pub comment: &'a str,
}

/// Counters of an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Frames that were to be captured.
    pub received: u64,
    /// Frames that were missed, because the capture's queue was full.
    pub dropped: u64,
}

/// Writes a capture.
#[derive(Debug)]
pub struct Writer<W> {
    to: W,
    block: Vec<u8>,
    interfaces: u32,
}

impl<W: Write> Writer<W> {
    /// Begins a capture by `application`.
    ///
    /// # Errors
    /// Writing fails.
    pub fn new(to: W, application: &str) -> io::Result<Self> {
        let mut writer = Self { to, block: Vec::new(), interfaces: 0 };
        writer.begin(SECTION_HEADER);
        writer.put(&BYTE_ORDER.to_le_bytes());
        writer.put(&1_u16.to_le_bytes());
        writer.put(&0_u16.to_le_bytes());
        // The length of the section is unknown.
        writer.put(&u64::MAX.to_le_bytes());
        writer.text(option::SECTION_APPLICATION, application);
        writer.end()?;
        Ok(writer)
    }

    /// Adds an interface; later ones may come after packets.
    ///
    /// # Errors
    /// Writing fails.
    pub fn interface(&mut self, interface: Interface<'_>) -> io::Result<InterfaceId> {
        self.begin(INTERFACE_DESCRIPTION);
        self.put(&ETHERNET.to_le_bytes());
        self.put(&0_u16.to_le_bytes());
        self.put(&interface.snaplen.min(MOST_SNAPLEN).to_le_bytes());
        self.text(option::INTERFACE_NAME, interface.name);
        self.text(option::INTERFACE_DESCRIPTION, interface.description);
        self.option(option::INTERFACE_RESOLUTION, &[9]);
        if !interface.filter.is_empty() {
            // A zero byte marks a filter in text form.
            let filter = format!("\0{}", interface.filter);
            self.text(option::INTERFACE_FILTER, &filter);
        }
        self.end()?;
        self.interfaces += 1;
        Ok(InterfaceId(self.interfaces - 1))
    }

    /// Adds a frame.
    ///
    /// # Errors
    /// Writing fails.
    ///
    /// # Panics
    /// The interface was not added before.
    pub fn packet(&mut self, packet: &Packet<'_>) -> io::Result<()> {
        assert!(packet.interface.0 < self.interfaces, "the interface was described before");
        let bytes = &packet.bytes[..packet.bytes.len().min(MOST_SNAPLEN as usize).min(packet.length as usize)];
        self.begin(ENHANCED_PACKET);
        self.put(&packet.interface.0.to_le_bytes());
        self.time(packet.time);
        self.put(&(bytes.len() as u32).to_le_bytes());
        self.put(&packet.length.to_le_bytes());
        self.padded(bytes);
        self.text(option::COMMENT, packet.comment);
        let direction: u32 = match packet.direction {
            Direction::Inbound => 1,
            Direction::Outbound => 2,
        };
        self.option(option::PACKET_FLAGS, &direction.to_le_bytes());
        if packet.missed > 0 {
            self.option(option::PACKET_DROP_COUNT, &packet.missed.to_le_bytes());
        }
        self.option(option::PACKET_ID, &packet.id.to_le_bytes());
        self.end()
    }

    /// Writes the counters of `interface` at `time`.
    ///
    /// # Errors
    /// Writing fails.
    pub fn statistics(&mut self, interface: InterfaceId, time: u64, statistics: Statistics) -> io::Result<()> {
        self.begin(INTERFACE_STATISTICS);
        self.put(&interface.0.to_le_bytes());
        self.time(time);
        self.option(option::STATISTICS_RECEIVED, &statistics.received.to_le_bytes());
        self.option(option::STATISTICS_DROPPED, &statistics.dropped.to_le_bytes());
        self.end()
    }

    /// Flushes the output.
    ///
    /// # Errors
    /// Writing fails.
    pub fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }

    /// The output.
    pub fn get_mut(&mut self) -> &mut W {
        &mut self.to
    }

    /// Begins a block of type `kind`; its length is filled in at its end.
    fn begin(&mut self, kind: u32) {
        self.block.clear();
        self.put(&kind.to_le_bytes());
        self.put(&[0; 4]);
    }

    /// Ends the options and the block, and writes it.
    fn end(&mut self) -> io::Result<()> {
        self.put(&[0; 4]);
        let length = (self.block.len() as u32 + 4).to_le_bytes();
        self.block[4..8].copy_from_slice(&length);
        self.put(&length);
        self.to.write_all(&self.block)
    }

    fn put(&mut self, bytes: &[u8]) {
        self.block.extend_from_slice(bytes);
    }

    fn padded(&mut self, bytes: &[u8]) {
        self.put(bytes);
        self.block.resize(self.block.len().next_multiple_of(4), 0);
    }

    /// Upper half, then lower.
    fn time(&mut self, time: u64) {
        self.put(&((time >> 32) as u32).to_le_bytes());
        self.put(&(time as u32).to_le_bytes());
    }

    fn option(&mut self, code: u16, value: &[u8]) {
        self.put(&code.to_le_bytes());
        self.put(&(value.len() as u16).to_le_bytes());
        self.padded(value);
    }

    /// A text option; left out if `text` is empty, and cut between two characters if it is too long.
    fn text(&mut self, code: u16, text: &str) {
        if !text.is_empty() {
            let end = text.floor_char_boundary(LONGEST_TEXT);
            self.option(code, &text.as_bytes()[..end]);
        }
    }
}
