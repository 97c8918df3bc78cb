//! Cost of the rings: frames taken from a transmit ring and put into a receive ring, without a worker around them.

#[allow(dead_code, reason = "each bench uses some of it")]
mod bed;

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use memlane::offload::Offloads;
use memlane::packet::Packet;
use memlane::ring::{OpenOutcome, PlaceOutcome, ReceiveQueue, TransmitQueue};

/// Frames at a time.
const BATCH: u16 = 32;

/// Two guests' rings, and the worker's side of them.
struct Rings {
    sender: bed::Guest,
    receiver: bed::Guest,
    transmit: TransmitQueue,
    receive: ReceiveQueue,
    packet: Packet,
}

impl Rings {
    fn new() -> Self {
        let (sender, transmit, _) = bed::Guest::alone(false);
        let (receiver, _, receive) = bed::Guest::alone(false);
        let receive = ReceiveQueue::new(receive, Offloads::ALL, true);
        Self { sender, receiver, transmit: TransmitQueue::new(transmit), receive, packet: Packet::default() }
    }

    /// Moves a batch by the general way.
    fn carry(&mut self, length: u32) {
        self.sender.send(0, 1, length, BATCH.into());
        let count = self.transmit.look(BATCH).unwrap();
        for _ in 0..count {
            assert_eq!(self.transmit.open(&mut self.packet).unwrap(), OpenOutcome::Packet);
            assert_eq!(self.receive.place(&mut self.packet).unwrap(), PlaceOutcome::Complete(1));
            self.transmit.finish(&self.packet);
        }
        self.receive.ring().publish();
        self.transmit.ring().publish();
    }

    fn settle(&mut self) -> usize {
        self.sender.settle();
        self.receiver.settle()
    }

    fn discard(&mut self, length: u32) {
        self.sender.send(0, 1, length, BATCH.into());
        let count = self.transmit.look(BATCH).unwrap();
        for _ in 0..count {
            assert_eq!(self.transmit.open(&mut self.packet).unwrap(), OpenOutcome::Packet);
            self.transmit.finish(black_box(&self.packet));
        }
        self.transmit.ring().publish();
    }
}

fn rings(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("ring");
    group.throughput(Throughput::Elements(BATCH.into()));
    let mut rings = Rings::new();
    for length in [64, 1518] {
        group.bench_function(BenchmarkId::new("taken and given back", length), |bencher| {
            bencher.iter(|| {
                rings.discard(length);
                rings.settle()
            });
        });
        group.bench_function(BenchmarkId::new("taken, delivered and given back", length), |bencher| {
            bencher.iter(|| {
                rings.carry(length);
                assert_eq!(rings.settle(), usize::from(BATCH));
            });
        });
    }
    group.finish();
}

criterion_group!(benches, rings);
criterion_main!(benches);
