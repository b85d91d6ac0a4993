# SPDX-License-Identifier: Apache-2.0
"""Handshakes that no SYN began: no client is born by an acknowledgement without a cookie of ours, whatever they carry,
and a flood of SYNs leaves nothing.

Two ways in. In the lab, forged segments meet the appliance. And ebpf/xdp/born.h is compiled for this machine, so that
cookies can be made as the appliance makes them, for any minute and with any secret (class Cookies).
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import random
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from scapy.layers.inet import TCP
from scapy.layers.inet6 import IPv6
from scapy.packet import Raw

from appliance.lab import Lab
from appliance.wire import Born, Key
from tests.lab.aging import cookies_told, tell_of_cookies
from tests.lab.engine_lab import EngineLab
from tests.lab.handmade import ADDRESS, LINUX, Handmade, hide
from tests.lab.wire import MOD, Wire, timestamps_of

BOTH = pytest.mark.parametrize("family", [4, 6])
ROOT: Final = Path(__file__).resolve().parents[2]
CLOCK_MONOTONIC_COARSE: Final = 6  # linux/time.h; by which XDP measures
PERIOD_MS: Final = 64_000
HASH_BITS: Final = 27
HARNESS: Final = """
#include "ebpf/xdp/born.h"

__u32 make(const struct roost_births_gate *gate, const struct roost_key *key, __u32 isn, __u32 agreed, __u32 class,
           __u64 now_ms) {
    __u32 period = (__u32)(now_ms / (ROOST_COOKIE_PERIOD_S * 1000));
    return cookie_of(gate, key, isn, period, agreed, class);
}

int good(const struct roost_births_gate *gate, const struct roost_key *key, __u32 cookie, __u32 isn, __u32 agreed,
         __u64 now_ms) {
    return cookie_good(gate, key, cookie, isn, agreed, now_ms);
}

