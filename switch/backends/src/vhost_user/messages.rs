//! The messages of a front end: one table of their forms, and one decoder (vhost-user, "Front-end message types").
//!
//! [`serve`] finds a message in [`MESSAGES`], refuses it unless its protocol feature, payload and descriptors are those of its row, reads
//! the payload, has the [`Device`] act, and answers. Names and errors are the `vhost` crate's, which reads no message.

use std::fs::File;
use std::io;

use socket2::{SockRef, Type};
use vhost::vhost_user::message::{FrontendReq as Request, VHOST_USER_CONFIG_SIZE, VhostUserConfigFlags, VhostUserVringAddrFlags};
use vhost::vhost_user::{Error, VhostUserProtocolFeatures as Protocol};

use super::device::{self, Device};
use super::vring::Addresses;
use super::wire::{MAX_DESCRIPTORS, MAX_PAYLOAD, Message, Reply};
use crate::id::MAX_PAIRS;
use crate::memory::RegionTable;
use crate::ring::Notifier;
use crate::takeover::SavedMessage;

/// The version of the protocol in the flags of a message.
const VERSION: u32 = 1;
const REPLY: u32 = 1 << 2;
const NEED_REPLY: u32 = 1 << 3;
/// In the number of a virtqueue, and in the answer to SET_DEVICE_STATE_FD: no descriptor comes with it.
pub(super) const WITHOUT_FILE: u64 = 1 << 8;

