//! Users of virtual machines that may not connect to an access port's socket: the system call connect(2) of their front ends is refused, and
//! no feature negotiation begins.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Users under which distributions run QEMU: Debian's, and that of the others.
const USERS: [&str; 2] = ["libvirt-qemu", "qemu"];

/// The user of virtual machines on this host that may not connect to the socket `path`, with the remedy.
pub(super) fn told(path: &Path) -> Option<String> {
    let text = |file: &str| std::fs::read_to_string(file).unwrap_or_default();
    let (passwd, groups) = (text("/etc/passwd"), text("/etc/group"));
    told_of(path, &Rights::of(&std::fs::metadata(path).ok()?), &passwd, &groups)
}

/// Owner, group and mode of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rights {
    uid: u32,
    gid: u32,
    mode: u32,
}

impl Rights {
    fn of(metadata: &Metadata) -> Self {
        Self { uid: metadata.uid(), gid: metadata.gid(), mode: metadata.mode() }
    }

    /// Whether a user with this number and these groups may connect (write permission, unix(7)).
    fn let_in(self, uid: u32, mut groups: impl Iterator<Item = u32>) -> bool {
        let by = if uid == self.uid {
            0o200
        } else if groups.any(|group| group == self.gid) {
            0o020
        } else {
            0o002
        };
        self.mode & by != 0
    }
}

fn told_of(path: &Path, rights: &Rights, passwd: &str, groups: &str) -> Option<String> {
    let lines = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let (user, uid, primary) = lines
        .filter_map(|entry| Some((*entry.first()?, entry.get(2)?.parse::<u32>().ok()?, entry.get(3)?.parse::<u32>().ok()?)))
        .find(|(user, ..)| USERS.contains(user))?;
    let entries: Vec<Vec<&str>> = groups.lines().map(|line| line.split(':').collect()).collect();
    let has = |entry: &&Vec<&str>| entry.get(3).is_some_and(|members| members.split(',').any(|member| member == user));
    let further = entries.iter().filter(has).filter_map(|entry| entry.get(2)?.parse::<u32>().ok());
    if rights.let_in(uid, further.chain([primary])) {
        return None;
    }
    let place = path.display();
    let group = entries.iter().find(|entry| entry.get(2).is_some_and(|number| number.parse() == Ok(rights.gid)));
    Some(match group.and_then(|entry| entry.first()).filter(|_| rights.mode & 0o020 != 0) {
        Some(group) => format!(
            "the user {user} of virtual machines may not connect to {place}, as it is not in the group {group}: usermod -aG {group} {user}, and \
             restart its libvirt daemon"
        ),
        None => format!("the user {user} of virtual machines may not connect to {place}: set the key access to a group of it"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0::/root:/bin/sh\nlibvirt-qemu:x:64055:36::/var/lib/libvirt:/usr/sbin/nologin\n";

    fn told_by(rights: (u32, u32, u32), groups: &str) -> Option<String> {
        let (uid, gid, mode) = rights;
        told_of(Path::new("/run/memlane/web.sock"), &Rights { uid, gid, mode }, PASSWD, groups)
    }

    #[test]
    fn a_user_of_virtual_machines_outside_of_the_group_is_told_with_the_remedy() {
        let groups = |members: &str| format!("kvm:x:36:\nmemlane:x:990:{members}\n");
        let told = told_by((990, 990, 0o140_660), &groups("ann")).unwrap();
        assert!(told.contains("not in the group memlane: usermod -aG memlane libvirt-qemu"), "{told}");
        assert_eq!(told_by((990, 990, 0o140_660), &groups("ann,libvirt-qemu")), None);
        assert_eq!(told_by((990, 36, 0o140_660), &groups("")), None, "its primary group");
        assert_eq!(told_by((0, 0, 0o140_666), &groups("")), None);
        assert_eq!(told_by((64_055, 0, 0o140_600), &groups("")), None, "its own");
        let told = told_by((0, 0, 0o140_600), &groups("")).unwrap();
        assert!(told.contains("set the key access"), "{told}");
        assert_eq!(told_of(Path::new("/a"), &Rights { uid: 0, gid: 0, mode: 0 }, "root:x:0:0::/root:/bin/sh", ""), None);
    }
}
