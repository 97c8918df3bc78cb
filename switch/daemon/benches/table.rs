//! Cost of MAC learning and of a lookup in the forwarding table, with few addresses and with many.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use memlane::frame::MacAddress;
use memlane::id::PortId;
use memlane::table::Table;

/// Lookups at a time.
const BATCH: u32 = 64;

fn address(number: u32) -> MacAddress {
    let [a, b, c, d] = number.to_be_bytes();
    MacAddress::new([2, 0, a, b, c, d])
}

fn table(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("table");
    group.throughput(Throughput::Elements(BATCH.into()));
    for learned_addresses in [2, 1000, 30_000] {
        let table = Table::new(64, 1024, 77);
        for number in 0..learned_addresses {
            table.learn(address(number), PortId((number % 64) as u16), 0);
        }
        let mut next = 0_u32;
        let mut numbers = move || {
            next = next.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (next >> 8) % learned_addresses
        };
        group.bench_function(BenchmarkId::new("find", learned_addresses), |bencher| {
            bencher.iter(|| (0..BATCH).filter(|_| black_box(table.find(address(numbers()))).is_some()).count());
        });
        group.bench_function(BenchmarkId::new("confirm", learned_addresses), |bencher| {
            bencher.iter(|| {
                (0..BATCH).for_each(|_| {
                    let number = numbers();
                    black_box(table.learn(address(number), PortId((number % 64) as u16), 1));
                });
            });
        });
        group.bench_function(BenchmarkId::new("move", learned_addresses), |bencher| {
            bencher.iter(|| {
                (0..BATCH).for_each(|port| {
                    black_box(table.learn(address(numbers()), PortId(port as u16), 1));
                });
            });
        });
    }
    group.finish();
}

criterion_group!(benches, table);
criterion_main!(benches);
