# SPDX-License-Identifier: Apache-2.0
"""Pictures of what was measured."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from control.dev.bench import command
from tests.bench import plot, relay, storm
from tests.bench.figures import Report

SVG = "{http://www.w3.org/2000/svg}"


def written(directory: Path, bench: str, figures: dict[str, list[float]]) -> Path:
    """What `roost bench --json` would leave in a file, with a line before it."""
    report = Report(bench)
    for key, values in figures.items():
        report.add(key, values, "")
    file = directory / f"{bench}.json"
    file.write_text(f"a line of progress\n{report.as_json()}\n")
    return file


def growth(directory: Path) -> Path:
    figures: dict[str, list[float]] = {}
    for size, took in ((10_000, [400.0, 410.0, 500.0]), (100_000, [420.0, 430.0, 450.0])):
        figures[f"bytes_{size}"] = [47.5]
        figures[f"total_bytes_{size}"] = [7000.0]
        figures[f"ns_{size}"] = took
    return written(directory, "growth", figures)


def words(picture: Path) -> list[str]:
    return [text.text or "" for text in ElementTree.parse(picture).iter(f"{SVG}text")]


def test_growth_is_drawn_by_number_of_connections_and_the_total_is_not(tmp_path: Path) -> None:
    (picture,) = plot.draw([growth(tmp_path)], tmp_path / "pictures")
    assert picture.name == "growth.svg"
    said = words(picture)
    assert said.count("10k") == said.count("100k") == 2, "one of each in either panel"
    assert {"47.5", "410", "430"} <= set(said)
    assert "7,000" not in said


def test_a_line_rises_where_figures_do(tmp_path: Path) -> None:
    figures = plot.results([growth(tmp_path)])["growth"]
    time: Any = plot.panels("", "", plot.growth_panels(figures)).axes[1]
    assert time.lines[0].get_xydata().tolist() == [[10_000, 410], [100_000, 430]]
    assert time.get_xscale() == "log"
    assert time.get_ylim()[0] == 0
    (spread,) = time.collections
    assert [segment[:, 1].tolist() for segment in spread.get_segments()] == [[400, 500], [420, 450]]


def test_bars_of_a_group_are_as_long_as_their_values(tmp_path: Path) -> None:
    file = written(tmp_path, "storm", {"handshakes_per_core_s": [600_000.0], "haproxy_per_core_s": [50_000.0]})
    (picture,) = plot.draw([file], tmp_path)
    assert picture.name == "peers.svg"
    assert {"600k /s", "50k /s", "HAProxy"} <= set(words(picture))
    bars: Any = plot.bars("", plot.peer_groups(plot.results([file]))).axes[0]
    assert [bar.get_width() for bar in bars.patches] == [600_000, 50_000]
    assert bars.get_xlim()[0] == 0


def test_a_picture_is_the_same_each_time(tmp_path: Path) -> None:
    (first,), (second,) = (plot.draw([growth(tmp_path)], tmp_path / name) for name in ("a", "b"))
    assert first.read_bytes() == second.read_bytes()


def test_every_figure_that_is_drawn_is_one_that_its_bench_reports() -> None:
    relayed = {way + key for way in ("", "haproxy_", "routed_") for key in relay.UNITS}
    drawn = {key for bench, _, _, who in plot.WHAT if bench == "relay" for _, key, _ in who}
    assert drawn <= relayed
    source = Path(storm.__file__).read_text()
    assert all(f'"{key}"' in source for bench, _, _, who in plot.WHAT if bench == "storm" for _, key, _ in who)


def test_what_is_no_result_is_named(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("nothing\n")
    result = CliRunner().invoke(command, ["plot", str(file), "--to", str(tmp_path)])
    assert result.exit_code == 1
    assert "notes.txt does not end with the JSON of a bench" in result.stderr


def test_a_bench_without_a_picture_is_named(tmp_path: Path) -> None:
    result = CliRunner().invoke(command, ["plot", str(written(tmp_path, "churn", {"freeze_us": [20.0]}))])
    assert result.exit_code == 1
    assert "nothing to draw of churn" in result.stderr


def test_the_command_says_what_it_drew(tmp_path: Path) -> None:
    result = CliRunner().invoke(command, ["plot", str(growth(tmp_path)), "--to", str(tmp_path / "new")])
    assert (result.exit_code, result.stdout.split()) == (0, [str(tmp_path / "new" / "growth.svg")])


def test_the_table_has_every_figure_with_its_spread(tmp_path: Path) -> None:
    result = CliRunner().invoke(command, ["table", str(growth(tmp_path))])
    assert result.exit_code == 0
    assert "| `growth` | `ns_10000` | 410 | 400 to 500 | 3 |  |" in result.stdout.splitlines()
    assert "| `growth` | `bytes_10000` | 47.5 |  | 1 |  |" in result.stdout.splitlines()


@pytest.mark.parametrize(("value", "text"), [(0, "0"), (47.25, "47.2"), (999, "999"), (1234, "1,234"), (50_000, "50k"),
                                             (1_270_000, "1.27M")])  # fmt: skip
def test_numbers_are_short(value: float, text: str) -> None:
    assert plot.number(value) == text
