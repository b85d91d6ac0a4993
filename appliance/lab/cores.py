# SPDX-License-Identifier: Apache-2.0
"""Which processor does an interface's receiving: for measurements of one core's work.

Without this, a veth's frames are received by whichever processor sent them, in its softirq: a simulator and the
appliance that answers it then share one. With threaded NAPI a kernel thread receives, and can be told where to run.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from pyroute2 import IPRoute
from pyroute2.netlink import NLM_F_DUMP, NLM_F_REQUEST, genlmsg
from pyroute2.netlink.generic import GenericNetlinkSocket

from appliance.lab.namespaces import Namespace, move_thread

_NAPI_GET: Final = 11  # NETDEV_CMD_NAPI_GET of linux/netdev.h


class _NapiMessage(genlmsg):  # type: ignore[misc] # pyroute2 has no annotations
    nla_map = (
        ("NETDEV_A_NAPI_UNSPEC", "none"),
        ("NETDEV_A_NAPI_IFINDEX", "uint32"),
        ("NETDEV_A_NAPI_ID", "uint32"),
        ("NETDEV_A_NAPI_IRQ", "uint32"),
        ("NETDEV_A_NAPI_PID", "uint32"),
    )


@contextmanager
def received_on(space: Namespace, ifname: str, cpu: int) -> Iterator[list[int]]:
    """What arrives at an interface is received, and its XDP program runs, on one processor for the length of the block;
    the ids of the kernel threads that do it.

    To be entered once the XDP program is attached: that makes the interface's NAPI anew. RuntimeError where the kernel
    cannot (threaded NAPI: Linux 5.12; telling its threads: 6.8).
    """
    _set_threaded(space, ifname, True)
    try:
        threads = _napi_threads(space, ifname)
        if not threads:
            raise RuntimeError(f"{ifname} in {space.name} has no NAPI thread: has it an XDP program, or GRO?")
        for thread in threads:
            os.sched_setaffinity(thread, {cpu})
        yield threads
    finally:
        _set_threaded(space, ifname, False)


@contextmanager
def running_on(cpu: int) -> Iterator[None]:
    """The calling thread runs on one processor for the length of the block."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cpu})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def before_all_others(threads: Sequence[int] = (0,)) -> None:
    """No other thread keeps these from their processor (0: the calling one, and what it starts from then on).

    NAPI threads have the place then that they have as softirqs, and the ends of a connection whose answers are timed
    are as quick as on machines of their own, which they stand for. Not for loads that never end, which the kernel would
    then stop now and then (sched(7), the limit for real-time threads).
    """
    for thread in threads:
        os.sched_setscheduler(thread, os.SCHED_FIFO, os.sched_param(2))  # the engine has 1


def cpu_ns(thread: int) -> int:
    """CPU time that a thread of the kernel has used so far."""
    with open(f"/proc/{thread}/schedstat") as file:
        return int(file.read().split()[0])


def _set_threaded(space: Namespace, ifname: str, on: bool) -> None:
    """A sysfs shows the interfaces of the namespace that it was mounted in: one is mounted for a moment, out of sight
    of all others."""
    script = 'mount -t sysfs sysfs /sys && echo "$1" > "/sys/class/net/$2/threaded"'
    done = subprocess.run(["unshare", "--mount", "sh", "-c", script, "sh", str(int(on)), ifname], text=True,
                          capture_output=True, preexec_fn=lambda: move_thread(space.fd))  # fmt: skip
    if done.returncode != 0:
        raise RuntimeError(f"threaded NAPI of {ifname} in {space.name} cannot be set to {on}: {done.stderr.strip()}")


def _napi_threads(space: Namespace, ifname: str) -> list[int]:
    with space.entered():
        with IPRoute() as ip:
            index = ip.link_lookup(ifname=ifname)[0]
        with GenericNetlinkSocket() as netlink:
            netlink.bind("netdev", _NapiMessage)
            message: Any = _NapiMessage()
            message["cmd"], message["version"] = _NAPI_GET, 1
            answers = list(netlink.nlm_request(message, netlink.prid, NLM_F_REQUEST | NLM_F_DUMP))
    return [answer.get_attr("NETDEV_A_NAPI_PID") for answer in answers
            if answer.get_attr("NETDEV_A_NAPI_IFINDEX") == index and answer.get_attr("NETDEV_A_NAPI_PID")]  # fmt: skip
