# SPDX-License-Identifier: Apache-2.0
"""The inputs that a run starts from, made rather than kept: they change with the layout that their target reads.

`frame` is the description that world_frame (world.c) reads; whatever it asks for beyond these fields stands in `tail`.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

FIN, SYN, RST, ACK = 1, 2, 4, 16
CONNECTIONS = 24
FAR = 0x80
MAPPED = 0x80
"""In `link`: an IPv4 connection's frame as IPv6, with IPv4-mapped addresses."""
LEFT_TO_INTERFACE = 3
"""In `wrong`, though it is not: the TCP checksum is the interface's to compute."""


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


OF_LINUX = b"\4\xb4\x05\1\2\3\4\x07"
"""The options of a SYN of Linux: an MSS of 1460, SACK, timestamps, a window scale of 7."""


def _xdp() -> dict[str, bytes]:
    (do_frame, do_raw, do_phase, do_remove, do_time, do_trouble, do_errand, do_gate, do_sockets, do_offer,
     do_live, do_filter) = (bytes([i]) for i in range(12))  # fmt: skip
    seeds = {}
    everybody = range(CONNECTIONS)
    seeds["probes"] = b"".join(do_frame + frame(c, seq=-1) for c in everybody)
    seeds["asleep-without-a-slot"] = b"".join(
        do_remove + bytes([c]) + do_filter + bytes([c, 0]) + do_frame + frame(c, seq=-1, payload=c) for c in everybody
    )
    seeds["known-for-strangers"] = b"".join(
        do_remove + bytes([c]) + do_filter + bytes([c, 0]) + do_filter + bytes([c, 1]) + do_frame + frame(c, flags=SYN)
        for c in everybody
    )
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
    for trouble in (8, 16):  # no neighbour entry; another interface
        seeds[f"routed-{trouble}"] = do_trouble + bytes([trouble]) + b"".join(
            do_frame + frame(c, seq=-1) + do_frame + frame(c, seq=-1, payload=1) + do_frame + frame(c, flags=SYN)
            for c in everybody
        ) + do_gate + b"\0" + b"".join(do_frame + frame(c, flags=SYN, options=OF_LINUX) for c in (22, 23))  # fmt: skip
    seeds["far"] = b"".join(do_frame + frame(c, seq=70000, ack=-70000, payload=3) for c in everybody)
    for trouble, link in product((0, 16, 32), range(1, 5)):  # routed by the interface; another; the VLAN device
        seeds[f"tagged-{trouble}-{link}"] = do_trouble + bytes([trouble]) + b"".join(
            do_frame + frame(c, seq=-1, link=link, fragment=c % 2)
            + do_frame + frame(c, payload=c % 4, link=link) + do_frame + frame(c, flags=SYN, link=link)
            for c in (0, 2, 3, 5, 8, 12, 21)
        ) + do_gate + b"\0" + b"".join(
            do_frame + frame(c, flags=SYN, options=OF_LINUX, link=link) for c in (22, 23)
        )  # fmt: skip
    seeds["mapped"] = b"".join(
        do_frame + frame(c, seq=-1, link=MAPPED) + do_frame + frame(c, payload=c, link=MAPPED) for c in everybody
    )
    seeds["mapped-without-a-slot"] = b"".join(
        do_remove + bytes([c]) + do_filter + bytes([c, 0]) + do_frame + frame(c, payload=c, link=MAPPED)
        for c in everybody
    )
    seeds["born-mapped"] = do_gate + b"\0" + do_frame + frame(22, flags=SYN, options=OF_LINUX, link=MAPPED)
    seeds["options"] = b"".join(do_frame + frame(c, seq=-1, extensions=b"\1") for c in everybody)
    seeds["extensions"] = b"".join(
        do_frame + frame(1, seq=-1, extensions=bytes(kinds)) for kinds in ([0, 1, 2], [0x31] * 6, [1] * 7, [4], [5])
    )
    seeds["fragments"] = b"".join(do_frame + frame(c, seq=-1, fragment=1 + c % 2) for c in everybody)
    seeds["first-fragments"] = b"".join(
        do_frame + frame(c, payload=100, fragment=1, extensions=b"\4", flags=ACK | (RST if c > 20 else 0))
        for c in everybody
    )
    seeds["first-fragments-without-a-slot"] = b"".join(
        do_remove
        + bytes([c])
        + do_filter
        + bytes([c, 0])
        + do_frame
        + frame(c, payload=9, fragment=1, extensions=b"\4")
        for c in everybody
    )
    for bit in range(8):
        seeds[f"wrong-{bit}"] = b"".join(
            do_frame + frame(c, seq=-1, payload=c % 2, wrong=1 << bit, tail=bytes([c, c, c])) for c in everybody
        )
    seeds["left-to-interface"] = b"".join(
        do_frame + frame(c, seq=-1, payload=c, wrong=LEFT_TO_INTERFACE) for c in everybody
    )
    for size in (1, 57, 100, 200):
        seeds[f"long-wrong-{size}"] = b"".join(
            do_frame + frame(c, payload=size, wrong=wrong, tail=b"\1")
            for c in everybody
            for wrong in (0, 1, 64)[c % 3 :]
        )
    seeds["cut"] = b"".join(do_frame + frame(c, wrong=64, payload=c, tail=bytes([4 * c])) for c in everybody)
    seeds["tcp-options"] = do_frame + frame(0, seq=-1, options=b"\3\x0a\1\1\x05\x02\x08\x0a\0\0\0\1")
    seeds["phases"] = b"".join(
        do_phase + bytes([c, p]) + do_frame + frame(c, seq=-1) for c in (0, 1, 22) for p in range(5)
    )
    seeds["removed"] = b"".join(do_remove + bytes([c]) + do_frame + frame(c, seq=-1) for c in everybody)
    offers = (b"\0", OF_LINUX, timestamps(9), b"\3\x04\x02\x04\x05\xb4", b"\3\x07\x03\x03\x0e\x02\x04\x02\x18")
    for n, offer in enumerate(offers):
        seeds[f"born-{n}"] = (
            do_gate
            + b"\0"
            + b"".join(
                do_frame
                + frame(c, flags=SYN, options=offer)
                + do_frame
                + frame(c, seq=-1)
                + do_frame
                + frame(c, payload=3)
                for c in (22, 23)
            )
        )
    seeds["born-wrong"] = (
        do_gate
        + b"\0"
        + b"".join(do_frame + frame(22, flags=SYN, options=OF_LINUX, wrong=bit, tail=b"\7") for bit in (1, 2))
    )
    seeds["born-again"] = (
        do_gate + b"\0" + b"".join(do_frame + frame(c, flags=SYN, options=OF_LINUX) for c in everybody)
    )
    seeds["born-late"] = (
        do_gate + b"\0" + do_frame + frame(22, flags=SYN) + do_time + b"\xff\xff" + do_frame + frame(22)
    )
    for n, offer in enumerate((OF_LINUX, b"\0")):
        syn, ack = do_frame + frame(22, flags=SYN, options=offer), do_frame + frame(22, seq=-1)
        ends = do_remove + bytes([128 | 22])
        seeds[f"born-replayed-{n}"] = do_gate + b"\0" + syn + ack + ends + ack + syn + do_time + b"\x28\0" + syn + ack
        seeds[f"born-guessed-{n}"] = do_gate + b"\0" + syn + ack + do_gate + b"\x40" + ack
    seeds["storm"] = do_gate + b"\2" + 5 * (do_frame + frame(22, flags=SYN, options=OF_LINUX) + do_remove + b"\x16")
    seeds["born-a-socket"] = do_gate + b"\0" + do_sockets + b"\2" + do_frame + frame(22, flags=SYN, options=OF_LINUX)
    seeds["trouble"] = do_trouble + b"\3" + do_frame + frame(0, payload=9) + do_frame + frame(0, seq=-1)
    seeds["short"] = do_raw + bytes([14]) + bytes(12) + b"\x81\0"
    seeds["raw"] = do_raw + bytes([20]) + bytes(12) + b"\x08\x06" + bytes(6)
    seeds["errands"] = b"".join(do_errand + bytes([how, how]) + frame(how, payload=how) for how in (0, 9))
    for how in range(16):
        version = b"\x45" if how % 3 else b"\x60"
        probes = b"".join(bytes([what]) + version + bytes(range(what, what + 71)) for what in (0, 1, 2, 3, 4, 24))
        offered = do_offer + bytes([how, 6]) + probes
        seeds[f"probed-{how}"] = offered + 7 * (do_live + bytes(16))
        seeds[f"probed-by-answers-{how}"] = offered + b"".join(
            do_frame + frame(c % 4, options=timestamps(9) if c % 2 else b"\0", link=c == 5) for c in range(8)
        )
    for room in (2, 4, 6):
        without = do_trouble + bytes([room])
        seeds[f"probed-without-room-{room}"] = without + offered + b"".join(do_frame + frame(c) for c in range(8))
        seeds[f"answered-without-room-{room}"] = without + b"".join(
            do_frame + frame(c, seq=-1, payload=c % 2) + do_frame + frame(c, flags=SYN) for c in everybody
        )
        seeds[f"born-without-room-{room}"] = (
            without + do_gate + b"\0" + b"".join(do_frame + frame(22, flags=SYN, options=offer) for offer in offers)
        )
    seeds["errands-forged"] = do_errand + b"\2\0\0\0" + frame(0)
    seeds["errands-sizes"] = (
        do_errand + b"\4\0" + frame(0) + b"\x0d\0\0\0" + do_errand + b"\5\0" + frame(1) + b"\x01\x08"
    )
    return seeds


