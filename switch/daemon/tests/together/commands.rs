//! The commands for a network that runs: its ports are looked at, come, change and go; its file is read again; its state comes back.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::command::{Running, TIMEOUT, memlane, network, port, printed, told, wait_until, write};
use crate::common::{frame, in_namespaces, mac};
use memlane_rig::guest::ToyGuest;
use memlane_rig::memory::MemoryPlan;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

/// A network in `folder` that runs with these arguments.
fn up(folder: &Path, arguments: &[&str]) -> Running {
    Running::start(memlane(folder, &[&["up"], arguments].concat()))
}

/// JSON output of a command.
fn json(folder: &Path, arguments: &[&str]) -> Value {
    serde_json::from_str(&printed(folder, arguments)).unwrap()
}

/// Output of a command that ends with this code.
fn fails(folder: &Path, arguments: &[&str], code: i32) -> String {
    let output: Output = memlane(folder, arguments).output().unwrap();
    let told = told(&output);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {told}");
    told
}

/// Names of the ports that run.
fn names(folder: &Path, net: &[&str]) -> Vec<String> {
    let ports = json(folder, &[&["ls"], net, &["--json"]].concat());
    ports.as_array().unwrap().iter().map(|port| port["name"].as_str().unwrap().into()).collect()
}

fn signal(running: &Running, signal: Signal) {
    kill(Pid::from_raw(running.0.id() as i32), signal).unwrap();
}

#[test]
fn a_port_that_the_sandbox_does_not_allow_is_refused_with_the_remedy() {
    let folder = network("web.sock");
    let (folder, elsewhere) = (folder.path(), tempfile::tempdir().unwrap());
    let running = up(folder, &["net.toml"]);
    let refused = fails(folder, &["attach", "net.toml", "t", "--tap", "t0"], 1);
    assert!(refused.contains("sandbox = { kinds = [\"tap\"] }"), "{refused}");
    let socket = elsewhere.path().join("a.sock");
    let attach = ["attach", "net.toml", "a", "--vhost-user", socket.to_str().unwrap(), "--print", "nothing"];
    let refused = fails(folder, &attach, 1);
    assert!(refused.contains(&format!("sandbox = {{ folders = [\"{}\"] }}", elsewhere.path().display())), "{refused}");
    assert_eq!(names(folder, &["net.toml"]), ["web"]);
    drop(running);
    let text = std::fs::read_to_string(folder.join("net.toml")).unwrap();
    write(folder, "with.toml", &format!("sandbox = {{ folders = [\"{}\"] }}\n{text}", elsewhere.path().display()));
    for arguments in [&["with.toml"][..], &["net.toml", "--sandbox", "none"]] {
        let _running = up(folder, arguments);
        printed(folder, &[&["attach", arguments[0]], &attach[2..]].concat());
        assert!(socket.exists());
    }
}

#[test]
fn a_network_without_a_file_gets_its_ports_by_commands() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    assert!(fails(folder, &["ls"], 1).contains("Start the network with `memlane up`"));
    let _running = up(folder, &[]);
    assert!(names(folder, &[]).is_empty());

    let arguments = printed(folder, &["attach", "web", "--weight", "3", "--memory", "1G"]);
    let socket = folder.join("memlane/memlane.web.sock");
    assert!(arguments.contains(&format!("path={},reconnect", socket.display())) && arguments.contains("share=on"), "{arguments}");
    assert!(socket.exists());
    // A port that was attached prints the same arguments later as one from the file.
    assert_eq!(printed(folder, &["qemu", "web", "--memory", "1G"]), arguments);
    assert!(printed(folder, &["libvirt", "memlane", "web"]).contains("<interface"));
    let db = printed(folder, &["attach", "memlane", "db", "--vhost-user", "db.sock", "--segment", "back", "--print", "uml"]);
    assert_eq!(db, format!("virtio_uml.device={}:1\n", folder.join("db.sock").display()));
    assert_eq!(printed(folder, &["attach", "sink", "--null", "--print", "nothing"]), "");

    assert_eq!(names(folder, &["memlane"]), ["web", "db", "sink"]);
    let list = printed(folder, &["ls"]);
    assert!(list.lines().nth(2).is_some_and(|line| line.contains("back") && line.contains("db.sock")), "{list}");
    assert!(printed(folder, &["ls", "--segments"]).contains("lan      web sink"));
    assert!(
        printed(folder, &["set", "web", "--mtu", "1400", "--mac", "02:00:00:00:00:07"]).contains("mac 02:00:00:00:00:07, mtu 1400")
    );
    let page = printed(folder, &["show", "web"]);
    assert!(page.contains("weight 3") && page.contains("02:00:00:00:00:07"), "{page}");
    assert_eq!(json(folder, &["set", "web", "--mtu", "none", "--mac", "none", "--json"]).get("mtu"), None);
    assert_eq!(printed(folder, &["drain", "web"]), "web: drained\n");
    for command in ["ls", "status", "show"] {
        let text = printed(folder, if command == "show" { &["show", "web"] } else { std::slice::from_ref(&command) });
        assert!(text.contains("disabled"), "{command}: {text}");
    }
    assert!(!printed(folder, &["set", "web", "--enabled", "true"]).contains("disabled"));
    assert_eq!(printed(folder, &["detach", "web", "--drain", "1"]), "web: detached\n");
    assert_eq!(json(folder, &["detach", "db", "--json"])["segment"], "back");
    assert_eq!(names(folder, &[]), ["sink"]);
}

