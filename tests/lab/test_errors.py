# SPDX-License-Identifier: Apache-2.0
"""What `roost up` says when it cannot start: the object, the reason, and the way out, and it starts nothing."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyroute2 import IPRoute

from appliance.box import deployment
from appliance.box.doctor import Need
from appliance.engine import Engine, EngineError, make_pin_dir, unpin
from appliance.lab import Lab, leftovers
from appliance.lab.daemon import DaemonError, DaemonHandle
from appliance.lab.lab import wait_until
from appliance.lab.namespaces import XDP_PASS, Namespace, load_xdp
from appliance.lab.processes import python_environment
from appliance.paths import bpf_objects
from appliance.wire import EngineOptions
from control.cli.doctor import plan_of
from control.config import load
from tests.lab.engine_lab import EngineLab
from tests.lab.old_layout import bpf


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


def test_what_is_not_there_yet_is_waited_for_and_other_services_go_on(lab: Lab) -> None:
    """An interface, an address of attach, an address of a service, and the route to a persistent service's server."""
    config = lab.config(port=8210)
    here = lab.address("box", "wan0")
    services = [config["service"][0], {"name": "late", "listen": "198.51.100.1:8200", "server": "10.3.0.2:8210"},
                {"name": "session", "listen": f"{here}:8201", "server": "198.51.100.9:1", "interface": "persistent"},
                {"name": "named", "listen": f"{here}:8202", "server": "localhost:8210"}]  # fmt: skip
    attach = {"listen": [*config["attach"]["listen"], "198.51.100.1:3200"], "at_clients": True}
    lab.server(8210)
    with running(lab, {**config, "service": services, "attach": attach,
                       "network": {"interfaces": ["wan0", "late0"]}}) as daemon:  # fmt: skip
        told = daemon.status()["waiting"]
        assert {sentence.partition(": ")[0] for sentence in told} == {
            "interface late0", 'service "late"', 'service "session"', "attach at 198.51.100.1:3200"}  # fmt: skip
        assert (
            "interface late0 waits: there is no interface late0; `ip link` lists those there are" in daemon.log_tail()
        )
        assert daemon.status()["interfaces"] == {"wan0": "native"}
        assert "127.0.0.1:8210" in [row["server"] for row in daemon.status()["services"][3]["servers"]]
        shown = subprocess.run([sys.executable, "-m", "control.cli.main", "status", "-c", str(daemon.config)],
                               capture_output=True, text=True, check=True, env=python_environment()).stdout  # fmt: skip
        assert "attention interface late0: not yet: there is no interface late0" in shown
        swarm = lab.swarm()
        swarm.connect(3, (here, 8210))
        assert swarm.say(3).answered == 3, "the others go on"
        with lab.enter("box"), IPRoute() as ip:
            ip.link("add", ifname="late0", kind="veth", peer="late1")
            index = ip.link_lookup(ifname="late0")[0]
            ip.link("set", index=index, state="up")
            ip.addr("add", index=index, address="198.51.100.1", prefixlen=24)
        wait_until(lambda: daemon.status()["waiting"] == [], 20, "all is there")
        assert daemon.status()["interfaces"] == {"wan0": "native", "late0": "native"}
        assert ["198.51.100.1", 3200] in daemon.status()["attach"]
        with lab.enter("box"):
            for port in (8200, 8201):
                socket.create_connection(("198.51.100.1" if port == 8200 else here, port), 10).close()


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


def missing(lab: Lab, handle: DaemonHandle) -> list[str]:
    """What doctor finds that is required, and how it is mended."""
    with lab.enter("box"):
        found = deployment.examine(plan_of(load(str(handle.config))))
    return [f"{one.name}: {one.fix}" for one in found if one.need is Need.REQUIRED and not one.present]


