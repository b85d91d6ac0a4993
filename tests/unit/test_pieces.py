# SPDX-License-Identifier: Apache-2.0
"""Rows of history that wait (control/store/queues.py), in pieces of any size: what a plain list of rows would do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.store import queues
from control.store.queues import Pieces
from control.store.schema import HISTORY

SIZE = HISTORY.size


def row(number: int, place: int) -> bytes:
    # A time that has the number in it, at no place of a row's beginning.
    return HISTORY.pack(number, place, bytes(36), 1, 2, 3, 4, number, number << 8, number, bytes(24))


def rows_of(pieces: Pieces) -> list[bytes]:
    packed = pieces.packed()
    return [packed[at : at + SIZE] for at in range(0, len(packed), SIZE)]


@given(
    numbers=st.lists(st.lists(st.integers(1, 3), max_size=5), max_size=8),
    steps=st.lists(st.integers(0, 6), max_size=4),
    room=st.integers(0, 30),
    size=st.integers(1, 6),
)
def test_pieces_are_a_queue_of_rows(numbers: list[list[int]], steps: list[int], room: int, size: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queues, "PIECE_ROWS", size)
        is_a_queue(numbers, steps, room)


def is_a_queue(numbers: list[list[int]], steps: list[int], room: int) -> None:
    pieces, model, dropped = Pieces(), list[bytes](), 0
    for some in numbers:
        piece = [row(number, len(model) + place) for place, number in enumerate(some)]
        left = pieces.append(b"".join(piece), room - len(pieces))
        model += piece[: len(piece) - left]
        dropped += left
    assert rows_of(pieces) == model
    assert len(pieces) == len(model) == sum(map(len, numbers)) - dropped <= room
    for number in (None, 1, 2, 3, 4):
        for limit in (0, 1, 3, 100):
            places = [at for at, one in enumerate(model) if number is None or HISTORY.unpack(one)[0] == number]
            wanted = [(at, model[at]) for at in reversed(places)][:limit]
            assert pieces.newest(number, limit) == wanted
    for step in steps:
        taken = pieces.take(step)
        assert rows_of(taken) == model[:step]
        assert rows_of(taken + pieces) == model
        if step % 2:
            pieces.put_back(taken)
        else:
            model = model[step:]
        assert rows_of(pieces) == model
        assert len(pieces) == len(model)


def test_a_row_without_a_number_is_seen_wherever_it_stands() -> None:
    pieces = Pieces()
    pieces.append(b"".join(row(number, 0) for number in range(1, 100)), 1000)
    pieces.append(row(256, 0), 1000)
    assert not pieces.any_unnumbered()
    pieces.append(row(7, 0) + row(0, 0) + row(8, 0), 1000)
    assert pieces.any_unnumbered()
