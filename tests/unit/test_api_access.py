# SPDX-License-Identifier: Apache-2.0
"""The API's process: who may ask for what, what is told to the daemon, and what is refused without asking it."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import httpx
import pytest
from sqlalchemy.exc import OperationalError
from starlette.routing import Route, WebSocketRoute

from appliance.bounds import AtOnce, Delays, Rates, source_of
from control.api import app as application
from control.api import gate, relay, static
from control.api import tokens as kept
from control.api.access import ACCESS, ATTACH, EVENTS, ME, METRICS, Access
from control.api.app import make_app
from control.api.static import HEADERS, PREFIX, read_files
from control.api.stream import Stream
from control.api.tokens import Tokens
from control.api.upstream import AwayError, Upstream
from control.channel.api import make_app as make_local_app
from control.channel.jobs import NewJob
from control.channel.operations import Operations
from control.channel.parameters import ACTIONS
from control.clients.jobs import LISTED_MAX, RATE_MAX
from control.core.access import FROM, REFUSED, WHO, Role, new_token, read_token
from control.store.tokens import TokenRow

FILES = read_files()
CONSOLE = Path(static.__file__).with_name("console")
VIEWER, OPERATOR, ADMIN, SERVER = Role.VIEWER, Role.OPERATOR, Role.ADMIN, Role.SERVER


class Daemon:
    """Answers whatever it is asked, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, dict[str, str], bytes]] = []
        self.refused: list[tuple[str, str, dict[str, str], bytes]] = []
        self.away = False
        self.whole: Callable[[], bytes] = lambda: b"{}"

    async def ask(self, method: str, target: str, headers: dict[str, str], body: bytes, _ending: ExitStack) -> Any:
        if self.away:
            raise AwayError(OSError("no such file"))
        where = self.refused if REFUSED in headers else self.asked
        where.append((method, target, headers, body))
        return Answered(self.whole())


class Answered:
    def __init__(self, body: bytes) -> None:
        self._body = body
        self.status = 200
        self.headers = {"Content-Type": "application/json", "Content-Length": str(len(body))}

    async def whole(self) -> bytes:
        return self._body

    def close(self) -> None:
        pass


class Box:
    source: Any = None
    """Of what happens."""

    def __init__(self, requests: float = 10_000) -> None:
        self.daemon = Daemon()
        self.rows: dict[str, TokenRow] = {}
        self.texts: dict[str, str] = {}
        self.problem: Exception | None = None
        for role in Role:
            self.add(role, role)
        self.tokens = Tokens(self._read)
        self.app = self.made(requests)

    def made(self, requests: float = 100) -> Any:
        return make_app(self.tokens, cast(Any, self.daemon), Stream(self.source), requests, FILES)

    def _read(self) -> list[TokenRow]:
        if self.problem is not None:
            raise self.problem
        return list(self.rows.values())

    def add(self, name: str, role: Role, **more: Any) -> None:
        text, (number, digest) = new_token()
        services = ("alarms", "gas, & water") if role is SERVER else None
        row = TokenRow(number, name, role, services, digest, 0, "root")
        self.rows[name], self.texts[name] = row._replace(**more), text

    async def ask(self, who: str, method: str, path: str, **request: Any) -> httpx.Response:
        headers = {**request.pop("headers", {}), **({"Authorization": f"Bearer {self.texts[who]}"} if who else {})}
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False, client=("2001:db8:7::9", 999))
        async with httpx.AsyncClient(transport=transport, base_url="http://api") as client:
            return await client.request(method, path, headers=headers, **request)

    def asked(self, who: str, method: str, path: str, **request: Any) -> httpx.Response:
        return asyncio.run(self.ask(who, method, path, **request))


@pytest.fixture
def box() -> Box:
    return Box()


