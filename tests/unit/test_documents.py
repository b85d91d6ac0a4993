# SPDX-License-Identifier: Apache-2.0
"""README.md and the other documents: links that lead somewhere, and commands that there are.

What the commands do is tried where they are run: tests/lab/test_tutorial.py, test_deploy.py, test_flows.py,
test_guide.py, test_demo.py, tests/bench/test_benches.py.
"""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from control.cli.main import COMMANDS, cli
from tests.mutants import ROOT

DOCUMENTS = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")), *sorted(ROOT.glob("*/README.md"))]
FENCED = re.compile(r"^```.*?^```$", re.M | re.S)


def names(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


def anchors(document: Path) -> set[str]:
    """Of its titles, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", FENCED.sub("", document.read_text(encoding="utf-8")), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def dead_links(document: Path) -> list[str]:
    text = FENCED.sub("", document.read_text(encoding="utf-8"))
    dead = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = link.partition("#")
        to = document.parent / path if path else document
        if "://" not in link and (not to.exists() or (anchor and anchor not in anchors(to))):
            dead.append(link)
    return dead


def wrong(line: str) -> str:
    """What no command of ours has in a line that begins with `roost`; nothing when all is well."""
    command: click.Command = cli
    context = click.Context(cli, info_name="roost")
    for word in line.split()[1:]:
        if word in ("|", "&&", "#", "2>/dev/null"):
            break
        name = word.partition("=")[0]
        if name.startswith("--") and name != "--help":
            flags = {flag for one in command.params for flag in one.opts + one.secondary_opts}
            if name not in flags:
                return f"{command.name}: no {name}"
        elif isinstance(command, click.Group) and re.fullmatch(r"[a-z][a-z-]*", name):
            found = command.get_command(context, name) if command is not cli or name in COMMANDS else None
            if found is None:
                return f"{command.name}: no command {name}"
            command, context = found, click.Context(found, parent=context, info_name=name)
    return ""


def commands(document: Path) -> list[str]:
    """In code, inline or in a block."""
    text = document.read_text(encoding="utf-8")
    inline = re.findall(r"`(?:sudo )?(?:\./)?(roost [^`]+)`", text)
    return inline + re.findall(r"^ {4}(?:sudo )?(?:\./)?(roost [^ \n][^\n]*)$", text, re.M)


@pytest.mark.parametrize("name", names(DOCUMENTS))
def test_links_lead_somewhere(name: str) -> None:
    assert dead_links(ROOT / name) == []


@pytest.mark.parametrize("name", names(DOCUMENTS))
def test_commands_and_their_options_are_there(name: str) -> None:
    assert [line for line in map(wrong, commands(ROOT / name)) if line] == []


def test_the_readme_names_every_command_and_every_document() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    table = readme.split("\n## The commands\n")[1].split("\n## ")[0]
    said = set(re.findall(r"[\w-]+", " ".join(re.findall(r"^\| (.*?) \|", table, re.M))))
    assert set(COMMANDS) - said == set()
    there = {path.name for path in (ROOT / "docs").glob("*.md")}
    assert there - set(re.findall(r"\(docs/([\w-]+\.md)\)", readme)) == set()


def test_what_is_wrong_with_a_command_is_found(tmp_path: Path) -> None:
    assert wrong("roost nonsense") == "cli: no command nonsense"
    assert wrong("roost lab sideways") == "lab: no command sideways"
    assert wrong("roost status --jsn") == "status: no --jsn"
    assert wrong("roost bench hold --connections 10000000") == ""
    (tmp_path / "a.md").write_text("# One, two\n[x](#one-two) [y](#three) [z](b.md)\n")
    assert dead_links(tmp_path / "a.md") == ["#three", "b.md"]
