# SPDX-License-Identifier: Apache-2.0
"""The check of the C sources' floors: it finds what is planted, and nothing in what is right."""

from __future__ import annotations

import pytest

from control.dev.c_layers import ROOT, Arrows, arrows, check, circles, draw, read, sources

WHOLE = {"cext": 1, "ebpf": 1}
GOOD = {
    "ebpf/shared/record.h": "static inline int roost_flags(int ctl) { return ctl; }",
    "cext/base/hash.h": "struct roost_hash;\nvoid roost_hash_free(struct roost_hash *h);",
    "cext/base/hash.c": '#include "hash.h"\nstatic void at(void) {}\n'
    "void roost_hash_free(struct roost_hash *h) { at(); }",
    "cext/table/table.c": '#include "ebpf/shared/record.h"\n#include "cext/base/hash.h"\n'
    "static int at(int i) { return i; }\nint roost_find(int i) { roost_hash_free(0); return at(roost_flags(i)); }",
    "cext/engine.c": "int roost_find(int i);\nint main(void) { return roost_find(1); }",
}


def of(files: dict[str, str]) -> Arrows:
    return arrows(read(path, text, files) for path, text in files.items())


def verdict(added: dict[str, str] | None = None) -> list[str]:
    """What is said when this is added to these files, or they are new."""
    files = dict(GOOD)
    for path, text in (added or {}).items():
        files[path] = files.get(path, "") + "\n" + text
    return check(of(files), known_up={}, circle_max=WHOLE)


def test_what_runs_down_is_right() -> None:
    assert verdict() == []


@pytest.mark.parametrize(
    ("added", "said"),
    [
        ({"cext/base/hash.c": "int up(void) { return roost_find(2); }"}, "cext/base/hash.c uses roost_find"),
        ({"cext/base/hash.c": "int up(int f(int));\nint x(void) { return up(roost_find); }"}, "roost_find"),
        ({"cext/base/hash.c": "static int (*const table[])(int) = {roost_find};"}, "roost_find"),
        ({"cext/base/hash.h": "#define FIND(i) roost_find(i)"}, "cext/base/hash.h uses roost_find"),
        ({"cext/base/hash.h": '#include "cext/table/table.h"', "cext/table/table.h": ""}, "uses cext/table/table.h"),
        ({"cext/base/hash.c": '# include "ebpf/lib/maps.h"', "ebpf/lib/maps.h": ""}, "to ebpf/lib"),
        ({"cext/attic/old.c": "int roost_old(void) { return 1; }"}, "cext/attic has no floor"),
        ({"cext/table/a.h": '#include "b.h"', "cext/table/b.h": '#include "a.h"'}, "include each other"),
    ],
)
def test_an_arrow_that_runs_up_is_found(added: dict[str, str], said: str) -> None:
    lines = verdict(added)
    assert any(said in line for line in lines), lines


@pytest.mark.parametrize(
    "text",
    [
        "/* roost_find(1) */ // roost_find(2)",
        'const char *said(void) { return "roost_find(1) \\" roost_find(2)"; }',
        "int roost_find(int i);",
        "struct roost_find { int a; };\nint x(struct roost_find *f) { struct roost_find g = *f; return g.a; }",
        "struct fn { int (*roost_find)(int); };\nint x(struct fn *f) { return f->roost_find(1); }",
        "static int roost_find(int i) { return i; }\nint x(void) { return roost_find(1); }",
    ],
    ids=["comment", "string", "prototype", "tag", "member", "a static one of the same name"],
)
def test_what_only_looks_like_an_arrow_is_none(text: str) -> None:
    assert verdict({"cext/base/hash.c": text}) == []


def test_known_arrows_may_not_become_more_and_their_number_is_lowered_when_they_become_fewer() -> None:
    up = dict(GOOD)
    up["cext/base/hash.c"] += "\nint up(void) { return roost_find(2); }"
    pair = ("cext/base", "cext/table")
    assert check(of(up), known_up={pair: 1}, circle_max={"cext": 2, "ebpf": 1}) == []
    assert "only 1 are left of 2" in check(of(up), known_up={pair: 2}, circle_max={"cext": 2, "ebpf": 1})[0]
    assert "only 0 are left of 1" in check(of(GOOD), known_up={pair: 1}, circle_max=WHOLE)[0]


def test_a_circle_of_files_is_found_and_its_limit_is_lowered_when_it_is_broken() -> None:
    ring = {f"cext/conn/f{i}.c": f"int roost_f{i}(void) {{ return roost_f{(i + 1) % 6}(); }}" for i in range(6)}
    assert check(of({**GOOD, **ring}), known_up={}, circle_max={"cext": 6, "ebpf": 1}) == []
    lines = check(of({**GOOD, **ring}), known_up={}, circle_max={"cext": 5, "ebpf": 1})
    assert lines[0].startswith("files of cext/ that use each other in a circle: 6")
    assert len(lines) == 7
    assert "lower the number" in check(of(GOOD), known_up={}, circle_max={"cext": 5, "ebpf": 1})[0]


def test_circles_are_the_strongly_connected_components() -> None:
    edges = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": {"d"}, "f": {"a"}}
    assert circles(edges) == [["a", "b", "c"], ["d", "e"]]


def test_the_picture_has_the_rooms_from_above_with_what_they_use() -> None:
    lines = [line.split() for line in draw(of(GOOD)).splitlines() if line]
    assert [line[0] for line in lines if line[0].endswith("/")] == [
        "ebpf/shared/",
        "cext/",
        "cext/table/",
        "cext/base/",
    ]
    assert ["uses", "cext/base,", "ebpf/shared"] in lines
    assert ["files", "hash"] in lines


def test_a_call_that_is_planted_into_the_sources_is_found() -> None:
    all_of_them = sources(ROOT)
    assert check(arrows(all_of_them)) == []
    paths = [source.path for source in all_of_them]
    path = "cext/base/wheel.c"
    planted = (ROOT / path).read_text() + "\nvoid up(struct roost_table *t) { roost_table_positions(t); }\n"
    lines = check(arrows([read(path, planted, paths), *(source for source in all_of_them if source.path != path)]))
    assert any("cext/base/wheel.c uses roost_table_positions" in line for line in lines)
