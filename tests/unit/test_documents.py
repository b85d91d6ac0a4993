# SPDX-License-Identifier: Apache-2.0
"""README.md and the other documents: links that lead somewhere, and commands that there are.

Tests run the blocks of four documents as they stand (RUN_WHOLE). Of the other shell lines RUN says which test runs such
a command, and NOT_RUN why none does.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from control.cli.main import COMMANDS, cli
from tests.mutants import ROOT

DOCUMENTS = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")), *sorted(ROOT.glob("*/README.md"))]
FENCED = re.compile(r"^```.*?^```$", re.M | re.S)


def names(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


def anchors(document: Path) -> set[str]:
    """Of its titles, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", FENCED.sub("", document.read_text(encoding="utf-8")), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def dead_links(document: Path) -> list[str]:
    text = FENCED.sub("", document.read_text(encoding="utf-8"))
    dead = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = link.partition("#")
        to = document.parent / path if path else document
        if "://" not in link and (not to.exists() or (anchor and anchor not in anchors(to))):
            dead.append(link)
    return dead


def wrong(line: str) -> str:
    """What no command of ours has in a line that begins with `roost`; nothing when all is well."""
    command: click.Command = cli
    context = click.Context(cli, info_name="roost")
    for word in line.split()[1:]:
        if word in ("|", "&&", "#", "2>/dev/null"):
            break
        name = word.partition("=")[0]
        if name.startswith("--") and name != "--help":
            flags = {flag for one in command.params for flag in one.opts + one.secondary_opts}
            if name not in flags:
                return f"{command.name}: no {name}"
        elif isinstance(command, click.Group) and re.fullmatch(r"[a-z][a-z-]*", name):
            found = command.get_command(context, name) if command is not cli or name in COMMANDS else None
            if found is None:
                return f"{command.name}: no command {name}"
            command, context = found, click.Context(found, parent=context, info_name=name)
    return ""


def commands(document: Path) -> list[str]:
    """In code, inline or in a block."""
    text = document.read_text(encoding="utf-8")
    inline = re.findall(r"`(?:sudo )?(?:\./)?(roost [^`]+)`", text)
    shell = "\n".join([*INDENTED.findall(text), *BLOCK.findall(text)])
    return inline + re.findall(
        r"(?:^|[|;&(']|\b(?:until|if|sudo|do) ) *(?:\./)?(roost [^\s|;&)'][^\n|;&)']*)", shell, re.M
    )


BLOCK = re.compile(r"^```sh[^\n]*\n(.*?)^```$", re.M | re.S)
INDENTED = re.compile(
    r"^ {4}((?:[A-Z_]+=(?:'.*?'|\S+) )*(?:sudo |\./|(?:roost|vagrant|systemctl|apt|kill|rm|sqlite3) [^ ]).*)$", re.M
)

RUN_WHOLE = {
    "docs/deploy.md": "tests/lab/test_deploy.py",
    "docs/flows.md": "tests/lab/test_flows.py",
    "docs/guide.md": "tests/lab/test_guide.py",
    "docs/tutorial.md": "tests/lab/test_tutorial.py",
}
"""Whose fenced blocks are run, each line."""

_BACKUP = "tests/lab/test_backup.py::test_by_a_backup_another_machine_wakes_all_that_slept"
_BOOT = "tests/bench/test_boot.py::test_a_booted_machine_loses_none_in_an_upgrade_and_is_as_before_after_a_purge"
_PROXY = "tests/lab/test_proxy.py::test_curl_reaches_a_client_by_its_name_whatever_the_port_before_and_after_sleep"
_RECOMMENDED = "tests/lab/test_policy_rules.py::test_what_a_report_recommends_is_shown_applied_and_taken_back"
_RULES = "tests/lab/test_policy_rules.py::test_a_rule_for_a_network_is_obeyed_there_alone_and_outlives_the_daemon"
_WHEEL = "tests/unit/test_client.py::test_a_wheel_of_its_own_has_it_as_roost_client_and_needs_nothing_else"

