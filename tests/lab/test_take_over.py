# SPDX-License-Identifier: Apache-2.0
"""Two machines with one database: the one that stands by has the sleepers when the other one dies or is drained."""

from __future__ import annotations

import errno
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from appliance.lab import DaemonHandle, Lab, programs, wait_until
from appliance.lab.groups import SwarmGroup
from appliance.lab.processes import python_environment
from appliance.lab.service_manager import ServiceManager
from appliance.wire import Op
from control.core.states import State
from tests.databases import Cluster, Postgres
from tests.keepalived import keepalived
from tests.lab.engine_lab import EngineLab, receive
from tests.lab.test_drain import drained

CLIENTS, PORT, LEASE_S = 100, 8000, 2
QUIET = {"active_quiet": "300ms", "standby_quiet": "300ms", "idle_quiet": "300ms"}
PROBED = {"keepidle_s": 1, "keepintvl_s": 1, "keepcnt": 100}


@dataclass
class Pair:
    lab: Lab
    first: DaemonHandle
    second: DaemonHandle
    clients: SwarmGroup
    database: Postgres | None = None

    def asleep(self, box: DaemonHandle, count: int = CLIENTS) -> None:
        wait_until(lambda: box.counts().get("SLEEP") == count, 20, "all are asleep")

    def all_answered(self, count: int = CLIENTS) -> None:
        """Every client speaks, is answered, and was never reset."""
        said = self.clients.say(count, timeout_s=20)
        assert (said.answered, said.failed, self.clients.stats().dead) == (count, {}, {})

    def follows(self, count: int = CLIENTS) -> None:
        """The second machine has read so many rows of the first one."""
        told = f"{count} connections are in its table"
        wait_until(lambda: told in self.second.standby(), 10, "the second one follows")

    def print_logs(self) -> None:
        """For who looks into a failure."""
        print(f"the first:\n{self.first.log_tail(60)}\nthe second:\n{self.second.log_tail(60)}")

    def rows(self) -> int:
        """Of those that sleep."""
        assert self.database is not None
        ((count,),) = self.database.execute("SELECT count(*) FROM sleeping")
        return int(count)


def quarantined(pair: Pair) -> str:
    """The tables of nftables on the second machine."""
    with pair.lab.enter("box2"):
        return subprocess.run(["nft", "list", "tables"], capture_output=True, text=True, check=True).stdout


@pytest.fixture
def pair() -> Iterator[Pair]:
    with closing(Cluster()) as cluster, Lab(clients=CLIENTS * 2) as lab:
        database = Postgres(cluster)
        pair = pair_of(lab, database.url)
        pair.database = database
        join(pair)
        yield pair
        pair.print_logs()


def pair_of(lab: Lab, url: str, service: dict[str, Any] | None = None, policy: dict[str, Any] | None = None,
            awake: bool = False) -> Pair:  # fmt: skip
    """The two machines; no daemon runs. awake: with a service at PORT + 1 whose clients stay ACTIVE."""
    lab.second_box()
    lab.server(PORT)
    config = lab.config(PORT, policy=policy or QUIET, service=service) | {
        "paths": {"database": url},
        "standby": {"address": lab.address("box", "wan0"), "lease": LEASE_S},
    }
    for one in config["service"]:
        if one.get("interface") == "persistent":
            one["source"] = lab.address("box", "lan0", 6 if "[" in one["server"] else 4)
    if awake:
        one = config["service"][0]
        listen = one["listen"].replace(f":{PORT}", f":{PORT + 1}")
        config["service"].append({**one, "name": "awake", "listen": listen, "active_quiet": "never"})
    first, second = (lab.daemon(config, start=False, space=space) for space in ("box", "box2"))
    return Pair(lab, first, second, lab.swarm())


NO_DATABASE: Final = "table inet cut { chain c { type filter hook output priority 0; tcp dport 5432 drop; }; }"
"""Rules of a machine that is cut off from PostgreSQL."""


@contextmanager
def with_the_database_elsewhere() -> Iterator[Pair]:
    """The two machines, joined; PostgreSQL is on the server's, so that either can be cut off from it."""
    with Lab(clients=CLIENTS * 2) as lab, ExitStack() as stack:
        here = lab.address("lan", "eth0")
        programs.Postgres(lab, "lan", [(here, 5432)])
        pair = pair_of(lab, f"postgresql://postgres@{here}/postgres")
        stack.callback(pair.print_logs)
        join(pair)
        yield pair


def join(pair: Pair, asleep: bool = True, under: Sequence[str] = ()) -> None:
    """Clients sleep on the first machine, if any are to, and the second one stands by. under: what runs the latter."""
    if not pair.first.running:
        pair.first.begin()
        wait_until(pair.first.counts, 10, "the first one has the connections")
    pair.second.begin(under=under)
    wait_until(pair.second.standby, 10, "the second one stands by")
    if not asleep:
        return
    there = pair.lab.address("box", "wan0"), PORT
    assert pair.clients.connect(CLIENTS, there, **PROBED).connected == CLIENTS
    pair.asleep(pair.first)


