# SPDX-License-Identifier: Apache-2.0
"""What can be asked for, each thing once: a method of Calls says what the request is. It is sent, and waited for, by
the class that has the method (client.py, aio.py)."""

from __future__ import annotations

import functools
import getpass
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Concatenate, Final, Generic, ParamSpec, TypedDict, TypeVar, Unpack, overload
from urllib.parse import quote

if TYPE_CHECKING:
    from . import answers as an

P = ParamSpec("P")
T = TypeVar("T")


class Filter(TypedDict, total=False):
    """Which connections; what is not given does not matter. quiet, silence: in s."""

    state: an.StateName
    client: str
    network: str
    service: str
    name: str
    tag: str
    quiet: int
    silence: int
    rule: str


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """A request, whose answer is a T. query: values that are None, "" or False are not sent. body: as JSON; None: none.
    headers: besides those of every request."""

    method: str
    path: str
    query: Mapping[str, object] = field(default_factory=dict)
    body: object = None
    headers: Mapping[str, str] = field(default_factory=dict)


def path_of(*parts: str | int) -> str:
    """Of the API: each part is one step, whatever characters it has."""
    return "/".join(("/v1", *(quote(str(part), safe="") for part in parts)))


class Asks(Generic[P, T]):
    """A method that says what the request is, as one that asks."""

    def __init__(self, build: Callable[Concatenate[Any, P], Call[T]]) -> None:
        self._build = build
        functools.update_wrapper(self, build)  # type: ignore[arg-type]

    @overload
    def __get__(self, client: None, owner: object) -> Asks[P, T]: ...

    @overload
    def __get__(self, client: Waiting, owner: object) -> Callable[P, T]: ...

    @overload
    def __get__(self, client: Awaited, owner: object) -> Callable[P, Coroutine[Any, Any, T]]: ...

    def __get__(self, client: Waiting | Awaited | None, owner: object) -> Any:
        if client is None:
            return self

        @functools.wraps(self._build)
        def method(*arguments: P.args, **more: P.kwargs) -> Any:
            return client.ask(self._build(client, *arguments, **more))

        return method


