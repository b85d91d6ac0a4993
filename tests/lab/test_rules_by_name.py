# SPDX-License-Identifier: Apache-2.0
"""Rules for clients by their names and tags: in force for connections in every state, and after this daemon."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from appliance.lab import Lab, endpoint, wait_until
from tests.lab.test_policy_change import FOREVER, OBEYED_S, Box, in_time, within
from tests.lab.test_policy_rules import explained, ports, rule, unrule

STATES = ("ACTIVE", "STANDBY", "IDLE", "SLEEP")


@pytest.fixture
def box_of_names(nat_free_lab: Lab) -> Iterator[Box]:
    with ExitStack() as stack:
        yield Box(stack, nat_free_lab, FOREVER | {"probe_interval": "never"})


def name(box: Box, client: socket.socket, called: str) -> socket.socket:
    there = endpoint(*client.getsockname())
    assert box.daemon.http("PUT", f"/v1/connections/{there}/name", json={"name": called}).status_code == 200
    return client


def tag(box: Box, called: str, tag: str) -> float:
    assert box.daemon.http("PUT", f"/v1/names/{called}/tags", json={"add": [tag]}).status_code == 200
    return time.monotonic()


def idle_quiet(box: Box, client: socket.socket) -> tuple[object, str]:
    return explained(box, client)["idle_quiet"]


@in_time
def test_a_rule_for_names_reaches_them_in_every_state_and_nobody_else(box_of_names: Box) -> None:
    box = box_of_names
    moved = {state: name(box, box.in_state(state), f"meter-{state.lower()}") for state in STATES}
    stay = {state: name(box, box.in_state(state), f"door-{state.lower()}") for state in STATES}
    nameless = box.in_state("IDLE")
    time.sleep(3.1)  # a connection that obeys has been quiet, and unheard, for longer than is then allowed
    since = rule(box, "quick", client="meter-*", service="plain", active_quiet="1s", standby_quiet="1s",
                 idle_quiet="1s", probe_interval="2s")  # fmt: skip
    for state in STATES[:3]:
        within(lambda state=state: box.obeys(moved[state], state), since, f"{state} ends")  # type: ignore[misc]
    within(lambda: box.heard_s_ago(moved["SLEEP"]) <= time.monotonic() - since, since, "it is probed, and answered")
    assert [box.state(client) for client in (*stay.values(), nameless)] == [*STATES, "IDLE"]
    assert ports(box, rule="quick") == 2 * [sorted(client.getsockname()[1] for client in moved.values())]
    assert idle_quiet(box, moved["SLEEP"]) == (1, "rule quick (version 1)")


@in_time
def test_names_and_tags_that_come_and_go_change_what_is_in_force(box_of_names: Box) -> None:
    box = box_of_names
    rule(box, "winter", tag="winter", idle_quiet="1s")
    by_tag, by_name = name(box, box.in_state("IDLE"), "meter-1"), box.in_state("IDLE")
    time.sleep(1.1)
    assert (box.state(by_tag), box.state(by_name)) == ("IDLE", "IDLE")
    since = tag(box, "meter-1", "winter")
    within(lambda: box.state(by_tag) == "SLEEP", since, "it has the tag")
    box.converse(by_tag, "plain")
    assert box.daemon.http("DELETE", f"/v1/connections/{endpoint(*by_tag.getsockname())}/name").status_code == 200
    box.daemon.act(endpoint(*by_tag.getsockname()), "standby")
    box.daemon.act(endpoint(*by_tag.getsockname()), "idle")
    time.sleep(2.5)
    assert box.state(by_tag) == "IDLE", "it has no name any more, and so no tag"
    assert idle_quiet(box, by_tag) == (3600, "[policy]")


def test_a_rule_for_names_is_in_force_after_this_daemon_and_ends_with_the_rule(box_of_names: Box) -> None:
    box = box_of_names
    rule(box, "slow", client="meter-*", service="plain", idle_quiet="2h", probe_interval="2h")
    client = name(box, box.in_state("SLEEP"), "meter-1")
    wait_until(lambda: idle_quiet(box, client) == (7200, "rule slow (version 1)"), 5, "it is in force")
    number = box.shown(client)["id"]
    box.daemon.kill()
    box.daemon.start()
    assert idle_quiet(box, client) == (7200, "rule slow (version 1)")
    rule(box, "slow", client="meter-*", service="plain", idle_quiet="1s", probe_interval="2s")
    since = time.monotonic()
    wait_until(lambda: box.heard_s_ago(client) <= time.monotonic() - since, OBEYED_S + 3, "it is probed")
    assert box.shown(client)["id"] == number
    unrule(box, "slow")
    box.converse(client, "plain")
    box.daemon.act(endpoint(*client.getsockname()), "standby")
    box.daemon.act(endpoint(*client.getsockname()), "idle")
    time.sleep(2.5)
    assert box.state(client) == "IDLE"
