# SPDX-License-Identifier: Apache-2.0
"""The floors of the C sources: no arrow runs up, files use each other in no large circle, and their picture is current.

An arrow is an #include, or the use of a function that another file defines: a call, or its address. A room is a folder;
a file's .c and .h are one unit. `./roost lint` runs this module; `--write` draws the picture in docs/architecture.md.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
DRAWN: Final = Path("docs/architecture.md")
BEGIN, END = "<!-- the floors, drawn by ./roost lint --fix -->", "<!-- end of the floors -->"
GENERATED: Final = frozenset({"cext/_engine.c"})

_SHARED = {"ebpf/shared": "what the BPF programs and the engine share: records, slots, frames"}
STACKS: Final[dict[str, tuple[dict[str, str], ...]]] = {
    "ebpf": (
        _SHARED,
        {"ebpf/lib": "what BPF programs include: maps, packets, inserts, replies"},
        {
            "ebpf/socket": "programs at sockets: look-up, filter, survey",
            "ebpf/tc": "programs at tc: guard, steering, loopback, replay",
            "ebpf/xdp": "the program at XDP: answers, births, probes",
        },
    ),
    "cext": (
        _SHARED,
        {"cext/base": "clock, addresses, hash table, timers, threads, mailbox, pins; the types that Python shares"},
        {"cext/rows": "packed rows of the history as SQLite reads them: its extension"},
        {"cext/handover": "awake connections between a daemon that ends and the next one"},
        {"cext/table": "the inactive table: slots, endpoints, rest slots; the filter; hosts"},
        {"cext/socket": "socket <-> record, packets as bytes, spare sockets"},
        {"cext/path": "BPF programs and maps: loading, attaching, frames, probes"},
        {"cext/conn": "connections: their legs, policy, look-ups, and what the control plane is told"},
        {"cext/inband": "requests in the payload"},
        {"cext/life": "what becomes of a connection: link, relay, freeze, thaw, births, sweep, growth"},
        {"cext": "the loop, commands, counters"},
    ),
}
"""The floors of each tree from the ground up: the rooms and their jobs. A room may use those of lower floors."""


KNOWN_UP: Final[dict[tuple[str, str], int]] = {("cext/conn", "cext/inband"): 1}
"""Arrows up that are left: from room to room, for so many names. A number may not grow, and must shrink if it can."""

CIRCLE_MAX: Final = {"cext": 4, "ebpf": 1}
"""Files of a tree that may use each other in a circle: awake connections, classes, look-ups, lists."""

_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.S)
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.M)
_DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*$", re.M)
_TOKEN = re.compile(r"[A-Za-z_]\w*|->|[^\s\w]")


@dataclass(frozen=True, slots=True)
class Source:
    """What a file includes (paths), and the names that it defines as functions for others, calls, or mentions."""

    path: str
    includes: frozenset[str]
    defines: frozenset[str]
    calls: frozenset[str]
    mentions: frozenset[str]

    @property
    def unit(self) -> str:
        return re.sub(r"(\.bpf)?\.[ch]$", "", self.path)

    @property
    def room(self) -> str:
        return self.path.rpartition("/")[0]


def _parse(tokens: list[str]) -> tuple[dict[str, bool], set[str], set[str]]:
    """The functions defined (static: True): a name, parentheses and a brace, outside all other braces. Within braces
    the names that parentheses follow, and all others but members and tags."""
    defined: dict[str, bool] = {}
    calls: set[str] = set()
    mentions: set[str] = set()
    depth, begin, opened, name, code = 0, 0, 0, "", False
    for i, token in enumerate(tokens):
        before, after = tokens[i - 1] if i else "", tokens[i + 1] if i + 1 < len(tokens) else ""
        if token == "(":
            opened += 1
            if opened == 1 and not depth:
                name = before
        elif token == ")":
            opened -= 1
        elif token == "{":
            if not depth:
                code = before in (")", "=")  # not the members of a structure
            if not depth and before == ")":
                defined[name] = "static" in tokens[begin:i]
            depth += 1
        elif token == "}":
            depth -= 1
        elif depth and code and before not in ("struct", "enum", "union", ".", "->"):
            (calls if after == "(" else mentions).add(token)
        if not depth and token in (";", "}"):
            begin = i + 1
    return defined, calls, mentions


def read(path: str, text: str, exists: Collection[str]) -> Source:
    """Parse a file. An #include names a file from the checkout's root, or one beside it; others are the system's."""
    beside = path.rpartition("/")[0] + "/"
    bare = _COMMENT.sub(lambda match: match[0] if match[0][0] == '"' else " ", text)
    included = {name if name in exists else beside + name for name in _INCLUDE.findall(bare)}
    code = _COMMENT.sub(" ", text)
    defined, calls, mentions = _parse(_TOKEN.findall(_DIRECTIVE.sub("", code)))
    calls |= {name for macro in _DIRECTIVE.findall(code) for name in re.findall(r"(\w+)\(", macro)}
    others = {name for name, static in defined.items() if path.endswith(".h") or not static}
    return Source(path, frozenset(included & set(exists)), frozenset(others), frozenset(calls - defined.keys()),
                  frozenset(mentions - defined.keys()))  # fmt: skip


@dataclass(slots=True)
class Arrows:
    """From file to file, and for what: names, or the file that is included."""

    sources: dict[str, Source]
    why: dict[tuple[str, str], set[str]] = field(default_factory=lambda: defaultdict(set))

    def rooms(self) -> dict[tuple[str, str], set[tuple[str, str]]]:
        """From room to room: the callers, and what they use."""
        rooms: dict[tuple[str, str], set[tuple[str, str]]] = defaultdict(set)
        for (user, used), names in self.why.items():
            pair = self.sources[user].room, self.sources[used].room
            if pair[0] != pair[1]:
                rooms[pair] |= {(user, name) for name in names}
        return rooms


