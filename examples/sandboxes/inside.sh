#!/bin/sh
# What guest $1 does: it gets an address, then fetches three pages when the files allowed.$1, unnamed.$1 and refused.$1 appear in folder $2.
mount -t tmpfs run /run
card=$(ip -o link | sed -n 's/^[0-9]*: \(e[^:@]*\).*/\1/p' | head -n 1)
ip link set "$card" up
busybox udhcpc -i "$card" -s "$(dirname "$0")/lease.sh" -n -q -t 30 -T 1 >/dev/null 2>&1 || echo "no lease"
# The name server of the lease.
resolv=$(readlink -m /etc/resolv.conf)
case $resolv in
/run/*) mkdir -p "$(dirname "$resolv")" && cp /run/name-servers "$resolv" ;;
*) mount --bind /run/name-servers "$resolv" ;;
esac
echo "lease: $(ip -4 -br address show dev "$card")"

# Fetches the page of $2 once file $3 is there; tells what came, or why nothing did, and after how long.
fetch() {
    until [ -e "$3" ]; do sleep 0.3; done
    said=$(curl --silent --verbose --max-time 20 --write-out '\nafter %{time_total} s\n' "http://$2/" 2>&1)
    page=$(echo "$said" | grep -o "^a page.*\|Could not resolve host\|Connection refused\|timed out" | head -n 1)
    echo "$1: $page $(echo "$said" | grep "^after ")"
}

fetch allowed www.example.org "$2/allowed.$1"
fetch unnamed other.example.org "$2/unnamed.$1"
fetch refused 198.51.100.20 "$2/refused.$1"
# The guest stays, as a sandbox would.
while :; do sleep 1000; done
