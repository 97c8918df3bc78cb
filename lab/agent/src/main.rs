//! The lab's hand inside a guest.
//!
//! Nouns, in the order in which a request meets them:
//!
//! - **Channel**: one byte stream to the lab that is *not* the network under test: a serial line (User Mode
//!   Linux), a virtio-serial port (QEMU) or the socket inherited as standard input (network namespace).
//! - **Frame** ([`frame`]): the unit of the channel: magic, kind, handle, length, payload. Nothing is ever parsed out of free text,
//!   so program output cannot be mistaken for an answer.
//! - **Process** ([`process`]): a command started under a handle that the lab chose; its output comes back in
//!   frames with that handle, its exit status last.
//! - **File** ([`file`]): read and written whole or in chunks, without starting a process (meters use it).
//!
//! When the lab closes the channel, also by dying, the agent kills its processes and ends; in a virtual machine `/init` then powers
//! off. So no guest outlives its lab.

mod file;
mod frame;
mod process;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::FromRawFd;
use std::process::ExitCode;

use frame::{Frame, Incoming, Kind, Sender};
use process::Processes;

fn main() -> ExitCode {
    let Some(channel) = std::env::args().nth(1) else {
        eprintln!("memlane-agent: name the control channel: a character device, or - for the socket on standard input");
        return ExitCode::from(2);
    };
    match serve(&channel) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("memlane-agent: control channel {channel}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Greets the lab, then answers until it hangs up.
fn serve(channel: &str) -> io::Result<()> {
    let channel = open(channel)?;
    let sender = Sender::new(channel.try_clone()?);
    let mut incoming = Incoming::new(channel, sender.clone());
    let mut processes = Processes::new(sender.clone());
    sender.send(Kind::Hello, 0, env!("CARGO_PKG_VERSION").as_bytes());
    while let Some(frame) = Frame::read(&mut incoming)? {
        dispatch(&frame, &mut processes, &sender);
    }
    processes.kill_all();
    Ok(())
}

fn open(channel: &str) -> io::Result<File> {
    if channel == "-" {
        // SAFETY: descriptor 0 is open from the start of the program and nothing else in it uses it.
        return Ok(unsafe { File::from_raw_fd(0) });
    }
    OpenOptions::new().read(true).write(true).open(channel)
}

fn dispatch(frame: &Frame, processes: &mut Processes, sender: &Sender) {
    let handle = frame.handle;
    let outcome = match frame.kind {
        Kind::Spawn => processes.spawn(handle, &frame.payload),
        Kind::Stdin => processes.feed(handle, &frame.payload),
        Kind::Signal => processes.signal(handle, &frame.payload),
        Kind::Read => file::read(sender, handle, &frame.payload),
        Kind::Write => file::write(sender, handle, &frame.payload),
        _ => Err(format!("the lab sent a frame of kind {:?}, which only a guest sends", frame.kind)),
    };
    if let Err(message) = outcome {
        sender.send(Kind::Failed, handle, message.as_bytes());
    }
}
