# SPDX-License-Identifier: Apache-2.0
"""`roost attach CLIENT`: stdin and stdout to a client, as netcat would."""

from __future__ import annotations

import os
import select
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import click

from control.cli import completing
from control.cli.client import Client, daemon_options

if TYPE_CHECKING:
    from control.client import Stream

PART: Final = 64 * 1024

LAST_S: Final = 5.0
"""For what the client has said when it is let go."""


@click.command("attach")
@click.argument("client", metavar="CLIENT", shell_complete=completing.connections)
@click.option("--wait", "wait_s", type=click.FloatRange(0), default=2.0, show_default=True, metavar="SECONDS",
              help="When stdin has ended: leave the client when it has said nothing for so long.")  # fmt: skip
@daemon_options
def command(client: str, wait_s: float, daemon: Client) -> None:
    """Connect to a client, and wake it: what comes on stdin goes to it, and what it says to stdout.

    It ends when the client ends; or, since a server that ends lets its client go, which then is as quiet as before,
    when stdin has ended and the client has been silent for a while.

    CLIENT is the number of a connection, client-address:port, or a name with its domain.

    \b
    Examples:
      roost attach thermostat-17.roost
      echo status | roost attach 192.0.2.7:40123
      roost attach camera-1.roost </dev/null --wait 60 >heard
    """
    try:
        with daemon.attach(client) as stream:
            _relay(stream, wait_s)
    except KeyboardInterrupt:
        click.get_current_context().exit(130)
    except OSError as error:
        raise click.ClickException(f"the connection to {client} broke off: {error.strerror or error}") from None


def _relay(stream: Stream, wait_s: float) -> None:
    """Neither way waits for the other."""
    from ssl import SSLWantReadError, SSLWantWriteError

    stdin, unsent, heard_s, ended = sys.stdin.fileno(), b"", 0.0, False
    stream.settimeout(0)
    while True:
        if not stream.pending():
            reading = [stream] if ended or unsent else [stream, stdin]
            left_s = max(heard_s + wait_s - time.monotonic(), 0) if ended and not unsent else None
            ready = [one for some in select.select(reading, [stream] if unsent else [], [], left_s) for one in some]
            if not ready:
                break
            if stdin in ready:
                unsent = os.read(stdin, PART)
                ended = not unsent
                heard_s = time.monotonic()
        with suppress(BlockingIOError, SSLWantReadError, SSLWantWriteError):
            if unsent:
                unsent = unsent[stream.send(unsent) :]
        with suppress(BlockingIOError, SSLWantReadError, SSLWantWriteError):
            if not (data := stream.recv(PART)):
                return
            heard_s = time.monotonic()
            _write(data)
    stream.settimeout(LAST_S)
    with suppress(TimeoutError):
        while stream.send_eof() and (data := stream.recv(PART)):
            _write(data)


def _write(data: bytes) -> None:
    try:
        while data:
            data = data[os.write(sys.stdout.fileno(), data) :]
    except BrokenPipeError:  # the reader of stdout is closed
        raise click.exceptions.Exit(1) from None
