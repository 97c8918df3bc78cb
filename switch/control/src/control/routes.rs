//! The requests that a running network answers, and their bodies.

use std::borrow::Cow;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use flate2::Compression;
use flate2::write::GzEncoder;
use memlane_model::denials::PortDenials;
use memlane_observe::accept::Accept;
use memlane_observe::metrics::Format;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::api::{About, Api, Sent};
use super::blocked::{BlockedQueue, BlockedQueues};
use super::capture::{self, CaptureRequest};
use super::causes::PortCauses;
use super::frozen::{self, SnapshotOrder, ThawOrder, ThawView};
use super::health::{Alive, Ready};
use super::identity::Identity;
use super::managed::{Managed, WantedPort};
use super::problem::Refusal;
use super::record::{self, RecorderOrder, RecorderView, RecordingOrder};
use super::reload::{ReloadOptions, Reloaded};
use super::report::{PortReport, PortView, Report, SegmentReport, SegmentView};
use super::stream::{self, EventsQuery, Form, Lease};
use super::why::{Why, WhyFrame};
use crate::config::difference::CHANGEABLE;
use crate::config::json::misshapen;
use crate::config::lines::FileLines;
use crate::config::{Document, PortEntry, PortOrigin};
use crate::daemon::takeover;
use crate::known_addresses::SegmentAddresses;
use crate::quantity;

/// Longest timeout of draining a port.
pub const MAX_TIMEOUT: Duration = Duration::from_secs(3600);

/// Most bytes of a request of the web page.
const PAGE_BYTES: usize = 64 << 10;

/// A port to attach, with the keys of a `[[port]]` in the file, and its origin.
#[derive(Clone, Debug, Deserialize)]
#[serde(transparent)]
pub struct NewPort(Value);

/// Key of a new port for its origin.
pub const ORIGIN: &str = "origin";

/// Key of a new port that may be attached already, with the same keys.
pub const MAY_EXIST: &str = "may-exist";

/// Ports to attach, all or none.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct NewPorts {
    /// The ports.
    ports: Vec<NewPort>,
}

/// Ports to detach, all or none.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct OldPorts {
    /// Names of the ports.
    ports: Vec<String>,
    /// A port that is not attached is no error.
    #[serde(default)]
    if_exists: bool,
}

impl NewPort {
    /// The entry, the origin (by default a command), and whether the port may exist.
    fn wanted(self) -> Result<WantedPort, Refusal> {
        let Self(mut entry) = self;
        let mut take = |key| entry.as_object_mut().and_then(|keys| keys.remove(key));
        let (origin, may_exist) = (take(ORIGIN), take(MAY_EXIST));
        let origin = origin.map_or(Ok(PortOrigin::COMMAND), |stated| origin_of(&stated))?;
        let Some(may_exist) = may_exist.map_or(Some(false), |stated| stated.as_bool()) else {
            let mistake = (MAY_EXIST.to_owned(), "may-exist must be true or false".to_owned());
            return Err(Refusal::mistaken(StatusCode::UNPROCESSABLE_ENTITY, vec![mistake]));
        };
        Ok(WantedPort { entry, origin, may_exist })
    }
}

/// The origin that a request states.
fn origin_of(stated: &Value) -> Result<PortOrigin, Refusal> {
    let origin = PortOrigin::deserialize(stated).map_err(|_| {
        let mut mistakes = misshapen(&schemars::schema_for!(PortOrigin).to_value(), stated);
        mistakes.list.iter_mut().for_each(|mistake| mistake.key = format!("{ORIGIN}.{}", mistake.key).trim_end_matches('.').into());
        Refusal::from(mistakes)
    })?;
    match origin.mistake() {
        None => Ok(origin),
        Some(mistake) => Err(Refusal::mistaken(StatusCode::UNPROCESSABLE_ENTITY, vec![mistake])),
    }
}

impl JsonSchema for NewPort {
    fn schema_name() -> Cow<'static, str> {
        "NewPort".into()
    }

    /// The schema of a port in the file, with its origin, and whether it may exist.
    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let origin = generator.subschema_for::<PortOrigin>();
        let mut schema = PortEntry::json_schema(generator);
        if let Some(Value::Object(keys)) = schema.ensure_object().get_mut("properties") {
            keys.insert(ORIGIN.into(), origin.to_value());
            let may_exist = "Whether the port may be attached already, with the same keys: nothing changes then.";
            keys.insert(MAY_EXIST.into(), json!({ "type": "boolean", "default": false, "description": may_exist }));
        }
        schema
    }
}

