//! Completion of the names of networks and ports, for the scripts of `memlane completion`.

use std::path::Path;

use clap::Args;
use clap_complete::Shell;

use super::net::Net;
use super::{Failure, output};
use crate::control::PortReport;
use crate::control::running;

/// Arguments of `memlane complete-names`, which scripts call.
#[derive(Debug, Args)]
pub(super) struct CompleteNames {
    /// The words of the command line before the one to complete, without the program.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<String>,
}

/// Commands with a network as their first argument.
const OF_NETWORKS: [&str; 15] = [
    "down",
    "status",
    "top",
    "events",
    "ls",
    "addresses",
    "fdb",
    "leases",
    "capture",
    "record",
    "snapshot",
    "thaw",
    "reload",
    "why",
    "denials",
];
/// Commands of an access port or trunk port: with a network and a port, or a port of the usual network, as arguments.
const OF_PORTS: [&str; 12] = ["show", "why", "denials", "attach", "detach", "drain", "set", "qemu", "ch", "pve", "uml", "libvirt"];

impl CompleteNames {
    pub(super) fn run(&self) -> Result<(), Failure> {
        output::print(&self.names().into_iter().map(|name| name + "\n").collect::<String>())
    }

    /// Candidates for the next word; none after a command that takes no names.
    fn names(&self) -> Vec<String> {
        let Some((command, rest)) = self.words.split_first() else { return Vec::new() };
        let given: Vec<&String> = rest.iter().filter(|word| !word.starts_with('-')).collect();
        let (of_network, of_port) = (OF_NETWORKS.contains(&command.as_str()), OF_PORTS.contains(&command.as_str()));
        match &given[..] {
            [] if of_network || of_port => {
                let ports = if of_port { ports(None) } else { Vec::new() };
                networks().into_iter().chain(ports).collect()
            }
            [net] if of_port || command == "capture" => ports(Some(Path::new(net.as_str()))),
            [net, ..] if command == "capture" => ports(Some(Path::new(net.as_str()))),
            _ => Vec::new(),
        }
    }
}

/// Names that a shell takes as one word as they are.
fn is_plain(name: &str) -> bool {
    name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte))
}

fn networks() -> Vec<String> {
    let mut names: Vec<String> = running::all().into_iter().map(|running| running.identity.name).collect();
    names.retain(|name| is_plain(name));
    names.sort();
    names.dedup();
    names
}

fn ports(net: Option<&Path>) -> Vec<String> {
    let net = Net { net: net.map(Into::into), ..Net::default() };
    let ports = net.client().ok().and_then(|client| client.get::<Vec<PortReport>>("/v1/ports").ok()).unwrap_or_default();
    ports.into_iter().map(|port| port.name).filter(|name| is_plain(name)).collect()
}

/// The part behind the script that clap generates: the names of running networks and of their ports.
pub(super) fn script(shell: Shell) -> &'static str {
    match shell {
        Shell::Bash => BASH,
        Shell::Zsh => ZSH,
        Shell::Fish => FISH,
        _ => "",
    }
}

const BASH: &str = r#"
_memlane_with_names() {
    _memlane "$@"
    local word=${COMP_WORDS[COMP_CWORD]}
    case $word in -*) return ;; esac
    local names
    names=$(memlane complete-names "${COMP_WORDS[@]:1:COMP_CWORD-1}" 2>/dev/null) || return 0
    COMPREPLY+=($(compgen -W "$names" -- "$word"))
}
complete -F _memlane_with_names -o nosort -o bashdefault -o default memlane 2>/dev/null ||
    complete -F _memlane_with_names -o bashdefault -o default memlane
"#;

const ZSH: &str = r#"
functions[_memlane_of_clap]=$functions[_memlane]
_memlane() {
    local -a names
    names=(${(f)"$(memlane complete-names ${words[2,CURRENT-1]} 2>/dev/null)"})
    (( $#names )) && compadd -- $names
    _memlane_of_clap "$@"
}
"#;

const FISH: &str = r#"
complete -c memlane -n "test (count (commandline -opc)) -gt 1" -a "(memlane complete-names (commandline -opc)[2..-1] 2>/dev/null)"
"#;

#[cfg(test)]
mod tests {
    use super::*;

    fn names(words: &[&str]) -> Vec<String> {
        CompleteNames { words: words.iter().map(ToString::to_string).collect() }.names()
    }

    #[test]
    fn commands_without_names_have_no_candidates() {
        for words in [&[][..], &["doctor"], &["check"], &["status", "net.toml"], &["show", "net.toml", "web"]] {
            assert_eq!(names(words), [""; 0], "{words:?}");
        }
        assert!(is_plain("web-1.a") && !is_plain("$(reboot)") && !is_plain("a b"));
    }

    #[test]
    fn every_command_with_names_exists() {
        let command = super::super::command();
        let known = |name: &&&str| command.find_subcommand(name).is_none();
        let unknown: Vec<_> = OF_NETWORKS.iter().chain(&OF_PORTS).filter(known).collect();
        assert!(unknown.is_empty(), "{unknown:?}");
    }
}
