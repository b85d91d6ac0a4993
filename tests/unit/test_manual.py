# SPDX-License-Identifier: Apache-2.0
"""The man pages, as man shows them."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from control.cli.main import OPERATOR
from control.config import Policy, Service
from control.config.reference import HEADINGS
from control.dev import manual, roff


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where they are."""
    directory = tmp_path_factory.mktemp("man")
    manual.main(directory)
    return directory


def shown(page: Path) -> str:
    """A page of 1000 columns, without a warning."""
    environment = {**os.environ, "MANWIDTH": "1000", "LC_ALL": "C.UTF-8"}
    argv = ["man", "--warnings", "-E", "UTF-8", "-l", str(page)]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout


def test_there_is_a_page_of_each_command_and_of_the_files(pages: Path) -> None:
    there = {str(path.relative_to(pages)) for path in pages.glob("*/*")}
    commands = {f"man1/roost-{name}.1" for name in OPERATOR}
    assert there == commands | {"man1/roost.1", "man5/roost.toml.5", "man8/roost.service.8"}


@pytest.mark.parametrize("name", list(OPERATOR))
def test_a_page_of_a_command_has_what_its_help_has(pages: Path, name: str) -> None:
    text = shown(pages / "man1" / f"roost-{name}.1")
    top = manual.command_context(name)
    for leaf in manual.leaves(top):
        assert f"\n       {leaf.command_path} " in text
        for flags, said in manual.records(leaf):
            assert f"\n       {flags}" in text, flags
            first = re.split(r"[.?!] ", said.replace("`", ""))[0]
            assert first in text, said
        for line in (leaf.command.help or "").partition("\b")[2].replace("\b", "").split("\n")[2:]:
            assert line.strip().replace("./roost", "roost") in text
    for heading in ("NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXIT STATUS", "SEE ALSO"):
        assert f"\n{heading}\n" in text
    assert "`" not in text
    assert "./roost" not in text


def test_the_page_of_the_configuration_has_every_key(pages: Path) -> None:
    text = shown(pages / "man5" / "roost.toml.5")
    for heading, model in HEADINGS.items():
        own = re.split(r"\n(?=\S)", text.partition(f"\n{heading}\n")[2])[0]
        for name, field in model.model_fields.items():
            elsewhere = field.description is None or (model is Service and name in Policy.model_fields)
            assert elsewhere or re.search(rf"^ +{name} \(", own, re.M), (heading, name)
    assert 'on_server_close ("standby" or "close" or "idle" or "sleep", default "standby")\n' in text
    assert re.search(r"^ +name \(text, required\)\n +its name: letters, digits, \., _, -; sleeping ", text, re.M)
    assert '\n           billing = "$scrypt$ln=15,r=8,p=1$..."\n' in text


def test_the_other_pages_can_be_read(pages: Path) -> None:
    text = shown(pages / "man1" / "roost.1")
    assert all(f"\n       roost-{name}(1)\n              {said}\n" in text for name, said in OPERATOR.items())
    text = shown(pages / "man8" / "roost.service.8")
    assert "\n       systemctl reload roost\n" in text.replace("           ", "       ")
    assert "\n       /run/roost\n" in text


def test_no_character_is_lost_on_the_way_to_a_terminal(tmp_path: Path) -> None:
    odd = r""".TH 'x' \fB ~ ^ ` "-" --a-b \e µ \n ..."""
    lines = [roff.title("x", 1, "2026-01-01", "1"), ".SH NAME", r"x \- y", *roff.example(f"{odd}\n'{odd}\n"), ".PP",
             *roff.filled(roff.literal(f"a. {odd}"))]  # fmt: skip
    (tmp_path / "x.1").write_text("\n".join([*lines, ""]))
    text = shown(tmp_path / "x.1")
    assert f"\n           {odd}\n           '{odd}\n" in text
    assert f"a.  {odd}" in text


def test_what_has_no_way_to_be_written_is_said() -> None:
    for text in ("1. one\n", "![picture](x.png)\n"):
        with pytest.raises(ValueError, match="no way to write"):
            roff.of_markdown(text)
