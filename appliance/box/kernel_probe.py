"""What the running kernel can do, found out by doing it.

Version numbers and config files lie (back-ports, containers, lockdown), so each probe asks the kernel for the thing
itself in the smallest form and gives it back at once. A probe that does not get it raises OSError; `tried` has the
reason, in words. The probes that need an interface run in a child with a network namespace of its own
(`in_a_namespace`), which disappears with the child.
"""

import errno
import json
import os
import platform
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import cffi

SYSCALLS = {"x86_64": {"bpf": 321, "membarrier": 324}, "aarch64": {"bpf": 280, "membarrier": 283}}
"""The two system calls that Python has no name for."""

# include/uapi/linux/bpf.h
BPF_MAP_CREATE, BPF_PROG_LOAD, BPF_PROG_TEST_RUN, BPF_LINK_CREATE = 0, 5, 10, 28
MAP_ARRAY, MAP_RINGBUF = 2, 27
BPF_F_MMAPABLE = 1 << 10
PROG_SCHED_CLS, PROG_XDP, PROG_CGROUP_SOCK_ADDR, PROG_SK_LOOKUP = 3, 6, 18, 30
ATTACH_INET4_CONNECT, ATTACH_SK_LOOKUP = 10, 36
XDP_DROP = 1
BPF_XDP = 37
BPF_F_TEST_XDP_LIVE_FRAMES = 1 << 1
XDP_FLAGS_SKB_MODE, XDP_FLAGS_DRV_MODE = 1 << 1, 1 << 2

TIME_ERROR = 5  # of adjtimex(2)
TIMEX_BYTES = 512  # more than a struct timex has
TCP_REPAIR = 19  # include/uapi/linux/tcp.h
MEMBARRIER_QUERY, MEMBARRIER_GLOBAL = 0, 1  # include/uapi/linux/membarrier.h

_ffi = cffi.FFI()
_ffi.cdef("long syscall(long number, ...); int adjtimex(void *timex);")
_libc: Any = _ffi.dlopen(None)


def _syscall(name: str, *args: int) -> int:
    numbers = SYSCALLS.get(platform.machine())
    if numbers is None:
        raise OSError(errno.ENOSYS, f"Roost does not know the system calls of {platform.machine()}")
    result = int(_libc.syscall(numbers[name], *(_ffi.cast("long", arg) for arg in args)))
    if result < 0:
        raise OSError(_ffi.errno, os.strerror(_ffi.errno))
    return result


def _address(buffer: bytearray) -> int:
    return int(_ffi.cast("uintptr_t", _ffi.from_buffer(buffer)))


def _bpf(command: int, attributes: bytes) -> int:
    attr = bytearray(attributes)
    return _syscall("bpf", command, _address(attr), len(attr))


@contextmanager
def _descriptor(fd: int) -> Iterator[int]:
    try:
        yield fd
    finally:
        os.close(fd)


def _load_drop(prog_type: int, attach_type: int = 0) -> int:
    """Load "return 1" (XDP_DROP for XDP) as a program of this type; its descriptor."""
    instructions = bytearray(struct.pack("=BBhi", 0xB7, 0, 0, XDP_DROP) + struct.pack("=BBhi", 0x95, 0, 0, 0))
    license_text = bytearray(b"GPL\0")
    pointers = _address(instructions), _address(license_text)
    # Zeros: log, kernel version, flags, name, ifindex.
    return _bpf(BPF_PROG_LOAD, struct.pack("=IIQQ44xI", prog_type, 2, *pointers, attach_type))


def tried(probe: Callable[[], None]) -> str | None:
    """None when it worked, otherwise the reason, in words."""
    try:
        probe()
    except OSError as error:
        return error.strerror or str(error)
    return None


def _map(map_type: int, key_size: int, value_size: int, entries: int, flags: int) -> None:
    os.close(_bpf(BPF_MAP_CREATE, struct.pack("=5I", map_type, key_size, value_size, entries, flags)))


def mappable_array() -> None:
    """An array that the engine maps into its own memory: how it reads and writes the inactive table."""
    _map(MAP_ARRAY, 4, 48, 16, BPF_F_MMAPABLE)


def ring_buffer() -> None:
    _map(MAP_RINGBUF, 0, 0, 65536, 0)


def load_program(prog_type: int, attach_type: int = 0) -> None:
    os.close(_load_drop(prog_type, attach_type))


def lookup_program() -> None:
    """Socket lookup: what keeps packets of sleeping connections from listeners."""
    load_program(PROG_SK_LOOKUP, ATTACH_SK_LOOKUP)


