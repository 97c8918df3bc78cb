//! scratch
#[path = "../benches/bed/mod.rs"]
mod bed;
fn main() {
    let rounds: usize = std::env::args().nth(1).unwrap().parse().unwrap();
    let size: u32 = std::env::args().nth(2).unwrap().parse().unwrap();
    let mut bed = bed::Bed::new(2);
    bed.guests[1].send(1, 0, 64, 1);
    bed.worker.step();
    bed.guests[0].send(0, 1, 64, 1);
    bed.worker.step();
    let mut got = 0;
    let mut cycles = 0;
    for _ in 0..rounds {
        bed.guests[0].send(0, 1, size, 32);
        let t = memlane::time::cycles();
        bed.worker.step();
        cycles += memlane::time::cycles() - t;
        got += bed.guests[1].settle();
        bed.guests[0].settle();
    }
    println!("{got} frames {:.1} cycles each", cycles as f64 / got as f64);
}
