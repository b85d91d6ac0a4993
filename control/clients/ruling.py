# SPDX-License-Identifier: Apache-2.0
"""What operators do with the rules of the policy: look at them and their past, change them, try a change, and ask which
rule gave a client what.

Rules are written and told in one form, TOML's [[rule]] or the same as JSON: {"rule": [{"name": ..., ...}]}. What else
is told of them (`version`, `about`, ...) may stand in a file, and is not read.
"""

from __future__ import annotations

import ipaddress
import json
import re
import tomllib
from collections.abc import Callable, Mapping
from typing import Any, Final

from appliance.wire import ANY_LOCAL, Key, Own, RuleEntry, pack_address, unpack_address
from control.clients.locate import Locator
from control.clients.rules import Configured, Kept, Rules, State, content_of, is_rule, known
from control.clients.scope import SCOPE
from control.config import Service
from control.core.errors import OperationError
from control.core.names import NAME_LENGTH
from control.core.ports import EnginePort, RulesPort
from control.policy.cascade import explain
from control.policy.rules import RULES_MAX, Rule, RuleError, ip_version, listens_at, read_rule
from control.store.policies import ForgottenError, RuleRow
from control.store.schema import MAPPED
from control.store.store import Store

WHO_LENGTH: Final = 255
WHY_LENGTH: Final = 1000
PAST: Final = 20
"""Changes that are told with a rule."""

NETWORKS: Final = 5
"""Networks that are named of those which share their values."""

PARTS_MAX: Final = 4
"""Of a key of TOML: `about.meters.version` has three. tomllib keeps each beginning of one, the square of its parts."""

_OPENS: Final = re.compile(r"""\"{3}|'{3}|["'#]""")
_CLOSES: Final = {
    '"""': re.compile(r'\\.|"{3,5}', re.DOTALL),
    "'''": re.compile("'{3,5}"),
    '"': re.compile(r'\\.|"|(?=\n)'),
    "'": re.compile(r"'|(?=\n)"),
    "#": re.compile(r"(?=\n)"),
}
"""Of strings and comments of TOML."""

_LONG_KEY: Final = re.compile(rf"\.(?:[^.,=\[\]{{}}\n]*\.){{{PARTS_MAX - 1}}}")
_MARKS: Final = (("[{.", 8, "tables, lists and keys with a dot"), ("=", 32, "keys"))
"""Of TOML, how many of which there may be for each rule that there may be: tomllib takes up to a kilobyte for one."""

_NOT_TAKEN: Final = ("version", "about", "error", "history", "report")


