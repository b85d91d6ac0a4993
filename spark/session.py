# SPDX-License-Identifier: Apache-2.0
"""Spark as the reports need it: where it runs, with how much memory, and what to install where there is none."""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA: Final = 17
"""The oldest that Spark 4 runs on."""

LOOPBACK: Final = "127.0.0.1"
MOST_MB: Final = 8192
SHARE: Final = 0.6
"""Of the machine's memory, at most, where nobody says how much."""

DRIVER: Final = Path("/usr/share/java/postgresql.jar")
"""By which Java reaches PostgreSQL, where Debian puts it."""

LEAST_MB: Final = 512
"""Spark does not start with less than 450."""

END_S: Final = 60

_MEMORY: Final = re.compile(r"(\d{1,6})([mg])", re.IGNORECASE)
LOGGING: Final = Path(__file__).with_name("log4j2.properties")
_VERSION: Final = re.compile(r'version "(\d+)')


class SparkError(Exception):
    """There is no Spark to work with; a sentence, and what to do."""


def java() -> str:
    """The program. Raises SparkError."""
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home, "bin", "java")) if home else shutil.which("java")
    install = f"a report needs Java {JAVA} or later: apt-get install default-jre-headless"
    if found is None:
        raise SparkError(install)
    try:
        told = subprocess.run([found, "-version"], capture_output=True, text=True, check=True, timeout=30).stderr
    except (OSError, subprocess.SubprocessError) as error:
        where = f" (JAVA_HOME is {home})" if home else ""
        raise SparkError(f"{found} does not run: {error}{where}; {install}") from None
    version = _VERSION.search(told)
    if version is None or int(version[1]) < JAVA:
        first = told.splitlines()[0] if told else "nothing"
        raise SparkError(f"{found} says {first}; {install}")
    return found


def default_memory() -> str:
    return f"{min(MOST_MB, int(machine_mb() * SHARE))}m"


def machine_mb() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20


def check_memory(memory: str, is_local: bool) -> None:
    """Raises SparkError."""
    found = _MEMORY.fullmatch(memory)
    if found is None:
        raise SparkError(f"{memory} is no amount of memory; write 8g, or 700m")
    wanted_mb = int(found[1]) * (1024 if found[2] in "gG" else 1)
    if wanted_mb < LEAST_MB:
        raise SparkError(f"{memory} is too little memory; Spark needs {LEAST_MB}m at least")
    if is_local and wanted_mb > machine_mb():
        raise SparkError(f"{memory} is more memory than this machine has, {machine_mb()}m")


def reason(error: Exception) -> str:
    """What Java or Spark says is wrong, on one line."""
    told = getattr(error, "java_exception", None)
    lines = str(told.getMessage() or told.toString() if told is not None else error).splitlines()
    return lines[0] if lines else type(error).__name__


def start(master: str = "local[*]", memory: str | None = None, directory: str | None = None,
          reads_database: bool = False) -> SparkSession:  # fmt: skip
    """A session in this process's Java. master: a cluster, or local with how many threads; memory: of its heap, and of
    each executor's; directory: where Spark puts what does not fit; reads_database: executors get PostgreSQL's driver.
    Raises SparkError."""
    is_local = master.startswith("local")
    if memory is not None:
        check_memory(memory, is_local)
    if reads_database and not DRIVER.exists():
        raise SparkError("a report of a database needs PostgreSQL's driver for Java: apt-get install "
                         "libpostgresql-jdbc-java")  # fmt: skip
    try:
        import matplotlib  # noqa: F401 it is wanted at the end
        from pyspark.sql import SparkSession
    except ImportError as error:
        what = "pip install pyspark pyarrow matplotlib"
        raise SparkError(f"a report needs pyspark and matplotlib ({error}): {what}") from None
    java()
    logging.getLogger("DataFrameQueryContextLogger").setLevel(logging.CRITICAL)  # it says all that is raised, as JSON
    if is_local:  # else it is what the PATH calls python3
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    properties = {"log4j2.configurationFile": LOGGING.as_uri()}
    if directory:
        properties["java.io.tmpdir"] = directory
    builder = SparkSession.builder.appName("roost report").master(master)
    settings = {
        "spark.driver.memory": memory or default_memory(),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.adaptive.enabled": "true",
        "spark.sql.ansi.enabled": "true",  # what does not fit fails, and is not another number
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "16",  # else a task looks for each file
        "spark.driver.extraJavaOptions": " ".join(f'"-D{key}={value}"' for key, value in properties.items()),
        **({"spark.local.dir": directory} if directory else {}),
        **({"spark.executor.memory": memory} if memory else {}),
        **({"spark.jars": str(DRIVER)} if reads_database else {}),
        # Else it listens for executors that there are none of.
        **({"spark.driver.bindAddress": LOOPBACK, "spark.driver.host": LOOPBACK} if is_local else {}),
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        return builder.getOrCreate()
    except (Py4JError, PySparkException) as error:
        raise SparkError(f"Spark does not start at {master}: {reason(error)}") from None


def apart(work: Callable[[], None]) -> None:
    """In a thread of its own, which has a connection of its own to Java: after an interruption this one's may have an
    answer to come that was not waited for."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result()


def end(spark: SparkSession) -> None:
    """Java ends, and what is still at work there; at the latest after END_S."""
    gateway: Any = spark.sparkContext._gateway
    apart(partial(spark.sparkContext.setLogLevel, "OFF"))  # that it ends is no news
    apart(spark.stop)
    gateway.shutdown()
    gateway.proc.stdin.close()  # which tells it to
    try:
        gateway.proc.wait(END_S)
    except subprocess.TimeoutExpired:
        gateway.proc.kill()
        gateway.proc.wait()
