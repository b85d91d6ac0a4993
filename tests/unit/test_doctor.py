"""roost doctor: what it concludes from what it finds."""

import errno
import json
import os
import platform
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from appliance import paths
from appliance.box import doctor, kernel_probe
from appliance.box.doctor import Need, Outcome
from control.cli import doctor as doctor_command


def make(need: Need, present: bool, name: str = "thing") -> Outcome:
    return Outcome("group", name, need, present, "found", "" if present else "mend it")


def run(monkeypatch: pytest.MonkeyPatch, outcomes: list[Outcome], *args: str) -> tuple[int, str]:
    monkeypatch.setattr(doctor_command, "examine", lambda: outcomes)
    result = CliRunner().invoke(doctor_command.command, list(args))
    return result.exit_code, result.output


def test_a_missing_required_thing_fails_and_names_its_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    code, output = run(monkeypatch, [make(Need.REQUIRED, False, "TCP_REPAIR"), make(Need.REQUIRED, True)])
    assert code == 1
    assert "TCP_REPAIR" in output
    assert "mend it" in output


@pytest.mark.parametrize("need", [Need.LAB, Need.ADVISED])
def test_what_the_appliance_does_not_need_does_not_fail(monkeypatch: pytest.MonkeyPatch, need: Need) -> None:
    code, output = run(monkeypatch, [make(need, False), make(Need.REQUIRED, True)])
    assert code == 0
    assert "mend it" in output


def test_a_box_is_examined_with_its_configuration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One that is still to be filled in, as a package's, keeps nothing of the machine from being told."""
    usual = tmp_path / "roost.toml"
    monkeypatch.setattr("control.cli.client.CONFIG", str(usual))
    mine = [make(Need.REQUIRED, True), make(Need.LAB, False, "browser")]
    assert "configuration" not in run(monkeypatch, mine)[1]
    usual.write_text("[policy]\nprobe_count = 0\n")
    code, output = run(monkeypatch, mine, "--json")
    (told,) = [one for one in json.loads(output)["checks"] if one["group"] == "configuration"]
    assert (code, told["need"], told["present"]) == (0, "advised", False)
    assert "`probe_count` in [policy]" in told["detail"]
    usual.write_text(f'[network]\ninterfaces = ["nowhere0"]\n[paths]\ndatabase = "{tmp_path}/t.db"\n'
                     '[[service]]\nname = "a"\nlisten = "127.0.0.1:7000"\nserver = "127.0.0.1:7001"\n')  # fmt: skip
    code, output = run(monkeypatch, mine, "--json")
    checks = json.loads(output)["checks"]
    assert code == 1
    assert {"thing", "browser"} <= {one["name"] for one in checks}
    assert "nowhere0" in json.dumps([one for one in checks if not one["present"]])


HASH = f"$scrypt$ln=15,r=8,p=1${'A' * 22}${'A' * 43}"


@pytest.mark.parametrize(
    ("secret", "mode", "told"),
    [
        ('[paths]\ndatabase = "postgresql://roost:secret@db/roost"\n', 0o644, False),
        ('[paths]\ndatabase = "postgresql://db/roost?user=roost&password=secret"\n', 0o604, False),
        (f'[attach]\nauth = "password"\n[attach.users]\nlab = "{HASH}"\n', 0o646, False),
        ('[paths]\ndatabase = "postgresql://roost:secret@db/roost"\n', 0o640, True),
        ('[paths]\ndatabase = "postgresql://roost@db/roost"\n', 0o644, None),
        ('[paths]\ndatabase = "mysql://roost@db/roost"\n', 0o644, None),
    ],
)
def test_a_configuration_with_a_password_is_not_for_all_to_read(
    secret: str, mode: int, told: bool | None, tmp_path: Path
) -> None:
    path = tmp_path / "roost.toml"
    path.write_text(secret)
    path.chmod(mode)
    found = [one for one in doctor_command.examine_deployment(str(path)) if one.name == str(path)]
    assert [(one.need, one.present, one.fix) for one in found] == (
        [] if told is None else [(Need.ADVISED, told, "" if told else f"chmod o-rwx {path}")]
    )


def test_json_tells_the_appliance_from_the_lab(monkeypatch: pytest.MonkeyPatch) -> None:
    code, output = run(monkeypatch, [make(Need.LAB, False), make(Need.REQUIRED, True)], "--json")
    report = json.loads(output)
    assert code == 0
    assert (report["fit"], report["lab_fit"]) == (True, False)
    assert report["checks"][0] == {
        "group": "group",
        "name": "thing",
        "need": "lab",
        "present": False,
        "detail": "found",
        "fix": "mend it",
    }


def test_missing_hides_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes = [make(Need.REQUIRED, True, "here"), make(Need.LAB, False, "absent")]
    _, output = run(monkeypatch, outcomes, "--missing", "--json")
    assert [each["name"] for each in json.loads(output)["checks"]] == ["absent"]


@pytest.mark.parametrize(
    ("release", "version"),
    [("6.1.0-18-amd64", (6, 1)), ("5.18-rc3", (5, 18)), ("6.18.44-cloud", (6, 18)), ("strange", (0, 0)), ("7", (0, 0))],
)
def test_a_kernel_release_is_read(release: str, version: tuple[int, int]) -> None:
    assert doctor.kernel_release(release) == version


