# SPDX-License-Identifier: Apache-2.0
"""What is known of the networks' time-outs, and the rules that follow from it: recommendations, which are safe by what
was observed, and experiments, where nothing was.

Both are files of rules as `roost policy try` takes them, with `about` beside: why each, and what is to be expected.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa

from spark.estimating import BETWEEN, FOUND, LONGER, SHORTER, Gaps, Verdict, isotonic, verdict

CELLS_MAX: Final = 1000
"""Services with rules, those with the most probes: 50 ms each."""

MARGIN: Final = 0.95
"""Of the lower end of a time-out's interval: a probe that is lost on its way is sent again before it."""

WORTH: Final = 1.25
"""An interval by which nobody is lost is changed to one that is longer or shorter by this factor at least."""

TRY_UP_TO: Final = 8
"""An experiment's longest interval is so many times that of now: three octaves."""

SHORTEST_S: Final = 10

PROBE_BYTES: Final = 104
"""Of a probe and its answer: two segments of IPv4 with TCP's timestamps."""

_STEPS: Final = ((10, 1), (120, 5), (600, 30), (3600, 60), (1 << 62, 600))

_SECONDS, _COUNT, _TEXT = pa.float64(), pa.int64(), pa.string()
TIMEOUTS: Final = pa.schema(
    [
        ("service", _TEXT),
        ("rules", _TEXT),
        ("answered", _COUNT),
        ("lost", _COUNT),
        ("shortest_s", _SECONDS),
        ("longest_s", _SECONDS),
        ("known", _TEXT),
        ("timeout_s", _SECONDS),
        ("timeout_low_s", _SECONDS),
        ("timeout_high_s", _SECONDS),
        ("share", pa.float64()),
        ("lost_by_timeout_a_day", pa.float64()),
        ("lost_anyway_a_day", pa.float64()),
        ("bearable_s", _SECONDS),
        ("bearable_low_s", _SECONDS),
        ("bearable_high_s", _SECONDS),
        ("kaplan_meier_s", _SECONDS),
        ("interval_s", _SECONDS),
        ("recommended_s", _COUNT),
        ("probes_a_day", pa.float64()),
        ("probes_a_day_then", pa.float64()),
        ("bytes_saved_a_day", pa.float64()),
    ]
)
LOSSES: Final = pa.schema(
    [
        ("service", _TEXT),
        ("rules", _TEXT),
        ("from_s", _COUNT),
        ("to_s", _COUNT),
        ("answered", _COUNT),
        ("lost", _COUNT),
        ("share_lost", pa.float64()),
    ]
)
EXPECTED: Final = pa.schema(
    [
        ("rule", _TEXT),
        ("version", _COUNT),
        ("at", pa.timestamp("ms", tz="UTC")),
        *(
            (f"{what}_a_day_{when}", pa.float64())
            for what in ("probes", "lost")
            for when in ("before", "expected", "after")
        ),
    ]
)


class Cell(NamedTuple):
    """The clients of a service that the same rules give values. rules: by name; none: the configuration alone. days:
    watched; probes: sent, answered or not."""

    service: str
    rules: str | None
    gaps: Gaps
    days: float
    probes: int


class Found(NamedTuple):
    """Of a cell; interval_s: after how long a client was probed, on average. recommended_s: None: leave it."""

    cell: Cell
    verdict: Verdict
    interval_s: float
    recommended_s: int | None

    @property
    def probes_a_day(self) -> float:
        return self.cell.probes / self.cell.days if self.cell.days else 0.0

    @property
    def probes_then(self) -> float:
        """A day; the time that clients sleep stays the same."""
        return self.probes_a_day * self.interval_s / self.recommended_s if self.recommended_s else self.probes_a_day

    def row(self) -> dict[str, Any]:
        """Of TIMEOUTS."""
        gaps, found, days = self.cell.gaps, self.verdict, self.cell.days
        lost, saved = float(gaps.lost.sum()), (self.probes_a_day - self.probes_then) * PROBE_BYTES
        values = (
            self.cell.service, self.cell.rules, int(gaps.answered.sum()), int(lost), float(gaps.low[0]),
            float(gaps.high[-1]), found.known, found.timeout.value, found.timeout.low, found.timeout.high, found.share,
            found.by_timeout / days if days else None, (lost - found.by_timeout) / days if days else None,
            *found.bearable, found.kaplan_meier, self.interval_s, self.recommended_s, self.probes_a_day,
            self.probes_then, saved,
        )  # fmt: skip
        return dict(zip(TIMEOUTS.names, values, strict=True))

    def losses(self) -> Iterable[dict[str, Any]]:
        """Of LOSSES."""
        gaps = self.cell.gaps
        shares = isotonic(gaps.lost, gaps.probes)
        for low, high, answered, lost, share in zip(*(one.tolist() for one in (*gaps, shares)), strict=True):
            values = (self.cell.service, self.cell.rules, int(low), int(high), int(answered), int(lost), share)
            yield dict(zip(LOSSES.names, values, strict=True))


