# SPDX-License-Identifier: Apache-2.0
"""The engine's types as Python has them, without the C extension: keys, records, commands, events, settings.

Code that reads a record, a row of the store or the configuration needs these alone; appliance/engine is the binding.
"""

from __future__ import annotations

from appliance.wire.addresses import ServerAddress, endpoint_text, pack_address, packed_ipv4, unpack_address
from appliance.wire.counts import SILENCES_S, Census, Silences, Tally
from appliance.wire.messages import (
    CANDIDATE,
    ENDS,
    GIVEN_GROUP,
    NO_ENDS,
    NO_FIRST_BYTE,
    OVERRIDES,
    OVERRIDES_BYTES,
    ROW,
    SERVED,
    TOKEN_COUNTED,
    Command,
    Ends,
    Event,
    EventType,
    Obstacle,
    Obstacles,
    Op,
    Own,
    Served,
    Verb,
    transitions,
)
from appliance.wire.record import KA, KEY, LOW_BITS, NO_REST, REST, ROW_BITS, Key, Record
from appliance.wire.settings import (
    ANY_LOCAL,
    NEAR_ENDS,
    PLACES,
    PROBE_COUNT,
    PROBE_COUNT_MAX,
    PROBE_RETRY_S,
    SERVERS_MAX,
    WAITING_MAX,
    Balance,
    Born,
    Bounds,
    EngineOptions,
    Limit,
    Limited,
    OnServerClose,
    Priority,
    RuleEntry,
    SecondServer,
    ServerStatus,
    ServiceSpec,
    Sought,
    default_workers,
)
