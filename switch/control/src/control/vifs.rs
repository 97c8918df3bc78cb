//! Ports for Xen vifs as they are created (configuration key `xen-vifs`): a thread that receives news from the xenstore watcher,
//! and attaches and detaches ports in the same way as the control socket.

use std::sync::Arc;
use std::sync::mpsc::channel;

use serde_json::{Value, json};

use super::managed::Managed;
use super::problem::Refusal;
use crate::config::{Attacher, PortOrigin};
use crate::daemon::StartError;
use memlane_backends::xen::{Newcomer, News};

/// Attaches a port for each new Xen vif, until the network ends.
///
/// # Errors
/// Xen is not available, or xen-netback is loaded.
pub fn take(managed: &Arc<Managed>) -> Result<(), Refusal> {
    let (sender, news) = channel();
    managed.ask(|daemon| daemon.tell_of_vifs(sender))??;
    let managed = Arc::downgrade(managed);
    let started = std::thread::Builder::new().name("xen-vifs".into()).stack_size(256 * 1024).spawn(move || {
        // The xenstore watcher, which ends with the network, holds the sender.
        for news in news {
            let Some(managed) = managed.upgrade() else { return };
            if let Err(refusal) = act(&managed, &news) {
                tracing::error!(
                    target: "memlane::control::vifs",
                    ?news, "a Xen guest's interface is not served: {}", refusal.problem.error
                );
            }
        }
    });
    started.map(drop).map_err(|error| StartError::from(error).into())
}

/// Name of a vif's port: the device name that xen-netback would use.
fn name(domain: u16, vif: u16) -> String {
    format!("vif{domain}.{vif}")
}

fn act(managed: &Managed, news: &News) -> Result<(), Refusal> {
    match news {
        News::Came(newcomer) => {
            let origin = PortOrigin::labelled(Attacher::Xen, &newcomer.domain.to_string());
            managed.attach(&entry(newcomer), origin).map(drop)
        }
        // The operator may have detached it.
        News::Gone(domain, vif) => managed.detach(&name(*domain, *vif)).map(drop).or(Ok(())),
    }
}

/// The port as an entry of the file.
fn entry(newcomer: &Newcomer) -> Value {
    let Newcomer { domain, vif, segment, mac } = newcomer;
    json!({
        "name": name(*domain, *vif),
        "xen": domain.to_string(),
        "vif": vif,
        "segment": segment,
        "mac": mac.map(|mac| mac.to_string()),
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::PortConfig;
    use crate::config::kinds::Xen;

    #[test]
    fn the_toolstacks_words_make_a_port() {
        let mac = "00:16:3e:00:00:01".parse().ok();
        let newcomer = Newcomer { domain: 3, vif: 1, segment: Some("lan".into()), mac };
        let port = PortConfig::from_json(&entry(&newcomer), Path::new("")).unwrap();
        assert_eq!((port.name.as_str(), port.segment.as_str(), port.settings.mac), ("vif3.1", "lan", mac));
        assert_eq!(port.kind, Xen { domain: "3".into(), vif: 1 }.into());
        let bare = Newcomer { segment: None, mac: None, ..newcomer };
        assert_eq!(PortConfig::from_json(&entry(&bare), Path::new("")).unwrap().segment, "lan");
    }
}