def test_an_answer_that_goes_on_ends_with_its_tokens_time_though_the_database_cannot_be_read(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "LOOK_S", 0.01)
    box.problem = OperationalError("SELECT", {}, Exception("the disk is gone"))
    expiring = box.rows[Role.VIEWER]._replace(expires_at=time.time_ns() // 1_000_000 + 200)

    async def work() -> None:
        credential = read_token(box.texts[Role.VIEWER])
        assert credential is not None
        with pytest.raises(kept.UnreadableError):
            await box.tokens.find(credential)
        async with asyncio.timeout(10):
            await gate.Gate(box.tokens, 1).until_bad(gate.Asking(expiring, credential))
        assert not expiring.is_good(time.time_ns() // 1_000_000)

    asyncio.run(work())


def path_of(access: Access) -> str:
    return re.sub(r"\{[a-z]+\}", "7", access.path)


# -- roles ------------------------------------------------------------------------------------------------------------


def test_every_route_of_the_daemon_has_its_role_and_there_is_no_other() -> None:
    parts = cast(dict[str, Any], dict.fromkeys(Operations.__dataclass_fields__))
    local = make_local_app(Operations(**parts), cast(Any, None))

    def routes(some: Any) -> Iterator[tuple[str, str]]:
        for route in some:
            if getattr(route, "original_router", None) is not None:  # what was included
                yield from routes(route.original_router.routes)
            elif route.path.startswith("/v1/"):
                yield from ((method, route.path) for method in route.methods - {"HEAD"})

    assert sorted(routes(local.routes)) == sorted(
        [*((one.method, one.path) for one in ACCESS if one.path not in (ME, METRICS)), ("POST", f"{ATTACH}/ticket")]
    ), "tickets are for this machine"
    assert all(isinstance(route, Route | WebSocketRoute) for route in Box().app.routes)


@pytest.mark.parametrize(
    "access",
    [one for one in ACCESS if one.path not in (EVENTS, ME, METRICS)],
    ids=lambda one: f"{one.method} {one.path}",
)
def test_each_route_is_for_its_roles_alone(box: Box, access: Access) -> None:
    may = {role for role in (VIEWER, OPERATOR, ADMIN) if role is ADMIN or access.least in (VIEWER, role)}
    for role in Role:
        answer = box.asked(role, access.method, path_of(access))
        allowed = access.server if role is SERVER else role in may
        assert answer.status_code == (200 if allowed else 403), f"{role}: {answer.text}"
        assert bool(box.daemon.asked) == allowed
        if not allowed:
            assert answer.json() == {"error": f'the token "{role}" has the role "{role}", which may not do this'}
        box.daemon.asked.clear()
    assert box.asked("", access.method, path_of(access)).status_code == 401
    assert box.daemon.asked == []


def test_what_changes_something_is_for_no_viewer_and_what_is_secret_for_the_admin_alone() -> None:
    for one in ACCESS:
        changes = one.method != "GET"
        assert one.allows(VIEWER) != (changes or one.path in ("/v1/audit", "/v1/tokens")), one
        assert one.allows(ADMIN)
        assert one.allows(OPERATOR) != one.path.startswith(("/v1/audit", "/v1/tokens"))
    servers = {one.path for one in ACCESS if one.server}
    assert servers == {"/v1/connections", "/v1/connections/{name}", "/v1/connections/{name}/explain",
                       "/v1/connections/{name}/policy", *(f"/v1/connections/{{name}}/{action}" for action in ACTIONS),
                       "/v1/names/{name}/tags", "/v1/events", "/v1/connections/{name}/attach", "/v1/jobs",
                       "/v1/jobs/{number}", "/v1/openapi.json", "/v1/me"}  # fmt: skip


def test_a_change_that_is_refused_is_in_the_record_and_no_flood_of_them(box: Box) -> None:
    path = "/v1/connections/192.0.2.7%3A40123/close"
    assert box.asked(VIEWER, "POST", path, content=b"secret").status_code == 403
    assert box.asked("", "DELETE", "/v1/tokens/ann").status_code == 401
    assert [box.asked(VIEWER, "GET", "/v1/audit").status_code, box.asked("", "GET", "/v1/status").status_code] == [
        403,
        401,
    ]
    origin, role = {FROM: "2001%3Adb8%3A7%3A%3A9"}, 'the token "viewer" has the role "viewer", which may not do this'
    missing = "a token is needed: Authorization: Bearer …"
    assert box.daemon.refused == [
        ("POST", path, {**origin, WHO: "viewer", REFUSED: f"403 {quote(role)}"}, b""),
        ("DELETE", "/v1/tokens/ann", {**origin, WHO: "%28no%20token%29", REFUSED: f"401 {quote(missing)}"}, b""),
    ]
    assert box.daemon.asked == []
    for _ in range(50):
        box.asked("", "DELETE", "/v1/tokens/ann")
        box.asked(VIEWER, "POST", path)
    assert len(box.daemon.refused) < 30
    box.daemon.away = True
    assert box.asked(VIEWER, "POST", path).status_code == 403


def test_whoever_has_a_token_is_told_whose_it_is_and_nothing_of_it(box: Box) -> None:
    box.add("ann", OPERATOR, expires_at=2**42)
    told = box.asked("ann", "GET", ME)
    assert told.json() == {"name": "ann", "role": "operator", "services": None, "expires_at_ms": 2**42}
    services = ["alarms", "gas, & water"]
    told = box.asked(SERVER, "GET", ME)
    assert told.json() == {"name": "server", "role": "server", "services": services, "expires_at_ms": None}
    assert box.asked("", "GET", ME).status_code == 401
    assert box.daemon.asked == []


# -- what the daemon is told ------------------------------------------------------------------------------------------


def test_the_daemon_is_told_who_asks_from_where_and_for_which_services_and_nothing_of_the_token(box: Box) -> None:
    told = {
        "Roost-Who": "mallory",
        "Roost-From": "local",
        "Roost-Services": "all",
        "Cookie": "x",
        "X-Forwarded-For": "y",
    }
    box.asked(SERVER, "GET", "/v1/connections?name=a%2Fb&limit=3", headers=told)
    box.asked(OPERATOR, "PUT", "/v1/names/%61%3Fy%25/tags", json={"add": ["é"]}, headers=told)
    first, second = box.daemon.asked
    origin = "2001%3Adb8%3A7%3A%3A9"
    of_server = {"Roost-Who": "server", "Roost-From": origin, "Roost-Services": "alarms,gas%2C%20%26%20water"}
    of_operator = {"Roost-Who": "operator", "Roost-From": origin, "Content-Type": "application/json"}
    assert first == ("GET", "/v1/connections?name=a%2Fb&limit=3", of_server, b"")
    assert second == ("PUT", "/v1/names/a%3Fy%25/tags", of_operator, '{"add":["é"]}'.encode())


def test_what_is_not_served_is_not_asked_of_the_daemon(box: Box) -> None:
    paths = ("/docs", "/openapi.json", "/v1", "//v1/status", "/v1/connections/7/",
             "/V1/status", "/v1/names/%2e%2e/tags", "/v1/connections/%2E", "/v1/names/%2e%2e%2ftags/tags")  # fmt: skip
    for path in paths:
        answer = box.asked(ADMIN, "GET", path)
        assert (answer.status_code, answer.json()["error"]) == (404, "nothing is served here; see docs/api.md"), path
    answer = box.asked(ADMIN, "PATCH", "/v1/status")
    assert (answer.status_code, answer.headers["Allow"]) == (405, "GET")
    assert box.asked("", "OPTIONS", "/v1/status").status_code == 405, "no other origin is let in"
    assert box.daemon.asked == []


def test_while_the_daemon_is_away_that_is_said(box: Box) -> None:
    box.daemon.away = True
    answer = box.asked(VIEWER, "GET", "/v1/status")
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "2")
    assert answer.json() == {"error": "the daemon does not run, or is starting"}


@pytest.mark.parametrize("length", [{"Content-Length": "2"}, {}], ids=["whole", "streamed"])
@pytest.mark.parametrize(("status", "after"), [(429, "1"), (503, "2"), (409, None), (507, None)])
def test_what_the_daemon_refuses_for_now_says_when_it_may_be_asked_for_again(
    box: Box, status: int, after: str | None, length: dict[str, str]
) -> None:
    class Refused(Answered):
        async def parts(self) -> AsyncGenerator[bytes]:
            yield await self.whole()

    async def ask(*_arguments: Any) -> Any:
        answer = Refused(b"{}")
        answer.status, answer.headers = status, length
        return answer

    box.daemon.ask = ask  # type: ignore[method-assign, assignment]
    for method, path in (("GET", "/v1/status"), ("POST", "/v1/jobs")):
        answer = box.asked(OPERATOR, method, path)
        assert (answer.status_code, answer.headers.get("Retry-After")) == (status, after)


def test_an_error_of_its_own_is_an_answer_without_a_word_of_it(box: Box) -> None:
    def broken() -> bytes:
        raise RuntimeError("secret")

    box.daemon.whole = broken
    answer = box.asked(VIEWER, "GET", "/v1/status")
    assert (answer.status_code, answer.json()) == (500, {"error": "an error of the API's own; its log has more"})


# -- the console ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", FILES)
def test_a_file_of_the_console_is_served_without_a_token_and_may_do_nothing_but_ask_here(box: Box, path: str) -> None:
    name = path.removeprefix(PREFIX) or "index.html"
    body = (CONSOLE / name).read_bytes()
    answer = box.asked("", "GET", path)
    assert (answer.status_code, answer.content, answer.headers["Content-Length"]) == (200, body, str(len(body)))
    assert {key: answer.headers[key] for key in HEADERS} == HEADERS
    assert answer.headers["Content-Type"].startswith(
        {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}[name.split(".")[1]]
    )
    again = box.asked("", "GET", path, headers={"If-None-Match": f'"other", W/{answer.headers["ETag"]}'})
    assert (again.status_code, again.content, again.headers["ETag"]) == (304, b"", answer.headers["ETag"])
    assert box.asked("", "GET", path, headers={"If-None-Match": '"other"'}).status_code == 200
    assert box.asked("", "POST", path).status_code == 405
    assert box.daemon.asked == []


def test_every_file_of_the_console_is_served_and_no_other(box: Box) -> None:
    assert {PREFIX + path.name for path in CONSOLE.iterdir()} - {f"{PREFIX}index.html"} == set(FILES) - {PREFIX}
    for path in ("/console/index.html", "/console/%2e%2e/app.py", "/console//style.css",
                 "/console/..%2fapp.py", "/console/style.css/", "/consoles/"):  # fmt: skip
        assert box.asked("", "GET", path).status_code == 404, path
    for path in ("/", "/console"):
        answer = box.asked("", "GET", path)
        assert (answer.status_code, answer.headers["Location"]) == (307, PREFIX)


def test_the_console_has_nothing_from_elsewhere_and_makes_no_markup_of_text() -> None:
    for file in FILES.values():
        text = file.body.decode()
        assert set(re.findall(r"https?://[^\s\"'<>]*", text)) <= {"http://www.w3.org/2000/svg"}
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|localStorage", text)


def test_files_of_the_console_are_for_one_source_so_often(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application, "FILES", 3.0)
    box.app = box.made()

    async def scene() -> None:
        answers = [(await box.ask("", "GET", path)).status_code for path in (*list(FILES)[:2], "/", PREFIX)]
        assert answers == [200, 200, 307, 429]
        assert (await box.ask("", "GET", PREFIX)).headers["Retry-After"] == "1"
        assert (await box.ask(VIEWER, "GET", "/v1/status")).status_code == 200

    asyncio.run(scene())


# -- tokens -----------------------------------------------------------------------------------------------------------


def test_a_token_that_is_wrong_expired_or_revoked_is_refused(box: Box) -> None:
    now = time.time_ns() // 1_000_000
    box.add("old", ADMIN, expires_at=now - 1)
    box.add("gone", ADMIN, revoked_at=now - 1)
    box.add("other", ADMIN)
    box.rows["other"] = box.rows["other"]._replace(digest=bytes(32))
    box.texts |= {"none": new_token()[0], "half": box.texts[ADMIN][:-1], "words": "let me in", "empty": ""}
    for who in ("old", "gone", "other", "none", "half", "words", "empty"):
        answer = box.asked(who, "GET", "/v1/status")
        assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, "Bearer"), who
        assert answer.headers["Connection"] == "close"
        box.app = box.made()  # as if time had gone by
    for header in ("Basic x", f"Token {box.texts[ADMIN]}", "Bearer", "", "Bearer é"):
        assert box.asked("", "GET", "/v1/status", headers={"Authorization": header.encode()}).status_code == 401
    assert box.daemon.asked == []
    assert (
        box.asked("", "GET", "/v1/status", headers={"Authorization": f"bearer  {box.texts[ADMIN]} "}).status_code == 200
    )


