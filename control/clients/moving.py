# SPDX-License-Identifier: Apache-2.0
"""One connection is moved to another state because an operator wants it: standby, idle, sleep, wake, close."""

from __future__ import annotations

import asyncio
import os
from errno import EAGAIN, EALREADY, EBUSY, ECANCELED, EINVAL, EIO, EMFILE, ENOENT, ENOSPC, ESHUTDOWN, ETIMEDOUT
from typing import Any, Final

from appliance.wire import Command, Op
from control.clients.locate import Located, Locator
from control.core.errors import OperationError
from control.core.ports import CommandsPort, EnginePort, Outcome
from control.core.states import AWAKE, INACTIVE, Cause, State
from control.store.store import Store

COMMAND_TIMEOUT_S: Final = 10.0


class Moving:
    """Everything runs in the event loop; raises OperationError."""

    def __init__(self, engine: EnginePort, store: Store, commands: CommandsPort, locator: Locator) -> None:
        self._engine = engine
        self._store = store
        self._commands = commands
        self._locator = locator

    async def act(self, name: str, action: str) -> dict[str, Any]:
        """Carry out standby, idle, sleep, wake or close; returns where the connection is then."""
        located = await self._locator.located(name)
        state = located.state
        targets = {
            "standby": [State.STANDBY],
            "idle": [State.IDLE],
            "sleep": [State.SLEEP],
            "wake": [State.STANDBY, State.ACTIVE],  # ACTIVE: one that sleeps with its server
        }.get(action, [State.CLOSED])
        before = state.label
        if state in targets:
            return {"id": located.id, "client": located.key.client_text, "before": before, "state": before}
        if action in ("standby", "idle") and state in INACTIVE:
            raise OperationError(409, f"the connection is {before}; wake it first")
        if action == "sleep":
            outcome = await self._sleep(located)
        else:
            op = {"standby": Op.STANDBY, "idle": Op.IDLE, "wake": Op.WAKE, "close": Op.CLOSE}[action]
            outcome = await self._command(op, located, targets)
        if outcome.error:
            raise _refused(action, before, outcome.error)
        after = State(outcome.state).label
        return {"id": located.id or outcome.id, "client": located.key.client_text, "before": before, "state": after}

    async def _command(self, op: Op, located: Located, targets: list[State]) -> Outcome:
        command = Command(op=op, cause=Cause.COMMAND, id=located.id, key=located.key)
        return await asyncio.wrap_future(self._commands.command(command, targets, COMMAND_TIMEOUT_S))

    async def _sleep(self, located: Located) -> Outcome:
        if not self._store.sleep_allowed:
            raise OperationError(503, f"nothing can SLEEP now: store: {self._store.status.text}")
        if located.state in AWAKE:
            outcome = await self._command(Op.IDLE, located, [State.IDLE])
            if outcome.error:
                return outcome
        event = await asyncio.to_thread(self._engine.find, located.key)
        if event is None or event.to_state != State.IDLE or not event.record.id:
            raise OperationError(409, "the connection was woken in the meantime")
        return await asyncio.wrap_future(self._commands.sleep(event.record, COMMAND_TIMEOUT_S))


def _refused(action: str, before: str, error: int) -> OperationError:
    if error == ETIMEDOUT:
        return OperationError(504, f"{action}: no answer in {COMMAND_TIMEOUT_S:.0f} s; the connection was {before}")
    if error == EIO:
        return OperationError(503, f"{action}: the connection's row could not be read; it stays as it is, {before}")
    return OperationError(409, f"{action}: refused while {before}: {refusal_text(error)}")


_REFUSALS: Final = {
    EAGAIN: "it was busy, or had changed meanwhile",
    EALREADY: "it was on its way already",
    EBUSY: "a server waits for it",
    ECANCELED: "another command came",
    EINVAL: "this leads nowhere from its state",
    EIO: "its row could not be read",
    EMFILE: "no descriptor was free: too many are awake (max_awake)",
    ENOENT: "it had ended, or has no row",
    ENOSPC: "there is no room for it in the table",
    ESHUTDOWN: "this machine lets none wake: it ends, or another one may have its connections ([standby] lease)",
}


def refusal_text(error: int) -> str:
    """Why the engine did not carry a command out, by its errno."""
    return _REFUSALS.get(error) or os.strerror(error)
