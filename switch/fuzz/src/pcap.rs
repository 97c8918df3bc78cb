//! Target `pcap`: capture files from strangers, as `memlane why --pcap` reads them. Each is read to its end or refused with a reason,
//! and gives no bytes that are not in it.

use memlane::cli::frames::{FileError, read_from};

/// Reads `data` as a capture file.
pub fn run(data: &[u8]) {
    let (mut frames, mut bytes) = (0, 0);
    let read = read_from::<FileError>(data, &mut |frame| {
        frames += 1;
        bytes += frame.bytes.len();
        assert_eq!(frame.number, frames);
        Ok(true)
    });
    assert!(bytes <= data.len() && frames <= data.len() as u64, "{frames} frames of {bytes} bytes in {} bytes", data.len());
    if let Err(error) = read {
        assert!(!error.to_string().is_empty());
    }
}
