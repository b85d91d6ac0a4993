# SPDX-License-Identifier: Apache-2.0
"""How long the API takes, beside the writing of history, and with very many connections.

Method. A daemon holds `connections` simulated clients, born asleep; `SPOKEN` of them have spoken, and sleep in IDLE.
Each request is made by one client of the API's process, over loopback without TLS, after the answer to the one before.

    get_ms_p99      GET /v1/connections/ADDRESS:PORT of one that has spoken, with its last 100 transitions, while the
                    daemon is told of `RATE` transitions a second of these connections, and writes them
    bare_ms_p99     GET /v1/jobs, right after that and beside the same: a request that the daemon answers from memory
    page_ms_p99     pages of 100 of GET /v1/connections, those that follow each other: by network (a /16 of the clients'
                    addresses at random), by silence, and by service; `page_network_...` and so on, of each

    stream_events_per_s, stream_10_events_per_s
                    events that one listener of GET /v1/events has, and each of ten at least, while `STREAM_RATE`
                    transitions a second are written; stream_lost: of those numbers that the one had, how many are
                    missing or double
    bulk_wake_per_s, bulk_sleep_per_s
                    a job that wakes `BULK` clients in SLEEP, named one by one, and one that puts them to sleep again,
                    at `BULK_RATE`: how many were done, over the time that the job took
    attach_ms_p99   a request for a client in SLEEP, from its connection's first SYN to 101, one after the other
    api_rss_mb      resident memory of the API's process afterwards
    relay_p99_ratio, wake_p99_ratio
                    p99 of what other clients notice (beside.py) during all of this, over the same of quiet moments
                    before each run; `quiet_relay_ms_p99`, `pages_relay_ms_p99` and so on, of each part of it

With `kill`, the API is stopped (SIGSTOP) and then killed (SIGKILL) while transitions are written and told, and
connections are asked for: `killed_relay_p99_ratio`, `killed_wake_p99_ratio`, and `killed_late`, how many of 1,000 wakes
took longer than one and a half times the quiet p99; `loaded_late`, as many under the same load without a kill, and
`quiet_late`, in quiet moments.

`socket_...` are the same asked of the daemon itself, over its Unix socket. `written_per_s` are the transitions that
were written in that time, by the daemon's own count: when it is less than RATE, the load was not what it should be.
"""

from __future__ import annotations

import json
import math
import os
import random
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from http.client import HTTPConnection, HTTPException
from ipaddress import ip_network
from itertools import chain, pairwise
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from typing import Any, Final, cast
from urllib.parse import urlencode

from appliance.lab import Lab, endpoint, wait_until
from tests.bench.beside import WAKERS, Beside, Noticed, beside, services
from tests.bench.direct import say
from tests.bench.figures import Report, Target, percentile
from tests.bench.simulated import FEW, PORT, Nursery, config
from tests.lab.echo import echo_process

RATE: Final = 50_000
SPOKEN: Final = 1000
GETS: Final = 500
PAGES: Final = 100  # of each filter
PAGE: Final = 100
PORTS_USED: Final = 50_000  # of an address
APART_S: Final = 0.005
WARM_S: Final = 4.0
API_HOST: Final = "127.0.0.1"
API_PORT: Final = 8443
GET_MS: Final = Target(at_most=5.0)
PAGE_MS: Final = Target(at_most=20.0)
STREAM_RATE: Final = 60_000
STREAM_BEGIN_S: Final = 1.5
STREAM_S: Final = 4.0
BULK: Final = 8000
BULK_RATE: Final = 20_000
BULK_WAKE: Final = Target(at_least=10_000)
ATTACHES: Final = 200
ATTACH_MS: Final = Target(at_most=10.0)
QUIET_S: Final = 4.0
KILLS: Final = 3
KILL_S: Final = 3.0
RELAY_RATIO: Final = Target(at_most=1.3)
WAKE_RATIO: Final = Target(at_most=1.5)
STREAM: Final = Target(at_least=50_000)
STREAM_10: Final = Target(at_least=20_000)
WRITTEN: Final = Target(at_least=0.95 * RATE)
PROGRAM: Final = ("-m", "tests.bench.loaded_daemon")