def test_after_many_failures_of_one_address_it_must_wait_but_good_tokens_need_not(box: Box) -> None:
    async def scene() -> None:
        answers = [(await box.ask("", "GET", "/v1/status")).status_code for _ in range(15)]
        assert answers == [401] * 10 + [429] * 5
        answer = await box.ask("", "GET", "/v1/status")
        assert 1 <= int(answer.headers["Retry-After"]) <= 6
        assert (await box.ask(VIEWER, "GET", "/v1/status")).status_code == 200

    asyncio.run(scene())


def test_a_token_is_used_so_often_a_second_and_no_other_suffers() -> None:
    box = Box(requests=0.01)

    async def scene() -> None:
        answers = [(await box.ask(VIEWER, "GET", "/v1/status")).status_code for _ in range(5)]
        assert answers == [200] + [429] * 4
        assert (await box.ask(OPERATOR, "GET", "/v1/status")).status_code == 200

    asyncio.run(scene())


def test_a_token_has_so_many_requests_at_once(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "AT_ONCE", 2)
    box.app = box.made()
    free = asyncio.Event()
    ask = box.daemon.ask

    async def slow(*arguments: Any) -> Any:
        await free.wait()
        return await ask(*arguments)

    box.daemon.ask = slow  # type: ignore[method-assign, assignment]

    async def scene() -> None:
        two = [asyncio.ensure_future(box.ask(VIEWER, "GET", "/v1/status")) for _ in range(2)]
        await asyncio.sleep(0.05)
        answer = await box.ask(VIEWER, "GET", "/v1/status")
        assert (answer.status_code, answer.headers["Retry-After"]) == (429, "1")
        free.set()
        assert [one.status_code for one in await asyncio.gather(*two)] == [200, 200]
        assert (await box.ask(VIEWER, "GET", "/v1/status")).status_code == 200

    asyncio.run(scene())


