# SPDX-License-Identifier: Apache-2.0
"""What of a changed configuration a running daemon takes over, and what waits for a restart."""

from __future__ import annotations

from typing import Any, Final

from control.config import Config, Service

_FIXED: Final = ("listen", "kind", "transparent", "source", "interface")
_SERVERS: Final = ("server", "servers")


def _fixed(service: Service) -> dict[str, Any]:
    """What of a service cannot be changed while the daemon runs: of a persistent one its servers neither, for they are
    heard on the interfaces that were found at start."""
    keys = _FIXED + (_SERVERS if service.interface == "persistent" else ())
    return {key: getattr(service, key) for key in keys}


def reloaded(old: Service, new: Service) -> Service:
    """What is taken over of a service's new configuration while the daemon runs. Where a key that is fixed has changed
    the servers stay, too: they belong together."""
    kept = _fixed(old)
    if _fixed(new) != kept:
        kept |= {key: getattr(old, key) for key in _SERVERS}
    return new.model_copy(update=kept)


def waits_for_a_restart(new: Service, running: Config) -> str:
    """Why a service that is new is not taken in by a running daemon; empty: it is. How many connections may be awake
    depends on whether the daemon is a server itself (descriptors_each)."""
    if new.kind != "server":
        return f'is new, and kind = "{new.kind}"'
    return (
        "is new, and needs [router]" if (new.transparent or new.source == "client") and not running.router.lan else ""
    )


def needs_restart(old: Config, new: Config) -> list[str]:
    """The changed keys that wait for a restart: a running daemon takes over the policy, what it does under pressure,
    limits, exports, the API, agents that may come, the servers, and services that come and go. old: with the services
    that the daemon has now."""
    taken_over = ("policy", "pressure", "limits", "export", "api", "agent", "service")
    sections = [key for key in Config.model_fields if key not in taken_over]
    changed = [section for section in sections if getattr(old, section) != getattr(new, section)]
    before, after = ({service.name: service for service in config.service} for config in (old, new))
    told = {name: _not_taken(before.get(name), after.get(name), old) for name in sorted(before | after)}
    if "dial" in old.absent.steps and old.dial_services != new.dial_services:
        changed.append("the service by which clients are dialled")
    return changed + [f'[[service]] "{name}" ({what})' for name, what in told.items() if what]


def _not_taken(old: Service | None, new: Service | None, running: Config) -> str:
    """What of a service waits for a restart; empty: nothing."""
    if old is None or new is None:
        return waits_for_a_restart(new, running) if new is not None else ""
    kept = reloaded(old, new)
    return ", ".join(key for key in (*_FIXED, *_SERVERS) if getattr(kept, key) != getattr(new, key))
