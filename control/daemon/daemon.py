# SPDX-License-Identifier: Apache-2.0
"""The daemon: its parts are made and wired here, started in order, and ended.

Threads: the engine's own (C), the dispatcher (events and decisions), the store's writer, names that are asked for in
band, reconciling at start, and the main thread with an event loop (serving.py).

Order at start: lock, listening sockets, store, names of servers, engine (adopts the pinned table), inventory *before*
the engine runs, since until then nothing moves and what the table and the store say can be compared; then the engine,
then the API. What is not there yet is waited for while all else is served (waiting.py).
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import ssl
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

from appliance import __version__
from appliance.box.router import RouterError, close_routes
from appliance.engine import Engine, unpin
from appliance.wire import EngineOptions, EventType
from control.channel.operations import Operations
from control.channel.status import Status
from control.channel.tokens import Tokens
from control.clients.absence import Absence
from control.clients.explain import Explainer
from control.clients.giving import Giving
from control.clients.grouping import Grouping
from control.clients.in_band_requests import InBandRequests
from control.clients.in_band_settings import InBandSettings
from control.clients.jobs import WORKERS, Jobs
from control.clients.locate import Locator
from control.clients.moving import Moving
from control.clients.naming import Naming
from control.clients.registry import Registry
from control.clients.rules import Rules
from control.clients.ruling import Ruling
from control.clients.view import View
from control.config import Config
from control.core.states import AWAKE, State
from control.daemon import quarantine
from control.daemon.api_process import ApiProcess
from control.daemon.document import Document
from control.daemon.end import DRAIN_S, GONE_S, MACHINE_S, End, drain, freeze_all
from control.daemon.engine_rules import EngineRules
from control.daemon.engine_setup import EngineSetup, engine_options
from control.daemon.error import DaemonError
from control.daemon.exports import Exports
from control.daemon.handover import HandOver
from control.daemon.health import Health
from control.daemon.hostnames import Hostnames
from control.daemon.inventory import tables_of, take_inventory
from control.daemon.lasting import check_places
from control.daemon.limits import descriptor_share
from control.daemon.listeners import Listeners
from control.daemon.lock import InstanceLock
from control.daemon.manager import Manager
from control.daemon.reconcile import Reconciler
from control.daemon.services import Services
from control.daemon.serving import Serving
from control.daemon.standby import Holding, Mirror, StandingBy
from control.daemon.waiting import Waiting
from control.dispatch.dispatcher import Dispatcher
from control.dispatch.monitor import Monitor
from control.dispatch.snapshots import Snapshots
from control.reach.reach import Reach
from control.reach.tls import server_context
from control.store.database import parse_url, without_secrets
from control.store.owner import FencedError, Owner, boot_id
from control.store.starting import wall_offset_ms
from control.store.store import Store

log = logging.getLogger("roost.daemon")

SWITCH_INTERVAL_S: Final = 0.0002
"""A client that wakes from SLEEP needs the interpreter some four times. With Python's 5 ms each of them could wait that
long for the store's writer; this keeps the whole within the 10 ms that a wake-up may take."""


RECONCILED_S: Final = 12.0
"""So long it may be busy with a page of rows, and wait before it reads again."""


ANEW: Final = -1
"""In place of an exit status: the program is to begin again."""


