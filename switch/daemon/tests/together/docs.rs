//! The pages are right, as far as a machine can tell: links lead somewhere, named functions are there, examples and commands work.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::pages::{Page, defines, top};

fn assert_none(faults: &[String]) {
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn every_link_leads_somewhere() {
    let mut faults = Vec::new();
    for page in Page::all() {
        let lost = page.links().into_iter().filter(|link| !link.target.exists());
        faults.extend(lost.map(|link| format!("{}: [{}] leads to {}", page.path.display(), link.text, link.target.display())));
    }
    assert_none(&faults);
}

#[test]
fn every_name_that_links_to_a_source_file_is_defined_there() {
    let (mut faults, mut names) = (Vec::new(), 0);
    for page in Page::all() {
        for link in page.links() {
            let is_source = link.target.extension().is_some_and(|extension| extension == "rs" || extension == "py");
            let Some(code) = link.text.strip_prefix('`').and_then(|text| text.strip_suffix('`')).filter(|_| is_source) else {
                continue;
            };
            let name = code.rsplit("::").next().unwrap();
            names += 1;
            if !name.contains(['/', '.']) && !std::fs::read_to_string(&link.target).is_ok_and(|source| defines(&source, name)) {
                faults.push(format!("{}: {} does not define {name}", page.path.display(), link.target.display()));
            }
        }
    }
    assert_none(&faults);
    assert!(names > 100, "only {names} names were found: does the reading of pages still work?");
}

#[test]
fn a_frame_travels_in_ten_stops_and_every_hostile_case_says_where_it_ends() {
    let tour = Page::read("docs/explanation/how-a-frame-travels.md");
    let stops = (1..=10).filter(|number| tour.text.contains(&format!("\n### {number}. ")));
    assert_eq!(stops.count(), 10);
    let rules = Page::read("docs/reference/back-end-rules.md");
    let missing = memlane_rig::villain::cases().filter(|case| !rules.text.contains(&format!("`{}`", case.name)));
    assert_none(
        &missing
            .map(|case| format!("docs/reference/back-end-rules.toml does not say where {} ends", case.name))
            .collect::<Vec<_>>(),
    );
}

#[test]
fn every_generated_page_is_current() {
    let pages = crate::reference::pages();
    if std::env::var("MEMLANE_DOCS").is_ok_and(|wanted| wanted == "write") {
        pages.iter().for_each(|(path, text)| std::fs::write(path, text).unwrap());
    }
    let is_old = |(path, text): &&(std::path::PathBuf, String)| std::fs::read_to_string(path).ok().as_ref() != Some(text);
    let old = pages.iter().filter(is_old).map(|(path, _)| format!("{} is not current: run `make docs-reference`", path.display()));
    assert_none(&old.collect::<Vec<_>>());
}

#[test]
fn the_book_has_every_page() {
    let summary = Page::read("docs/SUMMARY.md");
    let listed: Vec<_> = summary.links().into_iter().map(|link| link.target).collect();
    let is_lost =
        |path: &std::path::PathBuf| path.starts_with(top().join("docs")) && *path != summary.path && !listed.contains(path);
    let lost = Page::all().into_iter().map(|page| page.path).filter(is_lost);
    assert_none(&lost.map(|path| format!("{} stands not in docs/SUMMARY.md", path.display())).collect::<Vec<_>>());
}

#[test]
fn the_first_page_leads_to_every_how_to() {
    let led: Vec<_> = Page::read("docs/index.md").links().into_iter().map(|link| link.target).collect();
    let how_tos = top().join("docs/how-to");
    let lost = Page::all().into_iter().map(|page| page.path).filter(|path| path.parent() == Some(&how_tos) && !led.contains(path));
    assert_none(&lost.map(|path| format!("docs/index.md does not lead to {}", path.display())).collect::<Vec<_>>());
}

/// The example of the how-to is a kind that is built.
#[test]
fn the_page_on_port_kinds_shows_one() {
    let page = std::fs::read_to_string(top().join("docs/how-to/add-a-port-kind.md")).unwrap();
    let kind = std::fs::read_to_string(top().join("switch/config/src/kinds/null.rs")).unwrap();
    assert!(page.contains(&format!("```rust\n{kind}```\n")), "copy null.rs into the page");
}

#[test]
fn the_states_of_a_port_are_explained_once() {
    const STATES: [&str; 5] = ["waiting", "speaking", "running", "quarantined", "disabled"];
    let written = Page::all().into_iter().filter(|page| !page.path.starts_with(top().join("docs/reference")));
    for page in written {
        let explained = STATES.iter().filter(|state| page.text.contains(&format!("| `{state}` | "))).count();
        let wanted = if page.path.ends_with("docs/glossary.md") { STATES.len() } else { 0 };
        assert_eq!(explained, wanted, "{}", page.path.display());
    }
}

#[test]
fn every_decision_is_listed() {
    let list = Page::read("docs/adr/README.md");
    let listed: Vec<_> = list.links().into_iter().map(|link| link.target).collect();
    let all =
        Page::all().into_iter().map(|page| page.path).filter(|path| path.parent() == list.path.parent() && *path != list.path);
    assert_none(
        &all.filter(|path| !listed.contains(path)).map(|path| format!("{} is not listed", path.display())).collect::<Vec<_>>(),
    );
}

#[test]
fn every_decision_has_its_number_a_status_and_a_date() {
    let list = Page::read("docs/adr/README.md");
    let records = Page::all().into_iter().filter(|page| page.path.parent() == list.path.parent() && page.path != list.path);
    let faults: Vec<_> = records.filter_map(|record| fault_of_decision(&record, &list)).collect();
    assert_none(&faults);
}

/// What is wrong with the form of a decision record, or with its title in the `list` of them.
fn fault_of_decision(record: &Page, list: &Page) -> Option<String> {
    const PARTS: [&str; 3] = ["**Context.**", "**Decision.**", "**Consequences.**"];
    let name = record.path.file_name()?.to_string_lossy();
    let mut lines = record.text.lines();
    let title = lines.next().and_then(|line| line.strip_prefix("# ")?.strip_prefix(name.get(..4)?)?.strip_prefix(' '));
    let is_whole = lines.nth(1).is_some_and(is_status) && PARTS.into_iter().all(|part| record.text.contains(part));
    match title {
        Some(title) if is_whole && list.text.contains(&format!("| {title} |")) => None,
        Some(_) if is_whole => Some(format!("{name}: {} lists it with another title", list.path.display())),
        _ => Some(format!("{name}: begins with '# NUMBER TITLE' and 'Status: WORD, YYYY-MM-DD', and has {}", PARTS.join(", "))),
    }
}

/// True for "Status: accepted, 2026-11-22".
fn is_status(line: &str) -> bool {
    let Some((status, date)) = line.strip_prefix("Status: ").and_then(|rest| rest.rsplit_once(", ")) else { return false };
    let is_date = date.len() == 10 && date.split('-').all(|part| part.parse::<u16>().is_ok());
    is_date && (["accepted", "proposed"].contains(&status) || status.starts_with("replaced by "))
}

fn memlane(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_memlane"));
    command.args(arguments).current_dir(folder).env("XDG_RUNTIME_DIR", folder).env("XDG_STATE_HOME", folder.join("state-home"));
    command
}

#[test]
fn every_example_is_a_good_network() {
    let mut networks = 0;
    let entries = std::fs::read_dir(top().join("examples")).unwrap().map(|entry| entry.unwrap().path());
    // A folder without one is a topology, which the lab tests.
    for folder in entries.filter(|path| path.join("net.toml").exists()) {
        let output = memlane(&folder, &["check", "net.toml"]).output().unwrap();
        assert!(output.status.success(), "{}: {}", folder.display(), String::from_utf8_lossy(&output.stderr));
        networks += 1;
    }
    assert!(networks >= 2);
}

#[test]
fn networks_on_pages_are_good() {
    let mut networks = 0;
    for page in Page::all() {
        // Other TOML on pages is the lab's, which tests it itself.
        for text in page.blocks("toml").into_iter().filter(|text| text.contains("[[port]]")) {
            if let Err(mistakes) = memlane::config::Config::parse(&text, "net") {
                panic!("{}: {mistakes}\n{text}", page.path.display());
            }
            networks += 1;
        }
    }
    assert!(networks >= 2);
}

/// The arguments of every `memlane` command in the blocks of shell of `page`, which a test can run.
pub(super) fn commands(page: &Page) -> Vec<Vec<String>> {
    commands_in(page, "sh")
}

/// The arguments of every `memlane` command in the blocks of `page` in `language`, behind a prompt or not.
pub(super) fn commands_in(page: &Page, language: &str) -> Vec<Vec<String>> {
    let mut commands = Vec::new();
    for line in page.blocks(language).iter().flat_map(|block| block.lines()) {
        let line = line.trim_start_matches(['$', '#', ' ']);
        for part in line.split("$(").flat_map(|part| part.split("&&")) {
            if let Some(arguments) = part.trim().strip_prefix("memlane ") {
                commands.push(words(arguments.split([')', '>', '|', '#', '&', '\\']).next().unwrap()));
            }
        }
    }
    commands
}

/// The words of a command, of which those in quotes are one.
fn words(command: &str) -> Vec<String> {
    let quoted = command.split('\'').enumerate();
    quoted
        .flat_map(|(part, text)| if part % 2 == 1 { vec![text] } else { text.split_whitespace().collect() })
        .map(str::to_owned)
        .collect()
}

/// A network that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    /// Starts `memlane` with `arguments`, and waits until it says that guests can connect.
    fn start(folder: &Path, arguments: &[&str]) -> Self {
        let mut child = memlane(folder, arguments).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let running = Self(child);
        assert!(line.contains(" is up"), "{line}");
        running
    }
}

