//! Cost of a whole poll iteration: frames of two guests to each other, broadcasts, and frames from many to one.

#[allow(dead_code, reason = "each bench uses some of it")]
mod bed;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

use bed::{BATCH, Bed};
use memlane::settings::Settings;

fn worker(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("worker");
    for length in [64, 570, 1518, 60_000] {
        let mut bed = Bed::known(2, Settings::default());
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
    let mut bed = Bed::known(8, Settings::default());
    group.throughput(Throughput::Elements(7 * BATCH as u64));
    group.bench_function("seven guests to one", |bencher| bencher.iter(|| bed.exchange(7, |_| 7, 64)));
    group.throughput(Throughput::Elements(8 * BATCH as u64));
    group.bench_function("eight guests in a ring", |bencher| {
        bencher.iter(|| bed.exchange(8, |from| (from + 1) % 8, 64));
    });
    group.finish();
}

criterion_group!(benches, worker);
criterion_main!(benches);
