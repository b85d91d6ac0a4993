# SPDX-License-Identifier: Apache-2.0
"""What the kernel's TCP tells by its tracepoints, heard by bcc (Debian's python3-bpfcc).

bcc compiles C when it starts, as a rule with the headers of the very kernel that runs. Here it needs none: where a
field lies is read from the format of the tracepoint and from the kernel's BTF, and put into the C as a number; the few
types that bcc's own helpers name are those of linux-libc-dev. So it works where there are no headers, and where the
headers are too new for bcc's compiler.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import re
import struct
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from appliance.wire import endpoint_text, unpack_address

EVENTS: Final = Path("/sys/kernel/tracing/events")
BTF: Final = Path("/sys/kernel/btf/vmlinux")
LOCKDOWN: Final = Path("/sys/kernel/security/lockdown")
HEADERS: Final = Path("/usr/include")
PACKAGES: Final = Path("/usr/lib/python3/dist-packages")
"""Debian's, which a virtual environment does not see."""

TRACEPOINTS: Final = {
    "retransmit": "tcp/tcp_retransmit_skb",
    "reset-sent": "tcp/tcp_send_reset",
    "reset-received": "tcp/tcp_receive_reset",
    "state": "sock/inet_sock_set_state",
}

STATES: Final = ("", "ESTABLISHED", "SYN_SENT", "SYN_RECV", "FIN_WAIT1", "FIN_WAIT2", "TIME_WAIT", "CLOSE",
                 "CLOSE_WAIT", "LAST_ACK", "LISTEN", "CLOSING", "NEW_SYN_RECV")  # fmt: skip
"""include/net/tcp_states.h."""

_EVENT: Final = struct.Struct("=QIii28s28sHH")
_SOCKADDR: Final = struct.Struct("=HH")
_AF_INET: Final = 2
_KERNEL: Final = "Boot Debian's own kernel, or one with CONFIG_{}."

_PROGRAM: Final = """
struct event { u64 at; u32 kind; int old; int new; u8 local[28]; u8 remote[28]; u16 local_port; u16 remote_port; }
    __attribute__((packed));
BPF_RINGBUF_OUTPUT(events, 64);
BPF_ARRAY(counts, u64, 3); /* the second; events in it; events in all that were left out */

static inline int is_elsewhere(u64 sk)
{
    u64 net = 0;
    u32 inode = 0;
    if (!sk) /* a reset of what has no socket */
        return 0;
    bpf_probe_read_kernel(&net, sizeof net, (void *)(sk + SKC_NET));
    bpf_probe_read_kernel(&inode, sizeof inode, (void *)(net + NET_INUM));
    return inode != NETNS;
}

static inline void give(struct event *event)
{
    int first = 0, middle = 1, last = 2;
    u64 *second = counts.lookup(&first);
    u64 *number = counts.lookup(&middle);
    u64 *left_out = counts.lookup(&last);
    if (!second || !number || !left_out)
        return;
    event->at = bpf_ktime_get_ns();
    if (event->at / 1000000000 != *second) {
        *second = event->at / 1000000000;
        *number = 0;
    }
    lock_xadd(number, 1);
    if (*number > RATE || events.ringbuf_output(event, sizeof *event, 0))
        lock_xadd(left_out, 1);
}
"""


class TracingError(Exception):
    """It cannot begin; a sentence."""


class Seen(NamedTuple):
    """at_ms: since 1970. event: of TRACEPOINTS. old, new: of STATES; the same but for `state`, empty: not known. local,
    remote: address and port as text."""

    at_ms: int
    event: str
    local: str
    remote: str
    old: str
    new: str


def _bcc() -> Any:
    sys.path.append(str(PACKAGES))
    try:
        return importlib.import_module("bcc")
    finally:
        sys.path.remove(str(PACKAGES))


