//! Sessions: a TAP's device from the moment it is there until another program deletes it, again and again.
//!
//! Deleting a device wakes its reader before reading fails, so the worker may not notice. The kernel tells of it (rtnetlink(7)).

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use vmm_sys_util::epoll::EventSet;

use super::device::{Tap, TapSettings};
use crate::netlink::{LINKS, Netlink};
use crate::network::Network;
use crate::port::{Port, State};
use crate::session::{Backoff, Session, Watch, Woken};

/// Pause before a device is made anew, at first and at most.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(60));
/// How often it is looked after a device where the kernel does not tell.
const LOOK: Duration = Duration::from_secs(1);

/// Serves `port` by `tap`, and by another device of the same `settings` whenever it is deleted, watched over by a thread of its own.
///
/// # Errors
/// The kernel refuses a thread or a descriptor.
pub fn run(network: Arc<Network>, port: Arc<Port>, settings: TapSettings, tap: Tap) -> io::Result<Session> {
    let mut device = begin(&network, &port, tap)?;
    Session::start(format!("port-{}", port.id.0), move |watch| {
        let mut backoff = Backoff::new(PAUSE.0, PAUSE.1);
        let mut made = 0;
        loop {
            let begun = Instant::now();
            if wait_until_gone(&device, &settings, &watch) == Woken::Quit {
                return;
            }
            network.stop_port(&port);
            port.set_state(State::Waiting);
            let Some(anew) = make_anew(&network, &port, &settings, &watch, (&mut backoff, begun)) else { return };
            device = anew;
            made += 1;
            port.set_trouble(made, told_anew(&settings, made));
        }
    })
}

/// Has a worker serve the port by `tap`; returns a descriptor of the device.
fn begin(network: &Arc<Network>, port: &Arc<Port>, tap: Tap) -> io::Result<File> {
    let device = tap.file.try_clone()?;
    port.begin_session();
    network.serve(port, tap)?;
    Ok(device)
}

fn wait_until_gone(device: &File, settings: &TapSettings, watch: &Watch) -> Woken {
    // Listening first: what happens after the look is news.
    let mut news = Netlink::listen(settings.netns.as_deref(), &[LINKS]).ok();
    while !Tap::is_gone(device) {
        let woken = match &news {
            Some(news) => watch.wait_for(news.as_fd().as_raw_fd(), EventSet::IN),
            None => watch.wait(Some(LOOK)),
        };
        if woken == Woken::Quit {
            return Woken::Quit;
        }
        // What it says matters less than that something has changed. Lost news is news.
        if news.as_mut().is_some_and(|news| news.news().is_err()) {
            news = None;
        }
    }
    Woken::Otherwise
}

/// Makes the device anew as soon as that can be; `None` if the thread is to end. The last one was there from `begun`.
fn make_anew(
    network: &Arc<Network>,
    port: &Arc<Port>,
    settings: &TapSettings,
    watch: &Watch,
    (backoff, begun): (&mut Backoff, Instant),
) -> Option<File> {
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
                    "its TAP device {} was deleted, and cannot be made anew ({} tries): {cause}",
                    settings.name, backoff.failures
                ),
            ),
        }
    }
}

fn told_anew(settings: &TapSettings, times: u32) -> String {
    let (name, times) = (&settings.name, if times == 1 { "once".to_owned() } else { format!("{times} times") });
    format!(
        "its TAP device {name} was deleted by another program, and made anew, {times}: set addresses, routes and bridge of {name} again, and find what \
         deletes it"
    )
}