def _segment() -> dict[str, bytes]:
    raw, made, own = (bytes([i]) for i in range(3))
    seeds = {f"made-{c}": made + frame(c, seq=-1, payload=c, options=timestamps(1)) for c in range(4)}
    seeds |= {
        f"wrong-{bit}": made + frame(bit % 2, payload=3, wrong=1 << bit, tail=b"\x0b\x0c\x0d") for bit in range(8)
    }
    seeds |= {f"left-{c}": made + frame(c, payload=c, wrong=LEFT_TO_INTERFACE) for c in range(4)}
    seeds["extensions"] = made + frame(1, extensions=b"\x10\x21\x32")
    for flags in (ACK, ACK | FIN, ACK | 0x20, SYN, RST):
        for c in range(2):
            seeds[f"long-{flags}-{c}"] = made + frame(c, flags=flags, payload=1400, options=timestamps(1))
    seeds["own-ipv4"] = own + bytes([2]) + bytes(29) + b"\1\1" + bytes(36)
    seeds["own-ipv6"] = own + bytes([0]) + bytes(29) + b"\0\0" + bytes(range(36))
    seeds["raw-ipv6"] = raw + b"\0" + b"\x60\0\0\0\0\x28\0\x40" + bytes(32) + b"\x3c\xff" + bytes(6) + bytes(40)
    seeds["raw-ipv4"] = raw + b"\0" + b"\x45\0\xff\xff\0\0\x40\0\x40\6\0\0" + bytes(8) + bytes(20)
    return seeds


