# SPDX-License-Identifier: Apache-2.0
"""docs/deploy.md, run as it stands there in three terminals, makes a deployment in which seven protocols sleep.

In each mode: all sessions begin, all fall asleep until the box has no socket of them, are woken by their clients, fall
asleep again, and are woken by their servers; each finds its session as it was.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from appliance.lab import DaemonHandle, Lab, leftovers, wait_until
from appliance.lab.processes import ROOT, python_environment
from appliance.lab.programs import (
    Dialogue,
    Endpoint,
    Mosquitto,
    Nginx,
    OpenSsh,
    Postgres,
    ProgramError,
    Redis,
    Room,
    ServerProgram,
)
from appliance.lab.programs.nginx import NEWS_PORT
from tests.lab.documents import Block, blocks, missing, promised

MODES: Final = ("explicit", "router", "host", "proxy")
TERMINALS: Final = {"client": "wan", "box": "box", "server": "lan"}
PORTS: Final = {"ssh": 22, "mqtt": 1883, "sql": 5432, "redis": 6379, "websocket": 8765, "grpc": 50051, "http2": 8080}
MQTT_TOO: Final = 1884
"""Where the second connection to the broker has a door of its own, which is another device's."""
HERE: Final = "127.0.0.1"
PLACES: Final = ("/etc/roost", "/var/lib/roost", "/run/roost", "/var/log/roost")
PINS: Final = leftovers.BPFFS / "roost"
BLOCK_S: Final = 60.0


def modes_of(block: Block) -> tuple[str, ...]:
    """That it is for: none means all. The tag before them is the terminal."""
    return block.tags[1:]


class Deployment:
    """Three terminals in a lab. The box has directories of its own where the document's stand, and an instance's name
    that no other appliance of this machine has."""

    def __init__(self, lab: Lab, mode: str, stack: ExitStack) -> None:
        self.lab, self.mode, self._stack = lab, mode, stack
        self.instance = lab.name.removeprefix("roost-")[:31]
        homes = []
        for place in PLACES:
            home = lab.workspace / place.strip("/").replace("/", "-")
            home.mkdir(mode=0o700)
            homes.append(f"mount --bind {home} {place}")
        begin = " && ".join(["mount -t proc proc /proc", *homes, "exec bash -e -o pipefail"])
        own = ["unshare", "--mount", "sh", "-c", begin]
        self._terminals = {
            name: Dialogue(lab, space, own, env=python_environment(), tree=True, cwd=str(ROOT))
            for name, space in TERMINALS.items()
        }
        paths = {"control_socket": lab.workspace / "run-roost" / f"{self.instance}.sock",
                 "pin_dir": PINS / self.instance}  # fmt: skip
        config = lab.workspace / "etc-roost" / "roost.toml"
        self.daemon = DaemonHandle(partial(lab.run, "box"), config, paths, partial(lab.enter, "box"))
        stack.callback(self.daemon.unpin)

    def type(self, block: Block) -> None:
        """Run a block, whose every command must go well, and compare what it prints."""
        text = block.text.replace("./roost ", f"{sys.executable} -m control.cli.main ")  # without its set-up
        text = text.replace('instance = "main"', f'instance = "{self.instance}"')
        try:
            printed = self._terminals[block.tags[0]].ask(
                f"{text}\necho the block is done", "the block is done\n", BLOCK_S
            )
        except ProgramError as error:
            log = self.daemon.config.with_suffix(".log")
            raise ProgramError(f"{block.text}\n{error}\n{log.read_text() if log.exists() else ''}") from None
        assert missing(promised(block.text), printed) == [], f"{block.text}\n{printed}"

    def explained(self) -> str:
        """All connections, and why those that are not asleep are not."""
        rows = self.daemon.connections()
        awake = [str(row["client"]) for row in rows if row["state"] != "SLEEP"]
        why = [str(self.daemon.get(f"/v1/connections/{client}/explain")) for client in awake]
        return "\n".join([str([(row["service"], row["state"]) for row in rows]), *why])

    def sockets(self) -> list[str]:
        """Of the appliance, that are established: those of the box, without the ends of its own servers."""
        with self.lab.enter("box"):
            said = subprocess.run(["ss", "-tnH", "state", "established"], capture_output=True, text=True, check=True)
        lines = (line.replace(f"[::ffff:{HERE}]", HERE) for line in said.stdout.splitlines())
        theirs = {f"{HERE}:{port}" for port in PORTS.values()}
        return [line for line in lines if line.split()[2] not in theirs and f":{NEWS_PORT}" not in line]


@contextmanager
def places() -> Iterator[None]:
    """The directories of the document, on which each box mounts its own; those that were not there go again, when no
    box is left: their mounts would go with them."""
    made = [place for place in (*map(Path, PLACES), PINS) if not place.exists()]
    for place in made:
        place.mkdir(mode=0o700)
    yield
    for place in made:
        place.rmdir()


