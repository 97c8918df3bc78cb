//! Questions for names outside, between the responder and a forwarder: a process with sockets of the Internet, which the responder has not.
//!
//! A datagram to the forwarder has the number of the question, a byte with flags, and the question. One back has the number, a byte that tells
//! whether there is an answer, and the DNS message. The forwarder reads no record of it: it compares header and question.

/// Bytes of a DNS header.
const HEADER: usize = 12;
/// Longest DNS message that a forwarder hands over.
pub const LONGEST: usize = 16 << 10;
/// Payload of UDP that a forwarder offers to resolvers (RFC 9715, section 3.2).
const PAYLOAD: u16 = 1232;
/// Longest name (RFC 1035, section 2.3.4).
const NAME: usize = 255;

/// Flags of a DNS message.
mod flag {
    pub(super) const RESPONSE: u16 = 0x8000;
    pub(super) const OPCODE: u16 = 0x7800;
    pub(super) const TRUNCATED: u16 = 0x0200;
    pub(super) const RECURSION_DESIRED: u16 = 0x0100;
    pub(super) const CHECKING_DISABLED: u16 = 0x0010;
}

/// A question for a resolver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// Number by which its answer is known.
    pub id: u64,
    /// Name, type and class, with the case of letters as the guest sent them.
    pub bytes: Vec<u8>,
    /// The flag CD (RFC 4035, section 3.2.2).
    pub checking_disabled: bool,
    /// The guest was told of other servers, which it asks when it hears that no resolver answers.
    pub has_other_servers: bool,
}

/// Flags of a question, in its datagram.
mod question_flag {
    pub(super) const CHECKING_DISABLED: u8 = 1;
    pub(super) const HAS_OTHER_SERVERS: u8 = 2;
}

impl Question {
    /// The datagram to the forwarder.
    pub fn encode(&self) -> Vec<u8> {
        let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
        let flags = flag(self.checking_disabled, question_flag::CHECKING_DISABLED)
            | flag(self.has_other_servers, question_flag::HAS_OTHER_SERVERS);
        [&self.id.to_be_bytes()[..], &[flags], &self.bytes].concat()
    }

    /// The question in a datagram; `None` if it is none.
    pub fn decode(datagram: &[u8]) -> Option<Self> {
        let (id, rest) = datagram.split_first_chunk()?;
        let (flags, bytes) = rest.split_first()?;
        let end = name_end(bytes)?;
        let has = |flag: u8| flags & flag != 0;
        (bytes.len() == end + 4 && *flags <= 3).then(|| Self {
            id: u64::from_be_bytes(*id),
            bytes: bytes.to_vec(),
            checking_disabled: has(question_flag::CHECKING_DISABLED),
            has_other_servers: has(question_flag::HAS_OTHER_SERVERS),
        })
    }

    /// The query to a resolver, with this id and, as most know it, EDNS(0) (RFC 6891).
    pub fn query(&self, id: u16, has_edns: bool) -> Vec<u8> {
        let disabled = if self.checking_disabled { flag::CHECKING_DISABLED } else { 0 };
        let head = [id, flag::RECURSION_DESIRED | disabled, 1, 0, 0, u16::from(has_edns)];
        let mut message: Vec<u8> = head.into_iter().flat_map(u16::to_be_bytes).collect();
        message.extend(&self.bytes);
        if has_edns {
            message.extend([0, 0, 41]);
            message.extend(PAYLOAD.to_be_bytes());
            message.extend([0; 6]);
        }
        message
    }

    /// The kind of answer that `message` is to the query with this `id`; `None` if it is none.
    pub fn heard(&self, id: u16, message: &[u8]) -> Option<Heard> {
        let (head, rest) = message.split_first_chunk::<HEADER>()?;
        let number = |at: usize| Some(u16::from_be_bytes([*head.get(at)?, *head.get(at + 1)?]));
        let flags = number(2)?;
        let is_answer = number(0)? == id && flags & flag::RESPONSE != 0 && flags & flag::OPCODE == 0;
        // A server that knows no EDNS may leave the question out (RFC 6891, section 7).
        let is_format_error = flags & 0xf == 1 && number(4)? == 0;
        let has_question = number(4)? == 1 && rest.starts_with(&self.bytes);
        if !is_answer || !has_question && !is_format_error {
            return None;
        }
        Some(match flags & 0xf {
            _ if flags & flag::TRUNCATED != 0 => Heard::Truncated,
            0 | 3 => Heard::Answer,
            1 => Heard::FormatError,
            _ => Heard::Failure,
        })
    }
}

