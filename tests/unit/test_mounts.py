# SPDX-License-Identifier: Apache-2.0
"""Which mount a path lies on, and what the daemon says of places that do not last."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.box import mounts
from appliance.box.mounts import Mount, mount_of, parse
from control.config import parse as parse_config
from control.daemon.error import DaemonError
from control.daemon.lasting import check_places, refuse_private_pins

PROCESS_1 = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
23 22 0:21 / /sys rw,nosuid shared:7 - sysfs sysfs rw
24 23 0:30 / /sys/fs/bpf rw,nosuid shared:8 - bpf bpf rw,mode=700
25 22 0:25 / /run rw,nosuid shared:5 master:2 - tmpfs tmpfs rw
26 22 254:1 / /srv/a\\040b rw - ext4 /dev/vdb rw
"""
NETNS_EXEC = (
    PROCESS_1
    + """\
80 22 0:61 / /sys rw,relatime - sysfs space rw
81 80 0:62 / /sys/fs/bpf rw,relatime - bpf bpffs rw
82 22 0:63 / /tmp rw,relatime - tmpfs tmpfs rw
"""
)


def test_a_path_lies_on_the_innermost_mount_and_of_several_on_the_last() -> None:
    found = parse(NETNS_EXEC)
    assert mount_of("/sys/fs/bpf/roost/main", found) == Mount("0:62", "/sys/fs/bpf", "bpf")
    assert mount_of("/sys/fs/bpf2", found).device == "0:61"
    assert mount_of("/srv/a b/x", found).device == "254:1"
    assert mount_of("/run", found).kind == "tmpfs"
    assert mount_of("/var/lib/roost/none/main.db", found).point == "/"


@pytest.fixture
def mounted(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What processes have mounted, by PID."""
    found = {"self": NETNS_EXEC, "1": PROCESS_1}
    monkeypatch.setattr(mounts, "_read", lambda process: parse(found[process]))
    return found


def test_pins_in_a_bpffs_of_this_process_alone_are_refused_with_the_way_out(mounted: dict[str, str]) -> None:
    config = parse_config("")
    with pytest.raises(DaemonError, match=r"/sys/fs/bpf/roost/main is in a file system of this process alone.*nsenter"):
        refuse_private_pins(config)
    mounted["self"] = mounted["1"]
    refuse_private_pins(config)


def test_a_container_has_a_process_1_of_its_own(mounted: dict[str, str]) -> None:
    mounted["1"] = NETNS_EXEC
    check_places(parse_config(""))


def test_where_nobody_may_look_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(process: str) -> list[Mount]:
        if process == "1":
            raise PermissionError
        return parse(NETNS_EXEC)

    monkeypatch.setattr(mounts, "_read", read)
    check_places(parse_config(""))


def test_a_database_in_memory_is_told_and_one_that_ends_with_the_process_refused(
    mounted: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    def check(path: str) -> None:
        check_places(parse_config(f'[paths]\npin_dir = "/run/x"\ndatabase = "{path}"\n'))

    check("/var/lib/roost/main.db")
    check("postgresql://roost@db/roost")
    assert caplog.text == ""
    check("/run/roost.db")
    assert "the database /run/roost.db is in memory (tmpfs): a reboot takes every connection in SLEEP" in caplog.text
    with pytest.raises(DaemonError, match=r"the database /tmp/x\.db is in a tmpfs of this process alone"):
        check("/tmp/x.db")


def test_the_mounts_of_this_machine_can_be_read() -> None:
    assert mounts.kind_of("/proc/self") == "proc"
    assert not mounts.ends_with_this_process(Path(__file__))
