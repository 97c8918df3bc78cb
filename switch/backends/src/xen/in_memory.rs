//! A Xen hypervisor in memory, for tests and fuzzers: grants, event channels and xenstore of domains that are all in this
//! process.

#![expect(clippy::expect_used, reason = "a fake of tests")]

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::memfd::{MFdFlags, memfd_create};

use super::layer::{Channel, Domain, GrantCopy, Layer, Mapped, OwnPage, PAGE};
use super::store::{Event, Store};
use crate::memory::{Granted, SharedPage};

/// The domain of the back end: dom0.
const BACK: Domain = 0;

/// See the module.
#[derive(Debug)]
pub struct Hypervisor {
    state: Mutex<HypervisorState>,
}

#[derive(Debug)]
struct HypervisorState {
    memory: File,
    pages: u64,
    grants: HashMap<(Domain, u32), Grant>,
    next_reference: u32,
    channels: HashMap<(Domain, u32), Ends>,
    tree: BTreeMap<String, String>,
    watchers: Vec<Watcher>,
    copy_requests: usize,
    copies: usize,
    reads: usize,
}

#[derive(Debug)]
struct Grant {
    page: SharedPage,
    offset: u64,
    writable: bool,
}

#[derive(Clone, Debug)]
struct Ends {
    front: Arc<EventFd>,
    back: Arc<EventFd>,
}

#[derive(Debug)]
struct Watcher {
    path: String,
    token: String,
    inbox: Arc<Inbox>,
}

#[derive(Debug)]
struct Inbox {
    events: Mutex<VecDeque<Event>>,
    wake_up: EventFd,
}

fn wake_up() -> EventFd {
    EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC).expect("the kernel has event descriptors")
}

fn absolute(path: &str) -> String {
    if path.starts_with('/') { path.into() } else { format!("/local/domain/{BACK}/{path}") }
}

