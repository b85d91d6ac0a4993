"""What Roost needs of this machine: each thing present or missing, and if missing, what to do.

A check is needed at one of three levels:

    required   the appliance does not run without it
    lab        demo, tests and benches do not run without it
    advised    Roost runs, but worse

`examine` returns every check's outcome; the machine is fit for the appliance when nothing required is missing.
"""

import importlib.util
import os
import platform
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path

from appliance import paths
from appliance.box import kernel_probe, mounts, tracepoints

MINIMUM_KERNEL = (6, 1)
"""Debian 12's, the oldest whose verifier is known to admit the BPF programs (`roost bench boot`)."""

BTF = Path("/sys/kernel/btf/vmlinux")
MINIMUM_DESCRIPTORS = 1024
MINIMUM_MEMORY_MB = 512
LAB_MEMORY_MB = 2048
LAB_DESCRIPTORS = 4096
LAB_CONNTRACK = 65536
"""The demo's 25,000 clients, their closing connections and a second lab beside it."""

DEBIANS_NAMES = {"x86_64": "amd64", "aarch64": "arm64"}
"""Of processors."""

# include/uapi/linux/capability.h
CAP_NET_BIND_SERVICE, CAP_NET_ADMIN, CAP_NET_RAW = 10, 12, 13
CAP_SYS_ADMIN, CAP_PERFMON, CAP_BPF = 21, 38, 39

PACKAGE_NEEDS = {"build": "required", "run": "required", "lint": "lab", "lab": "lab"}
"""What a use in vagrant/packages.txt means for the level of the check."""


class Need(StrEnum):
    REQUIRED = "required"
    LAB = "lab"
    ADVISED = "advised"


@dataclass(frozen=True, slots=True)
class Outcome:
    """One check: `detail` is what was found, `fix` what to do when it is missing (empty when it is there)."""

    group: str
    name: str
    need: Need
    present: bool
    detail: str
    fix: str = ""


def outcome(group: str, name: str, need: Need, problem: str | None, fix: str, found: str = "works") -> Outcome:
    """The outcome of a probe that answers None or a reason."""
    if problem is None:
        return Outcome(group, name, need, True, found)
    return Outcome(group, name, need, False, problem, fix)


def kernel_release(release: str) -> tuple[int, int]:
    """(major, minor) of a `uname -r`; (0, 0) for one that cannot be read."""
    numbers = release.split(".")
    try:
        return int(numbers[0]), int(numbers[1].split("-")[0])
    except (IndexError, ValueError):
        return 0, 0


def check_kernel() -> Iterator[Outcome]:
    """Version and features; each feature is tried, not looked up."""
    release, processor = platform.release(), platform.machine()
    package = f"linux-image-{DEBIANS_NAMES.get(processor, processor)}"
    newer = f"Boot a newer kernel: Debian 12's 6.1 has all of it (apt-get install {package})."
    old = None if kernel_release(release) >= MINIMUM_KERNEL else f"Linux {release} is older than 6.1"
    yield outcome("kernel", "Linux 6.1 or newer", Need.REQUIRED, old, newer, release)
    unknown = None if processor in kernel_probe.SYSCALLS else processor
    only = f"Roost is built for {' and '.join(kernel_probe.SYSCALLS)} only."
    yield outcome("kernel", "processor", Need.REQUIRED, unknown, only, processor)
    right = "Run it as root, in no container that lacks the right; a kernel without it must be replaced."
    program = kernel_probe.load_program
    probes: list[tuple[str, Callable[[], None], str]] = [
        ("BPF maps in shared memory", kernel_probe.mappable_array, "CONFIG_BPF_SYSCALL"),
        ("BPF ring buffer", kernel_probe.ring_buffer, "CONFIG_BPF_SYSCALL"),
        ("XDP programs", partial(program, kernel_probe.PROG_XDP), "CONFIG_BPF_SYSCALL"),
        ("tc programs", partial(program, kernel_probe.PROG_SCHED_CLS), "CONFIG_NET_CLS_BPF"),
        ("socket lookup programs", kernel_probe.lookup_program, "CONFIG_BPF_SYSCALL"),
        ("live-frame BPF_PROG_RUN", kernel_probe.live_frames, "CONFIG_BPF_SYSCALL"),
        ("TCP_REPAIR", kernel_probe.tcp_repair, "CONFIG_CHECKPOINT_RESTORE"),
        ("membarrier GLOBAL", kernel_probe.membarrier_global, "CONFIG_MEMBARRIER"),
    ]
    for name, probe, option in probes:
        yield outcome("kernel", name, Need.REQUIRED, kernel_probe.tried(probe), f"{right} ({option})")
    yield from check_namespace()
    absent = None if paths.bpffs_is_mounted() else "not mounted"
    mount = f"mount -t bpf -o mode=700 bpffs {paths.BPFFS}   (./roost does it when run as root)"
    if absent is None and mounts.ends_with_this_process(paths.BPFFS):
        absent = "mounted for this process alone: what is pinned there ends with it"
        mount = "`ip netns exec` makes a /sys of its own; nsenter --net=/run/netns/NAME does not."
    yield outcome("kernel", f"bpffs on {paths.BPFFS}", Need.REQUIRED, absent, mount, "mounted")
    absent = None if BTF.exists() else f"no {BTF}"
    use = "Without it bpftool shows tables as raw bytes. CONFIG_DEBUG_INFO_BTF"
    yield outcome("kernel", "BTF", Need.ADVISED, absent, use, "present")
    absent, fix = tracepoints.problem() or (None, "")
    yield outcome("kernel", "tracepoints by bcc, for roost trace", Need.ADVISED, absent, fix, "present")


