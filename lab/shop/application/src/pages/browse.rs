//! Looking around: home, new books, best sellers, one book, search.

use axum::extract::{Path, Query, State};
use deadpool_postgres::GenericClient;
use maud::{Markup, html};
use serde::Deserialize;
use tokio_postgres::Row;

use crate::{
    database::{self, Database},
    fault::Fault,
    layout::{self, SUBJECTS, page},
    visit::Visit,
};

/// The columns that a list of books shows of each.
const LISTED: &str = "item.id, item.title, first_name || ' ' || last_name AS author, price::text AS price";
const RELATED: &str = "SELECT related.id, related.picture, related.title FROM item
    JOIN item AS related ON related.id = ANY (item.related) WHERE item.id = $1";

#[derive(Deserialize)]
pub(crate) struct BySubject {
    subject: String,
}

#[derive(Deserialize)]
pub(crate) struct Search {
    by: String,
    #[serde(rename = "for")]
    wanted: String,
}

pub(crate) async fn home(State(database): State<Database>, visit: Visit) -> Result<Markup, Fault> {
    let client = database.client().await?;
    let name = match visit.customer {
        Some(id) => database::maybe(&client, "SELECT first_name FROM customer WHERE id = $1", &[&id]).await?,
        None => None,
    };
    let books = promotions(&client).await?;
    Ok(page(
        "home",
        "Books between three machines",
        html! {
            p { "Welcome" @if let Some(name) = &name { ", " (name.get::<_, &str>(0)) } "! Today we recommend:" }
            (layout::shelf(&books))
            h2 { "New books" } (layout::subjects("/new", ""))
            h2 { "Best sellers" } (layout::subjects("/best", ""))
        },
    ))
}

/// Five books that go together.
async fn promotions(client: &impl GenericClient) -> Result<Vec<Row>, Fault> {
    let highest: i32 = database::row(client, "SELECT max(id) FROM item", &[], "book").await?.get(0);
    database::rows(client, RELATED, &[&fastrand::i32(1..=highest)]).await
}

pub(crate) async fn new(State(database): State<Database>, Query(asked): Query<BySubject>) -> Result<Markup, Fault> {
    let client = database.client().await?;
    let statement = format!(
        "SELECT {LISTED} FROM item JOIN author ON author.id = author WHERE subject = $1 ORDER BY published DESC, title LIMIT 50"
    );
    let books = database::rows(&client, &statement, &[&asked.subject]).await?;
    Ok(page("new", "New books", html! { (layout::subjects("/new", &asked.subject)) (layout::list(&books)) }))
}

pub(crate) async fn best(State(database): State<Database>, Query(asked): Query<BySubject>) -> Result<Markup, Fault> {
    let client = database.client().await?;
    let statement = format!(
        "SELECT {LISTED} FROM
            (SELECT item, sum(quantity) AS sold FROM line WHERE orders > (SELECT max(id) - 3333 FROM orders) GROUP BY item) AS recent
            JOIN item ON item.id = recent.item JOIN author ON author.id = author
         WHERE subject = $1 ORDER BY sold DESC, item.id LIMIT 50"
    );
    let books = database::rows(&client, &statement, &[&asked.subject]).await?;
    Ok(page("best", "Best sellers", html! { (layout::subjects("/best", &asked.subject)) (layout::list(&books)) }))
}

pub(crate) async fn book(State(database): State<Database>, Path(id): Path<i32>) -> Result<Markup, Fault> {
    let client = database.client().await?;
    let statement = "SELECT item.*, price::text AS asked, retail::text AS list, published::text AS day,
            first_name || ' ' || last_name AS writer FROM item JOIN author ON author.id = author WHERE item.id = $1";
    let book = database::row(&client, statement, &[&id], "book").await?;
    let related = database::rows(&client, RELATED, &[&id]).await?;
    Ok(page("book", book.get("title"), html! { (described(&book)) h2 { "Goes well with" } (layout::shelf(&related)) }))
}

fn described(book: &Row) -> Markup {
    let text = |name: &str| book.get::<_, &str>(name);
    html! {
        div.book {
            (layout::cover("covers", book))
            div {
                p.author { "by " (text("writer")) }
                p { (text("about")) }
                p.price { "$" (text("asked")) " " s { "$" (text("list")) } }
                form method="post" action="/cart" {
                    input type="hidden" name="item" value=(book.get::<_, i32>("id"));
                    button { "Into the cart" }
                }
                p.small {
                    (text("publisher")) ", " (text("day")) ", " (book.get::<_, i16>("pages")) " pages, " (text("backing")) ", ISBN "
                    (text("isbn")) ", " (book.get::<_, i32>("stock")) " in stock"
                }
            }
        }
    }
}

pub(crate) async fn search(State(database): State<Database>) -> Result<Markup, Fault> {
    let client = database.client().await?;
    let books = promotions(&client).await?;
    Ok(page(
        "search",
        "Search",
        html! {
            form action="/results" {
                select name="by" { option value="author" { "author" } option value="title" { "title" } option value="subject" { "subject" } }
                input name="for" list="subjects" autofocus;
                datalist id="subjects" { @for subject in SUBJECTS { option value=(subject); } }
                button { "Search" }
            }
            h2 { "Or one of these" } (layout::shelf(&books))
        },
    ))
}

pub(crate) async fn results(State(database): State<Database>, Query(asked): Query<Search>) -> Result<Markup, Fault> {
    let (condition, value) = match asked.by.as_str() {
        "author" => ("lower(last_name) LIKE $1", format!("{}%", plain(&asked.wanted).to_lowercase())),
        "title" => ("to_tsvector('simple', title) @@ plainto_tsquery('simple', $1)", asked.wanted.clone()),
        "subject" => ("subject = $1", asked.wanted.clone()),
        _ => return Err(Fault::Wrong("kind of search")),
    };
    let client = database.client().await?;
    let statement =
        format!("SELECT {LISTED} FROM item JOIN author ON author.id = author WHERE {condition} ORDER BY title LIMIT 50");
    let books = database::rows(&client, &statement, &[&value]).await?;
    Ok(page(
        "results",
        "What we have found",
        html! {
            p { (books.len()) " books for “" (asked.wanted) "”" @if books.len() == 50 { " (at least)" } }
            (layout::list(&books))
        },
    ))
}

/// The text without the wildcards of LIKE.
fn plain(text: &str) -> String {
    text.chars().filter(|letter| !matches!(letter, '%' | '_' | '\\')).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_search_is_no_pattern() {
        assert_eq!(super::plain(r"%a_\b"), "ab");
    }
}
