# SPDX-License-Identifier: Apache-2.0
"""Why a daemon cannot start."""

from __future__ import annotations

from errno import EADDRINUSE, EADDRNOTAVAIL

from appliance.box.taken import WAY_OUT


class DaemonError(Exception):
    """The daemon cannot start; the message says why and what to do."""


def port_trouble(message: str, number: int | None) -> str:
    """A message about a listening address that cannot be had, with what to do about it."""
    if number == EADDRINUSE:
        return f"{message}. Another program has it: {WAY_OUT}."
    if number == EADDRNOTAVAIL:
        return f"{message}. This machine has no such address: ip -brief address shows those it has."
    return message
