# SPDX-License-Identifier: Apache-2.0
"""Sessions whose state lives in the connection sleep for a night, or for weeks, and go on where they were.

The persistent interface, with unmodified programs on both ends: an SSH shell, TLS end to end, an MQTT subscription, an
SQL transaction, a Redis transaction. Time passes for the sleeping connections alone (tests/lab/aging.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Final

import pytest

from appliance.lab import Lab, wait_until
from appliance.lab.programs import Dialogue, Mosquitto, Nginx, OpenSsh, Postgres, Redis
from tests.lab.aging import DAY_S, HOUR_S, Sleepers
from tests.lab.program_lab import QUICK, ProgramLab, Way

NIGHT_S: Final = 8 * HOUR_S
LONG_S: Final = 25 * DAY_S  # past half of the timestamps' space, which is 24.8 days
ASLEEP: Final = ("ACTIVE", "IDLE", "SLEEP")

Story = Callable[[ProgramLab], Iterator[None]]
"""A session; each `yield` is a time in which neither end says anything."""
PROBING: Final = ("ssh", "sql")
"""Both of whose ends send keep-alives at the interval that their namespace sets, and so hear the clock go on."""


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab(clients=20, nat=False) as lab:
        yield lab


def ssh_shell(box: ProgramLab) -> Iterator[None]:
    """The client speaks first, then the server does: a job that the shell has left behind."""
    server = OpenSsh(box.lab, box.server_space, [box.server])
    shell = server.session("wan", box.door)
    news = box.lab.workspace / "news"
    os.mkfifo(news)
    shell.ask(f"WORD=unforgotten; cd /; (read line <{news}; echo news: $line) & echo left", "left\n")
    pid = shell.ask("echo $$", "\n")
    yield
    assert shell.ask("echo $WORD in $PWD of $$", "\n") == f"unforgotten in / of {pid}"
    yield
    news.write_text("a parcel\n")
    assert shell.hear("\n") == "news: a parcel\n"
    assert shell.end() == 0


def tls_session(box: ProgramLab) -> Iterator[None]:
    server = Nginx(box.lab, box.server_space, [box.server], tls=True)
    client = server.tls_session("wan", box.door)
    ask(client, 1)
    for number in (2, 3):
        yield
        ask(client, number)
    client.close()


def ask(client: Dialogue, number: int) -> None:
    """One more request on the same connection to nginx."""
    client.ask("GET / HTTP/1.1\r\nHost: server.lab\r\n\r", f"connection 1 request {number} from")
    client.hear("\n")


def mqtt_subscription(box: ProgramLab) -> Iterator[None]:
    """What is published comes from the server's side."""
    broker = Mosquitto(box.lab, box.server_space, [box.server])
    subscriber = broker.subscription("wan", box.door, "house/+")
    for room in ("kitchen", "hall"):
        yield
        broker.publish(f"house/{room}", "21.5")
        assert subscriber.hear("\n") == f"house/{room} 21.5\n"
    subscriber.close()


def sql_transaction(box: ProgramLab) -> Iterator[None]:
    server = Postgres(box.lab, box.server_space, [box.server])
    client = server.session("wan", box.door)
    client.say("BEGIN; CREATE TEMP TABLE t (n int); INSERT INTO t VALUES (41);")
    pid = client.ask("SELECT pg_backend_pid();", "\n")
    yield
    client.say("UPDATE t SET n = n + 1;")
    assert client.ask("SELECT n FROM t;", "\n") == "42\n"
    yield
    client.say("COMMIT;")
    assert client.ask("SELECT pg_backend_pid() FROM t WHERE n = 42;", "\n") == pid
    assert client.end() == 0


def redis_transaction(box: ProgramLab) -> Iterator[None]:
    server = Redis(box.lab, box.server_space, [box.server])
    client = server.session("wan", box.door)
    for line in ("SELECT 3", "SET n 41", "WATCH n", "MULTI"):
        client.ask(line, "OK\n")
    yield
    client.ask("INCR n", "QUEUED\n")
    yield
    assert client.ask("EXEC", "\n") == "42\n"
    assert client.end() == 0


STORIES: Final[dict[str, tuple[Story, int]]] = {
    "ssh": (ssh_shell, 22),
    "tls": (tls_session, 443),
    "mqtt": (mqtt_subscription, 1883),
    "sql": (sql_transaction, 5432),
    "redis": (redis_transaction, 6379),
}


def tell(lab: Lab, name: str, way: Way, family: int, sleep_s: int, crash: bool = False) -> None:
    """The whole story, with every one of its silences a sleep of sleep_s, in which the daemon may crash."""
    story, port = STORIES[name]
    box = ProgramLab(lab, way, family, port, interface="persistent")
    box.quick_keepalives()
    sleepers = Sleepers(box.daemon.pin_dir)
    path: list[str] = []
    number = 0
    for _ in story(box):
        number = number or box.the_connection()
        box.to(number, "sleep")
        path += ASLEEP
        box.wait_path(number, *path)
        assert box.established("box") + box.established("lan") == 1, "the server's socket, and none of the appliance's"
        sleepers.grow_older(sleep_s, keepalives=name in PROBING)
        if crash:
            box.daemon.kill()
            box.daemon.start()
    box.wait_path(number, *path, "ACTIVE", "CLOSED")


@pytest.mark.parametrize("name", STORIES)
def test_a_session_goes_on_after_a_night(lab: Lab, name: str) -> None:
    tell(lab, name, "address", 4, NIGHT_S)


@pytest.mark.parametrize("name", STORIES)
def test_a_session_over_ipv6_through_a_router_goes_on_after_a_night(lab: Lab, name: str) -> None:
    tell(lab, name, "router", 6, NIGHT_S)


@pytest.mark.parametrize("name", PROBING)
def test_a_session_goes_on_after_25_days(lab: Lab, name: str) -> None:
    tell(lab, name, "router", 4, LONG_S)


@pytest.mark.parametrize("name", ["mqtt", "redis"])
def test_a_session_with_the_same_machine_goes_on_after_a_night_in_which_the_daemon_crashed(lab: Lab, name: str) -> None:
    tell(lab, name, "host", 4, NIGHT_S, crash=True)


def test_figure_11_a_persistent_socket_of_an_application_on_the_same_machine(lab: Lab) -> None:
    """It is maintained for as long as the client is connected, and closed when it no longer is."""
    box = ProgramLab(lab, "host", 4, 5432, policy=QUICK, interface="persistent")
    server = Postgres(lab, "box", [box.server])
    client = server.session("wan", box.door)
    pid = client.ask("CREATE TEMP TABLE t AS SELECT 42 AS n; SELECT pg_backend_pid();", "\n")
    number = box.the_connection()
    box.wait_last(number, *ASLEEP)
    assert server.backends() == [pid.strip()]
    assert client.ask("SELECT n FROM t;", "\n") == "42\n"
    box.wait_last(number, *ASLEEP, *ASLEEP)
    assert client.end() == 0
    wait_until(lambda: server.backends() == [], 10, "the application's socket is closed")
