# SPDX-License-Identifier: Apache-2.0
"""The report's page: what it says of hand-written tables, and that it is well-formed whatever stands in them."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark.page import figure, html, page, text
from spark.page.section import Column, Kind, Table
from spark.page.sections import about, dwell, other
from tests import report_tables as given

VOID = frozenset({"meta"})
ROOT = Path(__file__).parents[2]


class Read(HTMLParser):
    """A page as a browser has it. Each element that begins is to end, and in its order."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.names: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(content)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names[tag] += 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append((self.open[-1] if self.open else "", data))

    def of(self, *tags: str) -> list[str]:
        """The texts in elements of these names, with plain spaces."""
        return [data.replace(text.GAP, " ") for tag, data in self.texts if tag in tags]

    def values(self, attribute: str) -> list[str]:
        return [value for _, name, value in self.attributes if name == attribute]


Made = Callable[..., Read]


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """The page of tables."""

    def make(tables: Mapping[str, Any], told: Mapping[str, Any] = given.TOLD) -> Read:
        return Read(page.write(given.write(tmp_path, tables, told)).read_text())

    return make


def plain(texts: list[str]) -> list[str]:
    return [one.replace(text.GAP, " ") for one in texts]


# -- the page ----------------------------------------------------------------------------------------------------------


def test_a_page_asks_for_nothing_and_is_the_same_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = given.a_week(["meter", "lamp"], days=2)
    first = page.write(given.write(tmp_path / "a", tables)).read_bytes()
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    assert page.write(given.write(tmp_path / "b", tables)).read_bytes() == first
    assert sorted(path.name for path in (tmp_path / "a").iterdir() if path.suffix != ".parquet") == [
        "report.html", "report.json",
    ]  # fmt: skip
    read = Read(first.decode())
    assert not {"script", "link", "img", "iframe", "object", "image", "foreignobject", "base"} & set(read.names)
    assert all(value.startswith("#") for value in read.values("href"))
    assert not read.values("src")
    assert not [name for _, name, _ in read.attributes if name.startswith("on")]
    assert set(re.findall(r"url\((.)", first.decode())) <= {"#"}
    assert "@import" not in first.decode()
    assert "default-src 'none'; style-src 'unsafe-inline'; img-src data:" in read.values("content")[0]


def test_ids_are_there_once_and_links_lead_to_them(made: Made) -> None:
    read = made(given.a_week(["meter", "lamp", None], days=2))
    ids = Counter(read.values("id"))
    assert set(ids.values()) == {1}
    led = {value[1:] for value in read.values("href")}
    led |= {one for value in (*read.values("aria-labelledby"),) for one in value.split()}
    led |= {value[5:-1] for value in read.values("clip-path")}
    assert led <= set(ids)
    assert {"dwell", "aside"} <= led


def test_each_plot_has_a_name_and_says_what_it_shows(made: Made) -> None:
    read = made(given.a_week(["meter", "lamp"], days=2))
    assert read.names["svg"] == read.values("role").count("img") == read.names["desc"] == 4
    assert read.of("title")[1:] == [
        "Connections by state of service meter", "Connections by state of service lamp",
        "How long stays of service meter last", "How long stays of service lamp last",
    ]  # fmt: skip
    assert read.of("desc")[2].startswith("ACTIVE: half last up to 4 s, 90 % last up to 27 s, 99 % last up to 95 s; ")
    assert "SLEEP: half last up to 87 min, 90 % last up to 11 h, for 99 % it is not known." in read.of("desc")[2]
    assert {"2 Nov", "12:00", "100k"} <= set(read.of("text"))


def test_colours_of_plots_are_those_of_the_scheme(tmp_path: Path) -> None:
    content = page.write(given.write(tmp_path, given.a_week(["meter"], days=1))).read_text()
    drawn = "".join(re.findall(r"<svg.*?</svg>", content, re.DOTALL))
    assert not re.findall(r"#[0-9a-f]{6}\b(?!\w)", re.sub(r'(href|clip-path)="[^"]*"', "", drawn))
    style = html.STYLE.read_text()
    for name in set(re.findall(r"var\(--([\w-]+)\)", content)):
        assert style.count(f"--{name}: ") == 2, f"{name} is there for light and for dark"


# -- what data says stays text -----------------------------------------------------------------------------------------