#[test]
fn what_cannot_be_done_has_its_exit_code() {
    let folder = network("web.sock");
    let folder = folder.path();
    let _running = up(folder, &["net.toml"]);
    assert!(fails(folder, &["attach", "net.toml", "a b", "--null", "--mtu", "3"], 2).contains("mtu"));
    for name in ["a/b", "/", "../x", "..", "a b", "", "a\nb"] {
        let said = fails(folder, &["attach", "net.toml", name], 2);
        assert!(said.contains(&format!("name is {name:?}; it must be")), "{said}");
    }
    assert!(fails(folder, &["attach", "net.toml", "web", "--null"], 1).contains("port name web is used twice"));
    assert!(fails(folder, &["set", "net.toml", "web", "--mac", "nonsense"], 2).contains("mac"));
    assert!(fails(folder, &["set", "net.toml", "nobody", "--weight", "3"], 1).contains("no port 'nobody'"));
    assert!(fails(folder, &["detach", "net.toml", "nobody"], 1).contains("no port 'nobody'"));
    assert_eq!(printed(folder, &["detach", "nobody", "--if-exists", "--drain", "1"]), "nobody: not attached\n");
    let again = || printed(folder, &["attach", "again", "--null", "--may-exist"]);
    assert_eq!(again(), again());
    assert_eq!(printed(folder, &["detach", "again", "--if-exists"]), "again: detached\n");
    assert!(fails(folder, &["qemu", "net.toml", "nobody"], 2).contains("its ports are web"));
    assert!(fails(folder, &["show", "missing.toml", "web"], 2).contains("missing.toml"));
    fails(folder, &["attach", "net.toml", "x", "--null", "--loopback"], 2);
    assert!(fails(folder, &["ls", "--control", "none.sock"], 1).contains("none.sock"));
    let control = listed(folder)[0]["control"].as_str().unwrap().to_owned();
    assert_eq!(names(folder, &["--control", &control]), ["web"]);
    assert_eq!(names(folder, &["net"]), ["web"]);
}