def test_an_engine_whose_lease_is_over_wakes_and_probes_none(empty_lab: Lab) -> None:
    """Out of its own tables, too, for which it needs no database."""
    probed = {"probe_interval_s": 1, "probe_retry_s": 1, "probe_count": 2}
    with EngineLab(empty_lab, service=probed) as box:
        pair = box.connect()
        box.to_idle(pair)
        box.engine.lease(1)
        time.sleep(0.2)  # what was under way
        sent = box.stat("probes_sent")
        pair.client.sendall(b"hello")
        time.sleep(3)
        box.submit(Op.WAKE, pair)
        box.wait(lambda: box.refusals(pair), "a command is refused, too")
        assert box.refusals(pair) == [(Op.WAKE, errno.ESHUTDOWN)]
        assert (box.state(pair), box.stat("probes_sent")) == (State.IDLE, sent)
        box.engine.lease(0)
        assert receive(box.accept(), 5) == b"hello", "its kernel has said it again"


def test_a_machine_that_dies_is_replaced_and_no_client_hears_of_it(pair: Pair) -> None:
    pair.follows()
    before = pair.first.connections()
    pair.first.kill()
    pair.lab.move_addresses("box", "box2")
    pair.asleep(pair.second)
    wait_until(lambda: "quarantine" not in quarantined(pair), 10, "the second one resets again what it does not know")
    assert {one["id"] for one in pair.second.connections()} == {one["id"] for one in before}
    pair.all_answered()
    assert pair.second.status()["control"]["lost_records"] == 0


@pytest.mark.parametrize("lost", [True, False], ids=["unacknowledged", "silent"])
def test_a_client_whose_handshake_the_first_one_began_is_answered_by_the_second(lost: bool) -> None:
    """Its SYN was answered by a cookie, and the first machine died before it had its ACK, or before it had a row."""
    count = 20
    with closing(Cluster()) as cluster, Lab(clients=count) as lab, ExitStack() as stack:
        pair = pair_of(lab, Postgres(cluster).url, {"born": "always"}, {"idle_quiet": "1h"})
        join(pair, asleep=False)
        pair.follows(0)
        if lost:
            lab.nft(
                "nat",
                """
                table inet lossy {
                    chain forward {
                        type filter hook forward priority -10; policy accept;
                        tcp dport 8000 tcp flags & (syn | ack) == ack drop
                    }
                }
            """,
            )
        with lab.enter("wan"):
            there = lab.address("box", "wan0"), PORT
            clients = [stack.enter_context(socket.create_connection(there, 10)) for _ in range(count)]
        born = 0 if lost else count
        wait_until(lambda: pair.first.counts().get("IDLE", 0) == born, 10, "they are born, or not")
        pair.first.kill()
        lab.move_addresses("box", "box2")
        wait_until(pair.second.counts, 20, "the second one has the connections")
        if lost:
            lab.nft("nat", "delete table inet lossy")
        for client in clients:
            client.sendall(b"ECHO hello\n")
        assert [receive(client, 11) for client in clients] == [b"ECHO hello\n"] * count
        assert pair.second.status()["counters"]["born_spoke"] == count
        pair.print_logs()


@pytest.mark.parametrize("drains", [False, True], ids=["dies", "drained"])
def test_sessions_go_on_with_their_servers_at_the_address_that_moves(drains: bool) -> None:
    with closing(Cluster()) as cluster, Lab(clients=CLIENTS) as lab:
        pair = pair_of(lab, Postgres(cluster).url, {"interface": "persistent"})
        join(pair)
        if drains:
            assert drained(lab, pair.first).returncode == 0
            assert pair.first.process.wait(5) == 0
        else:
            pair.first.kill()
            lab.cut("box")
        lab.move_addresses("box", "box2")
        pair.asleep(pair.second)
        pair.all_answered()
        pair.print_logs()


def test_what_woke_slept_again_and_ended_meanwhile_is_as_the_first_one_left_it(pair: Pair) -> None:
    pair.follows()
    pair.clients.say(CLIENTS)  # rows with other sequence numbers
    pair.asleep(pair.first)
    others = pair.lab.swarm()
    assert others.connect(10, (pair.lab.address("box", "wan0"), PORT)).connected == 10
    pair.follows(CLIENTS + 10)
    others.close()
    wait_until(lambda: pair.rows() == CLIENTS, 10, "the rows gone")
    pair.first.kill()
    pair.lab.move_addresses("box", "box2")
    pair.asleep(pair.second)
    pair.all_answered()


