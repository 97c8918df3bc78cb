//! Streaming responses: events, captures.
//!
//! A slow client blocks its own response only. There are [`STREAMS`] of them at most, so that connections are left for commands.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};
use http_body_util::channel::{Channel, Sender};
use hyper::body::Bytes;
use memlane_observe::accept::Accept;
use memlane_observe::events::{From, Reader, Record};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::managed::Managed;
use super::problem::Refusal;
use crate::journal::NetworkEvent;

/// Most streaming responses at a time.
pub const STREAMS: usize = 16;
/// Parts of a response buffered for the client.
const PARTS: usize = 16;
/// Most events of a part.
const EVENTS: usize = 64;
/// Longest time without a part, so that a disconnected client is noticed.
const ALIVE: Duration = Duration::from_secs(10);
/// Longest time in which a client takes none of its events, before its place is free for another.
const STALLED: Duration = Duration::from_secs(30);
/// Interval at which drop counters are examined while a client follows the events: sleeping workers add no event.
const LOOK: Duration = Duration::from_secs(1);

/// Resources that a streaming response holds until it ends.
pub struct Lease(pub Box<dyn Send>);

/// Range of events to send.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct EventsQuery {
    /// Number of the first event; by default the oldest that is kept.
    pub from: Option<u64>,
    /// End after the last event that is kept, instead of waiting for more.
    pub end: bool,
}

/// An event in a response.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct EventReport {
    /// Its number; numbers ascend, and those of evicted events are left out.
    pub sequence: u64,
    /// Seconds since 1970.
    pub time: f64,
    /// The event itself.
    #[serde(flatten)]
    pub event: NetworkEvent,
}

impl EventReport {
    fn of(record: &Record<NetworkEvent>) -> Self {
        let time = record.time.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let time = (time.as_secs_f64() * 1e6).round() / 1e6;
        Self { sequence: record.sequence, time, event: record.event.clone() }
    }
}

/// Stands for events, before and between the next ones, that were evicted before the client read them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Missed {
    /// Number of missed events.
    pub missed: u64,
}

/// Encoding of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Server-sent events, as browsers read them.
    ServerSent,
    /// One JSON object per line.
    JsonLines,
}

impl Form {
    /// The content types, in the order of preference.
    pub const TYPES: [&str; 2] = ["text/event-stream", "application/jsonl"];

    /// The encoding that the client accepts.
    pub fn accepted(headers: &HeaderMap) -> Self {
        let accept = list(headers, header::ACCEPT);
        let accept = Accept::parse(&accept);
        let [events, lines] = Self::TYPES.map(|kind| accept.media_type(kind, None));
        if lines.is_named && lines > events { Self::JsonLines } else { Self::ServerSent }
    }

    fn content_type(self) -> &'static str {
        Self::TYPES[self as usize]
    }

    fn event(self, report: &EventReport) -> String {
        let json = serde_json::to_string(report).unwrap_or_default();
        match self {
            Self::ServerSent => format!("id: {}\nevent: {}\ndata: {json}\n\n", report.sequence, report.event.name()),
            Self::JsonLines => format!("{json}\n"),
        }
    }

    fn missed(self, missed: u64) -> String {
        let json = serde_json::to_string(&Missed { missed }).unwrap_or_default();
        match self {
            Self::ServerSent => format!("event: missed\ndata: {json}\n\n"),
            Self::JsonLines => format!("{json}\n"),
        }
    }

    /// Keep-alive data without meaning: writing it fails if the client is gone.
    fn nothing(self) -> &'static str {
        match self {
            Self::ServerSent => ":\n\n",
            Self::JsonLines => "\n",
        }
    }
}

/// The value of a header field that is a list, of all its lines (RFC 9110, section 5.3).
pub fn list(headers: &HeaderMap, name: HeaderName) -> String {
    let lines: Vec<_> = headers.get_all(name).iter().filter_map(|line| line.to_str().ok()).collect();
    lines.join(",")
}

/// The refusal of a streaming response beyond [`STREAMS`].
pub fn too_many() -> Refusal {
    let text = format!("{STREAMS} event streams and captures are open already, which is the limit: end one");
    Refusal::new(StatusCode::SERVICE_UNAVAILABLE, text)
}

/// A streaming response, and the sender of its parts.
pub fn answer(content_type: &'static str) -> (Response, Sender<Bytes>) {
    let (sender, body) = Channel::new(PARTS);
    (([(header::CONTENT_TYPE, content_type)], Body::new(body)).into_response(), sender)
}