def _inband() -> dict[str, bytes]:
    whole, bytewise, mixed = bytes([1]) + b"\xff" * 8, bytes([1]) + b"\0" * 8, bytes([1, 0, 3, 7, 8, 9, 16, 40, 100])

    def literal(data: bytes) -> bytes:
        pieces = (data[at : at + 64] for at in range(0, len(data), 64))
        return b"".join(bytes([(len(piece) - 1) << 2]) + piece for piece in pieces)

    def sealed(body: bytes) -> bytes:
        return b"\2" + bytes([len(body)]) + body

    bodies = (
        b"m 1? ping",
        b"m 2 done",
        b"m@edge-1 3?> quiet active=5000 standby=never idle=60000",
        b"m 4 keepalive on interval=30000",
        b"m 5 keepalive off",
        b"m 6 always-active on",
        b"m 7 name sensor-17.attic",
        b"m 8 sleep",
        b"m 65535? status",
        b"m 9! ping",
        b"m 13? release",
        b"m 10 unknown-verb with arguments",
        b"m@other 11 ping",
        b"c 12 ping",
        b"m 13 quiet active=0",
        b"m 14 name " + b"n" * 63,
    )
    seeds = {f"request-{i}": mixed + literal(b"before") + sealed(body) for i, body in enumerate(bodies)}
    for name, head in (("whole", whole), ("bytewise", bytewise), ("mixed", mixed)):
        seeds[f"all-{name}"] = head + b"".join(sealed(body) + literal(b"between") for body in bodies)
    seeds["beginnings"] = mixed + literal(b"\x10\x10ROOST/1\x10ROOST/1 \x10ROOST/1 m 1 ping 00000000\n")
    seeds["unfinished"] = bytewise + literal(b"x\x10ROOST/1 m 1 ping")
    seeds["longest"] = mixed + literal(b"\x10ROOST/1 ") + literal(b"a" * 250) + literal(b"\n")
    seeds["own"] = bytewise + (b"\3" + bytes(13) + b"\7" + bytes(29)) + (b"\3" + bytes(13) + b"\x80" + bytes(29))
    return seeds


