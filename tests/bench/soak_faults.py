# SPDX-License-Identifier: Apache-2.0
"""The faults of `roost bench soak`: one row each in FAULTS, with what it does and what it may cost. A new fault is a
row."""

from __future__ import annotations

import os
import random
import resource
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from appliance.lab import DaemonError, wait_until
from control.dispatch.recall import READ_PATIENCE_S
from control.store.owner import LEASE_S
from tests.bench.direct import WAN
from tests.bench.soak_scene import KEEPIDLE_S, KEEPINTVL_S, UP_S, Scene
from tests.lab.fixtures import ip

OUTSIDE: Final = ("nat", "outside")
OTHER_WAY: Final = "198.18.0.9"
"""Another address of the NAT router's on the appliance's link."""
RIVAL_PORT: Final = 7990
HOUR_S: Final = 3600
DAMAGED: Final = "invalid page in block"
"""In PostgreSQL's words."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What a fault may take from real clients, as the documentation says; all else that ends is a finding."""

    awake: bool = False
    """Connections with a socket may end, and their clients hear it. One that slept may not."""
    linked: str = ""
    """Connections that have a link to this server may end, or miss an answer."""
    idle: bool = False
    """Connections may end that have no row in the database. Their clients hear it when they say something."""
    silent: bool = False
    """Keep-alives may be unanswered while it lasts."""
    resets: bool = False
    """RSTs may come of it."""


NOTHING: Final = Cost()
AWAKE: Final = Cost(awake=True, resets=True)
SILENT: Final = Cost(silent=True)
REBOOT: Final = Cost(awake=True, silent=True, resets=True)


@dataclass(frozen=True, slots=True)
class Fault:
    """do: returns when it is over. share: how often it comes, beside the others."""

    name: str
    what: str
    do: Callable[[Scene, random.Random], None]
    may_cost: Cost = NOTHING
    share: float = 1.0


# The daemon


def kill(scene: Scene, chance: random.Random) -> None:
    with scene.fleet.dumb():
        scene.box.kill()
        time.sleep(chance.uniform(0, 5))
        scene.box.start()


def stop(scene: Scene, chance: random.Random) -> None:
    with scene.fleet.dumb():
        scene.box.manager.stop()
        time.sleep(chance.uniform(0, 5))
        scene.box.start()


def reboot(scene: Scene, _: random.Random) -> None:
    with scene.fleet.dumb():
        scene.box.manager.stop(goes_down=True, timeout_s=UP_S)
        scene.box.boot(scene.database)


def power_cut(scene: Scene, chance: random.Random, another: bool = False, restored: bool = False) -> None:
    """another: one has its place then. restored: it has its configuration from a backup then."""
    if scene.box.daemon.status()["counters"]["born"] > scene.clients:
        drain(scene, chance)  # of the simulated ones most have not spoken yet, and would be lost
    with scene.fleet.dumb():
        wait_until(scene.fleet_has_rows, UP_S, "all simulated clients have rows", 0.2)
        backup = scene.box.back_up() if restored else None
        scene.box.kill()
        scene.box.boot(scene.database, another, backup=backup)
    time.sleep(KEEPIDLE_S + KEEPINTVL_S)  # each that was lost has sent a probe


def clock(scene: Scene, chance: random.Random) -> None:
    with scene.fleet.dumb():
        scene.box.manager.stop(goes_down=True, timeout_s=UP_S)
        scene.clock.jump(chance.choice((-HOUR_S, HOUR_S)))
        scene.box.boot(scene.database, under=scene.clock.under)
    time.sleep(chance.uniform(2, 6))
    scene.clock.jump(0)


def hand_over(scene: Scene, _: random.Random) -> None:
    scene.box.restart()


def upgrade(scene: Scene, _: random.Random) -> None:
    scene.box.upgrade(scene.later())


def freeze(scene: Scene, chance: random.Random) -> None:
    with frozen(scene):
        time.sleep(chance.uniform(2, 6))


def long_freeze(scene: Scene, chance: random.Random) -> None:
    with scene.fleet.dumb(), frozen(scene):
        began = time.monotonic()
        time.sleep(LEASE_S + 1)
        rival(scene, chance)
        time.sleep(max(began + 2 * LEASE_S - time.monotonic(), 0))