__u32 clock_of(const struct roost_births_gate *gate, const struct roost_key *key) {
    return birth_clock(gate, key);
}
"""


@dataclass(frozen=True)
class Handshake:
    """What a cookie depends on."""

    secret: bytes
    key: Key
    isn: int = 7_000_000
    agreed: int = 0x20 | 0x10 | 9  # timestamps, SACK, window scale 9
    mss_class: int = 7
    now_ms: int = 1_000_000_000


class Cookies:
    """ebpf/xdp/born.h itself."""

    def __init__(self, directory: Path) -> None:
        source, library = directory / "harness.c", directory / "harness.so"
        source.write_text(HARNESS)
        subprocess.run(["clang", "-O2", "-shared", "-fPIC", "-Wall", "-Werror", "-Wno-unused-function",
                        "-Wno-unused-variable", f"-I/usr/include/{os.uname().machine}-linux-gnu",
                        f"-I{ROOT}", str(source), "-o", str(library)], check=True)  # fmt: skip
        self._library = ctypes.CDLL(str(library))
        u32, u64 = ctypes.c_uint32, ctypes.c_uint64
        self._library.make.argtypes = (ctypes.c_char_p, ctypes.c_char_p, u32, u32, u32, u64)
        self._library.make.restype = u32
        self._library.clock_of.argtypes = (ctypes.c_char_p, ctypes.c_char_p)
        self._library.clock_of.restype = u32
        self._library.good.argtypes = (ctypes.c_char_p, ctypes.c_char_p, u32, u32, u32, u64)

    def make(self, h: Handshake) -> int:
        return int(self._library.make(_gate(h), h.key.pack(), h.isn, h.agreed, h.mss_class, h.now_ms))

    def tsval(self, h: Handshake) -> int:
        """Of the SYN-ACK: the clock of this connection, with what was agreed on in the lowest bits."""
        now = h.now_ms + int(self._library.clock_of(_gate(h), h.key.pack()))
        tsval = (now & ~0x1F) | h.agreed & 0x1F
        return (tsval - 32 if tsval > now else tsval) % MOD

    def good(self, h: Handshake, cookie: int) -> bool:
        return bool(self._library.good(_gate(h), h.key.pack(), cookie % MOD, h.isn, h.agreed, h.now_ms))


def _gate(h: Handshake) -> bytes:
    """struct roost_births_gate"""
    return h.secret + bytes(8)


@pytest.fixture(scope="module")
def cookies(tmp_path_factory: pytest.TempPathFactory) -> Cookies:
    return Cookies(tmp_path_factory.mktemp("cookies"))


@pytest.fixture
def handshake() -> Handshake:
    return Handshake(bytes(range(16)), Key.of("10.64.0.1", 40_000, "198.18.0.1", 8000))


# The cookie


def test_a_cookie_is_good_for_the_handshake_it_was_made_for(cookies: Cookies, handshake: Handshake) -> None:
    for mss_class in range(8):
        one = replace(handshake, mss_class=mss_class)
        assert cookies.good(one, cookies.make(one))


def test_a_cookie_with_any_bit_altered_is_bad(cookies: Cookies, handshake: Handshake) -> None:
    cookie = cookies.make(handshake)
    for first in range(32):
        assert not cookies.good(handshake, cookie ^ 1 << first)
        for second in range(first):
            assert not cookies.good(handshake, cookie ^ 1 << first ^ 1 << second), (first, second)


def test_a_cookie_is_bad_for_any_other_handshake(cookies: Cookies, handshake: Handshake) -> None:
    cookie, key = cookies.make(handshake), handshake.key
    here, there = (key.client_text.rsplit(":", 1), ("198.18.0.1", "8000"))
    others = [
        replace(handshake, key=Key.of("10.64.0.2", int(here[1]), there[0], int(there[1]))),
        replace(handshake, key=Key.of(here[0], 40_001, there[0], int(there[1]))),
        replace(handshake, key=Key.of(here[0], int(here[1]), "198.18.0.2", int(there[1]))),
        replace(handshake, key=Key.of(here[0], int(here[1]), there[0], 8001)),
        replace(handshake, key=Key.of(there[0], int(there[1]), here[0], int(here[1]))),
        replace(handshake, secret=handshake.secret[::-1]),
        replace(handshake, secret=handshake.secret[:8] + bytes(8)),
    ]
    others += [replace(handshake, isn=handshake.isn ^ 1 << bit) for bit in range(32)]
    others += [replace(handshake, agreed=handshake.agreed ^ 1 << bit) for bit in range(6)]
    client, local = (bytes(12) + address[12:] for address in (key.client, key.local))  # of IPv6, with the same end
    others += [replace(handshake, key=replace(key, client=client, local=local)),
               replace(handshake, key=replace(key, client=client))]  # fmt: skip
    assert [other for other in others if cookies.good(other, cookie)] == []


def test_a_cookie_lives_for_one_to_two_minutes_and_never_again(cookies: Cookies, handshake: Handshake) -> None:
    start = handshake.now_ms - handshake.now_ms % PERIOD_MS
    for made in (start, start + PERIOD_MS - 1):
        cookie = cookies.make(replace(handshake, now_ms=made))
        for age in (0, 1, 2, 3, 4, 5, 8, 4096):
            first, last = start + age * PERIOD_MS, start + (age + 1) * PERIOD_MS - 1
            good = {cookies.good(replace(handshake, now_ms=now), cookie) for now in (first, last)}
            assert good == {age < 2}, age
        assert not cookies.good(replace(handshake, now_ms=start - 1), cookie), "nor before it was made"


def test_nobody_guesses_a_cookie(cookies: Cookies, handshake: Handshake) -> None:
    """Two minutes and eight classes are good at any time: 16 of 2^32."""
    guess = random.Random(4)
    assert not any(cookies.good(handshake, guess.getrandbits(32)) for _ in range(300_000))


@pytest.mark.parametrize("vary", ["isn", "port", "secret"])
def test_each_bit_of_the_cookie_is_a_coins_toss(cookies: Cookies, handshake: Handshake, vary: str) -> None:
    """Over what an outsider may choose or count up: each bit and each pair of neighbours, within 5 sigma."""
    many = 20_000
    of: dict[str, Callable[[int], Handshake]] = {
        "isn": lambda i: replace(handshake, isn=i),
        "port": lambda i: replace(handshake, key=Key.of("10.64.0.1", 1024 + i, "198.18.0.1", 8000)),
        "secret": lambda i: replace(handshake, secret=i.to_bytes(16)),
    }
    drawn = [cookies.make(of[vary](i)) for i in range(many)]
    allowed = 5 * (many / 4) ** 0.5
    for bit in range(HASH_BITS):
        ones = sum(cookie >> bit & 1 for cookie in drawn)
        assert abs(ones - many / 2) < allowed, bit
        differing = sum((cookie >> bit ^ cookie >> (bit + 1)) & 1 for cookie in drawn) if bit + 1 < HASH_BITS else None
        assert differing is None or abs(differing - many / 2) < allowed, bit
    flipped = [(a ^ b) & (1 << HASH_BITS) - 1 for a, b in itertools.pairwise(drawn)]
    assert abs(sum(map(int.bit_count, flipped)) / len(flipped) - HASH_BITS / 2) < 0.2
    expected_twins = many * many / 2 / 2**HASH_BITS
    assert len(drawn) - len({cookie & (1 << HASH_BITS) - 1 for cookie in drawn}) < expected_twins + 12


# The wire


class Target:
    """An appliance whose clients are born asleep, and the secret of its cookies."""

    def __init__(self, box: EngineLab, wire: Wire) -> None:
        self.box, self.wire = box, wire
        path = str(box.pin_dir / "births_gate")
        out = subprocess.run(["bpftool", "-j", "map", "dump", "pinned", path], capture_output=True, check=True).stdout
        (entry,) = json.loads(out)
        self.secret = bytes(int(byte, 16) for byte in entry["value"][:16])
        self.ahead_ms = 0

    def client(self, family: int, **options: Any) -> Handmade:
        return Handmade(self.wire, self.box.target(family), **options)

    def handshake(self, client: Handmade, mss_class: int = 7) -> Handshake:
        agreed = 0x20 | client.heard & 0x1F if client.clock is not None else 0
        return Handshake(self.secret, client.key, client.isn, agreed, mss_class, self.now_ms())

    def now_ms(self) -> int:
        """By the clock of cookies."""
        return time.monotonic_ns() // 1_000_000 + self.ahead_ms

    def share(self, secret: Sequence[int], ahead_ms: int) -> None:
        self.box.engine.share_cookies(secret, ahead_ms)
        self.secret = b"".join(number.to_bytes(8, "little") for number in secret)
        self.ahead_ms = ahead_ms

    def in_one_minute(self) -> None:
        """Not so near to the minute's end that a cookie made now would be of another one."""
        left = PERIOD_MS - self.now_ms() % PERIOD_MS
        if left < 1000:
            time.sleep(left / 1000 + 0.01)

    def assert_nobody(self) -> None:
        stats = self.box.engine.stats()
        assert {name: stats[name] for name in ("born", "table_ipv4", "table_ipv6", "awake", "frames_held", "accepted")
                if stats[name]} == {}  # fmt: skip

    def assert_refused(self, client: Handmade) -> None:
        """By the kernel, as one that has no such connection: RST with the number that was acknowledged."""
        answer = client.hear()
        assert (str(answer[TCP].flags), answer[TCP].seq) == ("R", client.rcv_nxt)
        assert self.box.engine.find(client.key) is None


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    with EngineLab(service={"born": Born.ALWAYS}) as box, Wire(box) as wire:
        hide(box.lab)
        yield Target(box, wire)


