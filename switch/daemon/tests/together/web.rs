//! The web page's server: admitted requests, and bounds on clients. The page itself is tested in a browser, by
//! `lab/tests/end_to_end/test_web.py`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::command::{Running, memlane, told, wait_until, write};

/// Longer than any timeout of the server.
const TIMEOUT: Duration = Duration::from_secs(60);
const TOKEN: &str = "0123456789abcdef0123456789abcdef";
const PORTS: &str = "control = \"control\"\n[[port]]\nname = \"web\"\nnull = true\n";

/// A network with a page, and the page's address.
fn up(folder: &Path, arguments: &[&str]) -> (Running, SocketAddr) {
    write(folder, "net.toml", PORTS);
    let mut command = memlane(folder, &["up", "net.toml", "--web", "127.0.0.1:0"]);
    let mut running = Running(command.args(arguments).stdout(Stdio::piped()).spawn().unwrap());
    let mut line = String::new();
    BufReader::new(running.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.split_once("page at http://").unwrap_or_else(|| panic!("{line}")).1;
    (running, address.trim_end().trim_end_matches('/').parse().unwrap())
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream
}

/// The head and the body of the answer to a request with these header lines.
fn send(address: SocketAddr, request: &str, headers: &str, body: &str) -> (String, String) {
    let mut stream = connect(address);
    let length = body.len();
    write!(stream, "{request} HTTP/1.1\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n{body}").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.into(), body.into())
}

fn get(address: SocketAddr, path: &str, headers: &str) -> (String, String) {
    send(address, &format!("GET {path}"), &format!("host: {address}\r\n{headers}"), "")
}

/// The status of an answer.
fn status((head, _): &(String, String)) -> &str {
    &head["HTTP/1.1 ".len()..][..3]
}

fn token(folder: &Path) {
    let path = write(folder, "token", TOKEN);
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
}

#[test]
fn the_page_is_served_with_headers_that_confine_it() {
    let folder = tempfile::tempdir().unwrap();
    let (_running, address) = up(folder.path(), &[]);
    for path in ["/", "/app.js", "/style.css", "/v1/network", "/nowhere"] {
        let (head, body) = get(address, path, "");
        assert_eq!(head.starts_with("HTTP/1.1 200"), path != "/nowhere", "{path}: {head}");
        for wanted in [
            "content-security-policy: default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; ",
            "x-content-type-options: nosniff",
            "referrer-policy: no-referrer",
            "cross-origin-resource-policy: same-origin",
        ] {
            assert!(head.contains(wanted), "{path}: {wanted}: {head}");
        }
        assert!(!head.contains("access-control"), "{path}: {head}");
        assert!(path != "/" || (!body.contains("<script>") && !body.contains("style=")), "nothing is inline");
    }
    // The request of a browser before a page of another site may change anything (CORS preflight).
    let preflight = "origin: http://evil.example\r\naccess-control-request-method: PATCH\r\n";
    let answer = send(address, "OPTIONS /v1/ports/web", &format!("host: {address}\r\n{preflight}"), "");
    assert!(status(&answer) == "403" && !answer.0.contains("access-control"), "{}", answer.0);
}

#[test]
fn only_requests_for_its_own_address_and_of_its_own_page_are_answered() {
    let folder = tempfile::tempdir().unwrap();
    let (_running, address) = up(folder.path(), &[]);
    let asked = |headers: &str| status(&send(address, "GET /v1/network", headers, "")).to_owned();
    let own = format!("host: {address}\r\n");
    assert_eq!(asked(&own), "200");
    assert_eq!(asked(&format!("host: localhost:{}\r\n", address.port())), "200");
    for host in
        ["host: evil.example\r\n", &format!("host: evil.example:{}\r\n", address.port()), "host: 127.0.0.1:1\r\n", "host:\r\n", ""]
    {
        assert_eq!(asked(host), "421", "{host}");
    }
    assert_eq!(asked(&format!("{own}{own}")), "421");
    assert_eq!(status(&send(address, "GET /", "host: evil.example\r\n", "")), "421", "nor is the page");
    for header in ["sec-fetch-site: cross-site", "sec-fetch-site: same-site", "origin: http://evil.example", "origin: null"] {
        assert_eq!(asked(&format!("{own}{header}\r\n")), "403", "{header}");
    }
    assert_eq!(asked(&format!("{own}sec-fetch-site: same-origin\r\norigin: http://{address}\r\n")), "200");
}

