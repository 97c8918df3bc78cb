//! Segments that go on at other hosts: their devices, the bridge's FDB entries of MAC addresses here, and the forwarding table of
//! those elsewhere.
//!
//! Devices need privileges, and must not touch the host's own: each test starts itself again in a network namespace of its own. The other hosts
//! are entries of the VXLAN device's forwarding table, which FRR would make; with FRR and real hosts it is `examples/two-hosts`.

use std::process::Command;

use crate::command::{Running, memlane, printed, told, write};
use crate::common::{Bed, POLL_INTERVAL, TIMEOUT, in_a_namespace, mac, wait_until};
use memlane::config::Config;
use memlane::daemon::Daemon;
use memlane::uplink::UplinkReport;
use memlane_rig::guest::ToyGuest;

const SEGMENT: &str = "[[segment]]\nname = \"lan\"\nuplink = true\nvni = 100\nlocal = \"10.9.0.1\"\n";

/// Output of a command that succeeds.
fn run(command: &str) -> String {
    let output = Command::new("sh").args(["-c", command]).output().unwrap();
    assert!(output.status.success(), "{command}: {}", told(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// A host with an underlay that leads nowhere.
fn host() {
    std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1").expect("a kernel with IPv6, and /proc to write to");
    run("ip link add under type veth peer name far && ip addr add 10.9.0.1/24 dev under && ip link set under up");
}

/// A network on such a host, of these ports.
fn bed(ports: &[&str]) -> Bed {
    host();
    Bed::with(SEGMENT, ports)
}

fn report(bed: &Bed) -> UplinkReport {
    bed.daemon().uplinks().remove(0)
}

fn text(address: [u8; 6]) -> String {
    address.map(|byte| format!("{byte:02x}")).join(":")
}

/// MAC addresses that the bridge's FDB has behind the TAP.
fn known_here() -> Vec<String> {
    let all = run("bridge fdb show dev ml-tap100");
    all.lines().filter(|line| line.contains("static")).map(|line| line[..17].to_owned()).collect()
}

fn frame(from: [u8; 6], to: [u8; 6]) -> Vec<u8> {
    [&to[..], &from, &[0x88, 0xb5], &[7; 46]].concat()
}

fn is_silent(guest: &mut ToyGuest) -> bool {
    guest.receive(POLL_INTERVAL).is_err()
}

#[test]
fn devices_come_with_the_network_and_go_with_it() {
    in_a_namespace("uplink::devices_come_with_the_network_and_go_with_it", || {
        let mut bed = bed(&[""]);
        let vxlan = run("ip -d link show ml-vx100");
        for wanted in [
            "vxlan id 100",
            "local 10.9.0.1",
            "dstport 4789",
            "nolearning",
            "master ml-br100",
            "mtu 1450",
            "learning off",
            "neigh_suppress on",
        ] {
            assert!(vxlan.contains(wanted), "{wanted}: {vxlan}");
        }
        let tap = run("ip -d link show ml-tap100");
        for wanted in ["master ml-br100", "mtu 1450", "learning off", "UP", "addrgenmode none"] {
            assert!(tap.contains(wanted), "{wanted}: {tap}");
        }
        let bridge = run("ip -d link show ml-br100");
        assert!(bridge.contains("mtu 1450") && bridge.contains("UP") && bridge.contains("mcast_snooping 0"), "{bridge}");
        assert_eq!(bed.daemon().network().find("p0").unwrap().offer().mtu, Some(1450), "guests are offered what passes");
        assert!(bed.daemon().network().find("uplink:lan").is_some() && bed.daemon().config().ports.len() == 1);
        bed.stop();
        assert!(!run("ip link").contains("ml-"), "{}", run("ip link"));
    });
}

/// Frames that the device has been given by the other end of its cable.
fn heard_at(device: &str) -> u64 {
    let text = run(&format!("ip -s link show {device}"));
    let line = text.lines().skip_while(|line| !line.trim().starts_with("RX:")).nth(1).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn reserved_groups_cross_the_bridge_as_far_as_the_kernel_lets_them() {
    in_a_namespace("uplink::reserved_groups_cross_the_bridge_as_far_as_the_kernel_lets_them", || {
        let bed = bed(&[""]);
        let mut guest = bed.guest(0);
        run("ip link add beside type veth peer name ear && ip link set beside master ml-br100 up && ip link set ear up");
        let mut heard = heard_at("ear");
        // Spanning tree, EAPOL, LLDP; last a broadcast, before which anything else has come or will not.
        for (last, passes) in [(0x00, true), (0x03, true), (0x0e, true), (0x01, false), (0x02, false)] {
            guest.send(&frame(mac(0), [0x01, 0x80, 0xc2, 0, 0, last])).unwrap();
            guest.send(&frame(mac(0), [0xff; 6])).unwrap();
            heard += 1 + u64::from(passes);
            wait_until(|| heard_at("ear") >= heard, "the broadcast crosses the bridge");
            assert_eq!(heard_at("ear"), heard, "01:80:c2:00:00:{last:02x}");
        }
    });
}

#[test]
fn a_device_that_is_deleted_is_told_of() {
    in_a_namespace("uplink::a_device_that_is_deleted_is_told_of", || {
        let bed = bed(&[""]);
        assert_eq!(report(&bed).trouble, None);
        run("ip link del ml-br100");
        let told = |bed: &Bed| report(bed).trouble.unwrap_or_default();
        wait_until(|| told(&bed).contains("its device ml-br100 was deleted by another program"), "it is told");
        run("ip link del ml-tap100");
        wait_until(|| told(&bed).contains("its device ml-tap100 was deleted by another program"), "it is told");
    });
}

#[test]
fn a_packet_filter_in_the_way_is_told_with_its_remedy() {
    in_a_namespace("uplink::a_packet_filter_in_the_way_is_told_with_its_remedy", || {
        let bed = bed(&[""]);
        let setting = std::path::Path::new("/proc/sys/net/bridge/bridge-nf-call-iptables");
        if !setting.exists() {
            // The kernel has no br_netfilter, or not loaded: nothing can be in the way.
            return assert_eq!(report(&bed).advice, None);
        }
        std::fs::write("/proc/sys/net/bridge/bridge-nf-call-ip6tables", "0").unwrap();
        std::fs::write(setting, "1").unwrap();
        assert!(report(&bed).advice.unwrap().contains("iptables -I FORWARD -i ml-br100 -o ml-br100 -j ACCEPT"));
        std::fs::write(setting, "0").unwrap();
        assert_eq!(report(&bed).advice, None);
    });
}

#[test]
fn whoever_is_here_the_bridge_is_told_of() {
    in_a_namespace("uplink::whoever_is_here_the_bridge_is_told_of", || {
        let bed = bed(&["mac = \"02:00:00:00:00:00\"", ""]);
        assert!(known_here().is_empty(), "nobody runs yet");
        let pinned = bed.guest(0);
        wait_until(|| known_here() == [text(mac(0))], "the bridge knows the guest, which has said nothing");
        let mut learned = bed.guest(1);
        learned.send(&frame(mac(1), [0xff; 6])).unwrap();
        wait_until(|| known_here().len() == 2, "the bridge knows who has spoken");
        wait_until(|| report(&bed).announced == 2, "the report says so");
        drop(pinned);
        wait_until(|| known_here() == [text(mac(1))], "the bridge forgets who has gone");
        bed.daemon().detach("p1").unwrap();
        wait_until(|| known_here().is_empty(), "the bridge forgets who was detached");
    });
}

#[test]
fn a_guest_that_invents_addresses_fills_no_bridge() {
    in_a_namespace("uplink::a_guest_that_invents_addresses_fills_no_bridge", || {
        let bed = bed(&[""]);
        let mut guest = bed.guest(0);
        for n in 0..500_u16 {
            let [a, b] = n.to_be_bytes();
            guest.send(&frame([2, 1, 0, 0, a, b], [0xff; 6])).unwrap();
            guest.wait_sent(TIMEOUT).unwrap();
        }
        wait_until(|| report(&bed).held_back > 300, "most are held back");
        assert!(known_here().len() <= 128, "{}", known_here().len());
    });
}

#[test]
fn whoever_is_elsewhere_is_not_flooded_for() {
    in_a_namespace("uplink::whoever_is_elsewhere_is_not_flooded_for", || {
        let bed = bed(&["", ""]);
        let (mut asks, mut hears) = (bed.guest(0), bed.guest(1));
        let far = [2, 0, 0, 0, 9, 9];
        run(&format!("bridge fdb add {} dev ml-vx100 dst 10.9.0.2 self", text(far)));
        wait_until(|| report(&bed).learned_addresses.len() == 1, "the table knows who is elsewhere");
        assert_eq!(
            (report(&bed).learned_addresses[0].host.as_str(), report(&bed).hosts),
            ("10.9.0.2", vec!["10.9.0.2".to_owned()])
        );
        let before = report(&bed).totals.receive_frames;
        asks.send(&frame(mac(0), far)).unwrap();
        wait_until(|| report(&bed).totals.receive_frames == before + 1, "the frame leaves by the uplink");
        assert!(is_silent(&mut hears), "and nowhere else");
        run(&format!("bridge fdb replace {} dev ml-vx100 dst 10.9.0.3 self", text(far)));
        wait_until(|| report(&bed).learned_addresses[0].host == "10.9.0.3", "it is elsewhere again");
        run(&format!("bridge fdb del {} dev ml-vx100 dst 10.9.0.3 self", text(far)));
        wait_until(|| report(&bed).learned_addresses.is_empty(), "the table forgets it");
        asks.send(&frame(mac(0), far)).unwrap();
        assert_eq!(hears.receive(TIMEOUT).unwrap().bytes[..6], far, "it is flooded for again");
    });
}

#[test]
fn a_guest_cannot_have_others_told_that_it_is_somebody_elsewhere() {
    in_a_namespace("uplink::a_guest_cannot_have_others_told_that_it_is_somebody_elsewhere", || {
        let bed = bed(&["", "mac = \"02:00:00:00:00:01\""]);
        let far = [2, 0, 0, 0, 9, 9];
        run(&format!("bridge fdb add {} dev ml-vx100 dst 10.9.0.2 self", text(far)));
        run(&format!("bridge fdb add {} dev ml-vx100 dst 10.9.0.2 self", text(mac(1))));
        wait_until(|| report(&bed).learned_addresses.len() == 2, "the table knows who is elsewhere");
        let mut forger = bed.guest(0);
        forger.send(&frame(far, [0xff; 6])).unwrap();
        wait_until(|| report(&bed).held_back == 1, "the forged address is not told of");
        assert!(known_here().is_empty(), "{:?}", known_here());
        let _tied = bed.guest(1);
        wait_until(|| known_here() == [text(mac(1))], "what the operator has tied is");
        wait_until(|| report(&bed).disputed.len() == 1, "and the dispute is shown");
        run(&format!("bridge fdb del {} dev ml-vx100 dst 10.9.0.2 self", text(far)));
        forger.send(&frame(far, [0xff; 6])).unwrap();
        wait_until(|| known_here().len() == 2, "once the other host has given it up, it is");
    });
}

#[test]
fn thousands_come_and_go_at_once() {
    in_a_namespace("uplink::thousands_come_and_go_at_once", || {
        let bed = bed(&[""]);
        let folder = tempfile::tempdir().unwrap();
        let batch = |what: &str| {
            let line = |n: u16| format!("fdb {what} 02:02:00:00:{:02x}:{:02x} dev ml-vx100 dst 10.9.0.2 self\n", n >> 8, n & 0xff);
            let path = write(folder.path(), what, &(0..4000).map(line).collect::<String>());
            run(&format!("bridge -batch {}", path.display()));
        };
        batch("add");
        wait_until(|| report(&bed).learned_addresses.len() == 1024 && report(&bed).more, "the table is full, and no more");
        let uplink = bed.daemon().network().find("uplink:lan").unwrap();
        assert!(uplink.learned_addresses() <= 1024);
        batch("del");
        wait_until(|| report(&bed).learned_addresses.is_empty() && !report(&bed).more, "nothing is left");
        assert_eq!(uplink.learned_addresses(), 0);
    });
}

/// The error where the network of `more` cannot start; nothing is left of it.
fn refusal(more: &str) -> String {
    let before = run("ip -o link | wc -l");
    let text = format!("{SEGMENT}{more}\n[[port]]\nname = \"p\"\nnull = true\n");
    let error = Daemon::start(&Config::parse(&text, "test").unwrap()).unwrap_err().to_string();
    assert_eq!(run("ip -o link | wc -l"), before, "{error}");
    assert!(error.starts_with("segment lan: ") && error.lines().count() == 1, "{error}");
    error
}

#[test]
fn what_is_in_the_way_is_told_in_a_sentence() {
    in_a_namespace("uplink::what_is_in_the_way_is_told_in_a_sentence", || {
        host();
        assert!(refusal("mtu = 1500").contains("under has an MTU of 1500, but frames of 1500 bytes need 1550"));
        assert!(refusal("netns = \"nowhere\"").contains("ip netns add"));
        run("ip link add ml-vx100 type vxlan id 7 dstport 4789 local 10.9.0.1 nolearning");
        assert!(refusal("").contains("ml-vx100 exists with VNI 7, not 100"));
        run("ip link del ml-vx100 && ip link add vx type vxlan id 100 dstport 4789 local 10.9.0.1 nolearning");
        assert!(refusal("").contains("VXLAN device vx has VNI 100 already: name it with vxlan = \"vx\""));
        run("ip link add name shared type bridge && ip link set vx master shared");
        let named = "bridge = \"shared\"\nvxlan = \"vx\"";
        assert!(refusal(named).contains("bridge shared learns from frames at vx"));
        assert!(refusal("vxlan = \"vx\"").contains("vx is in bridge shared, not in ml-br100"));
        run("bridge link set dev vx learning off");
        let text = format!("{SEGMENT}{named}\n[[port]]\nname = \"p\"\nnull = true\nmtu = 9000\n");
        let daemon = Daemon::start(&Config::parse(&text, "test").unwrap()).unwrap();
        assert_eq!(daemon.network().find("p").unwrap().offer().mtu, Some(9000), "as the file has it, more than the uplink's 1450");
        assert!(run("ip link show ml-tap100").contains("master shared "));
        daemon.stop();
        assert!(run("ip link").contains("vx: ") && !run("ip link").contains("ml-"), "what was there stays");
    });
}

#[test]
fn an_uplink_comes_and_goes_by_the_file_while_frames_flow() {
    in_a_namespace("uplink::an_uplink_comes_and_goes_by_the_file_while_frames_flow", || {
        host();
        let folder = tempfile::tempdir().unwrap();
        let (announced, ports) =
            ("sandbox = { kinds = [\"tap\"] }\n", "[[port]]\nname = \"p\"\nnull = true\nmac = \"02:00:00:00:00:07\"\n");
        let write = |folder: &std::path::Path, name, text: &str| write(folder, name, &format!("{announced}{text}"));
        write(folder.path(), "net.toml", ports);
        let _running = Running::start(memlane(folder.path(), &["up", "net.toml"]));
        write(folder.path(), "net.toml", &format!("{SEGMENT}{ports}"));
        let told = printed(folder.path(), &["reload", "net.toml"]);
        assert!(told.contains("added      uplink of segment lan") && told.contains("untouched  1 port"), "{told}");
        wait_until(|| known_here() == ["02:00:00:00:00:07"], "the bridge is told of who was there before");
        let shown = printed(folder.path(), &["status", "net.toml"]);
        assert!(shown.contains("ml-tap100 ml-br100 ml-vx100"), "{shown}");
        write(folder.path(), "net.toml", &format!("{}{ports}", SEGMENT.replace("vni = 100", "vni = 101")));
        let told = printed(folder.path(), &["reload", "net.toml"]);
        assert!(told.contains("added      uplink of segment lan") && !told.contains("removed"), "{told}");
        assert!(run("ip link").contains("ml-vx101") && !run("ip link").contains("ml-vx100"));
        write(folder.path(), "net.toml", &format!("{}{ports}", SEGMENT.replace("vni = 100", "vni = 102\nmtu = 9000")));
        let refused = memlane(folder.path(), &["reload", "net.toml"]).output().unwrap();
        assert!(!refused.status.success() && run("ip link").contains("ml-vx101"), "its former uplink was restored");
        write(folder.path(), "net.toml", ports);
        assert!(printed(folder.path(), &["reload", "net.toml"]).contains("removed    uplink of segment lan"));
        assert!(!run("ip link").contains("ml-"), "{}", run("ip link"));
    });
}

#[test]
fn what_a_killed_memlane_left_is_found_and_taken_away() {
    in_a_namespace("uplink::what_a_killed_memlane_left_is_found_and_taken_away", || {
        host();
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), "net.toml", SEGMENT);
        drop(Running::start(memlane(folder.path(), &["up", "net.toml"])));
        assert!(run("ip link").contains("ml-vx100"), "it had no time to tidy up");
        let mut running = Running::start(memlane(folder.path(), &["up", "net.toml"]));
        let status = printed(folder.path(), &["status", "net.toml"]);
        assert!(status.contains("ml-tap100 ml-br100 ml-vx100"), "{status}");
        run(&format!("kill {}", running.0.id()));
        assert!(running.0.wait().unwrap().success());
        assert!(!run("ip link").contains("ml-"));
    });
}

#[test]
fn an_uplink_is_handed_over_with_its_devices_and_addresses() {
    in_a_namespace("uplink::an_uplink_is_handed_over_with_its_devices_and_addresses", || {
        host();
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let keys = "mac = \"02:00:00:00:00:00\"\naddresses = [\"10.0.0.1\"]\n";
        let ports =
            format!("[[port]]\nname = \"a\"\nvhost-user = \"a.sock\"\n{keys}[[port]]\nname = \"b\"\nvhost-user = \"b.sock\"\n");
        write(folder, "net.toml", &format!("control = \"control\"\n{SEGMENT}{ports}"));
        let mut running = Running::start(memlane(folder, &["up", "net.toml"]));
        let connect = |name: &str, index| ToyGuest::builder().mac(mac(index)).timeout(TIMEOUT).connect(folder.join(name)).unwrap();
        let (mut guest, mut hears) = (connect("a.sock", 0), connect("b.sock", 1));
        run("ip link add beside type veth peer name ear && ip link set beside master ml-br100 up && ip link set ear up");
        guest.send(&frame(mac(0), [0xff; 6])).unwrap();
        assert_eq!(hears.receive(TIMEOUT).unwrap().bytes[6..12], mac(0));
        wait_until(|| known_here() == [text(mac(0))] && announced_here().contains("10.0.0.1 "), "the bridge knows the guest");
        let far = [2, 0, 0, 0, 9, 9];
        run(&format!("bridge fdb add {} dev ml-vx100 dst 10.9.0.2 self", text(far)));
        let status = || -> serde_json::Value { serde_json::from_str(&printed(folder, &["status", "net.toml", "--json"])).unwrap() };
        let uplink = |key: &str| status()["uplinks"][0][key].clone();
        wait_until(|| uplink("learned-addresses")[0]["address"] == text(far), "the table knows who is elsewhere");
        let devices = || run("ip -o link | grep -o '^[0-9]*: ml-[a-z0-9]*'");
        let (before, frames) = (devices(), uplink("receive-frames").as_u64().unwrap());
        for round in 0..2 {
            // The entry is as of an address that leaves between the last look of the one process and the first of the other.
            run("bridge fdb add 02:00:00:00:00:77 dev ml-tap100 master static");
            let watch = |command: &str| {
                let mut words = command.split(' ');
                let mut monitor = Command::new(words.next().unwrap());
                monitor.args(words).stdout(std::process::Stdio::piped()).spawn().unwrap()
            };
            let changes = [watch("bridge monitor fdb"), watch("ip monitor neigh dev ml-br100")];
            // The entry is as of an address that was configured until then.
            run("ip neigh add 10.0.0.77 lladdr 02:00:00:00:00:77 dev ml-br100 nud permanent protocol 109");
            let other = Running::start(memlane(folder, &["up", "net.toml", "--takeover"]));
            assert!(std::mem::replace(&mut running, other).0.wait().unwrap().success());
            wait_until(|| known_here() == [text(mac(0))], "the address that has left is forgotten");
            wait_until(|| !announced_here().contains("10.0.0.77 "), "and its IP address");
            assert!(announced_here().contains("10.0.0.1 "));
            for mut monitor in changes {
                monitor.kill().unwrap();
                let told = String::from_utf8(monitor.wait_with_output().unwrap().stdout).unwrap();
                assert!(!told.contains(&text(mac(0))), "other hosts hear nothing of the guest that stayed: {told}");
            }
            assert_eq!(devices(), before, "no device was made anew");
            assert!(guest.connected() && hears.connected());
            wait_until(|| uplink("announced") == 1 && uplink("learned-addresses")[0]["address"] == text(far), "addresses stay");
            // Frames leave by the uplink, without a flood, and come by it.
            guest.send(&frame(mac(0), far)).unwrap();
            wait_until(|| uplink("receive-frames") == frames + 1 + round, "a frame leaves by the uplink");
            assert!(is_silent(&mut hears));
            run("ip link set ear address 02:00:00:00:00:55 && ip addr replace 10.7.7.1/24 dev ear");
            run("ip neigh replace 10.7.7.2 lladdr 02:00:00:00:00:01 dev ear && ping -c 1 -W 1 -I ear 10.7.7.2 || true");
            wait_until(
                || hears.receive(TIMEOUT).is_ok_and(|frame| frame.bytes[6..12] == [2, 0, 0, 0, 0, 0x55]),
                "a frame comes by the uplink",
            );
            while hears.receive(POLL_INTERVAL).is_ok() {}
        }
        printed(folder, &["down", "net.toml"]);
        assert!(running.0.wait().unwrap().success());
        assert!(!run("ip link").contains("ml-"), "the process that has them removes them");
    });
}

#[test]
fn a_device_of_anothers_that_has_the_name_of_one_that_was_made_stays() {
    in_a_namespace("uplink::a_device_of_anothers_that_has_the_name_of_one_that_was_made_stays", || {
        let mut bed = bed(&[""]);
        run("ip link del ml-br100 && ip link add ml-br100 type bridge");
        bed.stop();
        let left = run("ip link");
        assert!(left.contains("ml-br100") && !left.contains("ml-vx100"), "{left}");
    });
}

/// `memlane up` without the right to change the network.
fn without_rights(folder: &std::path::Path) -> Command {
    let plain = memlane(folder, &["up", "net.toml"]);
    let mut command = Command::new("setpriv");
    command
        .args(["--bounding-set", "-net_admin", "--inh-caps", "-net_admin", "--"])
        .arg(plain.get_program())
        .args(plain.get_args());
    command
        .current_dir(folder)
        .env("XDG_RUNTIME_DIR", folder)
        .env("XDG_STATE_HOME", folder.join("state-home"))
        .env("NO_COLOR", "1");
    command
}

#[test]
fn without_rights_the_commands_are_told_and_then_it_works() {
    in_a_namespace("uplink::without_rights_the_commands_are_told_and_then_it_works", || {
        host();
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), "net.toml", SEGMENT);
        let output = without_rights(folder.path()).output().unwrap();
        let said = told(&output);
        assert!(!output.status.success() && said.contains("cannot be created without CAP_NET_ADMIN"), "{said}");
        let commands: Vec<&str> = said.lines().filter_map(|line| line.strip_prefix("  ")).collect();
        assert!(commands.len() > 10, "{said}");
        commands.into_iter().for_each(|command| drop(run(command)));
        let mut running = Running::start(without_rights(folder.path()));
        let status = printed(folder.path(), &["status", "net.toml"]);
        assert!(status.contains("memlane lacks CAP_NET_ADMIN, so the bridge learns"), "{status}");
        run("bridge fdb add 02:00:00:00:09:09 dev ml-vx100 dst 10.9.0.2 self");
        wait_until(|| printed(folder.path(), &["status", "net.toml"]).contains("host 10.9.0.2: 02:00:00:00:09:09"), "it hears");
        run(&format!("kill {}", running.0.id()));
        assert!(running.0.wait().unwrap().success());
        assert!(run("ip link").contains("ml-tap100"), "what was there stays");
    });
}