#[test]
fn the_commands_of_the_readme_work_on_its_first_network() {
    let page = Page::read("README.md");
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("net.toml"), &page.blocks("toml")[0]).unwrap();
    let all = commands(&page);
    let _network = Running::start(folder.path(), &["up", "net.toml"]);
    for name in ["check", "up", "status", "set", "qemu", "uml", "libvirt", "doctor", "schema", "completion"] {
        assert!(all.iter().any(|command| command[0] == name), "the README does not show `memlane {name}`");
    }
    for name in ["ls", "show", "attach", "detach", "drain", "reload"] {
        assert!(all.iter().any(|command| command[0] == name), "the README does not show `memlane {name}`");
    }
    run_all(folder.path(), &all);
}

#[test]
fn completion_is_installed_on_an_account_without_folders() {
    let page = Page::read("README.md");
    let block = page.blocks("sh").into_iter().find(|block| block.contains("memlane completion")).unwrap();
    let lines: Vec<&str> = block.lines().filter(|line| line.contains("completion")).collect();
    let home = tempfile::tempdir().unwrap();
    let binary = Path::new(env!("CARGO_BIN_EXE_memlane"));
    let path = format!("{}:{}", binary.parent().unwrap().display(), std::env::var("PATH").unwrap());
    let status = Command::new("sh").args(["-ec", &lines.join("\n")]).env("HOME", home.path()).env("PATH", path).status().unwrap();
    assert!(status.success());
    let script = std::fs::read_to_string(home.path().join(".local/share/bash-completion/completions/memlane")).unwrap();
    assert!(script.contains("complete"));
}