#[test]
fn without_a_token_nothing_is_changed_or_captured() {
    let folder = tempfile::tempdir().unwrap();
    let (_running, address) = up(folder.path(), &[]);
    let own = format!("host: {address}\r\n");
    for (request, body) in [
        ("PATCH /v1/ports/web", "{\"enabled\":false}"),
        ("POST /v1/capture", "{}"),
        ("DELETE /v1/ports/web", ""),
        ("POST /v1/ports", "{}"),
        ("POST /v1/reload", "{}"),
    ] {
        assert_eq!(status(&send(address, request, &own, body)), "403", "{request}");
        let header = format!("{own}authorization: Bearer {TOKEN}\r\n");
        assert_eq!(status(&send(address, request, &header, body)), "403", "{request}");
    }
    assert!(get(address, "/v1/ports/web", "").1.contains("\"enabled\":true"));
}

#[test]
fn with_a_token_ports_are_enabled_disabled_and_captured_and_nothing_else_is_changed() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    token(folder);
    let (_running, address) = up(folder, &["--web-token", "token"]);
    let own = format!("host: {address}\r\n");
    let with = |token: &str| format!("{own}authorization: Bearer {token}\r\n");
    for headers in [
        own.clone(),
        with(""),
        with("0"),
        with(&TOKEN[1..]),
        with(&format!("{TOKEN}0")),
        format!("{own}authorization: {TOKEN}\r\n"),
    ] {
        for request in ["GET /v1/network", "PATCH /v1/ports/web", "POST /v1/capture"] {
            assert_eq!(status(&send(address, request, &headers, "{}")), "401", "{request}");
        }
    }
    assert_eq!(status(&get(address, "/", "")), "200", "the page asks for the token");
    let change = |body: &str| send(address, "PATCH /v1/ports/web", &with(TOKEN), body);
    assert_eq!(status(&change("{\"enabled\":false}")), "200");
    let port = || send(address, "GET /v1/ports/web", &with(TOKEN), "").1;
    assert!(port().contains("\"state\":\"disabled\""), "{}", port());
    assert_eq!(status(&change("{\"enabled\":true}")), "200");
    for body in ["{\"weight\":2}", "{\"enabled\":true,\"weight\":2}", "{}", "{\"enabled\":null}"] {
        assert_eq!(status(&change(body)), "422", "{body}");
    }
    for request in ["DELETE /v1/ports/web", "POST /v1/ports/web/drain", "POST /v1/reload", "POST /v1/ports"] {
        let answer = send(address, request, &with(TOKEN), "{}");
        assert!(["404", "405"].contains(&status(&answer)), "{request}: {}", answer.0);
    }
    let mut stream = connect(address);
    write!(stream, "POST /v1/capture HTTP/1.1\r\n{}content-length: 2\r\n\r\n{{}}", with(TOKEN)).unwrap();
    let mut begin = Vec::new();
    let mut reader = BufReader::new(stream);
    // The section header of a pcapng file.
    while !begin.ends_with(&[0x0a, 0x0d, 0x0d, 0x0a]) {
        assert!(reader.read_until(0x0a, &mut begin).unwrap() > 0, "{}", String::from_utf8_lossy(&begin));
    }
    assert!(begin.starts_with(b"HTTP/1.1 200"));
}

