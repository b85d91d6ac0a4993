# SPDX-License-Identifier: Apache-2.0
"""The API by the network, from the process that the daemon begins to its answers: roles, TLS, ends of either."""

from __future__ import annotations

import json
import os
import pwd
import signal
import ssl
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from appliance.lab import Lab, wait_until
from appliance.lab.processes import python_environment
from control.api.access import ACCESS
from tests.certificates import make_certificate
from tests.lab.api_lab import API_PORT, USER, ApiLab
from tests.lab.test_units import confined


@pytest.fixture(scope="module")
def box(nat_free_lab: Lab) -> Iterator[ApiLab]:
    with ApiLab(nat_free_lab) as box:
        box.wait_for_api()
        yield box


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab(clients=10, nat=False) as lab:
        yield lab


def path_of(address: str, rest: str = "") -> str:
    return f"/v1/connections/{address}{rest}"


def test_an_operator_steers_a_client_and_it_is_kept_who_did(box: ApiLab) -> None:
    client, address = box.client()
    status, done = box.ask("operator", "POST", path_of(address, "/sleep"))
    assert (status, done["client"], done["before"], done["state"]) == (200, address, "ACTIVE", "SLEEP")
    status, shown = box.ask("viewer", "GET", path_of(address))
    assert (status, shown["state"], shown["service"]) == (200, "SLEEP", "lab4")
    local = box.daemon.get(path_of(address))["keep_alive"]
    assert set(local) - set(shown["keep_alive"]) == {"snd_nxt", "rcv_nxt", "ts_offset", "ts_recent"}, (
        "who has these forges"
    )
    assert box.ask("viewer", "POST", path_of(address, "/wake"))[0] == 403
    box.woken(client)

    def past() -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = box.ask("viewer", "GET", f"/v1/history?id={shown['id']}&limit=2")[1]
        return rows

    wait_until(lambda: [row["to"] for row in past()] == ["ACTIVE", "STANDBY"], 5, "what became of it is told")
    argv = [sys.executable, "-m", "control.cli.main", "events", "--id", str(shown["id"]), "-n", "1", "--json"]
    said = subprocess.run([*argv, "--socket", str(box.daemon.control_socket)], capture_output=True, text=True,
                          check=True, env=python_environment())  # fmt: skip
    assert json.loads(said.stdout) == past()[-1]
    assert box.ask("operator", "PUT", path_of(address, "/policy"), {"values": {"idle_quiet": "5m"}})[0] == 200
    status, refused = box.ask("operator", "PUT", path_of(address, "/policy"), {"values": {"idle_quiet": "soon"}})
    assert (status, "idle_quiet" in refused["error"]) == (422, True)
    asker = (box.names["operator"], box.lab.address("lan", "eth0"))
    status, rows = box.ask("admin", "GET", "/v1/audit?limit=20")
    assert status == 200
    own = (row for row in rows if (row["who"], row["origin"]) == asker and address in row["path"])
    told = [(row["method"], row["status"]) for row in own]
    assert told == [("POST", 200), ("PUT", 200), ("PUT", 422)]
    rule = {"rule": {"network": "192.0.2.0/24", "idle_quiet": "1h"}, "who": "somebody else"}
    assert box.ask("operator", "PUT", "/v1/policy/rules/spare", rule)[0] == 200
    assert [row["who"] for row in box.ask("viewer", "GET", "/v1/policy/history")[1]] == [asker[0]]
    with box.begun("viewer", "GET", "/v1/policy") as answer:
        version = answer.headers["ETag"]
    for made_of, expected in (('"0"', 412), (version, 200), (version, 412)):
        rule["rule"] = {"network": "192.0.2.0/24", "idle_quiet": "2h"}
        with box.begun("operator", "PUT", "/v1/policy/rules/spare", rule, {"If-Match": made_of}) as answer:
            assert answer.status == expected, made_of


