# SPDX-License-Identifier: Apache-2.0
"""Jobs: an action for many connections, by a filter or named, and how each of them fared."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from appliance.lab import Lab, wait_until
from tests.lab.api_lab import ApiLab

CLIENTS = 12


@pytest.fixture(scope="module")
def box(nat_free_lab: Lab) -> Iterator[ApiLab]:
    with ApiLab(nat_free_lab) as box:
        box.wait_for_api()
        yield box


def ended(box: ApiLab, began: tuple[int, Any], who: str = "operator") -> dict[str, Any]:
    """The job, as it is at its end."""
    status, job = began
    assert status == 202, job
    shown: dict[str, Any] = {}

    def has_ended() -> bool:
        shown.update(box.ask(who, "GET", f"/v1/jobs/{job['number']}")[1])
        return shown["state"] not in ("waiting", "running")

    wait_until(has_ended, 20, "the job ends")
    return shown


def states(box: ApiLab, addresses: list[str]) -> set[str]:
    return {row["state"] for row in box.daemon.connections() if row["client"] in addresses}


def figures(job: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(job[key] for key in ("state", "found", "done", "closed", "refused", "unanswered"))


def test_all_of_a_network_sleep_wake_and_are_closed(box: ApiLab) -> None:
    clients, others = [box.client() for _ in range(CLIENTS)], [box.client(6)[1] for _ in range(2)]
    addresses = [address for _, address in clients]
    network = {"network": "0.0.0.0/0"}
    job = ended(box, box.ask("operator", "POST", "/v1/jobs", {"action": "sleep", "filter": network}))
    assert figures(job) == ("done", CLIENTS, CLIENTS, 0, {}, 0)
    assert (job["action"], job["filter"], job["who"]) == ("sleep", network, box.names["operator"])
    assert (states(box, addresses), states(box, others)) == ({"SLEEP"}, {"ACTIVE"})
    job = ended(
        box, box.ask("operator", "POST", "/v1/jobs", {"action": "wake", "filter": {**network, "state": "SLEEP"}})
    )
    assert figures(job) == ("done", CLIENTS, CLIENTS, 0, {}, 0)
    assert states(box, addresses) == {"STANDBY"}
    box.woken(clients[0][0])
    job = ended(box, box.ask("operator", "POST", "/v1/jobs", {"action": "close", "filter": network}))
    assert figures(job) == ("done", CLIENTS, CLIENTS, 0, {}, 0)
    assert (states(box, addresses), states(box, others)) == (set(), {"ACTIVE"})
    with pytest.raises(ConnectionResetError):
        clients[1][0].recv(1)
    assert ended(box, box.ask("operator", "POST", "/v1/jobs", {"action": "idle", "everything": True}))["done"] == 2
    assert states(box, others) == {"IDLE"}


def test_named_ones_and_what_is_not_there(box: ApiLab) -> None:
    awake, asleep, idle = (box.client()[1] for _ in range(3))
    for address, action in ((asleep, "sleep"), (idle, "idle")):
        assert box.ask("operator", "POST", f"/v1/connections/{address}/{action}")[0] == 200
    number = box.daemon.get(f"/v1/connections/{idle}")["id"]
    slept = box.daemon.get(f"/v1/connections/{asleep}")["id"]
    assert box.ask("operator", "PUT", f"/v1/connections/{awake}/name", {"name": "hall"})[0] == 200
    named = ["hall.roost", number, slept, "192.0.2.1:1", "nobody.roost", 2**62, "no such thing"]
    job = ended(box, box.ask("operator", "POST", "/v1/jobs", {"action": "wake", "connections": named}))
    assert figures(job) == ("done", 2, 2, 0, {}, 0)
    assert (job["unchanged"], job["missing"], job["connections"], job["filter"]) == (1, 4, 7, None)
    assert set(job["missing_names"]) == {"192.0.2.1:1", "nobody.roost", str(2**62), "no such thing"}
    assert states(box, [asleep, idle]) == {"STANDBY"}


@pytest.mark.parametrize("named", [False, True])
def test_what_has_changed_by_the_time_it_comes_to_it_is_left_alone(box: ApiLab, named: bool) -> None:
    clients = [box.client() for _ in range(6)]
    for _, address in clients:
        box.ask("operator", "POST", f"/v1/connections/{address}/idle")
    slow = {"action": "sleep", "filter": {"network": "0.0.0.0/0", "state": "IDLE"}, "rate": 2}
    one_by_one = {"action": "sleep", "connections": [address for _, address in clients], "rate": 2}
    job = box.ask("operator", "POST", "/v1/jobs", one_by_one if named else slow)
    wait_until(lambda: "SLEEP" in states(box, [address for _, address in clients]), 5, "the first one sleeps")
    for client, address in clients:  # by other records than the list has
        if states(box, [address]) == {"IDLE"}:
            box.woken(client)
            assert box.daemon.act(address, "sleep")["state"] == "SLEEP"
    closing = box.ask("operator", "POST", "/v1/jobs", {**slow, "action": "close"})
    assert ended(box, job)["state"] == "done"
    assert figures(ended(box, closing))[:2] == ("done", 0)
    for client, _ in clients:
        box.woken(client)


def test_who_has_the_port_of_one_that_was_named_is_left_alone(box: ApiLab) -> None:
    *others, (named, address) = [box.client() for _ in range(4)]
    port = named.getsockname()[1]
    slow = {"action": "close", "connections": [*(other for _, other in others), address], "rate": 1}
    job = box.ask("operator", "POST", "/v1/jobs", slow)
    named.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    named.close()
    wait_until(lambda: not states(box, [address]), 2, "it is gone")
    later, _ = box.client(port=port)
    assert figures(ended(box, job)) == ("done", 3, 3, 0, {}, 0)
    later.sendall(b"still")
    assert states(box, [address]) == {"ACTIVE"}


def test_those_of_a_state_go_all_the_way(box: ApiLab) -> None:
    assert (
        ended(box, box.ask("operator", "POST", "/v1/jobs", {"action": "close", "everything": True}))["state"] == "done"
    )
    awake, asleep = box.client()[1], box.client()[1]
    box.daemon.act(asleep, "idle")
    job = ended(box, box.ask("operator", "POST", "/v1/jobs", {"action": "sleep", "filter": {"state": "ACTIVE"}}))
    assert figures(job) == ("done", 1, 1, 0, {}, 0)
    assert (states(box, [awake]), states(box, [asleep])) == ({"SLEEP"}, {"IDLE"})


def test_nobodys_jobs_wait_for_anothers_and_there_are_not_too_many(box: ApiLab) -> None:
    address, *others = (box.client()[1] for _ in range(31))
    box.token("server", "lab4")
    slow = {"action": "standby", "connections": others, "rate": 1}
    numbers = []
    while (begun := box.ask("server", "POST", "/v1/jobs", slow))[0] == 202:
        numbers.append(begun[1]["number"])
    assert (begun[0], len(numbers)) == (429, 8)
    job = ended(box, box.ask("operator", "POST", "/v1/jobs", {"action": "idle", "connections": [address]}))
    assert job["done"] == 1
    for number in reversed(numbers):
        assert box.ask("server", "DELETE", f"/v1/jobs/{number}")[0] == 200


def test_what_is_cancelled_goes_no_further_and_those_behind_it_begin(box: ApiLab) -> None:
    addresses = [box.client()[1] for _ in range(4)]
    for address in addresses:
        box.ask("operator", "POST", f"/v1/connections/{address}/idle")
    slow = box.ask("operator", "POST", "/v1/jobs", {"action": "wake", "connections": addresses, "rate": 1})
    behind = box.ask("operator", "POST", "/v1/jobs", {"action": "idle", "connections": addresses})
    wait_until(lambda: states(box, addresses) == {"IDLE", "STANDBY"}, 5, "one is awake")
    assert box.ask("viewer", "DELETE", f"/v1/jobs/{slow[1]['number']}")[0] == 403
    assert box.ask("operator", "DELETE", f"/v1/jobs/{slow[1]['number']}")[0] == 200
    assert ended(box, behind)["state"] == "done"
    job = ended(box, slow)
    assert (job["state"], job["found"], job["done"]) == ("cancelled", job["done"], job["found"])
    assert 1 <= job["done"] < 4
    waiting = box.ask("operator", "POST", "/v1/jobs", {"action": "wake", "connections": addresses, "rate": 1})
    never = box.ask("operator", "POST", "/v1/jobs", {"action": "close", "connections": addresses})
    assert box.ask("operator", "DELETE", f"/v1/jobs/{never[1]['number']}")[1]["state"] == "cancelled"
    assert box.ask("operator", "DELETE", f"/v1/jobs/{waiting[1]['number']}")[0] == 200
    assert (ended(box, never)["found"], len(states(box, addresses))) == (0, 2)


def test_a_server_has_jobs_of_its_services_alone(box: ApiLab) -> None:
    (_, own), (_, other) = box.client(4), box.client(6)
    box.token("server", "lab4")
    job = ended(box, box.ask("server", "POST", "/v1/jobs", {"action": "idle", "everything": True}), "server")
    assert job["done"] >= 1
    assert (states(box, [own]), states(box, [other])) == ({"IDLE"}, {"ACTIVE"})
    job = ended(box, box.ask("server", "POST", "/v1/jobs", {"action": "close", "connections": [other]}), "server")
    assert (job["found"], job["missing"]) == (0, 1)
    wider = ended(box, box.ask("operator", "POST", "/v1/jobs", {"action": "standby", "connections": [other]}))
    assert box.ask("server", "GET", f"/v1/jobs/{wider['number']}")[0] == 404
    assert box.ask("server", "DELETE", f"/v1/jobs/{wider['number']}")[0] == 404
    numbers = {one["number"] for one in box.ask("server", "GET", "/v1/jobs")[1]}
    assert (job["number"] in numbers, wider["number"] in numbers) == (True, False)
    assert wider["number"] in {one["number"] for one in box.ask("viewer", "GET", "/v1/jobs")[1]}
    assert box.ask("viewer", "POST", "/v1/jobs", {"action": "idle", "everything": True})[0] == 403
    status, answer = box.ask("server", "POST", "/v1/jobs", {"action": "idle", "filter": {"service": "lab6"}})
    assert (status, "lab6" in answer["error"]) == (404, True)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"action": "close"}, "everything"),
        ({"action": "close", "filter": {}}, "everything"),
        ({"action": "close", "filter": {"state": None, "quiet": 0}}, "everything"),
        ({"action": "close", "everything": True, "connections": [1]}, "everything"),
        ({"action": "close", "connections": []}, "connections"),
        ({"action": "close", "connections": [1] * 10_001}, "connections"),
        ({"action": "close", "connections": ["x" * 301]}, "connections"),
        ({"action": "explode", "everything": True}, "action"),
        ({"action": "wake", "filter": {"netwrok": "10.0.0.0/8"}}, "netwrok"),
        ({"action": "wake", "filter": {"network": "10.0.0.0/8/8"}}, "network"),
        ({"action": "wake", "filter": {"rule": "none-such"}}, "none-such"),
        ({"action": "wake", "filter": {"name": "no name"}}, "`name`"),
        ({"action": "wake", "filter": {"tag": "no tag"}}, "`tag`"),
        ({"action": "wake", "everything": True, "rate": 0}, "rate"),
        ({"action": "wake", "everything": True, "rate": 1e9}, "rate"),
    ],
)
def test_what_is_no_job_begins_nothing(box: ApiLab, wrong: dict[str, Any], said: str) -> None:
    before = box.ask("operator", "GET", "/v1/jobs")[1]
    status, answer = box.ask("operator", "POST", "/v1/jobs", wrong)
    assert status in (400, 404, 422)
    assert said in answer["error"]
    assert box.ask("operator", "GET", "/v1/jobs")[1] == before


def roost(box: ApiLab, *words: str, piped: str = "") -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "control.cli.main", "job", *words, "--socket", str(box.daemon.control_socket)]
    return subprocess.run(argv, input=piped, capture_output=True, text=True, timeout=30, check=False)


def test_the_command_says_how_they_fared(box: ApiLab) -> None:
    address = box.client()[1]
    done = roost(box, "start", "idle", "--from", "-", piped=f"{address}\n\n192.0.2.1:1\n")
    assert done.returncode == 0, done.stderr
    assert "idle, done: 1 found; 1 done; 1 not found, or not one alone: 192.0.2.1:1" in done.stdout
    shown = json.loads(roost(box, "list", "--json").stdout)[-1]
    assert (shown["connections"], shown["done"], shown["missing"]) == (2, 1, 1)
    assert "2 named" in roost(box, "list").stdout
    asked = roost(box, "start", "close", "--from", "-", piped=address)
    assert (asked.returncode, "--yes" in asked.stderr) == (2, True)
    assert roost(box, "start", "close").returncode == 2
    assert states(box, [address]) == {"IDLE"}
    assert roost(box, "start", "close", "--client", address, "--yes").returncode == 0
    assert states(box, [address]) == set()
