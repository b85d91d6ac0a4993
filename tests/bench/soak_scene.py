# SPDX-License-Identifier: Apache-2.0
"""Who takes part in `roost bench soak`: an appliance that may go away and come back, groups of real clients by habit,
their servers, and a fleet of simulated clients that sleep."""

from __future__ import annotations

import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import httpx

from appliance.lab import DaemonError, DaemonHandle, Lab, Peer, endpoint, wait_until
from appliance.lab.groups import PER_PROCESS
from appliance.lab.lab import ONE_NETWORK
from appliance.lab.processes import python_environment
from appliance.lab.service_manager import ServiceManager
from appliance.lab.simulator import ClientState, Simulator, Unfinished
from appliance.peers.habits import GIVEN_UP
from control.store.owner import LEASE_S
from tests.bench.direct import WAN
from tests.databases import OPTIONS, Cluster, Postgres
from tests.lab.echo import Echo
from tests.lab.wrong_clock import WrongClock
from tests.later import Later
from tests.reboot import age_all, in_quarantine, quarantined, quarantines

ATTACH_PORT: Final = 3128
FLEET_PORT: Final = 8000
KEEPIDLE_S, KEEPINTVL_S = 20, 5
POSTGRES: Final = OPTIONS | {
    "shared_buffers": "128MB",
    "autovacuum": "on",
    "max_wal_size": "1GB",
    "default_tablespace": "small",
}
DISK: Final = "8g"
"""In memory, of PostgreSQL's tables; it takes as much as they do."""
LOAD: Final = 0.85
"""Of the appliance's tables when all are there."""
UP_S: Final = 120.0
ASKED_S = 2 * LEASE_S + 5
"""So long a client asks nothing after a server has asked it (appliance.peers.habits): longer than any outage."""
DEFERRED_S: Final = 40.0
"""One whose row could not be written is asked for it again within it (ROOST_SLEEP_RETRY_S)."""
ASLEEP_S: Final = 4.0
"""After its last byte a simulated client has no socket in the appliance any more: 1 s, and a margin."""


@dataclass(frozen=True, slots=True)
class Habit:
    """A group of clients. share: of all real ones. every_s: between two questions of one of them by day. quiet:
    seconds of active_quiet, standby_quiet and idle_quiet."""

    name: str
    port: int
    share: float
    every_s: float
    size: int
    quiet: tuple[float, float, float]
    server: str
    """The process that answers; groups may share one."""
    service: dict[str, Any] = field(default_factory=dict)
    attach: str = ""
    """How servers come to these clients: "proxy", "address" or not at all."""
    leave_every_s: float = 0.0
    """Between two clients that leave and come back, at 1,000 clients; 0: none does."""

    @property
    def awake_s(self) -> float:
        """A client that was quiet for so long, and a margin for a busy machine, has no socket in the appliance."""
        persistent = self.service.get("interface") == "persistent"
        return self.quiet[0 if persistent else 1] + 5.0

    @property
    def row_s(self) -> float:
        """One that was quiet for so long has a row of the database, though that was away when it was due."""
        return self.awake_s + self.quiet[2] * 9 / 8 + DEFERRED_S


HABITS: Final = (
    Habit("meters", 7001, 0.52, 1800, 40, (1, 2, 20), "plain"),
    Habit("chatty", 7002, 0.06, 20, 2000, (3, 6, 12), "plain"),
    Habit("sessions", 7003, 0.14, 300, 400, (4, 0, 60), "session", {"interface": "persistent"}),
    Habit("routed", 7004, 0.12, 600, 100, (2, 3, 30), "routed", {"transparent": True}, attach="address"),
    Habit("reached", 7005, 0.08, 3600, 40, (1, 2, 15), "plain", attach="proxy"),
    Habit("born", 7006, 0.04, 600, 40, (1, 2, 40), "plain", {"born": "always"}),
    Habit("roamers", 7007, 0.04, 900, 100, (2, 4, 30), "plain", leave_every_s=1.0),
)
SERVERS: Final = tuple(sorted({habit.server for habit in HABITS}))


