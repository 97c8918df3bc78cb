//! Access rights of a port's socket: a user with the right to connect can act as that port's guest.

use std::ffi::CString;
use std::fs::{File, Metadata, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::fcntl::{AtFlags, OFlag, open};
use nix::sys::stat::Mode;
use nix::unistd::{Gid, Group, Uid, User, fchownat, getegid, geteuid, getgrouplist};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::socket::{self, Listener};

/// Timeout of a request to the name service (NSS).
const TIMEOUT: Duration = Duration::from_secs(5);
/// Most threads blocked in the name service.
const MOST_HELD: usize = 16;

/// How long an answer of the name service is cached.
const FRESH: Duration = Duration::from_secs(10);

/// A cached answer of the name service on a user or group; no number if it timed out.
struct Known {
    what: &'static str,
    name: String,
    number: Option<u32>,
    at: Instant,
}

static KNOWN: Mutex<Vec<Known>> = Mutex::new(Vec::new());

/// Owner, group and mode of a port's socket; by default only the user that runs memlane may connect.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
#[schemars(extend("examples" = [{ "group": "kvm" }]))]
pub struct Access {
    /// User that owns the socket, by name or number; by default the user that runs memlane.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Group of the socket, by name or number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Permissions in octal; by default "0660" with a group, "0600" without. Write permission is the right to connect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
}

impl Access {
    /// Mode that lets only the user that runs memlane connect.
    pub const PRIVATE: u32 = 0o600;

    /// These rights, completed by those of `general` where they are not configured.
    pub fn or(&self, general: &Self) -> Self {
        let either = |own: &Option<String>, other: &Option<String>| own.clone().or_else(|| other.clone());
        Self {
            owner: either(&self.owner, &general.owner),
            group: either(&self.group, &general.group),
            mode: either(&self.mode, &general.mode),
        }
    }

    /// True if only the user that runs memlane may connect.
    pub fn is_private(&self) -> bool {
        self.owner.is_none() && self.mode().is_ok_and(|mode| mode & 0o022 == 0)
    }

    /// The outermost folder of the socket `path` that entitled users cannot enter, and which users these are. Judged by the mode
    /// alone: an ACL may let them in.
    pub fn shut_folder(&self, path: &Path) -> Option<(PathBuf, String)> {
        if self.is_private() {
            return None;
        }
        let whole = std::path::absolute(path).ok()?;
        let mut folders: Vec<&Path> = whole.ancestors().skip(1).collect();
        folders.reverse();
        folders.into_iter().find_map(|folder| {
            let metadata = std::fs::metadata(folder).ok()?;
            self.shut_out(&metadata).map(|users| (folder.to_path_buf(), users))
        })
    }

    /// The users entitled to connect that cannot enter the folder with this `metadata`.
    fn shut_out(&self, metadata: &Metadata) -> Option<String> {
        let mode = metadata.mode();
        if mode & 0o001 != 0 {
            return None;
        }
        let owner = self.owner.as_deref().filter(|name| {
            let known = user(name).ok();
            known.is_some_and(|user| {
                user != 0 && !(user == metadata.uid() && mode & 0o100 != 0) && !is_member(user, metadata.gid(), mode)
            })
        });
        let may_connect = self.mode().unwrap_or_default();
        let named = self.group.as_deref().filter(|name| {
            let enters = |group: u32| group == metadata.gid() && mode & 0o010 != 0;
            may_connect & 0o020 != 0 && group(name).is_ok_and(|group| !enters(group))
        });
        let others = (may_connect & 0o002 != 0).then(|| "other users".to_owned());
        owner.map(|name| format!("user {name}")).or_else(|| named.map(|name| format!("group {name}"))).or(others)
    }

    /// The mistake in these settings that shows without a request to the name service, if any.
    pub fn mistake(&self) -> Option<String> {
        self.mode().err()
    }

    fn mode(&self) -> Result<u32, String> {
        match (&self.mode, &self.group) {
            (Some(text), _) => u32::from_str_radix(text, 8)
                .ok()
                .filter(|&mode| mode <= 0o777 && text.bytes().all(|digit| digit.is_ascii_digit()))
                .ok_or_else(|| format!("mode is {text:?}; it must be octal digits in quotes, as \"0660\"")),
            (None, Some(_)) => Ok(0o660),
            (None, None) => Ok(Self::PRIVATE),
        }
    }

    /// Resolves user and group names now, so that [`Self::apply`] soon after finds them in the cache.
    pub fn look_up(&self) {
        // A failure is reported when the number is needed.
        let _ = self.numbers();
    }

    /// Why its user or group cannot be found on this host, if so.
    pub fn unknown(&self) -> Option<String> {
        self.numbers().err().map(|cause| cause.to_string())
    }

    /// Numbers of the owner and the group, where they are configured.
    fn numbers(&self) -> io::Result<(Option<u32>, Option<u32>)> {
        Ok((self.owner.as_deref().map(user).transpose()?, self.group.as_deref().map(group).transpose()?))
    }

    /// Applies the rights to the file of `listener`, which this process has just made with mode [`Self::PRIVATE`], or which the service
    /// manager has kept from the process before, with the rights that it gave. A user with write access to its folder may have put a
    /// link or another file there: only the listener's own socket is changed.
    ///
    /// # Errors
    /// No such user or group exists, the ownership cannot be changed, or another file has taken the socket's place.
    pub fn apply(&self, listener: &Listener) -> io::Result<()> {
        let (path, file, before) = (listener.path(), listener.file(), listener.is_of_before());
        if !before && self.is_as_made(path, file) {
            return Ok(());
        }
        match socket::broker() {
            Some(broker) => broker.apply(path, file, before, self),
            None => self.apply_here(path, file, before),
        }
    }

    /// Whether the socket's file at `path` has these rights from its first moment, as by default.
    fn is_as_made(&self, path: &Path, file: Option<(u64, u64)>) -> bool {
        let has_rights =
            |meta: &Metadata| file == Some((meta.dev(), meta.ino())) && meta.nlink() == 1 && meta.mode() & 0o7777 == Self::PRIVATE;
        let is_default = self.owner.is_none() && self.group.is_none() && self.mode() == Ok(Self::PRIVATE);
        is_default && std::fs::symlink_metadata(path).is_ok_and(|meta| has_rights(&meta))
    }

    /// Like [`Self::apply`], by this process itself, to the socket's file at `path` with this device and inode; `before` if another process has
    /// made it.
    ///
    /// # Errors
    /// The errors of [`Self::apply`].
    pub fn apply_here(&self, path: &Path, file: Option<(u64, u64)>, before: bool) -> io::Result<()> {
        let (mut owner, mut group) = self.numbers()?;
        let mode = self.mode().map_err(io::Error::other)?;
        let (socket, meta) = own_socket(path, file, before)?;
        if before {
            // Rights that are configured no more are taken back.
            owner = owner.or(Some(geteuid().as_raw()));
            group = group.or(Some(usual_group(path)));
        }
        let (owner, group) = (owner.filter(|&owner| owner != meta.uid()), group.filter(|&group| group != meta.gid()));
        if owner.is_some() || group.is_some() {
            fchownat(&socket, c"", owner.map(Uid::from_raw), group.map(Gid::from_raw), AtFlags::AT_EMPTY_PATH)?;
        }
        if meta.mode() & 0o7777 == mode {
            return Ok(());
        }
        // A descriptor that only names a file (O_PATH) has no fchmod(2).
        let itself = format!("/proc/self/fd/{}", socket.as_raw_fd());
        std::fs::set_permissions(itself, Permissions::from_mode(mode))
    }
}

/// The socket's file at `path` as an O_PATH descriptor, which keeps naming the same file when the path is replaced. A file that this process
/// has made is its user's; one of the process before may have been given to another user, and is known by device and inode.
fn own_socket(path: &Path, known: Option<(u64, u64)>, before: bool) -> io::Result<(File, Metadata)> {
    // Not by `OpenOptions`: musl counts O_PATH among the access modes, which its flags leave out.
    let file = File::from(open(path, OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC, Mode::empty())?);
    let meta = file.metadata()?;
    let is_its_file = meta.file_type().is_socket() && meta.nlink() == 1 && known == Some((meta.dev(), meta.ino()));
    let is_ours = is_its_file && (before || meta.uid() == geteuid().as_raw());
    if is_ours { Ok((file, meta)) } else { Err(io::Error::other("another file has taken the socket's place")) }
}

/// The group of a file that this process makes at `path`: that of a folder with the set-group-ID bit, else its own.
fn usual_group(path: &Path) -> u32 {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let inherited = std::fs::metadata(folder).ok().filter(|folder| folder.mode() & 0o2000 != 0);
    inherited.map_or_else(|| getegid().as_raw(), |folder| folder.gid())
}

fn user(name: &str) -> io::Result<u32> {
    number("user", name, |name| Ok(User::from_name(name)?.map(|user| user.uid.as_raw())))
}

/// Whether `user` enters a folder of `mode` as a member of its group, as far as the name service answers in time.
fn is_member(user: u32, folder: u32, mode: u32) -> bool {
    let groups = move || {
        let found = User::from_uid(Uid::from_raw(user)).ok().flatten()?;
        getgrouplist(&CString::new(found.name).ok()?, found.gid).ok()
    };
    mode & 0o010 != 0 && within(TIMEOUT, groups).flatten().is_some_and(|groups| groups.contains(&Gid::from_raw(folder)))
}

fn group(name: &str) -> io::Result<u32> {
    number("group", name, |name| Ok(Group::from_name(name)?.map(|group| group.gid.as_raw())))
}

/// The number of the user or group called `name`, which may be a number itself. The name service may ask other hosts: its timeout
/// is [`TIMEOUT`], and its answer, or its failure to answer, is cached for [`FRESH`].
fn number(what: &'static str, name: &str, find: fn(&str) -> io::Result<Option<u32>>) -> io::Result<u32> {
    if let Ok(number) = name.parse() {
        return Ok(number);
    }
    let known = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    known().retain(|known| known.at.elapsed() < FRESH);
    let fresh = known().iter().find(|known| (known.what, &*known.name) == (what, name)).map(|known| known.number);
    let number = match fresh {
        Some(number) => number,
        None => {
            let asked = name.to_owned();
            let number = match within(TIMEOUT, move || find(&asked)) {
                Some(found) => Some(found?.ok_or_else(|| no_such(what, name))?),
                None => None,
            };
            known().push(Known { what, name: name.into(), number, at: Instant::now() });
            number
        }
    };
    number.ok_or_else(|| {
        let text =
            format!("the name service does not answer for the {what} '{name}': write its number, or repair /etc/nsswitch.conf");
        io::Error::new(io::ErrorKind::TimedOut, text)
    })
}

fn no_such(what: &str, name: &str) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("there is no {what} '{name}'"))
}

