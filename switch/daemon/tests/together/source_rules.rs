//! Rules of the source: where unsafe code of the switch may stand, that modules of a crate do not all know each other, and that tests are run.
//! The order of the crates is the compiler's to keep. Judged by the text: words in comments and code that is compiled for tests only do not
//! count.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Files of the switch that may hold unsafe code; docs/explanation/unsafe.md names them.
const MOST_UNSAFE: usize = 19;
/// Files of the rig that may: the driver's side of the same shared memory.
const MOST_UNSAFE_OF_RIG: usize = 15;
/// Files that may know each other all around.
const MOST_IN_A_CIRCLE: usize = 8;

/// Tuned constants: those of the files of [`TUNING`], and every constant of time in a crate that serves guests.
const MOST_TUNED: usize = 80;
/// The files of the data path where constants stand that were chosen by measurement.
const TUNING: [&str; 2] = ["dataplane/tuning.rs", "dataplane/cpu_time/work_units.rs"];
/// The crates whose times are timeouts of requests and programs.
const CONTROL: [&str; 6] = ["config/", "confine/", "control/", "command/", "integrations/", "daemon/"];

/// The crates of the switch, each of which knows those before it.
const CRATES: [&str; 12] = [
    "virtq",
    "observe",
    "model",
    "dataplane",
    "names",
    "backends",
    "config",
    "confine",
    "control",
    "command",
    "integrations",
    "daemon",
];

/// Terms of the field, each with the file that handles it: a search for the term finds the file's head.
const FOUND_BY_TERM: [(&str, &str); 4] = [
    ("backpressure", "dataplane/ingress/source.rs"),
    ("interrupt coalescing", "virtq/notification.rs"),
    ("fdb aging", "dataplane/table.rs"),
    ("head-of-line blocking", "dataplane/egress/mod.rs"),
];

/// The repository's top folder.
fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Every file of the switch, by its crate and its path below `src`, and its text.
pub(crate) fn files() -> BTreeMap<String, String> {
    let of_crate = |name: &str| {
        files_of(name).into_iter().map(|(path, text)| (format!("{name}/{path}"), text)).collect::<BTreeMap<String, String>>()
    };
    CRATES.into_iter().flat_map(of_crate).collect()
}

/// Every file of the crate `name`, by its path below `src`, and its text.
fn files_of(name: &str) -> BTreeMap<String, String> {
    let source = top().join("switch").join(name).join("src");
    let mut found = BTreeMap::new();
    collect(&source, &source, &mut found);
    found
}

fn collect(folder: &Path, source: &Path, found: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let path = entry.path();
        if path.is_dir() {
            collect(&path, source, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let name = path.strip_prefix(source).unwrap().to_str().unwrap().to_owned();
            found.insert(name, fs::read_to_string(path).unwrap());
        }
    }
}

/// `text` without comments.
pub(crate) fn without_comments(text: &str) -> String {
    text.lines().map(|line| line.split_once("//").map_or(line, |(code, _)| code)).collect::<Vec<_>>().join("\n")
}

/// `text`, which has no comments, without the items that are compiled for tests only.
pub(crate) fn without_tests(text: &str) -> String {
    let mut left = text;
    let mut kept = String::new();
    while let Some(at) = ["#[cfg(test)]", "#[cfg(all(test"].iter().filter_map(|attribute| left.find(attribute)).min() {
        kept.push_str(&left[..at]);
        left = &left[at + item_length(&left[at..])..];
    }
    kept + left
}

/// Bytes of the item that `text` begins with: up to its semicolon, or the end of its braces.
fn item_length(text: &str) -> usize {
    let mut depth = 0;
    for (at, letter) in text.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' if depth == 1 => return at + 1,
            '}' => depth -= 1,
            ';' if depth == 0 => return at + 1,
            _ => {}
        }
    }
    text.len()
}

fn is_word(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

/// True if `word` stands in `text` by itself.
fn has_word(text: &str, word: &str) -> bool {
    text.split(|letter| !is_word(letter)).any(|other| other == word)
}

#[test]
fn every_file_of_tests_is_run() {
    for package in ["switch/daemon", "rig"] {
        let folder = top().join(package).join("tests/together");
        let program = fs::read_to_string(folder.join("main.rs")).unwrap();
        for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
            let name = entry.path().file_stem().unwrap().to_str().unwrap().to_owned();
            let declared = program.contains(&format!("\nmod {name};\n"));
            assert!(name == "main" || declared, "{package}/tests/together/main.rs does not declare {name}");
        }
    }
}

