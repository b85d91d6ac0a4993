# SPDX-License-Identifier: Apache-2.0
"""What the engine counts of the connections of each policy class."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final, NamedTuple


class Tally(NamedTuple):
    """What connections of a class, of a service, did since the last tallies (struct roost_tally): so many went from one
    state to the other by this cause; where both are the same, they were sent probes. Payload is that from and to their
    clients since each one's transition before."""

    number: int
    service: int
    from_state: int
    to_state: int
    cause: int
    count: int  # type: ignore[assignment]  # and not the method of a tuple
    rx_bytes: int
    tx_bytes: int


_ANSWERS_S: Final = (*range(0, 16, 2), *((8 + m) << n for n in range(1, 15) for m in range(8)))
SILENCES_S: Final = MappingProxyType(
    {"spoke": (0, *(1 << n for n in range(4, 19))), "answered": _ANSWERS_S, "lost": _ANSWERS_S}
)
"""From how many seconds on a silence is counted in each place, up to the next (ebpf/shared/silence.h)."""


class Silences(NamedTuple):
    """How often clients of a class, of a service, that were not awake were silent for so long (a place for each of
    SILENCES_S) until they said something by themselves, answered a probe, or were given up. Since the engine began; the
    numbers have 32 bits and wrap."""

    service: int
    spoke: tuple[int, ...]
    answered: tuple[int, ...]
    lost: tuple[int, ...]


class Census(NamedTuple):
    """How many connections of a class, of a service, there are (struct roost_census): by the number of their state, in
    IDLE those that have spoken, in SLEEP those with a slot; and those born asleep that have not spoken."""

    service: int
    in_state: tuple[int, ...]
    born: int
