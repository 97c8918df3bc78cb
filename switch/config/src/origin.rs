//! The origin of a port: the network's file, or the program that attached it.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

const LONGEST: usize = 256;

/// The origin of a port. A reload touches ports of the file alone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct PortOrigin {
    /// The attacher.
    pub by: Attacher,
    /// The attacher's label: the domain of libvirt, the number of a virtual machine of Proxmox VE, the container of CNI.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub label: Option<String>,
    /// Whether the port is detached 3 s after its front end has left, unless one has connected meanwhile; for vhost-user ports at which
    /// memlane listens.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub ephemeral: bool,
}

/// The program that attached a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Attacher {
    /// The network's file.
    #[default]
    File,
    /// A command, or another program at the control socket.
    Command,
    /// The hook of libvirt.
    Libvirt,
    /// The hook script of Proxmox VE.
    Proxmox,
    /// The CNI plugin.
    Cni,
    /// The network itself, for the vif of a Xen guest (key `xen-vifs`).
    Xen,
}

impl PortOrigin {
    /// A port attached by a command.
    pub const COMMAND: Self = Self { by: Attacher::Command, label: None, ephemeral: false };

    /// A port attached by `by` for the guest called `label`.
    pub fn labelled(by: Attacher, label: &str) -> Self {
        Self { by, label: Some(label.into()), ephemeral: false }
    }

    /// Whether the network's file has the port.
    pub fn is_file(&self) -> bool {
        self.by == Attacher::File
    }

    /// The key of this origin that a request may not state, and why, if so.
    pub fn mistake(&self) -> Option<(String, String)> {
        if self.is_file() {
            let text = "by is \"file\", the origin of ports of the network's file; state the program that attaches, as \"command\"";
            return Some(("origin.by".into(), text.into()));
        }
        let label = self.label.as_deref().unwrap_or_default();
        let is_bad = label.len() > LONGEST || label.contains(char::is_control);
        is_bad.then(|| ("origin.label".into(), format!("label must have at most {LONGEST} bytes, and no control characters")))
    }
}

impl fmt::Display for PortOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by = match self.by {
            Attacher::File => "file",
            Attacher::Command => "command",
            Attacher::Libvirt => "libvirt",
            Attacher::Proxmox => "proxmox",
            Attacher::Cni => "cni",
            Attacher::Xen => "xen",
        };
        f.write_str(by)?;
        self.label.iter().try_for_each(|label| write!(f, " {label}"))?;
        f.write_str(if self.ephemeral { " (ephemeral)" } else { "" })
    }
}
