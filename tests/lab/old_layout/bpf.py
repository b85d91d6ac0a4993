# SPDX-License-Identifier: Apache-2.0
"""Maps and links by bpf(2), without libbpf and without the engine: what another engine, or program, had made."""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from pathlib import Path
from typing import Final

_SYS_BPF: Final = {"x86_64": 321, "aarch64": 280}
_MAP_CREATE, _LOOKUP, _UPDATE, _OBJ_PIN, _OBJ_GET, _GET_FD_BY_ID = 0, 1, 2, 6, 7, 14
_LINK_CREATE, _XDP, _XDP_FLAGS_DRV_MODE = 28, 37, 4
SHAPE: Final = ("map_type", "key_size", "value_size", "max_entries", "map_flags")
_libc = ctypes.CDLL(None, use_errno=True)


def _bpf(command: int, attributes: bytes) -> int:
    raw = ctypes.create_string_buffer(attributes, len(attributes))
    result: int = _libc.syscall(_SYS_BPF[platform.machine()], command, raw, len(attributes))
    if result < 0:
        raise OSError(ctypes.get_errno(), f"bpf({command}): {os.strerror(ctypes.get_errno())}")
    return result


def _pointer(buffer: ctypes.Array[ctypes.c_char]) -> int:
    return ctypes.addressof(buffer)


def create(name: str, shape: dict[str, int], inner_fd: int = 0) -> int:
    """A map; its descriptor. libbpf knows an adopted map by the name that the kernel has of it."""
    numbers = [shape[name] for name in SHAPE]
    return _bpf(_MAP_CREATE, struct.pack("=7I16s", *numbers, inner_fd, 0, name.encode()))


def shape_of(fd: int) -> dict[str, int]:
    """Type, sizes and flags; empty: it is no map."""
    lines = Path(f"/proc/self/fdinfo/{fd}").read_text().splitlines()
    found = dict(line.split(":\t") for line in lines if ":\t" in line)
    return {name: int(found[name], 0) for name in SHAPE} if "map_type" in found else {}


def pin(fd: int, path: Path) -> None:
    name = ctypes.create_string_buffer(str(path).encode())
    _bpf(_OBJ_PIN, struct.pack("=QI", _pointer(name), fd))


def pinned(path: Path) -> int:
    """The descriptor of what is pinned there."""
    name = ctypes.create_string_buffer(str(path).encode())
    return _bpf(_OBJ_GET, struct.pack("=QI", _pointer(name), 0))


def fdinfo(path: Path) -> str:
    """What the kernel tells of what is pinned there."""
    fd = pinned(path)
    try:
        return Path(f"/proc/self/fdinfo/{fd}").read_text()
    finally:
        os.close(fd)


def link_xdp(program: int, ifindex: int) -> int:
    """Attach an XDP program by a link; its descriptor, which keeps it attached."""
    return _bpf(_LINK_CREATE, struct.pack("=4I", program, ifindex, _XDP, _XDP_FLAGS_DRV_MODE))


def by_id(number: int) -> int:
    return _bpf(_GET_FD_BY_ID, struct.pack("=III", number, 0, 0))


def read(fd: int, index: int, size: int) -> bytes:
    """The value at an index of an array."""
    key, value = ctypes.create_string_buffer(struct.pack("=I", index), 4), ctypes.create_string_buffer(size)
    _bpf(_LOOKUP, struct.pack("=IxxxxQQQ", fd, _pointer(key), _pointer(value), 0))
    return value.raw


def write(fd: int, index: int, value: bytes) -> None:
    key, raw = ctypes.create_string_buffer(struct.pack("=I", index), 4), ctypes.create_string_buffer(value, len(value))
    _bpf(_UPDATE, struct.pack("=IxxxxQQQ", fd, _pointer(key), _pointer(raw), 0))
