#!/bin/sh
# Three tiers: the host reaches web, web reaches app, app reaches db, and web does not reach db. Needs root for the host's TAP.
. "$(dirname "$0")/../guests.sh"

ping=$(command -v ping || echo "busybox ping")
network
ip address add 10.0.1.254/24 dev memlane0 || fail "memlane0 gets no address; root is needed"
guest db "db=10.0.2.3/24" true
ready db
guest app "app-front=10.0.1.2/24 app-back=10.0.2.2/24" "$ping -c 3 10.0.2.3"
ready app
guest web "web=10.0.1.1/24" "$ping -c 3 10.0.1.2; ip route add 10.0.2.3 via 10.0.1.2; $ping -c 2 -W 1 10.0.2.3 || echo web does not reach db"
result app
result web
echo "== host"
$ping -c 3 10.0.1.1
"$memlane" status net.toml