class Group:
    """Clients of a habit, in a process of their own."""

    def __init__(self, lab: Lab, habit: Habit, count: int, first: int, address: str) -> None:
        """address: theirs alone. Behind a NAT one public address and port may stand for clients of several services,
        and a server that comes by it could mean any of them."""
        self.habit = habit
        self.count = count
        self._lock = threading.Lock()
        self.peer = lab.peer("wan", "habits")
        space = ("lan", "eth0") if habit.service.get("transparent") else ("box", WAN)
        rate = max(50.0, count / 30)
        self.ask("live", count=count, first=first, server=(lab.address(*space), habit.port), rate=rate, in_flight=256,
                 addresses=[address], asked_s=ASKED_S, keepidle_s=KEEPIDLE_S, keepintvl_s=KEEPINTVL_S, keepcnt=60,
                 timeout_s=60)  # fmt: skip

    def ask(self, do: str, **fields: Any) -> dict[str, Any]:
        with self._lock:
            return self.peer.receive(self.peer.send(do, **fields), 120)


class Box:
    """The appliance: one daemon at a time, which a service manager runs."""

    def __init__(self, lab: Lab, config: dict[str, Any], stack: ExitStack) -> None:
        self.lab = lab
        self.config = config
        self.environment: Mapping[str, str] = {}
        """Of the version that it runs."""
        self._stack = stack
        self._take_up()

    def _take_up(self) -> None:
        directory = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        self.daemon: DaemonHandle = self.lab.daemon(self.config, start=False)
        self.manager = self._stack.enter_context(ServiceManager(self.daemon, directory))

    def start(self, options: Sequence[str] = (), under: Sequence[str] = ()) -> None:
        """options: of `roost up`. under: a program that runs it, with its arguments."""
        self.manager.start(UP_S, options, under, self.environment)

    def boot(self, database: Postgres, another: bool = False, under: Sequence[str] = (),
             backup: Path | None = None) -> None:  # fmt: skip
        """The machine is on again: of the daemon that ended there is nothing but its database. All have been put back
        when it returns. another: another machine has its place. backup: its configuration was lost, too, and
        is in there."""
        dead = self.daemon
        if another:
            self._take_up()
        self._quarantine()
        dead.unpin()
        if backup is not None:
            self._restore(backup)
            self._quarantine()
        age_all(database)
        self.start(["--take-over"] if another else [], under)
        wait_until(lambda: not in_quarantine(self.lab), UP_S, "all rows are put back", 0.1)

    def _quarantine(self) -> None:
        if status := quarantined(self.lab, self.daemon, self.environment):
            raise RuntimeError(f"roost up --quarantine: exit status {status}")

    def back_up(self) -> Path:
        """RuntimeError with what the command says if it failed."""
        backup = self.daemon.config.with_suffix(".backup")
        self._roost("backup", str(backup), "--force", "-c", str(self.daemon.config))
        return backup

    def _restore(self, backup: Path) -> None:
        daemon = self.daemon
        where = {"control_socket": daemon.control_socket, "pin_dir": daemon.pin_dir}  # not where they are by default
        daemon.config.write_text("\n".join(["[paths]", *(f'{key} = "{path}"' for key, path in where.items()), ""]))
        self._roost("restore", str(backup), "--with-config", "--force", "-c", str(daemon.config))

    def restart(self) -> None:
        self.manager.stop("restart", timeout_s=UP_S)
        self.manager.start(UP_S, environment=self.environment)

    def upgrade(self, later: Later) -> None:
        """Restart it as that version. RuntimeError if it has not become it."""
        self.environment = later.environment
        self.restart()
        if f"to revision {later.revision}" not in self.daemon.log.read_text(errors="replace"):
            raise RuntimeError(f"the daemon is not of the version whose schema is {later.revision}")

    def kill(self) -> None:
        self.daemon.kill()
        self.manager.hear()

    def succeed(self) -> None:
        """Another instance takes the place of this one, which has been drained: on another machine, so that the first
        one's quarantine would hide no resets."""
        of_first = quarantines(self.lab)
        self._take_up()
        self.start()
        wait_until(lambda: quarantines(self.lab) == of_first, UP_S, "all rows are put back", 0.1)
        for table in of_first:
            self.lab.nft("box", f"delete table {table}")

    def drain(self) -> None:
        """Every connection gets its row, and the daemon ends. RuntimeError with what the command says if it failed."""
        self._roost("drain", "--yes", "--socket", str(self.daemon.control_socket))

    def _roost(self, *words: str) -> None:
        argv = [sys.executable, "-m", "control.cli.main", *words]
        popen = self.lab.run("box", argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                             env=python_environment(self.environment)).popen  # fmt: skip
        said, _ = popen.communicate(timeout=UP_S)
        if popen.returncode:
            raise RuntimeError(f"roost {words[0]}: {said}")

    @contextmanager
    def changed(self, pattern: str, value: str) -> Iterator[None]:
        """Another configuration for a while, which SIGHUP makes known: what the pattern finds is replaced."""
        old = self.daemon.config.read_text()
        new, count = re.subn(pattern, value, old)
        if not count:
            raise ValueError(f"nothing in the configuration is like {pattern!r}")
        self.reload(new)
        try:
            yield
        finally:
            self.reload(old)

    def reload(self, text: str) -> None:
        """RuntimeError with what the daemon says if it refuses that."""
        self.daemon.config.write_text(text)
        before = len(self._told())
        self.daemon.process.popen.send_signal(signal.SIGHUP)

        def is_obeyed() -> bool:
            told = "\n".join(self._told()[before:])
            if "SIGHUP: the configuration stays" in told:
                raise RuntimeError(told)
            return "SIGHUP: policy taken over" in told

        wait_until(is_obeyed, 30, "SIGHUP is obeyed")
        self.manager.hear()  # its socket has room for ten messages

    def _told(self) -> list[str]:
        return self.daemon.log.read_text(errors="replace").splitlines()

    def status(self) -> dict[str, Any] | None:
        """None: it does not answer."""
        try:
            return self.daemon.status()
        except (httpx.HTTPError, DaemonError):
            return None