def connect_program() -> None:
    """At connect(): what lets programs on this machine reach clients."""
    load_program(PROG_CGROUP_SOCK_ADDR, ATTACH_INET4_CONNECT)


def live_frames() -> None:
    """BPF_PROG_RUN in live-frame mode: how held frames are replayed and probes sent. This one is dropped."""
    frame = bytearray(64)
    with _descriptor(_load_drop(PROG_XDP)) as fd:
        # Zeros: the answer's size and place, the duration, the context's sizes and places, the processor.
        run_once = struct.pack("=I4xI4xQ8xI28xI4x", fd, len(frame), _address(frame), 1, BPF_F_TEST_XDP_LIVE_FRAMES)
        _bpf(BPF_PROG_TEST_RUN, run_once)


def membarrier_global() -> None:
    """MEMBARRIER_CMD_GLOBAL: what makes every packet that passed XDP before a mark be through TCP after it."""
    if not _syscall("membarrier", MEMBARRIER_QUERY, 0, 0) & MEMBARRIER_GLOBAL:
        raise OSError(errno.ENOSYS, "the kernel offers other membarrier commands, but not GLOBAL")


def tcp_repair() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 1)


# --- in a namespace of its own ---------------------------------------------------------------------------------------


def _attach_xdp(ifindex: int, flags: int) -> None:
    with _descriptor(_load_drop(PROG_XDP)) as fd:
        os.close(_bpf(BPF_LINK_CREATE, struct.pack("=IIII", fd, ifindex, BPF_XDP, flags)))


def _namespace_probes() -> dict[str, str | None]:
    """Run inside the throw-away namespace: interfaces, XDP in both modes, the tc guard's place, NAT."""
    # Imported here: it takes 0.2 s, and the callers of the other probes have no use for it.
    from pyroute2 import IPRoute
    from pyroute2.netlink.exceptions import NetlinkError

    found: dict[str, str | None] = {"namespace": None}

    def netlink(action: Callable[[], object]) -> str | None:
        try:
            action()
        except NetlinkError as error:
            return os.strerror(error.code)
        return None

    with IPRoute() as ip:
        found["veth"] = netlink(lambda: ip.link("add", ifname="rd0", kind="veth", peer="rd1"))
        if found["veth"] is None:
            index = int(ip.link_lookup(ifname="rd0")[0])
            for each in ("rd0", "rd1"):
                ip.link("set", index=ip.link_lookup(ifname=each)[0], state="up")
            found["xdp_native"] = tried(partial(_attach_xdp, index, XDP_FLAGS_DRV_MODE))
            found["xdp_generic"] = tried(partial(_attach_xdp, index, XDP_FLAGS_SKB_MODE))
            found["clsact"] = netlink(lambda: ip.tc("add", "clsact", index))
            if found["clsact"] is None:
                with _descriptor(_load_drop(PROG_SCHED_CLS)) as fd:
                    guard = partial(ip.tc, "add-filter", "bpf", index, ":1", fd=fd, name="roost-doctor", classid=1)
                    found["tc_egress"] = netlink(lambda: guard(parent="ffff:fff3", direct_action=True))
    rules = "add table ip d; add chain ip d c { type nat hook postrouting priority 100; }; add rule ip d c masquerade"
    nft = shutil.which("nft", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if nft is None:
        found["nat"] = "nft is not installed"
    else:
        done = subprocess.run([nft, rules], capture_output=True, text=True, check=False)
        found["nat"] = None if done.returncode == 0 else done.stderr.strip().splitlines()[0]
    return found


def in_a_namespace() -> dict[str, str | None]:
    """The namespace probes by name: "namespace", and where that worked "veth", "xdp_native", "xdp_generic", "clsact",
    "tc_egress", "nat". A name that is absent could not be tried because an earlier one failed."""
    root = str(Path(__file__).resolve().parents[2])
    python = [sys.executable, "-P", "-m", "appliance.box.kernel_probe"]
    try:
        done = subprocess.run(
            ["unshare", "--net", "--", *python],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
            env={**os.environ, "PYTHONPATH": root},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"namespace": str(error)}
    if done.returncode != 0:
        return {"namespace": (done.stderr.strip().splitlines() or ["the probe ended without a word"])[-1]}
    answers: dict[str, str | None] = json.loads(done.stdout)
    return answers


if __name__ == "__main__":
    print(json.dumps(_namespace_probes()))


def clock_is_kept() -> bool:
    """Whether something tells the kernel that its time of day is right (adjtimex(2), which sets nothing here)."""
    return int(_libc.adjtimex(_ffi.new("char[]", TIMEX_BYTES))) != TIME_ERROR
