# SPDX-License-Identifier: Apache-2.0
"""What a simulated fleet is: its parameters, and the networks and disturbances that follow from them and the seed."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Final, NamedTuple

HOUR_MS: Final = 3_600_000
DAY_S: Final = 86_400
IN_A_16: Final = 65_000
"""Clients of one /16."""


@dataclass(frozen=True)
class Habit:
    """Gaps between a client's messages: with chance `often` about short_s, else about long_s (medians; log-normal, with
    these standard deviations of the logarithm)."""

    often: float
    short_s: float
    short_sigma: float
    long_s: float
    long_sigma: float

    def moments(self) -> tuple[float, float]:
        """Mean and standard deviation, s."""
        modes = ((self.often, self.short_s, self.short_sigma), (1 - self.often, self.long_s, self.long_sigma))
        mean = sum(share * median * math.exp(sigma**2 / 2) for share, median, sigma in modes)
        square = sum(share * median**2 * math.exp(2 * sigma**2) for share, median, sigma in modes)
        return mean, math.sqrt(square - mean**2)


METER: Final = Habit(0.3, 90, 0.8, 7200, 0.6)
ALARM: Final = Habit(0.5, 60, 0.6, 14_400, 0.8)
SILENT: Final = Habit(0.0, 60, 0.1, 2.5 * DAY_S, 0.5)
"""How long the connections of those last that never speak."""

SERVICES: Final = ("meter", "alarm")
HABITS: Final = (METER, ALARM, SILENT)


@dataclass(frozen=True)
class Fleet:
    """Shares are of 1. A disturbance whose number or share is 0 does not happen.

    clients, days          how many; of simulated time, from begin_ms on (ms since 1970, a whole hour)
    networks, skew         how many; how many times the smallest one's clients the largest one has
    timeout_s              of networks: from, to; log-uniform
    no_timeout             share of the networks that have none
    fixed                  share of the networks that are probed at one interval, by which no time-out can be found
    partial                share of the networks with a time-out before some of their clients alone
    quiet_s                ACTIVE, STANDBY and IDLE are left after so long without payload, cumulative
    retry_s, retries       a client is given up that does not answer so many probes, which are so far apart
    daily, weekly          how much more often clients speak at the peak: the rate is 1 / (1 - daily - weekly) then
    spread                 standard deviation of the logarithm of how often clients speak, from client to client
    servers                share of the wakes that are by a server; refused: of them, with one attach refused before
    closing                share of the messages after which the client closes
    keepalives             share of the clients with keep-alives of their own
    silent                 share of the clients that connect and never say anything
    off_per_day            of a client: how often it is switched off, which its next probe finds
    outages, outage_s      of a network: all of its connections are reset, and none comes for so long
    flapping, flap_s       of a network: half of its clients connect again each 20 to 60 s, for so long
    restarts, restart_s    of the daemon, every other one by a kill; how long each takes
    drops, drop_s          times in which no transition was recorded; how long each
    doubled                share of the rows of the history that are there twice
    steps, step_s          how often the clock is set back, and by how much
    memory_bytes           of the appliance
    chunk_rows             of the export, at least, but for the last chunk"""

    clients: int = 1000
    days: int = 7
    seed: int = 1
    begin_ms: int = 1_790_035_200_000
    networks: int = 60
    skew: float = 100
    timeout_s: tuple[float, float] = (150, 2500)
    no_timeout: float = 0.2
    fixed: float = 0.25
    partial: float = 0.3
    quiet_s: tuple[int, int, int] = (10, 40, 600)
    retry_s: int = 10
    retries: int = 4
    daily: float = 0.5
    weekly: float = 0.15
    spread: float = 0.4
    servers: float = 0.1
    refused: float = 0.05
    closing: float = 0.01
    keepalives: float = 0.1
    silent: float = 0.05
    off_per_day: float = 0.02
    outages: int = 2
    outage_s: int = 2700
    flapping: int = 2
    flap_s: int = 10_800
    restarts: int = 2
    restart_s: int = 5
    drops: int = 1
    drop_s: int = 120
    doubled: float = 1e-5
    steps: int = 1
    step_s: int = 60
    memory_bytes: int = 2 << 30
    chunk_rows: int = 1_000_000

    def __post_init__(self) -> None:
        if self.begin_ms % HOUR_MS or min(self.clients, self.days, self.networks) < 1 or self.clients < self.networks:
            raise ValueError("a fleet begins at a whole hour, and has a day and a client in each network at least")
        if self.daily + self.weekly >= 1 or self.quiet_s[1] >= 60:
            raise ValueError(
                "daily and weekly are less than 1 together; IDLE comes before the first probe, within 60 s"
            )

    @property
    def until_ms(self) -> int:
        return self.begin_ms + self.days * DAY_S * 1000


class Network(NamedTuple):
    """timeout_s: None: it has none; share: of its clients that are behind it. most_s: the longest interval of the
    probes, of an experiment; else probe_s. clients: first and how many; block: its first /16, by number from 10.0 on;
    bits: of its prefix."""

    number: int
    rule: str
    service: str
    timeout_s: float | None
    share: float
    probe_s: int
    most_s: int
    first: int
    clients: int
    block: int
    bits: int
    rtt_ms: float

    @property
    def network(self) -> str:
        return f"{10 + self.block // 256}.{self.block % 256}.0.0/{self.bits}"

    @property
    def identifiable(self) -> bool:
        """Whether probes shorter and longer than the time-out are sent."""
        return self.timeout_s is not None and self.probe_s < self.timeout_s < self.most_s


class Event(NamedTuple):
    """ms since 1970. network: number; -1: of all."""

    network: int
    begin_ms: int
    end_ms: int
    killed: bool = False


class Plan(NamedTuple):
    networks: list[Network]
    outages: list[Event]
    flapping: list[Event]
    restarts: list[Event]
    drops: list[Event]
    steps: list[Event]


def plan(fleet: Fleet) -> Plan:
    """The same for the same parameters."""
    dice = random.Random(fleet.seed)
    networks = _networks(fleet, dice)

    def events(count: int, seconds: float, network: bool) -> list[Event]:
        """One in each of as many equal parts of the time, apart from the first and last tenth of it."""
        part, made = (fleet.until_ms - fleet.begin_ms) / max(count, 1), list[Event]()
        for at in range(count):
            begin = int(fleet.begin_ms + part * (at + dice.uniform(0.1, 0.9)))
            begin = min(begin, int(fleet.begin_ms + part * (at + 1) - seconds * 1000 - HOUR_MS))
            number = dice.choices(networks, [one.clients for one in networks])[0].number if network else -1
            made.append(Event(number, max(begin, fleet.begin_ms + HOUR_MS), 0))
        return [one._replace(end_ms=one.begin_ms + int(seconds * 1000)) for one in made]

    outages = events(fleet.outages, fleet.outage_s, True)
    flapping = events(fleet.flapping, fleet.flap_s, True)
    # A fleet does not flap while its network is away.
    flapping = [one for one in flapping if not any(
        out.network == one.network and out.begin_ms < one.end_ms + HOUR_MS and one.begin_ms < out.end_ms + HOUR_MS
        for out in outages)]  # fmt: skip
    restarts = [one._replace(killed=bool(at % 2)) for at, one in
                enumerate(events(fleet.restarts, fleet.restart_s, False))]  # fmt: skip
    return Plan(networks, outages, flapping, restarts, events(fleet.drops, fleet.drop_s, False),
                events(fleet.steps, 0, False))  # fmt: skip


def _networks(fleet: Fleet, dice: random.Random) -> list[Network]:
    count = fleet.networks
    weights = [fleet.skew ** (at / max(count - 1, 1)) for at in range(count)]
    dice.shuffle(weights)
    spare, total = fleet.clients - count, sum(weights)
    made, first, block = list[Network](), 0, 0
    for number, weight in enumerate(weights):
        last = number == count - 1
        clients = fleet.clients - first if last else 1 + int(spare * weight / total)
        blocks = 1 << max(math.ceil(clients / IN_A_16) - 1, 0).bit_length()
        block = -(-block // blocks) * blocks
        timeout = None if dice.random() < fleet.no_timeout else round(_log_uniform(dice, *fleet.timeout_s), 1)
        share = 0.0 if timeout is None else dice.uniform(0.2, 0.9) if dice.random() < fleet.partial else 1.0
        if dice.random() < fleet.fixed:
            probe = most = round(_log_uniform(dice, 60, 1800))
        else:
            probe = round(dice.uniform(60, 120))
            most = round(dice.uniform(1.3, 4) * (timeout or dice.uniform(600, 2500)))
        made.append(Network(number, f"net-{number:03d}", SERVICES[dice.random() < 0.4], timeout, round(share, 3), probe,
                            most, first, clients, block, 16 - (blocks.bit_length() - 1),
                            _log_uniform(dice, 30, 800)))  # fmt: skip
        first, block = first + clients, block + blocks
    return made


def _log_uniform(dice: random.Random, low: float, high: float) -> float:
    return math.exp(dice.uniform(math.log(low), math.log(high)))
