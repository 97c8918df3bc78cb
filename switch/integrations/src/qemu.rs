//! The version of the QEMU that arguments are printed for: reported by the program on the PATH, or given by the operator.

use std::fmt;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::sync::mpsc::channel;
use std::time::Duration;

use super::kvm::runs_kvm;

/// Timeout of `qemu --version`.
const TIMEOUT: Duration = Duration::from_secs(3);
/// Most bytes read of its output.
const MOST: u64 = 4096;
/// First version with `reconnect-ms`; `reconnect` ended with 11.0.
const RECONNECT_MS: Version = Version(9, 2);
/// First version without a bug: before, interrupt vectors on a vhost-user NIC end in a segmentation fault under TCG (seen with
/// 7.2, not with 10.0).
const VECTORS: Version = Version(10, 0);

/// Major and minor number of a QEMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(u32, u32);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

impl FromStr for Version {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut numbers = text.split('.').map(str::parse);
        match (numbers.next(), numbers.next()) {
            (Some(Ok(major)), None) => Ok(Self(major, 0)),
            (Some(Ok(major)), Some(Ok(minor))) => Ok(Self(major, minor)),
            _ => Err("a version of QEMU, as 7.2 or 11.1.3".into()),
        }
    }
}

/// The properties of QEMU on which arguments depend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Qemu {
    /// `None`: not known, and treated as a new one.
    version: Option<Version>,
    /// Guests run without KVM.
    emulates: bool,
}

impl Qemu {
    /// The QEMU of the version `named`, or the one on the PATH, on this machine.
    pub fn find(named: Option<Version>) -> Self {
        let version = named.or_else(|| program().and_then(|program| ask(&program)));
        Self { version, emulates: version < Some(VECTORS) && !runs_kvm() }
    }

    /// The option by which a socket reconnects one second after a disconnect.
    pub fn reconnect(self) -> &'static str {
        if self.version.is_some_and(|version| version < RECONNECT_MS) { "reconnect=1" } else { "reconnect-ms=1000" }
    }

    /// True if a vhost-user NIC must have no interrupt vectors.
    pub fn crashes_with_vectors(self) -> bool {
        self.emulates && self.version.is_some_and(|version| version < VECTORS)
    }

    /// A note for the operator where no QEMU reported its version.
    pub fn note(self) -> Option<&'static str> {
        self.version.is_none().then_some(
            "no QEMU on the PATH reported its version: these arguments are for QEMU 9.2 and newer. For another, give --qemu-version VERSION",
        )
    }

    /// Version of the machine type, if it is known.
    pub fn version(self) -> Option<Version> {
        self.version
    }

    /// A QEMU of this version, which emulates guests or runs them by KVM.
    pub const fn of(version: (u32, u32), emulates: bool) -> Self {
        Self { version: Some(Version(version.0, version.1)), emulates }
    }
}

/// QEMU under one of its names in distributions, on the PATH or in Fedora's folder for it.
fn program() -> Option<PathBuf> {
    let names = [format!("qemu-system-{}", std::env::consts::ARCH), "qemu-kvm".into(), "kvm".into()];
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = std::env::split_paths(&path).chain(["/usr/libexec".into()]).collect();
    names.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name))).find(|program| program.is_file())
}

/// The version that `program` reports within the timeout.
fn ask(program: &Path) -> Option<Version> {
    let mut command = Command::new(program);
    let mut child = command.arg("--version").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().ok()?;
    let output = child.stdout.take()?;
    let (tell, told) = channel();
    let reader = std::thread::Builder::new().spawn(move || {
        let mut line = String::new();
        // Output that is no UTF-8 has no version.
        let _ = BufReader::new(output.take(MOST)).read_line(&mut line);
        let _ = tell.send(line);
    });
    let line = reader.ok().and_then(|_| told.recv_timeout(TIMEOUT).ok());
    let _ = child.kill();
    let _ = child.wait();
    told_version(&line?)
}

/// The version in the first line of `--version`: "QEMU emulator version 7.2.22 (Debian ...)".
fn told_version(line: &str) -> Option<Version> {
    let (_, rest) = line.split_once("version ")?;
    rest.split(|letter: char| letter != '.' && !letter.is_ascii_digit()).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::time::Instant;

    /// The version reported by a program that is this shell script.
    fn told_by(script: &str) -> Option<Version> {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("qemu");
        std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        ask(&program)
    }

    #[test]
    fn qemu_tells_its_version() {
        for (told, version) in [
            ("QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18+b3)", Some(Version(7, 2))),
            ("QEMU emulator version 11.1.3 (Debian 1:11.1.3+ds-1)", Some(Version(11, 1))),
            ("QEMU emulator version 10.0.94 (v10.1.0-rc4)", Some(Version(10, 0))),
            ("QEMU emulator version v8", None),
            ("", None),
        ] {
            assert_eq!(told_by(&format!("echo '{told}'")), version, "{told}");
        }
        assert_eq!(told_by("head -c 100000 /dev/urandom"), None);
    }

    #[test]
    fn a_program_that_does_not_answer_is_not_waited_for() {
        let begun = Instant::now();
        assert_eq!(told_by("exec sleep 100"), None);
        assert!(begun.elapsed() < Duration::from_secs(50));
    }

    #[test]
    fn arguments_follow_from_the_version() {
        assert_eq!(Qemu::of((9, 1), false).reconnect(), "reconnect=1");
        assert_eq!(Qemu::of((9, 2), false).reconnect(), "reconnect-ms=1000");
        assert_eq!(Qemu { version: None, emulates: true }.reconnect(), "reconnect-ms=1000");
        assert!(Qemu { version: None, emulates: true }.note().is_some() && Qemu::of((7, 2), true).note().is_none());
        let crashes = |version, emulates| Qemu::of(version, emulates).crashes_with_vectors();
        assert!(crashes((7, 2), true) && crashes((9, 2), true) && !crashes((10, 0), true) && !crashes((7, 2), false));
    }
}
