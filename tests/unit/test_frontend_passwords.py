# SPDX-License-Identifier: Apache-2.0
"""Users of attach: hashes that are read, made and compared, and how many at once."""

from __future__ import annotations

import asyncio
import base64
import getpass
import hashlib
import threading
import time
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from appliance.bounds import CrowdedError
from appliance.frontends.handshake import Credentials
from appliance.frontends.passwords import EACH, PasswordHash, Users

DOCUMENT = Path(__file__).parents[2] / "docs" / "configuration.md"
DOCUMENTED = DOCUMENT.read_text(encoding="utf-8").split("python3 -c '")[1].split("'")[0]
"""What the shell hands to python3 -c."""


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode().rstrip("=")


SALT, DIGEST = encoded(b"s" * 16), encoded(b"d" * 32)


def cheap(password: bytes) -> PasswordHash:
    return PasswordHash(2, 1, 1, b"saltsalt", hashlib.scrypt(password, salt=b"saltsalt", n=4, r=1, p=1, dklen=32))


def test_the_documented_command_makes_a_hash_that_is_taken_and_matches(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(getpass, "getpass", lambda: "p\u00e4ssword")
    exec(DOCUMENTED, {})
    made = PasswordHash.parse(capsys.readouterr().out.strip())
    assert made.matches("p\u00e4ssword".encode())
    assert not made.matches(b"password")


def test_the_documented_command_takes_no_nul(monkeypatch: pytest.MonkeyPatch) -> None:
    # Its hash would be that of the password without the zeros behind it.
    monkeypatch.setattr(getpass, "getpass", lambda: "\0")
    with pytest.raises(SystemExit, match="no NUL"):
        exec(DOCUMENTED, {})


def test_it_agrees_with_the_vector_of_rfc_7914() -> None:
    digest = bytes.fromhex(
        "7023bdcb3afd7348461c06cd81fd38ebfda8fbba904f8e3ea9b543f6545da1f2"
        "d5432955613f0fcf62d49705242a9af9e61e85dc0d651e40dfcf017b45575887"
    )
    text = f"$scrypt$ln=14,r=8,p=1${encoded(b'SodiumChloride')}${encoded(digest)}"
    assert PasswordHash.parse(text).matches(b"pleaseletmein")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("secret", "docs/configuration.md"),
        ("$2b$12$abcdefghijklmnopqrstuv", "docs/configuration.md"),
        (f"$scrypt$ln=13,r=8,p=1${SALT}${DIGEST}", "needs ln=14"),
        (f"$scrypt$ln=15,r=1,p=1${SALT}${DIGEST}", "needs ln=14"),
        (f"$scrypt$ln=15,r=8,p=0${SALT}${DIGEST}", "needs ln=14"),
        (f"$scrypt$ln=15,r=8,p=1${encoded(b's')}${DIGEST}", "8 bytes of salt"),
        (f"$scrypt$ln=15,r=8,p=1${SALT}${encoded(b'd' * 15)}", "16 of hash"),
        (f"$scrypt$ln=18,r=8,p=1${SALT}${DIGEST}", "128 MiB at most"),
        (f"$scrypt$ln=99,r=8,p=1${SALT}${DIGEST}", "128 MiB at most"),
        (f"$scrypt$ln=15,r=8,p=1${SALT}$a", "docs/configuration.md"),
    ],
)
def test_a_hash_that_cannot_be_used_is_refused_without_repeating_it(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        PasswordHash.parse(text)
    assert text not in str(caught.value)


@given(st.text(max_size=60))
def test_any_text_is_a_hash_or_a_sentence(text: str) -> None:
    with pytest.raises(ValueError, match="a password's hash"):
        PasswordHash.parse(text)


@settings(deadline=None)  # it waits for other threads
@given(st.binary(max_size=30).filter(lambda password: b"\0" not in password), st.binary(max_size=30))
@example(b"pw", b"pw")
@example(b"pw", b"pw\0")
@example(b"", b"\0")
@example(b"", b"")
def test_one_password_alone_matches(right: bytes, given_password: bytes) -> None:
    async def check() -> list[bool]:
        users = Users({"bob": cheap(right)})
        try:
            asked = enumerate(("bob", "bob", "eve"))
            return [await users.check(Credentials(user, given_password), f"192.0.2.{n}") for n, user in asked]
        finally:
            users.close()

    same = right == given_password
    assert asyncio.run(check()) == [same, same, False]


SOURCE = "192.0.2.7"


class Slow(PasswordHash):
    """Counts how many are worked out at once."""

    lock = threading.Lock()
    now = most = ever = 0

    def matches(self, password: bytes) -> bool:
        with Slow.lock:
            Slow.now += 1
            Slow.ever += 1
            Slow.most = max(Slow.most, Slow.now)
        time.sleep(0.02)
        with Slow.lock:
            Slow.now -= 1
        return password == b"right"


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Users:
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    Slow.now = Slow.most = Slow.ever = 0
    return Users({"bob": Slow(2, 1, 1, b"", b"")})


def test_half_of_the_processors_hash_and_the_loop_goes_on(slow: Users) -> None:
    async def main() -> tuple[list[bool], int]:
        checks = asyncio.gather(*(slow.check(Credentials("bob", b"wrong"), f"192.0.2.{n}") for n in range(8)))
        turns = 0
        while not checks.done():
            await asyncio.sleep(0.001)
            turns += Slow.now > 0  # while a hash is worked out
        return await checks, turns

    verdicts, turns = asyncio.run(main())
    slow.close()
    assert verdicts == [False] * 8
    assert (Slow.most, Slow.ever) == (2, 8)
    assert turns, "a loop that is held up turns only between hashes"


def test_a_password_that_was_right_is_hashed_once(slow: Users) -> None:
    async def main() -> None:
        for _ in range(5):
            assert await slow.check(Credentials("bob", b"right"), SOURCE)
        assert Slow.ever == 1
        assert not await slow.check(Credentials("bob", b"wrong"), SOURCE)
        assert Slow.ever == 2

    asyncio.run(main())
    slow.close()


def test_of_a_source_one_password_is_checked_at_a_time_and_after_a_wrong_one_the_next_waits(slow: Users) -> None:
    ended: list[float] = []

    async def guess(password: bytes) -> None:
        await slow.check(Credentials("bob", password), SOURCE)
        ended.append(time.monotonic())

    async def main() -> None:
        await asyncio.gather(*(guess(password) for password in (b"a", b"b", b"c", b"right", b"d", b"e")))

    asyncio.run(main())
    slow.close()
    assert Slow.most == 1
    waits = [later - earlier for earlier, later in pairwise(ended)]
    assert [found >= least for found, least in zip(waits, (0.1, 0.2, 0.4, 0.0, 0.1), strict=True)] == [True] * 5
    assert max(waits[3:]) < 0.8, "as long as it would be if the right one changed nothing"


def test_more_than_may_wait_of_a_source_are_refused_and_those_of_others_are_not(slow: Users) -> None:
    async def main() -> None:
        checks = [asyncio.create_task(slow.check(Credentials("bob", b"wrong"), SOURCE)) for _ in range(EACH)]
        await asyncio.sleep(0.01)
        with pytest.raises(CrowdedError):
            await slow.check(Credentials("bob", b"right"), SOURCE)
        assert await slow.check(Credentials("bob", b"right"), "192.0.2.8")
        assert await slow.check(Credentials("bob", b"right"), SOURCE), "it is known, and costs nothing"
        checks.pop().cancel()
        await asyncio.sleep(0)
        checks.append(asyncio.create_task(slow.check(Credentials("bob", b"wrong"), SOURCE)))
        await asyncio.sleep(0)
        assert not checks[-1].done(), "there is a place again"
        for check in checks:
            check.cancel()
        await asyncio.gather(*checks, return_exceptions=True)
        assert (slow._turns._each._count, slow._turns._locks) == ({}, {}), "nothing is kept of who has gone"

    asyncio.run(main())
    slow.close()


def test_a_check_that_nobody_waits_for_any_more_is_not_made(slow: Users) -> None:
    async def main() -> None:
        wrong = Credentials("bob", b"wrong")
        checks = [asyncio.create_task(slow.check(wrong, f"192.0.2.{n}")) for n in range(50)]
        await asyncio.sleep(0.01)
        for check in checks:
            check.cancel()
        await asyncio.gather(*checks, return_exceptions=True)
        await asyncio.sleep(0.06)

    asyncio.run(main())
    slow.close()
    assert Slow.ever <= 4


def test_a_user_that_does_not_exist_costs_as_much(monkeypatch: pytest.MonkeyPatch) -> None:
    worked: list[tuple[int, int, int]] = []

    def matches(self: PasswordHash, password: bytes) -> bool:
        worked.append((self.ln, self.r, self.p))
        return False

    monkeypatch.setattr(PasswordHash, "matches", matches)
    users = Users({"a": PasswordHash(14, 8, 1, b"", b""), "b": PasswordHash(15, 8, 1, b"", b"")})
    asyncio.run(users.check(Credentials("nobody", b"x"), SOURCE))
    users.close()
    assert worked == [(15, 8, 1)]
