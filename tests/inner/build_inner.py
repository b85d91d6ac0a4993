# SPDX-License-Identifier: Apache-2.0
"""Builds tests/inner/_inner, the engine's inner parts for tests, as a Python extension (see cext/build_engine.py)."""

from __future__ import annotations

import runpy
from pathlib import Path

from cffi import FFI

ROOT = Path(__file__).resolve().parents[2]
HERE = "tests/inner"
_engine = runpy.run_path(str(ROOT / "cext" / "build_engine.py"))  # setuptools runs this file outside any package

ffibuilder = FFI()
ffibuilder.include(_engine["ffibuilder"])
for header in ("cext/life/next.h", f"{HERE}/testing.h"):
    ffibuilder.cdef(_engine["declarations"](ROOT / header))
ffibuilder.set_source(
    "tests.inner._inner",
    f'#include "cext/life/next.h"\n#include "{HERE}/testing.h"\n',
    sources=[f"{HERE}/{name}.c" for name in ("testing", "testing_engine", "testing_notes")],
    **_engine["BUILD"] | {"extra_link_args": ["-pthread", "-Wl,-z,now"]},  # a function that the engine lacks: no import
)

if __name__ == "__main__":
    ffibuilder.compile(tmpdir=str(ROOT), verbose=True)
