# SPDX-License-Identifier: Apache-2.0
"""Server-sent events, whoever reads the lines: what was told, and where to go on when the stream has ended."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from .calls import Call, path_of
from .errors import AwayError, RoostError
from .http import may_pass, wait_s

SILENCE_S: Final = 20.0
"""The API says something every 5 s; three times that without a word, and it hangs."""

RETRIES: Final = 20
"""In a row, after which it is given up: more than a minute."""


class Event(NamedTuple):
    """kind: transition, with the keys of answers.Transition; removed: rows of the history that are not kept any more;
    reset: rows may have been missed, and their numbers are given again; dropped: by the local socket, so many that came
    too fast. id: of a row; empty: by the local socket."""

    id: str
    kind: str
    data: dict[str, Any]


class Reading:
    """A stream that is read, and resumed. last_id: of the last event that was told, or up to which there was none;
    empty: not known yet."""

    def __init__(self, after: int | str | None, last: int | None, service: Sequence[str], to: Sequence[str],
                 client: str, network: str, retries: int) -> None:  # fmt: skip
        self.last_id = "" if after is None else str(after)
        self._query = {"last": last, "service": service, "to": to, "client": client, "network": network}
        self._retries = retries
        self._failed = 0
        self._begin()

    def _begin(self) -> None:
        self._id, self._kind, self._data = self.last_id, "message", ""

    def call(self) -> Call[Any]:
        """The request for what follows."""
        self._begin()
        headers = {"Last-Event-ID": self.last_id} if self.last_id else {}
        return Call("GET", path_of("events"), self._query, headers=headers)

    def take(self, line: str) -> Event | None:
        """A line without its end. None: no event is whole with it."""
        self._failed = 0
        if line:
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            match name:
                case "id":
                    self._id = value
                case "event":
                    self._kind = value
                case "data":
                    self._data += value
            return None
        event = Event(self._id, self._kind, json.loads(self._data)) if self._data else None
        self.last_id = self._id
        self._begin()
        return event

    def wait_s(self, error: RoostError) -> float:
        """How long to wait before it is asked again. Raises the error: it cannot be resumed, or was tried too often."""
        if not self.last_id or not may_pass(error) or self._failed >= self._retries:
            raise error
        self._failed += 1
        return wait_s(error, self._failed - 1)

    @staticmethod
    def ended() -> AwayError:
        """The stream did, and nothing said why."""
        return AwayError("the stream of events ended")
