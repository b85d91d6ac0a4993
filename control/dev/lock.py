# SPDX-License-Identifier: Apache-2.0
"""requirements.lock: the packages that are pinned, with the hashes of their files.

    python -m control.dev.lock            says which lines lack hashes, and what is wrong with the parts
    python -m control.dev.lock --write    asks the package index for all hashes, and writes them anew

Lines and comments stay where they are: a package is added as a line NAME==VERSION in the part that it belongs to. Files
that may be used: wheels for the CPythons and processors below, and the source where there is none for one of these.

A new line without hashes is refused by ./roost, so --write runs with what a checkout has already: Python's own library,
and `packaging` and pip, which every environment has.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import requires
from pathlib import Path
from typing import Any, Final

from packaging.requirements import Requirement
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import Version
from pip._internal.commands import create_command

from appliance.paths import checkout

PYTHONS: Final = ((3, 11), (3, 12), (3, 13))
PROCESSORS: Final = ("x86_64", "aarch64")
GLIBC: Final = 36
"""Debian 12's, 2.36: a wheel for a later one would not load there."""
PARTS: Final = ("build", "run", "develop")
WRITE: Final = "python -m control.dev.lock --write"

_PIN: Final = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)")
_PART: Final = re.compile(r"^# (\w+):")
_HASH: Final = re.compile(r"--hash=sha256:[0-9a-f]{64}(?![0-9a-f])")


class LockError(Exception):
    """What cannot be pinned, and what to do."""


def stanzas(text: str) -> Iterator[list[str]]:
    """Each line, with those that a backslash joins to it."""
    stanza: list[str] = []
    for line in text.splitlines():
        stanza.append(line)
        if not line.endswith("\\"):
            yield stanza
            stanza = []
    if stanza:
        yield stanza


def parts(text: str) -> dict[str, list[str]]:
    """The packages of each part, by their canonical names."""
    found: dict[str, list[str]] = {part: [] for part in PARTS}
    part = PARTS[0]
    for stanza in stanzas(text):
        if heading := _PART.match(stanza[0]):
            part = heading[1]
        elif pin := _PIN.match(stanza[0]):
            found.setdefault(part, []).append(canonicalize_name(pin[1]))
    return found


def without_hashes(text: str) -> list[str]:
    """The pins that have none, and lines that pin nothing."""
    return [
        stanza[0].rstrip(" \\")
        for stanza in stanzas(text)
        if stanza[0] and not stanza[0].startswith("#") and not (_PIN.match(stanza[0]) and _HASH.search("".join(stanza)))
    ]


# What the appliance runs by


def applies(requirement: Requirement, extra: str) -> bool:
    """Under one of the Pythons at least."""
    versions = [f"{major}.{minor}" for major, minor in PYTHONS]
    marker = requirement.marker
    return marker is None or any(
        marker.evaluate({"python_version": each, "python_full_version": f"{each}.0", "extra": extra})
        for each in versions
    )


def closure(wanted: Iterable[str]) -> set[str]:
    """These requirements and all that they require, by the metadata of what is installed."""
    todo = [Requirement(each) for each in wanted]
    seen: set[tuple[str, str]] = set()
    while todo:
        requirement = todo.pop()
        for extra in ("", *requirement.extras):
            if (asked := (canonicalize_name(requirement.name), extra)) in seen:
                continue
            seen.add(asked)
            needed = map(Requirement, requires(requirement.name) or ())
            todo.extend(each for each in needed if applies(each, extra))
    return {name for name, _ in seen}


def run_by(root: Path) -> set[str]:
    """What vagrant/install.sh installs beside our own wheel."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    return closure([*project["dependencies"], *project["optional-dependencies"]["postgresql"]])


def faults(root: Path) -> list[str]:
    """What is wrong with the file, in sentences."""
    text = (root / "requirements.lock").read_text()
    found = [f"requirements.lock: {pin} has no hashes. Run: {WRITE}" for pin in without_hashes(text)]
    present, wanted = set(parts(text)["run"]), run_by(root)
    for what, names in (("does not have", wanted - present), ("has", present - wanted)):
        if names:
            found.append(
                f"requirements.lock: the part 'run' {what} {', '.join(sorted(names))}; what the appliance requires "
                "(pyproject.toml) belongs there, and nothing else. Move the lines."
            )
    return found


# Hashes, as the package index says them


def usable_tags() -> list[frozenset[Tag]]:
    """Of each CPython on each processor."""
    found = []
    for processor in PROCESSORS:
        named = [f"manylinux{name}_{processor}" for name in ("2014", "2010", "1")]
        platforms = [*(f"manylinux_2_{minor}_{processor}" for minor in range(GLIBC, 4, -1)), *named]
        for python in PYTHONS:
            tags = compatible_tags(python, f"cp{python[0]}{python[1]}", platforms)
            found.append(frozenset([*cpython_tags(python, platforms=platforms), *tags]))
    return found


def usable(files: Iterable[dict[str, Any]], version: Version, tags: Sequence[frozenset[Tag]]) -> list[str]:
    """The hashes of the files of this version that may be used."""
    wheels, sources = dict[str, frozenset[Tag]](), set[str]()
    for file in files:
        try:
            if file["filename"].endswith(".whl"):
                _, its, _, offered = parse_wheel_filename(file["filename"])
                if its == version:
                    wheels[file["hashes"]["sha256"]] = offered
            elif parse_sdist_filename(file["filename"])[1] == version:
                sources.add(file["hashes"]["sha256"])
        except (InvalidSdistFilename, InvalidWheelFilename):
            continue  # of another time
    found = {digest for digest, offered in wheels.items() if any(offered & each for each in tags)}
    if not all(any(offered & each for offered in wheels.values()) for each in tags):
        found |= sources
    return sorted(found)


def index() -> str:
    """The package index that pip is configured with."""
    options, _ = create_command("download").parse_args([])
    return str(options.index_url)


def files_of(name: str, base: str) -> list[dict[str, Any]]:
    """PEP 691."""
    request = urllib.request.Request(
        f"{base.rstrip('/')}/{canonicalize_name(name)}/", headers={"Accept": "application/vnd.pypi.simple.v1+json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        found: list[dict[str, Any]] = json.load(answer)["files"]
    return found


def pinned(stanza: list[str], base: str, tags: Sequence[frozenset[Tag]]) -> list[str]:
    """The stanza, with its hashes; other lines as they are."""
    pin = _PIN.match(stanza[0])
    if pin is None:
        return stanza
    hashes = usable(files_of(pin[1], base), Version(pin[2]), tags)
    if not hashes:
        raise LockError(f"requirements.lock: the package index has no file of {pin[0]} that may be used. Is there "
                        "such a version?")  # fmt: skip
    return " \\\n".join([pin[0], *(f"    --hash=sha256:{each}" for each in hashes)]).split("\n")


def write(path: Path) -> None:
    base, tags = index(), usable_tags()
    with ThreadPoolExecutor(8) as pool:
        lines = pool.map(lambda stanza: pinned(stanza, base, tags), stanzas(path.read_text()))
        path.write_text("\n".join(line for stanza in lines for line in stanza) + "\n")


def main(arguments: list[str]) -> int:
    root = checkout()
    assert root is not None, "this is the developer's"
    if arguments == ["--write"]:
        try:
            write(root / "requirements.lock")
        except (LockError, OSError) as problem:
            print(problem)
            return 1
        return 0
    found = faults(root)
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