fn is_at_or_below(path: &str, top: &str) -> bool {
    path.strip_prefix(top).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

impl Hypervisor {
    /// A hypervisor without domains.
    ///
    /// # Panics
    /// The kernel has no memory left.
    pub fn new() -> Arc<Self> {
        let memory = File::from(memfd_create(c"xen", MFdFlags::MFD_CLOEXEC).expect("memory"));
        let state = HypervisorState {
            memory,
            pages: 0,
            grants: HashMap::new(),
            next_reference: 8,
            channels: HashMap::new(),
            tree: BTreeMap::new(),
            watchers: Vec::new(),
            copy_requests: 0,
            copies: 0,
            reads: 0,
        };
        Arc::new(Self { state: Mutex::new(state) })
    }

    fn state(&self) -> MutexGuard<'_, HypervisorState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new page of `domain`, granted to dom0: the domain's own mapping of it, and the reference.
    ///
    /// # Panics
    /// The kernel has no memory left.
    pub fn grant(&self, domain: Domain, writable: bool) -> (SharedPage, u32) {
        let mut state = self.state();
        let offset = state.pages * u64::from(PAGE);
        state.pages += 1;
        state.memory.set_len(offset + u64::from(PAGE)).expect("memory");
        let reference = state.next_reference;
        state.next_reference += 1;
        let page = || SharedPage::map(&state.memory, offset).expect("memory");
        let (own, page) = (page(), page());
        state.grants.insert((domain, reference), Grant { page, offset, writable });
        (own, reference)
    }

    /// Revokes a grant: grant copies that name it fail from now on.
    pub fn revoke(&self, domain: Domain, reference: u32) {
        self.state().grants.remove(&(domain, reference));
    }

    /// Number of grants of all domains.
    pub fn grants(&self) -> usize {
        self.state().grants.len()
    }

    /// Grant copy requests so far.
    pub fn copy_requests(&self) -> usize {
        self.state().copy_requests
    }

    /// Grant copies in these requests so far.
    pub fn copies(&self) -> usize {
        self.state().copies
    }

    /// Texts and lists that dom0 has read from xenstore so far.
    pub fn reads(&self) -> usize {
        self.state().reads
    }

    /// Offers the event channel `port` of `domain`; returns the domain's end of it: the eventfd signalled by memlane, and the one
    /// that signals memlane.
    pub fn channel(&self, domain: Domain, port: u32) -> (Arc<EventFd>, Arc<EventFd>) {
        let ends = Ends { front: Arc::new(wake_up()), back: Arc::new(wake_up()) };
        self.state().channels.insert((domain, port), ends.clone());
        (ends.front, ends.back)
    }

    /// Writes to xenstore as another domain.
    pub fn write(&self, path: &str, text: &str) {
        let path = absolute(path);
        let mut state = self.state();
        state.tree.insert(path.clone(), text.into());
        state.tell(&path);
    }

    /// Removes `path` and all below it.
    pub fn remove(&self, path: &str) {
        let path = absolute(path);
        let mut state = self.state();
        state.tree.retain(|other, _| !is_at_or_below(other, &path));
        state.tell(&path);
    }

    /// The text at `path` in xenstore.
    pub fn read(&self, path: &str) -> Option<String> {
        self.state().tree.get(&absolute(path)).cloned()
    }

    /// dom0's connection to xenstore.
    pub fn store(self: &Arc<Self>) -> Box<dyn Store> {
        let inbox = Arc::new(Inbox { events: Mutex::default(), wake_up: wake_up() });
        Box::new(Connection { hypervisor: Arc::clone(self), inbox })
    }
}

impl HypervisorState {
    fn tell(&self, path: &str) {
        for watcher in &self.watchers {
            if is_at_or_below(path, &absolute(&watcher.path)) || is_at_or_below(&absolute(&watcher.path), path) {
                watcher.tell(path);
            }
        }
    }
}

impl Watcher {
    fn tell(&self, path: &str) {
        let relative = path.strip_prefix(&absolute("")).filter(|_| !self.path.starts_with('/')).unwrap_or(path);
        let event = Event { path: relative.into(), token: self.token.clone() };
        self.inbox.events.lock().unwrap_or_else(PoisonError::into_inner).push_back(event);
        let _ = self.inbox.wake_up.write(1);
    }
}

#[derive(Debug)]
struct MappedPage(SharedPage);

impl Mapped for MappedPage {
    fn page(&self) -> &SharedPage {
        &self.0
    }
}

#[derive(Debug)]
struct BackEnd(Ends);

impl Channel for BackEnd {
    fn readable(&self) -> io::Result<File> {
        Ok(File::from(self.0.back.as_fd().try_clone_to_owned()?))
    }

    fn clear(&self) {
        let _ = self.0.back.read();
    }

    fn notify(&self) {
        let _ = self.0.front.write(1);
    }
}

impl Layer for Hypervisor {
    fn map(&self, domain: Domain, reference: u32) -> io::Result<Box<dyn Mapped>> {
        let state = self.state();
        let grant = state.grants.get(&(domain, reference)).filter(|grant| grant.writable).ok_or(ErrorKind::NotFound)?;
        Ok(Box::new(MappedPage(SharedPage::map(&state.memory, grant.offset)?)))
    }

    fn own_pages(&self, count: u16) -> io::Result<Vec<OwnPage>> {
        let own_page = |_| {
            let (page, reference) = self.grant(BACK, true);
            OwnPage { page, place: Granted { reference, offset: 0, domain: BACK }, _keeper: None }
        };
        Ok((0..count).map(own_page).collect())
    }

    fn bind(&self, domain: Domain, port: u32) -> io::Result<Box<dyn Channel>> {
        let ends = self.state().channels.get(&(domain, port)).cloned().ok_or(ErrorKind::NotFound)?;
        // A newly bound event channel is pending.
        let _ = ends.back.write(1);
        Ok(Box::new(BackEnd(ends)))
    }

    fn copy(&self, copies: &mut [GrantCopy]) {
        let mut state = self.state();
        state.copy_requests += 1;
        state.copies += copies.len();
        for copy in copies {
            let place = |place: Granted| state.grants.get(&(place.domain, place.reference)).map(|grant| (grant, place.offset));
            let (from, to) = (place(copy.from), place(copy.to).filter(|(grant, _)| grant.writable));
            let done = match (from, to) {
                (Some((from, at)), Some((to, there))) => {
                    let cut = |grant: &Grant, offset: u16| grant.page.iovec().skip(offset.into()).exactly(copy.length.into());
                    let (from, to) = (cut(from, at), cut(to, there));
                    assert!(from.is_some() && to.is_some(), "a copy that crosses its page: {copy:?}");
                    from.zip(to).map(|(from, to)| from.copy_to(to)).is_some()
                }
                _ => false,
            };
            copy.set_done(done);
        }
    }
}

#[derive(Debug)]
struct Connection {
    hypervisor: Arc<Hypervisor>,
    inbox: Arc<Inbox>,
}

impl Connection {
    /// A read was answered. As with a real xenstore, events that came before the answer are received with it, so the descriptor
    /// does not become readable for them again.
    fn asked(&self) {
        self.hypervisor.state().reads += 1;
        let _ = self.inbox.wake_up.read();
    }
}

impl Store for Connection {
    fn read(&mut self, path: &str) -> io::Result<Option<String>> {
        self.asked();
        Ok(self.hypervisor.read(path))
    }

    fn list(&mut self, path: &str) -> io::Result<Vec<String>> {
        let top = absolute(path) + "/";
        self.asked();
        let state = self.hypervisor.state();
        let names = state.tree.keys().filter_map(|path| path.strip_prefix(&top)).map(|rest| rest.split('/').next().unwrap_or(rest));
        let names: BTreeSet<String> = names.map(str::to_owned).collect();
        Ok(names.into_iter().collect())
    }

    fn write(&mut self, path: &str, text: &str) -> io::Result<()> {
        self.hypervisor.write(path, text);
        Ok(())
    }

    fn watch(&mut self, path: &str, token: &str) -> io::Result<()> {
        let watcher = Watcher { path: path.into(), token: token.into(), inbox: Arc::clone(&self.inbox) };
        watcher.tell(path);
        self.hypervisor.state().watchers.push(watcher);
        Ok(())
    }

    fn unwatch(&mut self, path: &str, token: &str) -> io::Result<()> {
        let inbox = &self.inbox;
        let is_it = |watcher: &Watcher| watcher.path == path && watcher.token == token && Arc::ptr_eq(&watcher.inbox, inbox);
        self.hypervisor.state().watchers.retain(|watcher| !is_it(watcher));
        Ok(())
    }

    fn receive(&mut self) -> io::Result<()> {
        let _ = self.inbox.wake_up.read();
        Ok(())
    }

    fn next_event(&mut self) -> Option<Event> {
        self.inbox.events.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    fn has_events(&self) -> bool {
        !self.inbox.events.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.inbox.wake_up.as_fd()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let inbox = &self.inbox;
        self.hypervisor.state().watchers.retain(|watcher| !Arc::ptr_eq(&watcher.inbox, inbox));
    }
}
