# SPDX-License-Identifier: Apache-2.0
"""Whose connections whoever asks may see and change: of some services alone, or of all.

It goes with the task and the threads that work for a request, like who asks does in a web framework; so each way to a
connection (Locator.locate, View) asks here, and no operation can be forgotten that is built on them.
"""

from __future__ import annotations

from collections.abc import Collection
from contextvars import ContextVar
from typing import Final

from control.core.errors import OperationError

SCOPE: Final = ContextVar[frozenset[str] | None]("services", default=None)
"""Names of services; None: all."""


def in_scope(service: str | None) -> bool:
    """Whether the connections of this service are for whoever asks. None: it is not configured any more."""
    scope = SCOPE.get()
    return scope is None or service in scope


def service_to_list(wanted: str, services: Collection[str]) -> str:
    """The service whose connections are to be listed; "": of all. wanted: its name; services: the names that there are.
    Raises OperationError."""
    scope = SCOPE.get()
    there_are = [name for name in services if in_scope(name)]
    if not wanted and scope is not None:
        if len(there_are) != 1:
            raise OperationError(422, f"service: say which, of: {', '.join(there_are) or 'none that is configured'}")
        return there_are[0]
    if wanted and wanted not in there_are:
        raise OperationError(404, f'there is no service "{wanted}"; there are: {", ".join(there_are)}')
    return wanted