/// The result of `question` if it is there within `most`. Later its thread is abandoned; while there are [`MOST_HELD`] such
/// threads, nothing is asked.
fn within<A: Send + 'static>(most: Duration, question: impl FnOnce() -> A + Send + 'static) -> Option<A> {
    static HELD: AtomicUsize = AtomicUsize::new(0);
    if HELD.fetch_add(1, Ordering::Relaxed) >= MOST_HELD {
        HELD.fetch_sub(1, Ordering::Relaxed);
        return None;
    }
    let (tell, answer) = channel();
    let asking = std::thread::Builder::new().name("name-service".into()).spawn(move || {
        let _ = tell.send(question());
        HELD.fetch_sub(1, Ordering::Relaxed);
    });
    if asking.is_err() {
        HELD.fetch_sub(1, Ordering::Relaxed);
    }
    answer.recv_timeout(most).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(owner: &str, group: &str, mode: &str) -> Access {
        let stated = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        Access { owner: stated(owner), group: stated(group), mode: stated(mode) }
    }

    #[test]
    fn nobody_else_may_connect_unless_it_is_said() {
        assert_eq!(Access::default().mode(), Ok(0o600));
        assert_eq!(access("", "kvm", "").mode(), Ok(0o660));
        assert_eq!(access("", "kvm", "0600").mode(), Ok(0o600));
        assert!(Access::default().is_private() && access("", "kvm", "640").is_private());
        assert!(
            !access("", "kvm", "").is_private() && !access("qemu", "", "").is_private() && !access("", "", "0666").is_private()
        );
    }

    #[test]
    fn a_port_says_what_it_wants_else() {
        assert_eq!(access("a", "", "0600").or(&access("b", "c", "0777")), access("a", "c", "0600"));
    }

    #[test]
    fn a_name_service_that_hangs_is_not_waited_for() {
        let (_never, held) = channel::<()>();
        assert_eq!(within(Duration::from_millis(10), move || held.recv().is_ok()), None);
        assert_eq!(within(Duration::from_secs(10), || 7), Some(7));
        // A number needs no name service.
        assert_eq!((user("7").unwrap(), group("8").unwrap()), (7, 8));
        // One that did not answer is not asked again at once.
        let at = Instant::now();
        KNOWN.lock().unwrap().push(Known { what: "user", name: "hanging".into(), number: None, at });
        assert_eq!(user("hanging").unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(at.elapsed() < TIMEOUT);
    }

    #[test]
    fn nothing_but_the_socket_is_given_away() {
        let folder = tempfile::tempdir().unwrap();
        let [secret, socket] = ["secret", "socket"].map(|name| folder.path().join(name));
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let listen = || super::super::socket::bind(&socket, Access::PRIVATE).unwrap();
        std::fs::write(&secret, "").unwrap();
        std::fs::set_permissions(&secret, Permissions::from_mode(0o600)).unwrap();
        let puts: [fn(&Path, &Path) -> io::Result<()>; 3] = [
            |secret, place| std::os::unix::fs::symlink(secret, place),
            |secret, place| std::fs::hard_link(secret, place),
            |_, place| std::os::unix::net::UnixListener::bind(place).map(drop),
        ];
        for put in puts {
            let listener = listen();
            std::fs::remove_file(&socket).unwrap();
            put(&secret, &socket).unwrap();
            let before = mode(&socket);
            assert!(access("", "", "0666").apply(&listener).is_err());
            assert_eq!((mode(&secret), mode(&socket)), (0o600, before));
            drop(listener);
            std::fs::remove_file(&socket).unwrap();
        }
        let listener = listen();
        access("", "", "0666").apply(&listener).unwrap();
        assert_eq!(mode(&socket), 0o666);
        let own = std::fs::metadata(folder.path()).unwrap();
        access(&own.uid().to_string(), &own.gid().to_string(), "0640").apply(&listener).unwrap();
        assert_eq!(mode(&socket), 0o640);
    }

    #[test]
    fn the_outermost_folder_that_is_shut_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let (outer, inner) = (folder.path().join("outer"), folder.path().join("outer/inner"));
        std::fs::create_dir_all(&inner).unwrap();
        let socket = inner.join("a.sock");
        let shut = |mode: [u32; 3], access: &Access| {
            for (path, mode) in [folder.path(), &outer, &inner].into_iter().zip(mode) {
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
            }
            access.shut_folder(&socket)
        };
        let own = std::fs::metadata(&inner).unwrap();
        let (user, group) = (own.uid().to_string(), own.gid().to_string());
        let stranger = access("4242", "4243", "");
        assert_eq!(shut([0o711, 0o711, 0o711], &stranger), None);
        assert_eq!(shut([0o711, 0o700, 0o700], &stranger), Some((outer.clone(), "user 4242".into())));
        assert_eq!(shut([0o711, 0o711, 0o750], &access("", "4243", "")), Some((inner.clone(), "group 4243".into())));
        assert_eq!(shut([0o711, 0o711, 0o750], &access("", &group, "")), None);
        assert_eq!(shut([0o711, 0o711, 0o700], &access("", &group, "")), Some((inner.clone(), format!("group {group}"))));
        assert_eq!(shut([0o711, 0o711, 0o700], &access(&user, "", "")), None);
        assert_eq!(shut([0o711, 0o711, 0o700], &access("", "", "0666")), Some((inner.clone(), "other users".into())));
        assert_eq!(shut([0o700, 0o700, 0o700], &Access::default()), None);
    }

    #[test]
    fn modes_are_octal() {
        for mode in ["rw", "0888", "1777", "+660", "-1", ""] {
            assert!(Access { mode: Some(mode.into()), ..Access::default() }.mistake().is_some(), "{mode}");
        }
    }
}