# The seven protocols. Each session is a generator: it stops where both ends are silent, goes on with its client's word,
# stops again, and goes on with its server's.


@dataclass
class Site:
    """Where servers are, and where their clients reach each through the appliance."""

    lab: Lab
    daemon: DaemonHandle
    server_space: str
    server: str
    client_space: str
    door: str
    client_speaks: str = "client-data"
    server_speaks: str = "server-data"
    """The causes of what they wake, as the appliance sees it: who connected to it is its client."""

    def woken(self, *causes: str) -> set[int]:
        """The connections that woke from SLEEP by one of these causes."""
        rows = self.daemon.get("/v1/history", limit=1000)
        return {int(row["id"]) for row in rows if row["from"] == "SLEEP" and row["cause"] in causes}

    def at(self, port: int) -> Endpoint:
        return self.server, port

    def through(self, port: int) -> Endpoint:
        return self.door, port


def ssh(site: Site, server: OpenSsh) -> Iterator[None]:
    shell = server.session(site.client_space, site.through(22))
    news = site.lab.workspace / "news"
    os.mkfifo(news)
    shell.ask(f"WORD=unforgotten; (read line <{news}; echo news: $line) & echo left", "left\n")
    yield
    assert shell.ask("echo $WORD", "\n") == "unforgotten\n"
    yield
    news.write_text("a parcel\n")
    assert shell.hear("\n") == "news: a parcel\n"
    assert shell.end() == 0


def mqtt(site: Site, broker: Mosquitto) -> Iterator[None]:
    """Two connections: the publisher's is woken by its client, the subscriber's by the broker."""
    subscriber = broker.subscription(site.client_space, site.through(1883), "house/+")
    publisher = broker.publisher(site.client_space, site.through(MQTT_TOO if site.door == HERE else 1883), "house/hall")
    publisher.say("19.5")
    assert subscriber.hear("\n") == "house/hall 19.5\n"
    yield
    publisher.say("20.5")
    assert subscriber.hear("\n") == "house/hall 20.5\n"
    yield
    broker.publish("house/kitchen", "21.5")
    assert subscriber.hear("\n") == "house/kitchen 21.5\n"
    assert publisher.end() == 0
    subscriber.close()


def sql(site: Site, server: Postgres) -> Iterator[None]:
    client = server.session(site.client_space, site.through(5432))
    client.say("LISTEN news; BEGIN; CREATE TEMP TABLE t (n int); INSERT INTO t VALUES (41); COMMIT;")
    pid = client.ask("SELECT pg_backend_pid();", "\n")
    yield
    assert client.ask("UPDATE t SET n = n + 1; SELECT n FROM t;", "\n") == "42\n"
    yield
    before = site.woken(site.server_speaks)
    server.execute("NOTIFY news, 'a parcel'")  # psql prints what has come with the answer to its next command
    wait_until(lambda: site.woken(site.server_speaks) > before, 15, "the server has woken the session")
    assert client.ask("SELECT pg_backend_pid() FROM t WHERE n = 42;", "\n") == pid
    assert 'Asynchronous notification "news" with payload "a parcel"' in client.hear("\n")
    assert client.end() == 0


def redis(site: Site, server: Redis) -> Iterator[None]:
    client = server.session(site.client_space, site.through(6379))
    for line in ("SELECT 3", "SET n 41", "WATCH n", "MULTI"):
        client.ask(line, "OK\n")
    client.ask("INCR n", "QUEUED\n")
    yield
    assert client.ask("EXEC", "\n") == "42\n"
    client.ask("SUBSCRIBE news", "news\n1\n")
    yield
    server.execute("PUBLISH", "news", "a parcel")
    client.hear("message\nnews\na parcel\n")
    client.close()


def room(kind: str, site: Site, server: Room) -> Iterator[None]:
    visitor = server.session(site.client_space, site.through(PORTS[kind]))
    yield
    assert visitor.ask("still here", "\n") == "1 2: still here\n"
    yield
    server.tell("a parcel")
    assert visitor.hear("\n") == "all: a parcel\n"
    assert visitor.end() == 0


def http2(site: Site, server: Nginx) -> Iterator[None]:
    """The server's word is an answer that takes its time."""
    client = server.http2_session(site.client_space, site.through(8080))
    assert client.ask("/", "\n").startswith("connection ")
    news = server.news()
    yield
    first = client.ask("/", "\n")
    client.say("/news")
    yield
    news.say("a parcel")
    assert client.hear("\n") == "a parcel\n"
    again = client.ask("/", "\n")
    assert (first.split()[1], first.split()[3], again.split()[3]) == (again.split()[1], "2", "4")
    assert client.end() == 0


SESSIONS: Final = {"ssh": ssh, "mqtt": mqtt, "sql": sql, "redis": redis, "websocket": partial(room, "websocket"),
                   "grpc": partial(room, "grpc"), "http2": http2}  # fmt: skip
