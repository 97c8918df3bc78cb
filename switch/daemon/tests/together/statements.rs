//! Statements of the README and the how-tos, run as they stand: commands in blocks and in sentences, networks, keys, routes, metrics.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::command::{Running, TIMEOUT, memlane, write};
use crate::docs::{commands, commands_in, first_network, network_of};
use crate::metrics::{is_of_uplinks, scrape};
use crate::pages::{Page, top};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Fewest statements that are run.
const FEWEST: usize = 120;
/// Words of commands that need Proxmox VE, libvirt or Xen, which this machine may lack.
const OTHERS: [&str; 3] = ["pve", "libvirt-stats", "--xen"];
/// Pages about the lab's files and those of NixOS, which have other keys.
const OF_OTHER_FILES: [&str; 3] = ["count-instructions.md", "nixos.md", "run-an-experiment.md"];
/// Time after which a command that still runs counts as one that runs until an interrupt (SIGINT).
const LASTING: Duration = Duration::from_secs(2);

/// The README and the how-tos.
fn pages() -> impl Iterator<Item = Page> {
    let how_tos = top().join("docs/how-to");
    Page::all().into_iter().filter(move |page| page.path == top().join("README.md") || page.path.parent() == Some(&how_tos))
}

fn name(page: &Page) -> &str {
    page.path.file_name().unwrap().to_str().unwrap()
}

