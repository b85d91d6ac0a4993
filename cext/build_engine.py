# SPDX-License-Identifier: Apache-2.0
"""Builds cext/_engine, the C engine as a Python extension (cffi, API mode: calls release the GIL).

The declarations are the headers themselves: ebpf/shared/{record,birth,class}.h, cext/base/types.h
and cext/base/face.h, without their preprocessor lines.
"""

from __future__ import annotations

import os
import re
import runpy
from pathlib import Path
from typing import Any, Final

from cffi import FFI

ROOT = Path(__file__).resolve().parent.parent
KERNEL_TYPES = """
typedef uint8_t __u8; typedef uint16_t __u16; typedef uint32_t __u32;
typedef unsigned long long __u64;
typedef uint16_t __be16; typedef uint32_t __be32;
"""

GENERATED: Final = ROOT / "build" / "generated"
WARNINGS: Final = ["-Wall", "-Wextra", "-Wno-unused-parameter"]
if os.environ.get("ROOST_WERROR") == "1":
    # As ./roost builds a checkout. A wheel is built by other compilers, too: a new warning must not prevent that.
    WARNINGS.append("-Werror")

OPTIMISE: Final = ["-O2", "-flto=auto"]
"""While linking, too: much of what a connection takes is calls from one small file into another."""

BUILD: Final[dict[str, Any]] = {
    "include_dirs": [str(ROOT), str(GENERATED)],
    "libraries": ["bpf", "elf", "z", "m"],
    "extra_compile_args": [*OPTIMISE, "-g", "-std=gnu11", *WARNINGS, "-pthread"],
    "extra_link_args": [*OPTIMISE, "-pthread"],
    "depends": sorted(
        str(path.relative_to(ROOT))
        for tree in ("cext", "ebpf", "appliance", "tests")
        for path in (ROOT / tree).rglob("*.h")
    ),
}
"""How the extensions are built. `depends`: setuptools knows the sources alone, and would keep an extension whose header
has changed."""

SOURCES: Final = {
    "base": "address hash mailbox pins wheel workers",
    "handover": "bridge handed",
    "table": "connected endpoints filter hosts interned rests rules table",
    "path": "datapath foreign frames local_connect probes programs unpin",
    "socket": "connect heard proxy_header ready_links repair segment spares survey",
    "conn": "acks candidates classes connection events find legs listing notes ports ruling servers steering "
    "tallies waiting",
    "inband": "inband inband_relay inband_requests",
    "rows": "history",
    "life": "ask attach births crowd doors freeze growth handover held insert limits links listeners next pressure "
    "recall received relay sweep thaw",
    "": "commands engine stats",
}
"""The engine's sources by folder, from the ground up."""


def declarations(header: Path) -> str:
    """A header as cffi wants it: no comments, no preprocessor lines."""
    text = re.sub(r"/\*.*?\*/", "", header.read_text(), flags=re.S)
    text = re.sub(r"\\\n", " ", text)
    return "\n".join(line for line in text.splitlines() if not line.startswith("#"))


def write_transitions() -> None:
    """transitions.h, from the one table of legal transitions."""
    states = runpy.run_path(str(ROOT / "control" / "core" / "states.py"))
    GENERATED.mkdir(parents=True, exist_ok=True)
    (GENERATED / "transitions.h").write_text(states["render_c"]())


write_transitions()
ffibuilder = FFI()
ffibuilder.cdef(KERNEL_TYPES)
for name in (
    "ebpf/shared/record.h",
    "ebpf/shared/birth.h",
    "ebpf/shared/class.h",
    "cext/base/types.h",
    "cext/base/face.h",
):
    ffibuilder.cdef(declarations(ROOT / name))
ffibuilder.set_source(
    "cext._engine",
    '#include "cext/base/face.h"\n',
    sources=[str(Path("cext", folder, f"{name}.c")) for folder, names in SOURCES.items() for name in names.split()],
    **BUILD,
)

if __name__ == "__main__":
    ffibuilder.compile(tmpdir=str(ROOT), verbose=True)