@pytest.mark.parametrize("path", ["/v1/status", METRICS])
@pytest.mark.parametrize("is_left", [True, False], ids=["cancelled", "too slow"])
def test_what_the_daemon_still_works_on_keeps_its_place_whoever_has_left(
    box: Box, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, is_left: bool
) -> None:
    monkeypatch.setattr(gate, "AT_ONCE", 1)
    if not is_left:
        monkeypatch.setattr("control.api.upstream.ANSWER_S", 0.01)
        monkeypatch.setattr("control.api.metrics.ANSWER_S", 0.01)

    async def scene() -> None:
        asked, free, read = asyncio.Event(), asyncio.Event(), 0

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal read
            while not reader.at_eof() and await reader.read(10_000):
                read += 1
                asked.set()
                await free.wait()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
            writer.close()

        server = await asyncio.start_unix_server(answer, tmp_path / "socket")
        async with server, Upstream(str(tmp_path / "socket")) as box.daemon:  # type: ignore[assignment]
            box.app = box.made()
            asking = asyncio.ensure_future(box.ask(VIEWER, "GET", path))
            await asked.wait()
            if is_left:
                asking.cancel()
            await asyncio.wait({asking})
            answers = [(await box.ask(VIEWER, "GET", ME)).status_code for _ in range(3)]
            assert (answers, read) == ([429] * 3, 1)
            assert (await box.ask(OPERATOR, "GET", ME)).status_code == 200
            monkeypatch.setattr("control.api.upstream.ANSWER_S", 60.0)
            free.set()
            async with asyncio.timeout(10):
                while (await box.ask(VIEWER, "GET", ME)).status_code == 429:
                    await asyncio.sleep(0.01)
            assert (await box.ask(VIEWER, "GET", "/v1/status")).status_code == 200

    asyncio.run(scene())


