# SPDX-License-Identifier: Apache-2.0
"""Memory of this process: what it takes, and what it has freed and the C library keeps."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any, Final

_C: Final[Any] = ctypes.CDLL(None)


def resident_bytes() -> int:
    """What is in memory of it."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def give_back() -> None:
    """Return it to the kernel, whole pages of every arena: the library itself returns only what lies at an arena's end.
    It takes 1 to 10 ms, in which an allocation of another thread may have to wait (malloc_trim(3))."""
    _C.malloc_trim(0)
