#!/bin/sh
# $GUESTS sandboxes (50) and an Internet of their own: two web servers and a name server in a namespace. `run.sh root` leads out by the kernel's NAT.
# All of it runs in namespaces of its own, which end with the script: of the host nothing changes.
if [ -z "${APART:-}" ]; then
    user=$([ "$(id -u)" = 0 ] || echo "--user --map-root-user")
    # shellcheck disable=SC2086,SC2016 # two words, and the inner shell's variables
    APART=1 exec unshare $user --net --mount sh -c 'mount -t tmpfs none /run; ip link set lo up; exec "$0" "$@"' "$0" "$@"
fi
. "$(dirname "$0")/../guests.sh"

count=${GUESTS:-50}
memory=40M
[ "${1:-}" != root ] || config=$here/root.toml
if [ -z "$kernel" ]; then
    # TAPs that come later are announced.
    { echo 'sandbox = { kinds = ["tap"] }'; cat "$config"; } >"$folder/late.toml"
    config=$folder/late.toml
fi

internet() {
    mkdir -p /run/netns
    ip netns add example-internet && echo example-internet >>"$folder/spaces"
    ip link add example0 type veth peer name host netns example-internet || fail "no veth"
    ip address add 198.51.100.1/24 dev example0
    ip link set example0 up
    # passt takes the host's way out as its pattern.
    ip route add default via 198.51.100.10 metric 9999
    for address in 198.51.100.10 198.51.100.20; do ip -n example-internet address add $address/24 dev host; done
    ip -n example-internet link set lo up
    ip -n example-internet link set host up
    mkdir "$folder/www"
    echo "a page of the Internet" >"$folder/www/index.html"
    ip netns exec example-internet busybox httpd -f -p 80 -h "$folder/www" &
    started="$started $!"
    ip netns exec example-internet dnsmasq --keep-in-foreground --user=root --pid-file= --no-resolv --no-hosts --bind-interfaces \
        --listen-address=198.51.100.10 --address=/www.example.org/198.51.100.10 --address=/other.example.org/198.51.100.20 &
    started="$started $!"
}

kernel_routes() {
    ip address add 10.9.255.254/16 dev memlane0
    ip link set memlane0 up
    echo 1 >/proc/sys/net/ipv4/ip_forward
    iptables -t nat -A POSTROUTING -s 10.9.0.0/16 ! -d 10.9.0.0/16 -j MASQUERADE || fail "no NAT"
}

sandbox() {
    if [ -n "$kernel" ]; then
        set -- "$1" --ephemeral
    else
        ip netns add "example-$1" && echo "example-$1" >>"$folder/spaces"
        set -- "$1" --tap eth0 --netns "example-$1" --mac "02:00:00:00:01:$(printf %02x "${1#task}")"
    fi
    "$memlane" attach net.toml "$@" --print nothing --isolated true --anti-spoof all --groups '["sandbox"]'
}

# Has each guest do its next step, one after the other.
each() {
    for n in $(seq "$count"); do
        touch "$folder/$1.task$n"
        await "^$1:" "task$n.log"
    done
}

internet
network
switch=${started##* }
[ "${1:-}" != root ] || kernel_routes
for n in $(seq "$count"); do sandbox "task$n" || fail "no port"; done
for n in $(seq "$count"); do guest "task$n" "task$n=dhcp" "$here/inside.sh task$n $folder"; done
for n in $(seq "$count"); do await "^lease:" "task$n.log"; done
each allowed
each unnamed
each refused
cat task*.log | grep "^allowed: a page of the Internet" | wc -l | sed 's/^/guests that fetched the allowed page: /'
cat task*.log | grep "^unnamed: Could not resolve host" | wc -l | sed 's/^/guests that were refused another name: /'
cat task*.log | grep "^refused: Connection refused" | wc -l | sed 's/^/guests that were refused another address: /'
cat task*.log | sed -n 's/^[ru][a-z]*: .* after \([0-9.]*\) s.*/\1/p' | sort -n | tail -n 1 | sed 's/^/slowest refusal, in seconds: /'
echo "== denials of task$count"
"$memlane" denials net.toml "task$count"
# passt is started by a helper of the network, outside of its sandbox.
passts=$(for helper in $(ps -o pid= --ppid "$switch"); do ps -o args= --ppid "$helper"; done | grep -c "^passt")
[ "${1:-}" = root ] || echo "one passt for all: $passts"