def test_one_that_was_stopped_for_twice_its_lease_harms_none_and_stands_by(pair: Pair) -> None:
    pair.follows()
    pair.first.process.popen.send_signal(signal.SIGSTOP)
    pair.lab.move_addresses("box", "box2")
    began = time.monotonic()
    pair.asleep(pair.second)
    assert time.monotonic() - began < LEASE_S + 1
    pair.all_answered()  # the first one knows nothing of it
    pair.asleep(pair.second)
    time.sleep(max(began + 2 * LEASE_S - time.monotonic(), 0))
    pair.first.process.popen.send_signal(signal.SIGCONT)
    wait_until(pair.first.standby, 20, "the first one stands by")
    assert "the database was taken over by" in pair.first.log.read_text()
    pair.all_answered()
    pair.asleep(pair.second)
    pair.second.kill()  # and the way back
    pair.lab.move_addresses("box2", "box")
    pair.asleep(pair.first)
    pair.all_answered()


def test_an_address_that_moves_takes_all_connections_along(pair: Pair) -> None:
    """By an operator's hand: what is awake goes along, and the first one stands by."""
    pair.clients.say(CLIENTS)
    pair.lab.move_addresses("box", "box2")
    pair.asleep(pair.second)
    pair.all_answered()
    wait_until(pair.first.standby, 20, "the first one stands by")


