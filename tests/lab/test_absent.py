# SPDX-License-Identifier: Apache-2.0
"""Servers whose client is not connected: they wait, are refused, or the appliance dials the client (issue 3, figures 6,
23 and 25)."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from appliance.lab import Lab
from appliance.lab.processes import python_environment
from examples.in_band_frames import Frame, Recipient, Stay
from tests.lab.agent_lab import TELEMETRY, WEB, AgentLab
from tests.lab.engine_lab import receive, sending
from tests.lab.in_band_lab import End

PAGE = b"thermostat: 21.5\n"
NOBODY = "192.0.2.1:9"


class Dialling:
    """The policy `dial`, then `wait` for half a second; clients are told to stay after two failures, those of the
    service `telemetry` in band."""

    def __init__(self, lab: Lab) -> None:
        self.absent: dict[str, Any] = {"steps": ["agent", "dial", "wait"], "wait": "500ms", "dial_timeout": "1s",
                                       "dial_networks": ["10.10.0.0/24", "10.3.0.0/24"],
                                       "dial_ports": [9, WEB, "9200-9299"], "stay_after": 2}  # fmt: skip
        self.box = AgentLab(lab, absent=self.absent, telemetry={"in_band": {"stay": True}})
        self.client = lab.address("wan", "eth0")


@pytest.fixture(scope="module")
def dialling() -> Iterator[Dialling]:
    with Lab(clients=20, nat=False) as lab:  # without translation: a client's address can be dialled
        yield Dialling(lab)


def connect_as(box: AgentLab, port: int, source_port: int) -> socket.socket:
    with box.lab.enter("wan"):
        sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.settimeout(10)
    sock.bind((box.lab.address("wan", "eth0"), source_port))
    sock.connect((box.lab.address("box", "wan0"), port))
    return sock


def listening(box: AgentLab, port: int) -> socket.socket:
    """A client that can be dialled: outside its loopback."""
    with box.lab.enter("wan"):
        listener = socket.create_server((box.lab.address("wan", "eth0"), port))
    listener.settimeout(10)
    return listener


def dialled(box: AgentLab) -> dict[str, dict[str, Any]]:
    return {row["client"]: row for row in box.daemon.get("/v1/dialled")}


# -- dial: the last branch of figure 23 -------------------------------------------------------------------------------


def test_figure_23_a_client_that_is_not_connected_is_dialled_and_is_a_connection_like_any_other(
    dialling: Dialling,
) -> None:
    box, where = dialling.box, f"{dialling.client}:9200"
    sent, answer = os.urandom(2_000_000), os.urandom(2_000_000)
    with listening(box, 9200) as listener, box.tunnel(where, early=sent[:500]) as server:
        client, peer = listener.accept()
        assert peer == (box.lab.address("box", "wan0"), TELEMETRY), "from where it would find its service"
        client.settimeout(20)
        for source, sink, data in ((server, client, sent[500:]), (client, server, answer)):
            with sending(source, data):
                assert receive(sink, 2_000_000) == (sent if sink is client else answer)
    with client:
        box.wait_for_state("telemetry", "IDLE")
        assert box.daemon.act(where, "sleep")["state"] == "SLEEP"
        with box.tunnel(where) as server:
            server.sendall(b"again?")
            assert receive(client, 6) == b"again?"
        box.wait_for_state("telemetry", "IDLE")
        box.daemon.restart()
        client.sendall(b"ECHO by itself\n")  # to the service's server
        assert receive(client, 15) == b"ECHO by itself\n"

        def steps() -> list[tuple[str, str, str]]:
            history = box.daemon.get(f"/v1/connections/{where}")["history"]
            return [(row["from"], row["to"], row["cause"]) for row in history]

        box.wait(lambda: ("IDLE", "ACTIVE", "client-data") in steps(), "its word is in the history")
        assert steps()[:2] == [("NONE", "STANDBY", "server-attach"), ("STANDBY", "ACTIVE", "server-attach")]
        assert ("SLEEP", "ACTIVE", "server-attach") in steps()
        (attach,) = (row for row in box.daemon.get("/v1/attaches") if row["step"] == "dial" and row["target"] == where)
        assert attach["client"] == where
    box.wait(lambda: box.connections("telemetry") == [], "it is gone")


def test_curl_reaches_a_client_that_listens_by_its_address(dialling: Dialling) -> None:
    box = dialling.box
    folder = box.lab.workspace / "dialled"
    folder.mkdir()
    (folder / "status").write_bytes(PAGE)
    box.lab.run("wan", [sys.executable, "-m", "http.server", str(WEB), "--bind", dialling.client, "--directory",
                        str(folder)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
    box.wait(lambda: box.listens("wan", dialling.client, WEB), "it listens")
    assert box.ask(f"{dialling.client}:{WEB}") == (0, PAGE, "")
    assert box.ask_by_socks(f"{dialling.client}:{WEB}") == (0, PAGE, "")


def test_a_name_is_dialled_where_its_client_was_last(dialling: Dialling) -> None:
    box = dialling.box
    with box.dial(TELEMETRY):
        box.wait(lambda: len(box.connections("telemetry")) == 1, "it is connected")
        (row,) = box.connections("telemetry")
        assert box.daemon.http("PUT", f"/v1/connections/{row['id']}/name", json={"name": "camera-7"}).is_success
    box.wait(lambda: box.connections("telemetry") == [], "it is gone")
    with listening(box, 9201) as listener, box.tunnel("camera-7.roost:9201") as server:
        client, _ = listener.accept()
        with client:
            server.sendall(b"there?")
            assert receive(client, 6) == b"there?"


@pytest.mark.parametrize("target", ["10.64.0.1:80", "127.0.0.1:22", "10.3.0.1:9999", "198.18.0.1:9999"])
def test_no_server_dials_beyond_the_networks_of_clients_or_back_into_the_appliance(
    dialling: Dialling, target: str
) -> None:
    code, _, said = dialling.box.ask(target)
    assert code != 0
    assert "504" in said, "it is not dialled, so what is left is to wait"
    assert target.split(":")[0] not in dialled(dialling.box)


def test_no_server_dials_a_port_that_the_configuration_does_not_name(dialling: Dialling) -> None:
    box = dialling.box
    with listening(box, 9300) as listener:
        listener.settimeout(0.2)
        for ask in (box.ask, box.ask_by_socks):
            code, _, said = ask(f"{dialling.client}:9300")
            assert code != 0
            assert ("504" in said) or ("(6)" in said), "it is not dialled, so what is left is to wait"
        with pytest.raises(TimeoutError):
            listener.accept()


def test_a_client_that_speaks_first_speaks_to_the_server_that_asked_for_it(dialling: Dialling) -> None:
    box = dialling.box
    with listening(box, 9205) as listener:
        for turn in range(10):
            banner = b"220 client %d\r\n" % turn

            def greet(banner: bytes = banner) -> None:
                client, _ = listener.accept()
                with client:
                    client.sendall(banner)
                    client.recv(1)

            greeting = threading.Thread(target=greet)
            greeting.start()
            with box.tunnel(f"{dialling.client}:9205") as server:
                assert receive(server, len(banner)) == banner
                server.sendall(b"q")
                greeting.join()
            box.wait(lambda: box.connections("telemetry") == [], "it is gone")


def test_servers_that_want_a_client_at_once_get_its_one_connection_one_after_the_other(dialling: Dialling) -> None:
    box = dialling.box
    with listening(box, 9202) as listener:
        first = box.tunnel(f"{dialling.client}:9202")
        client, _ = listener.accept()
        assert "409" in box.ask(f"{dialling.client}:9202")[2], "the policy refuses a second server"
        first.close()
        box.wait_for_state("telemetry", "STANDBY", "IDLE")
        with box.tunnel(f"{dialling.client}:9202") as second:
            second.sendall(b"now")
            assert receive(client, 3) == b"now"
        assert not select.select([listener], [], [], 0)[0]
        client.close()
    box.wait(lambda: box.connections("telemetry") == [], "it is gone")


# -- figure 25 --------------------------------------------------------------------------------------------------------


def test_figure_25_a_client_that_was_dialled_in_vain_is_told_to_stay_until_a_dial_out_succeeds(
    dialling: Dialling,
) -> None:
    box, client = dialling.box, dialling.client
    box.web_client(8282)
    tool = f"{sys.executable} -c \"import os; open('{box.lab.workspace}/told','a').write(os.environ['ROOST_DO'])\""
    options = ["--initiating", f"camera-25@telemetry=run:{tool}"]
    box.agent(*options)
    box.wait_for_agent("camera-25")
    with box.dial(TELEMETRY):
        box.wait(lambda: len(box.connections("telemetry")) == 1, "it is connected")
        (row,) = box.connections("telemetry")
        assert box.daemon.http("PUT", f"/v1/connections/{row['id']}/name", json={"name": "camera-25"}).is_success
    box.end_agents()
    for failures in (1, 2):
        box.ask("camera-25.roost:9")
        row = dialled(box)["camera-25"]
        assert (row["failures"], row["stay"]) == (failures, "no" if failures == 1 else "due")
    box.daemon.restart()
    assert dialled(box)["camera-25"]["stay"] == "due", "it is in the store"
    box.agent(*options)
    told = box.lab.workspace / "told"
    told.touch()  # the tool appends: what it writes is there when it ends
    box.wait(lambda: told.read_text() == "stay", "the agent lets its client know, on its next connection")
    box.wait(lambda: dialled(box)["camera-25"]["stay"] == "told", "it counts as told")
    assert box.spoken_for()["camera-25"]["stay"] is True
    argv = [sys.executable, "-m", "control.cli.main", "dialled", "--socket", str(box.daemon.control_socket)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, env=python_environment(), check=True)
    assert "was told to stay connected" in next(line for line in done.stdout.splitlines() if "camera-25" in line)
    box.end_agents()
    with listening(box, 9203) as listener, box.tunnel("camera-25.roost:9203"):
        listener.accept()[0].close()
    assert "camera-25" not in dialled(box), f"{client} could be dialled: nothing holds any more"


def exchange(end: End) -> None:
    """A question and its answer, and no other payload."""
    end.sock.sendall(b"ECHO there?\n")
    end.expect(b"ECHO there?\n")


@contextmanager
def connected(box: AgentLab) -> Iterator[End]:
    """The one client of `telemetry`, which understands what it is told in band."""
    with box.dial(TELEMETRY) as sock:
        sock.settimeout(10)
        yield End(sock, Recipient.CLIENT)
    box.wait(lambda: box.connections("telemetry") == [], "it is gone")


def test_figure_25_a_client_that_was_dialled_in_vain_is_told_in_band_when_it_connects(dialling: Dialling) -> None:
    box, client = dialling.box, dialling.client
    for _ in range(2):
        box.ask(f"{client}:9")
    assert dialled(box)[client]["stay"] == "due"
    with connected(box) as end:
        assert end.frame() == Frame(Stay(), to=Recipient.CLIENT)
        exchange(end)
        box.wait(lambda: dialled(box)[client]["stay"] == "told", "it counts as told")
    with connected(box) as end:
        exchange(end)
        exchange(end)
        assert not end.frames, "once is enough"
    with listening(box, 9204) as listener, box.tunnel(f"{client}:9204"):
        listener.accept()[0].close()
    assert client not in dialled(box)


def test_figure_25_a_client_that_gets_its_name_in_its_sleep_is_told_when_it_wakes(dialling: Dialling) -> None:
    box = dialling.box

    def call_it(name: str) -> None:
        (row,) = box.connections("telemetry")
        assert box.daemon.http("PUT", f"/v1/connections/{row['id']}/name", json={"name": name}).is_success

    with connected(box) as end:
        exchange(end)
        call_it("camera-26")
    for _ in range(2):
        box.ask("camera-26.roost:9")
    with connected(box) as end:
        exchange(end)
        box.wait(lambda: [row["state"] for row in box.connections("telemetry")] == ["IDLE"], "it sleeps")
        call_it("camera-26")
        assert dialled(box)["camera-26"]["stay"] == "due"
        exchange(end)
        assert end.frame() == Frame(Stay(), to=Recipient.CLIENT)
        box.wait(lambda: dialled(box)["camera-26"]["stay"] == "told", "it counts as told")


# -- wait, and refuse: figure 6 ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def waiting() -> Iterator[AgentLab]:
    with Lab(clients=20, nat=False) as lab:
        yield AgentLab(lab, absent={"steps": ["wait"], "wait": "3s"})


def test_figure_6_a_server_waits_for_a_client_by_its_address(waiting: AgentLab) -> None:
    answer: list[socket.socket] = []
    where = f"{waiting.lab.address('wan', 'eth0')}:23456"
    thread = threading.Thread(target=lambda: answer.append(waiting.tunnel(where)))
    thread.start()
    time.sleep(0.3)  # the request must be there before the client
    assert not answer
    with connect_as(waiting, TELEMETRY, 23456) as client:
        thread.join(10)
        with answer[0] as server:
            server.sendall(b"at last\n")
            assert b"at last\n" in receive_until(client, b"at last\n")


def receive_until(sock: socket.socket, end: bytes) -> bytes:
    got = b""
    while end not in got and (data := sock.recv(4096)):
        got += data
    return got


def test_figure_6_a_server_waits_for_a_client_by_its_name(waiting: AgentLab) -> None:
    answer: list[socket.socket] = []
    thread = threading.Thread(target=lambda: answer.append(waiting.tunnel("camera-6.roost")))
    thread.start()
    with waiting.dial(TELEMETRY) as client:
        client.settimeout(10)
        waiting.wait(lambda: len(waiting.connections("telemetry")) == 1, "it is connected")
        (row,) = waiting.connections("telemetry")
        assert not answer
        assert waiting.daemon.http("PUT", f"/v1/connections/{row['id']}/name", json={"name": "camera-6"}).is_success
        thread.join(10)
        with answer[0] as server:
            server.sendall(b"at last\n")
            assert b"at last\n" in receive_until(client, b"at last\n")


def test_figure_6_a_server_waits_no_longer_than_it_may(waiting: AgentLab) -> None:
    for ask in (waiting.ask, waiting.ask_by_socks):
        for target in (NOBODY, "nobody.roost"):
            began = time.monotonic()
            code, _, said = ask(target)
            assert code != 0
            assert ("504" in said) or ("(6)" in said)
            assert 2.5 < time.monotonic() - began < 10


def test_a_rule_says_what_is_done_for_whom(waiting: AgentLab) -> None:
    here = waiting.lab.address("wan", "eth0")

    def put(name: str, **rule: object) -> httpx.Response:
        return waiting.daemon.http("PUT", f"/v1/policy/rules/{name}", json={"rule": rule, "who": "test"})

    try:
        assert put("lamps", client="lamp-*", when_absent=[]).is_success
        assert put("home", network=f"{here}/32", when_absent="none").is_success
        for target in ("lamp-7.roost", f"{here}:9"):
            assert "404" in waiting.ask(target)[2], target
        for target in ("lock-7.roost", NOBODY):
            assert "504" in waiting.ask(target)[2], target
        refused = put("lamps", client="lamp-*", when_absent=["dial"])
        said = refused.json()["error"]
        assert (refused.status_code, "[absent] steps has wait: nothing is done" in said) == (422, True), said
    finally:
        for name in ("lamps", "home"):
            waiting.daemon.http("DELETE", f"/v1/policy/rules/{name}", json={"who": "test"})


def test_a_server_that_went_away_while_it_waited_gets_no_client(waiting: AgentLab) -> None:
    with waiting.lab.enter("lan"):
        server = socket.create_connection((waiting.lab.address("box", "lan0"), 3128), 5)
    where = f"{waiting.lab.address('wan', 'eth0')}:23457"
    server.sendall(f"CONNECT {where} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    time.sleep(0.3)
    server.close()
    with connect_as(waiting, TELEMETRY, 23457):
        waiting.wait_for_state("telemetry", "IDLE")
        events = waiting.daemon.get(f"/v1/connections/{where}")["history"]
        assert "server-attach" not in [row["cause"] for row in events]


def test_figure_6_without_a_step_a_server_is_refused_at_once() -> None:
    with Lab(clients=20) as lab:
        box = AgentLab(lab, absent={"steps": []})
        for ask, words in ((box.ask, "404"), (box.ask_by_socks, "(4)")):
            began = time.monotonic()
            assert words in ask(NOBODY)[2]
            assert time.monotonic() - began < 3
