# SPDX-License-Identifier: Apache-2.0
"""Rules, from a request or the command line to the clients: in force within two seconds for every connection of their
network, whatever its state, for clients that come and are born, and for those that a killed daemon leaves."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from datetime import date, datetime
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any, Final

import pytest

from appliance.lab import Lab, endpoint, wait_until
from appliance.lab.processes import python_environment
from spark.recommending import Cell, judged, outcomes, recommendations
from tests.bench.policy import Table
from tests.bench.simulated import PORT, Nursery, nursery
from tests.lab.echo import Echo
from tests.lab.test_policy_change import FOREVER, OBEYED_S, Box, in_time, within
from tests.unit.test_estimating import drawn

INSIDE: Final = "10.64.1.1"
OUTSIDE: Final = "10.65.1.1"
NETWORK: Final = "10.64.0.0/16"
HOUR: Final = 3600.0


@pytest.fixture
def box(nat_free_lab: Lab) -> Iterator[Box]:
    with ExitStack() as stack:
        yield Box(stack, nat_free_lab, FOREVER | {"probe_interval": "never"})


def rule(box: Box, name: str, **content: Any) -> float:
    """The rule is written; when (time.monotonic)."""
    body = {"rule": content, "who": "test", "why": "a test"}
    answer = box.daemon.http("PUT", f"/v1/policy/rules/{name}", json=body)
    assert answer.status_code == 200, answer.text
    return time.monotonic()


def unrule(box: Box, name: str) -> None:
    body = {"who": "test", "why": "a test"}
    assert box.daemon.http("DELETE", f"/v1/policy/rules/{name}", json=body).status_code == 200


def explained(box: Box, client: socket.socket) -> dict[str, tuple[Any, str]]:
    """(value, what gave it) of each key."""
    told = box.daemon.get(f"/v1/connections/{endpoint(*client.getsockname()[:2])}/policy")
    return {one["key"]: (one["value"], one["source"]) for one in told["values"]}


@in_time
def test_a_rule_reaches_the_connections_of_its_network_in_every_state(box: Box) -> None:
    moved = {state: box.in_state(state, source=INSIDE) for state in ("ACTIVE", "STANDBY", "IDLE")}
    stay = {state: box.in_state(state, source=OUTSIDE) for state in ("ACTIVE", "STANDBY", "IDLE", "SLEEP")}
    asleep, elsewhere = box.in_state("SLEEP", source=INSIDE), box.connect("born", OUTSIDE)
    born = box.connect("born", INSIDE)
    wait_until(lambda: box.state(born) == box.state(elsewhere) == "IDLE", 5, "they are born")
    time.sleep(3.1)  # a connection that obeys has been quiet, and unheard, for longer than is then allowed
    rule(box, "quick", network=NETWORK, active_quiet="1s", standby_quiet="1s", idle_quiet="1s")
    rule(box, "plain", network=NETWORK, service="plain", probe_interval="2s")
    since = rule(box, "born", network=NETWORK, service="born", probe_interval="2s")
    for state, client in moved.items():
        within(lambda client=client, state=state: box.obeys(client, state), since, f"{state} ends")  # type: ignore[misc]
    for client in (asleep, born):  # probed, and it answered
        within(lambda client=client: box.heard_s_ago(client) <= time.monotonic() - since, since, "it is heard")  # type: ignore[misc]
    assert [box.state(client) for client in stay.values()] == list(stay)
    assert box.heard_s_ago(elsewhere) >= 3
    assert explained(box, born)["probe_interval"] == (2, "rule born (version 3)")


def ports(box: Box, **wanted: Any) -> list[list[int]]:
    """Clients that are listed, all at once, and page by page."""
    found = [int(one["client"].rpartition(":")[2]) for one in box.daemon.connections(**wanted)]
    paged, after = list[int](), "first"
    while after:
        page = box.daemon.get("/v1/connections", after=after, limit=2, **wanted)
        paged += [int(one["client"].rpartition(":")[2]) for one in page["connections"]]
        after = page["next"]
    return [sorted(found), sorted(paged)]


def test_connections_are_listed_by_the_rule_that_gives_them_something(box: Box) -> None:
    """Whatever their state, and with values of their own. Another rule's with the same values are not among them."""
    inside = [box.in_state(state, source=INSIDE) for state in ("ACTIVE", "STANDBY", "IDLE", "SLEEP")]
    outside = [box.in_state(state, source=OUTSIDE) for state in ("ACTIVE", "SLEEP")]
    own = endpoint(*inside[2].getsockname())
    assert box.daemon.http("PUT", f"/v1/connections/{own}/policy",
                           json={"values": {"probe_interval": 7200}, "who": "test"}).status_code == 200  # fmt: skip
    rule(box, "inside", network=NETWORK, idle_quiet="5h")
    rule(box, "outside", network="10.65.0.0/16", idle_quiet="5h")
    rule(box, "all", idle_quiet="6h", priority="low")
    rule(box, "none", network="10.64.0.0/12", idle_quiet="7h")
    wanted = {"inside": inside, "outside": outside, "all": [*inside, *outside], "none": []}
    for name, clients in wanted.items():
        expected = 2 * [sorted(client.getsockname()[1] for client in clients)]
        wait_until(lambda name=name, expected=expected: ports(box, rule=name) == expected, 10, name)  # type: ignore[misc]
    assert ports(box, rule="inside", state="SLEEP") == 2 * [[inside[3].getsockname()[1]]]
    answer = box.daemon.http("GET", "/v1/connections", params={"rule": "insid"})
    assert (answer.status_code, answer.json()["error"]) == (404, 'there is no rule "insid"; did you mean "inside"?')