def test_a_server_sees_and_steers_the_clients_of_its_service_alone(box: ApiLab) -> None:
    (_, own), (_, other) = box.client(4), box.client(6)
    box.token("server", "lab4")
    status, rows = box.ask("server", "GET", "/v1/connections")
    assert status == 200
    assert {row["service"] for row in rows} == {"lab4"}
    assert own in {row["client"] for row in rows}
    assert box.ask("server", "GET", path_of(own))[0] == 200
    status, explained = box.ask("server", "GET", path_of(own, "/explain"))
    assert (status, {"awake_now", "max_awake", "attention"} & set(explained["facts"])) == (200, set())
    assert "awake_now" in box.ask("viewer", "GET", path_of(own, "/explain"))[1]["facts"]
    assert box.ask("server", "POST", path_of(own, "/standby"))[0] == 200
    of_one = [access for access in ACCESS if access.server and access.path.startswith("/v1/connections/{name}")]
    assert len(of_one) == 10
    for access in of_one:
        body = {"values": {"idle_quiet": "5m"}} if access.method == "PUT" else None
        path = access.path.replace("{name}", other)
        assert box.ask("server", access.method, path, body) == (404, {"error": f'no connection "{other}"'}), access
    assert box.ask("server", "GET", "/v1/status")[0] == 403
    assert box.daemon.get(path_of(other))["state"] == "ACTIVE"


def test_a_revoked_token_is_soon_good_for_nothing(box: ApiLab) -> None:
    box.texts.pop("admin", None)
    assert box.ask("admin", "GET", "/v1/tokens")[0] == 200
    (own,) = (row for row in box.ask("admin", "GET", "/v1/tokens")[1] if row["id"] == box.texts["admin"][6:14])
    assert box.ask("admin", "DELETE", f"/v1/tokens/{own['id']}")[0] == 200
    wait_until(lambda: box.ask("admin", "GET", "/v1/tokens")[0] == 401, 3, "the token is good no more")
    del box.texts["admin"]


def test_the_process_is_nobodys_and_may_read_what_it_must_and_write_nothing(box: ApiLab) -> None:
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{box.pid}/status").read_text().splitlines())
    assert {*status["Uid"].split(), *status["Gid"].split()} == {"65534"}
    assert status["Groups"].split() == []
    assert {status[f"Cap{kind}"] for kind in ("Inh", "Prm", "Eff", "Amb")} == {"0" * 16}
    assert status["NoNewPrivs"] == "1"
    database = Path(box.daemon.status()["database"].removeprefix("sqlite:///"))
    for path, mode in ((database, 0o640), (Path(f"{database}-wal"), 0o640), (Path(f"{database}-shm"), 0o640),
                       (box.daemon.control_socket, 0o660)):  # fmt: skip
        found = path.stat()
        assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (0, 65534, mode), path
    opened = [str(fd.readlink()) for fd in Path(f"/proc/{box.pid}/fd").iterdir()]
    assert not [one for one in opened if "bpf" in one]


def test_a_long_list_and_what_happens_come_as_they_are_made(box: ApiLab) -> None:
    _, address = box.client()
    with box.begun("viewer", "GET", "/v1/connections") as answer:
        assert (answer.status, answer.headers["Transfer-Encoding"]) == (200, "chunked")
        assert answer.read().count(b"\n") == sum(box.daemon.status()["connections"].values())
    with box.begun("viewer", "GET", "/v1/events") as events:
        assert events.headers["Content-Type"].startswith("text/event-stream")
        assert events.readline().startswith(b":")
        box.ask("operator", "POST", path_of(address, "/idle"))
        assert any(address.encode() in line for line in (events.readline() for _ in range(20)))


def test_who_leaves_while_an_answer_goes_on_leaves_nothing_behind(box: ApiLab) -> None:
    for _ in range(30):  # more than a token may have at once
        with box.begun("viewer", "GET", "/v1/events") as answer:
            assert answer.status == 200
            answer.readline()
        wait_until(lambda: box.ask("viewer", "GET", "/v1/connections?limit=0")[0] == 200, 5, "there is room again")


