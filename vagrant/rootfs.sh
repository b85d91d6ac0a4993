#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# rootfs.sh [--bare] DIR [RELEASE [ARCHITECTURE]]: make a root file system of that release of Debian (of this machine's, if
# none is named), in which apt installed this checkout's package, in a directory that is not there yet. What boots it has
# /vmlinuz, /initrd.img, systemd-networkd and sshd, for which it brings keys. The package lies in /root. That of another
# release or architecture is built in a copy of the file system, by its Python and compilers. --bare: with neither the
# package nor what boots.
#
# ARCHITECTURE is Debian's name, as arm64. Programs of another one than this machine's are run by qemu-user-static, which
# tells the kernel of itself (binfmt_misc) by systemd.
set -eu

here=$(readlink -f -- "$0")
checkout=${here%/vagrant/rootfs.sh}
bare=
[ "${1:-}" != --bare ] || { bare=1 && shift; }
root=${1:?usage: rootfs.sh [--bare] DIR [RELEASE [ARCHITECTURE]]}

die() {
    printf 'rootfs: %s\n' "$*" >&2
    exit 1
}

[ "$(id -u)" -eq 0 ] || die "run it as root: sudo $0 $*"
[ ! -e "$root" ] || die "$root is there already"
command -v debootstrap >/dev/null || die "debootstrap is missing: apt-get install debootstrap"
# shellcheck disable=SC1091
own=$(. /etc/os-release && echo "$VERSION_CODENAME")
release=${2:-$own}
native=$(dpkg --print-architecture)
architecture=${3:-$native}
# shellcheck disable=SC2016 # apt-get expands it
mirror=$(apt-get indextargets --format '$(RELEASE) $(SITE)' 'Created-By: Packages' | awk -v r="$own" '$1 == r { print $2; exit }')
[ -n "$mirror" ] || die "apt-get has no source of $own"

trap '[ $? -eq 0 ] || rm -rf "$root"; rm -rf "$root.build"' EXIT
trap 'exit 1' HUP INT TERM
debootstrap --variant=minbase --arch="$architecture" "$release" "$root" "${mirror%/}"
root=$(readlink -f -- "$root")
cp -rL /usr/local/share/ca-certificates "$root/usr/local/share/" # whom this machine trusts, pip is to trust there
[ -z "$bare" ] || exit 0
printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d" # no service starts here
chmod 755 "$root/usr/sbin/policy-rc.d"

# In a mount namespace of its own: nothing stays mounted. The checkout is /mnt.
run_in() { # DIRECTORY COMMAND ...
    # shellcheck disable=SC2016 # the inner shell expands it
    unshare --mount sh -euc 'mount -t proc proc "$1/proc"; mount --bind "$0" "$1/mnt"
        exec chroot "$@"' "$checkout" "$@"
}
install() { run_in "$root" env DEBIAN_FRONTEND=noninteractive apt-get -q -y --no-install-recommends install "$@"; }

run_in "$root" apt-get -q update
if [ "$release $architecture" = "$own $native" ]; then
    package=$("$checkout/vagrant/package.sh" "$root/root")
else
    cp -a "$root" "$root.build"
    package=$(run_in "$root.build" /mnt/vagrant/package.sh /root)
    mv "$root.build$package" "$root/root"
fi
install "linux-image-cloud-$architecture" initramfs-tools systemd-sysv udev dbus kmod openssh-server
install "/root/${package##*/}"
run_in "$root" apt-get clean
rm "$root/usr/sbin/policy-rc.d"
chroot "$root" systemctl -q enable systemd-networkd ssh
