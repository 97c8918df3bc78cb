//! Requests and answers at a set rate, and how long each took from the moment at which it *should* have been sent.
//!
//! A sender that waits for an answer before it asks again also leaves out the questions that it would have asked
//! meanwhile, and with them the longest waits (coordinated omission). Here the schedule knows nothing of answers.
//!
//!     exchange serve PORT                                   echoes the bytes of one client, then ends
//!     exchange ask ADDRESS PORT RATE BYTES WARM_UP SECONDS  prints one line of JSON
//!
//! Latencies are printed as pairs of nanoseconds (to three significant digits) and how often they were seen.

use std::collections::BTreeMap;
use std::env;
use std::error::Error;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

/// The first bytes of a message: the nanoseconds, after the first message, at which it should have been sent.
const STAMP: usize = size_of::<u64>();

fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    match run(&words.iter().map(String::as_str).collect::<Vec<_>>()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("exchange: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(words: &[&str]) -> Result<(), Box<dyn Error>> {
    match words {
        ["serve", port] => serve(port.parse()?),
        ["ask", address, port, rate, bytes, warm_up, seconds] => {
            let plan = Plan {
                interval: Duration::from_secs_f64(1.0 / rate.parse::<f64>()?),
                bytes: bytes.parse::<usize>()?.max(STAMP),
                warm_up: Duration::from_secs(warm_up.parse()?),
                measured: Duration::from_secs(seconds.parse()?),
            };
            plan.ask(connect(address, port.parse()?)?)
        }
        _ => Err("say `serve PORT` or `ask ADDRESS PORT RATE BYTES WARM_UP SECONDS`".into()),
    }
}

fn connect(address: &str, port: u16) -> Result<TcpStream, Box<dyn Error>> {
    let stream = TcpStream::connect((address, port))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Echoes the client's bytes as they come, until the client closes its direction.
fn serve(port: u16) -> Result<(), Box<dyn Error>> {
    let (mut client, _) = TcpListener::bind(("0.0.0.0", port))?.accept()?;
    client.set_nodelay(true)?;
    let mut chunk = vec![0; 1 << 16];
    loop {
        match client.read(&mut chunk)? {
            0 => return Ok(()),
            length => client.write_all(&chunk[..length])?,
        }
    }
}

/// Rate, sizes and times of a client's requests.
#[derive(Clone, Copy)]
struct Plan {
    interval: Duration,
    bytes: usize,
    warm_up: Duration,
    measured: Duration,
}

impl Plan {
    /// Sends by the schedule in one thread, and takes answers in another.
    fn ask(self, mut stream: TcpStream) -> Result<(), Box<dyn Error>> {
        let begin = Instant::now();
        let requests = stream.try_clone()?;
        let sender = thread::spawn(move || self.send(requests, begin));
        let latencies = self.receive(&mut stream, begin)?;
        let sent = sender.join().map_err(|_| "the sending thread has panicked")??;
        let answered: u64 = latencies.values().sum();
        let pairs: Vec<String> = latencies.iter().map(|(value, count)| format!("[{value},{count}]")).collect();
        println!(r#"{{"sent":{sent},"answered":{answered},"latencies":[{}]}}"#, pairs.join(","));
        Ok(())
    }

    /// Returns how many requests of the measured part were sent.
    fn send(self, mut stream: TcpStream, begin: Instant) -> std::io::Result<u64> {
        let mut message = vec![0; self.bytes];
        let mut measured = 0;
        for number in 0.. {
            let due = self.interval * number;
            if due >= self.warm_up + self.measured {
                break;
            }
            thread::sleep(due.saturating_sub(begin.elapsed()));
            message[..STAMP].copy_from_slice(&nanoseconds(due).to_le_bytes());
            stream.write_all(&message)?;
            measured += u64::from(due >= self.warm_up);
        }
        stream.shutdown(std::net::Shutdown::Write)?;
        Ok(measured)
    }

    /// How often each latency was seen among the answers to requests of the measured part.
    fn receive(self, stream: &mut TcpStream, begin: Instant) -> std::io::Result<BTreeMap<u64, u64>> {
        let mut message = vec![0; self.bytes];
        let mut latencies = BTreeMap::new();
        while stream.read_exact(&mut message).is_ok() {
            let mut stamp = [0; STAMP];
            stamp.copy_from_slice(&message[..STAMP]);
            let due = Duration::from_nanos(u64::from_le_bytes(stamp));
            if due >= self.warm_up {
                *latencies.entry(rounded(nanoseconds(begin.elapsed().saturating_sub(due)))).or_default() += 1;
            }
        }
        Ok(latencies)
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// To three significant digits.
fn rounded(value: u64) -> u64 {
    let step = 10_u64.pow(value.max(1).ilog10().saturating_sub(2));
    value / step * step + step / 2
}