def asked(box: Box, client: socket.socket) -> bytes:
    """What another server that wants the client is told."""
    with box.lab.enter("lan"):
        server = box.stack.enter_context(socket.create_connection(box.proxy, 10))
    server.settimeout(10)
    there = endpoint(*client.getsockname()).encode()
    server.sendall(b"CONNECT %b HTTP/1.1\r\nHost: %b\r\n\r\n" % (there, there))
    return server.recv(12)


@pytest.mark.parametrize("state", ["ACTIVE", "STANDBY", "SLEEP"])
def test_what_becomes_of_a_second_server_is_a_rules_to_say(box: Box, state: str) -> None:
    inside, outside = box.in_state(state, source=INSIDE), box.in_state(state, source=OUTSIDE)
    rule(box, "shared", network=NETWORK, on_second_server="take-over", second_server_wait="5s")
    assert explained(box, inside)["second_server_wait"] == (5, "rule shared (version 1)")
    if state != "ACTIVE":  # there it has a server
        assert asked(box, inside) == asked(box, outside) == b"HTTP/1.1 200"
    wait_until(lambda: asked(box, inside) == b"HTTP/1.1 200", 10, "another server takes its place")
    assert asked(box, outside) == b"HTTP/1.1 409"


def test_a_server_waits_for_a_client_by_rule_for_as_long_as_that_says(box: Box) -> None:
    inside, outside = box.in_state("ACTIVE", source=INSIDE), box.in_state("ACTIVE", source=OUTSIDE)
    rule(box, "patient", network=NETWORK, on_second_server="wait", second_server_wait="1500ms")

    def refused_after_s(client: socket.socket) -> float:
        began = time.monotonic()
        assert asked(box, client) == b"HTTP/1.1 409"
        return time.monotonic() - began

    wait_until(lambda: refused_after_s(inside) >= 1.5, 15, "it waits")
    assert refused_after_s(outside) < 1.5


@pytest.mark.parametrize("lowest", ["IDLE", "SLEEP"])
def test_after_its_servers_close_a_client_goes_down_as_far_as_its_rule_says(box: Box, lowest: str) -> None:
    rule(box, "down", network=NETWORK, on_server_close=lowest.lower())
    inside, outside = box.in_state("ACTIVE", source=INSIDE), box.in_state("ACTIVE", source=OUTSIDE)
    number = box.shown(inside)["id"]
    for _ in range(2):
        for client in (inside, outside):
            box.server_leaves(client)
        wait_until(lambda: box.state(inside) == lowest, 15, f"it is {lowest}")
        assert box.state(outside) == "STANDBY"
        for client in (inside, outside):
            box.converse(client, "plain")
    down = [("STANDBY", "server-close"), ("IDLE", "quiet"), ("SLEEP", "quiet")][: 2 + (lowest == "SLEEP")]
    wanted = [("ACTIVE", "client-connect"), *2 * [*down, ("ACTIVE", "client-data")]]
    wait_until(lambda: steps_of(box, number) == wanted, 5, f"its history is {wanted}")


