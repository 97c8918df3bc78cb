//! The command line: arguments in, exit code out.
//!
//! Exit codes: 0 success; 1 a failure while running; 2 wrong arguments or an invalid configuration; 3 `doctor` found a problem
//! that keeps memlane from working here.

mod addresses;
mod attach;
mod capture;
mod check;
mod complete;
mod denials;
mod events;
mod evpn;
mod extcap;
mod fdb;
mod forwarder;
pub mod frames;
mod guest;
mod helper;
mod journald;
mod leases;
mod list;
mod log;
mod policy;
mod ports;
mod record;
mod recording;
mod reload;
mod replay;
mod service;
mod set;
mod signals;
mod snapshot;
mod status;
mod successor;
mod top;
mod up;
mod usage;
mod why;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use memlane_command::{Failure, keys, net, output, words};
use memlane_integrations::{cni, doctor, domain, hook, libvirt, qemu};
use memlane_virtq::ablation;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::config::document;
use crate::control;

/// The version, and a mark on builds that are not for use.
const VERSION: &str = if ablation::IS_WHOLE {
    env!("CARGO_PKG_VERSION")
} else {
    concat!(env!("CARGO_PKG_VERSION"), " (ablation: it lacks a part, for measurements only)")
};

/// The network between virtual machines that share a host.
#[derive(Debug, Parser)]
#[command(
    name = "memlane",
    version = VERSION,
    about,
    after_help = "Exit codes: 0 success, 1 failure while running, 2 wrong arguments or configuration, 3 doctor found something missing.\n\n\
                  Examples:\n  memlane up net.toml            run the network until SIGTERM or Ctrl-C\n  \
                  memlane qemu net.toml web      print QEMU arguments for a guest on port 'web'\n  \
                  memlane status net.toml        show ports, workers and counters\n  \
                  memlane set net.toml web --transmit 1Gbit   limit the transmit rate of port 'web'\n  \
                  memlane reload net.toml        apply the changed file to the running network\n\n  \
                  memlane up                     run a network without a file, called 'memlane'\n  \
                  memlane attach web             attach a port, and print QEMU arguments for its guest\n  \
                  memlane ls                     list its ports\n  \
                  memlane down                   stop it\n\n  \
                  memlane list                   list running networks\n  \
                  memlane doctor                 check this machine, with remedies"
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a network, from a file or at first without ports, until SIGTERM or Ctrl-C.
    ///
    /// Prints one line when guests can connect. Log lines go to standard error; MEMLANE_LOG=debug shows more, MEMLANE_LOG_FORMAT=json writes JSON. SIGHUP reads the
    /// file again, as `memlane reload` does. With --state, ports that were attached, detached or changed at run time are
    /// restored: the state holds the differences to the file, and where both define a port, the state wins; `memlane reload`
    /// makes the file win.
    ///
    /// With --from, the network of a snapshot runs again under another name: frozen until all guests of the snapshot run, or `memlane thaw`. It
    /// keeps no state over a restart.
    #[command(after_help = "Examples:\n  memlane up net.toml\n  memlane up --state /var/lib/memlane/state.toml\n  \
                            memlane up --from cut --as copy1")]
    Up(Box<up::Up>),
    /// List running networks: this user's, and for root those of all users.
    ///
    /// Networks are found by their control sockets in run-time folders. A network with another XDG_RUNTIME_DIR is found only
    /// where that is set.
    #[command(after_help = "Examples:\n  memlane list\n  memlane list --json | jq -r .[].control")]
    List(list::List),
    /// Stop a running network, and wait until it has ended.
    #[command(after_help = "Examples:\n  memlane down net.toml\n  memlane down")]
    Down(list::Down),
    /// Check a file without running it: every mistake with its line, and for a file in /etc/memlane the packaged unit that serves it.
    #[command(after_help = "Examples:\n  memlane check net.toml\n  memlane check --unit /etc/memlane/net.toml")]
    Check(check::Check),
    /// Print the JSON Schema of network files, or the OpenAPI document of the control socket.
    #[command(after_help = "Examples:\n  memlane schema > memlane.schema.json\n  memlane schema --api > memlane.openapi.json")]
    Schema {
        /// The OpenAPI document instead.
        #[arg(long)]
        api: bool,
    },
    /// Show ports, workers and counters of a running network.
    #[command(after_help = "Examples:\n  memlane status net.toml\n  memlane status net.toml --json | jq .ports")]
    Status(status::Status),
    /// Show ports and workers by their rates, once per interval, on the whole terminal.
    ///
    /// Keys: q quits; a, t, r, d, c, w, i and n sort by all traffic, TX, RX, drops, CPU, waiting frames, interrupts per frame and
    /// name; p shows pairs of ports; / filters by a part of names and segments; Enter opens the page of the selected port. Rates are differences of the
    /// counters that `memlane status` shows.
    #[command(after_help = "Examples:\n  memlane top net.toml\n  memlane top net.toml --once --sort drops\n  \
                      memlane top net.toml --once --json --interval 5s | jq '.ports[] | {name, \"transmit-bits-per-second\"}'")]
    Top(top::Top),
    /// Show events of a running network: ports attached and detached, front ends, quarantines, the first drop for each reason.
    ///
    /// The last 4096 events are kept.
    #[command(
        after_help = "Examples:\n  memlane events net.toml -f\n  memlane events net.toml --json | jq 'select(.port == \"web\")'"
    )]
    Events(events::Events),
    /// List the ports of a running network.
    #[command(
        after_help = "Examples:\n  memlane ls\n  memlane ls net.toml --segments\n  memlane ls net.toml --json | jq -r .[].name"
    )]
    Ls(ports::List),
    /// List the IP addresses that the switch of a running network knows, with their MAC addresses, ports and sources.
    ///
    /// Sources are the configuration, DHCP, EVPN, and claims of machines by ARP and neighbour discovery (nd). The switch answers ARP requests and neighbour
    /// solicitations for these addresses where the segment's key neighbour-suppression says so; not while an address is contended.
    #[command(
        after_help = "Examples:\n  memlane addresses net.toml\n  memlane addresses net.toml --json | jq '.[].addresses[] | select(.port == \"web\")'"
    )]
    Addresses(addresses::Addresses),
    /// List the forwarding table (FDB) of a running network: MAC addresses with their VLAN, port and age.
    #[command(
        after_help = "Examples:\n  memlane fdb net.toml\n  memlane fdb net.toml --json | jq -r '.[] | select(.port == \"web\").address'"
    )]
    Fdb(fdb::FdbCommand),
    /// List the addresses that guests of a running network were leased.
    ///
    /// Segments with a `subnet` or `subnet6` give their guests addresses and names.
    #[command(
        after_help = "Examples:\n  memlane leases net.toml\n  memlane leases net.toml --json | jq -r '.[].leases[] | .port + \" \" + .address'"
    )]
    Leases(leases::Leases),
    /// Show a port of a running network.
    #[command(
        allow_missing_positional = true,
        after_help = "Examples:\n  memlane show web\n  memlane show net.toml web --json | jq .entry"
    )]
    Show(ports::Show),
    /// Predict the outcome of a frame from a port's guest, without sending it; without a frame, diagnose the port, or all ports.
    ///
    /// Causes of the last minute come first, with their times; those that have ended follow in a line each.
    #[command(
        after_help = "Examples:\n  memlane why net.toml web --to db --packet tcp,dst=5432\n  memlane why net.toml web --to 10.0.0.2\n  \
                      memlane why net.toml web --packet 'arp who-has 10.0.0.2'\n  memlane why net.toml web --pcap guest.pcap\n  \
                      memlane why net.toml web\n  memlane why net.toml"
    )]
    Why(why::WhyCommand),
    /// List the frames that policy rules refuse: for each port the destinations, the rules, and the lines of configuration that would allow them.
    ///
    /// Of each port the last 64 destinations are kept, since the network's process began.
    #[command(after_help = "Examples:\n  memlane denials net.toml\n  memlane denials net.toml web\n  \
                      memlane denials net.toml --json | jq -r '.[].denials[].\"allowed-by\"'")]
    Denials(denials::Denials),
    /// Try the policy rules of another file on the frames of a running network.
    Policy(policy::Policy),
    /// Capture frames of a running network in the format of Wireshark (pcapng).
    ///
    /// Each port is an interface of the file. A frame is there where its guest transmits it, where a guest receives it, and where
    /// it is dropped, with the drop reason as a comment; all have the same packet id. Captures cause no backpressure: frames that
    /// a capture misses are counted in the file.
    #[command(after_help = "Examples:\n  memlane capture net.toml -w all.pcapng\n  \
                            memlane capture net.toml web -f 'udp port 53' -w - | tcpdump -nr -\n  \
                            memlane capture net.toml --drops -w drops.pcapng")]
    Capture(capture::Capture),
    /// Record the verdicts of a running network, with all that they were made of but no payload, for `memlane replay`.
    ///
    /// Without -w, starts the flight recorder: each worker keeps its last verdicts in memory. With -w, writes a file: verdicts as they are made, until
    /// Ctrl-C; with --dump, --last or --on those that the flight recorder has. The file is readable by its owner only.
    #[command(after_help = "Examples:\n  memlane record net.toml\n  memlane record net.toml -w incident.rec --last 60s\n  \
                            memlane record net.toml -w fault.rec --on port-quarantined\n  \
                            memlane record net.toml -w day.rec --size 1G\n  memlane record net.toml --stop")]
    Record(record::Record),
    /// Make the verdicts of a recording again, by the same code: all, one frame's with its grounds, or by another policy.
    ///
    /// Exit code 1: a verdict is another one than was recorded. Waiting, rate limits and link emulation are no part of a verdict.
    #[command(
        after_help = "Examples:\n  memlane replay incident.rec\n  memlane replay incident.rec --at '2026-11-28 03:12' --port web\n  \
                            memlane replay incident.rec --frame 4711\n  memlane replay incident.rec --with new.toml\n  \
                            memlane replay incident.rec -w incident.pcapng"
    )]
    Replay(replay::Replay),
    /// Freeze a running network, and write its state to a folder: frames in flight, addresses, leases, limits, the state of rules.
    ///
    /// No frame moves until `memlane thaw`, so that guests can be saved meanwhile, by --run or by hand: all that was sent before is in a guest's
    /// memory or in the folder. `memlane up --from` makes networks of it. Outside of it are tap, af-packet, xen, stream and passt ports, uplinks,
    /// and programs that they lead to. The folder is readable by its owner only.
    #[command(
        allow_missing_positional = true,
        after_help = "Examples:\n  memlane snapshot lab cut --run 'save-guest {port}' && memlane thaw lab\n  \
                      memlane snapshot net.toml /var/tmp/cut --for 5min"
    )]
    Snapshot(snapshot::SnapshotCommand),
    /// Let a frozen network go on, and tell how long it was frozen.
    #[command(after_help = "Examples:\n  memlane thaw lab\n  memlane thaw net.toml --json | jq .milliseconds")]
    Thaw(snapshot::Thaw),
    /// Show networks and ports to Wireshark and tshark as interfaces (extcap).
    ///
    /// Wireshark runs this command under the name memlane-extcap, by a link in its folder for extcap programs.
    #[command(after_help = "Example:\n  ln -s $(command -v memlane) ~/.config/wireshark/extcap/memlane-extcap")]
    Extcap(extcap::Extcap),
    /// Attach a port to a running network, and print the arguments of its guest.
    ///
    /// Options are the keys of a `[[port]]` in the file. The port exists until it is detached, the network ends (unless `memlane
    /// up` has --state). Its socket has the file's `access`, unless --access states other rights.
    #[command(
        allow_missing_positional = true,
        after_help = "Examples:\n  qemu-system-x86_64 -accel kvm $(memlane attach web --memory 2G) ...\n  \
                      memlane attach net.toml db --vhost-user /run/db.sock --segment back --print libvirt > nic.xml\n  \
                      memlane attach host --tap tap0\n  memlane attach out --passt"
    )]
    Attach(Box<attach::Attach>),
    /// Detach a port from a running network.
    #[command(
        allow_missing_positional = true,
        after_help = "Examples:\n  memlane detach web\n  memlane detach net.toml web --drain 5"
    )]
    Detach(ports::Detach),
    /// Disable a port and wait until none of its frames is in flight.
    ///
    /// Exits with 1 if frames are still in flight at the timeout. The port stays disabled until `memlane set PORT --enabled
    /// true`.
    #[command(allow_missing_positional = true, after_help = "Example:\n  memlane drain net.toml web --timeout 30")]
    Drain(ports::Drain),
    /// Change a port of a running network: its weight, rate limits, link emulation, MAC address, MTU, or whether it is enabled.
    #[command(
        allow_missing_positional = true,
        after_help = "Examples:\n  memlane set net.toml web --transmit 1Gbit,100kpps\n  memlane set web --transmit none --weight 3\n  \
                      memlane set web --mac none --enabled false"
    )]
    Set(Box<set::Set>),
    /// Apply the file to a running network; ports without a difference are not touched.
    ///
    /// Ports that differ in their limits, weight, storm, anti-spoof, addresses, allowed, may-serve, isolated, reserved, link, mac, mtu or
    /// enabled change in place; others are detached and attached again. Ports that the file does not have any more are detached; those that a command or
    /// another program attached stay, unless by --prune. A port with a guest is neither detached nor attached anew: it is named, the exit code is 1, and
    /// --force PORT does it. If settings beside the ports differ, nothing is done: only a restart changes them. A file with mistakes changes nothing, nor
    /// does one that would detach every port. Without a file, the network reads its own again.
    #[command(
        after_help = "Examples:\n  memlane reload net.toml --dry-run\n  memlane reload net.toml\n  memlane reload net.toml --force web"
    )]
    Reload(reload::Reload),
    /// Print QEMU arguments for a guest on a port.
    #[command(
        allow_missing_positional = true,
        after_help = "Example:\n  qemu-system-x86_64 -accel kvm $(memlane qemu net.toml web --memory 2G) -kernel ..."
    )]
    Qemu(guest::Qemu),
    /// Print Cloud Hypervisor's arguments for a guest on a port.
    #[command(
        allow_missing_positional = true,
        after_help = "Example:\n  cloud-hypervisor --kernel vmlinux --disk path=web.img $(memlane ch net.toml web --memory 2G)"
    )]
    Ch(guest::CloudHypervisor),
    /// Print the command that connects a virtual machine of Proxmox VE to a port.
    #[command(allow_missing_positional = true, after_help = "Example:\n  memlane pve 101 lan web | sh")]
    Pve(guest::Pve),
    /// Print User Mode Linux arguments for a guest on a port.
    #[command(allow_missing_positional = true, after_help = "Example:\n  ./linux mem=256M $(memlane uml net.toml web) ...")]
    Uml(guest::Guest),
    /// Print the libvirt interface element for a guest on a port.
    #[command(
        allow_missing_positional = true,
        after_help = "Example:\n  memlane libvirt net.toml web > nic.xml && virsh attach-device GUEST nic.xml --config"
    )]
    Libvirt(guest::Libvirt),
    /// Print the counters of a libvirt domain's ports, as `virsh domifstat` does for interfaces that the host's kernel has.
    ///
    /// Names are NETWORK.PORT. Received (rx) are the frames for the guest; drops are counted as received where the receiver's port
    /// counts them. Ports are found by the sockets in the domain's XML, which virsh prints.
    #[command(after_help = "Examples:\n  memlane libvirt-stats web\n  memlane libvirt-stats --connect qemu:///session web")]
    LibvirtStats(domain::LibvirtStats),
    /// Print FRR's configuration for a host that joins segments with other hosts by VXLAN, or for a route reflector.
    ///
    /// FRR, from the distribution's packages, exchanges MAC addresses between hosts (BGP EVPN, RFC 7432 and 8365). Its bgpd has
    /// to be enabled in /etc/frr/daemons. A TAP port connects a segment to the bridge that has the VXLAN device.
    #[command(
        after_help = "Examples:\n  memlane evpn --as 65000 --local 10.0.0.1 --peers 10.0.0.2,10.0.0.3 > /etc/frr/frr.conf\n  \
                            memlane evpn --as 65000 --local 10.0.0.9 --peers 10.0.0.1,10.0.0.2,10.0.0.3 --reflector"
    )]
    Evpn(evpn::Evpn),
    /// Check this machine, and name the remedy for each problem.
    #[command(after_help = "Examples:\n  memlane doctor\n  memlane doctor --json")]
    Doctor(doctor::Doctor),
    /// Print the completion script for a shell.
    #[command(after_help = "Example:\n  memlane completion bash > /etc/bash_completion.d/memlane")]
    Completion {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Attach the ports of a guest of libvirt or Proxmox VE before it starts, and detach them at its end: their hooks run it.
    ///
    /// A vhost-user socket /run/memlane/NETWORK.PORT.sock asks for port PORT of the network /etc/memlane/NETWORK.toml. Guests without such a socket
    /// always start. Exit code 1: the guest cannot have its port.
    #[command(
        after_help = "Examples:\n  virsh dumpxml web | memlane hook libvirt web prepare begin -\n  memlane hook proxmox 101 pre-start"
    )]
    Hook(hook::Hook),
    /// Print the names of networks and ports that may follow the words of a command line, for completion scripts.
    #[command(hide = true)]
    CompleteNames(complete::CompleteNames),
    /// Ask resolvers for DNS names outside, for the process of a network, which has no socket of the Internet.
    #[command(hide = true)]
    Forwarder(forwarder::ForwarderCommand),
    /// Open NICs and start passt for the process of a network, outside of its sandbox.
    #[command(hide = true)]
    Helper(helper::HelperCommand),
    /// Write the manual pages, one for each command, into a folder.
    #[command(hide = true)]
    Man {
        /// The folder, which has to exist.
        folder: PathBuf,
    },
}