/// Changes to a running port, with keys of a `[[port]]` in the file: a missing key stays as it is, null removes a key, and a
/// guest is offered a new `mac` or `mtu` when it connects next.
#[derive(Clone, Debug, Deserialize)]
#[serde(transparent)]
pub struct Patch(Map<String, Value>);

impl JsonSchema for Patch {
    fn schema_name() -> Cow<'static, str> {
        "Change".into()
    }

    /// The schema of a port in the file, with those keys that can change; each may be null.
    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut schema = PortEntry::json_schema(generator);
        let object = schema.ensure_object();
        object.insert("description".into(), "Keys to change: a missing key stays as it is, null removes a key, a table replaces all of the former one. A guest is offered a new MAC address or MTU when it connects next.".into());
        if let Some(Value::Object(keys)) = object.get_mut("properties") {
            keys.retain(|key, _| CHANGEABLE.contains(&key.as_str()));
            keys.values_mut().for_each(or_null);
        }
        schema
    }
}

/// Makes the schema of a key that has a default that of one that may be null, and has none.
fn or_null(schema: &mut Value) {
    let Value::Object(key) = schema else { return };
    key.remove("default");
    let description = key.remove("description");
    let own = Value::Object(std::mem::take(key));
    key.extend(description.map(|text| ("description".to_owned(), text)));
    key.insert("anyOf".into(), json!([own, { "type": "null" }]));
}

/// Timeout of draining a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct DrainOrder {
    /// Milliseconds, an hour at most.
    #[serde(deserialize_with = "quantity::read_milliseconds")]
    #[schemars(range(max = 3600000), transform = quantity::or_text("milliseconds"))]
    pub timeout_ms: u64,
}

impl Default for DrainOrder {
    fn default() -> Self {
        Self { timeout_ms: 10_000 }
    }
}

/// Policy rules to try.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct TrialOrder {
    /// A configuration as JSON, of which the policy rules and the groups of ports are used.
    #[schemars(with = "Document")]
    pub document: Value,
    /// Length of the trial in milliseconds, an hour at most.
    #[serde(deserialize_with = "quantity::read_milliseconds")]
    #[schemars(range(max = 3600000), transform = quantity::or_text("milliseconds"))]
    pub milliseconds: u64,
}

/// A trial of policy rules that has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct TrialBegun {
    /// Number of the trial, by which other requests name it.
    pub trial: u64,
    /// Length of the trial in milliseconds.
    pub milliseconds: u64,
}

/// Whether a port is drained: it is disabled, and none of its frames is in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Drained {
    /// False if frames are still in flight at the timeout; the port stays disabled.
    pub drained: bool,
}

/// Parameters of a reload.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct ReloadOrder {
    /// The whole configuration as JSON; without it, the network reads its own file again.
    #[schemars(with = "Option<Document>")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub document: Option<Value>,
    /// Only report the changes, without making them.
    pub dry_run: bool,
    /// Change the ports even if other keys differ, which only a restart changes.
    pub ports_only: bool,
    /// Remove the ports of other origins than the file, too.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub prune: bool,
    /// Names of the ports that may be removed or attached anew while a guest is connected, and if the document may be incomplete.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub force: Vec<String>,
    /// The file of this document may be incomplete: it ends in the middle of a line, or a program has it open for writing. No
    /// port is detached then, unless it is named in `force`.
    pub cut_off: bool,
    /// Lines of the file of this document, for `memlane why`.
    #[serde(skip_serializing_if = "FileLines::is_empty")]
    pub lines: FileLines,
}

/// A path without a query.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct NoQuery {}

fn about(id: &'static str, summary: &'static str, problems: &'static [u16]) -> About {
    About { id, summary, status: StatusCode::OK, problems }
}

fn created(about: About) -> About {
    About { status: StatusCode::CREATED, ..about }
}

/// The read-only routes, for programs that must not change the network.
pub fn read_only() -> Api {
    let forms = [Format::OpenMetrics.content_type(), Format::Prometheus.content_type()];
    Api::default()
        .text("/metrics", about("metrics", "Metrics for Prometheus.", &[503]), &forms, metrics)
        .route(Method::GET, "/livez", about("livez", "Whether the process answers.", &[503]), livez)
        .route(
            Method::GET,
            "/readyz",
            about("readyz", "Whether every worker answers, so that frames are forwarded.", &[503]),
            readyz,
        )
}

