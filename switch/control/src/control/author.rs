//! The authors of changes: clients of the control socket and the web page, and senders of signals.

use std::net::SocketAddr;

use crate::author::{Author, HIDDEN};

/// Number of a user that the user namespace of this process has no number for (user_namespaces(7)).
const OVERFLOW: u32 = 65_534;

/// The process at the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientProcess {
    /// A process of this host (SO_PEERCRED of unix(7)); 0 as its number if it is in another PID namespace.
    Local {
        /// User of the process.
        uid: u32,
        /// Number of the process.
        pid: i32,
    },
    /// A browser that has the token of the web page.
    Browser(SocketAddr),
    /// The kernel does not tell.
    Unknown,
}

impl ClientProcess {
    /// The client as the author of a change. Its program is read now, so it has to be there still.
    pub fn author(self) -> Author {
        match self {
            Self::Local { uid, pid } => of_process(uid, pid),
            Self::Browser(address) => {
                Author { user: "of the web page".into(), uid: None, pid: None, program: format!("browser at {address}") }
            }
            Self::Unknown => Author { user: HIDDEN.into(), uid: None, pid: None, program: HIDDEN.into() },
        }
    }
}

/// Process `pid` of user `uid`, as this process sees both.
pub fn of_process(uid: u32, pid: i32) -> Author {
    let is_hidden = uid == OVERFLOW && !has_all_users(&std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default());
    let name = || user_name(&std::fs::read_to_string("/etc/passwd").unwrap_or_default(), uid).unwrap_or_else(|| uid.to_string());
    // A process may call itself anything: control characters are not for terminals.
    let program = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    let program = String::from_utf8_lossy(&program).trim_end().replace(char::is_control, "?");
    Author {
        user: if is_hidden { HIDDEN.into() } else { name() },
        uid: (!is_hidden).then_some(uid),
        pid: (pid != 0).then_some(pid),
        program: match program.is_empty() {
            true if pid != 0 && std::fs::exists("/proc/1").unwrap_or(false) => "that has ended".into(),
            true => HIDDEN.into(),
            false => program,
        },
    }
}

/// The author of changes that this process makes.
pub fn of_this_process() -> Author {
    of_process(nix::unistd::getuid().as_raw(), nix::unistd::getpid().as_raw())
}

/// Whether a user namespace with this map has a number for every user of the host.
fn has_all_users(map: &str) -> bool {
    map.split_whitespace().eq(["0", "0", "4294967295"])
}

/// Name of the user in the text of passwd(5). Services for names of other users are not asked: they may not answer.
fn user_name(passwd: &str, uid: u32) -> Option<String> {
    let entry = passwd.lines().find(|line| line.split(':').nth(2).is_some_and(|number| number.parse() == Ok(uid)))?;
    entry.split(':').next().filter(|name| !name.is_empty()).map(|name| name.replace(char::is_control, "?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_have_the_names_of_passwd() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\n# no user\nann:x:1000:1000::/home/ann:/bin/sh\n";
        assert_eq!(user_name(passwd, 1000).as_deref(), Some("ann"));
        assert_eq!((user_name(passwd, 7), user_name("", 0)), (None, None));
        assert!(has_all_users("         0          0 4294967295\n") && !has_all_users("0 0 1\n1000 1000 1\n"));
    }

    #[test]
    fn a_process_is_named_and_one_that_is_not_seen_is_hidden() {
        let own = of_this_process();
        assert_eq!((own.uid, own.pid), (Some(nix::unistd::getuid().as_raw()), Some(std::process::id() as i32)));
        assert!(own.program != HIDDEN && own.user != HIDDEN, "{own:?}");
        // Every process is seen here: the first one is.
        assert_eq!(of_process(0, i32::MAX).program, "that has ended");
        assert_eq!((of_process(0, 0).pid, of_process(0, 0).program.as_str()), (None, HIDDEN));
    }
}