def test_long_answers_have_a_bound_of_their_own(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application, "LONG", 2)
    monkeypatch.setattr(application, "LONG_EACH", 1)
    box.app = box.made()
    free = asyncio.Event()

    class Long(Answered):
        async def parts(self) -> AsyncGenerator[bytes]:
            yield b"{}\n"
            await free.wait()
            yield b"{}\n"

    async def ask(*_arguments: Any) -> Any:
        answer = Long(b"")
        answer.headers = {"Content-Type": "application/x-ndjson"}
        return answer

    short = box.daemon.ask

    async def scene() -> None:
        box.daemon.ask = ask  # type: ignore[method-assign, assignment]
        two = [asyncio.ensure_future(box.ask(who, "GET", "/v1/connections")) for who in (VIEWER, OPERATOR)]
        await asyncio.sleep(0.05)
        for who in (VIEWER, ADMIN):
            answer = await box.ask(who, "GET", "/v1/connections")
            assert (answer.status_code, "long answers" in answer.json()["error"]) == (429, True)
        box.daemon.ask = short  # type: ignore[method-assign]
        assert (await box.ask(VIEWER, "GET", "/v1/status")).status_code == 200
        free.set()
        assert [one.text for one in await asyncio.gather(*two)] == ["{}\n{}\n"] * 2
        box.daemon.ask = ask  # type: ignore[method-assign, assignment]
        assert (await box.ask(VIEWER, "GET", "/v1/connections")).status_code == 200

    asyncio.run(scene())


