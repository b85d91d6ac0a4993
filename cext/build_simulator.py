# SPDX-License-Identifier: Apache-2.0
"""Builds cext/_simulator, the driver of the client simulator, as a Python extension (see build_engine.py)."""

from __future__ import annotations

import runpy
from pathlib import Path

from cffi import FFI

ROOT = Path(__file__).resolve().parent.parent
_engine = runpy.run_path(str(ROOT / "cext" / "build_engine.py"))  # setuptools runs this file outside any package

ffibuilder = FFI()
ffibuilder.cdef(_engine["KERNEL_TYPES"].replace("uint64_t __u64", "unsigned long long __u64"))  # arrays of it
for name in ("ebpf/reflector.h", "ebpf/simulator.h", "cext/simulator/simulator.h"):
    ffibuilder.cdef(_engine["declarations"](ROOT / name))
ffibuilder.cdef("#define SIM_FIRST_OFFENCE ...")
ffibuilder.set_source(
    "cext._simulator",
    '#include "simulator/simulator.h"\n',
    sources=sorted(str(path.relative_to(ROOT)) for path in (ROOT / "cext" / "simulator").glob("*.c")),
    **_engine["BUILD"],
)

if __name__ == "__main__":
    ffibuilder.compile(tmpdir=str(ROOT), verbose=True)