/// The messages, by their numbers. A request without a row is refused.
pub const MESSAGES: &[Row] = &[
    row(Request::GET_FEATURES, bytes(0), NONE, ALWAYS, Answer::Reply).harmless(),
    row(Request::SET_FEATURES, bytes(8), NONE, ALWAYS, Answer::Acknowledgement).harmless(),
    row(Request::SET_OWNER, bytes(0), NONE, ALWAYS, Answer::Acknowledgement).harmless(),
    row(Request::RESET_OWNER, bytes(0), NONE, ALWAYS, Answer::Acknowledgement),
    row(Request::SET_MEM_TABLE, list(8, 32, MAX_DESCRIPTORS), (0, MAX_DESCRIPTORS), ALWAYS, Answer::Acknowledgement),
    row(Request::SET_LOG_BASE, bytes(16), ONE, Protocol::LOG_SHMFD, Answer::Reply),
    row(Request::SET_LOG_FD, bytes(0), ONE, Protocol::LOG_SHMFD, Answer::Acknowledgement).in_own_words(),
    row(Request::SET_VRING_NUM, bytes(8), NONE, ALWAYS, Answer::Acknowledgement),
    row(Request::SET_VRING_ADDR, bytes(40), NONE, ALWAYS, Answer::Acknowledgement).in_own_words(),
    row(Request::SET_VRING_BASE, bytes(8), NONE, ALWAYS, Answer::Acknowledgement),
    row(Request::GET_VRING_BASE, bytes(8), NONE, ALWAYS, Answer::Reply),
    row(Request::SET_VRING_KICK, bytes(8), (0, 1), ALWAYS, Answer::Acknowledgement),
    row(Request::SET_VRING_CALL, bytes(8), (0, 1), ALWAYS, Answer::Acknowledgement).harmless(),
    row(Request::SET_VRING_ERR, bytes(8), (0, 1), ALWAYS, Answer::Acknowledgement).harmless(),
    row(Request::GET_PROTOCOL_FEATURES, bytes(0), NONE, ALWAYS, Answer::Reply).harmless(),
    row(Request::SET_PROTOCOL_FEATURES, bytes(8), NONE, ALWAYS, Answer::Acknowledgement).harmless(),
    row(Request::GET_QUEUE_NUM, bytes(0), NONE, Protocol::MQ, Answer::Reply).harmless(),
    row(Request::SET_VRING_ENABLE, bytes(8), NONE, ALWAYS, Answer::Acknowledgement).harmless().in_own_words(),
    row(Request::SEND_RARP, bytes(8), NONE, Protocol::RARP, Answer::Acknowledgement).in_own_words(),
    row(Request::NET_SET_MTU, bytes(8), NONE, Protocol::MTU, Answer::Verdict).harmless().in_own_words(),
    row(Request::SET_BACKEND_REQ_FD, list(0, 1, MAX_PAYLOAD), ONE, Protocol::BACKEND_REQ, Answer::Acknowledgement).harmless(),
    row(Request::IOTLB_MSG, bytes(32), NONE, ALWAYS, Answer::Refusal).in_own_words(),
    row(Request::GET_CONFIG, list(12, 1, MAX_PAYLOAD), NONE, Protocol::CONFIG, Answer::Reply).harmless(),
    row(Request::SET_CONFIG, list(12, 1, MAX_PAYLOAD), NONE, Protocol::CONFIG, Answer::Verdict).harmless().in_own_words(),
    row(Request::POSTCOPY_ADVISE, bytes(0), NONE, Protocol::PAGEFAULT, Answer::Reply).harmless(),
    row(Request::POSTCOPY_LISTEN, bytes(0), NONE, Protocol::PAGEFAULT, Answer::Acknowledgement).harmless(),
    row(Request::POSTCOPY_END, bytes(0), NONE, Protocol::PAGEFAULT, Answer::Acknowledgement),
    // QEMU's compiler pads the body to a multiple of eight.
    row(Request::GET_INFLIGHT_FD, list(20, 4, 1), NONE, Protocol::INFLIGHT_SHMFD, Answer::Reply).in_own_words(),
    row(Request::SET_INFLIGHT_FD, list(20, 4, 1), ONE, Protocol::INFLIGHT_SHMFD, Answer::Acknowledgement).in_own_words(),
    row(Request::GPU_SET_SOCKET, list(0, 1, MAX_PAYLOAD), ONE, ALWAYS, Answer::Refusal),
    row(Request::RESET_DEVICE, bytes(0), NONE, Protocol::RESET_DEVICE, Answer::Acknowledgement).harmless(),
    row(Request::GET_MAX_MEM_SLOTS, bytes(0), NONE, Protocol::CONFIGURE_MEM_SLOTS, Answer::Reply).harmless(),
    row(Request::ADD_MEM_REG, list(8, 32, 1), (0, 1), Protocol::CONFIGURE_MEM_SLOTS, Answer::Acknowledgement),
    // Earlier front ends send a descriptor with it, which is closed.
    row(Request::REM_MEM_REG, list(8, 32, 1), (0, MAX_DESCRIPTORS), Protocol::CONFIGURE_MEM_SLOTS, Answer::Acknowledgement),
    row(Request::SET_STATUS, bytes(8), NONE, Protocol::STATUS, Answer::Acknowledgement).harmless().in_own_words(),
    row(Request::GET_STATUS, bytes(0), NONE, Protocol::STATUS, Answer::Reply).harmless().in_own_words(),
    row(Request::GET_SHARED_OBJECT, bytes(16), NONE, Protocol::SHARED_OBJECT, Answer::Refusal),
    row(Request::SET_DEVICE_STATE_FD, bytes(8), ONE, Protocol::DEVICE_STATE, Answer::Reply),
    row(Request::CHECK_DEVICE_STATE, bytes(0), NONE, Protocol::DEVICE_STATE, Answer::Reply),
    row(Request::GET_SHMEM_CONFIG, bytes(0), NONE, Protocol::SHMEM, Answer::Refusal),
];

const NONE: (usize, usize) = (0, 0);
const ONE: (usize, usize) = (1, 1);
const ALWAYS: Protocol = Protocol::empty();