/// Whether a port forwards frames.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Switch {
    /// As in the file.
    enabled: bool,
}

/// The routes of the web page: they only read, except that with `may_change` ports are enabled, disabled and captured.
pub fn page(may_change: bool) -> Api {
    let reading = Api::taking(PAGE_BYTES)
        .route(Method::GET, "/v1/network", about("network", "The network, its ports and its workers.", &[503]), network)
        .route(Method::GET, "/v1/ports/{name}", about("port", "A port.", &[404, 503]), port)
        .route(Method::GET, "/v1/segments/{name}", about("segment", "A segment and its MAC addresses.", &[404, 503]), segment)
        .stream(Method::GET, "/v1/events", about("events", "Events.", &[503]), &Form::TYPES, events);
    if !may_change {
        return reading;
    }
    let problems = &[400, 404, 413, 422, 500, 503];
    reading.route(Method::PATCH, "/v1/ports/{name}", about("switch", "Enables or disables a port.", problems), switch).stream(
        Method::POST,
        "/v1/capture",
        about("capture", "Captures frames.", problems),
        &[capture::CONTENT_TYPE],
        begin_capture,
    )
}

/// All routes.
pub fn api() -> Api {
    with_streams(with_trials(with_recorder(with_ports(with_reports(read_only())))))
}

/// Adds the routes that only read, except those of one port.
fn with_reports(api: Api) -> Api {
    api.route(Method::GET, "/v1/network", about("network", "Report of the network, its ports and its workers.", &[503]), network)
        .route(
            Method::GET,
            "/v1/blocked",
            about(
                "blocked",
                "Transmit queues that are blocked at this moment, by port: the reason, and the end where it is known. Wakes each worker once, so do not poll it.",
                &[503],
            ),
            blocked,
        )
        .route(Method::GET, "/v1/identity", about("identity", "Identity of the network: its name, its file, its process.", &[503]), identity)
        .route(Method::GET, "/v1/ports", about("ports", "Reports of all ports, in the order in which they were attached.", &[503]), ports)
        .route(
            Method::GET,
            "/v1/why",
            about("all_causes", "Tells the causes that keep ports from their work, the worst ports first; asks the workers, so do not poll it.", &[503]),
            all_causes,
        )
        .route(Method::GET, "/v1/segments", about("segments", "Reports of all segments with ports.", &[503]), segments)
        .route(Method::GET, "/v1/segments/{name}", about("segment", "Report of a segment, and its learned MAC addresses.", &[404, 503]), segment)
        .route(Method::GET, "/v1/addresses", about("addresses", "IP addresses that the switch knows, by segment, with their owners.", &[503]), addresses)
        .route(
            Method::GET,
            "/v1/denials",
            about("denials", "Frames that policy rules refuse, by port: the latest 4096 destinations.", &[503]),
            all_denials,
        )
}

/// Adds the routes that attach and change ports, and those of one port.
fn with_ports(api: Api) -> Api {
    with_port(api).route(
        Method::POST,
        "/v1/ports",
        created(about(
            "attach",
            "Attaches a port. A segment is created with its first port and removed with its last. Relative paths are relative to the folder of the network's file. Its socket has the file's access rights, unless the request states others.",
            &[400, 409, 413, 422, 500, 503],
        )),
        attach,
    )
    .route(
        Method::POST,
        "/v1/attach",
        created(about("attach_all", "Attaches ports, all or none, with one write of the state file.", &[400, 409, 413, 422, 500, 503])),
        attach_all,
    )
    .route(
        Method::POST,
        "/v1/detach",
        about("detach_all", "Detaches ports, all or none; returns the keys that attach them again.", &[400, 404, 413, 422, 500, 503]),
        detach_all,
    )
    .route(
        Method::POST,
        "/v1/reload",
        about(
            "reload",
            "Applies a document to the network; ports without a difference are not touched, nor those of other origins than the file. Ports with a guest are neither removed nor attached anew.",
            &[400, 404, 409, 413, 422, 500, 503],
        ),
        reload,
    )
}