#[test]
fn garbage_and_requests_that_are_too_long_end_their_own_connection() {
    let folder = tempfile::tempdir().unwrap();
    let (_running, address) = up(folder.path(), &[]);
    let own = format!("host: {address}\r\n");
    let long = "a".repeat(1 << 20);
    let requests = [
        "\0\u{1}\u{2}\r\n\r\n".to_owned(),
        "GET\r\n\r\n".into(),
        "\u{16}\u{3}\u{1}\u{2}\0\u{1}\0\r\n\r\n".into(),
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".into(),
        format!("GET / HTTP/1.1\r\n{own}x: {long}\r\n\r\n"),
        format!("GET /{long} HTTP/1.1\r\n{own}\r\n"),
        format!("GET / HTTP/1.1\r\n{own}{}\r\n", "a: b\r\n".repeat(1000)),
        format!("GET / HTTP/1.1\r\n{own}transfer-encoding: chunked\r\n\r\nzz\r\n"),
        format!("GET /v1/network HTTP/1.1\r\n{own}content-length: 1000000000\r\n\r\n"),
        format!("GET /v1/ports/%ff%00%2f..%2f HTTP/1.1\r\n{own}connection: close\r\n\r\n"),
    ];
    for request in requests {
        let mut stream = connect(address);
        // The server may end the connection before it has all.
        let _ = stream.write_all(request.as_bytes()).and_then(|()| stream.shutdown(std::net::Shutdown::Write));
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer);
        let shown = &request[..request.len().min(40)];
        assert!(answer.is_empty() || !answer.contains("HTTP/1.1 5"), "{shown}: {answer}");
        assert_eq!(status(&get(address, "/", "")), "200", "{shown}");
    }
}

#[test]
fn slow_clients_and_many_connections_lock_no_browser_out() {
    let folder = tempfile::tempdir().unwrap();
    let (mut running, address) = up(folder.path(), &[]);
    let mut slow: Vec<TcpStream> = (0..100).map(|_| connect(address)).collect();
    for stream in &mut slow {
        // Connections beyond the limit are closed already.
        let _ = stream.write_all(b"GET / HTTP/1.1\r\nhost: ");
    }
    let is_served = || {
        let mut stream = connect(address);
        let mut answer = String::new();
        let request = format!("GET / HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
        let asked = stream.write_all(request.as_bytes()).and_then(|()| stream.read_to_string(&mut answer));
        asked.is_ok() && answer.starts_with("HTTP/1.1 200")
    };
    wait_until(is_served, "a browser is served");
    for stream in &mut slow {
        let mut answer = Vec::new();
        // An error other than the test's timeout is an end too.
        let ended = stream.read_to_end(&mut answer);
        assert!(!ended.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock), "a slow client is cut off");
    }
    // Event streams end with their clients; more than there may be are refused, and the page is served beside them.
    let streams: Vec<TcpStream> = (0..24)
        .map(|_| {
            let mut stream = connect(address);
            write!(stream, "GET /v1/events HTTP/1.1\r\nhost: {address}\r\n\r\n").unwrap();
            stream
        })
        .collect();
    wait_until(is_served, "a browser is served beside readers of events");
    drop(streams);
    let follows = || {
        let mut stream = connect(address);
        let mut head = [0; 12];
        let asked =
            write!(stream, "GET /v1/events HTTP/1.1\r\nhost: {address}\r\n\r\n").and_then(|()| stream.read_exact(&mut head));
        asked.is_ok() && &head == b"HTTP/1.1 200"
    };
    // A stream without events notices the end of its client when it is due to say that it is alive.
    let deadline = Instant::now() + TIMEOUT;
    while !follows() {
        assert!(Instant::now() < deadline, "streams whose clients have gone leave no room");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(running.lives());
}

#[test]
fn an_address_that_others_reach_and_a_token_that_others_read_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    write(folder, "net.toml", PORTS);
    let refused = |arguments: &[&str]| {
        let output = memlane(folder, &[&["up", "net.toml"], arguments].concat()).output().unwrap();
        assert!(!output.status.success());
        told(&output)
    };
    let text = refused(&["--web", "0.0.0.0:0"]);
    assert!(text.contains("web is \"0.0.0.0:0\", which other hosts reach") && text.contains("needs no web-token"), "{text}");
    assert!(refused(&["--web", "localhost"]).contains("it must be an address with a port, as \"127.0.0.1:9892\""));
    assert!(refused(&["--web", "127.0.0.1:0", "--web-token", "missing"]).contains("missing"));
    let path = write(folder, "token", TOKEN);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    let text = refused(&["--web", "127.0.0.1:0", "--web-token", "token"]);
    assert!(text.contains("every user of the host has access to it"), "{text}");
    write(folder, "net.toml", &format!("web = \"0.0.0.0:9892\"\n{PORTS}"));
    assert!(refused(&[]).contains("net.toml:1: web is \"0.0.0.0:9892\", which other hosts reach"));
}
