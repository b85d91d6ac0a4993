# SPDX-License-Identifier: Apache-2.0
"""The picture of the floors in docs/architecture.md, made of pyproject.toml's contracts and the packages' docstrings.
`python -m control.dev.floors` prints it.
"""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

ARROW = "        ▼\n"


def floors(root: Path) -> list[list[Path]]:
    """Files whose docstrings say what is on each floor, from the top down."""
    pyproject = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    found = []
    for contract in pyproject["tool"]["importlinter"]["contracts"]:
        for container in contract.get("containers", ()):
            for layer in contract["layers"]:
                rooms = [root / container / room.strip() for room in layer.split("|")]
                found.append([room / "__init__.py" if room.is_dir() else room.with_suffix(".py") for room in rooms])
    return found


def render(root: Path) -> str:
    """A block of text."""
    blocks = []
    for files in floors(root):
        lines = []
        for file in files:
            room = file.parent if file.name == "__init__.py" else file
            words = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
            first = words.split("\n\n")[0].replace("\n", " ").removesuffix(".")
            lines.append(f"{room.relative_to(root)!s:<20} {first}\n")
        blocks.append("".join(lines))
    return ARROW.join(blocks)


if __name__ == "__main__":
    print(render(Path(__file__).resolve().parents[2]), end="")