/// A message of the table.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The request.
    pub request: Request,
    /// Bounds of its payload.
    pub payload: Payload,
    /// Fewest and most descriptors.
    pub files: (usize, usize),
    /// The protocol feature that allows it, if it needs one.
    pub feature: Protocol,
    /// How it is answered.
    pub answer: Answer,
    /// Sets up neither memory nor a virtqueue: of a second front end, it leaves the port to the first.
    is_harmless: bool,
    /// Refused in words of memlane's; the others in words of the `vhost` crate.
    has_own_words: bool,
}

/// Length of a payload.
#[derive(Clone, Copy, Debug)]
pub struct Payload {
    /// Bytes of its fixed part.
    pub head: usize,
    /// Bytes of an item behind that.
    pub item: usize,
    /// Most items.
    pub most: usize,
}

/// How a message is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// By a message of its own.
    Reply,
    /// With 0 or 1 for success or failure, if the front end asks for that (REPLY_ACK). A failure ends the connection.
    Acknowledgement,
    /// Like an acknowledgement, but the connection outlasts a failure.
    Verdict,
    /// Always with a failure.
    Refusal,
}

const fn row(request: Request, payload: Payload, files: (usize, usize), feature: Protocol, answer: Answer) -> Row {
    Row { request, payload, files, feature, answer, is_harmless: false, has_own_words: false }
}

const fn bytes(count: usize) -> Payload {
    list(count, 1, 0)
}

const fn list(head: usize, item: usize, most: usize) -> Payload {
    Payload { head, item, most }
}

impl Row {
    const fn harmless(mut self) -> Self {
        self.is_harmless = true;
        self
    }

    const fn in_own_words(mut self) -> Self {
        self.has_own_words = true;
        self
    }

    fn of(request: u32) -> Option<&'static Self> {
        MESSAGES.iter().find(|row| u32::from(row.request) == request)
    }

    /// Checks all of `message` but the content of its payload; `agreed` are the protocol features.
    fn check(&self, message: &Message, agreed: Protocol) -> io::Result<()> {
        let (fewest, most) = self.files;
        if !agreed.contains(self.feature) {
            return Err(self.refusal("a message whose protocol feature was not agreed", Error::InactiveOperation(self.feature)));
        }
        if message.flags & !NEED_REPLY != VERSION || !self.payload.allows(message.payload.len()) {
            return Err(self.malformed());
        }
        if (fewest..=most).contains(&message.files.len()) { Ok(()) } else { Err(self.miscounted()) }
    }

    /// The descriptor of a message that has to bring one.
    fn single(&self, files: Vec<File>) -> io::Result<File> {
        files.into_iter().next().ok_or_else(|| self.miscounted())
    }

    fn miscounted(&self) -> io::Error {
        match self.request {
            Request::SET_LOG_BASE | Request::SET_DEVICE_STATE_FD => io::Error::other(Error::IncorrectFds),
            Request::ADD_MEM_REG => io::Error::other(Error::InvalidParam),
            _ => self.malformed(),
        }
    }

    fn malformed(&self) -> io::Error {
        self.refusal("a malformed message", Error::InvalidMessage)
    }

    fn refusal(&self, own: &'static str, other: Error) -> io::Error {
        if self.has_own_words { io::Error::other(own) } else { io::Error::other(other) }
    }
}

impl Payload {
    fn allows(self, length: usize) -> bool {
        let rest = length.checked_sub(self.head);
        rest.is_some_and(|rest| rest.is_multiple_of(self.item) && rest / self.item <= self.most)
    }
}

/// The answer to a message.
enum Done {
    /// Success or failure, if the front end asks for an acknowledgement.
    Verdict(bool),
    /// A reply with this payload, and a descriptor.
    Reply(Vec<u8>, Option<File>),
    /// None, whether the front end asks for one or not.
    Silence,
}

/// Whether request number `request` of a second front end leaves the port to the first.
pub(super) fn is_harmless(request: u32) -> bool {
    Row::of(request).is_some_and(|row| row.is_harmless)
}