@pytest.fixture
def shared(target: Target) -> Iterator[None]:
    """As if an hour and a half lay between the clocks of this machine and of its pair."""
    before = [int.from_bytes(target.secret[at : at + 8], "little") for at in (0, 8)]
    target.share((0x1234567_89ABCDEF, 0xFEDCBA98_7654321), 5_400_123)
    yield
    target.share(before, 0)


@BOTH
def test_what_the_appliance_sends_is_what_the_harness_makes(target: Target, cookies: Cookies, family: int) -> None:
    """So that what follows forges the right thing."""
    target.in_one_minute()
    offers: list[tuple[int, Any]] = [
        (2, [("MSS", 1300)]),
        (0, [("MSS", 536), ("Timestamp", (1, 0)), ("WScale", 14)]),
    ]
    for mss_class, options in offers:
        client = target.client(family, options=options)
        answer = client.syn()
        assert answer[TCP].seq == cookies.make(target.handshake(client, mss_class))


@BOTH
def test_a_cookie_of_a_pair_is_of_their_secret_and_their_clock(
    target: Target, cookies: Cookies, family: int, shared: None
) -> None:
    """Of two machines with one database either ends what the other one began, and no TSval goes back."""
    target.in_one_minute()
    client = target.client(family)
    answer = client.syn()
    assert answer[TCP].seq == cookies.make(target.handshake(client))
    client.ack()
    target.box.wait(lambda: target.box.engine.find(client.key), "it is born")
    client.keepalive()
    stamps = timestamps_of(client.hear())
    assert stamps is not None
    assert 0 <= stamps[0] - client.heard < 2000, "ms since the SYN-ACK"
    client.send("R", options=[])
    target.box.wait(lambda: target.box.engine.find(client.key) is None, "it is gone")


