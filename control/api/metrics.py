# SPDX-License-Identifier: Apache-2.0
"""What Prometheus is told: each number of the daemon's status by one table, and what this process counts of itself."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections import Counter as Counts
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from control.channel.attention import WATCHED

FRESH_S: Final = 1.0
"""So long one status of the daemon's is for all who scrape."""

ANSWER_S: Final = 5.0
"""So long is waited for it; Prometheus itself waits for 10 s."""

Status = Mapping[str, Any]


class Row(NamedTuple):
    """A family. where: keys of the status, with a dot between two; `{label}` in one stands for
    any key, or what matches it (`{label:a|b}`), and is that label's value; `[label=key]` goes through a list, whose
    members have the label's value under that key. What is null there, or not there, has no sample. scale: of what the
    status has, in the family's unit. says: of a word, the one that is 1; any other is 0."""

    name: str
    kind: str
    where: str
    help: str
    scale: float = 1
    says: str = ""

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(re.findall(r"[{[](\w+)", self.where.replace(",", "[")))

    def of(self, value: Any) -> float:
        """What the status has, as it is told."""
        return float(value == self.says if self.says else value * self.scale)


_SERVERS: Final = "services.[service=name].servers.[server=server]."
_CLASSES: Final = "classes.rows.[service=service,rules=rules]."

GAUGES: Final = (
    ("connections", "connections.{state}", "Connections by state."),
    ("awake_connections", "awake", "Connections with a socket: ACTIVE and STANDBY."),
    ("awake_connections_limit", "max_awake", "As many may be awake."),
    ("spare_sockets", "counters.sockets_spare", "Sockets of frozen clients that are kept for those that thaw."),
    ("born_connections", "counters.born", "Born asleep, and have not spoken; among those in IDLE."),
    ("class_connections", _CLASSES + "connections.{state}",
     "Connections by service, rules and state, counted once a minute; of those in SLEEP the ones with a slot."),
    ("class_count_timestamp_seconds", "classes.at_ms", "When connections were last counted by class.", 0.001),
    ("server_up", _SERVERS + "state", "Whether a server of a service is up.", 1, "up"),
    ("server_links", _SERVERS + "links", "Links of clients to a server."),
    ("server_ready_links", _SERVERS + "ready", "Links to a server that wait for a client."),
    ("servers_waiting", "counters.servers_waiting", "Servers that wait for a client they asked for."),
    ("uptime_seconds", "uptime_s", "Since the daemon began."),
    ("maps_bytes", "memory.maps_bytes", "Kernel memory of tables, maps and programs."),
    ("resident_memory_bytes", "memory.daemon_rss_bytes", "Memory of the daemon's process."),
    ("table_used_slots", "counters.table_{table:ipv4|ipv6}", "Slots of a table that are taken."),
    ("table_slots", "counters.{table:ipv4|ipv6}_slots", "Slots of a table."),
    ("idle_used_slots", "counters.idle_records", "Places for the rest of a record in IDLE that are taken."),
    ("idle_slots", "counters.idle_slots", "Places for the rest of a record in IDLE."),
    ("filter_used_slots", "counters.filter_members", "Connections in SLEEP without a slot."),
    ("filter_slots", "counters.filter_slots", "Places of the filter for them."),
    ("pressure_reached_ratio", "pressure.reached.{threshold}",
     "Share of a threshold of [pressure], for as long as it is reached.", 0.01),
    ("store_up", "store.state", "Whether the database can be written.", 1, "ok"),
    ("store_pending_rows", "store.pending_{record:sleep|history}", "Rows that wait to be written: the store's lag."),
    ("store_history_rows", "store.kept_history", "Rows of history that are kept."),
    ("store_last_commit_seconds", "store.last_commit_ms", "How long the last commit took.", 0.001),
    ("export_last_timestamp_seconds", "export.at_ms", "When the last export ended.", 0.001),
    ("export_last_duration_seconds", "export.seconds", "How long the last export took."),
    ("policy_version", "policy.version", "Version of the rules."),
    ("policy_rules", "policy.rules", "Rules."),
    ("policy_problems", "policy.problems", "What is wrong with rules."),
    ("engine_waiting_events", "counters.events_waiting", "Events of the engine that Python has not taken yet."),
    ("lookups_waiting", "counters.perhaps_waiting", "Connections that are being looked for in the database."),
    ("lookups_remembered", "counters.perhaps_remembered", "Connections whose row was read in vain."),
    ("api_stream_subscribers", "own.subscribers", "Who listens to /v1/events."),
)  # fmt: skip

