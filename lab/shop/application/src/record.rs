//! A line in the log for every request: its id and path, its time, and the part of the time that the database took.
//!
//! `id path status total-µs waited-µs asked-µs questions bytes`

use std::{
    cell::Cell,
    fs::File,
    io::Write,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use axum::{
    body::HttpBody,
    extract::{Request, State},
    middleware::Next,
    response::Response,
};

tokio::task_local! {
    static SPENT: Cell<Spent>;
}

#[derive(Clone, Copy, Default)]
struct Spent {
    waited: Duration,
    asked: Duration,
    questions: u32,
}

/// Where lines go.
#[derive(Clone)]
pub(crate) struct Records(Arc<Mutex<File>>);

impl Records {
    /// A log that begins anew.
    pub(crate) fn into_file(path: &str) -> std::io::Result<Self> {
        Ok(Self(Arc::new(Mutex::new(File::create(path)?))))
    }

    fn write(&self, line: &str) {
        // A full disk costs lines, not customers.
        if let Ok(mut file) = self.0.lock() {
            let _ = file.write_all(line.as_bytes());
        }
    }
}

/// Adds to the time that this request waited for a connection.
pub(crate) fn waited(time: Duration) {
    spend(|spent| spent.waited += time);
}

/// Adds a question to the database, and how long its answer took.
pub(crate) fn asked(time: Duration) {
    spend(|spent| {
        spent.asked += time;
        spent.questions += 1;
    });
}

fn spend(add: impl FnOnce(&mut Spent)) {
    // Outside of a request, at the start, time is not counted.
    let _ = SPENT.try_with(|cell| {
        let mut spent = cell.get();
        add(&mut spent);
        cell.set(spent);
    });
}

/// Times a request and writes its line.
pub(crate) async fn timed(State(records): State<Records>, request: Request, next: Next) -> Response {
    let began = Instant::now();
    let id = request.headers().get("x-request-id").and_then(|id| id.to_str().ok()).unwrap_or("-").to_owned();
    let path = request.uri().path().to_owned();
    let answered = async {
        let response = next.run(request).await;
        (response, SPENT.with(Cell::get))
    };
    let (response, spent) = SPENT.scope(Cell::default(), answered).await;
    let bytes = response.body().size_hint().exact().unwrap_or(0);
    records.write(&format!(
        "{id} {path} {} {} {} {} {} {bytes}\n",
        response.status().as_u16(),
        began.elapsed().as_micros(),
        spent.waited.as_micros(),
        spent.asked.as_micros(),
        spent.questions,
    ));
    response
}
