# SPDX-License-Identifier: Apache-2.0
"""A daemon with services that read in-band requests, and the two ends of connections that make them.

with InBandLab(lab, {"all": {"clients": EVERYTHING}}) as box:
    session = box.connect("all")
    assert session.client.ask(Ping()) == OK
"""

from __future__ import annotations

import socket
import tomllib
from collections import deque
from collections.abc import Container, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Final, Self

from appliance.lab import Lab, endpoint, wait_until
from appliance.wire import Key
from examples.in_band_frames import MAGIC, Answer, Body, Decoder, Frame, Recipient, Report, Result, Status, encode

EVERYTHING: Final = ["done", "quiet", "keepalive", "always-active", "name", "sleep", "status"]
OK, REFUSED = Answer(Result.OK), Answer(Result.REFUSED)
ATTACH_PORT: Final = 8100


class End:
    """One end of a connection, which knows of the manager in between."""

    def __init__(self, sock: socket.socket, side: Recipient) -> None:
        self.sock = sock
        self.frames: deque[Frame] = deque()
        self.payload = b""
        self.over = False
        self._decoder = Decoder(side)
        self._numbers = 0

    def receive(self) -> None:
        """Take what comes next; at the end of the stream `over` is set."""
        data = self.sock.recv(1 << 16)
        self.over = not data
        for part in self._decoder.feed(data):
            if isinstance(part, Frame):
                self.frames.append(part)
            else:
                self.payload += part
        if self.over:
            self.payload += self._decoder.flush()

    def expect(self, payload: bytes) -> None:
        """Exactly these bytes come, apart from frames."""
        while (left := payload[len(self.payload) :]) and not self.over:
            if MAGIC.startswith(left) and self._decoder.held == len(left):
                self.payload += self._decoder.flush()  # random bytes may end as a frame begins
            else:
                self.receive()
        assert self.payload[: len(payload)] == payload
        self.payload = self.payload[len(payload) :]

    def expect_end(self) -> None:
        """The end of the stream, and no payload before it."""
        while not self.over:
            self.receive()
        assert self.payload == b""

    def frame(self) -> Frame:
        """The next frame for this end."""
        while not self.frames:
            assert not self.over, "the stream ended"
            self.receive()
        return self.frames.popleft()

    def tell(self, body: Body, **fields: Any) -> None:
        """A request without an answer."""
        self.sock.sendall(encode(Frame(body, **fields)))

    def ask(self, body: Body, **fields: Any) -> Answer:
        """A request and its answer."""
        self._numbers += 1
        self.tell(body, number=self._numbers, answer=True, **fields)
        answer = self.frame()
        assert answer.number == self._numbers
        assert isinstance(answer.body, Answer)
        return answer.body

    def report(self) -> Report:
        """The answer to `status`."""
        report = self.ask(Status()).report
        assert report is not None
        return report


class Session:
    """A client's connection with the server it is linked to first."""

    def __init__(self, box: InBandLab, service: str, family: int) -> None:
        self.box = box
        self.family = family
        self.port = box.ports[service]
        box.forget(self.port, family)
        # Bound first, it has a port that no client of another service has either: connections are looked up by it.
        source, to = (box.lab.address(*where, family) for where in (("wan", "eth0"), ("box", "wan0")))
        with box.lab.enter("wan"):
            sock = socket.create_connection((to, self.port), 5, (source, 0))
        self.client = End(box.closing(sock), Recipient.CLIENT)
        host, port = sock.getsockname()[:2]
        self.address = endpoint(host, port)
        self.key = Key.of(host, port, *sock.getpeername()[:2])
        self.server = self.accept()

    def accept(self) -> End:
        """The server's end of the next link."""
        self.server = End(self.box.accept(self.port, self.family), Recipient.SERVER)
        return self.server

    def exchange(self) -> None:
        """A question and its answer."""
        self.client.sock.sendall(b"question")
        self.server.expect(b"question")
        self.server.sock.sendall(b"answer")
        self.client.expect(b"answer")

    def wake(self) -> None:
        """The client speaks, a new server answers."""
        self.client.sock.sendall(b"question")
        self.accept().expect(b"question")
        self.server.sock.sendall(b"answer")
        self.client.expect(b"answer")

    def shown(self) -> dict[str, Any]:
        """What `roost show` says of it."""
        shown: dict[str, Any] = self.box.daemon.get(f"/v1/connections/{self.address}")
        return shown

    def wait_state(self, state: str) -> None:
        wait_until(lambda: self.shown()["state"] == state, 8, f"{self.address} is {state}")

    def causes(self) -> list[tuple[str, str]]:
        """(state, cause) of its transitions that are in the history, which is written within a quarter of a second."""
        return [(row["to"], row["cause"]) for row in self.shown()["history"]]

    def wait_causes(self, *last: tuple[str, str]) -> None:
        # One look waits for the store's disk, 5 s if need be.
        wait_until(lambda: self.causes()[-len(last) :] == list(last), 30, f"the history ends with {last}")