#[test]
fn unsafe_code_stands_in_few_files_and_all_are_named() {
    let files = files();
    for name in CRATES {
        assert!(
            files[&format!("{name}/lib.rs")].contains("\n#![deny(unsafe_code)]\n"),
            "unsafe code is denied at the root of {name}"
        );
    }
    let with_unsafe: BTreeSet<&String> =
        files.iter().filter(|(_, text)| has_word(&without_comments(text), "unsafe")).map(|(name, _)| name).collect();
    let allowing: BTreeSet<&String> = files
        .iter()
        .filter(|(name, text)| !name.ends_with("/lib.rs") && has_word(&without_comments(text), "unsafe_code"))
        .map(|(name, _)| name)
        .collect();
    assert_eq!(
        with_unsafe, allowing,
        "a file with unsafe code says at its top why, with #![expect(unsafe_code, reason = ...)]; no other does"
    );
    assert!(with_unsafe.len() <= MOST_UNSAFE, "unsafe code in {} files: {with_unsafe:?}", with_unsafe.len());
    let page = fs::read_to_string(top().join("docs/explanation/unsafe.md")).unwrap();
    let named: BTreeSet<String> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| [")?.split_once("](../../switch/")?.1.split_once(')'))
        .map(|(name, _)| name.replacen("/src/", "/", 1))
        .collect();
    assert!(with_unsafe.into_iter().eq(&named), "docs/explanation/unsafe.md names {named:?}");
    let mut rig = BTreeMap::new();
    collect(&top().join("rig/src"), &top().join("rig/src"), &mut rig);
    let of_rig: Vec<&String> =
        rig.iter().filter(|(_, text)| has_word(&without_comments(text), "unsafe")).map(|(name, _)| name).collect();
    assert!(of_rig.len() <= MOST_UNSAFE_OF_RIG, "unsafe code in {} files of the rig: {of_rig:?}", of_rig.len());
}

#[test]
fn a_search_for_a_term_finds_the_head_of_its_module() {
    let files = files();
    for (term, file) in FOUND_BY_TERM {
        let head: Vec<&str> = files[file].lines().map_while(|line| line.strip_prefix("//!")).collect();
        assert!(head.join("").to_lowercase().contains(term), "the head of {file} has the term {term}");
    }
}

/// `memlane-model` does both.
#[test]
fn the_data_path_has_no_json_and_reads_no_proc() {
    let manifest = fs::read_to_string(top().join("switch/dataplane/Cargo.toml")).unwrap();
    assert!(!["serde", "schemars"].into_iter().any(|name| manifest.contains(name)), "{manifest}");
    for (name, text) in files().iter().filter(|(name, _)| name.starts_with("dataplane/")) {
        let code = without_tests(&without_comments(text));
        assert!(!["\"/proc", "\"/sys", "serde"].into_iter().any(|word| code.contains(word)), "{name}");
    }
}

/// The module of a file, from the crate's root on.
fn module(file: &str) -> Vec<&str> {
    let mut path: Vec<&str> = file.strip_suffix(".rs").unwrap().split('/').collect();
    if matches!(path.last(), Some(&"mod" | &"lib")) {
        path.pop();
    }
    path
}

/// Paths that a `use` names, given without its keyword and semicolon, one each.
fn flat(tree: &str) -> Vec<String> {
    let tree = tree.trim();
    let Some((before, group)) = tree.split_once('{') else {
        return vec![tree.split_whitespace().next().unwrap_or_default().to_owned()];
    };
    let group = group.rsplit_once('}').map_or(group, |(group, _)| group);
    let (mut depth, mut parts) = (0, vec![String::new()]);
    for letter in group.chars() {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if letter == ',' && depth == 0 { parts.push(String::new()) } else { parts.last_mut().unwrap().push(letter) }
    }
    parts.iter().filter(|part| !part.trim().is_empty()).flat_map(|part| flat(part)).map(|path| format!("{before}{path}")).collect()
}

/// Paths that `text` imports or names from the crate's root or from above. The path of a visibility (`pub(in ...)`) is not among
/// them.
fn paths(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = String::new();
    let mut left = text;
    while let Some((before, after)) = left.split_once("use ") {
        rest.push_str(before);
        let starts = before.chars().next_back().is_none_or(|letter| !is_word(letter));
        let (tree, behind) = if starts { after.split_once(';').unwrap_or((after, "")) } else { ("", after) };
        found.extend(flat(tree));
        left = behind;
    }
    rest.push_str(left);
    let rest = rest.replace("pub(in crate::", "").replace("pub(super)", "");
    let words = rest.split(|letter: char| !is_word(letter) && letter != ':').map(|word| word.trim_end_matches(':'));
    found.extend(words.filter(|word| word.starts_with("crate::") || word.starts_with("super::")).map(str::to_owned));
    found
}

/// The file that `path` leads to, named in the file of module `from`.
fn target<'a>(path: &str, from: &[&str], modules: &BTreeMap<Vec<&str>, &'a str>) -> Option<&'a str> {
    let mut at = from.to_vec();
    let mut parts = path.split("::").peekable();
    match parts.peek() {
        Some(&"crate") => {
            at.clear();
            parts.next();
        }
        Some(&"super") => {
            while parts.next_if_eq(&"super").is_some() {
                at.pop();
            }
        }
        Some(&"self") => {
            parts.next();
        }
        Some(child) => {
            let child: Vec<&str> = from.iter().copied().chain([*child]).collect();
            modules.get(&child)?;
        }
        None => return None,
    }
    let depth = at.len();
    let whole: Vec<&str> = at.into_iter().chain(parts).collect();
    // The longest part that is a file; the rest is an item in it.
    (depth.min(1)..=whole.len()).rev().find_map(|length| modules.get(&whole[..length]).copied())
}

