# SPDX-License-Identifier: Apache-2.0
"""A connection's 4-tuple and record: the structs of ebpf/shared/record.h, packed as C has them.

The numbers are those of the C headers (tests/unit/test_wire.py holds them together).
"""

from __future__ import annotations

import struct
import time
from dataclasses import dataclass
from typing import Final

from appliance.wire.addresses import endpoint_text, pack_address, unpack_address

KEY: Final = struct.Struct("=16s16s2s2s")
"""struct roost_key: client, local, client_port, local_port, the ports in network order."""

KA: Final = struct.Struct("=IIIIIIHHIHH")
"""struct roost_ka and, behind it, the index of the service: ctl, snd_nxt, rcv_nxt, ts_offset, ts_recent, heard, window,
class, rest, service, reserved."""

REST: Final = struct.Struct("=QQIIIHHII")
"""struct roost_rest: id, active_ms, snd_wnd, max_window, sleep_asked_s, mss, sleep_wanted, peer, peer_version."""

NO_REST: Final = 0xFFFFFFFF
"""ROOST_NO_REST: of roost_ka.rest."""

ROW_BITS: Final = 30
"""ROOST_ROW_BITS: so many of a number's low bits stand in the slot of a connection in SLEEP."""

LOW_BITS: Final = 1 << 63
"""Of a reference: it has the low bits of the number alone."""

PAIRED: Final = 8
"""ROOST_F_PAIRED, of roost_ka.ctl >> 16."""

HEARD_SHIFT: Final = 12
"""ROOST_HEARD_SHIFT: where the seconds of roost_ka.heard begin."""

HEARD_WRAP_S: Final = 1 << 20
"""ROOST_HEARD_WRAP_S: they are kept modulo this."""


_REST_INDEX: Final = struct.Struct("=28xI4x")  # roost_ka.rest


def low_bits_of(ka: bytes) -> int:
    """The reference that KA has in place of the index of a rest slot (ROOST_ROW); 0: none."""
    rest = int(_REST_INDEX.unpack(ka)[0])
    return LOW_BITS | rest & (1 << ROW_BITS) - 1 if rest >> ROW_BITS == 1 else 0


@dataclass(frozen=True, slots=True)
class Key:
    """A 4-tuple; addresses are 16 bytes, ports in host order."""

    client: bytes
    client_port: int
    local: bytes
    local_port: int

    @classmethod
    def of(cls, client_ip: str, client_port: int, local_ip: str, local_port: int) -> Key:
        """From texts; ValueError when an address is none."""
        return cls(pack_address(client_ip), client_port, pack_address(local_ip), local_port)

    @classmethod
    def unpack(cls, raw: bytes) -> Key:
        """From the 36 bytes of struct roost_key."""
        client, local, client_port, local_port = KEY.unpack(raw)
        return cls(client, int.from_bytes(client_port, "big"), local, int.from_bytes(local_port, "big"))

    def pack(self) -> bytes:
        """The 36 bytes of struct roost_key."""
        return KEY.pack(
            self.client, self.local, self.client_port.to_bytes(2, "big"), self.local_port.to_bytes(2, "big")
        )

    @property
    def client_text(self) -> str:
        """As text: `192.0.2.7:40123` or `[2001:db8::1]:443`."""
        return endpoint_text((unpack_address(self.client), self.client_port))

    @property
    def local_text(self) -> str:
        """The appliance's side, written like client_text."""
        return endpoint_text((unpack_address(self.local), self.local_port))


@dataclass(slots=True)
class Record:
    """A connection's record: key, and the raw bytes of KA (36) and of struct roost_rest (40)."""

    key_raw: bytes
    ka: bytes
    rest: bytes
    peer: Record | None = None
    """Of a pair, where it is known: its server's leg."""

    @property
    def paired(self) -> bool:
        """Whether it sleeps with its server's leg."""
        return bool(KA.unpack(self.ka)[0] >> 16 & PAIRED)

    @property
    def key(self) -> Key:
        """The 4-tuple."""
        return Key.unpack(self.key_raw)

    @property
    def snd_nxt(self) -> int:
        """Our next sequence number."""
        return int(KA.unpack(self.ka)[1])

    @property
    def rcv_nxt(self) -> int:
        """The sequence number expected from the client."""
        return int(KA.unpack(self.ka)[2])

    @property
    def ts_offset(self) -> int:
        """TSval minus CLOCK_MONOTONIC in ms, modulo 2^32."""
        return int(KA.unpack(self.ka)[3])

    @property
    def heard_s(self) -> int:
        """CLOCK_MONOTONIC seconds when the client was last heard, modulo 2^20."""
        return int(KA.unpack(self.ka)[5]) >> HEARD_SHIFT

    @property
    def silence_s(self) -> int:
        """Seconds since the client was last heard; six days stand for more."""
        return min((time.monotonic_ns() // 10**9 - self.heard_s) % HEARD_WRAP_S, HEARD_WRAP_S // 2)

    @property
    def probes_unanswered(self) -> int:
        """Probes that the appliance has sent since it heard the client."""
        return int(KA.unpack(self.ka)[5]) & 0xF

    @property
    def service(self) -> int:
        """Index of the service."""
        return int(KA.unpack(self.ka)[9])

    @property
    def id(self) -> int:
        """The connection's number; 0 when the record has none at hand (SLEEP)."""
        return int(REST.unpack(self.rest)[0])

    @property
    def reference(self) -> int:
        """What is known of the connection's number: all of it; in SLEEP its low bits, with LOW_BITS; 0: nothing, and
        its row is found by its key."""
        return self.id or low_bits_of(self.ka)

    @property
    def active_ms(self) -> int:
        """CLOCK_MONOTONIC ms of the last payload byte."""
        return int(REST.unpack(self.rest)[1])

    def shifted(self, ms: int, timestamps_ms: int) -> Record:
        """The same record on a CLOCK_MONOTONIC that is ms ahead of the one it was made on (after a reboot: the clock
        of the new boot minus what the old one would show now, mostly negative). timestamps_ms: the same of the clock
        of its TSvals."""
        ka = list(KA.unpack(self.ka))
        ka[3] = (ka[3] - timestamps_ms) % 2**32
        when, rest_of_heard = divmod(ka[5], 1 << HEARD_SHIFT)
        ka[5] = (when + ms // 1000) % HEARD_WRAP_S << HEARD_SHIFT | rest_of_heard
        rest = list(REST.unpack(self.rest))
        rest[1] = max(0, rest[1] + ms)
        return Record(self.key_raw, KA.pack(*ka), REST.pack(*rest), self.peer and self.peer.shifted(ms, timestamps_ms))
