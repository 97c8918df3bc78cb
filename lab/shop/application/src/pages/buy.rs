//! Buying: the customer, the price, and the order itself.

use axum::{
    Form,
    extract::State,
    response::{IntoResponse, Response},
};
use deadpool_postgres::GenericClient;
use maud::{Markup, html};
use serde::Deserialize;

use crate::{
    database::{self, Database},
    fault::Fault,
    layout::page,
    pages::cart,
    visit::{Visit, remember},
};

/// Form of a customer: login and password of a known one, or the data of a new one.
#[derive(Deserialize)]
pub(crate) struct Customer {
    login: String,
    password: String,
    #[serde(default)]
    first_name: String,
    #[serde(default)]
    last_name: String,
    #[serde(default)]
    street: String,
    #[serde(default)]
    city: String,
}

#[derive(Deserialize)]
pub(crate) struct Payment {
    kind: String,
    digits: String,
    shipping: String,
}

pub(crate) async fn register(State(database): State<Database>, visit: Visit) -> Result<Markup, Fault> {
    let client = database.client().await?;
    let known = match visit.customer {
        Some(id) => database::maybe(&client, "SELECT login, first_name FROM customer WHERE id = $1", &[&id]).await?,
        None => None,
    };
    let login = known.as_ref().map_or("", |row| row.get::<_, &str>(0));
    Ok(page(
        "register",
        "Who are you?",
        html! {
            form.stacked method="post" action="/buy" {
                label { "Login" input name="login" value=(login); }
                label { "Password" input name="password" type="password"; }
                p.small { "New here? Then tell us where to send your books, too." }
                label { "First name" input name="first_name"; }
                label { "Last name" input name="last_name"; }
                label { "Street" input name="street"; }
                label { "City" input name="city"; }
                button { "Go on" }
            }
        },
    ))
}

pub(crate) async fn request(State(database): State<Database>, visit: Visit, Form(who): Form<Customer>) -> Result<Response, Fault> {
    let client = database.client().await?;
    let customer = if who.first_name.is_empty() { known(&client, &who).await? } else { enrol(&client, &who).await? };
    let cart = cart::find(&client, visit).await?;
    let books = cart::lines(&client, cart).await?;
    let sum = cart::subtotal(&client, cart).await?;
    let statement = "SELECT first_name || ' ' || last_name, street, city, zip, country.name FROM customer
        JOIN address ON address.id = address JOIN country ON country.id = country WHERE customer.id = $1";
    let address = database::row(&client, statement, &[&customer], "customer").await?;
    let content = html! {
        (cart::table(&books, &sum))
        h2 { "To" }
        p { @for field in 0..5 { (address.get::<_, &str>(field)) br; } }
        form.stacked method="post" action="/confirm" {
            label { "Card" select name="kind" { option { "visa" } option { "amex" } option { "diners" } } }
            label { "Its last four digits" input name="digits" pattern="[0-9]{4}"; }
            label { "Sent by" select name="shipping" { option { "air" } option { "ship" } option { "mail" } } }
            button { "Buy" }
        }
    };
    Ok((remember("customer", customer), remember("cart", cart), page("buy", "Your order", content)).into_response())
}

/// Passwords are compared as they are: this shop has no secrets, and a hash would hide the network behind its cost.
async fn known(client: &impl GenericClient, who: &Customer) -> Result<i32, Fault> {
    let statement = "UPDATE customer SET last_visit = now() WHERE login = $1 AND password = $2 RETURNING id";
    Ok(database::row(client, statement, &[&who.login, &who.password], "customer").await?.get(0))
}

async fn enrol(client: &impl GenericClient, who: &Customer) -> Result<i32, Fault> {
    let statement = "INSERT INTO address (street, city, state, zip, country) VALUES ($1, $2, '', '00000', 1) RETURNING id";
    let address: i32 = database::row(client, statement, &[&who.street, &who.city], "address").await?.get(0);
    let statement =
        "INSERT INTO customer (login, password, first_name, last_name, address, phone, email, since, last_visit, discount,
            balance, bought, birthday, about)
        VALUES ($1, $2, $3, $4, $5, '', $1 || '@example.org', current_date, now(), 0.1, 0, 0, '1990-01-01', '')
        ON CONFLICT (login) DO NOTHING RETURNING id";
    let values: database::Values<'_> = &[&who.login, &who.password, &who.first_name, &who.last_name, &address];
    database::maybe(client, statement, values).await?.map(|row| row.get(0)).ok_or(Fault::Wrong("login, which is taken,"))
}

pub(crate) async fn confirm(State(database): State<Database>, visit: Visit, Form(paid): Form<Payment>) -> Result<Response, Fault> {
    let customer = visit.customer.ok_or(Fault::Missing("customer"))?;
    let mut client = database.client().await?;
    let deal = database::asked(client.transaction()).await?;
    let cart = cart::find(&deal, visit).await?;
    let books = cart::lines(&deal, cart).await?;
    let order = place(&deal, cart, customer, &paid).await?;
    database::change(&deal, "DELETE FROM cart_line WHERE cart = $1", &[&cart]).await?;
    database::asked(deal.commit()).await?;
    let content = html! {
        p { "Order " b { (order) } " is on its way: " (books.len()) " different books, by " (paid.shipping) "." }
        p { a.button href="/" { "Back to the shelves" } }
    };
    Ok((remember("cart", cart), page("confirm", "Thank you!", content)).into_response())
}

/// Writes order, lines and payment, and takes the books from the stock, which is filled up when it runs low.
async fn place(deal: &impl GenericClient, cart: i32, customer: i32, paid: &Payment) -> Result<i32, Fault> {
    let statement = "INSERT INTO orders (customer, placed, subtotal, tax, total, shipping, ship_date, bill_to, ship_to, status)
        SELECT customer.id, now(), sum, round(sum * 0.08, 2), round(sum * 1.08, 2) + 3, $3, now() + interval '2 days', address, address, 'pending'
        FROM customer, (SELECT sum(price * quantity) AS sum FROM cart_line JOIN item ON item.id = item WHERE cart = $1) AS summed
        WHERE customer.id = $2 RETURNING id";
    let order: i32 = database::row(deal, statement, &[&cart, &customer, &paid.shipping], "customer").await?.get(0);
    let statement =
        "INSERT INTO line SELECT $2, row_number() OVER (ORDER BY item), item, quantity, 0, '' FROM cart_line WHERE cart = $1";
    database::change(deal, statement, &[&cart, &order]).await?;
    // In the order of their ids, so that two orders of the same books wait for each other and not in a circle.
    let statement = "UPDATE item SET stock = CASE WHEN stock - quantity < 10 THEN stock - quantity + 21 ELSE stock - quantity END
        FROM (SELECT item.id, quantity FROM item JOIN cart_line ON item = item.id WHERE cart = $1 ORDER BY item.id FOR UPDATE OF item) AS sold
        WHERE item.id = sold.id";
    database::change(deal, statement, &[&cart]).await?;
    let statement =
        "INSERT INTO payment SELECT id, $2, $3, current_date + 365, 'auth' || id, total, now() FROM orders WHERE id = $1";
    database::change(deal, statement, &[&order, &paid.kind, &paid.digits]).await?;
    Ok(order)
}