/// An answer of a resolver, by its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// An answer with records, or one that says that there are none.
    Answer,
    /// An answer that does not fit UDP.
    Truncated,
    /// The resolver does not know EDNS.
    FormatError,
    /// The resolver cannot answer.
    Failure,
}

/// The datagram with the `message` that answers the question `id`, or without one: no resolver answers.
pub fn encode_answer(id: u64, message: Option<&[u8]>) -> Vec<u8> {
    let message = message.filter(|message| message.len() <= LONGEST);
    [&id.to_be_bytes()[..], &[u8::from(message.is_some())], message.unwrap_or_default()].concat()
}

/// The number of a question and its answer, if there is one; `None` if the datagram is neither.
pub fn decode_answer(datagram: &[u8]) -> Option<(u64, Option<&[u8]>)> {
    let (id, rest) = datagram.split_first_chunk()?;
    let (kind, message) = rest.split_first()?;
    match kind {
        0 if message.is_empty() => Some((u64::from_be_bytes(*id), None)),
        1 => Some((u64::from_be_bytes(*id), Some(message))),
        _ => None,
    }
}

/// The end of the name without pointers with which `bytes` begin.
fn name_end(bytes: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        let label = usize::from(*bytes.get(at)?);
        at += 1 + label;
        match label {
            0 => return (at <= NAME).then_some(at),
            1..=63 if at < NAME => {}
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question() -> Question {
        let bytes = b"\x03aPi\x07example\x03org\0\0\x01\0\x01".to_vec();
        Question { id: 7, bytes, checking_disabled: false, has_other_servers: false }
    }

    #[test]
    fn questions_and_answers_cross() {
        let other = Question { has_other_servers: true, ..question() };
        for question in [question(), Question { checking_disabled: true, ..question() }, other] {
            assert_eq!(Question::decode(&question.encode()).as_ref(), Some(&question));
        }
        let long = [&[63; 64][..]; 4].concat();
        for bad in [&b""[..], b"\x03abc", b"\0\0\x01\0", b"\0\0\x01\0\x01\0", b"\xc0\x0c\0\x01\0\x01", &long] {
            assert_eq!(Question::decode(&Question { bytes: bad.to_vec(), ..question() }.encode()), None);
        }
        assert_eq!(Question::decode(&[0; 8]), None);
        assert_eq!(decode_answer(&encode_answer(9, Some(b"x"))), Some((9, Some(&b"x"[..]))));
        assert_eq!(decode_answer(&encode_answer(9, None)), Some((9, None)));
        assert_eq!(decode_answer(&encode_answer(9, Some(&[0; LONGEST + 1]))), Some((9, None)));
        assert!(decode_answer(&[0; 8]).is_none() && decode_answer(&[2; 9]).is_none());
    }

    #[test]
    fn only_the_answer_to_the_question_is_heard() {
        let (question, answer) = (question(), |id: u16, flags: u16, question: &[u8]| {
            let head = [id, flags, u16::from(!question.is_empty()), 0, 0, 0];
            [&head.into_iter().flat_map(u16::to_be_bytes).collect::<Vec<u8>>()[..], question].concat()
        });
        let same = &question.bytes[..];
        let heard = |id, flags, asked: &[u8]| question.heard(5, &answer(id, flags, asked));
        assert_eq!(heard(5, 0x8180, same), Some(Heard::Answer));
        assert_eq!(heard(5, 0x8183, same), Some(Heard::Answer));
        assert_eq!(heard(5, 0x8380, same), Some(Heard::Truncated));
        assert_eq!(heard(5, 0x8182, same), Some(Heard::Failure));
        assert_eq!(heard(5, 0x8181, same), Some(Heard::FormatError));
        assert_eq!(heard(5, 0x8181, b""), Some(Heard::FormatError));
        assert_eq!(heard(6, 0x8180, same), None, "another id");
        assert_eq!(heard(5, 0x0180, same), None, "a query");
        assert_eq!(heard(5, 0x8180, &same.to_ascii_lowercase()), None, "letters in another case");
        assert_eq!(heard(5, 0x8180, b"\x03bPi\x07example\x03org\0\0\x01\0\x01"), None);
        assert_eq!(heard(5, 0x8180, b""), None);
        assert_eq!(question.query(5, false), answer(5, 0x0100, same));
        assert_eq!(question.query(5, true)[..12], [0, 5, 1, 0, 0, 1, 0, 0, 0, 0, 0, 1]);
        let disabled = Question { checking_disabled: true, ..question.clone() };
        assert_eq!(disabled.query(5, false)[2..4], [1, 0x10]);
    }
}