#[test]
fn a_port_that_takes_long_to_come_holds_up_no_other_command_and_no_end() {
    use std::os::unix::fs::PermissionsExt;
    let folder = network("web.sock");
    let folder = folder.path();
    // A passt that says when it was asked, and does not answer.
    let passt = write(folder, "passt", "#!/bin/sh\n: > asked\nexec sleep 60\n");
    std::fs::set_permissions(&passt, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = memlane(folder, &["up", "net.toml", "--sandbox", "none"]);
    command.env("PATH", format!("{}:{}", folder.display(), std::env::var("PATH").unwrap()));
    let mut running = Running::start(command);
    let mut slow = memlane(folder, &["attach", "net.toml", "out", "--passt"]).stderr(std::process::Stdio::null()).spawn().unwrap();
    wait_until(|| folder.join("asked").exists(), "the slow port is on its way");
    assert_eq!(names(folder, &["net.toml"]), ["web"]);
    printed(folder, &["attach", "net.toml", "quick", "--null", "--print", "nothing"]);
    signal(&running, Signal::SIGTERM);
    wait_until(|| !running.lives(), "the network has ended");
    slow.wait().unwrap();
}

#[test]
fn libvirt_stats_has_the_counters_of_a_domains_ports() {
    use std::os::unix::fs::PermissionsExt;
    let folder = network("web.sock");
    let folder = folder.path();
    let text = std::fs::read_to_string(folder.join("net.toml")).unwrap();
    write(folder, "net.toml", &format!("{text}[[port]]\nname = \"db\"\nvhost-user = \"db.sock\"\n"));
    let _running = up(folder, &["net.toml"]);
    let guest = |name: &str, number: usize| {
        let builder = ToyGuest::builder().mac(mac(number)).timeout(TIMEOUT).memory(MemoryPlan::new(64 << 20));
        builder.connect(folder.join(name)).unwrap()
    };
    let (mut web, mut db) = (guest("web.sock", 1), guest("db.sock", 2));
    web.send(&frame(mac(1), [0xff; 6], 100, 0)).unwrap();
    db.receive(TIMEOUT).unwrap();
    let virsh = |sockets: &[&str]| {
        let interface = |socket: &&str| {
            format!("<interface type=\"vhostuser\"><source type=\"unix\" path=\"{}\"/></interface>", folder.join(socket).display())
        };
        let interfaces: String = sockets.iter().map(interface).collect();
        let script = format!("#!/bin/sh\n[ \"$*\" = \"dumpxml --domain shop\" ] || exit 1\necho '<domain>{interfaces}</domain>'\n");
        std::fs::set_permissions(write(folder, "virsh", &script), std::fs::Permissions::from_mode(0o755)).unwrap();
        let mut command = memlane(folder, &["libvirt-stats", "shop"]);
        command.env("PATH", format!("{}:{}", folder.display(), std::env::var("PATH").unwrap())).output().unwrap()
    };
    let wanted = |port: &str, received: u8, sent: u8| {
        let half = |direction: &str, frames: u8| {
            let bytes = 100 * u32::from(frames);
            format!(
                "net.{port} {direction}_bytes {bytes}\nnet.{port} {direction}_packets {frames}\nnet.{port} {direction}_drop 0\n"
            )
        };
        half("rx", received) + &half("tx", sent)
    };
    let both = wanted("db", 1, 0) + &wanted("web", 0, 1);
    // The worker counts a frame after the guest has it.
    wait_until(|| virsh(&["db.sock", "web.sock"]).stdout == both.as_bytes(), "the frame is counted");
    assert!(virsh(&["db.sock", "web.sock"]).status.success());
    let output = virsh(&["web.sock", "other.sock"]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), wanted("web", 0, 1));
    assert!(!output.status.success() && told(&output).contains("no running network has a port at"), "{}", told(&output));
    assert!(told(&virsh(&[])).contains("domain shop has no interface of type vhostuser"));
}

#[test]
fn a_fifo_in_place_of_a_namespace_is_refused_at_once() {
    in_namespaces(&["--mount", "--net"], "commands::a_fifo_in_place_of_a_namespace_is_refused_at_once", || {
        let folder = network("web.sock");
        let folder = folder.path();
        let shell = "mount -t tmpfs none /run && mkdir /run/netns && mkfifo /run/netns/fifo";
        assert!(Command::new("sh").args(["-c", shell]).status().unwrap().success());
        write(folder, "net.toml", &format!("sandbox = {{ kinds = [\"tap\"] }}\n{}", port("web.sock", "")));
        let _running = up(folder, &["net.toml"]);
        let refused = fails(folder, &["attach", "net.toml", "t", "--tap", "t0", "--netns", "fifo"], 1);
        assert!(refused.contains("/run/netns/fifo is not a network namespace"), "{refused}");
        assert!(fails(folder, &["attach", "net.toml", "t", "--tap", "t0", "--netns", "../../proc/1/ns/net"], 2).contains("netns"));
    });
}

#[test]
fn a_network_that_does_not_answer_is_told_after_a_moment() {
    let folder = network("web.sock");
    let folder = folder.path();
    let running = up(folder, &["net.toml"]);
    signal(&running, Signal::SIGSTOP);
    let told = fails(folder, &["status", "net.toml"], 1);
    assert!(told.contains("did not answer within 5 s"), "{told}");
    signal(&running, Signal::SIGCONT);
    assert_eq!(names(folder, &["net.toml"]), ["web"]);
}

#[test]
fn a_port_that_is_a_file_is_told() {
    let folder = network("web.sock");
    let folder = folder.path();
    let _running = up(folder, &[]);
    for command in ["attach", "show", "detach", "drain", "set", "qemu", "uml", "libvirt"] {
        let more = if command == "set" { &["--weight", "3"][..] } else { &[] };
        let told = fails(folder, &[&[command, "net.toml"], more].concat(), 2);
        assert!(told.contains("'net.toml' is the file of a network, and the name of the port is missing"), "{command}: {told}");
    }
    assert!(names(folder, &[]).is_empty());
}

/// The networks that run in this folder; root sees those of others, too.
fn listed(folder: &Path) -> Vec<Value> {
    let all = json(folder, &["list", "--json"]);
    let here = |one: &&Value| Path::new(one["control"].as_str().unwrap()).starts_with(folder);
    all.as_array().unwrap().iter().filter(here).cloned().collect()
}