class Ruling:
    """Everything may block for as long as database and engine take; raises OperationError. engine: counts who would
    obey. connections: has what is each one's own."""

    def __init__(self, rules: Rules, store: Store, engine: RulesPort, connections: EnginePort, locator: Locator,
                 configured: Configured) -> None:  # fmt: skip
        self._rules = rules
        self._store = store
        self._engine = engine
        self._connections = connections
        self._locator = locator
        self._configured = configured

    # -- looking ------------------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """For the status of the daemon."""
        rules = self._rules
        problems = rules.problems
        return {
            "version": rules.state.version,
            "rules": len(rules.state.kept),
            "error": rules.error,
            "problems": len(problems),
            "problem": problems[0].text if problems else "",
        }

    @property
    def version(self) -> int:
        """Of the rules that are in force."""
        return self._rules.state.version

    def all(self) -> dict[str, Any]:
        """Every rule: `rule`, and `about` each by its name who made it what it is."""
        state = self._rules.state
        return self._told(state, state.kept)

    def show(self, name: str) -> dict[str, Any]:
        """One rule in the form of `all`, and its last changes."""
        state = self._rules.state
        kept = known(state, name)
        past = [_change(row) for row in self._store.rule_changes(PAST, name)]
        return {**self._told(state, {name: kept}), "history": past}

    def _told(self, state: State, kept: Mapping[str, Kept]) -> dict[str, Any]:
        found = [content for one in kept.values() if (content := content_of(one)) is not None]
        about = {name: {**_about(one.row), "problems": list[str]()} for name, one in kept.items()}
        for problem in self._rules.problems:
            for name in filter(about.__contains__, problem.rules):
                about[name]["problems"].append(problem.text)
        return {"version": state.version, "error": self._rules.error, "rule": found, "about": about}

    def history(self, limit: int, name: str | None = None, before: int | None = None) -> list[dict[str, Any]]:
        """The last changes, of one rule or of all, of versions before this one or of all, oldest first: as many of them
        as are some megabytes."""
        return [_change(row) for row in self._store.rule_changes(limit, name, before)]

    # -- changing -----------------------------------------------------------------------------------------------------

    def set(self, name: str, keys: Mapping[str, Any], who: str, why: str, seen: int | None) -> dict[str, Any]:
        """Let a rule be this. seen: the version that its editor saw, None: whichever it is. The answer has what the
        rule was `before`."""
        if keys.get("name", name) != name:
            raise OperationError(422, f'the rule is called "{name}", and its key `name` says something else')
        try:
            rule = read_rule({**keys, "name": name})
        except RuleError as error:
            raise OperationError(422, str(error)) from None
        return self._changed(lambda _now: {name: rule}, who, why, seen)

    def remove(self, name: str, who: str, why: str, seen: int | None) -> dict[str, Any]:
        """Let there be no such rule."""

        def wanted(now: State) -> dict[str, Rule | None]:
            known(now, name)
            return {name: None}

        return self._changed(wanted, who, why, seen)

    def apply(self, text: str, who: str, why: str, seen: int | None) -> dict[str, Any]:
        """Let the rules of a file be as they stand there; others stay."""
        rules = read_file(text)
        return self._changed(lambda _now: rules, who, why, seen)

    def rollback(self, version: int, who: str, why: str, seen: int | None) -> dict[str, Any]:
        """Let all rules be what they were at a version; that is a version of its own."""
        try:
            then = {row.rule: row.content for row in self._store.rules(version)[1] if row.content is not None}
        except ForgottenError as error:
            raise OperationError(404, str(error)) from None
        old: dict[str, Rule | None] = {}
        for name, content in then.items():
            try:
                old[name] = read_rule({**json.loads(content), "name": name})
            except (TypeError, ValueError) as error:
                raise OperationError(422, f'rule "{name}" of version {version} is not understood: {error}') from None
        why = why or f"back to version {version}"
        return self._changed(lambda now: dict.fromkeys(now.kept) | old, who, why, seen)

    def _changed(self, wanted: Callable[[State], Mapping[str, Rule | None]], who: str, why: str,
                 seen: int | None) -> dict[str, Any]:  # fmt: skip
        check_words(who, why)
        before, after = self._rules.change(wanted, who, why, seen)
        names = [name for name in sorted(before.kept | after.kept) if before.kept.get(name) != after.kept.get(name)]
        return {
            "version": after.version,
            "changed": [{"name": name, **_both(before.kept.get(name), after.kept.get(name))} for name in names],
        }

    def attempt(self, text: str) -> dict[str, Any]:
        """What a file would change, and for how many connections; nothing is changed. `connections`: those with values
        of rules then. `changed`: those that would have other values than now; among them `lose`, who would be left with
        those of their service. `policies`: the values that some would get. Which names a rule with `client` or `tag` is
        for is not asked of each connection: such a rule has the number of its `names`, and connections are counted as
        if it were for those for which it is now. `without_slot`: so many sleep without a slot; none of them is counted,
        for what each has stands in its row alone."""
        rules, now = read_file(text), self._rules.state
        if not self._rules.loaded:
            raise OperationError(503, self._rules.error)
        compiled, _ = self._rules.judge(rules)
        services = self._configured()[0]
        *counts, (_, lose) = self._engine.count_rules(compiled.entries, compiled.policies)
        places: dict[int, list[RuleEntry]] = {}
        for entry in compiled.entries:
            places.setdefault(entry.policy, []).append(entry)
        rows = [
            {
                "service": services[spec.index].name,
                "networks": [_network(entry) for entry in places[number][:NETWORKS]],
                "more_networks": max(len(places[number]) - NETWORKS, 0),
                "connections": have,
                "changed": change,
                "values": {key: value for key, (value, _) in given.items()},
                "rules": sorted({name for _, name in given.values()}),
            }
            for number, (spec, given, (have, change)) in enumerate(
                zip(compiled.policies, compiled.given, counts, strict=True)
            )
            if change
        ]
        return {
            "version": now.version,
            "rules": [
                {
                    "name": name,
                    "change": "same" if is_rule(kept, rule) else "changed" if kept else "new",
                    **self._names_for(rule),
                }
                for name, rule in rules.items()
                for kept in (now.kept.get(name),)
            ],
            "connections": sum(have for have, _ in counts),
            "changed": sum(change for _, change in counts) + lose,
            "lose": lose,
            "without_slot": self._connections.stats()["filter_members"],
            "policies": rows,
        }

    def _names_for(self, rule: Rule | None) -> dict[str, int]:
        if rule is None or not rule.by_name:
            return {}
        return {"names": self._store.count_names(rule.client or "*", rule.tag or "")}

    # -- which rule gave what -----------------------------------------------------------------------------------------

    def explain(self, name: str) -> dict[str, Any]:
        """Of one connection: every value that is in force, and what gave it."""
        located = self._locator.locate(name)
        record = located.event.record
        service = self._configured()[0].get(record.service)
        if service is None:
            raise OperationError(
                409, "the service that it came in by is not configured any more: its policy is what it was then"
            )
        own = self._connections.find_own(record.key_raw, located.id)
        told = {"id": located.id, "client": located.key.client_text, "state": located.state.label}
        return {**told, **self._explained(service, located.key, own)}

    def explain_address(self, address: str, service: str, server: str = "") -> dict[str, Any]:
        """The same of a client that would connect from an address; server: to this one."""
        services = {one.name: one for one in self._configured()[0].values()}
        if (found := services.get(service)) is None:
            known = ", ".join(services)
            raise OperationError(404, f'there is no service "{service}"; there are: {known}')
        try:
            packed = pack_address(address)
        except ValueError:
            raise OperationError(400, f'"{address}" is no address') from None
        client = unpack_address(packed)
        if ipaddress.ip_address(client).version != ip_version(found):
            raise OperationError(
                400, f"no client connects from {client}: the service {service} listens at {found.listen}"
            )
        try:
            local = pack_address(server) if server else ANY_LOCAL
        except ValueError:
            raise OperationError(400, f'"{server}" is no address') from None
        if server and not listens_at(found, unpack_address(local)):
            raise OperationError(
                400, f"no client connects to {server}: the service {service} listens at {found.listen}"
            )
        return {"client": client, **self._explained(found, Key(packed, 0, local, 0), Own())}

    def _explained(self, service: Service, key: Key, own: Own) -> dict[str, Any]:
        state = self._rules.state
        rows, group, local = [], self._rules.group(own.group), unpack_address(key.local)
        for one in explain(state.rules, service, self._configured()[1], key.client, own, group, local):
            source = one.source
            row: dict[str, Any] = {"key": one.key, "value": one.value}
            if one.rule:
                row |= {"rule": one.rule, "version": state.kept[one.rule].row.version}
                source = f"{source} (version {row['version']})"
            rows.append({**row, "source": source})
        return {"service": service.name, "version": state.version,
                "error": self._rules.error if SCOPE.get() is None else "", "values": rows}  # fmt: skip


