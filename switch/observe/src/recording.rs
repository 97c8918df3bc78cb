//! The format of recordings: each verdict with the headers of its frame, and with the answers of shared state by which it can be made again.
//!
//! A file is [`MAGIC`], the [`VERSION`] and a description (JSON), and then **blocks**. A block has a kind, the worker that it is of, its length, and the
//! CRC-32 of all that (IEEE 802.3, section 3.2.9), and then its bytes: a **state** that frames refer to by its number (JSON), **frames** of one worker in
//! their order, a **clock**, a **gap** (frames that were recorded and overwritten), or the **end**. All numbers are little-endian. A block of frames has
//! records, each behind its length.
//!
//! The reader takes files from anywhere: a block has at most [`LONGEST_BLOCK`] bytes, a record at most [`LONGEST_RECORD`], and nothing is read beyond them.

use std::io::{self, Read};

use thiserror::Error;

/// First bytes of a recording.
pub const MAGIC: [u8; 8] = *b"MEMLANER";
/// Version of the format; a reader takes no other.
pub const VERSION: u32 = 2;
/// Most bytes of a block.
pub const LONGEST_BLOCK: usize = 16 << 20;
/// Most bytes of a record.
pub const LONGEST_RECORD: usize = u16::MAX as usize;
/// Most bytes of a record without copies of a flooded frame.
pub const LONGEST_FRAME: usize = HEAD + HEADER + 2 * u8::MAX as usize;

/// Bytes of a record before its variable part, and of the frame's virtio-net header.
const HEAD: usize = 40;
const HEADER: usize = 12;
/// Bytes of a block before its content.
const BLOCK: usize = 12;

/// A flag of a record: the sender requests an offload (GSO, checksum offload) by its virtio-net header, which is recorded.
pub const HAS_HEADER: u8 = 1;
/// Gates decide in the broadcast domain: isolation, VLANs.
pub const IS_GATED: u8 = 2;
/// The sender is isolated.
pub const IS_ISOLATED: u8 = 4;
/// The sender drops frames to reserved multicast groups.
pub const DROPS_RESERVED: u8 = 8;
/// The frame is longer than the least path MTU of the segment: the path MTU to its receiver was looked at.
pub const IS_LONG: u8 = 16;
/// The frame was dropped before a verdict, with the drop reason of the record.
pub const IS_EARLY: u8 = 32;
/// Not all answers of shared state fit into the record.
pub const IS_SHORT: u8 = 64;
/// The verdict was that of an earlier frame, by the match mask of the flow cache or on the fast path.
pub const IS_CACHED: u8 = 128;

/// Kinds of records.
pub const FRAME: u8 = 1;
/// Copies of a flooded frame at one worker.
pub const COPIES: u8 = 2;
/// Frames of the fast path, all with one verdict; [`frames`] reads them as frames of their own.
pub const BATCH: u8 = 3;
/// Bytes of a frame of a batch before its headers.
pub const PART: usize = 5;
/// In place of the number of a frame's headers: frames like the one before, as many as its length states.
pub const AGAIN: u8 = u8::MAX;
/// Most such frames.
pub const MOST_AGAIN: u32 = 256;

/// Places of the length, the reason, the sequel and the MTU in an encoded record.
pub const LENGTH_AT: usize = 0;
/// See [`LENGTH_AT`].
pub const REASON_AT: usize = 33;
/// See [`LENGTH_AT`].
pub const SEQUEL_AT: usize = 34;
/// See [`LENGTH_AT`].
pub const MTU_AT: usize = 38;

/// Kinds of blocks.
const STATE: u8 = 1;
const FRAMES: u8 = 2;
const CLOCK: u8 = 3;
const GAP: u8 = 4;
const END: u8 = 5;

