//! Frames of a capture file, for `memlane why` and `memlane policy try`.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use pcap_parser::traits::PcapNGPacketBlock;
use pcap_parser::{
    Block, EnhancedPacketBlock, InterfaceDescriptionBlock, Linktype, OptionCode, PcapBlockOwned, PcapError, create_reader,
};

/// Most bytes of a file that are read, and of a block in it.
const MOST_BYTES: u64 = 256 << 20;
const MOST_BLOCK: usize = 1 << 20;
/// Most interfaces of a file, and most bytes of the name of one.
const MOST_INTERFACES: usize = 1 << 16;
const LONGEST_NAME: usize = 64;
/// Options of a frame (pcapng, "Enhanced Packet Block"): its direction, and its number.
const EPB_FLAGS: OptionCode = OptionCode(2);
const EPB_PACKETID: OptionCode = OptionCode(5);

/// A frame of a capture file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapturedFrame<'a> {
    /// Number of the frame in the file, from 1 on, as Wireshark counts.
    pub number: u64,
    /// Bytes of the frame in the file.
    pub bytes: &'a [u8],
    /// Original length of the frame.
    pub length: u32,
    /// Port of the frame, if `memlane capture` wrote the file.
    pub seen: Option<Seen<'a>>,
}

/// Where `memlane capture` saw a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen<'a> {
    /// Name of the port.
    pub port: &'a str,
    /// The port's guest transmitted the frame; else it received the frame, or was to receive it.
    pub transmitted: bool,
    /// Number of the frame, the same at each port.
    pub id: u64,
    /// The frame was dropped there.
    pub dropped: bool,
    /// Time, in seconds of the file's clock.
    pub second: u32,
}

/// An interface of a file.
#[derive(Debug)]
struct Interface {
    link: Linktype,
    name: String,
    /// Units of time stamps in a second.
    resolution: u64,
}

impl Interface {
    fn of(block: &InterfaceDescriptionBlock<'_>) -> Self {
        let name = block.if_name().and_then(Result::ok).filter(|name| name.len() <= LONGEST_NAME);
        let resolution = block.ts_resolution().filter(|resolution| *resolution > 0).unwrap_or(1_000_000);
        Self { link: block.linktype, name: name.unwrap_or_default().into(), resolution }
    }

