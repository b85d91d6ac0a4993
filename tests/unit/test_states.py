# SPDX-License-Identifier: Apache-2.0
"""The state machine: the table against every triple, its causes and numbers against DESIGN.md and cext/base/types.h."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from control.core.states import (
    AWAKE,
    INACTIVE,
    LEGAL,
    TRANSITIONS,
    Cause,
    State,
    transition_text,
)
from control.dev import diagram
from tests.inner import lib
from tests.mutants import ROOT

EVERY = list(itertools.product(State, State, Cause))


@pytest.mark.parametrize(("source", "target", "cause"), [t for t in EVERY if t in LEGAL])
def test_what_the_table_has_the_engine_carries_out(source: State, target: State, cause: Cause) -> None:
    assert lib.roost_testing_is_legal(source, target, cause)


@pytest.mark.parametrize(("source", "target", "cause"), [t for t in EVERY if t not in LEGAL])
def test_what_the_table_lacks_the_engine_refuses(source: State, target: State, cause: Cause) -> None:
    assert not lib.roost_testing_is_legal(source, target, cause)


def test_numbers_that_are_no_state_or_cause_are_named() -> None:
    assert transition_text(State.IDLE, State.ACTIVE, Cause.CLIENT_DATA) == "IDLE -> ACTIVE by client-data"
    assert transition_text(9, 5, 77) == "state 9 -> CLOSED by cause 77"


def test_closed_is_the_end_and_none_is_never_entered() -> None:
    assert not [key for key in TRANSITIONS if key[0] is State.CLOSED]
    assert not [key for key, targets in TRANSITIONS.items() if State.NONE in targets]


def test_no_transition_stays_where_it_is_and_none_lacks_a_cause() -> None:
    assert all(source not in targets for (source, _), targets in TRANSITIONS.items())
    assert not [key for key in TRANSITIONS if key[1] is Cause.NONE]


def test_sleep_becomes_idle_only_by_a_wake_up_that_failed() -> None:
    wakes = {
        Cause.CLIENT_DATA,
        Cause.SERVER_ATTACH,
        Cause.SERVER_DATA,
        Cause.COMMAND,
        Cause.RESTORE,
        Cause.PROBE_TIMEOUT,
        Cause.CLIENT_CONNECT,
    }
    assert {cause for source, to, cause in LEGAL if (source, to) == (State.SLEEP, State.IDLE)} == wakes


def test_the_timer_goes_down_one_step_at_a_time() -> None:
    steps = {(source, targets) for (source, cause), targets in TRANSITIONS.items() if cause is Cause.QUIET}
    assert steps == {
        (State.ACTIVE, frozenset({State.STANDBY, State.IDLE})),  # IDLE: with the server's leg
        (State.STANDBY, frozenset({State.IDLE})),
        (State.IDLE, frozenset({State.SLEEP})),
    }


def test_every_living_state_can_be_closed_by_the_client_its_successor_and_by_command() -> None:
    closing = (Cause.CLIENT_CLOSE, Cause.CLIENT_CONNECT, Cause.COMMAND)
    for source, cause in itertools.product(AWAKE | INACTIVE, closing):
        assert (source, State.CLOSED, cause) in LEGAL


def test_every_cause_has_a_use() -> None:
    assert {cause for _, cause in TRANSITIONS} == set(Cause) - {Cause.NONE}


def test_numbers_are_those_of_the_engine() -> None:
    header = (Path(__file__).parents[2] / "cext" / "base" / "types.h").read_text(encoding="utf-8")
    states = {name: int(value) for name, value in re.findall(r"ROOST_ST_(\w+) = (\d+)", header)}
    causes = {name: int(value) for name, value in re.findall(r"ROOST_C_(\w+) = (\d+)", header)}
    assert states == {state.name: state.value for state in State}
    assert causes == {cause.name: cause.value for cause in Cause}


def test_labels_are_the_words_of_the_design() -> None:
    words = "client-connect client-data client-close server-attach server-close quiet pressure command probe-timeout"
    ours = {"restore", "shutdown", "server-data", "write-timeout"}
    assert {cause.label for cause in Cause} - {"none"} == {*words.split(), *ours}


def test_the_engine_has_the_same_table() -> None:
    numbers = range(16)  # of states and causes, and past them
    legal = {one for one in itertools.product(numbers, numbers, numbers) if lib.roost_testing_is_legal(*one)}
    assert legal == LEGAL


def test_the_documents_picture_has_every_transition_and_no_other() -> None:
    text = (ROOT / diagram.DRAWN).read_text(encoding="utf-8")
    drawn = set()
    for source, target, causes in re.findall(r"^    (\S+) --> (\w+): (.*)$", text, re.M):
        drawn |= {(source.replace("[*]", "NONE"), target, cause) for cause in causes.split(", ")}
    (columns,) = re.findall(r"^\| to CLOSED by \| (.*) \|$", text, re.M)
    for cause, row in re.findall(r"^\| `([a-z-]+)` \|((?: [x ] \|)+)$", text, re.M):
        drawn |= {
            (source, "CLOSED", cause)
            for source, mark in zip(columns.split(" | "), row.split("|"), strict=False)
            if "x" in mark
        }
    assert drawn == {(State(source).label, State(target).label, Cause(cause).label) for source, target, cause in LEGAL}


def test_a_picture_of_other_states_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "docs").mkdir()
    text = (ROOT / diagram.DRAWN).read_text(encoding="utf-8")
    (tmp_path / diagram.DRAWN).write_text(text.replace("IDLE --> SLEEP: quiet", "IDLE --> SLEEP: noise"))
    assert diagram.main(tmp_path) == 1
    assert "./roost lint --fix" in capsys.readouterr().out
    assert diagram.main(ROOT) == 0


def test_what_is_around_the_picture_stays() -> None:
    text = f"before\n{diagram.BEGIN}\n\nold\n{diagram.END}\nafter\n"
    drawn = diagram.with_diagram(text)
    assert diagram.diagram() in drawn
    assert "old" not in drawn
    assert drawn.startswith("before\n")
    assert drawn.endswith("\nafter\n")
    with pytest.raises(ValueError, match="unpack"):
        diagram.with_diagram("a document without a place for it")