/// The record of a frame: the inputs of its verdict, and the verdict. Numbers have the meaning that the recorder gives them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Frame<'b> {
    /// [`FRAME`], [`COPIES`] or [`BATCH`].
    pub kind: u8,
    /// Flags, see above.
    pub flags: u8,
    /// Number of the sending port.
    pub port: u16,
    /// Number of the port's transmit queue (virtqueue).
    pub queue: u16,
    /// Moment, in cycles of the clock of the recording.
    pub moment: u64,
    /// Bytes of the whole frame.
    pub length: u32,
    /// State of the sender.
    pub sender: u32,
    /// State of the policy rules; 0 for none.
    pub filter: u32,
    /// Number of the receiving port.
    pub to: u16,
    /// VLAN of a VLAN tag that is added, or of a flooded frame.
    pub tag: u16,
    /// Kind of the verdict.
    pub verdict: u8,
    /// Number of the drop reason.
    pub reason: u8,
    /// Sequel of the frame behind the verdict: too long for the path MTU, or a rate limit of floods.
    pub sequel: u8,
    /// Path MTU of a frame with [`IS_LONG`]; 0 for none.
    pub mtu: u16,
    /// virtio-net header of the sender; all zeroes without [`HAS_HEADER`].
    pub header: [u8; HEADER],
    /// Answers of shared state, in the order of the questions.
    pub answers: &'b [u8],
    /// First bytes of the frame, without payload.
    pub bytes: &'b [u8],
    /// Of a flooded frame: for each port its [`FloodCopy`]. Of a batch: each frame's length, the number of its bytes, and those;
    /// or [`AGAIN`].
    pub parts: &'b [u8],
}

impl<'b> Frame<'b> {
    /// Writes the record without its parts to `to`; returns its bytes. Longer parts than 255 bytes are cut.
    pub fn encode(&self, to: &mut [u8; LONGEST_FRAME]) -> usize {
        let (answers, bytes) = (cut(self.answers), cut(self.bytes));
        let (lengths, has_header) = ([answers.len() as u8, bytes.len() as u8], self.flags & HAS_HEADER != 0);
        let length = HEAD + usize::from(has_header) * HEADER + answers.len() + bytes.len();
        let mut out = Out { to, at: 0 };
        out.put((length.saturating_add(self.parts.len()).min(LONGEST_RECORD) as u16).to_le_bytes());
        out.put([self.kind, self.flags]);
        out.put(self.port.to_le_bytes());
        out.put(self.queue.to_le_bytes());
        out.put(self.moment.to_le_bytes());
        out.put(self.length.to_le_bytes());
        out.put(self.sender.to_le_bytes());
        out.put(self.filter.to_le_bytes());
        out.put(self.to.to_le_bytes());
        out.put(self.tag.to_le_bytes());
        out.put([self.verdict, self.reason, self.sequel, lengths[0], lengths[1], 0]);
        out.put(self.mtu.to_le_bytes());
        if has_header {
            out.put(self.header);
        }
        out.put_slice(answers);
        out.put_slice(bytes);
        out.at
    }

    /// The record at the beginning of `bytes`, and the bytes behind it; `None` if there is none, or it is malformed.
    pub fn decode(bytes: &'b [u8]) -> Option<(Self, &'b [u8])> {
        let length = usize::from(u16::from_le_bytes(*bytes.first_chunk()?));
        let (record, rest) = bytes.split_at_checked(length)?;
        let head: &[u8; HEAD] = record.first_chunk()?;
        let two = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
        let four = |at: usize| u32::from_le_bytes(std::array::from_fn(|n| head[at + n]));
        let (kind, flags) = (head[2], head[3]);
        let (header, tail) = match flags & HAS_HEADER {
            0 => ([0; HEADER], record.get(HEAD..)?),
            _ => (*record.get(HEAD..)?.first_chunk()?, record.get(HEAD + HEADER..)?),
        };
        let (answers, tail) = tail.split_at_checked(head[35].into())?;
        let (bytes, parts) = tail.split_at_checked(head[36].into())?;
        let is_whole = match kind {
            FRAME => parts.is_empty(),
            COPIES | BATCH => true,
            _ => false,
        };
        let frame = Self {
            kind,
            flags,
            port: two(4),
            queue: two(6),
            moment: u64::from_le_bytes(std::array::from_fn(|n| head[8 + n])),
            length: four(16),
            sender: four(20),
            filter: four(24),
            to: two(28),
            tag: two(30),
            verdict: head[32],
            reason: head[33],
            sequel: head[34],
            mtu: two(38),
            header,
            answers,
            bytes,
            parts,
        };
        is_whole.then_some((frame, rest))
    }

