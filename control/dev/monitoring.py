# SPDX-License-Identifier: Apache-2.0
"""What follows of the tables of metrics and of what is watched: examples/monitoring/alerts.yml with its tests, and the
tables in docs/monitoring.md. `./roost lint --fix` writes them, by `python -m control.dev.monitoring`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from control.api.metrics import ATTENTION, REQUESTS, SECONDS, TABLE, UP
from control.channel.attention import LEVELS, WATCHED

CRITICAL: Final = frozenset(
    {"unheard", "store", "api", "full", "awake", "wakes_refused", "stuck_reset", "thaw_failed", "table_full",
     "tables_not_grown", "lost_records", "rescued", "illegal"}
)  # fmt: skip
"""Names of what is watched by which clients are hurt, or soon will be."""

LASTING: Final = "1m"
"""So long a condition that comes and goes must last; what has grown is looked at over five minutes as it is."""

TURN_MIN: Final = 4
"""In the rules' test."""

_BOX: Final = 'instance="box:8443",job="roost"'
OBJECT: Final = "`roost status` names the object"


class Alert(NamedTuple):
    """series, bad, good: of its test, what the expression is about, and its values."""

    name: str
    expr: str
    lasts: str
    critical: bool
    summary: str
    do: str
    series: str
    bad: int
    good: int


def _alerts() -> tuple[Alert, ...]:
    found = [
        Alert("RoostDaemonAway", f"{UP.name} == 0", LASTING, True, "the daemon does not answer the API's process",
              "look at its log and the load of this machine, and restart it; sleeping connections are kept meanwhile",
              UP.name, 0, 1),
    ]  # fmt: skip
    lasting = {watch.name for watch in LEVELS}
    for watch in WATCHED:
        words = "".join(part.capitalize() for part in watch.name.split("_"))
        name, lasts, critical = f"Roost{words}", LASTING if watch.name in lasting else "0s", watch.name in CRITICAL
        series = f'{ATTENTION.name}{{name="{watch.name}"}}'
        do = f"{watch.do}. {OBJECT}"
        if watch.name == "api":  # it is this process that would tell
            about = "the API cannot be scraped: the daemon, the API's process or the box is down, or out of reach"
            do = f"start the daemon; while that runs, {watch.do}"
            found.append(Alert(name, 'up{job="roost"} == 0', lasts, critical, about, do, "up", 0, 1))
        else:
            found.append(Alert(name, f"{series} > 0", lasts, critical, watch.about, do, series, 1, 0))
    return tuple(found)


ALERTS: Final = _alerts()

_HEAD: Final = """\
# SPDX-License-Identifier: Apache-2.0
# Made by ./roost lint --fix from control/channel/attention.py: not to be edited.
"""


def _severity(alert: Alert) -> str:
    return "critical" if alert.critical else "warning"


def _texts(alert: Alert) -> dict[str, str]:
    return {"summary": f"Roost: {alert.summary}", "description": f"{alert.do}."}


def rules() -> str:
    """alerts.yml: a string of JSON is one of YAML."""
    made = [_HEAD, "groups:\n  - name: roost\n    rules:\n"]
    for alert in ALERTS:
        made.append(f"      - alert: {alert.name}\n        expr: '{alert.expr}'\n        for: {alert.lasts}\n")
        made.append(f"        labels: {{severity: {_severity(alert)}}}\n        annotations:\n")
        made += [f"          {key}: {json.dumps(text, ensure_ascii=False)}\n" for key, text in _texts(alert).items()]
    return "".join(made)


def rules_test() -> str:
    """alerts_test.yml: the series are bad one after the other, for two of four minutes each. An alert fires while its
    own is, and not while the one before it is, or the one behind."""
    made = [_HEAD, "rule_files: [alerts.yml]\nevaluation_interval: 1m\ntests:\n  - interval: 1m\n    input_series:\n"]
    for place, alert in enumerate(ALERTS):
        name, _, label = alert.series.partition("{")
        series = f"{name}{{{_BOX}{f',{label}' if label else '}'}"
        before, after = TURN_MIN * place + 1, TURN_MIN * (len(ALERTS) - place)
        made.append(f"      - series: '{series}'\n")
        made.append(f"        values: '{alert.good}x{before} {alert.bad}x1 {alert.good}x{after}'\n")
    made.append("    alert_rule_test:\n")
    for place, alert in enumerate(ALERTS):
        labels = {**dict(re.findall(r'(\w+)="([^"]*)"', f"{_BOX},{alert.series}")), "severity": _severity(alert)}
        expected = {"exp_labels": labels, "exp_annotations": _texts(alert)}
        minute = TURN_MIN * place + 3
        made.append(f"      - {{eval_time: {minute}m, alertname: {alert.name}, exp_alerts: [\n")
        made.append(f"          {json.dumps(expected, ensure_ascii=False)}]}}\n")
        made += [f"      - {{eval_time: {minute + other}m, alertname: {alert.name}}}\n"
                 for other in (-TURN_MIN, TURN_MIN) if minute + other > 0]  # fmt: skip
    return "".join(made)


def _table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = (heads, ("---",) * len(heads), *rows)
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def alerts_table() -> str:
    """For people: each alert, and what to do."""
    rows = ((f"`{one.name}`", _severity(one), one.summary, one.do.removesuffix(f". {OBJECT}")) for one in ALERTS)
    return _table(("alert", "severity", "what has happened", "what to do"), rows)


def metrics_table() -> str:
    """For people: each family once, in the order of its source."""
    families: dict[str, tuple[str, tuple[str, ...], str, str]] = {}
    for own in (UP, ATTENTION, REQUESTS, SECONDS):
        families[own.name] = own.kind, own.labels, own.help, ""
    for row in TABLE:
        families[row.name] = row.kind, row.labels, row.help, "" if row.where.startswith("own.") else row.where
    rows = (
        (f"`{name}{'_total' if kind == 'counter' else ''}`", kind, ", ".join(labels), text.removesuffix("."),
         f"`{where}`" if where else "")
        for name, (kind, labels, text, where) in families.items()
    )  # fmt: skip
    return _table(("metric", "type", "labels", "what", "in `GET /v1/status`"), rows)


TABLES: Final[Mapping[str, Callable[[], str]]] = {"alerts": alerts_table, "metrics": metrics_table}


def with_tables(text: str) -> str:
    """docs/monitoring.md, whose tables stand between two comments each."""
    for name, table in TABLES.items():
        begin, end = f"<!-- the {name}, made by ./roost lint --fix -->\n\n", f"\n<!-- end of the {name} -->"
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}{table()}{end}{rest.partition(end)[2]}"
    return text


def written(root: Path) -> dict[Path, str]:
    """Each file, as it ought to be."""
    examples, docs = root / "examples" / "monitoring", root / "docs" / "monitoring.md"
    return {
        examples / "alerts.yml": rules(),
        examples / "alerts_test.yml": rules_test(),
        docs: with_tables(docs.read_text(encoding="utf-8")),
    }


if __name__ == "__main__":
    for path, text in written(Path(__file__).parents[2]).items():
        path.write_text(text, encoding="utf-8")
