//! Which requests the web page's server admits.
//!
//! 1. The **host** that the browser believes to speak with must be this address: a name of another site that resolves to it (DNS
//!    rebinding) is refused.
//! 2. Requests that a page of **another site** makes the browser send are refused.
//! 3. Without a token, only those on this host can connect, and only read. With one, all but the page itself needs it.

use std::net::{IpAddr, SocketAddr};

use axum::extract::Request;
use axum::http::header::{AUTHORIZATION, HOST, HeaderMap, HeaderName, HeaderValue, ORIGIN};
use axum::http::{Method, StatusCode};

use super::token::Token;
use crate::control::problem::Refusal;

/// Prefix of paths with data of the network.
const DATA: &str = "/v1/";

/// Headers of every response: the page runs its own files alone, speaks with this server alone, is shown in no other page, and
/// tells no other site where it is.
const HEADERS: [(&str, &str); 6] = [
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action \
         'none'; frame-ancestors 'none'",
    ),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),
    ("cache-control", "no-store"),
    ("cross-origin-resource-policy", "same-origin"),
];

/// See the module.
#[derive(Debug)]
pub(super) struct Guard {
    address: SocketAddr,
    token: Option<Token>,
}

impl Guard {
    /// For a server at `address`.
    pub(super) fn new(address: SocketAddr, token: Option<Token>) -> Self {
        Self { address, token }
    }

    /// Whether there is a token.
    pub(super) fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// Adds the headers of every response.
    pub(super) fn harden(headers: &mut HeaderMap) {
        for (name, value) in HEADERS {
            headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
    }

    /// Checks a request.
    ///
    /// # Errors
    /// The request is not admitted.
    pub(super) fn check(&self, request: &Request) -> Result<(), Refusal> {
        let headers = request.headers();
        let mut hosts = headers.get_all(HOST).iter();
        let host = match (hosts.next().map(HeaderValue::to_str), hosts.next()) {
            (Some(Ok(host)), None) if self.is_own(host) => host,
            _ => {
                let text = format!(
                    "this page is at http://{} and at http://localhost:{}, and has no other name",
                    self.address,
                    self.address.port()
                );
                return Err(Refusal::new(StatusCode::MISDIRECTED_REQUEST, text));
            }
        };
        let is_data = request.uri().path().starts_with(DATA);
        if is_data && Self::is_from_another_site(headers, host) {
            return Err(Refusal::new(StatusCode::FORBIDDEN, "a page of another site sent this request"));
        }
        match &self.token {
            Some(token) if is_data && !Self::has(headers, token) => {
                Err(Refusal::new(StatusCode::UNAUTHORIZED, "give the token of the file web-token: Authorization: Bearer TOKEN"))
            }
            None if !matches!(*request.method(), Method::GET | Method::HEAD) => Err(Refusal::new(
                StatusCode::FORBIDDEN,
                "changes and captures need a token: start the network with --web-token FILE",
            )),
            _ => Ok(()),
        }
    }

    /// Whether `host` is this server's address, or "localhost". A server at the unspecified address has every address of its host:
    /// an address is no name that another site could have.
    fn is_own(&self, host: &str) -> bool {
        let (name, port) = match host.rsplit_once(':').filter(|(_, port)| !port.ends_with(']')) {
            Some((name, port)) => (name, port),
            None => (host, "80"),
        };
        if name.eq_ignore_ascii_case("localhost") {
            return true;
        }
        let address = name.strip_prefix('[').map_or(name, |name| name.strip_suffix(']').unwrap_or(name));
        let Ok(address) = address.parse::<IpAddr>() else { return false };
        (self.address.ip().is_unspecified() || address == self.address.ip()) && port == self.address.port().to_string()
    }

    fn is_from_another_site(headers: &HeaderMap, host: &str) -> bool {
        let site = headers.get("sec-fetch-site").is_some_and(|site| !matches!(site.as_bytes(), b"same-origin" | b"none"));
        site || headers.get(ORIGIN).is_some_and(|origin| origin.as_bytes() != format!("http://{host}").as_bytes())
    }

    fn has(headers: &HeaderMap, token: &Token) -> bool {
        let given = headers.get(AUTHORIZATION).and_then(|given| given.as_bytes().strip_prefix(b"Bearer "));
        given.is_some_and(|given| token.is(given))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard(address: &str) -> Guard {
        Guard::new(address.parse().unwrap(), None)
    }

    #[test]
    fn only_its_own_address_and_localhost_are_its_names() {
        let own = guard("127.0.0.1:9892");
        assert!(["127.0.0.1:9892", "localhost:9892", "LOCALHOST", "localhost:8000"].iter().all(|host| own.is_own(host)));
        let others = [
            "evil.example:9892",
            "127.0.0.1",
            "127.0.0.1:80",
            "127.0.0.2:9892",
            "localhost.evil.example:9892",
            "",
            ":",
            "[::1]:9892",
        ];
        assert!(others.iter().all(|host| !own.is_own(host)));
        assert!(
            guard("[::1]:9892").is_own("[::1]:9892")
                && !guard("[::1]:9892").is_own("[::2]:9892")
                && !guard("[::1]:9892").is_own("[::1]")
        );
        let every = guard("0.0.0.0:9892");
        assert!(every.is_own("10.1.2.3:9892") && !every.is_own("evil.example:9892") && !every.is_own("10.1.2.3:1"));
        assert!(guard("127.0.0.1:80").is_own("127.0.0.1"));
    }

    #[test]
    fn other_sites_are_told_by_their_headers() {
        let headers = |name: &'static str, value: &'static str| {
            HeaderMap::from_iter([(HeaderName::from_static(name), HeaderValue::from_static(value))])
        };
        let is_other = |headers: &HeaderMap| Guard::is_from_another_site(headers, "127.0.0.1:9892");
        for value in ["cross-site", "same-site", "else"] {
            assert!(is_other(&headers("sec-fetch-site", value)), "{value}");
        }
        for value in ["null", "http://evil.example", "https://127.0.0.1:9892", "http://127.0.0.1:9893", "http://localhost:9892"] {
            assert!(is_other(&headers("origin", value)), "{value}");
        }
        assert!(!is_other(&headers("sec-fetch-site", "same-origin")) && !is_other(&headers("sec-fetch-site", "none")));
        assert!(!is_other(&headers("origin", "http://127.0.0.1:9892")) && !is_other(&HeaderMap::new()));
    }
}