def check_words(who: str, why: str) -> None:
    """Who asks for a change, and why. Raises OperationError."""
    for what, text, least, most in (("who", who, 1, WHO_LENGTH), ("why", why, 0, WHY_LENGTH)):
        if not least <= len(text) <= most or not text.isprintable():
            raise OperationError(422, f"`{what}` is a line of text, {least} to {most} characters")


def read_file(text: str) -> dict[str, Rule | None]:
    """The rules of a file, TOML or JSON, by name. Raises OperationError."""
    try:
        data = json.loads(text) if text.lstrip().startswith("{") else _read_toml(text)
    except (ValueError, RecursionError) as error:
        raise OperationError(422, f"the file is neither TOML nor JSON: {error}"[:300]) from None
    if unknown := sorted(set(data) - {"rule", *_NOT_TAKEN}):
        raise OperationError(422, f"unknown key `{unknown[0][:100]}`: rules are written as [[rule]]")
    found = data.get("rule")
    several = found if isinstance(found, list) else [found]
    if not several or not all(isinstance(one, dict) for one in several):
        raise OperationError(422, "the file has no rules: they are written as [[rule]]")
    rules: dict[str, Rule | None] = {}
    for number, keys in enumerate(several, 1):
        try:
            rule = read_rule(keys)
        except RuleError as error:
            name = keys.get("name")
            which = f'rule "{name[:NAME_LENGTH]}"' if isinstance(name, str) else f"rule number {number}"
            raise OperationError(422, f"{which}: {error}") from None
        if rule.name in rules:
            raise OperationError(422, f'two rules have the name "{rule.name}"')
        rules[rule.name] = rule
    return rules


