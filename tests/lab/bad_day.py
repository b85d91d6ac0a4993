# SPDX-License-Identifier: Apache-2.0
"""A daemon whose clients sleep, are idle and are awake, each a third of them, when something goes wrong."""

from __future__ import annotations

import sqlite3
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Self

from appliance.lab import Lab, wait_until
from control.core.states import Cause
from tests.lab.test_control_plane import Transition, chain_of

EACH: Final = 20
PORTS: Final = {"SLEEP": 8000, "IDLE": 8001, "ACTIVE": 8002}
"""By the state that the clients of a service are in when they are quiet."""

NEVER: Final = "1h"
QUIET: Final[dict[str, dict[str, str]]] = {
    "SLEEP": {"active_quiet": "300ms", "standby_quiet": "300ms", "idle_quiet": "300ms"},
    "IDLE": {"active_quiet": "300ms", "standby_quiet": "300ms", "idle_quiet": NEVER},
    "ACTIVE": {"active_quiet": NEVER},
}
PROBE_S: Final = 1
"""Of the clients' kernels, which give up after a minute."""

DEFERRED_S: Final = 40.0
"""Within which one that was not to go to SLEEP, since the database was away, does: 30 s (ROOST_SLEEP_RETRY_S)."""


class Box:
    """with Box(lab) as box: something happens; box.told("store"); box.all_answered()

    config: is merged into the daemon's. Started by `start`, or by the `with`."""

    def __init__(self, lab: Lab, service: Mapping[str, Any] = MappingProxyType({}), each: int = EACH,
                 **config: Any) -> None:  # fmt: skip
        self.lab, self.each = lab, each
        self.router = config.get("router") is not None
        made = lab.config(**{key: config.pop(key) for key in ("router", "table") if key in config})
        server, listen = lab.address("lan", "eth0"), lab.address("box", "wan0")
        made["service"] = [
            {"name": state.lower(), **QUIET[state], **service,
             **({"listen": f"{server}:{port}", "transparent": True} if self.router
                else {"listen": f"{listen}:{port}", "server": f"{server}:{port}"})}
            for state, port in PORTS.items()
        ]  # fmt: skip
        self.daemon = lab.daemon(made | config, start=False)
        self.database = Path(config.get("paths", {}).get("database", lab.workspace / "roost.db"))
        self.clients = lab.swarm()
        self.execute: Callable[[str], Iterable[Any]] = self._execute

    def __enter__(self) -> Self:
        self.start()
        self.come()
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is not None:
            error.add_note(f"{self.daemon.log_tail()}\n{self.clients.stats()}")
        self.daemon.close()

    def start(self, **options: Any) -> None:
        """The servers and the daemon. options: of DaemonHandle.start."""
        self.serve()
        self.daemon.start(**options)

    def serve(self) -> None:
        """Servers begin."""
        self.servers = [self.lab.server(port) for port in PORTS.values()]

    def come(self) -> None:
        """The clients connect, and each goes to its state."""
        at = self.lab.address("lan", "eth0") if self.router else self.lab.address("box", "wan0")
        for port in PORTS.values():
            done = self.clients.connect(self.each, (at, port), keepidle_s=PROBE_S, keepintvl_s=PROBE_S, keepcnt=60)
            assert (done.connected, done.failed) == (self.each, Counter())
        self.settled()

    def states(self) -> dict[str, int]:
        states: dict[str, int] = self.daemon.status()["connections"]
        return states

    def settled(self, timeout_s: float = 20.0) -> None:
        """Each client is in its state again."""
        wanted = {"STANDBY": 0, **dict.fromkeys(PORTS, self.each)}
        wait_until(lambda: self.states() == wanted, timeout_s, f"{wanted}")

    # What an operator sees

    def attention(self) -> dict[str, dict[str, str]]:
        """By name."""
        return {one["name"]: one for one in self.daemon.status()["attention"]}

    def told(self, name: str, *words: str, timeout_s: float = 15.0) -> None:
        """Wait until `attention` has it, with these words in object or what, and says what to do."""

        def is_told() -> bool:
            found = [one for one in self.daemon.status()["attention"] if one["name"] == name]
            return any(one["do"] and all(word in f"{one['object']}: {one['what']}" for word in words) for one in found)

        try:
            wait_until(is_told, timeout_s, f"attention has {name} with {words}")
        except TimeoutError as late:
            raise TimeoutError(f"{late}; it has {self.daemon.status()['attention']}") from None

    def over(self, name: str, timeout_s: float = 40.0) -> None:
        """Wait until `attention` has it no more."""
        wait_until(lambda: name not in self.attention(), timeout_s, f"attention has no {name}")

    def logged(self, words: str) -> bool:
        return words in self.daemon.log.read_text(errors="replace")

    # What clients notice

    def pause(self, for_s: float) -> None:
        """Meanwhile the daemon goes on."""
        deadline = time.monotonic() + for_s
        while time.monotonic() < deadline:
            assert self.daemon.running
            time.sleep(0.2)

    def none_lost(self) -> None:
        """None was reset or ended."""
        stats = self.clients.stats()
        assert (stats.open, stats.dead) == (len(PORTS) * self.each, Counter())

    def heard(self, for_s: float = 2.5 * PROBE_S) -> None:
        """The keep-alives of all are answered for so long."""
        time.sleep(for_s)
        assert self.clients.hearing(round(for_s * 1000)).silent == 0

    def all_speak(self, timeout_s: float = 60.0) -> Callable[[], None]:
        """Each says something; what is returned waits until each is answered, and none was lost."""
        number = len(PORTS) * self.each
        (peer,) = self.clients.peers
        said = peer.send("say", n=number, concurrency=number, size=16, timeout_s=timeout_s, twice=False)

        def answered() -> None:
            answer = peer.receive(said, timeout_s + 10)
            assert (answer["answered"], answer["failed"]) == (number, {})
            self.none_lost()

        return answered

    def all_answered(self, timeout_s: float = 20.0) -> None:
        """Each says something, and its server answers; none was lost."""
        self.all_speak(timeout_s)()

    # Afterwards

    def history(self) -> dict[int, list[Transition]]:
        """Transitions of each connection, in order."""
        wait_until(lambda: self.daemon.status()["store"]["pending_history"] == 0, 20, "the history is written")
        found: dict[int, list[Transition]] = defaultdict(list)
        for number, *step in self.execute('SELECT id, "from", "to", cause FROM history ORDER BY seq'):
            found[number].append((step[0], step[1], step[2]))
        return found

    def _execute(self, statement: str) -> list[Any]:
        with closing(sqlite3.connect(self.database)) as database:
            return database.execute(statement).fetchall()

    def history_is_whole(self) -> None:
        """It has every client's steps once, in order, and none ended."""
        self.settled(DEFERRED_S)
        history = self.history()
        assert len(history) == len(PORTS) * self.each
        for steps in history.values():
            chain_of(steps)
            assert steps[0][2] == Cause.CLIENT_CONNECT
        states = Counter(steps[-1][1] for steps in history.values())
        assert sorted(states.values()) == [self.each] * len(PORTS), states
        status = self.daemon.status()
        assert (status["control"]["illegal"], status["control"]["lost_records"]) == (0, 0)
