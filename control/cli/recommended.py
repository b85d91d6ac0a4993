# SPDX-License-Identifier: Apache-2.0
"""A file of `roost report`'s recommendations."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field

WHY_LENGTH: Final = 1000


class About(BaseModel):
    """Of a rule: why, and what is expected; a day. by_hand: what people are to do, since no one rule can."""

    model_config = ConfigDict(extra="ignore", strict=True)

    why: str
    new: bool = False
    by_hand: str | None = None
    interval_s: int | None = None
    recommended_s: int | None = None
    probes_a_day: int | None = None
    probes_a_day_then: int | None = None
    bytes_saved_a_day: int | None = None
    lost_a_day: float | None = None
    lost_a_day_then: int | None = None


class Recommended(BaseModel):
    """As `roost report` writes it. version: of the rules that it is about; report: which one it is."""

    model_config = ConfigDict(extra="forbid", strict=True)

    report: Annotated[str, Field(max_length=200)]
    version: int
    rule: list[dict[str, Any]]
    about: dict[str, About]

    def why(self) -> str:
        """For the history of rules, by which the next report compares what was expected with what came."""
        text = f"report of {self.report}"
        for name in (str(rule.get("name")) for rule in self.rule):
            about = self.about.get(name)
            if about is None or about.probes_a_day_then is None:
                continue
            more = f"{';' if ' expects ' in text else ':'} {name} expects {about.probes_a_day_then} probes and "
            more += f"{about.lost_a_day_then or 0} lost a day"
            if len(text) + len(more) > WHY_LENGTH:
                break
            text += more
        return text