/// IP addresses that FRR has from EVPN are neighbours of the bridge: questions for them are answered here.
#[test]
fn an_address_of_another_host_is_answered_for_until_it_is_withdrawn() {
    in_a_namespace("uplink::an_address_of_another_host_is_answered_for_until_it_is_withdrawn", || {
        host();
        let bed = Bed::with(&SEGMENT.replace("uplink = true", "uplink = true\nneighbour-suppression = true"), &[""]);
        let mut guest = bed.guest(0);
        run("ip neigh add 10.0.0.9 lladdr 02:00:00:00:09:09 dev ml-br100 nud noarp extern_learn");
        run("bridge fdb add 02:00:00:00:09:09 dev ml-vx100 dst 10.9.0.2 self");
        let map = bed.daemon().network().segments().pop().unwrap();
        let find = || map.addresses().find(0, [10, 0, 0, 9].into(), bed.daemon().network().second());
        wait_until(|| find().is_some(), "the neighbour is known");
        let head = [&[0xff; 6][..], &mac(0), &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]].concat();
        let question = [&head[..], &mac(0), &[10, 0, 0, 1], &[0; 6], &[10, 0, 0, 9], &[0; 18]].concat();
        guest.send(&question).unwrap();
        let answer = guest.receive(TIMEOUT).unwrap().bytes;
        assert_eq!((&answer[22..28], &answer[28..32]), (&[2, 0, 0, 0, 9, 9][..], &[10, 0, 0, 9][..]));
        run("ip neigh del 10.0.0.9 dev ml-br100");
        wait_until(|| find().is_none(), "the address is withdrawn");
    });
}

