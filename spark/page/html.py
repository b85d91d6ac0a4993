# SPDX-License-Identifier: Apache-2.0
"""A page as HTML: one file that asks for nothing, without a script."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Final

from spark.page.section import Column, Kind, Matrix, Plot, Section, Table

POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
STYLE: Final = Path(__file__).with_name("style.css")
HEATS: Final = 6
"""Steps of colour in a matrix."""
NOTHING: Final = "No rows."


def page(title: str, lead: str, sections: Sequence[Section]) -> str:
    """All of it; the first section is before the contents."""
    style = STYLE.read_text(encoding="utf-8")
    first, *others = sections
    body = f"{_section(first)}{_contents(others)}{''.join(map(_section, others))}"
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        f'<header><h1>{escape(title)}</h1><p class="lead">{escape(lead)}</p></header>\n'
        f"<main>\n{body}</main>\n</body>\n</html>\n"
    )


def _contents(sections: Sequence[Section]) -> str:
    """With what matters most of each."""
    items = "".join(
        f'<li><a href="#{one.name}">{escape(one.title)}</a>'
        + (f"<p>{escape(one.findings[0])}</p>" if one.findings else "")
        + "</li>"
        for one in sections
    )
    return f'<nav aria-labelledby="contents"><h2 id="contents">In short</h2><ol>{items}</ol></nav>\n'


def _section(section: Section) -> str:
    parts = [
        f'<ul class="findings">{_items(section.findings)}</ul>' if section.findings else "",
        *(_plot(plot) for plot in section.plots),
        _matrices(section),
        *(_table(section.name, table) for table in section.tables),
    ]
    if section.method:
        parts.append(f"<h3>Method</h3>{''.join(f'<p>{escape(one)}</p>' for one in section.method)}")
    if section.caveats:
        parts.append(f'<h3>Caveats</h3><ul class="caveats">{_items(section.caveats)}</ul>')
    name = section.name
    head = f'<section id="{name}" aria-labelledby="{name}-head"><h2 id="{name}-head">{escape(section.title)}</h2>'
    return "\n".join([head, *(part for part in parts if part), "</section>\n"])


def _items(texts: Iterable[str]) -> str:
    return "".join(f"<li>{escape(one)}</li>" for one in texts)


def _plot(plot: Plot) -> str:
    legend = "".join(f'<li><span class="key {colour}"></span>{escape(what)}</li>' for colour, what in plot.legend)
    panels = "".join(f'<div class="panel"><h4>{escape(one.title)}</h4>{one.svg}</div>' for one in plot.panels)
    return (f"<h3>{escape(plot.title)}</h3><figure>" + (f'<ul class="legend">{legend}</ul>' if legend else "")
            + f'<div class="panels">{panels}</div>'
            + f"<figcaption>{escape(plot.caption)}</figcaption></figure>")  # fmt: skip


def _scroll(label: str, table: str) -> str:
    """A box of its own, which those who have no mouse can reach."""
    return f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(label)}">{table}</div>'


def _matrices(section: Section) -> str:
    if not section.matrices:
        return ""
    title, lead = section.matrices_head
    each = "".join(map(_matrix, section.matrices))
    return f'<h3>{escape(title)}</h3><p class="note">{escape(lead)}</p><div class="matrices">{each}</div>'


def _matrix(matrix: Matrix) -> str:
    head = "".join(f'<th scope="col">{escape(one)}</th>' for one in matrix.columns)
    rows = "".join(
        f'<tr><th scope="row">{escape(name)}</th>{"".join(map(_cell, cells))}</tr>'
        for name, cells in zip(matrix.rows, matrix.cells, strict=True)
    )
    table = (f'<table class="matrix"><caption>{escape(matrix.title)}</caption>'
             f'<thead><tr><th scope="col">{escape(matrix.corner)}</th>{head}</tr></thead>'
             f"<tbody>{rows}</tbody></table>")  # fmt: skip
    return _scroll(matrix.title, table)


def _cell(cell: tuple[float, str] | None) -> str:
    if cell is None:
        return '<td class="heat0"></td>'
    share, words = cell
    first, _, rest = words.partition("\n")
    heat = 0 if share <= 0 else 1 + min(int(share * (HEATS - 1)), HEATS - 2)
    return f'<td class="heat{heat}">{escape(first)}' + (f"<small>{escape(rest)}</small>" if rest else "") + "</td>"


def _table(section: str, table: Table) -> str:
    if not table.rows:
        return f"<h3>{escape(table.title)}</h3><p>{NOTHING}</p>"
    shown = table.rows[: table.shown]
    head = "".join(map(_head, table.columns))
    rows = "".join("<tr>" + "".join(_value(column, row.get(column.key)) for column in table.columns) + "</tr>\n"
                   for row in shown)  # fmt: skip
    note = escape(_note(table, len(shown)))
    made = (f'<table><caption class="unseen">{escape(table.title)}</caption>'
            f"<thead><tr>{head}</tr></thead><tbody>\n{rows}</tbody></table>")  # fmt: skip
    return f'<h3>{escape(table.title)}</h3><p class="note">{note}</p>{_scroll(table.title, made)}'


def _note(table: Table, shown: int) -> str:
    """How many rows there are, and where all of them are."""
    total = len(table.rows)
    said = f"As a file: {table.file}."
    if shown < total:
        order = f" {table.order}" if table.order else ""
        said = (f"The first {shown:,} of {total:,} rows{order}; {total - shown:,} are left out, and {table.file} has "
                "them all.")  # fmt: skip
    return f"{said} {table.note}".strip()


def _head(column: Column) -> str:
    unit = column.kind.unit if column.unit is None else column.unit
    number = ' class="number"' if column.kind.is_number else ""
    return (
        f'<th scope="col"{number}>{escape(column.title)}' + (f"<small>{escape(unit)}</small>" if unit else "") + "</th>"
    )


def _class(column: Column) -> str:
    name = "number" if column.kind.is_number else "time" if column.kind is Kind.TIME else ""
    return name and f' class="{name}"'


def _value(column: Column, value: object) -> str:
    return f"<td{_class(column)}>{escape(column.kind.show(value))}</td>"