def test_markup_in_any_text_stays_text(made: Made) -> None:
    bad = given.MARKUP
    tables = given.a_week([bad], days=1)
    tables["dwell_by_service"][0]["state"] = bad
    tables["dwell_by_network"][0]["network"] = bad
    tables["transitions"][0] |= {"cause": bad, "state": "SLEEP", "next": "ACTIVE"}
    tables["transitions"].append(given.step(bad, "IDLE", "CLOSED", bad, 9, 0.1))
    told = given.TOLD | {"reasons": {bad: [bad]}, "set_aside": {bad: 3}}
    read = made(tables | {"<b>odd&": [{"<i>x": bad, "service": bad}]}, told)
    assert not {"script", "b", "i"} & set(read.names)
    for tags in (("td",), ("li",), ("h4",), ("title",), ("desc",), ("text",), ("caption",), ("small",)):
        assert any(bad in one for one in read.of(*tags)), tags
    assert "<i>x" in read.of("th")


def test_what_would_hide_or_turn_text_does_not(made: Made) -> None:
    name = "a\x00b\u202ec\x1b[1m\nd" + "e" * 300
    read = made({"dwell_by_service": [given.lengths(name, "IDLE", 5, 0, [1.0, 2.0, 3.0])]})
    (cell,) = [one for one in read.of("td") if one.startswith("a")]
    assert cell.startswith("a\ufffdb\ufffdc\ufffd[1m\ufffdde")
    assert len(cell) == text.LONGEST
    assert cell.endswith("…")
    assert not any("\u202e" in one for _, one in read.texts)


# -- findings ----------------------------------------------------------------------------------------------------------


def test_findings_say_in_words_what_the_tables_have(made: Made) -> None:
    read = made({
        "dwell_by_service": [
            given.lengths("meter", "ACTIVE", 600_000, 10, [4.0, 27.0, 90.0], total_s=1000.0),
            given.lengths("meter", "IDLE", 634_567, 200_000, [40.0, None, None], total_s=8000.0),
            given.lengths(None, "SLEEP", 1, 1, [None, None, None], total_s=1000.0),
        ],
        "transitions": [
            given.step("meter", "IDLE", "ACTIVE", "client-data", 700, 0.7),
            given.step("meter", "SLEEP", "STANDBY", "client-data", 200, 1.0),
            given.step("meter", "IDLE", "ACTIVE", "server-attach", 100, 0.1),
            given.step("meter", "IDLE", "SLEEP", "quiet", 200, 0.2),
            given.step("meter", "ACTIVE", "CLOSED", "client-close", 75, 0.75),
            given.step(None, "SLEEP", "CLOSED", "probe-timeout", 25, 0.25),
        ],
        "hours": [
            {"service": "meter", "state": "IDLE", "hour": given.BEGIN.replace(hour=at), "connections": many, "began": 1}
            for at, many in ((3, 10.0), (4, 30.0), (5, 30.0))
        ],
    })  # fmt: skip
    said = read.of("li")
    for sentence in text.paragraphs("""
        Connections are without a socket for 90 % of the time that they were watched: they spend 80 % in IDLE, 10 % in
        ACTIVE and 10 % in SLEEP.

        There were 23 connections on average, and 30 in the hour with most of them, from 2026-11-02 04:00 UTC on.

        Of 1.23 million stays of connections of service meter, half last at most 4 s in ACTIVE and 40 s in IDLE; 9 of
        10 last at most 27 s in ACTIVE. Of 1,000 wake-ups, 9 of 10 are by the client and 10 % by a server.

        Of 100 connections that ended, 75 % were closed by the client and 25 % were given up, since the client no
        longer answered.

        Of the stays in IDLE of service meter, 32 % had not ended when they were last watched: what is said of the
        longest ones rests on few.

        This report is made of 1,234,567 transitions between states: 2026-11-02 00:00 to 2026-11-09 00:00 UTC.

        Not in it: 4 files or rows set aside, 12 stays of unknown length and 40 transitions never written, for want of
        room.
    """):
        assert sentence in said
    assert read.of("nav", "p").count(said[2]) == 1, "what matters most is in the contents, too"
    assert read.of("td").count("(not known any more)") == 2
    assert read.of("desc")[-1] == "SLEEP: for half it is not known, for 90 % it is not known, for 99 % it is not known."


def test_a_matrix_has_the_share_of_each_transition_and_its_most_frequent_cause() -> None:
    steps = [
        given.step("meter", "IDLE", "ACTIVE", "client-data", 6, 0.6),
        given.step("meter", "IDLE", "ACTIVE", "command", 1, 0.1),
        given.step("meter", "IDLE", "CLOSED", "client-close", 3, 0.3),
    ]
    (matrix,) = dwell.section({"transitions": steps}).matrices
    assert (matrix.title, matrix.rows) == ("service meter", ["IDLE"])
    assert matrix.columns == ("ACTIVE", "STANDBY", "IDLE", "SLEEP", "CLOSED")
    assert dwell.section({"transitions": steps}).findings[0].startswith("Of 7 wake-ups of service meter, 86")
    assert matrix.cells == [[(0.7, "70\u00a0%\nclient-data"), None, None, None, (0.3, "30\u00a0%\nclient-close")]]


