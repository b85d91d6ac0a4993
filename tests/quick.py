# SPDX-License-Identifier: Apache-2.0
"""Spark for a few rows: to compile what is to be done with them takes most of the time otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from spark import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SETTINGS = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
_START = session.start


def quick(**options: Any) -> SparkSession:
    """session.start. What is decided when Java begins is the same for all that want one: it can read databases, and has
    no directory of the first one's, which is removed before the others come."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto")
        made = _START(**options | {"reads_database": True, "directory": None})
    for key, value in _SETTINGS.items():
        made.conf.set(key, value)
    return made