/// Code in the sentences of `page`, each on one line.
fn code_in_sentences(page: &Page) -> Vec<String> {
    let sentences = page.text.split("```").step_by(2).collect::<Vec<_>>().join("\n\n");
    let code = sentences.split("\n\n").flat_map(|paragraph| paragraph.split('`').skip(1).step_by(2));
    code.map(|code| code.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

/// Commands with their arguments in the sentences of `page`, and in its blocks that no other test runs.
fn further_commands(page: &Page) -> Vec<Vec<String>> {
    let blocks = ["console", "text"].into_iter().flat_map(|language| commands_in(page, language));
    let inline = code_in_sentences(page).into_iter().filter_map(|code| {
        let words: Vec<String> = code.strip_prefix("memlane ")?.split(' ').map(str::to_owned).collect();
        (words.len() > 1 || words[0] == "doctor").then_some(words)
    });
    blocks.chain(inline).filter(|words| !words.iter().any(|word| OTHERS.contains(&word.as_str()))).collect()
}

/// `word` with the test's network and files in place of the page's.
fn in_place(number: usize, word: &str) -> String {
    match (number, word) {
        (1, "lan" | "net" | "shop.toml" | "NET") => "net.toml".into(),
        (_, "lb2") => "lb1".into(),
        (_, "127.0.0.1:9892") => "127.0.0.1:0".into(),
        (_, path) if ["/etc/", "/run/", "/var/"].into_iter().any(|folder| path.starts_with(folder)) => {
            path.rsplit('/').next().unwrap().into()
        }
        _ => word.into(),
    }
}

/// Runs a command of `page` beside its network and one without a file; an interrupt ends one that lasts. Returns a fault.
fn fault_of(page: &Page, words: &[String]) -> Option<String> {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let network = network_of(page);
    // A port that is attached is not there before.
    let network = if words[0] == "attach" { network.replace("\"web\"", "\"other\"") } else { network };
    write(folder, "net.toml", &network);
    let words: Vec<String> = words.iter().enumerate().map(|(number, word)| in_place(number, word)).collect();
    let mut arguments: Vec<&str> = words.iter().map(String::as_str).collect();
    // There is no terminal here to draw on.
    if words[0] == "top" && !arguments.contains(&"--once") {
        arguments.push("--once");
    }
    let is_up = words[0] == "up";
    let beside: &[&[&str]] = match is_up {
        false => &[&["up", "--sandbox", "none"], &["up", "net.toml"]],
        true if words.iter().any(|word| word == "--takeover") => &[&["up", "net.toml"]],
        true => &[],
    };
    let _running: Vec<Running> = beside.iter().map(|arguments| Running::start(memlane(folder, arguments))).collect();
    let mut command = memlane(folder, &arguments);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    if is_up {
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        if !line.contains(" is up") {
            child.kill().unwrap();
        }
    }
    let status = end_of(&mut child, if is_up { Duration::ZERO } else { LASTING });
    let mut told = String::new();
    child.stderr.take().unwrap().read_to_string(&mut told).unwrap();
    let good = status.success() || status.signal() == Some(Signal::SIGINT as i32);
    // A machine that lacks something is told so by the doctor, with a code of its own.
    let good = good || (words[0] == "doctor" && status.code() == Some(3));
    (!good).then(|| format!("{}: memlane {}: {status}: {told}", name(page), arguments.join(" ")))
}

/// The end of `child`, which gets an interrupt after `lasting`.
fn end_of(child: &mut Child, lasting: Duration) -> ExitStatus {
    let begun = Instant::now();
    let mut is_asked = false;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if !is_asked && begun.elapsed() >= lasting {
            kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
            is_asked = true;
        }
        if begun.elapsed() > lasting + TIMEOUT {
            child.kill().unwrap();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether a network's file may have the line `key`, somewhere.
fn is_a_key(key: &str) -> bool {
    let port = "[[port]]\nname = \"web\"\n";
    let places = [
        format!("{key}\n{port}vhost-user = \"web.sock\"\n"),
        format!("[[segment]]\nname = \"lan\"\n{key}\n{port}vhost-user = \"web.sock\"\n"),
        format!("{port}{key}\n"),
        format!("{port}vhost-user = \"web.sock\"\n{key}\n"),
        format!("{port}vhost-user = \"web.sock\"\nanti-spoof = \"all\"\n{key}\n"),
        format!("{port}null = true\n[[policy]]\n{key}\n"),
        format!("{port}null = true\n[[policy]]\naction = \"deny\"\n{key}\n"),
    ];
    places.iter().any(|text| memlane::config::Config::parse(text, "net").is_ok())
}

/// The status line of the answer to `GET PATH` at the control socket.
fn status_of(control: &Path, request: &str) -> String {
    let mut stream = UnixStream::connect(control).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    write!(stream, "{request} HTTP/1.1\r\nhost: memlane\r\n\r\n").unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

/// Asserts the statements of `pages` about keys, routes and metrics; returns the number of these.
fn keys_routes_and_metrics(control: &Path, metrics: &str) -> usize {
    let mut number = 0;
    for page in pages() {
        for code in code_in_sentences(&page) {
            let key = code.split_once(" = ").map(|(key, _)| key);
            let is_key =
                key.is_some_and(|key| !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-'));
            if is_key && !OF_OTHER_FILES.contains(&name(&page)) {
                assert!(is_a_key(&code), "{}: no network may have {code}", name(&page));
            } else if code.starts_with("GET /") {
                assert_eq!(status_of(control, &code), "HTTP/1.1 200 OK", "{}: {code}", name(&page));
            } else if let Some(metric) =
                code.split('{').next().filter(|code| code.starts_with("memlane_") && *code != "memlane_lab" && !code.contains('.'))
            {
                let is_there = metrics.contains(&format!("\n{metric}{{")) || is_of_uplinks(metric);
                assert!(is_there, "{}: {metric} is no metric", name(&page));
            } else {
                continue;
            }
            number += 1;
        }
    }
    number
}

#[test]
fn a_hundred_and_twenty_statements_of_the_readme_and_the_how_tos_hold() {
    let (mut number, mut faults) = (0, Vec::new());
    for page in pages() {
        let networks = page.blocks("toml").into_iter().filter(|text| text.contains("[[port]]")).collect::<Vec<_>>();
        for text in &networks {
            memlane::config::Config::parse(text, "net").unwrap_or_else(|mistakes| panic!("{}: {mistakes}", name(&page)));
        }
        let further = further_commands(&page);
        faults.extend(further.iter().filter_map(|words| fault_of(&page, words)));
        // Commands in blocks of shell are run by the tests of pages, one after the other.
        number += networks.len() + further.len() + commands(&page).len();
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    write(folder, "net.toml", &format!("control = \"control\"\nmetrics = \"unix:metrics\"\n{}", first_network()));
    let _running = Running::start(memlane(folder, &["up", "net.toml"]));
    number += keys_routes_and_metrics(&folder.join("control"), &scrape(&folder.join("metrics")));
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(number >= FEWEST, "only {number} statements were found: does the reading of pages still work?");
}
