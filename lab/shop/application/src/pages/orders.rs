//! Looking after an order.

use axum::{Form, extract::State};
use maud::{Markup, html};
use serde::Deserialize;

use crate::{
    database::{self, Database},
    fault::Fault,
    layout::page,
};

#[derive(Deserialize)]
pub(crate) struct Login {
    login: String,
    password: String,
}

/// Asks the database nothing: the one page that shows the time of the first two tiers alone.
pub(crate) async fn inquire() -> Markup {
    page(
        "orders",
        "Your last order",
        html! {
            form.stacked method="post" action="/orders/last" {
                label { "Login" input name="login"; }
                label { "Password" input name="password" type="password"; }
                button { "Show it" }
            }
        },
    )
}

pub(crate) async fn last(State(database): State<Database>, Form(who): Form<Login>) -> Result<Markup, Fault> {
    let client = database.client().await?;
    let statement = "SELECT id, first_name || ' ' || last_name FROM customer WHERE login = $1 AND password = $2";
    let customer = database::row(&client, statement, &[&who.login, &who.password], "customer").await?;
    let statement = "SELECT orders.id, placed::text, total::text, shipping, status, street || ', ' || city, kind || ' ' || digits FROM orders
        JOIN address ON address.id = ship_to JOIN payment ON payment.orders = orders.id WHERE customer = $1 ORDER BY orders.id DESC LIMIT 1";
    let order = database::maybe(&client, statement, &[&customer.get::<_, i32>(0)]).await?;
    let Some(order) = order else {
        return Ok(page(
            "last",
            "Your last order",
            html! { p { (customer.get::<_, &str>(1)) ", you have not ordered anything yet." } },
        ));
    };
    let statement = "SELECT item.id, title, quantity, price::text AS price, (price * quantity)::text AS cost FROM line
        JOIN item ON item.id = item WHERE orders = $1 ORDER BY number";
    let books = database::rows(&client, statement, &[&order.get::<_, i32>(0)]).await?;
    let text = |index: usize| order.get::<_, &str>(index);
    Ok(page(
        "last",
        "Your last order",
        html! {
            p { (customer.get::<_, &str>(1)) ", your order " b { (order.get::<_, i32>(0)) } " of " (text(1)) " is " (text(4)) "." }
            p { "By " (text(3)) " to " (text(5)) ", paid by " (text(6)) "." }
            (super::cart::table(&books, text(2)))
        },
    ))
}