def test_of_many_services_a_few_are_drawn_and_the_rest_summed(made: Made) -> None:
    read = made({"hours": given.a_week([f"s{number}" for number in range(9)], days=1)["hours"]})
    assert read.of("h4") == [*(f"service s{number}" for number in range(5)), "4 other services, summed"]


def test_many_hours_are_drawn_as_few_whose_average_is_the_same(made: Made) -> None:
    hours = [{"service": "s", "state": "IDLE", "hour": given.BEGIN + number * figure.HOUR, "began": 0,
              "connections": 100.0 + number % 2 * 40} for number in range(24 * 61)]  # fmt: skip
    read = made({"hours": hours})
    assert any("12 hours are drawn as one" in one for one in read.of("figcaption"))
    assert "IDLE 120, at most 120" in plain(read.of("desc"))[0]
    assert {"9 Nov", "7 Dec"} <= set(read.of("text")), "Mondays"


# -- tables ------------------------------------------------------------------------------------------------------------


def test_a_page_shows_the_largest_rows_and_says_how_many_are_left_out(made: Made) -> None:
    rows = [
        given.lengths("s", "IDLE", number, 0, [1.0, 2.0, 3.0], network=f"10.{number}.0.0/16") for number in range(100)
    ]
    read = made({"dwell_by_network": rows})
    said = "The first 40 of 100 rows by stays; 60 are left out, and dwell_by_network.csv has them all."
    assert [one for one in read.of("p") if one.startswith(said)]
    networks = [one for one in read.of("td") if one.startswith("10.")]
    assert networks == [f"10.{number}.0.0/16" for number in range(99, 59, -1)]


def test_a_table_that_has_no_section_is_shown_as_it_is(made: Made) -> None:
    read = made({"time_outs": [
        {"network": "100.64.0.0/10", "service": None, "count": 1000, "safe_s": 300.0, "lost_share": 0.015,
         "sure": True, "saved_bytes": 12_000_000, "rate_per_s": 1.25, "port": 40001, "since": given.BEGIN,
         "odd": [1, 2], "none": None},
        {"network": "10.0.0.0/8", "service": "", "count": 5000, "safe_s": None, "lost_share": float("nan"),
         "sure": False, "saved_bytes": 1, "rate_per_s": 0.0001, "port": 1, "since": None, "odd": None, "none": None},
    ]})  # fmt: skip
    assert read.of("td")[:24] == [
        "10.0.0.0/8", "(no name)", "5,000", "–", "–", "no", "1 B", "1.0e-04", "1", "–", "–", "–",
        "100.64.0.0/10", "(not known any more)", "1,000", "5 min", "1.5 %", "yes", "12 MB", "1.25", "40001",
        "2026-11-02 00:00", "[1, 2]", "–",
    ]  # fmt: skip
    assert "As a file: time_outs.csv." in read.of("p")
    assert {"safe", "rate per s", "lost share"} <= set(read.of("th"))


def test_columns_are_bounded_too() -> None:
    shown = other.table("wide", [{f"c{number}": number for number in range(20)}])
    assert len(shown.columns) == other.COLUMNS
    assert shown.note == "6 more columns there."


def test_a_huge_table_is_read_in_part(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "MOST_ROWS", 3)
    read = made({"odd": [{"a": number} for number in range(5)]})
    assert read.of("td")[:3] == ["0", "1", "2"]
    assert "Of odd.parquet, this page knows the first 3 rows of 5." in read.of("li")


# -- what is missing ---------------------------------------------------------------------------------------------------


def test_a_section_without_tables_is_left_out(made: Made) -> None:
    read = made({})
    assert read.of("h2") == ["What this report is about", "In short", "Set aside and not known"]
    assert read.names["svg"] == 0


@pytest.mark.parametrize("name", dwell.TABLES)
def test_each_table_alone_makes_a_page(made: Made, name: str) -> None:
    read = made({name: given.a_week(["meter"], days=1)[name]})
    assert "How long connections stay in each state" in read.of("h2")


def test_empty_tables_are_told_as_such(made: Made) -> None:
    read = made({name: [] for name in (*dwell.TABLES,)} | {"other": []})
    assert "No stay was seen." in read.of("li")
    assert read.of("p").count("No rows.") == len(dwell.TABLES) + 1
    assert (read.names["svg"], read.names["figure"]) == (0, 0)


