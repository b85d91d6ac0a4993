# SPDX-License-Identifier: Apache-2.0
"""Memory that the process has freed and the C library keeps."""

from __future__ import annotations

import ctypes
from typing import Any, Final

_C: Final[Any] = ctypes.CDLL(None)


def give_back() -> None:
    """Return it to the kernel, whole pages of every arena: the library itself returns only what lies at an arena's end.
    It takes 1 to 10 ms, in which an allocation of another thread may have to wait (malloc_trim(3))."""
    _C.malloc_trim(0)