/// Adds the routes of one port.
fn with_port(api: Api) -> Api {
    api.route(
        Method::GET,
        "/v1/ports/{name}",
        about("port", "Report of a port, and the keys that attach it again.", &[404, 503]),
        port,
    )
    .route(
        Method::PATCH,
        "/v1/ports/{name}",
        about("change", "Changes a running port; returns its new keys.", &[400, 404, 409, 413, 422, 500, 503]),
        change,
    )
    .route(
        Method::DELETE,
        "/v1/ports/{name}",
        about("detach", "Detaches a port; returns the keys that attach it again.", &[404, 500, 503]),
        detach,
    )
    .route(
        Method::POST,
        "/v1/ports/{name}/drain",
        about(
            "drain",
            "Disables a port, and waits until none of its frames is in flight; ends with 409 if the port is enabled meanwhile.",
            &[400, 404, 409, 413, 422, 500, 503],
        ),
        drain,
    )
    .route(
        Method::GET,
        "/v1/ports/{name}/why",
        about("causes", "Tells the causes that keep a port from its work, each with its remedy.", &[404, 503]),
        causes,
    )
    .route(
        Method::POST,
        "/v1/ports/{name}/why",
        about("why", "Predicts the outcome of a frame from the port's guest, without sending it.", &[400, 404, 413, 422, 503]),
        why,
    )
    .route(
        Method::GET,
        "/v1/ports/{name}/denials",
        about("denials_of_port", "Frames from the port's guest that policy rules refuse.", &[404, 503]),
        denials,
    )
}

/// Adds the routes of the recorder of verdicts.
fn with_recorder(api: Api) -> Api {
    api.route(Method::GET, "/v1/recorder", about("recorder", "Whether the recorder of verdicts runs.", &[503]), recorder)
        .route(
            Method::POST,
            "/v1/recorder",
            created(about(
                "start_recorder",
                "Starts the recorder: each worker keeps its last verdicts in memory, with what they were made of and without payload.",
                &[400, 409, 413, 422, 503],
            )),
            start_recorder,
        )
        .route(
            Method::DELETE,
            "/v1/recorder",
            about("stop_recorder", "Stops the recorder, and frees its memory.", &[404, 503]),
            stop_recorder,
        )
        .stream(
            Method::POST,
            "/v1/recording",
            about(
                "record",
                "Streams recorded verdicts as a file for `memlane replay`: those of the recorder's memory, or all until the client closes the connection.",
                &[400, 409, 413, 422, 500, 503],
            ),
            &[record::CONTENT_TYPE],
            begin_recording,
        )
}

/// Adds the routes of policy rules on trial.
fn with_trials(api: Api) -> Api {
    api.route(
        Method::POST,
        "/v1/policy/trial",
        created(about(
            "try_policy",
            "Compares the frames that pass with the policy rules of a document, too, which decide on none; ends early if no client reads the result for 10 s.",
            &[400, 409, 413, 422, 500, 503],
        )),
        try_policy,
    )
    .route(
        Method::GET,
        "/v1/policy/trial",
        about("trial", "Frames that pass and that the rules on trial would refuse, by port.", &[404, 503]),
        trial,
    )
    .route(
        Method::GET,
        "/v1/policy/trial/{name}",
        about("trial_by_number", "The same of the trial with this number; after its end until another trial ends.", &[404, 503]),
        trial_by_number,
    )
    .route(
        Method::DELETE,
        "/v1/policy/trial/{name}",
        about("end_trial", "Ends the trial of policy rules; returns the frames that they would have refused, by port.", &[404, 503]),
        end_trial,
    )
}

/// Adds the routes that have a connection for longer than one answer, and the OpenAPI document.
fn with_streams(api: Api) -> Api {
    const TAKEOVER: &str = "Hands the network over to another process of the same user that shows the network's key.";
    let about_takeover = about("takeover", TAKEOVER, &[400, 403, 409, 426, 503]);
    let about_takeover = About { status: StatusCode::SWITCHING_PROTOCOLS, ..about_takeover };
    api.upgrade("/v1/takeover", about_takeover, takeover::PROTOCOL, Managed::hand_over)
        .stream(
            Method::GET,
            "/v1/events",
            about("events", "Events of the network: the last 4096, and further ones as they happen.", &[503]),
            &Form::TYPES,
            events,
        )
        .stream(
            Method::POST,
            "/v1/capture",
            about(
                "capture",
                "Captures frames as a pcapng file, until the client closes the connection.",
                &[400, 404, 413, 422, 500, 503],
            ),
            &[capture::CONTENT_TYPE],
            begin_capture,
        )
        .stream(
            Method::POST,
            "/v1/snapshot",
            about(
                "snapshot",
                "Freezes the network, and returns its state as a file for `memlane up --from`. It goes on by `/v1/thaw`, or after the time of the request.",
                &[400, 409, 413, 422, 500, 503],
            ),
            &[frozen::CONTENT_TYPE],
            begin_snapshot,
        )
        .route(Method::POST, "/v1/thaw", about("thaw", "Lets a frozen network go on.", &[400, 409, 413, 422, 503]), thaw)
        .route(Method::GET, "/v1/openapi.json", about("openapi", "This document.", &[]), openapi)
}

