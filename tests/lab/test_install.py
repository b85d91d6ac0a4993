# SPDX-License-Identifier: Apache-2.0
"""What vagrant/install.sh makes of this checkout, in a directory."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from control.cli.main import OPERATOR
from tests.mutants import ROOT

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

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