/// Networks of two files that are both called net.toml.
fn two_networks(folder: &Path) -> [PathBuf; 2] {
    ["a", "b"].map(|name| {
        let folder = folder.join(name);
        std::fs::create_dir(&folder).unwrap();
        write(&folder, "net.toml", &port(&format!("{name}.sock"), "").replace("web", name))
    })
}

#[test]
fn networks_of_files_of_one_name_are_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().canonicalize().unwrap();
    let [a, b] = two_networks(&folder).map(|path| path.to_str().unwrap().to_owned());
    let _first = up(&folder, &[&a]);
    // One file's commands do not reach the network of the other, which is named.
    for command in [&["reload", "b/net.toml"][..], &["status", &b], &["attach", &b, "x", "--null"], &["ls", "b/../b/net.toml"]] {
        let told = fails(&folder, command, 1);
        assert!(told.contains(&a) && told.contains(&b), "{command:?}: {told}");
    }
    let control = listed(&folder)[0]["control"].as_str().unwrap().to_owned();
    let told = fails(&folder, &["reload", &b, "--control", &control], 1);
    assert!(told.contains(&a) && told.contains(&b), "{told}");
    let told = fails(&folder, &["up", &a], 1);
    assert!(told.contains(&format!("network net of {a} (process ")) && told.contains("memlane down"), "{told}");

    let second = up(&folder, &[&b]);
    assert_eq!((names(&folder, &[&a]), names(&folder, &[&b])), (vec!["a".to_owned()], vec!["b".to_owned()]));
    let told = fails(&folder, &["ls", "net"], 1);
    assert!(told.contains("more than one network is called net") && told.contains(&a) && told.contains(&b), "{told}");
    let list = listed(&folder);
    let files: Vec<_> = list.iter().map(|one| one["file"]["path"].as_str().unwrap()).collect();
    assert_eq!(files, [&a, &b]);
    assert_eq!((&list[1]["name"], &list[1]["pid"], &list[1]["ports"]), (&"net".into(), &second.0.id().into(), &1.into()));
    assert!(printed(&folder, &["list"]).lines().any(|line| line.starts_with("net ") && line.ends_with(&b)));
    // Addresses follow from the network's name, not from where its file lies.
    let address = |file: &str, port: &str| json(&folder, &["show", file, port, "--json"])["address"].clone();
    assert_eq!(address(&a, "a"), memlane::port::default_address("net", "a").to_string());
}

#[test]
fn a_link_to_its_file_finds_a_network_and_moves_no_socket() {
    let folder = network("web.sock");
    let folder = folder.path();
    let elsewhere = folder.join("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    std::os::unix::fs::symlink("../net.toml", elsewhere.join("link.toml")).unwrap();
    let _running = up(folder, &["net.toml"]);
    assert_eq!(names(folder, &["elsewhere/link.toml"]), ["web"]);
    assert_eq!(printed(folder, &["reload", "elsewhere/link.toml"]), "untouched  1 port\n");
    assert!(folder.join("web.sock").exists() && !elsewhere.join("web.sock").exists());
}

#[test]
fn a_network_of_a_link_is_found_by_it_wherever_it_leads_by_now() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let link_to = |release: &str| {
        let _ = std::fs::remove_file(folder.join("current"));
        std::os::unix::fs::symlink(release, folder.join("current")).unwrap();
    };
    for (release, text) in [("r1", ""), ("r2", "weight = 3\n")] {
        std::fs::create_dir(folder.join(release)).unwrap();
        write(&folder.join(release), "net.toml", &port("../web.sock", text));
    }
    link_to("r1");
    let running = up(folder, &["current/net.toml"]);
    link_to("r2");
    for file in ["current/net.toml", "r1/net.toml", "r2/net.toml"] {
        assert_eq!(names(folder, &[file]), ["web"], "{file}");
    }
    assert_eq!(printed(folder, &["reload", "current/net.toml"]), "changed    web: weight\nuntouched  0 ports\n");
    assert!(printed(folder, &["status", "current/net.toml"]).contains("network net"));
    printed(folder, &["down", "current/net.toml"]);
    drop(running);
}

