# SPDX-License-Identifier: Apache-2.0
"""ebpf/shared/judge.h against a model of its own: RFC 9293 3.8.4 and 3.10.7, RFC 5961, RFC 7323 3.2.

The model thinks in plain integers relative to rcv_nxt, not in 32-bit arithmetic: wrap-around is then a property of the
code under test alone.
"""

from __future__ import annotations

from enum import IntEnum

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.inner import lib
from tests.unit.records import FREE, FREEZING, IDLE, SLEEP, THAWED, WAKING, Ka

FIN, SYN, RST, PSH, ACK, URG = 1, 2, 4, 8, 16, 32
MOD = 2**32


class Verdict(IntEnum):
    HOLD = 0
    ANSWER = 1
    HEARD = 2
    CHALLENGE = 3
    WAKE = 4
    DROP = 5


def judge(ka: Ka, seq: int, ack: int, payload: int, flags: int, has_ts: bool = True) -> Verdict:
    return Verdict(lib.roost_testing_judge(ka.c(), seq % MOD, ack % MOD, payload, flags, has_ts))


def model(ka: Ka, offset: int, ack_right: bool, payload: int, flags: int) -> Verdict:
    """offset: the sequence number's distance from rcv_nxt, in [-2^31, 2^31). Missing timestamps change nothing:
    RFC 7323 3.2 says SHOULD drop, Linux accepts, and the kernel is the judge."""
    window = ka.window << ka.rcv_wscale
    in_window = 0 <= offset < window
    if flags & RST:  # RFC 5961 3.2: exact resets, in window challenges, outside is dropped
        return Verdict.WAKE if offset == 0 else Verdict.CHALLENGE if in_window else Verdict.DROP
    if flags & SYN:  # RFC 5961 4.2: whatever the number
        return Verdict.CHALLENGE
    if not flags & ACK:  # RFC 9293 3.10.7.4, fifth
        return Verdict.DROP
    if not ack_right:  # nothing is in flight: a genuine segment acknowledges all
        return Verdict.CHALLENGE
    length = payload + bool(flags & FIN)
    if offset == -1 and payload <= 1 and not flags & FIN:  # RFC 9293 3.8.4
        return Verdict.ANSWER
    if length == 0:
        return Verdict.HEARD if offset == 0 or in_window else Verdict.CHALLENGE
    reaches_new = any(0 <= at < window for at in (offset, offset + length - 1)) and offset + length > 0
    return Verdict.WAKE if reaches_new and offset < window else Verdict.CHALLENGE


kas = st.builds(
    Ka,
    phase=st.sampled_from([IDLE, SLEEP]),
    flags=st.integers(0, 7),
    rcv_wscale=st.integers(0, 14),
    window=st.one_of(st.sampled_from([0, 1, 2, 65535]), st.integers(0, 65535)),
    snd_nxt=st.one_of(st.sampled_from([0, 1, MOD - 1, 2**31]), st.integers(0, MOD - 1)),
    rcv_nxt=st.one_of(st.sampled_from([0, 1, MOD - 1, 2**31, 2**31 - 1]), st.integers(0, MOD - 1)),
)


@st.composite
def offsets(draw: st.DrawFn, window: int) -> int:
    """Distances from rcv_nxt: anywhere, but mostly at the edges."""
    edges = [0, -1, 1, -2, window - 1, window, window + 1, -1448, window - 1448]
    near = draw(st.sampled_from(edges)) + draw(st.integers(-2, 2))
    return draw(st.one_of(st.just(near), st.integers(-(2**31), 2**31 - 1)))


@settings(max_examples=3000, deadline=None)
@given(data=st.data(), ka=kas, payload=st.one_of(st.sampled_from([0, 1, 2]), st.integers(0, 65495)),
       flags=st.integers(0, 63), has_ts=st.booleans(), ack_right=st.booleans(),
       wrong=st.integers(1, MOD - 1))  # fmt: skip
