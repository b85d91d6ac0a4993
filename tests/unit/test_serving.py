# SPDX-License-Identifier: Apache-2.0
"""What the daemon does again and again goes on after an error."""

from __future__ import annotations

import asyncio
import errno
import socket

import pytest

from control.daemon import engine_setup, serving


@pytest.mark.parametrize("error", [OSError(errno.EMFILE, "Too many open files"), KeyError("a defect")])
def test_a_part_that_fails_is_begun_again_and_told(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(serving, "AGAIN_S", 0.01)
    failures = [error, error]

    async def part() -> None:
        if failures:
            raise failures.pop()

    asyncio.run(asyncio.wait_for(serving.always(part), 5))
    told = [record for record in caplog.records if "is begun again in" in record.getMessage()]
    assert len(told) == 2
    assert [record.exc_info is None for record in told] == [isinstance(error, OSError)] * 2


def test_an_interface_is_not_taken_for_gone_for_want_of_a_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    assert engine_setup._index("lo") > 0
    assert engine_setup._index("none of that name") == 0
    monkeypatch.setattr(socket, "if_nametoindex", none_left)
    monkeypatch.setattr(socket, "socket", none_left)
    with pytest.raises(OSError, match="Too many open files"):
        engine_setup._index("lo")