class InBandLab:
    """services: name -> `clients` and `servers`, what they may ask for, and keys of [service.in_band]; each has a port
    of its own, on both families. Time moves nothing. persistent: the names of those whose links to the server sleep,
    too. policies: name -> keys of [[service]]. attach: keys of [attach]."""

    def __init__(self, lab: Lab, services: Mapping[str, dict[str, Any]], persistent: Container[str] = (),
                 policies: Mapping[str, dict[str, Any]] = MappingProxyType({}),
                 attach: Mapping[str, Any] = MappingProxyType({})) -> None:  # fmt: skip
        self.lab = lab
        self.ports = {name: ATTACH_PORT + 1 + i for i, name in enumerate(services)}
        self._stack = ExitStack()
        self._listeners: dict[tuple[int, int], socket.socket] = {}
        never = dict.fromkeys(("active_quiet", "standby_quiet", "idle_quiet", "probe_interval"), "never")
        parts = [lab.config(port, policy=never, attach_port=ATTACH_PORT) for port in self.ports.values()]
        for (name, in_band), part in zip(services.items(), parts, strict=True):
            for service in part["service"]:
                service["name"] = f"{name}-{service['name']}"
                who = {key: value for key, value in in_band.items() if key in ("clients", "servers")}
                service |= {f"in_band_{key}": value for key, value in who.items()}
                service["in_band"] = {key: value for key, value in in_band.items() if key not in who}
                service["interface"] = "persistent" if name in persistent else "transient"
                service.update(policies.get(name, {}))
        parts[0]["attach"] |= attach
        self._config = {**parts[0], "service": [service for part in parts for service in part["service"]]}

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.push(self._stack.pop_all())
            for port in self.ports.values():
                for family in (4, 6):
                    with self.lab.enter("lan"):
                        listener = socket.create_server(
                            (self.lab.address("lan", "eth0", family), port),
                            family=socket.AF_INET6 if family == 6 else socket.AF_INET)  # fmt: skip
                    listener.settimeout(5)
                    self._listeners[port, family] = stack.enter_context(listener)
            self.daemon = self.lab.daemon(self._config)
            self.database = Path(tomllib.loads(self.daemon.config.read_text())["paths"]["database"])
            stack.callback(self.daemon.close)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:  # fmt: skip
        self._stack.close()

    def closing(self, sock: socket.socket) -> socket.socket:
        """Closed with the lab."""
        sock.settimeout(5)
        self._stack.callback(sock.close)
        return sock

    def accept(self, port: int, family: int) -> socket.socket:
        return self.closing(self._listeners[port, family].accept()[0])

    def forget(self, port: int, family: int) -> None:
        """Close links that a test which failed has left: the next one would take them for its own."""
        listener = self._listeners[port, family]
        listener.settimeout(0)
        with suppress(BlockingIOError):
            while True:
                listener.accept()[0].close()
        listener.settimeout(5)

    def connect(self, service: str, family: int = 4) -> Session:
        session = Session(self, service, family)
        session.exchange()
        return session

    def counter(self, name: str) -> int:
        return int(self.daemon.status()["counters"][name])
