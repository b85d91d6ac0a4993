# SPDX-License-Identifier: Apache-2.0
"""Probing many clients that all are due at once: each probe gets to its client, and none is out of date by then."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from pyroute2 import IPRoute

from appliance.lab import DaemonHandle, Lab, wait_until
from appliance.lab.simulator import ClientState, Simulator

PORT = 8000
CLIENTS = 60_000
INTERVAL_S = 2  # too short to be spread over: all that come within a second are due within a second, again and again
PROBING = {"probe_interval": f"{INTERVAL_S}s", "probe_retry": "1s", "probe_count": 8}
QUIET = {"idle_quiet": "never"}
ROUNDS = 3
LOST = 0.001  # of the probes of the best round: in another, a thread that is to receive may wait for its processor


class Probed:
    """Simulated clients, all asleep, and the daemon that probes them."""

    def __init__(self, lab: Lab) -> None:
        self._box = lab.space("box")
        self.simulator: Simulator = lab.simulator(CLIENTS, PORT)
        table = {"ipv4": 2 * CLIENTS, "ipv6": 100, "idle": 100}
        settings = lab.config(PORT, policy=QUIET, table=table, service={"born": "always", **PROBING})
        interfaces = [self.simulator.box_interface]
        self.daemon: DaemonHandle = lab.daemon(settings | {"network": {"interfaces": interfaces}})
        outcome = self.simulator.connect(range(CLIENTS))
        assert outcome.done == CLIENTS
        wait_until(lambda: self.asleep() == CLIENTS, 20, "all asleep")

    def asleep(self) -> int:
        return int(self.daemon.status()["connections"]["IDLE"])

    def counters(self) -> dict[str, int]:
        counters: dict[str, int] = self.daemon.status()["counters"]
        return counters

    def lost(self) -> int:
        """Frames that found no room in the ring of the clients' end of the link."""
        with self._box.entered(), IPRoute() as ip:
            index = ip.link_lookup(ifname=self.simulator.box_interface)[0]
            return int(ip.link("get", index=index)[0].get("stats64")["tx_dropped"])

    def wait_for_probes(self, rounds: int) -> None:
        wanted = self.counters()["probes_sent"] + rounds * CLIENTS
        wait_until(lambda: self.counters()["probes_sent"] >= wanted, 10 * rounds * INTERVAL_S, "all probed")


@pytest.fixture
def probed() -> Iterator[Probed]:
    with Lab(clients=10, nat=False) as lab:
        yield Probed(lab)


def test_of_many_probes_at_once_none_gets_lost_on_its_way_out(probed: Probed) -> None:
    """The clients' end receives on a processor of its own, as a veth with a ring does that takes 256 frames and loses
    the rest."""
    first, *_, last = sorted(os.sched_getaffinity(0))
    shares = []
    with probed.simulator.one_core_each(box_cpu=last, own_cpu=first):
        for _ in range(ROUNDS):
            lost, sent = probed.lost(), probed.counters()["probes_sent"]
            probed.wait_for_probes(1)
            shares.append((probed.lost() - lost) / (probed.counters()["probes_sent"] - sent))
    counters = probed.counters()
    assert min(shares) <= LOST, shares
    assert counters["probes_unsent"] == counters["probe_dead"] == 0
    assert probed.simulator.census(range(CLIENTS)) == {ClientState.ESTABLISHED: CLIENTS}
    assert probed.simulator.offences() == {}


def test_no_probe_has_an_older_clock_than_what_its_client_was_told_before(probed: Probed) -> None:
    """Clients speak while their probes wait for their turn; the answer they get then is newer than the probe was."""
    before = probed.counters()["probes_sent"]
    for _ in range(2 * ROUNDS):
        outcome = probed.simulator.keep_alive(range(CLIENTS), rate=CLIENTS / (INTERVAL_S - 0.2))
        assert outcome.done == CLIENTS
    assert probed.counters()["probes_sent"] - before > CLIENTS // 10, "their probes crossed"
    assert probed.simulator.offences() == {}, probed.simulator.first_offences()