#[test]
fn a_file_elsewhere_that_has_the_path_of_the_networks_own_is_not_applied() {
    in_namespaces(&["--mount"], "commands::a_file_elsewhere_that_has_the_path_of_the_networks_own_is_not_applied", || {
        let folder = network("web.sock");
        let folder = folder.path();
        for (place, name) in [("inside", "web"), ("conf", "stranger")] {
            std::fs::create_dir(folder.join(place)).unwrap();
            write(&folder.join(place), "net.toml", &format!("[[port]]\nname = \"{name}\"\nnull = true\n"));
        }
        // To the network, in its mount namespace, its file lies at conf/net.toml; here another file does.
        let up = memlane(folder, &["up", "conf/net.toml"]);
        let mut command = Command::new("unshare");
        command.args(["--mount", "--", "sh", "-c", "mount --bind inside conf && exec \"$0\" \"$@\""]);
        command.arg(up.get_program()).args(up.get_args()).current_dir(folder);
        command.envs(up.get_envs().filter_map(|(key, value)| Some((key, value?))));
        let _running = Running::start(command);
        assert_eq!(printed(folder, &["reload", "inside/net.toml"]), "untouched  1 port\n");
    });
}

#[test]
fn a_network_is_ended_by_a_command_that_waits() {
    let folder = network("web.sock");
    let folder = folder.path();
    let stated = format!("control = \"here.control\"\n{}", port("web.sock", ""));
    for (round, text) in [port("web.sock", ""), stated].iter().enumerate() {
        write(folder, "net.toml", text);
        let mut running = up(folder, &["net.toml"]);
        // While the file has a mistake, the network that runs is found all the same.
        write(folder, "net.toml", "name = \n");
        assert_eq!(names(folder, &["net.toml"]), ["web"], "{round}");
        assert!(printed(folder, &["status", "net.toml"]).contains("network net"));
        assert_eq!(names(folder, &["net"]), ["web"]);
        assert_eq!(printed(folder, &["down", "net.toml"]), "net: ended\n");
        // The network has ended some moments before its process can be waited for.
        wait_until(|| running.0.try_wait().unwrap().is_some(), "the end of the process");
        assert!(running.0.try_wait().unwrap().is_some_and(|status| status.success()));
        assert!(!folder.join("web.sock").exists() && !folder.join("here.control").exists());
        assert_eq!(std::fs::read_dir(folder.join("memlane")).unwrap().count(), 0, "nothing is left in the run-time folder");
        assert!(listed(folder).is_empty());
        assert!(fails(folder, &["status", "net.toml"], 2).contains("net.toml:1"));
    }
}

#[test]
fn a_network_that_was_killed_is_not_listed() {
    let folder = network("web.sock");
    let folder = folder.path();
    write(folder, "net.toml", &format!("control = \"deep/here.control\"\n{}", port("web.sock", "")));
    std::fs::create_dir(folder.join("deep")).unwrap();
    drop(up(folder, &["net.toml"]));
    assert!(listed(folder).is_empty());
    assert!(fails(folder, &["down", "net.toml"], 1).contains("Start the network with `memlane up`"));
    // A restart finds the link of the run that was killed: it is the network's own, and goes with it.
    let entries = || std::fs::read_dir(folder.join("memlane")).unwrap().map(|entry| entry.unwrap().path());
    let links = || entries().filter(|path| path.extension().is_some_and(|ending| ending == "control")).count();
    let again = up(folder, &["net.toml"]);
    assert_eq!((links(), listed(folder).len()), (1, 1));
    assert_eq!(printed(folder, &["down", "net.toml"]), "net: ended\n");
    assert_eq!(links(), 0);
    drop(again);
    drop(up(folder, &["net.toml"]));
    assert_eq!(links(), 1);
    std::fs::remove_dir_all(folder.join("deep")).unwrap();
    // The next network removes links that lead nowhere.
    write(folder, "other.toml", "control = \"other.control\"\n");
    let _running = up(folder, &["other.toml"]);
    // Beside the link, a network that runs has a folder of its own.
    assert_eq!((links(), entries().count()), (1, 2), "{:?}", entries().collect::<Vec<_>>());
}