/// Serves `message`; adds the answer to `replies` where one is due.
///
/// # Errors
/// The message breaks a rule.
pub(super) fn serve(message: Message, device: &mut Device, replies: &mut Reply) -> io::Result<()> {
    let row = Row::of(message.request).ok_or_else(|| io::Error::other(Error::InvalidMessage))?;
    row.check(&message, device.agreed_protocol())?;
    let Message { request, flags, payload, files } = message;
    let mut reply = |payload, file: Option<File>| {
        replies.add(Message { request, flags: VERSION | REPLY, payload, files: file.into_iter().collect() });
    };
    let (has_failed, result) = match act(row, Body(&payload), files, device) {
        Ok(Done::Reply(payload, file)) => {
            reply(payload, file);
            return Ok(());
        }
        Ok(Done::Silence) => return Ok(()),
        Ok(Done::Verdict(is_success)) => (!is_success, Ok(())),
        Err(error) => (true, Err(error)),
    };
    let is_asked_for = flags & NEED_REPLY != 0 && device.agreed_protocol().contains(Protocol::REPLY_ACK);
    if is_asked_for && row.answer != Answer::Reply {
        reply(u64::from(has_failed).to_ne_bytes().to_vec(), None);
    }
    result
}

/// Has `device` act on a message of another process's session, which was served and answered there.
///
/// # Errors
/// The device does not act on it.
pub(super) fn replay(message: &SavedMessage, file: Option<File>, device: &mut Device) -> io::Result<()> {
    let row = Row::of(message.request).ok_or_else(|| io::Error::other(Error::InvalidMessage))?;
    let payload: Vec<u8> = message.payload.iter().flat_map(|number| number.to_ne_bytes()).collect();
    act(row, Body(&payload), file.into_iter().collect(), device).map(drop)
}

/// Has `device` act on the message of `row`, of which all but the content of its payload is checked.
fn act(row: &Row, mut body: Body<'_>, files: Vec<File>, device: &mut Device) -> io::Result<Done> {
    match row.request {
        Request::GET_FEATURES => return Ok(number(device.get_features())),
        Request::SET_FEATURES => device.set_features(body.number())?,
        Request::SET_OWNER => device.owned = true,
        Request::RESET_OWNER => device.reset_owner(),
        Request::RESET_DEVICE => device.reset(),
        Request::GET_PROTOCOL_FEATURES => return Ok(number(device.protocol_offer().bits())),
        Request::SET_PROTOCOL_FEATURES => device.set_protocol_features(body.number())?,
        Request::GET_QUEUE_NUM => return Ok(number(MAX_PAIRS.into())),
        Request::GET_MAX_MEM_SLOTS => return Ok(number(device::SLOTS)),
        Request::GET_STATUS => return Ok(number(device.status().into())),
        Request::SET_STATUS => device.set_status(body.number() as u8),
        Request::NET_SET_MTU => return Ok(Done::Verdict(device.set_mtu(body.number()).is_ok())),
        Request::SEND_RARP => device.send_rarp(body.number()),
        Request::IOTLB_MSG => device.refuse_translation()?,
        Request::SET_BACKEND_REQ_FD => device.keep_backend_channel(stream_socket(row.single(files)?)?),
        Request::GPU_SET_SOCKET => return Err(device::refuse("the front end sent a message for graphics devices")),
        Request::GET_CONFIG | Request::SET_CONFIG => return act_on_config(row, body, device),
        Request::SET_MEM_TABLE | Request::ADD_MEM_REG | Request::REM_MEM_REG => return act_on_memory(row, body, files, device),
        Request::POSTCOPY_ADVISE => return Ok(Done::Reply(Vec::new(), device.postcopy_advice()?)),
        Request::POSTCOPY_LISTEN => device.postcopy_listen()?,
        Request::POSTCOPY_END => device.postcopy_end()?,
        // The eventfd of SET_LOG_FD, by which a back end may tell of marked pages, is closed: all known front ends read the log when they
        // copy memory, without waiting for it.
        Request::SET_LOG_FD => {}
        Request::SET_LOG_BASE | Request::GET_INFLIGHT_FD | Request::SET_INFLIGHT_FD => {
            return act_on_records(row, body, files, device);
        }
        Request::SET_DEVICE_STATE_FD => {
            let (direction, phase) = (body.word(), body.word());
            if direction > 1 || phase != 0 {
                return Err(row.malformed());
            }
            let result = device.set_device_state_fd(direction == 1, row.single(files)?);
            return Ok(number(WITHOUT_FILE | u64::from(result.is_err())));
        }
        Request::CHECK_DEVICE_STATE => return Ok(number(device.check_device_state().is_err().into())),
        _ => return act_on_ring(row, body, files, device),
    }
    Ok(Done::Verdict(true))
}

