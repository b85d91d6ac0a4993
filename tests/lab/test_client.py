# SPDX-License-Identifier: Apache-2.0
"""roost.client (control/client/) against a daemon and its API: what is answered, attach, events across ends of both."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NotRequired, get_args, get_origin, get_type_hints, is_typeddict

import pytest

import control.client
from appliance.lab import Lab, wait_until
from appliance.lab.processes import python_environment
from control.client import AsyncClient, AwayError, Client, Event, Events, RoostError, Stream, answers
from tests.certificates import make_certificate
from tests.lab.api_lab import API_PORT, ApiLab
from tests.lab.engine_lab import receive
from tests.mutants import ROOT


@pytest.fixture(scope="module")
def box(nat_free_lab: Lab) -> Iterator[ApiLab]:
    with ApiLab(nat_free_lab) as box:
        box.wait_for_api()
        yield box


def url_of(box: ApiLab) -> str:
    return f"http://{box.host}:{API_PORT}"


@contextmanager
def client_of(box: ApiLab, role: str = "admin") -> Iterator[Client]:
    """By the network: connections are made in the LAN."""
    with box.lab.enter("lan"), Client(url_of(box), token=box.token(role)) as client:
        yield client


SLEEPERS: list[tuple[socket.socket, str]] = []
"""A client goes down a second after it has spoken: so several do it at once, beforehand."""


def down(box: ApiLab, ahead: int = 9) -> tuple[socket.socket, str]:
    """A client that sleeps."""
    if not SLEEPERS:
        made = [box.client() for _ in range(ahead)]
        with Client(socket=str(box.daemon.control_socket)) as roost:
            job = roost.start_job("sleep", connections=[address for _, address in made])
            assert roost.wait_for_job(job["number"], 0.05)["done"] == ahead
        SLEEPERS.extend(made)
    return SLEEPERS.pop()


def fits(answer: Any, kind: Any, where: str = "") -> None:
    """An answer has the keys of its type, and no others."""
    if is_typeddict(kind):
        hints = get_type_hints(kind, include_extras=True)
        must = {key for key, one in hints.items() if get_origin(one) is not NotRequired}
        assert must <= set(answer) <= set(hints), f"{where}: {set(answer) ^ set(hints)}"
        for key, one in answer.items():
            hint = hints[key]
            fits(one, get_args(hint)[0] if get_origin(hint) is NotRequired else hint, f"{where}.{key}")
    elif get_origin(kind) is list:
        for one in answer:
            fits(one, get_args(kind)[0], where)
    elif get_origin(kind) is dict:
        for one in answer.values():
            fits(one, get_args(kind)[1], where)
    elif answer is not None:
        for one in get_args(kind):
            if is_typeddict(one) and isinstance(answer, Mapping):
                fits(answer, one, where)


def test_every_call_is_answered_as_its_type_says(box: ApiLab) -> None:
    _, address = down(box)
    with client_of(box) as roost:
        fits(roost.set_name(address, "Hall-1"), answers.Named)
        fits(roost.tag("hall-1", add=["winter"]), answers.Tags)
        fits(roost.tags(), list[answers.TagCount])
        fits(roost.tags_of("hall-1"), answers.Tags)
        fits(roost.status(), answers.Status)
        fits(roost.page(limit=1, state="SLEEP"), answers.Page)
        fits(list(roost.connections(tag="winter")), list[answers.Connection])
        assert [row["client"] for row in roost.connections(tag="winter")] == [address]
        assert list(roost.connections(limit=0)) == []
        fits(roost.show(address), answers.ConnectionInFull)
        fits(roost.explain("hall-1.roost"), answers.Explanation)
        fits(roost.wake(address), answers.Moved)
        assert [call(address)["state"] for call in (roost.idle, roost.sleep, roost.wake, roost.standby)] == [
            "IDLE", "SLEEP", "STANDBY", "STANDBY",
        ]  # fmt: skip
        fits(roost.offer(address), answers.Offer)
        fits(roost.set_rule("net", {"network": "192.0.2.0/24", "idle_quiet": "1h"}, why="a test"), answers.Changed)
        fits(roost.rules(), answers.Rules)
        fits(roost.rule("net"), answers.RuleInFull)
        fits(roost.policy(address), answers.ConnectionPolicy)
        fits(roost.explain_address("192.0.2.1", "lab4"), answers.AddressPolicy)
        fits(roost.try_rules('[[rule]]\nname = "net"\nidle_quiet = "5m"\n'), answers.Outcome)
        fits(roost.set_rules('[[rule]]\nname = "net"\nidle_quiet = "5m"\n'), answers.Changed)
        fits(roost.set_policy(address, {"idle_quiet": "5m"}), answers.Given)
        fits(roost.show(address), answers.ConnectionInFull)
        with pytest.raises(RoostError) as changed:
            roost.remove_rule("net", seen=1)
        assert changed.value.status == 409
        fits(roost.rollback(0), answers.Changed)
        fits(roost.rule_changes(limit=5), list[answers.RuleChange])
        fits(roost.history(limit=50), list[answers.Transition])
        fits(roost.attaches(), list[answers.Attach])
        fits(roost.snapshots(), list[answers.Snapshot])
        fits(roost.audit(who=box.names["admin"]), list[answers.Change])
        fits((roost.agents(), roost.dialled()), tuple)
        fits(roost.make_token("one-more", "server", 60, ["lab4"]), answers.MadeToken)
        fits(roost.tokens(), list[answers.Token])
        fits(roost.revoke_token("one-more"), answers.Revoked)
        fits(roost.remove_name(address), answers.Forgotten)
        assert roost.close_connection(address)["state"] == "CLOSED"


def test_a_job_is_waited_for(box: ApiLab) -> None:
    _, address = box.client()
    with client_of(box, "operator") as roost:
        job = roost.wait_for_job(roost.start_job("sleep", connections=[address], rate=100)["number"], 0.05)
        fits(job, answers.Job)
        assert (job["state"], job["found"], job["done"]) == ("done", 1, 1)
        assert job in roost.jobs()
        assert roost.cancel_job(job["number"]) == job
        job = roost.start_job("wake", client=address)
        assert roost.wait_for_job(job["number"], 0.05)["done"] == 1
        assert roost.show(address)["state"] == "STANDBY"


def test_what_is_refused_has_the_sentence_and_the_status(box: ApiLab) -> None:
    _, address = box.client()
    with client_of(box, "viewer") as roost:
        for ask, status, sentence in (
            (lambda: roost.show("4711"), 404, 'no connection "4711"'),
            (lambda: roost.close_connection(address), 403, "which may not do this"),
            (lambda: list(roost.connections(network="nonsense")), 400, "nonsense"),
            (lambda: roost.attach(address), 403, "which may not do this"),
        ):  # fmt: skip
            with pytest.raises(RoostError) as refused:
                ask()
            assert (refused.value.status, sentence in str(refused.value)) == (status, True)
    with box.lab.enter("lan"):
        for token, status in (("", 401), ("roost_nothing", 401)):
            with Client(url_of(box), token=token) as roost, pytest.raises(RoostError) as refused:
                roost.status()
            assert refused.value.status == status
        with Client(f"http://{box.host}:1", token="x", retries=0) as roost, pytest.raises(AwayError) as away:
            roost.status()
        assert isinstance(away.value.cause, ConnectionRefusedError)


def test_attach_by_the_network_and_by_the_socket(box: ApiLab) -> None:
    ways: tuple[tuple[str, Callable[[], Client]], ...] = (
        ("lan", lambda: Client(url_of(box), token=box.token("operator"))),
        ("box", lambda: Client(socket=str(box.daemon.control_socket))),
    )
    for space, make in ways:
        client, address = down(box)
        with box.lab.enter(space), make() as roost:
            with roost.attach(address) as stream:
                client.sendall(b"first")
                assert stream.recv(100) == b"first"
                stream.sendall(b"status")
                assert receive(client, 6) == b"status"
                big = os.urandom(400_000)
                client.sendall(big[:200_000])
                stream.sendall(big[200_000:])
                assert receive(client, 200_000) == big[200_000:]
                assert all_of(stream, 200_000) == big[:200_000]
                stream.sendall(b"last")
                assert stream.send_eof()
                assert stream.recv(1) == b""
            assert receive(client, 4) == b"last"
            wait_until(partial(is_standby, box, address), 5, "it is let go")
            with roost.attach(address) as stream:
                client.sendall(b"bye")
                client.shutdown(socket.SHUT_WR)
                assert stream.recv(100) == b"bye"
                assert stream.recv(1) == b""
                stream.sendall(b"good night")
                assert receive(client, 10) == b"good night"
            with pytest.raises(RoostError) as refused:
                roost.attach("nobody.roost")
            assert (refused.value.status, "no such client connection" in str(refused.value)) == (404, True)
            _, gone = box.client()
            roost.set_name(gone, f"gone-{space}")
            roost.close_connection(gone)
            with pytest.raises(RoostError, match="the client of this name is not connected") as refused:
                roost.attach(f"gone-{space}.roost")
            assert refused.value.status == 502


def all_of(stream: Stream, length: int) -> bytes:
    got = b""
    while len(got) < length and (data := stream.recv()):
        got += data
    return got


def is_standby(box: ApiLab, address: str) -> bool:
    return bool(box.daemon.get(f"/v1/connections/{address}")["state"] == "STANDBY")


def test_attach_in_an_event_loop(box: ApiLab) -> None:
    async def attach(roost: AsyncClient, client: socket.socket, address: str) -> None:
        async with roost, roost.attach(address) as stream:
            client.sendall(b"first")
            assert await stream.recv(100) == b"first"
            big = os.urandom(400_000)
            sent = asyncio.create_task(stream.sendall(big))
            assert await asyncio.to_thread(receive, client, len(big)) == big
            await sent
            assert stream.send_eof()
            assert await stream.recv(1) == b""
            with pytest.raises(RoostError, match="no such client connection"):
                async with roost.attach("nobody.roost"):
                    pass

    ways: tuple[tuple[str, Callable[[], AsyncClient]], ...] = (
        ("lan", lambda: AsyncClient(url_of(box), token=box.token("operator"))),
        ("box", lambda: AsyncClient(socket=str(box.daemon.control_socket))),
    )
    for space, make in ways:
        client, address = down(box)
        with box.lab.enter(space):
            asyncio.run(attach(make(), client, address))


def spoken(box: ApiLab, space: str, *words: str, said: bytes = b"") -> subprocess.Popen[bytes]:
    """`roost attach`, told something, whose stdin goes on."""
    with box.lab.enter(space):
        argv, pipe = [sys.executable, "-m", "control.cli.main", "attach", *words], subprocess.PIPE
        process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, env=python_environment())
    assert process.stdin is not None
    process.stdin.write(said)
    process.stdin.flush()
    return process


def test_the_command_is_stdin_and_stdout_to_a_client(box: ApiLab, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(box.token("operator"))
    by_url = ("--url", url_of(box), "--token-file", str(tmp_path / "token"))
    by_socket = ("--socket", str(box.daemon.control_socket))
    big = bytes(range(256)) * 2000
    for space, where in (("lan", by_url), ("box", by_socket)):
        client, address = down(box)
        command = spoken(box, space, address, *where, "--wait", "0.3", said=b"status\n")
        assert receive(client, 7) == b"status\n"
        client.sendall(big)
        out, err = command.communicate(big[::-1], 20)
        assert (command.returncode, err, out == big) == (0, b"", True)
        assert receive(client, len(big)) == big[::-1]
        wait_until(partial(is_standby, box, address), 5, "it is let go")
    refused = spoken(box, "lan", "nobody.roost", *by_url)
    _, err = refused.communicate(timeout=20)
    assert (refused.returncode, b"Error: no such client connection" in err) == (1, True)
    client, address = down(box)
    command = spoken(box, "lan", address, *by_url, said=b"status\n")
    assert receive(client, 7) == b"status\n"
    command.send_signal(signal.SIGINT)
    assert (command.wait(10), command.communicate()) == (130, (b"", b""))
    client, address = down(box)
    command = spoken(box, "lan", address, *by_url, said=b"status\n")
    assert receive(client, 7) == b"status\n"
    client.sendall(b"bye")
    client.close()
    assert (command.wait(10), command.communicate()) == (0, (b"bye", b""))


class EnoughError(Exception):
    """Of what goes on for ever."""


def test_what_the_guide_shows_works(box: ApiLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client, address = down(box)
    assert box.daemon.http("PUT", f"/v1/connections/{address}/name", json={"name": "thermostat-17"}).is_success
    _, closed = box.client()
    box.daemon.act(closed, "close")
    (tmp_path / "ann.token").write_text(box.token("operator") + "\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "roost", types.ModuleType("roost"))
    monkeypatch.setitem(sys.modules, "roost.client", control.client)
    printed: list[tuple[Any, ...]] = []

    def print_(*words: Any) -> None:
        printed.append(words)
        if words[1:2] == (closed,):
            raise EnoughError

    def answer() -> None:
        for _ in range(2):
            assert receive(client, 7) == b"status\n"
            client.sendall(b"warm")

    thread = threading.Thread(target=answer)
    thread.start()
    names: dict[str, Any] = {"print": print_}
    text = (ROOT / "docs" / "client.md").read_text(encoding="utf-8")
    for written, real in (("https://box.example:8443", url_of(box)), ("events(to", "events(last=1000, to")):
        assert written in text
        text = text.replace(written, real)
    with box.lab.enter("lan"):
        for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
            with suppress(EnoughError):
                exec(block, names)
    thread.join(10)
    assert [words for words in printed if words[0] == b"warm"] == [(b"warm",)] * 2
    assert (1,) in printed, "the job has put it to sleep"
    assert [words[1] for words in printed if isinstance(words[0], str) and words[0].isdecimal()][-1] == closed
    assert [str(words[1]) for words in printed if words[0] == 404] == ['no connection "nobody.roost"']


def test_by_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate, key = map(str, make_certificate(tmp_path))
    with Lab(clients=10, nat=False) as lab:
        with ApiLab(lab, certificate=certificate, private_key=key, client_ca=certificate) as box:
            box.tls = ssl.create_default_context(cafile=certificate)
            box.tls.load_cert_chain(certificate, key)
            box.wait_for_api()
            found = socket.getaddrinfo
            monkeypatch.setattr(socket, "getaddrinfo", lambda host, *more, **other: found(
                box.host if host in ("roost.test", b"roost.test") else host, *more, **other))  # fmt: skip
            url, token, pair = f"https://roost.test:{API_PORT}", box.token("operator"), (certificate, key)
            SLEEPERS.clear()
            client, address = down(box, 2)
            with lab.enter("lan"):
                with Client(url, token=token) as roost, pytest.raises(AwayError, match="certificate verify failed"):
                    roost.jobs()
                with Client(url, token=token, ca=certificate, certificate=pair) as roost:
                    with roost.attach(address) as stream:
                        assert not stream.send_eof()
                        big = os.urandom(300_000)
                        client.sendall(big)
                        assert all_of(stream, len(big)) == big
                        stream.sendall(b"status")
                        assert receive(client, 6) == b"status"
                client, address = down(box)

                async def attach() -> None:
                    async with AsyncClient(url, token=token, ca=certificate, certificate=pair) as roost:
                        async with roost.attach(address) as stream:
                            assert not stream.send_eof()
                            client.sendall(b"first")
                            assert await stream.recv(100) == b"first"
                            await stream.sendall(b"status")
                            assert receive(client, 6) == b"status"

                asyncio.run(attach())


def test_no_event_is_lost_or_doubled_across_ends_of_the_api_and_of_the_daemon(box: ApiLab) -> None:
    """One listens from the first event on; the other from now on, in an event loop, and has heard none when its stream
    breaks off."""
    _, address = box.client()
    wait_until(lambda: box.daemon.status()["store"]["pending_history"] == 0, 5, "it is in the database")
    told: list[Event] = []
    own: list[Event] = []
    with box.lab.enter("lan"):
        events = Client(url_of(box), token=box.token("viewer")).events(after=0)
        newer = AsyncClient(url_of(box), token=box.token("viewer")).events(client=address)

        async def listen() -> None:
            async for event in newer:
                own.append(event)
                if event.data["to"] == "CLOSED":
                    return

        works = (lambda: told.extend(until_closed(events, address)), lambda: asyncio.run(listen()))
        listeners = [threading.Thread(target=work) for work in works]
        for listener in listeners:
            listener.start()
    wait_until(lambda: bool(newer.last_id), 3, "it is told where it begins, before the first sign of life")
    end(box.pid)
    for turn in range(12):
        box.daemon.act(address, ("idle", "wake")[turn % 2])
        if turn == 6:
            with Client(socket=str(box.daemon.control_socket)) as roost:
                roost.wait_for_job(roost.start_job("idle", everything=True)["number"])
            box.daemon.kill()
            box.daemon.start()
    box.daemon.act(address, "close")
    for listener in listeners:
        listener.join(30)
        assert not listener.is_alive()
    assert [int(event.id) for event in told] == list(range(1, len(told) + 1))
    rows = [{k: v for k, v in row.items() if k != "successor"} for row in box.daemon.get("/v1/history", limit=9999)]
    assert [event.data for event in told] == rows
    assert events.last_id == told[-1].id
    assert own == [event for event in told if event.data["client"] == address][-len(own) :]
    assert own[0].data["from"] == "ACTIVE"


def end(pid: int | None) -> None:
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


def until_closed(events: Events, address: str) -> Iterator[Event]:
    for event in events:
        yield event
        if (event.data["client"], event.data["to"]) == (address, "CLOSED"):
            return


def test_by_the_local_socket_events_end_with_the_daemon(box: ApiLab) -> None:
    _, address = box.client()
    wait_until(lambda: box.daemon.get("/v1/history", limit=1)[0]["client"] == address, 5, "it is there")
    with Client(socket=str(box.daemon.control_socket)) as roost:
        events = iter(roost.events(last=1))
        assert next(events).data["client"] == address
        box.daemon.kill()
        with pytest.raises(AwayError):
            next(events)
    box.daemon.start()