/// The bridge's neighbours that memlane entered, from which FRR makes routes.
fn announced_here() -> String {
    run("ip neigh show nud permanent dev ml-br100")
}

#[test]
fn configured_addresses_here_are_neighbours_of_the_bridge_while_their_guests_run() {
    in_a_namespace("uplink::configured_addresses_here_are_neighbours_of_the_bridge_while_their_guests_run", || {
        host();
        // The bridge is to have IPv6 neighbours.
        std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "0").unwrap();
        let keys = "mac = \"02:00:00:00:00:00\"\naddresses = [\"10.0.0.1\", \"fd00::1\"]\n";
        let mut bed = Bed::with(SEGMENT, &[keys, "mac = \"02:00:00:00:00:01\"\naddresses = [\"10.0.0.2\"]\n", ""]);
        let mut guest = bed.guest(0);
        let first = ["10.0.0.1 lladdr 02:00:00:00:00:00", "fd00::1 lladdr 02:00:00:00:00:00"];
        wait_until(|| first.iter().all(|entry| announced_here().contains(entry)), "FRR can announce them");
        assert!(!announced_here().contains("10.0.0.2"), "no guest is there");
        // A claim is not announced, and a route of another host takes no configured address here.
        let mut claims = bed.guest(2);
        let announcement =
            [&[0xff; 6][..], &mac(2), &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1], &mac(2), &[10, 0, 0, 3], &[0; 6], &[10, 0, 0, 3]];
        claims.send(&[&announcement.concat()[..], &[0; 18]].concat()).unwrap();
        while guest.receive(TIMEOUT).unwrap().bytes[12..32] != announcement.concat()[12..32] {}
        let segment = bed.daemon().network().segments().pop().unwrap();
        let find = |last| segment.addresses().find(0, [10, 0, 0, last].into(), bed.daemon().network().second());
        assert_eq!(find(3).map(|entry| entry.mac.unwrap().bytes()), Some(mac(2)));
        run("ip neigh replace 10.0.0.1 lladdr 02:00:00:00:09:09 dev ml-br100 nud noarp extern_learn");
        wait_until(|| segment.addresses().conflicts() > 0, "the conflict is told");
        assert_eq!(find(1).map(|entry| entry.mac.unwrap().bytes()), Some(mac(0)));
        run("ip neigh del 10.0.0.1 dev ml-br100");
        wait_until(|| announced_here().contains("10.0.0.1 lladdr 02:00:00:00:00:00"), "the other host withdrew its route");
        drop(guest);
        wait_until(|| !announced_here().contains("10.0.0.1") && !announced_here().contains("fd00::1"), "they are withdrawn");
        let _guest = bed.guest(1);
        wait_until(|| announced_here().contains("10.0.0.2 "), "the other one is announced");
        assert!(!announced_here().contains("10.0.0.3"), "{}", announced_here());
        bed.stop();
        assert!(!run("ip neigh show nud all").contains("10.0.0."), "nothing is left");
    });
}

