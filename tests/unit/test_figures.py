# SPDX-License-Identifier: Apache-2.0
"""The figures of the benches: what they say, and when a bench has failed."""

from __future__ import annotations

import io
import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from appliance.engine import EngineError
from tests.bench import chaos, direct, memory
from tests.bench.figures import Figure, Report, Stolen, Target, machine, percentile


def shown(report: Report) -> str:
    out = io.StringIO()
    report.show(Console(file=out, width=200, color_system=None))
    return out.getvalue()


def test_a_figure_has_the_median_and_the_spread_of_its_runs() -> None:
    assert Figure.of([3.0, 1.0, 10.5], "µs") == Figure(3.0, 1.0, 10.5, 3, "µs")


def test_a_figure_keeps_three_digits_after_the_point_and_whole_numbers_whole() -> None:
    assert Figure.of([0.12345], "µs").median == 0.123
    assert Figure.of([123_456_789_012], "bytes").max == 123_456_789_012


def test_a_figure_without_runs_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one run"):
        Figure.of([], "µs")


def test_the_line_for_programs_is_the_contract() -> None:
    report = Report("churn")
    report.add("freeze_us", [20.0, 22.0, 30.0], "µs", Target(at_most=25))
    data = json.loads(report.as_json())
    assert "\n" not in report.as_json()
    assert set(data) == {"bench", "machine", "figures"}
    assert data["bench"] == "churn"
    assert data["figures"] == {"freeze_us": {"median": 22.0, "min": 20.0, "max": 30.0, "runs": 3, "unit": "µs"}}
    assert set(data["machine"]) == {"kernel", "cpu", "cores", "memory_mb", "python"}


def test_a_target_is_held_against_the_median() -> None:
    report = Report("churn")
    report.add("freeze_us", [20.0, 25.0, 90.0], "µs", Target(at_most=25))
    assert report.passed
    report.add("thaw_us", [20.0, 25.1, 26.0], "µs", Target(at_most=25))
    assert report.missed() == ["thaw_us"]
    assert not report.passed


def test_a_target_from_below_is_missed_by_less() -> None:
    report = Report("chaos")
    report.add("pairs", 99_999, "pairs", Target(at_least=100_000))
    assert report.missed() == ["pairs"]


def test_a_target_has_one_side() -> None:
    with pytest.raises(ValueError, match="either"):
        Target()
    with pytest.raises(ValueError, match="either"):
        Target(at_most=1, at_least=1)


def test_one_lost_byte_in_one_of_many_runs_fails_the_bench() -> None:
    report = Report("chaos")
    report.add_zero("lost_bytes", [0] * 99 + [1], "bytes")
    assert report.figures["lost_bytes"].median == 0
    assert report.broken() == ["lost_bytes"]
    assert not report.passed


def test_a_zero_that_holds_has_equal_min_and_max() -> None:
    report = Report("chaos")
    report.add_zero("lost_bytes", [0, 0], "bytes")
    assert (report.figures["lost_bytes"].min, report.figures["lost_bytes"].max) == (0, 0)
    assert report.passed


def test_a_problem_fails_a_bench_whose_figures_are_good() -> None:
    report = Report("chaos")
    report.add_zero("lost_bytes", 0, "bytes")
    report.problems.append("the engine counted 3 events_lost")
    assert not report.passed
    assert "3 events_lost" in shown(report)


def test_a_figure_is_not_overwritten() -> None:
    report = Report("chaos")
    report.add("pairs", 1, "pairs")
    with pytest.raises(ValueError, match="there already"):
        report.add("pairs", 2, "pairs")


def test_people_see_each_figure_beside_its_target() -> None:
    report = Report("hold", did="100,000 clients [really]")
    report.add("bytes_per_connection", 143.217, "bytes", Target(at_most=160))
    report.add("daemon_rss_mb", [80.0, 84.0, 82.0], "MB", Target(at_most=120))
    report.add_zero("lost", 0, "clients")
    text = shown(report)
    assert "100,000 clients [really]" in text
    rows = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line}
    assert rows["bytes_per_connection"] == ["143.22", "<=", "160", "bytes"], "one run has no spread"
    assert rows["daemon_rss_mb"] == ["82", "80", "84", "3", "<=", "120", "MB"]
    assert rows["lost"] == ["0", "0", "clients"]


@given(st.lists(st.integers(), min_size=1), st.floats(min_value=0.001, max_value=100))
def test_a_percentile_is_a_value_that_its_share_of_all_values_do_not_pass(values: list[int], percent: float) -> None:
    found = percentile(values, percent)
    assert found in values
    assert sum(value <= found for value in values) >= len(values) * percent / 100 - 1e-6
    below = [value for value in values if value < found]
    assert len(below) < len(values) * percent / 100 + 1e-6


def test_p99_of_a_hundred_is_the_second_largest() -> None:
    assert percentile(range(1, 101), 99) == 99
    assert percentile(range(1, 101), 50) == 50
    assert percentile([7], 99) == 7