@contextmanager
def frozen(scene: Scene) -> Iterator[None]:
    pid = scene.box.daemon.pid
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def reload(scene: Scene, chance: random.Random) -> None:
    with scene.box.changed(r'idle_quiet = "(15|20|30|40)s"', f'idle_quiet = "{chance.choice((3, 6, 9))}s"'):
        time.sleep(chance.uniform(2, 6))


def short_of(what: str, percent: int) -> Callable[[Scene, random.Random], None]:
    def fault(scene: Scene, chance: random.Random) -> None:
        with scene.box.changed(f"{what} = 95", f"{what} = {percent}"):
            time.sleep(chance.uniform(3, 6))

    return fault


def no_descriptors(scene: Scene, chance: random.Random) -> None:
    """Not even for an operator who asks."""
    pid = scene.box.daemon.pid
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, hard))
    try:
        time.sleep(chance.uniform(2, 6))
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))


def api_killed(scene: Scene, _: random.Random) -> None:
    killed = scene.box.daemon.status()["api"]["pid"]
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: scene.box.daemon.status()["api"]["pid"] not in (None, killed), 30, "the API is there again", 0.2)


def drain(scene: Scene, _: random.Random) -> None:
    with scene.fleet.dumb():
        scene.box.drain()
        scene.box.succeed()


def rival(scene: Scene, _: random.Random) -> None:
    elsewhere = {"name": "rival", "listen": f"127.0.0.1:{RIVAL_PORT}", "server": "127.0.0.1:9"}
    other = scene.lab.daemon({"paths": scene.box.config["paths"], "service": [elsewhere],
                              "network": {"interfaces": []}}, start=False)  # fmt: skip
    try:
        other.start(60, environment=scene.box.environment)
    except DaemonError as refused:
        if "belongs to instance" not in str(refused):
            raise
    else:
        raise RuntimeError("a second daemon has the database of one that runs")
    finally:
        other.close()


# Its database


def database_away(scene: Scene, chance: random.Random) -> None:
    scene.database.take_away()
    try:
        time.sleep(chance.uniform(2, 10))
    finally:
        scene.database.give_back()


def database_cut(scene: Scene, _: random.Random) -> None:
    scene.database.cut()


def database_locked(scene: Scene, chance: random.Random) -> None:
    with scene.database.locked():
        time.sleep(chance.uniform(2, 6))


def database_damaged(scene: Scene, chance: random.Random) -> None:
    met = scene.cluster.log().count(DAMAGED)
    with scene.cluster.damaged("sleeping", every=4):
        time.sleep(chance.uniform(READ_PATIENCE_S, 2 * READ_PATIENCE_S))
    if scene.cluster.log().count(DAMAGED) == met:
        raise RuntimeError("no damaged page was read")


def database_full(scene: Scene, chance: random.Random) -> None:
    with scene.cluster.full():
        time.sleep(chance.uniform(2, 10))


# The networks on both sides


def server_killed(name: str) -> Callable[[Scene, random.Random], None]:
    def do(scene: Scene, chance: random.Random) -> None:
        scene.servers[name].process.kill()
        time.sleep(chance.uniform(0, 3))
        scene.serve(name)

    return do


def outage(scene: Scene, chance: random.Random) -> None:
    dropping(scene, "", chance.uniform(3, 8))


def lossy(scene: Scene, chance: random.Random) -> None:
    dropping(scene, f"numgen random mod 1000 < {chance.randint(10, 50)}", chance.uniform(5, 10))


def dropping(scene: Scene, which: str, seconds: float) -> None:
    """The NAT router drops frames, in both directions."""
    scene.lab.nft("nat", f"""
        table inet soak_drop {{
            chain through {{
                type filter hook forward priority -10; policy accept;
                {which} drop
            }}
        }}
    """)  # fmt: skip
    try:
        time.sleep(seconds)
    finally:
        scene.lab.nft("nat", "delete table inet soak_drop")


def interface(scene: Scene, chance: random.Random) -> None:
    scene.lab.remove_link("box", WAN)
    try:
        time.sleep(chance.uniform(1, 4))
    finally:
        scene.lab.renew_link("box", WAN)


def mac(scene: Scene, chance: random.Random) -> None:
    """Another machine has the NAT router's place; the appliance is told at once, as by its gratuitous ARP."""
    address = "02:" + ":".join(f"{chance.randrange(256):02x}" for _ in range(5))
    ip(scene.lab, *OUTSIDE[:1], "link", "set", OUTSIDE[1], "address", address)
    for family in (4, 6):
        gateway = scene.lab.address(*OUTSIDE, family)
        ip(scene.lab, "box", "neigh", "replace", gateway, "lladdr", address, "dev", WAN, "nud", "permanent")