    /// The copies of a flooded frame, until the first malformed one.
    pub fn each_copy(&self) -> impl Iterator<Item = FloodCopy<'b>> {
        let mut rest = self.parts;
        std::iter::from_fn(move || {
            let (copy, after) = FloodCopy::decode(rest)?;
            rest = after;
            Some(copy)
        })
    }
}

impl Frame<'_> {
    /// Frames in the record.
    pub fn count(&self) -> u64 {
        let mut batch = Batch { head: *self, last: None, again: 0 };
        if self.kind != BATCH {
            return 1;
        }
        let mut count = 0;
        while batch.next().is_some() {
            count += 1 + u64::from(std::mem::take(&mut batch.again));
        }
        count
    }
}

/// The frames of `records`, which are one behind the other, up to the first malformed one.
pub fn frames(records: &[u8]) -> Frames<'_> {
    Frames { rest: records, batch: None, is_whole: true }
}

/// See [`frames`].
#[derive(Clone, Debug)]
pub struct Frames<'b> {
    rest: &'b [u8],
    batch: Option<Batch<'b>>,
    is_whole: bool,
}

/// A batch that is read.
#[derive(Clone, Debug)]
struct Batch<'b> {
    /// Record of the batch, with the parts that are left.
    head: Frame<'b>,
    last: Option<Frame<'b>>,
    /// Frames to come that are like the last one.
    again: u32,
}

impl<'b> Batch<'b> {
    /// The next frame; `None` if none is left, or it is malformed.
    fn next(&mut self) -> Option<Frame<'b>> {
        if self.again == 0 {
            let (length, rest) = self.head.parts.split_first_chunk()?;
            let (length, (&count, rest)) = (u32::from_le_bytes(*length), rest.split_first()?);
            if count != AGAIN {
                let (bytes, rest) = rest.split_at_checked(count.into())?;
                self.head.parts = rest;
                self.last = Some(Frame { kind: FRAME, length, bytes, parts: &[], ..self.head });
                return self.last;
            }
            if self.last.is_none() || !(1..=MOST_AGAIN).contains(&length) {
                return None;
            }
            (self.head.parts, self.again) = (rest, length);
        }
        self.again -= 1;
        self.last
    }
}

impl Frames<'_> {
    /// Whether all records were read, and none was malformed.
    pub fn are_over(&self) -> bool {
        self.is_whole && self.batch.is_none() && self.rest.is_empty()
    }
}

impl<'b> Iterator for Frames<'b> {
    type Item = Frame<'b>;

    fn next(&mut self) -> Option<Frame<'b>> {
        loop {
            if let Some(batch) = &mut self.batch {
                if let Some(frame) = batch.next() {
                    return Some(frame);
                }
                self.is_whole &= batch.head.parts.is_empty();
                self.batch = None;
            }
            let (frame, rest) = Frame::decode(self.rest)?;
            self.rest = rest;
            if frame.kind != BATCH {
                return Some(frame);
            }
            self.batch = Some(Batch { head: frame, last: None, again: 0 });
        }
    }
}

fn cut(bytes: &[u8]) -> &[u8] {
    bytes.get(..u8::MAX.into()).unwrap_or(bytes)
}

/// A buffer that is filled from its beginning.
struct Out<'o> {
    to: &'o mut [u8],
    at: usize,
}

