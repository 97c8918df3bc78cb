//! What a whole pass costs: frames of two guests to each other, to everybody, and from many to one.

#[allow(dead_code, reason = "each bench uses some of it")]
mod bed;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

use bed::Bed;

/// Frames that a guest sends at a time.
const BATCH: usize = 32;

/// Guests `senders` send a batch each to the one that `to` says; runs until all have arrived.
fn exchange(bed: &mut Bed, senders: usize, to: impl Fn(usize) -> u16, length: u32) {
    for sender in 0..senders {
        bed.guests[sender].send(sender as u16, to(sender), length, BATCH);
    }
    let mut arrived = 0;
    while arrived < senders * BATCH {
        bed.worker.step();
        arrived += bed.guests.iter_mut().map(bed::Guest::settle).sum::<usize>();
    }
}

/// A bed whose worker knows where everybody is.
fn known(guests: usize) -> Bed {
    let mut bed = Bed::new(guests);
    for guest in 0..guests {
        bed.guests[guest].send(guest as u16, u16::MAX, 64, 1);
        bed.worker.step();
        for guest in &mut bed.guests {
            guest.settle();
        }
    }
    bed
}

fn worker(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("worker");
    for length in [64, 570, 1518, 60_000] {
        let mut bed = known(2);
        let frames = if length > 2000 { 4 } else { BATCH };
        group.throughput(Throughput::Elements(2 * frames as u64));
        group.bench_function(BenchmarkId::new("two guests, both ways", length), |bencher| {
            bencher.iter(|| {
                bed.guests[0].send(0, 1, length, frames);
                bed.guests[1].send(1, 0, length, frames);
                let mut buffers = 0;
                let wanted = 2 * frames * (length as usize + 12).div_ceil(2048);
                while buffers < wanted {
                    bed.worker.step();
                    buffers += bed.guests.iter_mut().map(bed::Guest::settle).sum::<usize>();
                }
            });
        });
    }
    let mut bed = known(8);
    group.throughput(Throughput::Elements(7 * BATCH as u64));
    group.bench_function("seven guests to one", |bencher| bencher.iter(|| exchange(&mut bed, 7, |_| 7, 64)));
    group.throughput(Throughput::Elements(8 * BATCH as u64));
    group.bench_function("eight guests in a ring", |bencher| {
        bencher.iter(|| exchange(&mut bed, 8, |from| (from as u16 + 1) % 8, 64));
    });
    group.finish();
}

criterion_group!(benches, worker);
criterion_main!(benches);