@BOTH
@pytest.mark.parametrize("age", [0, 1])
def test_a_cookie_of_this_minute_and_of_the_last_is_good(
    target: Target, cookies: Cookies, family: int, age: int
) -> None:
    target.client(family).syn()  # cookies count from here on
    target.in_one_minute()
    client = _with_cookie(target, cookies, family, age)
    client.ack()
    target.box.wait(lambda: target.box.engine.find(client.key), "it is born")
    client.send("R", options=[])
    target.box.wait(lambda: target.box.engine.find(client.key) is None, "it is gone")


@BOTH
@pytest.mark.parametrize("age", [-1, 2, 3, 4, 5])
@pytest.mark.parametrize("word", ["", "data"], ids=["ack", "data"])
def test_a_cookie_of_another_minute_bears_nobody(
    target: Target, cookies: Cookies, family: int, age: int, word: str
) -> None:
    target.in_one_minute()
    client = _with_cookie(target, cookies, family, age)
    client.send("PA", word.encode())
    target.assert_refused(client)
    target.assert_nobody()


def _with_cookie(target: Target, cookies: Cookies, family: int, age: int, options: Any = LINUX) -> Handmade:
    """A client whose SYN was answered that many minutes ago."""
    client = target.client(family, options=options)
    client.snd_nxt, client.heard = client.isn + 1, 9
    now = target.handshake(client)
    then = replace(now, now_ms=now.now_ms - age * PERIOD_MS)
    client.rcv_nxt = (cookies.make(then) + 1) % MOD
    client.heard = cookies.tsval(then)
    return client


@BOTH
def test_an_acknowledgement_with_any_bit_of_the_cookie_altered_bears_nobody(target: Target, family: int) -> None:
    for bit in range(32):
        client = target.client(family)
        client.syn()
        client.rcv_nxt ^= 1 << bit
        client.ack()
        target.assert_refused(client)
    target.assert_nobody()


@BOTH
@pytest.mark.parametrize("word", ["", "!", "data"], ids=["ack", "one-byte", "data"])
def test_a_cookie_of_another_client_or_number_bears_nobody(target: Target, family: int, word: str) -> None:
    victim = target.client(family)
    victim.syn()
    other = target.client(family)
    other.syn()
    for client, numbers in ((other, (victim.snd_nxt, victim.rcv_nxt)), (victim, (victim.snd_nxt + 2, victim.rcv_nxt)),
                            (victim, (victim.isn - 1, victim.rcv_nxt)), (victim, (victim.snd_nxt, 1))):  # fmt: skip
        client.snd_nxt, client.rcv_nxt = numbers
        client.send("PA", word.encode())
        target.assert_refused(client)
    target.assert_nobody()