def steps_of(box: Box, number: int) -> list[tuple[str, str]]:
    return [(row["to"], row["cause"]) for row in box.daemon.get("/v1/history", limit=100) if row["id"] == number]


def test_after_its_servers_close_a_client_keeps_an_idle_interval_of_its_own(box: Box) -> None:
    rule(box, "down", network=NETWORK, on_server_close="sleep")
    own, other = box.in_state("ACTIVE", source=INSIDE), box.in_state("ACTIVE", source=INSIDE)
    values = {"values": {"idle_quiet": 3600}, "who": "test"}
    name = endpoint(*own.getsockname())
    assert box.daemon.http("PUT", f"/v1/connections/{name}/policy", json=values).status_code == 200
    for client in (own, other):
        box.server_leaves(client)
    wait_until(lambda: box.state(other) == "SLEEP", 15, "the other one sleeps")
    wait_until(lambda: box.state(own) == "IDLE", 15, "it is IDLE")
    time.sleep(2)  # it would be asked for within a second
    assert box.state(own) == "IDLE"


def test_a_server_that_asked_for_a_client_is_followed_by_sleep_too(box: Box) -> None:
    rule(box, "down", network=NETWORK, on_server_close="sleep")
    client = box.in_state("STANDBY", source=INSIDE)
    with box.lab.enter("lan"):
        server = socket.create_connection(box.proxy, 10)
    there = endpoint(*client.getsockname()).encode()
    with server:
        server.settimeout(10)
        server.sendall(b"CONNECT %b HTTP/1.1\r\nHost: %b\r\n\r\n" % (there, there))
        assert server.recv(12) == b"HTTP/1.1 200"
    wait_until(lambda: box.state(client) == "SLEEP", 15, "it sleeps")


def test_clients_that_come_are_born_or_wake_have_it_from_the_first_moment(box: Box) -> None:
    rule(box, "quick", network=NETWORK, active_quiet="1s")
    rule(box, "born", network=NETWORK, service="born", probe_interval="2s")
    time.sleep(OBEYED_S)  # the round is over: it gives nothing to those that come now
    sleeper = box.in_state("SLEEP", "bare", OUTSIDE)
    born, elsewhere = box.connect("born", INSIDE), box.connect("born", OUTSIDE)
    came = box.in_state("ACTIVE", source=INSIDE)
    came_at = time.monotonic()
    wait_until(lambda: box.obeys(came, "ACTIVE"), 5, "what came obeys")
    assert time.monotonic() - came_at >= 0.9
    wait_until(lambda: box.heard_s_ago(elsewhere) >= 5, 20, "outside of the network nobody is probed")
    wait_until(lambda: box.heard_s_ago(born) < 4, 10, "what was born is probed")
    assert box.state(sleeper) == "SLEEP"


@in_time
def test_a_rule_that_is_removed_leaves_the_service_its_own(box: Box) -> None:
    rule(box, "quick", network=NETWORK, service="plain", idle_quiet="1s")
    rule(box, "slow", network="10.64.1.0/24", idle_quiet="2h")
    client = box.in_state("IDLE", source=INSIDE)
    assert explained(box, client)["idle_quiet"] == (2 * HOUR, "rule slow (version 2)")
    unrule(box, "slow")
    wait_until(lambda: box.state(client) == "SLEEP", OBEYED_S + 1, "the wider network's rule holds now")
    unrule(box, "quick")
    assert explained(box, client)["idle_quiet"] == (HOUR, "[policy]")


