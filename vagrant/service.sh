#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# service.sh NAME COMMAND: keep a shell's command running in the checkout, as a service of systemd, or where there is none
# as a process (/run/NAME.pid). A service whose command is as before runs on.
set -eu

here=$(readlink -f -- "$0")
checkout=${here%/vagrant/service.sh}
name=$1 command=$2

if [ ! -d /run/systemd/system ]; then
    if kill -0 "$(cat "/run/$name.pid" 2>/dev/null)" 2>/dev/null; then exit 0; fi
    cd "$checkout"
    # shellcheck disable=SC2016 # the inner shell's
    setsid sh -c 'while :; do sh -c "$0"; sleep 2; done' "$command" >"/run/$name.log" 2>&1 </dev/null &
    echo $! >"/run/$name.pid"
    exit 0
fi

unit=/etc/systemd/system/$name.service
cat >"$unit.new" <<END
[Unit]
Wants=network.target
After=network.target
StartLimitIntervalSec=0

[Service]
WorkingDirectory=$checkout
ExecStart=/bin/sh -c '$command'
Restart=always
RestartSec=2

[Install]
WantedBy=multi-user.target
END
if cmp -s "$unit.new" "$unit"; then
    rm "$unit.new"
else
    mv "$unit.new" "$unit"
    systemctl daemon-reload
    systemctl -q stop "$name"
fi
systemctl -q enable --now "$name"
