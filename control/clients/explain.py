# SPDX-License-Identifier: Apache-2.0
"""Why a connection is not asleep, or does not wake, in sentences.

What the appliance knows of the connection is gathered as plain facts; SENTENCES, a table, turns facts into sentences.
A row without a value it names does not apply.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from errno import EAGAIN, EALREADY, EBUSY, ENOSPC, EOPNOTSUPP
from string import Formatter
from typing import Any, Final

from appliance.wire import Obstacle
from control.clients.locate import Located, Locator
from control.clients.scope import SCOPE
from control.config import Service
from control.core.ports import EnginePort
from control.core.states import AWAKE, State
from control.core.text import span
from control.policy.decisions import under_pressure
from control.store.store import Store

Facts = Mapping[str, Any]

REFUSALS: Final = {
    EAGAIN: "a packet came just then, or the kernel still had something to send, to acknowledge or to be acknowledged",
    EALREADY: "it was on its way already",
    EBUSY: "bytes were waiting, or its link was being made or ended",
    ENOSPC: "the table of inactive connections is full, or the one of IDLE records ([table] ipv4, ipv6, idle)",
    EOPNOTSUPP: "its addresses are link-local, its server is heard on no interface ([network] server_interfaces), or "
    "its timestamps count microseconds",
}
"""What an errno means where a freeze was refused with it."""


def _text(template: str, *names: str) -> Callable[[Facts], str]:
    """The template filled in, or "" when one of the facts that it names, or of `names`, is missing, zero or empty."""
    wanted = {*names, *(name for _, name, _, _ in Formatter().parse(template) if name)}
    return lambda facts: template.format(**facts) if all(facts.get(name) for name in wanted) else ""


_OF_ALL: Final = frozenset({"attention", "awake_now", "max_awake", "pressure", "store_error"})
"""Facts of the whole appliance, which are not for whoever may see some services alone."""

SENTENCES: Final[Sequence[Callable[[Facts], str]]] = (
    # Not asleep: its policy.
    _text("It asked in band to stay awake (always-active).", "awake", "always_active"),
    _text("Its policy lets it stay {state} for ever: {key} is 0.", "never"),
    _text("Its last payload byte was {quiet} ago; {due} after it, in {left}, it goes to {next}: {key}. Keep-alives are "
          "not payload."),
    _text("It has been quiet for {quiet}, longer than the {overdue} after which it goes to {next} ({key}).", "overdue"),
    # Not asleep: what is in the way.
    _text("It is being frozen or thawed just now.", "moving"),
    _text("A freeze of it was cancelled a moment ago; it is tried again.", "grace"),
    _text("Its link to the server is being made; it can sleep once the server has accepted.", "connecting"),
    _text("Its server has just spoken or ended its connection; that has to be passed on first.", "server_speaks"),
    _text("One end has ended its side of the connection, and the other has not; half of a connection is never frozen.",
          "ended"),
    _text("Bytes wait in the appliance because the client does not read; the connection is reset when none of them is "
          "taken for as long as write_timeout says.", "client_blocked"),
    _text("Bytes wait in the appliance because the server does not read; the connection is reset when none of them is "
          "taken for as long as write_timeout says.", "server_blocked"),
    _text("A server waits for it.", "server_waits"),
    _text("A request inside the payload is not finished.", "in_band"),
    _text("Its addresses are link-local: it is never frozen, since they mean something on one link alone.",
          "link_local"),
    _text("{client_unacknowledged:,} bytes to the client are not sent or not acknowledged: bytes in flight are never "
          "frozen. Does the client read, and is it still there?"),
    _text("{server_unacknowledged:,} bytes to the server are not sent or not acknowledged: bytes in flight are never "
          "frozen."),
    _text("{client_unread:,} bytes of the client wait to be read: the server does not take them, or there is none."),
    _text("{server_unread:,} bytes of the server wait to be read: the client does not take them."),
    _text("The last attempt to freeze it was refused ({refused}): {refusal}."),
    _text("No interface is heard: nothing can be kept asleep ([network] interfaces).", "unheard"),
    _text("It cannot go to SLEEP: the store says {store_error}. IDLE it stays, which needs no socket either.", "idle",
          "store_error"),
    _text("It is IDLE: no socket and no descriptor, its whole record is in memory.", "idle"),
    # Not waking.
    _text("It is in SLEEP: its record is a row of the database, and in memory is what keep-alives are answered from.",
          "asleep", "slot"),
    _text("It is in SLEEP without a slot: a fingerprint in memory, all else in the database; every packet of it costs "
          "a look there.", "asleep", "without_slot"),
    _text("It cannot wake now: its record is in the database, and the store says {store_error}. What comes for it "
          "waits 5 s and is then dropped or refused (503).", "asleep", "store_error"),
    _text("The client was heard {heard} ago, keep-alives included. If it has sent anything since, that did not come "
          "here: is it routed to an interface of [network] interfaces?"),
    _text("{probes} of {probe_count} probes in a row had no answer; after the last it counts as dead."),
    _text("It sleeps together with its connection to {server}: what either says wakes both.", "paired"),
    _text("The service that it came in by ({service}) is not configured any more: it can be woken, and no server be "
          "linked to it.", "unconfigured"),
    _text("No server of service {service} is up ({down}): it wakes, and what it says waits."),
    _text("{awake_now:,} of the {max_awake:,} connections that may be awake are: clients that wake go down early, and "
          "new ones may wait ([table] max_awake, and the limit of descriptors).", "pressure"),
    _text("Of the whole appliance: {attention}", "attention"),
)  # fmt: skip
"""In this order; what is "" is left out."""


class Explainer:
    """services: by number. server_rows: the servers of a service, by its number. attention: what an operator should
    look at, a sentence each. facts: `max_awake` and `interfaces` of the status. Everything may block for as long as
    engine and database take."""

    def __init__(self, engine: EnginePort, store: Store, services: Mapping[int, Service], locator: Locator,
                 server_rows: Callable[[int], list[dict[str, Any]]], attention: Callable[[], Sequence[str]],
                 facts: Facts) -> None:  # fmt: skip
        self._engine = engine
        self._store = store
        self._services = services
        self._locator = locator
        self._server_rows = server_rows
        self._attention = attention
        self._facts = facts

    def explain(self, name: str) -> dict[str, Any]:
        """Of one connection: its number, client, service and state, `sentences`, and `facts` that they are made of."""
        located = self._locator.locate(name)
        facts = self.facts(located)
        return {
            "id": located.id,
            "client": located.key.client_text,
            "service": facts["service"],
            "state": located.state.label,
            "sentences": sentences(facts),
            "facts": facts,
        }

    def facts(self, located: Located) -> dict[str, Any]:
        """What is known; what is not the case is left out."""
        record = located.event.record
        service = self._services.get(record.service)
        facts: dict[str, Any] = {
            "state": located.state.label,
            "awake": located.state in AWAKE,
            "idle": located.state is State.IDLE,
            "asleep": located.state is State.SLEEP,
            "service": service.name if service else f"#{record.service}",
            "unconfigured": service is None,
            "unheard": not self._facts.get("interfaces"),
            "store_error": self._store.status.error,
        }
        facts |= self._policy(located, service)
        if located.state in AWAKE:
            facts |= self._obstacles(record.key_raw)
        else:
            facts |= self._slot(located)
        rows = self._server_rows(record.service) if service else []
        if rows and all(row["state"] != "up" for row in rows):
            facts["down"] = ", ".join(f"{row['server']}: {row['reason'] or row['state']}" for row in rows)
        awake = self._engine.stats().get("awake", 0)
        max_awake = int(self._facts.get("max_awake", 0))
        facts |= {"awake_now": awake, "max_awake": max_awake, "pressure": under_pressure(awake, max_awake)}
        facts["attention"] = " ".join(self._attention())
        if SCOPE.get() is not None:
            facts = {key: value for key, value in facts.items() if key not in _OF_ALL}
        return {key: value for key, value in facts.items() if value}

    def _policy(self, located: Located, service: Service | None) -> dict[str, Any]:
        """What time is to do with it."""
        policy = self._engine.find_class(located.event.record.key_raw)
        own = self._engine.find_own(located.event.record.key_raw, located.id)
        persistent = service is not None and service.interface == "persistent"
        key, state = {
            State.ACTIVE: ("active_quiet", State.IDLE if persistent else State.STANDBY),
            State.STANDBY: ("standby_quiet", State.IDLE),
            State.IDLE: ("idle_quiet", State.SLEEP),
        }.get(located.state, ("", located.state))
        found: dict[str, Any] = {"probe_count": policy.get("probe_count", 0)}
        found["always_active"] = bool(own.in_band.get("always_active"))
        if not key:
            return found
        due_ms, quiet_ms = policy.get(f"{key}_ms", 0), located.event.gap_ms
        name = f"{key}_ms"
        by = ", set in band" if name in own.in_band else ", set by command" if name in own.by_command else ""
        found |= {"key": key + by, "next": state.label, "quiet": span(quiet_ms / 1000)}
        if not due_ms:
            found["never"] = True
        elif quiet_ms < due_ms:
            found |= {"due": span(due_ms / 1000), "left": span((due_ms - quiet_ms) / 1000)}
        else:
            found["overdue"] = span(due_ms / 1000)
        return found

    def _obstacles(self, key: bytes) -> dict[str, Any]:
        found = self._engine.find_obstacles(key)
        if found is None:
            return {}  # it has just gone to sleep
        facts: dict[str, Any] = {one.name.lower(): True for one in Obstacle if one in found.now and one.name}
        if found.refused:
            why = REFUSALS.get(found.refused, "see the log")
            facts |= {"refused": os.strerror(found.refused), "refusal": why}
        for leg in ("client", "server"):
            for what in ("unread", "unacknowledged"):
                facts[f"{leg}_{what}"] = getattr(found, f"{leg}_{what}")
        return facts

    def _slot(self, located: Located) -> dict[str, Any]:
        record = located.event.record
        if located.event.candidate:
            return {"without_slot": True}
        facts: dict[str, Any] = {"slot": True, "heard": span(record.silence_s), "probes": record.probes_unanswered}
        if record.paired:
            peer = record.peer or self._engine.find_peer(record.key_raw)
            facts |= {"paired": True, "server": peer.key.client_text if peer else ""}
        return facts


def sentences(facts: Facts) -> list[str]:
    """What the facts say, in the order of SENTENCES."""
    return [sentence for make in SENTENCES if (sentence := make(facts))]
