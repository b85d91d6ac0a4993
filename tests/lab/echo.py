# SPDX-License-Identifier: Apache-2.0
"""An ordinary server on the kernel's TCP, in a thread or a process of its own: it sends back what it gets, and closes
when the client has."""

from __future__ import annotations

import multiprocessing
import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Final, Self

from appliance.lab import Namespace
from appliance.lab.cores import before_all_others

_CHUNK: Final = 1 << 16


@contextmanager
def echo_process(space: Namespace, address: str, port: int) -> Iterator[None]:
    """For a bench that times its answers, and has work of its own meanwhile; before all others."""
    fork = multiprocessing.get_context("fork")
    ours, theirs = fork.Pipe()

    def serve() -> None:
        before_all_others()
        with Echo(space, address, port):
            theirs.send(True)
            theirs.recv()

    process = fork.Process(target=serve, daemon=True)
    process.start()
    if not ours.poll(10):
        process.kill()
        raise RuntimeError("the echo server did not begin to listen within 10 s")
    ours.recv()
    try:
        yield
    finally:
        ours.send(False)
        process.join()


class Echo:
    """Listens when it has been made. `answer` makes the bytes that go back of those that came."""

    def __init__(self, space: Namespace, address: str, port: int, answer: Callable[[bytes], bytes] = bytes) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with space.entered():
            self.listener = socket.create_server((address, port), family=family, backlog=4096)
        self.listener.setblocking(False)
        self.answer = answer
        self.accepted = self.received = self.ended = self.resets = 0
        self.connections: dict[tuple[str, int], socket.socket] = {}
        """By the client's address and port."""
        self.error: BaseException | None = None
        self._by_fd: dict[int, tuple[tuple[str, int], socket.socket]] = {}
        self._epoll = select.epoll()
        self._epoll.register(self.listener, select.EPOLLIN)
        self._end, self._ended = socket.socketpair()
        self._epoll.register(self._ended, select.EPOLLIN)
        self._thread = threading.Thread(target=self._serve, name="echo")
        self._thread.start()

    def deaf(self, client: tuple[str, int], deaf: bool = True) -> None:
        """Whether what a client says, its FIN included, is left where it is, in the kernel."""
        if deaf:
            self._epoll.unregister(self.connections[client])
        else:
            self._epoll.register(self.connections[client], select.EPOLLIN)

    def close(self) -> None:
        self._end.close()
        self._thread.join()
        for sock in [self.listener, self._ended, *self.connections.values()]:
            sock.close()
        self._epoll.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:  # fmt: skip
        self.close()
        if self.error is not None and error is None:
            raise self.error

    def _serve(self) -> None:
        try:
            while True:
                for fd, _ in self._epoll.poll():
                    if fd == self._ended.fileno():
                        return
                    if fd == self.listener.fileno():
                        self._accept()
                    elif fd in self._by_fd:
                        self._read(fd)
        except BaseException as error:
            self.error = error
            raise

    def _accept(self) -> None:
        while True:
            try:
                sock, peer = self.listener.accept()
            except BlockingIOError:
                return
            sock.setblocking(True)
            client = peer[0], peer[1]
            self.accepted += 1
            self.connections[client] = sock
            self._by_fd[sock.fileno()] = client, sock
            self._epoll.register(sock, select.EPOLLIN)

    def _read(self, fd: int) -> None:
        client, sock = self._by_fd[fd]
        try:
            data = sock.recv(_CHUNK)
            self.received += len(data)
            if data:
                sock.sendall(self.answer(data))
                return
            self.ended += 1
        except (ConnectionResetError, BrokenPipeError):
            self.resets += 1
        self._epoll.unregister(fd)
        del self._by_fd[fd]
        if self.connections.get(client) is sock:
            del self.connections[client]
        sock.close()
