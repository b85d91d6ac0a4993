# SPDX-License-Identifier: Apache-2.0
"""Races planted into the model of test_interleavings.py: each is found by the scenario that is there for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interleave.explore import BrokenClaimError, build, explore
from tests.mutants import Mutant, plant

pytestmark = pytest.mark.timeout(1800)  # as there

TABLE, FIND, INSERT, FREEZE = "cext/table/table.c", "ebpf/lib/find.h", "ebpf/lib/insert.h", "cext/life/freeze.c"
FILTER, THAW, NEXT, COMMANDS = "cext/table/filter.c", "cext/life/thaw.c", "cext/life/next.c", "cext/commands.c"
HELD, RECEIVED, GROWTH = "cext/life/held.c", "cext/life/received.c", "cext/life/growth.c"
RST = "a packet of A came to the stack, and there is no socket: RST"
LOST = "packets of A were taken, and 0 came to its server"
RELEASED = """    uint32_t index = slot->rest;
    __atomic_store_n(&slot->rest, ROOST_ROW_OF(command->record.ka.rest), __ATOMIC_RELEASE);
    roost_table_rest_release(&e->table, index);
"""
MUTANTS = (
    Mutant(
        "a reader does not look whether the slot changed hands",
        "a probe while the slot gets another owner",
        FIND,
        "    return ctl_of(found->slot) == found->ctl;",
        "    return 1;",
        "an answer for A from no record of its own",
    ),
    Mutant(
        "a slot's next owner has the version of its last",
        "a probe while the slot is given to somebody put back",
        TABLE,
        "(ka->ctl & ~0xff00u) | ((slot->ctl + 0x100u) & 0xff00u)",
        "(ka->ctl & ~0xff00u) | (slot->ctl & 0xff00u)",
        "an answer for A from no record of its own",
    ),
    Mutant(
        "a record is published without a barrier",
        "a probe while freezing",
        TABLE,
        "sizeof(*ka) - sizeof(ka->ctl));\n    __atomic_store_n(&slot->ctl, ctl, __ATOMIC_SEQ_CST);\n}",
        "sizeof(*ka) - sizeof(ka->ctl));\n    __atomic_store_n(&slot->ctl, ctl, __ATOMIC_RELAXED);\n}",
        "an answer for A from no record of its own",
    ),
    Mutant(
        "a freeze does not wait for packets on their way",
        "data while freezing",
        FREEZE,
        "        e->in_grace = e->gathering;\n",
        "        e->graced = e->gathering;\n",
        RST,
    ),
    Mutant(
        "what is held is not judged before the record is published",
        "data while freezing",
        FREEZE,
        "bool heard = wanted(c, &client, &server);",
        "bool heard = false && wanted(c, &client, &server);",
        LOST,
    ),
    Mutant(
        "a freeze that is given up leaves the socket mute",
        "data while freezing",
        FREEZE,
        "        give_back(e, c);\n        return heard",
        "        return heard",
        LOST,
    ),
    Mutant(
        "a freeze that is given up leaves the slot",
        "data while a freeze is cancelled",
        FREEZE,
        "    roost_release_held(e, &c, 1);\n",
        "",
        LOST,
    ),
    Mutant(
        "the client's leg of a pair is published before its server's",
        "data while a pair freezes",
        FREEZE,
        "    if (c->server_slot) {\n        roost_table_pair(&e->table, &server->taking.rest, c->slot);\n",
        "    if (c->server_slot) {\n        roost_table_pair(&e->table, &server->taking.rest, c->slot);\n"
        "        roost_table_pair(&e->table, &client->taking.rest, c->server_slot);\n"
        "        publish(e, c, c->slot, client, index, ROOST_F_PAIRED);\n",
        "of a pair one leg is asleep, and the other is not",
    ),
    Mutant(
        "one leg of a pair is frozen though the other cannot be",
        "data while the freeze of a pair is cancelled",
        FREEZE,
        "        error = leg[1].error;\n",
        "",
        "the record of A is not what it was",
    ),
    Mutant(
        "a socket lives before its record is given up",
        "data while thawing",
        THAW,
        "        set_phases(b->conn[i], ROOST_THAWED);\n",
        "",
        "A's socket died with the engine, and its record lives on",
    ),
    Mutant(
        "the phases of a pair rise in the wrong order",
        "data of both while a pair thaws",
        THAW,
        "    roost_table_set_phase(c->slot, phase);\n    if (c->server_slot)\n"
        "        roost_table_set_phase(c->server_slot, phase);\n",
        "    if (c->server_slot)\n        roost_table_set_phase(c->server_slot, phase);\n"
        "    roost_table_set_phase(c->slot, phase);\n",
        "of a pair one leg is asleep, and the other is not",
    ),
    Mutant(
        "a slot goes before its socket is there",
        "data while thawing",
        THAW,
        "    int count = 0;\n    roost_workers_run(&e->workers, rebuild_slice",
        "    int count = 0;\n    for (uint32_t i = 0; i < b->conns; i++)\n"
        "        roost_table_remove(&e->table, b->conn[i]->slot);\n    roost_workers_run(&e->workers, rebuild_slice",
        "the socket of A is rebuilt from another record",
    ),
    Mutant(
        "what was held while the slot went is not handed on",
        "data while thawing",
        RECEIVED,
        "        roost_stray(e, f);\n    } else if (c && c->phase == ROOST_MARKED) {",
        "    } else if (c && c->phase == ROOST_MARKED) {",
        LOST,
    ),
    Mutant(
        "what is held is not replayed",
        "data while thawing",
        HELD,
        "            into_outbox(e, b, h);\n",
        "            continue;\n",
        LOST,
    ),
    Mutant(
        "what waits for a record wakes nobody",
        "data while falling asleep and waking",
        THAW,
        "    c->phase = ROOST_THAWING;\n    roost_wake_queue(e, c);\n",
        "    c->phase = ROOST_THAWING;\n",
        "A is asleep in phase 4",
    ),
    Mutant(
        "a thaw that failed leaves the slot waking",
        "data while a thaw fails",
        THAW,
        "    set_phases(c, ROOST_IDLE);\n",
        "",
        "A is asleep in phase 4",
    ),
    Mutant(
        "one who is being frozen is read",
        "data while freezing",
        NEXT,
        "{0, ROOST_LIVES, ROOST_NEXT_WAIT},",
        "{ROOST_FACTS, 0, ROOST_NEXT_WAIT},",
        "A is asleep, and is linked to a server",
    ),
    Mutant(
        "a rest slot is free before its connection sleeps",
        "data while falling asleep and waking",
        COMMANDS,
        f"    roost_table_set_phase(slot, ROOST_SLEEP);\n{RELEASED}",
        f"{RELEASED}    roost_table_set_phase(slot, ROOST_SLEEP);\n",
        "A is lost: it was asleep, and is not in the table",
    ),
    Mutant(
        "a freeze is given up before others' sockets are gone",
        "data while one of two freezes is cancelled",
        FREEZE,
        "        b.error[i] = finish(e, &b, i);\n    spend_all(e, &b);\n",
        "        if ((b.error[i] = finish(e, &b, i)))\n            roost_release_held(e, &b.conn[i], 1);\n"
        "    spend_all(e, &b);\n",
        "the socket of A is to live on, and its record was taken",
    ),
    Mutant(
        "who is to be born is not looked up again under the lock",
        "two acknowledgements of one birth",
        INSERT,
        "(same_a | same_b) && spot_in##family(current, &place, &n->key, &spot)",
        "0 && spot.at",
        "C is in the table twice",
    ),
    Mutant(
        "a birth does not lock",
        "a birth while another falls asleep",
        INSERT,
        "ROOST_LOCK_FREE, ROOST_LOCK_XDP) == ROOST_LOCK_FREE)",
        "ROOST_LOCK_FREE, ROOST_LOCK_XDP) <= ROOST_LOCK_ENGINE)",
        "CLAIM BROKEN",
    ),
    Mutant(
        "a dead engine's locks stay",
        "data while freezing",
        TABLE,
        "    break_locks(t);\n",
        "",
        "a bucket is locked, and nobody holds the lock",
    ),
    Mutant(
        "a slot whose move was cut short is adopted twice",
        "data while its slot is moved",
        TABLE,
        "        if (original) {",
        "        if (0 && original) {",
        "A is in the table twice",
    ),
    Mutant(
        "a client that was moved does not name its server's leg",
        "data of both while the slots of a pair are moved",
        GROWTH,
        "roost_table_has_rest(client) ? &rest[client->rest] : NULL",
        "NULL",
        LOST,
    ),
    Mutant(
        "a pair goes on naming a copy that adoption removes",
        "data of both while the slots of a pair are moved",
        TABLE,
        "            name_original(t, roost_table_name(t, slot), original);\n",
        "            ;\n",
        "S is lost: it was asleep",
    ),
    Mutant(
        "a slot is removed before the other leg names its copy",
        "data of both while the slots of a pair are moved",
        TABLE,
        "        roost_table_pair(t, peer, moved);\n    clear(t, slot, &l);\n",
        "        ;\n    clear(t, slot, &l);\n    if (peer)\n        roost_table_pair(t, peer, moved);\n",
        "S is lost: it was asleep",
    ),
    Mutant(
        "one leg of a pair is moved without the other",
        "data of both while the slots of a pair are moved",
        GROWTH,
        "    if (ROOST_FLAGS(slot->ctl) & ROOST_F_PAIRED)\n        return move_client_of_pair(e, key, slot);\n",
        "",
        "the socket of S is rebuilt from another record",
    ),
    Mutant(
        "a record whose socket lived is adopted",
        "data while thawing",
        TABLE,
        "    if (phase == ROOST_WAKING)\n",
        "    if (phase == ROOST_WAKING || phase == ROOST_THAWED)\n",
        "A's socket died with the engine, and its record lives on",
    ),
    Mutant(
        "a connection leaves the filter without a word",
        "data while it comes back from the filter",
        FILTER,
        "        count_move(f);\n        put(",
        "        put(",
        RST,
    ),
    Mutant(
        "a fingerprint is moved without a word",
        "data while another takes its place in the filter",
        FILTER,
        "        count_move(f);\n        f->moves++;",
        "        f->moves++;",
        RST,
    ),
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_race_is_found(mutant: Mutant, model: Path, tmp_path: Path) -> None:
    broken = build(tmp_path, plant(mutant, tmp_path / "tree"), changed=mutant.file, made=model.parent)
    with pytest.raises(BrokenClaimError) as caught:
        explore(broken, mutant.target)
    assert mutant.says in str(caught.value)
