#!/bin/sh
# Two guests; a pings b.
. "$(dirname "$0")/../guests.sh"

ping=$(command -v ping || echo "busybox ping")
network
guest b "b=10.0.0.2/24" true
ready b
guest a "a=10.0.0.1/24" "$ping -c 5 10.0.0.2"
result a
"$memlane" status net.toml
