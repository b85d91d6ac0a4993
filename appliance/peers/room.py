# SPDX-License-Identifier: Apache-2.0
"""A room on a WebSocket, or on a bidirectional stream of gRPC: what `websockets` and `grpcio` make of a few lines.

    python -m appliance.peers.room serve websocket 10.3.0.2 8765
    python -m appliance.peers.room visit grpc 198.18.0.1 50051

Each line that a visitor says is answered with `VISITOR LINE: TEXT`, both counted from 1; `all TEXT` is told to the
others, as `all: TEXT`. Neither library sends keep-alives of its own here.
"""

from __future__ import annotations

import itertools
import queue
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

READY: Final = "the room is open"
_METHOD: Final = "/roost.lab.Room/Visit"
Endpoint = tuple[str, int]


def authority(to: Endpoint) -> str:
    """The endpoint as a URL has it."""
    return f"[{to[0]}]:{to[1]}" if ":" in to[0] else f"{to[0]}:{to[1]}"


class _Visitors:
    """Those who are there, each with a way to tell it something."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._tell: dict[int, Callable[[str], object]] = {}

    def enter(self, lines: Iterator[str], tell: Callable[[str], object]) -> None:
        """Serve one, until it says nothing any more."""
        number = next(self._numbers)
        self._tell[number] = tell
        try:
            for count, line in enumerate(lines, 1):
                told = line.removeprefix("all ")
                for other, tell_other in tuple(self._tell.items()) if told != line else ():
                    if other != number:
                        tell_other(f"all: {told}")
                tell(f"{number} {count}: {'told' if told != line else line}")
        finally:
            del self._tell[number]


def serve_websocket(here: Sequence[Endpoint]) -> None:
    from websockets.sync.server import serve

    visitors = _Visitors()

    def enter(connection: Any) -> None:
        visitors.enter(iter(connection), connection.send)

    servers = [serve(enter, host, port, ping_interval=None, compression=None) for host, port in here]
    print(READY, flush=True)
    threads = [threading.Thread(target=server.serve_forever) for server in servers]
    for thread in threads:
        thread.start()


def visit_websocket(to: Endpoint) -> None:
    from websockets.sync.client import connect

    with connect(f"ws://{authority(to)}", ping_interval=None, compression=None, proxy=None) as connection:
        threading.Thread(target=lambda: _print(connection), daemon=True).start()
        for line in sys.stdin:
            connection.send(line.rstrip("\n"))


def serve_grpc(here: Sequence[Endpoint]) -> None:
    from concurrent.futures import ThreadPoolExecutor

    import grpc

    visitors = _Visitors()

    def enter(requests: Iterator[bytes], _context: Any) -> Iterator[bytes]:
        answers: queue.SimpleQueue[str | None] = queue.SimpleQueue()

        def listen() -> None:
            with suppress(grpc.RpcError):  # the visitor was cut off
                visitors.enter((request.decode() for request in requests), answers.put)
            answers.put(None)

        threading.Thread(target=listen, daemon=True).start()
        yield from (answer.encode() for answer in iter(answers.get, None))

    _, service, method = _METHOD.split("/")
    handler = grpc.method_handlers_generic_handler(service, {method: grpc.stream_stream_rpc_method_handler(enter)})
    server = grpc.server(ThreadPoolExecutor(20), [handler])
    for one in here:
        server.add_insecure_port(authority(one))
    server.start()
    print(READY, flush=True)
    server.wait_for_termination()


def visit_grpc(to: Endpoint) -> None:
    import grpc

    with grpc.insecure_channel(authority(to), [("grpc.enable_http_proxy", 0)]) as channel:
        said = (line.rstrip("\n").encode() for line in sys.stdin)
        _print(answer.decode() for answer in channel.stream_stream(_METHOD)(said))


def _print(lines: Any) -> None:
    for line in lines:
        print(line, flush=True)


if __name__ == "__main__":
    role, kind, *words = sys.argv[1:]
    ends = [(host, int(port)) for host, port in zip(words[::2], words[1::2], strict=True)]
    if role == "serve":
        {"websocket": serve_websocket, "grpc": serve_grpc}[kind](ends)
    else:
        {"websocket": visit_websocket, "grpc": visit_grpc}[kind](ends[0])
