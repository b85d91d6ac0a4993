# SPDX-License-Identifier: Apache-2.0
"""The rules that are in force: read from the database, compiled for the services there are, told to the engine.

The database is the truth. A change is judged, then committed, then told to the engine; so what the engine has is always
a version of the database, and while the database is away, what it has stays. A daemon that starts meanwhile has those
of the file beside the database (control/store/rules_file.py).
"""

from __future__ import annotations

import difflib
import json
import logging
import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final

from sqlalchemy.exc import SQLAlchemyError

from appliance.wire import Key, unpack_address
from control.config import Config, Service
from control.core.errors import OperationError
from control.core.names import NAME_LENGTH
from control.core.ports import RulesPort
from control.policy.cascade import NO_GROUPS, POLICIES_MAX, Compiled, TooManyError, compile_rules, givers
from control.policy.rules import GROUPS_MAX, NOBODY, Problem, Rule, RuleSet, read_rule
from control.store.database import StoreError, reason
from control.store.policies import OutdatedError, RuleRow
from control.store.rules_file import RulesFile
from control.store.store import Store

log = logging.getLogger("roost.policy")

TOLD: Final = 5
"""Problems, or rules, that are named at once."""

Follows = Callable[[int, Key, int], bool]
"""Whether a rule gives one of a client's values, at least: by the number of its service, its key, and the number of its
group."""

Configured = Callable[[], tuple[Mapping[int, Service], Config]]
"""The services by number, and the configuration that is in force."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A rule of the database; None: this version cannot read it, and why."""

    row: RuleRow
    rule: Rule | None
    problem: str = ""


class OutdatedRulesError(OperationError):
    """They are of another version than the one that a change was made of."""


class State:
    """All rules at one version, by name; removed ones are not among them."""

    def __init__(self, version: int = 0, kept: Mapping[str, Kept] = MappingProxyType({})) -> None:
        self.version = version
        self.kept = dict(kept)
        self.rules = RuleSet(one.rule for one in kept.values() if one.rule is not None)

    def changed(self, contents: Mapping[str, Rule | None]) -> RuleSet:
        """The rules with these in place of theirs; None: without it."""
        return RuleSet(rule for rule in {**self.rules.rules, **contents}.values() if rule is not None)


