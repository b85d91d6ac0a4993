# SPDX-License-Identifier: Apache-2.0
"""The programs at the lab's ends, as the lab's user drives them: swarms of clients, and the two ends of chaos."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from appliance.lab.processes import Peer, PeerError, descriptor_limit

PER_PROCESS = 18_000  # clients; below the descriptor limit of 20,000 that machines of the project's kind have
MOST_WAITS = 10  # how many times as long the end of chaos may take as it may take without a byte that moves


@dataclass
class Connected:
    connected: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0


@dataclass
class Said:
    answered: int = 0
    rtt_us: list[int] = field(default_factory=list)
    again_us: list[int] = field(default_factory=list)  # with twice: of the second time, same order
    failed: Counter[str] = field(default_factory=Counter)


@dataclass
class SwarmStats:
    open: int = 0
    dead: Counter[str] = field(default_factory=Counter)
    answers: int = 0


@dataclass
class Hearing:
    open: int = 0
    silent: int = 0
    unanswered_probes: int = 0
    max_silence_ms: int = 0
    retransmits: int = 0


_Total = TypeVar("_Total", Connected, Said, SwarmStats, Hearing)


class SwarmGroup:
    """Any number of clients, in as many processes as they need. See appliance.peers.swarm for the options."""

    def __init__(self, new_peer: Callable[[], Peer], addresses: Sequence[str]) -> None:
        self._new_peer = new_peer
        self.addresses = list(addresses)
        self._first = 0
        self._per_process = min(PER_PROCESS, descriptor_limit() - 500)
        self._room: list[int] = []
        self.peers: list[Peer] = []

    def connect(self, count: int, server: tuple[str, int], timeout_s: float = 600.0, **options: Any) -> Connected:
        """Connect `count` more clients and wait for their welcome. in_flight and rate hold for all together."""
        while sum(self._room) < count:
            self.peers.append(self._new_peer())
            self._room.append(self._per_process)
        shares = _shares(count, self._room)
        used = sum(share > 0 for share in shares)
        for key, least in (("in_flight", 1), ("rate", 0.001)):
            if options.get(key):
                options[key] = max(least, options[key] / used)
        sent = []
        for index, share in enumerate(shares):
            if share:
                sent.append((self.peers[index], self.peers[index].send(
                    "connect", count=share, first=self._first, server=server, addresses=self.addresses,
                    **options)))  # fmt: skip
                self._first += share
                self._room[index] -= share
        return _sum(Connected(), sent, timeout_s)

    def say(self, n: int, concurrency: int = 64, size: int = 16, timeout_s: float = 30.0, twice: bool = False,
            apart_ms: float = 0.0) -> Said:  # fmt: skip
        """n random clients speak, `concurrency` of each process at a time, and check their answers.

        With concurrency=1 the processes take turns, so that really one client speaks at a time. With twice a client
        speaks again as soon as it is answered: `again_us` has what that took. apart_ms: how long after an answer the
        next client speaks.
        """
        total = Said()
        under_way: list[tuple[Peer, int]] = []
        for peer, share in self._shared(n):
            token = peer.send("say", n=share, concurrency=concurrency, size=size, timeout_s=timeout_s, twice=twice,
                              apart_ms=apart_ms)  # fmt: skip
            under_way.append((peer, token))
            if concurrency == 1:
                _sum(total, [under_way.pop()], timeout_s * (share + 1))
        return _sum(total, under_way, timeout_s * (n + 1))

    def stats(self) -> SwarmStats:
        return _sum(SwarmStats(), self._ask_all("stats"))

    def hearing(self, silence_ms: int = 1 << 32) -> Hearing:
        """Whether the clients' kernels still hear their peer (`silent`: no ACK for longer); some 5 µs a client."""
        return _sum(Hearing(), self._ask_all("hearing", silence_ms=silence_ms))

    def clients(self, n: int) -> list[tuple[str, str]]:
        """(name, own address "a.b.c.d:port") of n random open clients; the address before any translation."""
        return [(name, address) for peer, share in self._shared(n)
                for name, address in peer.request("clients", n=share)["clients"]]  # fmt: skip

    def close(self) -> None:
        for peer in self.peers:
            peer.close()
        self.peers.clear()
        self._room.clear()

    def _shared(self, n: int) -> list[tuple[Peer, int]]:
        """How many of n random open clients are each process's; without those that have none."""
        open_ = [int(peer.receive(token)["open"]) for peer, token in self._ask_all("stats")]
        shares = _shares(min(n, sum(open_)), open_)
        return [(peer, share) for peer, share in zip(self.peers, shares, strict=True) if share]

    def _ask_all(self, do: str, **fields: Any) -> list[tuple[Peer, int]]:
        return [(peer, peer.send(do, **fields)) for peer in self.peers]