/// Which files each file imports from.
fn imports(files: &BTreeMap<String, String>) -> BTreeMap<&str, BTreeSet<&str>> {
    let modules: BTreeMap<Vec<&str>, &str> =
        files.keys().filter(|name| *name != "main.rs").map(|name| (module(name), name.as_str())).collect();
    let of = |name: &str, text: &str| -> BTreeSet<&str> {
        let code = without_tests(&without_comments(text));
        let targets = paths(&code).into_iter().filter_map(|path| target(&path, &module(name), &modules)).collect::<BTreeSet<_>>();
        targets.into_iter().filter(|target| *target != name && *target != "lib.rs").collect()
    };
    files.iter().filter(|(name, _)| *name != "main.rs").map(|(name, text)| (name.as_str(), of(name, text))).collect()
}

/// All that can be reached from `from`.
fn reached<'a>(from: &'a str, imports: &BTreeMap<&'a str, BTreeSet<&'a str>>) -> BTreeSet<&'a str> {
    let (mut seen, mut open) = (BTreeSet::new(), vec![from]);
    while let Some(file) = open.pop() {
        open.extend(imports[file].iter().filter(|&next| seen.insert(*next)));
    }
    seen
}

/// The largest set of files, or of modules, that can all be reached from each other; empty if there is none.
fn largest_circle<'a>(imports: &BTreeMap<&'a str, BTreeSet<&'a str>>) -> BTreeSet<&'a str> {
    let reached: BTreeMap<&str, BTreeSet<&str>> = imports.keys().map(|file| (*file, reached(file, imports))).collect();
    let circle = |file: &str| reached[file].iter().copied().filter(|other| reached[other].contains(file)).collect::<BTreeSet<_>>();
    imports.keys().map(|file| circle(file)).max_by_key(BTreeSet::len).unwrap()
}

/// The part of `imports` within `circle`, for the failure's message.
fn ties(circle: &BTreeSet<&str>, imports: &BTreeMap<&str, BTreeSet<&str>>) -> String {
    let tie = |file: &&str| format!("{file} imports {:?}", imports[file].intersection(circle).collect::<Vec<_>>());
    circle.iter().map(tie).collect::<Vec<_>>().join("\n")
}

/// The module at the crate's root that a file belongs to.
fn room(file: &str) -> &str {
    file.split(['/', '.']).next().unwrap()
}

