# SPDX-License-Identifier: Apache-2.0
"""What happens in the demo, step by step, told through `View`.

connect   real kernel-socket clients behind a NAT connect through the appliance, say hello, get their answer
sleep     they fall quiet: ACTIVE -> STANDBY -> IDLE -> SLEEP, by the daemon's timers
reach     a server reaches random sleeping ones by HTTP CONNECT, and each one answers
kill      SIGKILL; the clients' keep-alives go on being answered, by XDP alone
restart   a new daemon finds the sleeping clients, and the server reaches some more
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx

from appliance.lab import DaemonHandle, Lab, Peer, SwarmGroup
from control.dev.demo.outcome import Absence, Check, Memory, Outcome, Reached, Step
from control.dev.demo.slab import kernel_socket_bytes

PORT: Final = 8000
ATTACH_PORT: Final = 3128
_NO_CLIENTS: Final = {"0A", "06"}  # LISTEN and TIME-WAIT in /proc/net/tcp
SERVICE_SPACE: Final = 1.25
"""Slots of the tables for each client: a hash table wants some room."""

POLL_S: Final = 0.2
ANSWER_S: Final = 5.0
"""A client that has not answered after this long counts as not reached."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How large, how long. Seconds."""

    clients: int = 25_000
    reach: int = 200
    active_quiet_s: int = 2
    standby_quiet_s: int = 4
    idle_quiet_s: int = 7
    keepalive_s: int = 4
    keepalives_missed: int = 3
    """Rounds of keep-alives that fall into the daemon's absence."""
    patience_s: float = 60.0
    """Beyond this a wait has failed."""

    @property
    def absence_s(self) -> float:
        # A half round more: a timer that began just before the kill is due within it for the last time.
        return (self.keepalives_missed + 0.5) * self.keepalive_s


class View:
    """What shows the story; this one shows nothing, for programs. `status` is called from a thread of its own."""

    def began(self, title: str) -> None: ...
    def ended(self, step: Step) -> None: ...
    def status(self, status: Mapping[str, Any] | None) -> None: ...
    def kernel_socket(self, size: float) -> None: ...