    /// Where the frame of this `packet` was seen, as `memlane capture` writes it.
    fn seen(&self, packet: &EnhancedPacketBlock<'_>) -> Option<Seen<'_>> {
        let option = |code: OptionCode| packet.options.iter().find(|option| option.code == code).map(|option| &*option.value);
        let flags = u32::from_le_bytes(option(EPB_FLAGS)?.first_chunk().copied()?);
        let id = u64::from_le_bytes(option(EPB_PACKETID)?.first_chunk().copied()?);
        let dropped = option(OptionCode::Comment).is_some_and(|comment| !comment.is_empty());
        let (second, _) = packet.decode_ts(0, self.resolution);
        Some(Seen { port: &self.name, transmitted: flags & 3 == 2, id, dropped, second }).filter(|seen| !seen.port.is_empty())
    }
}

/// Why a capture file is not read to its end.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The file system refuses.
    #[error("it cannot be read: {0}")]
    Unreadable(#[from] io::Error),
    /// No known format.
    #[error("it is neither pcap nor pcapng, as tcpdump -w, Wireshark and `memlane capture` write it")]
    OtherFormat,
    /// A frame of another link type.
    #[error("frame {0} is not of Ethernet: capture on an Ethernet interface")]
    NotEthernet(u64),
    /// A block that breaks the format, or is too long.
    #[error("a block after frame {0} is broken or longer than 1 MiB")]
    Broken(u64),
    /// The file ends too early.
    #[error("it ends within a block after frame {0}: its writer was ended, or still writes")]
    CutOff(u64),
}

/// Calls `each` with the frames of a capture file, until it returns false.
///
/// # Errors
/// The errors of [`FileError`], and of `each`.
pub(super) fn read<E: From<FileError>>(path: &Path, mut each: impl FnMut(CapturedFrame) -> Result<bool, E>) -> Result<(), E> {
    let file = File::open(path).map_err(FileError::from)?;
    read_from(file, &mut each)
}

/// Like [`read`], from an open file.
///
/// # Errors
/// The errors of [`FileError`], and of `each`.
pub fn read_from<E: From<FileError>>(
    file: impl Read + Send,
    each: &mut impl FnMut(CapturedFrame) -> Result<bool, E>,
) -> Result<(), E> {
    let mut reader = create_reader(MOST_BLOCK, file.take(MOST_BYTES)).map_err(|_| FileError::OtherFormat)?;
    let (mut interfaces, mut number) = (Vec::new(), 0);
    loop {
        let (size, is_wanted) = match reader.next() {
            Ok((size, block)) => (size, take_block(&block, &mut interfaces, &mut number, each)?),
            Err(PcapError::Eof) => return Ok(()),
            Err(PcapError::UnexpectedEof) => return Err(FileError::CutOff(number).into()),
            Err(PcapError::Incomplete(_)) => (0, true),
            Err(_) => return Err(FileError::Broken(number).into()),
        };
        if !is_wanted {
            return Ok(());
        }
        if size > 0 {
            reader.consume(size);
            continue;
        }
        let before = reader.data().len();
        reader.refill().map_err(|_| FileError::Broken(number))?;
        // The buffer is full, and the block in it is incomplete.
        if reader.data().len() == before && !reader.reader_exhausted() {
            return Err(FileError::Broken(number).into());
        }
    }
}

/// Takes a block of a file with these interfaces; false to stop.
fn take_block<E: From<FileError>>(
    block: &PcapBlockOwned,
    interfaces: &mut Vec<Interface>,
    number: &mut u64,
    each: &mut impl FnMut(CapturedFrame) -> Result<bool, E>,
) -> Result<bool, E> {
    let (index, bytes, length, enhanced) = match block {
        PcapBlockOwned::LegacyHeader(header) => {
            interfaces.push(Interface { link: header.network, name: String::new(), resolution: 1 });
            return Ok(true);
        }
        PcapBlockOwned::NG(Block::SectionHeader(_)) => {
            interfaces.clear();
            return Ok(true);
        }
        PcapBlockOwned::NG(Block::InterfaceDescription(_)) if interfaces.len() >= MOST_INTERFACES => {
            return Err(FileError::Broken(*number).into());
        }
        PcapBlockOwned::NG(Block::InterfaceDescription(interface)) => {
            interfaces.push(Interface::of(interface));
            return Ok(true);
        }
        PcapBlockOwned::Legacy(packet) => (0, packet.data, packet.origlen, None),
        PcapBlockOwned::NG(Block::EnhancedPacket(packet)) => (packet.if_id, packet.packet_data(), packet.origlen, Some(packet)),
        PcapBlockOwned::NG(Block::SimplePacket(packet)) => (0, packet.packet_data(), packet.origlen, None),
        PcapBlockOwned::NG(_) => return Ok(true),
    };
    *number += 1;
    let interface = interfaces.get(index as usize).filter(|interface| interface.link == Linktype::ETHERNET);
    let interface = interface.ok_or(FileError::NotEthernet(*number))?;
    each(CapturedFrame { number: *number, bytes, length, seen: enhanced.and_then(|packet| interface.seen(packet)) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use memlane_observe::pcapng::{Direction, Interface, Packet, Writer};
    use proptest::prelude::*;

    /// Frames of a file: number, bytes and length.
    fn frames(file: &[u8]) -> Result<Vec<(u64, Vec<u8>, u32)>, FileError> {
        let mut all = Vec::new();
        read_from::<FileError>(file, &mut |frame| {
            all.push((frame.number, frame.bytes.to_vec(), frame.length));
            Ok(true)
        })?;
        Ok(all)
    }

    /// A file as tcpdump writes it (pcap-savefile(5)), of this link type, with a frame of 61 of 100 bytes.
    fn pcap(link: u32) -> Vec<u8> {
        let mut file = Vec::new();
        for word in [0xa1b2_c3d4, 0x0004_0002, 0, 0, 65_535, link, 1, 2, 61, 100_u32] {
            file.extend_from_slice(&word.to_le_bytes());
        }
        file.extend_from_slice(&[7; 61]);
        file
    }

    fn pcapng() -> Vec<u8> {
        let mut file = Vec::new();
        let mut writer = Writer::new(&mut file, "test").unwrap();
        let interface = writer.interface(Interface { name: "web", ..Interface::default() }).unwrap();
        for size in [60_u8, 61] {
            let bytes = vec![size; size.into()];
            let packet = Packet {
                interface,
                time: 1,
                direction: Direction::Outbound,
                id: 1,
                bytes: &bytes,
                length: u32::from(size),
                missed: 0,
                comment: "c",
            };
            writer.packet(&packet).unwrap();
        }
        file
    }

    #[test]
    fn pcap_and_pcapng_are_read() {
        assert_eq!(frames(&pcap(1)).unwrap(), [(1, vec![7; 61], 100)]);
        assert_eq!(frames(&pcapng()).unwrap(), [(1, vec![60; 60], 60), (2, vec![61; 61], 61)]);
    }

    #[test]
    fn the_ports_of_a_capture_of_memlane_are_read() {
        let mut seen = Vec::new();
        read_from::<FileError>(&pcapng()[..], &mut |frame| {
            seen.push(frame.seen.map(|seen| (seen.port.to_owned(), seen.transmitted, seen.id, seen.dropped)));
            Ok(true)
        })
        .unwrap();
        assert_eq!(seen, vec![Some(("web".to_owned(), true, 1, true)); 2]);
        read_from::<FileError>(&pcap(1)[..], &mut |frame| {
            assert_eq!(frame.seen, None);
            Ok(true)
        })
        .unwrap();
    }

    #[test]
    fn files_that_cannot_be_read_are_told() {
        let told = |file: &[u8]| frames(file).unwrap_err().to_string();
        assert!(
            told(b"").contains("neither pcap nor pcapng") && told(b"GIF89a and more of it").contains("neither pcap nor pcapng")
        );
        assert!(told(&pcap(101)).contains("frame 1 is not of Ethernet"));
        let whole = pcapng();
        assert!(told(&whole[..whole.len() - 5]).contains("ends within a block after frame 1"));
        let mut broken = whole.clone();
        let end = whole.len();
        broken[end - 4..].copy_from_slice(&[0xff; 4]);
        assert!(told(&broken).contains("after frame 1 is broken"), "{}", told(&broken));
        assert!(read::<FileError>(Path::new("/no/such/file"), |_| Ok(true)).unwrap_err().to_string().contains("No such file"));
    }

    #[test]
    fn reading_stops_when_told() {
        let mut seen = 0;
        read_from::<FileError>(&pcapng()[..], &mut |_| {
            seen += 1;
            Ok(false)
        })
        .unwrap();
        assert_eq!(seen, 1);
    }

    proptest! {
        #[test]
        fn a_damaged_file_ends_in_frames_or_an_error(place in 0_usize..500, byte: u8, end in 0_usize..500, is_new: bool) {
            let mut file = if is_new { pcapng() } else { pcap(1) };
            let length = file.len();
            file[place % length] = byte;
            file.truncate(end.max(1).min(length));
            let _ = frames(&file);
        }
    }
}