/// The command line as clap has it, from which its reference page is generated.
pub fn command() -> clap::Command {
    Arguments::command()
}

/// Answer to `--print-capabilities`, which programs that look for vhost-user back ends ask (QEMU's docs/interop/vhost-user.json).
const CAPABILITIES: &str = "{ \"type\": \"net\" }\n";

/// Stack of the first thread that the command line needs; threads have stacks of their own.
const STACK: u64 = 1 << 20;
/// Soft limit of the stack where the hard one allows it: the usual one of Linux.
const USUAL_STACK: u64 = 8 << 20;

/// Raises the stack's limit if it is too small. The kernel heeds it whenever the stack grows.
fn raise_stack() -> Result<(), Failure> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_STACK).map_err(Failure::running)?;
    if soft >= STACK {
        return Ok(());
    }
    // Root may raise the hard limit, too.
    if setrlimit(Resource::RLIMIT_STACK, USUAL_STACK.min(hard), hard).is_ok() && USUAL_STACK.min(hard) >= STACK
        || setrlimit(Resource::RLIMIT_STACK, USUAL_STACK, USUAL_STACK).is_ok()
    {
        return Ok(());
    }
    Err(Failure::Running(format!(
        "the stack may have {} KiB, and memlane needs {}: raise the limit (ulimit -s unlimited, LimitSTACK= of a unit)",
        soft >> 10,
        STACK >> 10
    )))
}

