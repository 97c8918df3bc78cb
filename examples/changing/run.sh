#!/bin/sh
# Two guests; while a pings b, a third one comes and goes, and the network's file is read again.
. "$(dirname "$0")/../guests.sh"

ping=$(command -v ping || echo "busybox ping")
network
guest b "b=10.0.0.2/24" true
ready b
guest a "a=10.0.0.1/24" "$ping -c 60 -i 0.25 10.0.0.2"
await "bytes from" a.log

attach c
guest c "c=10.0.0.3/24" "$ping -c 3 10.0.0.2"
result c
"$memlane" set net.toml c --transmit 10Mbit
"$memlane" ls net.toml
"$memlane" detach net.toml c

sed -i 's/^name = "b"$/&\nweight = 3/' net.toml
printf '\n[[port]]\nname = "d"\nnull = true\n' >>net.toml
"$memlane" reload net.toml --dry-run
"$memlane" reload net.toml
busy a
result a | grep -v "bytes from"
