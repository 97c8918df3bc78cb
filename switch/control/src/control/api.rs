//! HTTP routes and their OpenAPI description, from the same functions: the types that a handler takes and returns are the schemas
//! of the document.
//!
//! A handler runs on a thread of its own, since it may have to wait for workers; its arguments are the network, the name in the
//! path, and the request's body. JSON Schema 2020-12, which `schemars` generates from the types, is the dialect of OpenAPI 3.1.

use std::collections::{BTreeMap, HashMap};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, on};
use axum::{Json, Router};
use hyper_util::rt::TokioIo;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::author::ClientProcess;
use super::managed::Managed;
use super::problem::{Problem, Refusal};
use super::server::{Answering, Bounds, Lane};
use super::stream::Lease;
use crate::author;
use crate::config::json::misshapen;
use crate::daemon::takeover::give::KEY_HEADER;

/// Description of a route beside its types.
#[derive(Clone, Copy, Debug)]
pub struct About {
    /// The operation's id, a function name for generated clients.
    pub id: &'static str,
    /// A one-sentence summary.
    pub summary: &'static str,
    /// Status of a successful response.
    pub status: StatusCode,
    /// Statuses of error responses.
    pub problems: &'static [u16],
}

/// Body of a request.
pub trait Input: Sized + Send + 'static {
    /// Schema of the body; `None` for a route without a body.
    fn schema(schemas: &mut SchemaGenerator) -> Option<Schema>;

    /// Parses the body.
    ///
    /// # Errors
    /// The body does not fit the schema.
    fn read(bytes: &[u8]) -> Result<Self, Refusal>;
}

impl Input for () {
    fn schema(_: &mut SchemaGenerator) -> Option<Schema> {
        None
    }

    fn read(_: &[u8]) -> Result<Self, Refusal> {
        Ok(())
    }
}

/// A JSON body; an empty one stands for an object without keys.
#[derive(Clone, Debug)]
pub struct Sent<T>(pub T);

impl<T: DeserializeOwned + JsonSchema + Send + 'static> Input for Sent<T> {
    fn schema(schemas: &mut SchemaGenerator) -> Option<Schema> {
        Some(schemas.subschema_for::<T>())
    }

    fn read(bytes: &[u8]) -> Result<Self, Refusal> {
        let bytes = if bytes.is_empty() { b"{}" } else { bytes };
        let no_json = |error: serde_json::Error| {
            let (line, column) = (error.line(), error.column());
            Refusal::new(StatusCode::BAD_REQUEST, format!("the request body is not valid JSON: see line {line}, column {column}"))
        };
        let sent: Value = serde_json::from_slice(bytes).map_err(no_json)?;
        T::deserialize(&sent).map(Self).map_err(|_| Refusal::from(misshapen(&schemars::schema_for!(T).to_value(), &sent)))
    }
}

/// A handler that starts a streaming response: from the network, the headers, the query and the body.
pub type Start<Q, I> = fn(&Arc<Managed>, &HeaderMap, &Q, I, Lease) -> Result<Response, Refusal>;

/// See the module.
#[derive(Debug)]
pub struct Api {
    router: Router<Arc<Managed>>,
    /// Path items of the OpenAPI document.
    paths: BTreeMap<&'static str, Map<String, Value>>,
    schemas: SchemaGenerator,
    bounds: Arc<Bounds>,
}

impl Default for Api {
    /// An API without routes.
    fn default() -> Self {
        let settings = SchemaSettings::draft2020_12().with(|settings| {
            settings.definitions_path = "/components/schemas".into();
            settings.meta_schema = None;
        });
        Self { router: Router::new(), paths: BTreeMap::new(), schemas: settings.into_generator(), bounds: Arc::default() }
    }
}

impl Api {
    /// An API without routes that refuses requests of more bytes.
    pub fn taking(most_bytes: usize) -> Self {
        Self { bounds: Arc::new(Bounds::taking(most_bytes)), ..Self::default() }
    }

