# SPDX-License-Identifier: Apache-2.0
"""A daemon that is killed between leaving repair mode, which clears SO_REUSEADDR, and setting that again, leaves no
connection in TIME-WAIT beside which the next daemon cannot listen."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from typing import Final

import pytest

from appliance.lab.namespaces import Namespace
from tests.mutants import ROOT
from tests.unit.test_repair import space

__all__ = ["space"]

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="TCP_REPAIR and namespaces need root")

KILLED: Final = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
int setsockopt(int fd, int level, int option, const void *value, socklen_t size) {
    int (*real)(int, int, int, const void *, socklen_t) = dlsym(RTLD_NEXT, "setsockopt");
    int result = real(fd, level, option, value, size);
    if (level == IPPROTO_TCP && option == TCP_REPAIR && *(const int *)value != TCP_REPAIR_ON)
        raise(SIGKILL);
    return result;
}
"""
"""The process that loads it dies as soon as a socket of its has left repair mode."""

DAEMON: Final = """
import socket, sys
from tests.inner import ffi, lib
from tests.unit.records import c_key
from tests.unit.test_repair import Key, settle, snapshot
listener = socket.create_server(("127.0.0.1", 0))
print(*listener.getsockname(), flush=True)
near, client = listener.accept()
assert near.recv(1) == b"?"
near.sendall(b"!")
settle(near)
error, ka, rest = snapshot(near)
assert not error, error
key = c_key(Key.of(*client, *near.getsockname()))
if sys.argv[1] == "undone":
    lib.roost_testing_undo(near.fileno())
elif sys.argv[1] == "rebuilt":
    near.close()
    lib.roost_testing_rebuild(key, ka, rest)
else:
    assert not lib.roost_testing_disconnect(near.fileno(), key)
    lib.roost_testing_reuse(near.fileno(), 0, key, ka, rest)
"""


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> str:
    library = tmp_path_factory.mktemp("killed") / "killed.so"
    build = ["cc", "-shared", "-fPIC", "-O1", "-x", "c", "-", "-o", str(library)]
    subprocess.run(build, input=KILLED, text=True, check=True)
    return str(library)


@pytest.mark.parametrize("how", ["undone", "rebuilt", "reused"])
def test_the_next_daemon_listens_where_one_was_killed_at_the_worst_moment(
    space: Namespace, killed: str, how: str
) -> None:
    argv = [sys.executable, "-c", DAEMON, how]
    environment = {**os.environ, "LD_PRELOAD": killed}
    with (
        space.entered(),
        subprocess.Popen(argv, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as daemon,
    ):
        assert daemon.stdout is not None
        address, port = daemon.stdout.readline().split()
        with socket.create_connection((address, int(port)), 5) as client:
            client.sendall(b"?")
            assert client.recv(1) == b"!"
            assert daemon.wait(10) == -signal.SIGKILL
        with socket.socket() as again:
            again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            again.bind((address, int(port)))
            again.listen()
