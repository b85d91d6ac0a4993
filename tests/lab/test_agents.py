# SPDX-License-Identifier: Apache-2.0
"""Clients that keep no connection themselves: agents, with real programs at all ends (issue 3, figures 16 to 20)."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from appliance.agent.roost_agent import encode
from appliance.lab import Lab
from appliance.lab.processes import python_environment
from examples.in_band_frames import Name, Recipient
from tests.certificates import make_certificate
from tests.lab.agent_lab import AGENTS, HELD, PYTHON, TELEMETRY, TOKEN, TRUSTING, WEB, AgentLab
from tests.lab.engine_lab import receive
from tests.lab.in_band_lab import OK, REFUSED, End

PAGE = b"thermostat: 21.5\n"


@pytest.fixture(scope="module")
def whole_box() -> Iterator[AgentLab]:
    with Lab(clients=20) as lab:
        box = AgentLab(lab, absent={"agent_timeout": "4s"}, telemetry={"in_band_clients": ["name"]})
        box.web_client()
        yield box


@pytest.fixture
def box(whole_box: AgentLab) -> Iterator[AgentLab]:
    yield whole_box
    whole_box.end_agents()


def hello(token: object = TOKEN, clients: object = None, version: object = 1) -> bytes:
    return encode({"roost-agent": version, "token": token, "clients": {"meter-9": {}} if clients is None else clients})


def test_figure_19_the_control_connection_sleeps_and_outlives_every_session(box: AgentLab) -> None:
    agent = box.agent("--accepting", f"camera={WEB}")
    box.wait_for_agent("camera")
    control = box.spoken_for()["camera"]["agent"]
    for _ in range(3):
        box.to_sleep("camera")
        assert box.ask("camera.roost") == (0, PAGE, "")
        box.wait(lambda: len(box.connections("agents")) == 1, "the data connection is closed, the control one is not")
    box.to_sleep("camera")
    assert box.ask_by_socks("camera.roost") == (0, PAGE, "")
    assert box.spoken_for()["camera"]["agent"] == control, "the same control connection"
    agent.terminate()
    box.wait(lambda: not box.spoken_for()["camera"]["connected"], "the agent is gone")
    code, _, said = box.ask("camera.roost")
    assert (code != 0, "404" in said) == (True, True)


def test_figure_20_bytes_of_any_number_and_order_of_ends_go_through_an_accepting_client(box: AgentLab) -> None:
    big = os.urandom(3_000_000)
    listener = echo_after(box, 9100, big)
    box.agent("--accepting", "camera=127.0.0.1:9100")
    box.wait_for_agent("camera")
    with box.tunnel("camera.roost", early=b"early ") as server:
        server.sendall(b"bird\n")
        assert receive(server, len(big) + 11) == b"early bird\n" + big
    box.wait(lambda: len(box.connections("agents")) == 1, "the server left first: the agent is told, and closes")
    with box.tunnel("camera.roost") as server:
        server.sendall(b"bye\n")
        assert receive(server, len(big) + 4) == b"bye\n" + big
        assert server.recv(1) == b"", "the client left first"
    box.wait(lambda: len(box.connections("agents")) == 1, "the data connection is closed")
    listener.close()


def echo_after(box: AgentLab, port: int, more: bytes) -> socket.socket:
    """A client that sends a line back, then more; then it leaves if the line was "bye"."""
    with box.lab.enter("wan"):
        listener = socket.create_server(("127.0.0.1", port))

    def serve() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            with client, client.makefile("rb") as lines:
                line = lines.readline()
                client.sendall(line + more)
                if line != b"bye\n":
                    client.recv(1)

    threading.Thread(target=serve, daemon=True).start()
    return listener


def test_figure_20_all_that_a_server_said_before_it_left_reaches_the_client(box: AgentLab) -> None:
    """The server sends and closes at once; the client's connection may end only after the last byte."""
    with box.lab.enter("wan"):
        listener = socket.create_server(("127.0.0.1", 9101))
    box.agent("--accepting", "camera=9101")
    box.wait_for_agent("camera")
    sent = os.urandom(2_000_000)

    def serve() -> None:
        with box.tunnel("camera.roost", early=sent[:1000]) as server:
            server.sendall(sent[1000:])

    for _ in range(3):
        serving = threading.Thread(target=serve)
        serving.start()
        client, _ = listener.accept()
        with client:
            client.settimeout(20)
            assert receive(client, len(sent) + 1) == sent
        serving.join()
        box.wait(lambda: len(box.connections("agents")) == 1, "the session is over")
    listener.close()


