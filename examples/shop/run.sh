#!/bin/sh
# A shop in three tiers that a browser on the host can visit at http://10.0.1.1/. With arguments: runs them as a command
# while the shop is open, and ends; without: is open until it is interrupted. Needs root for the host's TAP.
. "$(dirname "$0")/../guests.sh"

tree=$(ls -td "${XDG_CACHE_HOME:-$HOME/.cache}"/memlane/shop-*-1000-5000/tree 2>/dev/null | head -n 1)
[ -n "$tree" ] || fail "the shop's programs and data are not there: run 'make build' and '.venv/bin/memlane-lab prepare' (some minutes)"
first=/srv/shop/init
memory=320M

network
ip address add 10.0.1.254/24 dev memlane0 || fail "memlane0 gets no address; root is needed"
guest db "db=10.0.3.3/24" "/srv/shop/tier database"
await "^database serves" db.log
guest app "app-middle=10.0.2.2/24 app-back=10.0.3.2/24" "/srv/shop/tier application 10.0.3.3"
await "^application serves" app.log
guest web "web-front=10.0.1.1/24 web-middle=10.0.2.1/24" "/srv/shop/tier web 10.0.2.2"
await "^web serves" web.log
echo "the shop is open: http://10.0.1.1/"
if [ $# -gt 0 ]; then
    "$@"
else
    echo "Ctrl-C closes it"
    while :; do sleep 1; done
fi