impl Out<'_> {
    #[inline]
    fn put<const N: usize>(&mut self, bytes: [u8; N]) {
        self.put_slice(&bytes);
    }

    #[inline]
    fn put_slice(&mut self, bytes: &[u8]) {
        if let Some(place) = self.to.get_mut(self.at..self.at + bytes.len()) {
            place.copy_from_slice(bytes);
            self.at += bytes.len();
        }
    }
}

/// A copy of a flooded frame (broadcast, multicast, unknown unicast) for one port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FloodCopy<'b> {
    /// Number of the port.
    pub port: u16,
    /// The frame's outcome there.
    pub outcome: u8,
    /// Number of the drop reason.
    pub reason: u8,
    /// Answers of shared state, in the order of the questions.
    pub answers: &'b [u8],
}

impl<'b> FloodCopy<'b> {
    /// Appends it to `to`.
    pub fn encode(&self, to: &mut Vec<u8>) {
        let answers = cut(self.answers);
        let [low, high] = self.port.to_le_bytes();
        to.extend([low, high, self.outcome, self.reason, answers.len() as u8]);
        to.extend(answers);
    }

    fn decode(bytes: &'b [u8]) -> Option<(Self, &'b [u8])> {
        let &[low, high, outcome, reason, length] = bytes.first_chunk()?;
        let (answers, rest) = bytes.get(5..)?.split_at_checked(length.into())?;
        Some((Self { port: u16::from_le_bytes([low, high]), outcome, reason, answers }, rest))
    }
}

/// One moment on the clock of the recording, and on the wall clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Clock {
    /// Cycles.
    pub cycles: u64,
    /// Nanoseconds since 1970.
    pub nanoseconds: u64,
    /// Cycles a second.
    pub frequency: u64,
}

impl Clock {
    /// Nanoseconds since 1970 in the moment `cycles`.
    pub fn time(self, cycles: u64) -> u64 {
        let passed = (i128::from(cycles) - i128::from(self.cycles)) * 1_000_000_000 / i128::from(self.frequency.max(1));
        (i128::from(self.nanoseconds) + passed).clamp(0, u64::MAX.into()) as u64
    }
}

/// A block of a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Block {
    /// A state that frames refer to, as JSON.
    State(Vec<u8>),
    /// Frames of a worker: records, one behind the other.
    Frames {
        /// The worker.
        worker: u8,
        /// The records.
        records: Vec<u8>,
    },
    /// A moment.
    Clock(Clock),
    /// Records of a worker that were overwritten, or never written, before they could be saved.
    Gap {
        /// The worker.
        worker: u8,
        /// How many.
        lost: u64,
    },
    /// The recording ends as it should.
    End {
        /// Records in it.
        records: u64,
    },
}

impl Block {
    /// Appends the block to `to`.
    pub fn encode(&self, to: &mut Vec<u8>) {
        match self {
            Self::State(json) => put_block(to, STATE, 0, json),
            Self::Frames { worker, records } => put_block(to, FRAMES, *worker, records),
            Self::Clock(Clock { cycles, nanoseconds, frequency }) => {
                let content = [cycles, nanoseconds, frequency].map(|number| number.to_le_bytes()).concat();
                put_block(to, CLOCK, 0, &content);
            }
            Self::Gap { worker, lost } => put_block(to, GAP, *worker, &lost.to_le_bytes()),
            Self::End { records } => put_block(to, END, 0, &records.to_le_bytes()),
        }
    }

    fn decode(kind: u8, worker: u8, content: Vec<u8>) -> Option<Self> {
        let eight = |at: usize| Some(u64::from_le_bytes(*content.get(at..)?.first_chunk()?));
        Some(match kind {
            STATE => Self::State(content),
            FRAMES => Self::Frames { worker, records: content },
            CLOCK => Self::Clock(Clock { cycles: eight(0)?, nanoseconds: eight(8)?, frequency: eight(16)? }),
            GAP => Self::Gap { worker, lost: eight(0)? },
            END => Self::End { records: eight(0)? },
            _ => return None,
        })
    }
}

