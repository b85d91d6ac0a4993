# SPDX-License-Identifier: Apache-2.0
"""shared/sockets.h and conn/notes.c: which key must not be born asleep, since the kernel may have a socket for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest

from appliance.wire import Key
from tests.inner import ffi, lib

TIME_WAIT_S: Final = 60
ORPHAN_S: Final = 205
"""A closed socket whose client does not answer: given up at the first retransmission that is 102.2 s after the first
(tcp_orphan_retries of 8), and the pauses between them double."""
KEPT_S: Final = 256
UNIT_S: Final = 16
WRAP_S: Final = 65536 * UNIT_S


class Notes:
    """Keys are raw; `second()` is one of the engine's, in which it looks after the notes."""

    def __init__(self, start_s: int) -> None:
        self.raw: Any = lib.roost_testing_notes(start_s)
        assert self.raw

    def live(self, key: Any) -> None:
        assert lib.roost_testing_notes_live(self.raw, key)

    def note(self, key: Any) -> None:
        lib.roost_testing_notes_note(self.raw, key)

    def second(self) -> None:
        lib.roost_testing_notes_turn(self.raw)

    def may_have_socket(self, key: Any) -> bool:
        return bool(lib.roost_testing_may_have_socket(self.raw, key))


@pytest.fixture(
    params=[1000, WRAP_S - KEPT_S, WRAP_S - KEPT_S // 2, WRAP_S - 1],
    ids=["soon", "noted-for-the-wrap", "across-the-wrap", "at-the-wrap"],
)
def notes(request: pytest.FixtureRequest) -> Iterator[Notes]:
    """At some time after the machine's start; a note's time wraps around after twelve days."""
    notes = Notes(request.param)
    yield notes
    lib.roost_testing_notes_free(notes.raw)


def raw_key(client: str, port: int) -> Any:
    local = "2001:db8::1" if ":" in client else "192.0.2.1"
    key = ffi.new("struct roost_key *")
    ffi.memmove(key, Key.of(client, port, local, 7000).pack(), ffi.sizeof("struct roost_key"))
    return key


BOTH = pytest.mark.parametrize("client", ["198.51.100.7", "2001:db8::7"])


@BOTH
def test_who_lives_is_noted_for_as_long_as_he_lives(notes: Notes, client: str) -> None:
    key, stranger = raw_key(client, 1), raw_key(client, 2)
    notes.live(key)
    for _ in range(4 * KEPT_S):
        assert notes.may_have_socket(key)
        notes.second()
    assert not notes.may_have_socket(stranger)


@BOTH
def test_a_note_outlives_what_is_left_of_a_socket_and_is_over_then(notes: Notes, client: str) -> None:
    key = raw_key(client, 1)
    assert not notes.may_have_socket(key)
    notes.note(key)
    lasted = 0
    while notes.may_have_socket(key):
        notes.second()
        lasted += 1
        assert lasted <= KEPT_S + 2 * UNIT_S
    assert lasted > max(TIME_WAIT_S, ORPHAN_S)
    for _ in range(KEPT_S):
        notes.second()
        assert not notes.may_have_socket(key)
