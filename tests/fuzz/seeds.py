# SPDX-License-Identifier: Apache-2.0
"""The inputs that a run starts from, made rather than kept: they change with the layout that their target reads.

`frame` is the description that world_frame (world.c) reads; whatever it asks for beyond these fields stands in `tail`.
"""

from __future__ import annotations

from collections.abc import Mapping

FIN, SYN, RST, ACK = 1, 2, 4, 16
CONNECTIONS = 24
FAR = 0x80


def near(delta: int) -> bytes:
    """A sequence number, relative to the record: one signed byte, or five when it is farther away."""
    return bytes([delta & 0xFF]) if -127 <= delta <= 127 else bytes([FAR]) + (delta & 0xFFFFFFFF).to_bytes(4, "little")


def frame(
    connection: int,
    *,
    seq: int = 0,
    ack: int = 0,
    flags: int = ACK,
    payload: int = 0,
    options: bytes = b"\0",
    link: int = 0,
    extensions: bytes = b"",
    wrong: int = 0,
    fragment: int = 0,
    tail: bytes = b"",
) -> bytes:
    """A frame of a connection: even ones are IPv4, and of `extensions` only the number counts; odd ones IPv6."""
    kinds = extensions if connection % 2 else b""
    size = bytes([payload]) if payload < 255 else b"\xff" + payload.to_bytes(2, "little")
    head = bytes([connection, link, len(extensions), wrong, fragment])
    return head + kinds + near(seq) + near(ack) + bytes([flags]) + options + size + tail


def timestamps(delta: int, *, moved: bool = False) -> bytes:
    """The option, its TSval relative to ts_recent; moved: behind another option."""
    return bytes([2 if moved else 1]) + near(delta)


def _xdp() -> dict[str, bytes]:
    do_frame, do_raw, do_phase, do_remove, do_time, do_trouble, do_errand = (bytes([i]) for i in range(7))
    seeds = {}
    everybody = range(CONNECTIONS)
    seeds["probes"] = b"".join(do_frame + frame(c, seq=-1) for c in everybody)
    seeds["probes-of-one-byte"] = b"".join(do_frame + frame(c, seq=-1, payload=1) for c in everybody)
    seeds["probes-timestamps"] = b"".join(
        do_frame + frame(c, seq=-1, options=timestamps(c - 5, moved=c % 3 == 0)) for c in everybody
    )
    seeds["probe-answers"] = b"".join(do_frame + frame(c, options=timestamps(9)) for c in everybody)
    seeds["data"] = b"".join(do_frame + frame(c, payload=7) for c in everybody)
    seeds["data-long"] = b"".join(do_frame + frame(c, payload=1400) for c in everybody)
    seeds["data-too-long"] = do_frame + frame(0, payload=2400) + do_frame + frame(4, payload=2400)
    seeds["ends"] = b"".join(do_frame + frame(c, flags=ACK | FIN) for c in everybody)
    seeds["resets"] = b"".join(do_frame + frame(c, seq=c % 3, flags=RST) for c in everybody)
    seeds["challenged"] = b"".join(
        do_frame + frame(c, flags=SYN) + do_frame + frame(c, ack=1) + do_time + b"\0\4" + do_frame + frame(c, seq=-9)
        for c in everybody
    )
    seeds["far"] = b"".join(do_frame + frame(c, seq=70000, ack=-70000, payload=3) for c in everybody)
    seeds["tagged"] = b"".join(do_frame + frame(c, seq=-1, link=1 + c % 3) for c in everybody)
    seeds["options"] = b"".join(do_frame + frame(c, seq=-1, extensions=b"\1") for c in everybody)
    seeds["extensions"] = b"".join(
        do_frame + frame(1, seq=-1, extensions=bytes(kinds)) for kinds in ([0, 1, 2], [0x31] * 6, [1] * 7, [4], [5])
    )
    seeds["fragments"] = b"".join(do_frame + frame(c, seq=-1, fragment=1 + c % 2) for c in everybody)
    for bit in range(8):
        seeds[f"wrong-{bit}"] = b"".join(
            do_frame + frame(c, seq=-1, payload=c % 2, wrong=1 << bit, tail=bytes([c, c, c])) for c in everybody
        )
    seeds["cut"] = b"".join(do_frame + frame(c, wrong=64, payload=c, tail=bytes([4 * c])) for c in everybody)
    seeds["tcp-options"] = do_frame + frame(0, seq=-1, options=b"\3\x0a\1\1\x05\x02\x08\x0a\0\0\0\1")
    seeds["phases"] = b"".join(
        do_phase + bytes([c, p]) + do_frame + frame(c, seq=-1) for c in (0, 1, 22) for p in range(5)
    )
    seeds["removed"] = b"".join(do_remove + bytes([c]) + do_frame + frame(c, seq=-1) for c in everybody)
    seeds["trouble"] = do_trouble + b"\3" + do_frame + frame(0, payload=9) + do_frame + frame(0, seq=-1)
    seeds["short"] = do_raw + bytes([14]) + bytes(12) + b"\x81\0"
    seeds["raw"] = do_raw + bytes([20]) + bytes(12) + b"\x08\x06" + bytes(6)
    seeds["errands"] = b"".join(do_errand + bytes([how, how]) + frame(how, payload=how) for how in (0, 1, 8, 9))
    seeds["errands-forged"] = do_errand + b"\2\0\0\0" + frame(0)
    seeds["errands-sizes"] = (
        do_errand + b"\4\0" + frame(0) + b"\x0d\0\0\0" + do_errand + b"\5\0" + frame(1) + b"\x01\x08"
    )
    return seeds


SEEDS: Mapping[str, Mapping[str, bytes]] = {"xdp": _xdp()}