CONNECTIONS: Final = 8
"""MQTT has two."""


def servers(site: Site) -> dict[str, ServerProgram]:
    """All of them, at work."""
    at, lab, space = site.at, site.lab, site.server_space
    return {
        "ssh": OpenSsh(lab, space, [at(22)]),
        "mqtt": Mosquitto(lab, space, [at(1883), at(MQTT_TOO)]),
        "sql": Postgres(lab, space, [at(5432)]),
        "redis": Redis(lab, space, [at(6379)]),
        "websocket": Room(lab, space, [at(8765)], "websocket"),
        "grpc": Room(lab, space, [at(50051)], "grpc"),
        "http2": Nginx(lab, space, [at(8080)], http2=True),
    }


def site_of(deployment: Deployment) -> Site:
    make = partial(Site, deployment.lab, deployment.daemon)
    return {
        "explicit": make("lan", "10.3.0.2", "wan", "198.18.0.1"),
        "router": make("lan", "10.3.0.2", "wan", "10.3.0.2"),
        "host": make("box", HERE, "wan", "198.18.0.1"),
        "proxy": make("wan", HERE, "lan", HERE, "server-data", "client-data"),
    }[deployment.mode]


def dial_home(deployment: Deployment) -> None:
    """Devices connect to the box, one for each server on them, and get names; doors on the servers' side lead to
    those."""
    lab = deployment.lab
    ports = [*PORTS.values(), MQTT_TOO]
    tunnel = [sys.executable, "-m", "appliance.peers.tunnel"]
    device = Dialogue(lab, "wan", [*tunnel, "device", "198.18.0.1", "7000", *map(str, ports)], env=python_environment())
    home: dict[str, Any] = json.loads(device.hear("\n"))
    wait_until(lambda: len(deployment.daemon.connections()) == len(home), 15, "the devices are there")
    for port, client_port in home.items():
        name = {"name": f"port-{port}"}
        assert deployment.daemon.http("PUT", f"/v1/connections/10.10.0.2:{client_port}/name", json=name).is_success
    doors = [f"{port}=port-{port}" for port in ports]
    door = Dialogue(lab, "lan", [*tunnel, "door", "10.3.0.1", "3128", *doors], env=python_environment())
    door.hear("\n")


def converse(deployment: Deployment, site: Site, programs: dict[str, ServerProgram]) -> None:
    """All sessions at once."""
    daemon = deployment.daemon
    begun = {row["id"] for row in daemon.get("/v1/history", limit=1000)}
    if deployment.mode == "proxy":
        dial_home(deployment)
    told: dict[str, Iterator[None]] = {name: SESSIONS[name](site, programs[name]) for name in SESSIONS}  # type: ignore[operator]

    def all_asleep() -> bool:
        return len(daemon.connections(state="SLEEP")) == CONNECTIONS == len(daemon.connections())

    while told:
        told = {name: session for name, session in told.items() if next(session, told) is None}
        if told:
            try:
                wait_until(all_asleep, 30, "all connections are asleep")
            except TimeoutError as late:
                raise TimeoutError(f"{late}; {deployment.explained()}") from None
            assert deployment.sockets() == []
    by_client, by_server = site.woken(site.client_speaks) - begun, site.woken(site.server_speaks) - begun
    assert len(by_client) == CONNECTIONS - 1, "all but the subscriber's"
    assert len(by_server) == CONNECTIONS - 1, "all but the publisher's"
    assert len(by_client | by_server) == CONNECTIONS


def steps() -> list[Block]:
    return [block for block in blocks("deploy.md") if block.kind == "sh"]


def deploy(mode: str) -> None:
    """The whole document in one mode, and the sessions before its last block."""
    with ExitStack() as stack:
        lab = stack.enter_context(Lab(clients=20, nat=False))
        deployment = Deployment(lab, mode, stack)
        site = site_of(deployment)
        mine = [block for block in steps() if mode in (modes_of(block) or MODES)]
        programs = servers(site)
        for block in mine[:-1]:
            deployment.type(block)
        converse(deployment, site, programs)
        deployment.type(mine[-1])
        assert not deployment.daemon.pin_dir.exists()


@pytest.fixture(scope="module")
def deployed() -> Iterator[dict[str, Future[None]]]:
    """All modes at once, since each of them waits for most of its time."""
    with places(), ThreadPoolExecutor(len(MODES)) as pool:
        done = {mode: pool.submit(deploy, mode) for mode in MODES}
        wait(done.values())
        yield done


@pytest.mark.parametrize("mode", MODES)
def test_the_document_makes_a_deployment_in_which_sessions_sleep(deployed: dict[str, Future[None]], mode: str) -> None:
    deployed[mode].result()


def test_each_mode_has_its_blocks() -> None:
    assert {mode for block in steps() for mode in modes_of(block)} == set(MODES)
    assert {block.tags[0] for block in steps()} == set(TERMINALS)
