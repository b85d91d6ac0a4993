# SPDX-License-Identifier: Apache-2.0
"""How long the control socket takes, beside the writing of history, and with very many connections.

Method. A daemon holds `connections` simulated clients, born asleep; `SPOKEN` of them have spoken, and sleep in IDLE.
Each request is made by one client of the control socket, after the answer to the one before.

    get_ms_p99      GET /v1/connections/ADDRESS:PORT of one that has spoken, with its last 100 transitions, while the
                    daemon is told of `RATE` transitions a second of these connections, and writes them
    page_ms_p99     pages of 100 of GET /v1/connections, those that follow each other: by network (a /16 of the clients'
                    addresses at random), by silence, and by service; `page_network_...` and so on, of each

`written_per_s` are the transitions that were written in that time, by the daemon's own count: when it is less than
RATE, the load was not what it should be.
"""

from __future__ import annotations

import json
import math
import random
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from ipaddress import ip_network
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from appliance.lab import Lab, endpoint
from tests.bench.direct import say
from tests.bench.figures import Report, Target, percentile
from tests.bench.simulated import FEW, PORT, Nursery, config
from tests.lab.echo import echo_process

RATE: Final = 50_000
SPOKEN: Final = 1000
GETS: Final = 500
PAGES: Final = 100  # of each filter
PAGE: Final = 100
PORTS_USED: Final = 50_000  # of an address
APART_S: Final = 0.005
GET_MS: Final = Target(at_most=5.0)
PAGE_MS: Final = Target(at_most=20.0)
WRITTEN: Final = Target(at_least=0.95 * RATE)
PROGRAM: Final = ("-m", "tests.bench.loaded_daemon")


@contextmanager
def held(connections: int, addresses: int) -> Iterator[Nursery]:
    """So many clients, asleep, and a daemon that can be told of transitions."""
    policy = {"probe_interval": "never"}
    with Lab(clients=FEW, nat=False) as lab:
        simulator = lab.simulator(connections, PORT, addresses=addresses)
        daemon = lab.daemon(config(lab, [simulator.box_interface], connections, policy, SPOKEN * 2), start=False)
        daemon.start(program=PROGRAM)
        with echo_process(lab.space("lan"), lab.address("lan", "eth0"), PORT):
            yield Nursery(lab, simulator, daemon)


class Asked(HTTPConnection):
    """The control socket. httpx takes as long for a request as the daemon does."""

    def __init__(self, path: Path) -> None:
        super().__init__("roost", timeout=60)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(str(self._path))


def took_ms(asked: Asked, path: str, **query: Any) -> tuple[float, Any]:
    """And the answer."""
    time.sleep(APART_S)
    began = time.perf_counter()
    asked.request("GET", f"{path}?{urlencode(query)}")
    answer = asked.getresponse()
    body = answer.read()
    took = (time.perf_counter() - began) * 1000
    if answer.status != 200:
        raise RuntimeError(f"{path}: {answer.status} {body!r}")
    return took, json.loads(body)


def gets(born: Nursery, asked: Asked, spoken: int) -> tuple[list[float], float]:
    """ms of each, and how many transitions a second were written meanwhile."""
    load = born.daemon.config.with_name(born.daemon.config.name + ".load")
    load.write_text(f"{RATE} {spoken}")

    def written() -> tuple[float, int]:
        return time.monotonic(), int(born.daemon.status()["store"]["written_history"])

    time.sleep(4)  # until each has 100, and they are written as fast as they come
    found, (began, before) = list[float](), written()
    for _ in range(GETS):
        client = random.randrange(spoken)
        where = endpoint(born.simulator.address_of(client), born.simulator.port_of(client))
        took, answer = took_ms(asked, f"/v1/connections/{where}")
        if len(answer["history"]) < 100:
            raise RuntimeError(f"connection {answer['id']} has {len(answer['history'])} transitions")
        found.append(took)
    ended, after = written()
    load.unlink()
    return found, (after - before) / (ended - began)


def pages(asked: Asked, query: dict[str, Any]) -> list[float]:
    """ms of each of PAGES."""
    found, after = list[float](), ""
    for _ in range(PAGES):
        took, page = took_ms(asked, "/v1/connections", after=after, limit=PAGE, **query)
        found.append(took)
        after = page["next"] or ""
    return found


def run(connections: int = 1_000_000, runs: int = 3) -> Report:
    """Ask the daemon of `connections` sleeping clients `runs` times."""
    report = Report("control", f"{connections:,} clients asleep; {GETS} connections and {3 * PAGES} pages asked for")
    spoken = min(SPOKEN, connections)
    got, rates, paged = list[float](), list[float](), dict[str, list[float]]()
    with held(connections, max(64, math.ceil(connections / PORTS_USED))) as born:
        joined = born.connect(range(connections))
        born.speak(range(spoken), 100)
        born.none_awake()
        say(f"{joined.done:,} clients are asleep after {joined.elapsed_s:.0f} s")
        asked = Asked(born.daemon.control_socket)
        for number in range(1, runs + 1):
            network = ip_network(f"{born.simulator.address_of(random.randrange(connections))}/16", strict=False)
            queries = {"network": str(network), "silence": "1", "service": "lab4"}
            each = {name: pages(asked, {name: value}) for name, value in queries.items()}
            for name, took in each.items():
                paged.setdefault(name, []).append(percentile(took, 99))
            paged.setdefault("", []).append(percentile([one for took in each.values() for one in took], 99))
            took, rate = gets(born, asked, spoken)
            got.append(percentile(took, 99))
            rates.append(rate)
            say(f"run {number}: pages p99 {paged[''][-1]:.1f} ms, connections {got[-1]:.1f} ms, {rate:,.0f} rows/s")
        report.add_zero("lost", born.gone(range(connections)), "clients")
        born.add_to(report)
        born.daemon.terminate()
    report.add("get_ms_p99", got, "ms", GET_MS)
    report.add("written_per_s", rates, "/s", WRITTEN)
    for name, values in paged.items():
        report.add(f"page_{name}_ms_p99".replace("__", "_"), values, "ms", PAGE_MS)
    return report
