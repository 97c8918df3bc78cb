#!/bin/sh
# A quiet guest beside a noisy one, before and after the noisy one is held to a rate.
set -eu
cd "$(dirname "$0")"
programs=${MEMLANE_PROGRAMS:-../../target/release}
[ -x "$programs/memlane" ] || { echo "no memlane in $programs: run make build" >&2; exit 1; }

"$programs/memlane" up net.toml --no-state 2>/dev/null &
network=$!
trap 'kill "$network"; wait "$network" || true' EXIT
until "$programs/memlane" status net.toml >/dev/null 2>&1; do
    kill -0 "$network" || exit 1
done

# Sends for some seconds and prints what each sender got through.
contest() {
    "$programs/memlane-rig" blast -p vu:quiet.sock -p vu:noisy.sock -p vu:server.sock --pattern many-to-one \
        --size-of 0=1500 --size-of 1=60000 --interrupts --seconds "${SECONDS_EACH:-8}" --json |
        python3 -c 'import json, sys
for name, way in zip(("quiet", "noisy"), json.load(sys.stdin)["directions"]):
    print("  %s: %.0f Mbit/s" % (name, 1000 * way["gbps"]))'
}

echo "as it is:"
contest
"$programs/memlane" set net.toml noisy --transmit 200Mbit
contest