NAMESPACE_CHECKS = (
    # probe, name, need, fix
    ("namespace", "network namespaces", Need.LAB, "CONFIG_NET_NS, and root"),
    ("veth", "veth devices", Need.LAB, "CONFIG_VETH (modprobe veth)"),
    ("xdp_native", "native XDP on veth", Need.LAB, "The lab falls back to generic XDP; a kernel from 5.9 on has it."),
    ("xdp_generic", "generic XDP", Need.REQUIRED, "A kernel from 5.9 on has it (BPF links for XDP)."),
    ("clsact", "tc clsact", Need.REQUIRED, "CONFIG_NET_SCH_INGRESS (modprobe sch_ingress)"),
    ("tc_egress", "tc BPF on egress", Need.REQUIRED, "CONFIG_NET_CLS_BPF (modprobe cls_bpf)"),
    ("nat", "nftables with NAT", Need.LAB, "apt-get install nftables; CONFIG_NFT_NAT, CONFIG_NFT_MASQ"),
)


def check_namespace() -> Iterator[Outcome]:
    """What needs an interface to be tried on. A probe that an earlier failure kept from running is missing too."""
    answers = kernel_probe.in_a_namespace()
    reasons = [reason for reason in answers.values() if reason is not None]
    for key, name, need, fix in NAMESPACE_CHECKS:
        untried = f"could not be tried: {reasons[0] if reasons else 'no answer'}"
        yield outcome("kernel", name, need, answers.get(key, untried), fix)


def field(text: str, name: str) -> str:
    """What a file like /proc/PID/status or /proc/meminfo says of a name; "0" when that is not there."""
    return next((line.split()[1] for line in text.splitlines() if line.startswith(f"{name}:")), "0")


def check_privileges() -> Iterator[Outcome]:
    held = int(field(Path("/proc/self/status").read_text(), "CapEff"), 16)

    def has(*alternatives: tuple[int, ...]) -> bool:
        return any(all(held >> bit & 1 for bit in each) for each in alternatives)

    wanted = [
        ("CAP_NET_ADMIN", Need.REQUIRED, has((CAP_NET_ADMIN,)), "XDP, tc and TCP_REPAIR"),
        ("CAP_BPF and CAP_PERFMON", Need.REQUIRED, has((CAP_BPF, CAP_PERFMON), (CAP_SYS_ADMIN,)), "loading programs"),
        ("CAP_SYS_ADMIN", Need.LAB, has((CAP_SYS_ADMIN,)), "mounting bpffs, network namespaces, live frames"),
        ("CAP_NET_RAW", Need.LAB, has((CAP_NET_RAW,)), "captures and crafted packets"),
        ("CAP_NET_BIND_SERVICE", Need.ADVISED, has((CAP_NET_BIND_SERVICE,)), "services on ports below 1024"),
    ]
    for name, need, present, use in wanted:
        problem = None if present else f"not held: needed for {use}"
        yield outcome("privileges", name, need, problem, "sudo ./roost ...", use)


def check_limits() -> Iterator[Outcome]:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = hard == resource.RLIM_INFINITY
    found = "unlimited" if unlimited else f"{hard:,}: fewer clients than that can be awake at one moment"
    for need, least in ((Need.REQUIRED, MINIMUM_DESCRIPTORS), (Need.LAB, LAB_DESCRIPTORS)):
        problem = None if unlimited or hard >= least else found
        fix = f"Raise the hard limit: ulimit -Hn {least}, or LimitNOFILE= in the unit."
        yield outcome("limits", f"{least:,} descriptors a process", need, problem, fix, found)
    free_mb = int(field(Path("/proc/meminfo").read_text(), "MemAvailable")) // 1024
    found = f"{free_mb:,} MB"
    for need, least in ((Need.REQUIRED, MINIMUM_MEMORY_MB), (Need.LAB, LAB_MEMORY_MB)):
        problem = None if free_mb >= least else found
        fix = "Stop something or add memory; smaller tables (see docs/configuration.md) need less."
        yield outcome("limits", f"{least:,} MB of free memory", need, problem, fix, found)
    conntrack = Path("/proc/sys/net/netfilter/nf_conntrack_max")
    if conntrack.exists():  # it appears with the first NAT rule; the kernel's default then is far larger than needed
        most = int(conntrack.read_text())
        problem = None if most >= LAB_CONNTRACK else f"{most:,}"
        fix = f"sysctl -w net.netfilter.nf_conntrack_max={LAB_CONNTRACK}"
        yield outcome("limits", f"{LAB_CONNTRACK:,} tracked connections", Need.LAB, problem, fix, f"{most:,}")
    fix = "CAP_SYS_NICE, and in a unit no RestrictRealtime=: a client that wakes waits for other tasks otherwise."
    yield outcome("limits", "real time for the engine thread", Need.ADVISED, no_real_time(), fix, "allowed")
    yield from check_sysctls(Path("/proc/sys"))