@pytest.mark.parametrize("percent", [0, -1, 101])
def test_no_percentile_lies_outside_of_the_values(percent: float) -> None:
    with pytest.raises(ValueError, match="percentage"):
        percentile([1], percent)


def test_a_machine_whose_kernel_tells_no_model_is_named_by_its_architecture(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nBogoMIPS\t: 50.00\n")
    assert machine(cpuinfo)["cpu"]
    cpuinfo.write_text("processor\t: 0\nmodel name\t: A Model: 9000\n")
    assert machine(cpuinfo)["cpu"] == "A Model: 9000"


def test_chaos_has_all_sixteen_kinds_in_equal_shares_with_every_mss() -> None:
    shares = chaos.shares(320)
    by_kind = Counter[tuple[int, bool, bool, bool]]()
    for count, kind, *_ in shares:
        by_kind[kind] += count
    assert len(by_kind) == 16
    assert set(by_kind.values()) == {20}
    assert {mss for _, _, mss, *_ in shares} == set(chaos.MSS)
    for special in ([one for one in shares if one[3]], [one for one in shares if one[4]]):
        assert sum(count for count, *_ in special) == 320 // 5
        assert {kind for _, kind, *_ in special} == set(chaos.KINDS)
        assert {mss for _, _, mss, *_ in special} == set(chaos.MSS)


@given(st.integers(16, 8000))
def test_chaos_loses_no_client_in_sharing_and_leaves_no_kind_out(clients: int) -> None:
    shares = chaos.shares(clients)
    assert sum(count for count, *_ in shares) == clients
    assert all(count > 0 for count, *_ in shares)
    assert {kind for _, kind, *_ in shares} == set(chaos.KINDS)


SMAPS = """\
7f0000000000-7f0000100000 rw-s 00000000 00:0e 1234                       anon_inode:bpf-map
Size:               1024 kB
Rss:                 800 kB
VmFlags: rd wr sh mr mw me ms
7f0000200000-7f0000300000 rw-p 00000000 00:00 0
Rss:                 500 kB
7f0000400000-7f0000500000 rw-s 00000000 00:0e 1235                       anon_inode:bpf-map
Rss:                   4 kB
7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0                          [stack]
Rss:                  20 kB
"""


def test_pages_of_mapped_tables_are_told_from_the_daemons_own() -> None:
    assert memory.mapped_map_bytes(SMAPS) == 804 * 1024


def test_slab_sizes_and_socket_counts_are_read_as_the_kernel_writes_them() -> None:
    slabinfo = (
        "slabinfo - version: 2.1\n"
        "# name            <active_objs> <num_objs> <objsize> <objperslab> <pagesperslab>\n"
        "TCP                25218  40339   2368   13    8 : tunables    0    0    0 : slabdata   3103   3103      0\n"
        "sock_inode_cache     358    513    832   19    4 : tunables    0    0    0 : slabdata     27     27      0\n"
        "filp                 799    924    192   21    1 : tunables    0    0    0 : slabdata     44     44      0\n"
        "dentry             65573  67788    192   21    1 : tunables    0    0    0 : slabdata   3228   3228      0\n"
    )
    assert memory.socket_bytes(memory.object_sizes(slabinfo)) == 3584
    sockstat = "sockets: used 120\nTCP: inuse 7 orphan 0 tw 41 alloc 900 mem 10\nUDP: inuse 0 mem 0\n"
    assert memory.tcp_counts(sockstat) == (7, 41)
    with pytest.raises(ValueError, match="TCP"):
        memory.tcp_counts("sockets: used 120\n")


def test_more_connections_than_descriptors_are_refused_before_anything_is_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(direct, "descriptor_limit", lambda: 20_000)
    direct.need_room(17_500, others=2000)
    with pytest.raises(EngineError, match="at most 17,500"):
        direct.need_room(17_501, others=2000)
    with pytest.raises(EngineError, match="at most 9,750"):
        direct.need_room(9_751, descriptors_each=2)


def test_a_counter_that_should_stand_still_and_moved_is_told() -> None:
    before = dict.fromkeys(direct.ALARMS, 5)
    assert direct.alarms(before, dict(before)) == []
    assert direct.alarms(before, {**before, "ring_full": 8}) == ["the engine counted 3 ring_full"]


def test_the_alarms_are_counters_that_the_engine_has() -> None:
    from appliance.engine import ffi, lib

    known: set[str] = set()
    while name := lib.roost_stat_name(len(known)):
        known.add(ffi.string(name).decode())
    assert set(direct.ALARMS) <= known


def test_stolen_time_is_what_the_host_took_since_it_was_begun(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    stat.write_text("cpu  100 0 100 700 0 0 0 100 0 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n")
    stolen = Stolen(stat)
    assert stolen.percent() == 0
    stat.write_text("cpu  110 0 110 760 0 0 0 120 7 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n")
    assert stolen.percent() == pytest.approx(20)
