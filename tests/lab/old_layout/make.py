# SPDX-License-Identifier: Apache-2.0
"""Writes the fixture, with the code of the checkout that it is run in: its daemon makes the pins and the database, its
engine puts the sleepers into the table.

    sudo ./roost doctor && sudo .venv/bin/python -P -m tests.lab.old_layout.make $(git rev-parse --short HEAD) > FILE
"""

from __future__ import annotations

import json
import os
import sqlite3
import struct
import sys
import time
import tomllib
from contextlib import closing
from pathlib import Path
from typing import Any

from appliance.engine import Engine
from appliance.lab import Lab
from appliance.paths import bpf_objects
from appliance.wire import Command, EngineOptions, EventType, Op, Record
from control.core.states import Cause
from control.store.owner import boot_id
from control.store.records import pack
from tests.lab import old_layout
from tests.lab.old_layout import KA, SERVER_PORT, SLEEPERS, Sleeper, bpf


def put_in(lab: Lab, pin_dir: str, local: bytes, service: int) -> None:
    """The sleepers, in the order of their numbers."""
    with lab.enter("box"):
        engine = Engine(EngineOptions(pin_dir, str(bpf_objects())))
        engine.start()
        for first in range(0, SLEEPERS, 1000):
            records = []
            for sleeper in map(Sleeper, range(first, first + 1000)):
                ka, rest = sleeper.row(service, heard_s=int(time.monotonic()))
                records.append(Record(sleeper.key(local), ka, rest))
            engine.submit([Command(Op.INSERT, cause=Cause.RESTORE, id=Sleeper(first + i).id, record=record)
                           for i, record in enumerate(records)])  # fmt: skip
            told = 0
            while told < 1000:
                for event in engine.events():
                    assert event.type == EventType.TRANSITION, event
                    told += 1
        engine.stop()
        engine.close()


def dump_pins(pin_dir: Path) -> dict[str, Any]:
    """Maps by name: their shapes, and what is in them."""
    maps = {}
    for path in sorted(pin_dir.iterdir()):
        fd = bpf.pinned(path)
        if shape := bpf.shape_of(fd):
            maps[path.name] = shape
        os.close(fd)
    config_fd = bpf.pinned(pin_dir / "config")
    config = bpf.read(config_fd, 0, maps["config"]["value_size"])
    endpoints_fd = bpf.pinned(pin_dir / "endpoints")
    size = maps["endpoints"]["value_size"]
    endpoints = [bpf.read(endpoints_fd, i, size) for i in range(maps["endpoints"]["max_entries"])]
    tables: dict[str, Any] = {}
    for name in ("tables4", "tables6"):  # nothing is in the second one
        (number,) = struct.unpack("=I", bpf.read(bpf.pinned(pin_dir / name), 0, 4))
        fd = bpf.by_id(number)
        shape = bpf.shape_of(fd)
        buckets = b"".join(bpf.read(fd, i, shape["value_size"]) for i in range(shape["max_entries"]))
        tables[name] = {"shape": shape, "sha256": old_layout.digest_of_table(buckets) if name == "tables4" else ""}
    return {"maps": maps, "tables": tables, "config": config.hex(),
            "endpoints": {str(i): e.hex() for i, e in enumerate(endpoints) if any(e)}}  # fmt: skip


def dump_database(path: Path, local: bytes, service: int) -> dict[str, Any]:
    with closing(sqlite3.connect(path)) as database:
        schema = [sql for (sql,) in database.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")]
        services = list(database.execute('SELECT name, "index" FROM services'))
        meta = list(database.execute("SELECT key, value FROM meta"))
        version = database.execute("PRAGMA user_version").fetchone()[0]
    rows = (pack(Record(s.key(local), *s.row(service))) for s in map(Sleeper, range(SLEEPERS)))
    return {"schema": schema, "services": services, "meta": meta, "user_version": version,
            "sha256": old_layout.digest_of_rows(rows)}  # fmt: skip


def main(commit: str) -> None:
    with Lab(clients=10, nat=False) as lab:
        table = {"ipv4": 12_000, "ipv6": 56, "idle": 1000, "filter": 0, "grow": False}
        daemon = lab.daemon(lab.config(SERVER_PORT, table=table))
        paths = tomllib.loads(daemon.config.read_text())["paths"]
        assert daemon.terminate() == 0
        local = bytes(map(int, lab.address("box", "wan0").split(".")))
        with closing(sqlite3.connect(paths["database"])) as database:
            service = database.execute("SELECT \"index\" FROM services WHERE name = 'lab4'").fetchone()[0]
        put_in(lab, paths["pin_dir"], local, service)
        fixture = {"commit": commit, "local": local.hex(), "service": service, "ka_bytes": KA.size}
        fixture |= dump_pins(Path(paths["pin_dir"]))
        fixture["database"] = dump_database(Path(paths["database"]), local, service)
        assert boot_id() not in json.dumps(fixture)
        print(json.dumps(fixture, indent=1))


if __name__ == "__main__":
    main(sys.argv[1])