def test_figure_20_a_client_that_reads_late_gets_all_that_a_server_said_before_it_left(box: AgentLab) -> None:
    """The agent learns that the server is gone while it still has bytes of it, and the kernels have more."""
    box.lab.sysctl("wan", "net.ipv4.tcp_wmem", "4096 16384 32768")  # what the agent's kernel takes off its hands
    with box.lab.enter("wan"):
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        listener.bind(("127.0.0.1", 9104))
        listener.listen()
    box.agent("--accepting", "camera=9104")
    box.wait_for_agent("camera")
    box.to_sleep("camera")
    control = box.spoken_for()["camera"]["agent"]
    sent = os.urandom(300_000)
    with box.tunnel("camera.roost") as server:
        server.sendall(sent)
    client, _ = listener.accept()

    def attached() -> int:
        """How often the control connection was: to ask for the client, and to say that the server is gone."""
        history = box.daemon.get(f"/v1/connections/{control}")["history"]
        return [row["cause"] for row in history].count("server-attach")

    box.wait(lambda: attached() == 2 and box.control_state("camera") != "ACTIVE", "the agent was told")
    with client:
        client.settimeout(20)
        assert receive(client, len(sent) + 1) == sent
    box.wait(lambda: len(box.connections("agents")) == 1, "the session is over")
    listener.close()


def test_an_agent_and_its_data_connections_may_come_by_ipv6(box: AgentLab) -> None:
    agent = box.agent("--accepting", f"camera={WEB}", family=6)
    box.wait_for_agent("camera")
    assert box.spoken_for()["camera"]["agent"].startswith("[fd00:")
    for _ in range(2):
        assert box.ask("camera.roost") == (0, PAGE, "")
        box.wait(lambda: len(box.connections("agents6")) == 1, "the session is over")
    agent.kill()
    box.wait(lambda: box.connections("agents6") == [], "it is gone")
    box.wait_for_nobody()


def test_figure_18_a_server_lets_an_initiating_client_connect_by_a_command(box: AgentLab) -> None:
    """curl is the client; its request is answered by the server that asked, not by one of the service."""
    command = f"curl -s -o {box.lab.workspace}/checked-in http://{box.appliance(TRUSTING)}/check-in"
    box.agent("--initiating", f"meter-1@trusting=run:{command}")
    box.wait_for_agent("meter-1")
    box.to_sleep("meter-1")
    with box.tunnel("meter-1.roost") as server:
        request = b""
        while b"\r\n\r\n" not in request:
            request += server.recv(1000)
        assert request.startswith(b"GET /check-in HTTP/1.1\r\n")
        server.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
        box.wait(lambda: (box.lab.workspace / "checked-in").exists(), "curl has its answer")
        assert receive(server, 1) == b"", "the client has closed its connection"
    assert (box.lab.workspace / "checked-in").read_bytes() == b"hello"
    box.wait(lambda: box.connections("trusting") == [], "only the client's connection is torn down")
    assert box.spoken_for()["meter-1"]["connected"]


@pytest.mark.parametrize("way", ["unix", "signal"])
def test_figure_17_a_client_that_is_told_connects_and_a_connected_one_is_not_told_again(
    box: AgentLab, way: str, tmp_path: Path
) -> None:
    """The client is an ordinary program with a service of its own, which its connection is taken from at once."""
    client = box.lab.run("wan", [PYTHON, "-c", CLIENT, way, str(tmp_path), box.lab.address("box", "wan0"),
                                 str(TELEMETRY)], stdout=subprocess.PIPE)  # fmt: skip
    assert client.popen.stdout is not None
    assert client.popen.stdout.readline() == b"ready\n"
    action = f"unix:{tmp_path}/socket" if way == "unix" else f"signal:USR1:{tmp_path}/pid"
    box.agent("--initiating", f"meter-2@telemetry={action}")
    box.wait_for_agent("meter-2")
    box.to_sleep("meter-2")
    for _ in range(2):
        with box.tunnel("meter-2.roost") as server:
            server.sendall(b"reading?\n")
            assert receive(server, 9) == b"reading?\n"
        box.wait_for_state("telemetry", "STANDBY", "IDLE")
    assert client.popen.stdout.readline() == b"told\n"
    assert len(box.connections("telemetry")) == 1, "the second server got the connection that was there"
    (row,) = box.connections("telemetry")
    assert row["name"] == "meter-2"
    client.kill()
    box.wait(lambda: box.connections("telemetry") == [], "the client is gone")


