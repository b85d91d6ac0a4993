# SPDX-License-Identifier: Apache-2.0
"""Values of the policy that one connection is given by command, whatever its state, in place of those of its rules and
its service. Like what it sets in band they are the connection's own, end with it, and outlive the daemon
(in_band_settings.py); in band they cannot be changed."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from errno import EIO, ENOENT, ENOSPC, ETIMEDOUT
from typing import Any, Final

from appliance.wire import OVERRIDES, Command, Op
from control.clients.locate import Locator
from control.clients.ruling import check_words
from control.core.errors import OperationError
from control.core.logs import about
from control.core.ports import CommandsPort
from control.core.states import Cause
from control.policy.rules import VALUES, RuleError, read_rule

log = logging.getLogger("roost.policy")

ONES_OWN: Final = {"active_quiet": 1000, "standby_quiet": 1000, "idle_quiet": 1000, "probe_interval": 1}
"""The keys of [policy] that a connection may have of its own, and what a second is in the engine's unit of each. In the
order of struct roost_overrides: the number of a key is its bit in `given`."""

TIMEOUT_S: Final = 10.0

_ERRORS: Final = {
    ENOENT: (409, "it has ended, or its 4-tuple is another connection's by now"),
    ENOSPC: (507, "connections have as many different sets of values as there is room for"),
    EIO: (503, "its row cannot be read"),
    ETIMEDOUT: (504, f"no answer in {TIMEOUT_S:.0f} s"),
}


class Giving:
    """Everything runs in the event loop; raises OperationError."""

    def __init__(self, commands: CommandsPort, locator: Locator) -> None:
        self._commands = commands
        self._locator = locator

    async def give(self, name: str, values: Mapping[str, Any], who: str, why: str) -> dict[str, Any]:
        """Let a connection have these values, by key; None: what its rules and its service say."""
        check_words(who, why)
        bits, own, read = read_own(values)
        located = await self._locator.located(name)
        command = Command(op=Op.GIVE, cause=Cause.COMMAND, id=located.id, key=located.key, count=bits, overrides=own)
        outcome = await asyncio.wrap_future(self._commands.command(command, [], TIMEOUT_S))
        client = located.key.client_text
        if outcome.error:
            status, said = _ERRORS.get(outcome.error, (409, os.strerror(outcome.error)))
            raise OperationError(status, f"{client} keeps the values that it has: {said}")
        told = ", ".join(f"{key} {'of its policy' if one is None else f'{one:g} s'}" for key, one in read.items())
        log.info("%s: by command of %s: %s%s", client, who, told, f" ({why})" if why else "",
                 extra=about(connection=located.id, client=located.key, who=who))  # fmt: skip
        return {"id": located.id, "client": client, "state": located.state.label, "values": read}


def read_own(values: Mapping[str, Any]) -> tuple[int, bytes, dict[str, float | None]]:
    """Bits of the keys, struct roost_overrides with the values that are given, and these in seconds. Raises
    OperationError."""
    may_be = f"of its own a connection may have {', '.join(ONES_OWN)}"
    if not values:
        raise OperationError(422, f"no value is given; {may_be}")
    for key in values:
        if key in ONES_OWN:
            continue
        what = "is given by rules and services alone" if key in VALUES else "is no key"
        raise OperationError(422, f"`{key[:100]}` {what}; {may_be}")
    given = {key: value for key, value in values.items() if value is not None}
    try:
        found = read_rule({"name": "own", **given}).values if given else {}
    except RuleError as error:
        raise OperationError(422, str(error)) from None
    own = [round(found.get(key, 0) * scale) for key, scale in ONES_OWN.items()]
    asked, given_bits = (sum(1 << bit for bit, key in enumerate(ONES_OWN) if key in some) for some in (values, found))
    return asked, OVERRIDES.pack(*own, given_bits, 0, 0, 0), {key: found.get(key) for key in values}
