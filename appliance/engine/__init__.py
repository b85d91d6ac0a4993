# SPDX-License-Identifier: Apache-2.0
"""The binding to the C engine: it alone loads the extension, and libbpf with it."""

from __future__ import annotations

from appliance.engine.engine import Engine
from appliance.engine.library import (
    EngineError,
    enter_namespace,
    ffi,
    foreign_xdp,
    lib,
    make_pin_dir,
    router_mark,
    unpin,
)

__all__ = [
    "Engine",
    "EngineError",
    "enter_namespace",
    "ffi",
    "foreign_xdp",
    "lib",
    "make_pin_dir",
    "router_mark",
    "unpin",
]