    /// Adds a route: `run` handles `method` at `path`, in which `{name}` stands for a name.
    pub fn route<I: Input, A: Serialize + JsonSchema + 'static>(
        mut self,
        method: Method,
        path: &'static str,
        about: About,
        run: fn(&Managed, &str, I) -> Result<A, Refusal>,
    ) -> Self {
        let operation = self.describe::<I, A>(path, about);
        self.paths.entry(path).or_default().insert(method.as_str().to_lowercase(), operation);
        let (bounds, lane) = (Arc::clone(&self.bounds), Lane::of(&method, path));
        let changes = method != Method::GET;
        // Cannot fail: every method in the table of routes has a filter.
        let Ok(filter) = MethodFilter::try_from(method) else { return self };
        let answer = move |State(managed): State<Arc<Managed>>, Path(names): Path<HashMap<String, String>>, request: Request| {
            let bounds = Arc::clone(&bounds);
            async move {
                let name = names.get("name").cloned().unwrap_or_default();
                let headers = request.headers().clone();
                let run = move |bytes: &[u8]| {
                    check_file(&managed, &headers)?;
                    let answer = (about.status, Json(run(&managed, &name, I::read(bytes)?)?)).into_response();
                    Ok(if changes { with_unsaved(answer, managed.unsaved()) } else { answer })
                };
                respond(&bounds, lane, request, run).await.unwrap_or_else(Refusal::into_response)
            }
        };
        self.router = self.router.route(path, on(filter, answer));
        self
    }

    fn describe<I: Input, A: JsonSchema>(&mut self, path: &str, about: About) -> Value {
        let content = |schema: Schema| json!({ "application/json": { "schema": schema } });
        let mut responses = Map::new();
        let answer = self.schemas.subschema_for::<A>();
        let success = json!({ "description": "Success.", "content": content(answer) });
        responses.insert(about.status.as_str().into(), success);
        for &status in about.problems {
            let problem = self.schemas.subschema_for::<Problem>();
            responses.insert(status.to_string(), json!({ "description": meaning(status), "content": content(problem) }));
        }
        let mut operation = json!({ "operationId": about.id, "summary": about.summary, "responses": responses });
        if path.contains("{name}") {
            let name = json!({ "name": "name", "in": "path", "required": true, "schema": { "type": "string" } });
            operation["parameters"] = json!([name]);
        }
        if let Some(schema) = I::schema(&mut self.schemas) {
            operation["requestBody"] = json!({ "required": true, "content": content(schema) });
        }
        operation
    }

    /// The OpenAPI document of all routes.
    pub fn document(mut self) -> Value {
        json!({
            "openapi": "3.1.0",
            "info": {
                "title": "memlane's control socket",
                "version": env!("CARGO_PKG_VERSION"),
                "description": "HTTP on a Unix socket that only its owner may use. Names of keys are those of the network's file."
            },
            "paths": self.paths,
            "components": { "schemas": self.schemas.take_definitions(true) }
        })
    }

    /// Adds a GET route with a text response, in the lane of scrapes: `run` handles `path` in the one of `forms` that the client accepts.
    pub fn text(
        mut self,
        path: &'static str,
        about: About,
        forms: &[&str],
        run: fn(&Managed, &HeaderMap) -> Result<Response, Refusal>,
    ) -> Self {
        let content: Map<String, Value> =
            forms.iter().map(|&form| (form.into(), json!({ "schema": { "type": "string" } }))).collect();
        let mut operation = self.describe::<(), ()>(path, about);
        operation["responses"][about.status.as_str()]["content"] = content.into();
        self.paths.entry(path).or_default().insert("get".into(), operation);
        let bounds = Arc::clone(&self.bounds);
        let answer = move |State(managed): State<Arc<Managed>>, request: Request| async move {
            let headers = request.headers().clone();
            let run = move |_: &[u8]| run(&managed, &headers);
            respond(&bounds, Lane::Scrape, request, run).await.unwrap_or_else(Refusal::into_response)
        };
        self.router = self.router.route(path, on(MethodFilter::GET, answer));
        self
    }

    /// Adds a route with a streaming response: `start` handles `method` at `path` and sends for as long as the client reads, in
    /// one of `forms`. `Q` is the type of the query, and `I` that of the body.
    pub fn stream<Q: DeserializeOwned + JsonSchema + Send + 'static, I: Input>(
        mut self,
        method: Method,
        path: &'static str,
        about: About,
        forms: &[&str],
        start: Start<Q, I>,
    ) -> Self {
        let content: Map<String, Value> =
            forms.iter().map(|&form| (form.into(), json!({ "schema": { "type": "string" } }))).collect();
        let mut operation = self.describe::<I, ()>(path, about);
        operation["responses"][about.status.as_str()]["content"] = content.into();
        let parameters = schemars::schema_for!(Q).to_value();
        let parameter = |(name, schema): (&String, &Value)| json!({ "name": name, "in": "query", "schema": schema });
        let parameters: Vec<Value> = parameters["properties"].as_object().into_iter().flatten().map(parameter).collect();
        if !parameters.is_empty() {
            operation["parameters"] = parameters.into();
        }
        self.paths.entry(path).or_default().insert(method.as_str().to_lowercase(), operation);
        let bounds = Arc::clone(&self.bounds);
        let Ok(filter) = MethodFilter::try_from(method) else { return self };
        let answer = move |State(managed): State<Arc<Managed>>, query: Result<Query<Q>, QueryRejection>, request: Request| async move {
            let headers = request.headers().clone();
            let begin = || {
                let Query(query) = query.map_err(|error| Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, error.body_text()))?;
                let answering = request.extensions().get::<Answering>().cloned().unwrap_or_default();
                let lease = Lease(Box::new((bounds.enter_stream()?, answering.begin())));
                Ok((query, lease))
            };
            match begin() {
                Ok((query, lease)) => {
                    let run = move |bytes: &[u8]| {
                        check_file(&managed, &headers)?;
                        start(&managed, &headers, &query, I::read(bytes)?, lease)
                    };
                    respond(&bounds, Lane::Look, request, run).await.unwrap_or_else(Refusal::into_response)
                }
                Err(refusal) => Refusal::into_response(refusal),
            }
        };
        self.router = self.router.route(path, on(filter, answer));
        self
    }

    /// Adds a POST route that makes the connection a plain stream of `protocol`, if it shows the key of a takeover; `run` has it on a thread
    /// of its own.
    pub fn upgrade(mut self, path: &'static str, about: About, protocol: &'static str, run: fn(&Managed, UnixStream)) -> Self {
        let mut operation = self.describe::<(), ()>(path, about);
        operation["responses"][about.status.as_str()] = json!({ "description": "The connection is a stream of the protocol now." });
        let header = json!({ "name": "upgrade", "in": "header", "required": true, "schema": { "const": protocol } });
        let key = json!({ "name": KEY_HEADER, "in": "header", "required": true, "schema": { "type": "string" } });
        operation["parameters"] = json!([header, key]);
        self.paths.entry(path).or_default().insert("post".into(), operation);
        let answer = move |State(managed): State<Arc<Managed>>, request: Request| async move {
            let wanted = request.headers().get(header::UPGRADE);
            if wanted.is_none_or(|wanted| wanted != protocol) {
                let text = format!("this path needs the header upgrade: {protocol}, which `memlane up --takeover` sends");
                return Refusal::new(StatusCode::UPGRADE_REQUIRED, text).into_response();
            }
            let shown = request.headers().get(KEY_HEADER).map(HeaderValue::as_bytes);
            if let Err(refusal) = check_file(&managed, request.headers()).and_then(|()| managed.check_key(shown)) {
                return refusal.into_response();
            }
            let client = request.extensions().get::<ClientProcess>().copied();
            let run = move |stream| author::acting(client.map(ClientProcess::author), || run(&managed, stream));
            tokio::spawn(run_upgraded(request, run));
            let headers = [(header::CONNECTION, "upgrade"), (header::UPGRADE, protocol)];
            (about.status, headers).into_response()
        };
        self.router = self.router.route(path, on(MethodFilter::POST, answer));
        self
    }

    /// The router that serves `managed`; unknown paths are answered with `nowhere`.
    pub fn router(self, managed: Arc<Managed>, nowhere: &'static str) -> Router {
        let nowhere = move || async move { Refusal::new(StatusCode::NOT_FOUND, nowhere) };
        let not_so = || async {
            Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "this path does not support the method: see /v1/openapi.json")
        };
        self.router.fallback(nowhere).method_not_allowed_fallback(not_so).with_state(managed)
    }
}