def test_rules_are_in_force_when_the_next_daemon_has_started(box: Box) -> None:
    rule(box, "born", network=NETWORK, service="born", probe_interval="2s")
    born, elsewhere = box.connect("born", INSIDE), box.connect("born", OUTSIDE)
    wait_until(lambda: box.state(born) == box.state(elsewhere) == "IDLE", 5, "they are born")
    box.daemon.kill()
    box.daemon.start()
    began = time.monotonic()
    later = box.connect("born", INSIDE)
    wait_until(lambda: box.counter("probes_sent") >= 2, 10, "they are probed")
    time.sleep(3)
    for client in (born, later):
        wait_until(lambda client=client: box.heard_s_ago(client) < 4, 10, "it is probed")  # type: ignore[misc]
    assert box.heard_s_ago(elsewhere) >= time.monotonic() - began - 1


def is_refused(box: Box, service: str, source: str) -> bool:
    """Whether a new client is reset."""
    try:
        client = box.connect(service, source)
        client.sendall(b"question")
        return not client.recv(1)
    except ConnectionError:
        return True


def test_a_start_without_the_database_refuses_whom_the_rules_refuse_and_keeps_who_is_there(box: Box) -> None:
    idle, asleep = box.in_state("IDLE", source=INSIDE), box.in_state("SLEEP", source=INSIDE)
    rule(box, "deny", network=NETWORK, new_clients="refuse")
    database = Path(box.daemon.status()["database"].removeprefix("sqlite:///"))
    box.daemon.kill()
    away = database.rename(database.with_name("away"))
    box.daemon.start()
    told = box.daemon.status()["policy"]["error"]
    assert f"those of version 1 are in force, as {database}.rules has them" in told
    assert [is_refused(box, service, INSIDE) for service in ("plain", "born")] == [True, True]
    box.converse(box.connect("plain", OUTSIDE), "plain")
    box.converse(idle, "plain")
    away.rename(database)
    wait_until(lambda: not box.daemon.status()["policy"]["error"], 60, "the rules are read")
    box.converse(asleep, "plain")
    assert is_refused(box, "plain", INSIDE)


