#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# package.sh [DIR]: make roost_VERSION_ARCHITECTURE.deb of this checkout, for this machine's release of Debian, in DIR
# (or here). What is in it is what install.sh installs, and of what it is made: sbom.json and copyright in
# /usr/share/doc/roost. It takes the place of those that DIR has.
#
# VERSION is Roost's, then +TIME.COMMIT, so that apt takes a later build for an upgrade. TIME (UTC) is the commit's; where files
# were changed since (COMMIT.changed), or where it is no repository or git is missing (TIME alone), that of the build.
set -eu

here=$(readlink -f -- "$0")
checkout=${here%/vagrant/package.sh}
to=$(readlink -f -- "${1:-.}")
[ "$(id -u)" -eq 0 ] || {
    echo "package: run it as root: sudo $0 $*" >&2
    exit 1
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
root=$work/root
"$checkout/vagrant/install.sh" --root "$root" --report "$work/report.json" >&2 # apt tells of its packages
chmod 755 "$root"

version=$(PYTHONPATH=$root/usr/lib/roost /usr/bin/python3 -P -c 'from appliance import __version__; print(__version__)')
git() { command git -c safe.directory="$checkout" -C "$checkout" "$@"; }
time=$(date -u +%Y%m%d%H%M%S)
if [ ! -e "$checkout/.git" ] || ! commit=$(git rev-parse --short HEAD 2>/dev/null); then
    version=$version+$time
elif [ -n "$(git status --porcelain)" ]; then
    version=$version+$time.$commit.changed
else
    version=$version+$(TZ=UTC0 git log -1 --date=format-local:%Y%m%d%H%M%S --format=%cd).$commit
fi
architecture=$(dpkg --print-architecture)
python=$(/usr/bin/python3 -c 'import sys; print(f"python3 (>= 3.{sys.version_info[1]}), python3 (<< 3.{sys.version_info[1] + 1})")')
run=$(awk '$1 !~ /^#/ && $2 == "run" { printf ", %s", $1 }' "$checkout/vagrant/packages.txt")
depends="$python, libbpf1, libelf1, zlib1g, libsqlite3-0, systemd$run"
install -D -m 644 "$checkout/vagrant/keepalived.conf" "$root/usr/share/doc/roost/examples/keepalived.conf"
/usr/bin/python3 "$checkout/vagrant/bill.py" "$root/usr/lib/roost" "$work/report.json" "$depends" "$root/usr/share/doc/roost"
mkdir "$root/DEBIAN"
for each in postinst prerm postrm; do
    install -m 755 "$checkout/vagrant/debian/$each" "$root/DEBIAN/$each"
done
echo /etc/roost/roost.toml >"$root/DEBIAN/conffiles"
cat >"$root/DEBIAN/control" <<END
Package: roost
Version: $version
Architecture: $architecture
Maintainer: The maintainers of Roost <root@localhost>
Installed-Size: $(du -sk --exclude=DEBIAN "$root" | cut -f 1)
Depends: $depends
Section: net
Priority: optional
Description: connection manager for millions of quiet TCP connections
 Holds TCP connections of devices that hardly ever speak without a socket for
 each, answers their keep-alives, and wakes them when either end has something
 to say.
END
rm -f "$to"/roost_*_"$architecture.deb" # else roost_*.deb would be several
dpkg-deb --build --root-owner-group -Zxz -z1 "$root" "$to/roost_${version}_$architecture.deb" >/dev/null
echo "$to/roost_${version}_$architecture.deb"
