//! `memlane attach`: adds a port to a running network, and prints the arguments that its guest needs.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use hyper::Method;
use serde_json::{Map, Value, json};

use super::guest::{GuestEndpoint, QemuOptions};
use super::keys::{Changeable, Keys};
use super::net::PortOfNet;
use super::{Failure, output};
use crate::config::{PortConfig, PortOrigin};
use crate::control::PortView;
use crate::control::routes::{MAY_EXIST, ORIGIN};
use memlane_backends::stream::checksums::Checksums;

/// Arguments of `memlane attach`.
#[derive(Debug, Args)]
pub(super) struct Attach {
    #[command(flatten)]
    port: PortOfNet,
    #[command(flatten)]
    kind: Kind,
    #[command(flatten)]
    options: PortOptions,
    /// Detach the port 3 s after its front end has left, unless one has connected meanwhile; for vhost-user ports at which memlane listens.
    #[arg(long)]
    ephemeral: bool,
    /// The port may be attached already, with the same keys: nothing changes then.
    #[arg(long)]
    may_exist: bool,
    /// Print the guest's arguments for this program; by default for QEMU, if it is a vhost-user port.
    #[arg(long, value_name = "FOR")]
    print: Option<Print>,
    #[command(flatten)]
    qemu: QemuOptions,
    /// Print the port as JSON instead.
    #[arg(long, conflicts_with = "print")]
    json: bool,
}

/// Kind of the port; by default vhost-user, with a socket beside the control socket.
#[derive(Debug, Args)]
#[group(multiple = false)]
struct Which {
    /// Path of the vhost-user socket; memlane listens there.
    #[arg(long, value_name = "PATH")]
    vhost_user: Option<PathBuf>,
    /// Name of a TAP device, which is made if it is not there.
    #[arg(long, value_name = "NAME")]
    tap: Option<String>,
    /// Name of an existing interface, as the host's end of a container's veth pair; by AF_PACKET.
    #[arg(long, value_name = "NAME")]
    af_packet: Option<String>,
    /// Xen domain of the guest, by name or number; the port serves one of its network interfaces (vifs).
    #[arg(long, value_name = "DOMAIN")]
    xen: Option<String>,
    /// Path of a Unix stream socket that carries length-prefixed Ethernet frames (QEMU -netdev stream).
    #[arg(long, value_name = "PATH")]
    stream: Option<PathBuf>,
    /// passt(1): access to the host's network without root; with arguments for passt as --passt="--tcp-ports 8080:80".
    #[arg(long, value_name = "ARGUMENTS", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    passt: Option<String>,
    /// No guest: the port accepts every frame and sends none.
    #[arg(long)]
    null: bool,
    /// No guest: the port sends each frame for its MAC address back to the source.
    #[arg(long)]
    loopback: bool,
}

#[derive(Debug, Args)]
struct Kind {
    #[command(flatten)]
    which: Which,
    /// Connect to the socket instead of listening, and retry until the other side listens.
    #[arg(long)]
    connect: bool,
    /// Compute the TCP and UDP checksums of frames from the stream, for a sender that relies on checksum offload.
    #[arg(long, requires = "stream")]
    complete_checksums: bool,
    /// Network namespace of the TAP device or interface.
    #[arg(long, value_name = "NAME")]
    netns: Option<String>,
    /// Number of the Xen domain's interface, from 0 on.
    #[arg(long, value_name = "NUMBER")]
    vif: Option<String>,
    /// Access rights of the socket, as in the file: '{ group = "kvm" }'.
    #[arg(long)]
    access: Option<String>,
    /// A second front end at the socket: "refuse", or "replace" for one that takes over from the first.
    #[arg(long, value_name = "FATE")]
    second: Option<String>,
}

