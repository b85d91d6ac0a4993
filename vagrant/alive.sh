#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# alive: whether this machine of two keeps the addresses. keepalived runs it each second (vagrant/keepalived.conf).
#
# A restart of the daemon keeps its connections, however long it takes, and one that hangs is killed by systemd. One that ended by
# itself CRASHES times since its service was started last, and has ended again, gives the addresses up.
set -eu
CRASHES=3

shown() { systemctl show --value -p "$1" roost; }

case $(shown ActiveState) in
    active | reloading | deactivating) ;;
    activating) [ "$(shown NRestarts)" -lt $CRASHES ] ;;
    *) exit 1 ;;
esac
