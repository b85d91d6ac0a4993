# SPDX-License-Identifier: Apache-2.0
"""What a report's page says of intervals, churn, limits and attaches (spark/page/sections)."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from types import ModuleType
from typing import Any
from unittest.mock import patch

import pytest

from spark.page import figure, text
from spark.page.html import page
from spark.page.page import SECTIONS
from spark.page.sections import attaches, churn, limits, quiet
from tests import report_tables as given
from tests.report_tables import MARKUP, Rows
from tests.unit.test_report_page import ROOT, Read

MODULES = (quiet, churn, limits, attaches)
NAMES = [(module, name) for module in MODULES for name in module.TABLES]
TEXTS = (
    "interval",
    "bound",
    "reason",
    "address",
    "network",
    "likely_cause",
    "way",
    "found",
    "step",
    "error",
    "service",
    "prefix",
    "what",
    "most_of",
    "source",
)


def told(module: ModuleType, tables: Mapping[str, Rows]) -> Read:
    with figure.drawing():
        return Read(page("title", "period", [module.section(tables)]))


def said(module: ModuleType, tables: Mapping[str, Rows]) -> tuple[str, ...]:
    """The findings, with plain spaces."""
    with figure.drawing():
        return tuple(one.replace(text.GAP, " ") for one in module.section(tables).findings)


# -- intervals ---------------------------------------------------------------------------------------------------------


def test_a_recommendation_says_in_place_of_what_and_what_it_saves() -> None:
    tables = {
        "quiet_intervals": [
            given.interval("lamp", "active_quiet", 49.0, None),
            given.interval("meter", "active_quiet", 49.0, 5.0, bound="lower"),
            given.interval("meter", "standby_quiet", 49.0, 5.0),
            given.interval("meter", "idle_quiet", None, 900.0, wakes_per_day_now=1.0),
        ],
        "quiet_costs": [
            given.cost("lamp", 90, 0.98, "fewer than 200 silences in the days held out"),
            given.cost("meter", 100_000, 0.75),
        ],
    }
    assert said(quiet, tables) == text.paragraphs("""
        Other intervals are recommended for 1 of 2 services: there memory and wake-ups cost 25 % less.

        For service meter: active_quiet and standby_quiet of 5 s in place of 49 s and idle_quiet of 15 min in
        place of one that was never reached. That lowers the cost of the days held out by 25 %, where hindsight
        would lower it by 50 %. Memory above that of SLEEP and after the first 5 s of a silence would be 150 kB
        on average instead of 300 kB; connections without a socket would wake 26,000 times a day instead of
        20,000. Shorter intervals cannot be judged yet.

        Nothing is recommended for service lamp: fewer than 200 silences in the days held out. Hindsight would
        lower the cost by 50 %.
    """)
    cells = told(quiet, tables).of("td")
    assert {"75 %", "125 %", "2,000,000", "100 kB", "50 kB", "lower"} <= set(cells)


def test_what_is_saved_by_all_recommendations_is_by_how_much_each_weighs() -> None:
    tables = {
        "quiet_intervals": [given.interval(name, "active_quiet", 49.0, 5.0) for name in ("a", "b")],
        "quiet_costs": [given.cost("a", 100_000, 0.5), given.cost("b", 300_000, 0.9)],
    }
    assert "2 of 2 services: there memory and wake-ups cost 20 % less." in said(quiet, tables)[0]


def test_without_intervals_costs_alone_tell_for_which_services_others_are_cheaper() -> None:
    findings = said(quiet, {"quiet_costs": [given.cost("a", 9000, 0.5), given.cost("b", 9, 1.0, "too few")]})
    assert findings[0].startswith("Other intervals are recommended for 1 of 2 services")
    assert findings[1].startswith("For service a: other intervals are cheaper. That lowers")
    assert findings[2].startswith("Nothing is recommended for service b: too few.")
    assert said(quiet, {"quiet_intervals": [given.interval("a", "idle_quiet", 9.0, None)]}) == (
        "Other intervals are recommended for none of 1 service.",
        "Nothing is recommended for service a: no other interval is known to be cheaper.",
    )


def test_silences_are_drawn_with_the_intervals_in_force_and_recommended() -> None:
    tables = {
        "quiet_intervals": [
            given.interval("a", "active_quiet", 49.0, 5.0),
            given.interval("a", "idle_quiet", 300.0, None),
        ],
        "gap_distribution": [row for name in "abcdefghij" for row in given.ages(name, 600.0)],
    }
    read = told(quiet, tables)
    assert read.names["svg"] == quiet.DRAWN
    assert read.of("h4")[0] == "service a"
    assert {"ACTIVE", "IDLE", "100 %", "10 min"} <= set(read.of("text"))
    assert read.of("desc")[0] == (
        "Of silences of 5 s or more, half last up to 7.2 min, and 80 % wake; active_quiet: 49 s in force, 5 s "
        "recommended; idle_quiet: 5 min in force, – recommended."
    )


# -- churn -------------------------------------------------------------------------------------------------------------


def test_what_failed_together_is_one_failure_of_several_networks_the_largest_first() -> None:
    failures = [
        given.failure("meter", "10.1.0.0/16", 5.0, 100, "network"),
        given.failure("meter", "10.2.0.0/16", 30.0, 4000, "server", cause_share=1.0),
        given.failure("meter", "10.3.0.0/16", 30.0 + 1 / 60, 2000, "server", cause_share=0.7),
        given.failure("lamp", "10.3.0.0/16", 30.0, 1500, "operator"),
        given.failure("meter", "10.3.0.0/16", 40.0, 25, "no such cause"),
    ]
    assert said(churn, {"failures": failures}) == text.paragraphs("""
        Unusually many connections ended together 4 times, 7,625 in all.

        On 2026-11-03 06:00 UTC 6,000 connections of service meter in 2 networks ended together: the server
        closed them (90 %).

        On 2026-11-03 06:00 UTC 1,500 connections of service lamp in network 10.3.0.0/16, 40 % of those
        connected, ended together: an operator closed them (90 %).

        On 2026-11-02 05:00 UTC 100 connections of service meter in network 10.1.0.0/16, 40 % of those
        connected, ended together: their path did not answer (90 %).
    """)
    read = told(churn, {"failures": failures})
    assert read.names["svg"] == 1, "one failure of a service needs no plot"
    assert read.of("desc")[0] == "4 failures; the largest one is of 4,000 connections, on 2026-11-03 06:00."
    legend = [one for one in read.of("li") if one in [means for _, means in churn.LIKELY.values()]]
    assert legend == ["the server closed them", "their path did not answer"]


def test_silent_deaths_are_told_with_how_long_nobody_knew() -> None:
    rows = [
        given.deaths("meter", "10.1.0.0/16", 100, 300, 7200),
        given.deaths("meter", "10.2.0.0/16", 2000, 600, 7200),
        given.deaths(None, "10.9.0.0/16", 5, None, None),
    ]
    assert said(churn, {"silent_deaths": rows}) == text.paragraphs("""
        2,105 connections died silently, since the client no longer answered: 1,684 were found out by keep-alive
        probes, 421 since what was sent was not acknowledged. Nobody knew of half of them for up to 5 min in the
        best network and 10 min in the worst one and of 99 % of them for up to 2 h.

        Most of them: 2,000 in network 10.2.0.0/16 of service meter (2.0 % of all that ended there, half
        unnoticed for up to 10 min, 99 % for up to 2 h); 100 in network 10.1.0.0/16 of service meter (2.0 % of
        all that ended there, half unnoticed for up to 5 min, 99 % for up to 2 h); 5 in network 10.9.0.0/16 of
        services that are not known any more (2.0 % of all that ended there).
    """)


def test_those_that_flap_are_told_the_surest_first_with_their_likely_cause() -> None:
    clients = [
        given.flapping("meter", 9.0, "client-connect", address="10.1.0.1", times_usual=12.0),
        given.flapping("meter", 90.0, "client-close ECONNRESET", address="10.1.0.2"),
        given.flapping(None, 5.0, None, address="10.1.0.3", times_usual=None, most_per_hour=None),
        given.flapping("meter", 4.0, None, address="10.1.0.4"),
    ]
    tables = {"flapping_clients": clients, "flapping_networks": [], "failures": [], "silent_deaths": []}
    assert said(churn, tables) == text.paragraphs("""
        4 clients reconnect too often.

        client 10.1.0.2 of service meter: 40 times as often as usual, up to 120 new connections in an hour, most
        were closed by the client (ECONNRESET).

        client 10.1.0.1 of service meter: 12 times as often as usual, up to 120 new connections in an hour, most
        were replaced, since the client had come back by another one.

        client 10.1.0.3 of services that are not known any more: unusually often.

        At no time did unusually many connections end together.

        No connection died silently.

        No network reconnects unusually often.
    """)
    many = [given.flapping("s", 3.0, None, network=f"10.{number}.0.0/16") for number in range(churn.MOST)]
    assert said(churn, {"flapping_networks": many})[0] == "1,000 or more networks reconnect too often."
    assert len(told(churn, {"flapping_networks": many}).of("td")) == 40 * 10


# -- limits ------------------------------------------------------------------------------------------------------------


def test_limits_that_stop_those_that_flap_are_told_and_where_none_does() -> None:
    rows = [
        given.limit("meter", "address", "connections", 80, 0),
        given.limit("meter", "address", "connects", 10, 12_000),
        given.limit("meter", "network", "connections", 300, 0),
        given.limit("lamp", "address", "wakes", 4, 0),
        given.limit(None, "address", "births", 4, None),
        given.limit("tap", "address", "births", 4, 0, flapping=0),
    ]
    assert said(limits, {"limits": rows}) == text.paragraphs("""
        Of service meter a limit of 20 new connections in a second for each address would have refused 12,000 of 20,000
        that flapping ones asked for, and nothing of others.

        Of service lamp and services that are not known any more, those that flap used no more at a time than others do:
        no limit that all others bear would have refused them anything.

        The most that one address held at once were 80 connections, of service meter: 100.64.9.7/32.

        The most that one network held at once were 300 connections, of service meter: 100.64.9.7.0/24.
    """)


# -- attaches ----------------------------------------------------------------------------------------------------------


def test_attaches_are_told_with_refusals_with_clients_that_were_gone_and_with_how_long_it_took() -> None:
    tables = {
        "attaches": [
            given.served("meter", 8000, 0, 2, way="connect", found="IDLE"),
            given.served("meter", 1000, 0, 5, way="socks5", found="SLEEP"),
            given.served(None, 0, 1000, None, way="connect", found=None),
        ],
        "attaches_by_network": [given.served("meter", 6000, 0, network="10.1.0.0/16"),
                                given.served("meter", 3000, 0, network="10.2.0.0/16"),
                                given.served(None, 0, 1000, None, network=None)],
        "attach_refusals": [
            given.refusal(None, "connect", "ENOENT", 600), given.refusal("meter", "connect", "ETIMEDOUT", 300, "agent"),
            given.refusal(None, "socks5", "ENOENT", 50), given.refusal("meter", "connect", "EPIPE", 50),
        ],
    }  # fmt: skip
    assert said(attaches, tables) == text.paragraphs("""
        Of 10,000 servers that asked for a client, 9,000 (90 %) were linked, and 1,000 refused.

        Why 1,000 were refused: 65 %: there was no such client (ENOENT); 30 %: the client did not answer
        (ETIMEDOUT); 5.0 %: EPIPE.

        45 were told yes though the client was gone (0.5 % of those linked); most in network 10.1.0.0/16 of
        service meter: 30. The clients of 135 more said nothing, and are not known to have been gone.

        8,000 were linked by HTTP CONNECT to a client of service meter, in IDLE: the answer came within 2 ms
        (half) and 40 ms (99 %) and the client's first byte within 6 ms (half) and 120 ms (99 %).

        1,000 were linked by SOCKS5 to a client of service meter, in SLEEP: the answer came within 5 ms (half)
        and 100 ms (99 %) and the client's first byte within 15 ms (half) and 300 ms (99 %).
    """)
    assert "–" in told(attaches, tables).of("td")


def test_attaches_are_drawn_hour_by_hour_of_several_hours_the_slowest() -> None:
    hours = [
        given.served("meter", 100, 10, 700 if number == 300 else 0, hour=given.BEGIN + number * figure.HOUR)
        for number in range(24 * 40)
    ]
    nobody = [given.served(None, 0, 5, None, hour=given.BEGIN)]
    read = told(attaches, {"attaches_by_hour": hours + nobody})
    assert read.of("h4") == ["service meter", "no known service", "service meter"]
    captions = " ".join(read.of("figcaption"))
    assert (
        "How many an hour; times are UTC, and each service has a scale of its own. 6 hours are drawn as one."
        in captions
    )
    assert "6 hours are drawn as one: the highest of each." in captions
    assert read.of("desc")[0] == "Servers an hour: linked 100, at most 100; refused 10, at most 10."
    assert read.of("desc")[2] == "In the slowest hour, 99 % of those linked were answered within 14 s."
    assert {"1 ms", "10 s", "9 Nov"} <= set(read.of("text"))


# -- whatever stands in the tables -------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", MODULES)
def test_markup_in_any_text_stays_text(module: ModuleType) -> None:
    for tables in (
        {name: [row | {key: MARKUP} for row in rows] for name, rows in given.of_jobs(["s"], days=1).items()}
        for key in TEXTS
    ):
        tables = {name: [{key: row[key] for key in row if key in given.SCHEMAS[name].names} for row in tables[name]]
                  for name in module.TABLES}  # fmt: skip
        read = told(module, tables)
        assert not {"script", "b", "i"} & set(read.names)
        if any(MARKUP in row.values() for rows in tables.values() for row in rows):
            assert any(MARKUP in one for one in read.of("td", "li"))


@pytest.mark.parametrize(("module", "name"), NAMES)
def test_each_table_alone_with_many_rows_one_or_none_makes_a_page(module: ModuleType, name: str) -> None:
    rows = given.of_jobs(["meter", None], days=2)[name]
    assert rows
    for some in (rows, rows[:1], rows[-1:], []):
        read = told(module, {name: some})
        assert read.of("li"), "there is a finding"
        assert all(
            "None" not in one.removeprefix("None were") and "nan" not in one for one in read.of("li", "td", "desc")
        )


@pytest.mark.parametrize(("module", "name"), NAMES)
@pytest.mark.parametrize("nothing", [None, float("nan"), float("inf")])
def test_a_value_that_is_not_there_breaks_no_page(module: ModuleType, name: str, nothing: float | None) -> None:
    """Of each row another one is not there, and then none of all rows."""
    tables = given.of_jobs(["meter", "lamp"], days=1)
    numbers = [key for key in tables[name][0] if key not in TEXTS and key not in ("began", "hour", "persistent")]
    keys = list(tables[name][0]) if nothing is None else numbers
    rows = tables[name] * (len(keys) // len(tables[name]) + 1)
    gone = [row | {keys[at % len(keys)]: nothing} for at, row in enumerate(rows)]
    everything = [row | dict.fromkeys(keys, nothing) for row in rows]
    for tables_ in ({one: tables[one] for one in module.TABLES} | {name: gone}, {name: everything}):
        read = told(module, tables_)
        assert read.of("li")
        assert all("nan" not in one for one in read.of("li", "desc"))


def test_tables_without_a_row_are_told_in_a_sentence() -> None:
    assert said(quiet, {"quiet_costs": []}) == (
        "This report tells of no silence that could be judged: no interval is recommended.",
    )
    assert said(quiet, {"gap_distribution": given.ages("s", 60.0)}) == (
        "This report tells how long silences last, and not what intervals cost: no interval is recommended.",
    )
    assert said(churn, {name: [] for name in churn.TABLES}) == (
        "At no time did unusually many connections end together.", "No connection died silently.",
        "No client reconnects unusually often.", "No network reconnects unusually often.",
    )  # fmt: skip
    assert said(attaches, {"attaches": []}) == ("No server asked for a client.",)


def test_what_is_drawn_and_told_of_many_is_bounded_and_takes_seconds() -> None:
    tables = given.of_jobs([f"service {number}" for number in range(100)], days=7)
    begun = time.process_time()
    with patch.object(figure, "svg", wraps=figure.svg) as drawn:
        reads = [told(module, {name: tables[name] for name in module.TABLES}) for module in MODULES]
    assert time.process_time() - begun < 5
    assert [read.names["svg"] for read in reads] == [quiet.DRAWN, churn.DRAWN, 0, 2 * attaches.DRAWN]
    assert drawn.call_count == sum(read.names["svg"] for read in reads), "none is drawn in vain"
    assert all(len(read.of("li")) < 30 for read in reads)
    assert all(read.names["tr"] <= 41 * read.names["table"] for read in reads)


# -- beside the jobs ---------------------------------------------------------------------------------------------------


def test_tables_of_the_jobs_have_the_columns_that_are_shown() -> None:
    for module in MODULES:
        assert module in SECTIONS
        assert set(module.TABLES) <= set(given.SCHEMAS)
        for name, (_, columns) in module._TABLES.items():
            made = {"memory_now", "memory_optimum", *(f"share_{which}" for which in given.HELD_OUT)}
            assert {column.key for column in columns} - made <= set(given.SCHEMAS[name].names)


def test_numbers_of_the_method_are_those_of_the_jobs() -> None:
    def constants(module: str) -> dict[str, str]:
        source = (ROOT / "spark" / f"{module}.py").read_text()
        return {
            name: value.replace("_", "") for name, value in re.findall(r"^(\w+): Final = ([\d_.e]+)$", source, re.M)
        }

    def method(module: Any) -> str:
        return " ".join(module.METHOD)

    job = constants("jobs/quiet") | constants("intervals")
    assert f"first {1 - float(job['HELD_OUT']):.0%}".replace("%", " %") in method(quiet)
    assert f"{job['LEAST_GAPS']} silences" in method(quiet)
    assert f"falls by {float(job['LEAST_GAIN']):.0%}".replace("%", " %") in method(quiet)
    assert f"{12 * 2**30 / 1e6:,.0f} bytes" in method(quiet)
    job = constants("jobs/churn")
    assert int(job["TOP"]) == churn.MOST
    assert f"fails with {job['LEAST_ENDS']} ends" in method(churn)
    assert (job["TIMES_ENDS"], job["TIMES_USUAL"], job["LEAST"]) == ("2", "3", "6"), (
        "twice, three times, six reconnects"
    )
    assert job["ALARMS"] == "0.01"
    assert method(churn).count(job["ALARMS"]) == 2
    assert f"more than {int(constants('jobs/attaches')['GONE_MS']) // 1000:,} s" in method(attaches)
