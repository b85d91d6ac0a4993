# SPDX-License-Identifier: Apache-2.0
"""What an operator should look at is told with its object and what to do, and nothing is told while all is well."""

from __future__ import annotations

from typing import Any

import pytest

from control.channel.attention import FULL, RISING, WATCHED, attention, counters
from control.core.text import sentence, span


def status(**changes: Any) -> dict[str, Any]:
    """A daemon that has been busy for a year, with nothing amiss; counters may be given by name."""
    made: dict[str, Any] = {
        "interfaces": {"wan0": "native"},
        "database": "/var/lib/roost/main.db",
        "waiting": [],
        "policy": {"version": 3, "rules": 2, "error": "", "problems": 0, "problem": ""},
        "pressure": {"reached": {}, "asked": {"awake": 0, "idle": 0}},
        "export": {"directory": "/srv/roost", "error": ""},
        "api": {"listen": ["127.0.0.1:8443"], "pid": 17, "ended": 1},
        "awake": 10,
        "max_awake": 100,
        "store": {
            "state": "ok",
            "dropped_history": 5,
            "dropped_attaches": 0,
            "dropped_snapshots": 0,
            "dropped_audit": 0,
            "rescued": 1,
        },
        "services": [{"name": "line", "servers": [{"server": "10.3.0.2:8000", "state": "up", "reason": ""}]}],
        "counters": {"bad_checksum": 7, "thaw_failed": 7, "table_ipv4": 900, "ipv4_slots": 1000},
        "control": {"illegal": 1},
    }
    for name, value in changes.items():
        part = next((part for part in (made, made["store"], made["control"]) if name in part), made["counters"])
        part[name] = value
    return made


BEFORE = counters(status())


def names(**changes: Any) -> list[str]:
    return [one["name"] for one in attention(status(**changes), BEFORE)]


def test_nothing_is_told_of_what_happened_long_ago() -> None:
    assert attention(status(), BEFORE) == []


@pytest.mark.parametrize("counter", [row[0] for row in RISING])
def test_a_counter_that_rises_is_told_with_how_much(counter: str) -> None:
    (one,) = attention(status(**{counter: BEFORE.get(counter, 0) + 4321}), BEFORE)
    assert one["name"] == counter
    assert "4,321" in one["what"]
    assert one["object"]
    assert one["do"]


@pytest.mark.parametrize("counter", ["bad_checksum", "frames_bad"])
def test_frames_with_a_bad_checksum_name_the_interfaces_and_the_command(counter: str) -> None:
    (one,) = attention(status(**{counter: BEFORE.get(counter, 0) + 1}), BEFORE)
    assert sentence(one).startswith("wan0: 1 frames had a wrong checksum")
    assert "ethtool -k" in sentence(one)
    assert "`ethtool -K INTERFACE tx off` in there" in sentence(one)


def test_a_table_that_is_nearly_full_is_told_before_it_is() -> None:
    assert names(table_ipv4=int(1000 * FULL)) == []
    assert names(table_ipv4=int(1000 * FULL) + 1) == ["full"]


def test_levels_are_told_while_they_last() -> None:
    assert names(state="error: disk full") == ["store"]
    assert names(interfaces={}) == ["unheard"]
    (one,) = attention(status(waiting=["interface wan1: there is none: see `ip link`"]), BEFORE)
    assert (one["object"], one["what"]) == ("interface wan1", "not yet: there is none: see `ip link`")
    told = {"version": 3, "rules": 2, "error": "", "problems": 2, "problem": 'rule "a": there is no service "b"'}
    (one,) = attention(status(policy=told), BEFORE)
    assert one["what"] == 'rule "a": there is no service "b" (and 1 more)'
    assert names(policy={**told, "error": "the rules cannot be read"}) == ["rules"]
    (one,) = attention(status(export={"directory": "/srv/roost", "error": "/srv/roost is no directory"}), BEFORE)
    assert (one["object"], one["what"]) == ("the export to /srv/roost", "/srv/roost is no directory")
    assert names(awake=88) == []
    assert names(awake=89) == ["awake"]


def test_servers_that_are_down_are_named_and_clients_that_wait_for_all_of_them_are() -> None:
    rows = [{"server": f"10.3.0.{n}:80", "state": state, "reason": reason}
            for n, state, reason in ((1, "down", "refused"), (2, "up", ""))]  # fmt: skip
    (one,) = attention(status(services=[{"name": "web", "servers": rows}]), BEFORE)
    assert (one["object"], one["what"]) == ('service "web"', "1 of 2 servers down (10.3.0.1:80: refused)")
    (one,) = attention(status(services=[{"name": "web", "servers": rows[:1]}]), BEFORE)
    assert one["what"].endswith("none is up")


def test_each_finding_has_one_name() -> None:
    assert len({watch.name for watch in WATCHED}) == len(WATCHED)


def test_a_span_is_short() -> None:
    assert [span(s) for s in (0, 1.5, 59, 200, 3600, 187200)] == ["0 s", "1.5 s", "59 s", "3m 20s", "1h", "2d 4h"]


def test_a_reason_that_is_a_sentence_keeps_one_full_stop() -> None:
    told = {"object": 'service "a"', "what": "not yet: cannot listen. ip shows the addresses.", "do": "bring it about"}
    assert sentence(told) == 'service "a": not yet: cannot listen. ip shows the addresses. Bring it about.'
