#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# need.sh PROGRAM PACKAGE: install the Debian package where there is no such program.
set -eu
! command -v "$1" >/dev/null || exit 0
apt-get -o DPkg::Lock::Timeout=300 -qq update
DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 -qq -y --no-install-recommends install "$2"
