#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# nat.sh INSIDE ADDRESS/LENGTH ADDRESS6/LENGTH OUTSIDE ADDRESS/LENGTH ADDRESS6/LENGTH GATEWAY GATEWAY6: a router that
# translates what comes from inside to 198.19.0.1, which is to be routed here; IPv6 it routes as it is. INSIDE and OUTSIDE
# may have a MAC address behind them (network.sh).
set -eu
here=$(dirname "$(readlink -f -- "$0")")
outside=${4%%=*}

"$here/need.sh" nft nftables
"$here/network.sh" "$1" "$2" "$1" "$3" "$4" "$5" "$4" "$6" to 10.3.0.0/24 "$7" to fd00:3::/64 "$8"
printf 'net.ipv4.ip_forward=1\nnet.ipv6.conf.all.forwarding=1\n' >/etc/sysctl.d/60-roost-nat.conf
sysctl -q -p /etc/sysctl.d/60-roost-nat.conf
# What no translation claims ends here, as it would at a carrier's NAT, and does not come back to the appliance.
cat >/etc/nftables.conf <<END
table ip roost_nat
delete table ip roost_nat
table ip roost_nat {
    chain postrouting {
        type nat hook postrouting priority srcnat;
        oifname "$outside" snat to 198.19.0.1
    }
    chain forward {
        type filter hook forward priority filter;
        ct state invalid drop
        iifname "$outside" ct state new drop
    }
}
END
nft -f /etc/nftables.conf
[ ! -d /run/systemd/system ] || systemctl -q enable nftables
