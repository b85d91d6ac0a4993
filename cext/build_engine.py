# SPDX-License-Identifier: Apache-2.0
"""Builds cext/_engine, the C engine as a Python extension (cffi, API mode: calls release the GIL).

The declarations are the headers themselves: ebpf/record.h, ebpf/birth.h, cext/engine.h and cext/testing.h, without
their preprocessor lines.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Final

from cffi import FFI

ROOT = Path(__file__).resolve().parent.parent
KERNEL_TYPES = """
typedef uint8_t __u8; typedef uint16_t __u16; typedef uint32_t __u32;
typedef unsigned long long __u64;
typedef uint16_t __be16; typedef uint32_t __be32;
"""

WARNINGS: Final = ["-Wall", "-Wextra", "-Wno-unused-parameter"]
if os.environ.get("ROOST_WERROR") == "1":
    # As ./roost builds a checkout. A wheel is built by compilers that nobody here has seen: what they warn of must not
    # keep anybody from installing it.
    WARNINGS.append("-Werror")

BUILD: Final[dict[str, Any]] = {
    "include_dirs": [str(ROOT / "cext"), str(ROOT / "ebpf")],
    "libraries": ["bpf", "elf", "z"],
    "extra_compile_args": ["-O2", "-g", "-std=gnu11", *WARNINGS, "-pthread"],
    "extra_link_args": ["-pthread"],
}
"""How both extensions are built."""


def declarations(header: Path) -> str:
    """A header as cffi wants it: no comments, no preprocessor lines."""
    text = re.sub(r"/\*.*?\*/", "", header.read_text(), flags=re.S)
    text = re.sub(r"\\\n", " ", text)
    return "\n".join(line for line in text.splitlines() if not line.startswith("#"))


ffibuilder = FFI()
ffibuilder.cdef(KERNEL_TYPES)
for name in ("ebpf/record.h", "ebpf/birth.h", "cext/engine.h", "cext/testing.h"):
    ffibuilder.cdef(declarations(ROOT / name))
ffibuilder.set_source(
    "cext._engine",
    '#include "engine.h"\n#include "testing.h"\n',
    sources=sorted(str(path.relative_to(ROOT)) for path in (ROOT / "cext").glob("*.c") if path.name[0] != "_"),
    **BUILD,
)

if __name__ == "__main__":
    ffibuilder.compile(tmpdir=str(ROOT), verbose=True)