def test_a_body_is_so_large_and_so_slow_at_most(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "SMALL_BODY", 500)
    monkeypatch.setattr(relay, "BODY_MAX", 1000)
    monkeypatch.setattr(relay, "BODY_S", 1.0)

    async def chunks(size: int, pause_s: float = 0.0) -> Any:
        for _ in range(size // 100):
            await asyncio.sleep(pause_s)
            yield b"x" * 100

    path = "/v1/policy/rules"
    for content, expected in ((b"x" * 1000, 200), (b"x" * 1001, 413), (chunks(1000), 200), (chunks(1100), 413),
                              (chunks(1000, 0.3), 408)):  # fmt: skip
        answer = box.asked(OPERATOR, "PUT", path, content=content)
        assert answer.status_code == expected, answer.text
        assert (answer.headers.get("Connection") == "close") == (expected != 200)
    assert [len(one[3]) for one in box.daemon.asked] == [1000, 1000]
    for size, expected in ((500, 200), (501, 413)):
        assert box.asked(OPERATOR, "PUT", "/v1/names/x/tags", content=b"x" * size).status_code == expected


def test_a_job_may_name_as_many_as_there_may_be_and_has_no_larger_body(box: Box) -> None:
    names = [f"{number:05}".ljust(300, "x") for number in range(LISTED_MAX)]
    body = json.dumps({"action": "standby", "connections": names, "rate": RATE_MAX}, indent=4).encode()
    assert len(NewJob.model_validate_json(body).connections or ()) == LISTED_MAX
    assert box.asked(SERVER, "POST", "/v1/jobs", content=body).status_code == 200
    answer = box.asked(SERVER, "POST", "/v1/jobs", content=body + b" " * (len(body) // 50))
    assert (answer.status_code, "bytes at most" in answer.json()["error"]) == (413, True)


def test_tokens_are_believed_for_a_while_when_the_database_cannot_be_read(
    box: Box, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = 1000.0
    monkeypatch.setattr("control.api.tokens.time.monotonic", lambda: now)

    async def scene() -> None:
        nonlocal now
        assert (await box.ask(VIEWER, "GET", "/v1/status")).status_code == 200
        box.problem = OperationalError("", {}, Exception("the disk is gone"))
        now += kept.KEPT_S - 1
        assert (await box.ask(VIEWER, "GET", "/v1/status")).status_code == 200
        now += 2
        answer = await box.ask(VIEWER, "GET", "/v1/status")
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "2")
        assert caplog.text.count("the disk is gone") == 1
        box.problem = None
        now += 0.2
        assert (await box.ask(VIEWER, "GET", "/v1/status")).status_code == 200

    asyncio.run(scene())


def test_a_new_token_is_good_at_once_and_a_revoked_one_soon_bad(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("control.api.tokens.time.monotonic", lambda: now)

    async def scene() -> None:
        nonlocal now
        assert (await box.ask(VIEWER, "GET", "/v1/status")).status_code == 200
        now += kept.UNKNOWN_S
        box.add("new", VIEWER)
        assert (await box.ask("new", "GET", "/v1/status")).status_code == 200
        box.rows["new"] = box.rows["new"]._replace(revoked_at=1)
        now += 2 * kept.FRESH_S
        assert (await box.ask("new", "GET", "/v1/status")).status_code == 401

    asyncio.run(scene())


# -- bounds -----------------------------------------------------------------------------------------------------------


def test_a_source_is_an_address_or_a_site() -> None:
    assert source_of("192.0.2.7") == "192.0.2.7"
    assert source_of("2001:db8:1:2:3::4") == source_of("2001:db8:1:2::") == "2001:db8:1:2::/64"
    assert source_of("2001:db8:1:3::") != source_of("2001:db8:1:2::")


def test_a_rate_is_kept_on_average_and_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    rates = Rates(2, 4, lambda: now)
    for _ in range(4):
        assert rates.wait_s("a") == 0
        rates.take("a")
    assert rates.wait_s("a") == 0.5
    assert rates.wait_s("b") == 0
    now = 0.5
    assert rates.wait_s("a") == 0
    rates.take("a")
    now = 100.0
    for _ in range(4):
        assert rates.wait_s("a") == 0
        rates.take("a")
    assert rates.wait_s("a") > 0, "it does not save up"
    monkeypatch.setattr("appliance.bounds.KEYS", 10)
    for number in range(50):
        rates.take(str(number))
    assert len(rates._levels) == 10


def test_who_fails_waits_twice_as_long_each_time_and_a_crowd_lets_the_oldest_be_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    delays = Delays(0.1, 0.5, 60, lambda: now)
    for delay in (0.1, 0.2, 0.4, 0.5, 0.5):
        delays.count("a", success=False)
        assert delays.wait_s("a") == pytest.approx(delay)
        assert delays.wait_s("b") == 0
        now += delay
        assert delays.wait_s("a") == pytest.approx(0)
    delays.count("a", success=True)
    delays.count("a", success=False)
    assert delays.wait_s("a") == pytest.approx(0.1)
    delays.count("a", success=False)
    now += 61
    delays.count("a", success=False)
    assert delays.wait_s("a") == pytest.approx(0.1), "it was quiet"
    monkeypatch.setattr("appliance.bounds.KEYS", 10)
    for number in range(50):
        delays.count(str(number), success=False)
    assert len(delays._failed) == 10
    assert delays.wait_s("a") == 0, "of the crowd the last are kept"


def test_how_many_there_are_at_once() -> None:
    some = AtOnce(2)
    assert [some.begin("a"), some.begin("a"), some.begin("a"), some.begin("b")] == [True, True, False, True]
    some.end("a")
    assert some.begin("a")
    for key in ("a", "a", "b"):
        some.end(key)
    assert not some._count
