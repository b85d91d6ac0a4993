# SPDX-License-Identifier: Apache-2.0
"""A policy that SIGHUP changes is in force for every connection within two seconds, whatever its state."""

from __future__ import annotations

import select
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any, Final

import pytest

from appliance.lab import DaemonHandle, Lab, endpoint, wait_until
from appliance.lab.daemon import DaemonError, toml
from tests.lab.engine_lab import receive

OBEYED_S: Final = 2.0
PORTS: Final = {"plain": 8101, "bare": 8102, "born": 8103}
"""bare: without a slot in SLEEP; born: asleep."""
FOREVER: Final = dict.fromkeys(("active_quiet", "standby_quiet", "idle_quiet"), "1h")
STATES: Final = ("ACTIVE", "STANDBY", "IDLE", "SLEEP")

in_time = pytest.mark.alone("a change is to be in force within two seconds, whatever else runs")


class Box:
    """A daemon whose policy changes, and clients in every state."""

    def __init__(self, stack: ExitStack, lab: Lab, policy: dict[str, Any]) -> None:
        self.stack, self.lab = stack, lab
        self._listeners = {}
        self._servers: dict[socket.socket, socket.socket] = {}
        for service, port in PORTS.items():
            with lab.enter("lan"):
                listener = socket.create_server((lab.address("lan", "eth0"), port))
            listener.settimeout(5)
            self._listeners[service] = stack.enter_context(listener)
        self.daemon: DaemonHandle = lab.daemon(self._settings(policy))
        stack.callback(self.daemon.close)

    def _settings(self, policy: dict[str, Any]) -> dict[str, Any]:
        own = {"bare": {"sleep_keepalive": "none", "probe_interval": "never"}, "born": {"born": "always"}}
        here, there = self.lab.address("box", "wan0"), self.lab.address("lan", "eth0")
        services = [{"name": name, "listen": endpoint(here, port), "server": endpoint(there, port), **own.get(name, {})}
                    for name, port in PORTS.items()]  # fmt: skip
        attach = {"listen": [endpoint(*self.proxy)]}
        return {"policy": policy, "table": {"filter": 1000}, "service": services, "attach": attach}

    @property
    def proxy(self) -> tuple[str, int]:
        """Where servers ask for clients."""
        return self.lab.address("box", "lan0"), 3128

    def reload(self, policy: dict[str, Any]) -> float:
        """SIGHUP; when the policy was in force (time.monotonic)."""
        lines = self.daemon.config.read_text().split("[policy]")
        before, _, after = lines[0], *lines[1].partition("\n[")[1:]
        self.daemon.config.write_text(before + "[policy]\n" + toml(policy) + "[" + after)
        done = self.daemon.log.read_text().count("SIGHUP: policy taken over")
        self.daemon.process.popen.send_signal(signal.SIGHUP)
        wait_until(lambda: self.daemon.log.read_text().count("SIGHUP: policy taken over") > done, 10, "it is reloaded",
                   every_s=0.01)  # fmt: skip
        return time.monotonic()

    def connect(self, service: str, source: str = "") -> socket.socket:
        """source: the client's address."""
        with self.lab.enter("wan"):
            there = self.lab.address("box", "wan0"), PORTS[service]
            client = socket.create_connection(there, 5, (source, 0) if source else None)
        return self.stack.enter_context(client)

    def born(self) -> socket.socket:
        """A client that is born asleep; where the engine was too slow to say that it lives, the stack has taken it."""
        for _ in range(20):
            client = self.connect("born")
            with suppress(DaemonError):  # it is not accepted yet
                if self.state(client) == "IDLE":
                    return client
        raise AssertionError("no client is born")

    def converse(self, client: socket.socket, service: str) -> None:
        client.sendall(b"question")
        server = self.stack.enter_context(self._listeners[service].accept()[0])
        self._servers[client] = server
        server.settimeout(5)
        assert receive(server, 8) == b"question"
        server.sendall(b"answer")
        assert receive(client, 6) == b"answer"

    def server_leaves(self, client: socket.socket) -> None:
        self._servers.pop(client).close()

    def shown(self, client: socket.socket) -> dict[str, Any]:
        shown: dict[str, Any] = self.daemon.get(f"/v1/connections/{endpoint(*client.getsockname()[:2])}")
        return shown

    def state(self, client: socket.socket) -> str:
        return str(self.shown(client)["state"])

    def in_state(self, state: str, service: str = "plain", source: str = "") -> socket.socket:
        """A client that spoke once."""
        client = self.connect(service, source)
        self.converse(client, service)
        for step in STATES[1 : STATES.index(state) + 1]:
            self.daemon.act(endpoint(*client.getsockname()[:2]), step.lower())
            wait_until(lambda step=step: self.state(client) == step, 5, f"it is {step}")  # type: ignore[misc]
        return client

    def obeys(self, client: socket.socket, state: str) -> bool:
        """It was quiet for as long as it may be. ACTIVE, its server has our FIN; the state ends with the server's own,
        for which the engine waits a second."""
        if state == "ACTIVE":
            return bool(select.select([self._servers[client]], [], [], 0)[0])
        return self.state(client) != state

    def heard_s_ago(self, client: socket.socket) -> int:
        return int(self.shown(client)["keep_alive"]["heard_s_ago"])

    def counter(self, name: str) -> int:
        return int(self.daemon.status()["counters"][name])


