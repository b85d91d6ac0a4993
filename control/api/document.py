# SPDX-License-Identifier: Apache-2.0
"""The document of the API by the network, OpenAPI 3.1: the routes of ACCESS with their roles, what FastAPI knows of
their parameters and bodies, and what they answer (control/channel/answers.py)."""

from __future__ import annotations

from typing import Any, Final, Literal, cast

from fastapi.openapi.utils import get_openapi
from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from appliance import __version__
from control.api.access import ACCESS, ATTACH, Access
from control.api.access import EVENTS as EVENTS_PATH
from control.api.stream import LAST_MAX, SEQ_MAX
from control.channel.answers import ALWAYS, ANSWERS, EVENTS, JSON, MEANINGS, Answer
from control.channel.api import make_app
from control.channel.models.common import Error
from control.channel.operations import Operations
from control.core.states import State

ABOUT: Final = (
    "Connections of clients, awake and asleep: what there is, what happened, and what is to become of them. "
    "docs/api.md says more. A field or a parameter that is not in here is refused; so is a parameter that comes twice. "
    "GET /v1/control is a WebSocket for all of these."
)

_REF: Final = "#/components/schemas/{model}"
_SEQ: Final = {"type": "integer", "minimum": 0, "maximum": SEQ_MAX}


def _query(name: str, description: str, schema: dict[str, Any], several: bool = False) -> dict[str, Any]:
    schema = {"type": "array", "items": schema} if several else schema
    return {"name": name, "in": "query", "required": False, "description": description, "schema": schema}


_STATES: Final = [state.label for state in State if state]

EVENTS_PARAMETERS: Final = (
    _query("after", "behind the row of this number; beyond the last one: behind that", _SEQ),
    _query("last", "begin with so many of the last ones", {**_SEQ, "maximum": LAST_MAX, "default": 0}),
    _query("service", "of these services alone", {"type": "string"}, several=True),
    _query("client", "of clients whose address:port begins so", {"type": "string"}),
    _query("network", "of clients in this network", {"type": "string", "examples": ["192.0.2.0/24"]}),
    _query("to", "to these states alone", {"type": "string", "enum": _STATES}, several=True),
    {**_query("Last-Event-ID", "in place of `after`: the `id` of the last event that was received", _SEQ),
     "in": "header"},
)  # fmt: skip
"""The API's process answers it itself (stream.py)."""

_RETRY: Final = {
    "Retry-After": {
        "description": "s until another attempt is worth it",
        "schema": {"type": "integer", "minimum": 1},
    }
}
_UPGRADED: Final = {
    "101": {
        "description": "where `Connection: Upgrade` and `Upgrade: roost` asked for it: what follows are the bytes of "
        "either side"
    }
}
_ETAG: Final = {"ETag": {"description": "the version of the rules, for If-Match", "schema": {"type": "string"}}}
_HEADERS_OF: Final[dict[int, dict[str, Any]]] = {
    401: {"WWW-Authenticate": {"description": "how a token is given", "schema": {"const": "Bearer"}}},
    429: _RETRY,
    503: _RETRY,
}


class _WithoutDefaults(GenerateJsonSchema):
    """What is missing in an answer has no default: of a rule, it is its service's."""

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        found = super().default_schema(schema)
        found.pop("default", None)
        return found


def document() -> dict[str, Any]:
    """The whole of it, as JSON has it."""
    parts = cast(dict[str, Any], dict.fromkeys(Operations.__dataclass_fields__))
    found = get_openapi(title="Roost", version=__version__, description=ABOUT,
                        routes=make_app(Operations(**parts), cast(Any, None)).routes)  # fmt: skip
    models = {(one.name, kind): model for one in ANSWERS.values() for kind, model in one.kinds.items()}
    adapters = [(key, _mode(key[1]), TypeAdapter(model)) for key, model in {**models, ("", JSON): Error}.items()]
    schemas, shared = TypeAdapter.json_schemas(cast(Any, adapters), ref_template=_REF,
                                               schema_generator=_WithoutDefaults)  # fmt: skip
    components = found.setdefault("components", {}).setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):  # FastAPI's own
        components.pop(name, None)
    for name, schema in shared["$defs"].items():
        assert components.setdefault(name, schema) == schema, f"there are two of the name {name}"
    found["components"]["schemas"] = _plain(components)
    found["paths"], was = {}, found["paths"]
    for access in ACCESS:
        answer = ANSWERS[access.method, access.path]
        operation = was.get(access.path, {}).get(access.method.lower(), {})
        kinds = {kind: {"schema": _plain(schemas[(answer.name, kind), _mode(kind)])} for kind in answer.kinds}
        of_path = found["paths"].setdefault(access.path, {})
        of_path[access.method.lower()] = _operation(access, answer, operation, kinds)
    found["components"] |= {
        "responses": {str(status): _refusal(status) for status in MEANINGS},
        "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "description": "roost token create"}},
    }
    found["security"] = [{"token": []}]
    found["tags"] = [{"name": name} for name in dict.fromkeys(one.group for one in ANSWERS.values())]
    return found


def _mode(kind: str) -> Literal["validation", "serialization"]:
    """validation: JSON within a text is a text."""
    return "validation" if kind == EVENTS else "serialization"


def _operation(access: Access, answer: Answer, found: dict[str, Any], kinds: dict[str, Any]) -> dict[str, Any]:
    parameters = EVENTS_PARAMETERS if access.path == EVENTS_PATH else map(_parameter, found.get("parameters", ()))
    body = {"requestBody": found["requestBody"]} if "requestBody" in found else {}
    return {
        "operationId": answer.name,
        "tags": [answer.group],
        "summary": answer.summary,
        "x-role": access.least,
        "x-server": access.server,
        "parameters": list(parameters),
        **body,
        "responses": {
            **(_UPGRADED if access.path == ATTACH else {}),
            str(answer.status): {
                "description": answer.summary,
                "headers": _ETAG if answer.etag else {},
                "content": kinds,
            },
            **{str(status): {"$ref": f"#/components/responses/{status}"} for status in sorted((*ALWAYS, *answer.more))},
        },
    }


def _plain(schema: Any) -> Any:
    """Without the titles that pydantic makes of names."""
    if isinstance(schema, list):
        return list(map(_plain, schema))
    if not isinstance(schema, dict):
        return schema
    return {key: _plain(one) for key, one in schema.items() if key != "title" or not isinstance(one, str)}


def _parameter(found: dict[str, Any]) -> dict[str, Any]:
    """One that is not there is none: nothing in a query is null."""
    schema = _plain(found["schema"])
    schema.pop("description")  # which the parameter has, too
    either = schema.pop("anyOf", ())
    schema |= next((one for one in either if one != {"type": "null"}), {})
    return {**found, "schema": schema}


def _refusal(status: int) -> dict[str, Any]:
    content = {JSON: {"schema": {"$ref": _REF.format(model="Error")}}}
    return {"description": MEANINGS[status], "headers": _HEADERS_OF.get(status, {}), "content": content}
