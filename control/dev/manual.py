# SPDX-License-Identifier: Apache-2.0
"""The man pages, by `python -m control.dev.manual DIR`: roost(1) and one for each operator's command, of what click
knows of them; roost.toml(5), of docs/configuration.md; roost.service(8), of vagrant/roost.service.md."""

from __future__ import annotations

import inspect
import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from appliance import __version__
from control.cli.main import OPERATOR, cli
from control.config.reference import with_keys
from control.dev.roff import bold, example, filled, literal, marked, of_markdown, title

ROOT: Final = Path(__file__).parents[2]
_OPTION: Final = re.compile(r"(?<!\S)--?\w[\w-]*")
_EXIT_STATUS: Final = "0: done. 1: it could not be done, a sentence on standard error says why. 2: wrong usage."
_FILES: Final = "`/etc/roost/roost.toml`, the configuration: roost.toml(5)"


def _help(command: click.Command) -> Iterator[str]:
    """Its text, and under EXAMPLES what it shows."""
    paragraphs = inspect.cleandoc(command.help or "").replace("./roost", "roost").split("\n\n")
    for paragraph in paragraphs:
        if not paragraph.startswith("\b"):
            yield from (".PP", *filled(marked(paragraph)))
            continue
        first, *rest = paragraph.split("\n")[1:]
        if first.startswith("Example"):
            yield from (".PP", first)
        else:
            rest.insert(0, first)
        yield from example(inspect.cleandoc("\n".join(rest)))


def _options(records: list[tuple[str, str]]) -> Iterator[str]:
    for flags, text in records:
        at, tag = 0, ""
        for option in _OPTION.finditer(flags):
            tag += literal(flags[at : option.start()]) + bold(option[0])
            at = option.end()
        yield from (".TP", tag + literal(flags[at:]), *filled(marked(text)))


def records(context: click.Context) -> list[tuple[str, str]]:
    """Options, and what they mean."""
    found = (one.get_help_record(context) for one in context.command.get_params(context))
    return [record for record in found if record is not None and record[1]]


def _usage(context: click.Context) -> str:
    return f"{bold(context.command_path)} {literal(' '.join(context.command.collect_usage_pieces(context)))}"


def leaves(context: click.Context) -> Iterator[click.Context]:
    """The command, or those of a group."""
    if not isinstance(context.command, click.Group):
        yield context
        return
    for name, command in sorted(context.command.commands.items()):
        yield from leaves(click.Context(command, info_name=name, parent=context))


def _top() -> click.Context:
    return click.Context(cli, info_name="roost", **cli.context_settings)


def command_context(name: str) -> click.Context:
    """Of an operator's command."""
    top = _top()
    found = cli.get_command(top, name)
    assert found is not None
    return click.Context(found, info_name=name, parent=top)


def command_page(name: str) -> list[str]:
    """Of an operator's command; with all of those of a group."""
    context = command_context(name)
    each = list(leaves(context))
    of_all = [record for record in records(each[0]) if all(record in records(leaf) for leaf in each)]
    lines = [".SH NAME", *filled(rf"{literal(f'roost-{name}')} \- {marked(_short(OPERATOR[name]))}"), ".SH SYNOPSIS"]
    lines += [line for leaf in each for line in (_usage(leaf), ".br")][:-1]
    lines += [".SH DESCRIPTION", *_help(context.command)]
    if len(each) > 1:
        lines.append(".SH COMMANDS")
        for leaf in each:
            lines += [f".SS {literal(leaf.command_path)}", *_help(leaf.command)]
            lines += _options([record for record in records(leaf) if record not in of_all])
        lines += [".SH OPTIONS", "Of each of these commands:"]
    else:
        lines.append(".SH OPTIONS")
    lines += _options(of_all)
    return [*lines, ".SH EXIT STATUS", *filled(_EXIT_STATUS), *_see_also("roost(1)", "roost.toml(5)")]


def _short(text: str) -> str:
    return text[0].lower() + text[1:].removesuffix(".")


def _see_also(*pages: str) -> list[str]:
    names = (f"{bold(page[:-3])}{page[-3:]}" for page in pages)
    return [".SH SEE ALSO", ",\n".join(names)]


def pages() -> Iterator[tuple[str, int, list[str]]]:
    """Name, section, and lines below the title."""
    top = _top()
    commands = [line for name, text in OPERATOR.items()
                for line in (".TP", f"{bold(f'roost-{name}')}(1)", *filled(marked(text)))]  # fmt: skip
    yield "roost", 1, [
        ".SH NAME", r"roost \- connection manager for millions of quiet TCP connections", ".SH SYNOPSIS", _usage(top),
        ".SH DESCRIPTION", *_help(cli), ".SH COMMANDS", *commands, ".SH OPTIONS", *_options(records(top)),
        ".SH EXIT STATUS", *filled(_EXIT_STATUS), ".SH FILES", marked(_FILES),
        *_see_also("roost.toml(5)", "roost.service(8)"),
    ]  # fmt: skip
    for name in OPERATOR:
        yield f"roost-{name}", 1, command_page(name)
    configuration = with_keys((ROOT / "docs" / "configuration.md").read_text(encoding="utf-8"))
    for name, section, short, markdown in (
        ("roost.toml", 5, "the configuration of Roost", configuration),
        ("roost.service", 8, "Roost as services of systemd",
         (ROOT / "vagrant" / "roost.service.md").read_text(encoding="utf-8")),
    ):  # fmt: skip
        yield name, section, [".SH NAME", f"{name} \\- {short}", ".SH DESCRIPTION", *of_markdown(markdown),
                              *_see_also("roost(1)", "roost-check-config(1)")]  # fmt: skip


def main(directory: Path) -> None:
    """Write them below `directory`, as below /usr/share/man."""
    date = time.strftime("%Y-%m-%d", time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH", time.time()))))
    for name, section, lines in pages():
        lines = [line for n, line in enumerate(lines) if line != ".PP" or lines[n - 1][:3] not in (".SH", ".SS")]
        path = directory / f"man{section}" / f"{name}.{section}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join([title(name, section, date, __version__), *lines, ""]), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