@contextmanager
def held(connections: int, addresses: int) -> Iterator[Nursery]:
    """So many clients, asleep, and a daemon that can be told of transitions."""
    policy = {"probe_interval": "never"}
    with Lab(clients=FEW, nat=False) as lab:
        simulator = lab.simulator(connections, PORT, addresses=addresses)
        interfaces = [simulator.box_interface, "wan0"]
        settings = config(lab, interfaces, connections + WAKERS, policy, (SPOKEN + BULK + WAKERS) * 2)
        settings["service"] += services(lab)
        api = {"listen": [f"{API_HOST}:{API_PORT}"], "user": "nobody", "requests": 100_000}
        daemon = lab.daemon({**settings, "api": api}, start=False)
        daemon.start(program=PROGRAM)
        with echo_process(lab.space("lan"), lab.address("lan", "eth0"), PORT):
            try:
                yield Nursery(lab, simulator, daemon)
            except BaseException:
                say(f"the daemon {'runs' if daemon.running else 'has ended'}:\n{daemon.log_tail()}")
                raise


class Asked(HTTPConnection):
    """Who is asked over one connection. httpx takes as long for a request as the daemon does. token: of the API."""

    def __init__(self, connected: Callable[[], socket.socket], token: str = "") -> None:
        super().__init__("roost", timeout=60)
        self.opened = connected
        self.token = {"Authorization": f"Bearer {token}"}
        self.lines = "".join(f"{name}: {value}\r\n" for name, value in self.token.items())

    def connect(self) -> None:
        self.sock = self.opened()


def asked_of(born: Nursery) -> tuple[Asked, Asked]:
    """The API, once it listens, and the daemon."""

    def daemon() -> socket.socket:
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(str(born.daemon.control_socket))
        return sock

    def api() -> socket.socket:
        with born.lab.enter("box"):
            sock = socket.create_connection((API_HOST, API_PORT))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock

    def listens() -> bool:
        with suppress(ConnectionRefusedError):
            api().close()
            return True
        return False

    wait_until(listens, 30, "the API's process listens")
    wanted = {"name": "bench", "role": "operator", "expires_s": 86_400}
    made = born.daemon.http("POST", "/v1/tokens", json=wanted).json()
    return Asked(api, made["token"]), Asked(daemon)


def took_ms(asked: Asked, path: str, **query: Any) -> tuple[float, Any]:
    """And the answer."""
    time.sleep(APART_S)
    began = time.perf_counter()
    asked.request("GET", f"{path}?{urlencode(query)}", headers=asked.token)
    answer = asked.getresponse()
    body = answer.read()
    took = (time.perf_counter() - began) * 1000
    if answer.status != 200:
        raise RuntimeError(f"{path}: {answer.status} {body!r}")
    return took, json.loads(body)


def load_of(born: Nursery) -> Path:
    """Where the daemon reads its load."""
    return born.daemon.config.with_name(born.daemon.config.name + ".load")


def begin_load(load: Path, said: str) -> None:
    """At once: a daemon that finds half of it ends."""
    whole = load.with_name(f"{load.name}.new")
    whole.write_text(said)
    whole.replace(load)


def job(asked: Asked, body: dict[str, Any]) -> dict[str, Any]:
    """At its end."""
    asked.close()
    asked.request("POST", "/v1/jobs", json.dumps(body), {**asked.token, "Content-Type": "application/json"})
    begun = json.loads(asked.getresponse().read())
    while True:
        _, shown = took_ms(asked, f"/v1/jobs/{begun['number']}")
        if shown["ended_at_ms"] is not None:
            return cast(dict[str, Any], shown)
        time.sleep(0.05)


