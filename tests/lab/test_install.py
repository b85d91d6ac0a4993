# SPDX-License-Identifier: Apache-2.0
"""What vagrant/install.sh makes of this checkout: in a directory, and of a bare Debian 12 and 13, in a chroot, without
systemd; and what vagrant/package.sh packs there."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance import __version__
from control.cli.main import OPERATOR
from tests import product
from tests.mutants import ROOT

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]

COMPLETIONS = {
    "bash": "bash-completion/completions/roost",
    "zsh": "zsh/vendor-completions/_roost",
    "fish": "fish/vendor_completions.d/roost.fish",
}


def taken_away(root: Path) -> None:
    """As docs/deploy.md says it."""
    section = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8").partition("\n## 9. Take it away\n")[2]
    lines = re.findall(r"^ {4}(rm -rf .*?)(?: &&.*)?$", section, re.M)
    assert len(lines) == 4
    for line in lines:
        subprocess.run(line.replace(" /", f" {root}/"), shell=True, check=True)


@pytest.fixture(scope="module")
def share(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """usr/share of what is installed."""
    root = tmp_path_factory.mktemp("root")
    stale = root / "usr/share/man/man1/roost-gone.1.gz"
    stale.parent.mkdir(parents=True)
    stale.touch()
    subprocess.run([ROOT / "vagrant/install.sh", "--root", root], check=True)
    yield root / "usr/share"
    taken_away(root)
    assert [path for path in root.rglob("*") if not path.is_dir()] == []


def test_man_finds_each_page(share: Path) -> None:
    environment = {**os.environ, "MANPATH": str(share / "man"), "LC_ALL": "C.UTF-8"}
    names = ["roost", *(f"roost-{name}" for name in OPERATOR), "roost.toml", "roost.service"]
    for name in names:
        argv = ["man", "--warnings", "-E", "UTF-8", name]
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=True)
        assert (done.stdout.split("(")[0], done.stderr) == (name.upper(), "")
    assert len(list((share / "man").glob("man?/*"))) == len(names)


def test_completions_are_where_shells_look(share: Path) -> None:
    for shell, place in COMPLETIONS.items():
        assert f"_ROOST_COMPLETE={shell}_complete" in (share / place).read_text()
        assert (share / place).stat().st_mode & 0o777 == 0o644
    script = f". {share / COMPLETIONS['bash']}; complete -p roost"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "complete -o nosort -F _roost_completion roost\n"


# -- a bare Debian -----------------------------------------------------------------------------------------------------

PYTHONS = {"bookworm": "3.11", "trixie": "3.13"}
SERVICE = '\n[[service]]\nname = "a"\nlisten = "0.0.0.0:7000"\nserver = "10.0.0.9:7000"\n'
STATE = """
find /etc /usr /opt /srv /tmp -printf '%p %y %m %u %g\\n' | sort
find /etc/roost /usr/bin/roost /usr/share/*/*/*roost* /usr/lib/sysusers.d/roost.conf /usr/lib/systemd/system/roost* \\
    /usr/lib/roost -type f ! -path '*.dist-info/*' ! -name '*.pyc' ! -name '*.so' ! -name '*.o' -exec sha256sum {} + |
    sort
"""
"""Of all files type, mode and owner, of ours what is in them: but for what is compiled, which names where it was."""


class Debian:
    """A minimal one of that release, as the directory of a chroot in which the checkout is /mnt."""

    def __init__(self, root: Path, release: str) -> None:
        self.root = root
        self.release = release
        subprocess.run([ROOT / "vagrant/rootfs.sh", "--bare", root, release], check=True)

    def run(self, script: str) -> str:
        """What it prints. In a mount namespace of its own: nothing stays mounted."""
        enter = 'mount -t proc proc "$1/proc"; mount --bind "$0" "$1/mnt"; exec chroot "$1" sh -euc "$2"'
        argv = ["unshare", "--mount", "sh", "-euc", enter, str(ROOT), str(self.root), script]
        return subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True).stdout


@pytest.fixture(scope="module", params=PYTHONS)
def debian(request: pytest.FixtureRequest) -> Iterator[Debian]:
    """Where install.sh has run."""
    with tempfile.TemporaryDirectory(prefix="roost-install.") as directory:
        made = Debian(Path(directory, "root"), request.param)
        made.run("/mnt/vagrant/install.sh")
        yield made


def test_a_bare_debian_has_command_library_units_user_and_configuration(debian: Debian) -> None:
    assert debian.run("roost --version") == f"roost, version {__version__}\n"
    assert debian.run("getent passwd roost").endswith(":/nonexistent:/usr/sbin/nologin\n")
    assert debian.run("stat -c '%a %U %G' /etc/roost/roost.toml /usr/bin/roost") == "640 root roost\n755 root root\n"
    library = debian.root / "usr/lib/roost"
    assert product.faults(str(path.relative_to(library)) for path in library.rglob("*")) == []
    for unit in (ROOT / "vagrant/systemd").iterdir():
        installed = debian.root / "usr/lib/systemd/system" / unit.name
        assert (installed.read_text(), installed.stat().st_mode & 0o777) == (unit.read_text(), 0o644)


def test_a_second_run_changes_nothing_and_leaves_the_configuration(debian: Debian) -> None:
    with (debian.root / "etc/roost/roost.toml").open("a") as config:
        config.write(SERVICE)
    before = debian.run(STATE).splitlines()
    assert sum(" f " in line and "/usr/lib/roost/" in line for line in before) > len(product.WANTED)
    (debian.root / "etc/roost/roost.toml").chmod(0o644)  # as one that was written by hand, on a checkout
    debian.run("/mnt/vagrant/install.sh")
    assert sorted(set(before) ^ set(debian.run(STATE).splitlines())) == []
    assert "good; 1 services" in debian.run("roost check-config")


def test_the_package_has_the_same_library_and_depends_on_the_python_that_it_was_made_for(debian: Debian) -> None:
    package = debian.run("/mnt/vagrant/package.sh /root").strip()
    assert re.fullmatch(rf"/root/roost_{re.escape(__version__)}\+\d{{14}}_\w+\.deb", package)
    files = debian.run(f"dpkg-deb --fsys-tarfile {package} | tar -t").splitlines()
    library = [each.removeprefix("./usr/lib/roost/") for each in files if each.startswith("./usr/lib/roost/")]
    assert product.faults(library) == []
    assert f"python3 (>= {PYTHONS[debian.release]})," in debian.run(f"dpkg-deb -f {package} Depends")
