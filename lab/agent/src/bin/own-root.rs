//! A root tree of the guest's own, which it may write: a file system in its memory, with links that lead into the image.
//!
//!     own-root PROGRAM [ARGUMENT...]   makes the tree, and runs the program in it
//!     own-root --room PATH...          makes the folders of these paths, and has them written as folders of the tree
//!
//! The image is shared by all guests and stays as it is, under /.image. A folder of it that is never written is one
//! link; `--room` unfolds it to a folder of links.

use std::collections::VecDeque;
use std::env;
use std::ffi::{CString, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, chroot, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Component, Path, PathBuf};
use std::process::{Command, ExitCode};

/// Where the tree is made: a folder that every image has.
const TREE: &str = "/tmp";
/// Where the image is in the tree.
const IMAGE: &str = "/.image";
/// Folders that begin empty.
const EMPTY: [&str; 6] = ["dev", "proc", "root", "run", "sys", "tmp"];
/// Folders of links to the tree's other folders.
const UNFOLDED: [&str; 2] = ["usr", "var"];
/// Most links that lead to each other (ELOOP, path_resolution(7)).
const MOST_LINKS: usize = 40;

fn main() -> ExitCode {
    let words: Vec<OsString> = env::args_os().skip(1).collect();
    let done = match words.split_first() {
        Some((first, paths)) if first == "--room" => paths.iter().try_for_each(|path| make_room(Path::new(path))),
        Some((program, arguments)) => enter().and_then(|()| Err(Command::new(program).args(arguments).exec())),
        None => Err(io::Error::other("say `own-root PROGRAM [ARGUMENT...]` or `own-root --room PATH...`")),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("own-root: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Makes the tree and makes it this process's root.
fn enter() -> io::Result<()> {
    let image = PathBuf::from(format!("{TREE}{IMAGE}"));
    mount("tmpfs", Path::new(TREE), "tmpfs", 0, "mode=755,size=90%")?;
    fs::create_dir(&image)?;
    mount("/", &image, "", libc::MS_BIND, "")?;
    mount("", &image, "", libc::MS_REMOUNT | libc::MS_BIND | libc::MS_RDONLY, "")?;
    for name in names(&image)? {
        let (from, to) = (image.join(&name), Path::new(TREE).join(&name));
        match name.to_str() {
            Some(empty) if EMPTY.contains(&empty) => fs::create_dir(&to)?,
            Some("etc") => copy(&from, &to)?,
            Some(unfolded) if UNFOLDED.contains(&unfolded) => unfold(&from, &Path::new(IMAGE).join(&name), &to)?,
            _ => link(&from, &Path::new(IMAGE).join(&name), &to)?,
        }
    }
    fs::set_permissions(Path::new(TREE).join("tmp"), fs::Permissions::from_mode(0o1777))?;
    chroot(TREE)?;
    env::set_current_dir("/")
}

fn mount(source: &str, target: &Path, kind: &str, flags: libc::c_ulong, options: &str) -> io::Result<()> {
    let text = |bytes: &[u8]| CString::new(bytes).map_err(io::Error::other);
    let (source, path, kind, options) =
        (text(source.as_bytes())?, text(target.as_os_str().as_bytes())?, text(kind.as_bytes())?, text(options.as_bytes())?);
    // SAFETY: all four are strings that end with a zero and live longer than the call.
    let status = unsafe { libc::mount(source.as_ptr(), path.as_ptr(), kind.as_ptr(), flags, options.as_ptr().cast()) };
    let told = |cause: io::Error| io::Error::other(format!("cannot mount {}: {cause}", target.display()));
    if status == 0 { Ok(()) } else { Err(told(io::Error::last_os_error())) }
}

fn names(folder: &Path) -> io::Result<Vec<OsString>> {
    fs::read_dir(folder)?.map(|entry| entry.map(|found| found.file_name())).collect()
}

/// Copies a folder of small files.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir(to)?;
    for name in names(from)? {
        let (source, target) = (from.join(&name), to.join(&name));
        let kind = fs::symlink_metadata(&source)?.file_type();
        if kind.is_dir() {
            copy(&source, &target)?;
        } else if kind.is_symlink() {
            symlink(fs::read_link(&source)?, target)?;
        } else {
            fs::copy(&source, target)?;
        }
    }
    Ok(())
}

/// The link `to` for the entry `from` of the image, which is called `place` in the tree. A link of the image stays as it is.
fn link(from: &Path, place: &Path, to: &Path) -> io::Result<()> {
    let is_link = fs::symlink_metadata(from)?.is_symlink();
    symlink(if is_link { fs::read_link(from)? } else { place.to_owned() }, to)
}

/// The folder `to`, of links to the entries of the image's folder `from`, which is called `place` in the tree.
fn unfold(from: &Path, place: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir(to)?;
    names(from)?.iter().try_for_each(|name| link(&from.join(name), &place.join(name), &to.join(name)))
}

/// Makes the folder of `path` one that can be written, and takes away a link at `path` itself.
fn make_room(path: &Path) -> io::Result<()> {
    let told = |cause: io::Error| io::Error::other(format!("no file can be laid at {}: {cause}", path.display()));
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(told(io::Error::other("this is no path of a file")));
    };
    let there = folder(parent).map_err(told)?.join(name);
    let is_link = fs::symlink_metadata(&there).is_ok_and(|found| found.is_symlink());
    if is_link { fs::remove_file(&there).map_err(told) } else { Ok(()) }
}

/// The folder at `path`, made if it is missing, without links in its path.
fn folder(path: &Path) -> io::Result<PathBuf> {
    let mut at = PathBuf::from("/");
    let mut left: VecDeque<OsString> = parts(path).collect();
    let mut links = 0;
    while let Some(name) = left.pop_front() {
        if name == ".." {
            at.pop();
            continue;
        }
        let next = at.join(&name);
        match fs::symlink_metadata(&next) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => fs::create_dir(&next)?,
            Ok(found) if found.is_symlink() => {
                let target = fs::read_link(&next)?;
                links += 1;
                if links > MOST_LINKS {
                    return Err(io::Error::other("its links lead in a circle"));
                } else if target.starts_with(IMAGE) {
                    replace(&next, &target)?;
                } else {
                    at = if target.is_absolute() { PathBuf::from("/") } else { at };
                    parts(&target).collect::<Vec<_>>().into_iter().rev().for_each(|part| left.push_front(part));
                    continue;
                }
            }
            Ok(found) if found.is_dir() => {}
            Ok(_) => return Err(io::Error::other(format!("{} is a file", next.display()))),
            Err(error) => return Err(error),
        }
        at = next;
    }
    Ok(at)
}

fn parts(path: &Path) -> impl Iterator<Item = OsString> {
    path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    })
}

/// Puts the unfolded folder in place of the link `at` to the image's folder `target`. Programs are found there at every moment.
fn replace(at: &Path, target: &Path) -> io::Result<()> {
    let beside = Path::new("/.unfolding");
    unfold(target, target, beside)?;
    let text = |path: &Path| CString::new(path.as_os_str().as_bytes()).map_err(io::Error::other);
    let (new, old) = (text(beside)?, text(at)?);
    // SAFETY: both are strings that end with a zero and live longer than the call.
    let status = unsafe {
        libc::syscall(libc::SYS_renameat2, libc::AT_FDCWD, new.as_ptr(), libc::AT_FDCWD, old.as_ptr(), libc::RENAME_EXCHANGE)
    };
    if status == 0 { fs::remove_file(beside) } else { Err(io::Error::last_os_error()) }
}