/// The OpenAPI document.
pub fn document() -> Value {
    api().document()
}

fn metrics(managed: &Managed, headers: &HeaderMap) -> Result<Response, Refusal> {
    let format = Format::accepted(&stream::list(headers, header::ACCEPT));
    let text = managed.metrics(format)?;
    let content_type = (header::CONTENT_TYPE, format.content_type());
    if !Accept::parse(&stream::list(headers, header::ACCEPT_ENCODING)).prefers_coding("gzip") {
        return Ok(([content_type], text).into_response());
    }
    let failed = |error: std::io::Error| Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, error);
    Ok(([content_type, (header::CONTENT_ENCODING, "gzip")], gzip(&text).map_err(failed)?).into_response())
}

/// Compresses `text` fast: most of it is the same words.
fn gzip(text: &str) -> std::io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(text.as_bytes())?;
    encoder.finish()
}

fn livez(_: &Managed, _: &str, (): ()) -> Result<Alive, Refusal> {
    Ok(Alive { alive: true })
}

fn readyz(managed: &Managed, _: &str, (): ()) -> Result<Ready, Refusal> {
    Ready::check(managed)
}

fn network(managed: &Managed, _: &str, (): ()) -> Result<Report, Refusal> {
    managed.report_with_causes()
}

fn blocked(managed: &Managed, _: &str, (): ()) -> Result<BlockedQueues, Refusal> {
    let network = managed.ask(|daemon| Arc::clone(daemon.network()))?;
    Ok(BlockedQueue::all(&network))
}

fn identity(managed: &Managed, _: &str, (): ()) -> Result<Identity, Refusal> {
    managed.identity()
}

fn ports(managed: &Managed, _: &str, (): ()) -> Result<Vec<PortReport>, Refusal> {
    managed.ports()
}

fn attach(managed: &Managed, _: &str, Sent(port): Sent<NewPort>) -> Result<PortView, Refusal> {
    managed.attach_one(&port.wanted()?)
}

fn attach_all(managed: &Managed, _: &str, Sent(NewPorts { ports }): Sent<NewPorts>) -> Result<Vec<PortView>, Refusal> {
    let wanted = |(index, port): (usize, NewPort)| port.wanted().map_err(|refusal| refusal.of_port(index));
    managed.attach_all(&ports.into_iter().enumerate().map(wanted).collect::<Result<Vec<_>, _>>()?)
}

fn detach_all(managed: &Managed, _: &str, Sent(OldPorts { ports, if_exists }): Sent<OldPorts>) -> Result<Vec<PortEntry>, Refusal> {
    managed.detach_all(&ports.iter().map(String::as_str).collect::<Vec<_>>(), if_exists)
}

fn port(managed: &Managed, name: &str, (): ()) -> Result<PortView, Refusal> {
    managed.view(name)
}

fn change(managed: &Managed, name: &str, Sent(Patch(patch)): Sent<Patch>) -> Result<PortEntry, Refusal> {
    managed.change(name, &patch)
}

fn switch(managed: &Managed, name: &str, Sent(Switch { enabled }): Sent<Switch>) -> Result<PortEntry, Refusal> {
    managed.change(name, &Map::from_iter([("enabled".to_owned(), enabled.into())]))
}

fn detach(managed: &Managed, name: &str, (): ()) -> Result<PortEntry, Refusal> {
    managed.detach(name)
}

fn drain(managed: &Managed, name: &str, Sent(order): Sent<DrainOrder>) -> Result<Drained, Refusal> {
    let timeout = Duration::from_millis(order.timeout_ms).min(MAX_TIMEOUT);
    managed.drain(name, timeout).map(|drained| Drained { drained })
}

fn why(managed: &Managed, name: &str, Sent(question): Sent<WhyFrame>) -> Result<Why, Refusal> {
    managed.why(name, &question)
}

