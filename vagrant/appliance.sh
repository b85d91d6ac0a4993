#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# appliance.sh WAN ADDRESS/LENGTH ADDRESS6/LENGTH LAN ADDRESS/LENGTH ADDRESS6/LENGTH NAT NAT6: the appliance between them,
# installed by install.sh and configured by scene.sh where it has no configuration yet. WAN and LAN may have a MAC address
# behind them (network.sh). The first client gets the name thermostat.
set -eu
here=$(dirname "$(readlink -f -- "$0")")

"$here/network.sh" "$1" "$2" "$1" "$3" "$4" "$5" "$4" "$6" to 198.19.0.0/16 "$7" to fd00:10::/64 "$8"
printf 'net.ipv4.ip_forward=1\nnet.ipv6.conf.all.forwarding=1\n' >/etc/sysctl.d/60-roost-router.conf
sysctl -q -p /etc/sysctl.d/60-roost-router.conf
"$here/scene.sh"
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
