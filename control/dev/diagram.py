# SPDX-License-Identifier: Apache-2.0
"""The diagram of states in docs/architecture.md, made of the table in control/core/states.py. `./roost lint` fails
where it is another; `./roost lint --fix` draws it, by `python -m control.dev.diagram --write`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from control.core.states import TRANSITIONS, Cause, State

ROOT: Final = Path(__file__).resolve().parents[2]
DRAWN: Final = "docs/architecture.md"
BEGIN: Final = "<!-- the states, drawn by ./roost lint --fix -->"
END: Final = "<!-- end of the states -->"
LIVING: Final = [state for state in State if state not in (State.NONE, State.CLOSED)]


def causes(source: State, target: State) -> list[Cause]:
    """By which one may become the other."""
    return [cause for (state, cause), targets in TRANSITIONS.items() if state is source and target in targets]


def diagram() -> str:
    """In Mermaid's language; without the ways to CLOSED, of which each state has many."""
    lines = ["```mermaid", "stateDiagram-v2"]
    for source in State:
        for target in LIVING:
            if why := causes(source, target):
                begin = "[*]" if source is State.NONE else source.label
                lines.append(f"    {begin} --> {target.label}: {', '.join(cause.label for cause in why)}")
    return "\n".join([*lines, "```\n"])


def endings() -> str:
    """What ends a connection in which state, as a table."""
    lines = ["| to CLOSED by | " + " | ".join(state.label for state in LIVING) + " |", "|---" * (len(LIVING) + 1) + "|"]
    for cause in Cause:
        by = [cause in causes(state, State.CLOSED) for state in LIVING]
        if any(by):
            lines.append(f"| `{cause.label}` | " + " | ".join("x" if one else " " for one in by) + " |")
    return "\n".join([*lines, ""])


def with_diagram(text: str) -> str:
    """The document with the picture of today; ValueError where it has no place for one."""
    before, old = text.split(BEGIN)
    _, after = old.split(END)
    return f"{before}{BEGIN}\n\n{diagram()}\n{endings()}\n{END}{after}"


def main(root: Path = ROOT) -> int:
    text = (root / DRAWN).read_text(encoding="utf-8")
    current = with_diagram(text)
    if "--write" in sys.argv:
        (root / DRAWN).write_text(current, encoding="utf-8")
    elif text != current:
        print(f"the states in {DRAWN} are not those of control/core/states.py: ./roost lint --fix")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