COUNTERS: Final = (
    ("transitions", "control.transitions", "Changes of state."),
    ("class_transitions", _CLASSES + "transitions.{from} {to} {cause}",
     "Changes of state by service and rules; once a minute."),
    ("class_probes", _CLASSES + "probes", "Keep-alive probes sent, by service and rules; once a minute."),
    ("class_received_bytes", _CLASSES + "rx_bytes",
     "Payload from clients by service and rules, counted when they change their state."),
    ("class_sent_bytes", _CLASSES + "tx_bytes",
     "Payload to clients by service and rules, counted when they change their state."),
    ("received_bytes", "counters.bytes_from_clients", "Payload from clients."),
    ("sent_bytes", "counters.bytes_to_clients", "Payload to clients."),
    ("accepted", "counters.accepted", "Connections accepted, with a socket."),
    ("closed", "counters.closed", "Connections that were awake and ended."),
    ("clients_refused", "counters.clients_refused", "Clients reset as they connected: there was no server for them."),
    ("clients_denied", "counters.clients_denied", "Clients reset as they connected: the policy serves none there."),
    ("beyond_limits", "counters.{limit:births|handshakes|wakes|attaches|agents|connections}_limited",
     "What one source did beyond [limits], and was refused."),
    ("accept_pauses", "counters.accept_paused", "No new client was taken for want of descriptors."),
    ("births", "counters.born_{family:ipv4|ipv6}", "Connections born asleep."),
    ("births_refused", "counters.born_refused", "Handshakes that XDP did not end."),
    ("births_spoke", "counters.born_spoke", "Born asleep, and spoke."),
    ("births_gone", "counters.born_gone", "Born asleep, and gone without a word."),
    ("births_expired", "counters.born_expired", "Born asleep, and reset since they said nothing."),
    ("syn_cookies", "counters.syn_cookies", "SYNs answered by XDP."),
    ("freezes", "counters.frozen", "Connections taken out of the kernel."),
    ("freezes_cancelled", "counters.freeze_cancelled", "Freezes that did not happen."),
    ("freeze_seconds", "counters.freeze_ns", "The engine's time in freezing, in batches.", 1e-9),
    ("thaws", "counters.thawed", "Connections put back into the kernel."),
    ("thaws_failed", "counters.thaw_failed", "Connections that could not be put back."),
    ("thaw_seconds", "counters.thaw_ns", "The engine's time in thawing, in batches.", 1e-9),
    ("thaws_reused_socket", "counters.sockets_reused", "Thaws into a spare socket."),
    ("wakes_refused", "counters.wakes_refused", "As many as may be were awake."),
    ("sockets_surveyed", "counters.sockets_surveyed", "Sockets whose numbers a BPF program read."),
    ("stuck_resets", "counters.stuck_reset", "Connections that took nothing, reset to let others wake."),
    ("write_timeouts", "counters.write_timeouts", "Connections ended since what was sent was not taken."),
    ("restores", "control.restored", "Records read back for a wake from SLEEP."),
    ("restores_lost", "control.lost_records", "Connections that were to wake, without a row."),
    ("sleeps_deferred", "control.sleep_deferred", "Steps to SLEEP put off: the store was not ready."),
    ("server_linked", _SERVERS + "linked", "Links made to a server."),
    ("server_failed", _SERVERS + "failed", "Links to a server that failed."),
    ("links", "counters.linked", "Links made."),
    ("links_failed", "counters.link_failed", "Links that failed."),
    ("links_left", "counters.links_left", "Links left to the next client."),
    ("attach_requests", "attach_counts.{outcome}", "Servers that came by [attach] listen, by what became of them."),
    ("attaches_refused", "counters.servers_refused", "Servers that came by a door and were refused."),
    ("attaches_failed", "attaches.failed.{error}", "Servers that asked for a client and did not get it."),
    ("agent_messages", "agents.{what:hellos|rejected|crowded_out|asked|answered}", "What agents were part in."),
    ("dialled", "agents.dialled", "Clients that were dialled."),
    ("in_band_requests", "counters.in_band_requests", "Requests in the payload."),
    ("in_band_refused", "counters.in_band_refused", "Requests in the payload that were refused."),
    ("keepalives_answered", "counters.keepalives_answered", "Keep-alives answered by XDP."),
    ("keepalives_answered_by_engine", "counters.answers_by_engine", "ACKs for what XDP did not answer itself."),
    ("acks_heard", "counters.acks_heard", "Answers to probes, and other ACKs that wake nobody."),
    ("challenge_acks", "counters.challenge_acks", "Challenge ACKs (RFC 5961)."),
    ("challenge_acks_limited", "counters.challenge_acks_limited", "Challenge ACKs not sent: too many."),
    ("probes", "counters.probes_sent", "Keep-alive probes sent."),
    ("probes_unsent", "counters.probes_unsent", "Keep-alive probes, and answers to them, that could not be sent."),
    ("probes_raw", "counters.probes_raw", "Keep-alive probes sent by a raw socket."),
    ("probe_deaths", "counters.probe_dead", "Connections given up, since no probe was answered."),
    ("frames_woke", "counters.frames_woke", "Frames that woke a connection."),
    ("frames_held", "counters.frames_held", "Frames held while their connection was being moved."),
    ("frames_held_dropped", "counters.frames_held_dropped", "Held frames that were lost."),
    ("frames_replayed", "counters.frames_replayed", "Held frames given to the stack."),
    ("frames_stray", "counters.frames_stray", "Held frames whose connection needed no thaw."),
    ("frames_oversize", "counters.frames_oversize", "Frames too large for the ring."),
    ("frames_bad", "counters.frames_bad", "Frames with a wrong checksum, found by the engine."),
    ("bad_checksums", "counters.bad_checksum", "Frames with a wrong checksum, found by XDP."),
    ("malformed", "counters.malformed", "Frames that cannot be read."),
    ("segments_dropped", "counters.segments_dropped", "Segments for sleeping connections, dropped."),
    ("ring_full", "counters.ring_full", "Frames lost for want of room in the ring."),
    ("replays_failed", "counters.replay_failed", "Held frames that could not be given to the stack."),
    ("resets_guarded", "counters.rst_guarded", "RSTs of the kernel to sleeping connections, kept back."),
    ("fragments_woke", "counters.fragments_woke", "Connections woken by the first fragment of a segment."),
    ("table_full", "counters.table_full", "Connections that could not fall asleep for want of room."),
    ("table_inserts_refused", "counters.table_refused", "Inserts for which a table had no place."),
    ("tables_grown", "counters.tables_grown", "Tables that grew."),
    ("tables_not_grown", "counters.tables_not_grown", "Tables that could not grow."),
    ("filter_full", "counters.filter_full", "Connections that kept a slot for want of room in the filter."),
    ("classes_full", "counters.classes_full", "Sets of values that had no room."),
    ("lookups_frames", "counters.frames_perhaps", "Frames of a key that the filter has."),
    ("lookups", "counters.perhaps_asked", "Such connections looked for in the database."),
    ("lookups_found", "counters.perhaps_slept", "Connections that went to SLEEP without a slot."),
    ("lookups_strangers", "counters.perhaps_strangers", "Keys that the filter has and the database has not."),
    ("lookups_refused", "counters.perhaps_refused", "Packets for such connections, with wrong numbers."),
    ("lookups_dropped", "counters.perhaps_dropped", "Packets dropped for want of an answer from the database."),
    ("lookups_no_row", "control.strangers", "Look-ups that found no row."),
    ("lookups_unanswered", "control.unanswered", "Look-ups that the database did not answer in time."),
    ("pressure_steps", "pressure.asked.{state}", "Connections that were to go down a step for pressure."),
    ("store_written_history_rows", "store.written_history", "Rows of history written."),
    ("store_dropped_rows", "store.dropped_{record}", "Rows that were not written."),
    ("store_rescues", "store.rescued", "The database's file was gone under the daemon."),
    ("engine_events_lost", "counters.events_lost", "Events of the engine that found no memory."),
    ("engine_rush_pauses", "counters.rush_pauses", "Turns in which the engine gathered the steps of a rush."),
    ("engine_untallied", "counters.transitions_untallied", "Transitions and probes that the counts by class lack."),
    ("dispatch_batches", "control.batches", "Batches of events worked off."),
    ("commands_refused", "control.refused", "Commands that the engine refused."),
    ("illegal_transitions", "control.illegal", "Connections ended by a fault of Roost's."),
    ("api_process_ends", "api.ended", "The API's process ended by itself."),
    ("api_stream_rows", "own.rows", "Rows told to those who listen to /v1/events."),
)  # fmt: skip