#[test]
fn a_file_that_changed_is_taken_over() {
    let folder = network("web.sock");
    let folder = folder.path();
    let running = up(folder, &["net.toml"]);
    assert!(printed(folder, &["reload", "net.toml"]).contains("untouched  1 port"));
    write(folder, "net.toml", &format!("{}[[port]]\nname = \"db\"\nnull = true\n", port("web.sock", "weight = 3\n")));
    let plan = printed(folder, &["reload", "net.toml", "--dry-run"]);
    assert!(plan.contains("changed    web: weight\n") && plan.contains("added      db\n"), "{plan}");
    assert_eq!(names(folder, &["net"]), ["web"]);
    assert_eq!(json(folder, &["reload", "net.toml", "--json"])["added"][0], "db");
    assert_eq!(names(folder, &["net"]), ["web", "db"]);

    let fewer = port("web.sock", "");
    write(folder, "net.toml", &format!("workers = 2\n{fewer}"));
    let told = fails(folder, &["reload", "net.toml"], 1);
    assert!(told.contains("workers cannot change") && told.contains("net.toml --takeover`, which no guest notices"), "{told}");
    write(folder, "net.toml", &format!("{fewer}colour = 1\n"));
    assert!(fails(folder, &["reload", "net.toml"], 2).contains("net.toml:4"));
    assert!(fails(folder, &["reload", "net"], 2).contains("net.toml:4"), "the network reads its own file");
    assert_eq!(names(folder, &["net"]), ["web", "db"]);

    // A signal does the same; a mistake then is logged, and changes nothing.
    signal(&running, Signal::SIGHUP);
    write(folder, "net.toml", &fewer);
    wait_until(
        || {
            signal(&running, Signal::SIGHUP);
            names(folder, &["net"]) == ["web"]
        },
        "the file is read again",
    );
    let _taken = std::os::unix::net::UnixListener::bind(folder.join("taken.sock")).unwrap();
    write(folder, "net.toml", &format!("{fewer}[[port]]\nname = \"db\"\nvhost-user = \"taken.sock\"\n"));
    assert!(fails(folder, &["reload", "net.toml"], 1).contains("one port"));
    assert_eq!(names(folder, &["net"]), ["web"]);
}

#[test]
fn a_file_that_is_being_written_costs_no_port() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let port = |index: usize| format!("[[port]]\nname = \"p{index}\"\nnull = true\n");
    let text: String = (0..20).map(port).collect();
    write(folder, "net.toml", &text);
    let running = up(folder, &["net.toml"]);
    // A program is in the middle of writing it: neither a command nor a signal takes over the incomplete file.
    let mut half = File::create(folder.join("net.toml")).unwrap();
    half.write_all(port(0).as_bytes()).unwrap();
    assert!(fails(folder, &["reload", "net.toml"], 1).contains("another program has it open for writing"));
    signal(&running, Signal::SIGHUP);
    assert_eq!(names(folder, &["net"]).len(), 20);
    // One that has the file open and writes nothing, as a program that appends to it, is no obstacle to a reload that detaches no port.
    half.write_all((1..21).map(port).collect::<String>().as_bytes()).unwrap();
    printed(folder, &["reload", "net.toml"]);
    assert!(names(folder, &["net"]).contains(&"p20".into()));
    write(folder, "net.toml", &text);
    drop(half);
    printed(folder, &["reload", "net.toml"]);
    // Cut off: at a line's end it is the file of another network, within a line it is told.
    write(folder, "net.toml", "");
    assert!(fails(folder, &["reload", "net.toml"], 1).contains("all of them would be detached (20 now)"));
    write(folder, "net.toml", port(0).trim_end());
    assert!(fails(folder, &["reload", "net.toml"], 1).contains("may have been cut off"));
    assert_eq!(json(folder, &["ls", "net.toml", "--json"]).as_array().unwrap().len(), 20);
    // Written again and again: each reload meets a whole file, or says that it does not.
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                write(folder, "net.toml", &text);
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        for _ in 0..20 {
            let output = memlane(folder, &["reload", "net.toml", "--json"]).output().unwrap();
            let done =
                serde_json::from_slice::<Value>(&output.stdout).map_or(20, |done| done["untouched"].as_array().unwrap().len());
            assert_eq!(done, 20, "{}", told(&output));
        }
        over.store(true, Ordering::Relaxed);
    });
    write(folder, "net.toml", "");
    // Each port is named by the operator: then the file is believed.
    let all = names(folder, &["net"]).join(",");
    printed(folder, &["reload", "net.toml", "--force", &all]);
    assert!(names(folder, &["net"]).is_empty());
}

#[test]
fn what_was_attached_comes_back_with_the_state() {
    let folder = network("web.sock");
    let folder = folder.path();
    let arguments = ["net.toml", "--state", "state.toml"];
    let mut running = up(folder, &arguments);
    printed(folder, &["attach", "net.toml", "db", "--vhost-user", "db.sock", "--link", "{ delay = \"5ms\" }"]);
    printed(folder, &["set", "net.toml", "web", "--weight", "7"]);
    let before = json(folder, &["ls", "net.toml", "--json"]);
    signal(&running, Signal::SIGTERM);
    assert!(running.0.wait().unwrap().success());
    let running = up(folder, &arguments);
    let after = json(folder, &["ls", "net.toml", "--json"]);
    for key in ["name", "limits", "link", "place"] {
        assert_eq!(before[0][key], after[0][key]);
        assert_eq!(before[1][key], after[1][key]);
    }
    drop(running);
    std::fs::remove_file(folder.join("web.sock")).unwrap();
    write(folder, "state.toml", "removed = \"web\"\n");
    let told = fails(folder, &["up", "net.toml", "--state", "state.toml"], 1);
    assert!(told.contains("state.toml cannot be read") && told.contains("move it away"), "{told}");
    assert_eq!(std::fs::read_to_string(folder.join("state.toml")).unwrap(), "removed = \"web\"\n");
    assert!(!folder.join("web.sock").exists(), "nothing was started");
}