@pytest.mark.parametrize(("processor", "package"), [("x86_64", "linux-image-amd64"), ("aarch64", "linux-image-arm64")])
def test_the_kernel_that_is_advised_is_one_for_this_processor(
    processor: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: processor)
    monkeypatch.setattr(platform, "release", lambda: "5.10.0")
    old = next(doctor.check_kernel())
    assert not old.present
    assert f" {package})" in old.fix


def test_packages_are_read_without_comments(tmp_path: Path) -> None:
    text = "# a comment\n\nclang   build\nnftables lab # for NAT\n"
    assert doctor.read_package_list(text) == {"clang": "build", "nftables": "lab"}


def test_every_listed_package_has_a_known_use() -> None:
    package_list = paths.package_list()
    assert package_list is not None
    listed = doctor.read_package_list(package_list.read_text())
    assert listed
    assert set(listed.values()) <= set(doctor.PACKAGE_NEEDS)


def test_no_listed_package_is_that_of_one_release_of_debian_alone() -> None:
    """As openjdk-17-jre-headless of Debian 12 is: apt fails for all of the list where one has no candidate. clang-19 is
    in Debian 12 and 13."""
    package_list = paths.package_list()
    assert package_list is not None
    listed = doctor.read_package_list(package_list.read_text())
    assert [name for name in listed if re.search(r"-\d", name)] == ["clang-19"]


def test_a_package_that_is_not_installed_is_not_counted() -> None:
    assert doctor.installed_packages(["dpkg", "no-such-package-anywhere"]) == {"dpkg"}


def test_capabilities_are_read_from_the_effective_set() -> None:
    assert doctor.field("CapPrm:\tffff\nCapEff:\t0000000000003000\n", "CapEff") == "0000000000003000"
    assert doctor.field("Name:\tx\n", "CapEff") == "0"


def test_real_time_is_tried_without_staying_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.sched_getscheduler(0)
    assert doctor.no_real_time() in (None, "refused: Operation not permitted")
    assert os.sched_getscheduler(0) == before

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    assert doctor.no_real_time() == "refused: Operation not permitted"


def test_ecn_is_advised_against_because_a_woken_socket_forgets_it(tmp_path: Path) -> None:
    (tmp_path / "net/ipv4").mkdir(parents=True)
    (tmp_path / "net/core").mkdir(parents=True)
    (tmp_path / "net/core/bpf_jit_enable").write_text("1\n")
    for value, present in (("0\n", True), ("2\n", False)):
        (tmp_path / "net/ipv4/tcp_ecn").write_text(value)
        found = {each.name: each for each in doctor.check_sysctls(tmp_path)}
        assert found["TCP without ECN"].present is present
        assert found["BPF compiled to machine code"].present


def test_bpffs_counts_only_where_the_pins_go(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text("bpffs /mnt/other bpf rw 0 0\nsysfs /sys sysfs rw 0 0\n")
    assert not paths.bpffs_is_mounted(mounts)
    mounts.write_text("bpffs /sys/fs/bpf bpf rw 0 0\n")
    assert paths.bpffs_is_mounted(mounts)


def test_a_missing_bpf_object_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(paths, "bpf_objects", lambda: tmp_path)
    monkeypatch.setattr(paths, "bpf_sources", lambda: [Path("inactive.bpf.c"), Path("guard.bpf.c")])
    (tmp_path / "guard.bpf.o").write_bytes(b"")
    objects = next(each for each in doctor.check_build() if each.name == "BPF objects")
    assert not objects.present
    assert "inactive.bpf.o" in objects.detail
    assert "guard.bpf.o" not in objects.detail


def test_a_probe_that_could_not_be_tried_counts_as_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_probe, "in_a_namespace", lambda: {"namespace": "Operation not permitted"})
    found = list(doctor.check_namespace())
    assert len(found) == len(doctor.NAMESPACE_CHECKS)
    assert not any(each.present for each in found)
    assert all("Operation not permitted" in each.detail for each in found)


@pytest.mark.skipif(os.geteuid() != 0, reason="the kernel answers these probes to root only")
def test_every_probe_gets_an_answer_from_this_kernel_and_leaves_no_namespace() -> None:
    outcomes = list(doctor.check_kernel())
    assert {each.name for each in outcomes} >= {"TCP_REPAIR", "membarrier GLOBAL", "native XDP on veth"}
    assert all(each.fix for each in outcomes if not each.present)
    spaces = os.listdir("/run/netns") if Path("/run/netns").exists() else []  # noqa: PTH208
    assert not [name for name in spaces if str(os.getpid()) in name], "other labs may come and go beside this one"


def test_what_was_built_of_earlier_sources_does_not_pass_for_built(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(each.present for each in doctor.check_build())
    monkeypatch.setenv("ROOST_UNBUILT", " extension")
    objects, extension = doctor.check_build()
    assert (objects.present, extension.present) == (True, False)
    assert "build/log/extension.log" in extension.detail
