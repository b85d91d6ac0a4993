# SPDX-License-Identifier: Apache-2.0
"""What happens, as server-sent events: the rows of the history, by their numbers, as soon as they are committed.

A row has one number, whatever is killed, so that who resumes behind one misses nothing and gets nothing twice. Where
the database is an earlier one (restored, or of a server that was behind), numbers are given again, and all who listen
are told.

However many listen, the newest rows are read and encoded once: they are kept here, and who is further behind reads the
history until it has caught up. Nobody waits for another: each takes its rows when it can.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Any, Final, NamedTuple, Protocol

from sqlalchemy.exc import SQLAlchemyError
from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException

from appliance.frontends.target import parse_address
from control.clients.transitions import transition
from control.core.states import State
from control.store.database import StoreError, reason
from control.store.history import RemovedError
from control.store.history_rows import HISTORY_COLUMNS

log = logging.getLogger("roost.api")

POLL_S: Final = 0.1
"""How often the history is looked at while somebody listens; the daemon commits four times a second, or more often."""

AT_ONCE: Final = 2000
"""Rows that are read, or sent, in one piece."""

KEPT: Final = 20_000
"""The newest rows, that are kept encoded: some 15 MB."""

_MARK: Final = 3
"""Columns by which a row is known again: its number, its connection's and its time."""

SHARED: Final = 10
"""Pieces of the history that are kept for those who are as far behind as others."""

HEARTBEAT_S: Final = 5.0


class EarlierError(Exception):
    """The last row that was read is not in the history any more, which ends with row `last`."""

    def __init__(self, last: int) -> None:
        self.last = last


class Source(Protocol):
    """The database; each call may block, and raise SQLAlchemyError."""

    def service_names(self) -> dict[int, str]: ...

    def last_row(self) -> int: ...

    def rows_after(self, seq: int, most: int) -> list[Sequence[Any]]: ...