/// Appends the records `records` of a worker to `to`: as blocks of about `most` bytes, so that a file that is cut loses little.
pub fn put_frames(to: &mut Vec<u8>, worker: u8, records: &[u8], most: usize) {
    let (mut rest, mut begin) = (records, records);
    while let Some((_, after)) = Frame::decode(rest) {
        rest = after;
        let length = begin.len() - rest.len();
        if length >= most || rest.is_empty() {
            put_block(to, FRAMES, worker, &begin[..length]);
            begin = rest;
        }
    }
}

fn put_block(to: &mut Vec<u8>, kind: u8, worker: u8, content: &[u8]) {
    let [a, b, c, d] = (content.len() as u32).to_le_bytes();
    let head = [kind, worker, 0, 0, a, b, c, d];
    let sum = crc(crc(!0, &head), content) ^ !0;
    to.extend(head);
    to.extend(sum.to_le_bytes());
    to.extend(content);
}

/// The first bytes of a recording with this description (JSON).
pub fn begin(description: &[u8]) -> Vec<u8> {
    let mut bytes = [&MAGIC[..], &VERSION.to_le_bytes()].concat();
    put_block(&mut bytes, 0, 0, description);
    bytes
}

/// A file is no recording that this reader takes, or not all of one.
#[derive(Debug, Error)]
pub enum RecordingError {
    /// The file does not begin as a recording.
    #[error("it is no recording of memlane")]
    Magic,
    /// The recording is of another version.
    #[error("it is a recording of version {0}, and this memlane reads version {VERSION}: use the memlane that recorded it")]
    Version(u32),
    /// The file ends inside a block.
    #[error("it is cut off at byte {0}")]
    CutOff(u64),
    /// A block is not as it was written.
    #[error("the block at byte {0} is damaged or edited: its checksum is wrong")]
    Checksum(u64),
    /// A block has another form than its kind has.
    #[error("the block at byte {0} is malformed")]
    Malformed(u64),
    /// The file cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Reads a recording, block by block.
#[derive(Debug)]
pub struct Reader<R> {
    from: R,
    at: u64,
}

impl<R: Read> Reader<R> {
    /// The reader of `from`, and the description of the recording (JSON).
    ///
    /// # Errors
    /// The file is no recording, or one of another version.
    pub fn new(mut from: R) -> Result<(Self, Vec<u8>), RecordingError> {
        let mut head = [0; 12];
        if fill(&mut from, &mut head)? < head.len() || head[..8] != MAGIC {
            return Err(RecordingError::Magic);
        }
        let version = u32::from_le_bytes([head[8], head[9], head[10], head[11]]);
        if version != VERSION {
            return Err(RecordingError::Version(version));
        }
        let mut reader = Self { from, at: head.len() as u64 };
        let (_, _, description) = reader.content()?.ok_or(RecordingError::CutOff(12))?;
        Ok((reader, description))
    }

    /// The next block; `None` at the end of the file.
    ///
    /// # Errors
    /// The block is damaged, or the file is cut off. Blocks before it are good.
    pub fn block(&mut self) -> Result<Option<Block>, RecordingError> {
        let at = self.at;
        let Some((kind, worker, content)) = self.content()? else { return Ok(None) };
        Block::decode(kind, worker, content).map(Some).ok_or(RecordingError::Malformed(at))
    }