#[test]
fn the_commands_for_a_network_that_runs_work() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("net.toml"), first_network()).unwrap();
    let _networks = [Running::start(folder.path(), &["up"]), Running::start(folder.path(), &["up", "net.toml"])];
    let all = commands(&Page::read("docs/how-to/change-a-running-network.md"));
    assert!(all.len() > 10);
    run_all(folder.path(), &all);
}

/// Each on a network of its own, the page's first or that of the README, beside the network without a file.
#[test]
fn the_commands_of_how_tos_and_tutorials_work() {
    let folders = ["docs/how-to", "docs/tutorial"].map(|folder| top().join(folder));
    let mut number = 0;
    for page in Page::all().into_iter().filter(|page| folders.iter().any(|folder| page.path.parent() == Some(folder))) {
        let all = commands(&page);
        if !all.is_empty() {
            let folder = tempfile::tempdir().unwrap();
            std::fs::write(folder.path().join("net.toml"), network_of(&page)).unwrap();
            let _networks = [Running::start(folder.path(), &["up"]), Running::start(folder.path(), &["up", "net.toml"])];
            run_all(folder.path(), &all);
            number += all.len();
        }
    }
    assert!(number > 30, "only {number} commands were found: does the reading of pages still work?");
}

/// A network like the one that `page` is about, for which neither root nor a group of libvirt is needed.
pub(super) fn network_of(page: &Page) -> String {
    let own = page.blocks("toml").into_iter().find(|block| block.contains("[[port]]") && !block.contains("[[segment]]"));
    own.filter(|block| !block.contains("access")).unwrap_or_else(first_network).replace("tap = \"memlane0\"", "null = true")
}

/// The network that the README begins with.
pub(super) fn first_network() -> String {
    Page::read("README.md").blocks("toml")[0].clone()
}

#[test]
fn commands_on_all_pages_are_those_of_memlane() {
    let (mut faults, mut number) = (Vec::new(), 0);
    let folder = tempfile::tempdir().unwrap();
    for page in Page::all() {
        for command in ["sh", "console", "text"].into_iter().flat_map(|language| commands_in(&page, language)) {
            // Options before the wish for help are looked at, and nothing is done.
            let arguments: Vec<&str> = command.iter().map(String::as_str).chain(["--help"]).collect();
            number += 1;
            if !memlane(folder.path(), &arguments).output().unwrap().status.success() {
                faults.push(format!("{}: memlane {}", page.path.display(), command.join(" ")));
            }
        }
    }
    assert_none(&faults);
    assert!(number > 50, "only {number} commands were found: does the reading of pages still work?");
}

/// Runs the commands one after the other, but for those that run networks.
fn run_all(folder: &Path, all: &[Vec<String>]) {
    for command in all.iter().filter(|command| command[0] != "up") {
        let arguments: Vec<&str> = command.iter().map(String::as_str).collect();
        let output = memlane(folder, &arguments).output().unwrap();
        // A machine that lacks something is told so by the doctor, with a code of its own.
        let good = output.status.success() || (command[0] == "doctor" && output.status.code() == Some(3));
        assert!(good, "memlane {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr));
    }
}