class Told(NamedTuple):
    """A row. data: as it is sent."""

    seq: int
    service: str
    client: str
    to: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be told; what is empty does not matter. services: of any of these; None: of all. client: how its
    ``address:port`` begins. to: names of states."""

    services: frozenset[str] | None = None
    client: str = ""
    network: IPv4Network | IPv6Network | None = None
    to: frozenset[str] = frozenset()

    def fits(self, one: Told) -> bool:
        return (
            (self.services is None or one.service in self.services)
            and one.client.startswith(self.client)
            and (not self.to or one.to in self.to)
            and (self.network is None or ip_address(parse_address(one.client).host) in self.network)
        )


class Stream:
    """Within the event loop."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._names: dict[int, str] = {}
        self._kept: list[Told] = []
        self._last = 0
        """The number of the last row that was read, of those that are kept."""

        self._mark: tuple[Any, ...] | None = None
        """How that row begins; None: it was not there to be read."""

        self._resets = self._reset_at = 0
        """How many times numbers were given again; behind which row it went on the last time."""

        self._shared: OrderedDict[int, asyncio.Task[list[Told]]] = OrderedDict()
        """By the number of the row that they are behind."""

        self._listeners = self._told_rows = 0
        self._more = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None
        self._said = ""

    def counts(self) -> dict[str, int]:
        """How many listen, and how many rows they were told in all."""
        return {"subscribers": self._listeners, "rows": self._told_rows}

    async def last_row(self) -> int:
        """The number of the last row that is committed. Raises SQLAlchemyError, StoreError."""
        return await asyncio.to_thread(self._source.last_row)

    async def services(self) -> Collection[str]:
        """The names of all that there ever were. Raises SQLAlchemyError, StoreError."""
        return (await asyncio.to_thread(self._source.service_names)).values()

    async def follow(self, after: int, newest: int, wanted: Wanted) -> AsyncGenerator[bytes]:
        """Server-sent events of the rows behind one, for ever; where none is wanted for a while, a comment, and up to
        which number there is none. What is not kept any more is said in an event `removed`, and that numbers are given
        again, which they are if `after` is beyond the newest, in an event `reset`. newest: `last_row`."""
        self._listeners += 1
        loop = asyncio.get_running_loop()
        if self._reading is None:
            self._begin_at(newest)
            self._reading = loop.create_task(self._read())
        resets = self._resets
        try:
            yield f": transitions\nid: {after}\n\n".encode()  # the number: to resume one without an event yet
            if after > newest:
                yield _reset_event(after := newest)
            heartbeat_at = loop.time() + HEARTBEAT_S
            while True:
                if loop.time() >= heartbeat_at:
                    yield f": still here\nid: {after}\n\n".encode()
                    heartbeat_at = loop.time() + HEARTBEAT_S
                more = self._more
                if resets != self._resets:
                    resets = self._resets
                    yield _reset_event(after := self._reset_at)
                    continue
                try:
                    rows = self._after(after)
                    if rows is None:
                        rows = await self._behind(after)
                except RemovedError as error:
                    data = json.dumps({"first": error.first, "count": error.first - 1 - after})
                    after = error.first - 1
                    yield f"id: {after}\nevent: removed\ndata: {data}\n\n".encode()
                    continue
                except (SQLAlchemyError, StoreError) as error:
                    self._say(error)
                    rows = []
                if rows:
                    after = rows[-1].seq
                    if fitting := [one.data for one in rows if wanted.fits(one)]:
                        self._told_rows += len(fitting)
                        yield b"".join(fitting)
                        heartbeat_at = loop.time() + HEARTBEAT_S
                    else:
                        await asyncio.sleep(0)
                    continue
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(heartbeat_at):  # wait_for() loses a cancellation that comes with it
                        await more.wait()
        finally:
            self._listeners -= 1
            if not self._listeners:
                self._shared.clear()

    def _after(self, after: int) -> list[Told] | None:
        """Of those that are kept; None: what comes first is not among them."""
        at = len(self._kept) - (self._last - after)
        return self._kept[at : at + AT_ONCE] if at >= 0 else None

    def _begin_at(self, newest: int) -> None:
        """Its row is read as well, to know it again. What an earlier database names, it may have numbered otherwise."""
        self._kept, self._last, self._mark = [], max(newest - 1, 0), None
        self._names = {}

    async def _read(self) -> None:
        """Have the newest rows, while somebody listens."""
        try:
            while self._listeners:
                try:
                    rows = await asyncio.to_thread(self._next)
                except RemovedError as error:
                    self._kept, self._last, self._mark = [], error.first - 1, None
                    continue
                except EarlierError as error:
                    self._reset(error.last)
                    continue
                except (SQLAlchemyError, StoreError) as error:
                    self._say(error)
                    rows = []
                except Exception as error:  # a row that cannot be encoded: its listeners would wait without a word
                    if self._said != (said := f"{self._last}: {error!r}"):
                        self._said = said
                        log.exception("the history cannot be told behind row %d; tried again", self._last)
                    await asyncio.sleep(HEARTBEAT_S)
                    continue
                if rows:
                    self._said = ""
                    self._kept += rows
                    del self._kept[: max(len(self._kept) - KEPT, 0)]
                    self._last = rows[-1].seq
                    self._wake()
                if len(rows) < AT_ONCE - 1:
                    await asyncio.sleep(POLL_S)
        finally:
            self._reading = None

    def _wake(self) -> None:
        self._more.set()
        self._more = asyncio.Event()

    def _next(self) -> list[Told]:
        """Rows behind the last one that was read, which must be there as it was. Raises EarlierError."""
        if self._mark is None:
            rows = self._source.rows_after(self._last, AT_ONCE)
            is_earlier = not rows and self._source.last_row() < self._last
        else:
            last, *rows = self._source.rows_after(self._last - 1, AT_ONCE) or [()]
            is_earlier = tuple(last[:_MARK]) != self._mark
            if not is_earlier and not rows:  # it may be the last one of a part
                rows = self._source.rows_after(self._last, AT_ONCE)
        if is_earlier:
            raise EarlierError(self._source.last_row())
        told = [self._told(row) for row in rows]
        if rows:
            self._mark = tuple(rows[-1][:_MARK])
        return told

    def _reset(self, newest: int) -> None:
        log.warning("row %d of the history, which was told, is not there any more, and it ends with row %d: the "
                    "database is an earlier one; who listens is told", self._last, newest)  # fmt: skip
        self._begin_at(newest)
        self._shared.clear()
        self._resets += 1
        self._reset_at = newest
        self._wake()

    async def _behind(self, after: int) -> list[Told]:
        """Rows behind one, read once for all who want the same. After the first piece, all want the same ones."""
        if (task := self._shared.get(after)) is None:
            most = AT_ONCE - after % AT_ONCE
            task = self._shared[after] = asyncio.get_running_loop().create_task(self._encoded(after, most))
            task.add_done_callback(lambda done: self._keep(after, most, done))
            if len(self._shared) > SHARED:
                self._shared.popitem(last=False)
        return await asyncio.shield(task)

    def _keep(self, after: int, most: int, done: asyncio.Task[list[Told]]) -> None:
        """What is whole, and will be the same."""
        if (done.cancelled() or done.exception() or len(done.result()) < most) and self._shared.get(after) is done:
            del self._shared[after]

    async def _encoded(self, after: int, most: int) -> list[Told]:
        return await asyncio.to_thread(self._encode, after, most)

    def _encode(self, after: int, most: int) -> list[Told]:
        return [self._told(row) for row in self._source.rows_after(after, most)]

    def _told(self, columns: Sequence[Any]) -> Told:
        row = dict(zip(HISTORY_COLUMNS, columns, strict=True))
        shown = transition(row, self._service_name)
        data = f"id: {row['seq']}\nevent: transition\ndata: {json.dumps(shown)}\n\n".encode()
        return Told(row["seq"], shown["service"], shown["client"], shown["to"], data)

    def _service_name(self, number: int) -> str:
        if number not in self._names:
            self._names = self._source.service_names()
        return self._names.get(number, f"#{number}")

    def _say(self, error: Exception) -> None:
        if self._said != (said := reason(error)):
            self._said = said
            log.error("the history cannot be read: %s", said)


