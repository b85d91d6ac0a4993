# SPDX-License-Identifier: Apache-2.0
"""The C extension, and what it offers apart from an engine. Nothing else of the product imports the extension."""

from __future__ import annotations

import os
from typing import Any

from cext import _engine

ffi: Any = _engine.ffi
lib: Any = _engine.lib


class EngineError(Exception):
    """The engine could not do it; the message says what happened, to which object, and what to do. number: an errno, or
    0."""

    def __init__(self, message: str, number: int = 0) -> None:
        super().__init__(message)
        self.number = number


def checked(call: Any, *arguments: Any) -> int:
    """What the call returns; its last argument is where it says what went wrong. Raises EngineError."""
    why = ffi.new("struct roost_reason *")
    result: int = call(*arguments, why)
    if result < 0:
        raise EngineError(ffi.string(why.text).decode(errors="replace") or os.strerror(-result), -result)
    return result


def router_mark() -> tuple[int, int]:
    """(mark, mask) of packets that are to be delivered to this machine, whatever address they carry."""
    mask = ffi.new("uint32_t *")
    mark = lib.roost_router_mark(mask)
    return mark, mask[0]


def make_pin_dir(pin_dir: str) -> None:
    """Makes the directory for pins, below a bpffs and nowhere else; raises EngineError, also of one that another user
    may write to."""
    checked(lib.roost_pin_dir, pin_dir.encode())


def unpin(pin_dir: str) -> None:
    """Detaches and removes everything pinned below pin_dir, in the network namespace that it belongs to: the sleeping
    connections there are let go."""
    checked(lib.roost_unpin, pin_dir.encode())


def foreign_xdp(ifname: str, pin_dir: str) -> str:
    """Whose XDP program keeps ours, which is pinned below pin_dir, from an interface, and how it is detached: two
    sentences with a semicolon between them; "": none does."""
    try:
        checked(lib.roost_foreign_xdp, ifname.encode(), pin_dir.encode())
    except EngineError as error:
        return str(error)
    return ""


def enter_namespace(pin_dir: str) -> bool:
    """Moves this thread for good into the network namespace that those pins belong to; False: it is gone, and the
    thread stays where it is."""
    return checked(lib.roost_enter_namespace, pin_dir.encode()) == 1
