//! The common layout of all pages.

use maud::{DOCTYPE, Markup, html};
use tokio_postgres::Row;

/// The subjects that books are sorted by.
pub(crate) const SUBJECTS: [&str; 24] = [
    "Arts",
    "Biographies",
    "Business",
    "Children",
    "Computers",
    "Cooking",
    "Health",
    "History",
    "Home",
    "Humor",
    "Literature",
    "Mystery",
    "Non-Fiction",
    "Parenting",
    "Politics",
    "Reference",
    "Religion",
    "Romance",
    "Self-Help",
    "Science-Nature",
    "Science-Fiction",
    "Sports",
    "Youth",
    "Travel",
];

/// A whole page. `name` is the interaction's: the check of the answer looks for it.
pub(crate) fn page(name: &str, title: &str, content: Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (title) " · Three Tiers Books" }
                link rel="stylesheet" href="/static/style.css";
            }
            body data-page=(name) {
                header {
                    a.brand href="/" { img src="/static/logo.svg" alt="" width="40" height="40"; "Three Tiers Books" }
                    nav {
                        a href="/new?subject=Arts" { "New" }
                        a href="/best?subject=Arts" { "Best sellers" }
                        a href="/search" { "Search" }
                        a href="/orders" { "Orders" }
                        a href="/cart" { "Cart" }
                    }
                }
                main {
                    h1 { (title) }
                    (content)
                }
                footer { "A shop that sells nothing: it measures the network between its tiers." }
            }
        }
    }
}

/// Books beside each other, by their covers. Rows have id, picture and title.
pub(crate) fn shelf(books: &[Row]) -> Markup {
    html! {
        ul.shelf {
            @for book in books {
                li { a href={ "/book/" (book.get::<_, i32>("id")) } {
                    (cover("books", book)) span { (book.get::<_, &str>("title")) }
                } }
            }
        }
    }
}

/// Books below each other. Rows have id, title, author and price.
pub(crate) fn list(books: &[Row]) -> Markup {
    html! {
        table.list {
            tr { th { "Title" } th { "Author" } th.number { "Price" } }
            @for book in books {
                tr {
                    td { a href={ "/book/" (book.get::<_, i32>("id")) } { (book.get::<_, &str>("title")) } }
                    td { (book.get::<_, &str>("author")) }
                    td.number { "$" (book.get::<_, &str>("price")) }
                }
            }
        }
    }
}

/// A book's picture, in the size that the folder holds.
pub(crate) fn cover(folder: &str, book: &Row) -> Markup {
    html! { img src={ "/static/" (folder) "/" (book.get::<_, i16>("picture")) ".png" } alt="" loading="lazy"; }
}

/// The subjects as links to a page.
pub(crate) fn subjects(path: &str, chosen: &str) -> Markup {
    html! {
        p.subjects { @for subject in SUBJECTS {
            a.chosen[subject == chosen] href={ (path) "?subject=" (subject) } { (subject) } " "
        } }
    }
}
