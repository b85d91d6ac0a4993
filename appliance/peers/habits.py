# SPDX-License-Identifier: Apache-2.0
"""Clients with habits: a swarm (appliance.peers.swarm) whose clients speak by themselves at a rate, and whose number is
kept. A client that lost its connection is written down, and another one comes in its place.

Each question is `ECHO name number bytes`, numbered from 1 on in each connection; its answer must be the same line,
whole, once, and before the next question.

Commands, besides those of the swarm
  live   as connect (count: how many clients there are to be), and asked_s: so long a client asks nothing after a server
         has asked it, which may hang up as soon as it has its answer. From then on those that are missing connect
  pace   rate (questions/s of all of them together, each of a random client), size (bytes, at most), timeout_s (the
         connection of a client that waits longer for its answer is given up)
  sweep  seconds: each client speaks once, evenly spread over this time; later if a server has just asked it
  leave  n random clients that wait for no answer end their connections -> left. The sockets of these, and of those that
         are given up, have the mark GIVEN_UP from then on: what is still sent to them reaches no program
  brief  -> open, wanted, sweeping (clients that have not spoken yet), oldest_ms (of the questions without an answer)
  look   silence_ms -> open, asked, answered, said_bytes, waiting (clients between question and answer),
         longest_ms (the longest that an answer has taken since the last
         look), refused {reason: n} (attempts to connect), silent, max_silence_ms, and ended: what became of the
         connections that ended since the last look, [name, reason, seconds since its last byte, seconds since the
         question that has no answer or null, bytes of that answer, when (CLOCK_MONOTONIC)]
"""

from __future__ import annotations

import os
import random
import time
from array import array
from collections import Counter
from typing import Any

from appliance.peers.lines import Command, mark, tcp_info
from appliance.peers.swarm import _GREETING, _QUIET, _SPEAKING, Connecting, Swarm, name_of

_TURN_S = 0.02
_GREETING_S = 15.0
"""A client that has no welcome by then, since its server has just gone, tries it anew."""
QUESTIONS_END = "which is the question's end"
GIVEN_UP = 1
_AGAIN_S = 1.0
"""Between two attempts to replace clients, and two looks for answers that are overdue."""
_REPLACED_S = 0.1
"""From when clients leave until others take their places."""


class Joining(Connecting):
    """Clients that come in the place of others; no command waits for them."""

    def settled(self) -> None:
        if self.connected + sum(self.failed.values()) >= self.count:
            self.swarm.connecting = None


