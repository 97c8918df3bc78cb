//! The shopkeeper's two pages: change a book's price, and find its related books anew.

use axum::{
    Form,
    extract::{Path, State},
};
use maud::{Markup, html};
use serde::Deserialize;

use crate::{
    database::{self, Database},
    fault::Fault,
    layout::{self, page},
};

#[derive(Deserialize)]
pub(crate) struct Change {
    price: f64,
    picture: i16,
}

pub(crate) async fn request(State(database): State<Database>, Path(id): Path<i32>) -> Result<Markup, Fault> {
    let client = database.client().await?;
    let statement = "SELECT item.id, title, picture, price::text AS price, first_name || ' ' || last_name AS writer FROM item
        JOIN author ON author.id = author WHERE item.id = $1";
    let book = database::row(&client, statement, &[&id], "book").await?;
    Ok(page(
        "admin",
        "Change a book",
        html! {
            div.book {
                (layout::cover("covers", &book))
                form.stacked method="post" action={ "/admin/" (id) "/confirm" } {
                    p { b { (book.get::<_, &str>("title")) } " by " (book.get::<_, &str>("writer")) }
                    label { "Price" input name="price" value=(book.get::<_, &str>("price")); }
                    label { "Picture" input name="picture" value=(book.get::<_, i16>("picture")); }
                    button { "Change" }
                }
            }
        },
    ))
}

pub(crate) async fn confirm(
    State(database): State<Database>,
    Path(id): Path<i32>,
    Form(change): Form<Change>,
) -> Result<Markup, Fault> {
    if !(0.0..100_000.0).contains(&change.price) || !(0..100).contains(&change.picture) {
        return Err(Fault::Wrong("price or picture"));
    }
    let client = database.client().await?;
    let statement = "UPDATE item SET price = round($2::float8::numeric, 2), picture = $3, published = current_date,
            related = coalesce(nullif(ARRAY(SELECT other.item FROM line AS this JOIN line AS other USING (orders)
                WHERE this.item = $1 AND other.item <> $1 AND orders > (SELECT max(id) - 10000 FROM orders)
                GROUP BY other.item ORDER BY sum(other.quantity) DESC, other.item LIMIT 5), '{}'), related)
        WHERE id = $1 RETURNING id, title, picture";
    let book = database::row(&client, statement, &[&id, &change.price, &change.picture], "book").await?;
    Ok(page("changed", "Changed", html! { p { "This book has a new price." } (layout::shelf(&[book])) }))
}
