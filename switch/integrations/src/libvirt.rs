//! The user and group of libvirt's QEMU on this machine.

use nix::unistd::{Gid, Group, User};

/// The file in which the operator may have changed them.
const CONFIGURATION: &str = "/etc/libvirt/qemu.conf";
/// User names in distributions: Debian and derivatives, Fedora and derivatives.
const USERS: [&str; 2] = ["libvirt-qemu", "qemu"];

/// The group that libvirt's QEMU runs in; `None` without libvirt.
pub fn group() -> Option<String> {
    let text = std::fs::read_to_string(CONFIGURATION).unwrap_or_default();
    stated(&text, "group").or_else(|| {
        let user = stated(&text, "user").into_iter().chain(USERS.map(str::to_owned));
        let user = user.filter_map(|name| User::from_name(&name).ok().flatten()).next()?;
        // Debian's user has a group of its own beside its first, which is kvm's.
        group_called(&user.name).or_else(|| Some(Group::from_gid(Gid::from_raw(user.gid.as_raw())).ok()??.name))
    })
}

fn group_called(name: &str) -> Option<String> {
    Some(Group::from_name(name).ok()??.name)
}

/// The value of `key` in a line of libvirt's configuration that is no comment; numeric ids, which begin with a plus, are left to
/// the operator.
fn stated(text: &str, key: &str) -> Option<String> {
    let value =
        text.lines().find_map(|line| line.trim().strip_prefix(key)?.trim_start().strip_prefix('='))?.trim().trim_matches('"');
    (!value.is_empty() && value.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c)) && !value.contains("--"))
        .then(|| value.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_configuration_says_is_found() {
        let text = "#group = \"libvirt-qemu\"\ngroup_of = \"x\"\n group = \"tenants\"\nuser = \"+0\"\n";
        assert_eq!(stated(text, "group").as_deref(), Some("tenants"));
        assert_eq!(stated(text, "user"), None);
        assert_eq!(stated("#group = \"libvirt-qemu\"\n", "group"), None);
    }
}