class Story:
    """One run of the demo, in a lab that is there already."""

    def __init__(self, lab: Lab, plan: Plan, view: View) -> None:
        self._lab = lab
        self._plan = plan
        self._view = view
        self.outcome = Outcome(clients=plan.clients)
        self._daemon: DaemonHandle
        self._swarm: SwarmGroup
        self._asker: Peer
        self._sentence = ""

    def run(self) -> Outcome:
        """Tell it all. It ends early when a step leaves nothing for the next one to stand on; the checks say why."""
        self._set_up()
        with _Watcher(self._daemon.control_socket, self._view, self.outcome):
            self.outcome.finished = (
                self._connect() and self._sleep() and self._reach() and self._kill() and self._restart()
            )
        return self.outcome

    # -- the steps ----------------------------------------------------------------------------------------------------

    def _set_up(self) -> None:
        plan, lab = self._plan, self._lab
        with self._step("set-up", "a network of four namespaces: clients, NAT, appliance, server"):
            with lab.enter("lan"):
                self._kernel_socket = kernel_socket_bytes()
            self._view.kernel_socket(self._kernel_socket)
            lab.server(PORT)
            room = int(plan.clients * SERVICE_SPACE) + 64
            self._daemon = lab.daemon(
                lab.config(
                    PORT,
                    attach_port=ATTACH_PORT,
                    policy={
                        "active_quiet": plan.active_quiet_s,
                        "standby_quiet": plan.standby_quiet_s,
                        "idle_quiet": plan.idle_quiet_s,
                    },
                    table={"ipv4": room, "idle": room, "ipv6": 64, "ring_kb": 1024},
                )
            )
            self._swarm = lab.swarm()
            self._asker = lab.asker()
            self.outcome.max_awake = self._daemon.status()["max_awake"]
            self._own_before = self._own_memory()
            self._sentence = f"daemon up: at most {self.outcome.max_awake:,} clients may have a socket at once"

    def _connect(self) -> bool:
        plan, outcome = self._plan, self.outcome
        with self._step("connect", f"{plan.clients:,} clients behind the NAT connect and say hello"):
            done = self._swarm.connect(
                plan.clients,
                (self._lab.address("box", "wan0"), PORT),
                keepidle_s=plan.keepalive_s,
                keepintvl_s=plan.keepalive_s,
            )
            outcome.connected, outcome.connect_seconds = done.connected, done.seconds
            refused = f" ({_reasons(done.failed)})" if done.failed else ""
            self._check_count("every client connects and is answered", plan.clients, done.connected, refused)
            rate = done.connected / done.seconds if done.seconds else 0.0
            self._sentence = f"{done.connected:,} connected and were answered, {rate:,.0f} a second"
        return done.connected > 0

    def _sleep(self) -> bool:
        plan, outcome = self._plan, self.outcome
        with self._step("sleep", "they fall quiet; their connections leave the kernel"):
            asleep = self._wait_for("SLEEP", outcome.connected)
            self._check_count("all fall asleep", outcome.connected, asleep)
            descriptors = sum(1 for _ in Path(f"/proc/{self._daemon.pid}/fd").iterdir())
            self._check_count("the kernel holds no socket of any of them", 0, _clients_sockets(self._daemon.pid))
            outcome.memory = memory = Memory(
                connections=max(asleep, 1),
                kernel_socket=self._kernel_socket,
                tables=self._daemon.status()["memory"]["maps_bytes"],
                daemon_rss=self._daemon.process.memory_bytes(),
                daemon_growth=max(self._own_memory() - self._own_before, 0),
                daemon_descriptors=descriptors,
            )
            if plan.clients >= 10_000:  # few clients cannot carry the fixed part, such as the ring buffer
                self._check("a sleeping client costs less than a kernel socket", f"< {self._kernel_socket:,.0f} B",
                            f"{memory.all_each:,.0f} B", memory.all_each < self._kernel_socket)  # fmt: skip
            self._sentence = f"{asleep:,} asleep, {descriptors} descriptors left in the daemon"
        return asleep == outcome.connected

    def _reach(self) -> bool:
        with self._step("reach", f"a server reaches {self._wanted():,} random sleeping clients, one after the other"):
            self.outcome.reached_asleep = self._ask("each sleeping client that a server wants answers")
        with self._step("sleep again", "they fall asleep again"):
            asleep = self._wait_for("SLEEP", self.outcome.connected)
            self._check_count("all are asleep again", self.outcome.connected, asleep)
            self._sentence = f"{asleep:,} asleep"
        return asleep == self.outcome.connected

    def _kill(self) -> bool:
        plan, connected = self._plan, self.outcome.connected
        with self._step("kill", f"the daemon is killed (SIGKILL) and stays dead for {plan.absence_s:.0f} s"):
            self._answered_before = int(self._daemon.status()["counters"]["keepalives_answered"])
            self._daemon.kill()
            self._killed = time.monotonic()
            self.outcome.absence = absence = Absence()
            time.sleep(plan.absence_s)
            # The kernel's timer wheel fires a keep-alive up to an eighth late, a busy processor later still.
            silence_ms = (2 * plan.keepalive_s + 1) * 1000
            hearing = self._swarm.hearing(silence_ms)
            absence.heard_after_s = round(time.monotonic() - self._killed, 3)
            absence.silent_clients = hearing.silent
            absence.longest_silence_ms = hearing.max_silence_ms
            self._check_count("without a daemon, no client is lost", connected, hearing.open)
            self._check_count(f"and each has heard its peer within {silence_ms / 1000:.0f} s", connected,
                              hearing.open - hearing.silent)  # fmt: skip
            self._sentence = (
                f"{hearing.open - hearing.silent:,} of {connected:,} clients hear their peer, the longest silence "
                f"{hearing.max_silence_ms / 1000:.1f} s"
            )
        return hearing.open > 0

    def _restart(self) -> bool:
        plan, connected, absence = self._plan, self.outcome.connected, self.outcome.absence
        assert absence is not None  # made by _kill
        with self._step("restart", "a new daemon starts"):
            self._daemon.start()
            absence.seconds = round(time.monotonic() - self._killed, 3)
            status = self._daemon.status()
            absence.keepalives_answered = int(status["counters"]["keepalives_answered"]) - self._answered_before
            absence.adopted = status["connections"]["IDLE"] + status["connections"]["SLEEP"]
            self._check_count("the new daemon finds every sleeping client", connected, absence.adopted)
            least = plan.keepalives_missed * connected
            self._check("XDP answered their keep-alives in the meantime", f">= {least:,}",
                        f"{absence.keepalives_answered:,}", absence.keepalives_answered >= least)  # fmt: skip
            self._sentence = (
                f"back after {absence.seconds:.1f} s; {absence.adopted:,} clients found, "
                f"{absence.keepalives_answered:,} keep-alives were answered without it"
            )
        with self._step("reach again", f"the server reaches {self._wanted():,} more"):
            self.outcome.reached_after_crash = self._ask("after the crash, each client that a server wants answers")
            stats = self._swarm.stats()
            self.outcome.lost = dict(stats.dead)
            lost = f" ({_reasons(stats.dead)})" if stats.dead else ""
            self._check_count("in the end no client is lost", connected, stats.open, lost)
        return True

    # -- what the steps share -----------------------------------------------------------------------------------------

    @contextmanager
    def _step(self, name: str, title: str) -> Iterator[None]:
        self._view.began(title)
        self._sentence = title
        checked, since = len(self.outcome.checks), time.monotonic()
        yield
        seconds = time.monotonic() - since
        step = Step(name, seconds, self._sentence, all(check.ok for check in self.outcome.checks[checked:]))
        self.outcome.steps.append(step)
        self._view.ended(step)

    def _check(self, claim: str, expected: str, measured: str, ok: bool) -> None:
        self.outcome.checks.append(Check(claim, expected, measured, ok))

    def _check_count(self, claim: str, expected: int, measured: int, remark: str = "") -> None:
        self._check(claim, f"{expected:,}", f"{measured:,}{remark}", measured == expected)

    def _wait_for(self, state: str, count: int) -> int:
        """How many are in `state` when there are `count`, or when patience ends."""
        deadline = time.monotonic() + self._plan.idle_quiet_s + self._plan.patience_s
        while True:
            present = int(self._daemon.status()["connections"][state])
            if present >= count or time.monotonic() > deadline:
                return present
            time.sleep(POLL_S)

    def _own_memory(self) -> int:
        """The daemon's, bytes: not the tables, which it has mapped and which are counted as such."""
        return self._daemon.process.memory_bytes("RssAnon")

    def _wanted(self) -> int:
        return min(self._plan.reach, self.outcome.connected)

    def _ask(self, claim: str) -> Reached:
        asleep = [row["client"] for row in self._daemon.connections(state="SLEEP")]
        targets = random.sample(asleep, min(self._wanted(), len(asleep)))
        proxy = [self._lab.address("box", "lan0"), ATTACH_PORT]
        # One at a time: what is measured is a wake-up, not a queue of them.
        asked = self._asker.send("ask", proxy=proxy, targets=targets, concurrency=1, timeout_s=ANSWER_S)
        answer = self._asker.receive(asked, ANSWER_S * (len(targets) + 1))
        reached = Reached(len(targets), answer["answered"], answer["latency_us"], answer["failed"])
        remark = f" ({_reasons(reached.failed)})" if reached.failed else ""
        self._check_count(claim, self._wanted(), reached.answered, remark)
        figures = reached.as_dict()
        if reached.latency_us:
            self._sentence = (
                f"{reached.answered:,} of {self._wanted():,} answered; the answer's first byte after "
                f"{figures['p50_us'] / 1000:.1f} ms (p50), {figures['p99_us'] / 1000:.1f} ms (p99)"
            )
        else:
            self._sentence = f"none of {self._wanted():,} answered{remark}"
        return reached