@dataclass
class ChaosResult:
    """Both directions together. lost_bytes to faults must be 0 or empty."""

    connections: int
    sent_bytes: int
    received_bytes: int
    lost_bytes: int
    duplicated_bytes: int
    reordered: int
    corrupted_bytes: int
    faults: Counter[str]
    """Links that ended by anything but a FIN that was due, or met another one of their client."""

    made: int
    """Connections that the server was asked for: one for each client, or one each time that a client is linked."""

    came: int
    """Times that the server came by itself and was linked."""

    @property
    def clean(self) -> bool:
        bad = self.lost_bytes + self.duplicated_bytes + self.reordered + self.corrupted_bytes
        return bad == 0 and not self.faults


class ChaosPair:
    """A client end and a server end. Connect the groups, start, wait, finish. by: what tells the server whose session a
    link belongs to (appliance.peers.chaos_server)."""

    def __init__(self, client: Peer, server: Peer, addresses: dict[int, list[str]], by: str) -> None:
        self.client, self.server = client, server
        self._addresses = addresses
        self._by = by
        self._first = 0

    def connect(self, count: int, server: tuple[str, int], *, mss: int = 0, window: int = 0, mark: int = 0,
                timestamps: bool = True, sack: bool = True, window_scaling: bool = True) -> None:  # fmt: skip
        """A group of clients with the same options; raises PeerError if one cannot connect."""
        answer = self.client.request(
            "connect", server=server, count=count, first=self._first, mss=mss, window=window, mark=mark,
            timestamps=timestamps, sack=sack, window_scaling=window_scaling,
            addresses=self._addresses[6 if ":" in server[0] else 4])  # fmt: skip
        self._first += count
        if answer["connected"] != count:
            raise PeerError(f"chaos client: {answer['connected']} of {count} connected; failed: {answer['failed']}")

    def visit(self, proxy: tuple[str, int] | None) -> None:
        """From now on the server comes for clients to speak to: by HTTP CONNECT, or by the client's own address."""
        self.server.request("visit", proxy=proxy)

    def start(self, pause_ms: float = 100.0, lazy: float = 0.05) -> None:
        for peer in (self.server, self.client):
            peer.request("start", pause_ms=pause_ms, lazy=lazy)

    def finish(self, timeout_s: float = 30.0) -> ChaosResult:
        """Stop both ends, let every byte arrive, and compare what was sent with what was received. Where a session has
        one link, both end it at once; else the server is quiet first, for only the client's end is passed on.
        timeout_s: how long no byte may move; MOST_WAITS times as long may all of it take."""
        most_s = MOST_WAITS * timeout_s

        def ask(peer: Peer, do: str, **fields: Any) -> Callable[[], dict[str, Any]]:
            token = peer.send(do, timeout_s=timeout_s, most_s=most_s, **fields)
            return lambda: peer.receive(token, most_s + 30)

        quiet = ask(self.server, "stop")
        if self._by == "stream":
            ended, to_clients = ask(self.client, "stop"), quiet()["sent"]
        else:
            to_clients, ended = quiet()["sent"], ask(self.client, "stop")
        to_server = ended()["sent"]
        at_client = ask(self.client, "settle", sent=to_clients)()
        at_server = ask(self.server, "settle", sent=to_server)()

        def both(key: str) -> int:
            return int(at_client[key]) + int(at_server[key])

        return ChaosResult(
            connections=len(to_server),
            sent_bytes=sum(to_server.values()) + sum(to_clients.values()),
            received_bytes=both("received_bytes"),
            lost_bytes=both("lost_bytes"),
            duplicated_bytes=both("duplicated_bytes"),
            reordered=both("reordered"),
            corrupted_bytes=both("corrupted_bytes"),
            faults=Counter(at_client["faults"]) + Counter(at_server["faults"]),
            made=at_server["made"],
            came=at_server["came"],
        )

    def close(self) -> None:
        self.client.close()
        self.server.close()


def _sum(total: _Total, sent: Iterable[tuple[Peer, int]], timeout_s: float = 60.0) -> _Total:
    """The processes' answers together: sums, but of times that ran side by side the longest."""
    for peer, token in sent:
        for key, value in peer.receive(token, timeout_s).items():
            before = getattr(total, key)
            if isinstance(before, Counter):
                before.update(value)
            else:
                setattr(total, key, max(before, value) if key in ("seconds", "max_silence_ms") else before + value)
    return total


def _shares(count: int, room: Sequence[int]) -> list[int]:
    """Split count in proportion to the room; none gets more than it has room for."""
    total = sum(room)
    if not total:
        return [0] * len(room)
    shares = [count * part // total for part in room]
    rest = count - sum(shares)
    for index, part in enumerate(room):
        extra = min(rest, part - shares[index])
        shares[index] += extra
        rest -= extra
    return shares