def _proxy() -> dict[str, bytes]:
    key = bytes.fromhex("20010db8000000000000000000000001 20010db8000000000000000000000002 c350 01bb")
    seeds = {f"how-{how}": bytes([how]) + key for how in range(4)}
    seeds["longest"] = b"\2" + b"\xff" * 36
    return seeds


def _tc() -> dict[str, bytes]:
    guard, loopback, lookup, clients, servers, phase, remove, trouble, manage, sleeps, connect = (
        bytes([i]) for i in range(11)
    )
    everybody = range(CONNECTIONS)
    seeds = {}
    seeds["guard"] = b"".join(guard + frame(c, seq=c % 3, flags=RST) for c in everybody)
    seeds["guard-far"] = b"".join(guard + frame(c, seq=-0x10000000, flags=RST) for c in everybody)
    seeds["guard-mapped"] = b"".join(guard + frame(c, flags=RST, link=MAPPED) for c in everybody)
    seeds["guard-others"] = b"".join(guard + frame(c, flags=ACK, link=c % 4) for c in everybody)
    seeds["guard-without-a-slot"] = b"".join(
        remove + bytes([c]) + sleeps + bytes([c, 0]) + guard + frame(c, flags=RST | (ACK if c % 3 else 0))
        for c in everybody
    )
    seeds["lookup-without-a-slot"] = b"".join(
        remove + bytes([c]) + sleeps + bytes([c, 0]) + lookup + bytes([c, 8 if c % 3 else 0, c % 2]) for c in everybody
    )
    seeds["loopback"] = b"".join(loopback + frame(c, payload=c * 10) + b"\0" for c in everybody)
    seeds["loopback-long"] = b"".join(
        loopback + frame(c, payload=1400) + b"\xff" + n for c, n in enumerate((b"\0\3", b"\0\x40", b"\xff\xff"))
    )
    seeds["lookup"] = b"".join(lookup + bytes([c, c % 8, *[c] * (2 * (c & 1) + (c & 2)), c // 8]) for c in everybody)
    for name, how in (("open", b"\0"), ("closed", b"\1"), ("everywhere", b"\7"), ("attach", b"\x08")):
        known = manage + b"\0" + how + manage + b"\1" + how
        for flags in (SYN, ACK, SYN | ACK, RST, RST | ACK):
            packets = b"".join(
                side + frame(c, flags=flags, payload=c) + bytes([sockets, cookie])
                for side in (clients, servers)
                for c in (0, 1, 22, 23)
                for sockets, cookie in ((0, 0), (1, 0), (1, 1), (2, 0), (4, 1))
            )
            seeds[f"steer-{name}-{flags}"] = known + packets
    seeds["steer-legs"] = b"".join(
        side + frame(c, payload=c, fragment=c % 2) + b"\0\0" for side in (clients, servers) for c in everybody
    )
    seeds["steer-left-to-interface"] = (
        manage + b"\0\1" + clients + frame(0, flags=SYN, options=OF_LINUX, wrong=LEFT_TO_INTERFACE) + b"\0\0"
    )
    seeds["steer-fragments"] = clients + frame(0, fragment=1) + b"\2\0" + clients + frame(0, fragment=2) + b"\0\0"
    seeds["trouble"] = trouble + b"\xff" + guard + frame(0, flags=RST) + loopback + frame(0)
    seeds["local-connect"] = b"".join(
        connect + bytes([c, how, more | c % 4, *[c] * (2 if how == 16 else 0)])
        for c in everybody
        for how, more in ((0, 0), (0, 4), (0, 8), (0, 16), (1 << c % 8 & ~16, 36), (16, 16))
    ) + b"".join(remove + bytes([c]) + connect + bytes([c, 0, s]) for s, c in enumerate((0, 1, 22)))
    seeds["phases"] = phase + b"\0\3" + guard + frame(0, flags=RST) + remove + b"\0" + guard + frame(0, flags=RST)
    return seeds


def _both_tables(seeds: Mapping[str, bytes]) -> dict[str, bytes]:
    """Each once with a table that is as large as it was, and once with one that grows."""
    return {f"{name}-{grows}": bytes([grows]) + data for name, data in seeds.items() for grows in (0, 1)}


SEEDS: Mapping[str, Mapping[str, bytes]] = {
    "xdp": _both_tables(_xdp()),
    "tc": _both_tables(_tc()),
    "segment": _segment(),
    "inband": _inband(),
    "proxy": _proxy(),
}
