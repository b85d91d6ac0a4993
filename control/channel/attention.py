# SPDX-License-Identifier: Apache-2.0
"""What an operator should look at: what happened, to which object, what to do. One table, WATCHED.

A pure function of the status and of what its counters were a while ago.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from control.policy.decisions import under_pressure

WINDOW_S: Final = 300.0
"""How far back a counter's increase is looked for."""

FULL: Final = 0.93
"""A table that may grow does so at 92 %."""

NO_SLEEP: Final = "nothing goes to SLEEP, and what sleeps wakes only where its row can be read"

Counts = Mapping[str, int]
Found = Iterator[tuple[str, str]]
"""(object, what happened to it)."""


@dataclass(frozen=True, slots=True)
class Watch:
    """find: of the status and the increase of its counters, what is to be told, nothing when all is well. about: what
    it means, of whichever object."""

    name: str
    about: str
    find: Callable[[Mapping[str, Any], Counts], Found]
    do: str


def _rising(counter: str, thing: str, what: str) -> Callable[[Mapping[str, Any], Counts], Found]:
    def find(status: Mapping[str, Any], grown: Counts) -> Found:
        if (count := grown.get(counter, 0)) > 0:
            interfaces = ", ".join(status["interfaces"]) or "no interface"
            yield thing.format(interfaces=interfaces, database=status["database"]), what.format(count=count)

    return find


def _waiting(status: Mapping[str, Any], _grown: Counts) -> Found:
    for told in status["waiting"]:
        what, _, reason = told.partition(": ")
        yield what, f"not yet: {reason}"


def _store(status: Mapping[str, Any], _grown: Counts) -> Found:
    if status["store"]["state"] != "ok":
        yield status["database"], f"{status['store']['state']}; {NO_SLEEP}"


def _unheard(status: Mapping[str, Any], _grown: Counts) -> Found:
    if not status["interfaces"]:
        yield "[network] interfaces", "none is heard, so that no connection can be kept asleep"


def _servers(status: Mapping[str, Any], _grown: Counts) -> Found:
    for service in status["services"]:
        rows = service["servers"]
        down = [f"{row['server']}: {row['reason'] or row['state']}" for row in rows if row["state"] == "down"]
        if down:
            none = "; none is up" if len(down) == len(rows) else ""
            yield f'service "{service["name"]}"', f"{len(down)} of {len(rows)} servers down ({', '.join(down)}){none}"


def _rules(status: Mapping[str, Any], _grown: Counts) -> Found:
    policy = status["policy"]
    if policy["error"]:
        yield "the rules of the policy", policy["error"]
    elif count := policy["problems"]:
        more = f" (and {count - 1:,} more)" if count > 1 else ""
        yield "the rules of the policy", f"{policy['problem']}{more}"


def _full(status: Mapping[str, Any], _grown: Counts) -> Found:
    counts = status["counters"]
    for used, table in (("table_ipv4", "ipv4"), ("table_ipv6", "ipv6"), ("idle_records", "idle"),
                        ("filter_members", "filter")):  # fmt: skip
        if counts.get(used, 0) > FULL * counts.get(f"{table}_slots", 0):
            yield f"[table] {table}", f"{counts[used]:,} of {counts[f'{table}_slots']:,} are taken"


def _pressure(status: Mapping[str, Any], _grown: Counts) -> Found:
    for key, percent in status["pressure"]["reached"].items():
        yield f"[pressure] {key}", f"{percent:.0f} %: quiet connections go down a step, until it is over"


def _export(status: Mapping[str, Any], _grown: Counts) -> Found:
    if error := status["export"]["error"]:
        yield f"the export to {status['export']['directory']}", error


def _api(status: Mapping[str, Any], _grown: Counts) -> Found:
    api = status["api"]
    if api["listen"] and api["ended"] and api["pid"] is None:
        yield "the API's process", f"it does not run, and has ended {api['ended']} times"


def _awake(status: Mapping[str, Any], _grown: Counts) -> Found:
    awake, most = status["awake"], status["max_awake"]
    if under_pressure(awake, most):
        yield "[table] max_awake", f"{awake:,} connections are awake of the {most:,} that may be"


SEE_LOG: Final = "the log says more (`journalctl -u roost`, or where its standard error goes)"
BIGGER: Final = "give more room in [table] and restart, or let it grow ([table] grow) and add memory"
DESCRIPTORS: Final = "raise the limit of descriptors (LimitNOFILE=) and [table] max_awake, or shorten active_quiet"
WRONG_SUM: Final = "{count:,} frames had a wrong checksum and were dropped: they wake no client"
LOOK_AT_OFFLOADS: Final = (
    "they are damaged on the way, or forged: look at cables, drivers and offloads (`ethtool -S`, `ethtool -k`); of a "
    "container or virtual machine, `ethtool -K INTERFACE tx off` in there"
)

