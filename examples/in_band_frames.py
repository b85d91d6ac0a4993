# SPDX-License-Identifier: Apache-2.0
"""In-band commands: frames for the connection manager inside a TCP payload (docs/in-band.md), sans-I/O.

For servers, clients and tests; this file needs the standard library alone and may be copied. The manager itself uses
cext/inband/inband.c, and the unit tests hold the two together.

    sock.sendall(encode(Frame(Quiet(active_ms=5_000, idle_ms=NEVER), number=7, answer=True)))
    decoder = Decoder(Recipient.CLIENT)
    for part in decoder.feed(sock.recv(65536)):      # bytes: the server's payload
        if isinstance(part, Frame): ...              # Frame(Answer(Result.OK), number=7, to=Recipient.CLIENT)
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Final, TypeAlias

DLE: Final = b"\x10"
MAGIC: Final = DLE + b"ROOST/1 "
MAX_FRAME: Final = 256
"""Bytes of the longest frame, its LF included."""

NEVER: Final = 0
"""As a quiet interval: this transition is not made by time."""

MAX_NUMBER: Final = 0xFFFF
MAX_MS: Final = 0xFFFFFFFF


class Recipient(StrEnum):
    """Which end a frame is for. Managers act on those for managers; clients and servers read answers and `Stay`."""

    MANAGER = "m"
    CLIENT = "c"
    SERVER = "s"


class Result(StrEnum):
    """What became of a request."""

    OK = "ok"
    UNKNOWN = "unknown"  # no command of this version
    BAD = "bad"  # arguments or flags that the manager does not understand; nothing was done
    REFUSED = "refused"  # understood, and forbidden by the policy or the state of the connection


@dataclass(frozen=True, slots=True)
class Ping:
    """Nothing is done; with `answer` it tells whether there is a manager."""


@dataclass(frozen=True, slots=True)
class Done:
    """The transfer is complete: the manager may close the server link now."""


@dataclass(frozen=True, slots=True)
class Quiet:
    """Quiet intervals in ms of this connection, NEVER, or None to leave one as it is; at least one is given."""

    active_ms: int | None = None
    standby_ms: int | None = None
    idle_ms: int | None = None


@dataclass(frozen=True, slots=True)
class KeepAlive:
    """Whether the manager probes the client while it is inactive; interval_ms: None for what the policy says."""

    on: bool
    interval_ms: int | None = None


@dataclass(frozen=True, slots=True)
class AlwaysActive:
    """Whether the connection stays ACTIVE however quiet it is."""

    on: bool


@dataclass(frozen=True, slots=True)
class Name:
    """Registers a name for the client: 1 to 63 of A-Z a-z 0-9 . _ -, the first one a letter or digit."""

    name: str


@dataclass(frozen=True, slots=True)
class Sleep:
    """The connection goes to sleep now."""


@dataclass(frozen=True, slots=True)
class Status:
    """The manager answers with a `Report`."""


@dataclass(frozen=True, slots=True)
class Release:
    """From a server that came by the proxy: it is done with this client. After the answer, and not before, it may ask
    for another one on the same connection."""


@dataclass(frozen=True, slots=True)
class Stay:
    """From the manager to the client: keep a persistent connection, you could not be dialled."""


@dataclass(frozen=True, slots=True)
class Report:
    """State of the connection; intervals in ms or NEVER; bytes of payload from (rx) and to (tx) the client."""

    state: str
    active_ms: int
    standby_ms: int
    idle_ms: int
    rx_bytes: int
    tx_bytes: int
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """From the manager; `report` after `Status` alone."""

    result: Result
    report: Report | None = None


@dataclass(frozen=True, slots=True)
class Unknown:
    """Read, not written: a verb that this version does not have. text: what `seal` would make the frame from."""

    text: str


@dataclass(frozen=True, slots=True)
class Bad:
    """Read, not written: arguments or flags that this version does not understand. text: as in `Unknown`."""

    text: str


Body: TypeAlias = (
    Ping | Done | Quiet | KeepAlive | AlwaysActive | Name | Sleep | Status | Release | Stay | Answer | Unknown | Bad
)


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame. number: 0 to 65535, comes back in the answer; manager: of several in a row, the one with this name."""

    body: Body
    number: int = 0
    to: Recipient = Recipient.MANAGER
    answer: bool = False
    forward: bool = False
    manager: str | None = None


_NAME: Final = "[A-Za-z0-9][A-Za-z0-9._-]{0,62}"
_LINE: Final = re.compile(rb"\x10ROOST/1 [ -~]*\n")
_HEADER: Final = re.compile(
    rf"(c|s|m)(?:(?<=m)@({_NAME}))? (0|[1-9][0-9]{{0,4}})([!-/:-@\[-`{{-~]*) ([a-z][a-z-]*)(?: (.*))?"
)
_SWITCH: Final = {True: "on", False: "off"}


