# SPDX-License-Identifier: Apache-2.0
"""What each role may ask for: the routes of the local API (control/channel/), and who has them by the network."""

from __future__ import annotations

from typing import Final, NamedTuple

from control.core.access import Role

EVENTS: Final = "/v1/events"
"""Answered by the API's process itself (stream.py)."""

ATTACH: Final = "/v1/connections/{name}/attach"
"""May become a byte stream here (upgrade.py)."""

METRICS: Final = "/metrics"
"""Likewise, of the daemon's status (metrics.py)."""

ME: Final = "/v1/me"
"""Likewise, of the token; the daemon has no such route."""

_RANKS: Final = (Role.VIEWER, Role.OPERATOR, Role.ADMIN)


class Access(NamedTuple):
    """A route. least: who may, and whoever may do more. server: so may servers, of connections of their services."""

    method: str
    path: str
    least: Role
    server: bool = False

    def allows(self, role: Role) -> bool:
        return self.server if role is Role.SERVER else _RANKS.index(role) >= _RANKS.index(self.least)


def _of(least: Role, routes: str, server: bool = False) -> tuple[Access, ...]:
    lines = (line.split() for line in routes.strip().splitlines())
    return tuple(Access(method, path, least, server) for method, path in lines)


ACCESS: Final = (
    *_of(Role.VIEWER, """
        GET /v1/connections
        GET /v1/connections/{name}
        GET /v1/connections/{name}/explain
        GET /v1/connections/{name}/policy
        GET /v1/names/{name}/tags
        GET /v1/events
        GET /v1/jobs
        GET /v1/jobs/{number}
        GET /v1/openapi.json
        GET /v1/me
    """, server=True),
    *_of(Role.OPERATOR, """
        POST /v1/connections/{name}/attach
        POST /v1/connections/{name}/standby
        POST /v1/connections/{name}/idle
        POST /v1/connections/{name}/sleep
        POST /v1/connections/{name}/wake
        POST /v1/connections/{name}/close
        PUT /v1/connections/{name}/policy
        PUT /v1/names/{name}/tags
        POST /v1/jobs
        DELETE /v1/jobs/{number}
    """, server=True),
    *_of(Role.VIEWER, """
        GET /metrics
        GET /v1/status
        GET /v1/tags
        GET /v1/agents
        GET /v1/dialled
        GET /v1/history
        GET /v1/attaches
        GET /v1/snapshots
        GET /v1/policy
        GET /v1/policy/history
        GET /v1/policy/explain
        GET /v1/policy/rules/{name}
    """),
    *_of(Role.OPERATOR, """
        PUT /v1/connections/{connection}/name
        DELETE /v1/connections/{connection}/name
        DELETE /v1/names/{name}
        PUT /v1/policy/rules/{name}
        DELETE /v1/policy/rules/{name}
        PUT /v1/policy/rules
        POST /v1/policy/rollback
        POST /v1/policy/try
    """),
    *_of(Role.ADMIN, """
        GET /v1/audit
        GET /v1/tokens
        POST /v1/tokens
        DELETE /v1/tokens/{which}
    """),
)  # fmt: skip

CONTROL: Final = Access("GET", "/v1/control", Role.VIEWER, server=True)
"""Likewise, a WebSocket (control.py): each of its requests is for whom ACCESS says."""
