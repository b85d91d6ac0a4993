#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# rootfs.sh DIR: make a root file system of this machine's release of Debian, with this checkout's package installed, in a
# directory that is not there yet. What boots it has /vmlinuz, /initrd.img, systemd-networkd and sshd, for which it brings keys.
set -eu

here=$(readlink -f -- "$0")
checkout=${here%/vagrant/rootfs.sh}
root=${1:?usage: rootfs.sh DIR}

die() {
    printf 'rootfs: %s\n' "$*" >&2
    exit 1
}

[ "$(id -u)" -eq 0 ] || die "run it as root: sudo $0 $*"
[ ! -e "$root" ] || die "$root is there already"
command -v debootstrap >/dev/null || die "debootstrap is missing: apt-get install debootstrap"
# shellcheck disable=SC1091
release=$(. /etc/os-release && echo "$VERSION_CODENAME")
# shellcheck disable=SC2016 # apt-get expands it
mirror=$(apt-get indextargets --format '$(RELEASE) $(SITE)' 'Created-By: Packages' | awk -v r="$release" '$1 == r { print $2; exit }')
[ -n "$mirror" ] || die "apt-get has no source of $release"
mirror=${mirror%/}

run=$(awk '$1 !~ /^#/ && $2 == "run" { printf "%s,", $1 }' "$checkout/vagrant/packages.txt")
trap '[ $? -eq 0 ] || rm -rf "$root"' EXIT
trap 'exit 1' HUP INT TERM
debootstrap --variant=minbase "--include=${run}linux-image-cloud-$(dpkg --print-architecture),initramfs-tools,systemd-sysv,udev,dbus,kmod,python3,libbpf1,libelf1,libsqlite3-0,openssh-server" \
    "$release" "$root" "$mirror"
rm -f "$root"/var/cache/apt/archives/*.deb
package=$("$checkout/vagrant/package.sh" "$root/root")
chroot "$root" dpkg -i "/root/${package##*/}" # which stays there
chroot "$root" systemctl -q enable systemd-networkd ssh
