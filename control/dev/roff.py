# SPDX-License-Identifier: Apache-2.0
"""Text and Markdown as roff, for man(7)."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator
from typing import Final

from markdown_it import MarkdownIt
from markdown_it.tree import SyntaxTreeNode

_SPECIAL: Final = str.maketrans(
    {"\\": r"\e", "-": r"\-", "'": r"\(aq", "`": r"\(ga", "^": r"\(ha", "~": r"\(ti", '"': r"\(dq"}
)
_SENTENCE: Final = re.compile(r"(?<=[.!?])\s+")
_WIDTH: Final = 78


def literal(text: str) -> str:
    """Text as it stands here, each character as it is on a terminal."""
    return text.translate(_SPECIAL)


def bold(text: str) -> str:
    return rf"\fB{literal(text)}\fR"


def marked(text: str) -> str:
    """Text of which what stands in backticks is bold."""
    return "".join(bold(part) if n % 2 else literal(part) for n, part in enumerate(text.split("`")))


def _guarded(lines: Iterable[str]) -> Iterator[str]:
    """Lines that begin with a point are no requests."""
    return (rf"\&{line}" if line.startswith(".") else line for line in lines)


def filled(roff: str) -> list[str]:
    """Lines of a paragraph; a sentence begins a line."""
    sentences = _SENTENCE.split(roff.strip())
    wrapped = (textwrap.wrap(one, _WIDTH, break_long_words=False, break_on_hyphens=False) for one in sentences)
    return list(_guarded(line for lines in wrapped for line in lines))


def example(text: str) -> list[str]:
    """Lines that stay as they are."""
    return [".PP", ".RS 4", ".EX", *_guarded(map(literal, text.rstrip("\n").split("\n"))), ".EE", ".RE"]


def title(name: str, section: int, date: str, version: str) -> str:
    """The first lines of a page; no key and no option is broken at the end of a line."""
    return f'.TH {literal(name.upper())} {section} "{date}" "Roost {version}" "Roost"\n.nh\n.ad l'


def _inline(node: SyntaxTreeNode) -> str:
    """A link is its text: what it leads to is not on the machine."""
    match node.type:
        case "text":
            return literal(node.content)
        case "code_inline":
            return bold(node.content)
        case "softbreak":
            return " "
        case "strong" | "em":
            return rf"\f{'B' if node.type == 'strong' else 'I'}{''.join(map(_inline, node.children))}\fR"
        case "inline" | "link" | "th" | "td" | "paragraph":
            return "".join(map(_inline, node.children))
    raise ValueError(f"no way to write {node.type}")


def _entry(heads: list[str], cells: list[str]) -> list[str]:
    """A row of a table: a key, what its value is, and what it means."""
    about = [f"default {cell}" if head == "default" and cell != "required" else cell
             for head, cell in zip(heads[1:-1], cells[1:-1], strict=True) if cell]  # fmt: skip
    return [".TP", f"{cells[0]} ({', '.join(about)})" if about else cells[0], *filled(cells[-1])]


def _block(node: SyntaxTreeNode) -> Iterator[str]:
    match node.type:
        case "heading":
            if node.tag != "h1":
                yield f".{'SH' if node.tag == 'h2' else 'SS'} {_inline(node.children[0])}"
        case "paragraph":
            yield from (".PP", *filled(_inline(node)))
        case "fence" | "code_block":
            yield from example(node.content)
        case "bullet_list":
            for item in node.children:
                yield r".IP \(bu 2"
                yield from filled(" ".join(map(_inline, item.children)))
        case "table":
            head, body = node.children
            heads = [_inline(cell) for cell in head.children[0].children]
            for row in body.children:
                yield from _entry(heads, [_inline(cell) for cell in row.children])
        case "html_block":  # a comment
            pass
        case kind:
            raise ValueError(f"no way to write {kind}")


def of_markdown(text: str) -> list[str]:
    """Lines of a page, but for the document's title. Raises ValueError for what it has no way to write."""
    tree = SyntaxTreeNode(MarkdownIt("commonmark").enable("table").parse(text))
    return [line for node in tree.children for line in _block(node)]
