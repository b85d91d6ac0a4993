# SPDX-License-Identifier: Apache-2.0
"""What both clients need of HTTP: where the API is, what a request has, what an answer or its absence means."""

from __future__ import annotations

import ipaddress
import json
import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import httpx

from .calls import Call, path_of
from .errors import AwayError, RoostError

if TYPE_CHECKING:
    from .answers import Ticket

SOCKET: Final = "/run/roost/main.sock"
"""Of the daemon on this machine whose instance has no other name."""

PLAIN: Final = "ROOST_PLAIN"
"""In the environment, `1`: a token may go to another machine without TLS, as `[api] plain` has it there."""

RETRIES: Final = 3
"""Of a request that changes nothing."""

WAIT_S: Final = 0.1
WAIT_MAX_S: Final = 5.0
"""Before a retry: the first one, doubled for each that follows, up to the second one."""

RETRY_AFTER_MAX_S: Final = 30.0
"""Who is told to wait for longer is told so at once."""

_PASSING: Final = (429, 503)
_UNBOUND: Final = httpx.Limits(max_connections=None, max_keepalive_connections=4)
"""Each stream to a client has a connection of its own."""


@dataclass(frozen=True)
class Where:
    """An API: by its URL with a token, or the daemon's on this machine by the path of its socket. ca: a file of
    certificates to believe instead of the system's. certificate: this client's, and its key: files. timeout: s for each
    step of an answer."""

    url: str = ""
    token: str = ""
    socket: str = SOCKET
    ca: str | None = None
    certificate: tuple[str, str] | None = None
    timeout: float = 60.0

    @property
    def text(self) -> str:
        """For people."""
        return self.url or self.socket

    def base_url(self) -> httpx.URL:
        """Raises ValueError: it is none, or others could read the token."""
        try:
            url = httpx.URL(self.url or "http://localhost")
        except httpx.InvalidURL:
            url = httpx.URL()
        if url.scheme not in ("http", "https") or not url.host:
            raise ValueError(f'"{self.url}" is no URL of an API; write https://box:8443')
        if self.token and url.scheme == "http" and not _is_here(url.host) and os.environ.get(PLAIN) != "1":
            raise ValueError(f"the token would go to {url.host} without TLS, where others can read it: write https://, "
                             f"or set {PLAIN}=1 in the environment if they may")  # fmt: skip
        return url

    def transport(self) -> dict[str, Any]:
        """Arguments of httpx's transport. Raises OSError: a file of certificates cannot be used."""
        if self.base_url().scheme == "http":
            return {"uds": None if self.url else self.socket, "verify": False, "limits": _UNBOUND}
        context = ssl.create_default_context(cafile=self.ca)
        if self.certificate is not None:
            context.load_cert_chain(*self.certificate)
        return {"verify": context, "limits": _UNBOUND}

    def request(self, call: Call[Any], who: str) -> dict[str, Any]:
        """Arguments of httpx's build_request."""
        headers = dict(call.headers)
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        elif not self.url and call.method != "GET":
            headers["Roost-Who"] = quote(who, errors="replace")
        content = None
        if call.body is not None:  # in ASCII, which has a form for half of a surrogate pair
            content, headers["Content-Type"] = json.dumps(call.body).encode(), "application/json"
        query = {key: one for key, one in call.query.items() if one or (one == 0 and one is not False)}
        return {
            "method": call.method, "url": call.path, "params": query or None, "content": content, "headers": headers,
        }  # fmt: skip


def _is_here(host: str) -> bool:
    """Whether what is sent there stays on this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


UPGRADE: Final = {"Connection": "Upgrade", "Upgrade": "roost"}


def upgrade(client: str | int) -> Call[Any]:
    """A request that is to become the byte stream to a client."""
    return Call("POST", path_of("connections", client, "attach"), headers=UPGRADE)


def connect(ticket: Ticket) -> dict[str, Any]:
    """The same, of the daemon on this machine: arguments of httpx's build_request."""
    return {
        "method": "CONNECT",
        "url": f"http://{ticket['address']}",
        "extensions": {"target": ticket["authority"].encode()},
    }


def has_switched(response: httpx.Response) -> bool:
    """Whether a client's bytes are behind the head of this answer."""
    return response.status_code == (200 if response.request.method == "CONNECT" else 101)


LOOPBACK: Final = "http://127.0.0.1"
"""Where tickets are good."""


@contextmanager
def answered(where: Where, timeout: float) -> Iterator[None]:
    """Errors of httpx as AwayError."""
    try:
        yield
    except httpx.TimeoutException as error:
        raise AwayError(f"the daemon at {where.text} does not answer in {timeout:.0f} s", TimeoutError()) from error
    except httpx.TransportError as error:
        cause = os_error(error)
        raise AwayError(f"the daemon at {where.text} ended the connection: {cause or error}", cause) from error


def os_error(error: BaseException | None) -> OSError | None:
    """What the system said, of an error of httpx; None: nothing."""
    while error is not None and not isinstance(error, OSError):
        error = error.__cause__ or error.__context__
    # anyio's own, for several attempts to connect
    return error.__cause__ if error is not None and isinstance(error.__cause__, OSError) else error


def refusal(response: httpx.Response) -> RoostError:
    """Why, of an answer that was read."""
    try:
        message = json.loads(response.content)["error"]
    except (ValueError, KeyError, TypeError):
        message = response.text.strip()[:300] if response.is_error else "it is no JSON, or not switched"
        message = f"the daemon answered {response.status_code} {response.reason_phrase}: {message}".rstrip(": ")
    after = response.headers.get("Retry-After", "")
    return RoostError(str(message), response.status_code, float(after) if after.isdecimal() else None)


def data_of(response: httpx.Response) -> Any:
    """The JSON of an answer that was read. Raises RoostError."""
    try:
        return json.loads(response.content)
    except ValueError:
        raise refusal(response) from None


def may_pass(error: RoostError) -> bool:
    """Whether another attempt may go better."""
    if isinstance(error, AwayError):
        return not isinstance(error.cause, ssl.SSLCertVerificationError)
    return error.status in _PASSING


def wait_s(error: RoostError, attempt: int) -> float:
    """How long to wait before a retry, the first one being 0. Raises the error: it is too long."""
    if (error.retry_after or 0) > RETRY_AFTER_MAX_S:
        raise error
    return max(error.retry_after or 0.0, min(WAIT_S * 2.0**attempt, WAIT_MAX_S))


def retry_s(call: Call[Any], error: RoostError, attempt: int, retries: int) -> float:
    """How long to wait before this request is sent again. Raises the error: it is not to be."""
    slow = isinstance(error, AwayError) and isinstance(error.cause, TimeoutError)
    if call.method != "GET" or slow or attempt >= retries or not may_pass(error):
        raise error
    return wait_s(error, attempt)