RUN = {
    "export ROOST_URL": "tests/lab/test_api.py::test_the_commands_ask_it_from_another_machine",
    "curl --proxytunnel": _PROXY,
    "curl --socks5-hostname": _PROXY,
    "echo status | roost attach": "tests/lab/test_client.py::test_the_command_is_stdin_and_stdout_to_a_client",
    "kill $roost; wait $roost": "tests/lab/test_deploy.py",
    "pip install dist": _WHEEL,
    "pip wheel": _WHEEL,
    "promtool check config": "tests/unit/test_metrics.py",
    "python3 -c": "tests/unit/test_frontend_passwords.py",
    "rm -rf": "tests/lab/test_install.py",
    "roost attach": "tests/lab/test_client.py::test_the_command_is_stdin_and_stdout_to_a_client",
    "roost backup": _BACKUP,
    "roost bench": "tests/bench/test_benches.py",
    "roost connections": "tests/lab/test_deploy.py",
    "roost demo": "tests/lab/test_demo.py::test_the_demo_holds_what_it_claims",
    "roost drain": "tests/lab/test_drain.py::test_another_machine_has_all_of_them",
    "roost export": "tests/lab/test_bad_days_shortage.py",
    "roost job start": "tests/lab/test_jobs.py::test_the_command_says_how_they_fared",
    "roost lab up": "tests/lab/test_lab_up.py",
    "roost policy explain": _RULES,
    "roost policy give": "tests/lab/test_giving.py::test_what_an_operator_gives_outlives_the_daemon",
    "roost policy list": "tests/unit/test_main.py",
    "roost policy recommend": _RECOMMENDED,
    "roost policy set": _RULES,
    "roost policy take": "tests/lab/test_giving.py::test_what_an_operator_gives_outlives_the_daemon",
    "roost policy try": _RULES,
    "roost report": "tests/unit/spark/test_report.py",
    "roost restore": _BACKUP,
    "roost token create": "tests/lab/test_guide.py",
    "roost unpin": "tests/lab/test_deploy.py",
    "roost up --quarantine": "tests/lab/test_reboot.py::test_a_reboot_resets_none",
    "roost up -c roost.toml --take-over":
        "tests/lab/test_drain.py::test_of_a_machine_that_died_another_one_has_the_sleepers_when_it_is_told_to",
    "roost-agent --appliance": "tests/lab/test_agents.py",
    "roost-agent --new-token": "tests/unit/test_roost_agent.py::test_it_runs_alone_and_makes_tokens",
    "ssh -p": "tests/lab/test_local_connect.py",
    "systemctl daemon-reload": _BOOT,
    "systemctl disable --now roost-api roost && systemctl stop roost-quarantine": _BOOT,
    "systemctl enable --now roost": _BOOT,
    "systemctl enable --now roost-api": _BOOT,
    "vagrant/install.sh": "tests/lab/test_install.py",
    "vagrant/package.sh": _BOOT,
}  # fmt: skip
"""By the beginning of a line: which test runs such a command, by itself or by another hand."""

NOT_RUN = {
    "apt install python3-pip": "tests/unit/test_store.py looks at the place alone: what is put there is large",
    "apt install roost_*.deb": "a machine is booted with what apt installed (tests/bench/boot.py)",
    "cp examples/monitoring": "it copies two files",
    "curl --proxy ": "the same is asked without curl: tests/lab/test_api_attach.py",
    "curl --oauth2-bearer": "the same is asked without curl: tests/lab/test_api.py",
    "curl …": "the same is asked without curl: tests/lab/test_jobs.py",
    "id roost": "it makes a user of this machine",
    "install -m 755 roost_agent.py": "it copies a file",
    "roost lint --fix": "it changes the checkout",
    "roost test": "it is what runs the tests",
    "sqlite3 /var/lib/roost": "the view's columns are asked for by tests/unit/test_history.py, without that program",
    "systemctl start roost": "no daemon of this machine's: `roost up`, in tests/lab/test_drain.py",
    "vagrant ssh": "no hypervisor here; tests/lab/test_vagrant.py runs the scripts",
    "vagrant up": "no hypervisor here; tests/lab/test_vagrant.py runs the scripts",
}
"""Likewise: why none does."""


