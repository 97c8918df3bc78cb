//! The list of decision records, from their titles.

use super::table;
use crate::pages::Page;

const INTRODUCTION: &str = "# Decision records\n\nOne page for each decision that a reader would question: context, decision, \
                            consequences. A record that a later one\nreplaces stays, and its status names the other. Measurements: \
                            [notes](../benchmarks/notes/design-choices.md).\n\n";

/// The page.
pub(super) fn page() -> String {
    let name = |page: &Page| page.path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let is_record =
        |page: &Page| page.path.parent().is_some_and(|folder| folder.ends_with("docs/adr")) && name(page) != "README.md";
    let mut records: Vec<Page> = Page::all().into_iter().filter(is_record).collect();
    records.sort_by_key(name);
    let row = |record: &Page| {
        let (name, title) = (name(record), record.text.lines().next().unwrap_or_default());
        let (number, title) = title.trim_start_matches("# ").split_once(' ').unwrap_or_default();
        vec![format!("[{number}]({name})"), title.to_owned()]
    };
    INTRODUCTION.to_owned() + &table(&["", "decision"], &records.iter().map(row).collect::<Vec<_>>())
}