CLIENT = """
import os, signal, socket, sys, threading
way, folder, host, port = sys.argv[1:]
def serve():
    with socket.create_connection((host, int(port))) as sock:
        while data := sock.recv(100):
            if b"reading" in data:
                sock.sendall(data)
def connect(*_):
    print("told", flush=True)
    threading.Thread(target=serve, daemon=True).start()
if way == "unix":
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(folder + "/socket")
    listener.listen()
else:
    signal.signal(signal.SIGUSR1, connect)
    open(folder + "/pid", "w").write(str(os.getpid()))
print("ready", flush=True)
while True:
    if way == "unix":
        asked = listener.accept()[0].recv(100)
        assert asked == b"connect meter-2\\n", asked
        connect()
    else:
        signal.pause()
"""


def test_two_names_of_one_agent_are_two_clients(box: AgentLab) -> None:
    box.web_client(8181, {"status": b"the other\n"})
    box.agent("--accepting", f"camera-a={WEB}", "--accepting", "camera-b=8181")
    box.wait_for_agent("camera-a", "camera-b")
    assert len({box.spoken_for()[name]["agent"] for name in ("camera-a", "camera-b")}) == 1
    for _ in range(2):
        curls = [box.start_curl("--proxytunnel", "--proxy", f"http://{box.proxy}", f"http://{name}.roost/status")
                 for name in ("camera-a", "camera-b", "camera-a", "camera-b")]  # fmt: skip
        assert [curl.popen.communicate(timeout=40)[0] for curl in curls] == [PAGE, b"the other\n"] * 2
        box.wait(lambda: len(box.connections("agents")) == 1, "the sessions are over")
        box.to_sleep("camera-a")


def test_a_neighbour_of_the_agents_that_connects_first_is_not_the_client(box: AgentLab) -> None:
    """It has the client's address, and is there before the client: what it says reaches no server."""
    told, go = box.lab.workspace / "told", box.lab.workspace / "go"
    told.unlink(missing_ok=True)
    to = box.appliance(HELD).replace(":", "/")
    connect = f"exec 3<>/dev/tcp/{to}; echo $ROOST_SAY >&3; echo client >&3; read -r bye <&3"
    script = f"echo >{told}; until test -e {go}; do sleep 0.05; done; {connect}"
    box.agent("--initiating", f'meter-7@held=run:bash -c "{script}"')
    box.wait_for_agent("meter-7")
    found: list[bytes] = []

    def ask() -> None:
        with box.tunnel("meter-7.roost") as server:
            found.append(receive(server, 7))
            server.sendall(b"bye\n")

    asking = threading.Thread(target=ask)
    asking.start()
    box.wait(told.exists, "the client was told")
    with box.dial(HELD) as neighbour, box.dial(HELD) as guessing:
        neighbour.sendall(b"neighb\n")
        guessing.sendall(b"x" * 22 + b"\nguess\n")
        box.wait(lambda: len(box.connections("held")) == 2, "they are there")
        go.touch()
        asking.join(20)
    assert found == [b"client\n"]
    box.wait(lambda: box.connections("held") == [], "they are gone")


