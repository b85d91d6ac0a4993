# SPDX-License-Identifier: Apache-2.0
"""What commands print: names, reasons and errors are others' texts, and a terminal obeys what is in them.

All that is written to the standard output and error is escaped; what Roost itself makes for terminals, colours and
movements, goes to the stream below.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, Final, TextIO, cast

from control.core.text import escaped

STAYS: Final = "\n\t\x7f"
"""DEL moves nothing, and JSON has it as it is."""


class Escaping:
    """A stream of text, escaped; bytes and all else as the stream below has them."""

    def __init__(self, below: TextIO) -> None:
        self.below = below

    def write(self, text: str) -> int:
        self.below.write(escaped(text, STAYS))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.below, name)


def escape_output() -> None:
    """From now on. Standard streams that are closed stay so."""
    for name in ("stdout", "stderr"):
        if (stream := getattr(sys, name)) is not None:
            if stream.encoding == "ascii":  # else click writes its bytes, and not by `write`
                stream.reconfigure(encoding="utf-8")
            setattr(sys, name, Escaping(stream))


def terminal(stream: TextIO) -> TextIO:
    """What takes a standard stream's text as it is."""
    return cast(Escaping, stream).below if isinstance(stream, Escaping) else stream
