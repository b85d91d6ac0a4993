#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# appliance.sh WAN ADDRESS/LENGTH LAN ADDRESS/LENGTH NAT: the appliance between them, installed by install.sh and configured
# by scene.toml where it has no configuration yet. WAN and LAN may have a MAC address behind them (network.sh). The first
# client gets the name thermostat.
set -eu
here=$(dirname "$(readlink -f -- "$0")")

"$here/network.sh" "$1" "$2" "$3" "$4" to 198.19.0.0/16 "$5"
echo net.ipv4.ip_forward=1 >/etc/sysctl.d/60-roost-router.conf
sysctl -q -p /etc/sysctl.d/60-roost-router.conf
[ -e /etc/roost/roost.toml ] || install -D -m 640 "$here/scene.toml" /etc/roost/roost.toml
"$here/install.sh"
systemctl -q enable roost
systemctl restart roost # sleeping clients do not notice

tries=60
until roost connections --name thermostat | grep -q thermostat; do
    tries=$((tries - 1))
    [ "$tries" -gt 0 ] || {
        echo "appliance: no client has come. Bring them up, then: roost name ID thermostat" >&2
        exit 0
    }
    first=$(roost connections | awk '$5 == "line" { print $1; exit }')
    { [ -n "$first" ] && roost name "$first" thermostat; } || sleep 2
done
