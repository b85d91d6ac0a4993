#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# install.sh [--root DIR --report FILE]: install this checkout as the machine's Roost. What is there already is replaced, but for
# /etc/roost/roost.toml; it may run again at any time.
#
#   /usr/bin/roost              the command
#   /usr/lib/roost              Python packages, with the engine and the BPF programs
#   /usr/libexec/roost/alive    for keepalived: whether this machine of two keeps the addresses
#   /usr/lib/systemd/system     roost.service, roost-api.service, roost-quarantine.service
#   /usr/share/man              roost(1), roost-COMMAND(1), roost.toml(5), roost.service(8)
#   /usr/share                  completion for bash, zsh and fish
#   /etc/roost/roost.toml       a configuration to be filled in
#   the user roost              whom the API's process runs as
#
# --root: into a directory, as a package's files, with nothing done to this machine but its build packages. --report:
# what pip says of the Python packages, as JSON.
set -eu

here=$(readlink -f -- "$0")
checkout=${here%/vagrant/install.sh}
root=
report=/dev/null
while [ $# -gt 0 ]; do
    case $1 in
        --root) root=${2:?--root needs a directory} ;;
        --report) report=${2:?--report needs a file} ;;
        *) echo "install: $1 is no option. Usage: $0 [--root DIR --report FILE]" >&2 && exit 1 ;;
    esac
    shift 2
done

say() { printf 'install: %s\n' "$*" >&2; }

die() {
    say "$@"
    exit 1
}

[ "$(id -u)" -eq 0 ] || die "run it as root: sudo $0 $*"
command -v apt-get >/dev/null || die "this installs on Debian 12 and 13"

# --- what it is made with, and runs by --------------------------------------------------------------------------------

wanted=$(awk '$1 !~ /^#/ && ($2 == "build" || $2 == "run") { print $1 }' "$checkout/vagrant/packages.txt")
missing=
for package in $wanted; do
    dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || missing="$missing $package"
done
if [ -n "$missing" ]; then
    say "installing$missing"
    apt-get -o DPkg::Lock::Timeout=300 -qq update
    # shellcheck disable=SC2086
    DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 -qq -y --no-install-recommends install $missing
fi

# --- files ------------------------------------------------------------------------------------------------------------

# No Python takes a module of the directory where root happens to stand, which another user may have put there.
export PYTHONSAFEPATH=1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM

say "installing the Python packages"
library=$root/usr/lib/roost
new=$library.new
rm -rf "$new"
mkdir -p "${library%/*}"
/usr/bin/python3 -m venv "$work/venv"
pip() { PIP_ROOT_USER_ACTION=ignore "$work/venv/bin/python" -m pip "$@" -q --disable-pip-version-check --no-input --no-deps; }
part() { awk -v part="$1:" '/^# [a-z]+:/ { on = $2 == part } on' "$checkout/requirements.lock"; }
part build | pip install --require-hashes --only-binary :all: -r /dev/stdin
part run | pip install --require-hashes --only-binary :all: --no-compile --target "$new" --report "$report" -r /dev/stdin
rm -rf "${new:?}/bin"

say "building"
mkdir "$work/source"
(cd "$checkout" && tar -c --exclude=./.git --exclude=./.venv --exclude=./build --exclude='*.so' .) | tar -x -C "$work/source"
(cd "$work/source" && PYTHONPATH=$new pip wheel --no-build-isolation -w "$work/wheel" .) # cffi is there already
pip install --no-index --no-compile --target "$new" "$work"/wheel/roost-*.whl
rm -rf "${new:?}/bin"
/usr/bin/python3 -m compileall -q -j 0 -s "$new" -p /usr/lib/roost "$new" || :
rm -rf "$library"
mv "$new" "$library"

cat >"$work/roost" <<'END'
#!/bin/sh
PYTHONPATH=/usr/lib/roost:/usr/local/lib/roost exec /usr/bin/python3 -P -m control.cli.main "$@"
END
install -D -m 755 "$work/roost" "$root/usr/bin/roost"
install -D -m 755 "$checkout/vagrant/alive.sh" "$root/usr/libexec/roost/alive"

say "writing man pages and completions"
share=$root/usr/share
python() { PYTHONDONTWRITEBYTECODE=1 /usr/bin/python3 -P "$@"; }
PYTHONPATH=$work/source:$library python -m control.dev.manual "$work/man"
gzip -9n "$work"/man/*/*
rm -f "$share"/man/man1/roost-*.1.gz # of a command that is gone
for section in 1 5 8; do
    install -D -m 644 -t "$share/man/man$section" "$work/man/man$section"/*
done
for place in bash:bash-completion/completions/roost zsh:zsh/vendor-completions/_roost fish:fish/vendor_completions.d/roost.fish; do
    PYTHONPATH=$library python -m control.cli.main completion "${place%%:*}" >"$work/completion"
    install -D -m 644 "$work/completion" "$share/${place#*:}"
done

for unit in roost roost-api roost-quarantine; do
    install -D -m 644 "$checkout/vagrant/systemd/$unit.service" "$root/usr/lib/systemd/system/$unit.service"
done
install -D -m 644 "$checkout/vagrant/sysusers.conf" "$root/usr/lib/sysusers.d/roost.conf"
[ -e "$root/etc/roost/roost.toml" ] || install -D -m 640 "$checkout/vagrant/roost.toml" "$root/etc/roost/roost.toml"
[ -z "$root" ] || exit 0

# --- this machine -----------------------------------------------------------------------------------------------------

getent passwd roost >/dev/null || useradd --system --home-dir /nonexistent --shell /usr/sbin/nologin roost
chgrp roost /etc/roost/roost.toml # roost-api.service reads it, too
chmod o-rwx /etc/roost/roost.toml # one that was written by hand; there may be passwords in it
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload
    if systemctl -q is-active roost roost-api && ! roost up --check -c /etc/roost/roost.toml; then
        die "this version refuses /etc/roost/roost.toml; what runs goes on, of the version before. Mend the file" \
            "(roost check-config), then: systemctl restart roost roost-api"
    fi
    systemctl try-restart roost roost-api # where they run: with these files, and the connections that they have
fi
say "installed $(/usr/bin/roost --version). Say in /etc/roost/roost.toml what it is to serve, then:"
say "  roost check-config && systemctl enable --now roost"
