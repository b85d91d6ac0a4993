# SPDX-License-Identifier: Apache-2.0
"""The agent's file: its codec, its back-off, its command line; and that an old Python alone is enough for it."""

from __future__ import annotations

import ast
import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.agent import roost_agent as agent
from appliance.agent.roost_agent import MAX_LINE, Accepting, Initiating, Lines, ProtocolError, encode

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "persistent_client.py"
FILES = [Path(agent.__file__), EXAMPLE]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_python_3_9_can_read_it_and_it_imports_the_standard_library_alone(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=(3, 9))
    imported = {alias.name.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.Import)
                for alias in node.names}  # fmt: skip
    imported |= {str(node.module).split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert imported <= sys.stdlib_module_names


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_nothing_in_it_came_after_python_3_9(path: Path) -> None:
    """What parses but would fail: asyncio.timeout, TaskGroup, slots of dataclasses, | of types that are evaluated."""
    source = path.read_text()
    for late in ("asyncio.timeout(", "TaskGroup", "slots=True", "strict=", "StrEnum", "tomllib", "datetime.UTC"):
        assert late not in source
    assert "from __future__ import annotations" in source


def test_it_runs_alone_and_makes_tokens() -> None:
    done = subprocess.run([sys.executable, "-I", "-S", str(FILES[0]), "--new-token"], capture_output=True, text=True,
                          cwd="/", timeout=20, check=True)  # fmt: skip
    (_, token), (_, digest) = (line.split() for line in done.stdout.splitlines())
    assert agent.token_digest(token) == digest


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "--appliance HOST:PORT is needed"),
        (["--appliance", "a:1"], "a token is needed"),
        (["--appliance", "a:1", "--token-file", "/nowhere"], "No such file"),
        (["--appliance", "a:1", "--token-file", "/dev/stdin"], "clients are needed"),
        (["--appliance", "a:1", "--token-file", "/dev/stdin", "--accepting", "a"], "NAME=PORT"),
        (["--appliance", "a:1", "--token-file", "/dev/stdin", "--initiating", "a=run:x"], "NAME@SERVICE"),
        (["--appliance", "a:1", "--token-file", "/dev/stdin", "--initiating", "a@b=walk:x"], "an action is"),
        (["--appliance", "a:1", "--token-file", "/dev/stdin", "--accepting", "a=1", "--accepting", "a=2"], "its own"),
        (["--appliance", "a:1", "--token-file", "/dev/stdin", "--accepting", "a=1", "--ca", "/nowhere"], "No such"),
    ],
)
def test_a_wrong_command_line_is_answered_with_a_sentence(options: list[str], said: str) -> None:
    done = subprocess.run([sys.executable, "-I", str(FILES[0]), *options], input="token\n", capture_output=True,
                          text=True, timeout=20, check=False, env={})  # fmt: skip
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_clients_are_read_from_their_options() -> None:
    camera = agent.parse_accepting("camera=[::1]:80")
    assert (camera.name, camera.host, camera.port, camera.service) == ("camera", "::1", 80, "")
    assert agent.parse_accepting("camera=80").host == "127.0.0.1"
    meter = agent.parse_initiating("meter@telemetry=signal:usr1:/run/x.pid")
    assert (meter.name, meter.service, meter.kind, meter.pid_file) == ("meter", "telemetry", "signal", "/run/x.pid")
    assert isinstance(camera, Accepting)
    assert isinstance(meter, Initiating)


def test_a_client_is_told_what_to_say_first_as_far_as_its_action_can(tmp_path: Path) -> None:
    async def scenario() -> list[bytes]:
        heard: list[bytes] = []

        async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            heard.append(await reader.read())
            writer.close()

        async with await asyncio.start_unix_server(hear, tmp_path / "socket"):
            program = f"sh -c 'echo \"$ROOST_CLIENT $ROOST_DO $ROOST_SAY\" >>{tmp_path}/ran'"
            for action in (f"unix:{tmp_path}/socket", f"run:{program}"):
                client = Initiating("meter", "held", action)
                await client.tell("connect", "a-nonce")
                await client.tell("connect")
                await client.tell("stay")
            while len(heard) < 3:
                await asyncio.sleep(0.01)
        return heard

    assert asyncio.run(asyncio.wait_for(scenario(), 20)) == [
        b"connect meter a-nonce\n", b"connect meter\n", b"stay meter\n"]  # fmt: skip
    assert (tmp_path / "ran").read_text().splitlines() == ["meter connect a-nonce", "meter connect ", "meter stay "]
    with pytest.raises(agent.ClientError, match="trust_address = true"):
        asyncio.run(Initiating("meter", "held", f"signal:USR1:{tmp_path}/pid").tell("connect", "a-nonce"))


def test_the_back_off_doubles_up_to_a_minute_with_full_jitter() -> None:
    most = [agent.backoff_s(failures, lambda: 1.0) for failures in range(10)]
    assert most == [0.5, 1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert agent.backoff_s(10**9, lambda: 1.0) == 60
    assert agent.backoff_s(5, lambda: 0.0) == 0
    assert len({agent.backoff_s(5) for _ in range(20)}) > 10


MESSAGES = st.lists(st.dictionaries(st.text(max_size=20), st.one_of(st.integers(), st.text(max_size=50))), max_size=6)


@given(MESSAGES, st.lists(st.integers(1, 40), max_size=40))
def test_messages_come_out_as_they_went_in_however_they_are_cut(
    messages: list[dict[str, object]], cuts: list[int]
) -> None:
    data = b"".join(encode(dict(message)) for message in messages)
    lines, found = Lines(), []
    for cut in [*cuts, len(data) + 1]:
        lines.feed(data[:cut])
        data = data[cut:]
        while (message := lines.next_message()) is not None:
            found.append(message)
    assert found == messages
    assert lines.unfinished == b""


@given(st.binary(max_size=200))
def test_whatever_comes_is_a_message_or_an_error_of_the_protocol(data: bytes) -> None:
    lines = Lines()
    lines.feed(data)
    try:
        while (message := lines.next_message()) is not None:
            assert isinstance(message, dict)
    except ProtocolError:
        pass


def test_a_line_is_bounded_with_or_without_its_end() -> None:
    for end in (b"", b"\n"):
        lines = Lines()
        lines.feed(b" " * MAX_LINE + end)
        with pytest.raises(ProtocolError, match="longer than"):
            lines.next_message()
    lines = Lines()
    lines.feed(b"{}".ljust(MAX_LINE - 1) + b"\n")
    assert lines.next_message() == {}
    with pytest.raises(ProtocolError, match="at most"):
        encode({"a": "x" * MAX_LINE})
