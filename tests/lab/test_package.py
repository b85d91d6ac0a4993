# SPDX-License-Identifier: Apache-2.0
"""Versions of vagrant/package.sh's packages: dpkg takes a later one for an upgrade. What it packs is a stub's."""

from __future__ import annotations

import os
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest

from appliance import __version__
from tests.mutants import ROOT

INSTALL = """#!/bin/sh
mkdir -p "$2/usr/lib/roost/appliance" "$2/etc/roost"
echo '__version__ = "{}"' >"$2/usr/lib/roost/appliance/__init__.py"
touch "$2/etc/roost/roost.toml"
"""


class Checkout:
    """A repository of what package.sh needs, but for what takes a minute to install."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "vagrant").mkdir(parents=True)
        for name in ("package.sh", "packages.txt", "keepalived.conf", "debian"):
            (shutil.copytree if name == "debian" else shutil.copy)(ROOT / "vagrant" / name, root / "vagrant" / name)
        (root / "vagrant" / "bill.py").touch()
        (root / "vagrant" / "install.sh").write_text(INSTALL.format(__version__))
        (root / "vagrant" / "install.sh").chmod(0o755)
        (root / ".gitignore").write_text("*.deb\n")
        self.git("init")

    def git(self, *words: str, at: int = 0) -> None:
        who = {f"GIT_{one}_{key}": "a@b" for one in ("AUTHOR", "COMMITTER") for key in ("NAME", "EMAIL")}
        environment = {**os.environ, **who, "GIT_COMMITTER_DATE": f"{at} +0500", "GIT_CONFIG_GLOBAL": os.devnull}
        subprocess.run(["git", "-C", self.root, *words], env=environment, capture_output=True, check=True)

    def commit(self, at: int) -> None:
        """At so many seconds since 1970."""
        self.git("add", ".")
        self.git("commit", "--allow-empty", "-m", "one", at=at)

    def package(self) -> str:
        """The version of the one that is in the checkout then."""
        done = subprocess.run([self.root / "vagrant/package.sh", self.root], capture_output=True, text=True, check=True)
        (made,) = self.root.glob("*.deb")
        assert done.stdout == f"{made}\n"
        field = ["dpkg-deb", "-f", str(made), "Version"]
        version = subprocess.run(field, capture_output=True, text=True, check=True).stdout.strip()
        assert f"_{version}_" in made.name
        return version


def test_each_build_has_a_higher_version_than_those_of_earlier_commits(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path / "checkout")
    checkout.commit(1_800_000_000)
    versions = [__version__, checkout.package()]
    assert versions[1].startswith(f"{__version__}+20270115080000.")
    assert checkout.package() == versions[1], "the same files"
    checkout.commit(1_800_000_001)
    versions.append(checkout.package())
    for older, newer in pairwise(versions):
        subprocess.run(["dpkg", "--compare-versions", older, "lt", newer], check=True)


@pytest.mark.parametrize("has_git", [True, False])
def test_what_is_no_commit_has_the_time_of_its_build(tmp_path: Path, has_git: bool) -> None:
    checkout = Checkout(tmp_path / "checkout")
    checkout.commit(1_700_000_000)
    before = checkout.package()
    (checkout.root / "new").touch()
    if not has_git:
        shutil.rmtree(checkout.root / ".git")
    after = checkout.package()
    assert after.endswith(".changed") == has_git
    subprocess.run(["dpkg", "--compare-versions", before, "lt", after], check=True)