def seal(text: str) -> bytes:
    """The frame with this text (printable ASCII: recipient, number with flags, verb, arguments) inside.

    `encode` is the usual way; this one also serves for commands that a later version may know. ValueError when it
    cannot be a frame.
    """
    raw = MAGIC + text.encode("ascii") + b" "
    frame = raw + b"%08x\n" % zlib.crc32(raw)
    if not _LINE.fullmatch(frame):
        raise ValueError("the text of a frame is printable ASCII")
    if len(frame) > MAX_FRAME:
        raise ValueError(f"a frame has at most {MAX_FRAME} bytes, this one {len(frame)}")
    return frame


def encode(frame: Frame) -> bytes:
    """The frame as bytes, to be sent with one call. ValueError when a field is out of its range."""
    if not 0 <= frame.number <= MAX_NUMBER:
        raise ValueError(f"the number of a frame is 0 to {MAX_NUMBER}, not {frame.number}")
    to = frame.to.value
    if frame.manager is not None:
        if frame.to is not Recipient.MANAGER:
            raise ValueError("a frame with the name of a manager is for a manager")
        to += f"@{_checked_name(frame.manager)}"
    flags = ("?" if frame.answer else "") + (">" if frame.forward else "")
    return seal(f"{to} {frame.number}{flags} {_body_text(frame.body)}")


def escape(payload: bytes) -> bytes:
    """Payload that managers hand on byte for byte, whatever frames for a manager stand in it.

    A `Ping` is put behind each DLE that begins a frame, or may begin one with what is sent next; the manager takes it
    out again. So only for connections that do have a manager, one that reads commands from this side.
    """
    return _ESCAPED.sub(DLE + encode(Frame(Ping())), payload)


_ESCAPED: Final = re.compile(
    re.escape(DLE) + b"(?=" + b"|".join([MAGIC[1:], *(MAGIC[1:n] + rb"\Z" for n in range(1, len(MAGIC)))]) + b")"
)


class Decoder:
    """Splits one direction of a connection into payload and the frames for `recipients`.

    Frames for others, and all that is no frame, are payload. manager: take those alone that are for any manager or for
    the one with this name; None, as for an end to which frames are forwarded: whatever name they carry.
    """

    def __init__(self, *recipients: Recipient, manager: str | None = None) -> None:
        self._recipients = frozenset(recipients)
        self._manager = manager
        self._held = b""

    @property
    def held(self) -> int:
        """Bytes that wait for the rest of what may be a frame, fewer than MAX_FRAME."""
        return len(self._held)

    def feed(self, data: bytes) -> list[bytes | Frame]:
        """What has become clear with these bytes, in order; payload is never empty."""
        data = self._held + data
        parts: list[bytes | Frame] = []
        done = at = 0
        while (start := data.find(DLE, at)) >= 0:
            line = _LINE.match(data, start, start + MAX_FRAME)
            frame = self._read(line[0]) if line else None
            if line and frame:
                if start > done:
                    parts.append(data[done:start])
                parts.append(frame)
                done = at = line.end()
            elif not line and _may_go_on(data[start : start + MAX_FRAME]):
                break
            else:
                at = start + 1
        end = start if start >= 0 else len(data)
        if end > done:
            parts.append(data[done:end])
        self._held = data[end:]
        return parts

    def flush(self) -> bytes:
        """Gives up waiting: the held bytes, which are payload. At the end of the connection, or after a timeout."""
        held, self._held = self._held, b""
        return held

    def _read(self, line: bytes) -> Frame | None:
        """The frame of a line, None when it is payload."""
        if line[-10:-9] != b" " or line[-9:-1] != b"%08x" % zlib.crc32(line[:-9]):
            return None
        text = line[len(MAGIC) : -10].decode("ascii")
        header = _HEADER.fullmatch(text)
        if not header or int(header[3]) > MAX_NUMBER:
            return None
        to, manager, flags = Recipient(header[1]), header[2], header[4]
        if to not in self._recipients or (manager and self._manager is not None and manager != self._manager):
            return None
        body: Body = Bad(text)
        if flags in ("", "?", ">", "?>") and not text.endswith(" "):
            try:
                body = _read_body(to, header[5], header[6].split(" ") if header[6] else []) or Unknown(text)
            except ValueError:
                body = Bad(text)
        return Frame(body, int(header[3]), to, flags.startswith("?"), flags.startswith((">", "?>")), manager)


def _may_go_on(rest: bytes) -> bool:
    """Whether bytes that begin with DLE and are no whole line can become a frame."""
    return len(rest) < MAX_FRAME and MAGIC.startswith(rest[: len(MAGIC)]) and all(32 <= c < 127 for c in rest[9:])


def _checked_name(name: str) -> str:
    if not re.fullmatch(_NAME, name):
        raise ValueError(f'"{name}" is no name: 1 to 63 of A-Z a-z 0-9 . _ -, beginning with a letter or digit')
    return name


def _checked_ms(ms: int) -> int:
    if not 0 < ms <= MAX_MS:
        raise ValueError(f"an interval is 1 to {MAX_MS} ms, not {ms}")
    return ms


def _quiet_text(key: str, ms: int) -> str:
    return f"{key}=never" if ms == NEVER else f"{key}={_checked_ms(ms)}"