/// The messages about one virtqueue.
fn act_on_ring(row: &Row, mut body: Body<'_>, files: Vec<File>, device: &mut Device) -> io::Result<Done> {
    if matches!(row.request, Request::SET_VRING_KICK | Request::SET_VRING_CALL | Request::SET_VRING_ERR) {
        let (number, file) = (body.number(), files.into_iter().next());
        if (number & WITHOUT_FILE == 0) != file.is_some() {
            return Err(row.malformed());
        }
        match row.request {
            Request::SET_VRING_KICK => device.set_vring_kick(number as u8, file)?,
            Request::SET_VRING_CALL => device.set_vring_call(number as u8, file)?,
            _ => device.set_vring_err(number as u8, file)?,
        }
        return Ok(Done::Verdict(true));
    }
    let (index, value) = (body.word(), body.word());
    match row.request {
        Request::SET_VRING_NUM => device.set_vring_num(index, value)?,
        Request::SET_VRING_ADDR => {
            let flags = VhostUserVringAddrFlags::from_bits(value).ok_or_else(|| row.malformed())?;
            let [descriptors, used, available, log] = body.numbers();
            let log = flags.contains(VhostUserVringAddrFlags::VHOST_VRING_F_LOG).then_some(log);
            device.set_vring_addr(index, Addresses { descriptors, available, used }, log)?;
        }
        Request::SET_VRING_BASE => device.set_vring_base(index, value)?,
        Request::GET_VRING_BASE => {
            let base = device.stop_ring(index)?;
            return Ok(Done::Reply([index, base.into()].map(u32::to_ne_bytes).concat(), None));
        }
        Request::SET_VRING_ENABLE if value > 1 => {
            return Err(io::Error::other("a ring enabled by something other than 0 or 1"));
        }
        Request::SET_VRING_ENABLE => device.set_vring_enable(index, value == 1)?,
        _ => return Err(row.malformed()),
    }
    Ok(Done::Verdict(true))
}

/// GET_CONFIG and SET_CONFIG: offset, size, flags, and as many bytes.
fn act_on_config(row: &Row, mut body: Body<'_>, device: &mut Device) -> io::Result<Done> {
    let [offset, size, flags] = [body.word(), body.word(), body.word()];
    let content = body.0;
    if content.len() != size as usize {
        return Err(row.malformed());
    }
    if row.request == Request::SET_CONFIG {
        return Ok(Done::Verdict(device.set_config(offset, content).is_ok()));
    }
    let is_within = offset.checked_add(size).is_some_and(|end| size > 0 && end <= VHOST_USER_CONFIG_SIZE);
    if !is_within || VhostUserConfigFlags::from_bits(flags).is_none() {
        return Err(row.malformed());
    }
    let head = [offset, size, flags].map(u32::to_ne_bytes).concat();
    Ok(Done::Reply([head, device.get_config(offset, size)].concat(), None))
}

