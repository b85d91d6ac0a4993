# SPDX-License-Identifier: Apache-2.0
"""The tables of keys in docs/configuration.md, made from the sections; the text around them is written there.
A unit test holds the two together.
"""

from __future__ import annotations

import json
from types import UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from pydantic import BeforeValidator
from pydantic_core import PydanticUndefined

from control.config.config import LISTS, SECTIONS, Config
from control.config.limits import ServiceLimits
from control.config.sections import Policy, Section
from control.config.service import Health, InBand, Service
from control.config.values import Ports, endpoint_text, parse_duration, server_text, whole_seconds

TOP: Final = "Top level"
HEADINGS: Final[dict[str, type[Section]]] = {
    TOP: Config,
    **{f"[[{name}]]" if name in LISTS else f"[{name}]": model for name, model in SECTIONS.items()},
    "[service.health]": Health,
    "[service.in_band]": InBand,
    "[service.limits]": ServiceLimits,
}


def _shown_default(default: object) -> str:
    if default is PydanticUndefined:
        return "required"
    if isinstance(default, Section) or default in ("", {}):
        return ""
    if isinstance(default, float):
        return f"`{default:.7g}`"
    return "" if default is None else f"`{json.dumps(default)}`"


def _shown_type(annotation: object, metadata: list[Any]) -> str:
    if any(isinstance(item, BeforeValidator) and item.func in (parse_duration, whole_seconds) for item in metadata):
        return "duration"
    for item in metadata:
        if isinstance(item, BeforeValidator) and item.func in (endpoint_text, server_text):
            return "address:port" if item.func is endpoint_text else "host:port"
    if get_origin(annotation) is Literal:
        return " or ".join(f'`"{value}"`' for value in get_args(annotation))
    if get_origin(annotation) is tuple and get_origin(get_args(annotation)[0]) is Literal:
        return "list of " + _shown_type(get_args(annotation)[0], []).replace(" or ", ", ")
    if get_origin(annotation) is tuple:
        of = get_args(annotation)[0]
        if of is Ports:
            return "list of ports"
        return "list of " + ("names" if of is str else "numbers" if get_args(of)[0] is int else "addresses")
    if get_origin(annotation) is dict or annotation in (Health, InBand, ServiceLimits):
        return "table"
    if get_origin(annotation) is Annotated:
        return _shown_type(get_args(annotation)[0], list(get_args(annotation)[1:]))
    if get_origin(annotation) in (Union, UnionType):
        return _shown_type(get_args(annotation)[0], metadata)
    return {str: "text", int: "number", float: "number", bool: "`true` or `false`"}.get(annotation, "")  # type: ignore[call-overload, no-any-return]


def _rendered(model: type[Section]) -> list[str]:
    """What the section is for, and its keys, but those that another section's table has."""
    lines = ["| key | value | default | meaning |", "|---|---|---|---|"]
    for name, field in model.model_fields.items():
        if field.description is None or (model is Service and name in Policy.model_fields):
            continue
        kind, default = _shown_type(field.annotation, field.metadata), _shown_default(field.default)
        lines.append(f"| `{name}` | {kind} | {default} | {field.description} |")
    return lines if model is Config else [" ".join((model.__doc__ or "").split()), "", *lines]


def with_keys(document: str) -> str:
    """docs/configuration.md with each section described anew, from its heading to the end of its table. Raises
    ValueError when it lacks one."""
    for heading, model in HEADINGS.items():
        before, found, after = document.partition(f"\n## {heading}\n")
        behind = after.partition("\n| key |")[2].partition("\n\n")[2]
        if not behind:
            raise ValueError(f'docs/configuration.md has no table of keys, and text behind it, under "## {heading}"')
        document = before + found + "\n".join(["", *_rendered(model), "", behind])
    return document
