# SPDX-License-Identifier: Apache-2.0
"""The addresses of this network namespace, for services that listen on all of them."""

from __future__ import annotations

import ipaddress
import math
import time
from pathlib import Path
from typing import Final

from appliance.wire import pack_address

READ_EVERY_S: Final = 5.0


def local_addresses(proc: Path = Path("/proc/thread-self/net")) -> list[str]:
    """Their texts, in order.

    From /proc, not by netlink: this is asked for inside of the event loop, where pyroute2 cannot open its socket, and
    pyroute2 alone would cost the daemon 10 MB."""
    found: set[str] = set()
    address = ""
    for line in (proc / "fib_trie").read_text(encoding="ascii").splitlines():
        words = line.split()
        if words[:1] == ["|--"]:
            address = words[1]
        elif words == ["/32", "host", "LOCAL"]:
            found.add(address)
    inet6 = proc / "if_inet6"
    if inet6.exists():  # not there when IPv6 is switched off
        for line in inet6.read_text(encoding="ascii").splitlines():
            found.add(str(ipaddress.IPv6Address(bytes.fromhex(line.split()[0]))))
    return sorted(found)


class LocalAddresses:
    """The same, read again after some seconds."""

    def __init__(self) -> None:
        self._texts: set[str] = set()
        self._packed = b""
        self._read_at = -math.inf

    def has(self, address: str) -> bool:
        """Whether this machine has the address."""
        self._read()
        return address in self._texts

    def texts(self) -> list[str]:
        """All of them, in order."""
        self._read()
        return sorted(self._texts)

    def packed(self) -> bytes:
        """All of them, 16 bytes each, one after the other."""
        self._read()
        return self._packed

    def _read(self) -> None:
        now = time.monotonic()
        if now - self._read_at > READ_EVERY_S:
            texts = local_addresses()
            self._read_at = now
            self._texts, self._packed = set(texts), b"".join(map(pack_address, texts))
