# SPDX-License-Identifier: Apache-2.0
"""The daemon with its store in PostgreSQL: real clients sleep in it, while it comes and goes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator

import pytest

from appliance.lab import Lab, programs, wait_until
from control.core.states import LEGAL, State
from control.store.database import SERVER_LIMITS, StoreError, open_engine, parse_url
from control.store.reading import Reader
from control.store.schema import metadata
from tests.databases import Cluster, Postgres

CLIENTS = 200
PORT = 8000
QUIET = {"active_quiet": "1s", "standby_quiet": "1s", "idle_quiet": "1s"}


@pytest.fixture
def database() -> Iterator[Postgres]:
    cluster = Cluster()
    yield Postgres(cluster)
    cluster.close()


def test_clients_sleep_in_postgresql_and_outlive_its_restart_and_the_daemons(database: Postgres) -> None:
    with Lab(clients=CLIENTS) as lab:
        lab.server(PORT)
        config = lab.config(PORT, policy=QUIET)
        database.take_away()
        daemon = lab.daemon(config | {"paths": {"database": database.url}})  # it begins without its database

        def asleep() -> bool:
            count: int = daemon.status()["connections"]["SLEEP"]
            return count == CLIENTS

        def say_all() -> None:
            said = swarm.say(CLIENTS, concurrency=64, timeout_s=60)
            assert (said.answered, said.failed) == (CLIENTS, Counter())

        swarm = lab.swarm()
        done = swarm.connect(CLIENTS, (lab.address("box", "wan0"), PORT), keepidle_s=5, keepintvl_s=5)
        assert (done.connected, done.failed) == (CLIENTS, Counter())
        wait_until(lambda: daemon.status()["connections"]["IDLE"] == CLIENTS, 30, "all clients IDLE")
        assert database.away in daemon.status()["store"]["state"]
        assert "SLEEP is off until the database can be used" in daemon.log.read_text()
        database.give_back()
        wait_until(asleep, 60, "all clients asleep once there is a database")
        database.take_away()
        database.give_back()
        say_all()  # woken by what the restarted server has
        wait_until(asleep, 60, "all clients asleep again")
        named = daemon.connections(state="SLEEP")[0]
        daemon.http("PUT", f"/v1/connections/{named['id']}/name", json={"name": "meter"})
        daemon.kill()
        daemon.start()
        wait_until(lambda: daemon.get("/v1/connections/meter.roost")["id"] == named["id"], 10, "the name is known")
        assert asleep()
        say_all()
        wait_until(asleep, 60, "all clients asleep at the end")
        wait_until(lambda: daemon.status()["store"]["pending_history"] == 0, 10, "the history written")
        status = daemon.status()
        assert status["store"]["state"] == "ok"
        assert (status["control"]["illegal"], status["control"]["lost_records"]) == (0, 0)
        steps = database.execute('SELECT id, "from", "to", cause FROM history ORDER BY seq')
        state = dict.fromkeys((number for number, *_ in steps), int(State.NONE))
        for number, source, target, cause in steps:
            assert (source, target, cause) in LEGAL
            assert state[number] == source
            state[number] = target
        assert list(state.values()) == [State.SLEEP] * CLIENTS
        stats = swarm.stats()
        assert (stats.open, stats.dead) == (CLIENTS, Counter())


def test_a_machine_with_postgresql_that_goes_silent_is_given_up_in_some_seconds() -> None:
    with Lab() as lab:
        here = lab.address("lan", "eth0")
        programs.Postgres(lab, "lan", [(here, 5432)])
        url = parse_url(f"postgresql://postgres@{here}/postgres")
        with lab.enter("box"):
            metadata.create_all(open_engine(url, timeout_s=1, writer=True))
            reader = Reader(url)
            assert reader.read({b"k": 0}) == {}
            lab.nft("lan", "table inet mute { chain c { type filter hook input priority 0; policy drop; }; }")
            for limit_s in (SERVER_LIMITS["tcp_user_timeout"] / 1000, SERVER_LIMITS["connect_timeout"]):
                began = time.monotonic()
                with pytest.raises(StoreError):
                    reader.read({b"k": 0})  # first by the connection that there is, then by a new one
                assert limit_s - 0.5 < time.monotonic() - began < limit_s + 2
            reader.close_readers()
