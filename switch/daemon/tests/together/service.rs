//! The service manager is notified of readiness, reloads and the end, in this order.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use crate::command::{Running, memlane, network, write};
use crate::common::TIMEOUT;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

fn next(manager: &UnixDatagram) -> String {
    let mut text = [0; 4096];
    let length = manager.recv(&mut text).expect("a notification");
    String::from_utf8(text[..length].to_vec()).unwrap()
}

#[test]
fn the_service_manager_is_notified_in_order() {
    let folder = network("web.sock");
    let folder = folder.path();
    let socket = folder.join("notify");
    let manager = UnixDatagram::bind(&socket).unwrap();
    manager.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut command = memlane(folder, &["up", "net.toml"]);
    command.env("NOTIFY_SOCKET", &socket);
    let running = Running::start(command);
    let signal = |signal| kill(Pid::from_raw(running.0.id() as i32), signal).unwrap();
    assert_eq!(next(&manager), "READY=1\nSTATUS=1 ports, 0 running, 0 quarantined");
    write(folder, "net.toml", "[[port]]\nname = \"web\"\nvhost-user = \"web.sock\"\n[[port]]\nname = \"null\"\nnull = true\n");
    signal(Signal::SIGHUP);
    let reloading = next(&manager);
    let (first, time) = reloading.split_once("\nMONOTONIC_USEC=").unwrap();
    assert!(first == "RELOADING=1" && time.parse::<u64>().unwrap() > 0, "{reloading}");
    assert_eq!(next(&manager), "READY=1\nSTATUS=2 ports, 1 running, 0 quarantined");
    signal(Signal::SIGTERM);
    assert_eq!(next(&manager), "STOPPING=1");
}

#[test]
fn a_service_manager_in_the_abstract_namespace_is_notified() {
    let folder = network("web.sock");
    let name = format!("memlane-test-{}", std::process::id());
    let manager = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    manager.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut command = memlane(folder.path(), &["up", "net.toml"]);
    command.env("NOTIFY_SOCKET", format!("@{name}"));
    let _running = Running::start(command);
    assert!(next(&manager).starts_with("READY=1\n"));
}