def test_doctor_tells_beforehand_what_another_program_has(lab: Lab) -> None:
    handle = lab.daemon(lab.config(attach_port=3300), start=False)
    address, program = lab.address("box", "wan0"), load_xdp(XDP_PASS)
    with lab.enter("box"), IPRoute() as ip:
        index = ip.link_lookup(ifname="wan0")[0]
        ip.link("set", index=index, xdp_fd=program)
        try:
            with socket.create_server((address, 8000)):
                xdp, port = missing(lab, handle)
        finally:
            ip.link("set", index=index, xdp_fd=-1)
            os.close(program)
    assert xdp == "wan0: no other XDP program: detach it: ip link set dev wan0 xdpdrv off"
    assert port == f"port {address}:8000: ss -ltnp shows which; or choose another port"
    assert missing(lab, handle) == []
    handle.start()
    try:
        assert missing(lab, handle) == [], "what the daemon itself has is no trouble"
        other = lab.daemon({**lab.config(port=8001, attach_port=3301)}, start=False)
        assert any("leave the interface to it" in one for one in missing(lab, other))
    finally:
        handle.close()


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
    with lab.enter("box"):
        taken = socket.create_server((lab.address("box", "wan0"), 8000))
    with taken:
        said = refusal(lab, lab.config())
    assert "198.18.0.1" in said
    assert "cannot listen on port 8000: Address already in use" in said


@pytest.mark.skipif(os.geteuid() != 0, reason="gives up root, so it must have it")
def test_without_privilege_the_missing_right_is_named(lab: Lab) -> None:
    with tempfile.TemporaryDirectory(prefix="roost-test-") as name:  # pytest's own is closed to other users
        directory = Path(name)
        directory.chmod(0o777)
        config = directory / "roost.toml"
        config.write_text(f"""
            [paths]
            pin_dir = "{leftovers.BPFFS / leftovers.new_name()}"
            database = "{directory}/roost.db"
            control_socket = "{directory}/roost.sock"
            [network]
            interfaces = ["wan0"]
            [[service]]
            name = "x"
            listen = "127.0.0.1:7999"
            server = "127.0.0.1:7998"
        """)
        done = subprocess.run(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", sys.executable, "-m",
                               "control.cli.main", "up", "-c", str(config)], capture_output=True, text=True,
                              timeout=60, env=python_environment(), check=False)  # fmt: skip
    assert done.returncode != 0
    said = done.stdout + done.stderr
    assert "Traceback" not in said, said
    assert "run as root" in said, said


def test_pins_outside_a_bpffs_are_refused_with_the_mount_command(box: EngineLab, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="is not on a bpf file system: mount -t bpf -o mode=700 bpffs /sys/fs/bpf"):
        Engine(EngineOptions(str(tmp_path / "pins"), str(bpf_objects())))
    with pytest.raises(EngineError, match=r"cannot open the BPF object .*inactive\.bpf\.o"):
        Engine(EngineOptions(str(box.pin_dir) + "-other", str(tmp_path)))
    Path(str(box.pin_dir) + "-other").rmdir()


def test_for_a_mistyped_pin_directory_nothing_is_made(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="is not on a bpf file system"):
        make_pin_dir(f"{tmp_path}/sys/fs/bpf/pins")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(EngineError, match="is the bpf file system itself: give the pins a directory below it"):
        make_pin_dir(str(leftovers.BPFFS))


def test_a_pin_directory_that_others_may_write_to_is_refused() -> None:
    """Anybody may make a directory in a bpffs, and who owns it may put programs of his own there."""
    pins = leftovers.BPFFS / leftovers.new_name()
    below = pins / "main"
    make_pin_dir(str(below))
    try:
        assert [path.stat().st_mode & 0o7777 for path in (pins, below)] == [0o700, 0o700]
        make_pin_dir(str(below))
        for path in (pins, below):
            path.chmod(0o720)
            with pytest.raises(EngineError, match=f"{path} is not safe: it belongs to user 0 with mode 0720"):
                make_pin_dir(str(below))
            path.chmod(0o755)
            os.chown(path, 65534, -1)
            with pytest.raises(EngineError, match=f"{path} is not safe: it belongs to user 65534.*chown 0 {path}"):
                Engine(EngineOptions(str(below), str(bpf_objects())))
            os.chown(path, 0, -1)
        below.rmdir()
        below.symlink_to(leftovers.BPFFS)
        with pytest.raises(EngineError, match=f"{below} is no directory"):
            make_pin_dir(str(below))
        below.unlink()
    finally:
        os.chown(pins, 0, -1)
        for path in (below, pins):
            if path.exists():
                path.rmdir()


