# SPDX-License-Identifier: Apache-2.0
"""What can be asked of a running daemon, apart from the way it is asked."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from control.channel.status import Status
from control.channel.tokens import Tokens
from control.clients.explain import Explainer
from control.clients.giving import Giving
from control.clients.jobs import Jobs
from control.clients.moving import Moving
from control.clients.naming import Naming
from control.clients.ruling import Ruling
from control.clients.view import View
from control.store.appended import Audit


@dataclass(frozen=True, slots=True)
class Operations:
    """agents: the clients that agents speak for. dialled: the clients that were dialled in vain. offer: where to
    connect to reach a client. ticket: for a client, and who asks. record: takes a row for each change that is asked
    for. document: of the API (OpenAPI), JSON; raises OperationError."""

    status: Status
    view: View
    explainer: Explainer
    naming: Naming
    moving: Moving
    ruling: Ruling
    giving: Giving
    jobs: Jobs
    tokens: Tokens
    agents: Callable[[], list[dict[str, Any]]]
    dialled: Callable[[], list[dict[str, Any]]]
    offer: Callable[[str], Awaitable[dict[str, Any]]]
    ticket: Callable[[str, str], Awaitable[dict[str, Any]]]
    record: Callable[[Audit], None]
    document: Callable[[], Awaitable[bytes]]