@pytest.mark.parametrize("ends", ["source", "destination", "both"])
def test_an_ipv6_packet_with_an_ipv4_mapped_address_bears_nobody(target: Target, ends: str) -> None:
    """The cookie is good for the IPv4 addresses that it seems to come from and go to; the slot would be one of IPv6,
    where no look-up finds it. The kernel takes no such packet either."""
    client = target.client(4)
    client.syn()
    mapped = {"src": f"::ffff:{client.address}", "dst": f"::ffff:{client.target[0]}"}
    source = mapped["src"] if ends != "destination" else ADDRESS[6]
    to = mapped["dst"] if ends != "source" else target.box.target(6)[0]
    for flags, payload in (("A", b""), ("PA", b"data"), ("S", b"")):
        target.wire.send(IPv6(src=source, dst=to) / client.tcp(flags) / Raw(payload))
    target.wire.clear()
    target.assert_nobody()
    client.ack()
    target.box.wait(lambda: target.box.engine.find(client.key), "it is born")
    client.send("R", options=[])
    target.box.wait(lambda: target.box.engine.find(client.key) is None, "it is gone")
    target.assert_nobody()


@BOTH
@pytest.mark.parametrize("echo", [1, 1 << 3, 1 << 4, None], ids=["scale-1", "scale-8", "sack", "no-timestamp"])
def test_nobody_is_born_with_options_that_the_syn_did_not_offer(target: Target, family: int, echo: int | None) -> None:
    client = target.client(family)
    client.syn()
    if echo is None:
        client.clock = None
    else:
        client.heard ^= echo
    client.ack()
    target.assert_refused(client)
    target.assert_nobody()


@BOTH
def test_an_echoed_timestamp_of_another_time_bears_nobody(target: Target, family: int) -> None:
    """It must be our clock of the last two minutes: 15 bits more to guess."""
    for later_ms in (10_000, -129_000, *(1 << bit for bit in range(18, 32))):
        client = target.client(family)
        client.syn()
        client.heard = (client.heard + later_ms) % MOD
        client.ack()
        target.assert_refused(client)
    target.assert_nobody()


