# SPDX-License-Identifier: Apache-2.0
"""The console with 1,000,000 connections behind it: every page is there at once, and none of them makes it stutter."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from tests.bench.control import API_HOST, API_PORT, SPOKEN, asked_of, begin_load, held, load_of
from tests.lab.browser import Browser, browser

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(600),
    pytest.mark.alone("says how long pages take, which other work makes longer"),
]

CONNECTIONS: Final = 1_000_000
ADDRESSES: Final = 64
PAGE_S: Final = 1.0
"""From the click to the last text, as the test's driver sees it, which looks each 20 ms."""
FRAME_MS: Final = 100.0
"""Between two frames: what is longer is seen as a stutter (RAIL's bound for an answer to what a user does)."""
LOOK_S: Final = 11.0
"""Two times what the overview asks in."""
EVENTS_PER_S: Final = 20_000
WATCH: Final = """
const seen = window.seen = { worst: 0, frames: 0, last: performance.now() };
requestAnimationFrame(function frame(now) {
  if (window.seen !== seen) return;
  seen.frames += 1;
  seen.worst = Math.max(seen.worst, now - seen.last);
  seen.last = now;
  requestAnimationFrame(frame);
});
"""
WATCHED: Final = """
const { seen } = window;
window.seen = null;
return [seen.frames, Math.max(seen.worst, performance.now() - seen.last)];
"""
BUSY: Final = "for (const began = performance.now(); performance.now() < began + arguments[0];);"


@contextmanager
def smooth(page: Browser, what: str) -> Iterator[None]:
    page.run(WATCH)
    page.wait(lambda: page.run("return window.seen.frames"), "the first frame")
    yield
    frames, worst_ms = page.run(WATCHED)
    print(f"{what}: {frames} frames, at most {worst_ms:.0f} ms between two")
    assert worst_ms <= FRAME_MS, what


def at_once(page: Browser, where: str, *texts: str) -> None:
    """The page of this hash has these texts in PAGE_S, without a stutter."""
    with smooth(page, where):
        began = time.monotonic()
        page.go(where)
        page.reads(*texts)
        took = time.monotonic() - began
    print(f"{where}: {took:.2f} s")
    assert took <= PAGE_S, where


def another_row(page: Browser, row: str) -> bool:
    """Is first on the page."""
    return page.text("tbody tr:first-child") not in ("", row)


def test_a_million_connections_are_looked_at_without_a_stutter(tmp_path: Path) -> None:
    with held(CONNECTIONS, ADDRESSES) as born:
        born.connect(range(CONNECTIONS))
        born.speak(range(SPOKEN), 100)
        born.none_awake()
        asked_of(born)  # the API listens
        made = born.daemon.http("POST", "/v1/tokens", json={"name": "look", "role": "operator", "expires_s": 3600})
        client = f"{born.simulator.address_of(0)}:{born.simulator.port_of(0)}"
        network = f"{client.rsplit('.', 1)[0]}."
        whole = f"{CONNECTIONS:,}"
        with (
            browser(born.lab, "box", f"http://{API_HOST}:{API_PORT}", {API_HOST: API_HOST}, tmp_path) as page,
            born.lab.enter("box"),
        ):
            page.log_in(made.json()["token"])
            with pytest.raises(AssertionError), smooth(page, "a script that keeps frames from being drawn"):
                page.run(BUSY, 3 * FRAME_MS)
            at_once(page, "#/", whole)
            with smooth(page, "the overview, for a while"):
                time.sleep(LOOK_S)
            at_once(page, "#/connections", "connections on this page")
            for _ in range(10):
                first = page.text("tbody tr:first-child")
                with smooth(page, "the next page"):
                    began = time.monotonic()
                    page.press("Next page")
                    page.wait(partial(another_row, page, first), "another page")
                assert time.monotonic() - began <= PAGE_S
            at_once(page, f"#/connections?find={network}", "connections on this page", f"addresses in {network}0/24")
            at_once(page, f"#/connections?find={client}", client, "Timeline")
            at_once(page, "#/connections?find=nobody", "There is none")
            at_once(page, "#/connections?state=STANDBY", "There is none")
            at_once(page, f"#/connections/{client}", "Timeline", "client-connect", "quiet for")
            at_once(page, "#/policy", "Rules in force")
            page.write("Rules", f'[[rule]]\nname = "all"\nnetwork = "{network}0/24"\nidle_quiet = "10m"\n')
            with smooth(page, "a rule is tried for all"):
                page.press("Try")
                page.reads("What it would change")
            at_once(page, "#/attaches", "Requests")
            load = load_of(born)
            begin_load(load, f"{EVENTS_PER_S} {SPOKEN}")
            at_once(page, "#/events", "live")
            with smooth(page, f"{EVENTS_PER_S:,} events a second"):
                time.sleep(LOOK_S)
            load.unlink()
            assert page.complaints() == []
        assert born.gone(range(CONNECTIONS)) == 0
        born.daemon.terminate()
