#!/bin/sh
# Measures memlane beside the kernel's bridge with vhost-net, and beside Open vSwitch with DPDK if that is installed, between two guests of this
# machine, in 20 minutes. One archive comes out. `sudo ./memlane-kit --help` tells more; without root it only tells what it lacks.
#
# Behind the last line of this script: a compressed tar archive with Python, the lab, the switch, and the guests' kernel and programs. All is unpacked
# into one folder under $TMPDIR (/tmp), and removed at the end; nothing is installed.
set -eu
if [ "$(uname -s) $(uname -m)" != "Linux x86_64" ]; then
    echo "memlane-kit: this kit is for Linux on x86_64" >&2
    exit 2
fi
here=$(mktemp -d "${TMPDIR:-/tmp}/memlane-kit-XXXXXX")
trap 'rm -rf "$here"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
if ! tail -n "+@LINES@" "$0" | tar -xzf - -C "$here"; then
    echo "memlane-kit: $0 cannot be unpacked into $here: is it whole, and is there room for @MEGABYTES@ MB?" >&2
    exit 2
fi
unset PYTHONPATH PYTHONSTARTUP
export MEMLANE_LAB_KIT="$here" PYTHONHOME="$here" XDG_CACHE_HOME="$here/cache" MEMLANE="$here/revisions/@REVISION@/memlane"
status=0
"$here/lib/ld-linux-x86-64.so.2" --library-path "$here/lib" "$here/bin/python3" -s -B -m memlane_lab.kit.runner "$@" || status=$?
exit "$status"
