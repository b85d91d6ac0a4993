# SPDX-License-Identifier: Apache-2.0
"""The engine's inner parts one at a time, for tests: an extension that ./roost builds in place and that no wheel has.

It has no copy of the engine's code: its calls are bound to the library of cext._engine when it is imported. So what is
tested is what is installed, and there is one of each static variable.
"""

from __future__ import annotations

import ctypes
from typing import Any

from cext import _engine

ctypes.CDLL(_engine.__file__, mode=ctypes.RTLD_GLOBAL)  # Python has loaded it for itself alone

from tests.inner import _inner  # noqa: E402

ffi: Any = _inner.ffi
lib: Any = _inner.lib