def shell_lines(name: str) -> list[str]:
    """What a reader types by a document, and no test runs as it stands: commands without sudo, environment and comment,
    each with the lines that it goes on in."""
    text = (ROOT / name).read_text(encoding="utf-8")
    found, begun = list[str](), ""
    blocks = [] if name in RUN_WHOLE else BLOCK.findall(text)
    for line in "\n".join([*blocks, *INDENTED.findall(FENCED.sub("", text))]).splitlines():
        begun += line.removesuffix("\\")
        try:
            words = shlex.split(begun, comments=True)
        except ValueError:  # a quotation goes on
            begun += "\n"
            continue
        if words and not line.endswith("\\"):
            found.append(re.sub(r"^(?:sudo |-E |\./|[A-Z_]+=(?:'.*?'|\S+) )+", "", re.sub(r"\s+#.*$", "", begun)))
        begun = begun if line.endswith("\\") else ""
    return [re.sub(r" \./", " ", line) for line in found]


def listed(line: str) -> str:
    """Its entry, the most exact one; empty: there is none."""
    return max((entry for entry in {**RUN, **NOT_RUN} if f"{line} ".startswith(entry)), key=len, default="")


@pytest.mark.parametrize("name", names(DOCUMENTS))
def test_links_lead_somewhere(name: str) -> None:
    assert dead_links(ROOT / name) == []


@pytest.mark.parametrize("name", names(DOCUMENTS))
def test_commands_and_their_options_are_there(name: str) -> None:
    assert [line for line in map(wrong, commands(ROOT / name)) if line] == []


@pytest.mark.parametrize("name", names(DOCUMENTS))
def test_each_shell_line_has_its_test_or_the_reason_why_it_has_none(name: str) -> None:
    assert [line for line in shell_lines(name) if not listed(line)] == []


def test_each_entry_has_a_line_and_its_test_is_there() -> None:
    used = {listed(line) for name in names(DOCUMENTS) for line in shell_lines(name)}
    assert {*RUN, *NOT_RUN} - used == set()
    for test in {*RUN.values(), *RUN_WHOLE.values()}:
        path, _, function = test.partition("::")
        assert f"def {function or 'test_'}" in (ROOT / path).read_text(encoding="utf-8"), test


def test_the_readme_names_every_command_and_every_document() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    table = readme.split("\n## The commands\n")[1].split("\n## ")[0]
    said = set(re.findall(r"[\w-]+", " ".join(re.findall(r"^\| (.*?) \|", table, re.M))))
    assert set(COMMANDS) - said == set()
    there = {path.name for path in (ROOT / "docs").glob("*.md")}
    assert there - set(re.findall(r"\(docs/([\w-]+\.md)\)", readme)) == set()


def named_by(claim: str) -> list[tuple[str, str]]:
    """The tests that a claim of docs/security.md names: file and name, or no name where it is all of them."""
    file, named = "", []
    for found in re.finditer(r"([\w/]+/test_\w+\.py)|`(test_\w+)`", claim):
        file = found[1] or file
        named.append((file, found[2] or ""))
    return named


def test_each_claim_about_security_names_a_test_that_is_there() -> None:
    sections = (ROOT / "docs/security.md").read_text().split("\n## ")
    claims = [claim for section in sections if not section.startswith(("Who sends", "What is not kept"))
              for claim in re.split(r"\n(?:- |\n)", section)[1:]]  # fmt: skip
    assert len(claims) > 10
    for claim in claims:
        named = named_by(claim)
        assert named or "(the owner's address" in claim or "Who can send what" in claim, claim
        for file, name in named:
            assert f"def {name}" in (ROOT / "tests" / file).read_text(), (file, name)


def test_what_is_wrong_with_a_command_is_found(tmp_path: Path) -> None:
    assert wrong("roost nonsense") == "cli: no command nonsense"
    assert wrong("roost lab sideways") == "lab: no command sideways"
    assert wrong("roost status --jsn") == "status: no --jsn"
    assert wrong("roost bench hold --connections 10000000") == ""
    (tmp_path / "b.md").write_text("```sh\nexport A=1\nuntil ./roost statsu | grep x; do :; done\n"
                                   "echo $(sudo roost connections)\n```\n    roost up --now\n")  # fmt: skip
    assert [wrong(line) for line in commands(tmp_path / "b.md")] == ["up: no --now", "cli: no command statsu", ""]
    (tmp_path / "b.md").unlink()
    assert (listed("roost up --now"), listed("systemctl enable --now roost-api")) == (
        "",
        "systemctl enable --now roost-api",
    )
    (tmp_path / "a.md").write_text("# One, two\n[x](#one-two) [y](#three) [z](b.md)\n")
    assert dead_links(tmp_path / "a.md") == ["#three", "b.md"]
