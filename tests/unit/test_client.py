# SPDX-License-Identifier: Apache-2.0
"""roost.client (control/client/): requests, retries, events that are resumed, and a wheel of its own."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import httpx
import pytest

import appliance
from control.client import AsyncClient, AwayError, Client, RoostError
from control.client.calls import Calls, login
from control.core.access import new_token
from tests.mutants import ROOT

Answer = httpx.Response | Exception
ACTIONS = ("standby", "idle", "sleep", "wake", "close")


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that were waited, without waiting."""
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr("control.client.client.time.sleep", waited.append)
    monkeypatch.setattr("control.client.aio.asyncio.sleep", sleep)
    return waited


class Api:
    """Answers with these, one after the other; `asked`: what came."""

    def __init__(self, *answers: Answer) -> None:
        self.asked: list[httpx.Request] = []
        self._answers = iter(answers)
        self.transport = httpx.MockTransport(self._answer)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        answer = next(self._answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    @property
    def client(self) -> Client:
        return Client("https://box/roost", token="roost_x", transport=self.transport)

    @property
    def local(self) -> Client:
        return Client(transport=self.transport, who="änn")


def refused(status: int, **headers: str) -> httpx.Response:
    return httpx.Response(status, json={"error": "a sentence"}, headers=headers)


def awaited(api: Api) -> Callable[..., Any]:
    def ask(name: str, /, *arguments: Any, **more: Any) -> Any:
        async def run() -> Any:
            async with AsyncClient("https://box/roost", token="roost_x", transport=api.transport) as roost:
                return await getattr(roost, name)(*arguments, **more)

        return asyncio.run(run())

    return ask


def waiting(api: Api) -> Callable[..., Any]:
    return lambda name, /, *arguments, **more: getattr(api.client, name)(*arguments, **more)


both = pytest.mark.parametrize("asking", [waiting, awaited])


@both
def test_a_call_is_one_request_with_the_token(asking: Any) -> None:
    api = Api(httpx.Response(200, json={"next": None}), httpx.Response(200, json={"id": 7}))
    assert asking(api)("page", limit=0, state="SLEEP", name="") == {"next": None}
    assert str(api.asked[0].url) == "https://box/roost/v1/connections?state=SLEEP&after=first&limit=0"
    assert asking(api)("set_policy", "a/b [%2F]?é", {"idle_quiet": None}) == {"id": 7}
    (_, change) = api.asked
    assert change.url.raw_path == b"/roost/v1/connections/a%2Fb%20%5B%252F%5D%3F%C3%A9/policy"
    assert json.loads(change.content) == {"values": {"idle_quiet": None}, "who": login(), "why": ""}
    assert {one.headers["Authorization"] for one in api.asked} == {"Bearer roost_x"}
    assert "Roost-Who" not in change.headers


def test_by_the_socket_it_is_said_who_asks_for_a_change() -> None:
    api = Api(*[httpx.Response(200, json={}) for _ in range(2)])
    api.local.status()
    api.local.wake(7)
    assert [request.headers.get("Roost-Who") for request in api.asked] == [None, "%C3%A4nn"]
    assert "Authorization" not in api.asked[0].headers


def test_each_route_of_the_api_is_a_call() -> None:
    from control.api.access import ACCESS

    class Seen(Client):
        def ask(self, call: Any) -> Any:
            seen.add((call.method, *(part if part in words else "…" for part in call.path.split("/"))))

    seen: set[tuple[str, ...]] = set()
    words = {part for access in ACCESS for part in access.path.split("/") if "{" not in part}
    words.update(ACTIONS)
    roost, values = Seen(), {"connection": 7, "number": 7, "version": 7, "add": ["x"], "expires_s": None}
    for name, call in vars(Calls).items():
        if hasattr(call, "__wrapped__"):
            needed = [one for one in call.__wrapped__.__annotations__ if one != "return"]
            defaults = call.__wrapped__.__defaults__ or ()
            positional = call.__wrapped__.__code__.co_varnames[1 : call.__wrapped__.__code__.co_argcount]
            must = positional[: len(positional) - len(defaults)]
            assert set(must) <= set(needed)
            getattr(roost, name)(*(values.get(one, "x1") for one in must))
    served = {
        (access.method, *("…" if "{" in part else part for part in access.path.split("/")))
        for access in ACCESS
        if access.path not in ("/v1/events", "/v1/openapi.json", "/metrics")
    }
    assert seen - {("POST", "", "v1", "connections", "…", "attach", "…")} == served | {
        ("POST", "", "v1", "connections", "…", action) for action in ACTIONS
    }


@both
def test_what_changes_nothing_is_asked_again(asking: Any, pauses: list[float]) -> None:
    api = Api(refused(503), refused(429, **{"Retry-After": "7"}), httpx.ConnectError("no"), httpx.Response(200, json=1))
    assert asking(api)("status") == 1
    assert pauses == [0.1, 7.0, 0.4]
    api = Api(*[refused(503) for _ in range(9)])
    with pytest.raises(RoostError, match="a sentence"):
        asking(api)("status")
    assert len(api.asked) == 4


@pytest.mark.parametrize(("call", "answer"), [
    ("wake", refused(503)),
    ("wake", httpx.ReadError("gone")),
    ("show", refused(404)),
    ("show", refused(503, **{"Retry-After": "31"})),
    ("show", httpx.ReadTimeout("slow")),
])  # fmt: skip
def test_what_may_have_changed_something_or_will_not_pass_is_asked_once(
    call: str, answer: Answer, pauses: list[float]
) -> None:
    api = Api(answer)
    with pytest.raises(RoostError):
        getattr(api.client, call)(7)
    assert (len(api.asked), pauses) == (1, [])


@pytest.mark.parametrize(("answer", "said", "status"), [
    (refused(409), "a sentence", 409),
    (httpx.Response(502, text="<html>a proxy's</html>"), "the daemon answered 502 Bad Gateway: <html>", 502),
    (httpx.Response(200, text="<html>"), "the daemon answered 200 OK: it is no JSON", 200),
    (httpx.ReadTimeout("slow"), "does not answer in 60 s", None),
])  # fmt: skip
def test_an_error_is_a_sentence(answer: Answer, said: str, status: int | None) -> None:
    with pytest.raises(RoostError, match=said) as error:
        Api(answer).client.wake(7)
    assert error.value.status == status


def test_what_is_no_url_is_told() -> None:
    for url in ("box", "ftp://box", "https://", "https://box:port"):
        with pytest.raises(ValueError, match="is no URL of an API"):
            Client(url)


@pytest.mark.parametrize(
    ("url", "refused"),
    [
        ("http://box:8443", True),
        ("HTTP://192.0.2.1", True),
        ("http://[2001:db8::1]:8443", True),
        ("http://localhost.example", True),
        ("http://127.0.0.1.example", True),
        ("http://127.0.0.9:8443", False),
        ("http://[::1]:8443", False),
        ("http://localhost:8443", False),
        ("https://box:8443", False),
    ],
)
def test_no_token_goes_to_another_machine_where_it_can_be_read_unless_that_is_said_twice(
    monkeypatch: pytest.MonkeyPatch, url: str, refused: bool
) -> None:
    monkeypatch.delenv("ROOST_PLAIN", raising=False)
    for made in (Client, AsyncClient):
        with pytest.raises(ValueError, match=r"without TLS.*ROOST_PLAIN=1") if refused else nullcontext():
            made(url, token="roost_x")
        made(url)
    monkeypatch.setenv("ROOST_PLAIN", "1")
    Client(url, token="roost_x").close()


# -- events -----------------------------------------------------------------------------------------------------------


class Broken(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A stream that breaks off."""

    def __init__(self, text: str) -> None:
        self._text = text.encode()

    def __iter__(self) -> Iterator[bytes]:
        yield self._text[: len(self._text) // 2]
        yield self._text[len(self._text) // 2 :]
        raise httpx.ReadError("broken off")

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self:
            yield part


def stream(text: str) -> httpx.Response:
    return httpx.Response(200, stream=Broken(text))


def event(number: int) -> str:
    return f'id: {number}\nevent: transition\ndata: {{"n": {number}}}\n\n'


def listen(api: Api, **query: Any) -> Iterator[int]:
    return (one.data["n"] for one in api.client.events(**query))


def test_events_go_on_behind_the_last_one_that_was_whole(pauses: list[float]) -> None:
    def api() -> Api:
        return Api(
            stream(": transitions\nid: 4\n\n"), stream(event(5) + event(6) + 'id: 7\nevent: transition\ndata: {"n"'),
            refused(503, **{"Retry-After": "2"}), httpx.ConnectError("no"),
            stream(event(7) + ": still here\nid: 9\n\n"), stream(event(12)), refused(401),
        )  # fmt: skip

    async def collect(api: Api, heard: list[int]) -> None:
        async with AsyncClient("https://box", token="x", transport=api.transport) as roost:
            async for one in roost.events(to=["IDLE", "SLEEP"]):
                heard += [one.data["n"]]

    ways: tuple[Callable[[Api, list[int]], None], ...] = (
        lambda api, heard: heard.extend(listen(api, to=["IDLE", "SLEEP"])),
        lambda api, heard: asyncio.run(collect(api, heard)),
    )
    for way in ways:
        at, heard = api(), list[int]()
        with pytest.raises(RoostError, match="a sentence"):
            way(at, heard)
        assert heard == [5, 6, 7, 12]
        assert [one.headers.get("Last-Event-ID") for one in at.asked] == [None, "4", "6", "6", "6", "9", "12"]
        assert {one.url.query for one in at.asked} == {b"to=IDLE&to=SLEEP"}


def test_events_are_given_up_after_so_many_failures_in_a_row(pauses: list[float]) -> None:
    api = Api(stream(event(1)), *[refused(503)] * 3, stream(": still here\nid: 3\n\n"), *[refused(503)] * 9)
    with pytest.raises(RoostError, match="a sentence"):
        list(listen(api, after=0, retries=4))
    assert len(api.asked) == 1 + 3 + 1 + 4
    assert api.asked[-1].headers["Last-Event-ID"] == "3"
    assert pauses == [0.1, 0.2, 0.4, 0.8, 0.1, 0.2, 0.4, 0.8]


def test_events_without_numbers_are_not_resumed(pauses: list[float]) -> None:
    api = Api(stream('event: dropped\ndata: {"n": 5}\n\n'))
    told = (one.data["n"] for one in api.local.events())
    assert next(told) == 5
    with pytest.raises(AwayError):
        next(told)


# -- attach -----------------------------------------------------------------------------------------------------------


@contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """The URL of an API that has this answer to one request, in one piece, and then repeats what it is told."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with listener.accept()[0] as sock:
                head = b""
                while b"\r\n\r\n" not in head:
                    head += sock.recv(4096)
                sock.sendall(answer)
                while data := sock.recv(4096):
                    sock.sendall(data)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread.join(5)


SWITCHING = b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: roost\r\n\r\n"


def test_what_comes_with_the_head_of_the_answer_is_not_lost() -> None:
    with answering(SWITCHING + b"the client's first words") as url, Client(url, token="x") as roost:
        with roost.attach("a.roost") as stream:
            assert stream.pending() == 24
            assert stream.recv(10) == b"the client"
            assert stream.recv(100) == b"'s first words"
            assert stream.pending() == 0
            stream.sendall(b"status")
            assert stream.recv(100) == b"status"

    async def attach(url: str) -> None:
        async with AsyncClient(url, token="x") as roost, roost.attach("a.roost") as stream:
            assert await stream.recv(10) == b"the client"
            assert await stream.recv(100) == b"'s first words"
            await stream.sendall(b"status")
            assert await stream.recv(100) == b"status"

    with answering(SWITCHING + b"the client's first words") as url:
        asyncio.run(attach(url))


def test_an_answer_that_does_not_switch_is_an_error() -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"
    with answering(answer) as url, Client(url, token="x") as roost:
        with pytest.raises(RoostError, match="or not switched"):
            roost.attach("a.roost")


def test_the_command_reads_what_a_client_says_that_does_not_read_yet(tmp_path: Path) -> None:
    """Both wait for ever else: each for the other to take what it says."""
    (tmp_path / "token").write_text(new_token()[0])
    big, got = bytes(range(256)) * 70_000, bytearray()  # more than buffers take
    with socket.socket() as listener:
        for buffer in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            listener.setsockopt(socket.SOL_SOCKET, buffer, 1 << 18)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.settimeout(20)

        def serve() -> None:
            with listener.accept()[0] as sock:
                sock.settimeout(20)
                assert sock.recv(4096).startswith(b"POST /v1/connections/a.roost/attach HTTP/1.1")
                sock.sendall(SWITCHING + big)
                while data := sock.recv(65536):
                    got.extend(data)

        thread = threading.Thread(target=serve)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        argv = [sys.executable, "-m", "control.cli.main", "attach", "a.roost", "--wait", "0.5", "--url", url]
        argv += ["--token-file", str(tmp_path / "token")]
        done = subprocess.run(argv, cwd=ROOT, input=big, capture_output=True, timeout=20, check=False)
        thread.join(20)
    assert (done.returncode, done.stderr) == (0, b"")
    assert (done.stdout == big, bytes(got) == big) == (True, True)


# -- the wheel --------------------------------------------------------------------------------------------------------

ALONE = """
import sys
import roost.client
from roost.client import AsyncClient, Client
assert not [name for name in sys.modules if name.startswith(("control", "appliance", "cext"))]
assert "site-packages" not in roost.client.__file__, roost.client.__file__
Client("https://box", token="x").close()
print("good")
"""


def test_a_wheel_of_its_own_has_it_as_roost_client_and_needs_nothing_else(tmp_path: Path) -> None:
    """Built elsewhere: setuptools leaves a directory beside what it builds."""
    sources, made = tmp_path / "sources", tmp_path / "made"
    shutil.copytree(ROOT / "control" / "client", sources, ignore=shutil.ignore_patterns("__pycache__"))
    pip = [sys.executable, "-m", "pip", "--quiet", "--no-input", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--no-index", "--no-build-isolation", "-w", str(made), str(sources)],
                   check=True)  # fmt: skip
    (wheel,) = made.iterdir()
    assert wheel.name == f"roost_client-{appliance.__version__}-py3-none-any.whl"
    subprocess.run([*pip, "install", "--no-deps", "--no-index", "--target", str(tmp_path / "target"), str(wheel)],
                   check=True)  # fmt: skip
    assert (tmp_path / "target" / "roost" / "client" / "py.typed").is_file()
    done = subprocess.run([sys.executable, "-P", "-c", ALONE], cwd=tmp_path, capture_output=True, text=True,
                          env={"PYTHONPATH": str(tmp_path / "target")}, check=False)  # fmt: skip
    assert (done.stdout, done.returncode) == ("good\n", 0), done.stderr
