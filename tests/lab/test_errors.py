# SPDX-License-Identifier: Apache-2.0
"""What `roost up` says when it cannot start: the object, the reason, and the way out, and it starts nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from appliance.engine import EngineError
from appliance.lab import Lab
from appliance.lab.processes import python_environment
from appliance.paths import bpf_objects
from appliance.wire import EngineOptions
from tests.lab.engine_lab import EngineLab


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab(clients=20) as lab:
        yield lab


def refusal(lab: Lab, config: dict[str, Any]) -> str:
    """What the daemon says while it declines to start."""
    handle = lab.daemon(config, start=False)
    process = lab.run("box", [sys.executable, "-m", "control.cli.main", "up", "-c", str(handle.config)],
                      stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                      env=python_environment(), text=True)  # fmt: skip
    said: str = process.popen.communicate(timeout=30)[0]
    assert process.popen.returncode != 0, said
    assert "Traceback" not in said, said
    return said


def changed(lab: Lab, section: str, **keys: Any) -> dict[str, Any]:
    config = lab.config()
    return {**config, section: {**config.get(section, {}), **keys}}


def test_an_interface_that_does_not_exist_is_named(lab: Lab) -> None:
    said = refusal(lab, changed(lab, "network", interfaces=["wan7"]))
    assert "there is no interface wan7; `ip link` lists those there are" in said


def test_a_driver_without_native_xdp_is_named_with_the_way_out(lab: Lab) -> None:
    said = refusal(lab, changed(lab, "network", interfaces=["lo"], xdp_mode="native"))
    assert 'the driver of lo has no native XDP; set xdp_mode = "auto" or "generic"' in said


def test_auto_falls_back_to_generic_xdp_with_a_warning(lab: Lab) -> None:
    daemon = lab.daemon(changed(lab, "network", interfaces=["lo"], xdp_mode="auto"))
    try:
        assert daemon.status()["interfaces"] == {"lo": "generic"}
        assert "lo: the driver has no native XDP; generic XDP is used, which is slower" in daemon.log_tail()
    finally:
        daemon.close()


def test_a_wrong_key_is_named_with_the_one_that_was_meant(lab: Lab) -> None:
    said = refusal(lab, changed(lab, "policy", active_quit="5s"))
    assert "unknown key `active_quit` in [policy]; did you mean `active_quiet`?" in said


def test_a_second_daemon_on_the_same_pins_is_refused_and_the_first_goes_on(lab: Lab, tmp_path: Path) -> None:
    lab.server(8000)
    first = lab.daemon(lab.config(policy={"active_quiet": "200ms", "standby_quiet": "400ms"}))
    try:
        swarm = lab.swarm()
        swarm.connect(10, (lab.address("box", "wan0"), 8000))
        second = lab.config(port=8005, attach_port=3129)
        said = refusal(lab, {**second, "paths": {"pin_dir": str(first.pin_dir), "database": str(tmp_path / "2.db"),
                                                 "control_socket": str(tmp_path / "2.sock")}})  # fmt: skip
        assert f"another daemon uses the pins in {first.pin_dir}; give this instance its own pin_dir" in said
        assert swarm.say(10).answered == 10
        same = {**lab.config(), "instance": "same", "paths": {
            "pin_dir": str(first.pin_dir), "database": str(tmp_path / "3.db"),
            "control_socket": str(first.control_socket)}}  # fmt: skip
        assert f"is running already (pid {first.pid}" in refusal(lab, same)
        assert first.running
    finally:
        first.close()


def test_a_port_that_is_taken_is_named(lab: Lab) -> None:
    import socket

    with lab.enter("box"):
        taken = socket.create_server((lab.address("box", "wan0"), 8000))
    with taken:
        said = refusal(lab, lab.config())
    assert "198.18.0.1" in said
    assert "cannot listen on port 8000: Address already in use" in said


@pytest.mark.skipif(os.geteuid() != 0, reason="gives up root, so it must have it")
def test_without_privilege_the_missing_right_is_named(lab: Lab, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    config = tmp_path / "roost.toml"
    config.write_text(f"""
        [paths]
        pin_dir = "{tmp_path}/pins"
        database = "{tmp_path}/roost.db"
        control_socket = "{tmp_path}/roost.sock"
        [network]
        interfaces = ["wan0"]
        [[service]]
        name = "x"
        listen = "127.0.0.1:7999"
        server = "127.0.0.1:7998"
    """)
    for path in [tmp_path, *tmp_path.parents]:
        path.chmod(path.stat().st_mode | 0o755) if path.owner() == "root" and "pytest" in str(path) else None
    done = subprocess.run(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", sys.executable, "-m",
                           "control.cli.main", "up", "-c", str(config)], capture_output=True, text=True, timeout=60,
                          env=python_environment(), check=False)  # fmt: skip
    assert done.returncode != 0
    said = done.stdout + done.stderr
    assert "Traceback" not in said, said
    assert "root" in said, said


def test_pins_outside_a_bpffs_are_refused_with_the_mount_command(box: EngineLab, tmp_path: Path) -> None:
    from appliance.engine import Engine

    with pytest.raises(EngineError, match="is not on a bpf file system: mount -t bpf bpf /sys/fs/bpf"):
        Engine(EngineOptions(str(tmp_path / "pins"), str(bpf_objects())))
    with pytest.raises(EngineError, match=r"cannot open the BPF object .*inactive\.bpf\.o"):
        Engine(EngineOptions(str(box.pin_dir) + "-other", str(tmp_path)))
    Path(str(box.pin_dir) + "-other").rmdir()


def test_unpinning_refuses_to_remove_what_is_no_bpffs(tmp_path: Path) -> None:
    from appliance.engine import unpin

    precious = tmp_path / "precious"
    precious.write_text("data")
    with pytest.raises(EngineError, match="is not on a bpf file system: nothing was removed"):
        unpin(str(tmp_path))
    assert precious.read_text() == "data"