def judged(cell: Cell, chance: float) -> Found:
    """chance: of loss at a probe, that is bearable."""
    found = verdict(cell.gaps, chance)
    probes = cell.gaps.probes
    interval = float(((cell.gaps.low + cell.gaps.high) / 2 @ probes) / probes.sum())
    wanted = _wanted(found)
    loses = found.known in (FOUND, BETWEEN)  # whatever the average is
    borne = found.bearable.value is not None and found.bearable.value >= interval
    if wanted is None or (not loses and wanted < interval * WORTH and (borne or wanted > interval / WORTH)):
        return Found(cell, found, interval, None)
    return Found(cell, found, interval, wanted)


def _wanted(found: Verdict) -> int | None:
    """The longest interval that is safe by what is known, s; None: nothing is."""
    bounds = [found.bearable.value, found.timeout.low]
    if found.known not in (FOUND, BETWEEN, LONGER) or any(bound is None for bound in bounds):
        return None
    margin = MARGIN if found.known != LONGER else 1.0
    longest = min(bound for bound in bounds if bound is not None) * margin
    return _round(longest) if longest >= SHORTEST_S else None


def _round(seconds: float) -> int:
    """Downwards, to what people write."""
    step = next(step for below, step in _STEPS if seconds < below)
    return int(seconds) // step * step


# -- rules ------------------------------------------------------------------------------------------------------------


def recommendations(found: Sequence[Found], rules: Mapping[str, Mapping[str, Any]], version: int,
                    about: str) -> dict[str, Any]:  # fmt: skip
    """A file of rules for those with a recommended interval. rules: those in force, by name, as JSON has them; about:
    which report this is. A cell for which no one rule can be changed is told in `about` alone."""
    made, told = dict[str, dict[str, Any]](), dict[str, dict[str, Any]]()
    for one in sorted((one for one in found if one.recommended_s), key=lambda one: one.recommended_s or 0):
        name = _rule_of(one.cell, rules)
        if name is None:
            told[_label(one.cell)] = {**_about(one), "by_hand": "several rules give these clients values; none of them "
                                                                "is for the interval alone"}  # fmt: skip
        elif name in made:  # of several cells the shortest one holds
            told[name]["also"] = [*told[name].get("also", []), _about(one)]
        else:
            rule = {key: value for key, value in rules.get(name, {}).items() if key != "most_probe_interval"}
            conditions = {} if name in rules else {"service": one.cell.service}
            made[name] = {"name": name, **conditions, **rule, "probe_interval": f"{one.recommended_s}s"}
            told[name] = {**_about(one), "new": name not in rules}
    return {"report": about, "version": version, "rule": list(made.values()), "about": told}


def _label(cell: Cell) -> str:
    return f"{cell.service}, {cell.rules}" if cell.rules else cell.service


def _rule_of(cell: Cell, rules: Mapping[str, Mapping[str, Any]]) -> str | None:
    """The one whose interval is to be another; None: it is not known which."""
    if not cell.rules:
        return _new_name("report", cell.service)
    names = [name for name in cell.rules.split(", ") if name in rules]
    giving = [name for name in names if "probe_interval" in rules[name]]
    several = giving or names
    return several[0] if len(several) == 1 else None


def _new_name(kind: str, what: str) -> str:
    """Of a rule: lower-case letters, digits, `.`, `_`, `-`, 63 at most."""
    plain = "".join(one if one.isascii() and (one.isalnum() or one in "._-") else "-" for one in what.lower())
    return f"{kind}-{plain}"[:63]


def _about(one: Found) -> dict[str, Any]:
    return {
        "why": why(one),
        "interval_s": round(one.interval_s),
        "recommended_s": one.recommended_s,
        "probes_a_day": round(one.probes_a_day),
        "probes_a_day_then": round(one.probes_then),
        "bytes_saved_a_day": round((one.probes_a_day - one.probes_then) * PROBE_BYTES),
        "lost_a_day": round(one.verdict.by_timeout / one.cell.days, 2) if one.cell.days else None,
        "lost_a_day_then": 0,
    }


def why(one: Found) -> str:
    """A sentence."""
    found, tried = one.verdict, f"{one.cell.gaps.low[0]:,.0f} to {one.cell.gaps.high[-1]:,.0f} s"
    low, high = found.timeout.low, found.timeout.high
    if found.known == FOUND:
        return f"silent connections are lost after {found.timeout.value:,.0f} s ({low:,.0f} to {high:,.0f})"
    if found.known == BETWEEN:
        return f"silent connections are lost after some time between {low:,.0f} and {high:,.0f} s"
    if found.known == LONGER:
        return f"no connection was lost by a time-out up to {low:,.0f} s; silences of {tried} were probed"
    if found.known == SHORTER:
        return f"nearly all connections were lost by the first probe, after {tried}: the time-out is shorter"
    return f"there are too few probes ({one.cell.gaps.probes.sum():,.0f}) to know a time-out"


