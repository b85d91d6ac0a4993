# SPDX-License-Identifier: Apache-2.0
"""Settings over a lab's configuration."""

from __future__ import annotations

from typing import Any

import pytest

from appliance.lab.settings import SettingError, apply


def config() -> dict[str, Any]:
    return {
        "policy": {"active_quiet": "1s", "idle_quiet": "4s"},
        "service": [{"name": "line", "servers": ["a:1"]}, {"name": "web", "servers": ["a:2"]}],
    }


def made(*settings: str) -> dict[str, Any]:
    found = config()
    apply(found, settings)
    return found


def test_a_setting_takes_the_place_of_the_one_that_is_there_and_the_last_one_holds() -> None:
    found = made("policy.active_quiet=5s", "policy.active_quiet=never")
    assert found["policy"] == {"active_quiet": "never", "idle_quiet": "4s"}
    assert found["service"] == config()["service"]


@pytest.mark.parametrize(
    ("text", "value"),
    [("5", 5), ("5s", "5s"), ('"5"', "5"), ("true", True), ('["a", "b"]', ["a", "b"]), ("[]", []), ("", ""),
     ("a=b", "a=b"), ("10.0.0.1:80", "10.0.0.1:80")],
)  # fmt: skip
def test_a_value_is_toml_or_text(text: str, value: object) -> None:
    assert made(f"absent.steps={text}")["absent"] == {"steps": value}


def test_a_table_of_a_list_is_meant_by_its_name() -> None:
    found = made('service.web.servers=["a:3"]', "service.web.health.interval=500ms")
    assert found["service"][0] == config()["service"][0]
    assert found["service"][1] == {"name": "web", "servers": ["a:3"], "health": {"interval": "500ms"}}


@pytest.mark.parametrize(
    ("setting", "words"),
    [("policy.active_quiet", "is not TABLE.KEY=VALUE"), ("policy=1", "is not TABLE.KEY=VALUE"),
     ("policy..x=1", "is not TABLE.KEY=VALUE"), ("service.wbe.listen=1", "no service 'wbe' here, but line, web"),
     ("service.line=1", "service is no table"), ("policy.idle_quiet.x=1", "policy.idle_quiet is no table"),
     ("policy.idle_quiet.x.y=1", "policy.idle_quiet.x is no table")],
)  # fmt: skip
def test_what_cannot_be_set_is_said(setting: str, words: str) -> None:
    with pytest.raises(SettingError, match=words):
        made(setting)
