#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# network.sh {INTERFACE[=MAC] ADDRESS/LENGTH}... [to DESTINATION GATEWAY]...: set addresses and routes, now and, where
# systemd is, at each boot. An interface that does not have its name yet is found by its MAC address, and gets it; it may
# be given several addresses, by its name each time.
set -eu

die() {
    printf 'network: %s\n' "$*" >&2
    exit 1
}

named() { # INTERFACE[=MAC]: at boot it may be some seconds late
    name=${1%%=*}
    mac=$(echo "${1#"$name"}" | tr -d = | tr '[:upper:]' '[:lower:]')
    tries=30
    until ip link show dev "$name" >/dev/null 2>&1; do
        [ -n "$mac" ] || die "there is no interface $name. Give its MAC address: $name=52:54:00:..."
        now=$(ip -o link | awk -v mac="link/ether $mac" 'index($0, mac) { sub(/[:@].*/, "", $2); print $2; exit }')
        if [ -n "$now" ]; then
            ip link set dev "$now" down
            ip link set dev "$now" name "$name"
        else
            tries=$((tries - 1))
            [ "$tries" -gt 0 ] || die "no interface has the MAC address $mac. The present ones: ip link"
            sleep 1
        fi
    done
}

all=$*
while [ $# -ge 2 ]; do
    if [ "$1" = to ]; then
        ip route replace "$2" via "${3:?to $2: by which gateway?}"
        shift 3
    else
        named "$1"
        ip link set dev "$name" up
        case $2 in
        *:*) ip address replace "$2" dev "$name" nodad ;; # a service that starts at once can bind to it
        *) ip address replace "$2" dev "$name" ;;
        esac
        shift 2
    fi
done
[ $# -eq 0 ] || die "$1: which address?"

itself=/usr/local/sbin/roost-network
if [ ! -d /run/systemd/system ] || [ "$0" = "$itself" ]; then
    exit 0
fi
install -m 755 "$0" "$itself"
cat >/etc/systemd/system/roost-network.service <<END
[Unit]
Description=Interfaces of Roost's scene
DefaultDependencies=no
After=systemd-udevd.service network-pre.target
Before=network.target
Wants=network-pre.target

[Service]
Type=oneshot
ExecStart=$itself $all

[Install]
WantedBy=multi-user.target
END
systemctl daemon-reload
systemctl -q enable roost-network