def problem() -> tuple[str, str] | None:
    """What keeps it from working here, and what to do; None: nothing that can be seen beforehand."""
    if os.geteuid() != 0:
        return "not root, who alone may trace the kernel", "sudo roost trace ..."
    if not (PACKAGES / "bcc").is_dir():
        return "bcc is not installed", "apt-get install python3-bpfcc"
    if not (HEADERS / "linux/bpf_common.h").exists():
        return f"no headers below {HEADERS / 'linux'}", "apt-get install linux-libc-dev"
    if not EVENTS.is_dir():
        return f"no tracefs at {EVENTS.parent}", f"mount -t tracefs tracefs {EVENTS.parent}"
    if missing := [path for path in TRACEPOINTS.values() if not (EVENTS / path).is_dir()]:
        return f"the kernel has no tracepoint {missing[0]}", _KERNEL.format("FTRACE and CONFIG_BPF_EVENTS")
    if not BTF.exists():
        return f"no {BTF}", _KERNEL.format("DEBUG_INFO_BTF")
    if LOCKDOWN.exists() and "[confidentiality]" in LOCKDOWN.read_text():
        return "the kernel is locked down (confidentiality)", "Boot without lockdown=confidentiality."
    return None


def fields_of(text: str) -> dict[str, tuple[int, int]]:
    """Offset and bytes of each field, by the text of a tracepoint's format."""
    found = re.findall(r"field:[^;]*?(\w+)(?:\[\d*\])?;\s*offset:(\d+);\s*size:(\d+);", text)
    return {name: (int(offset), int(size)) for name, offset, size in found}


def offset_of(btf: str, of: str, member: str) -> int:
    """Where a member of a structure lies, by `bpftool btf dump`. Raises TracingError."""
    found = re.search(rf"STRUCT '{of}' [^\n]*\n(?:\t[^\n]*\n)*?\t'{member}' [^\n]*bits_offset=(\d+)", btf)
    if found is None:
        raise TracingError(f"the kernel's struct {of} has no {member}: this version of Roost does not know it")
    return int(found[1]) // 8


def _function(number: int, path: str) -> str:
    """One tracepoint's program."""
    fields = fields_of((EVENTS / path / "format").read_text())

    def read(into: str, name: str) -> str:
        offset, size = fields[name]
        return f"    bpf_probe_read_kernel({into}, {min(size, 28)}, ctx + {offset});\n"

    with_ports = "sport" in fields  # else the addresses are sockaddr, which have them
    body = read("&sk", "skaddr")
    for end, side in (("local", "s"), ("remote", "d")):
        body += read(f"event.{end}", f"{side}addr_v6" if with_ports else f"{side}addr")
        body += read(f"&event.{end}_port", f"{side}port") if with_ports else ""
    states = ("oldstate", "newstate") if "oldstate" in fields else ("state", "state")
    for into, name in zip(("old", "new"), states, strict=True):
        body += read(f"&event.{into}", name) if name in fields else ""
    protocol = read("&protocol", "protocol") if "protocol" in fields else ""
    return f"""
int tracepoint_{number}(void *ctx)
{{
    struct event event = {{.kind = {number}}};
    u64 sk = 0;
    u16 protocol = 6;
{protocol}{body}    if (protocol == 6 && !is_elsewhere(sk))
        give(&event);
    return 0;
}}
"""


def _sockaddr(data: bytes) -> tuple[bytes, int]:
    family, port = _SOCKADDR.unpack_from(data)
    address = bytes(10) + b"\xff\xff" + data[4:8] if family == _AF_INET else data[8:24]
    return address, int.from_bytes(port.to_bytes(2, sys.byteorder), "big")