def _read_toml(text: str) -> dict[str, Any]:
    """Raises ValueError; what rules cannot need is refused before tomllib takes much memory for it."""
    bare = _bare(text)
    if _LONG_KEY.search(bare):
        raise ValueError(f"a key has more than {PARTS_MAX} parts, and rules need one")
    for marks, each, what in _MARKS:
        if sum(map(bare.count, marks)) > each * RULES_MAX:
            raise ValueError(f"it has more {what} than {RULES_MAX:,} rules, as many as there may be, have need of")
    return tomllib.loads(text)


def _bare(text: str) -> str:
    """TOML with a letter for each string and comment, up to where tomllib finds its first mistake, and so ends."""
    parts, at = list[str](), 0
    while opened := _OPENS.search(text, at):
        parts.append(text[at : opened.start()])
        at = opened.end()
        while (closed := _CLOSES[opened[0]].search(text, at)) and closed[0].startswith("\\"):
            at = closed.end()
        at = closed.end() if closed else len(text)
    return "s".join([*parts, text[at:]])


def _about(row: RuleRow) -> dict[str, Any]:
    return {"version": row.version, "at_ms": row.at, "who": row.who, "why": row.why}


def _change(row: RuleRow) -> dict[str, Any]:
    return {**_about(row), "name": row.rule, "rule": None if row.content is None else _keys(row.content)}


def _keys(content: str) -> dict[str, Any]:
    """A rule as the database has it, even where this version cannot read it."""
    try:
        keys = json.loads(content)
    except ValueError:
        keys = None
    return keys if isinstance(keys, dict) else {"not understood": content}


def _both(before: Kept | None, after: Kept | None) -> dict[str, Any]:
    return {"before": content_of(before), "rule": content_of(after)}


def _network(entry: RuleEntry) -> str:
    server = "" if entry.local == ANY_LOCAL else f" to {unpack_address(entry.local)}"
    return _clients(entry) + server


def _clients(entry: RuleEntry) -> str:
    if not entry.bits:
        return "everywhere"
    if entry.bits >= 96 and entry.network.startswith(MAPPED):
        return f"{ipaddress.IPv4Address(entry.network[12:])}/{entry.bits - 96}"
    return f"{ipaddress.IPv6Address(entry.network)}/{entry.bits}"
