//! Kinds of ports. Each has a file here: its keys, what it claims and needs of the host, and how it is opened. `port_kinds!` lists them; the rest of the
//! program asks the [`Kind`] of a port, and matches none.

mod af_packet;
mod error;
mod kind;
mod listening;
mod loopback;
mod null;
mod passt;
mod rights;
mod stream;
mod tap;
mod vhost_user;
mod xen;

use std::ops::Deref;
use std::path::Path;

use super::entry::PortEntry;
pub use error::OpenError;
use kind::FromEntry;
pub use kind::{About, ByWorker, HostInterface, Kind, Opening, PortEndpoint, SavedResources, Socket, UnitLack};
pub use rights::Rights;

/// Lists the kinds, in the order in which messages name them.
macro_rules! port_kinds {
    ($($module:ident::$kind:ident),* $(,)?) => {
        $(pub use $module::$kind;)*

        /// Kind of a port, with its own settings.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum PortKind {
            $(#[doc = concat!("See [`", stringify!($kind), "`].")] $kind($kind),)*
        }

        /// All kinds.
        const ALL: &[&About] = &[$(&<$kind as FromEntry>::ABOUT),*];

        impl PortKind {
            /// The kind of a checked `entry`; relative paths lie in `folder`. [`Null`] without a key of a kind.
            pub fn of(entry: &PortEntry, folder: &Path) -> Self {
                $(if let Some(kind) = <$kind as FromEntry>::read(entry, folder) {
                    return Self::$kind(kind);
                })*
                Self::Null(Null)
            }

            /// Names of the kinds of which `entry` has the key; a valid one has one.
            pub fn stated(entry: &PortEntry) -> Vec<&'static str> {
                let all = [$(<$kind as FromEntry>::read(entry, Path::new("")).map(|kind| kind.name())),*];
                all.into_iter().flatten().collect()
            }
        }

        impl Deref for PortKind {
            type Target = dyn Kind;

            fn deref(&self) -> &(dyn Kind + 'static) {
                match self {
                    $(Self::$kind(kind) => kind,)*
                }
            }
        }

        $(impl From<$kind> for PortKind {
            fn from(kind: $kind) -> Self {
                Self::$kind(kind)
            }
        })*
    };
}

port_kinds! {
    vhost_user::VhostUser,
    tap::Tap,
    af_packet::AfPacket,
    xen::Xen,
    stream::Stream,
    passt::Passt,
    null::Null,
    loopback::Loopback,
}

/// Names of all kinds: keys, of which a port has one.
pub fn names() -> impl Iterator<Item = &'static str> {
    ALL.iter().map(|kind| kind.name)
}

/// Names of the kinds to which `key` applies.
pub fn with_key(key: &str) -> Vec<&'static str> {
    named(|kind| kind.keys.contains(&key))
}

/// Names of the kinds of which this is true.
pub fn named(is_so: impl Fn(&About) -> bool) -> Vec<&'static str> {
    ALL.iter().filter(|kind| is_so(kind)).map(|kind| kind.name).collect()
}
