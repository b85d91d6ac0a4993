# SPDX-License-Identifier: Apache-2.0
"""Users who may attach: their passwords' hashes (scrypt, RFC 7914), and the checking of one without stopping the rest.

A hash is written ``$scrypt$ln=15,r=8,p=1$salt$hash``, salt and hash in base64 without padding: ln is the binary
logarithm of the cost N. Each costs 128 * r * N bytes and some 0.1 s, so

- it is worked out in threads of its own, in half of the processors at most, and never in the event loop;
- sources of servers are served in turn, one check of each at a time, and after a wrong password the next check of its
  source waits: one that guesses keeps no other one out, and what it may guess in an hour is little;
- a password that was right is known again by a keyed digest of it, with a key that dies with the process: a server
  that attaches a hundred times a second pays for scrypt once;
- for a user that does not exist a hash is worked out all the same, so that the time tells nothing.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from appliance.bounds import Delays, Turns
from appliance.frontends.handshake import Credentials

USER: Final = re.compile(r"[!-9;-~]{1,255}")
"""Printable ASCII without the colon, at which Basic splits (RFC 7617); 255 bytes are what RFC 1929 has room for."""

EACH: Final = 8
"""Checks of one source that may be there at once."""

DELAY_S: Final = 0.1
MOST_DELAY_S: Final = 5.0
FORGET_S: Final = 300.0
"""How long a source waits after a wrong password, at first and at most, and when that is forgotten."""

_HASH: Final = re.compile(r"\$scrypt\$ln=(\d{1,2}),r=(\d{1,2}),p=(\d{1,2})\$([A-Za-z0-9+/]+)\$([A-Za-z0-9+/]+)")
_LEAST_LN: Final = 14
_MOST_BYTES: Final = 128 << 20
_WRONG: Final = "a password's hash is $scrypt$ln=15,r=8,p=1$salt$hash; docs/configuration.md shows how to make one"


@dataclass(frozen=True, slots=True)
class PasswordHash:
    """One password's hash. N = 2**ln."""

    ln: int
    r: int
    p: int
    salt: bytes
    digest: bytes

    @classmethod
    def parse(cls, text: str) -> PasswordHash:
        """Raises ValueError with a sentence, in which nothing of the text is repeated."""
        if (parts := _HASH.fullmatch(text)) is None:
            raise ValueError(_WRONG)
        ln, r, p = (int(part) for part in parts.groups()[:3])
        try:
            salt, digest = (
                base64.b64decode(part + "=" * (-len(part) % 4), validate=True) for part in parts.groups()[3:]
            )
        except binascii.Error:
            raise ValueError(_WRONG) from None
        if ln < _LEAST_LN or r < 8 or p < 1 or len(salt) < 8 or len(digest) < 16:
            raise ValueError(f"a password's hash needs ln={_LEAST_LN},r=8,p=1, 8 bytes of salt and 16 of hash at least")
        if 128 * r * p << ln > _MOST_BYTES:
            raise ValueError(f"a password's hash may cost {_MOST_BYTES >> 20} MiB at most: 128 * r * p * 2^ln bytes")
        return cls(ln, r, p, salt, digest)

    def matches(self, password: bytes) -> bool:
        """Whether it is the hash of this password. Takes a tenth of a second, without the GIL."""
        n = 1 << self.ln
        memory = 128 * self.r * (n + self.p + 2)  # what OpenSSL counts, RFC 7914 section 5 and 6: V, B and X
        found = hashlib.scrypt(password, salt=self.salt, n=n, r=self.r, p=self.p, maxmem=memory, dklen=len(self.digest))
        # None has a NUL: HMAC fills its key up with zeros (RFC 2104 section 2), so to scrypt zeros behind a password
        # make no difference. The command in docs/configuration.md takes none either.
        return hmac.compare_digest(found, self.digest) and b"\0" not in password


class Users:
    """The users of one configuration. All but `check`'s hashing runs in the event loop."""

    def __init__(self, hashes: Mapping[str, PasswordHash]) -> None:
        self._hashes = dict(hashes)
        dearest = max(hashes.values(), key=lambda one: one.r * one.p << one.ln)
        self._nobody = PasswordHash(dearest.ln, dearest.r, dearest.p, os.urandom(16), os.urandom(32))
        self._key = secrets.token_bytes(32)
        self._seen: dict[str, bytes] = {}
        self._turns = Turns("roost-password", EACH)
        self._delays = Delays(DELAY_S, MOST_DELAY_S, FORGET_S)

    async def check(self, credentials: Credentials, source: str) -> bool:
        """Whether these are a user's. A check that is cancelled before its turn costs nothing. source: of the server
        (bounds.source_of). Raises CrowdedError when too many of it are being checked."""
        user = credentials.user
        seen = hashlib.blake2b(credentials.password, key=self._key).digest()
        if hmac.compare_digest(self._seen.get(user, b""), seen):
            return True
        wanted = self._hashes.get(user, self._nobody)
        async with self._turns.of(source):
            await asyncio.sleep(self._delays.wait_s(source))
            right = await self._turns.work(partial(wanted.matches, credentials.password))
            self._delays.count(source, right)
        if right:
            self._seen[user] = seen
        return right

    def close(self) -> None:
        """Begin no other check."""
        self._turns.close()
