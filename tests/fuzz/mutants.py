# SPDX-License-Identifier: Apache-2.0
"""Bugs to plant. A target that does not find its mutants proves nothing by finding nothing in the product."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.targets import ROOT


@dataclass(frozen=True, slots=True)
class Mutant:
    """In `file`, `old` (which must stand there exactly once) becomes `new`; `target` must find it, saying `says`."""

    name: str
    target: str
    file: str
    old: str
    new: str
    says: str


MUTANTS = (
    Mutant(
        "a VLAN tag may lie behind the frame's end",
        "xdp",
        "ebpf/packet.h",
        "        if ((void *)(tag + 2) > end)\n            return 0;\n",
        "",
        "AddressSanitizer: use-after-poison",
    ),
    Mutant(
        "the TCP checksum is not looked at",
        "xdp",
        "ebpf/packet.h",
        "        if (fold(sum))\n            return -1;\n",
        "",
        "CLAIM BROKEN",
    ),
    Mutant(
        "an answer acknowledges one byte too many",
        "xdp",
        "ebpf/inactive.bpf.c",
        "tcp.ack_seq = bpf_htonl(ka->rcv_nxt);",
        "tcp.ack_seq = bpf_htonl(ka->rcv_nxt + 1);",
        "an answer that acknowledges",
    ),
    Mutant(
        "an answer keeps the frame's length",
        "xdp",
        "ebpf/inactive.bpf.c",
        "    if (bpf_xdp_adjust_tail(ctx, length - (__s32)bpf_xdp_get_buff_len(ctx)))\n        return XDP_DROP;\n",
        "",
        "CLAIM BROKEN",
    ),
)


def plant(mutant: Mutant, tree: Path) -> Path:
    """A copy of the sources below `tree`, with the bug in it; its root."""
    for part in ("ebpf", "cext", "tests/fuzz"):
        shutil.copytree(
            ROOT / part, tree / part, ignore=shutil.ignore_patterns("*.o", "*.so", "_engine.c", "__pycache__")
        )
    file = tree / mutant.file
    text = file.read_text()
    if text.count(mutant.old) != 1:
        raise LookupError(f"{mutant.file}: what {mutant.name!r} would change is there {text.count(mutant.old)} times")
    file.write_text(text.replace(mutant.old, mutant.new))
    return tree