class _Watcher:
    """Looks at the daemon's status some times a second, for the view and for the peaks; None while there is none."""

    def __init__(self, control_socket: Path, view: View, outcome: Outcome) -> None:
        self._socket = control_socket
        self._view = view
        self._outcome = outcome
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="demo-watcher", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        transport = httpx.HTTPTransport(uds=str(self._socket), verify=False)  # no TLS is spoken here
        with httpx.Client(transport=transport, base_url="http://roost", timeout=5) as http:
            while not self._stop.wait(POLL_S):
                try:
                    status = http.get("/v1/status").json()
                except httpx.TransportError:
                    self._view.status(None)
                    continue
                self._outcome.peak_awake = max(self._outcome.peak_awake, status["awake"])
                self._view.status(status)


def _clients_sockets(pid: int) -> int:
    """Sockets that the kernel has of the service's clients, in a process's network: no listeners, no TIME-WAIT."""
    ports_and_states = (
        (line.split()[1].rpartition(":")[2], line.split()[3])
        for family in ("tcp", "tcp6")
        for line in Path(f"/proc/{pid}/net/{family}").read_text(encoding="ascii").splitlines()[1:]
    )
    return sum(int(port, 16) == PORT and state not in _NO_CLIENTS for port, state in ports_and_states)


def _reasons(failed: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {reason}" for reason, count in sorted(failed.items()))
