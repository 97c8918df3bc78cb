//! The host's memory that this process may use: the machine's, bounded by the memory cgroups around it (`MemoryMax` of a service,
//! the limit of a container).
//!
//! The kernel charges a page of a shared file to the cgroup of the process that touches it first. Guests' files are often sparse,
//! so a guest can have the switch touch pages and be charged for them. The touched memory is `RssShmem` of `/proc/self/status`; the
//! rest before the cgroup is full is [`HostMemory::left`].

use std::fs::read_to_string;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use memlane_virtq::memory::Touched;

/// See the module.
#[derive(Clone, Debug)]
pub struct HostMemory {
    proc: PathBuf,
    /// Folders of the memory cgroup and of those around it, the innermost first.
    cgroups: Vec<PathBuf>,
}

impl HostMemory {
    /// Of this process.
    pub fn of_this_process() -> &'static Self {
        static OWN: OnceLock<HostMemory> = OnceLock::new();
        OWN.get_or_init(|| Self::new(Path::new("/proc"), Path::new("/sys/fs/cgroup")))
    }

    /// Reads the files in `proc` and `cgroup`, the folders where those filesystems usually are.
    pub fn new(proc: &Path, cgroup: &Path) -> Self {
        let own = read_to_string(proc.join("self/cgroup")).unwrap_or_default();
        Self { proc: proc.into(), cgroups: folders(&own, cgroup) }
    }

    /// Bytes of the machine, independent of the cgroups' limits; 1 GiB where that cannot be read.
    pub fn of_machine(&self) -> u64 {
        self.machine("MemTotal:").unwrap_or(1 << 30)
    }

    /// Bytes of the machine, or the lowest limit of the cgroups.
    pub fn total(&self) -> u64 {
        self.cgroups.iter().filter_map(|folder| limit(folder)).fold(self.of_machine(), u64::min)
    }

    /// Bytes that are left before the machine or a cgroup is full.
    pub fn left(&self) -> u64 {
        let left = self.cgroups.iter().filter_map(|folder| Some(limit(folder)?.saturating_sub(used(folder)?)));
        left.chain(self.machine("MemAvailable:")).min().unwrap_or(u64::MAX)
    }

    /// Bytes of shared files that this process's cgroup is charged with, if the cgroup holds no other process than its parents and
    /// children. Else it makes no difference which process touches a page first, or it cannot be determined.
    pub fn charged(&self) -> Option<u64> {
        let folder = self.cgroups.first()?;
        let processes = read_to_string(folder.join("cgroup.procs")).ok()?;
        let own = std::process::id();
        let above: Vec<u32> = std::iter::successors(Some(own), |&process| self.parent(process)).collect();
        let is_own = |process: u32| above.contains(&process) || self.parent(process) == Some(own);
        if !processes.lines().all(|process| process.parse().is_ok_and(is_own)) {
            return None;
        }
        pages(&read_to_string(folder.join("memory.stat")).ok()?, "shmem ")
    }

    /// The process that has started `process`.
    fn parent(&self, process: u32) -> Option<u32> {
        let stat = read_to_string(self.proc.join(process.to_string()).join("stat")).ok()?;
        // A name may have spaces and brackets of its own.
        stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
    }

    /// Bytes of guests' memory that this process has touched (`RssShmem`).
    pub fn touched(&self) -> u64 {
        number(&read_to_string(self.proc.join("self/status")).unwrap_or_default(), "RssShmem:").unwrap_or_default()
    }

    /// The same for each mapping. This takes long where much is mapped.
    pub fn touched_by_mapping(&self) -> Vec<Touched> {
        let text = read_to_string(self.proc.join("self/smaps")).unwrap_or_default();
        let mut range = None;
        let mut found = Vec::new();
        for line in text.lines() {
            let first = line.split(' ').next().unwrap_or_default();
            if let Some((start, end)) = first.split_once('-') {
                range = u64::from_str_radix(start, 16).ok().zip(u64::from_str_radix(end, 16).ok());
            } else if let (Some((start, end)), Some(bytes)) = (range, number(line, "Rss:")) {
                found.push(Touched { start, end, bytes });
            }
        }
        found
    }

    fn machine(&self, key: &str) -> Option<u64> {
        number(&read_to_string(self.proc.join("meminfo")).ok()?, key)
    }
}

/// Folders of the memory cgroup that `own` (`/proc/self/cgroup`) names, below `root`, and of those around it: version 2, or 1 where
/// that has memory.
fn folders(own: &str, root: &Path) -> Vec<PathBuf> {
    let of = |controllers: &str| {
        own.lines().find_map(|line| {
            let (kinds, path) = line.split_once(':')?.1.split_once(':')?;
            kinds.split(',').any(|kind| kind == controllers).then(|| path.trim_start_matches('/').to_owned())
        })
    };
    let (top, path) = match of("memory") {
        Some(path) => (root.join("memory"), path),
        None => (root.to_path_buf(), of("").unwrap_or_default()),
    };
    let all = Path::new(&path).ancestors().map(|path| top.join(path));
    all.filter(|folder| folder.is_dir()).collect()
}

