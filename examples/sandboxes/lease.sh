#!/bin/sh
# Called by udhcpc with the lease.
[ "$1" = bound ] || exit 0
ip address add "$ip/$mask" dev "$interface"
ip route add default via "$router" dev "$interface"
for server in $dns; do echo "nameserver $server"; done >/run/name-servers