def bulk(born: Nursery, asked: Asked, clients: range, action: str) -> float:
    """How many a second were done."""
    names = [endpoint(born.simulator.address_of(client), born.simulator.port_of(client)) for client in clients]
    done = job(asked, {"action": action, "connections": names, "rate": BULK_RATE})
    if done["done"] < len(names):
        born.failures[f"not done by a job, {done}"] = len(names) - done["done"]
    return float(done["done"] / (done["ended_at_ms"] - done["began_at_ms"]) * 1000)


def attaches(born: Nursery, asked: Asked, clients: range) -> list[float]:
    """ms of each."""
    found = []
    for client in clients:
        where = endpoint(born.simulator.address_of(client), born.simulator.port_of(client))
        time.sleep(APART_S)
        began = time.perf_counter()
        with asked.opened() as sock:
            sock.sendall(f"POST /v1/connections/{where}/attach HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\n"
                         f"Upgrade: roost\r\n{asked.lines}\r\n".encode())  # fmt: skip
            answer = sock.recv(1000)
            found.append((time.perf_counter() - began) * 1000)
            if b" 101 " not in answer:
                raise RuntimeError(f"{where}: {answer!r}")
    return found


def rss_mb(pid: int) -> float:
    (line,) = (one for one in Path(f"/proc/{pid}/status").read_text().splitlines() if one.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def gets(born: Nursery, asked: Asked, spoken: int) -> tuple[list[float], list[float], float]:
    """ms of each, ms of each bare one, and how many transitions a second were written meanwhile."""
    load = load_of(born)
    begin_load(load, f"{RATE} {spoken}")

    def written() -> tuple[float, int]:
        return time.monotonic(), int(born.daemon.status()["store"]["written_history"])

    time.sleep(WARM_S)  # until each has 100, and they are written as fast as they come
    found, (began, before) = list[float](), written()
    for _ in range(GETS):
        client = random.randrange(spoken)
        where = endpoint(born.simulator.address_of(client), born.simulator.port_of(client))
        took, answer = took_ms(asked, f"/v1/connections/{where}")
        if len(answer["history"]) < 100:
            raise RuntimeError(f"connection {answer['id']} has {len(answer['history'])} transitions")
        found.append(took)
    bare = [took_ms(asked, "/v1/jobs")[0] for _ in range(GETS)]
    ended, after = written()
    load.unlink()
    return found, bare, (after - before) / (ended - began)


def pages(asked: Asked, query: dict[str, Any]) -> list[float]:
    """ms of each of PAGES."""
    found, after = list[float](), ""
    for _ in range(PAGES):
        took, page = took_ms(asked, "/v1/connections", after=after, limit=PAGE, **query)
        found.append(took)
        after = page["next"] or ""
    return found


def streamed(born: Nursery, api: Asked, listeners: int) -> tuple[float, int]:
    """Events a second that each has at least; numbers that the first one missed, or had twice."""
    socks = []
    for _ in range(listeners):
        sock = api.opened()
        sock.sendall(f"GET /v1/events HTTP/1.1\r\nHost: x\r\n{api.lines}\r\n".encode())
        sock.setblocking(False)
        socks.append(sock)
    counts, numbers, rest = dict.fromkeys(socks, 0), list[int](), b""
    with DefaultSelector() as selector:
        for sock in socks:
            selector.register(sock, EVENT_READ)
        until = time.monotonic() + STREAM_BEGIN_S
        began, ends = until, until + STREAM_S
        while (now := time.monotonic()) < ends:
            for chosen, _ in selector.select(0.1):
                sock = cast(socket.socket, chosen.fileobj)
                data = sock.recv(1 << 20)
                if now >= began:
                    counts[sock] += data.count(b"event: t")
                if sock is socks[0] and listeners == 1:
                    *whole, rest = (rest + data).split(b"\n")
                    numbers += (int(line[4:]) for line in whole if line.startswith(b"id: "))
    for sock in socks:
        sock.close()
    wrong = sum(after != before + 1 for before, after in pairwise(numbers))
    return min(counts.values()) / STREAM_S, wrong


def killed(born: Nursery, api: Asked, others: Beside, quiet: Noticed, report: Report) -> None:
    """The API at full load is stopped, and then killed, KILLS times; before that it is left alone for as long."""
    loaded, noticed, load, over = Noticed(), Noticed(), load_of(born), threading.Event()
    where = endpoint(born.simulator.address_of(0), born.simulator.port_of(0))

    def ask() -> None:
        asked = Asked(api.opened, api.token["Authorization"].partition(" ")[2])
        while not over.is_set():
            try:
                asked.request("GET", f"/v1/connections/{where}", headers=asked.token)
                asked.getresponse().read()
            except (OSError, HTTPException):
                asked.close()
                time.sleep(APART_S)

    def listen() -> None:
        while not over.is_set():
            with suppress(OSError), api.opened() as sock:
                sock.settimeout(1)
                sock.sendall(f"GET /v1/events HTTP/1.1\r\nHost: x\r\n{api.lines}\r\n".encode())
                while not over.is_set() and sock.recv(1 << 20):
                    pass

    threads = [threading.Thread(target=work) for work in (ask, listen)]
    begin_load(load, f"{STREAM_RATE} {SPOKEN}")
    for thread in threads:
        thread.start()
    try:
        time.sleep(KILL_S)
        with others.noticing(loaded):
            time.sleep(KILLS * 2 * KILL_S)
        with others.noticing(noticed):
            for _ in range(KILLS):
                pid = int(born.daemon.status()["api"]["pid"])
                for number in (signal.SIGSTOP, signal.SIGKILL):
                    time.sleep(KILL_S)
                    os.kill(pid, number)
                wait_until(partial(begun_again, born, pid), 20, "it begins again")
    finally:
        over.set()
        load.unlink()
        for thread in threads:
            thread.join()
    limit = 1.5 * percentile(quiet.wake, 99)
    report.add("killed_relay_p99_ratio", percentile(noticed.relay, 99) / percentile(quiet.relay, 99), "", RELAY_RATIO)
    report.add("killed_wake_p99_ratio", percentile(noticed.wake, 99) / percentile(quiet.wake, 99), "", WAKE_RATIO)
    for when, moments in (("killed", noticed), ("loaded", loaded), ("quiet", quiet)):
        late = sum(ms > limit for ms in moments.wake)
        report.add(f"{when}_late", 1000 * late / max(1, len(moments.wake)), "of 1,000 wakes")
    report.add_zero("killed_not_answered", noticed.failed + loaded.failed, "clients")


def begun_again(born: Nursery, pid: int) -> bool:
    """Whether the API has another process than this one."""
    return born.daemon.status()["api"]["pid"] not in (None, pid)


def run(connections: int = 1_000_000, runs: int = 3, kill: bool = False) -> Report:
    """Ask the daemon of `connections` sleeping clients `runs` times, and then kill its API, if so wanted."""
    report = Report("control", f"{connections:,} clients asleep; {GETS} connections and {3 * PAGES} pages asked for")
    spoken = min(SPOKEN, connections)
    many = range(spoken, min(spoken + BULK, connections))
    got, rates, paged = dict[str, list[float]](), list[float](), dict[str, list[float]]()
    told: dict[int, list[float]] = {1: [], 10: []}
    jobs: dict[str, list[float]] = {"wake": [], "sleep": []}
    lost, rss, attached = 0, list[float](), list[float]()
    parts: dict[str, Noticed] = {part: Noticed() for part in ("quiet", "pages", "gets", "attaches", "jobs", "stream")}
    quiet = parts["quiet"]
    with held(connections, max(64, math.ceil(connections / PORTS_USED))) as born, ExitStack() as stack:
        joined = born.connect(range(connections))
        born.speak(range(spoken), 100)
        born.none_awake()
        say(f"{joined.done:,} clients are asleep after {joined.elapsed_s:.0f} s")
        others = stack.enter_context(beside(born))
        both = dict(zip(("", "socket_"), asked_of(born), strict=True))
        for action in jobs:  # so that they have a row each
            bulk(born, both[""], many, action)
        for number in range(1, runs + 1):
            with others.noticing(quiet):
                time.sleep(QUIET_S)
            network = ip_network(f"{born.simulator.address_of(random.randrange(connections))}/16", strict=False)
            queries = {"network": str(network), "silence": "1", "service": "lab4"}
            for who, asked in both.items():
                asked.close()  # else it would be closed for being idle
                with others.noticing(parts["pages"]):
                    each = {name: pages(asked, {name: value}) for name, value in queries.items()}
                for name, took in each.items():
                    paged.setdefault(f"{who}page_{name}", []).append(percentile(took, 99))
                all_pages = [one for took in each.values() for one in took]
                paged.setdefault(f"{who}page", []).append(percentile(all_pages, 99))
                with others.noticing(parts["gets"]):
                    took, bare, rate = gets(born, asked, spoken)
                got.setdefault(f"{who}get", []).append(percentile(took, 99))
                got.setdefault(f"{who}bare", []).append(percentile(bare, 99))
                rates.append(rate)
                say(f"run {number}, {who or 'api_'}: pages p99 {paged[f'{who}page'][-1]:.1f} ms, connections "
                    f"p50 {percentile(took, 50):.1f}, p99 {got[f'{who}get'][-1]:.1f} ms (bare "
                    f"{got[f'{who}bare'][-1]:.1f}), {rate:,.0f} rows/s")  # fmt: skip
            with others.noticing(parts["attaches"]):
                attached.append(percentile(attaches(born, both[""], many[:ATTACHES]), 99))
            bulk(born, both[""], many[:ATTACHES], "sleep")
            with others.noticing(parts["jobs"]):
                for action, per_s in jobs.items():
                    per_s.append(bulk(born, both[""], many, action))
            with others.noticing(parts["stream"]):
                load = load_of(born)
                begin_load(load, f"{STREAM_RATE} {spoken}")
                for listeners, per_s in told.items():
                    rate, wrong = streamed(born, both[""], listeners)
                    per_s.append(rate)
                    lost += wrong
                load.unlink()
            rss.append(rss_mb(int(born.daemon.status()["api"]["pid"])))
            say(f"run {number}: {told[1][-1]:,.0f} events a second to one listener, {told[10][-1]:,.0f} to each of "
                f"ten; {rss[-1]:.0f} MB; jobs: {jobs['wake'][-1]:,.0f} woken, {jobs['sleep'][-1]:,.0f} put to sleep a "
                f"second; attach {attached[-1]:.1f} ms")  # fmt: skip
        if kill:
            killed(born, both[""], others, quiet, report)
        stack.close()
        report.add_zero("stream_lost", lost, "events")
        report.add_zero("not_answered", sum(part.failed for part in parts.values()), "clients")
        report.add_zero("lost", born.gone(range(connections)), "clients")
        born.add_to(report)
        born.daemon.terminate()
    report.add("get_ms_p99", got["get"], "ms", GET_MS)
    for name in ("socket_get", "bare", "socket_bare"):
        report.add(f"{name}_ms_p99", got[name], "ms")
    report.add("written_per_s", rates, "/s", WRITTEN)
    report.add("stream_events_per_s", told[1], "/s", STREAM)
    report.add("stream_10_events_per_s", told[10], "/s", STREAM_10)
    report.add("bulk_wake_per_s", jobs["wake"], "/s", BULK_WAKE)
    report.add("bulk_sleep_per_s", jobs["sleep"], "/s")
    report.add("attach_ms_p99", attached, "ms", ATTACH_MS)
    for what, target in (("relay", RELAY_RATIO), ("wake", WAKE_RATIO)):
        took_by_part = {part: getattr(noticed, what) for part, noticed in parts.items()}
        for part, ms in took_by_part.items():
            report.add(f"{part}_{what}_ms_p99", percentile(ms, 99), "ms")
        calm = percentile(took_by_part.pop("quiet"), 99)
        report.add(f"{what}_p99_ratio", percentile([*chain(*took_by_part.values())], 99) / calm, "", target)
    report.add("api_rss_mb", rss, "MB")
    for name, values in paged.items():
        report.add(f"{name}_ms_p99", values, "ms", PAGE_MS)
    return report