def _body_text(body: Body) -> str:
    """Verb and arguments; ValueError when they are out of range or the body is one that only comes in."""
    match body:
        case Ping() | Done() | Sleep() | Status() | Release() | Stay():
            return type(body).__name__.lower()
        case Quiet(active_ms, standby_ms, idle_ms):
            given = {"active": active_ms, "standby": standby_ms, "idle": idle_ms}
            words = [_quiet_text(key, ms) for key, ms in given.items() if ms is not None]
            if not words:
                raise ValueError("no quiet interval is given")
            return " ".join(["quiet", *words])
        case KeepAlive(on, None):
            return f"keepalive {_SWITCH[on]}"
        case KeepAlive(True, int(interval_ms)):
            return f"keepalive on interval={_checked_ms(interval_ms)}"
        case AlwaysActive(on):
            return f"always-active {_SWITCH[on]}"
        case Name(name):
            return f"name {_checked_name(name)}"
        case Answer(result, None):
            return f"answer {result.value}"
        case Answer(result, Report() as report):
            return f"answer {result.value} {_report_text(report)}"
    raise ValueError(f"{body} cannot be sent")


def _report_text(report: Report) -> str:
    words = [f"state={report.state}", _quiet_text("active", report.active_ms)]
    words += [_quiet_text("standby", report.standby_ms), _quiet_text("idle", report.idle_ms)]
    if report.name is not None:
        words.append(f"name={_checked_name(report.name)}")
    return " ".join([*words, f"rx={report.rx_bytes}", f"tx={report.tx_bytes}"])


def _read_body(to: Recipient, verb: str, arguments: list[str]) -> Body | None:
    """The body of a frame to `to`, None when there is no such verb. ValueError when the arguments are none."""
    read = (_REQUESTS if to is Recipient.MANAGER else _NOTICES).get(verb)
    return read(arguments) if read else None


def _read_plain(body: Body, arguments: list[str]) -> Body:
    if arguments:
        raise ValueError("this verb has no arguments")
    return body


def _read_switch(arguments: list[str]) -> bool:
    if arguments not in (["on"], ["off"]):
        raise ValueError("neither on nor off")
    return arguments == ["on"]


def _read_quiet(arguments: list[str]) -> Quiet:
    given = dict(map(_pair, arguments))
    if not given or len(given) < len(arguments) or not given.keys() <= {"active", "standby", "idle"}:
        raise ValueError("each of active, standby, idle at most once")
    return Quiet(**{f"{key}_ms": _ms(text) for key, text in given.items()})


def _read_keepalive(arguments: list[str]) -> KeepAlive:
    if len(arguments) != 2:
        return KeepAlive(_read_switch(arguments))
    key, text = _pair(arguments[1])
    if arguments[0] != "on" or key != "interval" or text == "never":
        raise ValueError("not on interval=MS")
    return KeepAlive(True, _ms(text))


def _read_name(arguments: list[str]) -> Name:
    if len(arguments) != 1:
        raise ValueError("not one name")
    return Name(_checked_name(arguments[0]))


def _read_answer(arguments: list[str]) -> Answer:
    """Words that are not known are left out: a later manager may tell more."""
    if not arguments:
        raise ValueError("no result")
    result, told = Result(arguments[0]), dict(map(_pair, arguments[1:]))
    if "state" not in told:
        return Answer(result)
    missing = {"active", "standby", "idle", "rx", "tx"} - told.keys()
    if missing:
        raise ValueError(f"a report without {', '.join(sorted(missing))}")
    report = Report(
        state=told["state"],
        active_ms=_ms(told["active"]),
        standby_ms=_ms(told["standby"]),
        idle_ms=_ms(told["idle"]),
        rx_bytes=int(told["rx"]),
        tx_bytes=int(told["tx"]),
        name=told.get("name"),
    )
    return Answer(result, report)


def _pair(word: str) -> tuple[str, str]:
    """key=value; ValueError."""
    key, equals, value = word.partition("=")
    if not equals:
        raise ValueError(word)
    return key, value


def _ms(text: str) -> int:
    """NEVER, or 1 to MAX_MS; ValueError."""
    if text == "never":
        return NEVER
    if not re.fullmatch("[1-9][0-9]{0,9}", text):
        raise ValueError(text)
    return _checked_ms(int(text))


_REQUESTS: Final[dict[str, Callable[[list[str]], Body]]] = {
    "ping": partial(_read_plain, Ping()),
    "done": partial(_read_plain, Done()),
    "quiet": _read_quiet,
    "keepalive": _read_keepalive,
    "always-active": lambda arguments: AlwaysActive(_read_switch(arguments)),
    "name": _read_name,
    "sleep": partial(_read_plain, Sleep()),
    "status": partial(_read_plain, Status()),
    "release": partial(_read_plain, Release()),
}
"""The verbs of frames for managers: how each reads its arguments."""

_NOTICES: Final[dict[str, Callable[[list[str]], Body]]] = {
    "answer": _read_answer,
    "stay": partial(_read_plain, Stay()),
}
"""Those of frames for the ends."""