@contextmanager
def _headers() -> Iterator[Path]:
    """A tree that bcc takes for the kernel's source."""
    with tempfile.TemporaryDirectory(prefix="roost-trace-") as name:
        include = Path(name) / "include"
        texts: Mapping[str, str] = {
            "linux/kconfig.h": "#define CONFIG_BPF_SYSCALL 1\n#define __LINUX_BPF_H__ /* bcc brings its own */\n",
            "linux/types.h": "#include <uapi/linux/types.h>\n#define NULL ((void *)0)\ntypedef _Bool bool;\n"
            "typedef __SIZE_TYPE__ size_t;\ntypedef __UINTPTR_TYPE__ uintptr_t;\n"
            + "".join(f"typedef __{sign}{bits} {sign}{bits};\n" for sign in "us" for bits in (8, 16, 32, 64)),
            "linux/log2.h": "",
            "asm/page.h": f"#define PAGE_SIZE {os.sysconf('SC_PAGE_SIZE')}\n",
        }
        for path, text in texts.items():
            (include / path).parent.mkdir(parents=True, exist_ok=True)
            (include / path).write_text(text)
        (include / "uapi").symlink_to(HEADERS)
        yield Path(name)


class Tracer:
    """Hears a network namespace from now on, until `close`. netns: its inode. rate: events a second at most. hear: is
    called in `poll`. Raises TracingError, where `problem` has not said why beforehand."""

    def __init__(self, netns: int, rate: int, hear: Callable[[Seen], None]) -> None:
        self._hear = hear
        self._names = list(TRACEPOINTS)
        formats = [fields_of((EVENTS / path / "format").read_text()) for path in TRACEPOINTS.values()]
        self._has_ports = ["sport" in fields for fields in formats]
        self._bpf = self._loaded(netns, rate)
        self._counts = self._bpf["counts"]
        self._bpf["events"].open_ring_buffer(self._take)

    def _loaded(self, netns: int, rate: int) -> Any:
        done = subprocess.run(["bpftool", "btf", "dump", "file", str(BTF), "format", "raw"], capture_output=True,
                              text=True, check=False)  # fmt: skip
        if done.returncode:
            raise TracingError(f"bpftool cannot read {BTF}: {done.stderr.strip()}")
        inum = offset_of(done.stdout, "net", "ns") + offset_of(done.stdout, "ns_common", "inum")
        skc_net = offset_of(done.stdout, "sock_common", "skc_net")
        numbers = {"NETNS": netns, "RATE": rate, "SKC_NET": skc_net, "NET_INUM": inum}
        text = _PROGRAM + "".join(_function(number, path) for number, path in enumerate(TRACEPOINTS.values()))
        flags = [f"-D{name}={number}" for name, number in numbers.items()]
        flags.append(f"-I{HEADERS / str(sysconfig.get_config_var('MULTIARCH'))}")
        with _headers() as source:
            os.environ["BCC_KERNEL_SOURCE"] = str(source)
            try:
                bpf = _bcc().BPF(text=text, cflags=flags)
                for number, path in enumerate(TRACEPOINTS.values()):
                    bpf.attach_tracepoint(tp=path.replace("/", ":"), fn_name=f"tracepoint_{number}")
            except Exception as error:  # bcc raises Exception itself
                raise TracingError(f"bcc cannot trace this kernel: {error}") from None
            finally:
                del os.environ["BCC_KERNEL_SOURCE"]
        return bpf

    def _take(self, _context: object, data: int, size: int) -> None:
        at_ns, kind, old, new, *ends = _EVENT.unpack_from(ctypes.string_at(data, size))
        addresses, ports = ends[:2], ends[2:]
        if self._has_ports[kind]:
            local, remote = ((raw[:16], port) for raw, port in zip(addresses, ports, strict=True))
        else:
            local, remote = map(_sockaddr, addresses)
        at_ms = (time.time_ns() - time.monotonic_ns() + at_ns) // 1_000_000
        near, far = (endpoint_text((unpack_address(address), port)) for address, port in (local, remote))
        self._hear(Seen(at_ms, self._names[kind], near, far, STATES[old], STATES[new]))

    def poll(self, timeout_ms: int) -> None:
        """Let `hear` have what there is, and wait so long where there is nothing."""
        self._bpf.ring_buffer_poll(timeout_ms)

    @property
    def left_out(self) -> int:
        """Events that came too fast, in all."""
        return int(self._counts[2].value)

    def close(self) -> None:
        self._bpf.cleanup()