/// Streams the events of `query`.
pub fn events(managed: &Arc<Managed>, headers: &HeaderMap, query: &EventsQuery, lease: Lease) -> Result<Response, Refusal> {
    let form = Form::accepted(headers);
    // A browser that reconnects sends the number of its last event.
    let last = headers.get("last-event-id").and_then(|id| id.to_str().ok()?.parse::<u64>().ok());
    let from = query.from.or(last.map(|last| last.saturating_add(1))).map_or(From::Oldest, From::Sequence);
    let reader = managed.events(from)?;
    let (response, to) = answer(form.content_type());
    let feed = Feed { managed: Arc::clone(managed), reader, form, to, stalled: STALLED };
    let end = query.end;
    tokio::spawn(async move {
        // Ends when the client disconnects.
        let _ = if end { feed.kept().await } else { feed.follow().await };
        drop(lease);
    });
    Ok(response)
}

struct Feed {
    managed: Arc<Managed>,
    reader: Reader<NetworkEvent>,
    form: Form,
    to: Sender<Bytes>,
    /// See [`STALLED`].
    stalled: Duration,
}

impl Feed {
    async fn kept(mut self) -> Result<(), Gone> {
        while self.send_batch().await? {}
        Ok(())
    }

    async fn follow(mut self) -> Result<(), Gone> {
        let mut silent = Duration::ZERO;
        loop {
            if self.send_batch().await? {
                silent = Duration::ZERO;
                continue;
            }
            if tokio::time::timeout(LOOK, self.reader.added()).await.is_err() {
                silent += LOOK;
                self.managed.look_for_notices().map_err(|_| Gone)?;
            }
            if silent >= ALIVE {
                silent = Duration::ZERO;
                self.send(self.form.nothing().into()).await?;
            }
        }
    }

    /// Sends the events that are there; false if there are none.
    async fn send_batch(&mut self) -> Result<bool, Gone> {
        let batch = self.reader.take(EVENTS);
        let mut text = if batch.missed > 0 { self.form.missed(batch.missed) } else { String::new() };
        text.extend(batch.records.iter().map(|record| self.form.event(&EventReport::of(record))));
        let is_empty = text.is_empty();
        if !is_empty {
            self.send(text).await?;
        }
        Ok(!is_empty)
    }

    async fn send(&mut self, text: String) -> Result<(), Gone> {
        let sent = tokio::time::timeout(self.stalled, self.to.send_data(text.into())).await;
        sent.map_err(|_| Gone)?.map_err(|_| Gone)
    }
}

/// The client has disconnected or stopped reading, or the network has ended.
struct Gone;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::control::Origin;

    #[test]
    fn a_client_that_stops_reading_is_given_up() {
        let managed = Arc::new(Managed::start(Config::named("stalled").unwrap(), Origin::default()).unwrap());
        let journal = managed.ask(|daemon| Arc::clone(&daemon.network().shared().journal)).unwrap();
        (0..2 * PARTS * EVENTS).for_each(|n| drop(journal.add(NetworkEvent::PortDetached { port: format!("p{n}"), by: None })));
        let (_unread, to) = answer(Form::TYPES[0]);
        let reader = managed.events(From::Oldest).unwrap();
        let feed = Feed { managed: Arc::clone(&managed), reader, form: Form::ServerSent, to, stalled: Duration::from_millis(20) };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let ended = runtime.block_on(async { tokio::time::timeout(Duration::from_secs(60), feed.follow()).await });
        assert!(matches!(ended, Ok(Err(Gone))), "it would wait for ever");
        managed.stop();
    }

    #[test]
    fn events_are_written_as_browsers_and_programs_read_them() {
        let event = NetworkEvent::PortDetached { port: "a\nb".into(), by: None };
        let report = EventReport { sequence: 7, time: 1.5, event };
        let json = r#"{"sequence":7,"time":1.5,"event":"port-detached","port":"a\nb"}"#;
        assert_eq!(Form::ServerSent.event(&report), format!("id: 7\nevent: port-detached\ndata: {json}\n\n"));
        assert_eq!(Form::JsonLines.event(&report), format!("{json}\n"));
        assert_eq!(Form::ServerSent.missed(3), "event: missed\ndata: {\"missed\":3}\n\n");
    }
}
