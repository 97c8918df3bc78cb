//! The metrics' own socket or address, for programs that must not be able to change the network.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use tokio::net::{TcpListener, UnixListener};

use super::error::ControlError;
use super::managed::Managed;
use super::{routes, server};
use crate::config::metrics::MetricsListener;
use crate::folder;
use memlane_backends::vhost_user::socket::{self, Listener};

/// Most concurrent scrapes.
const CONNECTIONS: usize = 8;

/// A listening socket for scrapes; a Unix socket's file exists until this is dropped.
#[derive(Debug)]
pub enum Scrapes {
    /// A Unix socket.
    Unix(UnixListener, Listener),
    /// A TCP address.
    Tcp {
        /// The listening socket.
        listener: TcpListener,
        /// Whether the service manager has bound it.
        passed: bool,
    },
}

impl Scrapes {
    /// The bound Unix socket `listener`.
    ///
    /// # Errors
    /// The kernel refuses a descriptor.
    pub fn unix(listener: Listener) -> io::Result<Self> {
        listener.socket().set_nonblocking(true)?;
        let asynchronous = listener.socket().try_clone().and_then(UnixListener::from_std)?;
        Ok(Self::Unix(asynchronous, listener))
    }

    /// Whether the service manager has bound it.
    pub fn is_passed(&self) -> bool {
        matches!(self, Self::Tcp { passed: true, .. })
    }

    /// Device and inode of its file, if it has one.
    pub fn file(&self) -> Option<(u64, u64)> {
        match self {
            Self::Unix(_, listener) => listener.file(),
            Self::Tcp { .. } => None,
        }
    }
}

impl AsFd for Scrapes {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(listener, _) => listener.as_fd(),
            Self::Tcp { listener, .. } => listener.as_fd(),
        }
    }
}

/// Binds the socket `place`.
///
/// # Errors
/// [`ControlError::Metrics`].
pub fn listen(place: &MetricsListener) -> Result<Scrapes, ControlError> {
    match place {
        MetricsListener::Unix(path, access) => {
            let failed = |cause| ControlError::Metrics { place: path.display().to_string(), cause };
            folder::provide(path, !access.is_private()).map_err(failed)?;
            let listener = socket::bind(path, memlane_backends::vhost_user::access::Access::PRIVATE).map_err(failed)?;
            access.apply(&listener).map_err(failed)?;
            Scrapes::unix(listener).map_err(failed)
        }
        MetricsListener::Tcp(address) => {
            let listen = || {
                let listener = std::net::TcpListener::bind(address)?;
                listener.set_nonblocking(true)?;
                TcpListener::from_std(listener)
            };
            let bound = listen().map(|listener| Scrapes::Tcp { listener, passed: false });
            bound.map_err(|cause| ControlError::Metrics { place: address.to_string(), cause })
        }
    }
}

/// The socket `listener`, which the service manager has bound and passed.
///
/// # Errors
/// [`ControlError::Metrics`].
pub fn listen_on(listener: std::net::TcpListener) -> Result<Scrapes, ControlError> {
    let listen = || {
        listener.set_nonblocking(true)?;
        TcpListener::from_std(listener)
    };
    let passed = listen().map(|listener| Scrapes::Tcp { listener, passed: true });
    passed.map_err(|cause| ControlError::Metrics { place: "the socket of the service manager".into(), cause })
}

/// Serves scrapes until cancelled.
///
/// # Errors
/// The kernel refuses the socket.
pub async fn serve(scrapes: &Scrapes, managed: &Arc<Managed>) -> io::Result<()> {
    let router =
        routes::read_only().router(Arc::clone(managed), "there is no such path: only /metrics, /livez and /readyz are served here");
    match scrapes {
        Scrapes::Unix(listener, _) => server::serve(listener, router, CONNECTIONS).await,
        Scrapes::Tcp { listener, .. } => server::serve(listener, router, CONNECTIONS).await,
    }
}