class Habits(Swarm):
    def __init__(self) -> None:
        super().__init__()
        self.touched = array("d", [0.0]) * self.loop.descriptors  # by descriptor: when payload came or went last
        self.told = array("d", [0.0]) * self.loop.descriptors  # when a server asked last
        self.numbers = array("L", [0]) * self.loop.descriptors  # of the last question
        self.living: Command | None = None
        self.asked_s = 0.0
        self.begun = 0  # names that were given
        self.next_join = 0.0
        self.rate, self.size, self.timeout_s = 0.0, 16, 60.0
        self.paced = time.monotonic()
        self.order: list[int] = []  # descriptors; may have some that are closed
        self.sweeping: list[int] = []
        self.sweep_rate = 0.0
        self.swept = self.paced
        self.ended: list[list[Any]] = []
        self.refused: Counter[str] = Counter()
        self.asked = self.said_bytes = self.longest_ms = 0
        for name in ("live", "pace", "sweep", "leave", "brief", "look"):
            self.loop.command(name, getattr(self, "do_" + name))

    # Commands

    def do_live(self, command: Command) -> None:
        self.living = command
        self.asked_s = float(command["asked_s"])
        self.loop.reply(command)

    def do_pace(self, command: Command) -> None:
        self.rate, self.size = float(command["rate"]), int(command["size"])
        self.timeout_s = float(command["timeout_s"])
        self.loop.reply(command)

    def do_sweep(self, command: Command) -> None:
        self.sweeping = random.sample(list(self.open.values()), len(self.open))
        self.sweep_rate = len(self.sweeping) / max(float(command["seconds"]), 0.1)
        self.swept = time.monotonic()
        self.loop.reply(command)

    def do_leave(self, command: Command) -> None:
        quiet = [fd for fd in self.open.values() if self.state[fd] == _QUIET]
        leaving = random.sample(quiet, min(int(command["n"]), len(quiet)))
        for fd in leaving:
            self.forget(fd)
            mark(fd, GIVEN_UP)
            os.close(fd)
        self.next_join = time.monotonic() + _REPLACED_S  # not in step with who lets them leave
        self.loop.reply(command, left=len(leaving))

    def do_brief(self, command: Command) -> None:
        oldest = min((since for _, since in self.waiting.values()), default=time.perf_counter_ns())
        wanted = int(self.living["count"]) if self.living else 0
        self.loop.reply(command, open=len(self.open), wanted=wanted, sweeping=len(self.sweeping),
                        oldest_ms=(time.perf_counter_ns() - oldest) // 1_000_000)  # fmt: skip

    def do_look(self, command: Command) -> None:
        limit_ms = int(command.get("silence_ms", 1 << 32))
        silences = [int.from_bytes(tcp_info(fd)[56:60], "little") for fd in self.open.values()]
        self.loop.reply(
            command, open=len(self.open), asked=self.asked, answered=self.answers, said_bytes=self.said_bytes,
            waiting=len(self.waiting), longest_ms=self.longest_ms, refused=dict(self.refused),
            silent=sum(silence > limit_ms for silence in silences), max_silence_ms=max(silences, default=0),
            ended=self.ended)  # fmt: skip
        self.ended, self.longest_ms, self.refused = [], 0, Counter()

    # Clients

    def forget(self, fd: int) -> None:
        self.state[fd] = 0
        self.partial.pop(fd, None)
        self.waiting.pop(fd, None)
        self.open.pop(self.number[fd], None)

    def lose(self, fd: int, reason: str) -> None:
        if self.state[fd] in (_QUIET, _SPEAKING):
            now, asked = time.monotonic(), self.waiting.get(fd)
            waited = (time.perf_counter_ns() - asked[1]) / 1e9 if asked else None
            unheard = len(asked[0]) + 1 if asked else 0
            self.ended.append([name_of(self.number[fd]), reason, now - self.touched[fd], waited, unheard, now])
        elif self.connecting is not None:
            self.refused[reason] += 1
        mark(fd, GIVEN_UP)
        super().lose(fd, reason)

    def heard(self, fd: int, line: bytes, now: int) -> None:
        if line.startswith(b"WHAT TELL "):  # its answer came after the link of the server that had asked was closed
            return
        if line.startswith(b"ASK "):
            self.told[fd] = time.monotonic()
        asked = self.waiting.get(fd)
        greeting = self.state[fd] == _GREETING
        super().heard(fd, line, now)
        if self.state[fd] == _QUIET:
            self.touched[fd] = time.monotonic()
            if greeting:
                self.numbers[fd], self.told[fd] = 0, 0.0
            elif asked is not None:
                self.longest_ms = max(self.longest_ms, (now - asked[1]) // 1_000_000)

    def wrong(self, line: bytes, expected: bytes | None) -> str:
        """With where in the answer it begins, for who looks into it."""
        text = f"{super().wrong(line, expected)}: {line[:40]!r}, of {len(line)} bytes"
        rest = line.removeprefix(b"WHAT ")
        at = expected.find(rest[:40]) if expected else -1
        if expected and at > 0 and expected[at:] == rest:
            return f"{text}, {QUESTIONS_END}, from byte {at} on"
        return f"{text}, which is the question from byte {at} on" if at >= 0 else text

    def speak(self, fd: int) -> None:
        self.numbers[fd] += 1
        data = random.randbytes(random.randint(1, self.size)).hex().encode()
        line = b"ECHO %s %d %s" % (name_of(self.number[fd]).encode(), self.numbers[fd], data)
        self.state[fd] = _SPEAKING
        self.waiting[fd] = (line, time.perf_counter_ns())
        self.touched[fd] = time.monotonic()
        self.asked += 1
        self.said_bytes += len(line) + 1
        self.write(fd, line + b"\n")

    def expire(self) -> None:
        now = time.perf_counter_ns()
        for fd, (_, since) in list(self.waiting.items()):
            limit_s = self.timeout_s if self.state[fd] == _SPEAKING else _GREETING_S
            if now - since > limit_s * 1e9:
                self.lose(fd, "no answer in time")

    # What they do by themselves

    def turn(self) -> None:
        now = time.monotonic()
        due = int((now - self.paced) * self.rate)
        if due:
            self.paced += due / self.rate
            for _ in range(min(due, len(self.order))):
                self.speak_if_quiet(random.choice(self.order))
        elif not self.rate:
            self.paced = now
        if self.sweeping:
            due = int((now - self.swept) * self.sweep_rate)
            self.swept += due / self.sweep_rate
            for _ in range(min(due, len(self.sweeping))):
                if not self.speak_if_quiet(fd := self.sweeping.pop()) and self.state[fd] == _QUIET:
                    self.sweeping.insert(0, fd)
        if now >= self.next_join:
            self.next_join = now + _AGAIN_S
            self.join()
            self.order = list(self.open.values())
            self.expire()

    def speak_if_quiet(self, fd: int) -> bool:
        if self.state[fd] != _QUIET or time.monotonic() - self.told[fd] < self.asked_s:
            return False
        self.speak(fd)
        return True

    def join(self) -> None:
        if self.living is None or self.connecting is not None:
            return
        missing = int(self.living["count"]) - len(self.open)
        if missing > 0:
            first = int(self.living["first"]) + self.begun
            self.connecting = Joining(self, {**self.living, "count": missing, "first": first})
            self.begun += missing

    def run(self) -> None:
        epoll, loop = self.loop.epoll, self.loop
        while loop.running:
            for fd, events in epoll.poll(_TURN_S, 1024):
                if fd == 0:
                    loop.read_commands()
                else:
                    self.ready(fd, events)
            if self.connecting is not None:
                self.connecting.fill()
            self.turn()


if __name__ == "__main__":
    Habits().run()