/// SET_MEM_TABLE, ADD_MEM_REG and REM_MEM_REG: eight bytes, and regions. While postcopy listens, the answer has the addresses at which page
/// faults of the regions are reported, and eight zero bytes alone say that the front end is ready for them.
fn act_on_memory(row: &Row, mut body: Body<'_>, files: Vec<File>, device: &mut Device) -> io::Result<Done> {
    let (mut head, mut tables) = (Body(body.0), Vec::new());
    let first = body.number();
    if body.0.is_empty() && device.is_listening() {
        if first != 0 {
            return Err(io::Error::other(Error::FrontendInternalError));
        }
        device.postcopy_ack_mem_regions()?;
        return Ok(Done::Silence);
    }
    while !body.0.is_empty() {
        let [guest_start, length, user_start, file_offset] = body.numbers();
        tables.push(RegionTable { guest_start, length, user_start, file_offset });
    }
    let bases = match (row.request, tables.as_slice()) {
        (Request::SET_MEM_TABLE, tables) => {
            let is_counted = [head.word(), head.word()] == [tables.len() as u32, 0] && tables.len() == files.len();
            if !is_counted || tables.is_empty() || !tables.iter().all(is_sound) {
                return Err(row.malformed());
            }
            device.set_mem_table(tables, files)?
        }
        (Request::ADD_MEM_REG, &[table]) => device.add_mem_region(table, row.single(files)?)?.map(|base| vec![base]),
        (Request::REM_MEM_REG, [table]) => {
            device.remove_mem_region(table)?;
            None
        }
        _ => return Err(row.malformed()),
    };
    let Some(bases) = bases else { return Ok(Done::Verdict(true)) };
    let known = tables.iter().zip(bases).flat_map(|(table, base)| [table.guest_start, table.length, base, table.file_offset]);
    Ok(Done::Reply([first].into_iter().chain(known).flat_map(u64::to_ne_bytes).collect(), None))
}

/// SET_LOG_BASE, GET_INFLIGHT_FD and SET_INFLIGHT_FD: memory in which the back end keeps records, its size and its offset in the file.
fn act_on_records(row: &Row, mut body: Body<'_>, files: Vec<File>, device: &mut Device) -> io::Result<Done> {
    let asked = body.0;
    let [size, offset] = [body.number(), body.number()];
    if row.request == Request::SET_LOG_BASE {
        if size == 0 || offset.checked_add(size).is_none() {
            return Err(row.malformed());
        }
        device.set_log_base(size, offset, row.single(files)?)?;
        return Ok(Done::Reply(asked.to_vec(), None));
    }
    let shape = (body.half(), body.half());
    if row.request == Request::SET_INFLIGHT_FD {
        device.set_inflight_fd((size, offset), shape, row.single(files)?)?;
        return Ok(Done::Verdict(true));
    }
    let (size, file) = device.get_inflight_fd(shape)?;
    let mut payload = [size, 0].map(u64::to_ne_bytes).concat();
    payload.extend([shape.0, shape.1].map(u16::to_ne_bytes).concat());
    payload.resize(asked.len(), 0);
    Ok(Done::Reply(payload, Some(file)))
}

/// A region of a memory table that may be looked at further.
fn is_sound(table: &RegionTable) -> bool {
    let starts = [table.guest_start, table.user_start, table.file_offset];
    table.length != 0 && starts.into_iter().all(|start| start.checked_add(table.length).is_some())
}

fn number(value: u64) -> Done {
    Done::Reply(value.to_ne_bytes().to_vec(), None)
}

/// `file`, if it is a Unix stream socket.
fn stream_socket(file: File) -> io::Result<File> {
    let kind = SockRef::from(&file).r#type().map_err(|error| io::Error::other(Error::InvalidSocketFd(error)))?;
    match Notifier::of(&file) {
        Some(Notifier::Socket) if kind == Type::STREAM => Ok(file),
        Some(Notifier::Socket) => Err(io::Error::other(Error::NotStreamSocket)),
        _ => Err(io::Error::other(Error::NotUnixSocket)),
    }
}