def _reset_event(after: int) -> bytes:
    return f'id: {after}\nevent: reset\ndata: {{"last": {after}}}\n\n'.encode()


LAST_MAX: Final = 10_000
SEQ_MAX: Final = 2**53 - 1
_KEYS: Final = ("after", "last", "service", "client", "network", "to")


def read_query(query: QueryParams, resumed: str | None, newest: int, services: Collection[str] | None,
               known: Collection[str]) -> tuple[int, Wanted]:  # fmt: skip
    """Behind which row, and what is wanted. resumed: the number of the last event that was received (`Last-Event-ID`),
    where it goes on. services: those whose events may be told; None: all that are known. Raises HTTPException."""
    if unknown := [key for key in query if key not in _KEYS]:
        raise HTTPException(422, f"{unknown[0]}: there is no such key; there are: {', '.join(_KEYS)}")
    if several := [key for key in ("after", "last", "client", "network") if len(query.getlist(key)) > 1]:
        raise HTTPException(422, f"{several[0]}: once")
    try:
        network = ip_network(query["network"]) if "network" in query else None
    except ValueError as error:
        raise HTTPException(422, f"network: {error}") from None
    to = frozenset(query.getlist("to"))
    if wrong := sorted(to - {state.label for state in State if state}):
        raise HTTPException(422, f'to: "{wrong[0]}" is no state')
    allowed = frozenset(services) if services is not None else None
    named = frozenset(query.getlist("service")) or None
    if named is not None and (others := sorted(named.difference(known if allowed is None else allowed))):
        raise HTTPException(404, f'service: there is no service "{others[0]}"')
    wanted = Wanted(named or allowed, query.get("client", ""), network, to)
    last = _number("last", query.get("last", "0"), LAST_MAX)
    if resumed is None and "after" not in query:
        return max(newest - last, 0), wanted
    key = "after" if resumed is None else "Last-Event-ID"
    return _number(key, resumed if resumed is not None else query["after"], SEQ_MAX), wanted


def _number(key: str, text: str, most: int) -> int:
    if text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= most:
        return int(text)
    raise HTTPException(422, f"{key}: a number from 0 to {most} is wanted")