class Calls:
    """A connection is named by its number, ``client-address:port``, or name with its domain. Everything raises
    RoostError. who: asks, for the record; by the network the token's name counts.

    why: the reason for a change of rules. seen: the version of the rules that it was made of: status 409, when another
    has changed them since; None: whatever they are. Status 409, too: several connections have this
    ``client-address:port``, and the message has their numbers.
    """

    who: str

    # -- connections --------------------------------------------------------------------------------------------------

    @Asks
    def page(self, after: str = "first", limit: int | None = None, **wanted: Unpack[Filter]) -> Call[an.Page]:
        """A page of connections; its `next` is the `after` of the page that follows."""
        return Call("GET", path_of("connections"), {**wanted, "after": after, "limit": limit})

    @Asks
    def show(self, connection: str | int) -> Call[an.ConnectionInFull]:
        """All about one connection."""
        return Call("GET", path_of("connections", connection))

    @Asks
    def explain(self, connection: str | int) -> Call[an.Explanation]:
        """Why it is not asleep, or does not wake."""
        return Call("GET", path_of("connections", connection, "explain"))

    @Asks
    def policy(self, connection: str | int) -> Call[an.ConnectionPolicy]:
        """What is in force for it, and what gave it."""
        return Call("GET", path_of("connections", connection, "policy"))

    @Asks
    def set_policy(self, connection: str | int, values: Mapping[str, object], why: str = "") -> Call[an.Given]:
        """It has these values of its own, by key of [policy]; None: what its rules and its service say."""
        body = {"values": values, "who": self.who, "why": why}
        return Call("PUT", path_of("connections", connection, "policy"), body=body)

    @Asks
    def standby(self, connection: str | int) -> Call[an.Moved]:
        """Close its link to its server, and keep its socket."""
        return _move(connection, "standby")

    @Asks
    def idle(self, connection: str | int) -> Call[an.Moved]:
        """Take it out of the kernel."""
        return _move(connection, "idle")

    @Asks
    def sleep(self, connection: str | int) -> Call[an.Moved]:
        """Move its record to the database."""
        return _move(connection, "sleep")

    @Asks
    def wake(self, connection: str | int) -> Call[an.Moved]:
        """Put it back into the kernel."""
        return _move(connection, "wake")

    @Asks
    def close_connection(self, connection: str | int) -> Call[an.Moved]:
        """Close it; client and server are told with an RST."""
        return _move(connection, "close")

    @Asks
    def offer(self, connection: str | int) -> Call[an.Offer]:
        """Where to connect to reach a client."""
        return Call("POST", path_of("connections", connection, "attach"))

    @Asks
    def ticket(self, connection: str | int) -> Call[an.Ticket]:
        """What lets one through to a client, on the daemon's machine alone; not by the network."""
        return Call("POST", path_of("connections", connection, "attach", "ticket"))

    @Asks
    def me(self) -> Call[an.Me]:
        """Whose the token is; by the network alone."""
        return Call("GET", path_of("me"))

    # -- names --------------------------------------------------------------------------------------------------------

    @Asks
    def set_name(self, connection: str | int, name: str) -> Call[an.Named]:
        """Servers reach its client by this name from now on."""
        return Call("PUT", path_of("connections", connection, "name"), body={"name": name})

    @Asks
    def remove_name(self, connection: str | int) -> Call[an.Forgotten]:
        """Its client has no name any more."""
        return Call("DELETE", path_of("connections", connection, "name"))

    @Asks
    def forget_name(self, name: str) -> Call[an.Forgotten]:
        """The name stands for nobody any more, whether or not its client is connected."""
        return Call("DELETE", path_of("names", name))

    @Asks
    def tags_of(self, name: str) -> Call[an.Tags]:
        """The tags of a name."""
        return Call("GET", path_of("names", name, "tags"))

    @Asks
    def tag(self, name: str, add: Iterable[str] = (), remove: Iterable[str] = ()) -> Call[an.Tags]:
        """Give a name tags, and take others away."""
        return Call("PUT", path_of("names", name, "tags"), body={"add": [*add], "remove": [*remove]})

    @Asks
    def tags(self, after: str = "", limit: int | None = None) -> Call[list[an.TagCount]]:
        """All tags in their order, those behind `after`, and how many names have each."""
        return Call("GET", path_of("tags"), {"after": after, "limit": limit})

    @Asks
    def agents(self) -> Call[list[an.AgentClient]]:
        """The clients that agents speak for."""
        return Call("GET", path_of("agents"))

    @Asks
    def dialled(self) -> Call[list[an.Dialled]]:
        """The clients that were dialled in vain, or are to stay connected."""
        return Call("GET", path_of("dialled"))

    # -- rules --------------------------------------------------------------------------------------------------------

    @Asks
    def rules(self) -> Call[an.Rules]:
        """Those that are in force."""
        return Call("GET", path_of("policy"))

    @Asks
    def rule(self, name: str) -> Call[an.RuleInFull]:
        """One, and its last changes."""
        return Call("GET", path_of("policy", "rules", name))

    @Asks
    def set_rule(self, name: str, rule: Mapping[str, object], why: str = "",
                 seen: int | None = None) -> Call[an.Changed]:  # fmt: skip
        """A rule is this, whatever it was: conditions, and values by key of [policy]."""
        return Call("PUT", path_of("policy", "rules", name), body={**self._edit(why, seen), "rule": rule})

    @Asks
    def remove_rule(self, name: str, why: str = "", seen: int | None = None) -> Call[an.Changed]:
        """There is no such rule."""
        return Call("DELETE", path_of("policy", "rules", name), body=self._edit(why, seen))

    @Asks
    def set_rules(self, file: str, why: str = "", seen: int | None = None) -> Call[an.Changed]:
        """The rules of a file are as it says: [[rule]] tables of TOML, or JSON. Others stay."""
        return Call("PUT", path_of("policy", "rules"), body={**self._edit(why, seen), "file": file})

    @Asks
    def rollback(self, version: int, why: str = "", seen: int | None = None) -> Call[an.Changed]:
        """All rules are what they were at a version."""
        return Call("POST", path_of("policy", "rollback"), body={**self._edit(why, seen), "version": version})

    @Asks
    def try_rules(self, file: str) -> Call[an.Outcome]:
        """What the rules of a file would change, and for how many connections; nothing is changed."""
        return Call("POST", path_of("policy", "try"), body={"file": file})

    @Asks
    def explain_address(self, client: str, service: str, server: str = "") -> Call[an.AddressPolicy]:
        """What is in force for a client that would connect from an address."""
        return Call("GET", path_of("policy", "explain"), {"client": client, "service": service, "server": server})

    @Asks
    def rule_changes(
        self, limit: int | None = None, rule: str = "", before: int | None = None
    ) -> Call[list[an.RuleChange]]:
        """The last changes, oldest first. before: a version, the changes of earlier ones."""
        return Call("GET", path_of("policy", "history"), {"limit": limit, "rule": rule, "before": before})

    def _edit(self, why: str, seen: int | None) -> dict[str, object]:
        return {"who": self.who, "why": why, "seen": seen}

    # -- what happened ------------------------------------------------------------------------------------------------

    @Asks
    def status(self) -> Call[an.Status]:
        """How the daemon stands."""
        return Call("GET", path_of("status"))

    @Asks
    def history(self, limit: int | None = None, id: int | None = None) -> Call[list[an.Transition]]:
        """The last transitions, oldest first. id: of the connection that has, or had, this number."""
        return Call("GET", path_of("history"), {"limit": limit, "id": id})

    @Asks
    def attaches(self, limit: int | None = None, failed: bool = False) -> Call[list[an.Attach]]:
        """The last servers that asked for a client. failed: those alone that were refused."""
        return Call("GET", path_of("attaches"), {"limit": limit, "failed": failed})

    @Asks
    def snapshots(self, limit: int | None = None) -> Call[list[an.Snapshot]]:
        """What was counted at the last moments, a minute apart."""
        return Call("GET", path_of("snapshots"), {"limit": limit})

    @Asks
    def audit(self, limit: int | None = None, who: str = "", refused: bool = False) -> Call[list[an.Change]]:
        """The last changes that were asked for. refused: those alone."""
        return Call("GET", path_of("audit"), {"limit": limit, "who": who, "refused": refused})

    # -- tokens -------------------------------------------------------------------------------------------------------

    @Asks
    def tokens(self) -> Call[list[an.Token]]:
        """Those there are, and those that ended in the last 90 days."""
        return Call("GET", path_of("tokens"))

    @Asks
    def make_token(self, name: str, role: an.Role, expires_s: int | None,
                   services: Sequence[str] = ()) -> Call[an.MadeToken]:  # fmt: skip
        """A new one; its text is told this once. expires_s: for how long it is good; None: until it is revoked."""
        body = {"name": name, "role": role, "services": [*services], "expires_s": expires_s}
        return Call("POST", path_of("tokens"), body=body)

    @Asks
    def revoke_token(self, which: str) -> Call[an.Revoked]:
        """The token with this name or id is good no more."""
        return Call("DELETE", path_of("tokens", which))

    # -- jobs ---------------------------------------------------------------------------------------------------------

    @Asks
    def start_job(self, action: an.Action, *, connections: Sequence[str | int] | None = None, everything: bool = False,
                  rate: int | None = None, **wanted: Unpack[Filter]) -> Call[an.Job]:  # fmt: skip
        """An action for many connections: those of a filter, or these, or all. rate: connections a second."""
        body: dict[str, object] = {"action": action, "everything": everything}
        given = {"filter": wanted or None, "connections": connections, "rate": rate}
        return Call("POST", path_of("jobs"), body=body | {key: one for key, one in given.items() if one is not None})

    @Asks
    def jobs(self) -> Call[list[an.Job]]:
        """Those that have not ended, and the last ones that have."""
        return Call("GET", path_of("jobs"))

    @Asks
    def job(self, number: int) -> Call[an.Job]:
        """One."""
        return Call("GET", path_of("jobs", number))

    @Asks
    def cancel_job(self, number: int) -> Call[an.Job]:
        """Nothing more of it is begun; what was done stays."""
        return Call("DELETE", path_of("jobs", number))


ENDED: Final = ("done", "cancelled", "failed")
"""States of a job that goes on no more."""


class Waiting(Calls, ABC):
    """Waits for what it asks."""

    @abstractmethod
    def ask(self, call: Call[T]) -> T:
        """What is answered. Raises RoostError."""


class Awaited(Calls, ABC):
    """Has to be awaited."""

    @abstractmethod
    async def ask(self, call: Call[T]) -> T:
        """What is answered. Raises RoostError."""


def login() -> str:
    """Who asks, where it is not said."""
    try:
        return os.environ.get("SUDO_USER") or getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


def _move(connection: str | int, action: an.Action) -> Call[an.Moved]:
    return Call("POST", path_of("connections", connection, action))
