#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# server.sh INTERFACE[=MAC] ADDRESS/LENGTH ADDRESS6/LENGTH GATEWAY GATEWAY6: the server of `roost lab up`, which answers
# lines at ports 8000 and 8001 and serves a page at port 8080.
set -eu
here=$(dirname "$(readlink -f -- "$0")")
address=${2%/*}

"$here/need.sh" python3 python3
"$here/need.sh" curl curl # with which it asks the appliance for a client
"$here/network.sh" "$1" "$2" "$1" "$3" to 198.18.0.0/15 "$4" to fd00:10::/64 "$5" to fd00:18::/64 "$5"
mkdir -p /srv/roost
echo "Hello from the lab's server." >/srv/roost/index.html
# It ends when its input does: that of a pipe which it has open for writing, too, never does.
input=/run/roost-server.input
listen="--listen $address 8000 --listen $address 8001"
"$here/service.sh" roost-server "[ -p $input ] || mkfifo $input; exec python3 -m appliance.peers.server $listen <>$input"
"$here/service.sh" roost-pages "exec python3 -m http.server --bind $address --directory /srv/roost 8080"