def test_two_clients_behind_one_address_that_connect_by_themselves_are_told_one_after_the_other(box: AgentLab) -> None:
    commands = [f"curl -s http://{box.appliance(TRUSTING)}/{name}" for name in ("one", "two")]
    box.agent("--initiating", f"meter-one@trusting=run:{commands[0]}",
              "--initiating", f"meter-two@trusting=run:{commands[1]}")  # fmt: skip
    box.wait_for_agent("meter-one", "meter-two")
    found: dict[str, bytes] = {}

    def ask(name: str) -> None:
        with box.tunnel(f"meter-{name}.roost") as server:
            found[name] = server.recv(1000).split(b" ")[1]
            server.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")

    threads = [threading.Thread(target=ask, args=(name,)) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert found == {"one": b"/one", "two": b"/two"}


def test_figure_16_the_reference_client_connects_again_whatever_ends_its_connection(box: AgentLab) -> None:
    program = str(Path(__file__).resolve().parents[2] / "examples" / "persistent_client.py")
    client = box.lab.run("wan", [PYTHON, "-I", program, box.lab.address("box", "wan0"), str(TELEMETRY)],
                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
    ids: set[int] = set()
    for _ in range(3):
        box.wait(lambda: any(row["id"] not in ids for row in box.connections("telemetry")), "it is connected")
        box.wait_for_state("telemetry", "IDLE")
        (row,) = box.connections("telemetry")
        ids.add(row["id"])
        with box.tunnel(row["client"]) as server:
            server.sendall(b"ping\n")
            assert receive(server, 5) == b"pong\n"
        box.daemon.act(row["id"], "close")
    assert client.running
    client.kill()
    box.wait(lambda: box.connections("telemetry") == [], "it is gone")


def test_a_client_that_gave_itself_the_name_of_an_agents_client_is_not_reached_by_it(box: AgentLab) -> None:
    with box.dial(TELEMETRY) as sock:
        client = End(sock, Recipient.CLIENT)
        assert client.ask(Name("camera-7")) == OK
        box.agent("--accepting", f"camera-7={WEB}")
        box.wait_for_agent("camera-7")
        assert box.ask("camera-7.roost") == (0, PAGE, "")
        assert client.ask(Name("camera-7")) == REFUSED
        assert box.ask("camera-7.roost") == (0, PAGE, "")
    box.wait(lambda: box.connections("telemetry") == [], "it is gone")


# -- what goes wrong --------------------------------------------------------------------------------------------------

GARBAGE = {
    "a wrong token": hello("no token"),
    "no token": encode({"roost-agent": 1, "clients": {"camera": {}}}),
    "a token that is no text": hello(7),
    "another version": hello(version=2),
    "a client that is not its own": hello(clients={"safe": {}}),
    "no clients": hello(clients={}),
    "clients that are none": hello(clients=["camera"]),
    "a name that is none": hello(clients={"-": {}}),
    "a service that is none": hello(clients={"camera": {"service": "agents"}}),
    "a service that is no text": hello(clients={"camera": {"service": ["telemetry"]}}),
    "too many clients": hello(clients={f"camera{n}": {} for n in range(65)}),
    "a nonce of nobody": encode({"roost-agent": 1, "nonce": "x" * 22}),
    "a nonce that is no text": encode({"roost-agent": 1, "nonce": []}),
    "HTTP": b"GET / HTTP/1.1\r\n\r\n",
    "TLS where there is none": bytes.fromhex("1603010200010001fc0303"),
    "no JSON": b"\xff\xfe\n",
    "no object": b"[1]\n",
    "deep JSON": b"[" * 15000 + b"\n",
    "a line without an end": b'{"roost-agent": 1, ' + b" " * 20_000,
}


@pytest.mark.parametrize("what", GARBAGE)
def test_who_is_no_agent_learns_nothing(box: AgentLab, what: str) -> None:
    before = box.spoken_for()
    with box.dial(AGENTS) as sock:
        sock.settimeout(10)
        sock.sendall(GARBAGE[what])
        with pytest.raises(ConnectionResetError):
            sock.recv(1)
    assert box.spoken_for() == before
    box.wait(lambda: all(row["state"] != "ACTIVE" for row in box.connections("agents")), "nothing is left of it")


def test_who_says_nothing_or_half_a_line_is_reset_when_it_falls_quiet(box: AgentLab) -> None:
    for said in (b"", hello()[:20]):
        with box.dial(AGENTS) as sock:
            sock.settimeout(15)
            sock.sendall(said)
            with pytest.raises(ConnectionResetError):
                sock.recv(1)


def test_an_agent_that_does_not_answer_costs_the_server_its_time_alone(box: AgentLab) -> None:
    with box.dial(AGENTS) as sock:
        sock.sendall(hello())
        assert json.loads(sock.makefile().readline()) == {"welcome": 1, "stay": []}
        code, _, said = box.ask("meter-9.roost", "--max-time", "25")
        assert (code != 0, "504" in said) == (True, True)
        code, _, said = box.ask_by_socks("meter-9.roost")
        assert (code, "(6)" in said) == (97, True)


def test_a_client_that_is_not_there_is_said_at_once(box: AgentLab) -> None:
    box.agent("--accepting", "camera-off=9", "--initiating", "meter-off@held=run:/nonexistent")
    box.wait_for_agent("camera-off", "meter-off")
    for name in ("camera-off", "meter-off"):
        code, _, said = box.ask(f"{name}.roost")
        assert (code != 0, "502" in said) == (True, True)
        code, _, said = box.ask_by_socks(f"{name}.roost")
        assert (code, "(5)" in said) == (97, True)


def test_an_agent_that_is_killed_in_a_session_is_noticed_at_both_ends_and_comes_again(box: AgentLab) -> None:
    with box.lab.enter("wan"):
        listener = socket.create_server(("127.0.0.1", 9102))
    agent = box.agent("--accepting", "camera=9102")
    box.wait_for_agent("camera")
    with box.tunnel("camera.roost") as server:
        client, _ = listener.accept()
        server.sendall(b"x")
        assert client.recv(1) == b"x"
        agent.kill()
        assert client.recv(1) == b""
        with contextlib.suppress(ConnectionResetError):
            assert server.recv(1) == b""
    box.wait_for_nobody()
    agent = box.agent("--accepting", f"camera={WEB}")
    box.wait_for_agent("camera")
    assert box.ask("camera.roost") == (0, PAGE, "")
    listener.close()


def test_an_agent_is_found_again_by_the_next_daemon_asleep_or_not(box: AgentLab) -> None:
    box.agent("--accepting", f"camera={WEB}")
    box.wait_for_agent("camera")
    for end in (box.daemon.kill, box.daemon.terminate):
        box.to_sleep("camera")
        control = box.spoken_for()["camera"]["agent"]
        end()
        box.daemon.start()
        assert box.spoken_for()["camera"] | {"since_ms": 0} == {
            "name": "camera", "agent": control, "id": box.spoken_for()["camera"]["id"], "connected": True,
            "connects_to": None, "stay": False, "since_ms": 0}  # fmt: skip
        assert box.ask("camera.roost") == (0, PAGE, "")
        box.wait(lambda: len(box.connections("agents")) == 1, "the session is over")


def test_data_connections_of_sessions_that_a_shutdown_ended_are_closed(box: AgentLab) -> None:
    with box.lab.enter("wan"):
        listener = socket.create_server(("127.0.0.1", 9103))
    box.agent("--accepting", "camera=9103")
    box.wait_for_agent("camera")
    with box.tunnel("camera.roost") as server:
        client, _ = listener.accept()
        server.sendall(b"x")
        assert client.recv(1) == b"x"
        box.daemon.restart()
        client.settimeout(20)
        with contextlib.suppress(ConnectionResetError):
            assert client.recv(1) == b""
    box.wait(lambda: len(box.connections("agents")) == 1, "the control connection alone is left")
    listener.close()


def test_no_server_speaks_to_an_agent(box: AgentLab) -> None:
    box.agent("--accepting", f"camera={WEB}")
    box.wait_for_agent("camera")
    code, _, said = box.ask(box.spoken_for()["camera"]["agent"])
    assert (code != 0, "403" in said) == (True, True)


def test_a_held_client_that_speaks_and_that_nobody_asks_for_is_reset_in_time() -> None:
    with Lab(clients=20) as lab:
        box = AgentLab(lab, held={"connect_timeout": "500ms"})
        with box.dial(HELD) as silent, box.dial(HELD) as sock:
            sock.settimeout(10)
            sock.sendall(b"is anybody there?")
            with pytest.raises(ConnectionResetError):
                sock.recv(1)
            box.wait(lambda: [row["state"] for row in box.connections("held")] == ["IDLE"], "who is silent sleeps")
            (row,) = box.connections("held")
            with box.tunnel(row["client"]) as server:
                server.sendall(b"I am")
                assert silent.recv(4) == b"I am"


def test_an_agent_that_comes_back_by_another_connection_closes_its_earlier_one(box: AgentLab) -> None:
    with box.dial(AGENTS) as earlier:
        earlier.settimeout(20)
        earlier.sendall(hello())
        box.wait_for_agent("meter-9")
        box.to_sleep("meter-9")
        number = box.spoken_for()["meter-9"]["id"]
        with box.dial(AGENTS) as later:
            later.sendall(hello())
            box.wait(lambda: box.spoken_for()["meter-9"]["id"] > number, "the later one speaks for it")
            assert b"welcome" in earlier.recv(1000)
            with pytest.raises(ConnectionResetError):
                earlier.recv(1)
            box.wait(lambda: len(box.connections("agents")) == 1, "one connection is left")
            assert box.spoken_for()["meter-9"]["connected"]
            end = ("SLEEP", "CLOSED", "client-connect", box.spoken_for()["meter-9"]["id"])

            def history() -> list[tuple[Any, ...]]:
                rows = [row for row in box.daemon.get("/v1/history?limit=100") if row["id"] == number]
                return [(row["from"], row["to"], row["cause"], row.get("successor")) for row in rows]

            box.wait(lambda: history()[-1:] == [end], "history names its successor")


def test_no_program_of_this_machine_passes_for_a_held_clients_link(box: AgentLab) -> None:
    """An unprivileged one tries every listener on the loopback, as if it were the engine with that client's bytes."""
    with box.dial(HELD) as client:
        box.wait_for_state("held", "ACTIVE", "STANDBY", "IDLE")
        (row,) = box.connections("held")
        sockets = box.lab.run("box", ["ss", "-4tlnH", "src", "127.0.0.0/8"], stdout=subprocess.PIPE)
        listeners = sockets.popen.communicate(timeout=20)[0].decode().splitlines()
        address, _, port = row["client"].rpartition(":")
        header = f"PROXY TCP4 {address} {box.lab.address('box', 'wan0')} {port} {HELD}\r\n"
        program = [PYTHON, "-c", IMPOSTOR, header, *(line.split()[3].rpartition(":")[2] for line in listeners)]
        argv = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--", *program]
        impostor = box.lab.run("box", argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert impostor.popen.stdout is not None
        assert impostor.popen.stdout.read(5) == b"tried"
        with box.tunnel(row["client"]) as server:
            client.sendall(b"mine")
            assert receive(server, 4) == b"mine"
            server.sendall(b"for you")
            assert receive(client, 7) == b"for you"
        impostor.close()


IMPOSTOR = """
import contextlib, os, socket, sys
header, *ports = sys.argv[1:]
links = []
for port in ports:
    with contextlib.suppress(OSError):
        link = socket.create_connection(("127.0.0.1", int(port)), 5)
        link.sendall(header.encode() + b"forged")
        link.shutdown(socket.SHUT_WR)
        links.append(link)
        link.settimeout(1)
        with contextlib.suppress(OSError):
            link.recv(1)
os.write(1, b"tried")
sys.stdin.read()
"""


# -- TLS --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_certificate(tmp_path_factory.mktemp("tls"))


def test_an_agent_with_tls_sleeps_and_wakes_and_comes_again_after_a_crash(certificate: tuple[Path, Path]) -> None:
    with Lab(clients=20) as lab:
        box = AgentLab(lab, agents={"certificate": str(certificate[0]), "private_key": str(certificate[1])})
        box.web_client()
        tls = ["--ca", str(certificate[0]), "--server-name", "roost.test"]
        agent = box.agent("--accepting", f"camera={WEB}", *tls)
        box.wait_for_agent("camera")
        control = box.spoken_for()["camera"]["agent"]
        for _ in range(3):
            box.to_sleep("camera")
            assert box.ask("camera.roost") == (0, PAGE, "")
            box.wait(lambda: len(box.connections("agents")) == 1, "the session is over")
        assert box.spoken_for()["camera"]["agent"] == control
        box.to_sleep("camera")
        box.daemon.kill()
        box.daemon.start()
        assert box.ask("camera.roost") == (0, PAGE, ""), "its session is forgotten: it is reset, comes again, is asked"
        assert box.spoken_for()["camera"]["agent"] != control
        with box.dial(AGENTS) as sock:
            sock.sendall(hello())
            sock.settimeout(10)
            with pytest.raises(ConnectionResetError):
                sock.recv(1)
        agent.terminate()
        stranger = box.agent("--accepting", f"camera={WEB}", "--ca", str(certificate[0]), "--server-name", "other.test")
        box.wait(lambda: "certificate verify failed" in box.log(), "an agent that cannot verify does not say its token")
        stranger.terminate()


# -- people -----------------------------------------------------------------------------------------------------------


def test_the_operator_sees_who_is_spoken_for(box: AgentLab) -> None:
    agent = box.agent("--accepting", f"camera={WEB}", "--initiating", "meter-3@telemetry=run:true")
    box.wait_for_agent("camera", "meter-3")
    argv = [sys.executable, "-m", "control.cli.main", "agents", "--socket", str(box.daemon.control_socket)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, env=python_environment(), check=True)
    lines = {line.split()[0]: line for line in done.stdout.splitlines()}
    assert "telemetry" in lines["meter-3"]
    assert box.spoken_for()["camera"]["agent"] in lines["camera"]
    agent.popen.send_signal(signal.SIGTERM)
    assert agent.wait(10) == 0, "it ends in good order"
