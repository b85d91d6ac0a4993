# SPDX-License-Identifier: Apache-2.0
"""The log's lines: what they are about stands in fields, on each line of a function that has a connection in hand."""

from __future__ import annotations

import ast
import json
import logging
import re
from collections.abc import Iterator, Mapping
from typing import Any

from appliance.wire import Key
from control.cli.logs import OF_OUTSIDERS, Console, Json, Sparing
from control.config import Config
from control.core.logs import about
from tests.mutants import ROOT

LEVELS = ("debug", "info", "warning", "error", "exception", "critical")
SUBJECTS = {"event", "link", "channel", "key", "client", "located", "job", "watched"}
"""Variables that hold one connection, or another thing that a field of the log is for."""

NEVER = {"payload", "early", "preamble", "data", "digest", "credential", "secret", "password", "authorization"}
"""Variables and attributes that hold payload, or what somebody is known by."""

ABOUT_ALL = {
    ("control/clients/in_band_requests.py", "give"): "all whose names could not be written",
    ("control/clients/in_band_settings.py", "load"): "all that was set",
    ("control/reach/telling.py", "_tell"): "all who are due",
    ("control/store/store.py", "_write"): "all that stay IDLE",
    ("control/daemon/inventory.py", "take_inventory"): "what was adopted",
    ("control/dispatch/dispatcher.py", "_take"): "the engine's own end",
    ("control/dispatch/capacity.py", "not_grown"): "a table; the key is one of the configuration",
    ("control/dispatch/monitor.py", "look"): "a shortage; the key is one of the configuration",
}
"""Functions whose lines, some of them, are about many connections: why."""

KEY = Key.of("192.0.2.7", 40123, "198.51.100.1", 7000)


def record(message: str, extra: Mapping[str, object], *args: object) -> logging.LogRecord:
    made = {"name": "roost.reach", "levelname": "WARNING", "levelno": logging.WARNING, "created": 1_700_000_000.25}
    return logging.makeLogRecord({**made, "msg": message, "args": args, **extra})


def test_a_line_of_json_has_what_it_is_about() -> None:
    text = Json().format(record('%s\n"is away"', about(connection=17, client=KEY, name="", service="telemetry"), "x"))
    assert "\n" not in text
    assert json.loads(text) == {
        "at": "2023-11-14T22:13:20.250Z", "level": "warning", "part": "roost.reach", "message": 'x\n"is away"',
        "connection": 17, "client": "192.0.2.7:40123", "service": "telemetry",
    }  # fmt: skip


def test_an_exception_is_a_field() -> None:
    try:
        raise ValueError("no\nway")
    except ValueError as error:
        line = json.loads(Json().format(record("it failed", {"exc_info": (type(error), error, error.__traceback__)})))
    assert line["exception"].startswith("Traceback")
    assert line["exception"].endswith("ValueError: no\nway")


def test_the_console_has_the_connections_number_alone() -> None:
    said = Console().format(record("%s cannot wake", about(connection=17, client=KEY), "x"))
    assert said.endswith("WARNING roost.reach: connection 17: x cannot wake")
    assert Console().format(record("ready", about(connection=0, client=KEY))).endswith("roost.reach: ready")


def test_what_outsiders_say_moves_no_cursor_and_begins_no_line() -> None:
    """Bidirectional overrides neither. A traceback keeps its lines."""
    said = Console().format(record("it says %s", {}, "\x1b[2J\x1b]0;root\x07\r\n2026 ERROR forged\u202e\x9b"))
    assert said.endswith(r"roost.reach: it says \x1b[2J\x1b]0;root\x07\r\n2026 ERROR forged\u202e\x9b")
    try:
        raise ValueError("no")
    except ValueError as error:
        text = Console().format(record("it failed", {"exc_info": (type(error), error, error.__traceback__)}))
    assert len(text.splitlines()) > 2