@pytest.fixture
def opened(nat_free_lab: Lab) -> Iterator[Callable[[dict[str, Any]], Box]]:
    with ExitStack() as stack:
        yield lambda policy: Box(stack, nat_free_lab, policy)


def within(condition: Callable[[], bool], since: float, what: str) -> None:
    """In time, by the test's clock; looking takes a while, too."""
    wait_until(condition, max(since + OBEYED_S - time.monotonic(), 0), what, every_s=0.02)


@in_time
def test_shorter_intervals_and_probes_reach_every_connection(opened: Callable[[dict[str, Any]], Box]) -> None:
    box = opened(FOREVER)
    moved = {state: box.in_state(state) for state in ("ACTIVE", "STANDBY", "IDLE")}
    asleep, bare = box.in_state("SLEEP"), box.in_state("SLEEP", "bare")
    born = box.born()
    time.sleep(3.1)  # a connection that obeys has been quiet, and unheard, for longer than is then allowed
    assert [box.state(client) for client in moved.values()] == list(moved)
    assert (box.counter("probes_sent"), box.counter("filter_members")) == (0, 1)

    since = box.reload({"active_quiet": "1s", "standby_quiet": "1s", "idle_quiet": "1s", "probe_interval": "2s"})
    for state, client in moved.items():
        within(lambda client=client, state=state: box.obeys(client, state), since, f"{state} ends")  # type: ignore[misc]
    for client in (asleep, born):  # probed, and it answered
        within(lambda client=client: box.heard_s_ago(client) <= time.monotonic() - since, since, "it is heard")  # type: ignore[misc]

    assert box.counter("filter_members") == 1
    box.converse(bare, "bare")
    woken = time.monotonic()
    wait_until(lambda: box.obeys(bare, "ACTIVE"), OBEYED_S + 1, "what slept without a slot obeys when it wakes")
    assert time.monotonic() - woken >= 0.9


def test_intervals_and_probes_that_end_reach_every_connection(opened: Callable[[dict[str, Any]], Box]) -> None:
    """What was due is due no more."""
    box = opened(dict.fromkeys(FOREVER, "9s") | {"probe_interval": "1s"})
    began = time.monotonic()
    moved = {state: box.in_state(state) for state in STATES}
    born = box.born()
    wait_until(lambda: box.counter("probes_sent") > 0, 5, "inactive clients are probed")
    box.reload(dict.fromkeys(FOREVER, "never") | {"probe_interval": "never"})
    if time.monotonic() - began > 8:
        pytest.skip("this machine is too busy: what is to be changed was due by then")
    time.sleep(OBEYED_S)
    probes = box.counter("probes_sent")
    time.sleep(9)
    assert [box.state(client) for client in moved.values()] == list(moved)
    assert box.state(born) == "IDLE"
    assert box.counter("probes_sent") == probes > 0


def test_what_follows_a_servers_close_is_changed_for_a_link_that_is_there(
    opened: Callable[[dict[str, Any]], Box],
) -> None:
    box = opened(FOREVER)
    client = box.connect("plain")
    client.sendall(b"question")
    server = box.stack.enter_context(box._listeners["plain"].accept()[0])
    assert receive(server, 8) == b"question"
    box.reload(FOREVER | {"on_server_close": "close"})
    server.close()
    client.settimeout(5)
    assert client.recv(1) == b"", "the server's end is the client's, too"


@pytest.mark.parametrize("by_rule", [False, True], ids=["of a service", "by a rule"])
def test_those_of_a_low_priority_are_frozen_first(nat_free_lab: Lab, by_rule: bool) -> None:
    """Though others have been quiet for longer."""
    with ExitStack() as stack:
        lab = nat_free_lab
        listeners = []
        services = []
        for name, port in (("low", 8111), ("high", 8112)):
            with lab.enter("lan"):
                listeners.append(stack.enter_context(socket.create_server((lab.address("lan", "eth0"), port))))
            services.append({"name": name, "listen": endpoint(lab.address("box", "wan0"), port),
                             "server": endpoint(lab.address("lan", "eth0"), port),
                             **({} if by_rule else {"priority": name})})  # fmt: skip
        daemon = lab.daemon({"policy": FOREVER, "table": {"max_awake": 32}, "service": services})
        stack.callback(daemon.close)
        for name in ("low", "high") if by_rule else ():
            rule = {"service": name, "network": "0.0.0.0/0", "priority": name}
            put = daemon.http("PUT", f"/v1/policy/rules/{name}", json={"rule": rule, "who": "test"})
            assert put.status_code == 200, put.text

        def connect(port: int, count: int) -> None:
            for _ in range(count):
                with lab.enter("wan"):
                    client = socket.create_connection((lab.address("box", "wan0"), port), 5)
                stack.enter_context(client).sendall(b"question")

        connect(8112, 10)
        wait_until(lambda: daemon.status()["awake"] == 10, 10, "they are awake")
        connect(8111, 20)  # more than 7/8 of 32 together
        wait_until(lambda: daemon.status()["connections"]["IDLE"] > 0, 20, "some are frozen")
        time.sleep(1)
        rows = daemon.connections()
        assert {row["service"] for row in rows if row["state"] not in ("ACTIVE", "STANDBY")} == {"low"}
        assert sum(row["service"] == "high" for row in rows) == 10