def test_it_is_begun_again_when_it_is_killed_and_no_client_notices(box: ApiLab) -> None:
    client, address = box.client()
    box.ask("operator", "POST", path_of(address, "/sleep"))
    before = box.pid
    assert before is not None
    ended = box.daemon.status()["api"]["ended"]
    os.kill(before, signal.SIGKILL)
    box.woken(client)
    wait_until(lambda: box.pid not in (None, before), 10, "it was begun again")
    assert box.daemon.status()["api"]["ended"] == ended + 1
    box.wait_for_api()
    assert box.ask("viewer", "GET", path_of(address))[0] == 200


def test_while_it_hangs_the_daemon_goes_on_and_afterwards_it_does_too(box: ApiLab) -> None:
    client, address = box.client()
    box.ask("operator", "POST", path_of(address, "/sleep"))
    pid = box.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        box.woken(client)
        assert box.daemon.get(path_of(address))["state"] != "SLEEP"
    finally:
        os.kill(pid, signal.SIGCONT)
    assert box.ask("viewer", "GET", path_of(address))[0] == 200
    assert box.pid == pid


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=lambda how: how.name)
def test_it_ends_with_the_daemon_and_tokens_outlive_both(box: ApiLab, how: signal.Signals) -> None:
    assert box.ask("viewer", "GET", "/v1/status")[0] == 200
    pid = box.pid
    if how is signal.SIGTERM:
        box.daemon.terminate()
    else:
        box.daemon.kill()
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), 5, "the API's process has ended")
    box.daemon.start()
    box.wait_for_api()
    assert box.ask("viewer", "GET", "/v1/status")[0] == 200


def test_what_is_changed_in_the_file_is_so_after_a_reload(box: ApiLab) -> None:
    before, text = box.pid, box.daemon.config.read_text()
    box.daemon.config.write_text(text.replace("requests = 10000", "requests = 1"))
    os.kill(box.daemon.pid, signal.SIGHUP)
    wait_until(lambda: box.pid not in (None, before), 10, "another process serves")
    box.wait_for_api()
    assert 429 in [box.ask("viewer", "GET", "/v1/status")[0] for _ in range(10)]
    box.daemon.config.write_text(text.replace("[api]", "[api]\n#").replace(f'listen = ["{box.host}:', "#"))
    os.kill(box.daemon.pid, signal.SIGHUP)
    wait_until(
        lambda: box.daemon.status()["api"] | {"ended": 0} == {"listen": [], "pid": None, "ended": 0},
        10,
        "none is wanted",
    )
    wait_until(lambda: stat.S_IMODE(box.daemon.control_socket.stat().st_mode) == 0o600, 5, "the socket is root's alone")
    box.daemon.config.write_text(text)
    os.kill(box.daemon.pid, signal.SIGHUP)
    box.wait_for_api()
    assert box.ask("viewer", "GET", "/v1/status")[0] == 200


@pytest.mark.parametrize("tls", [False, True])
def test_the_commands_ask_it_from_another_machine(lab: Lab, tmp_path: Path, tls: bool) -> None:
    certificate, key = map(str, make_certificate(tmp_path))
    settings = {"certificate": certificate, "private_key": key} if tls else {}
    with ApiLab(lab, **settings) as box:
        if tls:
            box.tls = ssl.create_default_context(cafile=certificate)
        box.wait_for_api()
        _, address = box.client()
        (tmp_path / "token").write_text(f"{box.token('operator')}\n")
        scheme, name = ("https", "roost.test") if tls else ("http", box.host)
        hosts = tmp_path / "hosts"
        hosts.write_text(f"{box.host} roost.test\n")
        asking = (
            "--url",
            f"{scheme}://{name}:{API_PORT}",
            "--token-file",
            str(tmp_path / "token"),
            "--ca",
            certificate,
        )

        def said(*command: str) -> str:
            with (tmp_path / "said").open("wb") as out:
                argv = ["unshare", "--mount", "sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"', str(hosts),
                        sys.executable, "-m", "control.cli.main", *command]  # fmt: skip
                lab.run("lan", argv, stdout=out, stderr=out, env=python_environment()).wait(20)
            return (tmp_path / "said").read_text()

        assert '"state": "SLEEP"' in said("sleep", address, *asking, "--json")
        assert address in said("connections", *asking)
        assert "which may not do this" in said("token", "list", *asking)
        if tls:
            assert "certificate verify failed" in said("status", *asking[:4])
        box.daemon.http("DELETE", f"/v1/tokens/{box.names['operator']}")
        wait_until(lambda: "the token is not good" in said("status", *asking), 10, "it is revoked")
        (tmp_path / "token").write_text("roost_nothing\n")
        assert "has no token: a line such as" in said("status", *asking)


