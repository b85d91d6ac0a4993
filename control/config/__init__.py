# SPDX-License-Identifier: Apache-2.0
"""The configuration: one TOML file, read once at start and again on SIGHUP.

Every key is a field of a section, with its description and default; the tables of docs/configuration.md are made from
them (``python -m control.config``).
"""

from __future__ import annotations

from control.config.config import Config, Conflict
from control.config.limits import Limits
from control.config.reading import ConfigError, hint, load, parse, problem
from control.config.sections import Absent, Agent, Api, Attach, Export, Log, Policy, Pressure
from control.config.service import Health, Service
from control.config.values import parse_duration, parse_endpoint, parse_ports, parse_server

__all__ = [
    "Absent",
    "Agent",
    "Api",
    "Attach",
    "Config",
    "ConfigError",
    "Conflict",
    "Export",
    "Health",
    "Limits",
    "Log",
    "Policy",
    "Pressure",
    "Service",
    "hint",
    "load",
    "parse",
    "parse_duration",
    "parse_endpoint",
    "parse_ports",
    "parse_server",
    "problem",
]
