#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# scene.sh: where the appliance has no configuration yet, scene.toml, with a new token for the scene's agents, which root
# finds in /etc/roost/agent.token.
set -eu
here=$(dirname "$(readlink -f -- "$0")")
config=/etc/roost/roost.toml token=/etc/roost/agent.token

[ ! -e "$config" ] || exit 0
install -d -m 755 /etc/roost
rm -f "$token"
(umask 077 && head -c 32 /dev/urandom | base64 | tr +/ -_ | tr -d = >"$token")
digest=$(tr -d '\n' <"$token" | sha256sum)
install -m 640 "$here/scene.toml" "$config.new"
printf '\n[[agent]]\nname = "scene"\ntoken = "%s"\nclients = ["*"]\n' "${digest%% *}" >>"$config.new"
mv "$config.new" "$config"