#[test]
fn what_was_changed_comes_back_also_without_an_option_unless_it_is_not_to() {
    let folder = network("web.sock");
    let folder = folder.path();
    let states = || std::fs::read_dir(folder.join("state-home/memlane")).unwrap().count();
    let down = |running: Running| {
        printed(folder, &["down", "net.toml"]);
        drop(running);
    };
    let running = up(folder, &["net.toml"]);
    assert_eq!(states(), 1);
    down(running);
    assert_eq!(states(), 0, "a network without changes leaves nothing");
    let running = up(folder, &["net.toml"]);
    printed(folder, &["attach", "net.toml", "db", "--null"]);
    printed(folder, &["set", "net.toml", "web", "--weight", "7"]);
    down(running);
    assert_eq!(states(), 1);
    let before: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!before.iter().any(|name| name.to_string_lossy().ends_with(".state")), "never beside the file: {before:?}");
    let running = up(folder, &["net.toml", "--no-state"]);
    assert_eq!(names(folder, &["net.toml"]), ["web"]);
    down(running);
    // A kill loses nothing either.
    for _ in 0..2 {
        let running = up(folder, &["net.toml"]);
        assert_eq!(names(folder, &["net.toml"]), ["web", "db"]);
        assert_eq!(json(folder, &["show", "net.toml", "web", "--json"])["limits"]["weight"], 7);
        drop(running);
    }
}

#[test]
fn a_control_socket_that_is_deleted_is_made_anew_and_a_process_without_one_is_told() {
    let folder = network("web.sock");
    let folder = folder.path();
    let mut running = up(folder, &["net.toml"]);
    let control = PathBuf::from(listed(folder)[0]["control"].as_str().unwrap());
    // Where it cannot be made anew, the process is told.
    std::fs::remove_file(&control).unwrap();
    std::fs::create_dir(&control).unwrap();
    let process = format!("was deleted, and process {}: ", running.0.id());
    for arguments in [["status", "net.toml"], ["down", "net.toml"], ["up", "net.toml"]] {
        let told = fails(folder, &arguments, 1);
        assert!(told.contains(&process) && told.contains("up net.toml runs its network"), "{arguments:?}: {told}");
    }
    std::fs::remove_dir(&control).unwrap();
    wait_until(|| memlane(folder, &["status", "net.toml"]).output().unwrap().status.success(), "the socket is made anew");
    // A process that takes over gets the new one.
    let other = up(folder, &["net.toml", "--takeover"]);
    assert!(running.0.wait().unwrap().success());
    std::fs::remove_file(&control).unwrap();
    wait_until(|| memlane(folder, &["status", "net.toml"]).output().unwrap().status.success(), "the socket is made anew");
    printed(folder, &["down", "net.toml"]);
    drop(other);
    assert!(!control.exists());
}

/// A log that has reached the limit of a file's size, as with LimitFSIZE= of a unit.
#[test]
fn a_log_that_is_full_ends_no_network() {
    let folder = network("web.sock");
    let folder = folder.path();
    write(folder, "log", &"x".repeat(4096));
    let program = env!("CARGO_BIN_EXE_memlane");
    let command = memlane(folder, &[]);
    let mut shell = Command::new("sh");
    shell
        .args(["-c", "ulimit -f 1; exec \"$0\" up net.toml 2>> log", program])
        .current_dir(folder)
        .stdin(std::process::Stdio::null());
    shell.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let mut running = Running::start(shell);
    for round in 0..3 {
        printed(folder, &["attach", "net.toml", "db", "--null"]);
        printed(folder, &["detach", "net.toml", "db"]);
        assert!(running.lives(), "round {round}");
    }
    write(folder, "net.toml", "garbage");
    signal(&running, Signal::SIGHUP);
    assert_eq!(names(folder, &["net"]), ["web"]);
    assert!(running.lives());
}

