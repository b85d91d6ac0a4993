# SPDX-License-Identifier: Apache-2.0
"""A restart of the service with awake connections, as an upgrade makes one: none is lost, no byte, and none waits long.

Method. Real clients connect and stay ACTIVE. Some of them speak at any time, and have their answers from the real
server; other sessions carry checked byte streams in both directions, in bursts and pauses, some of them
to slow readers, so that bytes are in flight, unread and unsent at every moment (as `bench chaos`). Then the daemon is
restarted, again and again, as systemd does it: SIGTERM, and when the process has ended, the next one, with the
descriptor that the first one has left. Between the two there is no process.

`pause_ms` is, of each restart, the longest time that a client which spoke in it has waited for its answer; `quiet_ms`
the same without a restart, as long before the first. `seconds` runs from the signal until the next daemon answers its
operators. `lost_connections` are clients that are not open at the end, or that the daemon does not know, or knows by
another number; `resets` are sessions of either kind that ended by anything but a FIN that was due.
"""

from __future__ import annotations

import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from appliance.lab import Lab, wait_until
from appliance.lab.groups import SwarmGroup
from appliance.lab.service_manager import ServiceManager
from tests.bench.direct import need_room, say
from tests.bench.figures import Report, Target

PORT, STREAMS_PORT = 8000, 9000
STREAMS = 64
SPEAKERS = 16
"""Clients between question and answer at a time."""

BURST_PAUSE_MS = 200.0
LOOK_S = 3.0
"""Before the first restart, and after each."""

PAUSE_MS = Target(at_most=500)
POLICY = {"active_quiet": "never", "standby_quiet": "never", "idle_quiet": "never"}


class Speaking(threading.Thread):
    """Clients speak, one round after the other, until it is ended: (when, how long in ms) of the longest of each."""

    def __init__(self, clients: SwarmGroup, each: int, after_s: float = 0, **how: Any) -> None:
        """each: clients in a round, chosen at random. after_s: the first of them. how: options of `say`."""
        super().__init__(name="speaking")
        self._clients = clients
        self._each = each
        self._after_s = after_s
        self._how = how
        self._ending = threading.Event()
        self._error: Exception | None = None
        self.rounds: list[tuple[float, float]] = []
        self.failed = 0

    def run(self) -> None:
        try:
            self._ending.wait(self._after_s)
            while not self._ending.is_set():
                said = self._clients.say(self._each, **self._how)
                self.rounds.append((time.monotonic(), max(said.rtt_us, default=0) / 1000))
                self.failed += sum(said.failed.values())
        except Exception as error:
            self._error = error

    def end(self) -> None:
        """Raises what ended it before."""
        self._ending.set()
        self.join()
        if self._error is not None:
            raise self._error

    def longest_ms(self, since: float) -> float:
        """Of the rounds that ended since then."""
        return max((ms for at, ms in self.rounds if at >= since), default=0.0)


def run(connections: int = 5000, runs: int = 5) -> Report:
    """Restart the daemon of `connections` ACTIVE clients `runs` times."""
    need_room(connections + STREAMS, descriptors_each=2)
    report = Report("upgrade")
    with Lab(clients=connections + STREAMS) as lab, tempfile.TemporaryDirectory() as directory:
        lab.server(PORT)
        streams = lab.chaos(STREAMS_PORT)
        config = lab.config(PORT, policy=POLICY, table={"max_awake": 2 * connections})
        config["service"] += [{**service, "name": f"streams{service['name']}", "on_server_close": "close",
                               "listen": service["listen"].replace(f":{PORT}", f":{STREAMS_PORT}"),
                               "server": service["server"].replace(f":{PORT}", f":{STREAMS_PORT}")}
                              for service in config["service"]]  # fmt: skip
        daemon = lab.daemon(config, start=False)
        with ServiceManager(daemon, Path(directory)) as manager:
            manager.start()
            clients = lab.swarm()
            joined = clients.connect(connections, (lab.address("box", "wan0"), PORT))
            for family in (4, 6):
                streams.connect(STREAMS // 2, (lab.address("box", "wan0", family), STREAMS_PORT))
            total = connections + STREAMS
            wait_until(lambda: daemon.status()["connections"]["ACTIVE"] == total, 60, "all are active")
            known = {row["id"] for row in daemon.connections()}
            say(f"{joined.connected:,} clients and {STREAMS} streams are active; {runs} restarts")
            streams.start(pause_ms=BURST_PAUSE_MS)
            speaking = Speaking(clients, min(connections, 1000), concurrency=SPEAKERS)
            speaking.start()
            time.sleep(LOOK_S)
            quiet_ms = speaking.longest_ms(0)
            pauses, took, missing = [], [], 0
            for _ in range(runs):
                began = time.monotonic()
                manager.restart()
                took.append(time.monotonic() - began)
                time.sleep(LOOK_S)
                pauses.append(speaking.longest_ms(began))
                missing = max(missing, len(known - {row["id"] for row in daemon.connections()}))
                say(f"{took[-1]:.2f} s, a byte waited {pauses[-1]:.0f} ms at most")
            speaking.end()
            result = streams.finish()
            stats = clients.stats()
            daemon.terminate()
        streams.close()
    lost = connections - joined.connected + sum(stats.dead.values())
    report.did = (f"{connections:,} clients and {STREAMS} streams active, {result.received_bytes:,} bytes checked; the "
                  f"service restarted {runs} times")  # fmt: skip
    report.add("connections", total, "connections")
    report.add_zero("lost_connections", max(lost, missing), "connections")
    report.add_zero("lost_bytes", result.lost_bytes + result.duplicated_bytes + result.corrupted_bytes, "bytes")
    report.add_zero("resets", result.faults.total() + speaking.failed, "connections")
    report.add("pause_ms", pauses, "ms", PAUSE_MS)
    report.add("quiet_ms", quiet_ms, "ms")
    report.add("seconds", took, "s")
    if result.faults or stats.dead:
        report.problems.append(f"ended: {dict(stats.dead)}, streams: {dict(result.faults)}")
    return report
