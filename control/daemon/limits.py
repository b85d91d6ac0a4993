# SPDX-License-Identifier: Apache-2.0
"""Descriptors: how many connections may be awake, and how many are kept for all else."""

from __future__ import annotations

import resource
from typing import Final

from appliance.frontends.frontend import MAX_HANDSHAKES, MAX_RELEASED, MAX_TURNED_AWAY
from appliance.wire import SERVERS_MAX, WAITING_MAX
from control.config import Config

SPARE_DESCRIPTORS: Final = 512


def spare_descriptors(config: Config) -> int:
    """Those that are not for client connections and their links."""
    asking = MAX_HANDSHAKES + MAX_TURNED_AWAY + MAX_RELEASED if config.attach.listen else 0
    may_wait = any(service.policy(config.policy).on_second_server != "refuse" for service in config.service)
    dials = "dial" in config.absent.steps
    ready = sum(
        (service.ready_links + service.reuse_links) * (SERVERS_MAX if service.hostnames else len(service.every_server))
        for service in config.service
    )
    spare = SPARE_DESCRIPTORS + asking + ready + (WAITING_MAX if may_wait or config.router.wait or dials else 0)
    return spare + (config.absent.dial_limit if dials else 0)


def descriptors_each(config: Config) -> int:
    """Those of a client connection that is awake with its server link, of which the daemon has the other end where it
    is the server itself."""
    return 3 if any(service.kind != "server" for service in config.service) else 2


def descriptor_share(config: Config) -> int:
    """Client connections that the descriptor limit allows awake; raises the soft limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return max((min(hard, 2_000_000) - spare_descriptors(config)) // descriptors_each(config), 64)