/// Runs the command that the arguments of this process name.
pub fn main() -> ExitCode {
    if let Err(failure) = raise_stack() {
        return ExitCode::from(tell(failure));
    }
    main_with_stack()
}

#[inline(never)]
fn main_with_stack() -> ExitCode {
    let given: Vec<_> = std::env::args_os().collect();
    if cni::is_plugin(&given) {
        return ExitCode::from(cni::main());
    }
    let given = extcap::arguments(given);
    let arguments: Vec<String> = given.iter().map(|argument| argument.to_string_lossy().into_owned()).collect();
    if let [_, option] = &arguments[..]
        && option == "--print-capabilities"
    {
        return ExitCode::from(output::print(CAPABILITIES).map_or_else(tell, |()| 0));
    }
    let result = match Arguments::try_parse_from(&given) {
        Ok(arguments) => run(arguments.command),
        Err(error) => match usage::told(&error, &arguments) {
            Some(text) => Err(Failure::Configuration(text)),
            None => error.exit(),
        },
    };
    ExitCode::from(result.map_or_else(tell, |()| 0))
}

/// Prints why a command failed; returns its exit code.
fn tell(failure: Failure) -> u8 {
    let (code, text) = match failure {
        Failure::Running(text) => (1, text),
        Failure::Configuration(text) => (2, text),
        Failure::Lacking => (3, String::new()),
    };
    if !text.is_empty() {
        // If standard error is closed, the exit code still reports the failure.
        let _ = writeln!(std::io::stderr(), "memlane: {text}");
    }
    code
}

fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Up(up) => up.run(),
        Command::Check(check) => check.run(),
        Command::Schema { api: false } => output::print_json(&document::schema()),
        Command::Schema { api: true } => output::print_json(&control::document()),
        Command::List(list) => list.run(),
        Command::Down(down) => down.run(),
        Command::Status(status) => status.run(),
        Command::Top(top) => top.run(),
        Command::Events(events) => events.run(),
        Command::Why(why) => why.run(),
        Command::Capture(capture) => capture.run(),
        Command::Record(record) => record.run(),
        Command::Replay(replay) => replay.run(),
        Command::Snapshot(snapshot) => snapshot.run(),
        Command::Thaw(thaw) => thaw.run(),
        Command::Extcap(extcap) => extcap.run(),
        Command::Ls(list) => list.run(),
        Command::Addresses(addresses) => addresses.run(),
        Command::Fdb(fdb) => fdb.run(),
        Command::Leases(leases) => leases.run(),
        Command::Denials(denials) => denials.run(),
        Command::Policy(policy) => policy.run(),
        Command::Show(show) => show.run(),
        Command::Attach(attach) => attach.run(),
        Command::Detach(detach) => detach.run(),
        Command::Drain(drain) => drain.run(),
        Command::Set(set) => set.run(),
        Command::Reload(reload) => reload.run(),
        Command::Qemu(qemu) => qemu.run(),
        Command::Ch(guest) => guest.run(),
        Command::Pve(guest) => guest.run(),
        Command::Uml(port) => port.print_uml(),
        Command::Libvirt(libvirt) => libvirt.run(),
        Command::LibvirtStats(stats) => stats.run(),
        Command::Evpn(evpn) => evpn.run(),
        Command::Doctor(doctor) => doctor.run(),
        Command::Completion { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut self::command(), "memlane", &mut script);
            output::print(&format!("{}{}", String::from_utf8_lossy(&script), complete::script(shell)))
        }
        Command::Hook(hook) => hook.run(),
        Command::CompleteNames(names) => names.run(),
        Command::Helper(helper) => helper.run(),
        Command::Forwarder(forwarder) => forwarder.run(),
        Command::Man { folder } => clap_mangen::generate_to(self::command(), folder).map_err(Failure::running),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Arguments::command().debug_assert();
    }
}
