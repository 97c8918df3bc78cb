//! Lines of a network's file with the keys that decide about frames, for `memlane why`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The keys of a port for which frames are refused.
const KEYS: [&str; 11] =
    ["mac", "anti-spoof", "addresses", "inside", "twin-of", "allowed", "may-serve", "isolated", "vlan", "trunk", "reserved"];

/// See the module.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct FileLines {
    /// Path of the file.
    pub file: PathBuf,
    /// The ports, by their names.
    pub ports: BTreeMap<String, PortLines>,
}

/// Lines of a port, from 1 on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct PortLines {
    /// The first line of its table.
    pub table: usize,
    /// Keys about its addresses and its separation.
    pub keys: BTreeMap<String, usize>,
}

impl PartialEq for FileLines {
    /// Two files may say the same in different lines.
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl FileLines {
    /// The lines of the file with this `text`, read as `whole`.
    pub(super) fn of(text: &str, whole: &DeTable<'_>) -> Self {
        let newlines: Vec<usize> = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at).collect();
        let line = |at: usize| 1 + newlines.partition_point(|&newline| newline < at);
        let Some(DeValue::Array(list)) = whole.get("port").map(Spanned::get_ref) else { return Self::default() };
        let port = |entry: &Spanned<DeValue<'_>>| {
            let DeValue::Table(table) = entry.get_ref() else { return None };
            let DeValue::String(name) = table.get("name")?.get_ref() else { return None };
            let known = table.iter().filter(|(key, _)| KEYS.contains(&key.get_ref().as_ref()));
            let keys = known.map(|(key, _)| (key.get_ref().to_string(), line(key.span().start))).collect();
            Some((name.to_string(), PortLines { table: line(entry.span().start), keys }))
        };
        Self { file: PathBuf::new(), ports: list.iter().filter_map(port).collect() }
    }

    /// Whether no file was read.
    pub fn is_empty(&self) -> bool {
        self.file.as_os_str().is_empty()
    }
}
