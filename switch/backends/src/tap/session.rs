//! Sessions of a TAP port: each lasts from the creation of the device until another program deletes it.
//!
//! Deleting a device wakes its reader before reads begin to fail, so the worker may miss it. The session thread hears of it by
//! netlink notifications (rtnetlink(7)).

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use vmm_sys_util::epoll::EventSet;

use super::device::{Tap, TapSettings};
use crate::netlink::{LINKS, Netlink};
use crate::network::Network;
use crate::port::{Port, PortState};
use crate::session::{Backoff, Session, Watch, Woken};

/// First and longest pause before a device is created again.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(60));
/// Interval at which the device is checked where netlink is not available.
const LOOK: Duration = Duration::from_secs(1);

/// Serves `port` by `tap`. A session thread watches the device and, whenever it is deleted, creates another of the same
/// `settings`.
///
/// # Errors
/// The kernel refuses a thread or a descriptor.
pub fn run(network: Arc<Network>, port: Arc<Port>, settings: TapSettings, tap: Tap) -> io::Result<(Session, PresentTap)> {
    let mut device = begin(&network, &port, tap)?;
    let present = PresentTap(Arc::new(Mutex::new(Some(Arc::clone(&device)))));
    let shown = present.clone();
    let session = Session::start(format!("port-{}", port.id.0), move |watch| {
        let mut backoff = Backoff::new(PAUSE.0, PAUSE.1);
        let mut made = 0;
        loop {
            let begun = Instant::now();
            if wait_until_gone(&device, &settings, &watch) == Woken::Quit {
                return;
            }
            shown.show(None);
            network.stop_port(&port);
            port.set_state(PortState::Waiting);
            let Some(anew) = make_anew(&network, &port, &settings, &watch, (&mut backoff, begun)) else { return };
            device = anew;
            shown.show(Some(Arc::clone(&device)));
            made += 1;
            port.set_trouble(made, told_anew(&settings, made));
        }
    })?;
    Ok((session, present))
}

/// The device of a TAP port at present, for a takeover.
#[derive(Clone, Debug)]
pub struct PresentTap(Arc<Mutex<Option<Arc<File>>>>);

impl PresentTap {
    fn show(&self, device: Option<Arc<File>>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = device;
    }

    /// A copy of its descriptor; `None` while it is deleted.
    ///
    /// # Errors
    /// The kernel refuses a descriptor.
    pub fn copy(&self) -> io::Result<Option<OwnedFd>> {
        let device = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        device.as_ref().map(|device| device.as_fd().try_clone_to_owned()).transpose()
    }
}

/// Has a worker serve the port by `tap`; returns another descriptor of the device.
fn begin(network: &Arc<Network>, port: &Arc<Port>, tap: Tap) -> io::Result<Arc<File>> {
    let device = Arc::new(tap.file.try_clone()?);
    port.begin_session();
    network.serve(port, tap)?;
    Ok(device)
}

fn wait_until_gone(device: &File, settings: &TapSettings, watch: &Watch) -> Woken {
    // Subscribe before the check: a deletion after the check is then reported.
    let mut news = Netlink::listen(settings.netns.as_deref(), &[LINKS]).ok();
    while !Tap::is_gone(device) {
        let woken = match &news {
            Some(news) => watch.wait_for(news.as_fd().as_raw_fd(), EventSet::IN),
            None => watch.wait(Some(LOOK)),
        };
        if woken == Woken::Quit {
            return Woken::Quit;
        }
        // The messages are not examined: any of them, a lost one included, leads to another check of the device.
        if news.as_mut().is_some_and(|news| news.news().is_err()) {
            news = None;
        }
    }
    Woken::Otherwise
}

/// Creates the device again as soon as that succeeds; `None` if the thread is to end. The previous device existed since `begun`.
fn make_anew(
    network: &Arc<Network>,
    port: &Arc<Port>,
    settings: &TapSettings,
    watch: &Watch,
    (backoff, begun): (&mut Backoff, Instant),
) -> Option<Arc<File>> {
    let mut lasted = begun.elapsed();
    loop {
        let pause = backoff.after(lasted);
        lasted = Duration::ZERO;
        if watch.wait(Some(pause)) == Woken::Quit {
            return None;
        }
        let made = Tap::open(settings).map_err(|error| error.to_string());
        match made.and_then(|tap| begin(network, port, tap).map_err(|error| error.to_string())) {
            Ok(device) => return Some(device),
            Err(cause) => port.set_trouble(
                backoff.failures,
                format!(
                    "its TAP device {} was deleted, and cannot be created again ({} tries): {cause}",
                    settings.name, backoff.failures
                ),
            ),
        }
    }
}

fn told_anew(settings: &TapSettings, times: u32) -> String {
    let (name, times) = (&settings.name, if times == 1 { "once".to_owned() } else { format!("{times} times") });
    format!(
        "its TAP device {name} was deleted by another program and created again, {times}: set addresses, routes and bridge of {name} again, and find the \
         program"
    )
}