def test_one_that_is_drained_hands_over_what_was_awake_and_what_had_no_row() -> None:
    """docs/deploy.md: by an operator's hand, and the address goes when it is done."""
    with closing(Cluster()) as cluster, Lab(clients=CLIENTS) as lab:
        pair = pair_of(lab, Postgres(cluster).url, policy=QUIET | {"idle_quiet": "1h"}, awake=True)
        join(pair, asleep=False)
        for port in (PORT, PORT + 1):
            there = lab.address("box", "wan0"), port
            assert pair.clients.connect(CLIENTS // 2, there, **PROBED).connected == CLIENTS // 2
        half = {"ACTIVE": CLIENTS // 2, "IDLE": CLIENTS // 2}
        wait_until(lambda: half.items() <= pair.first.counts().items(), 20, f"they are {half}")
        told = drained(lab, pair.first)
        assert told.returncode == 0, told.stderr + pair.first.log_tail()
        assert json.loads(told.stdout)["drained"] == CLIENTS
        assert pair.first.process.wait(5) == 0
        lab.move_addresses("box", "box2")
        pair.asleep(pair.second)
        pair.all_answered()
        pair.print_logs()


@pytest.mark.parametrize("drains", [False, True], ids=["stopped", "drained"])
def test_one_from_which_roost_is_removed_leaves_the_sleepers_to_the_other(pair: Pair, drains: bool) -> None:
    """As vagrant/debian/prerm does it; keepalived moves the address some seconds later."""
    pair.follows()
    if drains:
        assert drained(pair.lab, pair.first).returncode == 0
        assert pair.first.process.wait(5) == 0
    else:
        assert pair.first.terminate() == 0
    command = [sys.executable, "-m", "control.cli.main", "unpin", "--yes", "-c", str(pair.first.config)]
    removal = pair.lab.run("box", command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                           env=python_environment()).popen  # fmt: skip
    assert removal.stderr is not None
    assert "waiting until" in removal.stderr.readline()
    time.sleep(2 * PROBED["keepidle_s"])  # each client asks whether the connection is alive
    pair.lab.move_addresses("box", "box2")
    said, _ = removal.communicate(timeout=20)
    assert removal.returncode == 0
    assert ("nothing is pinned" if drains else "unpinned; the rows of those in SLEEP are the other machine's") in said
    pair.asleep(pair.second)
    pair.all_answered()


def test_one_that_has_the_address_and_waits_is_silent_while_it_is_restarted() -> None:
    """It cannot have the connections before the database is back."""
    with with_the_database_elsewhere() as pair:
        pair.follows()
        pair.lab.nft("box2", NO_DATABASE)
        pair.first.kill()
        pair.lab.move_addresses("box", "box2")
        wait_until(lambda: "and waits: " in pair.second.log.read_text(), 20, "it waits")
        pair.second.terminate()
        time.sleep(2 * PROBED["keepidle_s"])  # each client asks whether the connection is alive
        pair.lab.nft("box2", "delete table inet cut")
        pair.second.begin()
        pair.asleep(pair.second)
        pair.all_answered()


def test_a_stop_while_the_connections_are_being_given_up_waits_for_them(pair: Pair) -> None:
    """It is the first signal: the address went without one."""
    pair.clients.say(CLIENTS)
    pair.lab.move_addresses("box", "box2")
    wait_until(lambda: "has gone: every connection gets its row" in pair.first.log.read_text(), 10, "it gives them up")
    assert pair.first.terminate() == 0
    pair.asleep(pair.second)
    pair.all_answered()
    assert "drained" in pair.first.log.read_text()


def test_one_that_was_restarted_with_its_connections_stands_by_when_the_address_goes(tmp_path: Path) -> None:
    """What its service manager has told it is not for the program that begins anew."""
    with closing(Cluster()) as cluster, Lab(clients=CLIENTS) as lab:
        pair = pair_of(lab, Postgres(cluster).url)
        with ServiceManager(pair.first, tmp_path) as manager:
            manager.start()
            manager.restart()
            join(pair)
            lab.move_addresses("box", "box2")
            pair.asleep(pair.second)
            wait_until(pair.first.standby, 20, "the first one stands by")
            pair.all_answered()
            pair.print_logs()


def test_keepalived_moves_the_address_when_a_machine_loses_its_power() -> None:
    """By the very file that is installed (vagrant/keepalived.conf), with a script of its own to follow."""
    with closing(Cluster()) as cluster, Lab(clients=CLIENTS) as lab, ExitStack() as stack:
        pair = pair_of(lab, Postgres(cluster).url)
        stack.callback(pair.print_logs)
        watcher = keepalived(lab, "box", pair.first)
        pair.first.begin()
        wait_until(pair.first.counts, 20, "the first one has the connections")
        keepalived(lab, "box2", pair.second)
        join(pair)
        pair.follows()
        began = time.monotonic()
        lab.cut("box")
        watcher.close()
        pair.first.kill()
        pair.asleep(pair.second)
        assert time.monotonic() - began < LEASE_S + 2
        pair.all_answered()


def test_a_machine_without_the_database_wakes_none_once_its_lease_is_over() -> None:
    with with_the_database_elsewhere() as pair:
        lab = pair.lab
        others = lab.swarm()
        assert others.connect(10, (lab.address("box", "wan0"), PORT)).connected == 10
        pair.follows(CLIENTS + 10)
        lab.nft("box", NO_DATABASE)
        time.sleep(LEASE_S + 0.5)
        assert others.say(10, timeout_s=1).answered == 0
        lab.move_addresses("", "box2")  # both have the address, and the network believes the second
        pair.asleep(pair.second)
        pair.all_answered()
        lab.nft("box", "delete table inet cut")
        wait_until(lambda: "the database was taken over by" in pair.first.log.read_text(), 20, "the first learns it")
        pair.all_answered()
        pair.asleep(pair.second)


def test_one_that_stands_by_without_the_database_follows_when_it_is_back_and_takes_over() -> None:
    """It has the address meanwhile, too, and serves none: whose the clients are it cannot know."""
    with with_the_database_elsewhere() as pair:
        lab = pair.lab
        pair.follows()
        lab.nft("box2", NO_DATABASE)
        others = lab.swarm()
        assert others.connect(10, (lab.address("box", "wan0"), PORT)).connected == 10
        pair.asleep(pair.first, CLIENTS + 10)
        pair.first.kill()
        lab.move_addresses("box", "box2")
        time.sleep(2 * LEASE_S)
        assert pair.second.standby(), "it waits for the database"
        lab.nft("box2", "delete table inet cut")
        pair.asleep(pair.second, CLIENTS + 10)
        pair.all_answered()
        said = others.say(10, timeout_s=20)
        assert (said.answered, others.stats().dead) == (10, {})


def test_a_resolver_that_does_not_answer_delays_no_machine_that_takes_over(tmp_path: Path) -> None:
    """Names were asked for before it stood by: it keeps the addresses that they had then."""
    hosts, resolver = tmp_path / "hosts", tmp_path / "resolv.conf"
    own = f'mount --bind {hosts} /etc/hosts && mount --bind {resolver} /etc/resolv.conf && exec "$@"'
    with closing(Cluster()) as cluster, Lab(clients=CLIENTS) as lab, ExitStack() as stack:
        server = lab.address("lan", "eth0")
        hosts.write_text(f"{server} server.example\n")
        resolver.write_text(f"nameserver {server}\noptions timeout:30\n")
        lab.nft("lan", "table inet mute { chain in { type filter hook input priority 0; udp dport 53 drop; }; }")
        pair = pair_of(lab, Postgres(cluster).url)
        stack.callback(pair.print_logs)
        by_name = pair.second.config.read_text().replace(f"{server}:{PORT}", f"server.example:{PORT}")
        pair.second.config.write_text(by_name)
        join(pair, under=["unshare", "-m", "sh", "-c", own, "sh"])
        pair.follows()
        hosts.write_text("")
        pair.first.kill()
        lab.move_addresses("box", "box2")
        pair.asleep(pair.second)
        assert pair.second.status()["waiting"] == []
        pair.all_answered()
        wait_until(lambda: "server.example keeps its addresses" in pair.second.log_tail(), 10, "it is asked again")
