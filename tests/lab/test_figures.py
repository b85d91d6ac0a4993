# SPDX-License-Identifier: Apache-2.0
"""The figures of the connection manager, each with unmodified programs on both ends: OpenSSH, curl, nginx, Redis.

What a client and a server do here is what their manuals say; neither knows that anything stands between them. Of the
transient interface: a server's connection ends when its client falls quiet, and another begins when it is needed.
(The persistent one: test_sessions.py. Agents of clients, figures 16 to 20 and 25, have files of their own.)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from appliance.lab import Lab, wait_until
from appliance.lab.programs import CallingHome, Dialogue, Endpoint, Keys, Nginx, Redis, visit
from tests.lab.program_lab import BY_COMMAND, PROXY_PORT, ProgramLab, Way

BOTH = pytest.mark.parametrize("family", [4, 6])
TO_SLEEP = ("ACTIVE", "STANDBY", "IDLE", "SLEEP")
BY_CONNECT = "-X connect -x {}:{}"
BY_SOCKS = "-X 5 -x {}:{}"


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab(clients=20, nat=False) as lab:
        yield lab


class RedisLab(ProgramLab):
    """Redis at the far end."""

    def __init__(self, lab: Lab, way: Way, family: int = 4, **options: Any) -> None:
        super().__init__(lab, way, family, 6379, **options)
        self.redis = Redis(lab, self.server_space, [self.server])

    def client(self) -> Dialogue:
        return self.redis.session("wan", self.door)

    def wait_served(self, count: int) -> None:
        wait_until(lambda: len(self.redis.clients()) == count, 10, f"Redis has {count} clients")


@BOTH
def test_figure_5_a_client_is_connected_to_its_server_for_as_long_as_that_is_needed(lab: Lab, family: int) -> None:
    box = RedisLab(lab, "address", family)
    client = box.client()
    client.ask("SET thermostat 21", "OK\n")
    client_id = box.the_connection()
    for _ in range(2):
        box.wait_state(client_id, "SLEEP")
        assert box.redis.clients() == [], "no longer needed"
        client.ask("INCR thermostat", "\n")
        box.wait_served(1)
    box.wait_path(client_id, *TO_SLEEP, *TO_SLEEP, *TO_SLEEP)
    assert client.ask("GET thermostat", "\n") == "23\n"
    assert client.end() == 0
    box.wait_state(client_id, "CLOSED")
    assert box.daemon.status()["counters"]["accepted"] == 1, "redis-cli never had to connect again"
