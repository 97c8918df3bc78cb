//! Sessions of vhost-user ports share a few threads: no front end, whatever it does, holds up the session of another port.

use std::ffi::CStr;
use std::fs::File;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use memlane_rig::guest::ToyGuest;
use memlane_rig::memory::MemoryPlan;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use vmm_sys_util::sock_ctrl_msg::ScmSocket;

use crate::command::{Running, memlane, write};
use crate::common::{POLL_INTERVAL, TIMEOUT, announce, in_namespaces, mac, wait_until};

/// Ports whose front ends misbehave: many more than there are threads. Two others follow.
const BAD: usize = 24;

fn start(folder: &Path) -> Running {
    let port = |n: usize| format!("[[port]]\nname = \"p{n}\"\nvhost-user = \"p{n}.sock\"\n");
    write(folder, "net.toml", &(0..BAD + 2).map(port).collect::<String>());
    let mut up = memlane(folder, &["up", "net.toml"]);
    up.stderr(File::create(folder.join("log")).unwrap());
    Running::start(up)
}

fn connect(folder: &Path, port: usize) -> UnixStream {
    UnixStream::connect(folder.join(format!("p{port}.sock"))).unwrap()
}

/// The ports after the bad ones have guests, whose frames arrive.
fn others_are_served(folder: &Path) {
    let guest = |index: usize| {
        let builder = ToyGuest::builder().mac(mac(index)).timeout(TIMEOUT).memory(MemoryPlan::new(64 << 20));
        builder.connect(folder.join(format!("p{index}.sock"))).unwrap()
    };
    let (mut a, mut b) = (guest(BAD), guest(BAD + 1));
    announce(&mut [&mut a, &mut b]);
}

fn header(request: u32, length: usize) -> Vec<u8> {
    [request, 1, length as u32].map(u32::to_ne_bytes).concat()
}

/// Front ends that have sent half of a message, that read no replies, and that send messages without end: of each, many.
#[test]
fn front_ends_that_stop_halfway_or_do_not_read_or_never_stop_delay_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let _running = start(folder);
    let (question, note) = (header(1, 0), header(3, 0));
    let (mut bad, mut floods) = (Vec::new(), Vec::new());
    for port in 0..BAD {
        let mut stream = connect(folder, port);
        match port % 3 {
            0 => stream.write_all(&header(2, 8)[..7]).unwrap(),
            1 => {
                stream.set_write_timeout(Some(POLL_INTERVAL)).unwrap();
                while stream.write_all(&question).is_ok() {}
            }
            _ => {
                let (mut copy, note) = (stream.try_clone().unwrap(), note.clone());
                floods.push(std::thread::spawn(move || while copy.write_all(&note).is_ok() {}));
            }
        }
        bad.push(stream);
    }
    others_are_served(folder);
    assert!(floods.iter().all(|flood| !flood.is_finished()), "they flood still");
    // Front ends that read again, or send the rest, are served as if nothing had been.
    for (port, stream) in bad.iter_mut().enumerate() {
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        match port % 3 {
            0 => stream.write_all(&[&header(2, 8)[7..], &[0; 8][..], &question[..]].concat()).unwrap(),
            1 => {}
            _ => {
                stream.shutdown(Shutdown::Both).unwrap();
                continue;
            }
        }
        let mut reply = [0; 20];
        stream.read_exact(&mut reply).unwrap();
        assert_eq!(reply[..4], question[..4], "port {port}");
    }
    floods.into_iter().for_each(|flood| flood.join().unwrap());
}

/// The root of a file system at `place` whose server never answers, and the server.
fn mount_silent(place: &CStr) -> (File, File) {
    let server = File::options().read(true).write(true).open("/dev/fuse").expect("/dev/fuse of the kernel's FUSE");
    let options = format!("fd={},rootmode=40000,user_id=0,group_id=0\0", server.as_raw_fd());
    let kind = c"fuse".as_ptr();
    // SAFETY: all are strings that end with a zero byte and outlive the call.
    let result = unsafe { libc::mount(kind, place.as_ptr(), kind, 0, options.as_ptr().cast()) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    // Opened without a question to the server.
    let root = File::options().read(true).custom_flags(libc::O_PATH).open(place.to_str().unwrap()).unwrap();
    (root, server)
}

#[test]
fn ports_whose_threads_the_kernel_holds_delay_neither_others_nor_the_end() {
    in_namespaces(&["--mount"], "sessions::ports_whose_threads_the_kernel_holds_delay_neither_others_nor_the_end", || {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let place = folder.join("silent");
        std::fs::create_dir(&place).unwrap();
        let (root, _server) = mount_silent(&std::ffi::CString::new(place.to_str().unwrap()).unwrap());
        let mut running = start(folder);
        // SET_MEM_TABLE of one region in that file.
        let table = [1_u64, 0, 1 << 20, 0, 0].map(u64::to_ne_bytes).concat();
        let bad: Vec<UnixStream> = (0..BAD)
            .map(|port| {
                let mut stream = connect(folder, port);
                stream.write_all(&header(3, 0)).unwrap();
                stream.send_with_fds(&[&[header(5, table.len()), table.clone()].concat()[..]], &[root.as_raw_fd()]).unwrap();
                stream
            })
            .collect();
        let blocked = || {
            let tasks = std::fs::read_dir(format!("/proc/{}/task", running.0.id())).unwrap();
            let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
            names.filter(|name| name.starts_with("session-")).count() >= BAD
        };
        wait_until(blocked, "each of them holds a thread");
        others_are_served(folder);
        kill(Pid::from_raw(running.0.id() as i32), Signal::SIGTERM).unwrap();
        wait_until(|| !running.lives(), "the network ends");
        let log = std::fs::read_to_string(folder.join("log")).unwrap();
        assert_eq!(log.matches("session abandoned").count(), BAD, "{log}");
        drop(bad);
    });
}
