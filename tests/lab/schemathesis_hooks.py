# SPDX-License-Identifier: Apache-2.0
"""What schemathesis does not know by itself (test_api_schema.py; SCHEMATHESIS_HOOKS): how to read a list of lines."""

from __future__ import annotations

import json
from typing import Any

import schemathesis


@schemathesis.deserializer("application/x-ndjson")
def lines(_context: Any, response: schemathesis.Response) -> list[Any]:
    """As the document has it: all objects as one list."""
    return [json.loads(line) for line in response.text.splitlines()]
