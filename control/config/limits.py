# SPDX-License-Identifier: Apache-2.0
"""[limits] and [service.limits]: what one source may do in a second, and have."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field, model_validator

from control.config.sections import Section
from control.config.values import Duration

MOST: Final = 1_000_000
"""A second: the engine counts in microseconds."""

Rate = Annotated[int, Field(ge=0, le=MOST)]
Most = Annotated[int, Field(ge=0, lt=2**32)]


class ServiceLimits(Section):
    """In place of the same keys of `[limits]`, for the clients of this service."""

    births: tuple[Rate, Rate] | None = Field(None, description="clients that are born asleep")
    handshakes: tuple[Rate, Rate] | None = Field(None, description="clients that are accepted")
    wakes: tuple[Rate, Rate] | None = Field(None, description="clients that wake their connections")
    connections: tuple[Most, Most] | None = Field(None, description="clients that are connected, at any time")


class Limits(Section):
    """How much one address, and one network, may do in a second, and how many connections it may have: each of these is
    a list of two numbers, of an address and of a network; 0: as much as it likes. Those of clients are for each service
    by itself. What is beyond a limit is refused as its protocol does it and counted (`roost status`), and the log says
    whose it was, once in 10 s. All devices behind one NAT are one source."""

    burst: Duration = Field(
        10.0, ge=1, le=600, description="what a source did not use of a limit for so long it may use at once"
    )
    ipv4: tuple[Annotated[int, Field(ge=8, le=32)], Annotated[int, Field(ge=8, le=32)]] = Field(
        (32, 24), description="how many bits of an IPv4 address are an address here, and a network"
    )
    ipv6: tuple[Annotated[int, Field(ge=16, le=128)], Annotated[int, Field(ge=16, le=128)]] = Field(
        (64, 48), description="the same of IPv6"
    )
    births: tuple[Rate, Rate] = Field(
        (10_000, 20_000),
        description="clients that are born asleep (`born`); a SYN beyond it is not answered, and is said again",
    )
    handshakes: tuple[Rate, Rate] = Field(
        (1000, 2000),
        description="clients that connect and are not born; one beyond it is reset, and while some are, their next "
        "SYNs are not answered",
    )
    wakes: tuple[Rate, Rate] = Field(
        (1000, 2000),
        description="clients that wake their connections; what is beyond it is dropped, and TCP says it again. As many "
        "segments are looked up, of those that may be of a client that sleeps without a slot",
    )
    attaches: tuple[Rate, Rate] = Field(
        (1000, 2000), description="connections of servers at `[attach]`; one beyond it is refused (429)"
    )
    agents: tuple[Rate, Rate] = Field(
        (100, 200), description="connections of agents that have not said which they are; one beyond it is reset"
    )

    connections: tuple[Most, Most] = Field(
        (0, 0),
        description="clients that are connected, awake or with a slot in the table; one beyond it is reset. Of very "
        "many connections in all a source may seem to have some 100 more than it has. Where a reload begins to count "
        "them, the engine counts those that are there, 0.1 s for each million",
    )

    @model_validator(mode="after")
    def _network_is_the_larger(self) -> Limits:
        for key in ("ipv4", "ipv6"):
            address, network = getattr(self, key)
            if network > address:
                raise ValueError(f"{key} = [{address}, {network}]: a network has fewer bits than an address in it")
        return self
