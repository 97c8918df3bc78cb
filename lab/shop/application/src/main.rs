//! The bookstore's middle tier: takes a browser's request from the web server, asks the database, answers with a page.
//!
//! Nouns, in the order in which a request meets them: `record` times it and writes its line, `visit` reads the customer and the
//! cart from its cookies, `pages` holds the fourteen interactions, `database` asks and counts, `layout` makes HTML of the rows.
//!
//! One thread does it all: a guest of the lab has one processor.

mod database;
mod fault;
mod layout;
mod pages;
mod record;
mod visit;

use std::{env, process::ExitCode};

use tokio::{net::TcpListener, signal::unix};

use crate::{database::Database, record::Records};

const USAGE: &str = "usage: memlane-shop LISTEN-ADDRESS DATABASE LOG-FILE
  LISTEN-ADDRESS  such as 0.0.0.0:8000
  DATABASE        such as 'host=10.0.0.3 user=shop dbname=shop'
  LOG-FILE        gets a line for every request";

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [address, database, log] = arguments.as_slice() else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    match run(address, database, log) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("memlane-shop: {message}");
            ExitCode::FAILURE
        }
    }
}

/// Serves until SIGTERM.
fn run(address: &str, database: &str, log: &str) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| error.to_string())?;
    let records = Records::into_file(log).map_err(|error| format!("cannot write {log}: {error}"))?;
    runtime.block_on(async {
        let database = Database::connect(database).await?;
        let listener = TcpListener::bind(address).await.map_err(|error| format!("cannot listen on {address}: {error}"))?;
        println!("memlane-shop serves on {address}");
        let served = axum::serve(listener, pages::all(database, records)).with_graceful_shutdown(terminated());
        served.await.map_err(|error| error.to_string())
    })
}

async fn terminated() {
    if let Ok(mut signals) = unix::signal(unix::SignalKind::terminate()) {
        signals.recv().await;
    }
}
