# SPDX-License-Identifier: Apache-2.0
"""Which networks lose connections, and how large these networks are."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pytest

from control.core.states import Cause, State
from spark.jobs import networks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Network = IPv4Network | IPv6Network


class Place(NamedTuple):
    service: str | None
    network: str
    lost: int
    hours: float
    connections: int = 1


def frame(spark: SparkSession, places: Sequence[Place]) -> DataFrame:
    return spark.createDataFrame(places, "service STRING, network STRING, lost LONG, hours DOUBLE, connections LONG")


def found(spark: SparkSession, places: Sequence[Place]) -> dict[tuple[str | None, str], tuple[int, float]]:
    rows = networks.lost_by_network(frame(spark, places)).collect()
    made = {(row["service"], row["network"]): (row["lost"], row["hours"]) for row in rows}
    assert len(made) == len(rows)
    return made


def best(network: Network, places: Sequence[Place], price: float) -> tuple[float, list[Network]]:
    """What the cheapest way to cut a network costs, and its parts: tried one by one."""
    lost, hours = sum(one.lost for one in places), sum(one.hours for one in places)
    whole = price - (lost * math.log(lost / max(hours, 3 / 3600)) if lost else 0)
    if network.prefixlen == (24 if network.version == 4 else 48):
        return whole, [network]
    halves = []
    for half in network.subnets():
        within = [one for one in places if ip_network(one.network).subnet_of(half)]  # type: ignore[arg-type]
        if within:
            halves.append(best(half, within, price))
    cut, parts = sum(cost for cost, _ in halves), [part for _, some in halves for part in some]
    return (whole, [network]) if whole < cut - 1e-9 else (cut, parts)


def wanted(places: Sequence[Place]) -> dict[tuple[str | None, str], tuple[int, float]]:
    groups = defaultdict[tuple[str | None, Network], list[Place]](list)
    for one in places:
        network = ip_network(one.network)
        groups[one.service, network.supernet(new_prefix=8 if network.version == 4 else 32)].append(one)
    made = {}
    for (service, network), some in groups.items():
        price = math.log(networks.TIMES * sum(one.service == service for one in places))
        for part in best(network, some, price)[1]:
            within = [one for one in some if ip_network(one.network).subnet_of(part)]  # type: ignore[arg-type]
            made[service, str(part)] = sum(one.lost for one in within), sum(one.hours for one in within)
    return made


def test_losses_and_places_are_by_network(spark: SparkSession) -> None:
    hour = 3_600_000
    sleep, idle, active, closed = (int(one) for one in (State.SLEEP, State.IDLE, State.ACTIVE, State.CLOSED))
    died, data, began = (int(one) for one in (Cause.PROBE_TIMEOUT, Cause.CLIENT_DATA, Cause.CLIENT_CONNECT))
    rows = [
        (1, "10.1.1.7", "meter", sleep, began, 0, hour, closed, died),
        (2, "10.1.1.8", "meter", idle, began, 0, 3 * hour, active, data),
        (3, "10.1.2.8", "meter", active, began, 0, 9 * hour, closed, died),  # awake
        (4, "10.9.2.8", "meter", sleep, began, 0, hour, None, None),
        (5, "10.9.3.8", "meter", sleep, data, 0, None, None, None),
        (6, "2001:db8::1", None, sleep, began, 0, hour, closed, died),
    ]
    stays = spark.createDataFrame(
        rows, "id LONG, address STRING, service STRING, state INT, cause INT, began LONG, ended LONG, next INT, by INT"
    )
    fine = networks.by_place(stays)
    lost = [tuple(one) for one in networks.lost_by_network(fine).collect()]
    assert lost == [
        (None, "2001:db8::/48", 1, 1.0, 1000.0, None), ("meter", "10.0.0.0/12", 1, 5.0, 200.0, None),
    ]  # fmt: skip
    places = [tuple(one) for one in networks.candidates(fine, 2).collect()]
    assert places == [("meter", "10.1.2.0/24", 1, 0.25), ("meter", "10.9.2.0/24", 1, 0.25)]


def test_networks_are_cut_where_rates_differ(spark: SparkSession) -> None:
    draw = np.random.default_rng(11)
    places = []
    for at in range(640):
        rate = 0.005 if at // 10 in range(16, 32) else 0.001
        hours = float(draw.exponential(2000))
        places.append(Place("meter", f"20.{at // 10}.{at % 10}.0/24", int(draw.poisson(hours * rate)), hours))
    for at in range(200):
        hours = float(draw.exponential(4000))
        rate = 0.02 if at in (7, 8) else 0.001
        places.append(Place("meter", f"21.0.{at}.0/24", int(draw.poisson(hours * rate)), hours))
        places.append(Place(None, f"2001:db8:{at:x}::/48", int(draw.poisson(hours * rate)), hours))
    made = found(spark, places)
    by_hand = wanted(places)
    assert {key: lost for key, (lost, _) in made.items()} == {key: lost for key, (lost, _) in by_hand.items()}
    for key, (_, hours) in made.items():
        assert hours == pytest.approx(by_hand[key][1])
    assert {("meter", "20.16.0.0/12"), ("meter", "21.0.7.0/24"), (None, "2001:db8:7::/48")} <= set(made)


def test_networks_that_differ_by_chance_stay_together(spark: SparkSession) -> None:
    draw = np.random.default_rng(12)
    places = [Place(f"service {service}", f"10.{at // 8}.{at % 8}.0/24", int(draw.poisson(hours * 0.002)), hours)
              for service in range(60) for at in range(256) for hours in (float(draw.exponential(3000)),)]  # fmt: skip
    made = found(spark, places)
    assert {service for service, _ in made} == {one.service for one in places}
    assert len(made) <= 61, "one of sixty services is cut, at most"


def test_odd_places_have_a_row(spark: SparkSession) -> None:
    places = [
        Place("one", "10.1.2.0/24", 7, 0.0), Place("two", "10.1.2.0/24", 0, 0.0), Place("three", "abc.0.0/24", 1, 2.0),
        Place("four", "::/48", 0, 1.0), Place("five", "2001:0:1::/48", 3, 1.0), Place("six", "1.2.3.0/24", 5, 10.0),
        Place("six", "2001::/48", 5, 10.0), Place("seven", "255.255.255.0/24", 1, 1.0),
        Place("eight", "ffff:ffff:ffff::/48", 1, 1.0),
    ]  # fmt: skip
    assert found(spark, places) == {(one.service, one.network): (one.lost, one.hours) for one in places}
    rows = {row["service"]: row for row in networks.lost_by_network(frame(spark, places)).collect()}
    assert (rows["one"]["lost_per_1000_h"], rows["one"]["times_others"]) == (None, None)
    assert (rows["six"]["lost_per_1000_h"], rows["six"]["times_others"]) == (500.0, 1.0)
    assert found(spark, []) == {}
