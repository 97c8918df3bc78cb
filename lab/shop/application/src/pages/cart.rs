//! The shopping cart.

use axum::{
    Form,
    extract::State,
    response::{IntoResponse, Response},
};
use deadpool_postgres::GenericClient;
use maud::{Markup, html};
use serde::Deserialize;
use tokio_postgres::Row;

use crate::{
    database::{self, Database},
    fault::Fault,
    layout::page,
    visit::{Visit, remember},
};

#[derive(Deserialize)]
pub(crate) struct Added {
    item: i32,
}

pub(crate) async fn show(State(database): State<Database>, visit: Visit) -> Result<Response, Fault> {
    let client = database.client().await?;
    let cart = find(&client, visit).await?;
    shown(&client, cart).await
}

pub(crate) async fn add(State(database): State<Database>, visit: Visit, Form(added): Form<Added>) -> Result<Response, Fault> {
    let client = database.client().await?;
    let cart = find(&client, visit).await?;
    put(&client, cart, added.item).await?;
    shown(&client, cart).await
}

/// The visitor's cart, or a new one.
pub(crate) async fn find(client: &impl GenericClient, visit: Visit) -> Result<i32, Fault> {
    if let Some(id) = visit.cart
        && database::change(client, "UPDATE cart SET touched = now() WHERE id = $1", &[&id]).await? == 1
    {
        return Ok(id);
    }
    Ok(database::row(client, "INSERT INTO cart (touched) VALUES (now()) RETURNING id", &[], "cart").await?.get(0))
}

async fn put(client: &impl GenericClient, cart: i32, item: i32) -> Result<(), Fault> {
    let statement = "INSERT INTO cart_line SELECT $1, id, 1 FROM item WHERE id = $2
        ON CONFLICT (cart, item) DO UPDATE SET quantity = least(cart_line.quantity + 1, 99)";
    match database::change(client, statement, &[&cart, &item]).await? {
        0 => Err(Fault::Missing("book")),
        _ => Ok(()),
    }
}

/// The books in the cart; into an empty cart one book is put first, as TPC-W has it, so that each purchase buys something.
pub(crate) async fn lines(client: &impl GenericClient, cart: i32) -> Result<Vec<Row>, Fault> {
    let statement = "SELECT item.id, title, picture, quantity, stock, price::text AS price, (price * quantity)::text AS cost
        FROM cart_line JOIN item ON item.id = item WHERE cart = $1 ORDER BY title";
    let found = database::rows(client, statement, &[&cart]).await?;
    if !found.is_empty() {
        return Ok(found);
    }
    let highest: i32 = database::row(client, "SELECT max(id) FROM item", &[], "book").await?.get(0);
    put(client, cart, fastrand::i32(1..=highest)).await?;
    database::rows(client, statement, &[&cart]).await
}

/// The price of all books in the cart.
pub(crate) async fn subtotal(client: &impl GenericClient, cart: i32) -> Result<String, Fault> {
    let statement = "SELECT coalesce(sum(price * quantity), 0)::text FROM cart_line JOIN item ON item.id = item WHERE cart = $1";
    Ok(database::row(client, statement, &[&cart], "cart").await?.get(0))
}

async fn shown(client: &impl GenericClient, cart: i32) -> Result<Response, Fault> {
    let books = lines(client, cart).await?;
    let sum = subtotal(client, cart).await?;
    let content = html! { (table(&books, &sum)) p { a.button href="/register" { "To the till" } } };
    Ok((remember("cart", cart), page("cart", "Your cart", content)).into_response())
}

/// The cart as a table.
pub(crate) fn table(books: &[Row], sum: &str) -> Markup {
    html! {
        table.list {
            tr { th { "Book" } th.number { "Number" } th.number { "Price" } th.number { "Cost" } }
            @for book in books {
                tr {
                    td { a href={ "/book/" (book.get::<_, i32>("id")) } { (book.get::<_, &str>("title")) } }
                    td.number { (book.get::<_, i16>("quantity")) }
                    td.number { "$" (book.get::<_, &str>("price")) }
                    td.number { "$" (book.get::<_, &str>("cost")) }
                }
            }
            tr.sum { td { "Together" } td {} td {} td.number { "$" (sum) } }
        }
    }
}