# -- in a lab of its own ----------------------------------------------------------------------------------------------


def is_not_believed(box: ApiLab) -> bool:
    """Whether its certificate is another; while the process begins, it is not known."""
    try:
        box.ask("viewer", "GET", "/v1/status")
    except ssl.SSLCertVerificationError:
        return True
    except OSError:
        pass
    return False


def test_tls_is_spoken_and_a_renewed_certificate_is_used_soon(lab: Lab, tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    for folder in (old, new):
        folder.mkdir()
        make_certificate(folder)
    key = old / "key.pem"
    key.chmod(0o600)  # root's
    with ApiLab(lab, certificate=str(old / "certificate.pem"), private_key=str(key), plain=False) as box:
        box.tls = ssl.create_default_context(cafile=str(old / "certificate.pem"))
        box.wait_for_api()
        assert box.ask("viewer", "GET", "/v1/status")[0] == 200
        box.tls, kept = None, box.tls
        with pytest.raises((ConnectionError, ssl.SSLError)):
            box.ask("viewer", "GET", "/v1/status")
        for name in ("certificate.pem", "key.pem"):
            (new / name).replace(old / name)
        box.tls = kept
        wait_until(lambda: is_not_believed(box), 10, "the new one is shown")
        box.tls = ssl.create_default_context(cafile=str(old / "certificate.pem"))
        box.wait_for_api()
        assert box.ask("viewer", "GET", "/v1/status")[0] == 200


@pytest.mark.parametrize("renewed", [True, False], ids=["renewed", "reloaded"])
def test_the_unit_reads_a_key_that_is_roots_and_ends_for_another_one(lab: Lab, renewed: bool) -> None:
    """With the unit's capabilities. systemd begins it again (Restart=always)."""
    certificate, key = make_certificate(lab.workspace)
    box = ApiLab(lab, certificate=str(certificate), private_key=str(key), plain=False)
    box.options = ("--api-apart",)
    with box:
        box.tls = ssl.create_default_context(cafile=certificate)
        program = [sys.executable, "-m", "control.cli.main", "api", "-c", str(box.daemon.config)]
        process = lab.run("box", [*confined("roost-api"), *program], env=python_environment())
        box.wait_for_api()
        assert box.ask("viewer", "GET", "/v1/status")[0] == 200
        status = Path(f"/proc/{process.pid}/status").read_text()
        assert f"Uid:\t{pwd.getpwnam(USER).pw_uid}\t" in status
        assert "CapPrm:\t0000000000000000" in status
        if renewed:
            make_certificate(lab.workspace)
        else:
            os.kill(process.pid, signal.SIGHUP)
        assert process.wait(20) == 0


def test_whoever_has_no_certificate_where_one_is_asked_for_gets_no_answer(lab: Lab, tmp_path: Path) -> None:
    certificate, key = map(str, make_certificate(tmp_path))
    with ApiLab(lab, certificate=certificate, private_key=key, client_ca=certificate) as box:
        box.tls = ssl.create_default_context(cafile=certificate)
        box.tls.load_cert_chain(certificate, key)
        box.wait_for_api()
        assert box.ask("viewer", "GET", "/v1/status")[0] == 200
        box.tls = ssl.create_default_context(cafile=certificate)
        with pytest.raises((ConnectionError, ssl.SSLError)):
            box.ask("viewer", "GET", "/v1/status")


# -- what does not begin ----------------------------------------------------------------------------------------------


def begun_by_hand(lab: Lab, config: str, tmp_path: Path) -> str:
    """What `roost api` says, which ends."""
    path = tmp_path / "roost.toml"
    path.write_text(config)
    with (tmp_path / "said").open("wb") as said:
        process = lab.run("box", [sys.executable, "-m", "control.cli.main", "api", "-c", str(path)], stdout=said,
                          stderr=said, env=python_environment())  # fmt: skip
    assert process.wait(20) == 1
    return (tmp_path / "said").read_text()


@pytest.mark.parametrize(("settings", "why"), [
    ({"listen": ["{wan}:8443"]}, "which clients on wan0 reach, too"),
    ({"listen": ["0.0.0.0:8443"]}, "which clients on wan0 reach, too"),
    ({"listen": ["{lan}:8443"], "user": "nobody-at-all"}, "useradd --system nobody-at-all"),
    ({"listen": ["192.0.2.1:8443"]}, "cannot listen at 192.0.2.1 port 8443: Cannot assign requested address"),
    ({"listen": ["{lan}:8443"], "certificate": "/nowhere", "private_key": "/nowhere"}, "cannot be used"),
    ({"listen": []}, "[api] listen is empty"),
])  # fmt: skip
def test_it_says_why_it_does_not_begin(nat_free_lab: Lab, tmp_path: Path, settings: dict[str, Any], why: str) -> None:
    lab = nat_free_lab
    where = {"wan": lab.address("box", "wan0"), "lan": lab.address("box", "lan0")}
    api = {"user": "nobody", "plain": True, **settings}
    api["listen"] = [text.format(**where) for text in api["listen"]]
    lines = (f"{key} = {str(value).lower() if isinstance(value, bool) else repr(value)}" for key, value in api.items())
    config = "[network]\ninterfaces = ['wan0']\n[api]\n" + "\n".join(lines)
    assert why in begun_by_hand(lab, config, tmp_path)


def test_where_clients_are_heard_it_listens_if_it_is_told_twice(lab: Lab) -> None:
    with ApiLab(lab, listen=[f"0.0.0.0:{API_PORT}"], at_clients=True) as box:
        box.wait_for_api()
        assert box.ask("viewer", "GET", "/v1/status")[0] == 200


def test_where_it_is_apart_another_one_begins_it(lab: Lab) -> None:
    box = ApiLab(lab)
    box.options = ("--api-apart",)
    with box:
        group = pwd.getpwnam(USER).pw_gid
        wait_until(lambda: box.daemon.control_socket.stat().st_gid == group, 10, "it has access")
        program = [sys.executable, "-m", "control.cli.main", "api", "-c", str(box.daemon.config)]
        process = lab.run("box", program, env=python_environment())
        box.wait_for_api()
        assert box.ask("viewer", "GET", "/v1/status")[0] == 200
        assert box.pid is None
        assert box.daemon.status()["attention"] == []
        assert process.terminate() == 0


def test_a_daemon_whose_api_cannot_begin_goes_on_and_says_so(lab: Lab) -> None:
    with ApiLab(lab, user="nobody-at-all") as box:
        client, address = box.client()
        assert box.daemon.act(address, "sleep")["state"] == "SLEEP"
        box.woken(client)
        wait_until(lambda: any("API" in one["object"] for one in box.daemon.status()["attention"]), 10, "it is said")
        assert "there is no user" in box.daemon.log_tail()
        assert stat.S_IMODE(box.daemon.control_socket.stat().st_mode) == 0o600


def test_the_process_that_was_begun_gently_is_as_urgent_as_others(box: ApiLab) -> None:
    box.wait_for_api()
    assert box.pid is not None
    assert os.getpriority(os.PRIO_PROCESS, box.pid) == os.getpriority(os.PRIO_PROCESS, box.daemon.pid)