/// The limit of the cgroup at `folder`, if it has one.
fn limit(folder: &Path) -> Option<u64> {
    // Version 1 expresses "none" by a number above any machine's memory.
    value(folder, &["memory.max", "memory.limit_in_bytes"]).filter(|&limit| limit < 1 << 60)
}

/// Used bytes that could not be freed at once: pages of ordinary files can.
fn used(folder: &Path) -> Option<u64> {
    let all = value(folder, &["memory.current", "memory.usage_in_bytes"])?;
    let stat = read_to_string(folder.join("memory.stat")).unwrap_or_default();
    let free = ["active_file ", "inactive_file "].into_iter().filter_map(|key| pages(&stat, key)).sum();
    Some(all.saturating_sub(free))
}

/// The bytes in the line of `stat` (`memory.stat`) that begins with `key`.
fn pages(stat: &str, key: &str) -> Option<u64> {
    stat.lines().find_map(|line| line.strip_prefix(key)?.trim().parse().ok())
}

fn value(folder: &Path, names: &[&str]) -> Option<u64> {
    names.iter().find_map(|name| read_to_string(folder.join(name)).ok()?.trim().parse().ok())
}

/// The bytes in the line of `text` that begins with `key`, which is in KiB.
fn number(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1 << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A host of one GiB with so many MiB available, and a cgroup with these files.
    fn host(folder: &Path, available: u64, own: &str, files: &[(&str, &str)]) -> HostMemory {
        let info = format!("MemTotal:  1048576 kB\nMemAvailable: {} kB\n", available << 10);
        let proc = [("proc/meminfo", &*info), ("proc/self/cgroup", own)];
        for (name, text) in proc.iter().chain(files) {
            let path = folder.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        for live in ["status", "smaps"] {
            let _ = std::os::unix::fs::symlink(format!("/proc/self/{live}"), folder.join("proc/self").join(live));
        }
        HostMemory::new(&folder.join("proc"), &folder.join("cgroup"))
    }

    #[test]
    fn limits_of_all_cgroups_around_count() {
        let folder = tempfile::tempdir().unwrap();
        let files = [
            ("cgroup/system.slice/memory.max", "536870912\n"),
            ("cgroup/system.slice/memory.current", "104857600\n"),
            ("cgroup/system.slice/memory.stat", "anon 7\nactive_file 1048576\ninactive_file 2097152\n"),
            ("cgroup/system.slice/memlane.service/memory.max", "max\n"),
        ];
        let host = host(folder.path(), 800, "0::/system.slice/memlane.service\n", &files);
        assert_eq!((host.total(), host.left()), (512 << 20, (512 - 100 + 3) << 20));
        assert_eq!(host.of_machine(), 1 << 30);
    }

    #[test]
    fn version_1_and_none_are_read_too() {
        let folder = tempfile::tempdir().unwrap();
        let files = [("cgroup/memory/c/memory.limit_in_bytes", "268435456"), ("cgroup/memory/c/memory.usage_in_bytes", "0")];
        let own = "3:cpuset:/\n4:memory:/c\n0::/\n";
        let limited = host(folder.path(), 800, own, &files);
        assert_eq!((limited.total(), limited.left()), (256 << 20, 256 << 20));
        std::fs::write(folder.path().join("cgroup/memory/c/memory.limit_in_bytes"), "9223372036854771712").unwrap();
        assert_eq!((limited.total(), limited.left()), (1 << 30, 800 << 20));
        assert!(HostMemory::new(Path::new("/none"), Path::new("/none")).total() > 0);
    }

    #[test]
    fn what_is_charged_is_told_where_no_other_process_is_in_the_cgroup() {
        let folder = tempfile::tempdir().unwrap();
        let own = std::process::id();
        let files = [("cgroup/c/cgroup.procs", &*format!("{own}\n4711\n")), ("cgroup/c/memory.stat", "anon 7\nshmem 4096\n")];
        let host = host(folder.path(), 800, "0::/c\n", &files);
        assert_eq!(host.charged(), None);
        let stat = |process: u32, parent: u32| {
            let place = folder.path().join("proc").join(process.to_string());
            std::fs::create_dir_all(&place).unwrap();
            std::fs::write(place.join("stat"), format!("{process} (a (b) c) S {parent} 1 1\n")).unwrap();
        };
        stat(4711, 1);
        assert_eq!(host.charged(), None);
        stat(4711, own);
        assert_eq!(host.charged(), Some(4096));
        // The shell that has started this.
        stat(4711, 1);
        stat(own, 4711);
        assert_eq!(host.charged(), Some(4096));
    }

    #[test]
    fn this_process_is_seen() {
        let own = HostMemory::of_this_process();
        assert!(own.total() > 0 && own.left() > 0);
        assert!(own.touched_by_mapping().iter().any(|mapping| mapping.bytes > 0));
    }
}