def route(scene: Scene, chance: random.Random) -> None:
    """The way to clients is by another address, and after a while by the one it was."""
    lab = scene.lab
    ip(lab, "nat", "address", "add", f"{OTHER_WAY}/24", "dev", OUTSIDE[1])
    ip(lab, "box", "route", "replace", "198.19.0.0/16", "via", OTHER_WAY, "dev", WAN)
    try:
        time.sleep(chance.uniform(3, 6))
    finally:
        ip(lab, "box", "route", "replace", "198.19.0.0/16", "via", lab.address(*OUTSIDE), "dev", WAN)
        ip(lab, "nat", "address", "del", f"{OTHER_WAY}/24", "dev", OUTSIDE[1])


def forged(scene: Scene, _: random.Random) -> None:
    """Segments in the names of simulated clients, whose numbers are in no window; none may wake by them."""
    scene.fleet.forge(2.0)


FAULTS: Final = (
    Fault("kill", "SIGKILL of the daemon; another one within 5 s", kill, AWAKE, 2),
    Fault("stop", "the daemon is stopped in order, and started within 5 s", stop, AWAKE),
    Fault("reboot", "the machine is rebooted in order", reboot, REBOOT),
    Fault("power-cut", "it loses its power, and boots again", power_cut, replace(REBOOT, idle=True)),
    Fault("take-over", "it loses its power, and another one has its place by --take-over",
          partial(power_cut, another=True), replace(REBOOT, idle=True)),
    Fault("restore", "it loses its power and its disk, and has its configuration from a backup",
          partial(power_cut, restored=True), replace(REBOOT, idle=True)),
    Fault("clock", "it is rebooted, and its clock is an hour early or late, and set right later", clock, REBOOT),
    Fault("hand-over", "the service manager restarts it: awake connections are handed over", hand_over, share=2),
    Fault("upgrade", "the same, and the next version has another schema, and hands over more", upgrade, share=0.5),
    Fault("freeze", "SIGSTOP of the daemon for 2 to 6 s", freeze),
    Fault("long-freeze", "the same for twice the lease on its database, which a second daemon wants", long_freeze),
    Fault("reload", "SIGHUP with other quiet intervals, and after some seconds with those it had", reload),
    Fault("descriptors", "SIGHUP: 2 % of the descriptors are to be enough, for seconds", short_of("descriptors", 2)),
    Fault("no-descriptors", "the daemon may have three of them for 2 to 6 s, and has them", no_descriptors),
    Fault("memory", "SIGHUP: 1 % of the memory is to be enough, for some seconds", short_of("memory", 1)),
    Fault("api-killed", "SIGKILL of the API's process", api_killed),
    Fault("drain", "roost drain; another instance has its place by --take-over", drain, SILENT, 0.5),
    Fault("rival", "a second daemon wants the database", rival),
    Fault("database-away", "PostgreSQL crashes, and is back after 2 to 10 s", database_away),
    Fault("database-cut", "every connection to PostgreSQL is ended", database_cut),
    Fault("database-locked", "another client of PostgreSQL locks the table of sleepers for 2 to 6 s", database_locked),
    Fault("database-damaged", "every fourth page of sleepers is damaged in PostgreSQL for 5 to 10 s", database_damaged),
    Fault("database-full", "the disk of PostgreSQL's tables has no room for 2 to 10 s", database_full),
    Fault("server-killed", "SIGKILL of the server of most services, back within 3 s", server_killed("plain"),
          Cost(linked="plain", resets=True)),
    Fault("session-server-killed", "the same of the server of persistent sessions: all of them end",
          server_killed("session"), Cost(linked="session", resets=True), 0.5),
    Fault("outage", "nothing passes between clients and appliance for 3 to 8 s", outage, SILENT),
    Fault("lossy", "1 to 5 % of all frames between them are lost, for 5 to 10 s", lossy, SILENT),
    Fault("interface", "the interface towards the clients is deleted, and made anew within 4 s", interface, SILENT),
    Fault("mac", "the next router towards the clients has another MAC", mac),
    Fault("route", "the route towards the clients is by another next router for some seconds", route),
    Fault("forged", "segments outside of every window in the names of sleeping clients, for 2 s", forged),
)  # fmt: skip
