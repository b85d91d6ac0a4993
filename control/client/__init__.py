# SPDX-License-Identifier: Apache-2.0
"""A client of Roost's API: by the network, or of the daemon on this machine.

    with Client("https://box:8443", token=token).attach("thermostat-17.roost") as stream:
        stream.sendall(b"status\\n")
        print(stream.recv(100))

Of its own wheel it is roost.client (docs/client.md), in the appliance control.client: it imports nothing of Roost, so
that it is the same in both.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .aio import AsyncClient, AsyncEvents, AsyncStream
    from .calls import Call
    from .client import Client, Events, Stream
    from .errors import AwayError, RoostError
    from .events import Event

__all__ = [
    "AsyncClient", "AsyncEvents", "AsyncStream", "AwayError", "Call", "Client", "Event", "Events", "RoostError",
    "Stream",
]  # fmt: skip


def __getattr__(name: str) -> object:
    """What is used is imported: httpx takes 100 ms, and what it needs in an event loop as long again."""
    from importlib import import_module

    if name in __all__:
        for file in ("errors", "calls", "events", "client", "aio"):
            if hasattr(module := import_module(f".{file}", __name__), name):
                return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
