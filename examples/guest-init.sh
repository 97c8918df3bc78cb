#!/bin/sh
# The first process of a User Mode Linux guest of the examples: gives its cards their addresses and runs its command.
# The kernel passes guest_addresses (ADDRESS/PREFIX,..., or dhcp, which the command is to use) and guest_command (with ~ for spaces) from its command line.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
ip link set lo up
card=0
for address in $(echo "$guest_addresses" | tr ',' ' '); do
    [ "$address" = dhcp ] || ip address add "$address" dev "eth$card"
    ip link set "eth$card" up
    card=$((card + 1))
done
# A ping that starts in the first second of its kernel does not pause: iputils takes a clock that shows 0 s for one that it has not read.
while read -r up _ </proc/uptime && [ "$(echo "$up" | tr -d .)" -lt 110 ]; do sleep 0.1; done
sh -c "$(echo "$guest_command" | tr '~' ' ')"
echo "-- ended with $?"
# The example ends the guest. (A first process that ends is a panic.)
while :; do sleep 1000; done