class Daemon:
    """One instance. `run` returns the exit status: 0 asleep in good order, 1 with a reason in the log; or ANEW."""

    def __init__(self, path: str, config: Config, engine_type: Callable[[EngineOptions], Engine] = Engine,
                 take_over: bool = False, api_apart: bool = False,
                 handover: HandOver | None = None) -> None:  # fmt: skip
        self._path = path
        self._handover = handover or HandOver({})
        self._api_apart = api_apart
        self._take_over = take_over
        self._config = config
        self._engine_type = engine_type
        self._end = End()
        self._undo = ExitStack()
        """Until the engine runs, what takes back the rest of a start that fails; what the engine pinned, it removes."""

        self._drained = False
        self._alive: Callable[[], object] = lambda: None
        self._manager = Manager(lambda: self._alive())
        self._mirror: Mirror | None = None
        self._dispatcher: Dispatcher

    def run(self) -> int:
        """Start, serve until told to end, end."""
        # What is there by now stays to the end. Were the collector of cycles to walk it again and again, reading the
        # rows of sleeping connections would take twice as long.
        gc.freeze()
        config = self._config
        if config.problem:
            raise DaemonError(f"{self._path}: {config.problem}")
        check_places(config)
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        max_awake = config.table.max_awake or descriptor_share(config)
        lock = InstanceLock(config)
        listeners = Listeners()
        try:
            listeners.bind(config)
            waiting = Waiting()
            hostnames = Hostnames(waiting, {name for service in config.service for name in service.hostnames})
            asyncio.run(hostnames.ask())
            store = self._store()
            if not config.standby.address:
                self._open(store)
            elif not self._stand_by(listeners, max_awake, store):
                return ANEW if self._end.anew else 0
            else:
                hostnames.hurry()  # it was asked before this machine stood by
            numbers = store.service_indexes([service.name for service in config.service])
            services = Services(self._path, config, numbers, hostnames.known)
            hostnames.names = services.hostnames
            engine = self._engine(store, max_awake)
            try:
                if not store.exists and not (engine.slots_in_sleep() or engine.stats()["filter_members"]):
                    store.open()
                status = self._run_engine(engine, store, services, listeners, waiting, hostnames, max_awake)
            finally:
                engine.close()
            if config.standby.address and store.fenced:
                unpin(config.pin_dir)
                return ANEW if self._end.anew else 0
            if self._end.drains and not status:
                status = self._unpinned()
            return ANEW if self._end.anew and not status else status
        finally:
            self._undo.close()
            listeners.close()
            lock.release()

    def _stand_by(self, listeners: Listeners, max_awake: int, store: Store) -> bool:
        """Whether this machine of two has the connections now. If not, it has come to an end."""
        assert listeners.control is not None, "it is bound"
        standing = StandingBy(self._config, listeners.control, self._manager,
                              lambda: self._engine_type(engine_options(self._config, max_awake, 1)),
                              store, self._handover.done)  # fmt: skip
        self._undo.callback(store.close, give_back=True)
        if self._handover.ended:
            return False
        try:
            taken = standing.run()
        except FencedError as error:
            log.warning("%s", error)
            self._end.anew = True
            return False
        self._end.anew = standing.ended_by == signal.SIGHUP
        self._mirror = standing.mirror
        if taken and self._mirror is not None:
            self._undo.callback(self._mirror.engine.close)
        return taken

    def _engine(self, store: Store, max_awake: int) -> Engine:
        if self._mirror is not None:
            self._mirror.engine.next_number(store.next_id())
            return self._mirror.engine
        if self._config.standby.address and store.tables() != tables_of(self._config.pin_dir):
            unpin(self._config.pin_dir)  # the other machine has had the connections since
        return self._engine_type(engine_options(self._config, max_awake, store.next_id()))

    def _unpinned(self) -> int:
        """The exit status of one that was drained."""
        if not self._drained:
            log.error("not drained: the connections are asleep in this machine's tables; start the daemon again")
            return 1
        unpin(self._config.pin_dir)
        if self._config.router.lan or self._config.attach.local_connect:
            close_routes()
        log.info(
            "drained: every connection has a row, and this machine answers for none; it sends no resets for an hour"
        )
        return 0

    def _store(self) -> Store:
        history, standby = self._config.history, self._config.standby
        return Store(
            self._config.database_url,
            lambda slept: self._dispatcher.sleepers.slept(slept),
            keep_days=history.keep_days,
            keep_bytes=history.keep_bytes,
            batch=history.batch,
            owner=Owner.here(self._config.instance, self._config.pin_dir),
            take_over=self._take_over,
            paired_lease_s=standby.lease if standby.address else None,
        )

    def _open(self, store: Store) -> None:
        if error := store.open(awaited=bool(tables_of(self._config.pin_dir))):
            log.error("SLEEP is off until the database can be used (it is tried again and again): %s", error)
        self._undo.callback(store.close, give_back=True)

    def _run_engine(self, engine: Engine, store: Store, services: Services, listeners: Listeners, waiting: Waiting,
                    hostnames: Hostnames, max_awake: int) -> int:  # fmt: skip
        config = self._config
        tls = _tls(config)
        self._handover.give(engine)
        silence = quarantine.Quarantine(lambda: services.configured()[1])
        setup = EngineSetup(engine, config, waiting, silence.begin, silence.end)
        setup.begin(services.by_number, services.spec, self._undo)
        rules = Rules(store, EngineRules(engine), services.configured, store.rules_file)
        rules.load()
        dispatcher = self._dispatcher = Dispatcher(engine, store, max_awake, self._end.fail, services.persistent)
        self._tables = tables_of(config.pin_dir)
        waiting.before_each(partial(self._look_at_pins, waiting))
        self._handover.give_connections(engine)
        if self._mirror is None:
            found = take_inventory(engine, store, boot_id(), self._tables)
        else:
            found = self._mirror.taken_over()
            store.adopt_tables(self._tables)
            log.info("%d sleeping connections of %s are taken over; what it had awake or in IDLE is closed",
                     len(found.sleep_ids), self._mirror.host or "no other machine")  # fmt: skip
        if standby := config.standby.address:
            store.watch_lease(engine.lease)
            engine.share_cookies(store.cookie_secret, wall_offset_ms())
        if found.other_boot or (found.unseen and not found.states[State.SLEEP]):  # of a boot before, perhaps
            silence.begin("rows")
        dispatcher.states = list(found.states)
        for port in found.ports:
            engine.reserve_link_port(port)
        health = Health(engine)
        dispatcher.handle(EventType.SERVER_DOWN, health.link_failed)
        names = Registry(store, engine)
        settings = InBandSettings(store, engine)
        if not found.other_boot:  # else when all are put back: the engine keeps it in their slots
            settings.load()
        dispatcher.listen(settings.hear)
        dispatcher.handle(EventType.OVERRIDES, settings.keep)
        grouping = Grouping(engine, store, names, rules)
        names.listen_to_connections(grouping.losing, grouping.look)
        rules.listen(grouping.look_at_all)
        locator = Locator(engine, store, names, services.by_number, config.attach.domain, config.attach.listen)
        reach = Reach(config, engine, dispatcher, store, names, services.by_number, locator,
                      Absence(rules, names, services.configured), tls)  # fmt: skip
        requests = InBandRequests(engine, names, reach.spoken_for, services.by_number, config.attach.domain)
        dispatcher.handle(EventType.IN_BAND, requests.ask)
        dispatcher.handle(EventType.LINK, reach.links.linked)
        dispatcher.handle(EventType.SERVED, reach.attaches.served)
        dispatcher.handle(EventType.WANTED, reach.wanted)
        reach.dialled.load()
        snapshots = Snapshots(engine, store.append, rules.classes)
        span = (0, 0) if store.status.error else store.begin_run()
        store.hold_history()  # what this daemon writes comes behind what the last one could not
        store.start()
        for number in (signal.SIGTERM, signal.SIGINT):  # the engine is to end in good order, since it has what is awake
            signal.signal(number, lambda *_: self._end.come())
        if self._handover.ended:
            self._end.come()
        engine.start()
        self._undo.pop_all()
        self._handover.done()
        reconciler = Reconciler(engine, store, dispatcher, rules, settings, grouping, reach, self._end, found, span,
                                partial(silence.end, "rows"))  # fmt: skip
        dispatching = _thread("dispatch", dispatcher.run)
        _thread("in-band", requests.run)
        grouping_thread = _thread("groups", grouping.run)
        reconciling = _thread("reconcile", reconciler.run)
        facts: dict[str, Any] = {
            "instance": config.instance,
            "version": __version__,
            "pid": os.getpid(),
            "max_awake": max_awake,
            "interfaces": setup.interfaces,
            "waiting": waiting.told,
            "pin_dir": config.pin_dir,
            "database": without_secrets(parse_url(config.database_url)).rpartition("@")[2],
        }
        ruling = Ruling(rules, store, EngineRules(engine), engine, locator, services.configured)
        monitor = Monitor(engine, lambda: dispatcher.states, lambda: services.configured()[1].pressure)
        self._alive = engine.stats
        exports = Exports.of(self._path, lambda: services.configured()[1].export)
        api = ApiProcess.of(self._path, config, lambda: services.configured()[1],
                            (store.share, listeners.share_control), self._api_apart)  # fmt: skip
        view = View(engine, store, names, services.by_number, locator, reach.attaches.waiting, rules.followers)
        parts: dict[str, Callable[[], dict[str, Any]]] = {
            "policy": ruling.status,
            "pressure": monitor.status,
            "export": exports.status,
            "api": api.status,
            "agents": reach.counts,
            "attaches": reach.attaches.status,
            "classes": partial(snapshots.status, view.service_name),
        }
        status = Status(engine, store, dispatcher, services.by_number, services.leaving, health.rows, parts, facts)
        jobs = Jobs(engine, store, dispatcher, locator, view)
        working = [_thread("jobs", jobs.run) for _ in range(WORKERS)]
        operations = Operations(
            status=status,
            view=view,
            explainer=Explainer(engine, store, services.by_number, locator, health.rows, status.attention, facts),
            naming=Naming(store, names, locator, config.attach.domain, grouping.look, reach.spoken_for),
            moving=Moving(engine, store, dispatcher, locator),
            ruling=ruling,
            giving=Giving(dispatcher, locator),
            jobs=jobs,
            tokens=Tokens(store, lambda: [service.name for service in tuple(services.by_number.values())]),
            agents=reach.agents.clients,
            dialled=reach.dialled.all,
            offer=reach.tickets.offer,
            ticket=reach.tickets.issue,
            record=store.append,
            document=Document().read,
        )
        repeated = [monitor, snapshots, exports, api, *([Holding(config, store, self._end)] if standby else ())]
        serving = Serving(config, operations, dispatcher, reach, health, services, rules, repeated, setup,
                          store.number_services, listeners, waiting, hostnames, facts, self._end,
                          self._manager)  # fmt: skip
        dispatcher.handle(EventType.RELEASED, serving.released)
        try:
            asyncio.run(serving.run())
        finally:
            jobs.stop()
            locator.stop()
            for thread in working:
                thread.join(2)
            reconciling.join(RECONCILED_S)  # what it has begun to put back is in the table before the engine ends
            self._outlast_signals()
            with self._manager.living():
                handed_over = 0 if self._end.reason else self._leave_awake(engine, services, store)
            engine.stop_listening()  # a client that comes while the store writes is not taken in to be reset
            engine.stop()
            dispatcher.stop()
            dispatching.join(5)
            dispatcher.drain()
            reach.attaches.close()
            snapshots.take()
            requests.stop()
            grouping.stop()
            grouping_thread.join(5)
            left_open = sum(dispatcher.states[state] for state in (*AWAKE, State.IDLE))
            store.close(drained=self._end.drains and self._drained, left_open=left_open)
            self._drained &= store.left_to_others
        return self._ended(max(dispatcher.states[State.IDLE] + dispatcher.states[State.SLEEP], 0), handed_over)

    def _outlast_signals(self) -> None:
        """Where no signal brought the end, the first one is not to be the last: what is written then is waited for."""

        def end_for_good(_number: int, _frame: object) -> None:
            self._end.anew = False

        if self._end.anew:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, end_for_good)
            for number in (signal.SIGHUP, signal.SIGUSR1):
                signal.signal(number, signal.SIG_IGN)

    def _leave_awake(self, engine: Engine, services: Services, store: Store) -> int:
        """What is awake is handed over to the next daemon, how many; or frozen, where there is none to come."""
        manager = self._manager
        if store.fenced and self._config.standby.address:
            quarantine.begin(self._config)  # what sleeps is the other machine's, and hears nothing of this one
            return 0
        if self._end.drains or manager.machine_stops():

            def fall_silent() -> None:
                quarantine.begin(self._config)  # until another machine has the addresses, or this one is down
                engine.stop_listening()
                engine.wake_none()

            within_s = GONE_S if self._end.anew else DRAIN_S if self._end.drains else MACHINE_S
            self._drained = not drain(engine, store, self._dispatcher, self._end, within_s, fall_silent)
            return 0
        if not manager.restarts():
            engine.wake_none()
            freeze_all(engine, self._dispatcher, self._end)
            return 0
        by_daemon = {number for number, service in services.by_number.items() if service.kind != "server"}
        freeze_all(engine, self._dispatcher, self._end, by_daemon)
        engine.stop()
        return self._handover.take(engine)

    def _pins_are_lost(self) -> bool:
        return tables_of(self._config.pin_dir) != self._tables

    def _look_at_pins(self, waiting: Waiting) -> None:
        pins = f"what is pinned in {self._config.pin_dir}"
        if not self._pins_are_lost():
            waiting.there(pins)
        else:
            waiting.missing(pins, "it was removed or replaced while the daemon runs; connections in IDLE end with the "
                                  "daemon, those in SLEEP are put back by its next start: restart it")  # fmt: skip

    def _ended(self, asleep: int, handed_over: int) -> int:
        if self._end.reason:
            log.critical("the daemon ends: %s", self._end.reason)
            return 1
        idle = self._dispatcher.states[State.IDLE]
        if self._pins_are_lost():
            log.error("the pins in %s were removed or replaced while the daemon ran: %d IDLE connections end with it; "
                      "those in SLEEP are put back by the next start", self._config.pin_dir, idle)  # fmt: skip
            asleep -= idle
        log.info("ended; %d connections stay asleep, %d awake are left to the next daemon", asleep, handed_over)
        router = self._config.router
        if router.lan and router.fail == "open" and not asleep + handed_over:  # "closed" needs them to refuse
            try:
                close_routes()
            except RouterError as error:
                log.warning("%s", error)
        return 0


def _thread(name: str, run: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=run, name=f"roost-{name}", daemon=True)
    thread.start()
    return thread


def _tls(config: Config) -> ssl.SSLContext | None:
    agents = config.agents
    if not agents.certificate:
        return None
    try:
        return server_context(agents.certificate, agents.private_key)
    except OSError as error:
        files = f"certificate {agents.certificate}, private_key {agents.private_key}"
        raise DaemonError(f"[agents] {files}: {error.strerror or error}") from None


def run(path: str, config: Config, take_over: bool = False, api_apart: bool = False,
        handover: HandOver | None = None) -> int:  # fmt: skip
    """Run the daemon of the configuration that was read at `path` in the foreground; returns the exit status.
    take_over: the database of a daemon that is dead is this one's from now on. api_apart: `roost api` is not begun.
    handover: what the daemon before has left, and where this one leaves it."""
    return Daemon(path, config, take_over=take_over, api_apart=api_apart, handover=handover).run()
