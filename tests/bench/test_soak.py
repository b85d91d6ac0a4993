# SPDX-License-Identifier: Apache-2.0
"""The soak's zeros can be other than zero: what is broken on purpose is found; and what may be lost, and what not."""

from __future__ import annotations

import random
import re
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from appliance.peers.habits import QUESTIONS_END
from tests.bench import soak, soak_faults, soak_scene
from tests.bench.soak_checks import Ended, Window, excuse
from tests.bench.soak_faults import AWAKE, NOTHING, Cost, Fault
from tests.bench.soak_scene import HABITS, Habit, Scene, split
from tests.bench.test_benches import assert_sound

METERS, SESSIONS = (next(habit for habit in HABITS if habit.name == name) for name in ("meters", "sessions"))
LONG_S = 1000.0
SPLIT = f"wrong answer: b'WHAT 7f', of 7 bytes, {QUESTIONS_END}, from byte 1448 on"


def ended(at: float, quiet_s: float = 0.1, waited_s: float | None = None, reason: str = "EOF") -> Ended:
    return Ended("c000001", reason, quiet_s, waited_s, 0 if waited_s is None else 30, at)


@pytest.mark.parametrize(
    ("habit", "end", "cost", "excused"),
    [
        (METERS, ended(15), AWAKE, True),
        (METERS, ended(15, quiet_s=LONG_S), AWAKE, False),
        (METERS, ended(15, quiet_s=LONG_S, waited_s=LONG_S), AWAKE, True),
        (METERS, ended(15, quiet_s=30), AWAKE, False),
        (METERS, ended(15, quiet_s=30), Cost(idle=True), True),
        (METERS, ended(19, quiet_s=METERS.row_s + 8), Cost(idle=True), True),
        (METERS, ended(19, quiet_s=METERS.row_s + 10), Cost(idle=True), False),
        (METERS, ended(9), AWAKE, False),
        (METERS, ended(22), AWAKE, False),
        (METERS, ended(100, quiet_s=85, waited_s=85), AWAKE, True),
        (METERS, ended(15, reason="wrong answer"), AWAKE, False),
        (METERS, ended(15, quiet_s=3, reason=SPLIT), Cost(silent=True), True),
        (METERS, ended(15, quiet_s=3, reason=SPLIT), AWAKE, False),
        (METERS, ended(15, quiet_s=0.9, reason=SPLIT), Cost(silent=True), False),
        (METERS, ended(15), NOTHING, False),
        (METERS, ended(15), Cost(linked="plain"), True),
        (METERS, ended(15, quiet_s=LONG_S), Cost(linked="plain"), False),
        (METERS, ended(15), Cost(linked="session"), False),
        (SESSIONS, ended(15, quiet_s=LONG_S), Cost(linked="session"), True),
    ],
    ids=["awake", "asleep", "waiting", "in IDLE", "in IDLE, without a row", "told late", "has a row", "before", "after",
         "asked during it", "wrong", "split", "split, where nothing is lost",
         "split, and not quiet", "costs none", "linked", "of its server, asleep", "of another server",
         "persistent, asleep"],
)  # fmt: skip
def test_a_fault_excuses_what_it_may_cost(habit: Habit, end: Ended, cost: Cost, excused: bool) -> None:
    window = Window("it", cost, began=10, ended=20)
    assert (excuse(end, habit, [window]) is window) == excused


@pytest.mark.parametrize("clients", [50, 300, 50_000])
def test_every_client_has_a_habit_and_every_habit_a_client(clients: int) -> None:
    parts = split(clients)
    assert sum(count for _, count in parts) == clients
    assert {habit.name for habit, _ in parts} == {habit.name for habit in HABITS}
    assert max(count for _, count in parts) <= 18_000


def test_a_fault_that_is_not_known_is_refused() -> None:
    with pytest.raises(ValueError, match="no such fault: flood; there are kill,"):
        soak.chosen("kill,flood")


def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, value in ((soak, "GAPS_S", (0.1, 0.3)), (soak, "QUIET_S", 0.4), (soak_scene, "ASKED_S", 1.0)):
        monkeypatch.setattr(module, name, value)


def close_a_sleeper(scene: Scene, _: random.Random) -> None:
    """Behind its client's back."""
    for _try in range(100):
        seen = Counter[str]()
        for row in scene.box.daemon.connections(service="meters"):
            seen[row["state"]] += 1
            if row["state"] in ("IDLE", "SLEEP"):
                scene.box.daemon.act(row["id"], "close")
                return
        time.sleep(0.1)
    raise AssertionError(f"no meter sleeps: {seen}")


def forget_a_transition(scene: Scene, _: random.Random) -> None:
    ((part,),) = scene.database.execute("SELECT max(first) FROM history_parts")
    scene.database.execute(f"DELETE FROM history_{part} WHERE seq = (SELECT min(seq) FROM history_{part} "
                           'WHERE "from" <> 0 AND "to" <> 5)')  # fmt: skip


def answer_no_probe(scene: Scene, chance: random.Random) -> None:
    """Of a simulated client."""
    client = chance.randrange(scene.fleet.clients)
    with scene.fleet.used() as simulator:
        simulator.drop_every(1)
        scene.fleet.keep_alive(range(client, client + 1), rto_s=0.05, tries=1)
        simulator.drop_every(0)


def wake_one_as_if_forged(scene: Scene, _: random.Random) -> None:
    with scene.fleet.used():
        began = time.time_ns() // 1_000_000
        scene.fleet.speak([0])
        scene.fleet.forged.append((began, time.time_ns() // 1_000_000))


BROKEN = (close_a_sleeper, answer_no_probe, forget_a_transition, wake_one_as_if_forged)


def test_what_is_broken_on_purpose_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = ",".join(do.__name__ for do in BROKEN)
    monkeypatch.setattr(soak, "FAULTS", [*soak_faults.FAULTS, *(Fault(do.__name__, "", do) for do in BROKEN)])
    hurry(monkeypatch)
    report = soak.run(minutes=0.05, clients=60, simulated=1000, faults=broken, log=str(tmp_path / "log.md"))
    found = {key: report.figures[key].median for key in report.zeros}
    assert found["lost_connections"] >= 2, report.problems
    assert found["resets"] >= 1, report.problems
    assert found["illegal_transitions"] >= 1, report.problems
    assert found["unanswered_keepalives"] >= 1, report.problems
    assert found["findings"] >= 6, report.problems
    assert any("4: 1 simulated clients woke by forged segments" in problem for problem in report.problems)
    log = (tmp_path / "log.md").read_text()
    assert re.search(r"close_a_sleeper \| 1: meters c\d+ ended \(ECONNRESET\)", log)


def test_what_fails_in_a_soak_is_said_and_no_client_is_left_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that goes on with simulated clients that are gone ends the process."""

    def fail(*_: object) -> None:
        raise RuntimeError("planted")

    hurry(monkeypatch)
    monkeypatch.setattr(soak.Soak, "live", fail)
    with pytest.raises(RuntimeError, match="planted"):
        soak.run(minutes=0.05, clients=60, simulated=1000, faults="forged")
    assert "fleet" not in {thread.name for thread in threading.enumerate()}


def test_a_soak_of_some_seconds_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)
    report = soak.run(minutes=0.05, clients=60, simulated=1000, faults="hand-over,mac,forged")
    assert_sound(report)
    assert report.figures["faults"].median >= 1
    assert report.figures["answers"].median > 60


@pytest.mark.soak
@pytest.mark.timeout(1500)
def test_every_fault_once() -> None:
    assert_sound(soak.run(minutes=4, clients=1000, simulated=20_000, seed=2))
