//! The repository's pages, as far as a test can read them: links, and blocks of code.

use std::fs;
use std::path::{Path, PathBuf};

/// A page and its text.
pub struct Page {
    pub path: PathBuf,
    pub text: String,
}

/// A relative link.
#[derive(Debug)]
pub struct Link {
    /// The text between the brackets.
    pub text: String,
    /// Where it leads.
    pub target: PathBuf,
}

/// The repository's top folder.
pub fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

impl Page {
    /// The page at `path`, from the top of the repository.
    pub fn read(path: impl AsRef<Path>) -> Self {
        let path = top().join(path);
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Self { path, text }
    }

    /// Every page that is written for people.
    pub fn all() -> Vec<Self> {
        let mut paths = Vec::new();
        for start in ["docs", "examples", "xen"] {
            collect(&top().join(start), &mut paths);
        }
        paths.extend(["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"].map(|name| top().join(name)));
        paths.into_iter().map(Self::read).collect()
    }

    /// Links of the page to files of the repository.
    pub fn links(&self) -> Vec<Link> {
        let prose = self.text.split("```").step_by(2).collect::<String>();
        let folder = self.path.parent().unwrap();
        let link = |(at, _): (usize, &str)| {
            let text = prose[..at].rsplit_once('[')?.1.to_owned();
            let target = prose[at + 2..].split_once(')')?.0.split('#').next()?;
            let is_relative = !target.is_empty() && !target.contains("://");
            is_relative.then(|| Link { text, target: folder.join(target) })
        };
        prose.match_indices("](").filter_map(link).collect()
    }

    /// Blocks of code in `language`.
    pub fn blocks(&self, language: &str) -> Vec<String> {
        let blocks = self.text.split("```").skip(1).step_by(2);
        blocks.filter_map(|block| block.strip_prefix(language)?.strip_prefix('\n').map(str::to_owned)).collect()
    }
}

fn collect(folder: &Path, pages: &mut Vec<PathBuf>) {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    for path in entries.map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            collect(&path, pages);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            pages.push(path);
        }
    }
}

/// True if `source`, in Rust or Python, defines `name`: as an item, a field or variant, or a string that stands for itself.
pub fn defines(source: &str, name: &str) -> bool {
    const ITEMS: [&str; 10] = ["fn", "struct", "enum", "const", "static", "type", "trait", "mod", "def", "class"];
    let ends = |rest: &str| !rest.starts_with(|next: char| next.is_alphanumeric() || next == '_');
    let item = |keyword| source.split(&format!("{keyword} {name}")).skip(1).any(ends);
    let member = |line: &str| {
        line.trim().trim_start_matches("pub ").strip_prefix(name).is_some_and(|rest| rest.starts_with([',', '(', ':', ' ']))
    };
    ITEMS.into_iter().any(item) || source.contains(&format!("\"{name}\"")) || source.lines().any(member)
}
