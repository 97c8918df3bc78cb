//! Access: who may connect to a port's socket. Whoever may is that port's guest.

use std::io;
use std::os::unix::fs::{PermissionsExt, lchown};
use std::path::Path;

use nix::unistd::{Group, User};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Owner, group and mode of a socket; without any, only who runs memlane may connect.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Access {
    /// User that the socket belongs to, by name or number; by default who runs memlane.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Group that it belongs to, by name or number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Permissions in octal; by default "0660" with a group, "0600" without. To connect is to write.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
}

impl Access {
    /// Only who runs memlane.
    pub const PRIVATE: u32 = 0o600;

    /// What is stated here, and for the rest what `general` says.
    pub fn or(&self, general: &Self) -> Self {
        let either = |own: &Option<String>, other: &Option<String>| own.clone().or_else(|| other.clone());
        Self {
            owner: either(&self.owner, &general.owner),
            group: either(&self.group, &general.group),
            mode: either(&self.mode, &general.mode),
        }
    }

    /// True if nobody beside who runs memlane is let in.
    pub fn is_private(&self) -> bool {
        self.owner.is_none() && self.mode().is_ok_and(|mode| mode & 0o022 == 0)
    }

    /// What is wrong with it, as far as can be said without asking this machine for users and groups.
    pub fn mistake(&self) -> Option<String> {
        self.mode().err()
    }

    fn mode(&self) -> Result<u32, String> {
        match (&self.mode, &self.group) {
            (Some(text), _) => u32::from_str_radix(text, 8)
                .ok()
                .filter(|&mode| mode <= 0o777 && text.bytes().all(|digit| digit.is_ascii_digit()))
                .ok_or_else(|| format!("'{text}' is no mode: write octal digits, such as \"0660\"")),
            (None, Some(_)) => Ok(0o660),
            (None, None) => Ok(Self::PRIVATE),
        }
    }

    /// Gives the socket at `path`, which is [`Self::PRIVATE`] so far, to whom it is for.
    ///
    /// # Errors
    /// There is no such user or group here, or it may not be given to them.
    pub fn apply(&self, path: &Path) -> io::Result<()> {
        let owner = self.owner.as_deref().map(user).transpose()?;
        let group = self.group.as_deref().map(group).transpose()?;
        if owner.is_some() || group.is_some() {
            lchown(path, owner, group)?;
        }
        let mode = self.mode().map_err(io::Error::other)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
    }
}

fn user(name: &str) -> io::Result<u32> {
    let known = User::from_name(name)?.map(|user| user.uid.as_raw());
    known.or_else(|| name.parse().ok()).ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("there is no user '{name}'")))
}

fn group(name: &str) -> io::Result<u32> {
    let known = Group::from_name(name)?.map(|group| group.gid.as_raw());
    known
        .or_else(|| name.parse().ok())
        .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("there is no group '{name}'")))
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
    fn modes_are_octal() {
        for mode in ["rw", "0888", "1777", "+660", "-1", ""] {
            assert!(Access { mode: Some(mode.into()), ..Access::default() }.mistake().is_some(), "{mode}");
        }
    }
}
