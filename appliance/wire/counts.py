# SPDX-License-Identifier: Apache-2.0
"""What the engine counts of the connections of each policy class."""

from __future__ import annotations

from typing import NamedTuple


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


class Census(NamedTuple):
    """How many connections of a class, of a service, there are (struct roost_census): by the number of their state, in
    IDLE those that have spoken, in SLEEP those with a slot; and those born asleep that have not spoken."""

    service: int
    in_state: tuple[int, ...]
    born: int
