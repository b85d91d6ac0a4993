#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# client.sh INTERFACE[=MAC] ADDRESS/LENGTH ADDRESS6/LENGTH GATEWAY GATEWAY6 APPLIANCE: a client that connects to port 8000
# of the appliance, and falls quiet; when its connection has ended, or could not be made, it connects again.
set -eu
here=$(dirname "$(readlink -f -- "$0")")

"$here/need.sh" python3 python3
"$here/need.sh" curl curl # to load the page
"$here/network.sh" "$1" "$2" "$1" "$3" to 198.18.0.0/15 "$4" to 10.3.0.0/24 "$4" to fd00:3::/64 "$5" to fd00:18::/64 "$5"
cat >/usr/local/bin/roost-client <<END
#!/bin/sh
# Asks the swarm every 2 s what became of its client; grep ends at the first one lost, and all with it.
{
    echo '{"do": "connect", "token": 1, "count": 1, "server": ["$6", 8000], "timeout_s": 10}'
    while sleep 2; do echo '{"do": "stats", "token": 2}' || exit; done
} | python3 -m appliance.peers.swarm | grep -q -m 1 -E '"(failed|dead)": \{"'
END
chmod 755 /usr/local/bin/roost-client
"$here/service.sh" roost-client /usr/local/bin/roost-client
