//! Tables of what is claimed, where the code does it, and the test that holds it, from a TOML file that names them.

use std::path::Path;

use serde::Deserialize;

use super::sources::Sources;
use super::table;

/// A page of claims.
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
    #[serde(default)]
    intro: String,
    row: Vec<Row>,
}

/// One claim.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    /// The claim; `{NAME}` stands for a constant's value.
    #[serde(default)]
    says: String,
    /// Hostile cases that it is about.
    #[serde(default)]
    cases: Vec<String>,
    /// Functions and types that do it.
    #[serde(default)]
    code: Vec<String>,
    /// Tests that hold it; with a dot, files of tests.
    #[serde(default)]
    tests: Vec<String>,
    /// Other evidence.
    #[serde(default)]
    held: String,
}

/// The page of the claims in `file`. Panics if a name is defined nowhere.
pub fn page(sources: &Sources, file: &Path) -> String {
    let text = std::fs::read_to_string(file).unwrap();
    let page: Page = toml::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let sections: String = page.section.iter().map(|section| chapter(sources, section)).collect();
    format!("# {}\n\n{}\n\n{sections}", page.title, page.intro.trim())
}

fn chapter(sources: &Sources, section: &Section) -> String {
    type Column = (&'static str, fn(&Sources, &Row) -> String);
    const COLUMNS: [Column; 4] = [
        ("claim", |sources, row| with_values(sources, &row.says)),
        ("hostile case", |_, row| row.cases.iter().map(|name| case(name)).collect::<Vec<_>>().join("; ")),
        ("where", |sources, row| links(sources, &row.code)),
        ("held by", |sources, row| [links(sources, &row.tests), row.held.clone()].join(" ").trim().to_owned()),
    ];
    let cells: Vec<Vec<String>> = section.row.iter().map(|row| COLUMNS.map(|(_, cell)| cell(sources, row)).to_vec()).collect();
    let used: Vec<usize> = (0..COLUMNS.len()).filter(|&column| cells.iter().any(|row| !row[column].is_empty())).collect();
    let rows: Vec<_> = cells.iter().map(|row| used.iter().map(|&column| row[column].clone()).collect()).collect();
    let header: Vec<_> = used.iter().map(|&column| COLUMNS[column].0).collect();
    let intro = if section.intro.is_empty() { String::new() } else { format!("{}\n\n", section.intro.trim()) };
    format!("## {}\n\n{intro}{}", section.title, table(&header, &rows))
}

/// A hostile case, with what it does.
fn case(name: &str) -> String {
    let found = memlane_rig::villain::cases().find(|case| case.name == name);
    let found = found.unwrap_or_else(|| panic!("the rig has no hostile case {name}"));
    format!("`{name}`: {}", found.about)
}

fn links(sources: &Sources, names: &[String]) -> String {
    names.iter().map(|name| sources.link(name)).collect::<Vec<_>>().join(", ")
}

/// `text` with the values of the constants that it names in braces, each with a link.
fn with_values(sources: &Sources, text: &str) -> String {
    let mut parts = text.split('{');
    let mut said = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (name, rest) = part.split_once('}').expect("a brace is closed");
        said += &sources.value(name);
        said += rest;
    }
    said
}
