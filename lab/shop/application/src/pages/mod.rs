//! The fourteen interactions of TPC-W, by their paths.
//!
//! | TPC-W | here | | TPC-W | here |
//! |---|---|---|---|---|
//! | Home | `/` | | Customer Registration | `/register` |
//! | New Products | `/new` | | Buy Request | `/buy` |
//! | Best Sellers | `/best` | | Buy Confirm | `/confirm` |
//! | Product Detail | `/book/ID` | | Order Inquiry | `/orders` |
//! | Search Request | `/search` | | Order Display | `/orders/last` |
//! | Search Results | `/results` | | Admin Request | `/admin/ID` |
//! | Shopping Cart | `/cart` | | Admin Confirm | `/admin/ID/confirm` |

mod admin;
mod browse;
mod buy;
mod cart;
mod orders;

use axum::{
    Router, middleware,
    routing::{get, post},
};

use crate::{database::Database, record, record::Records};

/// All pages, each request timed.
pub(crate) fn all(database: Database, records: Records) -> Router {
    Router::new()
        .route("/", get(browse::home))
        .route("/new", get(browse::new))
        .route("/best", get(browse::best))
        .route("/book/{id}", get(browse::book))
        .route("/search", get(browse::search))
        .route("/results", get(browse::results))
        .route("/cart", get(cart::show).post(cart::add))
        .route("/register", get(buy::register))
        .route("/buy", post(buy::request))
        .route("/confirm", post(buy::confirm))
        .route("/orders", get(orders::inquire))
        .route("/orders/last", post(orders::last))
        .route("/admin/{id}", get(admin::request))
        .route("/admin/{id}/confirm", post(admin::confirm))
        .layer(middleware::from_fn_with_state(records, record::timed))
        .with_state(database)
}
