//! Rights that the sandbox keeps: capabilities, files by Landlock, system calls by seccomp.

/// Rights of ports that need more than sockets, by their kinds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rights {
    /// TAP ports and uplinks: /dev/net/tun, netlink.
    pub tap: bool,
    /// `af-packet` ports.
    pub packet: bool,
    /// NICs as uplinks, which another process opens.
    pub nic: bool,
    /// Entering a named network namespace.
    pub netns: bool,
    /// passt, which no sandbox allows.
    pub passt: bool,
    /// Xen's devices.
    pub xen: bool,
}

impl Rights {
    /// None beside sockets.
    pub const NONE: Self = Self { tap: false, packet: false, nic: false, netns: false, passt: false, xen: false };

    /// Rights of both.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self {
            tap: self.tap || other.tap,
            packet: self.packet || other.packet,
            nic: self.nic || other.nic,
            netns: self.netns || other.netns,
            passt: self.passt || other.passt,
            xen: self.xen || other.xen,
        }
    }
}
