//! The `memlane` command.

use std::path::PathBuf;

use memlane::config::Config;
use memlane::daemon::Daemon;

fn main() {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let path = PathBuf::from(std::env::args().nth(2).unwrap());
    let config = match Config::load(&path) {
        Ok(c) => c,
        Err(e) => {
            eprintln!("{e}");
            std::process::exit(2);
        }
    };
    let daemon = Daemon::start(&config).unwrap_or_else(|e| {
        eprintln!("{e}");
        std::process::exit(1);
    });
    println!("ready");
    let mut last = vec![];
    loop {
        std::thread::sleep(std::time::Duration::from_millis(200));
        let n = daemon.network();
        let w = n.shared().counters.worker(0);
        let now = (w.busy_cycles.get(), w.frames.get());
        let l: (u64, u64) = last.last().copied().unwrap_or((0, 0));
        if now.1 > l.1 {
            eprintln!(
                "cyc/frame {:.1} frames {} {:?} {:?}",
                (now.0 - l.0) as f64 / (now.1 - l.1) as f64,
                now.1 - l.1,
                n.shared().counters.totals(0),
                n.port(memlane::port::PortId(0)).state()
            );
        }
        last.push(now);
    }
}
