//! `memlane reload`: applies the file to a running network.

use std::path::{Path, PathBuf};

use clap::Args;
use hyper::Method;

use super::net::Net;
use super::output::shown;
use super::{Failure, output};
use crate::config::Reread;
use crate::config::claim::place;
use crate::config::lines::FileLines;
use crate::control::identity::{Identity, NetFile};
use crate::control::reload::Reloaded;
use crate::control::routes::ReloadOrder;
use crate::quantity::counted;

/// Arguments of `memlane reload`.
#[derive(Debug, Args)]
pub(super) struct Reload {
    #[command(flatten)]
    net: Net,
    /// Only print the changes, without making them.
    #[arg(long)]
    dry_run: bool,
    /// Change the ports even if other keys differ, which only a restart changes.
    #[arg(long)]
    ports_only: bool,
    /// Remove ports that the file does not have and that a command or another program attached, too.
    #[arg(long)]
    prune: bool,
    /// Names of ports that may be removed or attached anew though a guest is connected, and though no port would stay or the file may be
    /// incomplete.
    #[arg(long, value_name = "PORT", value_delimiter = ',')]
    force: Vec<String>,
    /// As JSON.
    #[arg(long)]
    json: bool,
}

impl Reload {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let &Self { dry_run, ports_only, prune, .. } = self;
        let force = self.force.clone();
        let client = self.net.client()?;
        let read = match self.net.file() {
            Some(file) => {
                let own = client.get::<Identity>("/v1/identity")?.file.and_then(|own| path_of(own, file));
                Some(Reread::load(own.as_deref().unwrap_or(file), !force.is_empty())?)
            }
            None => None,
        };
        let cut_off = read.as_ref().is_some_and(|read| read.cut_off);
        let lines = read.as_ref().map_or_else(FileLines::default, |read| read.document.lines.clone());
        let document = read.map(|read| serde_json::to_value(read.document)).transpose().map_err(Failure::running)?;
        let order = ReloadOrder { document, dry_run, ports_only, prune, force, cut_off, lines };
        let done: Reloaded = client.ask(Method::POST, "/v1/reload", Some(&order))?;
        output::print_either(self.json, &done, || told(&done))?;
        if dry_run {
            return Ok(());
        }
        match done.unfinished().len() {
            0 => Ok(()),
            1 => Err(Failure::Running("one port or uplink could not be changed as the file says: see the lines above".into())),
            count => Err(Failure::Running(format!(
                "{} and uplinks could not be changed as the file says: see the lines above",
                counted(count, "port")
            ))),
        }
    }
}

/// The path under which the network knows its file, if `named` is another path to it, such as a symbolic link. None if it is a
/// different file: the network may be in a mount namespace of its own.
fn path_of(own: NetFile, named: &Path) -> Option<PathBuf> {
    let here = NetFile::at(&own.path).ok()?;
    ((here.device, here.inode) == (own.device, own.inode) && own.path != place(named)).then_some(own.path)
}

/// The changes made, a line for each port that differs.
fn told(done: &Reloaded) -> String {
    let mut text = String::new();
    let mut line = |what: &str, rest: &str| text.push_str(&format!("{what:<10} {rest}\n"));
    done.removed.iter().for_each(|name| line("removed", name));
    for port in &done.changed {
        let anew = if port.anew { ", detached and attached again" } else { "" };
        line("changed", &format!("{}: {}{anew}", port.name, port.keys.join(", ")));
    }
    done.added.iter().for_each(|name| line("added", name));
    done.uplinks_removed.iter().for_each(|segment| line("removed", &format!("uplink of segment {segment}")));
    done.uplinks_added.iter().for_each(|segment| line("added", &format!("uplink of segment {segment}")));
    if done.policy {
        line("changed", "policy rules");
    }
    if done.multicast {
        line("changed", "segments with multicast snooping");
    }
    done.failed.iter().for_each(|failed| line("failed", &format!("{}: {}", failed.name, failed.error)));
    done.left.iter().for_each(|port| line("left", &format!("{}: {}", port.name, port.told())));
    done.kept.iter().for_each(|port| line("kept", &format!("{}, attached by {}", port.name, shown(&port.origin.to_string()))));
    line("untouched", &counted(done.untouched.len(), "port"));
    if !done.restart.is_empty() {
        line("takeover", &format!("these keys change by `memlane up --takeover`: {}", done.restart.join(", ")));
    }
    done.refused.iter().for_each(|cause| line("refused", cause));
    if done.dry_run {
        text.push_str("Nothing was changed (--dry-run).\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Attacher, PortOrigin};
    use crate::control::reload::{ChangedPort, Failed, KeptPort, LeftPort};

    #[test]
    fn every_difference_has_a_line() {
        let done = Reloaded {
            added: vec!["a".into()],
            removed: vec!["b".into()],
            changed: vec![ChangedPort { name: "c".into(), keys: vec!["mtu".into(), "queues".into()], anew: true }],
            untouched: vec!["d".into()],
            left: vec![LeftPort { name: "f".into(), keys: vec!["queues".into()] }],
            kept: vec![KeptPort { name: "g".into(), origin: PortOrigin::labelled(Attacher::Libvirt, "web") }],
            uplinks_added: vec!["lan".into()],
            uplinks_removed: vec!["back".into()],
            policy: true,
            multicast: true,
            restart: vec!["workers".into()],
            failed: vec![Failed { name: "e".into(), error: "it is taken".into() }],
            dry_run: true,
            refused: Some("no port stays".into()),
        };
        let text = told(&done);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 14, "{text}");
        assert_eq!(lines[1], "changed    c: mtu, queues, detached and attached again");
        assert_eq!(lines[3..5], ["removed    uplink of segment back", "added      uplink of segment lan"]);
        assert_eq!(lines[5..7], ["changed    policy rules", "changed    segments with multicast snooping"]);
        assert!(lines[7].contains("e: it is taken") && lines[10].ends_with("1 port") && lines[11].ends_with("workers"));
        assert!(lines[8].starts_with("left       f: a guest is connected, and queues cannot change meanwhile"), "{text}");
        assert_eq!((lines[9], lines[12]), ("kept       g, attached by libvirt web", "refused    no port stays"));
    }
}