/// Has `run` handle the connection of `request` once it is a plain stream.
async fn run_upgraded(request: Request, run: impl FnOnce(UnixStream) + Send + 'static) {
    // A client that disconnects, or that is no process of this host, has nothing to say.
    let Ok(upgraded) = hyper::upgrade::on(request).await else { return };
    let Ok(parts) = upgraded.downcast::<TokioIo<tokio::net::UnixStream>>() else { return };
    let Ok(stream) = parts.io.into_inner().into_std() else { return };
    if parts.read_buf.is_empty() && stream.set_nonblocking(false).is_ok() {
        let _ = std::thread::Builder::new().name("takeover".into()).spawn(move || run(stream));
    }
}

/// Meaning of a status in this API.
fn meaning(status: u16) -> &'static str {
    match status {
        400 => "The request body is not valid JSON.",
        403 => "The request does not show the key of the network.",
        404 => "There is no port or segment of this name.",
        409 => {
            "The request conflicts with the state of the network or of the machine. Nothing was changed, unless the answer says so."
        }
        408 => "The request body arrived too slowly.",
        413 => "The request body is too long.",
        426 => "The request does not ask for the protocol of this path.",
        422 => "The request has mistakes. Nothing was changed.",
        500 => "The kernel refused a system call, or the change cannot be saved.",
        _ => "The network is shutting down, or a limit of concurrent requests is reached.",
    }
}