/// Other keys of a `[[port]]` in the file.
#[derive(Debug, Args)]
struct PortOptions {
    /// Segment of the port, created with its first port and removed with its last; by default "lan".
    #[arg(long)]
    segment: Option<String>,
    /// Queue pairs, where the front end does not set their number.
    #[arg(long, value_name = "NUMBER")]
    queues: Option<String>,
    /// VLAN of frames without a tag: of an access port its only one, with --trunk the native VLAN.
    #[arg(long, value_name = "NUMBER")]
    vlan: Option<String>,
    /// VLANs that the port carries with tags, as in the file: '[10, "100-199"]'.
    #[arg(long, value_name = "LIST")]
    trunk: Option<String>,
    /// Receive offloads: whether the guest may receive GSO frames and partial checksums, true or false.
    #[arg(long, value_name = "BOOL", conflicts_with = "no_receive_offloads")]
    receive_offloads: Option<String>,
    /// As --receive-offloads false.
    #[arg(long)]
    no_receive_offloads: bool,
    /// Whether the guest's memory is filled by its monitor while it runs (lazy restore, postcopy), true or false.
    #[arg(long, value_name = "BOOL")]
    lazy_memory: Option<String>,
    #[command(flatten)]
    changeable: Changeable,
}

/// The program that the printed arguments are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Print {
    Qemu,
    Libvirt,
    Uml,
    Nothing,
}

impl Attach {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let client = self.port.net()?.client()?;
        let mut entry = self.entry(client.path())?;
        if self.ephemeral {
            let origin = PortOrigin { ephemeral: true, ..PortOrigin::COMMAND };
            entry.insert(ORIGIN.into(), serde_json::to_value(origin).map_err(Failure::running)?);
        }
        if self.may_exist {
            entry.insert(MAY_EXIST.into(), json!(true));
        }
        let view: PortView = client.ask(Method::POST, "/v1/ports", Some(&entry))?;
        if self.json {
            return output::print_json(&view);
        }
        let stated = serde_json::to_value(&view.entry).map_err(Failure::running)?;
        let port = PortConfig::from_json(&stated, Path::new(""))?;
        let print = match (self.print, port.kind.front_ends()) {
            (Some(Print::Nothing), _) => return Ok(()),
            (Some(print), _) => print,
            (None, Some(_)) => Print::Qemu,
            (None, None) => return output::print(&format!("{}: attached\n", port.name)),
        };
        let report = self.port.net()?.report()?;
        let endpoint = GuestEndpoint::of(&port, &report.name)?;
        output::print(&match print {
            Print::Qemu => endpoint.qemu(&self.qemu, self.qemu.version.find()),
            Print::Libvirt => endpoint.libvirt(self.qemu.version.find()),
            Print::Uml => endpoint.uml()?,
            Print::Nothing => String::new(),
        })
    }

    /// The port as an entry of the file; `control` is the control socket of its network.
    fn entry(&self, control: &Path) -> Result<Map<String, Value>, Failure> {
        let Self { port, kind: Kind { which, connect, complete_checksums, netns, vif, access, second }, options, .. } = self;
        let mut keys = Keys::default();
        let mut state = |key: &str, value: Value| keys.state(key, value);
        state("name", json!(port.port));
        let named = which.tap.is_some()
            || which.af_packet.is_some()
            || which.xen.is_some()
            || which.stream.is_some()
            || which.passt.is_some();
        let other = named || which.null || which.loopback;
        let usual = || beside(control, &port.port);
        let socket = which.vhost_user.clone().or_else(|| (!other).then(usual));
        state("vhost-user", json!(socket.as_deref().map(absolute).transpose()?));
        state("stream", json!(which.stream.as_deref().map(absolute).transpose()?));
        state("checksums", json!(complete_checksums.then_some(Checksums::Complete)));
        state("tap", json!(which.tap));
        state("af-packet", json!(which.af_packet));
        state("netns", json!(netns));
        state("xen", json!(which.xen));
        state("passt", which.passt.as_deref().map_or(Value::Null, passt));
        state("null", yes(which.null));
        state("loopback", yes(which.loopback));
        state("connect", yes(*connect));
        state("segment", json!(options.segment));
        state("receive-offloads", if options.no_receive_offloads { json!(false) } else { Value::Null });
        let written = [
            ("vif", vif),
            ("access", access),
            ("second", second),
            ("queues", &options.queues),
            ("receive-offloads", &options.receive_offloads),
            ("lazy-memory", &options.lazy_memory),
            ("vlan", &options.vlan),
            ("trunk", &options.trunk),
        ];
        written.into_iter().for_each(|(key, text)| keys.written(key, text.as_deref()));
        options.changeable.state(&mut keys);
        keys.checked()
    }
}

