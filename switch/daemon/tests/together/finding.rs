//! Networks are found by name and file wherever `memlane list` finds them; names are completed.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use crate::command::{Running, memlane, printed, told, write};
use crate::common::in_namespaces;

const PORTS: &str = "[[port]]\nname = \"web\"\nnull = true\n[[port]]\nname = \"db\"\nnull = true\n";

/// A command of a user with a run-time folder of its own, as after a login.
fn of_a_login(folder: &Path, arguments: &[&str]) -> Command {
    let own = folder.join("login");
    std::fs::create_dir_all(&own).unwrap();
    let mut command = memlane(folder, arguments);
    command.env("XDG_RUNTIME_DIR", own);
    command
}

fn says(mut command: Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", told(&output));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_packaged_network_is_found_by_its_name_and_its_file() {
    in_namespaces(&["--mount"], "finding::a_packaged_network_is_found_by_its_name_and_its_file", || {
        assert!(Command::new("mount").args(["-t", "tmpfs", "tmpfs", "/run"]).status().unwrap().success());
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let file = write(folder, "lan.toml", PORTS);
        let file = file.to_str().unwrap();
        let mut command = memlane(folder, &["up", "lan.toml"]);
        // The unit sets the same variable.
        command.env("XDG_RUNTIME_DIR", "/run");
        let _running = Running::start(command);
        std::os::unix::fs::symlink(file, folder.join("link.toml")).unwrap();
        for net in [&["lan"][..], &[file], &["lan.toml"], &["link.toml"], &[]] {
            let said = says(of_a_login(folder, &[&["ls"], net].concat()));
            assert!(said.contains("web") && said.contains("db"), "{net:?}: {said}");
        }
        // Half edited, it names the network all the same.
        write(folder, "lan.toml", "weight = \n");
        for command in
            [&["status", "lan.toml"][..], &["why", "lan.toml", "web"], &["why", "lan.toml"], &["show", "lan.toml", "web"]]
        {
            says(of_a_login(folder, command));
        }
        let completed = |words: &[&str]| says(of_a_login(folder, &[&["complete-names"], words].concat()));
        assert_eq!(completed(&["status"]), "lan\n");
        assert_eq!(completed(&["show"]), "lan\nweb\ndb\n");
        assert_eq!(completed(&["set", "lan"]), "web\ndb\n");
        assert_eq!(completed(&["doctor"]), "");
        // Another user is told of the one that may.
        let map = std::fs::read_to_string("/proc/self/uid_map").unwrap();
        if map.split_whitespace().last().is_some_and(|count| count != "1") {
            std::fs::copy(env!("CARGO_BIN_EXE_memlane"), folder.join("memlane")).unwrap();
            for path in [folder.to_path_buf(), "/run".into(), "/run/memlane".into()] {
                let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
                std::fs::set_permissions(path, open).unwrap();
            }
            for net in ["lan", file] {
                let mut command = Command::new(folder.join("memlane"));
                command.args(["status", net]).env("XDG_RUNTIME_DIR", "/nonexistent").uid(12_345).gid(12_345);
                let said = told(&command.output().unwrap());
                assert!(said.contains("Permission denied") && said.contains("sudo -u root"), "{net}: {said}");
            }
        }
        // Nothing ends by a guess.
        let output = of_a_login(folder, &["down"]).output().unwrap();
        assert!(!output.status.success(), "{}", told(&output));
        let said = says(of_a_login(folder, &["down", "lan"]));
        assert_eq!(said, "lan: ended\n");
    });
}

#[test]
fn labels_and_the_forwarding_table_are_listed() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let labelled = "labels = { pod = \"shop/web-0\", owner = \"ann\" }\nvlan = 30\ngroups = [\"front\"]\naddresses = [\"10.0.0.2\"]\nmac = \"02:00:00:00:00:01\"\n";
    write(folder, "net.toml", &PORTS.replacen("null = true\n", &format!("null = true\n{labelled}"), 1));
    let _running = Running::start(memlane(folder, &["up", "net.toml"]));
    let listed = printed(folder, &["ls", "net.toml", "--label", "pod=shop/web-0"]);
    assert!(listed.contains("web") && listed.contains("owner=ann pod=shop/web-0") && !listed.contains("db"), "{listed}");
    let shown = printed(folder, &["show", "net.toml", "web"]);
    for line in ["VLAN      30\n", "addresses 10.0.0.2\n", "groups    front\n", "labels    owner=ann pod=shop/web-0\n"] {
        assert!(shown.contains(line), "{line}: {shown}");
    }
    assert!(printed(folder, &["events", "net.toml"]).contains("web: attached to segment lan, owner=ann, pod=shop/web-0\n"));
    printed(folder, &["set", "net.toml", "db", "--labels", "{ pod = \"shop/db-0\" }"]);
    let json: serde_json::Value = serde_json::from_str(&printed(folder, &["ls", "net.toml", "--json"])).unwrap();
    assert_eq!((&json[1]["labels"]["pod"], &json[0]["labels"]["owner"]), (&"shop/db-0".into(), &"ann".into()));
    let fdb = printed(folder, &["fdb", "net.toml"]);
    let rows: Vec<Vec<&str>> = fdb.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["address", "VLAN", "port", "segment", "age"]);
    assert!(rows[1..].iter().any(|row| row[0] == "02:00:00:00:00:01" && row[2] == "web" && row[4] == "pinned"), "{fdb}");
}
