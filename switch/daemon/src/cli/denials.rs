//! `memlane denials`: frames that policy rules refuse, with the lines of configuration that would allow them.

use std::path::PathBuf;

use clap::Args;
use memlane_model::denials::{ListedDenial, PortDenials};

use super::net::{Net, PortOfNet, Socket};
use super::{Failure, output};
use crate::quantity::counted;

/// Arguments of `memlane denials`.
#[derive(Debug, Args)]
pub(super) struct Denials {
    /// The network: its file, or its name while it runs; by default the network "memlane", which `memlane up` runs without a file, or else the
    /// only one that runs.
    #[arg(value_name = "NET")]
    first: Option<String>,
    /// Name of the port that sends the frames; without one, all ports with refused frames.
    #[arg(value_name = "PORT")]
    second: Option<String>,
    #[command(flatten)]
    socket: Socket,
    /// As JSON.
    #[arg(long)]
    json: bool,
}

impl Denials {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let ports = self.ports()?;
        output::print_either(self.json, &ports, || text(&ports, "no frame was refused by a policy rule\n"))
    }

    fn ports(&self) -> Result<Vec<PortDenials>, Failure> {
        if let Some(port) = PortOfNet::of_arguments((self.first.as_ref(), self.second.as_ref()), &self.socket, false) {
            return Ok(vec![port.net()?.client()?.get(&port.uri("/denials"))?]);
        }
        let net = Net { net: self.first.as_ref().map(PathBuf::from), socket: self.socket.clone() };
        Ok(net.client()?.get("/v1/denials")?)
    }
}

/// Refused frames of `ports` in words, or `none`.
pub(super) fn text(ports: &[PortDenials], none: &str) -> String {
    let refused = ports.iter().filter(|port| !port.denials.is_empty() || port.unlisted > 0);
    let text: String = refused.map(of_port).collect();
    if text.is_empty() { none.into() } else { text }
}

fn of_port(port: &PortDenials) -> String {
    let labels: String = port.labels.iter().map(|(key, value)| format!(" {key}={value}")).collect();
    let denials: String = port.denials.iter().map(of_denial).collect();
    let unlisted = match port.unlisted {
        0 => String::new(),
        frames => format!("  {} of further destinations\n", counted(frames, "frame")),
    };
    format!("{}{}\n{denials}{unlisted}", output::shown(&port.port), output::shown(&labels))
}

fn of_denial(listed: &ListedDenial) -> String {
    let ListedDenial { denial, age } = listed;
    let (frames, destination) = (denial.frames, denial.destination_in_words());
    let to = if denial.flooded { format!("the segment, as {}", denial.to) } else { denial.to.clone() };
    let passed = if denial.audited { "passed, would be refused, " } else { "" };
    let head = match &denial.name {
        Some(_) => format!("  {}, {destination}, last {age} s ago", counted(frames, "question")),
        None => format!("  {} to {to}, {passed}destination {destination}, last {age} s ago", counted(frames, "frame")),
    };
    let lines = [head, format!("    by {}", denial.rule), format!("    allowed by {}", denial.allowed_by)];
    lines.iter().map(|line| output::shown(line) + "\n").collect()
}

#[cfg(test)]
mod tests {
    use memlane_model::denials::Denial;
    use memlane_model::policy::Protocol;

    use super::*;

    #[test]
    fn each_denial_is_shown_with_its_rule_and_the_line_that_would_allow_it() {
        let denial = Denial {
            to: "router".into(),
            destination: Some("192.0.2.7".into()),
            protocol: Some(Protocol::TCP),
            destination_port: Some(443),
            rule: "[[policy]] default = \"deny\" (in line 3)".into(),
            allowed_by: "[[policy]] from = \"box\" action = \"allow\"".into(),
            frames: 7,
            ..Denial::default()
        };
        let asked = Denial {
            to: String::new(),
            name: Some("api.example.org".into()),
            protocol: None,
            destination_port: None,
            ..denial.clone()
        };
        let port = PortDenials {
            port: "box".into(),
            labels: [("task".to_owned(), "4\u{1b}2".to_owned())].into(),
            denials: vec![ListedDenial { denial, age: 3 }, ListedDenial { denial: asked, age: 4 }],
            unlisted: 1,
        };
        let told = "box task=4?2\n  7 frames to router, destination 192.0.2.7 tcp port 443, last 3 s ago\n    \
                    by [[policy]] default = \"deny\" (in line 3)\n    allowed by [[policy]] from = \"box\" action = \"allow\"\n  \
                    7 questions, name api.example.org, last 4 s ago\n    \
                    by [[policy]] default = \"deny\" (in line 3)\n    allowed by [[policy]] from = \"box\" action = \"allow\"\n  \
                    1 frame of further destinations\n";
        assert_eq!(text(&[PortDenials::default(), port.clone()], ""), told);
        assert_eq!(text(&[], "none\n"), "none\n");
        let mut audited = port;
        audited.denials[0].denial.audited = true;
        assert!(text(&[audited], "").contains("7 frames to router, passed, would be refused, destination 192.0.2.7"));
    }
}