/// The devices are the operator's, so they stay when memlane is killed, and so do the entries.
#[test]
fn neighbours_that_a_killed_memlane_left_are_taken_away() {
    in_a_namespace("uplink::neighbours_that_a_killed_memlane_left_are_taken_away", || {
        host();
        run("ip link add ml-br100 type bridge && ip link set ml-br100 up && ip tuntap add ml-tap100 mode tap vnet_hdr");
        run("ip link add ml-vx100 type vxlan id 100 local 10.9.0.1 dstport 4789 nolearning && ip link set ml-vx100 up");
        run("ip link set ml-tap100 master ml-br100 up && ip link set ml-vx100 master ml-br100");
        run("bridge link set dev ml-vx100 neigh_suppress on learning off && bridge link set dev ml-tap100 learning off");
        run("ip neigh add 10.0.0.77 lladdr 02:00:00:00:00:77 dev ml-br100 nud permanent");
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let devices = "tap = \"ml-tap100\"\nbridge = \"ml-br100\"\nvxlan = \"ml-vx100\"\nvni = 100\n";
        let segment = format!("[[segment]]\nname = \"lan\"\nuplink = true\n{devices}");
        let port = "[[port]]\nname = \"a\"\nvhost-user = \"a.sock\"\naddresses = [\"10.0.0.1\"]\nmac = \"02:00:00:00:00:00\"\n";
        write(folder, "net.toml", &format!("{segment}{port}"));
        let running = Running::start(memlane(folder, &["up", "net.toml"]));
        let connect = || ToyGuest::builder().mac(mac(0)).timeout(TIMEOUT).connect(folder.join("a.sock")).unwrap();
        let guest = connect();
        wait_until(|| announced_here().contains("10.0.0.1 "), "it is announced");
        drop((running, guest));
        assert!(announced_here().contains("10.0.0.1 "), "it had no time to tidy up");
        let mut running = Running::start(memlane(folder, &["up", "net.toml"]));
        wait_until(|| !announced_here().contains("10.0.0.1 "), "its guest is not there");
        let _guest = connect();
        wait_until(|| announced_here().contains("10.0.0.1 "), "it is announced again");
        run(&format!("kill {}", running.0.id()));
        assert!(running.0.wait().unwrap().success());
        assert!(!announced_here().contains("10.0.0.1 ") && announced_here().contains("10.0.0.77 "), "{}", announced_here());
    });
}