LEVELS: Final = (
    Watch("unheard", "no interface of clients is heard", _unheard,
          "name the interfaces that clients' packets arrive on"),
    Watch("waiting", "something that the configuration names is not there yet", _waiting,
          "bring it about, or change the configuration; all else goes on"),
    Watch("store", f"the database cannot be used; {NO_SLEEP}", _store,
          "mend the database; until then everything else goes on"),
    Watch("export", "the history could not be exported", _export,
          "mend it; the next one goes on where the last one stopped"),
    Watch("api", "the API's process has ended and does not run", _api, f"it is begun again and again; {SEE_LOG}"),
    Watch("servers", "servers of a service are down", _servers,
          "see that they run and are reached from here: `roost doctor -c FILE`"),
    Watch("rules", "a rule of the policy has no effect, or the rules cannot be read", _rules,
          "look at `roost policy list`, and mend the rule or the configuration"),
    Watch("full", "a table is nearly full", _full, BIGGER),
    Watch("awake", "nearly as many connections are awake as may be", _awake, DESCRIPTORS),
    Watch("pressure", "something runs short: quiet connections go down a step, until it is over", _pressure,
          "give the daemon more of it, or shorten active_quiet, standby_quiet and idle_quiet"),
)  # fmt: skip

RISING: Final = (
    # counter, object, what happened, what to do
    ("bad_checksum", "{interfaces}", WRONG_SUM, LOOK_AT_OFFLOADS),
    ("frames_bad", "{interfaces}", WRONG_SUM, LOOK_AT_OFFLOADS),
    ("wakes_refused", "[table] max_awake", "{count:,} times a client could not wake: as many as may be were awake",
     DESCRIPTORS),
    ("stuck_reset", "[table] max_awake", "{count:,} connections that took nothing were reset to let others wake",
     "do their clients hang, or mean harm? The history has them, with the cause pressure"),
    ("thaw_failed", "the kernel", "{count:,} connections could not be put back into it",
     f"look for a lack of descriptors, memory or ports; {SEE_LOG}"),
    ("table_full", "[table]", "{count:,} connections could not fall asleep for want of room", BIGGER),
    ("tables_not_grown", "[table]", "{count:,} times a table that is nearly full could not grow",
     f"add memory; {SEE_LOG}"),
    ("filter_full", "[table] filter", "{count:,} connections kept a slot for want of room",
     "make it larger; it takes the new size when it is empty"),
    ("classes_full", "policy classes", "{count:,} sets of values (in band, by command, of rules by name) had no room",
     "let fewer different intervals be asked for ([service.in_band]), and rules share theirs"),
    ("ring_full", "[table] ring_kb", "{count:,} frames that wake were lost, and must come again",
     "make the ring larger; does the daemon get its processor?"),
    ("frames_held_dropped", "connections that were being moved", "{count:,} frames were lost, and must come again",
     "see thaw_failed and the load of this machine"),
    ("replay_failed", "{interfaces}", "{count:,} held frames could not be given to the stack",
     f"their senders repeat them; {SEE_LOG}"),
    ("probes_unsent", "{interfaces}", "{count:,} keep-alive probes, or answers to clients', could not be sent",
     "is there a route to the clients? `roost doctor -c FILE`"),
    ("perhaps_dropped", "[table] filter", "{count:,} packets were dropped for want of an answer from the database",
     "see that the database answers quickly; a flood does the same"),
    ("unanswered", "{database}", "{count:,} times a client that spoke in SLEEP, or may have, was not found in time",
     f"it sleeps on, and is looked for when it speaks again: does the database answer? {SEE_LOG}"),
    ("accept_paused", "descriptors", "{count:,} times no new client was taken for want of them", DESCRIPTORS),
    ("events_lost", "history", "{count:,} events of the engine found no memory", "add memory"),
    ("dropped_history", "history", "{count:,} transitions were not written", "see that the database keeps up"),
    ("dropped_attaches", "the record of attaches", "{count:,} rows were not written",
     "see that the database keeps up"),
    ("dropped_snapshots", "snapshots", "{count:,} rows were not written", "see that the database keeps up"),
    ("dropped_audit", "the record of changes", "{count:,} rows were not written", "see that the database keeps up"),
    ("lost_records", "{database}", "{count:,} connections were closed when they were to wake: it had no row of them",
     "was it replaced, or is another daemon writing it?"),
    ("rescued", "{database}", "{count:,} times its file was gone under the daemon; all of it is in a new one",
     f"leave it alone while the daemon runs; {SEE_LOG}"),
    ("illegal", "the engine", "{count:,} connections were ended by a fault of Roost's",
     f"please report it; {SEE_LOG}"),
)  # fmt: skip

OBJECTS: Final = {"interfaces": "an interface", "database": "the database"}

WATCHED: Final = (
    *LEVELS,
    *(
        Watch(counter, f"{thing.format(**OBJECTS)}: {what.replace('{count:,}', 'some')}",
              _rising(counter, thing, what), do)
        for counter, thing, what, do in RISING
    ),
)  # fmt: skip
"""In the order in which one would mend them."""


def attention(status: Mapping[str, Any], before: Counts) -> list[dict[str, str]]:
    """`name`, `object`, `what` and `do` of each thing to look at. status: as Status.read has it; before: its counters()
    WINDOW_S ago, or when the daemon began."""
    grown = {name: count - before.get(name, 0) for name, count in counters(status).items()}
    return [
        {"name": watch.name, "object": thing, "what": what, "do": watch.do}
        for watch in WATCHED
        for thing, what in watch.find(status, grown)
    ]


OF_STORE: Final = ("dropped_history", "dropped_attaches", "dropped_snapshots", "dropped_audit", "rescued")


def counters(status: Mapping[str, Any]) -> dict[str, int]:
    """All that counts up in a status."""
    of_store = {name: status["store"][name] for name in OF_STORE}
    return {**status["counters"], **status["control"], **of_store}
