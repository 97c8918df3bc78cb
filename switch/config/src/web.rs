//! The endpoint of the web page.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// A checked endpoint of the web page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebListener {
    /// Address of the listener.
    pub address: SocketAddr,
    /// File with the token that requests must have, if any need one.
    pub token: Option<PathBuf>,
}

impl WebListener {
    /// The endpoint of the keys `web` and `web-token`; a relative path lies in `folder`.
    ///
    /// # Errors
    /// The sentence on a text that is no address, or an address that other hosts reach without a token.
    pub fn parse(text: &str, token: Option<&Path>, folder: &Path) -> Result<Self, String> {
        let text: String = text.chars().filter(|c| !c.is_control()).take(60).collect();
        let address: SocketAddr =
            text.parse().map_err(|_| format!("web is \"{text}\"; it must be an address with a port, as \"127.0.0.1:9892\""))?;
        if token.is_none() && !address.ip().is_loopback() {
            return Err(format!(
                "web is \"{text}\", which other hosts reach: only an address of this host alone, as \"127.0.0.1:9892\", needs no web-token"
            ));
        }
        Ok(Self { address, token: token.map(|path| folder.join(path)) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_other_hosts_reach_needs_a_token() {
        let parse = |text, token: Option<&str>| WebListener::parse(text, token.map(Path::new), Path::new("/net"));
        for text in ["127.0.0.1:1", "[::1]:1", "127.9.9.9:1"] {
            assert_eq!(parse(text, None), Ok(WebListener { address: text.parse().unwrap(), token: None }));
        }
        for text in ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "[::ffff:127.0.0.1]:1"] {
            assert!(parse(text, None).unwrap_err().contains("which other hosts reach"), "{text}");
            assert_eq!(parse(text, Some("token")).unwrap().token, Some("/net/token".into()));
        }
        for text in ["", "localhost:1", "127.0.0.1", "1", "unix:a"] {
            assert!(parse(text, Some("token")).unwrap_err().contains("must be an address with a port"), "{text}");
        }
    }
}
