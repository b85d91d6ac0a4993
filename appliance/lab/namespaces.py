# SPDX-License-Identifier: Apache-2.0
"""Network namespaces that cannot outlive their owner, and the few system calls around them.

A namespace here has no name in the file system: it lives as long as a descriptor to it is open or a process runs in
it. When the owner dies, however it dies, the kernel closes its descriptors and takes the namespace, its links, its NAT
table and its conntrack entries away. Nothing has to be cleaned up, so nothing can be forgotten.
"""

from __future__ import annotations

import array
import ctypes
import errno
import fcntl
import os
import platform
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_CLONE_NEWNET: Final = 0x40000000
_SIOCETHTOOL: Final = 0x8946
# The setters of linux/ethtool.h that take one value, by the names of ethtool(8); each getter is the number before.
_OFFLOADS: Final = {"tx": 0x17, "sg": 0x19, "tso": 0x1F, "gso": 0x24, "gro": 0x2C}

_SYS_BPF: Final = {"x86_64": 321, "aarch64": 280}
_BPF_PROG_LOAD: Final = 5
_BPF_PROG_TYPE_XDP: Final = 6

XDP_PASS: Final = struct.pack("<BBhiBBhi", 0xB7, 0, 0, 2, 0x95, 0, 0, 0)  # r0 = XDP_PASS; exit

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)} (the lab needs root with CAP_SYS_ADMIN)")


def _here() -> int:
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def move_thread(namespace_fd: int) -> None:
    """Move the calling thread, and what it forks from now on, into the namespace for good."""
    _check(_libc.setns(namespace_fd, _CLONE_NEWNET), "setns")


def load_xdp(code: bytes) -> int:
    """Load an XDP program that needs no maps, given as its instructions; its descriptor."""
    instructions = ctypes.create_string_buffer(code, len(code))
    licence = ctypes.create_string_buffer(b"GPL")
    attributes = struct.pack("IIQQIIQII", _BPF_PROG_TYPE_XDP, len(code) // 8, ctypes.addressof(instructions),
                             ctypes.addressof(licence), 0, 0, 0, 0, 0)  # fmt: skip
    fd: int = _libc.syscall(_SYS_BPF[platform.machine()], _BPF_PROG_LOAD, attributes, len(attributes))
    _check(min(fd, 0), "bpf(BPF_PROG_LOAD)")
    return fd


class Namespace:
    """One network namespace, held by a descriptor."""

    def __init__(self, name: str) -> None:
        self.name = name
        before = _here()
        try:
            _check(_libc.unshare(_CLONE_NEWNET), "unshare")
            try:
                self.fd = _here()
            finally:
                move_thread(before)
        finally:
            os.close(before)

    @property
    def inode(self) -> int:
        """The number that identifies the namespace in /proc/PID/ns/net."""
        return os.fstat(self.fd).st_ino

    @property
    def path(self) -> str:
        """A path that other processes can open while the lab exists (nsenter --net=PATH)."""
        return f"/proc/{os.getpid()}/fd/{self.fd}"

    @contextmanager
    def entered(self) -> Iterator[None]:
        """The calling thread is in the namespace for the length of the block; other threads are not affected."""
        before = _here()
        try:
            move_thread(self.fd)
            try:
                yield
            finally:
                move_thread(before)
        finally:
            os.close(before)

    def sysctl(self, key: str, value: object) -> None:
        """Set a sysctl, e.g. sysctl("net.ipv4.ip_forward", 1)."""
        with self.entered(), open(_sysctl_path(key), "w") as file:
            file.write(str(value))

    def read_sysctl(self, key: str) -> str:
        with self.entered(), open(_sysctl_path(key)) as file:
            return file.read().strip()

    def offload(self, ifname: str, **features: bool) -> None:
        """Switch offloads of an interface, by the names of ethtool(8): offload("eth0", tx=False, gro=True). One that is
        so already stays, even if it cannot be switched: native XDP takes TSO from the other end of a veth pair."""
        with self.entered(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:

            def ethtool(command: int, on: bool) -> bool:
                value = array.array("I", [command, int(on)])
                request = struct.pack("16sQ16x", ifname.encode(), value.buffer_info()[0])
                fcntl.ioctl(control.fileno(), _SIOCETHTOOL, request)
                return bool(value[1])

            for feature, on in features.items():
                try:
                    ethtool(_OFFLOADS[feature], on)
                except OSError as error:
                    if error.errno != errno.EOPNOTSUPP or ethtool(_OFFLOADS[feature] - 1, on) != on:
                        raise

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def _sysctl_path(key: str) -> str:
    return "/proc/sys/" + (key if "/" in key else key.replace(".", "/"))
