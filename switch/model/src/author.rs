//! The author of a change: the process that asked for it, from the kernel.
//!
//! A thread that carries out a request has the author of the request ([`acting`]), and events of changes that it makes name it
//! ([`current`]). Without an author, the network changes itself: at its start, and by vifs that come.

use std::cell::RefCell;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Stands for names that the service manager's sandbox hides, by its namespaces.
pub const HIDDEN: &str = "hidden by the unit";

/// The process that asked for a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Author {
    /// Name of its user, or the number where that has no name; "hidden by the unit" where the user namespace of the network has no number
    /// for it.
    pub user: String,
    /// Number of its user; none where it is hidden.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub uid: Option<u32>,
    /// Number of the process; none where that is in another PID namespace.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub pid: Option<i32>,
    /// Name of the program, as the kernel names it; "hidden by the unit" where the network does not see the process.
    pub program: String,
}

impl fmt::Display for Author {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "user {}", self.user)?;
        if let Some(uid) = self.uid.filter(|uid| uid.to_string() != self.user) {
            write!(f, " (uid {uid})")?;
        }
        write!(f, ", program {}", self.program)?;
        self.pid.map_or(Ok(()), |pid| write!(f, " (pid {pid})"))
    }
}

thread_local! {
    static ACTING: RefCell<Option<Author>> = const { RefCell::new(None) };
}

/// Runs `change` on this thread for `author`.
pub fn acting<R>(author: Option<Author>, change: impl FnOnce() -> R) -> R {
    struct Restore(Option<Author>);
    impl Drop for Restore {
        fn drop(&mut self) {
            ACTING.set(self.0.take());
        }
    }
    let _restore = Restore(ACTING.replace(author));
    change()
}

/// The author of changes by this thread.
pub fn current() -> Option<Author> {
    ACTING.with_borrow(Clone::clone)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_has_the_author_of_its_request_until_that_ends() {
        let author = Author { user: "ann".into(), uid: Some(1000), pid: Some(7), program: "memlane".into() };
        assert_eq!(current(), None);
        let panics = std::panic::catch_unwind(|| acting(Some(author.clone()), || panic!("{:?}", current())));
        let text = panics.unwrap_err().downcast::<String>().unwrap();
        assert!(text.contains("ann") && current().is_none(), "{text}");
        assert_eq!(author.to_string(), "user ann (uid 1000), program memlane (pid 7)");
        let hidden = Author { user: HIDDEN.into(), uid: None, pid: None, program: HIDDEN.into() };
        assert_eq!(hidden.to_string(), "user hidden by the unit, program hidden by the unit");
    }
}
