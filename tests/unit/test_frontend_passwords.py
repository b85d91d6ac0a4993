# SPDX-License-Identifier: Apache-2.0
"""Users of attach: hashes that are read, made and compared, and how many at once."""

from __future__ import annotations

import asyncio
import base64
import getpass
import hashlib
import threading
import time
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from appliance.frontends.handshake import Credentials
from appliance.frontends.passwords import PasswordHash, Users

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
            return [await users.check(Credentials(user, given_password)) for user in ("bob", "bob", "eve")]
        finally:
            users.close()

    same = right == given_password
    assert asyncio.run(check()) == [same, same, False]


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
        checks = asyncio.gather(*(slow.check(Credentials("bob", b"wrong %d" % n)) for n in range(8)))
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
            assert await slow.check(Credentials("bob", b"right"))
        assert Slow.ever == 1
        assert not await slow.check(Credentials("bob", b"wrong"))
        assert Slow.ever == 2

    asyncio.run(main())
    slow.close()


def test_a_check_that_nobody_waits_for_any_more_is_not_made(slow: Users) -> None:
    async def main() -> None:
        checks = [asyncio.create_task(slow.check(Credentials("bob", b"wrong"))) for _ in range(50)]
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
    asyncio.run(users.check(Credentials("nobody", b"x")))
    users.close()
    assert worked == [(15, 8, 1)]
