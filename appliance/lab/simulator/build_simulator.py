# SPDX-License-Identifier: Apache-2.0
"""Builds _simulator, the driver of the client simulator, as a Python extension (see cext/build_engine.py)."""

from __future__ import annotations

import runpy
from pathlib import Path

from cffi import FFI

ROOT = Path(__file__).resolve().parents[3]
HERE = "appliance/lab/simulator"
_engine = runpy.run_path(str(ROOT / "cext" / "build_engine.py"))  # setuptools runs this file outside any package

ffibuilder = FFI()
ffibuilder.cdef(_engine["KERNEL_TYPES"].replace("uint64_t __u64", "unsigned long long __u64"))  # arrays of it
for name in ("reflector.h", "simulator.h", "driver.h"):
    ffibuilder.cdef(_engine["declarations"](ROOT / HERE / name))
ffibuilder.cdef("#define SIM_FIRST_OFFENCE ...")
ffibuilder.set_source(
    "appliance.lab.simulator._simulator",
    f'#include "{HERE}/driver.h"\n',
    sources=[f"{HERE}/driver.c", f"{HERE}/reflector.c"],
    **_engine["BUILD"],
)

if __name__ == "__main__":
    ffibuilder.compile(tmpdir=str(ROOT), verbose=True)
