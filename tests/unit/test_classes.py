# SPDX-License-Identifier: Apache-2.0
"""cext/table/interned.c: the classes of services, and those that are interned; and the round of the sweep that follows
when a class changes."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, Final

import pytest

from appliance.wire import Key
from tests.inner import ffi, lib
from tests.unit.records import IDLE, Ka
from tests.unit.test_turns import START_MS, Still

CLASSES: Final = lib.ROOST_CLASSES
SERVICES: Final = lib.ROOST_CLASS_SERVICES
IN_BAND: Final = lib.roost_testing_own_classes(True)
OWN: Final = lib.roost_testing_own_classes(False)
PROBE: Final = 8  # of `given`, behind the three quiet intervals


@dataclass(frozen=True)
class Own:
    """struct roost_overrides; what is not given is None."""

    quiet_ms: tuple[int | None, int | None, int | None] = (None, None, None)
    probe_interval_s: int | None = None
    always_active: bool = False
    by_command: bool = False

    def c(self) -> Any:
        raw = ffi.new("struct roost_overrides *")
        raw.quiet_ms = [quiet or 0 for quiet in self.quiet_ms]
        raw.probe_interval_s = self.probe_interval_s or 0
        raw.given = sum(1 << i for i, quiet in enumerate(self.quiet_ms) if quiet is not None)
        raw.given |= PROBE * (self.probe_interval_s is not None)
        raw.always_active = self.always_active
        raw.by_command = raw.given * self.by_command
        return raw


@dataclass(frozen=True)
class Policy:
    quiet_ms: tuple[int, int, int] = (1000, 2000, 3000)
    probe_interval_s: int = 0
    probe_retry_s: int = 10
    probe_count: int = 4
    priority: int = 1
    on_server_close: int = 0

    def c(self) -> Any:
        raw = ffi.new("struct roost_class *")
        raw.quiet_ms = list(self.quiet_ms)
        for name in ("probe_interval_s", "probe_retry_s", "probe_count", "priority", "on_server_close"):
            setattr(raw, name, getattr(self, name))
        return raw

    def but(self, own: Own) -> Policy:
        """The policy in force where this was set."""
        quiet = tuple(p if o is None else o for p, o in zip(self.quiet_ms, own.quiet_ms, strict=True))
        quiet = (0, 0, quiet[2]) if own.always_active else quiet
        probe = self.probe_interval_s if own.probe_interval_s is None else own.probe_interval_s
        return replace(self, quiet_ms=quiet, probe_interval_s=probe)  # type: ignore[arg-type]


class Classes:
    def __init__(self) -> None:
        self.raw: Any = ffi.gc(lib.roost_testing_classes(), lib.roost_testing_classes_free)

    def take(self, own: Own, service: int = 1) -> int:
        return int(lib.roost_testing_classes_take(self.raw, service, own.c()))

    def drop(self, class_: int) -> None:
        lib.roost_testing_classes_drop(self.raw, class_)

    def change(self, policy: Policy, service: int = 1) -> bool:
        return bool(lib.roost_testing_classes_change(self.raw, service, policy.c()))

    def at(self, class_: int) -> Policy:
        raw = lib.roost_testing_classes_at(self.raw, class_)
        return Policy(tuple(raw.quiet_ms), raw.probe_interval_s, raw.probe_retry_s, raw.probe_count, raw.priority,
                      raw.on_server_close)  # fmt: skip

    def service_of(self, class_: int) -> int:
        return int(lib.roost_testing_classes_at(self.raw, class_).service)

    @property
    def interned(self) -> int:
        return int(lib.roost_testing_classes_interned(self.raw))


@pytest.fixture
def classes() -> Classes:
    return Classes()


SET: Final = Own((5, None, 0), 7)


def test_a_services_class_is_its_number_and_says_whose_it_is(classes: Classes) -> None:
    assert [classes.service_of(i) for i in range(SERVICES)] == list(range(SERVICES))
    assert [classes.take(Own(), service) for service in (1, 2, SERVICES - 1)] == [1, 2, SERVICES - 1]
    assert classes.interned == 0


def test_class_0_is_no_policy_and_cannot_be_changed(classes: Classes) -> None:
    assert not classes.change(Policy(), 0)
    assert classes.at(0) == Policy((0, 0, 0), 0, 0, 0, 0)
    assert bytes(ffi.buffer(lib.roost_testing_classes_at(classes.raw, 0))) == bytes(64)


def test_the_same_values_are_one_class(classes: Classes) -> None:
    first = classes.take(SET)
    assert first >= SERVICES
    assert classes.take(SET) == first
    assert classes.take(SET, service=2) not in (first, -1)
    assert classes.take(Own((5, None, 0), 8)) not in (first, -1)
    assert classes.interned == 3


def test_what_is_0_and_given_is_not_what_is_not_given(classes: Classes) -> None:
    assert len({classes.take(Own((0, None, None))), classes.take(Own(probe_interval_s=0)), classes.take(Own())}) == 3


def test_a_class_lives_as_long_as_it_has_a_holder(classes: Classes) -> None:
    class_ = classes.take(SET)
    lib.roost_testing_classes_hold(classes.raw, class_)
    classes.drop(class_)
    assert (classes.interned, classes.service_of(class_)) == (1, 1)
    classes.drop(class_)
    assert (classes.interned, classes.service_of(class_)) == (0, 0)
    classes.drop(class_)
    classes.drop(1)
    assert classes.take(SET, service=3) == class_, "it is given away again"


def test_when_all_are_in_use_no_more_is_to_be_had_until_one_is_free(classes: Classes) -> None:
    taken = [classes.take(Own((i + 1, None, None))) for i in range(IN_BAND)]
    assert sorted(taken) == list(range(SERVICES, SERVICES + IN_BAND))
    assert classes.take(Own((IN_BAND + 1, None, None))) == -1
    assert classes.take(Own((17, None, None))) == taken[16], "one that is there takes no room"
    assert classes.take(Own()) == 1
    classes.drop(taken[3])
    assert classes.take(Own((IN_BAND + 1, None, None))) == taken[3]


def test_clients_leave_some_to_commands_and_both_leave_some_to_rules(classes: Classes) -> None:
    for i in range(IN_BAND):
        assert classes.take(Own((i + 1, None, None))) > 0
    assert classes.take(Own(always_active=True)) == -1
    commanded = [classes.take(Own((i + 1, None, None), by_command=True)) for i in range(OWN - IN_BAND)]
    assert min(commanded) > 0
    assert classes.take(Own((OWN, None, None), by_command=True)) == -1
    lib.roost_testing_classes_adopt(classes.raw, list(range(SERVICES, SERVICES + OWN)), OWN)
    assert classes.take(Own((OWN, None, None), by_command=True)) == -1, "a successor counts them, too"
    classes.drop(commanded[0])
    assert classes.take(Own((OWN, None, None))) == -1, "it is not for clients"
    assert classes.take(Own((OWN, None, None), by_command=True)) == commanded[0]


def test_a_changed_service_changes_what_its_connections_left_to_it(classes: Classes) -> None:
    before, after = Policy(probe_interval_s=60), Policy((10, 20, 30), 600, 20, 9, 2, 1)
    assert classes.change(before)
    class_, other = classes.take(SET), classes.take(SET, service=2)
    assert classes.at(class_) == before.but(SET) == Policy((5, 2000, 0), 7)
    assert classes.change(after)
    assert classes.at(1) == after
    assert classes.at(class_) == after.but(SET)
    assert classes.at(other) == Policy((5, 0, 0), 7, 7, 0, 0), "of a service that was not configured"
    assert not classes.change(after), "nothing to obey"


def test_a_bound_holds_for_what_was_set_in_band_and_not_for_what_was_given_by_command(classes: Classes) -> None:
    in_band, by_command = Own((5, None, 0), 7), ffi.new("struct roost_overrides *", {"given": 9, "by_command": 9})
    by_command.quiet_ms[0], by_command.probe_interval_s = 5, 7
    set_in_band = classes.take(in_band)
    given = int(lib.roost_testing_classes_take(classes.raw, 1, by_command))
    bounded = Policy().c()
    bounded.least_quiet_ms, bounded.least_probe_s = 1000, 60
    assert lib.roost_testing_classes_change(classes.raw, 1, bounded)
    found = classes.at(set_in_band)
    assert (found.quiet_ms, found.probe_interval_s) == ((1000, 2000, 0), 60), "never lies below no bound"
    found = classes.at(given)
    assert (found.quiet_ms[0], found.probe_interval_s) == (5, 7)
    assert classes.change(Policy())
    assert classes.at(set_in_band).quiet_ms[0] == 5, "what was set is kept beside what is in force"


def test_always_active_takes_the_intervals_of_the_awake_away_and_gives_them_back(classes: Classes) -> None:
    classes.change(Policy())
    assert classes.at(classes.take(Own((5, 6, 7), always_active=True))).quiet_ms == (0, 0, 7)
    assert classes.at(classes.take(Own((5, 6, 7)))).quiet_ms == (5, 6, 7)


def test_a_successor_keeps_what_somebody_holds_and_nothing_else(classes: Classes) -> None:
    classes.change(Policy())
    kept, lost = classes.take(SET), classes.take(Own((9, 9, 9)))
    lib.roost_testing_classes_adopt(classes.raw, [kept, kept, 1, CLASSES, 0], 5)
    assert (classes.interned, classes.service_of(lost)) == (1, 0)
    assert classes.take(SET) == kept
    for _ in range(3):
        assert classes.interned == 1
        classes.drop(kept)
    assert classes.interned == 0


@pytest.mark.parametrize("seed", range(40))
def test_classes_are_what_a_model_says(seed: int) -> None:
    classes, rng = Classes(), random.Random(seed)
    policies = {service: Policy((0, 0, 0), 0, 0, 0, 0) for service in (1, 2, 3)}
    holders: list[tuple[int, int, Own]] = []

    shared = 0

    def some_own() -> Own:
        return Own(tuple(rng.choice([None, None, 0, 5]) for _ in range(3)),  # type: ignore[arg-type]
                   rng.choice([None, None, 7]), rng.random() < 0.2)  # fmt: skip

    for _ in range(600):
        move = rng.random()
        service = rng.choice([1, 2, 3])
        if move < 0.5:
            own = some_own()
            holders.append((classes.take(own, service), service, own))
        elif move < 0.9 and holders:
            classes.drop(holders.pop(rng.randrange(len(holders)))[0])
        elif move < 0.97:
            policies[service] = Policy(tuple(rng.choices([0, 1, 60_000], k=3)), rng.choice([0, 60]),  # type: ignore[arg-type]
                                       rng.choice([5, 10]), rng.choice([3, 4]))  # fmt: skip
            classes.change(policies[service], service)
        else:
            names = [holder[0] for holder in holders]
            lib.roost_testing_classes_adopt(classes.raw, names, len(names))
        for class_, of, own in holders:
            assert classes.service_of(class_) == of
            wanted = policies[of].but(own)
            retry_s = wanted.probe_retry_s or wanted.probe_interval_s
            assert classes.at(class_) == replace(wanted, probe_retry_s=retry_s)
        distinct = {(of, own) for _, of, own in holders if own != Own()}
        assert classes.interned == len(distinct) == len({c for c, *_ in holders if c >= SERVICES})
        shared = max(shared, *Counter(class_ for class_, *_ in holders if class_ >= SERVICES).values(), 0)
    assert shared > 1


# Every connection obeys


def test_a_changed_class_is_obeyed_within_a_round_though_no_bucket_is_due() -> None:
    still = Still(slots=2000, rests=1000)
    still.governed()
    for port in range(1000):
        still.insert(Key.of("192.0.2.1", port, "192.0.2.9", 80), Ka(IDLE), active_ms=START_MS)
    assert still.sweep(still.now_ms + 3000) == []
    still.change(idle_quiet_ms=1000)
    assert sorted(still.sweep(still.now_ms + 1100)) == list(range(1, 1001))
    still.change(idle_quiet_ms=0)
    assert still.sweep(still.now_ms + 60_000) == [], "they were due before, and are no more"


def test_a_round_over_all_slots_lets_the_loop_turn_in_between() -> None:
    """What waits at a socket does not wait for a whole slice."""
    still = Still(slots=20_000, rests=20_000)
    still.governed()
    for port in range(1, 10_001):
        still.insert(Key.of("192.0.2.1", port, "192.0.2.9", 80), Ka(IDLE), active_ms=START_MS)
    still.change(idle_quiet_ms=1000)
    events, found = ffi.new("struct roost_event[8192]"), []
    for _ in range(4):  # a slice of a tenth of all, a turn at a time
        lib.roost_testing_sweep(still.raw, still.now_ms + 100)
        found.append(lib.roost_events(still.raw, events, 8192, 0, 0))
    assert max(found) <= 16 * 56, "buckets and their slots"
    assert min(found[:2]) > 0, "the slice goes on in the next turn, at the same time"
    assert sum(found) <= 10_000 // 5, "and ends"


def test_a_changed_class_of_another_service_is_none_of_theirs() -> None:
    still = Still(slots=2000, rests=1000)
    still.governed(idle_quiet_ms=3_600_000)
    still.insert(Key.of("192.0.2.1", 1, "192.0.2.9", 80), Ka(IDLE), active_ms=START_MS)
    still.sweep(still.now_ms + 3000)
    lib.roost_testing_change(still.raw, 2, Policy((1, 1, 1)).c())
    assert still.sweep(still.now_ms + 3000) == []


def test_probes_begin_with_the_policy_that_wants_them() -> None:
    still = Still(slots=2000)
    still.governed()
    heard_s = (START_MS - 60_000) // 1000
    slot = still.insert(Key.of("192.0.2.1", 1, "192.0.2.9", 80), Ka(IDLE, heard=heard_s << lib.ROOST_HEARD_SHIFT))
    lib.roost_testing_fill_offer(still.raw)
    lib.roost_testing_take_offer(still.raw)
    still.sweep(still.now_ms + 3000)
    assert (lib.roost_testing_probes_sent(still.raw), slot.heard & 0xF) == (0, 0)
    still.change(probe_interval_s=20)
    still.sweep(still.now_ms + 1100)
    assert (lib.roost_testing_probes_sent(still.raw), slot.heard & 0xF) == (1, 1)


def test_what_the_layout_before_classes_says_of_sleep_is_no_question_to_the_store() -> None:
    """Where it was asked for last, it had the time when it is due."""
    still = Still()
    still.governed(idle_quiet_ms=10_000)
    slot = still.insert(Key.of("192.0.2.1", 1, "192.0.2.9", 80), Ka(IDLE), active_ms=START_MS)
    lib.roost_testing_rest_at(still.raw, slot.rest).sleep_asked_s = START_MS // 1000 + 3600
    assert still.sweep(START_MS + 9000) == []
    assert still.sweep(START_MS + 12_000) == [1]