@dataclass
class Beats:
    """Keep-alives and words of the simulated clients so far."""

    asked: int = 0
    answered: int = 0
    spoke: int = 0
    unheard: int = 0
    """Those that spoke and were not answered."""
    again: int = 0
    """Frames that were sent again."""


class Fleet(threading.Thread):
    """Simulated clients are born asleep; a sample of them is kept alive all the time, and some speak."""

    BATCH_S = 1.0

    def __init__(self, simulator: Simulator, clients: int, seed: int, per_s: int = 10_000) -> None:
        super().__init__(name="fleet", daemon=True)
        self.simulator = simulator
        self.clients = clients
        self._random = random.Random(seed)
        self._batch = min(per_s, clients)
        self._ending = threading.Event()
        self.error: BaseException | None = None
        self.beats = Beats()
        self.unanswered: list[tuple[float, int]] = []
        """When, and how many keep-alives."""
        self.forged: list[tuple[int, int]] = []
        """From when until when segments were forged, and none of these clients spoke: ms since 1970."""
        self._speakers = 5
        self._using = threading.Lock()  # of the simulator, which is one thread's at a time

    def connect(self) -> float:
        """Seconds that it took."""
        outcome = self.simulator.connect(range(self.clients), timeout_s=120 + self.clients / 10_000)
        if outcome.done != self.clients:
            raise RuntimeError(f"the simulated clients did not all connect: {outcome}")
        return outcome.elapsed_s

    def run(self) -> None:
        first = 0
        try:
            while not self._ending.is_set():
                began = time.monotonic()
                last = min(first + self._batch, self.clients)
                with self._using:
                    self.keep_alive(range(first, last))
                    self.speak(sorted(self._random.sample(range(self.clients), min(self._speakers, self.clients))))
                first = last % self.clients
                self._ending.wait(max(0.0, self.BATCH_S - (time.monotonic() - began)))
        except BaseException as error:
            self.error = error

    def keep_alive(self, clients: range, rto_s: float = 1.0, tries: int = 8) -> None:
        try:
            outcome = self.simulator.keep_alive(clients, rto_s=rto_s, tries=tries, timeout_s=300)
        except Unfinished as late:
            outcome = late.outcome
        asked = len(clients) - outcome.skipped  # without those whose end was counted when it came
        self.beats.asked += asked
        self.beats.answered += outcome.done
        self.beats.again += outcome.retransmitted
        if outcome.done != asked:
            self.unanswered.append((time.monotonic(), asked - outcome.done))

    def speak(self, clients: list[int]) -> None:
        try:
            outcome = self.simulator.speak(clients, 200, 200, rto_s=0.5, tries=10, timeout_s=300)
        except Unfinished as late:
            outcome = late.outcome
        self.beats.spoke += outcome.done
        self.beats.unheard += len(clients) - outcome.skipped - outcome.done

    @contextmanager
    def dumb(self) -> Iterator[None]:
        """None of them speaks; when it begins, all are asleep that are not lost."""
        speakers, self._speakers = self._speakers, 0
        with self._using:
            pass  # those that speak now have their answers
        time.sleep(ASLEEP_S)
        try:
            yield
        finally:
            self._speakers = speakers

    @contextmanager
    def used(self) -> Iterator[Simulator]:
        """The simulator, for another thread."""
        with self._using:
            yield self.simulator

    def forge(self, seconds: float, rate: float = 5000) -> None:
        """Segments out of every window, in the names of all."""
        with self._using:
            began = time.time_ns() // 1_000_000
            self.simulator.spoof_segments(range(self.clients), seconds, rate)
            time.sleep(0.5)  # what is on its way
            self.forged.append((began, time.time_ns() // 1_000_000))

    def stop(self) -> None:
        """Whether or not it runs."""
        self._ending.set()
        if self.is_alive():
            self.join()

    def end(self) -> None:
        self.stop()
        if self.error is not None:
            raise self.error

    def gone(self) -> int:
        """Clients that have no connection any more."""
        return self.clients - self.simulator.census().get(ClientState.ESTABLISHED, 0)


def split(total: int) -> list[tuple[Habit, int]]:
    """So many clients for each habit, at least one; in parts that a process has descriptors for."""
    counts = [max(1, int(total * habit.share)) for habit in HABITS]
    counts[0] += total - sum(counts)
    parts = []
    for habit, count in zip(HABITS, counts, strict=True):
        processes = -(-count // PER_PROCESS)
        parts += [(habit, count * (at + 1) // processes - count * at // processes) for at in range(processes)]
    return parts


class Scene:
    """All of it, at work. Real clients that connect, and a fleet that is asleep."""

    def __init__(self, clients: int, simulated: int, seed: int) -> None:
        self.clients, self.simulated, self.seed = clients, simulated, seed
        self._stack = ExitStack()
        self._later: Later | None = None

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.cluster = Cluster(POSTGRES, DISK)
            stack.callback(self.cluster.close)
            self.database = Postgres(self.cluster)
            self.clock = WrongClock(Path(stack.enter_context(tempfile.TemporaryDirectory())))
            self.lab = lab = stack.enter_context(Lab(clients=self.clients, addresses=len(split(self.clients))))
            self.simulator = lab.simulator(self.simulated, FLEET_PORT)
            self.servers: dict[str, Peer] = {}
            for name in SERVERS:
                self.serve(name)
            self.echo = stack.enter_context(Echo(lab.space("lan"), lab.address("lan", "eth0"), FLEET_PORT))
            self.asker = lab.asker()
            self._watch_resets()
            self.box = Box(lab, self._config(), stack)
            self.box.start()
            self.fleet = Fleet(self.simulator, self.simulated, self.seed)
            stack.callback(self.fleet.stop)  # before the simulator ends, also where something else has failed
            self.groups: list[Group] = []
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:  # fmt: skip
        self._stack.close()

    def build_later(self) -> None:
        """Have the version that `later` is."""
        tree = Path(self._stack.enter_context(tempfile.TemporaryDirectory())) / "later"
        self._later = Later(tree, optimized=True)
        self._later.add_facts()
        self._later.build()

    def later(self) -> Later:
        """A version that hands over more than this one does, and whose schema is later than at any call before."""
        if self._later is None:
            raise RuntimeError("there is no later version: build_later")
        self._later.add_revision()
        return self._later

    def _config(self) -> dict[str, Any]:
        lab, server = self.lab, self.lab.address("lan", "eth0")
        services = []
        for habit in HABITS:
            quiet = dict(zip(("active_quiet", "standby_quiet", "idle_quiet"),
                             (f"{seconds}s" for seconds in habit.quiet), strict=True))  # fmt: skip
            at = endpoint(lab.address("box", WAN), habit.port)
            where = {"listen": endpoint(server, habit.port)} if habit.service.get("transparent") else {
                "listen": at, "server": endpoint(server, habit.port)}  # fmt: skip
            more = {"on_second_server": "wait"} if habit.attach else {}
            services.append({"name": habit.name, **where, **quiet, **more, **habit.service})
        services.append({"name": "fleet", "listen": endpoint(lab.address("box", WAN), FLEET_PORT), "born": "always",
                         "server": endpoint(server, FLEET_PORT), "active_quiet": "500ms", "standby_quiet": "1s",
                         "idle_quiet": "5s"})  # fmt: skip
        slots = int((self.clients + self.simulated) / LOAD) + 1000
        return {
            "paths": {"database": self.database.url},
            "network": {"interfaces": [WAN, self.simulator.box_interface]},
            "router": {"lan": ["lan0"], "fail": "closed"},  # or some pass by the appliance after a kill
            "table": {"ipv4": slots, "ipv6": 100, "idle": self.clients + 50_000},
            "pressure": {"descriptors": 95, "memory": 95, "clear": 0.5},  # below all that faults say (short_of)
            "limits": ONE_NETWORK,
            "attach": {"listen": [endpoint(lab.address("box", "lan0"), ATTACH_PORT)]},
            "api": {"listen": [endpoint(lab.address("box", "lan0"), 8443)], "user": "nobody", "plain": True},
            "service": services,
        }

    def serve(self, name: str) -> None:
        """Start the servers of this name (again)."""
        address = self.lab.address("lan", "eth0")
        ports = [str(habit.port) for habit in HABITS if habit.server == name]
        peer = self.lab.peer("lan", "server", *(word for port in ports for word in ("--listen", address, port)))
        peer.request("ready")
        self.servers[name] = peer

    def join(self) -> float:
        """All clients connect; seconds that the simulated ones took."""
        seconds = self.fleet.connect()
        for index, (habit, count) in enumerate(split(self.clients)):
            address = self.lab.client_addresses()[index]
            self.groups.append(Group(self.lab, habit, count, index * 100_000, address))
        patience_s = 60 + self.clients / 200
        wait_until(self.all_open, patience_s, "all are connected", 0.5)
        return seconds

    def all_open(self) -> bool:
        return all(group.ask("brief")["open"] == group.count for group in self.groups)

    def fleet_has_rows(self) -> bool:
        """All simulated clients, but for those that were born asleep and have said nothing yet."""
        return not any(self.box.daemon.connections(service="fleet", state=state, limit=1)
                       for state in ("ACTIVE", "STANDBY", "IDLE"))  # fmt: skip

    def all_spoke(self) -> bool:
        """In a sweep."""
        return not any(group.ask("brief")["sweeping"] for group in self.groups)

    # What leaves the appliance towards the clients

    def _watch_resets(self) -> None:
        self.lab.nft("wan", f"""
            table inet soak {{
                counter resets {{ }}
                chain heard {{
                    type filter hook input priority raw; policy accept;
                    tcp flags & rst == rst socket mark != {GIVEN_UP} counter name resets
                }}
            }}
        """)  # fmt: skip

    def resets(self) -> int:
        """RSTs that real clients have heard; not those for a client that had given up its connection, and whose last
        words are sent again for minutes, by when there may be no connection any more."""
        told = self.lab.nft("wan", "list counter inet soak resets")
        found = re.search(r"packets (\d+)", told)
        if found is None:
            raise RuntimeError(f"nft does not tell its counter: {told}")
        return int(found[1])