/// The socket of a port without a configured path, beside the control socket. The network checks the port's name.
fn beside(control: &Path, port: &str) -> PathBuf {
    let mut path = control.with_extension("").into_os_string();
    path.push(format!(".{port}.sock"));
    path.into()
}

/// Relative paths are relative to the working directory, not to the network's file.
fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(path).map_err(|error| Failure::Configuration(format!("{}: {error}", path.display())))
}

fn passt(arguments: &str) -> Value {
    let arguments: Vec<&str> = arguments.split_whitespace().collect();
    if arguments.is_empty() { json!(true) } else { json!(arguments) }
}

fn yes(flag: bool) -> Value {
    if flag { json!(true) } else { Value::Null }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::kinds::{AfPacket, Loopback, Null, Passt, PortKind, Stream, Tap, VhostUser, Xen};
    use clap::Parser;

    #[derive(Debug, Parser)]
    #[command(allow_missing_positional = true)]
    struct Line {
        #[command(flatten)]
        attach: Attach,
    }

    fn port(line: &str) -> PortConfig {
        let words = std::iter::once("attach").chain(line.split_whitespace());
        let entry = Line::parse_from(words).attach.entry(Path::new("/run/memlane/net.control")).unwrap();
        PortConfig::from_json(&Value::Object(entry), Path::new("")).unwrap()
    }

    #[test]
    fn the_command_line_says_what_a_file_would() {
        let all = "net.toml web --vhost-user /run/web.sock --connect --segment back --mac 02:00:00:00:00:01 --mtu 1400 --queues 2 --weight 3 \
                   --transmit 1Gbit,7pps --receive 9pps --storm 0 --anti-spoof mac --vlan 10 --trunk [20] --isolated true --no-receive-offloads \
                   --lazy-memory true --disabled";
        let file = r#"
            [[port]]
            name = "web"
            vhost-user = "/run/web.sock"
            connect = true
            segment = "back"
            mac = "02:00:00:00:00:01"
            mtu = 1400
            queues = 2
            weight = 3
            transmit = { rate = "1Gbit", packets = 7 }
            receive = { packets = 9 }
            storm = 0
            anti-spoof = "mac"
            vlan = 10
            trunk = [20]
            isolated = true
            receive-offloads = false
            lazy-memory = true
            enabled = false
        "#;
        assert_eq!(port(all), crate::config::Config::parse(file, "net").unwrap().ports[0]);
    }

    #[test]
    fn every_kind_can_be_asked_for() {
        let stream = |checksums| -> PortKind { Stream { path: "/run/a.sock".into(), connect: false, checksums }.into() };
        for (words, kind) in [
            ("--tap tap0 --netns inner", Tap { name: "tap0".into(), netns: Some("inner".into()) }.into()),
            ("--af-packet veth-web", AfPacket { name: "veth-web".into(), netns: None }.into()),
            ("--xen web --vif 1", Xen { domain: "web".into(), vif: 1 }.into()),
            ("--stream /run/a.sock", stream(Checksums::default())),
            ("--stream /run/a.sock --complete-checksums", stream(Checksums::Complete)),
            ("--passt", Passt { arguments: Vec::new() }.into()),
            ("--null", Null.into()),
            ("--loopback", Loopback.into()),
            ("", VhostUser { path: "/run/memlane/net.web.sock".into(), connect: false }.into()),
        ] {
            assert_eq!(port(&format!("web {words}")).kind, kind, "{words}");
        }
        assert!(Line::try_parse_from(["attach", "web", "--null", "--loopback"]).is_err());
    }
}
