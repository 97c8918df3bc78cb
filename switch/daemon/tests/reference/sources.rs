//! Where a name is defined: pages name tests and functions, and the generator finds their files, so that a moved file breaks no page.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::pages::top;

/// Words before a name that is defined, in Rust, Python and C.
const KINDS: [&str; 11] = ["mod", "fn", "const", "static", "struct", "enum", "trait", "type", "def", "class", "void"];
/// Keywords of types.
const TYPES: [&str; 3] = ["struct", "enum", "trait"];

/// The project's source files, by their paths from its top folder.
pub struct Sources(BTreeMap<PathBuf, Source>);

/// Names that a file defines.
struct Source {
    text: String,
    items: BTreeSet<String>,
    /// Names outside of all blocks.
    outermost: BTreeSet<String>,
    types: BTreeSet<String>,
    /// Names in the headers of `impl` and `trait` blocks.
    implements: BTreeSet<String>,
}

impl Sources {
    pub fn read() -> Self {
        let mut files = BTreeMap::new();
        for folder in ["switch", "rig", "lab/tests", "xen"] {
            collect(&top().join(folder), &mut files);
        }
        Self(files)
    }

    /// The files that define `name`: a function, constant or type, behind `::` a method's type, and before that folders or files that narrow it down
    /// (`worker::turn::Turn::run`). Of several, those that declare the type too, or the function outside of all blocks. A name with a dot is a
    /// file's, one with a dash a hostile case's.
    fn files(&self, name: &str) -> Vec<&Path> {
        if name.contains('.') {
            return self.0.keys().filter(|path| path.ends_with(name)).map(PathBuf::as_path).collect();
        }
        let mut parts: Vec<&str> = name.split("::").collect();
        let own = parts.pop().unwrap();
        let (types, folders): (Vec<_>, Vec<_>) = parts.into_iter().partition(|part| part.starts_with(char::is_uppercase));
        let lies_in = |path: &Path, folder: &str| {
            path.components().any(|part| part.as_os_str() == folder) || path.file_stem().is_some_and(|stem| stem == folder)
        };
        let fits = |(path, source): &(&PathBuf, &Source)| {
            source.defines(own)
                && folders.iter().all(|folder| lies_in(path, folder))
                && types.iter().all(|&owner| source.implements.contains(owner))
        };
        let is_home = |(_, source): &(&PathBuf, &Source)| match types[..] {
            [] => source.outermost.contains(own),
            _ => types.iter().all(|&owner| source.types.contains(owner)),
        };
        let found: Vec<_> = self.0.iter().filter(fits).collect();
        let home: Vec<_> = found.iter().copied().filter(is_home).collect();
        let best = if home.is_empty() { found } else { home };
        best.into_iter().map(|(path, _)| path.as_path()).collect()
    }

    /// The text of the one file whose path ends with `end`.
    pub fn text(&self, end: &str) -> &str {
        let mut found = self.0.iter().filter(|(path, _)| path.ends_with(end));
        let (Some((_, source)), None) = (found.next(), found.next()) else { panic!("{end} is not one file") };
        &source.text
    }

    /// Links to all files that define `name`, from the reference's folder. Panics if there is none, or if there are several of a name with `::`.
    pub fn link(&self, name: &str) -> String {
        let found = self.files(name);
        assert!(!found.is_empty(), "no source defines {name}: was it renamed?");
        assert!(found.len() == 1 || !name.contains("::"), "{name} is ambiguous: {found:?}");
        let to = |path: &Path| format!("[`{name}`](../../{})", path.display());
        found.into_iter().map(to).collect::<Vec<_>>().join(" ")
    }

    /// The value of the constant `name`, with a link to its file.
    pub fn value(&self, name: &str) -> String {
        let found = self.files(name);
        let [path] = found[..] else { panic!("the constant {name} is defined in {found:?}") };
        let own = format!("const {}:", name.rsplit("::").next().unwrap());
        let rest = self.0[path].text.split_once(&own).unwrap_or_else(|| panic!("{name} is no constant")).1;
        let expression = rest.split_once(" = ").unwrap().1.split_once(';').unwrap().0.trim();
        format!("[{}](../../{})", plain(expression), path.display())
    }
}

impl Source {
    fn of(text: String) -> Self {
        let lines = || text.lines().map(|line| (line, words(line)));
        let named = |kinds: &[&str], line: &[&str]| -> Vec<String> {
            line.windows(2).filter(|pair| kinds.contains(&pair[0])).map(|pair| pair[1].to_owned()).collect()
        };
        let is_outermost = |line: &str| line.starts_with(char::is_alphabetic);
        let is_header = |line: &str| ["impl", "trait", "pub trait"].into_iter().any(|start| line.starts_with(start));
        Self {
            items: lines().flat_map(|(_, line)| named(&KINDS, &line)).collect(),
            outermost: lines().filter(|(line, _)| is_outermost(line)).flat_map(|(_, line)| named(&KINDS, &line)).collect(),
            types: lines().flat_map(|(_, line)| named(&TYPES, &line)).collect(),
            implements: lines().filter(|(line, _)| is_header(line)).flat_map(|(_, line)| line).map(str::to_owned).collect(),
            text,
        }
    }

    fn defines(&self, name: &str) -> bool {
        self.items.contains(name) || (name.contains('-') && self.text.contains(&format!("\"{name}\"")))
    }
}

fn words(line: &str) -> Vec<&str> {
    line.split(|letter: char| !letter.is_alphanumeric() && letter != '_').filter(|word| !word.is_empty()).collect()
}

/// A constant's expression as people write it: `Duration::from_millis(50)` is 50 ms.
fn plain(expression: &str) -> String {
    let number = |text: &str| text.replace('_', "");
    for (prefix, unit) in [("Duration::from_millis(", "ms"), ("Duration::from_secs(", "s"), ("Duration::from_micros(", "µs")] {
        if let Some(inner) = expression.strip_prefix(prefix).and_then(|rest| rest.strip_suffix(')')) {
            return format!("{} {unit}", number(inner));
        }
    }
    let shift = expression.split_once(" << ").and_then(|(value, by)| Some(value.parse::<u64>().ok()? << by.parse::<u32>().ok()?));
    shift.map_or_else(|| number(expression), |value| value.to_string())
}

fn collect(folder: &Path, files: &mut BTreeMap<PathBuf, Source>) {
    for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        let is_source = path.extension().is_some_and(|extension| ["rs", "py", "c", "h"].into_iter().any(|kind| extension == kind));
        if path.is_dir() && !path.ends_with("target") {
            collect(&path, files);
        } else if is_source {
            let text = fs::read_to_string(&path).unwrap();
            files.insert(path.strip_prefix(top()).unwrap().into(), Source::of(text));
        }
    }
}