#[test]
fn no_circle_of_imports_is_large() {
    for name in CRATES {
        let files = files_of(name);
        let imports = imports(&files);
        let largest = largest_circle(&imports);
        assert!(
            largest.len() <= MOST_IN_A_CIRCLE,
            "{name}: {} files import each other in a circle:\n{}",
            largest.len(),
            ties(&largest, &imports)
        );
    }
    // Does the reading of sources still work?
    let of = |name: &str, file: &str, other: &str| imports(&files_of(name))[file].contains(other);
    assert!(of("dataplane", "worker/mod.rs", "worker/mailbox.rs") && of("virtq", "ring/transmit.rs", "packet.rs"));
}

/// Modules at a crate's root have an order: none knows one that knows it.
#[test]
fn no_modules_at_a_crates_root_import_each_other() {
    for name in CRATES {
        let files = files_of(name);
        let mut rooms: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for (file, imported) in imports(&files).into_iter().filter(|(file, _)| *file != "lib.rs") {
            let others = imported.into_iter().map(room).filter(|other| *other != room(file));
            rooms.entry(room(file)).or_default().extend(others);
        }
        let circle = largest_circle(&rooms);
        assert!(circle.is_empty(), "{name}: modules import each other:\n{}", ties(&circle, &rooms));
    }
}

/// A constant that was chosen by measurement, or a time for which a guest waits, is one of few, has its reason above it, and in the rooms of the
/// data path stands with the others.
#[test]
fn tuned_constants_are_few_and_have_their_reasons() {
    let files = files();
    let declares = |line: &str| {
        let line = line.trim_start();
        ["", "pub ", "pub(crate) ", "pub(super) "]
            .iter()
            .any(|seen| line.strip_prefix(seen).is_some_and(|rest| rest.starts_with("const ")))
    };
    let mut tuned = Vec::new();
    for (file, text) in
        files.iter().filter(|(file, _)| !CONTROL.iter().any(|of| file.starts_with(of)) && !file.ends_with("tests.rs"))
    {
        let text = text.split_once("#[cfg(test)]\nmod ").map_or(text.as_str(), |(code, _)| code);
        let is_tuning = TUNING.contains(&file.as_str());
        let lines: Vec<&str> = text.lines().collect();
        for pair in lines.windows(2) {
            let is_time = [": Duration", ": (Duration", ": [Duration"].iter().any(|kind| pair[1].contains(kind));
            if declares(pair[1]) && (is_tuning || is_time) {
                assert!(pair[0].trim_start().starts_with("///"), "{file}: the line above has the reason of {}", pair[1]);
                tuned.push(format!("{file}: {}", pair[1].trim()));
            }
        }
        let rooms = ["egress/", "ingress/", "worker/", "cpu_time/"].map(|room| format!("dataplane/{room}"));
        let is_apart = !is_tuning && rooms.iter().any(|room| file.starts_with(room));
        assert!(!is_apart || !tuned.iter().any(|known| known.starts_with(file)), "{file}: times belong to tuning.rs: {tuned:#?}");
    }
    assert!((60..=MOST_TUNED).contains(&tuned.len()), "{} tuned constants: {tuned:#?}", tuned.len());
}

/// Words on -s behind a placeholder that are no plural.
const NO_PLURAL: [&str; 48] = [
    "address",
    "announces",
    "applies",
    "as",
    "belongs",
    "carries",
    "changes",
    "claims",
    "conflicts",
    "contains",
    "delays",
    "does",
    "drops",
    "exists",
    "filters",
    "has",
    "is",
    "its",
    "lacks",
    "learns",
    "leaves",
    "listens",
    "moves",
    "ms",
    "needs",
    "passes",
    "prints",
    "receives",
    "refuses",
    "runs",
    "sends",
    "serves",
    "stands",
    "takes",
    "tells",
    "this",
    "uses",
    "was",
    "allows",
    "answers",
    "reaches",
    "reads",
    "says",
    "starts",
    "stops",
    "holds",
    "exceeds",
    "s",
];
/// Words that no noun follows which a placeholder before them would count.
const JOINING: [&str; 12] = ["and", "at", "by", "from", "in", "of", "on", "or", "the", "to", "with", "without"];
/// Plurals that are looked for behind one more word, as in "{count} policy rules".
const PLURALS: [&str; 14] = [
    "addresses",
    "bytes",
    "connections",
    "descriptors",
    "frames",
    "pairs",
    "ports",
    "queues",
    "regions",
    "requests",
    "rules",
    "segments",
    "streams",
    "times",
];
/// Formats with the name of a kind of ports as their placeholder, or a limit above one.
const NEVER_ONE: [&str; 4] = [
    "applies to {} ports only",
    "applies only to {of} ports",
    "{} ports{place}",
    "more than {} memory regions\", super::MemoryMap::MAX",
];

