//! The table of the sandbox's rights, from the file with which the test compares them.

use serde::Deserialize;

use super::table;
use crate::pages::top;

/// Kinds of networks, as the columns of the table.
pub const KINDS: [&str; 5] = ["plain", "late", "tap", "af-packet", "passt"];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Page {
    title: String,
    intro: String,
    section: Vec<Section>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Section {
    title: String,
    row: Vec<Right>,
}

/// A right, and the kinds of networks that have it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Right {
    /// Name of the attempt.
    pub name: String,
    says: String,
    /// The mechanism that refuses it elsewhere.
    #[serde(default)]
    pub by: String,
    /// Kinds of networks that have it.
    #[serde(default)]
    pub has: Vec<String>,
    /// Whether they have it on some kernels alone.
    #[serde(default)]
    pub depends_on_kernel: bool,
}

fn read() -> Page {
    toml::from_str(&std::fs::read_to_string(top().join("docs/reference/sandbox.toml")).unwrap()).unwrap()
}

/// All rights.
pub fn rights() -> Vec<Right> {
    read().section.into_iter().flat_map(|section| section.row).collect()
}

/// The page.
pub fn page() -> String {
    let page = read();
    let row = |right: &Right| {
        let has = KINDS.map(|kind| if right.has.iter().any(|known| known == kind) { "yes" } else { "no" }.to_owned());
        [right.says.clone()].into_iter().chain(has).chain([right.by.clone()]).collect::<Vec<_>>()
    };
    let header = ["right", "vhost-user, stream", "late ports", "TAP", "`af-packet`", "passt", "refused by"];
    let chapter = |section: &Section| {
        let rows: Vec<_> = section.row.iter().map(row).collect();
        format!("## {}\n\n{}", section.title, table(&header, &rows))
    };
    let chapters: String = page.section.iter().map(chapter).collect();
    format!("# {}\n\n{}\n\n{chapters}", page.title, page.intro.trim())
}
