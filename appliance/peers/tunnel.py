# SPDX-License-Identifier: Apache-2.0
"""Ways to servers on devices that connect out, for programs that know nothing of it.

    python -m appliance.peers.tunnel device 198.18.0.1 7000 22 6379
        connects to the appliance once for each of these ports of its own; who speaks there has the server at that port
    python -m appliance.peers.tunnel door 10.3.0.1 3128 22=ssh 6379=redis
        who connects to one of these ports of this machine has the client of that name, by HTTP CONNECT

Prints one line of JSON when it is ready: of a device, the port that each connection comes from.
"""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio import StreamReader, StreamWriter
from contextlib import suppress
from typing import Final

HERE: Final = "127.0.0.1"


async def copy(source: StreamReader, sink: StreamWriter) -> None:
    while data := await source.read(1 << 16):
        sink.write(data)
        await sink.drain()
    sink.write_eof()


async def join(one: tuple[StreamReader, StreamWriter], other: tuple[StreamReader, StreamWriter]) -> None:
    """Until both have ended."""
    with suppress(ConnectionError):  # one was reset, and so is the other
        await asyncio.gather(copy(one[0], other[1]), copy(other[0], one[1]))
    one[1].close()
    other[1].close()


async def device(appliance: str, port: int, servers: list[int]) -> None:
    links = [await asyncio.open_connection(appliance, port) for _ in servers]
    names = [writer.get_extra_info("sockname")[1] for _, writer in links]
    print(json.dumps(dict(zip(servers, names, strict=True))), flush=True)

    async def serve(link: tuple[StreamReader, StreamWriter], server: int) -> None:
        if first := await link[0].read(1 << 16):  # a server may speak first
            reader, writer = await asyncio.open_connection(HERE, server)
            writer.write(first)
            await join(link, (reader, writer))

    await asyncio.gather(*map(serve, links, servers))


async def door(proxy: str, port: int, doors: dict[int, str]) -> None:
    async def enter(reader: StreamReader, writer: StreamWriter, name: str) -> None:
        asked, ask = await asyncio.open_connection(proxy, port)
        ask.write(f"CONNECT {name}.roost:1 HTTP/1.1\r\nHost: {name}.roost:1\r\n\r\n".encode())
        answer = await asked.readuntil(b"\r\n\r\n")
        if answer.split(b" ")[1] != b"200":
            sys.stderr.write(f"{name}: {answer.decode()}")
            writer.close()
            return
        await join((reader, writer), (asked, ask))

    for number, name in doors.items():
        await asyncio.start_server(lambda r, w, name=name: enter(r, w, name), HERE, number)  # type: ignore[misc]
    print("{}", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    role, host, port, *words = sys.argv[1:]
    if role == "device":
        asyncio.run(device(host, int(port), list(map(int, words))))
    else:
        asyncio.run(door(host, int(port), {int(one): name for one, name in (word.split("=") for word in words)}))
