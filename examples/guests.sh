# Sourced by the examples: a network, and guests on it. All of it ends with the script that sources this.
#
#   network              starts memlane on the net.toml of this folder, and waits until guests can connect
#   guest NAME CARDS COMMAND
#                        boots a guest that has a card on each port of CARDS ("PORT=ADDRESS/PREFIX ...", or PORT=dhcp for a COMMAND that asks
#                        for an address), and runs COMMAND in it;
#                        a port belongs to the guest whose name its own begins with: app-front to app
#   attach PORT          attaches a port while the network runs
#   ready NAME           waits until the guest's command has ended
#   busy NAME            fails if it has: what happened meanwhile shows nothing then
#   result NAME          waits until the guest's command has ended, and shows what it said
#
# Guests run under User Mode Linux if a kernel is found: $UML_KERNEL, or the one that `make demo` has built. Else they are network namespaces
# with TAPs, which only root can make. Guests use the host's own programs; or, if $tree names a root tree, those in there, whose first process
# is $first. $memory is what a User Mode Linux guest gets, and $config the network's file.

folder=$(mktemp -d /tmp/memlane-example.XXXXXX)
here=$(cd "$(dirname "$0")" && pwd)
memlane=${MEMLANE:-$here/../../target/release/memlane}
kernel=${UML_KERNEL-$(ls -t "${XDG_CACHE_HOME:-$HOME/.cache}"/memlane/uml-*/linux 2>/dev/null | head -n 1)}
export XDG_RUNTIME_DIR="$folder"
started=
tree=
first=$here/../guest-init.sh
config=$here/net.toml
memory=64M

fail() {
    echo "$0: $1" >&2
    exit 1
}

clean_up() {
    trap - EXIT INT TERM
    for pid in $started; do kill -KILL "$pid" 2>/dev/null; done
    for space in $(cat "$folder/spaces" 2>/dev/null); do
        # What was started in there outlives the shell that did.
        for pid in $(ip netns pids "$space"); do kill -KILL "$pid" 2>/dev/null; done
        ip netns delete "$space"
    done
    rm -rf "$folder"
}
trap clean_up EXIT
trap 'exit 1' INT TERM

# Waits until a line of FILE matches PATTERN.
await() {
    tries=0
    until grep -q "$1" "$2" 2>/dev/null; do
        tries=$((tries + 1))
        [ "$tries" -lt 300 ] || { cat "$2" >&2; fail "waited in vain for '$1' in $2"; }
        sleep 0.1
    done
}

network() {
    command -v "$memlane" >/dev/null || fail "$memlane is not there: run 'make build', or set MEMLANE to the binary"
    cp "$config" "$folder/net.toml"
    if [ -z "$kernel" ]; then
        [ "$(id -u)" = 0 ] || fail "no UML kernel was found ('make demo' builds one), and namespaces need root"
        # Each guest's ports become TAPs in its namespace.
        sed -i -E 's/^vhost-user = "(([a-z]+)[a-z-]*)\.sock"/tap = "\1"\nnetns = "example-\2"/' "$folder/net.toml"
        for space in $(sed -n 's/^netns = "\(.*\)"/\1/p' "$folder/net.toml" | sort -u); do
            ip netns add "$space" && echo "$space" >>"$folder/spaces"
        done
    fi
    cd "$folder" || exit
    "$memlane" up net.toml >up.log 2>&1 &
    started="$started $!"
    await "is up\|memlane:" up.log
    grep -q "is up" up.log || fail "$(cat up.log)"
}

attach() {
    if [ -n "$kernel" ]; then
        "$memlane" attach net.toml "$1" --vhost-user "$1.sock" --print nothing
    else
        ip netns add "example-$1" && echo "example-$1" >>"$folder/spaces"
        "$memlane" attach net.toml "$1" --tap "$1" --netns "example-$1" --print nothing
    fi
}

guest() {
    if [ -n "$kernel" ]; then
        # Not beside each other: the control socket serves so many at a time.
        cards= index=0
        for card in $2; do
            cards="$cards virtio_uml.$("$memlane" uml net.toml "${card%=*}" | sed 's/^virtio_uml\.//'):$index"
            index=$((index + 1))
        done
        in_uml "$@" >"$1.log" 2>&1 &
    else
        in_namespace "$@" >"$1.log" 2>&1 &
    fi
    started="$started $!"
}

in_uml() {
    # shellcheck disable=SC2086 # each card is an argument
    TMPDIR=/dev/shm exec setarch --addr-no-randomize "$kernel" umid="$1" uml_dir="$folder/uml" mem="$memory" seccomp=auto quiet \
        root=/dev/root rootfstype=hostfs rootflags="${tree:-/}" ro init="$first" con=null con0=null,fd:1 $cards \
        guest_addresses="$(echo "$2" | sed 's/[^ =]*=//g; s/ /,/g')" guest_command="$(echo "$3" | tr ' ' '~')"
}

in_namespace() {
    for card in $2; do
        [ "${card#*=}" = dhcp ] || ip -n "example-$1" address add "${card#*=}" dev "${card%=*}" || exit
    done
    ip -n "example-$1" link set lo up
    if [ -n "$tree" ]; then
        ip netns exec "example-$1" unshare --mount --pid --fork --kill-child chroot "$tree" /bin/sh -c \
            "mount -t proc proc /proc; mount -t devtmpfs dev /dev; mount -t tmpfs run /run; mount -t tmpfs tmp /tmp; $3"
    else
        ip netns exec "example-$1" sh -c "$3"
    fi
    echo "-- ended with $?"
}

ready() {
    await "^-- ended with" "$1.log"
}

busy() {
    ! grep -q "^-- ended with" "$1.log" || fail "$1 had ended before all was done that it was to see"
}

result() {
    ready "$1"
    echo "== $1"
    grep -v "^-- ended with 0" "$1.log"
}
