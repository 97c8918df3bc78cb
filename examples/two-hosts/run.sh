#!/bin/sh
# Two hosts and their guests, all as network namespaces: each host has its memlane and its FRR, and a veth pair is the underlay between them.
set -eu
cd "$(dirname "$0")"
memlane=${MEMLANE:-$(pwd)/../../target/release/memlane}
frr=${FRR:-/usr/lib/frr}

fail() {
    echo "two-hosts: $1" >&2
    exit 1
}

[ "$(id -u)" = 0 ] || fail "namespaces need root"
[ -x "$memlane" ] || fail "there is no $memlane: run make build, or set MEMLANE"
[ -x "$frr/bgpd" ] || fail "there is no $frr/bgpd: install FRR (apt install frr), or set FRR to the folder of its daemons"

work=$(mktemp -d)
chmod 755 "$work"
processes=
# What fails here is gone already.
end() {
    [ -z "$processes" ] || kill $processes 2>/dev/null || true
    wait
    for n in 1 2; do
        ip netns del two-hosts-guest$n 2>/dev/null || true
        ip netns del two-hosts-$n 2>/dev/null || true
    done
    rm -rf "$work"
}
trap end EXIT
trap 'exit 1' INT TERM

# Waits until $1 succeeds, for 30 seconds at most; $2 says what that means.
await() {
    tries=0
    until eval "$1" >/dev/null 2>&1; do
        tries=$((tries + 1))
        [ $tries -lt 300 ] || { tail -n 20 "$work"/*.log; fail "waited in vain until $2"; }
        sleep 0.1
    done
}

for n in 1 2; do
    ip netns add two-hosts-$n
    ip netns add two-hosts-guest$n
    ip -n two-hosts-$n link set lo up
done
ip link add underlay1 netns two-hosts-1 type veth peer name underlay2 netns two-hosts-2

for n in 1 2; do
    other=$((3 - n))
    ip -n two-hosts-$n addr add 10.9.0.$n/24 dev underlay$n
    ip -n two-hosts-$n link set underlay$n up
    cp host$n.toml "$work"
    ip netns exec two-hosts-$n "$memlane" up "$work/host$n.toml" >"$work/memlane$n.log" 2>&1 &
    processes="$processes $!"
    await "grep -q 'is up' $work/memlane$n.log" "memlane of host $n is up"
    ip -n two-hosts-guest$n addr add 192.168.100.$n/24 dev eth0

    mkdir "$work/frr$n"
    "$memlane" evpn --as 65000 --local 10.9.0.$n --peers 10.9.0.$other >"$work/frr$n/frr.conf"
    chown -R frr:frr "$work/frr$n"
    for daemon in zebra bgpd; do
        ip netns exec two-hosts-$n "$frr/$daemon" -f "$work/frr$n/frr.conf" -z "$work/frr$n/zserv" -i "$work/frr$n/$daemon.pid" \
            --vty_socket "$work/frr$n" --log stdout >"$work/$daemon$n.log" 2>&1 &
        processes="$processes $!"
    done
done

await "$memlane status $work/host1.toml | grep -q 02:00:00:00:01:02" "host 1 knows the guest of host 2, which has said nothing yet"
await "$memlane status $work/host2.toml | grep -q 02:00:00:00:01:01" "host 2 knows the guest of host 1"
"$memlane" status "$work/host1.toml"
ip netns exec two-hosts-guest1 ping -c 5 -i 0.2 192.168.100.2
echo "the largest frames that pass, whole:"
ip netns exec two-hosts-guest1 ping -c 2 -i 0.2 -M do -s 1422 192.168.100.2

"$memlane" detach "$work/host2.toml" guest
await "! $memlane status $work/host1.toml | grep -q 02:00:00:00:01:02" "host 1 has forgotten the guest of host 2"
echo "host 1 has forgotten the guest that was detached from host 2"