def arrows(sources: Iterable[Source]) -> Arrows:
    found = Arrows({source.path: source for source in sources})
    homes: dict[str, set[str]] = defaultdict(set)
    for source in found.sources.values():
        for name in source.defines:
            homes[name].add(source.path)
    for source in found.sources.values():
        for path in source.includes:
            found.why[source.path, path].add(path)
        tree = source.path.partition("/")[0]
        for name in (source.calls | source.mentions) & homes.keys():
            for path in homes[name]:
                if (name in source.calls or path.endswith(".c")) and path.startswith(tree):
                    found.why[source.path, path].add(name)
    return found


def circles(edges: Mapping[str, set[str]]) -> list[list[str]]:
    """The strongly connected components that have more than one member (Tarjan), largest first."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in edges.get(node, ()):
            if other not in index:
                visit(other)
            if other in stack:
                low[node] = min(low[node], low[other])
        if low[node] == index[node]:
            component = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(component) > 1:
                found.append(sorted(component))

    for node in edges:
        if node not in index:
            visit(node)
    return sorted(found, key=len, reverse=True)


def _rooms(tree: str) -> dict[str, int]:
    """The rooms that a tree may use, and their floors."""
    return {room: floor for floor, rooms in enumerate(STACKS[tree]) for room in rooms}


def _exactly(what: str, there: int, limit: int, which: Iterable[str]) -> list[str]:
    if there > limit:
        return [f"{what}: {there}, and at most {limit} may be:", *(f"    {line}" for line in which)]
    return [f"{what}: only {there} are left of {limit}: lower the number in control/dev/c_layers.py"] * (there < limit)


def check(found: Arrows, known_up: Mapping[tuple[str, str], int] = KNOWN_UP,
          circle_max: Mapping[str, int] = CIRCLE_MAX) -> list[str]:  # fmt: skip
    """What is wrong, a line each; nothing when all is well."""
    rooms = found.rooms()
    there = sorted({source.room for source in found.sources.values()})
    wrong = [f"{room} has no floor" for room in there if room not in _rooms(room.partition("/")[0])]
    for user, used in sorted(rooms.keys() | known_up.keys()):
        floors = _rooms(user.partition("/")[0])
        why = rooms.get((user, used), set())
        if used not in floors or floors[used] >= floors.get(user, len(floors)) or (user, used) in known_up:
            lines = sorted(f"{path} uses {name}" for path, name in why)
            wrong += _exactly(f"arrows up from {user} to {used}", len({name for _, name in why}),
                              known_up.get((user, used), 0), lines)  # fmt: skip
    calls: dict[str, set[str]] = defaultdict(set)
    includes: dict[str, set[str]] = defaultdict(set)
    for (path, other), names in found.why.items():
        user, used = found.sources[path].unit, found.sources[other].unit
        if names - {other} and user != used:
            calls[user].add(used)
        if other in names:
            includes[path].add(other)
    wrong += [f"headers include each other: {' '.join(circle)}" for circle in circles(includes)]
    for tree in STACKS:
        largest = next((circle for circle in circles(calls) if circle[0].startswith(tree)), [""])
        wrong += _exactly(f"files of {tree}/ that use each other in a circle", len(largest), circle_max[tree], largest)
    return wrong


def draw(found: Arrows) -> str:
    """The floors of each tree, the highest first."""
    rooms = found.rooms()
    lines: list[str] = []
    for tree, floors in STACKS.items():
        if lines:
            lines.append("")
        for room, job in ((room, job) for floor in reversed(floors) for room, job in floor.items()):
            if room not in {source.room for source in found.sources.values()} or (room in _SHARED and tree != "ebpf"):
                continue
            units = {source.unit for source in found.sources.values()}
            files = sorted(unit.rpartition("/")[2] for unit in units if unit.rpartition("/")[0] == room)
            order = [below for floor in reversed(floors) for below in floor]
            uses = [below for below in order if (room, below) in rooms]
            lines.append(f"{room}/".ljust(14) + job)
            lines += textwrap.wrap(
                "files  " + " ".join(files), 118, initial_indent=" " * 16, subsequent_indent=" " * 23
            )
            if uses:
                said = (f"{below} (up)" if (room, below) in KNOWN_UP else below for below in uses)
                lines.append(" " * 16 + "uses   " + ", ".join(said))
    return "\n".join(f"    {line}".rstrip() for line in lines)


def sources(root: Path) -> list[Source]:
    paths = [str(path.relative_to(root)) for tree in STACKS for path in sorted((root / tree).rglob("*.[ch]"))]
    paths = [path for path in paths if path not in GENERATED]
    return [read(path, (root / path).read_text(encoding="utf-8"), paths) for path in paths]


def _with_picture(text: str, picture: str) -> str:
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{picture}\n\n{END}{rest.partition(END)[2]}"


def main(root: Path = ROOT) -> int:
    found = arrows(sources(root))
    text = (root / DRAWN).read_text(encoding="utf-8")
    current = _with_picture(text, draw(found))
    if "--write" in sys.argv:
        (root / DRAWN).write_text(current, encoding="utf-8")
        return 0
    wrong = check(found)
    if text != current:
        wrong.append(f"the floors in {DRAWN} are not those of the sources: ./roost lint --fix")
    print("\n".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