HISTOGRAMS: Final = (
    ("attach_answer_seconds", "attaches.took.{found}",
     "How long a server waited for its answer, by the state its client was in; counted when that has spoken or gone."),
)  # fmt: skip

PREFIX: Final = "roost_"
TABLE: Final = tuple(
    Row(f"{PREFIX}{row[0]}", kind, *row[1:])
    for kind, rows in (("gauge", GAUGES), ("counter", COUNTERS), ("histogram", HISTOGRAMS))
    for row in rows
)


class Own(NamedTuple):
    """A family that is no row of the table."""

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str


UP: Final = Own("roost_up", "gauge", (), "Whether the daemon answered the API's process.")
ATTENTION: Final = Own(
    "roost_attention", "gauge", ("name",), "What an operator should look at: how much of it there is; 0: all is well."
)
REQUESTS: Final = Own(
    "roost_api_requests", "counter", ("method", "path", "code"),
    "Answers of the API's, by route; 401: no good token, 403: not for this role, 429: too often, 503: daemon away.",
)  # fmt: skip
SECONDS: Final = Own(
    "roost_api_answer_seconds", "histogram", (), "How long a request to the API waited for its answer to begin."
)

_FAMILIES: Final = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily}

disable_created_metrics()  # type: ignore[no-untyped-call]  # of this process alone, a second sample each