def test_the_verdict_is_the_models(
    data: st.DataObject, ka: Ka, payload: int, flags: int, has_ts: bool, ack_right: bool, wrong: int
) -> None:
    offset = data.draw(offsets(ka.window << ka.rcv_wscale))
    ack = ka.snd_nxt if ack_right else ka.snd_nxt + wrong
    assert judge(ka, ka.rcv_nxt + offset, ack, payload, flags, has_ts) is model(ka, offset, ack_right, payload, flags)


@settings(max_examples=500, deadline=None)
@given(phase=st.sampled_from([FREE, FREEZING, WAKING, THAWED]), seq=st.integers(0, MOD - 1),
       ack=st.integers(0, MOD - 1), payload=st.integers(0, 65495), flags=st.integers(0, 255))  # fmt: skip
def test_while_a_connection_is_moved_every_segment_is_held(
    phase: int, seq: int, ack: int, payload: int, flags: int
) -> None:
    assert judge(Ka(phase=phase), seq, ack, payload, flags) is Verdict.HOLD


@settings(max_examples=1000, deadline=None)
@given(ka=kas, seq=st.integers(0, MOD - 1), wrong=st.integers(1, MOD - 1), payload=st.integers(0, 65495),
       flags=st.integers(0, 63).filter(lambda flags: not flags & RST), has_ts=st.booleans())  # fmt: skip
@example(ka=Ka(), seq=2000, wrong=MOD - 1, payload=100, flags=ACK | PSH, has_ts=True)
def test_without_the_exact_acknowledgement_nothing_but_a_reset_wakes(
    ka: Ka, seq: int, wrong: int, payload: int, flags: int, has_ts: bool
) -> None:
    verdict = judge(ka, seq, ka.snd_nxt + wrong, payload, flags, has_ts)
    assert verdict in (Verdict.CHALLENGE, Verdict.DROP)


@pytest.mark.parametrize("payload", [0, 1])
@pytest.mark.parametrize("phase", [IDLE, SLEEP])
@pytest.mark.parametrize("rcv_nxt", [2000, 0, 1, MOD - 1])
def test_a_keepalive_of_no_or_one_byte_is_answered_even_where_the_numbers_wrap(
    rcv_nxt: int, phase: int, payload: int
) -> None:
    ka = Ka(phase=phase, rcv_nxt=rcv_nxt)
    assert judge(ka, rcv_nxt - 1, ka.snd_nxt, payload, ACK) is Verdict.ANSWER


def test_two_old_bytes_are_no_keepalive_but_one_new_one_behind_an_old_one_is_data() -> None:
    ka = Ka()
    assert judge(ka, ka.rcv_nxt - 2, ka.snd_nxt, 2, ACK) is Verdict.CHALLENGE
    assert judge(ka, ka.rcv_nxt - 1, ka.snd_nxt, 2, ACK) is Verdict.WAKE


def test_a_closed_window_lets_no_data_wake() -> None:
    ka = Ka(window=0)
    assert judge(ka, ka.rcv_nxt, ka.snd_nxt, 1, ACK) is Verdict.CHALLENGE
    assert judge(ka, ka.rcv_nxt, 0, 0, RST) is Verdict.WAKE  # RFC 9293 3.10.7.4: acceptable when SEG.SEQ = RCV.NXT


@pytest.mark.parametrize(
    ("offset", "verdict"),
    [(0, Verdict.WAKE), (1, Verdict.CHALLENGE), (-1, Verdict.DROP), (502 << 7, Verdict.DROP),
     ((502 << 7) - 1, Verdict.CHALLENGE)],
)  # fmt: skip
def test_a_reset_closes_by_its_exact_number_alone(offset: int, verdict: Verdict) -> None:
    ka = Ka()
    for flags in (RST, RST | ACK, RST | SYN, RST | FIN):
        assert judge(ka, ka.rcv_nxt + offset, 12345, 0, flags, has_ts=False) is verdict
