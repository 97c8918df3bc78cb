//! A null port: sends nothing and accepts every frame. The shortest example of a back end, and a sink for measurements.

use std::io;
use std::sync::Arc;

use crate::packet::Packet;
use crate::pool::Pool;
use crate::port::end::{Backend, Ends, ReceiveEnd, TransmitEnd};
use crate::ring::{OpenOutcome, PlaceOutcome};

/// See the module.
#[derive(Debug)]
pub struct Null;

impl Backend for Null {
    fn into_ends(self, _pool: &Arc<Pool>) -> io::Result<Ends> {
        Ok(Ends { transmit: Box::new(Self), receive: Box::new(Self), readable: None, writable: None, room: None })
    }
}

impl TransmitEnd for Null {
    fn look(&mut self, _most: u16) -> u16 {
        0
    }

    fn open(&mut self, _packet: &mut Packet) -> OpenOutcome {
        OpenOutcome::Nothing
    }

    fn keep(&mut self, _packet: &Packet) {}

    fn release(&mut self, _head: u16) {}

    fn size(&self) -> u16 {
        0
    }

    fn has_news(&self) -> bool {
        false
    }

    fn wake(&mut self) {}
}

impl ReceiveEnd for Null {
    fn place(&mut self, _packet: &mut Packet) -> PlaceOutcome {
        PlaceOutcome::Complete(1)
    }

    fn publish(&mut self) {}
}