def test_unpinning_refuses_to_remove_what_is_no_bpffs(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("data")
    with pytest.raises(EngineError, match="is not on a bpf file system: nothing was removed"):
        unpin(str(tmp_path))
    assert precious.read_text() == "data"


def left_behind(lab: Lab, pins: Path) -> list[str]:
    """What a daemon puts into the box's namespace and pins, as far as it is there."""
    shown = {
        "XDP": ["ip", "-d", "link", "show", "wan0"],
        "the guard": ["tc", "filter", "show", "dev", "wan0", "egress"],
        "steering": ["tc", "filter", "show", "dev", "lan0", "ingress"],
        "the routing rule": ["ip", "rule"],
        "the local route": ["ip", "route", "show", "table", "all", "type", "local"],
    }
    marks = {"XDP": "xdp", "the guard": "roost_guard", "steering": "roost_steer", "the routing rule": "5200",
             "the local route": "table 5200"}  # fmt: skip
    with lab.enter("box"):
        found = {what: subprocess.run(argv, capture_output=True, text=True, check=True).stdout
                 for what, argv in shown.items()}  # fmt: skip
    return [what for what, text in found.items() if marks[what] in text] + (["pins"] if pins.exists() else [])


@contextmanager
def running(lab: Lab, config: dict[str, Any]) -> Iterator[DaemonHandle]:
    handle = lab.daemon(config)
    try:
        yield handle
    finally:
        handle.close()


def test_a_start_that_fails_leaves_nothing_and_the_next_instance_can_start(lab: Lab) -> None:
    config = lab.config(router={})
    address = lab.address("box", "wan0")
    config["service"].append({"name": "more", "listen": f"{address}:8001", "server": "10.0.0.9:1"})
    with lab.enter("box"), socket.create_server((address, 8001)):
        handle = lab.daemon(config, start=False)
        with pytest.raises(DaemonError, match="cannot listen on port 8001"):
            handle.start()
        # The kernel frees a link whose pin is gone in its own time.
        wait_until(lambda: not left_behind(lab, handle.pin_dir), 10, "nothing is left")
        assert not handle.control_socket.exists()
    with running(lab, {**config, "service": config["service"][:1]}) as other:
        assert other.status()["interfaces"] == {"wan0": "native"}
        assert set(left_behind(lab, other.pin_dir)) >= {"XDP", "the guard", "steering", "pins"}


def test_a_start_that_fails_leaves_the_sleepers_of_the_daemon_before_it(box: EngineLab) -> None:
    pair = box.connect()
    box.to_idle(pair)
    box.stop()
    before = {path.name for path in box.pin_dir.iterdir()}
    with box.lab.enter("box"):
        engine = Engine(EngineOptions(str(box.pin_dir), str(bpf_objects())))
        engine.attach("wan0")
        engine.attach("lan0")
        with pytest.raises(EngineError, match="cannot listen"):
            engine.add_service(box.spec(4, listen="198.51.100.1"))
        assert "xdp-lan0" in {path.name for path in box.pin_dir.iterdir()}
        engine.close()
    assert {path.name for path in box.pin_dir.iterdir()} == before, "what it made is gone, all else is there"
    assert "the guard" in left_behind(box.lab, box.pin_dir)
    box.start()
    box.wake_and_answer(pair)


def test_one_service_too_many_is_told_of_the_names_that_have_been(box: EngineLab) -> None:
    """Numbers go by name, and by them the history tells services apart: none is given twice."""
    with pytest.raises(EngineError, match=r"no number is left for it: there are 1023, .* the name of one that is gone"):
        box.engine.add_service(replace(box.spec(4), index=1024))


def test_a_foreign_xdp_program_is_named_with_its_owner_and_the_way_out(lab: Lab) -> None:
    """By netlink it belongs to the interface; by a link, to a pin or to a process; and it may be another Roost's."""

    def said() -> str:
        return refusal(lab, lab.config(port=8100, attach_port=3200))

    program = load_xdp(XDP_PASS)
    fdinfo = Path(f"/proc/self/fdinfo/{program}").read_text()
    number = next(line.split()[1] for line in fdinfo.splitlines() if line.startswith("prog_id"))
    about = rf"another XDP program is attached to wan0: program {number}, loaded by user 0"
    with lab.enter("box"), IPRoute() as ip:
        index = ip.link_lookup(ifname="wan0")[0]
        ip.link("set", index=index, xdp_fd=program)
        assert re.search(about + r".*detach it: ip link set dev wan0 xdpdrv off", said())
        ip.link("set", index=index, xdp_fd=-1)
        link = bpf.link_xdp(program, index)
    pin = leftovers.BPFFS / leftovers.new_name()
    try:
        assert re.search(about + rf".*process {os.getpid()} \(.+\) holds it", said())
        bpf.pin(link, pin)
        assert re.search(about + rf".*pinned at {pin}; detach it: rm {pin}$", said(), re.MULTILINE)
    finally:
        pin.unlink(missing_ok=True)
        os.close(link)
        os.close(program)
    wait_until(lambda: "XDP" not in left_behind(lab, pin), 10, "it is detached")
    with running(lab, lab.config(port=8101)) as other:
        text = said()
    assert f"it is the Roost's whose pins are in {other.pin_dir}" in text
    assert "roost unpin" in text


def test_pins_of_another_network_namespace_are_refused_and_unpin_goes_there(lab: Lab) -> None:
    """By its own name in /proc: `roost unpin` is run where the appliance's interfaces are not."""
    handle = lab.daemon(lab.config(router={}))
    handle.kill()
    assert left_behind(lab, handle.pin_dir) == ["XDP", "the guard", "steering", "the routing rule", "the local route",
                                                "pins"]  # fmt: skip
    with pytest.raises(EngineError, match="belong to another network namespace"):
        Engine(EngineOptions(str(handle.pin_dir), str(bpf_objects())))
    roost = [sys.executable, "-m", "control.cli.main", "unpin", "--yes", "-c", str(handle.config)]
    done = subprocess.run(roost, capture_output=True, text=True, env=python_environment(), check=False)
    assert done.returncode == 1
    assert "no process and no name in /run/netns leads to it: nothing was removed" in done.stderr
    assert "nsenter --net=" in done.stderr
    assert len(left_behind(lab, handle.pin_dir)) == 6
    sleeper = lab.run("box", ["sleep", "1000"])
    try:
        done = subprocess.run(roost, capture_output=True, text=True, env=python_environment(), check=False)
    finally:
        sleeper.close()
    assert done.returncode == 0, done.stderr
    wait_until(lambda: not left_behind(lab, handle.pin_dir), 10, "nothing is left")


def test_pins_of_a_namespace_that_is_gone_touch_no_interface_of_this_one(box: EngineLab) -> None:
    pins = leftovers.BPFFS / leftovers.new_name()
    space = Namespace("gone")
    with space.entered(), IPRoute() as ip:
        ip.link("add", ifname="wan0", kind="veth", peer="peer")
        engine = Engine(EngineOptions(str(pins), str(bpf_objects())))
        engine.attach("wan0")
        engine.start()
        engine.stop()
        engine.close()
    space.close()
    wait_until(lambda: "netns_ino:\t0" in bpf.fdinfo(pins / "lookup"), 10, "the kernel has let the namespace go")
    with box.lab.enter("box"):
        unpin(str(pins))
    assert not pins.exists()
    assert "the guard" in left_behind(box.lab, box.pin_dir)


def test_a_bpffs_of_ip_netns_exec_is_refused_with_the_way_out(lab: Lab) -> None:
    handle = lab.daemon(lab.config(), start=False)
    command = f"{sys.executable} -m control.cli.main"
    script = f"mount -t bpf bpf /sys/fs/bpf; {command} up -c $0; {command} unpin --yes -c $0"
    space = leftovers.new_name()
    subprocess.run(["ip", "netns", "add", space], check=True)
    try:
        done = subprocess.run(["ip", "netns", "exec", space, "sh", "-c", script, str(handle.config)],
                              capture_output=True, text=True, env=python_environment(), check=False)  # fmt: skip
    finally:
        subprocess.run(["ip", "netns", "del", space], check=True)
    assert done.returncode == 1
    refused = f"{handle.pin_dir} is in a file system of this process alone: `ip netns exec` makes one"
    assert done.stderr.count(refused) == 2, done.stderr
    assert "nsenter --net=/run/netns/NAME roost" in done.stderr