/// Request header with the network's file as JSON: the network of another file refuses the request.
pub const FILE: &str = "memlane-file";

/// Refuses a request for the network of another file.
fn check_file(managed: &Managed, headers: &HeaderMap) -> Result<(), Refusal> {
    let Some(file) = headers.get(FILE) else { return Ok(()) };
    let wrong = |error| Refusal::new(StatusCode::BAD_REQUEST, format!("the header {FILE} does not describe a file: {error}"));
    managed.check_file(&serde_json::from_slice(file.as_bytes()).map_err(wrong)?)
}

/// Response header for a change that is applied but could not be written to the state file: the cause.
pub const UNSAVED: &str = "memlane-unsaved";

fn with_unsaved(mut answer: Response, unsaved: Option<String>) -> Response {
    let value = unsaved.and_then(|text| HeaderValue::from_bytes(text.replace(char::is_control, "?").as_bytes()).ok());
    if let Some(value) = value {
        answer.headers_mut().insert(UNSAVED, value);
    }
    answer
}

/// Reads the request's body, and has `run` handle it on another thread, in `lane`.
async fn respond(
    bounds: &Bounds,
    lane: Lane,
    request: Request,
    run: impl FnOnce(&[u8]) -> Result<Response, Refusal> + Send + 'static,
) -> Result<Response, Refusal> {
    let answering = request.extensions().get::<Answering>().cloned().unwrap_or_default();
    let client = request.extensions().get::<ClientProcess>().copied().filter(|_| request.method() != Method::GET);
    let brought = bounds.read(request).await?;
    let _answering = answering.begin();
    let place = bounds.enter(lane).await?;
    let lost = |_| {
        Refusal::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "internal error: the request was lost by a defect of memlane; see its log, and report it",
        )
    };
    let run = move || {
        let answer = author::acting(client.map(ClientProcess::author), || run(&brought.bytes));
        // Not earlier: if the client disconnects, the thread is in use until here all the same.
        drop(place);
        answer
    };
    tokio::task::spawn_blocking(run).await.map_err(lost)?
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::control::managed::Origin;
    use crate::control::server;
    use std::io::Write;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    static RUNNING: AtomicUsize = AtomicUsize::new(0);
    static MOST: AtomicUsize = AtomicUsize::new(0);

    fn slow_scrape(_: &Managed, _: &HeaderMap) -> Result<Response, Refusal> {
        MOST.fetch_max(RUNNING.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(300));
        RUNNING.fetch_sub(1, Ordering::SeqCst);
        Ok(StatusCode::OK.into_response())
    }

    #[test]
    fn scrapes_of_clients_that_disconnect_leave_threads_for_commands() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics");
        let managed = Arc::new(Managed::start(Config::named("scraped").unwrap(), Origin::default()).unwrap());
        let about = About { id: "metrics", summary: "", status: StatusCode::OK, problems: &[] };
        let router = Api::default().text("/metrics", about, &["text/plain"], slow_scrape).router(Arc::clone(&managed), "nothing");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::UnixListener::bind(&path).unwrap();
            tokio::spawn(async move { server::serve(&listener, router, 8).await });
            for _ in 0..20 {
                let mut client = std::os::unix::net::UnixStream::connect(&path).unwrap();
                client.write_all(b"GET /metrics HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
        managed.stop();
        assert!((1..=2).contains(&MOST.load(Ordering::SeqCst)), "{MOST:?} scrapes ran at a time");
    }
}
