# SPDX-License-Identifier: Apache-2.0
"""A file of `roost report`'s recommendations."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, model_validator

from control.config.values import Duration

WHY_LENGTH: Final = 1000

INTERVALS: Final = ("probe_interval", "most_probe_interval")
"""What a report may recommend of a rule."""


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


class Rule(BaseModel):
    """As it is to be. Of one that there is already, all but INTERVALS says which rule the report saw, and is put
    nowhere."""

    model_config = ConfigDict(extra="allow", strict=True)

    name: str
    probe_interval: Duration | None = None
    most_probe_interval: Duration | None = None

    @model_validator(mode="after")
    def _has_intervals(self) -> Rule:
        if not self.intervals:
            raise ValueError(f"the rule {self.name} has no interval: neither {' nor '.join(INTERVALS)}")
        return self

    @property
    def intervals(self) -> dict[str, float]:
        return {key: value for key in INTERVALS if (value := getattr(self, key)) is not None}

    @property
    def others(self) -> dict[str, Any]:
        """All its other keys."""
        return {"name": self.name, **(self.model_extra or {})}


class Recommended(BaseModel):
    """As `roost report` writes it. version: of the rules that it is about; report: which one it is."""

    model_config = ConfigDict(extra="forbid", strict=True)

    report: Annotated[str, Field(max_length=200)]
    version: int
    rule: list[Rule]
    about: dict[str, About]

    @model_validator(mode="after")
    def _says_why(self) -> Recommended:
        if silent := [rule.name for rule in self.rule if rule.name not in self.about]:
            raise ValueError(f"of the rule {silent[0]} it does not say why, in `about`")
        return self

    def why(self) -> str:
        """For the history of rules, by which the next report compares what was expected with what came."""
        text = f"report of {self.report}"
        for name in (rule.name for rule in self.rule):
            about = self.about[name]
            if about.probes_a_day_then is None:
                continue
            more = f"{';' if ' expects ' in text else ':'} {name} expects {about.probes_a_day_then} probes and "
            more += f"{about.lost_a_day_then or 0} lost a day"
            if len(text) + len(more) > WHY_LENGTH:
                break
            text += more
        return text
