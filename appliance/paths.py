"""Where the parts of Roost lie: in a checkout beside each other, in an installed wheel inside the package."""

import shlex
import sys
from importlib.util import find_spec
from pathlib import Path

BPFFS = Path("/sys/fs/bpf")
"""Mount point of the BPF file system, below which the pins of every appliance lie."""

LOCAL = "/usr/local/lib/roost"
"""Where an installed Roost (vagrant/install.sh) finds Python packages that it does not bring."""


def how_to_install(*packages: str) -> str:
    """The command by which this Roost gets Python packages that most do without."""
    target = f" --target {LOCAL}" if LOCAL in sys.path else ""
    return f"python3 -m pip install{target} {shlex.join(packages)}"


def checkout() -> Path | None:
    """The source tree that this code runs from; None when it was installed as a wheel."""
    root = Path(__file__).resolve().parent.parent
    return root if (root / "ebpf" / "shared" / "record.h").is_file() else None


def bpf_objects() -> Path:
    """The directory of the compiled *.bpf.o files (it need not exist yet: see `roost doctor`)."""
    root = checkout()
    return root / "build" / "bpf" if root else Path(__file__).resolve().parent / "bpf"


def bpf_sources() -> list[Path]:
    """The BPF programs' sources; empty when there is no checkout."""
    root = checkout()
    return sorted((root / "ebpf").rglob("*.bpf.c")) if root else []


def engine_library() -> Path:
    """The compiled engine, which has SQLite's extension (cext/rows/), too. It is not loaded by this."""
    spec = find_spec("cext._engine")
    if spec is None or spec.origin is None:
        raise ImportError("the engine is not built: sudo ./roost doctor builds it")
    return Path(spec.origin)


def package_list() -> Path | None:
    """The list of Debian packages that the launcher installs; None without a checkout."""
    root = checkout()
    return root / "vagrant" / "packages.txt" if root else None


def bpffs_is_mounted(mounts: Path = Path("/proc/self/mounts")) -> bool:
    """Whether a bpffs is mounted on BPFFS in this mount namespace."""
    fields = (line.split() for line in mounts.read_text().splitlines())
    return any(f[1] == str(BPFFS) and f[2] == "bpf" for f in fields)


def control_socket(instance: str = "main") -> str:
    """The socket of an instance's local API, where its configuration does not say."""
    return f"/run/roost/{instance}.sock"