class Rules:
    """May be called from any thread. `change` raises OperationError, the others say in `error` why the engine does not
    have the rules of the database; "": it has them. file: has them for a start without the database."""

    def __init__(self, store: Store, engine: RulesPort, configured: Configured, file: RulesFile) -> None:
        self._store = store
        self._engine = engine
        self._configured = configured
        self._file = file
        self._changing = threading.Lock()
        self.state = State()
        self.problems: list[Problem] = []
        self.loaded = False
        """False: the database could not be read yet; `state` is what the file has, or empty."""
        self._away = ""
        """Until then: why, and what is in force."""
        self.error = "the rules are not read from the database yet"
        self.groups: dict[frozenset[str], int] = {}
        """Sets of rules with `client` or `tag` that connections have, by selector, and the number of each in the
        engine."""

        self._holders: dict[frozenset[str], int] = {}
        """Of these, as far as it is known, the number of the service whose client had it first."""

        self._listeners: tuple[Callable[[], None], ...] = ()
        self._announced = self.state.rules.selectors
        self._number = 0
        """Of the last group that was made."""

        self.short: list[Problem] = []
        """Says that there is no room for the groups of some connections."""

        self.classes: dict[int, str] = {}
        """By the number of a class that rules gave in this run: which ones, in words."""

        self._giving: dict[int, set[str]] = {}
        """By the number of a class that the rules give now: which of them, somewhere."""

    def load(self) -> bool:
        """Read the rules and tell the engine, once; whether they could be read."""
        with self._changing:
            if not self.loaded:
                try:
                    self._read()
                except (SQLAlchemyError, StoreError) as error:
                    self._do_without(reason(error))
                    return False
                self._apply()
                self._announced = self.state.rules.selectors
            return True

    def _do_without(self, why: str) -> None:
        """The database cannot be read; what the file has is in force until it can."""
        if not self._away and (kept := self._file.read()) is not None:
            self.state = State(kept.version, {row.rule: _kept(row, None) for row in kept.rules})
            self.groups = dict(kept.groups)
            if not self._apply():
                self.state, self.groups = State(), {}
        in_force = (
            f"those of version {self.state.version} are in force, as {self._file.path} has them"
            if self.state.version
            else "none is in force: clients have the values of their services, also where a rule refuses new ones"
        )
        self._away = self.error = f"the rules cannot be read from the database: {why}; until they can, {in_force}"
        log.error("%s", self.error)

    def apply(self) -> None:
        """Compile them anew for the services that there are now, and tell the engine."""
        with self._changing:
            if self.loaded or self.state.version:
                self._apply()

    def _read(self) -> bool:
        """Have `state` be what the database says; whether it was something else before."""
        version, rows = self._store.rules()
        if self.loaded and version == self.state.version:
            return False
        if not self.loaded:
            self.groups = self._store.groups()
        before = self.state.kept
        kept = {row.rule: _kept(row, before.get(row.rule)) for row in rows if row.content is not None}
        self.state = State(version, kept)
        self.loaded, self._away = True, ""
        self._keep(self.groups)
        return True

    def _keep(self, groups: Mapping[frozenset[str], int]) -> None:
        """Have the file say what the database does."""
        self._file.write(self.state.version, [one.row for one in self.state.kept.values()], groups)

    def _apply(self) -> bool:
        """While the lock is held; whether the engine has them."""
        services, config = self._configured()
        for groups in (self.groups, NO_GROUPS) if self.groups else (NO_GROUPS,):
            try:
                compiled = compile_rules(self.state.rules, services, config, groups)
                self._tell(compiled)
                break
            except (TooManyError, OperationError) as error:
                if groups:  # rather without those by name and tag than without any
                    self.short = [_no_room(str(error), sorted(next(iter(groups))))]
                    continue
                self.error = f"the rules of version {self.state.version} are not in force: {error}"
                log.error("policy: %s", self.error)
                return False
        self._note(self._problems(self.state.rules, compiled, {}))
        return True

    def _tell(self, compiled: Compiled) -> None:
        _, classes = self._engine.set_rules(compiled.entries, compiled.policies)
        self._giving = dict(zip(classes, compiled.rules, strict=True))
        self.classes |= {number: _told(rules) for number, rules in self._giving.items()}

    # -- groups -------------------------------------------------------------------------------------------------------

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener` when other rules than before are for names, in the thread that changed them."""
        self._listeners += (listener,)

    def group_numbers(self, sets: Mapping[frozenset[str], int]) -> dict[frozenset[str], int]:
        """The number of each of these sets of selectors; the engine has the values of new ones then. 0: of the empty
        one, and of those for which there is no room. sets: each with the number of the service of a client that has
        it, 0: it is not known. Raises OperationError."""
        with self._changing:
            self._holders = {names: of for names, of in sets.items() if of and names in self.groups} | self._holders
            if new := {names: of for names, of in sets.items() if names and names not in self.groups}:
                wrong = self._add(self._fitting(new))
                if left := [names for names in new if names not in self.groups]:
                    self._note_shortage(wrong or self._told_held(self._held(), GROUPS_MAX), left[-1])
            return {names: self.groups.get(names, 0) for names in sets}

    def holds(self, names: frozenset[str]) -> bool:
        """Whether this set has a number, and it is known for which service."""
        return names in self._holders

    def _fitting(self, new: Mapping[frozenset[str], int]) -> dict[frozenset[str], int]:
        """Those of new sets for which there is room."""
        held, fitting = self._held(), dict[frozenset[str], int]()
        for names, of in new.items():
            if self._leaves_shares(held + Counter([of]), GROUPS_MAX, of):
                fitting[names] = of
                held[of] += 1
        return fitting

    def _leaves_shares(self, held: Counter[int], most: int, of: int) -> bool:
        """Whether what services hold leaves each but `of` its share: of half of `most` each has one to itself, so that
        tags of one, which its servers may give, leave some to the others."""
        services = [number for number, service in self._configured()[0].items() if service.kind != "agents"]
        share = most // 2 // len(services) if len(services) > 1 else 0
        for_others = sum(max(share - held[other], 0) for other in services if other != of)
        return held.total() + (for_others if held[of] > share else 0) <= most

    def _held(self) -> Counter[int]:
        return Counter(self._holders.get(names, 0) for names in self.groups)

    def _told_held(self, held: Counter[int], most: int) -> str:
        """How many there may be, and which service has most of them."""
        services = self._configured()[0]
        ((which, count),) = held.most_common(1) or [(0, 0)]
        whose = f', a share of them for each service; "{services[which].name}" has {count}' if which in services else ""
        return f"{most:,} at most{whose}"

    def _free_numbers(self) -> list[int]:
        """In turn, and none in which the engine has a connection: it would be in the new group."""
        taken = {*self.groups.values(), *self._engine.groups()}
        every = [*range(self._number + 1, GROUPS_MAX + 1), *range(1, self._number + 1)]
        return [number for number in every if number not in taken]

    def _add(self, new: Mapping[frozenset[str], int]) -> str:
        """As many as there is room for, of each service by itself; why not all."""
        wrong = ""
        for service in dict.fromkeys(new.values()):
            rest = [names for names, of in new.items() if of == service]
            some = len(rest)
            while rest and some:
                if said := self._add_groups(rest[:some], service):
                    wrong, some = said, some // 2
                else:
                    rest = rest[some:]
        return wrong

    def _add_groups(self, new: Sequence[frozenset[str]], service: int) -> str:
        """While the lock is held; why not. What there is no room for is not added, and all stays as it is. service: the
        number of that of clients that have them, 0: it is not known."""
        services, config = self._configured()
        numbers = dict(zip(new, self._free_numbers(), strict=False))
        if not numbers:
            return ""
        self._must_be_loaded()
        wanted = {**self.groups, **numbers}
        try:
            compiled = compile_rules(self.state.rules, services, config, wanted)
            plain = {entry.policy for entry in compiled.entries if not entry.group}
            first = {entry.policy: entry.group for entry in reversed(compiled.entries) if entry.policy not in plain}
            holder = {number: self._holders.get(names, 0) for names, number in self.groups.items()}
            holder |= dict.fromkeys(numbers.values(), service)
            sets, most = Counter(holder[group] for group in first.values()), POLICIES_MAX - len(plain)
            if not self._leaves_shares(sets, most, service):
                return f"different sets of values, with them: {self._told_held(sets, most)}"
            self._tell(compiled)
        except (TooManyError, OperationError) as error:
            return str(error)
        try:
            self._write_groups(wanted)
        except OperationError:
            self._apply()
            raise
        self.groups, self._number = wanted, list(wanted.values())[-1]
        if service:
            self._holders |= dict.fromkeys(numbers, service)
        self._note(self._problems(self.state.rules, compiled, {}))
        return ""

    def _must_be_loaded(self) -> None:
        """Else the database may have other groups."""
        if not self.loaded:
            raise OperationError(503, self.error)

    def _write_groups(self, wanted: Mapping[frozenset[str], int]) -> None:
        self._must_be_loaded()
        try:
            self._store.write_groups(wanted)
        except StoreError as error:
            raise OperationError(503, f"groups of clients cannot be written now: store: {error}") from None
        self._keep(wanted)

    def _note_shortage(self, why: str, selectors: Collection[str]) -> None:
        if not self.short:
            self.short = [_no_room(why, sorted(selectors))]
            self.problems = [*self.problems, *self.short]
            log.warning("policy: %s", self.short[0].text)

    def forget_groups(self, keep: Collection[frozenset[str]]) -> bool:
        """No connection is in another one than these. Whether there is room now for some that had none. Raises
        OperationError."""
        with self._changing:
            kept = {names: number for names, number in self.groups.items() if names in keep}
            was_short, fewer = bool(self.short), len(kept) < len(self.groups)
            if fewer or len(kept) == len(set(keep) - {NOBODY}):
                self.short = []
            if fewer:
                self._write_groups(kept)
                self.groups = kept
                self._holders = {names: of for names, of in self._holders.items() if names in kept}
            if was_short or fewer:
                self._apply()
            return was_short and fewer

    def group(self, number: int) -> frozenset[str]:
        """The rules by name and tag that a group of this number has."""
        return next((names for names, one in self.groups.items() if one == number), NOBODY)

    def followers(self, name: str) -> tuple[frozenset[int], Follows]:
        """Whose values a rule gives, one of them at least: the classes among which they are, and whether a client is
        one. Raises OperationError."""
        state = self.state
        known(state, name)
        services, config = self._configured()

        known_givers: dict[tuple[int, tuple[str, ...]], frozenset[str]] = {}

        def follows(number: int, key: Key, group: int) -> bool:
            if (service := services.get(number)) is None:
                return False
            client, local = int.from_bytes(key.client, "big"), unpack_address(key.local)
            matching = state.rules.matching(service, client, self.group(group), local)
            which = number, tuple(rule.name for rule in matching)
            if which not in known_givers:
                known_givers[which] = givers(state.rules, matching, service, config)
            return name in known_givers[which]

        return frozenset(number for number, rules in self._giving.items() if name in rules), follows

    def _note(self, problems: list[Problem]) -> None:
        known = {problem.text for problem in self.problems}
        new = [problem.text for problem in problems if problem.text not in known]
        for text in new[:TOLD]:
            log.warning("policy: %s", text)
        if len(new) > TOLD:
            log.warning("policy: and %d more: `roost policy list`", len(new) - TOLD)
        self.problems, self.error = [*problems, *self.short], self._away

    def _problems(self, rules: RuleSet, compiled: Compiled, changed: Collection[str]) -> list[Problem]:
        kept = [(name, one) for name, one in self.state.kept.items() if name not in changed]
        lost = [Problem((name,), one.problem) for name, one in kept if one.problem]
        return [*lost, *rules.problems(self._configured()[0].values(), self.groups), *compiled.problems]

    def judge(self, changed: Mapping[str, Rule | None]) -> tuple[Compiled, list[Problem]]:
        """The rules with these changes, compiled, and what is wrong with them. Raises OperationError when that is not
        wrong now, or with a rule that changes."""
        rules = self.state.changed(changed)
        services, config = self._configured()
        alone = [frozenset({rule.selector}) for rule in rules.by_name if rule.name in changed]
        try:
            compiled = compile_rules(rules, services, config, self.groups)
            trials = [compile_rules(rules, services, config, {group: 1}) for group in alone]
        except TooManyError as error:
            raise OperationError(422, f"{error}; nothing has changed") from None
        tried = [problem for trial in trials for problem in trial.problems]
        problems = list(dict.fromkeys([*self._problems(rules, compiled, changed), *tried]))
        before = {problem.text for problem in self.problems}
        if new := [one.text for one in problems if one.text not in before or changed.keys() & set(one.rules)]:
            more = f"; and {len(new) - TOLD} more" if len(new) > TOLD else ""
            raise OperationError(422, f"{'; '.join(new[:TOLD])}{more}")
        return compiled, problems

    def _refresh(self) -> None:
        try:
            if self._read():
                self._apply()
        except (SQLAlchemyError, StoreError) as error:
            raise OperationError(503, f"the rules cannot be read now: store: {reason(error)}") from None

    def change(self, wanted: Callable[[State], Mapping[str, Rule | None]], who: str, why: str,
               seen: int | None) -> tuple[State, State]:  # fmt: skip
        """Change rules, None: removed; what they were, and what they are. wanted: the changes, of what they are now.
        seen: the version that the editor has seen, None: whichever it is. Where nothing changes there is no new
        version."""
        try:
            return self._change(wanted, who, why, seen)
        finally:
            if self._announced != (selectors := self.state.rules.selectors):
                self._announced = selectors
                for listener in self._listeners:
                    listener()

    def _change(self, wanted: Callable[[State], Mapping[str, Rule | None]], who: str, why: str,
                seen: int | None) -> tuple[State, State]:  # fmt: skip
        with self._changing:
            self._refresh()
            before = self.state
            if seen is not None and seen != before.version:
                raise self._outdated(seen)
            changed = {name: rule for name, rule in wanted(before).items() if not is_rule(before.kept.get(name), rule)}
            if not changed:
                return before, before
            compiled, problems = self.judge(changed)
            texts = {name: json.dumps(rule.content) if rule else None for name, rule in changed.items()}
            self._commit(texts, who, why)
            try:
                self._tell(compiled)
            except OperationError as error:
                back = {name: one.row.content if (one := before.kept.get(name)) else None for name in changed}
                self.error = f"the rules of version {self.state.version} are not in force: {error}"
                self._commit(back, "roost", f"takes back version {self.state.version}: {error}")
                self.error = ""
                said = f"{error}; the rules are what they were, as version {self.state.version}"
                raise OperationError(error.status, said) from None
            self._note(problems)
        return before, self.state

    def _commit(self, contents: Mapping[str, str | None], who: str, why: str) -> None:
        seen = self.state.version
        try:
            rows = self._store.change_rules(contents, who, why, seen)
        except OutdatedError:
            raise self._outdated(seen) from None
        except StoreError as error:
            raise OperationError(503, f"rules cannot be changed now, what is in force stays: store: {error}") from None
        stay = {name: one for name, one in self.state.kept.items() if name not in contents}
        made = {row.rule: _kept(row, None) for row in rows if row.content is not None}
        self.state = State(rows[0].version, stay | made)
        self._keep(self.groups)

    def _outdated(self, seen: int) -> OutdatedRulesError:
        said = "there are none"
        for newest in self._store.rule_changes(1):
            when = datetime.fromtimestamp(newest.at / 1000).astimezone().isoformat(sep=" ", timespec="seconds")
            said = f"version {newest.version} is by {newest.who}, {when}{': ' * bool(newest.why)}{newest.why}"
        return OutdatedRulesError(409, f"the rules are not those of version {seen}, which you saw: {said}. Look again")


def _no_room(why: str, selectors: Sequence[str]) -> Problem:
    told = " and ".join(f'"{one}"' for one in selectors)
    return Problem(
        tuple(one.split(" ", 1)[0] for one in selectors),
        f"there is no room for each set of rules with `client` or `tag` that is for some client ({why}): some clients, "
        f"as those that have {told}, get none of their values; let rules share patterns or tags",
    )


def known(state: State, name: str) -> Kept:
    """The rule of this name; raises OperationError."""
    if (kept := state.kept.get(name)) is None:
        close = difflib.get_close_matches(name, state.kept, n=1) if len(name) <= NAME_LENGTH else []
        raise OperationError(
            404, f'there is no rule "{name[:NAME_LENGTH]}"' + (f'; did you mean "{close[0]}"?' if close else "")
        )
    return kept


def _told(rules: Collection[str]) -> str:
    names = sorted(rules)
    more = [f"and {len(names) - TOLD} more"] if len(names) > TOLD else []
    return ", ".join([*names[:TOLD], *more])


def _kept(row: RuleRow, before: Kept | None) -> Kept:
    if before is not None and before.row == row:
        return before
    try:
        return Kept(row, read_rule({**json.loads(row.content or ""), "name": row.rule}))
    except (TypeError, ValueError) as error:
        said = f'rule "{row.rule}": what the database has is not understood, and applies to nothing: {error}'
        return Kept(row, None, said)


def is_rule(kept: Kept | None, rule: Rule | None) -> bool:
    """Whether the rule is this one already; None: it is not there."""
    return kept is None if rule is None else content_of(kept) == rule.content


def content_of(kept: Kept | None) -> dict[str, Any] | None:
    """The rule's keys; None: there is none, or it is not understood."""
    return kept.rule.content if kept is not None and kept.rule is not None else None
