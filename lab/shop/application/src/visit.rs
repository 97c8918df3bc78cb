//! The visitor: cart and customer, as the browser's cookies name them.

use std::convert::Infallible;

use axum::{
    extract::FromRequestParts,
    http::{HeaderMap, header::COOKIE, request::Parts},
    response::AppendHeaders,
};

/// Ids that the browser's cookies state; they may be wrong, and nothing else of the browser's is believed.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Visit {
    pub(crate) cart: Option<i32>,
    pub(crate) customer: Option<i32>,
}

impl Visit {
    fn of(headers: &HeaderMap) -> Self {
        let mut visit = Self::default();
        let stated = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
        for (name, value) in stated.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('=')) {
            match name {
                "cart" => visit.cart = value.parse().ok(),
                "customer" => visit.customer = value.parse().ok(),
                _ => {}
            }
        }
        visit
    }
}

impl<S: Sync> FromRequestParts<S> for Visit {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Infallible> {
        Ok(Self::of(&parts.headers))
    }
}

/// A header that has the browser remember an id.
pub(crate) fn remember(name: &str, id: i32) -> AppendHeaders<[(&'static str, String); 1]> {
    AppendHeaders([("set-cookie", format!("{name}={id}; Path=/; HttpOnly; SameSite=Lax"))])
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderMap, HeaderValue, header::COOKIE};

    use super::Visit;

    fn visit(cookies: &'static str) -> Visit {
        let mut headers = HeaderMap::new();
        headers.insert(COOKIE, HeaderValue::from_static(cookies));
        Visit::of(&headers)
    }

    #[test]
    fn cookies_name_cart_and_customer() {
        assert_eq!(visit("cart=7; customer=12"), Visit { cart: Some(7), customer: Some(12) });
    }

    #[test]
    fn what_is_no_number_is_nobody() {
        assert_eq!(visit("cart=1 OR 1=1; customer=; other=3"), Visit::default());
    }
}