/// The rest of a payload, read number by number in native order. No more is read than the table allows; beyond the end there are zeros.
struct Body<'m>(&'m [u8]);

impl Body<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (taken, rest) = self.0.split_first_chunk().map_or(([0; N], Default::default()), |(taken, rest)| (*taken, rest));
        self.0 = rest;
        taken
    }

    fn half(&mut self) -> u16 {
        u16::from_ne_bytes(self.take())
    }

    fn word(&mut self) -> u32 {
        u32::from_ne_bytes(self.take())
    }

    fn number(&mut self) -> u64 {
        u64::from_ne_bytes(self.take())
    }

    fn numbers<const N: usize>(&mut self) -> [u64; N] {
        std::array::from_fn(|_| self.number())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row_of(request: Request) -> &'static Row {
        Row::of(request.into()).unwrap()
    }

    fn message(row: &Row, flags: u32, length: usize, files: usize) -> Message {
        let files = (0..files).map(|_| File::open("/dev/null").unwrap()).collect();
        Message { request: row.request.into(), flags, payload: vec![0; length], files }
    }

    #[test]
    fn every_message_stands_in_the_table_once_and_by_its_number() {
        assert!(MESSAGES.is_sorted_by(|a, b| a.request < b.request));
    }

    #[test]
    fn payloads_are_as_long_as_their_definitions() {
        use vhost::vhost_user::message as m;
        let lengths = [
            (Request::SET_VRING_NUM, size_of::<m::VhostUserVringState>()),
            (Request::SET_VRING_ADDR, size_of::<m::VhostUserVringAddr>()),
            (Request::SET_LOG_BASE, size_of::<m::VhostUserLog>()),
            (Request::SET_DEVICE_STATE_FD, size_of::<m::VhostUserTransferDeviceState>()),
            (Request::ADD_MEM_REG, size_of::<m::VhostUserSingleMemoryRegion>()),
            (Request::SET_INFLIGHT_FD, size_of::<m::VhostUserInflight>()),
            (Request::GET_SHARED_OBJECT, size_of::<m::VhostUserSharedMsg>()),
        ];
        for (request, length) in lengths {
            let payload = row_of(request).payload;
            assert!(payload.allows(length) && !payload.allows(length - 1) && !payload.allows(length + 1), "{request:?}");
        }
        let [table, region] = [size_of::<m::VhostUserMemory>(), size_of::<m::VhostUserMemoryRegion>()];
        let payload = row_of(Request::SET_MEM_TABLE).payload;
        assert!((1..=32).all(|count| payload.allows(table + count * region)) && !payload.allows(table + 33 * region));
        assert!(!row_of(Request::GET_CONFIG).payload.allows(size_of::<m::VhostUserConfig>() - 1));
    }

    #[test]
    fn a_message_is_refused_unless_it_is_as_its_row_says() {
        for row in MESSAGES {
            let (length, files) = (row.payload.head, row.files.0);
            let judged = |message: Message, agreed| row.check(&message, agreed).is_ok();
            for flags in [VERSION, VERSION | NEED_REPLY] {
                assert!(judged(message(row, flags, length, files), Protocol::all()), "{:?}", row.request);
            }
            for flags in [0, 2, 3, VERSION | REPLY, VERSION | 1 << 4, u32::MAX] {
                assert!(!judged(message(row, flags, length, files), Protocol::all()), "{:?}, flags {flags:#x}", row.request);
            }
            assert!(!judged(message(row, VERSION, length, row.files.1 + 1), Protocol::all()), "{:?}", row.request);
            assert_eq!(judged(message(row, VERSION, length, files), ALWAYS), row.feature.is_empty(), "{:?}", row.request);
        }
        assert!(Row::of(0).is_none() && Row::of(45).is_none() && Row::of(u32::MAX).is_none());
    }
}