def test_lines_that_outsiders_make_without_end_are_counted_and_left_out() -> None:
    sparing = Sparing()

    def written(count: int, at_s: float, **fields: Any) -> list[str]:
        lines = [record("%s is turned away", {**about(client=KEY), "created": at_s, **fields}, i) for i in range(count)]
        return [line.getMessage() for line in lines if sparing.filter(line)]

    assert len(written(15_000, 0.0)) == 20
    assert written(1000, 1.5) == ["0 is turned away (and 14,980 more like it)"]
    assert written(1, 2.6) == ["0 is turned away (and 999 more like it)"]
    assert len(written(30, 100.0)) == 20
    assert len(written(30, 50.0)) == 0, "a clock that was set back gives nothing"
    assert len(written(50, 100.0, levelno=logging.ERROR)) == 50
    assert len(written(50, 100.0, name="roost.policy")) == 20, "they are about a client"
    assert len(written(50, 100.0, name="roost.policy", about={"job": 7})) == 50, "what this daemon does by itself"
    assert len(written(50, 100.0, name="roost.attach", about={})) == 20, "whoever connects may cause them"


def test_what_is_said_by_parts_that_serve_outsiders_is_bounded() -> None:
    """Those that listen, or read what clients, servers and agents say."""
    served = ("appliance/frontends", "control/api", "control/reach", "control/clients/in_band*.py")
    files = [path for place in served for path in ROOT.glob(place if "*" in place else f"{place}/*.py")]
    named = re.compile(r'^log = logging.getLogger\("([^"]+)"\)', re.MULTILINE)
    names = {name for path in files for name in named.findall(path.read_text(encoding="utf-8"))}
    assert names | {"asyncio"} == OF_OUTSIDERS


def test_the_choice_is_handed_on() -> None:
    config = Config.model_validate({"log": {"format": "json"}})
    daemons = config.with_log(verbose=True).log
    assert (daemons.format, daemons.level) == ("json", "debug")
    assert Config().with_log(verbose=False, inherited=daemons.model_dump_json()).log == daemons
    assert config.with_log(verbose=False) == config


def functions() -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for tree in ("control", "appliance"):
        for path in sorted((ROOT / tree).rglob("*.py")):
            if path.name == "roost_agent.py":
                continue  # a program of its own, on a machine of the clients
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield str(path.relative_to(ROOT)), node


def calls(function: ast.AST) -> Iterator[ast.Call]:
    """Those that log."""
    for node in ast.walk(function):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="log"), attr=attribute)) if attribute in LEVELS:
                yield node


def has_in_hand(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """Its parameters and variables that are SUBJECTS, but for those of comprehensions, which are gone when it logs."""
    nodes = list(ast.walk(function))
    gone = {id(name) for node in nodes if isinstance(node, ast.comprehension) for name in ast.walk(node.target)}
    names = {node.arg for node in nodes if isinstance(node, ast.arg)}
    stored = (node for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    return (names | {node.id for node in stored if id(node) not in gone}) & SUBJECTS


def test_a_line_said_with_a_connection_in_hand_is_about_it() -> None:
    bare, excused = [], set()
    for path, function in functions():
        without = [call for call in calls(function) if "extra" not in {keyword.arg for keyword in call.keywords}]
        if without and (found := has_in_hand(function)):
            if (path, function.name) in ABOUT_ALL:
                excused.add((path, function.name))
            else:
                bare += [f"{path}:{call.lineno}: {function.name} has {', '.join(sorted(found))}" for call in without]
    assert not bare
    assert excused == set(ABOUT_ALL)


def test_no_line_is_made_of_what_nobody_may_read() -> None:
    for path, function in functions():
        for call in calls(function):
            said = {node.id for node in ast.walk(call) if isinstance(node, ast.Name)}
            said |= {node.attr for node in ast.walk(call) if isinstance(node, ast.Attribute)}
            assert not said & NEVER, f"{path}:{call.lineno}"