    fn content(&mut self) -> Result<Option<(u8, u8, Vec<u8>)>, RecordingError> {
        let (at, mut head) = (self.at, [0; BLOCK]);
        match fill(&mut self.from, &mut head)? {
            0 => return Ok(None),
            BLOCK => {}
            _ => return Err(RecordingError::CutOff(at)),
        }
        let length = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
        if length > LONGEST_BLOCK {
            return Err(RecordingError::Malformed(at));
        }
        let mut content = Vec::new();
        // No more memory than the file has bytes.
        if self.from.by_ref().take(length as u64).read_to_end(&mut content)? < length {
            return Err(RecordingError::CutOff(at));
        }
        let sum = u32::from_le_bytes([head[8], head[9], head[10], head[11]]);
        if crc(crc(!0, &head[..8]), &content) ^ !0 != sum {
            return Err(RecordingError::Checksum(at));
        }
        self.at += (BLOCK + length) as u64;
        Ok(Some((head[0], head[1], content)))
    }
}

/// Fills `to` as far as there is something; returns its bytes.
fn fill(from: &mut impl Read, to: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < to.len() {
        match from.read(&mut to[done..]) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// CRC-32 (reflected polynomial 0xedb88320) of `bytes` after those of `sum`.
fn crc(sum: u32, bytes: &[u8]) -> u32 {
    const TABLE: [u32; 256] = table();
    bytes.iter().fold(sum, |sum, &byte| TABLE[((sum ^ u32::from(byte)) & 0xff) as usize] ^ sum >> 8)
}

const fn table() -> [u32; 256] {
    let (mut table, mut n) = ([0; 256], 0);
    while n < 256 {
        let (mut sum, mut bit) = (n as u32, 0);
        while bit < 8 {
            sum = if sum & 1 != 0 { 0xedb8_8320 ^ sum >> 1 } else { sum >> 1 };
            bit += 1;
        }
        table[n] = sum;
        n += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame() -> Frame<'static> {
        Frame {
            kind: FRAME,
            flags: IS_GATED | HAS_HEADER,
            port: 3,
            queue: 1,
            moment: 1 << 40,
            length: 1514,
            sender: 7,
            filter: 9,
            to: 4,
            tag: 12,
            verdict: 1,
            reason: 2,
            sequel: 3,
            mtu: 1400,
            header: [5; 12],
            answers: &[1, 2, 3],
            bytes: &[9; 54],
            parts: &[],
        }
    }

    fn file() -> Vec<u8> {
        let mut bytes = begin(b"{}");
        let mut record = [0; LONGEST_FRAME];
        let length = frame().encode(&mut record);
        Block::State(b"{\"a\":1}".to_vec()).encode(&mut bytes);
        put_frames(&mut bytes, 2, &record[..length].repeat(10), 300);
        Block::Clock(Clock { cycles: 5, nanoseconds: 6, frequency: 7 }).encode(&mut bytes);
        Block::Gap { worker: 1, lost: 77 }.encode(&mut bytes);
        Block::End { records: 10 }.encode(&mut bytes);
        bytes
    }

    fn blocks(bytes: &[u8]) -> Result<Vec<Block>, RecordingError> {
        let (mut reader, _) = Reader::new(bytes)?;
        std::iter::from_fn(|| reader.block().transpose()).collect()
    }

    #[test]
    fn the_checksum_is_the_usual_one() {
        assert_eq!(crc(!0, b"123456789") ^ !0, 0xcbf4_3926);
    }

    #[test]
    fn what_is_written_is_read() {
        let blocks = blocks(&file()).unwrap();
        let records: Vec<u8> = blocks
            .iter()
            .filter_map(|block| if let Block::Frames { records, .. } = block { Some(&records[..]) } else { None })
            .flatten()
            .copied()
            .collect();
        let (mut rest, mut count) = (&records[..], 0);
        while let Some((read, after)) = Frame::decode(rest) {
            assert_eq!(read, frame());
            (rest, count) = (after, count + 1);
        }
        assert_eq!((rest.len(), count), (0, 10));
        assert_eq!(blocks.last(), Some(&Block::End { records: 10 }));
        assert!(blocks.iter().filter(|block| matches!(block, Block::Frames { worker: 2, .. })).count() > 2, "in small blocks");
        let copies: Vec<u8> =
            [(1, &[1_u8][..]), (4000, &[]), (2, &[7, 8, 9])].into_iter().fold(Vec::new(), |mut to, (port, answers)| {
                FloodCopy { port, outcome: 4, reason: 2, answers }.encode(&mut to);
                to
            });
        let flooded = Frame { kind: COPIES, parts: &copies, ..frame() };
        let mut record = [0; LONGEST_FRAME];
        let length = flooded.encode(&mut record);
        let bytes = [&record[..length], &copies].concat();
        let (read, rest) = Frame::decode(&bytes).unwrap();
        assert_eq!((read, rest.len()), (flooded, 0));
        assert_eq!(read.each_copy().map(|copy| (copy.port, copy.answers.len())).collect::<Vec<_>>(), [(1, 1), (4000, 0), (2, 3)]);
    }

    /// A batch of frames of these lengths, each with as many bytes; or [`AGAIN`], three times.
    fn batch(lengths: &[u8]) -> Vec<u8> {
        let part = |length| match length {
            AGAIN => vec![3, 0, 0, 0, AGAIN],
            _ => [&[length, 0, 0, 0, length][..], &vec![7; length.into()]].concat(),
        };
        let parts: Vec<u8> = lengths.iter().flat_map(|&length| part(length)).collect();
        let mut record = [0; LONGEST_FRAME];
        let length = Frame { kind: BATCH, bytes: &[], parts: &parts, ..frame() }.encode(&mut record);
        [&record[..length], &parts].concat()
    }

    #[test]
    fn frames_of_a_batch_are_read_one_by_one() {
        let mut record = [0; LONGEST_FRAME];
        let length = frame().encode(&mut record);
        let records = [&record[..length], &batch(&[60, 0, AGAIN, 42]), &batch(&[]), &record[..length]].concat();
        let mut read = frames(&records);
        let found: Vec<Frame<'_>> = read.by_ref().collect();
        let part = |length: u8| Frame { length: length.into(), bytes: &[7; 60][..length.into()], ..frame() };
        assert_eq!(found, [frame(), part(60), part(0), part(0), part(0), part(0), part(42), frame()]);
        assert!(read.are_over());
        assert_eq!(Frame::decode(&batch(&[60, AGAIN, AGAIN, 42])).unwrap().0.count(), 8);
        let before_none = batch(&[AGAIN, 1]);
        let mut read = frames(&before_none);
        assert_eq!((read.by_ref().count(), read.are_over()), (0, false));
        // A part that states more bytes than there are.
        let mut malformed = batch(&[1, 2]);
        let last = malformed.len() - 3;
        malformed[last] = 3;
        let mut read = frames(&malformed);
        assert_eq!((read.by_ref().count(), read.are_over()), (1, false));
    }

    #[test]
    fn a_file_that_is_cut_edited_or_of_another_version_is_told_from_a_good_one() {
        let good = file();
        for length in 0..good.len() {
            match blocks(&good[..length]) {
                Err(RecordingError::Magic) => assert!(length < 12),
                Err(RecordingError::CutOff(at)) => assert!(at <= length as u64),
                Ok(blocks) => assert_ne!(blocks.last(), Some(&Block::End { records: 10 }), "cut between blocks"),
                Err(error) => panic!("{length}: {error}"),
            }
        }
        for at in 12..good.len() {
            let mut edited = good.clone();
            edited[at] ^= 1;
            assert!(blocks(&edited).is_err(), "byte {at}");
        }
        let mut other = good.clone();
        other[8] = 9;
        let told = blocks(&other).unwrap_err().to_string();
        assert!(told.contains("version 9") && told.contains("version 2"), "{told}");
    }

    #[test]
    fn no_bytes_break_the_reader() {
        proptest::proptest!(|(noise in proptest::collection::vec(0_u8.., 0..400), at in 0_usize..400)| {
            let good = file();
            let mixed = [&good[..at.min(good.len())], &noise].concat();
            let _ = blocks(&mixed);
            let mut rest = &noise[..];
            while let Some((frame, after)) = Frame::decode(rest) {
                assert!(after.len() < rest.len());
                frame.each_copy().for_each(drop);
                assert!(frame.count() <= u64::from(MOST_AGAIN) * noise.len() as u64);
                rest = after;
            }
            assert!(frames(&noise).count() <= MOST_AGAIN as usize * noise.len());
        });
    }
}
