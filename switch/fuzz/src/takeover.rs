//! Target `takeover`: a message between two processes of a network. Any bytes are refused or read; a body that can be read is written
//! so that it is read again, and no change of a byte of that goes unnoticed.

use memlane::daemon::takeover::Message;

/// Reads `data` as a message, and as the body of one.
pub fn run(data: &[u8]) {
    let _ = Message::decode(data);
    let Ok(message) = serde_json::from_slice::<Message>(data) else { return };
    let Ok(written) = message.encode(7) else { return };
    assert!(Message::decode(&written).is_ok_and(|(_, files)| files == 7), "a message that was written is read");
    let place = data.iter().fold(0_usize, |sum, &byte| sum.wrapping_mul(31).wrapping_add(byte.into())) % written.len();
    let mut changed = written;
    changed[place] ^= 1 << (place % 8);
    assert!(Message::decode(&changed).is_err(), "byte {place}");
}
