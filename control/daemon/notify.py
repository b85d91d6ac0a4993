# SPDX-License-Identifier: Apache-2.0
"""A word to the service manager (sd_notify(3))."""

from __future__ import annotations

import logging
import socket
from collections.abc import Sequence
from typing import Final

FDS_S: Final = 5.0
"""How long a manager may take to listen where descriptors are lost otherwise."""

log = logging.getLogger("roost.daemon")


def notify(path: str, *lines: str, fds: Sequence[int] = ()) -> None:
    """path: its socket, "": there is no manager. fds: go with it."""
    if not path:
        return
    where = f"\0{path[1:]}" if path.startswith("@") else path
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as told:
            told.settimeout(FDS_S if fds else 0)  # a manager that does not listen holds up nothing
            told.connect(where)
            socket.send_fds(told, ["\n".join(lines).encode()], list(fds))
    except OSError as error:
        log.warning("the service manager cannot be told %s: %s: %s", lines[0], path, error.strerror or error)
