# SPDX-License-Identifier: Apache-2.0
"""The state machine of a client connection. Everything that decides whether a transition is legal lives here.

Theory of operation
===================

A client connection is one TCP connection between a client and the appliance, whatever the appliance keeps of it:

    ACTIVE    a kernel socket, linked to a server connection
    STANDBY   a kernel socket, no link
    IDLE      no socket; the full record is in memory
    SLEEP     no socket; a keep-alive's worth is in memory, the rest is a committed row of the store; without
              keep-alives (`sleep_keepalive`) the row is all there is
    CLOSED    a row of history

NONE is where a connection comes from; it is no state that a connection can be found in.

A transition is (from, to, cause). A cause says *what wanted it*, not how it was done: freezing by timer and freezing by
an operator are the same work with the causes ``quiet`` and ``command``. The engine (cext/) is built with this table,
carries transitions out and reports each one once. A command whose cause the table lacks is refused (EINVAL). A
transition that the engine should not make by itself is refused where it would happen (cext/conn/events.c), reported as
such, logged and counted, and its connection ends: it is a bug, and both ends learn of it.

Going down is one step at a time, ACTIVE -> STANDBY -> IDLE -> SLEEP, since each step releases what the next one must
not find: the server link, the socket, the record. A connection of a persistent service leaves out STANDBY: its server
link goes down with it, and comes back with it (``server-data``: it was the server that spoke first).

Going up skips steps: no connection waits in IDLE on the way from SLEEP to
ACTIVE, because a connection whose record has been read back is rebuilt at once. SLEEP -> IDLE is what is left when the
rebuilding fails (no descriptor, no memory): the record has been read back and is in memory, so IDLE is where the
connection truly is. The cause is that of the wake-up which failed; the next one begins from there.

Three causes belong to the life of the daemon, not of the connection:

``shutdown``  the daemon ends. What can be frozen goes down to IDLE; what cannot (bytes in flight) is CLOSED.
              Where the whole machine goes down, what is in IDLE then goes to SLEEP.
``restore``   the daemon begins, and finds the world other than the history says. After a reboot a row of the store is
              put back into the (new, empty) table: NONE -> SLEEP, or, with its server's leg, NONE -> IDLE. A connection
              that was awake when the predecessor was killed is gone: ACTIVE or STANDBY -> CLOSED. A slot without its
              row, or a row without its slot, is a connection that cannot be rebuilt: IDLE or SLEEP -> CLOSED. Last, a
              predecessor can be killed between carrying a transition out and writing it down; the successor writes the
              missing step, and for that alone awake -> IDLE and IDLE -> SLEEP have ``restore`` as a cause.
``pressure``  descriptors, memory or CPU run short; the least recently active connections go down one step early, and
              those that cannot, since what was sent to them waits in vain, are CLOSED.

``client-connect`` also ends a connection: its client has come by another one, and has said so by its name.

Keep-alives are not activity: answering or sending one is no transition and has no cause. Only their absence has:
``probe-timeout``. An end that answers and does not take what is sent to it ends its connection by ``write-timeout``.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Final


class State(IntEnum):
    """States of a client connection; the numbers of ``enum roost_state`` in cext/base/types.h."""

    NONE = 0
    ACTIVE = 1
    STANDBY = 2
    IDLE = 3
    SLEEP = 4
    CLOSED = 5

    @property
    def label(self) -> str:
        return self.name


class Cause(IntEnum):
    """Causes of transitions; the numbers of ``enum roost_cause`` in cext/base/types.h."""

    NONE = 0
    CLIENT_CONNECT = 1
    CLIENT_DATA = 2
    CLIENT_CLOSE = 3
    SERVER_ATTACH = 4
    SERVER_CLOSE = 5
    QUIET = 6
    PRESSURE = 7
    COMMAND = 8
    PROBE_TIMEOUT = 9
    RESTORE = 10
    SHUTDOWN = 11
    SERVER_DATA = 12
    WRITE_TIMEOUT = 13

    @property
    def label(self) -> str:
        """The name people and programs see: ``client-data``."""
        return self.name.lower().replace("_", "-")


AWAKE: Final = frozenset({State.ACTIVE, State.STANDBY})
"""States with a kernel socket."""

INACTIVE: Final = frozenset({State.IDLE, State.SLEEP})
"""States without one."""

_S, _C = State, Cause

TRANSITIONS: Final[Mapping[tuple[State, Cause], frozenset[State]]] = MappingProxyType(
    {
        # A connection appears.
        (_S.NONE, _C.CLIENT_CONNECT): frozenset({_S.ACTIVE, _S.IDLE}),  # IDLE: it was born asleep, and now speaks
        (_S.NONE, _C.SERVER_ATTACH): frozenset({_S.STANDBY}),  # a server wanted its client, which was dialled
        (_S.NONE, _C.RESTORE): frozenset({_S.SLEEP, _S.IDLE}),  # IDLE: with its server's leg
        # ACTIVE: linked. IDLE: both legs froze together (the persistent interface), and the server keeps its socket.
        # server-attach: another server takes over, so that the present link is ended first.
        # client-connect, here and below: the client has come back by another connection.
        (_S.ACTIVE, _C.CLIENT_CONNECT): frozenset({_S.CLOSED}),
        (_S.ACTIVE, _C.CLIENT_CLOSE): frozenset({_S.CLOSED}),
        (_S.ACTIVE, _C.SERVER_ATTACH): frozenset({_S.STANDBY}),
        (_S.ACTIVE, _C.SERVER_CLOSE): frozenset({_S.STANDBY, _S.CLOSED}),
        (_S.ACTIVE, _C.QUIET): frozenset({_S.STANDBY, _S.IDLE}),
        (_S.ACTIVE, _C.PRESSURE): frozenset({_S.STANDBY, _S.IDLE, _S.CLOSED}),
        (_S.ACTIVE, _C.COMMAND): frozenset({_S.STANDBY, _S.IDLE, _S.CLOSED}),
        (_S.ACTIVE, _C.PROBE_TIMEOUT): frozenset({_S.CLOSED}),
        (_S.ACTIVE, _C.WRITE_TIMEOUT): frozenset({_S.CLOSED}),
        (_S.ACTIVE, _C.RESTORE): frozenset({_S.IDLE, _S.CLOSED}),
        (_S.ACTIVE, _C.SHUTDOWN): frozenset({_S.STANDBY, _S.IDLE, _S.CLOSED}),
        # STANDBY: a socket that waits. server-close here: the link that the client's data asked for was not to be had.
        (_S.STANDBY, _C.CLIENT_CONNECT): frozenset({_S.CLOSED}),
        (_S.STANDBY, _C.CLIENT_DATA): frozenset({_S.ACTIVE}),
        (_S.STANDBY, _C.CLIENT_CLOSE): frozenset({_S.CLOSED}),
        (_S.STANDBY, _C.SERVER_ATTACH): frozenset({_S.ACTIVE}),
        (_S.STANDBY, _C.SERVER_CLOSE): frozenset({_S.CLOSED}),
        (_S.STANDBY, _C.QUIET): frozenset({_S.IDLE}),
        (_S.STANDBY, _C.PRESSURE): frozenset({_S.IDLE, _S.CLOSED}),
        (_S.STANDBY, _C.COMMAND): frozenset({_S.IDLE, _S.CLOSED}),
        (_S.STANDBY, _C.PROBE_TIMEOUT): frozenset({_S.CLOSED}),
        (_S.STANDBY, _C.WRITE_TIMEOUT): frozenset({_S.CLOSED}),
        (_S.STANDBY, _C.RESTORE): frozenset({_S.IDLE, _S.CLOSED}),
        (_S.STANDBY, _C.SHUTDOWN): frozenset({_S.IDLE, _S.CLOSED}),
        # IDLE: a record in memory. Woken by a command it waits in STANDBY, or in ACTIVE if its server leg was kept.
        (_S.IDLE, _C.CLIENT_CONNECT): frozenset({_S.CLOSED}),
        (_S.IDLE, _C.CLIENT_DATA): frozenset({_S.ACTIVE, _S.STANDBY}),
        (_S.IDLE, _C.CLIENT_CLOSE): frozenset({_S.CLOSED}),
        (_S.IDLE, _C.SERVER_ATTACH): frozenset({_S.ACTIVE, _S.STANDBY}),  # STANDBY: the server could not be linked
        (_S.IDLE, _C.SERVER_DATA): frozenset({_S.ACTIVE}),
        (_S.IDLE, _C.SERVER_CLOSE): frozenset({_S.CLOSED}),
        (_S.IDLE, _C.QUIET): frozenset({_S.SLEEP}),
        (_S.IDLE, _C.PRESSURE): frozenset({_S.SLEEP}),
        (_S.IDLE, _C.COMMAND): frozenset({_S.ACTIVE, _S.STANDBY, _S.SLEEP, _S.CLOSED}),
        (_S.IDLE, _C.PROBE_TIMEOUT): frozenset({_S.CLOSED}),
        (_S.IDLE, _C.RESTORE): frozenset({_S.SLEEP, _S.CLOSED}),
        (_S.IDLE, _C.SHUTDOWN): frozenset({_S.SLEEP}),  # of the machine
        # SLEEP: a row of the store. IDLE: it was read back, but no socket could be made of it.
        (_S.SLEEP, _C.CLIENT_CONNECT): frozenset({_S.IDLE, _S.CLOSED}),
        (_S.SLEEP, _C.CLIENT_DATA): frozenset({_S.ACTIVE, _S.STANDBY, _S.IDLE}),
        (_S.SLEEP, _C.CLIENT_CLOSE): frozenset({_S.CLOSED}),
        (_S.SLEEP, _C.SERVER_ATTACH): frozenset({_S.ACTIVE, _S.STANDBY, _S.IDLE}),
        (_S.SLEEP, _C.SERVER_DATA): frozenset({_S.ACTIVE, _S.IDLE}),
        (_S.SLEEP, _C.SERVER_CLOSE): frozenset({_S.CLOSED}),
        (_S.SLEEP, _C.COMMAND): frozenset({_S.ACTIVE, _S.STANDBY, _S.IDLE, _S.CLOSED}),
        (_S.SLEEP, _C.PROBE_TIMEOUT): frozenset({_S.IDLE, _S.CLOSED}),
        (_S.SLEEP, _C.RESTORE): frozenset({_S.IDLE, _S.CLOSED}),
        # CLOSED is the end: no entry.
    }
)

LEGAL: Final[frozenset[tuple[int, int, int]]] = frozenset(
    (int(source), int(target), int(cause)) for (source, cause), targets in TRANSITIONS.items() for target in targets
)
"""The same table as (from, to, cause) triples of plain numbers."""


def transition_text(source: int, target: int, cause: int) -> str:
    """A transition in words; a number that is no state or cause stands for itself."""
    return f"{_name(State, source)} -> {_name(State, target)} by {_name(Cause, cause)}"


def _name(kind: type[State] | type[Cause], number: int) -> str:
    try:
        return kind(number).label
    except ValueError:
        return f"{kind.__name__.lower()} {number}"


def render_c() -> str:
    """The table as a C header: for each state and cause a bit for each state that may follow. The engine is built with
    it (cext/build_engine.py) and refuses what it lacks."""
    rows = [
        f"    [{source}][{cause}] = {sum(1 << target for target in targets)},"
        for (source, cause), targets in TRANSITIONS.items()
    ]
    return "\n".join(
        [
            "/* Made from control/core/states.py. */",
            f"static const unsigned char roost_transitions[{len(State)}][{len(Cause)}] = {{",
            *rows,
            "};\n",
        ]
    )
