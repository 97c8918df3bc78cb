//! The Xen layer on the kernel's devices: `/dev/xen/gntdev`, `/dev/xen/gntalloc`, `/dev/xen/evtchn`.

#![expect(clippy::expect_used, reason = "the page is there until this is dropped")]

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use thiserror::Error;

use super::layer::{Channel, Domain, GrantCopy, Layer, Mapped, OwnPage};
use crate::memory::{Granted, SharedPage};
use crate::system::xen;

/// Why Xen cannot be used here.
#[derive(Debug, Error)]
pub enum XenError {
    /// xen-netback, the kernel's own back end, is loaded and would take every interface.
    #[error(
        "the kernel module xen-netback is loaded and takes all guests' interfaces. \
         Keep it away: echo 'blacklist xen-netback' > /etc/modprobe.d/memlane.conf, and rmmod xen-netback or start the host anew"
    )]
    Netback,
    /// A device cannot be opened.
    #[error(
        "{path} cannot be opened: {cause}. Run memlane as root in dom0 or a driver domain, with the module loaded: modprobe {module}"
    )]
    Device {
        /// The device.
        path: &'static str,
        /// The error of open(2).
        cause: io::Error,
        /// The kernel module that creates the device.
        module: &'static str,
    },
    /// xenstored does not answer.
    #[error(
        "xenstore cannot be reached: {0}. Start xenstored (systemctl start xenstored), and run memlane as root in dom0 or a driver domain"
    )]
    Store(io::Error),
    /// Another error of the kernel.
    #[error("memlane cannot serve Xen guests here: {0}")]
    System(#[from] io::Error),
}

const GNTDEV: (&str, &str) = ("/dev/xen/gntdev", "xen-gntdev");
const GNTALLOC: (&str, &str) = ("/dev/xen/gntalloc", "xen-gntalloc");
const EVTCHN: (&str, &str) = ("/dev/xen/evtchn", "xen-evtchn");

/// Opens everything that a Xen back end needs, to find errors early. Outside of Xen, nothing can be opened.
///
/// # Errors
/// The first [`XenError`].
pub fn probe() -> Result<(), XenError> {
    if is_netback_loaded() {
        return Err(XenError::Netback);
    }
    [GNTDEV, GNTALLOC, EVTCHN].into_iter().try_for_each(|device| open(device).map(drop))
}

/// Whether this kernel runs under Xen.
pub fn is_there() -> bool {
    std::fs::read_to_string("/sys/hypervisor/type").is_ok_and(|kind| kind.trim() == "xen")
}

fn is_netback_loaded() -> bool {
    // Built into the kernel, xen-netback has a driver but perhaps no module.
    Path::new("/sys/module/xen_netback").exists() || Path::new("/sys/bus/xen-backend/drivers/vif").exists()
}

/// Limit of pages that all programs together may grant by gntalloc: the module's default of 1024 is too low for twenty
/// interfaces.
const OWN_PAGES: u32 = 1 << 16;
const OWN_PAGES_PARAMETER: &str = "/sys/module/xen_gntalloc/parameters/limit";

/// Raises gntalloc's limit of granted pages, if it is lower. If that is refused, the log says so, and so does the first interface
/// without pages.
fn allow_own_pages() {
    let allowed = std::fs::read_to_string(OWN_PAGES_PARAMETER).ok().and_then(|text| text.trim().parse().ok());
    if allowed.is_some_and(|allowed: u32| allowed < OWN_PAGES)
        && let Err(error) = std::fs::write(OWN_PAGES_PARAMETER, OWN_PAGES.to_string())
    {
        tracing::warn!(%error, "{OWN_PAGES_PARAMETER} cannot be raised: fewer than twenty interfaces of Xen guests can be served");
    }
}

fn open((path, module): (&'static str, &'static str)) -> Result<File, XenError> {
    let options = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC).open(path);
    options.map_err(|cause| XenError::Device { path, cause, module })
}

/// See the module.
#[derive(Debug)]
pub struct Devices {
    /// Number of our own domain.
    domain: Domain,
    gntdev: File,
}

impl Devices {
    /// Opens the devices; `domain` is our own number.
    ///
    /// # Errors
    /// xen-netback is loaded, or a device is missing.
    pub fn open(domain: Domain) -> Result<Self, XenError> {
        probe()?;
        allow_own_pages();
        Ok(Self { domain, gntdev: open(GNTDEV)? })
    }
}

impl Layer for Devices {
    fn map(&self, domain: Domain, reference: u32) -> io::Result<Box<dyn Mapped>> {
        let gntdev = self.gntdev.try_clone()?;
        let index = xen::prepare_grant(&gntdev, domain, reference)?;
        let page = SharedPage::map(&gntdev, index).inspect_err(|_| _ = xen::end_grant(&gntdev, index))?;
        Ok(Box::new(MappedGrant { page: Some(page), gntdev, index }))
    }

    fn own_pages(&self, count: u16) -> io::Result<Vec<OwnPage>> {
        // A descriptor of their own: the pages and their grants are freed when it is closed and they are unmapped.
        let gntalloc = Arc::new(open(GNTALLOC).map_err(io::Error::other)?);
        let own_page = |_| {
            let (offset, reference) = xen::grant_page(&gntalloc, self.domain)?;
            let page = SharedPage::map(&gntalloc, offset)?;
            let place = Granted { reference, offset: 0, domain: self.domain };
            Ok(OwnPage { page, place, _keeper: Some(Arc::clone(&gntalloc)) })
        };
        (0..count).map(own_page).collect()
    }

    fn bind(&self, domain: Domain, port: u32) -> io::Result<Box<dyn Channel>> {
        // A descriptor of its own, which becomes readable by events of this channel only.
        let evtchn = open(EVTCHN).map_err(io::Error::other)?;
        let port = xen::bind_channel(&evtchn, domain, port)?;
        Ok(Box::new(EventChannel { evtchn, port }))
    }

    fn copy(&self, copies: &mut [GrantCopy]) {
        // A failed copy says so in its status.
        let _ = xen::copy_grants(&self.gntdev, copies);
    }
}

#[derive(Debug)]
struct MappedGrant {
    page: Option<SharedPage>,
    gntdev: File,
    index: u64,
}

impl Mapped for MappedGrant {
    fn page(&self) -> &SharedPage {
        self.page.as_ref().expect("there until it is dropped")
    }
}

impl Drop for MappedGrant {
    fn drop(&mut self) {
        self.page = None;
        let _ = xen::end_grant(&self.gntdev, self.index);
    }
}

#[derive(Debug)]
struct EventChannel {
    evtchn: File,
    port: u32,
}

impl Channel for EventChannel {
    fn readable(&self) -> io::Result<File> {
        self.evtchn.try_clone()
    }

    fn clear(&self) {
        // Reads the numbers of pending ports, ours at most once; writing it back unmasks it.
        let mut port = [0; 4];
        if (&self.evtchn).read(&mut port).is_ok_and(|count| count == port.len()) {
            let _ = (&self.evtchn).write(&port);
        }
    }

    fn notify(&self) {
        // Fails if the other end of the channel is closed; the event is then of no use.
        let _ = xen::notify_channel(&self.evtchn, self.port);
    }
}