@BOTH
@pytest.mark.parametrize("options", [LINUX, [("MSS", 1460)]], ids=["timestamps", "bare"])
def test_cookies_count_only_where_some_were_sent(cookies: Cookies, family: int, options: Any) -> None:
    """Without a storm there is nothing to guess. A right cookie counts when the appliance has sent some."""
    with EngineLab(service={"born": Born.STORM, "born_rate": 100_000}) as box, Wire(box) as wire:
        hide(box.lab)
        quiet = Target(box, wire)
        quiet.in_one_minute()
        tell_of_cookies(box.pin_dir, int(time.monotonic()) - 2 * PERIOD_MS // 1000 - 5)
        client = _with_cookie(quiet, cookies, family, 0, options)
        client.ack()
        quiet.assert_refused(client)
        for ahead_s in (0, 1):  # another processor may have sent it in a second that this one has not seen begin
            tell_of_cookies(box.pin_dir, int(time.clock_gettime(CLOCK_MONOTONIC_COARSE)) + ahead_s)
            client = _with_cookie(quiet, cookies, family, 0, options)
            client.ack()
            box.wait(partial(box.engine.find, client.key), "it is born")


def test_where_no_cookie_was_sent_for_long_none_counts_when_the_clock_comes_round() -> None:
    """What XDP has of the time counts 65,536 seconds."""
    with EngineLab(service={"born": Born.STORM}) as box:
        now_s = int(time.monotonic()) % (1 << 16)
        ages = {(now_s - told) % (1 << 16) for told in cookies_told(box.pin_dir)}
        assert all(abs(age - (1 << 15)) < 60 for age in ages), "half a turn: it is renewed every two minutes"


@BOTH
def test_guessed_acknowledgements_bear_nobody_and_reach_no_listener(target: Target, family: int) -> None:
    guess = random.Random(family)
    template = target.client(family)
    frames = []
    for _ in range(500):
        template.snd_nxt, template.rcv_nxt = guess.getrandbits(32), guess.getrandbits(32)
        frames.append(target.wire.frame(template.ip() / template.tcp("A")))
    for _ in range(20):
        target.wire.send_raw(frames)
    target.wire.clear()
    target.assert_nobody()
    assert target.box.no_server_is_asked(family)


@BOTH
def test_a_bad_checksum_bears_nobody_and_draws_nothing(target: Target, family: int) -> None:
    client = target.client(family)
    client.send("S", seq=client.isn, options=client.options, chksum=0x1234)
    assert client.all_heard() == []
    client.syn()
    client.ack(chksum=0x1234)
    assert client.all_heard() == []
    target.assert_nobody()


@BOTH
def test_a_flood_of_syns_leaves_no_slot_and_no_socket(target: Target, family: int) -> None:
    """20,000 of them, from spoofed addresses; a client that comes meanwhile is taken in."""
    before = target.box.stat("syn_cookies")
    spoofed = target.client(family)
    frames = []
    for i in range(2_000):
        source = f"10.127.{i >> 8}.{i & 0xFF or 1}" if family == 4 else f"fd00:64::dead:{i + 1:x}"
        tcp = TCP(sport=1024 + i, dport=spoofed.target[1], seq=i * 77_777 % MOD, flags="S", options=spoofed.options)
        frames.append(target.wire.frame(spoofed.ip(src=source) / tcp))
    genuine = target.client(family)
    for round_ in range(10):
        target.wire.send_raw(frames[:1000])
        if round_ >= 5 and not genuine.rcv_nxt:  # as any client, it sends its SYN again when one was lost
            target.wire.send(genuine.ip() / genuine.tcp("S", seq=genuine.isn, options=genuine.options))
        target.wire.send_raw(frames[1000:])
        answers = genuine.all_heard(0.02)  # more would not fit into the buffer at once
        if answers:
            genuine.take(answers[0])
            genuine.ack()
    target.box.wait(lambda: target.box.engine.find(genuine.key), "it is born in the midst of it")
    target.box.wait(lambda: target.box.stat("syn_cookies") > before + 20_000, "each had an answer")
    stats = target.box.engine.stats()
    assert (stats["born"], stats[f"table_ipv{family}"], stats["awake"], stats["idle_records"]) == (1, 1, 0, 0)
    assert half_open(target.box.lab) == 0
    genuine.send("R", options=[])
    target.box.wait(lambda: target.box.engine.find(genuine.key) is None, "it is gone")


def half_open(lab: Lab) -> int:
    with lab.enter("box"):
        out = subprocess.run(["ss", "-Htan", "state", "syn-recv"], capture_output=True, text=True, check=True).stdout
    return len(out.splitlines())


def test_cookies_outlive_a_restart_and_are_no_other_instances() -> None:
    with EngineLab(service={"born": Born.ALWAYS}) as box, Wire(box) as wire:
        hide(box.lab)
        secret = Target(box, wire).secret
        clients = [Handmade(wire, box.target(family)) for family in (4, 6)]
        for client in clients:
            client.syn()
        box.stop()
        box.start()
        for client in clients:
            client.ack()
            box.wait(lambda client=client: box.engine.find(client.key), "it is born")  # type: ignore[misc]
        assert Target(box, wire).secret == secret
    with EngineLab(service={"born": Born.ALWAYS}) as box, Wire(box) as wire:
        hide(box.lab)
        another = Target(box, wire).secret
        assert (len(set(secret)) > 4, len(set(another)) > 4) == (True, True)
        assert another != secret
        client = Handmade(wire, box.target(4))
        client.syn()
        assert client.rcv_nxt != clients[0].rcv_nxt
