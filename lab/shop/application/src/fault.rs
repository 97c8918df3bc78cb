//! Faults of a request, and the page that tells them.

use axum::{
    http::StatusCode,
    response::{IntoResponse, Response},
};
use deadpool_postgres::PoolError;
use maud::html;

use crate::layout;

/// Why there is no page.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The shop has no such thing.
    Missing(&'static str),
    /// The browser asks for something that makes no sense.
    Wrong(&'static str),
    /// The database did not answer, or refused.
    Database(String),
}

impl From<tokio_postgres::Error> for Fault {
    fn from(error: tokio_postgres::Error) -> Self {
        let cause = error.as_db_error().map(ToString::to_string);
        Self::Database(cause.unwrap_or_else(|| error.to_string()))
    }
}

impl From<PoolError> for Fault {
    fn from(error: PoolError) -> Self {
        Self::Database(error.to_string())
    }
}

impl IntoResponse for Fault {
    fn into_response(self) -> Response {
        let (status, said) = match self {
            Self::Missing(what) => (StatusCode::NOT_FOUND, format!("We have no such {what}.")),
            Self::Wrong(what) => (StatusCode::BAD_REQUEST, format!("That {what} makes no sense.")),
            Self::Database(error) => {
                eprintln!("memlane-shop: {error}");
                (StatusCode::SERVICE_UNAVAILABLE, "Our shelves cannot be reached at the moment.".to_owned())
            }
        };
        (status, layout::page("fault", "We are sorry", html! { p { (said) } })).into_response()
    }
}
