//! Recordings for Wireshark: frames as pcapng, each with its verdict as a comment.

use std::collections::HashMap;
use std::fs::OpenOptions;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use memlane_observe::pcapng::{Direction, Interface, InterfaceId, Packet, Writer};
use memlane_observe::recording::COPIES;

use super::super::recording::{self, Recorded};
use super::super::{Failure, output};
use super::note;
use crate::explain;
use crate::quantity::counted;
use crate::tap::MOST_SNAPLEN;

struct File<W: Write> {
    writer: Writer<W>,
    interfaces: HashMap<String, InterfaceId>,
    frames: u64,
}

impl<W: Write> File<W> {
    fn add(&mut self, recorded: &Recorded<'_>) -> io::Result<()> {
        let Recorded { frame, replay, number, time, .. } = recorded;
        let name = replay.name(frame.port, frame.moment);
        let interface = match self.interfaces.get(&name) {
            Some(known) => *known,
            None => {
                let interface = Interface { name: &name, description: "", snaplen: MOST_SNAPLEN, filter: "" };
                let made = self.writer.interface(interface)?;
                self.interfaces.insert(name, made);
                made
            }
        };
        let outcome = replay
            .recorded(frame)
            .map_or_else(|cause| format!("not known: {cause}"), |outcome| explain::outcome(replay, &outcome, frame.moment));
        let comment = format!("frame {number}: {outcome}");
        self.frames += u64::from(frame.kind != COPIES);
        self.writer.packet(&Packet {
            interface,
            time: *time,
            direction: Direction::Outbound,
            id: *number,
            bytes: frame.bytes,
            length: frame.length.max(frame.bytes.len() as u32),
            missed: 0,
            comment: &comment,
        })
    }
}

/// Writes the frames of the recording `from` to `to`.
pub(super) fn write(from: &Path, to: &Path) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::Running(format!("cannot write {}: {error}", to.display()));
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(to).map_err(failed)?;
    let writer = Writer::new(BufWriter::new(file), concat!("memlane ", env!("CARGO_PKG_VERSION"))).map_err(failed)?;
    let mut file = File { writer, interfaces: HashMap::new(), frames: 0 };
    let summary = recording::read(from, |recorded| file.add(recorded).map(|()| true).map_err(failed))?;
    file.writer.flush().map_err(failed)?;
    note(&summary, from);
    output::note(&format!("{} written; they have no payload", counted(file.frames, "frame")));
    Ok(())
}
