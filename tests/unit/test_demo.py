# SPDX-License-Identifier: Apache-2.0
"""The demo's arithmetic: what a kernel socket costs, what a sleeping client costs, when the demo has failed."""

from __future__ import annotations

import json
import os
import socket

import pytest

from control.dev.demo import story
from control.dev.demo.outcome import Check, Memory, Outcome, Reached, Step, percentile
from control.dev.demo.slab import bytes_each, objects

SLABINFO = """slabinfo - version: 2.1
# name            <active_objs> <num_objs> <objsize> <objperslab> <pagesperslab> : tunables
TCP                  100    143   2368   13    8 : tunables    0    0    0 : slabdata     11     11      0
dentry             65569  67746    192   21    1 : tunables    0    0    0 : slabdata   3226   3226      0
"""


def test_slabinfo_is_read_as_objects_in_use_and_their_size() -> None:
    assert objects(SLABINFO) == {"TCP": (100, 2368), "dentry": (65569, 192)}


def test_a_socket_costs_one_object_of_each_cache_that_grew_with_it_and_nothing_of_the_others() -> None:
    before = {"TCP": (100, 2368), "dentry": (5000, 192), "inode": (10, 832), "other": (7, 4096)}
    after = {"TCP": (1100, 2368), "dentry": (5980, 192), "inode": (1030, 832), "other": (90, 4096), "new": (2000, 64)}
    assert bytes_each(before, after, 1000) == 2368 + 192 + 832 + 2 * 64


@pytest.mark.parametrize(("percent", "value"), [(50, 50), (90, 90), (99, 99), (100, 100), (1, 1)])
def test_percentiles_are_the_nearest_rank(percent: int, value: int) -> None:
    assert percentile(list(range(100, 0, -1)), percent) == value


def test_there_is_no_percentile_of_nothing() -> None:
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)
    assert "p50_us" not in Reached(asked=3, answered=0).as_dict()


def test_a_sleeping_client_is_charged_with_the_tables_and_the_daemons_growth() -> None:
    memory = Memory(connections=100, kernel_socket=3600.0, tables=10_000, daemon_rss=70_000_000, daemon_growth=5000,
                    daemon_descriptors=46)  # fmt: skip
    assert (memory.tables_each, memory.all_each) == (100.0, 150.0)
    assert memory.as_dict()["kernel_sockets_bytes"] == 360_000


@pytest.mark.parametrize(("finished", "held", "ok"), [(True, True, True), (True, False, False), (False, True, False)])
def test_a_demo_is_good_only_if_it_came_to_its_end_and_every_check_held(finished: bool, held: bool, ok: bool) -> None:
    outcome = Outcome(clients=10, finished=finished)
    outcome.checks = [Check("a", "1", "1", True), Check("b", "2", "2" if held else "3", held)]
    outcome.steps = [Step("x", 1.25), Step("y", 0.5)]
    told = json.loads(json.dumps(outcome.as_dict()))
    assert (told["ok"], told["seconds"]) == (ok, 1.75)
    assert told["memory"] is told["absence"] is told["reached_asleep"] is None


def test_a_client_that_is_connected_is_counted_as_a_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
        monkeypatch.setattr(story, "PORT", address[1])
        assert story._clients_sockets(os.getpid()) == 0, "a listener is none"
        with socket.create_connection(address), listener.accept()[0]:
            assert story._clients_sockets(os.getpid()) == 1