class Network(NamedTuple):
    """Where clients of a service connect from; clients: how many of its connections began there, share: of them."""

    service: str
    network: str
    clients: int
    share: float


def experiments(found: Sequence[Found], rules: Mapping[str, Mapping[str, Any]], networks: Sequence[Network],
                version: int, about: str) -> dict[str, Any]:  # fmt: skip
    """A file of rules by which time-outs would be learned that the data cannot tell: a few clients, whose intervals are
    chosen at random. networks: those that may be chosen, the best first."""
    made, told = list[dict[str, Any]](), dict[str, dict[str, Any]]()
    for one in found:
        if one.verdict.known in (FOUND, BETWEEN) or one.recommended_s:
            continue
        shortest, longest = one.interval_s, one.interval_s * TRY_UP_TO
        if one.verdict.known == SHORTER:
            shortest, longest = one.interval_s / TRY_UP_TO, one.interval_s
        name = _new_name("try", _label(one.cell).replace(", ", "-"))
        network = next((each for each in networks if _is_of(each, one.cell, rules)), None)
        told[name] = {"why": why(one), "clients": network.clients if network else None, "new": name not in rules}
        if name in rules:
            told[name]["by_hand"] = "a rule of this name is there already: remove it before there is another experiment"
            continue
        if network is None:
            told[name]["by_hand"] = "choose a network with a few of these clients"
            continue
        # Rules that give the same values are counted together: no two of these do.
        values = {"probe_interval": f"{max(_round(shortest), SHORTEST_S)}s",
                  "most_probe_interval": f"{_round(longest) + len(made)}s"}  # fmt: skip
        made.append({"name": name, "service": one.cell.service, "network": network.network, **values})
    return {"report": about, "version": version, "rule": made, "about": told}


def _is_of(network: Network, cell: Cell, rules: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether all of its clients are of the cell, as far as addresses tell."""
    if network.service != cell.service:
        return False
    here = ipaddress.ip_network(network.network)
    named = set(cell.rules.split(", ")) if cell.rules else set[str]()
    for name, rule in rules.items():
        there = ipaddress.ip_network(rule["network"]) if rule.get("network") else None
        of_service = rule.get("service") in (None, cell.service)
        inside = there is None or (there.version == here.version and here.subnet_of(there))  # type: ignore[arg-type]
        overlaps = there is None or (there.version == here.version and here.overlaps(there))
        if name in named and not inside:
            return False
        if name not in named and of_service and overlaps:
            return False
    return True


def rules_of(rows: Iterable[Mapping[str, Any]]) -> tuple[int, dict[str, dict[str, Any]]]:
    """The version of the last change, and the rules that were in force then; rows: of the export's table."""
    version, rules = 0, dict[str, dict[str, Any]]()
    for row in sorted(rows, key=lambda row: row["version"]):
        version = row["version"]
        rules.pop(row["rule"], None)
        if row["content"] is not None:
            try:
                content = json.loads(row["content"])
            except ValueError:
                continue
            if isinstance(content, dict):
                rules[row["rule"]] = {key: value for key, value in content.items() if key != "name"}
    return version, rules


# -- what came of it ---------------------------------------------------------------------------------------------------

_EXPECTED: Final = re.compile(r"(\S+) expects ([0-9]+) probes and ([0-9]+) lost a day")
"""Why a rule was changed by a report, as `roost policy recommend --apply` says it."""


def outcomes(changes: Iterable[Mapping[str, Any]], days: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Of EXPECTED, for each rule that a report recommended and somebody applied. changes: rows of the export's rules;
    days: of timeouts.by_day. The day of the change is in neither; None: there is no other day."""
    by_rule: dict[str, list[Mapping[str, Any]]] = {}
    for day in days:
        for rule in (day["rules"] or "").split(", "):
            by_rule.setdefault(rule, []).append(day)
    rows = []
    for change in changes:
        for rule, probes, lost in _EXPECTED.findall(change["why"] or ""):
            if rule != change["rule"]:
                continue
            at = change["at"].date()
            before, after = ([day for day in by_rule.get(rule, ()) if earlier == (day["day"] < at) and day["day"] != at]
                             for earlier in (True, False))  # fmt: skip
            values = (rule, change["version"], change["at"], _a_day(before, "probes"), float(probes),
                      _a_day(after, "probes"), _a_day(before, "lost"), float(lost), _a_day(after, "lost"))  # fmt: skip
            rows.append(dict(zip(EXPECTED.names, values, strict=True)))
    return rows


def _a_day(days: Sequence[Mapping[str, Any]], what: str) -> float | None:
    watched = sum(day["days"] for day in days)
    return sum(day[what] for day in days) / watched if watched else None
