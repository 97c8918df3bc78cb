//! Whether the host's netfilter drops frames of an uplink: br_netfilter passes bridged IP packets to iptables' FORWARD rules,
//! where Docker drops packets that it does not know.
//!
//! A bridge cannot be exempted by its own attribute (`nf_call_iptables`): the kernel filters if either that or the setting for
//! all bridges says so (net/bridge/br_netfilter_hooks.c). Rules are the host's, so memlane changes none, and says which one is
//! missing.

use std::fs;

use memlane_backends::netns;

/// br_netfilter's settings for all bridges of a namespace, and the program that manages the rules of each.
const SETTINGS: [(&str, &str); 2] =
    [("/proc/sys/net/bridge/bridge-nf-call-iptables", "iptables"), ("/proc/sys/net/bridge/bridge-nf-call-ip6tables", "ip6tables")];

/// The programs that manage rules for bridged packets, for a sentence; `None` if there are none. `read` returns a file's text,
/// empty if the file does not exist.
pub fn filtering(read: impl Fn(&str) -> String) -> Option<String> {
    let on: Vec<&str> = SETTINGS.iter().filter(|(path, _)| read(path).trim() == "1").map(|(_, program)| *program).collect();
    (!on.is_empty()).then(|| {
        format!("br_netfilter passes bridged IP packets to the FORWARD rules of {}: if those drop, as Docker's do, an uplink is cut off", on.join(" and "))
    })
}

/// The rule that accepts packets of `bridge`.
pub fn remedy(bridge: &str) -> String {
    format!(
        "accept them: iptables -I FORWARD -i {bridge} -o {bridge} -j ACCEPT, and the same with ip6tables; or, if nothing else needs it, sysctl -w \
         net.bridge.bridge-nf-call-iptables=0 net.bridge.bridge-nf-call-ip6tables=0"
    )
}

/// Advice to the operator of an uplink over `bridge`, in the namespace `netns`; `None` if bridged packets are not filtered.
pub fn advice(bridge: &str, netns: Option<&str>) -> Option<String> {
    let look = || filtering(|path| fs::read_to_string(path).unwrap_or_default());
    let found = match netns {
        // Files below /proc/sys/net belong to the namespace of the thread that opens them.
        Some(netns) => netns::inside(netns, look).ok().flatten(),
        None => look(),
    };
    found.map(|text| format!("{text}; {}", remedy(bridge)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_filtered_is_told() {
        let with = |four: &str, six: &str| filtering(|path| if path.ends_with("ip6tables") { six } else { four }.to_owned());
        assert_eq!(with("", ""), None, "br_netfilter is not there");
        assert_eq!(with("0\n", "0\n"), None);
        assert!(with("1\n", "0\n").unwrap().contains("rules of iptables:"));
        assert!(with("1\n", "1\n").unwrap().contains("rules of iptables and ip6tables:"));
        assert!(remedy("ml-br7").contains("iptables -I FORWARD -i ml-br7 -o ml-br7 -j ACCEPT"));
    }
}