def no_real_time() -> str | None:
    """Why no thread of ours may run in real time; None: it may."""
    with ThreadPoolExecutor(1) as thread:
        tried = thread.submit(os.sched_setscheduler, 0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))
        error = tried.exception()
    return f"refused: {error.strerror}" if isinstance(error, OSError) else None


def check_sysctls(proc_sys: Path) -> Iterator[Outcome]:
    """Settings that decide how well sleeping works; `proc_sys` is /proc/sys."""
    jit = proc_sys / "net/core/bpf_jit_enable"
    # The file is absent in a namespace and on kernels that always compile.
    interpreted = "net.core.bpf_jit_enable = 0" if jit.exists() and jit.read_text().strip() == "0" else None
    fix = "sysctl -w net.core.bpf_jit_enable=1"
    yield outcome("limits", "BPF compiled to machine code", Need.ADVISED, interpreted, fix, "yes")
    ecn = (proc_sys / "net/ipv4/tcp_ecn").read_text().strip()
    # TCP_REPAIR cannot restore that ECN was negotiated (RFC 3168): after a sleep we would not echo congestion marks.
    agreed = None if ecn == "0" else f"net.ipv4.tcp_ecn = {ecn}"
    fix = "`roost up` sets net.ipv4.tcp_ecn=0 (a woken connection forgets that ECN was agreed on)"
    yield outcome("limits", "TCP without ECN", Need.ADVISED, agreed, fix, "net.ipv4.tcp_ecn = 0")


def read_package_list(text: str) -> dict[str, str]:
    """Package -> use, of vagrant/packages.txt."""
    lines = (line.partition("#")[0].split() for line in text.splitlines())
    return {fields[0]: fields[1] for fields in lines if len(fields) == 2}


def installed_packages(names: list[str]) -> set[str]:
    """Those of the packages that dpkg has installed."""
    done = subprocess.run(
        ["dpkg-query", "-W", "-f", "${db:Status-Abbrev} ${Package}\n", *names],
        capture_output=True,
        text=True,
        check=False,
    )
    rows = (line.split() for line in done.stdout.splitlines())
    return {row[-1] for row in rows if len(row) >= 2 and row[0][1:2] == "i"}


def check_packages() -> Iterator[Outcome]:
    package_list = paths.package_list()
    if package_list is None:
        return  # an installed wheel: what it was built with is not this machine's business
    if shutil.which("dpkg-query") is None:
        problem = "this is no Debian system, its packages cannot be checked"
        fix = f"See that everything in {package_list} is installed."
        yield outcome("packages", "Debian", Need.ADVISED, problem, fix)
        return
    wanted = read_package_list(package_list.read_text())
    present = installed_packages(list(wanted))
    for name, use in wanted.items():
        absent = None if name in present else "not installed"
        yield outcome("packages", name, Need(PACKAGE_NEEDS[use]), absent, f"apt-get install {name}", "installed")


def check_build() -> Iterator[Outcome]:
    rebuild = "Start ./roost again: it builds what is out of date, and shows the errors."
    unbuilt = os.environ.get("ROOST_UNBUILT", "").split()  # by ./roost, just now
    old = "what is there is of earlier sources: they do not build (build/log/%s.log)"
    objects = paths.bpf_objects()
    wanted = [f"{source.name.removesuffix('.c')}.o" for source in paths.bpf_sources()]
    absent = [name for name in wanted if not (objects / name).is_file()]
    found = sorted(each.name for each in objects.glob("*.bpf.o")) if objects.is_dir() else []
    problem = f"missing below {objects}: {', '.join(absent)}" if absent else None if found else f"none in {objects}"
    problem = problem or (old % "bpf" if "bpf" in unbuilt else None)
    yield outcome("build", "BPF objects", Need.REQUIRED, problem, rebuild, ", ".join(found))
    extension = importlib.util.find_spec("cext._engine")
    problem = None if extension else "cext._engine is not built"
    problem = problem or (old % "extension" if "extension" in unbuilt else None)
    built = Path(extension.origin).name if extension and extension.origin else "present"
    yield outcome("build", "C extension", Need.REQUIRED, problem, rebuild, built)


def examine() -> list[Outcome]:
    """Every check, in the order in which a person would mend them. Takes about a second; changes nothing."""
    return [*check_packages(), *check_build(), *check_privileges(), *check_kernel(), *check_limits()]


def is_fit(outcomes: list[Outcome], *needs: Need) -> bool:
    """Whether nothing of these needs is missing (without any: nothing required)."""
    return all(each.present for each in outcomes if each.need in (needs or (Need.REQUIRED,)))


def machine() -> dict[str, str | int]:
    """The machine in a few words, for reports."""
    return {
        "kernel": platform.release(),
        "processor": platform.machine(),
        "cpus": os.cpu_count() or 0,
        "memory_mb": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20,
    }
