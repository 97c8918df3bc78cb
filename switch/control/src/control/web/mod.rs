//! The web page: the network in a browser, from files in the binary.
//!
//! The page reads the routes of the control socket that only read, see [`routes::page`]. [`guard`]: which requests are admitted.
//! [`token`]: the secret without which the page is read-only, and seen on this host alone.

mod guard;
mod token;

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::header;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;

use self::guard::Guard;
use self::token::Token;
use super::error::ControlError;
use super::managed::Managed;
use super::{routes, server};
use crate::config::web::WebListener;

/// Most connections at a time; a browser opens six.
const CONNECTIONS: usize = 32;

/// The page's files: path, content type, text.
const FILES: [(&str, &str, &str); 8] = [
    ("/", "text/html; charset=utf-8", include_str!("page/index.html")),
    ("/style.css", "text/css; charset=utf-8", include_str!("page/style.css")),
    ("/app.js", SCRIPT, include_str!("page/app.js")),
    ("/dom.js", SCRIPT, include_str!("page/dom.js")),
    ("/network.js", SCRIPT, include_str!("page/network.js")),
    ("/port.js", SCRIPT, include_str!("page/port.js")),
    ("/rates.js", SCRIPT, include_str!("page/rates.js")),
    ("/server.js", SCRIPT, include_str!("page/server.js")),
];
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// A listening socket for browsers.
#[derive(Debug)]
pub struct Web {
    listener: TcpListener,
    /// The address, with its port.
    pub address: SocketAddr,
    guard: Arc<Guard>,
}

impl AsFd for Web {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

/// Binds the address of `web`, and reads its token.
///
/// # Errors
/// [`ControlError::Web`], [`ControlError::Token`].
pub fn listen(web: &WebListener) -> Result<Web, ControlError> {
    listen_on(web, None)
}

/// Like [`listen`], at the socket `bound` if there is one.
///
/// # Errors
/// The errors of [`listen`].
pub fn listen_on(web: &WebListener, bound: Option<std::net::TcpListener>) -> Result<Web, ControlError> {
    let unread = |path: &std::path::PathBuf| Token::read(path).map_err(|cause| ControlError::Token { path: path.clone(), cause });
    let token = web.token.as_ref().map(unread).transpose()?;
    let failed = |cause| ControlError::Web { place: web.address.to_string(), cause };
    let listen = || {
        let listener = bound.map_or_else(|| std::net::TcpListener::bind(web.address), Ok)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        TcpListener::from_std(listener).map(|listener| (listener, address))
    };
    let (listener, address) = listen().map_err(failed)?;
    Ok(Web { listener, address, guard: Arc::new(Guard::new(address, token)) })
}

/// Serves the page until cancelled.
///
/// # Errors
/// The kernel refuses the socket.
pub async fn serve(web: &Web, managed: &Arc<Managed>) -> io::Result<()> {
    server::serve(&web.listener, router(&web.guard, managed), CONNECTIONS).await
}

fn router(guard: &Arc<Guard>, managed: &Arc<Managed>) -> Router {
    let data = routes::page(guard.has_token()).router(Arc::clone(managed), "there is nothing at this path");
    let files = FILES.into_iter().fold(data, |router, (path, kind, text)| {
        router.route(path, get(move || async move { ([(header::CONTENT_TYPE, kind)], text) }))
    });
    files.layer(from_fn_with_state(Arc::clone(guard), admit))
}

async fn admit(State(guard): State<Arc<Guard>>, request: Request, next: Next) -> Response {
    let mut response = match guard.check(&request) {
        Ok(()) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    };
    Guard::harden(response.headers_mut());
    response
}
