# SPDX-License-Identifier: Apache-2.0
"""What the operator's commands print: whole lines in a pipe, times with a zone."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from control.cli import dialled, doctor, events, logs, show, tag, up
from control.cli.client import Client
from control.cli.table import local_time, show_table

AT_MS = 1_700_000_000_123
ZONED = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d{3})?[+-]\d\d:\d\d"
LONG = "[2001:db8:1111:2222:3333:4444:5555:6666]:65535"
TRANSITION = {
    "at_ms": AT_MS, "id": 7, "client": LONG, "service": "a-service-with-a-long-name", "from": "ACTIVE", "to": "STANDBY",
    "cause": "quiet", "rx_bytes": 123456789, "tx_bytes": 987654321, "gap_ms": 60000,
}  # fmt: skip
SHOWN = {"id": 7, "client": LONG, "set": {"policy": "x" * 120}, "slept_at_ms": AT_MS, "history": [TRANSITION]}


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """What the daemon answers, by the beginning of the path."""
    found: dict[str, Any] = {}

    def get(self: Client, path: str, **query: object) -> Any:
        return next(answer for begin, answer in found.items() if path.startswith(begin))

    monkeypatch.setattr(Client, "get", get)
    monkeypatch.setenv("COLUMNS", "60")  # of the terminal from which the pipe was started
    monkeypatch.setenv("TZ", "Asia/Kathmandu")
    time.tzset()
    yield found
    monkeypatch.undo()
    time.tzset()


def output(command: Any, *arguments: str) -> str:
    result = CliRunner().invoke(command, list(arguments))
    assert result.exit_code == 0, result.output
    return result.output


def test_a_time_has_its_zone(answers: dict[str, Any]) -> None:
    assert local_time(AT_MS) == "2023-11-15 03:58:20+05:45"
    assert local_time(AT_MS, "milliseconds") == "2023-11-15 03:58:20.123+05:45"


def test_show_is_whole_in_a_pipe_and_its_times_have_a_zone(answers: dict[str, Any]) -> None:
    answers["/v1/connections/"] = SHOWN
    lines = output(show.command, "7").splitlines()
    assert any("x" * 120 in line for line in lines)
    assert any(line.split()[0] == "slept_at" and line.rstrip().endswith("2023-11-15 03:58:20+05:45") for line in lines)
    row = next(line for line in lines if "STANDBY" in line)
    assert row.startswith("2023-11-15 03:58:20+05:45")
    assert "123,456,789 B" in row
    assert row.rstrip().endswith("60.0 s")


def test_a_list_is_whole_in_a_pipe(capsys: pytest.CaptureFixture[str], answers: dict[str, Any]) -> None:
    assert show_table(("client", "more"), [(LONG, "y" * 100)]) == 1
    assert re.search(re.escape(LONG) + " +" + "y" * 100, capsys.readouterr().out)


def test_history_tells_servers_errors_and_silences(answers: dict[str, Any]) -> None:
    ends = {"server": "192.0.2.1:80", "error": "ECONNRESET", "probes": 1, "silence_s": 3700}
    answers["/v1/history"] = [{**TRANSITION, **ends}]
    told = "server 192.0.2.1:80, ECONNRESET, silent for 1h 1m, 1 probe unanswered"
    assert output(events.command).rstrip().endswith(f", {told}")
    answers["/v1/connections/"] = {**SHOWN, "history": [{**TRANSITION, **ends, "probes": 4}]}
    assert told.replace("1 probe", "4 probes") in output(show.command, "7")


def test_tags_are_listed_with_how_many_names_have_them(answers: dict[str, Any]) -> None:
    answers["/v1/tags"] = [{"tag": "basement", "names": 12345}]
    answers["/v1/names/camera%2F1/tags"] = {"name": "camera-1", "tags": []}
    assert "basement  12,345" in output(tag.command)
    assert output(tag.command, "camera/1") == "camera-1: no tags\n"


def test_events_and_dialled_have_a_zone(answers: dict[str, Any]) -> None:
    answers["/v1/history"] = [TRANSITION]
    answers["/v1/dialled"] = [{"client": LONG, "failures": 3, "at_ms": AT_MS, "stay": "no"}]
    assert output(events.command).startswith("2023-11-15 03:58:20.123+05:45 ")
    assert re.search(ZONED, output(dialled.command))


def test_the_doctor_is_whole_in_a_pipe(answers: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    from appliance.box.doctor import Need, Outcome

    doctor.print_table([Outcome("kernel", "thing", Need.REQUIRED, False, "z" * 150, "")])
    assert "z" * 150 in capsys.readouterr().out


def test_the_log_has_a_zone() -> None:
    record = logging.LogRecord("roost.daemon", logging.INFO, "", 0, "ready", (), None)
    assert re.fullmatch(ZONED + r" INFO    roost\.daemon: ready", logs.Console().format(record))


def test_a_configuration_that_up_refuses_is_refused_by_check(tmp_path: Path) -> None:
    path = tmp_path / "roost.toml"
    path.write_text('instance = "x"\n')
    result = CliRunner().invoke(up.command, ["--check", "-c", str(path)])
    assert result.exit_code == 1
    assert f"{path}: there is no [[service]]; at least one is needed" in result.output