def test_a_report_of_no_rows_says_so(made: Made) -> None:
    nothing: dict[str, Any] = {"rows": 0, "unknown": {}, "dropped": 0, "set_aside": {}, "reasons": {}, "tables": []}
    read = made({}, nothing | {"from": None, "to": None})
    assert "There is no transition in the times of this report." in read.of("p")
    assert "The export has no transition in the times of this report, so that there is nothing to tell." in read.of(
        "li"
    )
    assert "Nothing was set aside, and no part of the record is missing." in read.of("li")


def test_a_table_that_cannot_be_read_is_told(made: Made, tmp_path: Path) -> None:
    (tmp_path / "half.parquet").write_bytes(b"PAR1")
    assert [one for one in made({}).of("li") if one.startswith("half.parquet cannot be read: ")]


def test_one_stay_of_one_hour_is_drawn(made: Made) -> None:
    read = made({
        "dwell_by_service": [given.lengths("s", "IDLE", 1, 0, [0.001, 0.001, 0.001])],
        "hours": [{"service": "s", "state": "IDLE", "hour": given.BEGIN, "connections": 0.0, "began": 1}],
    })  # fmt: skip
    assert read.names["svg"] == 2
    assert "1 ms" in read.of("text")


def test_all_that_is_set_aside_is_explained() -> None:
    read, stays, made = ((ROOT / "spark" / name).read_text() for name in ("reading.py", "stays.py", "report.py"))
    assert set(re.findall(r'aside\.add\(\s*"([\w ]+)"', read + made)) <= set(about.KINDS)
    assert [kind for kind in (*about.KINDS, *about.UNKNOWN) if f'"{kind}"' not in read + stays + made] == []


# -- values ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "value", "shown"), [
    (Kind.COUNT, 1234567, "1,234,567"), (Kind.COUNT, 0, "0"), (Kind.COUNT, None, "–"), (Kind.COUNT, "x", "x"),
    (Kind.NUMBER, 1234.5, "1,234"), (Kind.NUMBER, 12.34, "12.3"), (Kind.NUMBER, float("inf"), "–"),
    (Kind.DURATION, 0, "0 ms"), (Kind.DURATION, 0.001, "1 ms"), (Kind.DURATION, 0.25, "250 ms"),
    (Kind.DURATION, 1.0, "1 s"), (Kind.DURATION, 40.2, "40 s"), (Kind.DURATION, 119, "119 s"),
    (Kind.DURATION, 120, "2 min"), (Kind.DURATION, 9000, "2.5 h"), (Kind.DURATION, 200_000, "2.3 d"),
    (Kind.DURATION, 1e9, "11,574 d"), (Kind.SHARE, 1, "100 %"), (Kind.SHARE, 0.9999, "> 99 %"), (Kind.SHARE, 0, "0 %"),
    (Kind.SHARE, 0.0001, "< 0.1 %"), (Kind.SHARE, 0.034, "3.4 %"), (Kind.BYTES, 1234, "1.23 kB"),
    (Kind.TIME, given.BEGIN, "2026-11-02 00:00"), (Kind.SERVICE, None, "(not known any more)"),
])  # fmt: skip
def test_values_are_shown_for_people(kind: Kind, value: Any, shown: str) -> None:
    assert kind.show(value).replace(text.GAP, " ") == shown


def test_an_axis_counts_in_short() -> None:
    assert [text.short(value) for value in (0, 0.5, 9000, 15_000, 2_500_000)] == ["0", "0.5", "9,000", "15k", "2.5M"]
    assert [text.of_ten(value) for value in (0, 0.5, 0.9, 1)] == ["none", "half", "9 of 10", "all"]


def test_a_row_that_lacks_a_column_has_an_empty_cell() -> None:
    made = html._table("s", Table("t", "t.csv", [Column("a", "a"), Column("b", "b", Kind.COUNT)], [{"a": "x"}]))
    assert '<td>x</td><td class="number">–</td>' in made


def test_a_page_is_made_without_spark() -> None:
    code = "import sys, spark.page.page; sys.exit('pyspark' in sys.modules or 'matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60, check=False).returncode == 0


def test_a_table_of_the_job_has_the_columns_that_the_page_reads(tmp_path: Path) -> None:
    """Of either the names are the same."""
    pq.write_table(pa.Table.from_pylist([], given.SCHEMAS["dwell_by_network"]), tmp_path / "x.parquet")
    names = pq.read_schema(tmp_path / "x.parquet").names
    assert {column.key for column in dwell._network_table([]).columns} <= set(names)