fn causes(managed: &Managed, name: &str, (): ()) -> Result<PortCauses, Refusal> {
    managed.causes(name)
}

fn all_causes(managed: &Managed, _: &str, (): ()) -> Result<Vec<PortCauses>, Refusal> {
    managed.all_causes()
}

fn denials(managed: &Managed, name: &str, (): ()) -> Result<PortDenials, Refusal> {
    managed.denials(name)
}

fn try_policy(managed: &Managed, _: &str, Sent(order): Sent<TrialOrder>) -> Result<TrialBegun, Refusal> {
    let length = Duration::from_millis(order.milliseconds).min(MAX_TIMEOUT);
    let trial = managed.try_policy(&order.document, length)?;
    Ok(TrialBegun { trial, milliseconds: u64::try_from(length.as_millis()).unwrap_or(u64::MAX) })
}

fn trial(managed: &Managed, _: &str, (): ()) -> Result<Vec<PortDenials>, Refusal> {
    managed.tried(None)
}

fn trial_by_number(managed: &Managed, trial: &str, (): ()) -> Result<Vec<PortDenials>, Refusal> {
    managed.tried(Some(number_of_trial(trial)?))
}

fn end_trial(managed: &Managed, trial: &str, (): ()) -> Result<Vec<PortDenials>, Refusal> {
    managed.end_trial(number_of_trial(trial)?)
}

fn number_of_trial(text: &str) -> Result<u64, Refusal> {
    text.parse().map_err(|_| Refusal::new(StatusCode::NOT_FOUND, format!("a trial has a number, and \"{text}\" is none")))
}

fn all_denials(managed: &Managed, _: &str, (): ()) -> Result<Vec<PortDenials>, Refusal> {
    managed.all_denials()
}

fn segments(managed: &Managed, _: &str, (): ()) -> Result<Vec<SegmentReport>, Refusal> {
    managed.segments()
}

fn addresses(managed: &Managed, _: &str, (): ()) -> Result<Vec<SegmentAddresses>, Refusal> {
    managed.addresses()
}

fn segment(managed: &Managed, name: &str, (): ()) -> Result<SegmentView, Refusal> {
    managed.segment(name)
}

fn reload(managed: &Managed, _: &str, Sent(order): Sent<ReloadOrder>) -> Result<Reloaded, Refusal> {
    let ReloadOrder { document, dry_run, ports_only, prune, force, cut_off, lines } = order;
    let options = ReloadOptions { dry_run, ports_only, prune, force, cut_off };
    managed.reload_from(document.as_ref().map(|document| (document, lines)), options)
}

fn events(managed: &Arc<Managed>, headers: &HeaderMap, query: &EventsQuery, (): (), lease: Lease) -> Result<Response, Refusal> {
    stream::events(managed, headers, query, lease)
}

fn begin_capture(
    managed: &Arc<Managed>,
    _: &HeaderMap,
    NoQuery {}: &NoQuery,
    Sent(request): Sent<CaptureRequest>,
    lease: Lease,
) -> Result<Response, Refusal> {
    capture::begin(managed, request, lease)
}

fn begin_recording(
    managed: &Arc<Managed>,
    _: &HeaderMap,
    NoQuery {}: &NoQuery,
    Sent(order): Sent<RecordingOrder>,
    lease: Lease,
) -> Result<Response, Refusal> {
    record::open(managed, order, lease)
}

fn begin_snapshot(
    managed: &Arc<Managed>,
    _: &HeaderMap,
    NoQuery {}: &NoQuery,
    Sent(order): Sent<SnapshotOrder>,
    _: Lease,
) -> Result<Response, Refusal> {
    managed.snapshot(&order)
}

fn thaw(managed: &Managed, _: &str, Sent(order): Sent<ThawOrder>) -> Result<ThawView, Refusal> {
    managed.thaw(&order)
}

fn recorder(managed: &Managed, _: &str, (): ()) -> Result<RecorderView, Refusal> {
    record::view(managed)
}

fn start_recorder(managed: &Managed, _: &str, Sent(order): Sent<RecorderOrder>) -> Result<RecorderView, Refusal> {
    record::start(managed, &order)
}

fn stop_recorder(managed: &Managed, _: &str, (): ()) -> Result<RecorderView, Refusal> {
    record::stop(managed)
}

fn openapi(_: &Managed, _: &str, (): ()) -> Result<Value, Refusal> {
    Ok(document())
}