#[test]
fn a_small_stack_is_raised_or_told() {
    let folder = network("web.sock");
    let folder = folder.path();
    let checked = |before: &str, limit: &str| {
        let script = format!("ulimit -{limit}s 64; exec {} check net.toml", env!("CARGO_BIN_EXE_memlane"));
        let words: Vec<&str> = before.split_whitespace().chain(["sh", "-c", &script]).collect();
        Command::new(words[0]).args(&words[1..]).current_dir(folder).output().unwrap()
    };
    let soft = checked("", "S");
    assert!(soft.status.success(), "{}", told(&soft));
    let hard = checked("setpriv --bounding-set -sys_resource", "");
    assert_eq!(hard.status.code(), Some(1), "{}", told(&hard));
    assert!(
        told(&hard).starts_with("memlane: the stack may have 64 KiB, and memlane needs 1024: raise the limit"),
        "{}",
        told(&hard)
    );
}

#[test]
fn folders_and_groups_that_are_missing_here_are_told_by_check() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let text =
        "control = \"no/control\"\n[[port]]\nname = \"a\"\nvhost-user = \"no/a.sock\"\naccess = { group = \"no-such-group\" }\n";
    write(folder, "net.toml", text);
    let told = printed(folder, &["check", "net.toml"]);
    let wanted = [
        format!("note: port a: there is no folder {}/no on this host. Make it, or correct the path", folder.display()),
        "note: port a: access: there is no group 'no-such-group'".into(),
        format!("note: control: there is no folder {}/no on this host", folder.display()),
    ];
    wanted.iter().for_each(|wanted| assert!(told.contains(wanted), "{wanted}: {told}"));
    assert_eq!(told.lines().count(), 4, "{told}");
}

#[test]
fn a_full_disk_costs_no_network_and_no_port() {
    in_namespaces(&["--mount"], "commands::a_full_disk_costs_no_network_and_no_port", || {
        let folder = tempfile::tempdir().unwrap();
        let (folder, disk) = (folder.path(), folder.path().join("disk"));
        std::fs::create_dir(&disk).unwrap();
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=64k", "memlane"]).arg(&disk).status().unwrap();
        assert!(mounted.success());
        let arguments = ["--state", "disk/state.toml"];
        let running = up(folder, &arguments);
        printed(folder, &["attach", "a", "--null"]);
        drop(running);
        let filling = File::create(disk.join("filling")).unwrap().write_all(&[1; 1 << 20]).unwrap_err();
        assert_eq!(filling.kind(), std::io::ErrorKind::StorageFull);

        let _running = up(folder, &arguments);
        assert_eq!(names(folder, &[]), ["a"], "what was saved is there");
        let attached = memlane(folder, &["attach", "b"]).output().unwrap();
        assert!(attached.status.success() && !attached.stdout.is_empty(), "{}", told(&attached));
        assert!(told(&attached).contains("disk/state.toml cannot be written: No space left"), "{}", told(&attached));
        assert_eq!(names(folder, &[]), ["a", "b"]);
        assert!(printed(folder, &["status"]).contains("not saved: the state file"));
        std::fs::remove_file(disk.join("filling")).unwrap();
        wait_until(|| !printed(folder, &["status"]).contains("not saved"), "the state is saved");
        assert!(std::fs::read_to_string(disk.join("state.toml")).unwrap().contains("name = \"b\""));
    });
}

#[test]
fn the_printed_document_is_the_one_that_is_served() {
    let folder = tempfile::tempdir().unwrap();
    let _running = up(folder.path(), &["--name", "other"]);
    let printed = json(folder.path(), &["schema", "--api"]);
    let client = memlane::control::Client::new(&folder.path().join("memlane/other.control"));
    assert_eq!(client.get::<Value>("/v1/openapi.json").unwrap(), printed);
}

/// Two networks of the same sockets, of which an operator has removed those of the first: it ends, and the second one's stay.
#[test]
fn the_end_of_a_network_leaves_sockets_of_others_that_have_taken_their_paths() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let text = "control = \"control.sock\"\n[[port]]\nname = \"a\"\nvhost-user = \"a.sock\"\n[[port]]\nname = \"b\"\nstream = \"b.sock\"\n";
    let sockets = ["control.sock", "a.sock", "b.sock"].map(|name| folder.join(name));
    let mut first = up(folder, &[write(folder, "first.toml", text).to_str().unwrap()]);
    sockets.iter().for_each(|socket| std::fs::remove_file(socket).unwrap());
    let _second = up(folder, &[write(folder, "second.toml", text).to_str().unwrap()]);
    signal(&first, Signal::SIGTERM);
    wait_until(|| !first.lives(), "the first network ends");
    for socket in sockets {
        assert!(std::os::unix::net::UnixStream::connect(&socket).is_ok(), "{}", socket.display());
    }
}