/// The placeholders of format strings in `line` that stand before a plural, though their number may be one.
fn uncounted(line: &str) -> Vec<&str> {
    // A number beyond a limit is no one.
    if line.contains("may have {") || NEVER_ONE.iter().any(|known| line.contains(known)) {
        return Vec::new();
    }
    let is_plural = |place: &&str| {
        let (name, behind) = place.split_once('}').unwrap_or((place, ""));
        let is_placeholder = name.chars().all(|letter| is_word(letter) || "?:.<>#$".contains(letter));
        let is_constant = !name.is_empty() && name.chars().all(|letter| letter.is_ascii_uppercase() || letter == '_');
        let mut words = behind.strip_prefix(' ').unwrap_or("").split(' ');
        let (first, second, third) = (words.next().unwrap_or(""), words.next().unwrap_or(""), words.next().unwrap_or(""));
        let bare = |word: &'_ str| word.trim_end_matches(|letter: char| !letter.is_alphabetic() && letter != '/').to_owned();
        let (first, second) = (bare(first), bare(second));
        let is_word_of = |word: &str| {
            word.starts_with(char::is_alphabetic) && word.chars().all(|letter| letter.is_alphabetic() || letter == '-')
        };
        let counts = |word: &str, next: &str| is_word_of(word) && word.ends_with('s') && next != "per";
        let is_verb = NO_PLURAL.contains(&&*first) || JOINING.contains(&&*first);
        let direct = counts(&first, &second) && !is_verb;
        let behind_one = is_word_of(&first) && !is_verb && PLURALS.contains(&&*second) && third != "per";
        is_placeholder && !is_constant && (direct || behind_one)
    };
    if line.contains('"') || !line.contains(';') { line.split('{').skip(1).filter(is_plural).collect() } else { Vec::new() }
}

/// "1 segments" is no English: `memlane_virtq::message::counted` says a number of things.
#[test]
fn numbers_in_messages_are_counted_by_one_function() {
    assert_eq!(uncounted(r#"format!("{count} segments of {} frames/s")"#), ["count} segments of "]);
    assert_eq!(uncounted(r#"format!("{} policy rules, {}", 1, 2)"#), ["} policy rules, "]);
    assert!(uncounted(r#"format!("{MOST} ports, {port} is {name} drops these, {ratio} interrupts per frame")"#).is_empty());
    for (file, text) in files().iter().filter(|(file, _)| !file.ends_with("tests.rs")) {
        let code = without_tests(&without_comments(text));
        let found: Vec<&str> = code.lines().flat_map(uncounted).collect();
        assert!(found.is_empty(), "{file}: {found:?}: a number of things is told by memlane_virtq::message::counted");
    }
}

/// Lines of code of a crate: neither comments nor tests.
fn code_lines(name: &str) -> usize {
    let code = |text: &String| without_tests(&without_comments(text)).lines().filter(|line| !line.trim().is_empty()).count();
    files_of(name).iter().filter(|(file, _)| !file.ends_with("tests.rs")).map(|(_, text)| code(text)).sum()
}

#[test]
fn the_page_on_where_things_live_shows_each_crate_and_its_size() {
    let page = fs::read_to_string(top().join("docs/explanation/where-things-live.md")).unwrap();
    let of_line = |line: &'_ str| -> Option<(String, usize)> {
        let (head, _) = line.trim_start().split_once(" lines ")?;
        let (name, lines) = head.split_once(' ')?;
        Some((name.to_owned(), lines.replace(' ', "").parse().ok()?))
    };
    let shown: BTreeMap<String, usize> = page.lines().filter_map(of_line).collect();
    for name in CRATES {
        let (told, there) = (shown.get(name), code_lines(name));
        assert!(told.is_some_and(|told| told.abs_diff(there) <= there / 10), "{name}: {there} lines, the page says {told:?}");
    }
    assert_eq!(shown.len(), CRATES.len(), "{shown:?}");
}