def find(node: Any, path: tuple[str, ...], labels: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """(values of labels, what is there) of all that a row's `where` names."""
    if not path:
        if node is not None:
            yield labels, node
        return
    step, rest = path[0], path[1:]
    if step[0] == "[":
        keys = [part.partition("=")[2] for part in step[1:-1].split(",")]
        for one in node:
            yield from find(one, rest, (*labels, *(str(one[key]) for key in keys)))
    elif "{" in step:
        for key, value in node.items():
            if match := _pattern(step).fullmatch(key):
                yield from find(value, rest, (*labels, *match.groups()))
    elif step in node:
        yield from find(node[step], rest, labels)


def _pattern(step: str) -> re.Pattern[str]:
    """The words around a label have nothing that means anything in a regular expression."""
    return re.compile(re.sub(r"\{\w+(?::([^}]+))?\}", lambda found: f"({found[1] or '.+?'})", step))


def families(status: Status) -> Iterator[Metric]:
    """Of the table, all; those without a sample, too."""
    for row in TABLE:
        found = find(status, tuple(row.where.split(".")))
        if row.kind == "histogram":
            histogram = HistogramMetricFamily(row.name, row.help, labels=row.labels)
            for labels, value in found:
                histogram.add_metric(labels, list(value["buckets"].items()), value["sum_s"])
            yield histogram
            continue
        family = _FAMILIES[row.kind](row.name, row.help, labels=row.labels)
        for labels, value in found:
            family.add_metric(labels, row.of(value))
        yield family


def attention_family(status: Status) -> Metric:
    """Each name that there is, so that a rule finds it while all is well."""
    family = GaugeMetricFamily(ATTENTION.name, ATTENTION.help, labels=ATTENTION.labels)
    found = Counts(one["name"] for one in status["attention"])
    for watch in WATCHED:
        family.add_metric((watch.name,), found[watch.name])
    return family


class Metrics(Collector):
    """Within the event loop. own: what the status does not have, for `own` of the table."""

    def __init__(self, own: Callable[[], Status]) -> None:
        self._own = own
        self._status: Status | None = None
        self._read_at = float("-inf")
        self._pages: dict[str, bytes] = {}
        self._reading = asyncio.Lock()
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._requests = Counter(REQUESTS.name, REQUESTS.help, REQUESTS.labels, registry=self._registry)
        self._seconds = Histogram(SECONDS.name, SECONDS.help, registry=self._registry)
        self._registry.register(self)

    def collect(self) -> Iterable[Metric]:
        """As the library has it: of the status that was read last."""
        yield GaugeMetricFamily(UP.name, UP.help, self._status is not None)
        if self._status is not None:
            yield attention_family(self._status)
            yield from families({**self._status, "own": self._own()})

    async def page(self, accept: str, read: Callable[[], Awaitable[bytes | None]]) -> tuple[str, bytes]:
        """(type, text), in the form that is asked for. read: the daemon's status as JSON; None: it is away."""
        async with self._reading:
            if time.monotonic() - self._read_at >= FRESH_S:
                try:
                    async with asyncio.timeout(ANSWER_S):
                        text = await read()
                except TimeoutError:
                    text = None
                self._status = json.loads(text) if text is not None else None
                self._read_at, self._pages = time.monotonic(), {}
        try:
            encode, kind = choose_encoder(accept)
        except TypeError:  # the library's, of a version that is no number
            encode, kind = choose_encoder("")
        if kind not in self._pages:
            self._pages[kind] = encode(self._registry)
        return kind, self._pages[kind]

    def answered(self, method: str, path: str, code: int, seconds: float) -> None:
        """Count an answer. path: of its route; empty: of none."""
        self._requests.labels(method, path, str(code)).inc()
        self._seconds.observe(seconds)


class Counted:
    """Around an application, whose answers it counts as they begin."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI has it."""
        began, begun = time.perf_counter(), False

        def count(code: int) -> None:
            nonlocal begun
            begun = True
            route = scope.get("route")
            asked = scope.get("method", "GET")  # a WebSocket begins as that
            fits = route is not None and asked in getattr(route, "methods", (asked,))
            path, method = route.path if route is not None else "", asked if fits else ""
            self._metrics.answered(method, path, code, time.perf_counter() - began)

        async def counting(message: Message) -> None:
            if message["type"] == "http.response.start":
                count(message["status"])
            await send(message)

        try:
            await self._app(scope, receive, counting)
        except Exception:
            if not begun:
                count(500)
            raise
