# SPDX-License-Identifier: Apache-2.0
"""The C extension, and what it offers apart from an engine. Nothing else of the product imports the extension."""

from __future__ import annotations

import os
from typing import Any, Final

from cext import _engine

ffi: Any = _engine.ffi
lib: Any = _engine.lib

ERR_LEN: Final = 512


class EngineError(Exception):
    """The engine could not do it; the message says what happened, to which object, and what to do."""


def router_mark() -> tuple[int, int]:
    """(mark, mask) of packets that are to be delivered to this machine, whatever address they carry."""
    mask = ffi.new("uint32_t *")
    mark = lib.roost_router_mark(mask)
    return mark, mask[0]


def unpin(pin_dir: str) -> None:
    """Detaches and removes everything pinned below pin_dir: the sleeping connections there are let go."""
    err = ffi.new("char[]", ERR_LEN)
    result = lib.roost_unpin(pin_dir.encode(), err, ERR_LEN)
    if result < 0:
        raise EngineError(ffi.string(err).decode(errors="replace") or os.strerror(-result))