def policy(box: Box, *words: str) -> str:
    """`roost policy`, as an operator types it."""
    argv = [sys.executable, "-m", "control.cli.main", "policy", *words, "--socket", str(box.daemon.control_socket)]
    done = subprocess.run(argv, env=python_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_rule_for_a_network_is_obeyed_there_alone_and_outlives_the_daemon(nat_free_lab: Lab) -> None:
    with ExitStack() as stack:
        box = Box(stack, nat_free_lab, FOREVER | {"probe_interval": "never"})
        client = box.in_state("IDLE")
        ruled = client.getsockname()[0]
        name = endpoint(*client.getsockname()[:2])

        told = json.loads(policy(box, "explain", name, "--json"))["values"]
        assert {one["key"]: one["source"] for one in told}["idle_quiet"] == "[policy]"
        policy(box, "set", "elsewhere", "--network", "198.18.0.0/15", "idle_quiet=1s")
        wait_until(lambda: box.daemon.status()["policy"]["version"] == 1, 5, "it is in force")
        assert box.state(client) == "IDLE"

        policy(box, "set", "here", "--network", f"{ruled}/32", "--service", "plain", "idle_quiet=1s", "--why", "a test")
        wait_until(lambda: box.state(client) == "SLEEP", 20, "the rule is obeyed")
        told = json.loads(policy(box, "explain", name, "--json"))["values"]
        assert {one["key"]: one["source"] for one in told}["idle_quiet"] == "rule here (version 2)"

        box.daemon.kill()
        box.daemon.start()
        awake = box.in_state("IDLE")
        wait_until(lambda: box.state(awake) == "SLEEP", 20, "the rule is obeyed by the next daemon's clients")
        policy(box, "rollback", "1")
        again = box.in_state("IDLE")
        file = box.daemon.config.with_name("rules.json")
        file.write_text(json.dumps({"rule": [{"name": "here", "network": f"{ruled}/32", "idle_quiet": "1s"}]}))
        tried = json.loads(policy(box, "try", str(file), "--json"))
        assert (tried["connections"], tried["changed"]) == (3, 3)
        assert box.state(again) == "IDLE"


def test_what_a_report_recommends_is_shown_applied_and_taken_back(nat_free_lab: Lab) -> None:
    with ExitStack() as stack:
        box = Box(stack, nat_free_lab, FOREVER | {"probe_interval": "never"})
        box.in_state("IDLE")
        policy(box, "set", "carrier", "--service", "plain", "probe_interval=1m")
        found = [judged(Cell("plain", "carrier", drawn(3, 20_000, 600), 2.0, 20_000), 0.01)]
        made = recommendations(found, {"carrier": {"service": "plain", "probe_interval": 60.0}}, 1, "november")
        file = box.daemon.config.with_name("recommendations.json")
        file.write_text(json.dumps(made))

        shown = policy(box, "recommend", str(file))
        assert "silent connections are lost after" in shown
        assert "1 connections would have other values than before" in shown
        assert box.daemon.get("/v1/policy")["version"] == 1
        applied = json.loads(policy(box, "recommend", str(file), "--apply", "--json"))["applied"]
        assert applied["version"] == 2
        (change,) = [one for one in json.loads(policy(box, "history", "--json")) if one["version"] == 2]
        assert change["rule"]["probe_interval"] == found[0].recommended_s
        assert change["why"].startswith("report of november: carrier expects ")
        days = [{"rules": "carrier", "day": date(2030, 1, 1), "days": 1, "probes": 5, "lost": 1}]
        row = {"version": 2, "rule": "carrier", "at": datetime(2026, 11, 10), "why": change["why"]}
        assert outcomes([row], days)[0]["probes_a_day_expected"] == round(found[0].probes_then)

        with pytest.raises(AssertionError, match=r"carrier was changed since the export, by .* in version 2"):
            policy(box, "recommend", str(file), "--apply")
        policy(box, "remove", "carrier")
        with pytest.raises(AssertionError, match="carrier was removed since the export"):
            policy(box, "recommend", str(file), "--apply")
        wrong = {"[]": "is not what", "{": "is not what", json.dumps(made | {"version": "1"}): "version"}
        for text, sentence in wrong.items():
            file.write_text(text)
            with pytest.raises(AssertionError, match=sentence):
                policy(box, "recommend", str(file))
        file.write_text(json.dumps({"report": "november", "version": 0, "rule": [], "about": {}}))
        assert "there is no rule to change" in policy(box, "recommend", str(file), "--apply")


def echo(born: Nursery) -> AbstractContextManager[Echo]:
    return Echo(born.lab.space("lan"), born.lab.address("lan", "eth0"), PORT)


def test_connections_that_wake_and_fall_asleep_while_rules_change_obey() -> None:
    """A round that passes over slots and awake connections misses those that go from one to the other."""
    clients, network = 20_000, ip_network("10.127.255.0/24")
    where = {"addresses": 128, "base": "10.127.255.192"}
    policy = {"probe_interval": "never", "active_quiet": "200ms", "standby_quiet": "200ms"}
    with nursery(clients, policy, where, awake_once=clients) as born, echo(born):
        born.connect(range(clients))
        table = Table(born.daemon.pin_dir)

        def found() -> Counter[tuple[bool, float]]:
            return Counter(
                (ip_address(address) in network, table.interval_s(class_))
                for bucket in range(table.buckets)
                for address, class_ in table.slots(bucket)
            )

        try:
            for turn in range(4):
                speaking = threading.Thread(target=born.speak, args=(range(turn * 2000, turn * 2000 + 4000), 100))
                speaking.start()
                time.sleep(0.3)
                content = {"network": str(network), "probe_interval": "1800s"}
                body = {"who": "test"} | ({"rule": content} if turn % 2 == 0 else {})
                answer = born.daemon.http("DELETE" if turn % 2 else "PUT", "/v1/policy/rules/half", json=body)
                assert answer.status_code == 200, answer.text
                speaking.join()
                born.none_awake()
                wanted = {(True, 0 if turn % 2 else 1800), (False, 0)}
                wait_until(lambda wanted=wanted: set(found()) == wanted, 10, f"all obey {wanted}")  # type: ignore[misc]
        finally:
            table.close()
        assert born.failures == {}
