# SPDX-License-Identifier: Apache-2.0
"""What calls of BPF functions take of the stack together, as Linux 6.1 counts it (check_max_stack_depth): by 32 bytes.
Later kernels count less, so that this machine's may take what Debian 12's refuses."""

from __future__ import annotations

import re
import struct
import subprocess
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from tests.mutants import ROOT

MAX_BPF_STACK: Final = 512
ROUNDED: Final = 32
CALL, LOAD_64, ADD, MOVE = 0x85, 0x18, 0x07, 0xBF
WRITES: Final = (0, 1, 4, 7)
"""Classes of instructions that write a register."""
PSEUDO_CALL, PSEUDO_FUNC = 1, 4
FRAME_POINTER: Final = 10
_SECTION: Final = re.compile(r"Disassembly of section (\S+):")
_FUNCTION: Final = re.compile(r"([0-9a-f]+) <(\w+)>:")
_INSTRUCTION: Final = re.compile(r"\s+(\d+):\t((?:[0-9a-f]{2}[ \t]){8,16})")
_RELOCATION: Final = re.compile(r"\s+([0-9a-f]+):\s+R_BPF_64_(?:32|64)\s+(\S+)")

Place = tuple[str, int]
"""A section, and which of its instructions."""


class Functions:
    """Those of an object: what each takes of the stack, and which it calls, by bpf_loop, too."""

    def __init__(self, disassembly: str) -> None:
        self.stack: dict[str, int] = defaultdict(int)
        self.calls: dict[str, set[str]] = defaultdict(set)
        self._starts: dict[Place, str] = {}
        calls = list[tuple[str, str, int, int, bool]]()
        relocations = dict[Place, str]()
        section = function = ""
        copies = set[int]()
        for line in disassembly.splitlines():
            if found := _SECTION.match(line):
                section = found[1]
            elif found := _FUNCTION.match(line):
                if not found[2].startswith("LBB"):
                    function = self._starts[section, int(found[1], 16) // 8] = found[2]
            elif found := _RELOCATION.match(line):
                relocations[section, int(found[1], 16) // 8] = found[2]
            elif found := _INSTRUCTION.match(line):
                code, registers, offset, value = struct.unpack("<BBhi", bytes.fromhex(found[2])[:8])
                to, by, kind = registers & 15, registers >> 4, code & 7
                if (code, by) in ((CALL, PSEUDO_CALL), (LOAD_64, PSEUDO_FUNC)):
                    calls.append((section, function, int(found[1]), value, code == CALL))
                frame = {1: by, 2: to, 3: to}.get(kind) == FRAME_POINTER  # it loads, or stores
                below = -offset if frame else -value if code == ADD and to in copies else 0
                if kind in WRITES:
                    copies -= {to}
                    copies |= {to} if (code, by) == (MOVE, FRAME_POINTER) else set()
                self.stack[function] = max(self.stack[function], below)
        for section, function, at, value, is_call in calls:
            self.calls[function].add(self._target(section, at, value, is_call, relocations))

    def _target(self, section: str, at: int, value: int, is_call: bool, relocations: Mapping[Place, str]) -> str:
        name = relocations.get((section, at))
        if name is None:
            return self._starts[section, at + 1 + value]
        if name.startswith("."):
            return self._starts[name, value + 1 if is_call else value // 8]
        return name

    def deepest(self, function: str) -> tuple[int, list[str]]:
        """Bytes, and the calls that take them."""
        below, names = max((self.deepest(one) for one in self.calls[function]), default=(0, []))
        own = max(self.stack[function], 1)
        return below + -(-own // ROUNDED) * ROUNDED, [f"{function} {own}", *names]


@pytest.mark.parametrize("path", sorted((ROOT / "build" / "bpf").glob("*.bpf.o")), ids=lambda path: path.name)
def test_no_calls_take_more_than_there_is(path: Path) -> None:
    argv = ["llvm-objdump", "--disassemble", "--reloc", str(path)]
    functions = Functions(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)
    assert functions.stack
    deepest, names = max(map(functions.deepest, list(functions.stack)))
    assert deepest <= MAX_BPF_STACK, " > ".join(names)
