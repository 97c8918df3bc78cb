//! The host runs out of memory for a guest: the switch tells a full file system from a file that the guest truncated.

use std::fs::File;
use std::process::Command;

use crate::common::*;
use memlane::memory::{Loss, Region, RegionTable};

#[test]
fn a_full_tmpfs_is_told_from_a_truncated_file() {
    in_namespaces(&["--mount"], "memory_runs_out::a_full_tmpfs_is_told_from_a_truncated_file", || {
        let folder = tempfile::tempdir().unwrap();
        let mount = Command::new("mount").args(["-t", "tmpfs", "-o", "size=64k", "none"]).arg(folder.path()).status();
        assert!(mount.unwrap().success());
        let file = File::options().read(true).write(true).create_new(true).open(folder.path().join("memory")).unwrap();
        file.set_len(1 << 20).unwrap();
        let table = RegionTable { guest_start: 0, length: 1 << 20, user_start: 0, file_offset: 0 };
        let region = Region::map(table, file).unwrap();
        assert_eq!(region.loss(), None);
        region.fill(1);
        assert_eq!(region.loss(), Some(Loss::Full));
    });
}
